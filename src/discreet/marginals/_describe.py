"""Description of a table: figures that follow from noisy counts, agree with one another, and have intervals.

*Model.* Let c_i be the counts of column i over its k_i levels, T_ij those of a pair, N the number of records. The released
counts are these plus independent Gaussian noise of known standard deviation; 1'c_i = N, and the margins of T_ij are c_i and c_j.

*Least squares.* Without the interaction of T_ij, a pair measures c_i with variance k_j s_ij^2 a level, and N only once. So the
best linear unbiased estimate is in closed form: c_i has precision p_i = 1/s_i^2 + sum_j 1/(k_j s_ij^2) in every direction that
keeps its total, N has variance V = 1 / sum_tables 1/(cells s^2), and both are independent. A linear figure a'c_i thus has
variance |a - mean(a)|^2 / p_i + mean(a)^2 V.

*Sums.* With z a column's values mapped to [-1, 1], its sums of z and of 1 - z^2 are released, too, with independent noise. So the
number of values b, S = sum of z and G = sum of (1 - z^2) are jointly normal. Where each slice is one value, S and G are also
linear figures of the counts, and both estimates are combined by their precisions. Where slices are wider, the counts do not
say where in them the values lie, and S and G stand alone. The mean is S / b. The sum of (z - m)^2 is (1 + m^2) b - G - 2 m S for
any m: the variance is that over b, at the mean. Sums by category are added up to those of the column, and those of a category
share in what other sums say of the total, again by precision.

*Groups.* Row l of the pair of a column with k levels and one with L, (interaction + N_l / k + (c - mean(c)) / L), is the count
of the column within that category. Its parts are independent, so it has precision 1 / (s^2 (1 - 1/L) + 1 / (p L^2)) in directions
that keep its total, which is N_l: all figures of a column hold for a group.

*Intervals* are of this estimate, which is exactly Gaussian. A ratio t = a / b has Fieller's interval, all t for which
a - t b = 0 is not rejected, which is exact as well. A quantile is in slice b if the shares below b and below b + 1 say so: slices
for which neither is rejected; its place within a slice is unknown, so the interval ends with slices. For the standard
deviation see `_Column.deviation`.

What the schema calls impossible is not used: no table is refused for rows that have it, and intervals are of the table as it is.

*Counts and shares* are the projection of the estimate onto tables without negative counts whose totals and margins agree:
each column onto the simplex of N, then each pair onto the tables with its columns' counts. Quantiles follow from the estimate
before it is projected: what noise adds to empty slices stays there and what it takes is cut, so the projection draws them to
those of the bounds. Intervals are cut to what is possible, and widened to the figure where it is outside, both of which leave
their coverage no lower. A mean or standard deviation that is impossible becomes the middle of what is left of its interval.
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
from discreet.tables import EPOCH, Column, Kind, Schema, to_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

FORMAT = "discreet description, version 1"
SLICES, QUANTILES = 64, (0.05, 0.25, 0.5, 0.75, 0.95)
COVERS = (
    "Each interval by itself holds the figure of the table that was counted with probability {level:g} or more, over the noise. "
    "It says nothing about a population that the records come from. Standard deviations divide by the number of values; a "
    "quantile is the least value that so large a share does not exceed."
)
_EXCESS = 1.012
"""The noise on the grid of integers is up to so many times as large as planned."""
_GRID = 65
_SHARE_OF_MEAN = 0.1
"""Share of a standard deviation's error that is for the mean, of whose error it depends by the square alone."""
TABLE_WEIGHT, SUM_WEIGHT = 2, 3
"""Weights of a description. If a figure's variance counts a times, the sum of a / w^2 is least for w^2 in proportion to sqrt(a):
here a mean, which is asked first, counts five times as much as a share."""
_MOST_STEPS = 2**20
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
class GroupFigures:
    """The released figures of the records in one category of a column.

    Attributes:
        by: Name of that column.
        label: The category.
        num_records: The number of records in it.
        columns: Figures of the other columns, by name; shares are of the records in the category.
    """

    by: str
    label: str
    num_records: Figure
    columns: Mapping[str, ColumnFigures]

    def to_dict(self) -> dict[str, Any]:
        """Convert to values for JSON."""
        columns = {name: x.to_dict() for name, x in self.columns.items()}
        return {"by": self.by, "label": self.label, "num_records": self.num_records.to_dict(), "columns": columns}


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
        groups: One for each category of the columns that were asked for by `by`.
    """

    released: Marginals
    level: float
    num_records: Figure
    columns: Mapping[str, ColumnFigures]
    pairs: Mapping[tuple[str, str], PairFigures]
    groups: tuple[GroupFigures, ...] = ()

    @classmethod
    def of(
        cls,
        released: Marginals,
        *,
        by: Sequence[str] | str = (),
        level: float = LEVEL,
        quantiles: Sequence[float] = QUANTILES,
    ) -> Description:
        """Describe a table by counts that were released already; costs nothing.

        Args:
            released: Noisy counts. Three-way tables are not used.
            by: Names of columns of categories: each gives figures of its categories of all columns that were counted with it.
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
        groups = []
        for key in [by] if isinstance(by, str) else by:
            # A pair by a column is shown as its groups.
            counts = {one: x.counts.value for (one, other), x in pairs.items() if other == key}
            counts |= {other: x.counts.value.T for (one, other), x in pairs.items() if one == key}
            own = found[key]
            for place, label in enumerate(own.labels):
                number = Figure(*(float(part[place]) for part in own.counts))
                columns = {
                    name: fit.group(name, key, place).figures(number.value, level, shares, counts[name][:, place])
                    for name in found
                    if name in counts
                }
                groups.append(GroupFigures(key, label, number, columns))
        keys = {group.by for group in groups}
        shown = {names: x for names, x in pairs.items() if not keys & {*names}}
        return cls(released, level, Figure(*map(float, records)), found, shown, tuple(groups))

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
            "groups": [group.to_dict() for group in self.groups],
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
        for _, groups in itertools.groupby(self.groups, lambda group: group.by):
            parts += _groups_text(list(groups))
        return "\n\n".join([*parts, textwrap.fill(self.intervals, _WIDTH)]) + "\n"

    def __repr__(self) -> str:
        """Short, without figures of levels."""
        about = f"about {self.num_records.value:,.0f} records, {len(self.columns)} columns, {len(self.pairs)} pairs"
        about += f", {len(self.groups)} groups" if self.groups else ""
        return f"Description({about}, {self.statement.brief})"


