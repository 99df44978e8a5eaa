"""How far a twin's marginals are from a table's. **Not private** for the table."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from discreet.tabular.models import Levels
from discreet.tabular.tables import Schema


@dataclasses.dataclass(frozen=True)
class MarginalDistances:
    """Total variation distances between a twin and a table; **not private** for the table. Made by `marginal_distances`.

    Attributes:
        one_way: For each column, half the sum of the differences between the shares of its levels,
            in [0, 1].
        two_way: Likewise for each pair of columns and the shares of pairs of levels.
    """

    one_way: dict[str, float]
    two_way: dict[tuple[str, str], float]

    @property
    def mean_one_way(self) -> float:
        """Mean over the columns."""
        return float(np.mean(list(self.one_way.values())))

    @property
    def mean_two_way(self) -> float:
        """Mean over the pairs of columns; NaN where there is one column only."""
        return float(np.mean(list(self.two_way.values()))) if self.two_way else float("nan")

    def __str__(self) -> str:
        worst = max(self.one_way, key=self.one_way.__getitem__)
        return (
            f"mean total variation distance: one column {self.mean_one_way:.4f} (worst {worst}, {self.one_way[worst]:.4f}), two "
            f"columns {self.mean_two_way:.4f} (not private)"
        )


def marginal_distances(
    twin: Any, table: Any, schema: Schema, *, slices: int = 32, non_private: bool = False
) -> MarginalDistances:
    """Compare the marginals of single columns and of pairs between a twin and a table: **not private** for the table.

    Numbers are compared by the slices of `Levels`; what differs within a slice is not seen. Two
    tables of n records from one population have distances above zero, too: about as large as the
    square root of the number of levels over n.

    Args:
        twin: A twin, or any table with the schema's columns.
        table: Records to compare it with, which are public, or whose figures will not be published.
        schema: The public description of both.
        slices: Most slices of a column of numbers.
        non_private: Must be True, to confirm that.

    Raises:
        ValueError: `non_private` was not set.
        DataError: A table does not fit the schema.
    """
    if non_private is not True:
        raise ValueError(
            "The distances depend on every record of the table, and no epsilon covers them. Pass non_private=True if its records "
            "are public, or if you will not publish the figures."
        )
    levels = Levels(schema, slices)
    difference = np.abs(
        levels.pair_shares(levels.encode(twin, out_of_bounds="clip"))
        - levels.pair_shares(levels.encode(table, out_of_bounds="clip"))
    )
    where = levels.places
    one_way = {name: float(np.trace(difference[at, at])) / 2 for name, at in where.items()}
    two_way = {
        (a, b): float(difference[where[a], where[b]].sum()) / 2
        for a, b in itertools.combinations(where, 2)
    }
    return MarginalDistances(one_way, two_way)
