"""Description of a table: figures that follow from noisy counts, agree with one another, and have intervals.

*Model.* Let c_i be the counts of column i over its k_i levels, T_ij those of a pair, N the number of records. The released
counts are these plus independent Gaussian noise of known standard deviation; 1'c_i = N, and the margins of T_ij are c_i and c_j.

*Least squares.* Without the interaction of T_ij, a pair measures c_i with variance k_j s_ij^2 a level, and N only once. So the
best linear unbiased estimate is in closed form: c_i has precision p_i = 1/s_i^2 + sum_j 1/(k_j s_ij^2) in every direction that
keeps its total, N has variance V = 1 / sum_tables 1/(cells s^2), and both are independent. A linear figure a'c_i thus has
variance |a - mean(a)|^2 / p_i + mean(a)^2 V.

*Intervals* are of this estimate, which is exactly Gaussian. A ratio t = a'c / b'c has Fieller's interval, all t for which
(a - t b)'c = 0 is not rejected, which is exact as well. The values within a slice are unknown: a mean lies between those with
all values at the lower and at the upper ends of their slices. Intervals are one-sided at each end, so that they hold for every
place of the values. A quantile is in slice b if the shares below b and below b + 1 say so: slices for which neither is rejected.
For the standard deviation see `_Column.deviation`.

What the schema calls impossible is not used: no table is refused for rows that have it, and intervals are of the table as it is.

*Counts and shares* are the projection of the estimate onto tables without negative counts whose totals and margins agree: each
column onto the simplex of N, then each pair onto the tables with its columns' counts. Means, standard deviations and quantiles
follow from the estimate before it is projected: what noise adds to empty slices stays there and what it takes is cut, so the
projection draws them to those of the bounds. They take values to lie in the middle of their slices. Intervals are cut to what is
possible, and widened to the figure where it is outside, both of which leave their coverage no lower.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from discreet import random
from discreet._validate import LEVEL, probability
from discreet.accounting import Relation, upper
from discreet.ledger import Ledger
from discreet.marginals._release import Marginals, MarginalsPlan, private_marginals
from discreet.report import Statement
from discreet.tables import EPOCH, Column, Kind, Schema

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

FORMAT = "discreet description, version 1"
SLICES, QUANTILES = 64, (0.05, 0.25, 0.5, 0.75, 0.95)
COVERS = (
    "Each interval by itself holds the figure of the table that was counted with probability {level:g} or more, over the noise. "
    "It says nothing about a population that the records come from. Those of means, standard deviations (which divide by the "
    "number of values) and quantiles (the least value that so large a share does not exceed) hold wherever the values lie within "
    "their slices."
)
_EXCESS = 1.012
"""The noise on the grid of integers is up to so many times as large as planned."""
_GRID = 4096
_ROUNDS, _PRECISION = 500, 1e-7
_WIDTH = 100
_SHOWN = 400
"""Cells of a two-way table that are shown as text."""


class Figure(NamedTuple):
    """An estimate and its interval: numbers, or arrays with a figure for each level or cell."""

    value: Any
    low: Any
    high: Any

    def to_dict(self) -> dict[str, Any]:
        """Convert to values for JSON."""
        return {name: np.asarray(x).tolist() for name, x in self._asdict().items()}


@dataclasses.dataclass(frozen=True)
class ColumnFigures:
    """The released figures of one column.

    Attributes:
        column: Its public description.
        labels: Names of its levels: categories, or slices of numbers; the last may be the missing cells.
        counts: Records at each level.
        shares: The same, divided by the number of records.
        edges: Edges of the slices of a column of numbers; the last is one past the upper bound for counts and dates.
        mean: Mean of the values that are not missing; dates are days since 1970-01-01. None for categories, as is `sd`.
        sd: Their standard deviation.
        quantiles: By their share of the values.
    """

    column: Column
    labels: tuple[str, ...]
    counts: Figure
    shares: Figure
    edges: Float[np.ndarray, " slice+1"] | None = None
    mean: Figure | None = None
    sd: Figure | None = None
    quantiles: Mapping[float, Figure] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Convert to values for JSON; `edges` are those of the slices."""

        def day(value: float) -> Any:
            return shown(self.column, value) if self.column.kind is Kind.DATE else float(value)

        def days(figure: Figure) -> dict[str, Any]:
            return {part: day(value) for part, value in figure._asdict().items()}

        return {
            "kind": str(self.column.kind),
            "rule": self.column.rule(),
            "labels": list(self.labels),
            "edges": [] if self.edges is None else [day(edge) for edge in self.edges],
            "counts": self.counts.to_dict(),
            "shares": self.shares.to_dict(),
            "mean": None if self.mean is None else days(self.mean),
            "sd": None if self.sd is None else self.sd.to_dict(),
            "quantiles": {f"{share:g}": days(figure) for share, figure in self.quantiles.items()},
        }


