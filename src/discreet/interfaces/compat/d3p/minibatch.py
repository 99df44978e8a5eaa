"""`d3p.minibatch`: functions that return batches, drawn by discreet's samplers.

Each batchifier returns `init` and `get_batch`, which work in Python loops, `jit` and `fori_loop`.
d3p's `DPSVI.update` gets arrays without their sampling scheme, but epsilon depends on it. So each
`get_batch` registers the arrays that it returns, concrete ones and the tracers of a program being
compiled, and `source_of` finds the batchifier behind them. The table and sampling scheme of a
batchifier are its `Source`, which outlives it. In a compiled loop nobody can see whether a batch is
used twice, so there `update` draws another one for each step (`drawn_for`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array

from discreet.interfaces.compat.d3p.feistel import feistel_permutation
from discreet.interfaces.compat.d3p.random import as_key
from discreet.privacy import random
from discreet.privacy.accounting import Relation
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import Batch, FixedSizeSampling, FullBatch, PoissonSampling, Sampling

__all__ = [
    "poisson_batchify_data",
    "q_to_batch_size",
    "split_batchify_data",
    "subsample_batchify_data",
]

Init = Callable[..., tuple[int, Any]]


@dataclasses.dataclass(frozen=True)
class BatchLaw:
    """The sampling scheme of batches from a table."""

    sampling: Sampling  # the sampler; for disjoint batches, one with batches of the same size
    num_records: int  # rows of the table
    # batches are the pieces of a shuffled table (d3p's `split_batchify_data`), so that a record is
    # in one batch of a pass; there is no amplification by subsampling
    disjoint: bool = False

    @property
    def relation(self) -> Relation:
        """The relation under which the law has sound accounting."""
        return self.sampling.usual_relation()

    @property
    def rows(self) -> int:
        """Rows of a batch, padding included."""
        return self.sampling.capacity(self.num_records)

    @property
    def rate(self) -> float:
        """The probability that a record enters a batch."""
        return self.sampling.rate_for(self.num_records)

    @property
    def masked(self) -> bool:
        """True if rows of a batch may be padding."""
        return not self.sampling.constant_size and self.rate < 1.0

    @property
    def updates(self) -> int:
        """Updates per release of the plan: one, or for disjoint batches those of a pass."""
        return self.num_records // self.rows if self.disjoint else 1

    def units(self, num_steps: int) -> int:
        """The number of releases of the plan in `num_steps` updates."""
        return math.ceil(num_steps / self.updates)

    def plan(self, *, num_steps: int, **facts: Any) -> PrivacyPlan:
        """The plan of `num_steps` updates, for its event; `facts` are arguments of `PrivacyPlan`.

        Guarantee for disjoint batches: under REPLACE_ONE the two versions of a record are at the
        same place of the shuffled table, so in one pass one batch differs and its release is one
        Gaussian mechanism; releases before and after it have the same distribution given the past.
        So a pass costs as much as one step on all records.
        """
        return PrivacyPlan(
            sampling=FullBatch() if self.disjoint else self.sampling,
            num_steps=self.units(num_steps),
            relation=self.relation,
            **{"num_records": self.num_records, **facts},
        )

    def __str__(self) -> str:
        """Description for messages."""
        if self.disjoint:
            return f"disjoint batches of {self.rows} of {self.num_records} shuffled records"
        return f"{self.sampling} of {self.num_records} records"


@dataclasses.dataclass(eq=False)
class Source:
    """The table and sampling scheme of a batchifier, which outlive it."""

    law: BatchLaw  # the sampling scheme
    table: tuple[Array, ...] = dataclasses.field(repr=False)  # the arrays that it draws from
    # True if one of its keys is reproducible: then the batches are not secret, and sampling does
    # not amplify
    seeded: bool = False

    def take(self, rng_key: Any) -> Array:
        """Convert to a ChaCha20 key, and record whether the key is reproducible."""
        key = as_key(rng_key)
        self.seeded = self.seeded or random.is_reproducible(key)
        return key

    def is_apart_from(self, other: Source) -> bool:
        """True if the two tables have no row in common; False also if that cannot be determined.

        Rows are compared bit for bit. Tables of different columns cannot be compared, nor can
        arrays that a program being compiled has made.
        """
        if any(isinstance(array, Tracer) for array in (*self.table, *other.table)):
            return False
        ours, theirs = (
            [(array.dtype, array.shape[1:]) for array in source.table] for source in (self, other)
        )
        return ours == theirs and not np.isin(_rows(self.table), _rows(other.table)).any()


def _rows(table: tuple[Array, ...]) -> np.ndarray[Any, Any]:
    """The rows of a table, each as one item that equals only identical bytes."""
    flat = [np.asarray(array).reshape(len(array), -1) for array in table]
    together = np.concatenate(
        [np.ascontiguousarray(array).view(np.uint8) for array in flat], axis=1
    )
    return together.view(f"V{together.shape[1]}").ravel()


@dataclasses.dataclass(frozen=True, eq=False, weakref_slot=True, slots=True)
class GetBatch:
    """`get_batch(i, batchifier_state)` of a batchifier."""

    source: Source
    _get: Callable[..., Any] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        _live.add(self)

    @property
    def law(self) -> BatchLaw:
        """The sampling scheme."""
        return self.source.law

    def __call__(self, i: Any, batchifier_state: Any) -> Any:
        """Return batch number i (may be traced) of a state from `init`; use each pair once, since it repeats the batch."""
        batch = self._get(i, batchifier_state)
        origin = BatchOrigin(self.source, i, batchifier_state, self._get)
        for place, array in enumerate(jax.tree.leaves(batch)):
            forget = functools.partial(_handed_out.pop, id(array))
            _handed_out[id(array)] = weakref.ref(array, forget), origin, place
        return batch


_live: weakref.WeakSet[GetBatch] = weakref.WeakSet()


@dataclasses.dataclass(frozen=True, eq=False)
class BatchOrigin:
    """The origin of a batch: its batchifier, its number and the batchifier's state."""

    source: Source
    i: Any
    state: Any
    get: Callable[..., Any] = dataclasses.field(repr=False)

    def number(self) -> tuple[int, bytes] | None:
        """The identity of the batch within its source; None in a program being compiled."""
        if isinstance(self.i, Tracer) or isinstance(self.state, Tracer):
            return None
        with jax.ensure_compile_time_eval():
            keyed = jnp.issubdtype(jnp.result_type(self.state), jax.dtypes.prng_key)
            words = jax.random.key_data(self.state) if keyed else self.state
            return int(self.i), np.asarray(words).tobytes()


