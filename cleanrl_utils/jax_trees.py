"""Trees of JAX arrays in a checkpoint: parameters, the state of an optimizer, a random key.

A checkpoint holds their arrays as NumPy arrays in a list. The script that resumes makes a tree of its own first, which
says where each of them belongs.
"""

import sys
from typing import Any

import numpy as np


def is_tree(value: Any) -> bool:
    """Whether JAX arrays are in it. Without JAX there are none."""
    jax = sys.modules.get("jax")
    return jax is not None and any(isinstance(x, jax.Array) for x in jax.tree.leaves(value))


def to_numpy(tree: Any) -> list[np.ndarray]:
    import jax

    leaves = jax.tree.leaves(tree)
    return [np.asarray(jax.random.key_data(x) if is_random_key(x) else x) for x in leaves]


def from_numpy(tree: Any, arrays: list[np.ndarray]) -> Any:
    """A tree like the given one, with these arrays in it."""
    import jax

    leaves, structure = jax.tree.flatten(tree)
    restored = []
    for i, (leaf, array) in enumerate(zip(leaves, arrays, strict=True)):
        if is_random_key(leaf):
            restored.append(jax.random.wrap_key_data(array))
            continue
        if np.shape(leaf) != array.shape:
            raise ValueError(f"the shape of array {i} was {array.shape} and is {np.shape(leaf)} now")
        restored.append(jax.numpy.asarray(array, dtype=leaf.dtype))
    return jax.tree.unflatten(structure, restored)


def is_random_key(x: Any) -> bool:
    import jax

    return isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)


def freeze(args: Any) -> None:
    """From now on, a change of `args` is an error: the functions that JAX has compiled would not see it."""
    message = "cannot change once the training has begun: JAX reads `args` when it compiles a function, and never again"
    advice = "Hand what is to change to the function as an argument, as ppo_jax.py does with its learning rate."

    class Frozen(type(args)):
        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError(f"args.{name} {message}. {advice}")

    object.__setattr__(args, "__class__", Frozen)