@dataclasses.dataclass(frozen=True)
class PairFigures:
    """A two-way table: an axis of levels for each of two columns.

    Attributes:
        counts: Records in each cell.
        shares: The same, divided by the number of records.
    """

    counts: Figure
    shares: Figure


@dataclasses.dataclass(frozen=True)
class Description:
    """Figures of a table that follow from its noisy counts, which `describe` released; all of them are covered by `statement`.

    The figures agree: no count is negative, the counts of each column add up to the number of records, and those of a two-way
    table to its columns' counts. What intervals hold is in `COVERS` and in `intervals`.

    Attributes:
        released: The noisy counts.
        level: Probability with which each interval holds.
        num_records: The number of records.
        columns: By name.
        pairs: By the names of both columns.
    """

    released: Marginals
    level: float
    num_records: Figure
    columns: Mapping[str, ColumnFigures]
    pairs: Mapping[tuple[str, str], PairFigures]

    @classmethod
    def of(cls, released: Marginals, *, level: float = LEVEL, quantiles: Sequence[float] = QUANTILES) -> Description:
        """Describe a table by counts that were released already; costs nothing.

        Args:
            released: Noisy counts. Three-way tables are not used.
            level: Probability with which each interval holds.
            quantiles: Quantiles to compute, as shares of the values.

        Raises:
            ValueError: A level or share that is none, or no one- or two-way table was counted.
        """
        level = probability("level", level, hint="0.9 is the default.")
        shares = [probability("a quantile", share, hint="0.5 is the median.") for share in quantiles]
        fit = _LeastSquares(released)
        z = NormalDist().inv_cdf((1 + level) / 2)
        total = max(1.0, fit.total)
        spread = z * math.sqrt(fit.variance)
        found = {name: column.figures(total, level, shares) for name, column in fit.columns.items()}
        pairs = {
            (one, other): fit.pair(one, other, total, z, found[one].counts.value, found[other].counts.value)
            for one, other in fit.pairs
        }
        records = _interval(total, fit.total - spread, fit.total + spread, 0.0, math.inf)
        return cls(released, level, Figure(*map(float, records)), found, pairs)

    @property
    def statement(self) -> Statement:
        """The privacy statement of the counts."""
        return self.released.statement

    @property
    def intervals(self) -> str:
        """The quantities that the intervals cover, in words."""
        return COVERS.format(level=self.level)

    def to_dict(self) -> dict[str, Any]:
        """All figures and the statement, as JSON can hold them; dates as 1970-01-31."""
        pairs = [
            {"columns": list(names), "counts": x.counts.to_dict(), "shares": x.shares.to_dict()}
            for names, x in self.pairs.items()
        ]
        return {
            "format": FORMAT,
            "level": self.level,
            "intervals": self.intervals,
            "num_records": self.num_records.to_dict(),
            "columns": {name: x.to_dict() for name, x in self.columns.items()},
            "pairs": pairs,
            "statement": self.statement.to_dict(),
        }

    def to_json(self) -> str:
        """`to_dict` as a text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw the shares of each column's levels with their intervals; numbers as histograms.

        Args:
            path: File for the picture, whose ending determines its format. None: it is not saved.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        from discreet.plots import Levels, plot_levels

        columns = {}
        for name, x in self.columns.items():
            edges, axis = x.edges, x.column.unit
            if edges is not None and x.column.kind is Kind.DATE:
                edges, axis = 1970 + edges / 365.2425, "year"
            columns[name] = Levels(x.labels, edges, *x.shares, axis)
        spent = f"ε = {upper(self.statement.epsilon)} at δ = {self.released.plan.delta:.3g}"
        records = _words(self.num_records, "{:,.0f}".format)
        title = f"{self._unit}s: {records}. Bars: shares; lines: intervals that hold with probability {self.level:g}. {spent}"
        return plot_levels(columns, title=title, path=path)

    @property
    def _unit(self) -> str:
        return self.statement.noun.capitalize()

    def __str__(self) -> str:
        """All but the slices of numbers and large two-way tables, for people."""
        parts = [
            f"{self._unit}s: {_words(self.num_records, '{:,.0f}'.format)}. Intervals hold with probability {self.level:g}."
        ]
        parts += [_column_text(name, x) for name, x in self.columns.items()]
        for (one, other), x in self.pairs.items():
            heading = f"{one} × {other}, shares of all {self._unit.lower()}s"
            if x.shares.value.size > _SHOWN:
                parts.append(f"{heading}\n  {x.shares.value.size:,} cells: see the JSON file.")
                continue
            across = self.columns[other].labels
            rows = [["", *across]]
            for label, row in zip(self.columns[one].labels, zip(*x.shares, strict=True), strict=True):
                cells = zip(*(line.tolist() for line in row), strict=True)
                rows.append([label, *(_words(Figure(*cell), _percent, "%") for cell in cells)])
            parts.append(f"{heading}\n{_aligned(rows)}")
        return "\n\n".join([*parts, textwrap.fill(self.intervals, _WIDTH)]) + "\n"

    def __repr__(self) -> str:
        """Short, without figures of levels."""
        about = f"about {self.num_records.value:,.0f} records, {len(self.columns)} columns, {len(self.pairs)} pairs"
        return f"Description({about}, {self.statement.brief})"


def describe(
    table: Any,
    schema: Schema | None = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    pairs: Sequence[Sequence[str]] | str = (),
    level: float = LEVEL,
    quantiles: Sequence[float] = QUANTILES,
    weights: Mapping[str, int] | None = None,
    relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    slices: int = SLICES,
    ledger: Ledger | None = None,
    out_of_bounds: str = "refuse",
    rng_key: PRNGKeyArray | None = None,
    person_key: bytes | None = None,
    non_private_seed: bool = False,
) -> Description:
    """Describe a table privately: counts, shares, means, standard deviations, quantiles, histograms and two-way tables.

    Guarantee: one Gaussian release of the counts of each column's levels, and of the pairs' cells, is (epsilon, delta)-
    differentially private under `relation`, for one person where the schema names a person column. All figures follow from it.

    Law of the intervals: each by itself holds the figure of the table that was counted with probability `level` or more, over the
    noise; none is about a population. With out_of_bounds="clip" this table has clipped values, and with a person column
    one row of each person, whatever the schema's `max_rows`. Shares, counts and the number of records: the interval of a
    Gaussian, and Fieller's of a ratio. Means, standard deviations (dividing by the number of values) and quantiles (the least
    value that a share of at least q does not exceed): the values may lie anywhere in their slices, so that more slices make
    these intervals narrower until noise outweighs them. A mean has no interval narrower than a slice, unless each value is a
    slice.

    Args:
        table: Columns by name, or a path to a file, which may be larger than memory: as for `private_marginals`.
        schema: The public description.
        epsilon: Privacy budget, above 0.
        delta: Privacy budget, well below one over the number of records.
        pairs: Names of columns of each two-way table; or "all". Each one- or two-way table more makes the noise of all larger.
        level: Probability with which each interval holds.
        quantiles: Quantiles to compute, as shares of the values.
        weights: By name of a column: the weight of its tables. None: 1 for all.
        relation: The neighbouring relation.
        slices: Most slices of a column of numbers.
        ledger: Debited before the release.
        out_of_bounds: "refuse" or "clip".
        rng_key: A key for this call alone. None: one from the operating system.
        person_key: Secret from which one row of each person is chosen; None: a new one.
        non_private_seed: Permit a key made from a seed, for tests.

    Raises:
        TypeError: No schema, epsilon or delta. Nothing was released.
        ValueError: An argument is out of range. Nothing was released.
        DataError: The table is not what the schema allows. Nothing was released.
        SpentError: The ledger does not hold the budget. Nothing was released.

    >>> import discreet as dp
    >>> from discreet.tables import schema_from_bounds
    >>> people = {"age": [20.0, 30.0, 40.0, 50.0] * 5000, "smoker": ["yes", "no", "no", "no"] * 5000}
    >>> found = dp.describe(people, schema_from_bounds("age=0:99,smoker=no|yes"), epsilon=1.0, delta=1e-6)
    >>> 33 < found.columns["age"].mean.low < 35 < found.columns["age"].mean.high < 37
    True

    Reference:
        Fieller, Some problems in interval estimation, JRSS B 16, 1954; Hay, Rastogi, Miklau and Suciu, Boosting the accuracy of
        differentially private histograms through consistency, VLDB 2010.
    """
    if not isinstance(schema, Schema) or epsilon is None or delta is None:
        raise TypeError(
            "describe needs a schema, epsilon and delta. Bounds and categories are public, never taken from the data: "
            "dp.describe(table, dp.tables.schema_from_bounds('age=17:90,smoker=no|yes'), epsilon=0.5, delta=1e-6)"
        )
    probability("level", level, hint="0.9 is the default.")
    for share in quantiles:
        probability("a quantile", share, hint="0.5 is the median.")
    plan = description_plan(
        schema, epsilon=epsilon, delta=delta, pairs=pairs, weights=weights, relation=relation, slices=slices
    )
    released = private_marginals(
        random.key() if rng_key is None else rng_key,
        table,
        plan,
        ledger=ledger,
        out_of_bounds=out_of_bounds,
        person_key=person_key,
        non_private_seed=non_private_seed,
    )
    return Description.of(released, level=level, quantiles=quantiles)


def description_plan(
    schema: Schema,
    *,
    epsilon: float,
    delta: float,
    pairs: Sequence[Sequence[str]] | str = (),
    weights: Mapping[str, int] | None = None,
    relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    slices: int = SLICES,
) -> MarginalsPlan:
    """Plan the release that `describe` makes: all columns, and these pairs. Arguments and errors as there."""
    # A figure of persons needs one row of each, whatever number a fit would use.
    schema = dataclasses.replace(schema, max_rows=1)
    names = [column.name for column in schema.columns]
    chosen: Sequence[Any] = [pairs] if isinstance(pairs, str) else pairs
    if pairs == "all":
        chosen = list(itertools.combinations(names, 2))
    for pair in chosen:
        if isinstance(pair, str) or len(pair) != 2:
            raise ValueError(f"pairs has {pair!r}: give pairs of names, as in [('age', 'smoker')], or 'all'")
        if unknown := sorted({*pair} - {*names}):
            raise ValueError(
                f"pairs has {', '.join(unknown)}, which the schema does not describe: choose among {', '.join(names)}"
            )
    tables = [*((name,) for name in names), *chosen]
    goal = {"epsilon": epsilon, "delta": delta, "relation": relation, "slices": slices}
    return MarginalsPlan.calibrate(schema, tables=tables, weights=weights or {}, **goal)


# --- least squares --------------------------------------------------------------------------


class _LeastSquares:
    """The estimate of all counts, with what its variance is made of; see the head of this file."""

    def __init__(self, released: Marginals) -> None:
        plan = released.plan
        self.released, levels = released, plan.levels
        sizes = dict(zip((column.name for column in plan.schema.columns), levels.sizes, strict=True))
        used = [table for table in plan.tables if len(table) < 3]
        if not used:
            raise ValueError("only three-way tables were counted: a description needs those of columns or of pairs")
        self.noise = {table: plan.stddev(table) * _EXCESS for table in used}
        self.pairs = [table for table in used if len(table) == 2]
        weighed = [(released.table(*table), self.noise[table] ** -2) for table in used]
        precision = sum(weight / counts.size for counts, weight in weighed)
        self.total = float(sum(counts.sum() * weight / counts.size for counts, weight in weighed) / precision)
        self.variance = float(1 / precision)
        self.columns: dict[str, _Column] = {}
        for column in plan.schema.columns:
            size, precision, weighted = sizes[column.name], 0.0, np.zeros(sizes[column.name])
            for table in used:
                if column.name in table:
                    counts = released.table(column.name, *(name for name in table if name != column.name))
                    across = counts.reshape(size, -1)
                    weight = self.noise[table] ** -2 / across.shape[1]
                    precision, weighted = precision + weight, weighted + weight * across.sum(axis=1)
            if precision:
                counts = weighted / precision
                counts += (self.total - counts.sum()) / size
                edges = None if column.bounds is None else levels.edges(column)
                self.columns[column.name] = _Column(
                    column, tuple(levels.labels(column)), edges, counts, precision, self.variance
                )

    def pair(self, one: str, other: str, total: float, z: float, rows: np.ndarray, columns: np.ndarray) -> PairFigures:
        """A two-way table that agrees with the counts of its columns."""
        noisy, first, second = self.released.table(one, other), self.columns[one], self.columns[other]
        a, b = noisy.shape
        # Interaction, effects of rows and of columns, mean: four independent parts.
        centred = noisy - noisy.mean(axis=1, keepdims=True) - noisy.mean(axis=0) + noisy.mean()
        counts = centred + first.counts[:, None] / b + second.counts / a - self.total / (a * b)
        within = self.noise[(one, other)] ** 2 * (1 - 1 / a) * (1 - 1 / b)
        within += (1 - 1 / a) / (first.precision * b**2) + (1 - 1 / b) / (second.precision * a**2)
        variance = within + self.variance / (a * b) ** 2
        spread = z * math.sqrt(variance)
        value = _with_margins(counts, rows, columns)
        share = fieller(counts, self.total, variance, self.variance / (a * b), self.variance, z)
        return PairFigures(
            _interval(value, counts - spread, counts + spread, 0.0, math.inf),
            _interval(value / total, *share, 0.0, 1.0),
        )


@dataclasses.dataclass(frozen=True)
class _Column:
    """The estimate of one column's counts; `variance` is that of the number of records."""

    column: Column
    labels: tuple[str, ...]
    edges: Float[np.ndarray, " slice+1"] | None
    counts: Float[np.ndarray, " level"]
    precision: float
    variance: float

    def covariance(self, a: np.ndarray, b: np.ndarray) -> Any:
        """The covariance of the figures a'c and b'c, along the last axis."""
        means = a.mean(axis=-1), b.mean(axis=-1)
        centred = (a - means[0][..., None]) * (b - means[1][..., None])
        return centred.sum(axis=-1) / self.precision + means[0] * means[1] * self.variance

    def ratio(self, a: np.ndarray, z: float) -> tuple[Any, Any]:
        """Fieller's interval of a'c / b'c, where b counts the values that are not missing."""
        b = self.present
        parts = self.covariance(a, a), self.covariance(a, b), self.covariance(b, b)
        return fieller(a @ self.counts, b @ self.counts, *parts, z)

    @functools.cached_property
    def present(self) -> Float[np.ndarray, " level"]:
        """One for each level but that of missing cells."""
        there = np.ones(len(self.counts))
        there[-1] -= self.column.may_be_missing
        return there

    @functools.cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and greatest value of each slice, 0 for missing cells."""
        assert self.edges is not None
        low, high = self.edges[:-1], self.edges[1:] - (self.column.kind is not Kind.REAL)
        rest = np.zeros(len(self.counts) - len(low))
        return np.concatenate([low, rest]), np.concatenate([high, rest])

    def figures(self, total: float, level: float, quantiles: Sequence[float]) -> ColumnFigures:
        """All figures of the column."""
        z, size = NormalDist().inv_cdf((1 + level) / 2), len(self.counts)
        own = (1 - 1 / size) / self.precision + self.variance / size**2
        spread = z * math.sqrt(own)
        counts = on_simplex(self.counts, total)
        share = fieller(
            self.counts, self.counts.sum(), own, self.variance / size, self.variance, z
        )  # the counts add up to the estimate of N
        found = ColumnFigures(
            self.column,
            self.labels,
            _interval(counts, self.counts - spread, self.counts + spread, 0.0, math.inf),
            _interval(counts / total, *share, 0.0, 1.0),
            self.edges,
        )
        if self.edges is None:
            return found
        low, high = self.column.limits
        present, b = self.counts * self.present, self.present
        if present.sum() <= z * math.sqrt(self.covariance(b, b)):  # no more values than the noise hides
            present = counts * b if (counts * b).sum() > 0 else b
        number = present.sum()
        ends = self.ends
        middle = (ends[0] + ends[1]) / 2
        mean = float(present @ middle / number)
        # A uniform spread within each slice, over an interval or over integers.
        within = (ends[1] - ends[0]) / 12 * (ends[1] - ends[0] + 2 * (self.column.kind is not Kind.REAL))
        off = (middle - mean) * b
        square = ((middle - mean) ** 2 + within) * b
        # The mean is nearer to the noisy counts than to the exact ones, by its variance.
        variance = float(present @ square + self.covariance(off, off) / number) / number
        unsure = (square - variance) * b
        # Noise may leave a variance near or below 0: then a part of what it hides is as good a guess.
        sd = math.sqrt(max(variance, math.sqrt(self.covariance(unsure, unsure)) / number / 4))
        return dataclasses.replace(
            found,
            mean=_one(mean, self.mean(z), low, high),
            sd=_one(sd, self.deviation(level), 0.0, (high - low) / 2),
            quantiles={share: _one(*self.quantile(share, present, z), low, high) for share in quantiles},
        )

    def mean(self, z: float) -> tuple[float, float]:
        """Interval of the mean: one-sided at each end, with all values at that end of their slices."""
        low, high = self.ends
        return float(self.ratio(low, z)[0]), float(self.ratio(high, z)[1])

    def deviation(self, level: float) -> tuple[float, float]:
        """Interval of the standard deviation.

        Half of the error goes to the mean, which then lies in some cells of a public grid of the bounds. Were the mean's cell
        known, the variance would be a ratio of counts between those with the squared distance from the cell to the nearest and
        to the farthest value of each slice, whose interval takes the other half. The union over the mean's cells holds both.
        """
        z = NormalDist().inv_cdf(1 - (1 - level) / 4)
        grid = np.linspace(*self.column.limits, _GRID + 1)
        first, last = self.mean(z)
        cells = (grid[1:] >= first) & (grid[:-1] <= last)
        if not cells.any():
            return 0.0, math.inf
        start, stop = grid[:-1][cells][:, None], grid[1:][cells][:, None]
        low, high = self.ends
        near = np.maximum(np.maximum(low - stop, start - high), 0) ** 2 * self.present
        far = np.maximum(high - start, stop - low) ** 2 * self.present
        bounds = self.ratio(near, z)[0].min(), self.ratio(far, z)[1].max()
        return tuple(math.sqrt(max(0.0, float(x))) for x in bounds)  # pyright: ignore[reportReturnType]

    def quantile(self, share: float, present: np.ndarray, z: float) -> tuple[float, tuple[float, float]]:
        """A quantile and its interval.

        It is in slice b if less than `share` of the values are below b, and at least so many below b + 1. Both are signs of
        figures of the counts, each tested at one side.
        """
        low, high = self.ends
        slices = len(self.edges) - 1  # pyright: ignore[reportArgumentType]
        below = np.tri(slices + 1, len(low), -1)
        signs = (below - share) * self.present
        z_scores = signs @ self.counts / np.sqrt(self.covariance(signs, signs))
        z_scores[0], z_scores[-1] = -math.inf, math.inf
        there = np.flatnonzero((z_scores[:-1] <= z) & (z_scores[1:] >= -z))
        # Sums of noisy counts may pass the share several times: the middle of these places.
        sums = np.concatenate([[0.0], np.cumsum(present[:slices])])
        wanted = share * sums[-1]
        passed = np.flatnonzero((sums[:-1] < wanted) & (sums[1:] >= wanted))
        at = int(passed[len(passed) // 2]) if passed.size else 0
        part = (wanted - sums[at]) / present[at] if present[at] > 0 else 0.5
        value = low[at] + part * (high[at] - low[at])
        value = float(value if self.column.kind is Kind.REAL else round(value))
        if not there.size:
            return value, (float(low[at]), float(high[at]))
        return value, (float(low[there[0]]), float(high[there[-1]]))


def fieller(a: Any, b: Any, var_a: Any, cov: Any, var_b: Any, z: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the interval of a ratio of Gaussian means; infinite where the denominator is not told apart from 0.

    All t with (a - t b)^2 <= z^2 (var_a - 2 t cov + t^2 var_b).
    """
    lead, middle, last = b**2 - z**2 * var_b, a * b - z**2 * cov, a**2 - z**2 * var_a
    known = (b > 0) & (lead > 0)
    root, by = np.sqrt(np.maximum(middle**2 - lead * last, 0)), np.where(known, lead, 1.0)
    return np.where(known, (middle - root) / by, -math.inf), np.where(known, (middle + root) / by, math.inf)


