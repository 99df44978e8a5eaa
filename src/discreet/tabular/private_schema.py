"""A schema bought from the data: bounds and categories from one noisy release, where nobody knows them publicly.

*The release.* The line of numbers is divided at the powers of two, from 2^-64 to 2^64, on both
sides of zero. Every cell of a column lies in one range: (2^(k-1), 2^k], its mirror image, or zero
(with all that is smaller); or it is too large or infinite, missing, or no number. So a record is in
exactly one range of each column, whatever the column holds: the ranges are public, and no cell is
refused. The counts of all ranges of all columns get Gaussian noise once. A record that is added or
removed moves them by the square root of the number of columns in L2, and one that is replaced by
sqrt(2) times that.

*The bounds* are computed from the noisy counts alone (`bounds_of`), so they cost nothing more:

1. Ranges whose noisy count is far beyond the noise certainly hold records, and so do two, four or
   eight ranges beyond them whose counts are together: one in a thousand releases takes an empty one
   for such a range. The outermost are the first ends.
2. An end moves outward as long as the next range seems to hold records; where the noise may hide
   more of them than the stated share, it moves one range further.
3. Otherwise, if ranges at an end hold less than half of the share, noise included, it moves inward.
4. Where zero is near, in units of the bound on the other side, it becomes the bound: that costs
   little width, and leaves nothing small outside.

A part of the records may lie outside, so the schema that is written says `out_of_bounds = "clip"`.

*Categories.* Where they are bought, each text of a column has a range of its own: its places are
not public, they are the texts of the table. A text and its noisy count are shown only if that
exceeds a `threshold`. Why this is private, for neighbours T and T' = T and one more record:

- Give every text that is in T or T' a place, and noise. With the texts of T' that are not in T
  never shown, both releases are functions of one Gaussian release over these places, since the
  noise of texts that nobody has is not looked at: the event. The law of the noise is one for all
  numbers of places (`room`), else that of the ranges would tell how many texts there are.
- In truth such a text may be shown. Only the one more record has it, so its count is 1, and it is
  shown if its noise is more than `threshold` - 1. Noises of different places are independent of
  each other, and the order of places (sorted texts) changes no law. So the release of T' is within
  a total variation of `delta_keys` of the one above: one such text in each column, and a union
  bound. This is in `slack`, which is in δ, times 1 + e^ε: for one record replaced, both tables have
  such texts.

What is proved by the prover is the Gaussian release of counts at places, with the threshold after
it. What is trusted, and tested: that equal texts have one place, that nothing of a text is shown
but by its noisy count, and the bound on the tail of the noise (`GAUSSIAN.exceeds`), which is the
law that is drawn, and compared with what is stated before anything is spent. How long a release
takes follows the number of texts, up to a power of two; times are not covered.

References: Korolova, Kenthapadi, Mishra and Ntoulas, Releasing search queries and clicks privately,
WWW 2009 (thresholds). Google's `ApproxBounds` (differential-privacy library) releases such counts
and takes one threshold for all of them; its bounds miss a tail whose ranges stay below the
threshold one by one.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Int, PRNGKeyArray

from discreet._dp_accounting import DpEvent
from discreet._jax import one_release
from discreet._validate import fraction, positive, real, refuse
from discreet.privacy import random
from discreet.privacy.accounting import Relation, neighbours, upper
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.mechanisms import GAUSSIAN, count_cells
from discreet.privacy.query import LAST, Gaussian, GaussianPlan, Query, Wording, padded
from discreet.privacy.released import Released
from discreet.privacy.report import Statement, Unit, counted
from discreet.privacy.verify import PrivacyError
from discreet.tabular.tables import (
    DEFAULT_MISSING_VALUES,
    OTHER,
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
_PLACES = 256
"""The least number of places for texts; there are as many as a power of two, so that few programs are compiled."""
_KEYS = 0.5
"""Share of delta for texts that one record alone has."""
_ROOM = 1.01
"""More than noise is larger than asked for: 0.41 % at most, beside what the grid allows for rounding."""
_MOST_PLACES = 2**24
"""Places of ranges and texts for all numbers of which the noise has one law; more are refused."""
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
        categories: Names of those whose categories are bought. Of a column that is also in
            `columns`, numbers have ranges, and other texts are categories.
        delta_keys: Probability that any text is shown that one record alone has; 0 without
            categories.
        share: The share of records that may lie outside of a column's bounds: an aim, which noise
            can miss.
        known: Columns that are publicly known, for the schema that is made.
        person: Name of the column that identifies persons, of whom one row each is counted; None:
            each row is a record.
        csv: The table's text format.
        missing_values: Texts that stand for a missing cell.
        noise_multiplier: Standard deviation of the noise, divided by `sensitivity`.
        delta: The delta at which epsilon is stated.
        relation: The neighbouring relation.

    Raises:
        ValueError: No columns, a name twice, or a number out of range.

    >>> plan = PrivateSchemaPlan.calibrate(("age", "income"), epsilon=0.1, delta=1e-6)
    >>> round(plan.stddev), round(plan.epsilon(), 3)
    (51, 0.1)
    """

    columns: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    delta_keys: float = 0.0
    share: float = 0.01
    known: tuple[Column, ...] = ()
    person: str | None = None
    csv: CsvFormat = dataclasses.field(default_factory=CsvFormat)
    missing_values: tuple[str, ...] = DEFAULT_MISSING_VALUES

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("share", self.share, hint="0.01 is the default.")
        others = [*(column.name for column in self.known), *filter(None, [self.person])]
        for each in (self.columns, self.categories):
            if not self.names or len({*each, *others}) < len(each) + len(others):
                refuse(
                    "columns",
                    [*each, *others],
                    "one name or more, each once",
                    "Known columns and the person are others.",
                )
        real("delta_keys", self.delta_keys, 0, 1)
        if self.categories and not 2 * self.slack < self.delta:
            refuse(
                "delta_keys", self.delta_keys, f"above 0 and below half of delta, {self.delta:g}"
            )

    @classmethod
    def calibrate(
        cls,
        columns: Sequence[str] = (),
        *,
        epsilon: float,
        delta: float,
        categories: Sequence[str] = (),
        share: float = 0.01,
        known: Sequence[Column] = (),
        person: str | None = None,
        csv: CsvFormat | None = None,
        missing_values: Sequence[str] = DEFAULT_MISSING_VALUES,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    ) -> PrivateSchemaPlan:
        """Find the least noise with which the release costs (epsilon, delta).

        Args:
            columns: As above, as are the others.
            categories: As above; half of delta is for texts that one record alone has.
            epsilon: Target, above 0; what is done with the schema costs its own.
            delta: Target, well below one over the number of records.
            share: As above.
            known: As above.
            person: As above.
            csv: As above; None: commas and points.
            missing_values: As above.
            relation: As above.

        Raises:
            ValueError: An argument is out of range.
        """
        shape: dict[str, Any] = {
            "columns": tuple(columns),
            "share": share,
            "known": tuple(known),
            "person": person,
        }
        shape |= {"csv": csv or CsvFormat(), "missing_values": tuple(missing_values)}
        if categories:
            positive("epsilon", epsilon)
            shape |= {
                "categories": tuple(categories),
                "delta_keys": _KEYS * delta / (1 + math.exp(min(epsilon, 50))),
            }
        return cls._calibrated(epsilon, delta, **shape, relation=relation)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are counted."""
        return (*self.columns, *(name for name in self.categories if name not in self.columns))

    @property
    def slack(self) -> float:
        """Total variation between the run and the event: that of the noise, and texts that one record alone has."""
        return super().slack + self.delta_keys

    @property
    def threshold(self) -> float:
        """The noisy count beyond which a text is shown."""
        if not self.categories:
            return math.inf
        allowance = GAUSSIAN.most_planned(self.noise_multiplier, 1, self.room) * GAUSSIAN.rounding(
            1
        )
        larger = _ROOM + allowance / (0.49 * GAUSSIAN.law(3).reach)
        return 1 - larger * self.stddev * NormalDist().inv_cdf(
            self.delta_keys / len(self.categories)
        )

    def check_threshold(self, dim: int) -> None:
        """Refuse a threshold that lets a text of one record pass more often than is stated, of so many counts.

        Raises:
            PrivacyError: It does.
        """
        if not self.categories:
            return
        if dim > self.room:
            raise PrivacyError(
                f"The columns have more than {self.room:,} texts, and the noise is of one law for no more.",
                "Leave out columns that hold another text in almost each row: they have no categories.",
            )
        passes = GAUSSIAN.exceeds(
            self.threshold - 1, self.stddev, self.noise_multiplier, dim, self.room
        )
        if not len(self.categories) * passes + GAUSSIAN.slack <= self.slack:
            raise PrivacyError(
                f"A text that one record alone has is shown with probability {passes:.3g} in each of {len(self.categories)} "
                f"columns, and the plan's slack of {self.slack:.3g} does not cover that.",
                "Raise the threshold, or calibrate the plan again.",
            )

    @property
    def room(self) -> int:
        """For how many counts the noise has one law; 0 where their number is public."""
        return _MOST_PLACES if self.categories else 0

    @property
    def sensitivity(self) -> float:
        """How far one record moves the counts in L2; of one that is replaced, half of that: accountants double it."""
        near = neighbours(self.relation)
        return math.sqrt(len(self.names)) * (near.of_cells / near.distance)

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise on each count, in records."""
        return self.noise_multiplier * self.sensitivity

    @property
    def certain(self) -> float:
        """The noisy count of a range that certainly holds records."""
        return self.stddev * NormalDist().inv_cdf(1 - _FALSE / (RANGES * len(self.names)))

    def as_read(self, kinds: Mapping[str, Kind]) -> Schema:
        """The schema by which the columns are read: as numbers where their types say so, else as texts, which may be numbers.

        Args:
            kinds: Kinds that the types of the columns suggest, by name.

        Raises:
            ValueError: A column has dates or truth values, which are described without the data.
        """
        return Schema(
            columns=tuple(
                _as_read(name, kinds.get(name), name in self.columns) for name in self.names
            ),
            person=self.person,
            csv=self.csv,
            missing_values=self.missing_values,
        )

    @property
    def own_unit(self) -> Unit:
        """A person, where the plan names their column."""
        return Unit(self.person)

    def wording(self, unit: Unit) -> Wording:
        """What the statement of the release says, for a unit of privacy."""
        noun = unit.noun
        columns = counted(len(self.names), "column")
        what = " and ".join(
            f"{word} of {counted(len(names), 'column')}"
            for word, names in (("bounds", self.columns), ("categories", self.categories))
            if names
        )
        near = neighbours(self.relation)
        return Wording(
            method="private schema",
            mechanism=(
                f"The line of numbers was divided at zero and at the powers of two. For each of {columns} the {noun}s in each of "
                f"{RANGES} ranges were counted, among them those without a number. One {noun} {near.how} the table moves the "
                f"counts together by at most {self.sensitivity * near.distance:.6g} in Euclidean norm. Gaussian noise of "
                f"standard deviation {self.stddev:.6g} was added to each. Bounds were computed from the noisy counts, so that "
                f"about {self.share:.2g} of the {noun}s lie outside at most; that is an aim, which noise can miss."
                + (self._how_shown(noun) if self.categories else "")
                + (
                    " Of each person one row was counted, chosen by a secret order."
                    if self.person is not None
                    else ""
                )
            ),
            plan={
                "columns": list(self.columns),
                "categories": list(self.categories),
                "share": self.share,
                "ranges": RANGES,
                "contribution_bound": self.sensitivity,
                "noise_multiplier": self.noise_multiplier,
                "noise_standard_deviation": self.stddev,
            }
            | (
                {"threshold": self.threshold, "delta_keys": self.delta_keys}
                if self.categories
                else {}
            ),
            released=[
                f"Noisy counts of {RANGES} ranges of {columns}, and {what} that are computed from them"
            ],
            public=["The names of the columns, the ranges, the noise and the threshold"],
            about=f"{what.capitalize()}, for a schema.",
        )

    def _how_shown(self, noun: str) -> str:
        return (
            f" Of {counted(len(self.categories), 'column')} the {noun}s with each text were counted likewise, and a text was "
            f"shown only if its noisy count was above {self.threshold:.6g}. The probability that any text was shown that "
            f"one {noun} alone has is at most {self.delta_keys:.3g}; δ includes it."
        )