def describe(
    table: Any,
    schema: Schema | None = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    pairs: Sequence[Sequence[str]] | str = (),
    by: Sequence[str] | str = (),
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

    Guarantee: one Gaussian release of the counts of each column's levels, of the pairs' cells, and of sums of numbers and of
    squares, is (epsilon, delta)-differentially private under `relation`, for one person where the schema names a person column.
    All figures follow from it.

    Law of the intervals: each by itself holds the figure of the table that was counted with probability `level` or more, over the
    noise; none is about a population. With out_of_bounds="clip" this table has clipped values, and with a person column
    one row of each person, whatever the schema's `max_rows`. Shares, counts and the number of records: the interval of a
    Gaussian, and Fieller's of a ratio, as for a mean. Standard deviations divide by the number of values. A quantile (the
    least value that a share of at least q does not exceed) may lie anywhere in its slice, so that more slices make its interval
    narrower until noise outweighs them. Values of a column with a step count as the nearest step.

    Args:
        table: Columns by name, or a path to a file, which may be larger than memory: as for `private_marginals`.
        schema: The public description.
        epsilon: Privacy budget, above 0.
        delta: Privacy budget, well below one over the number of records.
        pairs: Names of columns of each two-way table; or "all". Each one- or two-way table more makes the noise of all larger.
        by: Names of columns of categories. Each gives counts, means, standard deviations, quantiles and shares of all other
            columns in each of its categories.
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
    >>> 34 < found.columns["age"].mean.low < found.columns["age"].mean.high < 36
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
        schema, epsilon=epsilon, delta=delta, pairs=pairs, by=by, weights=weights, relation=relation, slices=slices
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
    return Description.of(released, by=by, level=level, quantiles=quantiles)