def _interval(value: Any, low: Any, high: Any, least: float, most: float) -> Figure:
    """Cut to what is possible, and widened to the estimate."""
    # An estimate far outside leaves no interval inside; a point would pass for certainty, so half the width stays.
    half = (high - low) / 2
    low, high = np.where(low > most, most - half, low), np.where(high < least, least + half, high)
    value = np.clip(value, least, most)
    return Figure(value, np.minimum(np.clip(low, least, most), value), np.maximum(np.clip(high, least, most), value))


def _one(value: float, interval: tuple[float, float], least: float, most: float) -> Figure:
    return Figure(*map(float, _interval(value, *interval, least, most)))


# --- counts that can be ---------------------------------------------------------------------


def on_simplex(values: Float[np.ndarray, "*row level"], total: Any) -> Float[np.ndarray, "*row level"]:
    """The nearest values, in L2, that are not negative and add up to `total` along the last axis.

    >>> on_simplex(np.array([3.0, 1.0, -1.0]), 2.0).tolist()
    [2.0, 0.0, 0.0]
    """
    ordered = -np.sort(-values, axis=-1)
    excess = (np.cumsum(ordered, axis=-1) - np.asarray(total)[..., None]) / np.arange(1, values.shape[-1] + 1)
    kept = np.maximum((ordered > excess).sum(axis=-1), 1)
    return np.maximum(values - np.take_along_axis(excess, kept[..., None] - 1, axis=-1), 0)


