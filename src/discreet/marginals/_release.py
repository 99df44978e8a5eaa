"""Measure once: noisy counts of cross tables, the only part of this package that sees records.

Each column has public levels (`models.Levels`), so a record is in exactly one cell of each cross table, whatever its numbers are.
With table m counted w_m times, one record added or removed moves all counts together by C = sqrt(sum of w_m^2) in L2, and one
replaced, which leaves one cell of each table for another, by sqrt(2) C. One Gaussian mechanism on all counts together is the
whole release: one exact event, with no steps, batches or clipping norm. The number of records is used nowhere; it is estimated
from the noisy counts like everything else.

The counts are added up piece by piece in whole numbers, so that they depend neither on the order of the records nor on where
pieces end. What is proved (`certify`) is the program that gets the last rows and the counts of all others, which are the same
for two neighbouring tables whose one difference is in the last rows; as the order does not matter, that is every pair.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from dp_accounting.dp_event import DpEvent
from jaxtyping import Float, Int, PRNGKeyArray

from discreet import random
from discreet._jax import one_process
from discreet._validate import integer, positive
from discreet.accounting import Relation, calibrate_noise_multiplier
from discreet.inference import check_unused, claim
from discreet.ledger import Ledger, Spending
from discreet.mechanisms import GAUSSIAN, count_cells, gaussian_mechanism
from discreet.models import Levels
from discreet.report import ProfilePoint, Statement, make_release_statement
from discreet.storage import read_archive, write_archive
from discreet.tables import OutOfBounds, Report, Schema, schema_from_dict, schema_to_toml
from discreet.verify import Certificate, certify

MOST_CELLS = 2**26
METHOD = "noisy counts"
_VERSION = 1
_LAST_ROWS = 1024
"""Rows that the certified program counts itself: any number will do."""

Table = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarginalsPlan:
    """Which cross tables are counted, how precisely, and what that costs. Public; made by `calibrate` from a schema.

    Attributes:
        schema: The public description of the table.
        tables: Names of the columns of each cross table: one to three.
        weights: Of each table, a whole number of at least 1: the noise on its counts is the smaller, the larger its weight.
        noise_multiplier: Standard deviation of the noise on weighted counts, divided by C = sqrt(sum of squared weights).
        relation: Which tables of records are neighbours.
        delta: At which epsilon is stated.
        slices: Most slices of a column of numbers; see `models.Levels`.

    Raises:
        ValueError: A table of no, unknown, equal or more than three columns, or there twice; a wrong weight; too many cells.

    >>> from discreet.tables import schema_from_bounds
    >>> plan = MarginalsPlan.calibrate(schema_from_bounds("age=0:99,smoker=no|yes"), epsilon=1.0, delta=1e-6)
    >>> plan.tables, round(plan.stddev(("smoker",)), 2)
    ((('age',), ('smoker',), ('age', 'smoker')), 7.32)
    """

    schema: Schema
    tables: tuple[Table, ...]
    weights: tuple[int, ...]
    noise_multiplier: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    delta: float
    slices: int = 32

    def __post_init__(self) -> None:
        positive(
            "noise_multiplier", self.noise_multiplier, hint="MarginalsPlan.calibrate(epsilon=..., delta=...) finds it."
        )
        names, seen = {column.name for column in self.schema.columns}, set()
        for table in self.tables:
            if (
                not 1 <= len(table) <= 3
                or len({*table}) < len(table)
                or not {*table} <= names
                or frozenset(table) in seen
            ):
                raise ValueError(
                    f"tables has {table!r}: give one to three different columns of the schema, each such set once"
                )
            seen.add(frozenset(table))
        if not self.tables or len(self.weights) != len(self.tables):
            raise ValueError(
                f"there are {len(self.tables)} tables and {len(self.weights)} weights: give each table a weight"
            )
        for weight in self.weights:
            integer("a weight", weight, most=1000, hint="A weight of 2 is as precise as four tables of weight 1.")
        if (cells := sum(self.cells)) > MOST_CELLS:
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
        weights: Mapping[str, int] | None = None,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
        slices: int = 32,
    ) -> MarginalsPlan:
        """Find the least noise with which counting costs (epsilon, delta).

        Args:
            schema: The public description.
            epsilon: Target, above 0.
            delta: Target, well below one over the number of records.
            tables: The cross tables, by names of columns; None: all columns and all pairs of columns.
            weights: By name of a column: the weight of all tables with it, the largest if several are named; 1 for the others.
                None: 2 for the schema's target.
            relation: Which tables are neighbours.
            slices: Most slices of a column of numbers.

        Raises:
            ValueError: An argument is out of range.
        """
        names = [column.name for column in schema.columns]
        if tables is None:
            tables = [*((name,) for name in names), *itertools.combinations(names, 2)]
        if weights is None:
            weights = {} if schema.target is None else {schema.target: 2}
        if unknown := sorted(set(weights) - set(names)):
            raise ValueError(f"weights names {', '.join(unknown)}, which the schema does not describe")
        goal = {"epsilon": epsilon, "delta": delta, "relation": relation, "slack": GAUSSIAN.slack}
        noise = calibrate_noise_multiplier(GAUSSIAN.event, **goal)
        chosen = tuple(tuple(table) for table in tables)
        return cls(
            schema=schema,
            tables=chosen,
            weights=tuple(max(weights.get(name, 1) for name in table) if table else 1 for table in chosen),
            noise_multiplier=noise / _distance(relation) * (1 + 1e-12),
            relation=relation,
            delta=delta,
            slices=slices,
        )

    @functools.cached_property
    def levels(self) -> Levels:
        """The public levels of the columns."""
        return Levels(self.schema, self.slices)

    @functools.cached_property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """Positions of each table's columns."""
        place = {column.name: number for number, column in enumerate(self.schema.columns)}
        return tuple(tuple(place[name] for name in table) for table in self.tables)

    @functools.cached_property
    def cells(self) -> tuple[int, ...]:
        """Number of cells of each table."""
        return tuple(math.prod(self.levels.sizes[column] for column in table) for table in self.columns)

    @property
    def sensitivity(self) -> float:
        """C, the L2 norm of what one record adds to the weighted counts."""
        return math.sqrt(sum(weight**2 for weight in self.weights))

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on each weighted count."""
        return self.noise_multiplier * self.sensitivity

    def stddev(self, table: Table) -> float:
        """Standard deviation of the noise on each count of a table, in records."""
        return self.noise / self.weights[self.place(table)]

    def place(self, table: Sequence[str]) -> int:
        """Number of the table that has these columns, in whatever order.

        Raises:
            ValueError: None has.
        """
        found = [number for number, own in enumerate(self.tables) if set(own) == set(table)]
        if not found:
            raise ValueError(f"{' × '.join(table)} was not counted: choose one of the plan's tables")
        return found[0]

    @property
    def slack(self) -> float:
        """Total variation between what runs and the event."""
        return GAUSSIAN.slack

    def event(self) -> DpEvent:
        """What counting does to the records, under the plan's relation.

        Under REPLACE_ONE an accountant takes neighbours to be 2C apart; they are sqrt(2) C apart.
        """
        return GAUSSIAN.event(self.noise_multiplier * _distance(self.relation))

    def in_words(self) -> str:
        """What leaves the data."""
        return (
            f"counts of the {sum(self.cells):,} cells of {len(self.tables):,} cross tables, with Gaussian noise of standard "
            f"deviation {self.noise:.6g} divided by the table's weight (noise multiplier {self.noise_multiplier:.6g})"
        )

    def certificate(self, key: PRNGKeyArray, rows: int = _LAST_ROWS) -> Certificate:
        """Prove what the counting program tells of one record. The certificate is the program: (key, counted, levels, mask).

        Args:
            key: Of the kind that the program is going to be given.
            rows: Rows that it takes; `counted` has the counts of all others.

        Raises:
            PrivacyError: The proof failed.
        """

        def noisy(key: PRNGKeyArray, counted: Any, levels: Any, mask: Any) -> Any:
            sums = count_cells(levels, mask, self.levels.sizes, self.columns, self.weights, counted)
            return gaussian_mechanism(key, sums, self.noise)

        shapes = (
            jax.ShapeDtypeStruct((sum(self.cells),), np.int64),
            jax.ShapeDtypeStruct((rows, len(self.schema.columns)), np.int32),
            jax.ShapeDtypeStruct((rows,), bool),
        )
        return certify(noisy, key, *shapes, records=2, mask=3, relation=self.relation, expect=self.event())

    def state(self, *, reproducible: bool) -> Statement:
        """Make the statement of one release by this plan."""
        how = "added to or removed from" if self.relation is Relation.ADD_OR_REMOVE_ONE else "replaced in"
        statement = make_release_statement(
            self.event(),
            self.relation,
            delta=self.delta,
            slack=self.slack,
            method=METHOD,
            mechanism=(
                "Each value was replaced by its level, a category or a slice of the public bounds, and the records in each cell "
                f"of the cross tables were counted. One record {how} the table moves the weighted counts together by at most "
                f"{self.sensitivity * _distance(self.relation):.6g} in Euclidean norm. Gaussian noise of standard deviation "
                f"{self.noise:.6g} was added to every weighted count. Only these noisy counts left the data."
            ),
            plan={
                "tables": len(self.tables),
                "cells": sum(self.cells),
                "slices": self.slices,
                "contribution_bound": self.sensitivity,
                "noise_multiplier": self.noise_multiplier,
                "noise_standard_deviation": self.noise,
                "tables_by_weight": {str(weight): self.weights.count(weight) for weight in sorted({*self.weights})},
            },
            num_releases=1,
            reproducible=reproducible,
            released=[f"{self.in_words()}, and what is computed from them"],
            public=["the plan: the cross tables, their weights and the noise", "the columns and their levels"],
        )
        return statement.for_person(self.schema.person)


def _distance(relation: Relation) -> float:
    """How far neighbours are apart, in units of C."""
    return math.sqrt(2) if relation is Relation.REPLACE_ONE else 1.0


@dataclasses.dataclass(frozen=True)
class Marginals:
    """Noisy counts of cross tables: a release. Whatever is computed from it costs nothing more.

    Attributes:
        plan: What was counted.
        counts: The noisy counts of all cells, table after table, in records; may be negative or fractions.
        statement: What it cost.
    """

    plan: MarginalsPlan
    counts: Float[np.ndarray, " cell"]
    statement: Statement

    def table(self, *names: str) -> Float[np.ndarray, "..."]:
        """The noisy counts of one cross table, an axis of levels for each name, in this order.

        Raises:
            ValueError: It was not counted.
        """
        place = self.plan.place(names)
        own, first = self.plan.tables[place], sum(self.plan.cells[:place])
        cells = self.counts[first : first + self.plan.cells[place]]
        shaped = cells.reshape([self.plan.levels.sizes[column] for column in self.plan.columns[place]])
        return np.transpose(shaped, [own.index(name) for name in names])

    @functools.cached_property
    def num_records(self) -> float:
        """The number of records, estimated from the counts: the mean of all tables' totals, weighted by precision; at least 1."""
        totals = [self.table(*table).sum() for table in self.plan.tables]
        precision = [weight**2 / cells for weight, cells in zip(self.plan.weights, self.plan.cells, strict=True)]
        return max(1.0, float(np.average(totals, weights=precision)))

    def save(self, path: Path | str) -> Path:
        """Write the counts, their plan and statement into one file, for `load_marginals`. Errors as `storage.write_archive`."""
        plan = {field.name: getattr(self.plan, field.name) for field in dataclasses.fields(self.plan)}
        plan |= {"schema": schema_to_toml(self.plan.schema), "relation": self.plan.relation.name}
        content = {"plan": plan, "counts": self.counts, "statement": self.statement}
        return write_archive(path, METHOD, _VERSION, content, (Statement, ProfilePoint))

    def __repr__(self) -> str:
        """Short, without the counts."""
        spent = f"epsilon={self.statement.epsilon:.4g} at delta={self.plan.delta:.3g}"
        return f"Marginals({len(self.plan.tables)} tables, about {self.num_records:,.0f} records, {spent})"


