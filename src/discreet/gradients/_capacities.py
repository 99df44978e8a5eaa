"""A sum over a batch of unknown size, at little more than the price of the rows that are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


def sum_over_rows(
    partial_sum: Callable[[Any, Bool[Array, "row"]], Any],
    records: Any,
    mask: Bool[Array, "record"],
    capacities: Sequence[int],
) -> Any:
    """The sum of `partial_sum` over all rows that the mask keeps, with true rows first.

    Compiled once for each capacity; a step runs the smallest that holds its rows. More rows than the largest capacity
    are taken a microbatch of that size at a time.

    Args:
        partial_sum: `(rows, mask) -> tree`, additive over rows; rows that the mask drops count as zero.
        records: tree of arrays whose leading axis is the records.
        mask: which rows count; True rows come first.
        capacities: increasing numbers of rows. Those above the size of the mask are cut to it.
    """
    size = mask.shape[0]
    capacities = sorted({min(size, x) for x in capacities})
    largest = capacities[-1]

    def first(capacity: int) -> Any:
        return partial_sum(*jax.tree.map(lambda x: x[:capacity], (records, mask)))

    if capacities == [size]:
        return first(size)
    # Rows that count come first, so the last of them says how many there are.
    rows = jnp.max(jnp.where(mask, jnp.arange(1, size + 1), 0))
    if len(capacities) == 1:
        total = first(largest)
    else:
        chosen = jnp.sum(rows > jnp.array(capacities[:-1]))
        total = jax.lax.switch(chosen, [lambda c=c: first(c) for c in capacities])
    if largest == size:
        return total
    padding = -size % largest
    mask, records = jax.tree.map(lambda x: jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)), (mask, records))

    def body(index: Array, total: Any) -> Any:
        taken = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, index * largest, largest), (records, mask))
        return jax.tree.map(jnp.add, total, partial_sum(*taken))

    return jax.lax.fori_loop(1, (rows + largest - 1) // largest, body, total)
