"""A sum over a batch of unknown size, at little more than the price of the rows that are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

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