def _with_margins(
    counts: Float[np.ndarray, "a b"], rows: Float[np.ndarray, " a"], columns: Float[np.ndarray, " b"]
) -> Float[np.ndarray, "a b"]:
    """The nearest counts that are not negative and have these margins.

    Dykstra's projections onto the tables with the rows' sums and onto those with the columns', until both nearly hold; what
    is left is moved so that they do, exactly but for rounding (Altschuler, Weed and Rigollet 2017, Algorithm 2).
    """
    table, by_rows, by_columns = counts, np.zeros_like(counts), np.zeros_like(counts)
    for _ in range(_ROUNDS):
        first = on_simplex(table + by_rows, rows)
        by_rows = table + by_rows - first
        table = on_simplex((first + by_columns).T, columns).T
        by_columns = first + by_columns - table
        if np.abs(table.sum(axis=1) - rows).max() <= _PRECISION * max(1.0, rows.sum()):
            break
    table = table * np.minimum(1, rows / np.maximum(table.sum(axis=1), 1e-300))[:, None]
    table = table * np.minimum(1, columns / np.maximum(table.sum(axis=0), 1e-300))
    left, missing = rows - table.sum(axis=1), columns - table.sum(axis=0)
    return table + np.outer(left, missing) / left.sum() if left.sum() > 0 else table