class Found(NamedTuple):
    """What the noisy counts say of a column.

    Attributes:
        bounds: Lowest and highest value; None: there are none, for the reason.
        categories: The texts that were shown, sorted, and "other"; empty: none, for the reason.
        reason: Why there are neither; else empty.
        missing: True if missing cells are certain.
        hidden: The share of the records that the noise may hide beyond a bound, in each power of
            two.
    """

    bounds: tuple[float, float] | None
    categories: tuple[str, ...]
    reason: str
    missing: bool
    hidden: float

    def column(self, name: str, *, is_target: bool = False) -> Column:
        """The column of a schema, of this name.

        A target of two texts is binary: rows with others are left out of fits, as those without one
        are. That rule is of one row and is stated, so that what a fit costs is the same.
        """
        missing = Missing.INDICATOR if self.missing else Missing.REFUSE
        if is_target and len(self.categories) == 3:
            return Column(
                name=name,
                kind=Kind.BINARY,
                categories=self.categories[:2],
                missing=Missing.DROP,
                out_of_bounds=OutOfBounds.MISSING,
            )
        if self.bounds is not None:
            rule = OutOfBounds.CLIP
            return Column(
                name=name, kind=Kind.REAL, bounds=self.bounds, missing=missing, out_of_bounds=rule
            )
        rule = OutOfBounds.OTHER
        return Column(
            name=name,
            kind=Kind.CATEGORICAL,
            categories=self.categories,
            missing=missing,
            out_of_bounds=rule,
        )


