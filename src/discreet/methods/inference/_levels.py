"""Models that take numbers of levels from columns of codes, as they are written: `with_levels`."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.primitives import Messenger

from discreet._validate import integer

# What says how many levels a column of codes has, as a function of that number.
_COUNTS: Mapping[Any, Callable[[int], Any]] = {
    np.unique: np.arange,
    jnp.unique: np.arange,
    **dict.fromkeys((np.max, np.amax, jnp.max, jnp.amax), lambda levels: np.int64(levels - 1)),
}


class with_levels:  # noqa: N801 - used like NumPyro's handlers
    """A model whose sizes are public numbers, where its text takes them from columns of codes.

    In the text of the model `np.unique(column)` gives 0, ..., levels - 1 and `np.max(column)` gives
    levels - 1, and so do those of jax.numpy, for the arguments named here; everything else sees the
    records. So a model that says `len(np.unique(dept))` or `int(np.max(answers)) + 1` is taken as
    it is written, and no size is read from the data. The model runs as a copy of its function with
    these names bound otherwise: functions of other files that it calls are as they were.

    Args:
        model: The model's function, perhaps with handlers around it; give the result to the guide
            and to `DPSVI`.
        levels: For each such argument its number of levels; codes are 0, ..., levels - 1.

    Raises:
        ValueError: No function, no argument of that name, or less than one level.

    Example:
        >>> def model(dept):
        ...     return len(np.unique(dept))
        >>> with_levels(model, dept=6)(np.zeros(3))
        6
    """

    def __init__(self, model: Callable[..., Any], **levels: int) -> None:
        """See the class."""
        self._handlers: list[Messenger] = []
        inner: Any = model
        while isinstance(inner, Messenger):
            self._handlers.append(inner)
            inner = inner.fn
        if not inspect.isfunction(inner):
            raise ValueError(
                f"with_levels takes a model that is a function, and this is a {type(inner).__name__}."
            )
        functools.update_wrapper(self, inner, updated=[])
        self._model, self._signature = inner, inspect.signature(inner)
        if unknown := set(levels) - set(self._signature.parameters):
            raise ValueError(
                f"with_levels names {min(unknown)!r}, which is no argument of the model."
            )
        self._levels = {name: integer(name, value) for name, value in levels.items()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        given = self._signature.bind(*args, **kwargs).arguments
        model = self._model
        columns = [(given[name], levels) for name, levels in self._levels.items() if name in given]

        def counting(value: Any) -> Any:
            """One of the functions that count, or a module that has them, with the columns' levels."""
            if value in (np, jnp):
                bound = ModuleType(value.__name__)
                own = {name: counting(getattr(value, name)) for name in ("unique", "max", "amax")}
                # All other names are the module's.
                vars(bound).update(own, __getattr__=functools.partial(getattr, value))
                return bound

            def counted(*operands: Any, **options: Any) -> Any:
                found = [
                    n
                    for column, n in columns
                    if len(operands) == 1 and not options and operands[0] is column
                ]
                return _COUNTS[value](found[0]) if found else value(*operands, **options)

            return counted

        counts = [*_COUNTS, np, jnp]
        names = {
            name: counting(x)
            for name, x in model.__globals__.items()
            if any(x is y for y in counts)
        }
        copied: Any = FunctionType(
            model.__code__,
            {**model.__globals__, **names},
            model.__name__,
            model.__defaults__,
            model.__closure__,
        )
        copied.__kwdefaults__ = model.__kwdefaults__
        for handler in reversed(self._handlers):
            outer = copy.copy(handler)
            outer.fn = copied
            copied = outer
        return copied(*args, **kwargs)
