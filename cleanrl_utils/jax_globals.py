"""Notice that a JAX script changes a variable which its compiled functions have read.

JAX reads `optimizer`, say, when it compiles `update`, and never again: `optimizer = optax.sgd(1e-3)` half way through
the training would change nothing, without a word.
"""

import dis
import inspect
import types
from collections.abc import Iterator
from typing import Any

variables: dict[str, Any] = {}  # those of the script
read: dict[str, tuple[str, Any]] = {}  # for each variable: a compiled function that reads it, and what it has read


def watch(script_variables: dict[str, Any]) -> None:
    """From now on, `check` finds out whether a variable has changed that a compiled function reads."""
    global variables
    variables = script_variables
    read.clear()
    for name, function in variables.items():
        if is_compiled(function):
            for used in sorted(names_used_by(inspect.unwrap(function), variables)):
                read[used] = name, variables[used]


def check() -> None:
    """Raise an error if a variable is not what a compiled function has read any more."""
    for name, (function, value) in read.items():
        if variables.get(name) is not value:
            raise RuntimeError(
                f"`{name}` has changed, and `{function}` does not know it: JAX reads variables when it compiles a "
                f"function, and never again. Hand what is to change to the function as an argument."
            )


def is_compiled(x: Any) -> bool:
    """Whether it is what `jax.jit` returns."""
    return callable(x) and hasattr(x, "lower") and hasattr(x, "__wrapped__")


def names_used_by(function: Any, variables: dict[str, Any]) -> set[str]:
    """The variables of a script that a function reads, itself or through functions and classes of the script."""
    found: set[str] = set()
    todo = [function]
    while todo:
        for name in {name for code in codes_of(todo.pop(), variables) for name in globals_read(code)}:
            if name in variables and name not in found:
                found.add(name)
                todo.append(variables[name])
    return found


def codes_of(x: Any, variables: dict[str, Any]) -> Iterator[types.CodeType]:
    """The code of a function, or of all methods of a class, or of the class of an object, if it is the script's own."""
    x = inspect.unwrap(x) if callable(x) else x
    if isinstance(x, types.FunctionType):
        if x.__globals__ is variables:
            yield x.__code__
        return
    kind = x if isinstance(x, type) else type(x)
    if kind.__module__ == variables.get("__name__"):
        for method in vars(kind).values():
            method = inspect.unwrap(getattr(method, "fget", None) or getattr(method, "__func__", method))
            if isinstance(method, types.FunctionType) and method.__globals__ is variables:
                yield method.__code__


def globals_read(code: types.CodeType) -> Iterator[str]:
    """The names of global variables in a function and in those inside of it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from globals_read(constant)