@dataclasses.dataclass(frozen=True)
class PrivateSchema(Released, what="private schema", parts=PARTS_OF_SCHEMA):
    """The noisy counts of ranges, and the schema that follows from them.

    Attributes:
        plan: The plan of the release.
        counts: Noisy counts of the ranges of each column, in records; may be negative or fractions.
        statement: The privacy statement of the release. What uses the schema costs its own.
        made_on: The day of the release.
        keys: Of each column whose categories were bought: the texts that were shown, sorted, and
            their noisy counts.
    """

    plan: PrivateSchemaPlan
    counts: Float[np.ndarray, "column range"]
    statement: Statement
    made_on: datetime.date
    keys: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def found(self) -> dict[str, Found]:
        """What the counts say of each column."""
        plan = self.plan
        return {
            name: _found(counts, self.keys.get(name), plan)
            for name, counts in zip(plan.names, self.counts, strict=True)
        }

    def schema(self, statement: str = "", target: str | None = None) -> Schema:
        """The schema of the known columns and of those that have bounds, which says that these were bought.

        Args:
            statement: The file of the statement, to be named in the schema.
            target: The column to predict, if it is described and not alone.

        Raises:
            ValueError: No column has bounds or categories.
        """
        described = {name: found for name, found in self.found.items() if not found.reason}
        if not described:
            raise ValueError(
                f"nothing was found: the noise on each count has standard deviation {self.plan.stddev:.4g}. Fewer columns, or a "
                "larger epsilon, lower it; or state bounds and categories."
            )
        columns = [
            found.column(name, is_target=name == target) for name, found in described.items()
        ]
        bought = Bought(
            columns=tuple(described),
            epsilon=float(upper(self.statement.epsilon)),
            delta=float(upper(self.statement.delta)),
            made_on=self.made_on,
            statement=statement,
        )
        plan = self.plan
        columns = [*plan.known, *columns]
        return Schema(
            columns=tuple(columns),
            target=target
            if len(columns) > 1 and target in [column.name for column in columns]
            else None,
            person=plan.person,
            csv=plan.csv,
            missing_values=plan.missing_values,
            bought=bought,
        )

    def _is_whole(self) -> bool:
        return self.counts.shape == (len(self.plan.names), RANGES) and bool(
            np.isfinite(self.counts).all()
        )


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
    low = -_edges(
        _end(line[::-1], _LINE - 1 - last, _LINE - 1 - first, stddev, certain, share * seen)
    )[1]
    if 0 < low <= high / _NEAR_ZERO:
        low = 0
    if 0 < -high <= -low / _NEAR_ZERO:
        high = 0
    return low + 0.0, high + 0.0  # no -0.0


