"""A release of noisy counts and sums, table by table."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from jaxtyping import Float

from discreet.privacy.released import Released
from discreet.privacy.report import Statement
from discreet.tabular.marginals._plan import MarginalsPlan
from discreet.tabular.marginals._programs import PARTS
from discreet.tabular.marginals._wording import METHOD
from discreet.tabular.tables import PARTS_OF_SCHEMA

_VERSION = 5


@dataclasses.dataclass(frozen=True)
class Marginals(Released, what=METHOD, version=_VERSION, parts=PARTS_OF_SCHEMA):
    """Noisy counts of cross tables, and sums: a release. Whatever is computed from it costs nothing more.

    Attributes:
        plan: The plan of the release.
        counts: The noisy counts of all cells, table after table, in records; may be negative or
            fractions.
        statement: The privacy statement.
        sums: The noisy sums, in records: for each of the plan's those of z in all cells, then those
            of 1 - z^2.
        persons: The noisy counts of persons, where they may have several rows; counts and sums are
            then in rows.
        fine: The noisy counts of parts of slices, for each of the plan's; see `fine_of`.
    """

    plan: MarginalsPlan
    counts: Float[np.ndarray, " cell"]
    statement: Statement
    sums: Float[np.ndarray, " sum"] = dataclasses.field(default_factory=lambda: np.zeros(0))
    persons: Float[np.ndarray, " cell"] = dataclasses.field(default_factory=lambda: np.zeros(0))
    fine: Float[np.ndarray, " cell"] = dataclasses.field(default_factory=lambda: np.zeros(0))

    def table(self, *names: str) -> Float[np.ndarray, "..."]:
        """The noisy counts of one cross table, an axis of levels for each name, in this order.

        Raises:
            ValueError: It was not counted.
        """
        place = self.plan.place(names)
        own = self.plan.tables[place]
        first = sum(self.plan.cells[:place])
        cells = self.counts[first : first + self.plan.cells[place]]
        shaped = cells.reshape(
            [self.plan.levels.sizes[column] for column in self.plan.columns[place]]
        )
        return np.transpose(shaped, [own.index(name) for name in names])

    def sums_of(self, place: int) -> Float[np.ndarray, "2 cell"]:
        """Noisy sums of z and of 1 - z^2 of one of the plan's sums, in each of its cells."""
        first = 2 * sum(self.plan.sum_cells[:place])
        cells = self.plan.sum_cells[place]
        return self.sums[first : first + 2 * cells].reshape(2, cells)

    def fine_of(self, place: int) -> Float[np.ndarray, "level part category"]:
        """Noisy counts of one of the plan's fine ones: of the parts of each level of the column, in each category."""
        first = sum(self.plan.fine_cells[:place])
        cells = self.fine[first : first + self.plan.fine_cells[place]]
        return cells.reshape(self.plan._sizes[self.plan.fine[place][0]], PARTS, -1)

    def persons_of(self, *names: str) -> Float[np.ndarray, " cell"]:
        """The noisy counts of one of the plan's tables of persons, in each of its cells.

        Raises:
            ValueError: They were not counted.
        """
        if names not in self.plan.persons:
            raise ValueError(
                f"persons were not counted by {names}: choose one of {self.plan.persons}"
            )
        place = self.plan.persons.index(names)
        first = sum(self.plan.person_cells[:place])
        return self.persons[first : first + self.plan.person_cells[place]]

    @functools.cached_property
    def num_records(self) -> float:
        """The number of records, or of rows where a person may have several, estimated from the counts.

        It is the mean of all tables' totals, weighted by precision, and at least 1.
        """
        totals = [self.table(*table).sum() for table in self.plan.tables]
        precision = [
            weight**2 / cells
            for weight, cells in zip(self.plan.weights, self.plan.cells, strict=True)
        ]
        return max(1.0, float(np.average(totals, weights=precision)))

    def _is_whole(self) -> bool:
        plan = self.plan
        cells = (plan.cells, plan.fine_cells, plan.sum_cells * 2, plan.person_cells)
        parts = (self.counts, self.fine, self.sums, self.persons)
        return tuple(part.size for part in parts) == tuple(map(sum, cells)) and bool(
            np.isfinite(np.concatenate(parts)).all()
        )

    def __repr__(self) -> str:
        """Short, without the counts."""
        about = f"{len(self.plan.tables)} tables, {len(self.plan.sums)} sums, about {self.num_records:,.0f} records"
        return f"Marginals({about}, {self.statement.brief})"


def release_of(what: Any, **paid: Any) -> Marginals | None:
    """The release that something is or was made from, in place of a table; None if it is a table.

    Args:
        what: A release, or a result with one as `released`.
        paid: The caller's arguments that are for a table, by name; None: not given.

    Raises:
        TypeError: A release, and arguments for a table.
    """
    found = getattr(what, "released", what)
    if not isinstance(found, Marginals):
        return None
    if given := [name for name, value in paid.items() if value is not None]:
        raise TypeError(
            f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} for a table, and this is a release, which was paid for "
            "and costs nothing more: leave out what is for a table, or pass the table"
        )
    return found