_handed_out: dict[int, tuple[weakref.ref[Any], BatchOrigin, int]] = {}
"""The live arrays returned by batchifiers, by identity, with their place in the batch: concrete
ones, and the tracers of a program being compiled. An entry is removed with its array, so that an
identity is never another array's."""


def origin_of(arrays: Sequence[Any]) -> BatchOrigin | None:
    """The call of `get_batch` that returned all of these arrays; None unless it is one call."""
    origins = {entry[1] if (entry := _handed_out.get(id(array))) else None for array in arrays}
    return origins.pop() if len(origins) == 1 else None


def drawn_for(step: Any, arrays: Sequence[Any]) -> list[Any]:
    """Draw a batch anew for one step, in a program being compiled: the same arrays of it, by the same law.

    A batchifier's state that is used for several epochs repeats its batches, and within a program
    nobody can see that. The new draw follows from the step's number, too. Arrays that are not of
    one call of `get_batch` are returned unchanged, as are the pieces of a shuffled table, whose
    passes may repeat.
    """
    origin = origin_of(arrays)
    if origin is None or origin.source.law.disjoint:
        return list(arrays)
    again = jax.tree.leaves(origin.get(origin.i, origin.state, step))
    return [again[_handed_out[id(array)][2]] for array in arrays]


def source_of(arrays: Sequence[Any]) -> Source | None:
    """The batchifier behind `origin_of`."""
    origin = origin_of(arrays)
    return origin and origin.source


def live_sources(rows: int) -> list[Source]:
    """The live batchifiers with batches of `rows` rows: candidates for the origin of other arrays."""
    return [get_batch.source for get_batch in list(_live) if get_batch.law.rows == rows]