def _end(
    line: np.ndarray, first: int, last: int, stddev: float, certain: float, allowed: float
) -> int:
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


def _found(counts: np.ndarray, keys: dict[str, float] | None, plan: PrivateSchemaPlan) -> Found:
    """What the counts of a column say; `keys` are None where its categories were not bought."""
    certain = plan.certain
    line = counts[:_LINE]
    bounds = bounds_of(counts, plan.stddev, certain, plan.share)
    missing = bool(counts[_MISSING] > certain)
    hidden = float(_SEEN * plan.stddev / max(1.0, line[line > _SEEN * plan.stddev].sum()))
    texts = counts[_TEXT] if keys is None else sum(keys.values())
    reason = ""
    if bounds is None or texts > line[line > certain].sum():
        if keys:
            return Found(None, (*sorted({*keys} - {OTHER}), OTHER), "", missing, hidden)
        bounds = None
        reason = (
            "no text has enough records" if keys is not None else "too few numbers for the noise"
        )
        if keys is None and texts > certain:
            reason = "more texts than numbers: describe it by categories"
    elif bounds[0] == bounds[1]:
        bounds = None
        reason = "nearly all its numbers are 0"
    return Found(bounds, (), reason, missing or (bool(texts > certain) and not reason), hidden)


class _CountsOfCells(NamedTuple):
    """Counts of the cells of each column: those of all other records, and of the last ones."""

    cells: tuple[int, ...]

    def __call__(self, counted: Array, levels: Array, mask: Array) -> Array:
        tables = tuple((column,) for column in range(len(self.cells)))
        return count_cells(levels, mask, self.cells, tables, (1,) * len(self.cells), counted)


