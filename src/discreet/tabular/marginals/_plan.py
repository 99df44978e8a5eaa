"""The plan of noisy counts of cross tables and noisy sums: what is released, and what it costs.

Each column has public levels (`models.Levels`), so a record is in exactly one cell of each cross
table, whatever its numbers are. The table without columns has one cell, the number of records. A
number x is also summed: z, which is x mapped from its bounds to [-1, 1], and 1 - z^2, over all
records or in each category of another column or two. A missing cell adds 0 to both.

*Sensitivity.* With table m counted w_m times, a record has the norm sqrt(sum of w_m^2) in the
counts. To a sum of weight v_s it adds v_s (z, 1 - z^2) in one cell, and z^2 + (1 - z^2)^2 <= 1: the
second moment costs nothing beyond the first. So a record that is added or removed moves everything
together by C = sqrt(sum of w_m^2 + sum of v_s^2) in L2. One that is replaced leaves one cell of
each table for another, sqrt(2) w_m away, and z may go from -1 to 1, 2 v_s away: together sqrt(2 sum
of w_m^2 + 4 sum of v_s^2). Records at opposite bounds and in other cells attain both. (Under
replacement the table without columns does not move, and sums by category move 2 v_s in one category
alone; neither is used.)

*Persons with several rows.* A person's contribution is the sum of those of up to R rows (the
schema's `max_rows`), which a keyed hash chooses as in fits. Its norm is at most R times that of a
row, and a person whose rows are all alike attains this: no smaller bound holds without changing
what is counted. Counts and sums are then of the rows kept. Beside them persons are counted, each
once: in all (apart from each other those of whom all rows were kept, and those of whom some were
not), and in each category in which they have a row. A person is in at most min(R, cells) cells of
such a table of weight u, so that it adds sum of u^2 min(R, cells) to the squared norm; in all, in
one cell.

*Laplace noise* goes by L1 norms: weights add up where their squares do above, |z| + 1 - z^2 <= 5/4
where z^2 + (1 - z^2)^2 <= 1, a person counts in each of min(R, cells) cells, and one record
replaced moves twice as much as one added. It is the smaller noise for few tables and sums.

One mechanism on all of them is the whole release: one exact event, with no steps, batches or
clipping norm. The number of records is used nowhere; it is estimated like everything else.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from discreet._dp_accounting import DpEvent
from discreet._validate import integer
from discreet.privacy.accounting import Relation, calibrate_noise_multiplier, neighbours
from discreet.privacy.mechanisms import GAUSSIAN, LAPLACE, Mechanism
from discreet.privacy.query import Gaussian, GaussianPlan, Laplace, Query, Wording
from discreet.privacy.report import Unit
from discreet.tabular.marginals._programs import (
    PARTS,
    Columns,
    Counts,
    CountsAndSums,
)
from discreet.tabular.marginals._wording import wording_of
from discreet.tabular.models import Levels
from discreet.tabular.tables import Column, Schema

MOST_CELLS = 2**26
MOST_WEIGHT = 1000
MOST_CUTS = 4
MOST_COLUMNS = 25
"""Categories of a target, and columns of a table, for which three-way tables are worth the precision of other counts."""
_ROOM = 1 + 2.0**-14
"""So much longer is the clipping norm than the longest row of the sums: clipping changes none."""

Table = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarginalsPlan(GaussianPlan):
    """The privacy plan for noisy cross tables and sums. Public; made by `calibrate` from a schema.

    Attributes:
        schema: The public description of the table.
        tables: Names of the columns of each cross table: up to three; none for the number of
            records.
        weights: Weight of each table, an integer of at least 1: a larger weight gives its counts
            less noise.
        noise_multiplier: Standard deviation of the noise on weighted counts and sums, divided by C
            (`sensitivity`).
        relation: The neighbouring relation.
        delta: The delta at which epsilon is stated.
        slices: Most slices of a column of numbers; see `models.Levels`.
        sums: What is summed: a column with bounds, alone or by one or two columns of categories.
        sum_weights: Weight of each sum, as those of tables.
        persons: In which tables persons are counted, each once, if they may have several rows: (),
            of all, and one or two columns of categories, in each of which a person counts who has a
            row there.
        person_weights: Weight of each of these, as those of tables.
        laplace: Whether the noise is Laplace noise. C is then an L1 norm, and `noise_multiplier`
            the scale over C.
        fine: What is counted in parts of slices, too: a column with bounds, alone or by one or two
            columns of categories.
        fine_weights: Weight of each of these, as those of tables.

    Raises:
        ValueError: A table of unknown, equal or more than three columns, or there twice; a wrong
            sum, table of persons or weight; too many cells.

    >>> from discreet.tabular.tables import schema_from_bounds
    >>> plan = MarginalsPlan.calibrate(schema_from_bounds("age=0:99,smoker=no|yes"), epsilon=1.0, delta=1e-6)
    >>> plan.tables, round(plan.stddev(("smoker",)), 2)
    ((('age',), ('smoker',), ('age', 'smoker')), 8.45)
    """

    schema: Schema
    tables: tuple[Table, ...]
    weights: tuple[int, ...]
    slices: int = 32
    sums: tuple[Table, ...] = ()
    sum_weights: tuple[int, ...] = ()
    persons: tuple[Table, ...] = ()
    person_weights: tuple[int, ...] = ()
    laplace: bool = False
    fine: tuple[Table, ...] = ()
    fine_weights: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        described = {column.name: column for column in self.schema.columns}
        seen = set()
        for table in self.tables:
            if (
                len(table) > 3
                or len({*table}) < len(table)
                or not {*table} <= {*described}
                or frozenset(table) in seen
            ):
                raise ValueError(
                    f"tables has {table!r}: give one to three different columns of the schema, each such set once"
                )
            seen.add(frozenset(table))
        for what, own in [("sums", self.sums), ("fine", self.fine)]:
            for name, *by in own:
                if (
                    len(by) > 2
                    or len({name, *by}) < 1 + len(by)
                    or not {name, *by} <= {*described}
                    or described[name].bounds is None
                    or any(described[other].bounds is not None for other in by)
                    or own.count((name, *by)) > 1
                ):
                    raise ValueError(
                        f"{what} has {(name, *by)!r}: give a column with bounds, alone or with one or two of "
                        "categories, each once"
                    )
        for table in self.persons:
            known = all(name in described and described[name].bounds is None for name in table)
            if (
                self.max_rows == 1
                or len(table) > 2
                or len({*table}) < len(table)
                or not known
                or self.persons.count(table) > 1
            ):
                raise ValueError(
                    f"persons has {table!r}: give () or columns of categories, as in ('region',), each once, where the schema's "
                    f"max_rows is above 1; it is {self.max_rows}, and with 1 row of a person all counts are of persons"
                )
        for column in self.schema.columns:
            if column.bounds is not None and not (np.diff(self.levels.edges(column)) > 0).all():
                raise ValueError(
                    f"the bounds of '{column.name}', {column.rule()}, have no {self.slices} slices in 64-bit floats: give it "
                    "another unit or origin"
                )
        if (
            not any(self.tables)
            or len(self.tables) != len(self.weights)
            or len(self.sums) != len(self.sum_weights)
            or len(self.persons) != len(self.person_weights)
            or len(self.fine) != len(self.fine_weights)
        ):
            raise ValueError(
                f"there are {len(self.tables)} tables and {len(self.weights)} weights, "
                f"{len(self.sums)} sums and {len(self.sum_weights)} weights, {len(self.persons)} tables of persons and "
                f"{len(self.person_weights)} weights, {len(self.fine)} fine counts and {len(self.fine_weights)} weights: name "
                "columns, and give each table and sum a weight"
            )
        each = (*self.weights, *self.sum_weights, *self.person_weights, *self.fine_weights)
        for weight in each:
            integer(
                "a weight",
                weight,
                most=MOST_WEIGHT,
                hint="A weight of 2 is as precise as four tables of weight 1.",
            )
        if self.num_counts > MOST_CELLS:
            raise ValueError(
                f"the tables have {self.num_counts:,} cells, and at most {MOST_CELLS:,} are counted: "
                "name fewer tables, or fewer slices"
            )

    @classmethod
    def calibrate(
        cls,
        schema: Schema,
        *,
        epsilon: float,
        delta: float,
        tables: Sequence[Sequence[str]] | None = None,
        weights: Mapping[Any, int] | None = None,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
        slices: int = 32,
        sums: Mapping[Table, int] | None = None,
        persons: Mapping[Table, int] | None = None,
        laplace: bool = False,
        fine: Mapping[Table, int] | None = None,
    ) -> MarginalsPlan:
        """Find the least noise with which counting and summing costs (epsilon, delta).

        Args:
            schema: The public description.
            epsilon: Target, above 0.
            delta: Target, well below one over the number of records.
            tables: The cross tables, by names of columns. None: those that twins need, which are
                all columns, all pairs and, with a target of few categories and not too many
                columns, all pairs with the target.
            weights: By name of a column: the weight of all tables with it, the largest if several
                are named; 1 for the others. By a tuple of names: that of this table. None: 2 for
                the schema's target.
            relation: The neighbouring relation.
            slices: Most slices of a column of numbers.
            sums: Weight of each sum: of a column with bounds, alone or by a column of categories.
                None: all columns of the tables that have bounds, alone, with the weights of the
                columns.
            persons: Weight of each table of persons. None: where a person may have several rows,
                that of all persons, which costs as much as a table of weight 1.
            laplace: Laplace noise instead of Gaussian noise.
            fine: Weight of each count in parts of slices, for quantiles. None: there are none.

        Raises:
            ValueError: An argument is out of range.
        """
        names = [column.name for column in schema.columns]
        if tables is None:
            tables = _tables_of(schema)
        if weights is None:
            weights = {} if schema.target is None else {schema.target: 2}
        chosen = tuple(map(tuple, tables))
        if sums is None:
            within = {name for table in chosen for name in table}
            bounded = [
                column.name for column in schema.columns if column.bounds and column.name in within
            ]
            sums = {(name,): weights.get(name, 1) for name in bounded}
        if persons is None:
            persons = {(): min(schema.max_rows, MOST_WEIGHT)} if schema.max_rows > 1 else {}
        if unknown := sorted(map(str, {*weights} - {*names, *chosen})):
            raise ValueError(
                f"weights names {', '.join(unknown)}, which the schema does not describe"
            )
        mechanism = LAPLACE if laplace else GAUSSIAN
        noise = calibrate_noise_multiplier(
            mechanism.event,
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            slack=mechanism.slack,
        )
        each = [
            weights.get(own) or max((weights.get(name, 1) for name in own), default=1)
            for own in chosen
        ]
        plan = cls(
            schema=schema,
            tables=chosen,
            weights=tuple(each),
            noise_multiplier=noise,
            relation=relation,
            delta=delta,
            slices=slices,
            sums=tuple(sums),
            sum_weights=tuple(sums.values()),
            persons=tuple(persons),
            person_weights=tuple(persons.values()),
            laplace=laplace,
            fine=tuple(fine or ()),
            fine_weights=tuple((fine or {}).values()),
        )
        return dataclasses.replace(plan, noise_multiplier=noise / plan._in_events * (1 + 1e-12))

    @functools.cached_property
    def levels(self) -> Levels:
        """The public levels of the columns."""
        return Levels(
            self.schema if self.max_rows == 1 else self.schema.without_person(), self.slices
        )

    @property
    def max_rows(self) -> int:
        """Most rows of a record: 1, or those of a person that are counted."""
        return self.schema.max_rows

    @property
    def counted(self) -> str:
        """What is counted, in a word: "records", "persons" with one row each, or "rows" of persons."""
        return "rows" if self.max_rows > 1 else f"{self.own_unit.noun}s"

    @functools.cached_property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """Positions of each table's columns."""
        place = {column.name: number for number, column in enumerate(self.schema.columns)}
        return tuple(tuple(place[name] for name in table) for table in self.tables)

    @functools.cached_property
    def cells(self) -> tuple[int, ...]:
        """Number of cells of each table."""
        return tuple(
            math.prod(self.levels.sizes[column] for column in table) for table in self.columns
        )

    @functools.cached_property
    def divided(self) -> tuple[Column, ...]:
        """The columns whose slices are counted in parts, too."""
        names = {name for name, *_ in self.fine}
        return tuple(column for column in self.schema.columns if column.name in names)

    @functools.cached_property
    def all_sizes(self) -> tuple[int, ...]:
        """Number of levels of each column; then, for each that is divided, of parts of a slice."""
        return (*self.levels.sizes, *(PARTS for _ in self.divided))

    @functools.cached_property
    def all_columns(self) -> Columns:
        """Positions of the columns of tables, then of fine counts: the column, its parts, and those by which."""
        place = {column.name: number for number, column in enumerate(self.schema.columns)}
        part = {column.name: len(place) + number for number, column in enumerate(self.divided)}
        fine = ((place[name], part[name], *(place[x] for x in by)) for name, *by in self.fine)
        return (*self.columns, *fine)

    @functools.cached_property
    def fine_cells(self) -> tuple[int, ...]:
        """Number of cells of each fine count."""
        fine = self.all_columns[len(self.tables) :]
        return tuple(math.prod(self.all_sizes[column] for column in table) for table in fine)

    @property
    def num_counts(self) -> int:
        """Number of counts of tables, and of fine ones."""
        return sum(self.cells) + sum(self.fine_cells)

    @functools.cached_property
    def _sizes(self) -> dict[str, int]:
        """Number of levels of each column, by name."""
        return dict(
            zip((column.name for column in self.schema.columns), self.levels.sizes, strict=True)
        )

    def cells_in(
        self, levels: Int[np.ndarray, "column row"], table: Sequence[str]
    ) -> Int[np.ndarray, " row"]:
        """The cell of each row among those of one column or more."""
        place = {name: number for number, name in enumerate(self._sizes)}
        first, *others = table
        found = levels[place[first]]
        for name in others:
            found = found.astype(np.int32) * self._sizes[name] + levels[place[name]]
        return found

    @functools.cached_property
    def summed(self) -> tuple[Column, ...]:
        """The columns that are summed."""
        names = {name for name, *_ in self.sums}
        return tuple(column for column in self.schema.columns if column.name in names)

    @functools.cached_property
    def sum_cells(self) -> tuple[int, ...]:
        """Number of cells of each sum."""
        return tuple(math.prod(self._sizes[name] for name in by) for _, *by in self.sums)

    @functools.cached_property
    def person_cells(self) -> tuple[int, ...]:
        """Number of cells of each table of persons; of all: 2, persons of whom all rows were kept, and the others."""
        return tuple(
            math.prod(self._sizes[name] for name in table) if table else 2 for table in self.persons
        )

    @property
    def sensitivity(self) -> float:
        """C, the norm of what one record adds to the weighted counts and sums: in L2, or L1 for Laplace noise."""
        return self._length(self._of_tables, self._norm)

    @property
    def moved(self) -> float:
        """How far one record moves the weighted counts and sums together, in that norm; the head of this file has the proof."""
        near = neighbours(self.relation)
        of_cells = near.distance if self.laplace else near.of_cells
        return self._length(of_cells * self._of_tables, near.distance * self._norm)

    def _length(self, *sizes: float) -> float:
        """The norm of a vector whose parts have these norms."""
        return math.fsum(sizes) if self.laplace else math.hypot(*sizes)

    @property
    def _of_tables(self) -> float:
        """The norm of what one record adds to the weighted counts."""
        return self.max_rows * self._length(*self.weights, *self.fine_weights)

    @property
    def _norm(self) -> float:
        """The norm of what one record adds to the weighted sums and to the counts of persons."""
        once = (
            self._length(*[weight] * (min(self.max_rows, cells) if table else 1))
            for table, weight, cells in zip(
                self.persons, self.person_weights, self.person_cells, strict=True
            )
        )
        of_sum = 5 / 4 if self.laplace else 1.0
        sums = of_sum * self.max_rows * self._length(*self.sum_weights)
        return _ROOM * self._length(sums, *once)

    @property
    def _in_events(self) -> float:
        """C in units of that of the event: under REPLACE_ONE an accountant takes neighbours to be 2C apart."""
        return self.sensitivity * neighbours(self.relation).distance / self.moved

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on each weighted count and sum."""
        return self.size * (math.sqrt(2) if self.laplace else 1)

    @property
    def size(self) -> float:
        """Size of the noise: its standard deviation, or the scale of Laplace noise."""
        return self.noise_multiplier * self.sensitivity

    def stddev(self, table: Table) -> float:
        """Standard deviation of the noise on each count of a table, in records or, where a record has several, rows."""
        return self.noise / self.weights[self.place(table)]

    def place(self, table: Sequence[str]) -> int:
        """Number of the table that has these columns, in whatever order.

        Raises:
            ValueError: None has.
        """
        found = [number for number, own in enumerate(self.tables) if set(own) == set(table)]
        if not found:
            raise ValueError(
                f"{' × '.join(table)} was not counted: choose one of the plan's tables"
            )
        return found[0]

    @property
    def slack(self) -> float:
        """Total variation between what runs and the event."""
        return self._mechanism.slack

    def event(self) -> DpEvent:
        """The event of the release, under the plan's relation."""
        return self._mechanism.event(self.noise_multiplier * self._in_events)

    def query(self) -> Query:
        """The release of the counts of `tables`, and of sums and counts of persons, if there are any."""
        counts = Counts(self.all_sizes, self.all_columns, (*self.weights, *self.fine_weights))
        if not self.width:
            return Query(counts, self._added, self.relation)
        return Query(
            CountsAndSums(counts, self._norm, 1 if self.laplace else 2),
            self._added,
            self.relation,
            records=(3, 4, 5),
        )

    @functools.cached_property
    def drawn(self) -> float:
        """Standard deviation of the noise as it is drawn, on a grid of integers: a little above `noise`."""
        return self._added.drawn(self.num_counts + self.width)

    @property
    def _mechanism(self) -> Mechanism:
        return LAPLACE if self.laplace else GAUSSIAN

    @property
    def _added(self) -> Gaussian | Laplace:
        """The noise on the counts and sums."""
        kind = Laplace if self.laplace else Gaussian
        return kind(self.size, self.size / self.sensitivity * self._in_events)

    @property
    def width(self) -> int:
        """Number of sums and of counts of persons."""
        return 2 * sum(self.sum_cells) + sum(self.person_cells)

    @property
    def all_weights(self) -> Int[np.ndarray, " number"]:
        """The weight of each number that is released of `tables`, `fine`, sums and persons, one after another."""
        tables = np.repeat(self.weights, self.cells)
        fine = np.repeat(np.array(self.fine_weights, int), self.fine_cells)
        sums = np.repeat(self.sum_weights, 2 * np.array(self.sum_cells, int))
        persons = np.repeat(self.person_weights, self.person_cells)
        return np.concatenate([tables, fine, sums, persons])

    def apart(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Counts, fine counts, sums and counts of persons, from all numbers one after another."""
        sizes = [sum(self.cells), sum(self.fine_cells), 2 * sum(self.sum_cells)]
        return np.split(numbers, np.cumsum(sizes))

    def wording(self, unit: Unit) -> Wording:
        """What the statement of one release by this plan says, for its unit of privacy."""
        return wording_of(self, unit)

    @property
    def own_unit(self) -> Unit:
        """The schema's."""
        return Unit(self.schema.person, self.max_rows)


def _tables_of(schema: Schema) -> list[Table]:
    """The cross tables that twins need."""
    names = [column.name for column in schema.columns]
    pairs = itertools.combinations(names, 2)
    tables: list[Table] = [*((name,) for name in names), *pairs]
    target = schema.target_column
    if (
        target is not None
        and 0 < len(target.categories) <= MOST_CUTS
        and len(names) <= MOST_COLUMNS
    ):
        others = [name for name in names if name != target.name]
        tables += [(*pair, target.name) for pair in itertools.combinations(others, 2)]
    return tables