def subsample_batchify_data(
    dataset: Sequence[ArrayLike],
    batch_size: int | None = None,
    q: float | None = None,
    with_replacement: bool = False,
    rng_suite: Any = None,
    return_mask: bool = False,
) -> tuple[Init, GetBatch]:
    """Draw batches of a fixed size without replacement, each from the whole table.

    Guarantee: `FixedSizeSampling`: every set of `batch_size` records is equally likely; accounting
    under REPLACE_ONE.

    Args:
        dataset: Arrays of the same length; their leading axis is the records.
        batch_size: Records in a batch; or
        q: The same as a share of the table, q N rounded down.
        with_replacement: Not supported.
        rng_suite: Accepted and unused: the key determines the generator.
        return_mask: Return `(batch, mask)` from `get_batch`, the mask all True.

    Returns:
        `init(rng_key) -> (batches in a pass, batchifier_state)` and `get_batch(i, batchifier_state)
        -> batch`.

    Raises:
        ValueError: Arrays of different lengths, not exactly one of `batch_size` and `q`, a size
            that does not fit the table, or `with_replacement`.
    """
    del rng_suite
    if with_replacement:
        raise ValueError(
            "with_replacement=True has no accountant here: a record may be in a batch several times, and counts each time. "
            "Draw without replacement (omit it), or use poisson_batchify_data."
        )
    arrays, count = _check(dataset)
    law = BatchLaw(FixedSizeSampling(_batch_size(batch_size, q, count)), count)
    law.sampling.check(count, law.relation)
    return _batchifier(
        Source(law, arrays),
        count // law.rows,
        lambda batch, mask: (batch, mask) if return_mask else batch,
    )


