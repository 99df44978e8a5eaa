"""Which arguments are records, and what stands in for them where data must not be seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from discreet._jax import one_process, warn_of_release, warn_of_spread

# Below this many records, an array of the same length may well be something else.
_FEWEST_TELLING_ROWS = 16


class Records(NamedTuple):
    """The arguments of a call, taken apart.

    Attributes:
        leaves: the arrays whose leading axis is the records.
        rebuild: puts arrays of any length back into `(args, kwargs)`, among the static
            arguments (numbers, strings, None) that stay as they were passed.
        static: how the arguments are nested and what the static ones are; hashable. Calls with
            the same `static` and the same shapes and dtypes of records mean the same program.
    """

    leaves: list[Any]
    rebuild: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
    static: tuple[Any, ...]

    @property
    def signature(self) -> tuple[Any, ...]:
        """All that a compiled step depends on but the number of rows."""
        return self.static, tuple((tuple(x.shape[1:]), str(x.dtype)) for x in self.leaves)

    @property
    def size(self) -> int:
        """Number of records, or of rows of a batch."""
        return self.leaves[0].shape[0]

    def zeros(self, size: int) -> list[Array]:
        """`size` placeholder records: zeros of the right shapes and dtypes, free of data."""
        return [jnp.zeros((size, *x.shape[1:]), x.dtype) for x in self.leaves]

    def filled(self, value: int, size: int) -> list[Array]:
        """As `zeros`, with another constant."""
        return [jnp.full((size, *x.shape[1:]), value, x.dtype) for x in self.leaves]

    def shapes(self, size: int) -> list[jax.ShapeDtypeStruct]:
        """Abstract records: shapes and dtypes alone."""
        return [jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for x in self.leaves]


def take_apart(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Records:
    """Find the record arrays among the arguments of a model.

    Every function that takes records comes through here before it does anything else, so this is where several processes
    are refused, and where a release of JAX that nobody tried is named.

    Args:
        args: positional arguments, pytrees of arrays with records along the leading axis;
            Python numbers, strings and None are static and public.
        kwargs: likewise.

    Raises:
        TypeError: an argument is neither an array nor static.
        ValueError: no record array, arrays of different lengths, no record at all, or several processes.
    """
    passed = jax.tree.leaves((tuple(args), dict(kwargs)))
    warn_of_release()
    one_process("discreet", passed)
    warn_of_spread("discreet", passed)
    leaves, structure = jax.tree.flatten((tuple(args), dict(kwargs)), is_leaf=lambda x: x is None)
    leaves = [x.item() if isinstance(x, np.generic) else x for x in leaves]
    positions: list[int] = []
    arrays: list[Any] = []
    for position, leaf in enumerate(leaves):
        if leaf is None or isinstance(leaf, bool | int | float | complex | str | bytes):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                raise ValueError(f"A static argument is {leaf}, so the model would be undefined; pass a finite number.")
            continue
        positions.append(position)
        arrays.append(_as_records(leaf))
        # What rebuilds the arguments outlives this call, and must not hold the table.
        leaves[position] = None
    if len(leaves) - len(positions) > _FEWEST_TELLING_ROWS:
        raise ValueError(
            f"The arguments hold {len(leaves) - len(positions)} single numbers, which looks like a list of records; "
            "single numbers are taken for public. Pass records as arrays: numpy.asarray(column)."
        )
    if not arrays:
        raise ValueError(
            "No argument is an array, so there are no records to fit. Pass the table as arrays whose "
            "leading axis is the records, as in dpsvi.run(key, xs, ys)."
        )
    lengths = sorted({x.shape[0] for x in arrays})
    if len(lengths) > 1:
        raise ValueError(
            f"The record arrays have different lengths: {lengths}. The leading axis of every array "
            "argument is the records; pass public arrays of another kind as keyword arguments to DPSVI."
        )
    if lengths[0] == 0:
        raise ValueError("The record arrays have length 0: there is no record to fit.")

    def rebuild(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        filled = list(leaves)
        for position, value in zip(positions, values, strict=True):
            filled[position] = value
        return jax.tree.unflatten(structure, filled)

    static = (str(structure), tuple((i, type(x).__name__, x) for i, x in enumerate(leaves) if i not in positions))
    return Records(arrays, rebuild, static)


def _as_records(leaf: Any) -> Array:
    if not isinstance(leaf, jax.Array | np.ndarray):
        raise TypeError(
            f"An argument holds a {type(leaf).__module__}.{type(leaf).__name__}, which is no array. "
            "Convert a table first, for example with numpy.asarray(table, dtype=numpy.float32)."
        )
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biuf":
        raise TypeError(
            f"A record array has dtype {leaf.dtype}; records are numbers. Encode categories as "
            "integers or one-hot columns first."
        )
    if leaf.ndim == 0:
        raise ValueError(
            "A record argument is a scalar array without a leading axis for the records. Pass a public "
            "constant as a Python number, or as a keyword argument to DPSVI."
        )
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise TypeError("A record argument is an array of PRNG keys; records are numbers.")
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        raise TypeError("A record array is complex. Pass real and imaginary parts as two arrays.")
    if isinstance(leaf, np.ndarray) and not leaf.flags.writeable:
        # Used where it lies, if its memory is laid out as JAX's: a memory map larger than memory is not read whole.
        with np.errstate(over="ignore"):
            return jax.device_put(leaf, may_alias=True)
    with np.errstate(over="ignore"):
        # A number too large for float32 becomes infinite, and its record contributes zero; a warning would show it.
        return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)


def check_public(values: Mapping[str, Any]) -> None:
    """Refuse NaN and infinity in public keyword arguments.

    Raises:
        ValueError: naming the argument.
    """
    for name, value in values.items():
        for leaf in jax.tree.leaves(value):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                broken = True
            elif isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.inexact):
                broken = not bool(np.all(np.isfinite(np.asarray(leaf))))
            else:
                broken = False
            if broken:
                raise ValueError(
                    f"The public argument {name!r} holds a NaN or an infinity, so the model would be "
                    "undefined for every record. Mend it before fitting."
                )


def refuse_tables(arrays: Sequence[Any], lengths: Sequence[int]) -> None:
    """Refuse arrays as long as the table that come in beside the records: they are the table.

    Args:
        arrays: what model and guide use without having it passed as records.
        lengths: how long tables are here.

    Raises:
        ValueError: with the shape.
    """
    telling = {n for n in lengths if n > _FEWEST_TELLING_ROWS}
    for x in arrays:
        if telling.intersection(getattr(x, "shape", ())):
            raise ValueError(
                f"The model or the guide uses an array of shape {x.shape} that was not passed as records but is as "
                "long as the table, through its closure or a keyword argument of DPSVI. Records must come as "
                "arguments of run, or they would be used whole in every record's loss, without clipping. (A public "
                "array that has this length by chance can be passed to DPSVI as a tuple of numbers.)"
            )
