"""What a function can reach and change in Python, besides the contents of tensors: a replay would not do it."""

import functools
import inspect
import operator
import os
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

PLAIN = (bool, int, float, complex, str, bytes, type(None))
DEPTH = 6  # how far a chain of attributes and elements is followed
MAX_ELEMENTS = 1000  # of a list or dictionary; of longer ones, the length is watched
MAX_BYTES = 2**20  # of an array
STANDARD_LIBRARY = os.path.dirname(os.__file__)
THIS_PACKAGE = os.path.dirname(__file__)


def named_tensors(state: dict) -> dict[str, torch.Tensor]:
    """The tensors of all modules and optimizers in a script's state, and those that are there themselves."""
    found: dict[str, torch.Tensor] = {}
    for name, x in state.items():
        if isinstance(x, torch.nn.Module):
            found |= {f"{name}.{path}": value for path, value in (*x.named_parameters(), *x.named_buffers())}
        elif isinstance(x, torch.optim.Optimizer):
            parts = {f"{name}'s group {i}": group for i, group in enumerate(x.param_groups)}
            parts |= {f"{name}'s state {i}": moments for i, moments in enumerate(x.state.values())}
            found |= {
                f"{part} {key}": value
                for part, values in parts.items()
                for key, value in values.items()
                if isinstance(value, torch.Tensor)
            }
        elif isinstance(x, torch.Tensor):
            found[name] = x
    return found


def plain_function(function: Any) -> types.FunctionType | None:
    """The function of a script behind methods, decorators and `partial`, if there is one."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    return function if isinstance(function, types.FunctionType) else None


def variables_in_reach(function: Callable, state: dict) -> dict[str, Any]:
    """All that a function might change besides the contents of tensors, in a form that can be compared.

    These are the attributes of the modules in the state, the places of the state's tensors in memory, the variables of
    the function's file and those that it closes over, with what hangs on them, and the random generators.
    """
    networks = {name: x for name, x in state.items() if isinstance(x, torch.nn.Module)}
    modules = {path: module for name, x in networks.items() for path, module in x.named_modules(prefix=name)}
    seen = {id(module): DEPTH for module in modules.values()}
    found = {}
    for path, module in modules.items():
        found |= {f"{path}.{key}": describe(value, seen) for key, value in vars(module).items()}
    for name, x in named_tensors(state).items():
        found[f"the memory of {name}"] = id(x), x.data_ptr(), x.requires_grad
        found[f"the hooks of {name}"] = describe(x, seen)
    function = plain_function(function)
    found |= {name: describe(x, seen) for name, x in closed_over(function).items()}
    found[f"an attribute or default of {function.__name__}"] = describe(function, seen)
    for name, x in function.__globals__.items():
        if not name.startswith("__"):
            found[f"the global {name}" if name in found else name] = describe(x, seen)
    found["the state"] = describe(state, seen)
    found["Python's random numbers"] = random.getstate()
    found["NumPy's random numbers"] = np.random.get_state()[1].tobytes(), np.random.get_state()[2:]
    return found


def changes(before: dict, after: dict) -> list[str]:
    return [name for name in before | after if before.get(name) != after.get(name)]


def describe(x: Any, seen: dict[int, int], depth: int = DEPTH) -> Any:
    """A value that stays equal as long as `x` does. `seen` tells from how far above an object was looked into."""
    if isinstance(x, PLAIN):
        return repr(x)
    if isinstance(x, torch.Tensor) and not x._backward_hooks and not x._post_accumulate_grad_hooks:
        return id(x)  # its contents are no matter of Python
    if isinstance(x, np.ndarray | np.generic):
        return x.tobytes() if x.nbytes <= MAX_BYTES else id(x)
    if isinstance(x, random.Random):
        return x.getstate()
    if isinstance(x, np.random.Generator):
        return repr(x.bit_generator.state)
    if isinstance(x, np.random.RandomState):
        return repr(x.get_state())
    if depth == 0 or seen.get(id(x), -1) >= depth:
        return id(x)
    seen[id(x)] = depth
    held = contents(x)
    if held is None:
        return id(x)
    if len(held) > MAX_ELEMENTS:
        return id(x), len(held)
    if isinstance(held, dict | types.MappingProxyType):
        return id(x), {key: describe(value, seen, depth - 1) for key, value in held.items()}
    return id(x), [describe(value, seen, depth - 1) for value in held]


def contents(x: Any) -> Any:
    """What an object holds and could lose or change, as a dictionary or list; nothing if it is not looked into."""
    if isinstance(x, dict | list | tuple | set | deque):
        return x
    if isinstance(x, torch.Tensor):
        return [x._backward_hooks, x._post_accumulate_grad_hooks]
    if isinstance(x, types.FunctionType):
        return closed_over(x) | {"defaults": x.__defaults__, "kwdefaults": x.__kwdefaults__, "attributes": x.__dict__}
    if isinstance(x, types.MethodType):
        return [x.__func__, x.__self__]
    if isinstance(x, functools.partial):
        return [x.func, x.args, x.keywords]
    if isinstance(x, types.GeneratorType):
        return x.gi_frame.f_locals if x.gi_frame else []
    if isinstance(x, type):
        return vars(x) if is_open(x) else None
    if is_open(type(x)):
        slots = [name for kind in type(x).__mro__ for name in getattr(kind, "__slots__", ())]
        return getattr(x, "__dict__", None) if not slots else {name: getattr(x, name, None) for name in slots}
    if isinstance(x, Iterator):
        return [repr(x), operator.length_hint(x, -1)]
    return None


def closed_over(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            pass
    return found


@functools.cache
def is_open(kind: type) -> bool:
    """Whether objects of a class are looked into.

    Those of scripts, modules and optimizers are. Those of other libraries are not: a logger's or a progress bar's
    threads change it at any time.
    """
    module = kind.__module__
    if module.startswith(("__main__", "torch.nn", "torch.optim", "types", "argparse")):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or file.startswith((STANDARD_LIBRARY, THIS_PACKAGE)):
        return False
    return not is_installed(Path(file).parent)


@functools.cache
def is_installed(folder: Path) -> bool:
    """Whether packages were installed into a folder, or one above it, by pip or by a distribution of Linux."""
    homes = [folder, *folder.parents]
    return any(home.name in ("site-packages", "dist-packages") or any(home.glob("*.dist-info")) for home in homes)