def poisson_batchify_data(
    dataset: Sequence[ArrayLike],
    q: float,
    max_batch_size: float,
    handle_oversized_batch: str = "truncate",
    rng_suite: Any = None,
) -> tuple[Init, GetBatch]:
    """Draw batches that include each record independently with probability q, padded, with a mask.

    Guarantee: `PoissonSampling(q)`, exact up to its public slack (below 2^-78 a batch). No batch is
    truncated or suppressed: both depend on the number of records drawn, which d3p does not account
    for. So arrays have as many rows as the largest possible batch, `get_batch.law.rows`, which may
    be more than `max_batch_size`.

    Args:
        dataset: A tuple of arrays of the same length; their leading axis is the records.
        q: Sampling rate, above 0 and at most 1.
        max_batch_size: Checked, and otherwise unused; see above.
        handle_oversized_batch: "truncate" or "suppress", likewise.
        rng_suite: Accepted and unused: the key determines the generator.

    Returns:
        `init(rng_key) -> (batches in a pass, batchifier_state)` and
        `get_batch(i, batchifier_state) -> (batch, mask)`. Rows that the mask drops are zero.

    Raises:
        ValueError: q outside (0, 1], a negative `max_batch_size`, arrays of different lengths.
    """
    del rng_suite
    if max_batch_size < 0:
        raise ValueError(
            f"max_batch_size is {max_batch_size}; pass a number of rows, or the share of batches that should fit, between 0 "
            "and 1. No batch is truncated in any case."
        )
    if handle_oversized_batch not in ("truncate", "suppress"):
        raise ValueError(
            f'handle_oversized_batch is {handle_oversized_batch!r}; pass "truncate" or "suppress".'
        )
    arrays, count = _check(dataset)
    law = BatchLaw(PoissonSampling(q), count)
    batches = max(1, count // max(1, q_to_batch_size(q, count)))
    return _batchifier(Source(law, arrays), batches, lambda batch, mask: (batch, mask))


def split_batchify_data(
    dataset: Sequence[ArrayLike],
    batch_size: int | None = None,
    q: float | None = None,
    rng_suite: Any = None,
    return_mask: bool = False,
) -> tuple[Init, GetBatch]:
    """Split a shuffled table into disjoint batches: each record occurs at most once a pass.

    Guarantee: within one pass (`init`, then `get_batch(i)` for i = 0, ..., batches - 1, each once)
    a record is in at most one batch. **No amplification**: a pass costs as much as one noisy step
    on the whole table, under REPLACE_ONE. Complete each pass before the next `init`, or a record
    may be in more batches than are accounted for.

    Arguments and errors as for `subsample_batchify_data`; records that do not fill a batch are left
    out of the pass.

    Returns:
        `init(rng_key) -> (batches in a pass, batchifier_state)` and `get_batch(i, batchifier_state)
        -> batch`. A number i beyond the pass starts it again.
    """
    del rng_suite
    arrays, count = _check(dataset)
    size = _batch_size(batch_size, q, count)
    law = BatchLaw(FixedSizeSampling(size), count, disjoint=True)
    law.sampling.check(count, law.relation)
    source = Source(law, arrays)
    batches = count // size

    def get_batch(i: Any, order: Any) -> Any:
        # Beyond the pass a slice would be clamped and repeat the last records.
        start = (jnp.asarray(i) % batches) * size
        rows = _take(arrays, jax.lax.dynamic_slice_in_dim(jnp.asarray(order), start, size))
        return (rows, jnp.ones(size, bool)) if return_mask else rows

    def init(rng_key: Any) -> tuple[int, Any]:
        key = random.subkey(source.take(rng_key), random.Purpose.SAMPLING)
        return batches, feistel_permutation(key, jnp.arange(count), count)

    return init, GetBatch(source, get_batch)


def _batchifier(
    source: Source, batches: int, handed_out: Callable[[Any, Array], Any]
) -> tuple[Init, GetBatch]:
    """A batchifier whose state is a key; `handed_out` maps rows and mask to the result of `get_batch`."""
    sampling = source.law.sampling
    arrays = source.table
    tables = jax.tree.map(jnp.asarray, sampling.prepare(len(arrays[0])))

    def init(rng_key: Any) -> tuple[int, Any]:
        source.take(rng_key)
        return batches, rng_key

    def get_batch(i: Any, state: Any, step: Any = None) -> Any:
        return handed_out(*_fetch(sampling, arrays, tables, source.take(state), i, step))

    return init, GetBatch(source, get_batch)


def _check(dataset: Sequence[ArrayLike]) -> tuple[tuple[Array, ...], int]:
    if not isinstance(dataset, tuple | list) or not dataset:
        raise ValueError(
            "dataset must be a tuple of arrays whose leading axis is the records, such as (xs, ys); for one array (xs,)."
        )
    arrays = tuple(jnp.asarray(array) for array in dataset)
    lengths = sorted({array.shape[0] if array.ndim else 0 for array in arrays})
    if len(lengths) > 1 or lengths[0] == 0:
        raise ValueError(
            f"The arrays of the dataset have lengths {lengths}; they must agree and not be 0, since row i of each "
            "belongs to record i."
        )
    return arrays, lengths[0]


def _batch_size(batch_size: int | None, q: float | None, count: int) -> int:
    if (batch_size is None) == (q is None):
        raise ValueError("Give either batch_size or q: each follows from the other.")
    if q is None:
        assert batch_size is not None
        return int(batch_size)
    if not 0 < q <= 1:
        raise ValueError(
            f"q is {q}; it must be the share of the table in a batch, above 0 and at most 1."
        )
    size = q_to_batch_size(q, count)
    if size == 0:
        raise ValueError(
            f"q = {q} of {count} records is less than one record. Raise q to at least {1 / count:.3g}."
        )
    return size


@functools.partial(jax.jit, static_argnums=0)
def _fetch(
    sampling: Sampling, arrays: tuple[Array, ...], tables: Any, key: Array, i: Any, step: Any
) -> tuple[tuple[Array, ...], Array]:
    # Programs written for d3p pass one key to the batchifier and to DPSVI.init: derive different
    # keys from it.
    key = jax.random.fold_in(random.subkey(key, random.Purpose.SAMPLING), i)
    if step is not None:
        key = jax.random.fold_in(key, step)
    batch: Batch = sampling.draw(key, tables, num_records=arrays[0].shape[0])

    def rows(array: Array) -> Array:
        taken = array.at[batch.indices].get(mode="promise_in_bounds")
        return jnp.where(
            batch.mask.reshape(-1, *(1,) * (array.ndim - 1)), taken, jnp.zeros((), array.dtype)
        )

    return tuple(rows(array) for array in arrays), batch.mask


@jax.jit
def _take(arrays: tuple[Array, ...], indices: Array) -> tuple[Array, ...]:
    return tuple(array[indices] for array in arrays)


def q_to_batch_size(q: float, N: int) -> int:
    """Compute the batch size for a sampling rate q of N records: q N rounded down, up to the rounding error of q.

    >>> q_to_batch_size(0.29, 100)
    29
    """
    return math.floor(q * N * (1 + 1e-12))
