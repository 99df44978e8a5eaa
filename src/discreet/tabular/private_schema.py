"""A schema bought from the data: bounds of columns from one noisy release, where nobody knows them publicly.

*The release.* The line of numbers is divided at the powers of two, from 2^-64 to 2^64, on both sides of zero. Every cell of a
column lies in one range: (2^(k-1), 2^k], its mirror image, or zero (with all that is smaller); or it is too large or infinite,
missing, or no number. So a record is in exactly one range of each column, whatever the column holds: the ranges are public, and
no cell is refused. The counts of all ranges of all columns get Gaussian noise once. A record that is added or removed moves
them by the square root of the number of columns in L2, and one that is replaced by sqrt(2) times that.

*The bounds* are computed from the noisy counts alone (`bounds_of`), so they cost nothing more:

1. Ranges whose noisy count is far beyond the noise certainly hold records, and so do two, four or eight ranges beyond them whose
   counts are together: one in a thousand releases takes an empty one for such a range. The outermost are the first ends.
2. An end moves outward as long as the next range seems to hold records; where the noise may hide more of them than the stated
   share, it moves one range further.
3. Otherwise, if ranges at an end hold less than half of the share, noise included, it moves inward.
4. Where zero is near, in units of the bound on the other side, it becomes the bound: that costs little width, and leaves
   nothing small outside.

A part of the records may lie outside, so the schema that is written says `out_of_bounds = "clip"`.

Reference: Google's `ApproxBounds` (differential-privacy library) releases such counts and takes one threshold for all of them;
its bounds miss a tail whose ranges stay below the threshold one by one.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Int, PRNGKeyArray

from discreet._jax import in_own_settings, one_process, refuse_traced
from discreet._validate import fraction, refuse
from discreet.privacy import random
from discreet.privacy.accounting import Relation, upper
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.mechanisms import count_cells
from discreet.privacy.query import LAST, Gaussian, GaussianPlan, Query, padded
from discreet.privacy.released import Released
from discreet.privacy.report import Statement, Unit, counted, make_release_statement
from discreet.tabular.tables import (
    PARTS_OF_SCHEMA,
    Bought,
    Column,
    CsvFormat,
    Kind,
    Missing,
    OutOfBounds,
    Report,
    Schema,
)

_MOST = 64
_SIDE = 2 * _MOST + 1
_ZERO = _SIDE
_LINE = 2 * _SIDE + 1
_FAR = _LINE
_MISSING = _LINE + 1
_TEXT = _LINE + 2
RANGES = _LINE + 3
"""Ranges of a column: of numbers from the lowest to the highest, then too large, missing, and no number."""
_FALSE = 1e-4
"""Probability that some empty range of some column is taken for one with records."""
_TOGETHER = 2, 4, 8
"""Numbers of ranges that are looked at together, for a tail that is thin in each."""
_NEXT = 2.0
"""Standard deviations of noise beyond which the next range is taken to hold records."""
_SEEN = 3.0
"""Standard deviations of noise in a range that the noise may hide."""
_HIDDEN = 0.1
"""No bounds are computed where these are a larger share of the records."""
_NEAR_ZERO = 4.0
"""A bound that is smaller than the other one by this factor becomes zero."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateSchemaPlan(GaussianPlan):
    """The privacy plan of one release from which bounds follow. Public.

    Attributes:
        columns: Names of the columns whose bounds are bought. Each makes the noise larger.
        share: The share of records that may lie outside of a column's bounds: an aim, which noise can miss.
        known: Columns that are publicly known, for the schema that is made.
        person: Name of the column that identifies persons, of whom one row each is counted; None: each row is a record.
        csv: The table's text format.
        noise_multiplier: Standard deviation of the noise, divided by `sensitivity`.
        delta: The delta at which epsilon is stated.
        relation: The neighbouring relation.

    Raises:
        ValueError: No columns, a name twice, or a number out of range.

    >>> plan = PrivateSchemaPlan.calibrate(("age", "income"), epsilon=0.1, delta=1e-6)
    >>> round(plan.stddev), round(plan.epsilon(), 3)
    (50, 0.1)
    """

    columns: tuple[str, ...]
    share: float = 0.01
    known: tuple[Column, ...] = ()
    person: str | None = None
    csv: CsvFormat = dataclasses.field(default_factory=CsvFormat)

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("share", self.share, hint="0.01 is the default.")
        names = [*self.columns, *(column.name for column in self.known), *filter(None, [self.person])]
        if not self.columns or len({*names}) < len(names):
            refuse("columns", names, "one name or more, each once", "Known columns and the person are none of them.")

    @classmethod
    def calibrate(
        cls,
        columns: Sequence[str],
        *,
        epsilon: float,
        delta: float,
        share: float = 0.01,
        known: Sequence[Column] = (),
        person: str | None = None,
        csv: CsvFormat | None = None,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    ) -> PrivateSchemaPlan:
        """Find the least noise with which the release costs (epsilon, delta).

        Args:
            columns: As above, as are the others.
            epsilon: Target, above 0; what is done with the schema costs its own.
            delta: Target, well below one over the number of records.
            share: As above.
            known: As above.
            person: As above.
            csv: As above; None: commas and points.
            relation: As above.

        Raises:
            ValueError: An argument is out of range.
        """
        shape = {"columns": tuple(columns), "share": share, "known": tuple(known), "person": person}
        return cls._calibrated(epsilon, delta, **shape, csv=csv or CsvFormat(), relation=relation)

    @property
    def sensitivity(self) -> float:
        """How far one record moves the counts in L2; of one that is replaced, half of that: accountants double it."""
        moved = math.sqrt(len(self.columns))
        return moved if self.relation is Relation.ADD_OR_REMOVE_ONE else moved / math.sqrt(2)

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise on each count, in records."""
        return self.noise_multiplier * self.sensitivity

    @property
    def certain(self) -> float:
        """The noisy count of a range that certainly holds records."""
        return self.stddev * NormalDist().inv_cdf(1 - _FALSE / (RANGES * len(self.columns)))

    def as_read(self, kinds: Mapping[str, Kind]) -> Schema:
        """The schema by which the columns are read: as numbers where their types say so, else as texts, which may be numbers.

        Args:
            kinds: Kinds that the types of the columns suggest, by name.

        Raises:
            ValueError: A column has dates or truth values, which are described without the data.
        """
        return Schema(
            columns=tuple(_as_read(name, kinds.get(name)) for name in self.columns), person=self.person, csv=self.csv
        )

    def state(self, *, reproducible: bool, unit: Unit) -> Statement:
        """Make the statement of the release, for a unit of privacy."""
        noun = unit.noun
        columns = counted(len(self.columns), "column")
        adds = self.relation is Relation.ADD_OR_REMOVE_ONE
        how = "added to or removed from" if adds else "replaced in"
        return make_release_statement(
            self.event(),
            self.relation,
            unit=unit,
            delta=self.delta,
            slack=self.slack,
            method="private bounds",
            mechanism=(
                f"The line of numbers was divided at zero and at the powers of two. For each of {columns} the {noun}s in each of "
                f"{RANGES} ranges were counted, among them those without a number. One {noun} {how} the table moves the counts "
                f"together by at most {self.sensitivity * (1 if adds else 2):.6g} in Euclidean norm. Gaussian noise of standard "
                f"deviation {self.stddev:.6g} was added to each. Bounds were computed from the noisy counts, so that about "
                f"{self.share:.2g} of the {noun}s lie outside at most; that is an aim, which noise can miss."
                + (" Of each person one row was counted, chosen by a secret order." if self.person is not None else "")
            ),
            plan={
                "columns": list(self.columns),
                "share": self.share,
                "ranges": RANGES,
                "contribution_bound": self.sensitivity,
                "noise_multiplier": self.noise_multiplier,
                "noise_standard_deviation": self.stddev,
            },
            num_releases=self.num_releases,
            reproducible=reproducible,
            released=[f"Noisy counts of {RANGES} ranges of {columns}, and bounds that are computed from them"],
            public=["The names of the columns, the ranges, and the noise"],
            about=f"Bounds of {columns}, for a schema.",
        )


class Found(NamedTuple):
    """What the noisy counts say of a column.

    Attributes:
        bounds: Lowest and highest value; None: there are none, for the reason.
        reason: Why there are no bounds; else empty.
        missing: True if missing cells are certain.
        hidden: The share of the records that the noise may hide beyond a bound, in each power of two.
    """

    bounds: tuple[float, float] | None
    reason: str
    missing: bool
    hidden: float


@dataclasses.dataclass(frozen=True)
class PrivateSchema(Released, what="private schema", parts=(PrivateSchemaPlan, Relation, *PARTS_OF_SCHEMA)):
    """The noisy counts of ranges, and the schema that follows from them.

    Attributes:
        plan: The plan of the release.
        counts: Noisy counts of the ranges of each column, in records; may be negative or fractions.
        statement: The privacy statement of the release. What uses the schema costs its own.
        made_on: The day of the release.
    """

    plan: PrivateSchemaPlan
    counts: Float[np.ndarray, "column range"]
    statement: Statement
    made_on: datetime.date

    @functools.cached_property
    def found(self) -> dict[str, Found]:
        """What the counts say of each column."""
        plan = self.plan
        return {
            name: _found(counts, plan.stddev, plan.certain, plan.share)
            for name, counts in zip(plan.columns, self.counts, strict=True)
        }

    def schema(self, statement: str = "") -> Schema:
        """The schema of the known columns and of those that have bounds, which says that these were bought.

        Args:
            statement: The file of the statement, to be named in the schema.

        Raises:
            ValueError: No column has bounds.
        """
        with_bounds = {name: found for name, found in self.found.items() if found.bounds is not None}
        if not with_bounds:
            raise ValueError(
                f"no bounds were found: the noise on each count has standard deviation {self.plan.stddev:.4g}. Fewer columns, or "
                "a larger epsilon, lower it; or state the bounds."
            )
        columns = [
            Column(
                name=name,
                kind=Kind.REAL,
                bounds=found.bounds,
                missing=Missing.INDICATOR if found.missing else Missing.REFUSE,
                out_of_bounds=OutOfBounds.CLIP,
            )
            for name, found in with_bounds.items()
        ]
        bought = Bought(
            columns=tuple(with_bounds),
            epsilon=float(upper(self.statement.epsilon)),
            delta=float(upper(self.statement.delta)),
            made_on=self.made_on,
            statement=statement,
        )
        plan = self.plan
        return Schema(columns=(*plan.known, *columns), person=plan.person, csv=plan.csv, bought=bought)

    def _is_whole(self) -> bool:
        return self.counts.shape == (len(self.plan.columns), RANGES) and bool(np.isfinite(self.counts).all())


def ranges_of(numbers: npt.ArrayLike) -> Int[np.ndarray, " cell"]:
    """The range of each number: `RANGES` says what the positions mean. NaN is missing.

    >>> one = ranges_of(1.0)
    >>> [int(x - one) for x in ranges_of([0.51, 1.0, 1.01, 2.0, 3.0])]
    [0, 0, 1, 1, 2]
    """
    x = np.asarray(numbers, np.float64)
    share, power = np.frexp(np.abs(x))
    power = power - (share == 0.5)  # so that a power of two is the highest of its range
    step = power + _MOST + 1
    found = np.where(x > 0, _ZERO + step, _ZERO - step)
    found = np.where((x == 0) | (step < 1), _ZERO, found)
    found = np.where(np.isinf(x) | (step > _SIDE), _FAR, found)
    return np.where(np.isnan(x), _MISSING, found).astype(np.int32)


def _edges(place: int) -> tuple[float, float]:
    """The ends of a range of numbers."""
    if place == _ZERO:
        return 0.0, 0.0
    high = 2.0 ** (abs(place - _ZERO) - 1 - _MOST)
    return (high / 2, high) if place > _ZERO else (-high, -high / 2)


def bounds_of(
    counts: Float[np.ndarray, " range"], stddev: float, certain: float, share: float
) -> tuple[float, float] | None:
    """Bounds from the noisy counts of a column, as the head of this file says; None: too few records for the noise.

    Args:
        counts: Noisy counts of the ranges.
        stddev: Standard deviation of their noise.
        certain: The noisy count of a range that certainly holds records.
        share: The share of records that may lie outside.
    """
    line = counts[:_LINE]
    sure = np.flatnonzero(line > certain)
    seen = line[line > _SEEN * stddev].sum()
    if not len(sure) or _SEEN * stddev > _HIDDEN * seen:
        return None
    first = int(sure[0])
    last = int(sure[-1])
    high = _edges(_end(line, first, last, stddev, certain, share * seen))[1]
    low = -_edges(_end(line[::-1], _LINE - 1 - last, _LINE - 1 - first, stddev, certain, share * seen))[1]
    if 0 < low <= high / _NEAR_ZERO:
        low = 0
    if 0 < -high <= -low / _NEAR_ZERO:
        high = 0
    return low + 0.0, high + 0.0  # no -0.0


def _end(line: np.ndarray, first: int, last: int, stddev: float, certain: float, allowed: float) -> int:
    """The upper end of the ranges of numbers, in order, from the first and the last that certainly hold records."""
    for together in _TOGETHER:
        sums = np.convolve(line[last + 1 :], np.ones(together), "valid")
        far = np.flatnonzero(sums > certain * math.sqrt(together))
        if len(far):
            window = np.arange(together) + last + 1 + far[-1]
            last = int(window[line[window] > stddev][-1])
    while last + 1 < len(line) and line[last + 1] > _NEXT * stddev:
        last += 1
    if _SEEN * stddev > allowed:
        return last + (last not in (_ZERO, _LINE - 1))
    for number in range(last - first, 0, -1):
        beyond = line[last + 1 - number : last + 1].sum()
        if beyond + _SEEN * stddev * math.sqrt(1 + number) <= allowed / 2:
            return last - number
    return last


def _found(counts: np.ndarray, stddev: float, certain: float, share: float) -> Found:
    bounds = bounds_of(counts, stddev, certain, share)
    missing = bool(counts[_MISSING] > certain)
    hidden = _SEEN * stddev / max(1.0, counts[:_LINE][counts[:_LINE] > _SEEN * stddev].sum())
    texts = counts[_TEXT] > certain
    if bounds is None:
        reason = "no numbers: describe it by categories" if texts else "too few numbers for the noise"
        return Found(None, reason, missing, hidden)
    if bounds[0] == bounds[1]:
        return Found(None, "nearly all its numbers are 0", missing, hidden)
    if counts[_TEXT] > counts[:_LINE][counts[:_LINE] > certain].sum():
        return Found(None, "more texts than numbers: describe it by categories", missing, hidden)
    return Found(bounds, "", missing or bool(texts), hidden)


class _Ranges(NamedTuple):
    """Counts of the ranges of each column: those of all other records, and of the last ones."""

    columns: int

    def __call__(self, counted: Array, levels: Array, mask: Array) -> Array:
        each = range(self.columns)
        tables = tuple((column,) for column in each)
        return count_cells(levels, mask, (RANGES,) * self.columns, tables, (1,) * self.columns, counted)


@in_own_settings
def private_schema(
    rng_key: PRNGKeyArray,
    table: Any,
    plan: PrivateSchemaPlan,
    *,
    ledger: Ledger | None = None,
    person_key: bytes | None = None,
    non_private_seed: bool = False,
) -> PrivateSchema:
    """Buy bounds of columns: release the counts of their ranges, from which bounds follow.

    Guarantee: what is returned is one `plan.event()` under the plan's relation but for its `slack`, for one record, or for one
    person where the plan names the person column. The program is proved to be that before it runs. Any cell has a range, so
    none is refused. A file is read in one pass, in pieces (in two, where persons are to be told apart).

    That at most the plan's share of the records lies outside is an aim: a tail that is thinner than the noise in each power of
    two is not seen.

    Args:
        rng_key: `discreet.random.key()`, for this release alone.
        table: A file, a pyarrow or pandas table, or a dict of arrays.
        plan: The plan of the release.
        ledger: The table's budget, debited before the release.
        person_key: As `key` in `tables.keep_one_row_a_person`; None for a new one.
        non_private_seed: Allow a key made from a seed, with which nothing is private.

    Returns:
        The noisy counts; `schema()` has the bounds.

    Raises:
        DataError: The table cannot be read, or lacks a column.
        ValueError, TypeError: Another wrong input. All are raised before anything is spent.
        SpentError: The ledger does not hold it.
        PrivacyError: The program could not be proved.

    >>> import discreet as dp
    >>> plan = PrivateSchemaPlan.calibrate(["age", "income"], epsilon=0.1, delta=1e-6)
    >>> people = {"age": [20.0, 35.0, 50.0, 61.0] * 5000, "income": [0.0, 900.0, 3100.5, 7900.0] * 5000}
    >>> private_schema(dp.random.key(), people, plan).schema().describe()
    ('age (real): 0 to 64', 'income (real): 0 to 8192')
    """
    refuse_traced("private_schema")
    one_process("private_schema", [])
    key = random.secret_key(rng_key, "private_schema", non_private_seed)
    act = Act.on(plan, key, random.Purpose.SCHEMA, ledger=ledger, unit=Unit(plan.person))
    counts, last = _count(table, plan, person_key)
    query = Query(_Ranges(len(plan.columns)), Gaussian(plan.stddev, plan.noise_multiplier), plan.relation)
    noisy = query.answer(act, counts.ravel(), *padded(last))
    today = datetime.datetime.now(datetime.UTC).date()
    return PrivateSchema(plan, noisy.reshape(counts.shape), act.statement, today)


def _count(
    table: Any, plan: PrivateSchemaPlan, person_key: bytes | None
) -> tuple[Int[np.ndarray, "column range"], Int[np.ndarray, "row column"]]:
    """Exact counts over all rows but the last, and the ranges of these. Not private."""
    from discreet.tabular.tables import as_table, column_kinds, files_of, keep_one_row_a_person, over_pieces, persons_of

    table = files_of(table) or as_table(table)  # which can be read twice
    schema = plan.as_read(column_kinds(table))
    report = Report(OutOfBounds.MISSING)
    keep = None
    if plan.person is not None:
        keep = keep_one_row_a_person(persons_of(table, schema, report), key=person_key)
    counts = np.zeros((len(plan.columns), RANGES), np.int64)

    def add(ranges: np.ndarray) -> None:
        for own, column in zip(counts, ranges.T, strict=True):
            own += np.bincount(column, minlength=RANGES)

    held = np.zeros((0, len(plan.columns)), np.int32)
    row = 0
    encoded = functools.partial(_ranges_in, columns=plan.columns, csv=plan.csv)
    for ranges in over_pieces(table, schema, encoded, report):
        used = ranges if keep is None else ranges[keep[row : row + len(ranges)]]
        row += len(ranges)
        held = np.concatenate([held, used])
        add(held[:-LAST])
        held = held[-LAST:]
    return counts, held


def _as_read(name: str, kind: Kind | None) -> Column:
    if kind in (Kind.DATE, Kind.BINARY):
        refuse("columns", name, "columns of numbers or texts", f"This one has the type of a {kind}: describe it.")
    if kind is Kind.REAL:
        return Column(name=name, kind=kind, bounds=(0, 1), missing=Missing.INDICATOR)
    return Column(name=name, kind=Kind.CATEGORICAL, categories=("\0", "\1"), missing=Missing.INDICATOR)


def _ranges_in(piece: Any, columns: Sequence[str], csv: CsvFormat) -> Int[np.ndarray, "row column"]:
    """The ranges of the cells of some rows."""
    import pyarrow

    def of(values: Any) -> np.ndarray:
        if pyarrow.types.is_floating(values.type):
            return ranges_of(values.to_numpy())
        parts = [np.zeros(0, np.int32)]
        for chunk in values.chunks:
            cells = chunk if pyarrow.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
            texts = cells.dictionary.to_pylist()
            known = np.array([*(_range_of_text(text, csv) for text in texts), _MISSING], np.int32)
            parts.append(known[cells.indices.fill_null(len(texts)).to_numpy()])
        return np.concatenate(parts)

    return np.stack([of(piece.column(name)) for name in columns], axis=1)


def _range_of_text(text: str | None, csv: CsvFormat) -> int:
    from discreet.tabular.tables import number_of

    if text is None:
        return _MISSING
    number = number_of(text, csv)
    if number is None and csv.delimiter == ";":  # whose header does not show decimal commas
        number = number_of(text, dataclasses.replace(csv, decimal=","))
    return _TEXT if number is None else int(ranges_of(number))
