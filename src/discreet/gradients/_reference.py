"""The reference engine, which forms every record's gradient, and sums over a batch of unknown size.

A Poisson batch has a random number of rows, and compiled programs have fixed shapes: a batch is padded to a capacity that it
seldom exceeds, with the true rows first and a mask. `sum_over_rows` compiles a few smaller capacities too, takes the
smallest that holds the rows of a step, and goes over the rest, if there is one, in microbatches; so a step costs little more
than the rows that are there, and no batch is ever cut.

Rows may hold NaN or infinity, and 0 * NaN is NaN: selecting a row away before a product costs a copy of all activations. So
the sums try a quick way first that is right if every row is finite, and repeat carefully, or with a finite row in the place
of those that are not (`sum_with_substitutes`), if one was not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from discreet.gradients._clipping import check_tree, record_size, scale_rows, squared_norms
from discreet.gradients._contract import (
    Channels,
    ClippedSum,
    Clipping,
    EngineReport,
    LeafReport,
    RecordLoss,
    row_weights,
)

# --- sums over the rows that are there -----------------------------------------------------------


PartialSum = Callable[[Any, Bool[Array, "row"]], Any]
"""`(rows, mask) -> tree`, additive over rows; rows that the mask drops count as exactly zero, whatever they hold."""

QuickSum = Callable[[Any, Bool[Array, "row"]], tuple[Any, Bool[Array, "row"]]]
"""The same, if all rows are finite, those that the mask drops among them; and which rows are."""


def sum_over_rows(
    careful: PartialSum,
    records: Any,
    mask: Bool[Array, "record"],
    capacities: Sequence[int],
    *,
    quick: QuickSum | None = None,
) -> Any:
    """The sum of `careful` over all rows that the mask keeps, with true rows first.

    A step runs the smallest capacity that holds its rows. What is left of a batch with more rows than the largest, and
    all of one for which `quick` will not answer, is summed with `careful`, a microbatch of the largest at a time.

    Args:
        careful: what is to be summed.
        records: tree of arrays whose leading axis is the records.
        mask: which rows count; True rows come first.
        capacities: numbers of rows to compile for. Those above the size of the mask are cut to it.
        quick: what to try first. None: `careful`, always.
    """
    size = mask.shape[0]
    capacities = sorted({min(size, x) for x in capacities})
    largest = capacities[-1]
    if capacities == [size] and quick is None:
        return careful(records, mask)
    # Rows that count come first, so the last of them says how many there are.
    rows = jnp.max(jnp.where(mask, jnp.arange(1, size + 1), 0))

    def once(capacity: int) -> tuple[Any, Bool[Array, ""]]:
        taken = jax.tree.map(lambda x: x[:capacity], (records, mask))
        if quick is None:
            return careful(*taken), jnp.array(True)
        total, finite = quick(*taken)
        return total, jnp.all(finite)

    if len(capacities) == 1:
        total, holds = once(largest)
    else:
        chosen = jnp.sum(rows > jnp.array(capacities[:-1]))
        total, holds = jax.lax.switch(chosen, [lambda c=c: once(c) for c in capacities])

    def again(index: Array, total: Any) -> Any:
        positions = index * largest + jnp.arange(largest)
        inside = jnp.minimum(positions, size - 1)
        taken = jax.tree.map(lambda x: x[inside], records)
        more = careful(taken, mask[inside] & (positions < size))
        return jax.tree.map(lambda x, y: jnp.where(index == 0, 0, x) + y, total, more)

    # A loop of no iteration leaves the sum where it is; a `cond` would copy it. It goes on from what holds.
    needed = jnp.maximum(1, (rows + largest - 1) // largest)
    return jax.lax.fori_loop(jnp.where(holds, 1, 0), needed, again, total)


def sum_with_substitutes(quick: QuickSum, records: Any, mask: Bool[Array, "record"], capacity: int) -> Any:
    """The sum of `quick` over all rows that the mask keeps: one copy of it is compiled, and nothing is selected away.

    Where a row is not finite, and in place of padding, a row that is finite stands and counts as zero; the microbatch is
    then summed again.

    Args:
        quick: what is to be summed.
        records: tree of arrays.
        mask: which rows count; True rows come first.
        capacity: rows of a microbatch.
    """
    size = mask.shape[0]
    capacity = min(capacity, size)
    lanes = jnp.arange(capacity)
    rows = jnp.max(jnp.where(mask, jnp.arange(1, size + 1), 0))

    def kept(index: Array) -> Bool[Array, "row"]:
        positions = index * capacity + lanes
        return mask[jnp.minimum(positions, size - 1)] & (positions < size)

    def attempt(carry: tuple[Array, Bool[Array, "row"], Any]) -> tuple[Array, Bool[Array, "row"], Any]:
        index, standing, total = carry
        substitute = jnp.argmax(standing)
        positions = jnp.minimum(index * capacity + jnp.where(standing, lanes, substitute), size - 1)
        more, finite = quick(jax.tree.map(lambda x: x[positions], records), standing)
        good = jnp.all(finite)
        # A row that fails as a substitute, through rounding elsewhere in the batch, leaves as well: this comes to an end.
        fails = jnp.any(~standing & ~finite) & (lanes == substitute)
        left = standing & finite & ~fails
        total = jax.tree.map(lambda x, y: x + jnp.where(good, y, 0), total, more)
        done = good | ~jnp.any(left)
        return index + done, jnp.where(done, kept(index + 1), left), total

    shapes = jax.eval_shape(lambda: quick(jax.tree.map(lambda x: x[lanes], records), mask[:capacity])[0])
    start = jnp.zeros((), jnp.int32), kept(jnp.int32(0)), jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    needed = (rows + capacity - 1) // capacity
    return jax.lax.while_loop(lambda carry: carry[0] < needed, attempt, start)[2]


# --- the engine ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ReferenceEngine:
    """`vmap` of the gradient, a microbatch at a time; the measure of all faster engines.

    Attributes:
        microbatch_size: rows whose gradients are held in memory at once; None: all of them.
            Microbatches without a real row are skipped, so padding costs little.
    """

    microbatch_size: int | None = None

    def __call__(
        self,
        record_loss: RecordLoss,
        parameters: Any,
        records: Any,
        mask: Bool[Array, "record"],
        clipping: Clipping,
        channels: Channels,
    ) -> ClippedSum:
        """See `GradientEngine`."""
        check_tree("ReferenceEngine", parameters)
        l2_bound = channels.joint_bound(clipping.norm)

        def partial_sum(rows: Any, keep: Bool[Array, "row"]) -> tuple[Any, Array, Array]:
            return _clipped_sum(record_loss, parameters, rows, keep, clipping, channels)

        size = mask.shape[0]
        gradient, loss, count = sum_over_rows(partial_sum, records, mask, [self.microbatch_size or size])
        return ClippedSum(gradient, loss, count, l2_bound)

    def explain(self, record_loss: RecordLoss, parameters: Any, record: Any, num_rows: int) -> EngineReport:
        """See `GradientEngine`."""
        leaves = [
            LeafReport(jax.tree_util.keystr(path), x.shape, "per record", 2 * x.size, 4 * x.size)
            for path, x in jax.tree.leaves_with_path(jax.eval_shape(lambda: parameters))
        ]
        return EngineReport(tuple(leaves), num_rows, min(num_rows, self.microbatch_size or num_rows))


def _clipped_sum(
    record_loss: RecordLoss,
    parameters: Any,
    records: Any,
    mask: Bool[Array, "record"],
    clipping: Clipping,
    channels: Channels,
) -> tuple[Any, Array, Array]:
    def one(record: Any) -> tuple[Array, Any]:
        return jax.value_and_grad(record_loss)(parameters, record)

    # XLA may make one convolution of all rows' and hide the others' by zeros, so that one that is not finite shows in all.
    together = jax.vmap(one)(records)
    whole = jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(together)]).all()
    losses, gradients = jax.lax.cond(whole, lambda: together, lambda: jax.lax.map(one, records))
    # A leaf that is not finite makes the norm so, and its row is dropped.
    squared = squared_norms(gradients, clipping.norm)
    weights = row_weights(losses, squared, record_size(gradients), mask, clipping, channels)
    scaled = scale_rows(gradients, weights.factor, weights.keep)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), scaled), weights.loss, weights.count