class _Thresholded(NamedTuple):
    """Noisy counts; those of texts are 0 where they are not above the threshold."""

    noise: Gaussian
    threshold: float
    cells: tuple[int, ...]

    def event(self) -> DpEvent:
        """As in `Noise`."""
        return self.noise.event()

    def __call__(self, key: PRNGKeyArray, total: Array) -> Array:
        """As in `Noise`."""
        noisy = self.noise(key, total)
        texts = np.concatenate([np.arange(cells) >= RANGES for cells in self.cells])
        return jnp.where(texts & (noisy <= self.threshold), 0.0, noisy)


@one_release
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

    Guarantee: what is returned is one `plan.event()` under the plan's relation but for its `slack`,
    for one record, or for one person where the plan names the person column. The program is proved
    to be that before it runs. Any cell has a range, so none is refused. A file is read in one pass,
    in pieces (in two, where persons are to be told apart).

    That at most the plan's share of the records lies outside is an aim: a tail that is thinner than
    the noise in each power of two is not seen.

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
    >>> low, high = private_schema(dp.random.key(), people, plan).found["age"].bounds
    >>> bool(low == 0 and high >= 64)
    True
    """
    key = random.secret_key(rng_key, "private_schema", non_private_seed)
    act = Act.on(plan, key, random.Purpose.SCHEMA, ledger=ledger)
    texts, counts, last = _count(table, plan, person_key)
    cells = tuple(map(len, counts))
    plan.check_threshold(sum(cells))
    noise = _Thresholded(
        Gaussian(plan.stddev, plan.noise_multiplier, plan.room), plan.threshold, cells
    )
    query = Query(_CountsOfCells(cells), noise, plan.relation)
    # The program's fingerprint follows the number of texts.
    noisy = query.answer(act, np.concatenate(counts), *padded(last), named=not plan.categories)
    columns = dict(zip(plan.names, np.split(noisy, np.cumsum(cells)[:-1]), strict=True))
    keys = {
        name: {
            text: float(count)
            for text, count in zip(texts[name], columns[name][RANGES:], strict=False)
            if count > plan.threshold
        }
        for name in plan.categories
    }
    ranges = np.stack([column[:RANGES] for column in columns.values()])
    return PrivateSchema(
        plan, ranges, act.statement, datetime.datetime.now(datetime.UTC).date(), keys
    )


def _count(
    table: Any, plan: PrivateSchemaPlan, person_key: bytes | None
) -> tuple[dict[str, list[str]], list[Int[np.ndarray, " cell"]], Int[np.ndarray, "row column"]]:
    """The sorted texts of the columns, exact counts over all rows but the last, and the cells of these. Not private."""
    from discreet.tabular.tables import (
        as_table,
        column_kinds,
        files_of,
        keep_one_row_a_person,
        over_pieces,
        persons_of,
    )

    table = files_of(table) or as_table(table)  # which can be read twice
    schema = plan.as_read(column_kinds(table))
    report = Report(OutOfBounds.MISSING)
    keep = None
    if plan.person is not None:
        keep = keep_one_row_a_person(persons_of(table, schema, report), key=person_key)
    counts = [np.zeros(RANGES, np.int64) for _ in plan.names]
    places: list[dict[str, int]] = [{} for _ in plan.names]

    def add(cells: np.ndarray) -> None:
        for number, column in enumerate(cells.T):
            found = np.bincount(column, minlength=RANGES + len(places[number]))
            found[: len(counts[number])] += counts[number]
            counts[number] = found

    held = np.zeros((0, len(plan.names)), np.int32)
    row = 0
    for piece in over_pieces(table, schema, functools.partial(_cells_in, plan=plan), report):
        kept = slice(None) if keep is None else keep[row : row + len(piece[0][0])]
        row += len(piece[0][0])
        columns = [
            _at_places(cells[kept], texts, own)
            for (cells, texts), own in zip(piece, places, strict=True)
        ]
        held = np.concatenate([held, np.stack(columns, axis=1)])
        add(held[:-LAST])
        held = held[-LAST:]
    add(held[:0])
    for number, own in enumerate(places):
        if own:
            # The order of places is that of the texts, not that in which the records came.
            order = [own[text] for text in sorted(own)]
            more = 2 ** max(len(own) - 1, _PLACES - 1).bit_length() - len(own)
            counts[number] = np.concatenate(
                [counts[number][:RANGES], counts[number][order], np.zeros(more, np.int64)]
            )
            moved = np.arange(RANGES + len(own))
            moved[order] = RANGES + np.arange(len(own))
            held[:, number] = moved[held[:, number]]
    return {name: sorted(own) for name, own in zip(plan.names, places, strict=True)}, counts, held


def _at_places(cells: np.ndarray, texts: Sequence[str], places: dict[str, int]) -> np.ndarray:
    """Cells of a piece, of which those from RANGES on are its own texts, by the places that texts have in all pieces.

    Texts that are in none of these cells, such as those of a person's other rows, get no place: a
    person's texts would be more than are accounted for.
    """
    known = np.arange(RANGES + len(texts), dtype=np.int32)
    for cell in map(int, np.unique(cells[cells >= RANGES])):
        known[cell] = places.setdefault(texts[cell - RANGES], RANGES + len(places))
    return known[cells]


def _as_read(name: str, kind: Kind | None, numbers: bool) -> Column:
    if kind in (Kind.DATE, Kind.BINARY):
        refuse(
            "columns",
            name,
            "columns of numbers or texts",
            f"This one has the type of a {kind}: describe it.",
        )
    if kind is Kind.REAL and numbers:
        return Column(name=name, kind=kind, bounds=(0, 1), missing=Missing.INDICATOR)
    return Column(
        name=name, kind=Kind.CATEGORICAL, categories=("\0", "\1"), missing=Missing.INDICATOR
    )


def _cells_in(
    piece: Any, plan: PrivateSchemaPlan
) -> list[tuple[Int[np.ndarray, " row"], list[str]]]:
    """The cells of each column in some rows, and the texts that those from RANGES on stand for."""
    import pyarrow

    def of(name: str) -> tuple[np.ndarray, list[str]]:
        values = piece.column(name)
        if pyarrow.types.is_floating(values.type):
            return ranges_of(values.to_numpy()), []
        own: dict[str, int] = {}
        parts = [np.zeros(0, np.int32)]
        for chunk in values.chunks:
            cells = chunk if pyarrow.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
            texts = cells.dictionary.to_pylist()
            known = np.array(
                [*(_cell_of(text, name, plan, own) for text in texts), _MISSING], np.int32
            )
            parts.append(known[cells.indices.fill_null(len(texts)).to_numpy()])
        return np.concatenate(parts), list(own)

    return [of(name) for name in plan.names]


def _cell_of(text: str | None, name: str, plan: PrivateSchemaPlan, own: dict[str, int]) -> int:
    from discreet.tabular.tables import number_of

    if text is None:
        return _MISSING
    if name in plan.columns:
        number = number_of(text, plan.csv)
        # whose header does not show decimal commas
        if number is None and plan.csv.delimiter == ";":
            number = number_of(text, dataclasses.replace(plan.csv, decimal=","))
        if number is not None:
            return int(ranges_of(number))
    if name not in plan.categories:
        return _TEXT
    if text in plan.missing_values:
        return _MISSING
    return own.setdefault(text, RANGES + len(own))
