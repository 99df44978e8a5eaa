"""Measure once: noisy counts of cross tables, and noisy sums: the only part of this package that sees records.

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

Counts and sums are added up piece by piece in integers (z and 1 - z^2 in units of 2^-24), so that
they depend neither on the order of the records nor on where pieces end. The programs of the queries
(`query`) are given the last rows, and the counts and sums of all others.

A table may have too many pairs of columns. Then a plan has `choices`: after the counts of `tables`,
a pair is chosen so many times, and counted, as in AIM (McKenna et al., VLDB 2022). A choice is made
by the exponential mechanism, of the pair whose counts are the farthest in L1 from those of a model
(`_twins.Refit`) that is fitted to everything counted before, less the L1 norm of the noise to
expect; one record moves such a score by 1. What is chosen decides what is counted, never how
precisely or how often, so that the event is known beforehand: all Gaussian releases together are
one, of C = sqrt(sum of squared weights), since the divergence of Gaussians that are chosen by
earlier ones is that of fixed ones; and the choices compose by the best adaptive adversary
(`accounting`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from tqdm.auto import tqdm

from discreet._dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent
from discreet._jax import one_release
from discreet._validate import integer, positive
from discreet.privacy import random
from discreet.privacy.accounting import (
    BoundedRangeDpEvent,
    Relation,
    calibrate_noise_multiplier,
    neighbours,
)
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.mechanisms import (
    CHOICE,
    GAUSSIAN,
    LAPLACE,
    clip_records,
    count_cells,
    sum_records,
    table_distances,
)
from discreet.privacy.query import (
    LAST,
    Choice,
    Gaussian,
    GaussianPlan,
    Laplace,
    Query,
    Wording,
    padded,
)
from discreet.privacy.released import Released
from discreet.privacy.report import Statement, Unit, counted
from discreet.privacy.verify import Certificate
from discreet.tabular.models import Levels, coded_columns
from discreet.tabular.tables import (
    PARTS_OF_SCHEMA,
    Column,
    DataError,
    OutOfBounds,
    Report,
    Schema,
    rows_of_persons,
    to_steps,
)

MOST_CELLS = 2**26
MOST_WEIGHT = 1000
PARTS = 16
"""Parts of each slice in fine counts."""
MOST_CUTS = 4
MOST_COLUMNS = 25
"""Categories of a target, and columns of a table, for which three-way tables are worth the precision of other counts."""
METHOD = "noisy counts"
_VERSION = 4
_FEW_ROWS = 8
"""Rows that the programs count themselves where there are many tables: any number will do."""
_ROWS_AT_ONCE = 2**18
_ROWS_A_PART = 2**16
"""Rows that are gathered before they are counted, and the rows of them that are counted without a break."""
_BLOCK_CELLS = 2**15
_TWO_BYTES = 2**16
"""Cells of columns that are counted together, since more would not stay in a processor's cache; and of codes of two bytes."""
_COUNTED = 2**40
"""Bias of a counted pair, so that it is never chosen again."""
_ONE = 2**24
"""The integer that represents 1 in sums."""
_ROOM = 1 + 2.0**-14
"""So much longer is the clipping norm than the longest row of the sums: clipping changes none."""
_MOST_UNITS = 2**53
"""Integers up to here are exact in 64-bit floats."""
_SHARE = 0.1
"""Share of the budget, as a squared distance of Gaussians, for choices, as in AIM."""

