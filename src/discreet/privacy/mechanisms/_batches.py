"""Secret batches of a table, as a primitive whose parameter is the sampler's drawing."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, PRNGKeyArray

from discreet._jax import (
    marker,
)
from discreet.privacy import random
from discreet.privacy.sampling import (
    Batch,
    Drawing,
    FixedSizeSampling,
    OpenPoisson,
    PoissonSampling,
)


def _drawn(
    key: PRNGKeyArray, *operands: Array, drawing: Drawing, structure: Any, name: str, mapped: bool
) -> list[Array]:
    """Row numbers, mask, and the batch's rows of those operands that are not tables; rows without a record are zero."""
    del name, mapped
    count = structure.num_leaves
    batch = drawing.draw(random.check_key(key), jax.tree.unflatten(structure, operands[:count]))

    def rows(x: Array) -> Array:
        # A padding row has the number of record 0, which must not show.
        taken = x.at[batch.indices].get(mode="promise_in_bounds", wrap_negative_indices=False)
        return jnp.where(batch.mask.reshape(-1, *[1] * (x.ndim - 1)), taken, jnp.zeros_like(taken))

    return [*batch, *map(rows, operands[count:])]


def _draw_shapes(
    key: PRNGKeyArray, *operands: Array, drawing: Drawing, structure: Any, name: str, mapped: bool
) -> list[Array]:
    """Outputs of the types of `_drawn`, for forms that can be traced but not run."""
    del key, name, mapped
    rows = [
        jnp.zeros((drawing.capacity, *x.shape[1:]), x.dtype)
        for x in operands[structure.num_leaves :]
    ]
    return [jnp.zeros(drawing.capacity, jnp.int32), jnp.zeros(drawing.capacity, bool), *rows]


DRAW = marker(
    "draw",
    _drawn,
    refuse="one event covers one draw of a batch. Draw it outside of the mapped or differentiated function.",
    shapes=_draw_shapes,
    keyed=True,
)


def draw_batch(drawing: Drawing, key: PRNGKeyArray, tables: Any) -> Batch:
    """Draw a batch of the table's rows, as a marker; the tables of `Sampling.prepare` may be traced."""
    return Batch(*_draw("draw_batch", drawing, key, tables, [], mapped=True))


def poisson_subsample(
    key: PRNGKeyArray, records: Any, rate: float, capacity: int | None = None
) -> tuple[Any, Bool[Array, "capacity"]]:
    """Draw a batch that includes each record independently with probability `rate`.

    Guarantee: the batch is a Poisson sample up to a total-variation distance of
    `PoissonSampling.slack_per_step`, which a certificate adds to its delta. It is never truncated.
    Rows without a record are exactly zero. The order of rows is arbitrary.

    Args:
        key: A scalar key, for this draw alone. It must stay secret.
        records: Tree of arrays whose leading axis is the records; with padding, its own mask among
            them.
        rate: Probability q in (0, 1] that a record enters the batch; a Python number. `certify`
            also accepts programs with a traced rate; they cannot run.
        capacity: Rows of the batch; at least `PoissonSampling(rate).capacity(num_records)`, the
            default.

    Returns:
        The batch, a tree like `records` with `capacity` rows, and its mask, True for rows with a
        record.

    Raises:
        ValueError: The rate is not a probability above 0, or `capacity` could be exceeded.
        TypeError: The key is no typed key.

    Reference:
        Balle, Barthe, Gaboardi. Privacy amplification by subsampling. NeurIPS 2018.

    >>> import jax.numpy as jnp, discreet as dp
    >>> rows = jnp.arange(1.0, 101.0)
    >>> batch, mask = dp.poisson_subsample(dp.random.key(1), rows, 0.1, 100)
    >>> bool(jnp.all((batch > 0) == mask))
    True
    """
    jax.eval_shape(random.check_key, key)
    leaves, structure = _rows("poisson_subsample", records)
    num_records = leaves[0].shape[0]
    if isinstance(rate, Tracer):
        drawing = OpenPoisson(num_records, int(capacity or num_records))
        tables = {"rate": rate}
    else:
        sampling = PoissonSampling(rate)
        drawing = sampling.drawing(num_records)
        tables = sampling.prepare(num_records)
        if capacity is not None:
            drawing = dataclasses.replace(
                drawing, capacity=sampling.check_capacity(num_records, capacity)
            )
    _, mask, *batch = _draw("poisson_subsample", drawing, key, tables, leaves, mapped=False)
    return jax.tree.unflatten(structure, batch), mask


def subsample_without_replacement(key: PRNGKeyArray, records: Any, batch_size: int) -> Any:
    """Draw a batch of exactly `batch_size` distinct records, every such set equally likely.

    Guarantee: exactly uniform given uniform random words. Sound accounting exists under
    `REPLACE_ONE` only.

    Args:
        key: A scalar key, for this draw alone. It must stay secret.
        records: Tree of arrays whose leading axis is the records.
        batch_size: Records of the batch, a Python number, at most the number of records.

    Returns:
        The batch, a tree like `records` with `batch_size` rows.

    Raises:
        ValueError: `batch_size` is below 1 or above the number of records.
        TypeError: The key is no typed key.

    >>> import jax.numpy as jnp, discreet as dp
    >>> sorted(map(int, dp.subsample_without_replacement(dp.random.key(1), jnp.arange(3), 3)))
    [0, 1, 2]
    """
    jax.eval_shape(random.check_key, key)
    leaves, structure = _rows("subsample_without_replacement", records)
    drawing = FixedSizeSampling(batch_size).drawing(leaves[0].shape[0])
    _, _, *batch = _draw("subsample_without_replacement", drawing, key, {}, leaves, mapped=False)
    return jax.tree.unflatten(structure, batch)


def _draw(
    name: str, drawing: Drawing, key: PRNGKeyArray, tables: Any, rows: list[Array], *, mapped: bool
) -> list[Array]:
    leaves, structure = jax.tree.flatten(tables)
    return DRAW.bind(
        key, *leaves, *rows, drawing=drawing, structure=structure, name=name, mapped=mapped
    )


def _rows(who: str, records: Any) -> tuple[list[Array], Any]:
    leaves, structure = jax.tree.flatten(records)
    leaves = [jnp.asarray(x) for x in leaves]
    if not leaves or any(x.ndim == 0 for x in leaves) or len({x.shape[0] for x in leaves}) != 1:
        shapes = [x.shape for x in leaves]
        raise ValueError(
            f"{who}: the records have shapes {shapes}; every array needs one row per record, as many as the others. Pass "
            "arrays whose leading axis is the records."
        )
    return leaves, structure
