"""The library that a script computes with, PyTorch or JAX. What a script has not imported is not imported here either.

So a script in JAX starts without the seconds that PyTorch takes. What belongs to JAX is in jax_trees.py.
"""

import contextlib
import os
import pickle
import random
import sys
import types
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

RANDOM_STATES = ("random", "numpy_random", "torch_random", "cuda_random")


def pytorch() -> types.ModuleType | None:
    return sys.modules.get("torch")


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor of PyTorch."""
    torch = pytorch()
    return torch is not None and isinstance(x, torch.Tensor)


def has_gpu() -> bool:
    torch = pytorch()
    return torch is not None and torch.cuda.is_available()


def is_misfit(error: Exception) -> bool:
    """Whether a network in JAX, of Flax or in plain functions, was given parameters that do not belong to it."""
    flax = sys.modules.get("flax.errors")
    if flax is None:
        return False
    has_other_shape = isinstance(error, TypeError) and "contracting dimensions" in str(error)
    return isinstance(error, flax.FlaxError | KeyError) or has_other_shape


def check_jax() -> None:
    """Say in words that JAX_PLATFORMS names what is not here: JAX notices when it first computes, if it is imported."""
    jax = sys.modules.get("jax")
    if jax is None:
        return
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:  # the former without words, for cuda without a GPU
        platforms = os.environ.get("JAX_PLATFORMS")
        raise OSError(f"JAX_PLATFORMS={platforms}: JAX has no such platform here. {error}") from None


def place_jax(device: str | None) -> contextlib.AbstractContextManager:
    """A context in which JAX computes on the CPU, if that is asked for: a `load_policy` in JAX ignores its `device`."""
    jax = sys.modules.get("jax")
    if jax is None or device != "cpu":
        return contextlib.nullcontext()
    check_jax()
    try:
        return jax.default_device(jax.devices("cpu")[0])
    except RuntimeError:
        raise OSError(f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')} leaves the CPU out: add ,cpu to it") from None


def gpu_name() -> str:
    """Of the GPU that the script can use, if there is one."""
    if has_gpu():
        return pytorch().cuda.get_device_name(0)
    jax = sys.modules.get("jax")
    if jax is not None and pytorch() is None and jax.default_backend() == "gpu":
        return jax.devices()[0].device_kind
    return ""


# Random numbers


def random_states() -> dict[str, Any]:
    """Of the generators of Python, NumPy and PyTorch. Those of JAX are keys, which belong to the script."""
    torch = pytorch()
    return {
        "random": random.getstate(),
        "numpy_random": np.random.get_state(),
        "torch_random": torch.get_rng_state() if torch else None,
        "cuda_random": torch.cuda.get_rng_state_all() if has_gpu() else [],
    }


def set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["random"])
    np.random.set_state(states["numpy_random"])
    torch = pytorch()
    if torch is None or states["torch_random"] is None:
        return
    torch.set_rng_state(states["torch_random"])
    if has_gpu():
        for device, generator in zip(range(torch.cuda.device_count()), states["cuda_random"], strict=False):
            torch.cuda.set_rng_state(generator, device)


# Files


def save(value: Any, file: BinaryIO) -> None:
    """As `torch.save` does, which by itself turns a full disk into an error that does not say so; else as a pickle.

    A pickle it is without a tensor of PyTorch, even where something has imported PyTorch: `torch.save` would write a
    replay buffer of NumPy arrays at twice its size, with many times its memory, and none of more than 4 GB.
    """
    torch = pytorch()
    if not holds_tensors(value):
        pickle.dump(value, file, protocol=5)
        return
    errors = []

    def write(data: bytes) -> int:
        try:
            return file.write(data)
        except OSError as error:
            errors.append(error)
            raise

    try:
        torch.save(value, types.SimpleNamespace(write=write, flush=file.flush))
    except Exception as error:
        raise (errors or [error])[0] from None
    if errors:
        raise errors[0]


def holds_tensors(value: Any) -> bool:
    """Whether tensors of PyTorch are in it, apart from the states of its random generators."""
    if isinstance(value, dict):
        return any(holds_tensors(x) for name, x in value.items() if name not in RANDOM_STATES)
    if isinstance(value, list | tuple):
        return any(holds_tensors(x) for x in value)
    return is_tensor(value)


def load(path: str | Path) -> Any:
    """What `save` has written. Like any pickle, it can execute code when it is loaded."""
    with open(path, "rb") as file:
        is_pytorch = file.read(2) == b"PK"  # a ZIP file
        if not is_pytorch:
            file.seek(0)
            return pickle.load(file)
    import torch

    return torch.load(path, weights_only=False, map_location="cpu", mmap=True)  # a replay buffer is large
