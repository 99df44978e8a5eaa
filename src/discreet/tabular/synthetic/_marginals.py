"""How far a twin's marginals and associations are from a table's. **Not private** for the table."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
from jaxtyping import Int

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


def associations(
    levels: Levels, rows: Int[np.ndarray, "row column"]
) -> dict[tuple[str, str], float]:
    """Cramér's V of each pair of columns, in [0, 1], corrected for the bias of few rows.

    0 for independent columns, 1 where one column determines the other. It has no sign, and applies
    to any two kinds of columns; numbers are compared by their slices.

    Args:
        levels: Levels of the columns; few slices a column, so that many rows share one.
        rows: As `levels.encode` gives them.

    Reference:
        W. Bergsma, "A bias-correction for Cramér's V and Tschuprow's T", J. Korean Statistical
        Society 42, 2013.
    """
    shares = levels.pair_shares(rows)
    places = levels.places
    count = len(rows)
    return {
        (a, b): _cramer(shares[places[a], places[b]], count)
        for a, b in itertools.combinations(places, 2)
    }


def _cramer(joint: np.ndarray, count: int) -> float:
    joint = joint[joint.sum(axis=1) > 0][:, joint.sum(axis=0) > 0]
    down, across = joint.shape
    if min(down, across, count) < 2:
        return 0.0
    expected = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    square = max(
        0.0,
        float(np.sum((joint - expected) ** 2 / expected)) - (down - 1) * (across - 1) / (count - 1),
    )
    most = min(down - (down - 1) ** 2 / (count - 1), across - (across - 1) ** 2 / (count - 1)) - 1
    return math.sqrt(min(1.0, square / most)) if most > 0 else 0.0