def description_plan(
    schema: Schema,
    *,
    epsilon: float,
    delta: float,
    pairs: Sequence[Sequence[str]] | str = (),
    by: Sequence[str] | str = (),
    weights: Mapping[str, int] | None = None,
    relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    slices: int = SLICES,
) -> MarginalsPlan:
    """Plan the release that `describe` makes: all columns and sums, these pairs and groups. Arguments and errors as there."""
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
    keys = [by] if isinstance(by, str) else list(by)
    summed = [column.name for column in schema.columns if column.bounds]
    if wrong := [key for key in keys if key not in names or key in summed or keys.count(key) > 1]:
        raise ValueError(
            f"by has {', '.join(wrong)}: give columns of categories, each once; the schema has "
            f"{', '.join(name for name in names if name not in summed) or 'none'}"
        )
    known = {frozenset(pair) for pair in chosen}
    across = []
    for key, name in itertools.product(keys, names):
        if name != key and frozenset((name, key)) not in known:
            known.add(frozenset((name, key)))
            across.append((name, key))
    given = dict(weights or {})
    each: dict[Any, int] = {
        own: TABLE_WEIGHT * max(given.get(name, 1) for name in own)
        for own in [*((name,) for name in names), *map(tuple, chosen), *across]
    }
    if summed:
        # Numbers of records divide sums. Their noise counts by z^2, about 1/4, and one number serves all summed columns.
        weight = max(TABLE_WEIGHT, round(SUM_WEIGHT * (len(summed) / 4) ** 0.25))
        each |= {(key,): weight * given.get(key, 1) for key in keys} if keys else {(): weight}
    sums = [(name, key) for name in summed for key in keys] if keys else [(name,) for name in summed]
    return MarginalsPlan.calibrate(
        schema,
        epsilon=epsilon,
        delta=delta,
        tables=list(each),
        weights=each | given,
        relation=relation,
        slices=slices,
        sums={own: SUM_WEIGHT * given.get(own[0], 1) for own in sums},
    )


# --- least squares --------------------------------------------------------------------------


class _LeastSquares:
    """The estimate of all counts, with what its variance is made of; see the head of this file."""

    def __init__(self, released: Marginals) -> None:
        plan = released.plan
        self.released, levels = released, plan.levels
        sizes = dict(zip((column.name for column in plan.schema.columns), levels.sizes, strict=True))
        used = [table for table in plan.tables if len(table) < 3]
        if not any(used):
            raise ValueError("only three-way tables were counted: a description needs those of columns or of pairs")
        self.noise = {table: plan.stddev(table) * _EXCESS for table in used}
        self.pairs = [table for table in used if len(table) == 2]
        weighed = [(released.table(*table), self.noise[table] ** -2) for table in used]
        precision = sum(weight / counts.size for counts, weight in weighed)
        self.total = float(sum(counts.sum() * weight / counts.size for counts, weight in weighed) / precision)
        self.variance = float(1 / precision)
        self.columns: dict[str, _Column] = {}
        self.sums = sums_of(released)
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
                labels, sums = tuple(levels.labels(column)), self.sums.get((column.name,))
                self.columns[column.name] = _Column(column, labels, edges, counts, precision, self.variance, sums)

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

    def group(self, name: str, by: str, level: int) -> _Column:
        """The counts of a column within one level of another; see the head of this file."""
        noisy, own, other = self.released.table(name, by), self.columns[name], self.columns[by]
        size, groups = noisy.shape
        interaction = noisy[:, level] - noisy.mean(axis=1)
        interaction -= interaction.mean()
        counts = interaction + (own.counts - own.counts.mean()) / groups + other.counts[level] / size
        table = next(table for table in self.pairs if {*table} == {name, by})
        variance = self.noise[table] ** 2 * (1 - 1 / groups) + 1 / (own.precision * groups**2)
        sums = self.sums.get((name, by))
        return dataclasses.replace(
            own,
            counts=counts,
            precision=1 / variance,
            variance=float(other.spread[0]),
            sums=None if sums is None else _Sums(sums.values[:, level], sums.variance),
        )


class _Sums(NamedTuple):
    """Sums of z and of 1 - z^2: estimates, for each category if there are any, and their variance."""

    values: Float[np.ndarray, "2 *category"]
    variance: float


