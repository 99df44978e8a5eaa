"""Description of a table: its plan, its figures from one release, and what is shown of them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import PRNGKeyArray

from discreet._jax import in_own_settings
from discreet._validate import LEVEL, probability
from discreet.privacy import random
from discreet.privacy.accounting import Relation, upper
from discreet.privacy.ledger import Ledger
from discreet.privacy.released import keeping
from discreet.privacy.report import Statement
from discreet.tabular.marginals._crossed import crossed, keys_of, name_of
from discreet.tabular.marginals._estimates import LeastSquares, interval, persons_of
from discreet.tabular.marginals._figures import ColumnFigures, Figure, GroupFigures, PairFigures
from discreet.tabular.marginals._plan import MOST_WEIGHT, MarginalsPlan, Table
from discreet.tabular.marginals._programs import PARTS
from discreet.tabular.marginals._release import private_marginals
from discreet.tabular.marginals._result import Marginals, release_of
from discreet.tabular.marginals._tails import z_of
from discreet.tabular.marginals._words import column_in_words, numbers_in_words, tables_of
from discreet.tabular.models import Levels
from discreet.tabular.tables import Kind, Schema

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

FORMAT = "discreet description, version 3"
SLICES = 64
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
COVERS = (
    "Each interval by itself holds the figure of the table that was counted with probability {level:g} or more, over the noise. "
    "It says nothing about a population that the records come from. Standard deviations divide by the number of values; a "
    "quantile is the least value that so large a share does not exceed."
)
FINE_WEIGHT = 1
TABLE_WEIGHT = 2
SUM_WEIGHT = 3
LAPLACE_SUM_WEIGHT = 4
"""Weights of a description. If a figure's variance counts a times, the sum of a / w^2 is least for
w^2 in proportion to sqrt(a): here a mean, which is asked first, counts five times as much as a
share. Laplace noise, for which w^3 is in proportion to a over the L1 norm of what has the weight,
is only taken where it makes shares better; so a mean counts ten times there."""
_WIDTH = 100
_MOST_SLICES = 2**12
"""Of more, in all categories of a key together, each has few records, whose place in a slice the noise hides."""


@dataclasses.dataclass(frozen=True)
class Description:
    """Figures of a table that follow from its noisy counts, which `describe` released; all of them are covered by `statement`.

    The figures agree: no count is negative, the counts of each column add up to the number of
    records, and those of a two-way table to its columns' counts. What intervals hold is in `COVERS`
    and in `intervals`.

    Attributes:
        released: The noisy counts.
        level: Probability with which each interval holds.
        num_records: The number of records; of rows, where a person may have several.
        columns: By name.
        pairs: By the names of both columns.
        groups: One for each category of the columns that were asked for by `by`.
        num_persons: Where a person may have several rows, the number of persons, each counted once.
            All other figures, but those of persons in groups, are then of rows: at most the
            schema's `max_rows` of each person.
        persons_cut: Then the number of persons of whom rows were left out, since they have more.
    """

    released: Marginals
    level: float
    num_records: Figure
    columns: Mapping[str, ColumnFigures]
    pairs: Mapping[tuple[str, str], PairFigures]
    groups: tuple[GroupFigures, ...] = ()
    num_persons: Figure | None = None
    persons_cut: Figure | None = None

    @classmethod
    def of(
        cls,
        released: Marginals,
        *,
        by: Sequence[str | Sequence[str]] | str = (),
        level: float = LEVEL,
        quantiles: Sequence[float] = QUANTILES,
    ) -> Description:
        """Describe a table by counts that were released already; costs nothing.

        Args:
            released: Noisy counts. Three-way tables are used for groups by two columns alone.
            by: Names of columns of categories, or pairs of names: each gives figures of its
                categories, or of those of both, of all columns that were counted with it.
            level: Probability with which each interval holds.
            quantiles: Quantiles to compute, as shares of the values.

        Raises:
            ValueError: A level or share that is none, a column that was not counted, or no one- or
                two-way table was.
        """
        level = probability("level", level, hint="0.9 is the default.")
        shares = [
            probability("a quantile", share, hint="0.5 is the median.") for share in quantiles
        ]
        fit = LeastSquares(released)
        z = z_of(level, laplace=released.plan.laplace)
        total = max(1.0, fit.total)
        spread = z * math.sqrt(fit.variance)
        found = {name: column.figures(total, level, shares) for name, column in fit.columns.items()}
        pairs = {
            (one, other): fit.pair(
                one, other, total, z, found[one].counts.value, found[other].counts.value
            )
            for one, other in fit.pairs
        }
        records = interval(total, fit.total - spread, fit.total + spread, 0.0, math.inf)
        keys = keys_of(by, released.plan.schema)
        groups = [group for key in keys for group in _groups(fit, key, found, pairs, level, shares)]
        shown = {
            names: x for names, x in pairs.items() if not any({*key} <= {*names} for key in keys)
        }
        all_persons = persons_of(released, (), z) or (None, None)
        return cls(
            released, level, Figure(*map(float, records)), found, shown, tuple(groups), *all_persons
        )

    @property
    def statement(self) -> Statement:
        """The privacy statement of the counts."""
        return self.released.statement

    @property
    def intervals(self) -> str:
        """The quantities that the intervals cover, in words."""
        schema = self.released.plan.schema
        steps = [
            f"{column.name} ({column.step:g})"
            for column in schema.columns
            if column.step is not None
        ]
        persons = "" if schema.person is None else " Of each person one row was counted."
        if schema.max_rows > 1:
            persons = (
                f" Of each person at most {schema.max_rows} rows were counted, chosen by a secret order. "
                "All figures are of these rows, except numbers of persons: "
                "a person counts once, and once in each group in which they have such a row."
            )
        moved = f" Values were moved to the nearest step: {', '.join(steps)}." if steps else ""
        weights = "" if schema.weight is None else f" {schema.weight_words()}"
        return f"{COVERS.format(level=self.level)}{persons}{moved}{weights}"

    @property
    def _facts(self) -> dict[str, Any]:
        """All figures, as JSON can hold them."""
        pairs = [
            {"columns": list(names), "counts": x.counts.to_dict(), "shares": x.shares.to_dict()}
            for names, x in self.pairs.items()
        ]
        return {
            "format": FORMAT,
            "level": self.level,
            "intervals": self.intervals,
            "counted": self.released.plan.counted,
            "num_persons": None if self.num_persons is None else self.num_persons.to_dict(),
            "persons_cut": None if self.persons_cut is None else self.persons_cut.to_dict(),
            "num_records": self.num_records.to_dict(),
            "columns": {name: x.to_dict() for name, x in self.columns.items()},
            "pairs": pairs,
            "groups": [group.to_dict() for group in self.groups],
        }

    def to_dict(self) -> dict[str, Any]:
        """All figures and the statement, as JSON can hold them; dates as 1970-01-31."""
        return {**self._facts, "statement": self.statement.to_dict()}

    def to_json(self) -> str:
        """`to_dict` as a text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw the shares of each column's levels, numbers as histograms, and means in groups, with their intervals.

        Args:
            path: File for the picture, whose ending determines its format. None: it is not saved.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        from discreet.methods.plots import GroupMeans, LevelShares, plot_levels

        columns: dict[str, Any] = {}
        for name, x in self.columns.items():
            edges = x.edges
            axis = x.column.unit
            if edges is not None and x.column.kind is Kind.DATE:
                edges = 1970 + edges / 365.2425
                axis = "year"
            columns[name] = LevelShares(x.labels, edges, *x.shares, axis)
        for by, each in itertools.groupby(self.groups, lambda group: group.by):
            groups = list(each)
            for name in groups[0].columns:
                known = [x for x in groups if not x.columns[name].hidden]
                means = [x.columns[name].mean for x in known]
                if None in means or not means:
                    continue
                parts = np.array(means, np.float64).T
                axis = f"mean {self.columns[name].column.unit}".strip()
                if self.columns[name].column.kind is Kind.DATE:
                    parts = 1970 + parts / 365.2425
                    axis = "mean year"
                value, low, high = parts
                labels = [x.label for x in known]
                columns[f"{name} by {by}"] = GroupMeans(labels, value, low, high, axis)
        spent = f"ε = {upper(self.statement.epsilon)} at δ = {self.released.plan.delta:.3g}"
        held = f"Bars: shares; lines: intervals that hold with probability {self.level:g}."
        title = f"{numbers_in_words(self._facts)} {held} {spent}"
        return plot_levels(columns, title=title, path=path)

    def __str__(self) -> str:
        """All but the slices of numbers and large tables, for people."""
        facts = self._facts
        numbers = f"{numbers_in_words(facts)} Intervals hold with probability {self.level:g}."
        parts = [textwrap.fill(numbers, _WIDTH)]
        parts += [column_in_words(name, column) for name, column in facts["columns"].items()]
        parts += map(str, tables_of(facts))
        return "\n\n".join([*parts, textwrap.fill(self.intervals, _WIDTH)]) + "\n"

    def __repr__(self) -> str:
        """Short, without figures of levels."""
        about = f"about {self.num_records.value:,.0f} records, {len(self.columns)} columns, {len(self.pairs)} pairs"
        about += f", {len(self.groups)} groups" if self.groups else ""
        return f"Description({about}, {self.statement.brief})"