Table = tuple[str, ...]
Columns = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarginalsPlan(GaussianPlan):
    """The privacy plan for noisy cross tables and sums. Public; made by `calibrate` from a schema.

    Attributes:
        schema: The public description of the table.
        tables: Names of the columns of each cross table: up to three; none for the number of
            records.
        weights: Weight of each table, an integer of at least 1: a larger weight gives its counts
            less noise. Weights beyond those of `tables`, all of them 1, are of pairs not yet
            chosen.
        noise_multiplier: Standard deviation of the noise on weighted counts and sums, divided by C
            (`sensitivity`).
        relation: The neighbouring relation.
        delta: The delta at which epsilon is stated.
        slices: Most slices of a column of numbers; see `models.Levels`.
        choices: Number of pairs chosen, one after another.
        choice_epsilon: The privacy range of each choice; see `accounting.BoundedRangeDpEvent`.
        sums: What is summed: a column with bounds, alone or by one or two columns of categories.
        sum_weights: Weight of each sum, as those of tables.
        persons: In which tables persons are counted, each once, if they may have several rows: (),
            of all, and one or two columns of categories, in each of which a person counts who has a
            row there.
        person_weights: Weight of each of these, as those of tables.
        laplace: Whether the noise is Laplace noise. C is then an L1 norm, and `noise_multiplier`
            the scale over C; there are no choices.
        fine: What is counted in parts of slices, too, where there are no choices: a column with
            bounds, alone or by one or two columns of categories.
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
    choices: int = 0
    choice_epsilon: float = 0.0
    sums: tuple[Table, ...] = ()
    sum_weights: tuple[int, ...] = ()
    persons: tuple[Table, ...] = ()
    person_weights: tuple[int, ...] = ()
    laplace: bool = False
    fine: tuple[Table, ...] = ()
    fine_weights: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.choices and (self.laplace or self.fine):
            raise ValueError(
                "choices are for Gaussian noise without fine counts: leave out choices, or laplace and fine"
            )
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
        chosen = len(self.weights) - len(self.tables)
        if (
            not any(self.tables)
            or len(self.sums) != len(self.sum_weights)
            or len(self.persons) != len(self.person_weights)
            or len(self.fine) != len(self.fine_weights)
            or not 0 <= chosen <= self.choices
            or {*self.weights[len(self.tables) :]} - {1}
        ):
            raise ValueError(
                f"there are {len(self.tables)} tables, {self.choices} choices and {len(self.weights)} weights, "
                f"{len(self.sums)} sums and {len(self.sum_weights)} weights, {len(self.persons)} tables of persons and "
                f"{len(self.person_weights)} weights, {len(self.fine)} fine counts and {len(self.fine_weights)} weights: name "
                "columns, and give each table and sum a weight, and each pair that is to be chosen a weight of 1"
            )
        if self.choices:
            positive(
                "choice_epsilon",
                self.choice_epsilon,
                hint="MarginalsPlan.calibrate(choices=...) finds it.",
            )
        each = (*self.weights, *self.sum_weights, *self.person_weights, *self.fine_weights)
        for weight in each:
            integer(
                "a weight",
                weight,
                most=MOST_WEIGHT,
                hint="A weight of 2 is as precise as four tables of weight 1.",
            )
        if self.open and len(self.candidates.tables) - len(self.tables) < self.open:
            raise ValueError(
                f"choices is {self.choices}, and there are fewer other pairs of columns: choose fewer"
            )
        if (cells := (self.candidates if self.open else self).num_counts) > MOST_CELLS:
            raise ValueError(
                f"the tables have {cells:,} cells, and at most {MOST_CELLS:,} are counted: name fewer tables, or fewer slices"
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
        choices: int = 0,
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
                columns, all pairs with the target. With `choices`: all columns, all pairs with the
                target, and those with values that are impossible together.
            weights: By name of a column: the weight of all tables with it, the largest if several
                are named; 1 for the others. By a tuple of names: that of this table. None: 2 for
                the schema's target.
            relation: The neighbouring relation.
            slices: Most slices of a column of numbers.
            choices: Number of further pairs of columns chosen and counted, one after another, by
                what the tables and the pairs before do not explain. A tenth of the budget is for
                the choices.
            sums: Weight of each sum: of a column with bounds, alone or by a column of categories.
                None: all columns of the tables that have bounds, alone, with the weights of the
                columns.
            persons: Weight of each table of persons. None: where a person may have several rows,
                that of all persons, which costs as much as a table of weight 1.
            laplace: Laplace noise instead of Gaussian noise, without choices.
            fine: Weight of each count in parts of slices, for quantiles. None: there are none.

        Raises:
            ValueError: An argument is out of range.
        """
        names = [column.name for column in schema.columns]
        if tables is None:
            tables = _tables_of(schema, choices)
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
        goal = {"epsilon": epsilon, "delta": delta, "relation": relation, "slack": mechanism.slack}
        integer("choices", choices, least=0, hint="0 counts the tables alone.")
        goal["slack"] += choices * (GAUSSIAN.slack + CHOICE.slack)
        # A choice of range r is worth a Gaussian of distance r / 2; under REPLACE_ONE both are
        # twice as far.
        ratio = 2 * math.sqrt(_SHARE / (1 - _SHARE) / max(choices, 1))
        noise = calibrate_noise_multiplier(
            lambda noise: _event(noise, ratio / noise, choices, laplace), **goal
        )
        each = [
            weights.get(own) or max((weights.get(name, 1) for name in own), default=1)
            for own in chosen
        ]
        plan = cls(
            schema=schema,
            tables=chosen,
            weights=(*each, *(1,) * choices),
            noise_multiplier=noise,
            relation=relation,
            delta=delta,
            slices=slices,
            choices=choices,
            choice_epsilon=ratio / noise if choices else 0.0,
            sums=tuple(sums),
            sum_weights=tuple(sums.values()),
            persons=tuple(persons),
            person_weights=tuple(persons.values()),
            laplace=laplace,
            fine=tuple(fine or ()),
            fine_weights=tuple((fine or {}).values()),
        )
        return dataclasses.replace(plan, noise_multiplier=noise / plan._in_events * (1 + 1e-12))

    @property
    def open(self) -> int:
        """The number of pairs not yet chosen."""
        return len(self.weights) - len(self.tables)

    @functools.cached_property
    def candidates(self) -> MarginalsPlan:
        """The plan's tables and all pairs that may be chosen: what is counted exactly, which is not private."""
        names = [column.name for column in self.schema.columns]
        known = {frozenset(table) for table in self.tables}
        pairs = [pair for pair in itertools.combinations(names, 2) if frozenset(pair) not in known]
        tables = (*self.tables, *pairs)
        return dataclasses.replace(self, tables=tables, weights=(1,) * len(tables), choices=0)

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
        return self._size * (math.sqrt(2) if self.laplace else 1)

    @property
    def _size(self) -> float:
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
    def num_releases(self) -> int:
        """Number of releases."""
        return 1 + 2 * self.choices

    @property
    def slack(self) -> float:
        """Total variation between what runs and the event."""
        first = LAPLACE.slack if self.laplace else GAUSSIAN.slack
        return first + self.choices * (GAUSSIAN.slack + CHOICE.slack)

    def event(self) -> DpEvent:
        """The event of the release, under the plan's relation."""
        noise = self.noise_multiplier * self._in_events
        return _event(noise, self.choice_epsilon, self.choices, self.laplace)

    def in_words(self) -> str:
        """Describe the released values."""
        choices = f"{counted(self.choices, 'choice')} of a pair of columns, of privacy range {self.choice_epsilon:.6g}"
        also = f" and {choices}, with their counts"
        sums = (
            f", and {2 * sum(self.sum_cells):,} sums of numbers and of squares" if self.sums else ""
        )
        once = f", and {sum(self.person_cells):,} counts of persons" if self.persons else ""
        return (
            f"counts of the {self.num_counts:,} cells of {len(self.all_columns):,} cross tables{also if self.open else ''}"
            f"{sums}{once}, with {self._noise_words} {self._size:.6g} divided by the weight of the table or sum "
            f"(noise multiplier {self.noise_multiplier:.6g})"
        )

    def certificate(self, key: PRNGKeyArray, rows: int = LAST) -> Certificate:
        """Prove what the program that counts `tables` tells of one record.

        It is the certificate: (key, counted, levels, mask), or, with sums, (key, counted, summed,
        levels, values, mask).

        Args:
            key: A key of the same type as for the program.
            rows: Records that it takes; `counted` and `summed` have the counts and sums of all
                others.

        Raises:
            PrivacyError: The proof failed.
        """
        counted, levels, mask = _shapes(self.num_counts, self._rows(rows), len(self.all_sizes))
        if not self.width:
            return self.query().certificate(key, counted, levels, mask)
        summed, values = (
            jax.ShapeDtypeStruct(shape, np.int64) for shape in ((self.width,), (rows, self.width))
        )
        return self.query().certificate(key, counted, summed, levels, values, mask)

    def query(self) -> Query:
        """The release of the counts of `tables`, and of sums and counts of persons, if there are any."""
        own = self._first
        counts = _Counts(self.all_sizes, self.all_columns, (*own.weights, *self.fine_weights))
        if not self.width:
            return Query(counts, self._of_first, self.relation)
        return Query(
            _CountsAndSums(counts, self._norm, 1 if self.laplace else 2),
            self._of_first,
            self.relation,
            records=(3, 4, 5),
        )

    @functools.cached_property
    def drawn(self) -> float:
        """Standard deviation of the noise as it is drawn, on a grid of integers: a little above `noise`."""
        first = self._of_first.drawn(self._first.num_counts + self.width)
        return (
            max(first, self._of_pair.drawn(max(self.levels.sizes) ** 2)) if self.choices else first
        )

    @property
    def _first(self) -> MarginalsPlan:
        """What is counted before pairs are chosen."""
        count = len(self.weights) - self.choices
        return dataclasses.replace(
            self, tables=self.tables[:count], weights=self.weights[:count], choices=0
        )

    @property
    def _of_first(self) -> Gaussian | Laplace:
        """The noise on these counts and on all sums."""
        own = self._first
        kind = Laplace if self.laplace else Gaussian
        return kind(self._size, self._size / own.sensitivity * own._in_events)

    @property
    def _of_pair(self) -> Gaussian:
        """The noise on the counts of a chosen pair."""
        return Gaussian(self.noise, self.noise / self.max_rows * neighbours(self.relation).of_cells)

    @property
    def width(self) -> int:
        """Number of sums and of counts of persons."""
        return 2 * sum(self.sum_cells) + sum(self.person_cells)

    @property
    def all_weights(self) -> Int[np.ndarray, " number"]:
        """The weight of each number that is released of `tables`, `fine`, sums and persons, one after another."""
        tables = np.repeat(self.weights[: len(self.tables)], self.cells)
        fine = np.repeat(np.array(self.fine_weights, int), self.fine_cells)
        sums = np.repeat(self.sum_weights, 2 * np.array(self.sum_cells, int))
        persons = np.repeat(self.person_weights, self.person_cells)
        return np.concatenate([tables, fine, sums, persons])

    def apart(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Counts, fine counts, sums and counts of persons, from all numbers one after another."""
        sizes = [sum(self.cells), sum(self.fine_cells), 2 * sum(self.sum_cells)]
        return np.split(numbers, np.cumsum(sizes))

    def _rows(self, records: int) -> tuple[int, ...]:
        """Axes of so many records and, where each may have several, of their rows."""
        return (records, self.max_rows) if self.max_rows > 1 else (records,)

    def choosing(self, key: PRNGKeyArray, rows: int = _FEW_ROWS) -> tuple[Certificate, Certificate]:
        """Prove what a choice tells of one record, and what the counts of the pair tell. Each is one program for all choices.

        Args:
            key: As in `certificate`.
            rows: As there.

        Returns:
            The choice: (key, counted, levels, mask, expected, biases) to the number of a pair among
                those of `candidates`. The
            counts of a pair: (key, counted, levels, mask), where `levels` has the pair's columns
                alone, each as if it had as
            many levels as the longest.

        Raises:
            PrivacyError: A proof failed.
        """
        own = len(self.tables)
        sizes = self.levels.sizes
        tables = self.candidates.columns[own:]
        longest = max(sizes)
        cells = sum(self.candidates.cells[own:])
        biases = jax.ShapeDtypeStruct((len(tables),), np.int64)
        expected = jax.ShapeDtypeStruct((cells,), np.int64)
        choice = Query(
            _Distances(sizes, tables), Choice(self.choice_epsilon, self.max_rows), self.relation
        )
        pair = Query(_Counts((longest, longest), ((0, 1),), (1,)), self._of_pair, self.relation)
        return (
            choice.certificate(
                key, *_shapes(cells, self._rows(rows), len(sizes)), expected, biases
            ),
            pair.certificate(key, *_shapes(longest**2, self._rows(rows), 2)),
        )

    def wording(self, unit: Unit) -> Wording:
        """What the statement of one release by this plan says, for its unit of privacy."""
        how = neighbours(self.relation).how
        noun = unit.noun
        most = self.max_rows
        kept = (
            ""
            if most == 1
            else f"Of each person at most {most} rows were used, chosen by a secret order. "
        )
        what = "counts and sums" if self.sums else "counts"
        named = ", ".join(self.schema.inferred)
        return Wording(
            exact=self.laplace,
            method=METHOD,
            mechanism=(
                f"{kept}Each value was replaced by its level, a category or a slice of the public bounds, and the "
                f"{self.counted} in each cell of the cross tables were counted. {self._how_fine() if self.fine else ''}"
                f"{self._how_summed() if self.sums else ''}"
                f"{self._how_persons() if self.persons else ''}One {noun} {how} the table "
                f"moves the weighted {what} together by at most {self.moved:.6g} in "
                f"{'L1 norm, the sum of all changes' if self.laplace else 'Euclidean norm'}. "
                f"{self._noise_words} {self._size:.6g} was "
                f"added to each of these. {self._how_chosen() if self.choices else ''}Only noisy "
                f"{what}{' and the choices' if self.choices else ''} left the data."
            ),
            plan={
                "tables": len(self.weights) + len(self.fine),
                "cells": self.num_counts,
                "slices": self.slices,
                "contribution_bound": self.sensitivity,
                "noise_multiplier": self.noise_multiplier,
                "noise_scale" if self.laplace else "noise_standard_deviation": self._size,
                "tables_by_weight": _by_weight((*self.weights, *self.fine_weights)),
            }
            | ({"max_rows": most, "counts_of_persons": sum(self.person_cells)} if most > 1 else {})
            | (
                {"sums": 2 * sum(self.sum_cells), "sums_by_weight": _by_weight(self.sum_weights)}
                if self.sums
                else {}
            )
            | (
                {"choices": self.choices, "choice_range": self.choice_epsilon}
                if self.choices
                else {}
            ),
            released=[f"{self.in_words()}, and what is computed from them"],
            public=[
                "the plan: the cross tables, the sums, their weights and the noise",
                "the columns and their levels",
                *(
                    [f"the largest number of rows of a person that were used, {most}"]
                    if most > 1
                    else []
                ),
            ],
            notes=[
                *([self.schema.weight_words()] if self.schema.weight is not None else []),
                *([self.schema.bought.in_words()] if self.schema.bought is not None else []),
            ],
            violations=[
                f"Bounds or categories of these columns were taken from the data: {named}. No ε holds."
            ]
            if named
            else [],
        )

    @property
    def _noise_words(self) -> str:
        return (LAPLACE if self.laplace else GAUSSIAN).words

    @property
    def own_unit(self) -> Unit:
        """The schema's."""
        return Unit(self.schema.person, self.max_rows)

    def _how_fine(self) -> str:
        return f"Each slice of {counted(len(self.divided), 'column')} was also counted in {PARTS} parts, in all or by category. "

    def _how_summed(self) -> str:
        return (
            f"Numbers were mapped from their bounds to z in [-1, 1]; z and 1 - z² of {counted(len(self.summed), 'column')} were "
            "summed, in all or by category. "
        )

    def _how_persons(self) -> str:
        columns = [" × ".join(table) for table in self.persons if table]
        by = (
            f", and in each category of {', '.join(columns)} where they have a row"
            if columns
            else ""
        )
        return f"Persons were counted, too, each once: those of whom all rows were used, the others{by}. "

    def _how_chosen(self) -> str:
        moved = self.max_rows * neighbours(self.relation).distance
        return (
            f"{counted(self.choices, 'pair')} of columns more, each chosen by the exponential mechanism, by how far "
            "its counts are from those of a model of everything counted before, were counted in the same way. One "
            f"{self.own_unit.noun} moves each such distance by at most {moved:g}. "
            f"Each choice has privacy range {self.choice_epsilon:.6g} for distances that move by {self.max_rows}. "
        )


class _Counts(NamedTuple):
    """Weighted counts of cross tables: those of all other records, and of the last ones."""

    sizes: tuple[int, ...]
    tables: Columns
    weights: tuple[int, ...]

    def __call__(self, counted: Array, levels: Array, mask: Array) -> Array:
        return count_cells(levels, mask, *self, counted)


class _CountsAndSums(NamedTuple):
    """Counts, and the weighted sums of values in units of 1 / `_ONE`; those of one record have at most the norm `norm`."""

    counts: _Counts
    norm: float
    order: int

    def __call__(
        self, counted: Array, summed: Array, levels: Array, values: Array, mask: Array
    ) -> tuple[Array, Array]:
        rows = clip_records(values.astype(float) / _ONE, self.norm, self.order)
        return self.counts(counted, levels, mask), sum_records(rows, mask) + summed.astype(
            float
        ) / _ONE


class _Distances(NamedTuple):
    """The distances of tables' counts from expected ones, less the biases: scores, of which one record moves each by 1."""

    sizes: tuple[int, ...]
    tables: Columns

    def __call__(
        self, counted: Array, levels: Array, mask: Array, expected: Array, biases: Array
    ) -> Array:
        return table_distances(
            levels, mask, expected, *self, (1,) * len(self.tables), biases, counted
        )


def _tables_of(schema: Schema, choices: int) -> list[Table]:
    """The cross tables that twins need."""
    names = [column.name for column in schema.columns]
    pairs = itertools.combinations(names, 2)
    if choices:
        known = [{name for name, _ in pair} for pair in schema.impossible]
        return [
            *((name,) for name in names),
            *(pair for pair in pairs if schema.target in pair or {*pair} in known),
        ]
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


def _event(noise_multiplier: float, choice_epsilon: float, choices: int, laplace: bool) -> DpEvent:
    counts = (LAPLACE if laplace else GAUSSIAN).event(noise_multiplier)
    if not choices:
        return counts
    return ComposedDpEvent(
        [counts, SelfComposedDpEvent(BoundedRangeDpEvent(choice_epsilon), choices)]
    )


def _shapes(cells: int, rows: tuple[int, ...], columns: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Counts of further records, levels of the last ones, and which of them are real."""
    counted = jax.ShapeDtypeStruct((cells,), np.int64)
    return (
        counted,
        jax.ShapeDtypeStruct((*rows, columns), np.int32),
        jax.ShapeDtypeStruct(rows[:1], bool),
    )


def _by_weight(weights: Sequence[int]) -> dict[str, int]:
    return {str(weight): weights.count(weight) for weight in sorted({*weights})}


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
        # Weights of pairs that are still to be chosen come last.
        precision = [
            weight**2 / cells
            for weight, cells in zip(self.plan.weights, self.plan.cells, strict=False)
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


@one_release
def private_marginals(
    rng_key: PRNGKeyArray,
    table: Any,
    plan: MarginalsPlan,
    *,
    ledger: Ledger | None = None,
    out_of_bounds: str = "refuse",
    person_key: bytes | None = None,
    non_private_seed: bool = False,
    keep: Callable[[Marginals], object] | None = None,
    progress_bar: bool = False,
) -> Marginals:
    """Count the cross tables of a plan, and sum numbers, with noise; then count the pairs that it chooses, one after another.

    Guarantee: all that is returned is one `plan.event()` under the plan's relation, for one record,
    or for one person where the schema names the person column. The program is proved to be that
    before it runs. A file is read in one pass, in pieces (in two passes, where persons are to be
    told apart), so it may be larger than memory.

    Args:
        rng_key: `discreet.random.key()`, for this release alone.
        table: A file, a pyarrow or pandas table, or a dict of arrays.
        plan: The plan of the release.
        ledger: The table's budget, debited before the release.
        out_of_bounds: "refuse", or "clip": a number outside its bounds moves to the nearer one.
        person_key: As `key` in `tables.rows_of_persons`; None for a new one.
        non_private_seed: Allow a key made from a seed, with which nothing is private.
        keep: Called with the counts of the tables, and again after each choice, where the plan has
            choices: what was released so far, to be saved in case that the rest is interrupted. The
            whole budget is spent from the first call on.
        progress_bar: Show a bar over the choices.

    Returns:
        The noisy counts, with their statement. Its plan has the chosen pairs among its tables.

    Raises:
        DataError: The table cannot be read, or has a cell that the schema does not allow.
        ValueError, TypeError: Another wrong input. All are raised before anything is spent.
        SpentError: The ledger does not hold it.
        PrivacyError: The program could not be proved.

    >>> import discreet as dp
    >>> from discreet.tabular.tables import schema_from_bounds
    >>> plan = MarginalsPlan.calibrate(schema_from_bounds("visits=0:9,smoker=no|yes"), epsilon=1.0, delta=1e-6)
    >>> people = {"visits": [0, 3] * 5000, "smoker": ["yes", "no"] * 5000}
    >>> found = private_marginals(dp.random.key(), people, plan)
    >>> found.table("smoker", "visits").shape, bool(9_000 < found.num_records < 11_000)
    ((2, 32), True)

    Reference:
        Dwork and Roth, The algorithmic foundations of differential privacy, 2014, A.1.
    """
    key = random.secret_key(rng_key, "private_marginals", non_private_seed)
    if plan.open < plan.choices:
        raise ValueError(
            "private_marginals: the plan's pairs were chosen already: calibrate a new plan with choices"
        )
    act = Act.on(plan, key, random.Purpose.MARGINALS, ledger=ledger)
    rows = _FEW_ROWS if plan.open else max(1, LAST // plan.max_rows)
    first, *choosing = (
        plan.certificate(act.key, rows),
        *(plan.choosing(act.key, rows) if plan.open else ()),
    )
    measured = _Measured(plan.candidates if plan.open else plan, rows)
    for piece in _pieces(table, plan, out_of_bounds, person_key):
        measured.add(piece)
    counted, *others = measured.arguments()
    act.prove(first, *choosing, times=[1, *[plan.choices] * len(choosing)])
    act.begin()
    keys = list(jax.random.split(act.key, 1 + 2 * plan.open)) if plan.open else [act.key]
    noisy = first(keys[0], counted[: plan.num_counts], *others)
    noisy = np.concatenate([np.asarray(part, np.float64) for part in jax.tree.leaves(noisy)])
    counts, fine, sums, persons = plan.apart(noisy / plan.all_weights)
    released = Marginals(plan, counts, act.statement, sums, persons, fine)
    if not plan.open:
        return released
    chosen = _choose(
        released, (counted, others[-3 if plan.width else -2], others[-1]), choosing, keys[1:]
    )
    for found in tqdm(
        chosen, desc="Choosing pairs", total=1 + plan.open, delay=2.0, disable=not progress_bar
    ):
        released = found
        if keep is not None:
            keep(released)
    return released


def _choose(
    released: Marginals,
    held: tuple[np.ndarray, np.ndarray, np.ndarray],
    programs: Sequence[Certificate],
    keys: Sequence[PRNGKeyArray],
) -> Iterator[Marginals]:
    """Choose pairs, count them, and yield all counts before the first and after each.

    Args:
        released: The counts of the plan's tables.
        held: Exact counts of the candidates in all but a few rows, and these rows with their mask.
            Not private.
        programs: The choice, and the counts of the pair.
        keys: Two for each choice.
    """
    from discreet.tabular.marginals._twins import Refit

    yield released
    (choose, measure) = programs
    plan = released.plan
    counted, levels, mask = held
    candidates = plan.candidates
    own = len(plan.tables)
    longest = max(plan.levels.sizes)
    sizes = plan.levels.sizes
    firsts = np.cumsum((0, *candidates.cells))
    # The mean of the size of a Gaussian is sqrt(2 / pi) of its standard deviation.
    biases = np.rint(math.sqrt(2 / math.pi) * plan.noise * np.array(candidates.cells[own:])).astype(
        np.int64
    )
    refit = Refit(plan)
    for key, its_noise in zip(keys[::2], keys[1::2], strict=True):
        expected = np.rint(refit(released, candidates.columns[own:])).astype(np.int64)
        place = own + int(choose(key, counted[firsts[own] :], levels, mask, expected, biases))
        one, other = columns = candidates.columns[place]
        square = np.zeros((longest, longest), np.int64)
        corner = np.s_[: sizes[one], : sizes[other]]
        square[corner] = counted[firsts[place] : firsts[place + 1]].reshape(
            sizes[one], sizes[other]
        )
        noisy = np.asarray(
            measure(its_noise, square.ravel(), levels[..., columns], mask), np.float64
        )
        biases[place - own] = _COUNTED
        now = dataclasses.replace(
            released.plan, tables=(*released.plan.tables, candidates.tables[place])
        )
        counts = np.concatenate([released.counts, noisy.reshape(longest, longest)[corner].ravel()])
        released = dataclasses.replace(released, plan=now, counts=counts)
        yield released


class _Piece(NamedTuple):
    """Some rows: the levels of all columns, and z and 1 - z^2 of the columns that are summed, in units of 1 / `_ONE`.

    Below the levels are those of parts of slices, of the columns that are divided.
    Where a person may have several rows, also the number of the person of each row, counted from
    the last one, and whether rows of that person were left out.
    """

    levels: Int[np.ndarray, "column row"]
    values: Int[np.ndarray, "2 column row"]
    persons: Int[np.ndarray, "part row"]

    def of(self, rows: Any) -> _Piece:
        """Some of them."""
        return _Piece(*(part[..., rows] for part in self))


class _Measured:
    """Exact counts and sums over all records but the last few, and these. Not private.

    Args:
        plan: What is counted and summed.
        records: How many records are kept.
    """

    def __init__(self, plan: MarginalsPlan, records: int) -> None:
        self._plan, self._records, self._held, self._last = (
            plan,
            records,
            list[_Piece](),
            list[_Piece](),
        )
        self._blocks = _blocks(plan)
        self._cells = [
            np.zeros(math.prod(plan.all_sizes[c] for c in block), np.int64)
            for block in self._blocks
        ]
        self._sums = np.zeros(plan.width, np.int64)
        self._present: list[list[np.ndarray]] = [[] for _ in plan.persons]
        self._left = _MOST_UNITS // (_ONE * max(plan.sum_weights, default=1))

    def add(self, piece: _Piece) -> None:
        """Add some rows.

        Raises:
            DataError: There are too many for exact sums.
        """
        self._left -= piece.levels.shape[1]
        if self._left < 0 and self._plan.sums:
            raise DataError(
                "the table has more rows than can be summed exactly: give smaller weights, or leave out sums"
            )
        if self._plan.max_rows > 1:
            number, left_out = piece.persons
            for table, cells, found in zip(
                self._plan.persons, self._plan.person_cells, self._present, strict=True
            ):
                level = self._plan.cells_in(piece.levels, table) if table else left_out
                found.append(np.unique(number * cells + level))
            last = number < self._records
            self._last.append(piece.of(last))
            piece = piece.of(~last)
        if sum(held.levels.shape[1] for held in self._held) >= _ROWS_AT_ONCE:
            self._count(_joined(self._held))
            self._held.clear()
        self._held.append(piece)

    def arguments(self) -> tuple[np.ndarray, ...]:
        """Those of the program, after the key: of other records exact counts and sums, of the last ones levels and values."""
        whole = _joined(self._held)
        last = _joined(self._last) if self._last else whole.of(np.s_[-self._records :])
        self._count(whole if self._last else whole.of(np.s_[: -self._records]))
        counted = _of_tables(self._plan, self._blocks, self._cells)
        rows = last.levels.T.astype(np.int32)
        values = self._values(last)
        if self._last:
            rows, values = self._by_person(last.persons[0], rows, values)
        levels, mask = padded(rows, self._records)
        if not self._plan.width:
            return counted, levels, mask
        return counted, self._sums, levels, padded(values, self._records)[0], mask

    def _by_person(
        self, number: np.ndarray, rows: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows of each of the last persons, -1 where there is none, and what each adds to the sums.

        The counts of the other persons go to the sums.
        """
        plan = self._plan
        persons = int(number.max()) + 1
        order = np.argsort(number, kind="stable")
        owner = number[order]
        levels = np.full((persons, plan.max_rows, rows.shape[1]), -1, np.int32)
        levels[owner, np.arange(len(owner)) - np.searchsorted(owner, owner)] = rows[order]
        added = np.zeros((persons, plan.width), np.int64)
        np.add.at(added, number, values)
        first = 2 * sum(plan.sum_cells)
        for weight, cells, found in zip(
            plan.person_weights, plan.person_cells, self._present, strict=True
        ):
            owner, cell = divmod(np.unique(np.concatenate(found)), cells)
            last = owner < persons
            added[owner[last], first + cell[last]] = weight * _ONE
            self._sums[first : first + cells] = (
                weight * _ONE * np.bincount(cell[~last], minlength=cells)
            )
            first += cells
        return levels, added

    def _count(self, piece: _Piece) -> None:
        _count(piece.levels, self._plan, self._blocks, self._cells)
        first = 0
        for level, values, weight, cells in self._terms(piece):
            for value in values:
                if cells == 1:
                    found = np.asarray([value.sum(dtype=np.int64)])
                else:
                    # floats, exact up to 2^53
                    found = np.bincount(level, value, cells).astype(np.int64)
                self._sums[first : first + cells] += weight * found
                first += cells

    def _values(self, piece: _Piece) -> Int[np.ndarray, "row sum"]:
        """What each row adds to the sums, in their units."""
        found = np.zeros((piece.levels.shape[1], len(self._sums)), np.int64)
        first = 0
        for level, values, weight, cells in self._terms(piece):
            for value in values:
                found[np.arange(len(found)), first + level.astype(np.intp)] = weight * value.astype(
                    np.int64
                )
                first += cells
        return found

    def _terms(self, piece: _Piece) -> Iterator[tuple[np.ndarray, np.ndarray, int, int]]:
        """For each sum: the cell of each row, z and 1 - z^2, the weight, and the number of cells."""
        plan = self._plan
        value = {column.name: place for place, column in enumerate(plan.summed)}
        for (name, *by), weight, cells in zip(
            plan.sums, plan.sum_weights, plan.sum_cells, strict=True
        ):
            level = (
                plan.cells_in(piece.levels, by) if by else np.zeros(piece.levels.shape[1], np.uint8)
            )
            yield level, piece.values[:, value[name]], weight, cells


def _joined(pieces: Sequence[_Piece]) -> _Piece:
    """All their rows."""
    return _Piece(*(np.concatenate(parts, axis=-1) for parts in zip(*pieces, strict=True)))


def _blocks(plan: MarginalsPlan) -> list[tuple[int, ...]]:
    """Sets of columns of few cells that contain each table: fewer than tables, and so counted in less time."""
    found = []
    sizes = plan.all_sizes
    left = sorted(
        map(frozenset, plan.all_columns),
        key=lambda table: -math.prod(sizes[column] for column in table),
    )
    together: dict[int, set[frozenset[int]]] = {}
    for table in left:
        for column in table:
            together.setdefault(column, set()).add(table)
    while left:
        block = set(left[0])
        while True:
            cells = math.prod(sizes[column] for column in block)
            fitting = [c for c in together if c not in block and cells * sizes[c] <= _BLOCK_CELLS]
            gains = {c: sum(table <= block | {c} for table in together[c]) for c in fitting}
            best = max(gains, key=lambda c: (gains[c], sizes[c]), default=None)
            if best is None or gains[best] == 0:
                break
            block.add(best)
        covered = {table for table in left if table <= block}
        left = [table for table in left if table not in covered]
        for tables in together.values():
            tables -= covered
        found.append(tuple(sorted(block)))
    return found


def _count(
    levels: Int[np.ndarray, "column row"],
    plan: MarginalsPlan,
    blocks: Sequence[tuple[int, ...]],
    counted: list[Int[np.ndarray, " cell"]],
) -> None:
    """Add the rows to the counts of the blocks: what `count_cells` does, many times faster on a CPU."""
    for block, cells in zip(blocks, counted, strict=True):
        kind = np.uint16 if len(cells) < _TWO_BYTES else np.uint32
        # A part of the rows at a time, so that codes and cells stay in a processor's cache.
        for first in range(0, levels.shape[1], _ROWS_A_PART):
            columns = levels[:, first : first + _ROWS_A_PART]
            code = columns[block[0]].astype(kind)
            for column in block[1:]:
                code *= kind(plan.all_sizes[column])
                code += columns[column]
            np.add.at(cells, code.astype(np.intp), 1)


def _of_tables(
    plan: MarginalsPlan, blocks: Sequence[tuple[int, ...]], counted: list[Int[np.ndarray, " cell"]]
) -> Int[np.ndarray, " cell"]:
    """The counts of all tables, from those of the blocks."""
    shaped = [
        cells.reshape([plan.all_sizes[c] for c in block])
        for block, cells in zip(blocks, counted, strict=True)
    ]
    found = []
    for columns in plan.all_columns:
        place = next(number for number, block in enumerate(blocks) if set(columns) <= set(block))
        axes = [blocks[place].index(column) for column in columns]
        others = tuple(axis for axis in range(shaped[place].ndim) if axis not in axes)
        kept = sorted(axes)
        found.append(
            shaped[place].sum(axis=others).transpose([kept.index(axis) for axis in axes]).ravel()
        )
    return np.concatenate(found)


def _pieces(
    table: Any, plan: MarginalsPlan, out_of_bounds: str, person_key: bytes | None
) -> Iterator[_Piece]:
    """Some rows at a time; of each person at most `max_rows`."""
    from discreet.tabular.tables import as_table, files_of, over_pieces, persons_of

    table = files_of(table) or as_table(table)  # which can be read twice
    schema = plan.schema
    levels = Levels(plan.schema.without_person(), plan.slices)
    report = Report(OutOfBounds(out_of_bounds))
    kept = None
    row = 0
    if schema.person is not None:
        kept = _of_persons(persons_of(table, schema, report), schema.max_rows, person_key)

    def encoded(piece: Any) -> _Piece | None:
        # What is wrong with cells is told at the end, all of it.
        if report.faults:
            return None
        cells = [
            (column, to_steps(column, numbers), missing)
            for column, numbers, missing in coded_columns(piece, levels.schema, out_of_bounds)
        ]
        of = {column.name: (numbers, missing) for column, numbers, missing in cells}
        values = np.empty((2, len(plan.summed), piece.num_rows), np.int32)
        for place, column in enumerate(plan.summed):
            values[:, place] = _in_units(column, *of[column.name])
        found = levels.of_cells(cells)
        if plan.divided:
            place = {column.name: number for number, (column, *_) in enumerate(cells)}
            own = [place[column.name] for column in plan.divided]
            found = np.stack([*found, *(levels.parts_of(cells[x], found[x], PARTS) for x in own)])
        return _Piece(found, values, np.empty((0, piece.num_rows), np.int64))

    for found in over_pieces(table, schema, encoded, report):
        if found is not None:
            num_rows = found.levels.shape[1]
            if kept is not None:
                own = kept[:, row : row + num_rows]
                found = (found._replace(persons=own) if schema.max_rows > 1 else found).of(
                    own[0] >= 0
                )
            yield found
            row += num_rows
    report.refuse()


def _of_persons(persons: Any, max_rows: int, key: bytes | None) -> Int[np.ndarray, "2 row"]:
    """For each row the number of its person, -1 if the row is not kept; and 1 if rows of that person are not kept, else 0.

    The last person has the number 0.
    """
    rows = rows_of_persons(persons, max_rows, key=key)
    found = np.full((2, len(persons)), -1)
    person, place = np.nonzero(rows >= 0)
    found[0, rows[person, place]] = len(rows) - 1 - person
    codes = persons.cast("string").combine_chunks().dictionary_encode().indices.to_numpy()
    found[1] = (np.bincount(codes) > max_rows)[codes]
    return found


def _in_units(column: Column, numbers: np.ndarray, missing: np.ndarray) -> Int[np.ndarray, "2 row"]:
    """Values of z and 1 - z^2 in units of 1 / `_ONE`: 0 where missing."""
    low, high = column.limits
    # Halves, since the whole width may be more than a float holds. What is NaN, as of a width of
    # 5e-324, becomes 1, not a large integer: nothing else bounds what a record adds to the sums.
    z = np.rint((numbers / 2 - low / 2) / (high / 2 - low / 2) * (2 * _ONE)) - _ONE
    z = np.fmax(np.fmin(z, _ONE), -_ONE)
    values = np.stack([z, _ONE - np.rint(np.square(z) / _ONE)])
    values[:, missing] = 0
    return values.astype(np.int32)
