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
DEPTH = 50  # how far a chain of attributes and elements is followed
MAX_ELEMENTS = 1000  # of a list or dictionary; of longer ones, the length is watched
MAX_BYTES = 2**20  # of an array
NOT_SCRIPTS = (os.path.dirname(os.__file__), os.path.dirname(__file__))  # the standard library, and this package


def named_tensors(state: dict) -> dict[str, torch.Tensor]:
    """The tensors of all modules and optimizers in a script's state, and those that are there themselves."""
    found: dict[str, torch.Tensor] = {}
    for name, x in state.items():
        if isinstance(x, torch.nn.Module):
            found |= {f"{name}.{path}": value for path, value in (*x.named_parameters(), *x.named_buffers())}
        elif isinstance(x, torch.optim.Optimizer):
            for i, part in enumerate([*x.param_groups, *x.state.values()]):
                tensors = {key: value for key, value in part.items() if isinstance(value, torch.Tensor)}
                found |= {f"{name}'s {key} {i}": value for key, value in tensors.items()}
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

    These are the variables of the function's file and those that it closes over, with what hangs on them, the state of
    the script, and the random generators.
    """
    function = plain_function(function)
    reached = closed_over(function)
    reached[f"an attribute or default of {function.__name__}"] = function
    for name, x in function.__globals__.items():
        if not name.startswith("__"):
            reached[f"the global {name}" if name in reached else name] = x
    reached["the state"] = state
    reached["Python's random numbers"] = repr(random.getstate())
    reached["NumPy's random numbers"] = repr(np.random.get_state())
    seen: set[int] = set()
    return {name: describe(x, seen, DEPTH) for name, x in reached.items()}


def changes(before: dict, after: dict) -> list[str]:
    return [name for name in before | after if before.get(name) != after.get(name)]


def describe(x: Any, seen: set[int], depth: int) -> Any:
    """A value that stays equal as long as `x` does. Each object is looked into once."""
    if isinstance(x, PLAIN):
        return repr(x)
    if id(x) in seen or depth == 0:
        return id(x)
    seen.add(id(x))
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
    if isinstance(x, torch.Tensor):  # its values are no matter of Python
        place = x.data_ptr() if x.layout is torch.strided else None
        return [place, x.requires_grad, x._backward_hooks, x._post_accumulate_grad_hooks]
    if isinstance(x, np.ndarray | np.generic):
        return [x.tobytes()] if x.nbytes <= MAX_BYTES else None
    if isinstance(x, random.Random):
        return [repr(x.getstate())]
    if isinstance(x, np.random.Generator):
        return [repr(x.bit_generator.state)]
    if isinstance(x, np.random.RandomState):
        return [repr(x.get_state())]
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
    """Whether objects of a class are looked into: those of scripts, modules and optimizers are.

    Those of libraries, installed by pip or by a distribution of Linux, are not: a logger's or a progress bar's threads
    change it at any time.
    """
    if kind.__module__.startswith(("__main__", "torch.nn", "torch.optim", "types", "argparse")):
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is None or file.startswith(NOT_SCRIPTS):
        return False
    homes = Path(file).parents
    return not any(x.name in ("site-packages", "dist-packages") or any(x.glob("*.dist-info")) for x in homes)