def _groups(
    fit: LeastSquares,
    key: Table,
    found: Mapping[str, ColumnFigures],
    pairs: Mapping[Table, PairFigures],
    level: float,
    quantiles: Sequence[float],
) -> list[GroupFigures]:
    """Figures of the records in each category of a column, or of two at once."""
    z = z_of(level, laplace=fit.released.plan.laplace)
    total = max(1.0, fit.total)
    name = name_of(key)
    cells = {names: x.counts.value for names, x in pairs.items()}
    cells |= {names[::-1]: counts.T for names, counts in cells.items()}
    if not {*key} <= {*found} or (len(key) == 2 and key not in cells):
        raise ValueError(
            f"by has {name}, which was not counted: choose among {', '.join([*found, *map(name_of, pairs)])}"
        )
    if len(key) == 1:
        own = found[name]
    else:
        fit = LeastSquares(crossed(fit.released, key))
        own = fit.columns[name].figures(total, level, quantiles, cells[key].ravel())
        for one, other in fit.pairs:
            if other == name:
                pair = fit.pair(one, other, total, z, found[one].counts.value, own.counts.value)
                cells[(one, other)] = pair.counts.value
    persons = persons_of(fit.released, (name,), z) or [None] * len(own.labels)
    groups = []
    for place, label in enumerate(own.labels):
        number = Figure(*(float(part[place]) for part in own.counts))
        columns = {
            each: fit.group(each, name, place).figures(
                number.value, level, quantiles, cells[(each, name)][:, place]
            )
            for each in found
            if (each, name) in cells
        }
        groups.append(GroupFigures(name, label, number, columns, persons[place]))
    return groups


