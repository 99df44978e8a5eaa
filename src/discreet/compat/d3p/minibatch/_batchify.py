"""The three batchifiers. Each returns `init` and `get_batch`, which work in Python loops, `jit` and `fori_loop`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from discreet import random
from discreet.compat.d3p.minibatch._law import BatchLaw, GetBatch, Source
from discreet.compat.d3p.minibatch._sizes import q_to_batch_size
from discreet.compat.d3p.random import as_key
from discreet.sampling import Batch, FixedSizeSampling, PoissonSampling, Sampling, feistel_permutation

Init = Callable[..., tuple[int, Any]]


def subsample_batchify_data(
    dataset: Sequence[ArrayLike],
    batch_size: int | None = None,
    q: float | None = None,
    with_replacement: bool = False,
    rng_suite: Any = None,
    return_mask: bool = False,
) -> tuple[Init, GetBatch]:
    """Batches of a fixed size, drawn without replacement, each afresh from the whole table.

    Guarantee: `FixedSizeSampling`: every set of `batch_size` records is equally likely. Accounted for under
    REPLACE_ONE.

    Args:
        dataset: arrays of the same length; their leading axis is the records.
        batch_size: records in a batch; or
        q: the same as a share of the table, q N rounded down.
        with_replacement: not supported.
        rng_suite: accepted; the key says which generator it is for.
        return_mask: `get_batch` returns `(batch, mask)`, the mask all True.

    Returns:
        `init(rng_key) -> (batches in a pass, batchifier_state)` and `get_batch(i, batchifier_state) -> batch`.

    Raises:
        ValueError: arrays of different lengths, not exactly one of `batch_size` and `q`, a size that does not
            fit the table, or `with_replacement`.
    """
    del rng_suite
    if with_replacement:
        raise ValueError(
            "with_replacement=True has no sound accounting: a record may be in a batch many times over, and counts each "
            "time. Draw without replacement (leave it out), or use poisson_batchify_data."
        )
    arrays, count = _check(dataset)
    sampling = FixedSizeSampling(_batch_size(batch_size, q, count))
    law = BatchLaw(sampling, count)
    law.sampling.check(count, law.relation)
    tables = sampling.prepare(count)
    source = Source(law)

    def init(rng_key: Any) -> tuple[int, Any]:
        return count // law.rows, _sampling_key(source.note(as_key(rng_key)))

    def get_batch(i: Any, batchifier_state: Any) -> Any:
        rows, mask = _fetch(sampling, arrays, tables, as_key(batchifier_state, "batchifier_state"), i)
        return (rows, mask) if return_mask else rows

    return init, GetBatch(source, get_batch)


def poisson_batchify_data(
    dataset: Sequence[ArrayLike],
    q: float,
    max_batch_size: float,
    handle_oversized_batch: str = "truncate",
    rng_suite: Any = None,
) -> tuple[Init, GetBatch]:
    """Batches that hold each record independently with probability q, padded, with a mask.

    Guarantee: `PoissonSampling(q)`, exact up to its public slack (below 2^-78 a batch). No batch is ever truncated or
    suppressed: both depend on how many records were drawn, which d3p does not account for. So arrays have as many
    rows as the largest batch that can be drawn, `get_batch.law.rows`, which may be more than `max_batch_size`.

    Args:
        dataset: a tuple of arrays of the same length; their leading axis is the records.
        q: sampling rate, above 0 and at most 1.
        max_batch_size: checked, and otherwise unused; see above.
        handle_oversized_batch: "truncate" or "suppress", likewise.
        rng_suite: accepted; the key says which generator it is for.

    Returns:
        `init(rng_key) -> (batches in a pass, batchifier_state)` and
        `get_batch(i, batchifier_state) -> (batch, mask)`. Rows that the mask drops are zero.

    Raises:
        ValueError: q outside (0, 1], a negative `max_batch_size`, arrays of different lengths.
    """
    del rng_suite
    if max_batch_size < 0:
        raise ValueError(
            f"max_batch_size is {max_batch_size}; it is a number of rows, or a share between 0 and 1 of the batches "
            "that are to fit. No batch is truncated whatever it says."
        )
    if handle_oversized_batch not in ("truncate", "suppress"):
        raise ValueError(f'handle_oversized_batch is {handle_oversized_batch!r}; d3p knows "truncate" and "suppress".')
    arrays, count = _check(dataset)
    sampling = PoissonSampling(q)
    law = BatchLaw(sampling, count)
    tables = jax.tree.map(jnp.asarray, sampling.prepare(count))
    batches = max(1, count // max(1, q_to_batch_size(q, count)))
    source = Source(law)

    def init(rng_key: Any) -> tuple[int, Any]:
        return batches, _sampling_key(source.note(as_key(rng_key)))

    def get_batch(i: Any, batchifier_state: Any) -> Any:
        return _fetch(sampling, arrays, tables, as_key(batchifier_state, "batchifier_state"), i)

    return init, GetBatch(source, get_batch)


def split_batchify_data(
    dataset: Sequence[ArrayLike],
    batch_size: int | None = None,
    q: float | None = None,
    rng_suite: Any = None,
    return_mask: bool = False,
) -> tuple[Init, GetBatch]:
    """Disjoint batches of a shuffled table: each record at most once a pass.

    Guarantee: within one pass (`init`, then `get_batch(i)` for i = 0, ..., batches - 1, each once) a record is in at
    most one batch. **No amplification**: a pass costs what one noisy step on the whole table costs, under REPLACE_ONE.
    Take each pass to its end before the next `init`, or a record may be in more batches than are accounted for.

    Args:
        dataset: arrays of the same length; their leading axis is the records.
        batch_size: records in a batch; or
        q: the same as a share of the table. Records that do not fill a batch are left out of the pass.
        rng_suite: accepted; the key says which generator it is for.
        return_mask: `get_batch` returns `(batch, mask)`, the mask all True.

    Returns:
        `init(rng_key) -> (batches in a pass, batchifier_state)` and `get_batch(i, batchifier_state) -> batch`. A
        number i beyond the pass starts it again.

    Raises:
        ValueError: as for `subsample_batchify_data`.
    """
    del rng_suite
    arrays, count = _check(dataset)
    size = _batch_size(batch_size, q, count)
    law = BatchLaw(FixedSizeSampling(size), count, disjoint=True)
    law.sampling.check(count, law.relation)
    batches = count // size
    source = Source(law)

    def init(rng_key: Any) -> tuple[int, Any]:
        return batches, feistel_permutation(_sampling_key(source.note(as_key(rng_key))), jnp.arange(count), count)

    def get_batch(i: Any, batchifier_state: Any) -> Any:
        # Beyond the pass a slice would stop at the end and hand out the last records again and again.
        start = (jnp.asarray(i) % batches) * size
        rows = _take(arrays, jax.lax.dynamic_slice_in_dim(jnp.asarray(batchifier_state), start, size))
        return (rows, jnp.ones(size, bool)) if return_mask else rows

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
        raise ValueError("Give batch_size or q, not both and not neither: each follows from the other.")
    if q is None:
        assert batch_size is not None
        return int(batch_size)
    if not 0 < q <= 1:
        raise ValueError(f"q is {q}; it is the share of the table in a batch, above 0 and at most 1.")
    size = q_to_batch_size(q, count)
    if size == 0:
        raise ValueError(f"q = {q} of {count} records is less than one record. Raise q to at least {1 / count:.3g}.")
    return size


def _sampling_key(rng_key: Any) -> Array:
    # Programs written for d3p give one key to the batchifier and to DPSVI.init: keep what follows from it apart.
    return random.subkey(as_key(rng_key), random.Purpose.SAMPLING)


@functools.partial(jax.jit, static_argnums=0)
def _fetch(
    sampling: Sampling, arrays: tuple[Array, ...], tables: Any, key: Array, i: Any
) -> tuple[tuple[Array, ...], Array]:
    batch: Batch = sampling.draw(jax.random.fold_in(key, i), tables, num_records=arrays[0].shape[0])

    def rows(array: Array) -> Array:
        taken = array.at[batch.indices].get(mode="promise_in_bounds")
        return jnp.where(batch.mask.reshape(-1, *(1,) * (array.ndim - 1)), taken, jnp.zeros((), array.dtype))

    return tuple(rows(array) for array in arrays), batch.mask


@jax.jit
def _take(arrays: tuple[Array, ...], indices: Array) -> tuple[Array, ...]:
    return tuple(array[indices] for array in arrays)