def sums_of(released: Marginals) -> dict[tuple[str, ...], _Sums]:
    """The estimates of all sums that were released, and of each summed column as a whole."""
    plan = released.plan
    noisy = {own: released.sums_of(place) for place, own in enumerate(plan.sums)}
    variances = {
        own: (plan.noise * _EXCESS / weight) ** 2 for own, weight in zip(plan.sums, plan.sum_weights, strict=True)
    }
    found = {}
    for column in plan.summed:
        each = [own for own in plan.sums if own[0] == column.name]
        precisions = np.array([1 / (variances[own] * noisy[own].shape[1]) for own in each])
        variance = 1 / precisions.sum()
        total = variance * sum(precision * noisy[own].sum(1) for own, precision in zip(each, precisions, strict=True))
        for own in each:
            cells = noisy[own].shape[1]
            values = noisy[own] + ((total - noisy[own].sum(1)) / cells)[:, None]
            found[own] = _Sums(values, variances[own] * (1 - 1 / cells) + variance / cells**2)
        found[(column.name,)] = _Sums(total, variance)
    return found


@dataclasses.dataclass(frozen=True)
class _Column:
    """The estimate of one column's counts; `variance` is that of the number of records."""

    column: Column
    labels: tuple[str, ...]
    edges: Float[np.ndarray, " slice+1"] | None
    counts: Float[np.ndarray, " level"]
    precision: float
    variance: float
    sums: _Sums | None = None
    gain: tuple[np.ndarray, np.ndarray] | None = None
    """Of counts that were moved by the sums: their covariance before with the sums, and the inverse of the sums' variance."""

    def covariance(self, a: np.ndarray, b: np.ndarray) -> Any:
        """The covariance of the figures a'c and b'c, along the last axis."""
        means = a.mean(axis=-1), b.mean(axis=-1)
        centred = (a - means[0][..., None]) * (b - means[1][..., None])
        found = centred.sum(axis=-1) / self.precision + means[0] * means[1] * self.variance
        if self.gain is None:
            return found
        return found - np.einsum("...i,ij,...j", a @ self.gain[0], self.gain[1], b @ self.gain[0])

    @property
    def spread(self) -> tuple[Any, Any, Any]:
        """Variances of the counts, their covariances with their sum, and its variance."""
        size = len(self.counts)
        own, with_sum, of_sum = (
            (1 - 1 / size) / self.precision + self.variance / size**2,
            self.variance / size,
            self.variance,
        )
        if self.gain is None:
            return own, with_sum, of_sum
        before, inverse = self.gain
        sums = before.sum(axis=0)
        own = own - np.einsum("ki,ij,kj->k", before, inverse, before)
        return own, with_sum - before @ inverse @ sums, of_sum - sums @ inverse @ sums

    @property
    def moved(self) -> _Column:
        """The counts with what the sums say of them, if each slice is one value."""
        if self.sums is None or not self.exact:
            return self
        known, size = self.scaled, len(self.counts)
        means = known.mean(axis=-1)
        before = ((known - means[:, None]) / self.precision + means[:, None] * self.variance / size).T
        inverse = np.linalg.inv(known @ before + self.sums.variance * np.eye(2))
        counts = self.counts + before @ inverse @ (self.sums.values - known @ self.counts)
        return dataclasses.replace(self, counts=counts, gain=(before, inverse))

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
        low, high = self.edges[:-1].copy(), self.edges[1:] - (self.column.kind is not Kind.REAL)
        step, bounds = self.column.step, self.column.limits
        if step is not None and (bounds[1] - bounds[0]) / step < _MOST_STEPS:
            values = to_steps(self.column, np.arange(bounds[0], bounds[1] + step, step))
            place = np.clip(np.searchsorted(self.edges, values, side="right") - 1, 0, len(low) - 1)
            low = high = (low + high) / 2  # of slices without a value
            low, high = low.copy(), high.copy()
            low[place[::-1]], high[place] = values[::-1], values
        rest = np.zeros(len(self.counts) - len(low))
        return np.concatenate([low, rest]), np.concatenate([high, rest])

    @functools.cached_property
    def exact(self) -> bool:
        """True if each slice is one value."""
        return bool((self.ends[0] == self.ends[1]).all())

    @functools.cached_property
    def scaled(self) -> Float[np.ndarray, "2 level"]:
        """Values of z and 1 - z^2 of each level's value, if each slice is one; 0 for missing cells."""
        low, high = self.column.limits
        z = (2 * self.ends[0] - low - high) / (high - low) * self.present
        return np.stack([z, self.present - np.square(z)])

    def figures(
        self, total: float, level: float, quantiles: Sequence[float], counts: np.ndarray | None = None
    ) -> ColumnFigures:
        """All figures of the column; `counts` as they agree with others, None: the nearest to the estimates."""
        z, found = NormalDist().inv_cdf((1 + level) / 2), self.moved
        own, with_sum, of_sum = found.spread
        spread = z * np.sqrt(own)
        counts = on_simplex(found.counts, total) if counts is None else counts
        share = fieller(found.counts, found.counts.sum(), own, with_sum, of_sum, z)
        return ColumnFigures(
            self.column,
            self.labels,
            _interval(counts, found.counts - spread, found.counts + spread, 0.0, math.inf),
            _interval(counts / max(1.0, total), *share, 0.0, 1.0),
            self.edges,
            **({} if self.edges is None else found.of_numbers(level, quantiles)),
        )

    def of_numbers(self, level: float, quantiles: Sequence[float]) -> dict[str, Any]:
        """Mean, standard deviation and quantiles."""
        z, (low, high) = NormalDist().inv_cdf((1 + level) / 2), self.column.limits
        present, b = self.counts * self.present, self.present
        if present.sum() <= z * math.sqrt(self.covariance(b, b)):  # no more values than the noise hides
            present = self.counts * b if (self.counts * b).sum() > 0 else b
        found: dict[str, Any] = {"quantiles": {}}
        for share in quantiles:
            value, interval = self.quantile(share, present, z)
            found["quantiles"][share] = Figure(*map(float, _interval(value, *interval, low, high)))
        if self.sums is None:
            return found
        (number, total, gap), covariance = self.moments
        half, middle = (high - low) / 2, (high + low) / 2
        known = number > z * math.sqrt(covariance[0, 0])
        mean = float(np.clip(total / number, -1, 1)) if known else math.nan
        off = np.array([-mean, 1, 0]) / number
        # The square of a noisy mean is larger than that of the mean by its variance, on average.
        variance = 1 - gap / number - mean**2 + off @ covariance @ off
        unsure = np.array([1 + mean**2 - variance, -2 * mean, -1]) / number
        # Noise may leave a variance near or below 0: then a part of what it hides is as good a guess.
        sd = math.sqrt(min(1.0, max(variance, math.sqrt(unsure @ covariance @ unsure) / 4))) if known else math.nan
        ends, deviations = self.mean(z), self.deviation(level)
        found["mean"] = _inside(middle + half * mean, (middle + half * ends[0], middle + half * ends[1]), low, high)
        found["sd"] = _inside(half * sd, (half * deviations[0], half * deviations[1]), 0.0, half)
        return found

    @functools.cached_property
    def moments(self) -> tuple[Float[np.ndarray, " 3"], Float[np.ndarray, "3 3"]]:
        """The number of values and the sums of z and of 1 - z^2, with their covariance."""
        assert self.sums is not None
        if self.gain is not None:
            known = np.stack([self.present, *self.scaled])
            return known @ self.counts, self.covariance(known[:, None], known)
        number, variance = self.present @ self.counts, self.covariance(self.present, self.present)
        return np.array([number, *self.sums.values]), np.diag([variance, self.sums.variance, self.sums.variance])

    def mean(self, z: float) -> tuple[float, float]:
        """Fieller's interval of the mean of z."""
        (number, total, _), covariance = self.moments
        low, high = fieller(total, number, covariance[1, 1], covariance[0, 1], covariance[0, 0], z)
        return float(low), float(high)

    def deviation(self, level: float) -> tuple[float, float]:
        """Interval of the standard deviation of z.

        At any m, V(m), the mean of (z - m)^2, is a ratio of jointly normal figures with Fieller's interval, and is the variance
        at m = mean. A small part of the error goes to the mean, and the rest to V: the union of V's intervals at all m of the
        mean's interval holds the variance. It is hardly wider than that at the mean, since V(m) is least there.
        """
        miss = 1 - level
        first, last = np.clip(self.mean(NormalDist().inv_cdf(1 - _SHARE_OF_MEAN * miss / 2)), -1, 1)
        m = np.linspace(first, last, _GRID)
        known, covariance = self.moments
        weights = np.stack([1 + m**2, -2 * m, np.full_like(m, -1)], axis=-1)
        variances = np.einsum("mi,ij,mj->m", weights, covariance, weights)
        z = NormalDist().inv_cdf(1 - (1 - _SHARE_OF_MEAN) * miss / 2)
        low, high = fieller(weights @ known, known[0], variances, weights @ covariance[0], covariance[0, 0], z)
        low, high = _cut(low.min(), high.max(), 0.0, 1.0)
        return math.sqrt(low), math.sqrt(high)

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


