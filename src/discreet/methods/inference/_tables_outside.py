"""Find tables that a model uses without taking them as arguments.

Such a table would be compiled into the program as a constant: it would be neither sampled nor
protected. Programs that use an array as long as the table are refused, and these functions name the
variable that has to become an argument.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpyro.infer.autoguide import AutoGuideList
from numpyro.primitives import Messenger

if TYPE_CHECKING:
    from discreet.methods.inference._records import Values


def reached(
    program: Any, name: str = "", seen: set[int] | None = None
) -> Iterator[tuple[str, Any]]:
    """A program with all that it wraps or names, each with the name of its variable.

    These are the parts of lists, the functions within handlers, methods and partial functions, and
    the global and closure variables of functions, with those of the functions that they call.
    """
    seen = set() if seen is None else seen
    if id(program) in seen:
        return
    seen.add(id(program))
    yield name, program
    inner: Values = {}
    parts: Sequence[Any] = ()
    if isinstance(program, AutoGuideList | list | tuple):
        parts = list(program)
    elif isinstance(program, functools.partial):
        parts = [program.func, *program.args, *program.keywords.values()]
    elif isinstance(program, Messenger):
        parts = [program.fn]
    elif inspect.ismethod(program):
        parts = [program.__func__]
        inner = getattr(program.__self__, "__dict__", {})
    elif inspect.isfunction(program):
        variables = inspect.getclosurevars(program)
        inner = {**variables.globals, **variables.nonlocals}
    for part in parts:
        yield from reached(part, name, seen)
    for its_name, value in inner.items():
        yield from reached(value, its_name, seen)


def make_arguments(programs: Sequence[Any], belongs: Callable[[tuple[int, ...]], bool]) -> str:
    """What to write where programs use arrays of certain shapes from outside: a sentence, or "" if no variable holds one."""
    found = [(name, x) for program in programs for name, x in reached(program) if name]
    names = [
        name for name, x in found if isinstance(x, np.ndarray | jax.Array) and belongs(x.shape)
    ]
    if not names:
        return ""
    listed = ", ".join(dict.fromkeys(names))
    one = len(set(names)) == 1
    return (
        f" {listed} {'is' if one else 'are'} defined outside: make {'it an argument' if one else 'them arguments'} of the model, "
        f"def model(..., {listed}), and pass {'it' if one else 'them'} to run."
    )