def load_marginals(path: Path | str) -> Marginals:
    """Read what `Marginals.save` wrote. Whatever is computed from it was paid for when it was released.

    Raises:
        ValueError: The file is absent, damaged or something else.
    """
    found = read_archive(path, METHOD, _VERSION, (Statement, ProfilePoint))
    try:
        plan = found["plan"]
        plan |= {"schema": schema_from_dict(tomllib.loads(plan["schema"])), "relation": Relation[plan["relation"]]}
        released = Marginals(MarginalsPlan(**plan), found["counts"], found["statement"])
        whole = isinstance(released.statement, Statement) and released.counts.shape == (sum(released.plan.cells),)
        if not whole or not np.isfinite(released.counts).all():
            raise ValueError
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ValueError(
            f"{path} is damaged, or was not written by discreet: it does not hold what {METHOD} are"
        ) from None
    return released


def private_marginals(
    rng_key: PRNGKeyArray,
    table: Any,
    plan: MarginalsPlan,
    *,
    ledger: Ledger | None = None,
    out_of_bounds: str = "refuse",
    person_key: bytes | None = None,
    non_private_seed: bool = False,
) -> Marginals:
    """Count the cross tables of a plan, with noise.

    Guarantee: what is returned is one `plan.event()` under the plan's relation, for one record, or for one person where the
    schema names the person column. The program is proved to be that before it runs. A file is read in one pass, in pieces (in
    two passes, where persons are to be told apart), so it may be larger than memory.

    Args:
        rng_key: `discreet.random.key()`, for this release alone.
        table: A file, a pyarrow or pandas table, a dict of arrays; or, where the schema names no person column, levels as
            `plan.levels.encode` makes them.
        plan: What to count.
        ledger: The table's budget, debited before the release.
        out_of_bounds: "refuse", or "clip": a number outside its bounds moves to the nearer one.
        person_key: As `key` in `tables.keep_one_row_a_person`; None for a new one.
        non_private_seed: Allow a key made from a seed, with which nothing is private.

    Returns:
        The noisy counts, with their statement.

    Raises:
        DataError: The table cannot be read, or has a cell that the schema does not allow.
        ValueError, TypeError: Another wrong input. All are raised before anything is spent.
        SpentError: The ledger does not hold it.
        PrivacyError: The program could not be proved.

    >>> import discreet as dp
    >>> from discreet.tables import schema_from_bounds
    >>> plan = MarginalsPlan.calibrate(schema_from_bounds("visits=0:9,smoker=no|yes"), epsilon=1.0, delta=1e-6)
    >>> people = {"visits": [0, 3] * 5000, "smoker": ["yes", "no"] * 5000}
    >>> found = private_marginals(dp.random.key(), people, plan)
    >>> found.table("smoker", "visits").shape, bool(9_000 < found.num_records < 11_000)
    ((2, 32), True)

    Reference:
        Dwork and Roth, The algorithmic foundations of differential privacy, 2014, A.1.
    """
    one_process("private_marginals", [])
    key = random.check_key(rng_key)
    reproducible = random.is_reproducible(key)
    if reproducible and not non_private_seed:
        raise ValueError(
            "private_marginals: the key was made from a seed, so that its noise can be taken away. Pass discreet.random.key(), "
            "or non_private_seed=True for a test."
        )
    statement = plan.state(reproducible=reproducible)
    if plan.schema.inferred:
        statement = statement.with_violations(
            f"Bounds or categories of these columns were taken from the data: {', '.join(plan.schema.inferred)}. No ε holds."
        )
    spend = Spending(ledger, plan, statement)
    noise = random.subkey(key, random.Purpose.MARGINALS)
    check_unused(noise)
    # In 64 bits a count below 2^53 is exact.
    with jax.enable_x64(True):
        program = plan.certificate(noise)
        counted, last = _counted(table, plan, out_of_bounds, person_key)
        levels = np.zeros((_LAST_ROWS, len(plan.schema.columns)), np.int32)
        levels[: len(last)] = last
        spend()
        claim(noise)
        sums = np.asarray(program(noise, counted, levels, np.arange(_LAST_ROWS) < len(last)), np.float64)
    counts = sums / np.repeat(np.asarray(plan.weights, np.float64), plan.cells)
    proved = f"Proved before it ran: the event was found again in the program itself (SHA-256 {program.fingerprint})."
    return Marginals(plan, counts, spend.stated().with_notes(proved))


