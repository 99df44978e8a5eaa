"""The programs that count and sum, which are proved: they take the last records, and the exact totals of all others."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Array

from discreet.privacy.mechanisms import clip_records, count_cells, sum_records

ONE = 2**24
"""The integer that represents 1 in sums."""
PARTS = 16
"""Parts of each slice in fine counts."""

Columns = tuple[tuple[int, ...], ...]


class Counts(NamedTuple):
    """Weighted counts of cross tables: those of all other records, and of the last ones."""

    sizes: tuple[int, ...]
    tables: Columns
    weights: tuple[int, ...]

    def __call__(self, counted: Array, levels: Array, mask: Array) -> Array:
        return count_cells(levels, mask, *self, counted)


class CountsAndSums(NamedTuple):
    """Counts, and the weighted sums of values in units of 1 / `ONE`; those of one record have at most the norm `norm`."""

    counts: Counts
    norm: float
    order: int

    def __call__(
        self, counted: Array, summed: Array, levels: Array, values: Array, mask: Array
    ) -> tuple[Array, Array]:
        rows = clip_records(values.astype(float) / ONE, self.norm, self.order)
        return self.counts(counted, levels, mask), sum_records(rows, mask) + summed.astype(
            float
        ) / ONE