def _cut(low: Any, high: Any, least: float, most: float) -> tuple[Any, Any]:
    """The part of an interval that is possible."""
    # An estimate far outside leaves no interval inside; a point would pass for certainty, so half the width stays.
    half = (high - low) / 2
    low, high = np.where(low > most, most - half, low), np.where(high < least, least + half, high)
    return np.clip(low, least, most), np.clip(high, least, most)


def _interval(value: Any, low: Any, high: Any, least: float, most: float) -> Figure:
    """Cut to what is possible, and widened to the estimate."""
    low, high = _cut(low, high, least, most)
    value = np.clip(value, least, most)
    return Figure(value, np.minimum(low, value), np.maximum(high, value))


def _inside(value: float, interval: tuple[float, float], least: float, most: float) -> Figure:
    """Cut to what is possible; an estimate outside of that is its middle."""
    low, high = (float(end) for end in _cut(*interval, least, most))
    return Figure(float(value) if low < value < high else (low + high) / 2, low, high)


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


def figures_of_numbers(found: ColumnFigures) -> list[tuple[str, str]]:
    """Names of a column's mean, standard deviation and quantiles, and each with its interval in words."""
    show, unit, rows = functools.partial(shown, found.column), found.column.unit, []
    if found.mean is not None and found.sd is not None:
        days = found.column.kind is Kind.DATE
        spread = _words(found.sd, "{:.4g}".format, "days") if days else _words(found.sd, show, unit)
        rows += [("mean", _words(found.mean, show, unit)), ("standard deviation", spread)]
    return rows + [(f"{100 * share:g} % quantile", _words(x, show, unit)) for share, x in found.quantiles.items()]


