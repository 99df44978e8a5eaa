"""Find the records among arguments, and replace them by placeholders where data must not be read.

The arguments of every method pass through `take_apart`: it finds the arrays of records among them
and refuses what is none, several processes among that.
"""

from __future__ import annotations

import math
import mmap
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from discreet._jax import one_process, untried_jax, warn_of_spread
from discreet._numpyro import untried_numpyro
from discreet._validate import unmasked
from discreet.methods.inference._tables_outside import make_arguments
from discreet.privacy.mechanisms import InFiles

Program = Callable[..., Any]
Values = Mapping[str, Any]  # of sites, parameters or arguments, by name
Message = Mapping[str, Any]  # a site as NumPyro's handlers and traces have it
PlateSizes = dict[str, tuple[int, int | None]]  # declared, and subsampled or None
# Below this many records, an array of the same length may well be something else.
_FEWEST_TELLING_ROWS = 16


class Records(NamedTuple):
    """The arguments of a call, taken apart."""

    leaves: list[Any]  # The arrays whose leading axis is the records
    # Puts arrays of any length back into `(args, kwargs)`, among the static arguments (numbers,
    # strings, None) that stay as they were passed
    rebuild: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
    # How the arguments are nested and what the static ones are; hashable. Calls with the same
    # `static` and the same shapes and dtypes of records mean the same program.
    static: tuple[Any, ...]
    in_files: bool = False  # some arrays are maps of files, and may be larger than memory

    @property
    def signature(self) -> tuple[Any, ...]:
        """All that a compiled step depends on but the number of rows."""
        return self.static, tuple((tuple(x.shape[1:]), str(x.dtype)) for x in self.leaves)

    @property
    def size(self) -> int:
        """Number of records, or of rows of a batch."""
        return self.leaves[0].shape[0]

    def filled(self, value: float, size: int) -> list[Array]:
        """`size` placeholder records of the right shapes and dtypes, free of data: a constant; of integers its whole part."""
        return [jax.device_put(np.full((size, *x.shape[1:]), value, x.dtype)) for x in self.leaves]

    def shapes(self, size: int) -> list[jax.ShapeDtypeStruct]:
        """Abstract records: shapes and dtypes alone."""
        return [jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for x in self.leaves]


_OPTIONS = {"checkpoint", "keep_gradients", "ledger", "progress_bar", "require_proof"}


def refuse_options(given: Values) -> None:
    """Refuse options of other methods: a model that takes any keyword would take them in silence."""
    if options := sorted(_OPTIONS & given.keys()):
        raise TypeError(
            f"{options[0]}= is no option here, and would be an argument of the model: leave it out, or pass it to run, if the "
            "method has it. An argument of the model needs another name."
        )