def _counted(
    table: Any, plan: MarginalsPlan, out_of_bounds: str, person_key: bytes | None
) -> tuple[Int[np.ndarray, " cell"], Int[np.ndarray, "row column"]]:
    """Counts of all rows but the last, and these. Not private."""
    counted, held = np.zeros(sum(plan.cells), np.int64), np.zeros((0, len(plan.schema.columns)), np.int32)
    for levels in _pieces(table, plan, out_of_bounds, person_key):
        _count(held, plan, counted)
        held = levels
    _count(held[:-_LAST_ROWS], plan, counted)
    return counted, held[-_LAST_ROWS:]


def _count(levels: Int[np.ndarray, "row column"], plan: MarginalsPlan, counted: Int[np.ndarray, " cell"]) -> None:
    """Add the rows to the counts: what `count_cells` does, several times faster on a CPU."""
    columns, first = np.ascontiguousarray(levels.T, np.intp), 0
    for table, cells in zip(plan.columns, plan.cells, strict=True):
        code = columns[table[0]]
        for column in table[1:]:
            code = code * plan.levels.sizes[column] + columns[column]
        counted[first : first + cells] += np.bincount(code, minlength=cells)
        first += cells


def _pieces(
    table: Any, plan: MarginalsPlan, out_of_bounds: str, person_key: bytes | None
) -> Iterator[Int[np.ndarray, "row column"]]:
    """The levels of some rows at a time; of each person one row."""
    if isinstance(table, np.ndarray):
        if plan.schema.person is not None:
            raise ValueError(
                f"the table is an array of levels, which does not say to whom each row belongs, and the schema's person "
                f"column is {plan.schema.person!r}: several rows of a person would count. Pass the table itself, with "
                "that column."
            )
        shape, sizes = table.shape, plan.levels.sizes
        if table.dtype.kind not in "iu" or shape[1:] != (len(sizes),) or np.any((table < 0) | (table >= sizes)):
            raise ValueError(
                "the array does not have the levels of the plan's columns: make them by plan.levels.encode(table)"
            )
        yield table.astype(np.int32, copy=False)
        return
    from discreet.tables import as_table, files_of, keep_one_row_a_person, over_pieces

    if isinstance(table, Mapping):
        import pyarrow

        table = pyarrow.table(dict(table))
    else:
        table = files_of(table) or as_table(table)  # which can be read twice
    schema, person = plan.schema, plan.schema.person
    levels = Levels(schema.without_person(), plan.slices)
    report, keep, row = Report(OutOfBounds(out_of_bounds)), None, 0
    if person is not None:
        import pyarrow

        chunks = over_pieces(table, schema, lambda piece: piece.column(person), report, only_person=True)
        keep = keep_one_row_a_person(pyarrow.chunked_array([x for c in chunks for x in c.chunks]), key=person_key)

    def encoded(piece: Any) -> np.ndarray | None:
        # What is wrong with cells is told at the end, all of it.
        return None if report.faults else levels.encode(piece, out_of_bounds=out_of_bounds)

    for found in over_pieces(table, schema, encoded, report):
        if found is not None:
            yield found if keep is None else found[keep[row : row + len(found)]]
            row += len(found)
    report.refuse()