def _groups_text(groups: Sequence[GroupFigures]) -> list[str]:
    """A table for each column, with a column for each category."""
    by, across = groups[0].by, [group.label for group in groups]
    rows = [["", *across], ["number", *(_words(group.num_records, "{:,.0f}".format) for group in groups)]]
    parts = [f"By {by}\n{_aligned(rows)}"]
    for name in groups[0].columns:
        figures = []
        for group in groups:
            found = group.columns[name]
            lines = figures_of_numbers(found)
            shares = zip(found.labels, zip(*found.shares, strict=True), strict=True)
            kept = list(shares)[len(found.labels) - found.column.may_be_missing :] if lines else shares
            figures.append([*lines, *((label, _words(Figure(*x), _percent, "%")) for label, x in kept)])
        rows = [["", *across], *([lines[0][0], *(words for _, words in lines)] for lines in zip(*figures, strict=True))]
        parts.append(f"{name} by {by}\n{_aligned(rows)}")
    return parts


def _column_text(name: str, found: ColumnFigures) -> str:
    column, missing = found.column, found.column.may_be_missing
    heading = f"{name} ({column.kind}, {column.rule()})" if column.kind.has_bounds else f"{name} ({column.kind})"
    levels = list(zip(found.labels, zip(*found.counts, strict=True), zip(*found.shares, strict=True), strict=True))
    rows = []
    if column.kind.has_bounds:
        rows += [[name, words] for name, words in figures_of_numbers(found)]
        levels = levels[-1:] if missing else []
    for label, counts, shares in levels:
        count = _words(Figure(*counts), "{:,.0f}".format)
        rows.append([label, count, _words(Figure(*shares), _percent, "%")])
    return f"{heading}\n{_aligned(rows)}"


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    lines = ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