@in_own_settings
def describe(
    table: Any,
    schema: Schema | None = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    pairs: Sequence[Sequence[str]] | str = (),
    by: Sequence[str | Sequence[str]] | str = (),
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

    Guarantee: one release of the counts of each column's levels, of the pairs' cells, and of sums
    of numbers and of squares, is (epsilon, delta)-differentially private under `relation`, for one
    person where the schema names a person column. All figures follow from it. Its noise is Gaussian
    noise or, where few numbers are asked for and intervals of 90 % are then narrower, Laplace noise;
    with a ledger Gaussian noise, which costs less beside further releases.

    Law of the intervals: each by itself holds the figure of the table that was counted with
    probability `level` or more, over the noise; none is about a population. With
    out_of_bounds="clip" this table has clipped values, and with a person column at most the
    schema's `max_rows` rows of each person. Shares, counts and the number of records: the interval
    of the noise, and Fieller's of a ratio, as for a mean. Standard deviations divide by the number
    of values. A quantile (the least value that a share of at least q does not exceed) may lie
    anywhere in its slice or, if slices have 16 values or more, in its part of one: each is then
    counted in 16 parts, too. Values of a column with a step count as the nearest step.

    Persons with several rows: if the schema's `max_rows` is m > 1, counts, means, shares and
    quantiles are of rows, with m times the noise. Persons are counted beside them, each once: all,
    those with more than m rows, and those in each group.

    Args:
        table: Columns by name, or a path to a file, which may be larger than memory: as for
            `private_marginals`. Or what was released already, such as the result of `twins`: its
            description costs nothing more, and takes no schema or budget.
        schema: The public description.
        epsilon: Privacy budget, above 0.
        delta: Privacy budget, well below one over the number of records.
        pairs: Names of columns of each two-way table; or "all". Each one- or two-way table more
            makes the noise of all larger.
        by: Names of columns of categories, or pairs of names, as in [("region", "sex")]. Each gives
            counts, means, standard deviations, quantiles and shares of all other columns in each of
            its categories, or of those of both.
        level: Probability with which each interval holds.
        quantiles: Quantiles to compute, as shares of the values. With none, (), no slice is counted
            in parts, which makes noise 3 % smaller (Laplace noise: 8 to 12 %).
        weights: By name of a column: the weight of its tables. None: 1 for all.
        relation: The neighbouring relation.
        slices: Most slices of a column of numbers.
        ledger: Debited before the release.
        out_of_bounds: "refuse" or "clip".
        rng_key: A key for this call alone. None: one from the operating system.
        person_key: Secret by which the rows of each person are chosen, where it has more than
            `max_rows`; None: a new one.
        non_private_seed: Permit a key made from a seed, for tests.

    Raises:
        TypeError: No schema, epsilon or delta, or a release with one of them. Nothing was released.
        ValueError: An argument is out of range. Nothing was released.
        DataError: The table is not what the schema allows. Nothing was released.
        SpentError: The ledger does not hold the budget. Nothing was released.

    >>> import discreet as dp
    >>> from discreet.tabular.tables import schema_from_bounds
    >>> people = {"age": [20.0, 30.0, 40.0, 50.0] * 5000, "smoker": ["yes", "no", "no", "no"] * 5000}
    >>> found = dp.describe(people, schema_from_bounds("age=0:99,smoker=no|yes"), epsilon=1.0, delta=1e-6)
    >>> 34 < found.columns["age"].mean.low < found.columns["age"].mean.high < 36
    True

    Reference:
        Fieller, Some problems in interval estimation, JRSS B 16, 1954; Hay, Rastogi, Miklau and
        Suciu, Boosting the accuracy of differentially private histograms through consistency, VLDB
        2010.
    """
    known = release_of(
        table, schema=schema, epsilon=epsilon, delta=delta, ledger=ledger, pairs=pairs or None
    )
    if known is not None:
        return Description.of(known, by=by, level=level, quantiles=quantiles)
    if not isinstance(schema, Schema) or epsilon is None or delta is None:
        raise TypeError(
            "describe needs a schema, epsilon and delta. Bounds and categories are public, never taken from the data: "
            "dp.describe(table, dp.tables.schema_from_bounds('age=17:90,smoker=no|yes'), epsilon=0.5, delta=1e-6)"
        )
    probability("level", level, hint="0.9 is the default.")
    for share in quantiles:
        probability("a quantile", share, hint="0.5 is the median.")
    plan = description_plan(
        schema,
        epsilon=epsilon,
        delta=delta,
        pairs=pairs,
        by=by,
        weights=weights,
        relation=relation,
        slices=slices,
        laplace=None if ledger is None else False,
        quantiles=quantiles,
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
    with keeping(released):
        return Description.of(released, by=by, level=level, quantiles=quantiles)


def description_plan(
    schema: Schema,
    *,
    epsilon: float,
    delta: float,
    pairs: Sequence[Sequence[str]] | str = (),
    by: Sequence[str | Sequence[str]] | str = (),
    weights: Mapping[str, int] | None = None,
    relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    slices: int = SLICES,
    laplace: bool | None = None,
    quantiles: Sequence[float] = QUANTILES,
) -> MarginalsPlan:
    """Plan the release that `describe` makes: all columns and sums, these pairs and groups. Arguments and errors as there.

    With `laplace` None the noise is Laplace noise where intervals of 90 % are then narrower, those of
    counts, and more so those of sums; else Gaussian noise, as where no plan with Laplace noise holds
    these weights and so many cells.
    """
    if laplace is None:
        planned = functools.partial(
            description_plan,
            schema,
            epsilon=epsilon,
            delta=delta,
            pairs=pairs,
            by=by,
            weights=weights,
            relation=relation,
            slices=slices,
        )
        kinds = [planned(laplace=False, quantiles=quantiles)]
        # Laplace noise has larger weights, and its grid holds fewer cells.
        with contextlib.suppress(ValueError):
            if (by_laplace := planned(laplace=True, quantiles=quantiles)).drawn:
                kinds.append(by_laplace)
        return min(kinds, key=lambda plan: plan.noise * z_of(LEVEL, laplace=plan.laplace))
    names = [column.name for column in schema.columns]
    chosen: Sequence[Any] = [pairs] if isinstance(pairs, str) else pairs
    if pairs == "all":
        chosen = list(itertools.combinations(names, 2))
    for pair in chosen:
        if isinstance(pair, str) or len(pair) != 2:
            raise ValueError(
                f"pairs has {pair!r}: give pairs of names, as in [('age', 'smoker')], or 'all'"
            )
        if unknown := sorted({*pair} - {*names}):
            raise ValueError(
                f"pairs has {', '.join(unknown)}, which the schema does not describe: choose among {', '.join(names)}"
            )
    keys = keys_of(by, schema)
    sum_weight = LAPLACE_SUM_WEIGHT if laplace else SUM_WEIGHT
    summed = [column.name for column in schema.columns if column.bounds]
    across = [(name, *key) for key, name in itertools.product(keys, names) if name not in key]
    # The pair of a key may be asked for as a pair, too, or be a column by the other one.
    asked = [*((name,) for name in names), *map(tuple, chosen)]
    tables = {frozenset(table): table for table in asked}
    for table in [*across, *keys]:
        tables.setdefault(frozenset(table), table)
    given = dict(weights or {})
    each: dict[Any, int] = {
        table: TABLE_WEIGHT * max(given.get(name, 1) for name in table)
        for table in [*asked, *tables.values()]
    }
    if summed:
        # Numbers of records divide sums. Their noise counts by z^2, about 1/4, and one number
        # serves all summed columns.
        weight = max(TABLE_WEIGHT, round(sum_weight * (len(summed) / 4) ** 0.25))
        divisors = [tables[frozenset(key)] for key in keys] or [()]
        each |= {
            table: weight * max((given.get(name, 1) for name in table), default=1)
            for table in divisors
        }
    sums = (
        [(name, *key) for name in summed for key in keys] if keys else [(name,) for name in summed]
    )
    return MarginalsPlan.calibrate(
        schema,
        epsilon=epsilon,
        delta=delta,
        tables=list(each),
        weights=each | given,
        relation=relation,
        slices=slices,
        sums={own: sum_weight * given.get(own[0], 1) for own in sums},
        persons=_persons(schema, keys),
        laplace=laplace,
        fine={own: FINE_WEIGHT * given.get(own[0], 1) for own in _fine(schema, keys, slices)}
        if len(quantiles)
        else {},
    )


def _fine(schema: Schema, keys: Sequence[Table], slices: int) -> list[Table]:
    """What is counted in parts of slices, for quantiles: columns of which a slice has a value for each part, or more."""
    levels = Levels(schema.without_person(), slices)
    sizes = dict(zip([column.name for column in schema.columns], levels.sizes, strict=True))
    found = []
    for column in schema.columns:
        if column.bounds is None or slices > _MOST_SLICES:
            continue
        unit = 1.0 if column.kind is not Kind.REAL else column.step or 0.0
        if np.diff(levels.edges(column)).max() < PARTS * unit:
            continue
        found += [
            (column.name, *key)
            for key in keys or [()]
            if slices * math.prod(sizes[name] for name in key) <= _MOST_SLICES
        ]
    return found


def _persons(schema: Schema, by: Sequence[Table]) -> dict[Table, int]:
    """Weights of counts of persons: under Gaussian noise each table of them costs as much as one of rows, or less."""
    if schema.max_rows == 1:
        return {}
    levels = {
        column.name: len(column.categories) + column.may_be_missing for column in schema.columns
    }
    most = TABLE_WEIGHT * schema.max_rows
    each: dict[Table, float] = {(): float(most)}
    for key in by:
        each[key] = most / math.sqrt(min(schema.max_rows, math.prod(levels[name] for name in key)))
    return {own: min(MOST_WEIGHT, int(weight)) for own, weight in each.items()}
