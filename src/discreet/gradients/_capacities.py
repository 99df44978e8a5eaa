"""A sum over a batch of unknown size, at little more than the price of the rows that are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

PartialSum = Callable[[Any, Bool[Array, "row"]], Any]
"""`(rows, mask) -> tree`, additive over rows; rows that the mask drops count as exactly zero, whatever they hold."""


def sum_over_rows(
    careful: PartialSum,
    records: Any,
    mask: Bool[Array, "record"],
    capacities: Sequence[int],
    *,
    quick: Callable[[Any, Bool[Array, "row"]], tuple[Any, Bool[Array, ""]]] | None = None,
) -> Any:
    """The sum of `careful` over all rows that the mask keeps, with true rows first.

    A step runs the smallest capacity that holds its rows. What is left of a batch with more rows than the largest, and
    all of one for which `quick` will not answer, is summed with `careful`, a microbatch of the largest at a time.

    Args:
        careful: what is to be summed.
        records: tree of arrays whose leading axis is the records.
        mask: which rows count; True rows come first.
        capacities: numbers of rows to compile for. Those above the size of the mask are cut to it.
        quick: returns what `careful` does, and whether that holds for these rows. None: `careful`, always.
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
        return (careful(*taken), jnp.array(True)) if quick is None else quick(*taken)

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