# --- for people -------------------------------------------------------------------------------


def _words(figure: Figure, show: Any, unit: str = "") -> str:
    value, low, high = map(show, figure)
    return f"{value}{unit and f' {unit}'} ({low} to {high})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def shown(column: Column, value: float) -> str:
    """A value of a column with bounds: dates as such.

    >>> shown(Column(name="age", kind=Kind.REAL, bounds=(0, 99)), 38.58164)
    '38.58'
    """
    if column.kind is Kind.DATE:
        return str(EPOCH + datetime.timedelta(days=round(value)))
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _column_text(name: str, found: ColumnFigures) -> str:
    column, missing = found.column, found.column.may_be_missing
    heading = f"{name} ({column.kind}, {column.rule()})" if column.kind.has_bounds else f"{name} ({column.kind})"
    levels = list(zip(found.labels, zip(*found.counts, strict=True), zip(*found.shares, strict=True), strict=True))
    rows = []
    if found.mean is not None and found.sd is not None:
        show, unit = functools.partial(shown, column), column.unit
        days = column.kind is Kind.DATE
        spread = _words(found.sd, "{:.4g}".format, "days") if days else _words(found.sd, show, unit)
        rows += [["mean", _words(found.mean, show, unit)], ["standard deviation", spread]]
        rows += [[f"{100 * share:g} % quantile", _words(x, show, unit)] for share, x in found.quantiles.items()]
        levels = levels[-1:] if missing else []
    for label, counts, shares in levels:
        count = _words(Figure(*counts), "{:,.0f}".format)
        rows.append([label, count, _words(Figure(*shares), _percent, "%")])
    return f"{heading}\n{_aligned(rows)}"


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    lines = ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