def take_apart(
    args: Sequence[Any], kwargs: Values, mesh: Any = None, programs: Sequence[Program] = ()
) -> Records:
    """Find the record arrays among the arguments of a model.

    Every function that takes records comes through here before it does anything else, so this is
    where several processes are refused, and where a release of JAX or NumPyro that nobody tried is
    named.

    The arguments are pytrees of arrays with records along the leading axis; Python numbers, strings
    and None are static and public. Arrays stay where they are if the caller will spread them over a
    mesh. `programs` are the functions that take the arguments: a refusal names the tables that they
    use from outside.
    """
    refuse_options(kwargs)
    passed = jax.tree.leaves((tuple(args), dict(kwargs)))
    for why in filter(None, (untried_jax(), untried_numpyro())):
        warnings.warn(why, UserWarning, stacklevel=2)
    one_process("discreet", passed)
    if mesh is None:
        warn_of_spread("discreet", passed)
    leaves, structure = jax.tree.flatten((tuple(args), dict(kwargs)), is_leaf=lambda x: x is None)
    leaves = [x.item() if isinstance(x, np.generic) else x for x in leaves]
    positions: list[int] = []
    arrays: list[Any] = []
    in_files = any(lies_in_files(leaf) for leaf in leaves)
    for position, leaf in enumerate(leaves):
        if leaf is None or isinstance(leaf, bool | int | float | complex | str | bytes):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                raise ValueError(
                    f"A static argument is {leaf}, so the model would be undefined; pass a finite number."
                )
            continue
        positions.append(position)
        arrays.append(_as_records(leaf, spread=mesh is not None))
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
            "leading axis is the records, as in dpsvi.run(key, xs, ys); the model takes them as arguments, def model(xs, ys)."
            + make_arguments(programs, lambda shape: max(shape, default=0) > _FEWEST_TELLING_ROWS)
        )
    lengths = sorted({x.shape[0] for x in arrays})
    if len(lengths) > 1:
        raise ValueError(
            f"The record arrays have different lengths: {lengths}. The leading axis of every array "
            "argument is the records; pass public arrays of another kind as keyword arguments to DPSVI or DPNewton."
        )
    if lengths[0] == 0:
        raise ValueError("The record arrays have length 0: there is no record to fit.")
    if empty := [x.shape for x in arrays if 0 in x.shape[1:]]:
        raise ValueError(
            f"A record array has the shape {empty[0]}: it has no columns, so there is nothing in it to learn from. Select its "
            "columns, or leave the argument and what the model makes of it out."
        )

    def rebuild(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        filled = list(leaves)
        for position, value in zip(positions, values, strict=True):
            filled[position] = value
        return jax.tree.unflatten(structure, filled)

    static = (
        str(structure),
        tuple((i, type(x).__name__, x) for i, x in enumerate(leaves) if i not in positions),
    )
    return Records(arrays, rebuild, static, in_files)


IN_SHARDS = (
    "These records were opened for a mesh, so each process has its part. Pass mesh= to run of DPSVI or DPSGLD; or open them "
    "without mesh=, in one process or for private Newton."
)


def lies_in_files(array: Any) -> bool:
    """True for a map of files: NumPy's, or one of `tables.open_records`."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap) or getattr(array, "in_files", False)


def _as_records(leaf: Any, *, spread: bool) -> Any:
    if isinstance(leaf, Mesh):
        raise TypeError(
            "mesh= is no option here, but of DPSVI, DPSGLD and private Newton: leave it out."
        )
    if isinstance(leaf, InFiles):
        if spread:
            return leaf
        raise ValueError(IN_SHARDS)
    if hasattr(leaf, "to_numpy"):
        leaf = leaf.to_numpy()  # a column or a table of pandas or Polars
    if not isinstance(leaf, jax.Array | np.ndarray):
        raise TypeError(
            f"An argument holds a {type(leaf).__module__}.{type(leaf).__name__}, which is no array. "
            "Convert a table first, for example with numpy.asarray(table, dtype=numpy.float32)."
        )
    if isinstance(leaf, np.ndarray):
        unmasked("A record array", leaf)
        if leaf.dtype.kind not in "biuf":
            raise TypeError(
                f"A record array has dtype {leaf.dtype}; records are numbers. Encode categories as "
                "integers or one-hot columns first."
            )
        # Some files hold numbers with their first byte first, which JAX does not take.
        leaf = leaf.astype(leaf.dtype.newbyteorder("="), copy=False)
    if leaf.ndim == 0:
        raise ValueError(
            "A record argument is a scalar array without a leading axis for the records. Pass a public "
            "constant as a Python number, or as a keyword argument to DPSVI."
        )
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise TypeError("A record argument is an array of PRNG keys; records are numbers.")
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        raise TypeError("A record array is complex. Pass real and imaginary parts as two arrays.")
    if isinstance(leaf, jax.Array):
        return leaf
    # A number too large for float32 becomes infinite, and its record contributes zero; a warning
    # would show it.
    with np.errstate(over="ignore"):
        if spread:
            return leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)
        if not leaf.flags.writeable:
            # Used where it lies, if its memory is laid out as JAX's: a memory map larger than
            # memory is not read whole.
            return jax.device_put(leaf, may_alias=True)
        # A copy, whose owner is gone: `device_put` takes an aligned array where it lies.
        # jnp.asarray copies by a program.
        return jax.device_put(np.array(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype)))


def check_public(values: Values) -> None:
    """Refuse NaN, infinity and options of `run` in public keyword arguments."""
    refuse_options(values)
    for name, value in values.items():
        for leaf in jax.tree.leaves(value):
            is_array = isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(
                leaf.dtype, jnp.inexact
            )
            if (is_array or isinstance(leaf, float)) and not np.all(np.isfinite(np.asarray(leaf))):
                raise ValueError(
                    f"The public argument {name!r} holds a NaN or an infinity, so the model would be "
                    "undefined for every record. Fix it before fitting."
                )


def refuse_tables(
    arrays: Sequence[Any], lengths: Sequence[int], programs: Sequence[Program] = ()
) -> None:
    """Refuse arrays as long as the table that come in beside the records: they are the table.

    `programs` are the functions that use them, in which the refusal looks for their names.
    """
    telling = {n for n in lengths if n > _FEWEST_TELLING_ROWS}
    for x in arrays:
        if telling.intersection(getattr(x, "shape", ())):
            raise ValueError(
                f"The model or the guide uses an array of shape {x.shape} that was not passed as records but is as "
                "long as the table, through its closure or a keyword argument of DPSVI. Records must come as "
                "arguments of run, or they would be used whole in every record's loss, without clipping."
                + make_arguments(programs, lambda shape: not telling.isdisjoint(shape))
                + " (A public array that has this length by chance can be passed to DPSVI as a tuple of numbers.)"
            )


def refuse_reshaped(
    arrays: Sequence[Any],
    public: Sequence[Any],
    records: Sequence[Any],
    length: int,
    programs: Sequence[Program],
) -> None:
    """Refuse arrays in the closure that look like the table in another shape, or like a good part of it.

    Only shapes are looked at. A table in the closure cannot be told for sure: not if it is summed
    up, or cut into small parts.
    """
    if length <= _FEWEST_TELLING_ROWS:
        return
    declared = {tuple(x.shape) for x in public if hasattr(x, "shape")}
    rows = {tuple(x.shape[1:]) for x in records}
    sizes = {length * math.prod(row) for row in rows}
    for shape in {tuple(x.shape) for x in arrays} - declared:
        runs = {
            math.prod(shape[i:j]) for i in range(len(shape)) for j in range(i + 1, len(shape) + 1)
        }
        square = len(shape) == 2 and shape[0] == shape[1]
        part = (
            shape[1:] in rows and shape[0] > max(_FEWEST_TELLING_ROWS, length // 4) and not square
        )
        if part or length in runs or sizes & runs:
            raise ValueError(
                f"The model or the guide uses an array of shape {shape} from its closure, which was not passed as records "
                f"but has the shape of {'a part of' if part else 'all'} {length} records. Records must come as arguments of "
                "run, or they would be used whole in every record's loss, without clipping."
                + make_arguments(programs, shape.__eq__)
                + " A public array can be passed to DPSVI as a keyword argument, which the model then takes."
            )
