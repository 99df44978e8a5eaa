"""Figures from noisy counts: their intervals hold as often as they say, they agree, and what breaks that is seen."""

import dataclasses
import datetime
import importlib
import itertools
import json
import pathlib
import shlex
from statistics import NormalDist

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.csv
import pytest
from tests.marginals.invented import exact, noisy
from typer.testing import CliRunner

import discreet as dp
from discreet.interfaces.cli import _describe as describe_command, _run, _twin
from discreet.interfaces.cli._app import app
from discreet.interfaces.page._description import description_of
from discreet.tabular.marginals import (
    Description,
    Marginals,
    MarginalsPlan,
    _describe as describe_module,
    _estimates as estimates,
    _projection as projection,
    description_plan,
    fit_twins,
)
from discreet.tabular.tables import Column, Kind, Missing, Schema, schema_to_toml

REPEATS = 400
SHARES = (0.1, 0.5, 0.9)


def column(name, *categories, **options):
    return Column(
        name=name,
        kind=Kind.BINARY if len(categories) == 2 else Kind.CATEGORICAL,
        categories=categories,
        **options,
    )


SCHEMA = Schema(
    columns=(
        Column(name="low", kind=Kind.REAL, bounds=(0.0, 80.0)),
        Column(name="high", kind=Kind.REAL, bounds=(0.0, 80.0)),
        Column(name="visits", kind=Kind.COUNT, bounds=(0, 7), missing=Missing.INDICATOR),
        column("smoker", "no", "yes"),
        column("region", "a", "b", "c", "d", missing=Missing.INDICATOR),
    )
)
PAIRS = [("smoker", "region"), ("visits", "smoker")]


def people(rows: int = 2_000) -> pyarrow.Table:
    """Values of `low` are at the lower ends of the slices, those of `high` just below the upper ones: the worst for a mean."""
    rng = np.random.default_rng(0)
    slices = rng.binomial(7, 0.4, (2, rows))
    region = rng.choice(["a", "b", "c", "d"], rows, p=[0.6, 0.3, 0.09, 0.01])
    columns = {"low": 10.0 * slices[0], "high": np.nextafter(10.0 * slices[1] + 10, 0)}
    columns["visits"] = pyarrow.array(rng.binomial(7, 0.3, rows), mask=rng.random(rows) < 0.2)
    columns["smoker"] = np.where(rng.random(rows) < 0.3, "yes", "no")
    columns["region"] = pyarrow.array(region, mask=rng.random(rows) < 0.05)
    return pyarrow.table(columns)


def truth(plan: MarginalsPlan, table, by: tuple[str, ...] = ()) -> dict:
    """The table's own figures, by the name that `figures` gives them."""
    released, found = exact(plan, table), {"records": len(table)}
    for own in filter(None, plan.tables):
        found[("counts", *own)] = released.table(*own)
        found[("shares", *own)] = released.table(*own) / len(table)
    for name in plan.schema.columns:
        found |= of_numbers(name, table)
    labels = {column.name: plan.levels.labels(column) for column in plan.schema.columns}
    for key in by:
        names = (key,) if isinstance(key, str) else key
        for values in itertools.product(*(labels[name] for name in names)):
            rows = table
            for name, value in zip(names, values, strict=True):
                same = pyarrow.compute.equal(rows[name], value)
                rows = rows.filter(pyarrow.compute.fill_null(same, value == "missing"))
            of = " × ".join(names), ", ".join(values)
            found[("counts", *of)] = len(rows)
            for each in plan.schema.columns:
                if each.name not in names:
                    cells = exact(plan, rows).table(each.name)
                    found[("shares", each.name, *of)] = cells / max(1, len(rows))
                    found |= {(*name, *of): value for name, value in of_numbers(each, rows).items()}
    return found


def of_numbers(own: Column, table) -> dict:
    if not own.kind.has_bounds:
        return {}
    values = table[own.name].drop_null().to_numpy()
    found = {
        ("quantile", own.name, share): np.quantile(values, share, method="inverted_cdf")
        for share in SHARES
    }
    return found | {("mean", own.name): values.mean(), ("sd", own.name): values.std()}


def figures(found: Description) -> dict:
    every: dict = {"records": found.num_records}
    for names, x in found.pairs.items():
        every |= {("counts", *names): x.counts, ("shares", *names): x.shares}
    parts = [
        ((), found.columns),
        *(((group.by, group.label), group.columns) for group in found.groups),
    ]
    for group in found.groups:
        every[("counts", group.by, group.label)] = group.num_records
    for of, columns in parts:
        for name, x in columns.items():
            every |= {("counts", name): x.counts} if not of else {}
            every[("shares", name, *of)] = x.shares
            if x.mean is not None:
                every |= {("mean", name, *of): x.mean, ("sd", name, *of): x.sd}
            every |= {
                ("quantile", name, share, *of): figure for share, figure in x.quantiles.items()
            }
    return every


def coverage(
    plan: MarginalsPlan, table, *, level=0.9, repeats: int = REPEATS, noise: float = 1.0, by=()
) -> dict:
    """Compute how often each figure's interval holds the table's own figure, for noise drawn many times over the same counts."""
    rng, released, true = np.random.default_rng(1), exact(plan, table), truth(plan, table, by)
    held = {}
    for _ in range(repeats):
        drawn = noisy(released, rng, noise)
        for name, x in figures(Description.of(drawn, by=by, level=level, quantiles=SHARES)).items():
            inside = (x.low <= true[name] + 1e-9) & (true[name] - 1e-9 <= x.high)
            held[name] = held.get(name, 0) + inside
    return {name: np.asarray(times) / repeats for name, times in held.items()}


def plan_for(**options) -> MarginalsPlan:
    given = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "pairs": PAIRS,
        "slices": 8,
        "weights": {"region": 2},
    } | options
    return description_plan(SCHEMA, **given)


def too_seldom(found: dict, level: float = 0.9, repeats: int = REPEATS) -> set:
    """Figures with an interval that holds less often than it says. False alarm: below 1e-3 for all 100 together."""
    least = level - 4.5 * np.sqrt(level * (1 - level) / repeats)
    return {name for name, share in found.items() if np.min(share) < least}


@pytest.mark.essential
def test_intervals_hold_as_often_as_they_say_and_hardly_more() -> None:
    """Not more where neither zero nor a slice comes between; the margin of 1.2 % for the noise adds 0.3 %."""
    found = coverage(plan_for(), people(), level=0.9)
    assert not too_seldom(found)
    sharp = [found["records"], found[("shares", "smoker")], found[("shares", "region")][:3]]
    sharp += [found[("counts", "smoker", "region")][:, :2], found[("mean", "visits")]]
    assert np.mean([np.mean(x) for x in sharp]) == pytest.approx(0.903, abs=0.02)


def test_intervals_of_groups_hold_as_often_as_they_say() -> None:
    """Counts, means, spreads, quantiles and shares in each category, and those of all records beside them."""
    by = ("region", "smoker")
    found = coverage(plan_for(by=by, pairs=(), weights={}), people(), by=by, repeats=150)
    assert len([name for name in found if name[0] == "mean"]) == 3 * 8
    assert not too_seldom(found, repeats=150)
    means = [
        share
        for name, share in found.items()
        if name[0] == "mean" and "d" not in name and "missing" not in name
    ]
    assert np.mean(means) == pytest.approx(0.903, abs=0.02)


BOTH = (("smoker", "region"),)


def test_intervals_of_groups_by_two_columns_hold_and_agree_with_those_of_one() -> None:
    plan = plan_for(by=BOTH, pairs=(), weights={})
    found = coverage(plan, people(), by=BOTH, repeats=100)
    assert len([name for name in found if name[0] == "mean"]) == 3 + 3 * 10
    assert not too_seldom(found, repeats=100)
    large = [
        x
        for name, x in found.items()
        if name[0] == "mean" and name[-1] in ("no, a", "no, b", "yes, a")
    ]
    assert np.mean(large) == pytest.approx(0.903, abs=0.03)
    described = Description.of(noisy(exact(plan, people()), np.random.default_rng(5)), by=BOTH)
    assert not described.pairs
    assert sum(group.num_records.value for group in described.groups) == pytest.approx(
        described.num_records.value
    )
    whole = sum(group.columns["low"].counts.value for group in described.groups)
    np.testing.assert_allclose(whole, described.columns["low"].counts.value, atol=1e-3)
    # In whatever order the columns are named, groups come in the schema's.
    again = Description.of(described.released, by=[("region", "smoker")])
    assert [group.label for group in again.groups] == [group.label for group in described.groups]


def test_a_fault_of_groups_by_two_columns_is_seen(monkeypatch) -> None:
    """The cells of the two columns taken in the other order."""
    of = describe_module.crossed

    def wrong(released, key):
        sums = released.sums.reshape(len(released.plan.sums), 2, 2, 5)
        return of(dataclasses.replace(released, sums=sums.swapaxes(2, 3).ravel()), key)

    monkeypatch.setattr(describe_module, "crossed", wrong)
    plan = plan_for(by=BOTH, pairs=(), weights={})
    seldom = too_seldom(coverage(plan, people(), by=BOTH, repeats=60), repeats=60)
    assert {("mean", "low", "smoker × region", label) for label in ("no, c", "yes, a")} <= seldom


def test_groups_by_two_columns_of_a_real_release() -> None:
    """With next to no noise, figures of each group are those of its rows, and persons count once in each."""
    rng = np.random.default_rng(6)
    columns = {
        "low": rng.uniform(0, 80, 6_000),
        "smoker": rng.choice(["no", "yes"], 6_000),
        "region": rng.choice(["a", "b", "c"], 6_000),
        "id": np.arange(6_000) // 2,
    }
    names = (SCHEMA.columns[0], column("smoker", "no", "yes"), column("region", "a", "b", "c"))
    schema = Schema(columns=names, person="id", max_rows=2)
    found = dp.describe(
        pyarrow.table(columns), schema, epsilon=60.0, delta=1e-6, by=[("region", "smoker")]
    )
    assert [group.label for group in found.groups] == [
        "no, a",
        "no, b",
        "no, c",
        "yes, a",
        "yes, b",
        "yes, c",
    ]
    for group in found.groups:
        smoker, region = group.label.split(", ")
        inside = (columns["smoker"] == smoker) & (columns["region"] == region)
        assert group.num_records.value == pytest.approx(inside.sum(), abs=8)
        assert group.columns["low"].mean.value == pytest.approx(
            columns["low"][inside].mean(), abs=0.3
        )
        assert group.num_persons is not None
        assert group.num_persons.value == pytest.approx(
            len(np.unique(columns["id"][inside])), abs=8
        )
    assert "in each category of smoker × region where they have a row" in found.statement.mechanism
    # Twins take it, too: sums by two columns are in those of all.
    _, result = fit_twins(found.released, components=2, num_steps=2)
    assert abs(result.num_records - 6_000) < 30


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ([("smoker", "low")], "columns of categories, or pairs"),
        ([("smoker", "region", "smoker")], "columns of categories, or pairs"),
        ([("smoker", "region"), ("region", "smoker")], "each once"),
        ([("many", "region")], "make 250 groups"),
    ],
)
def test_wrong_groups_by_two_columns_are_refused(by, said) -> None:
    many = column("many", *map(str, range(50)))
    with pytest.raises(ValueError, match=said):
        description_plan(
            dataclasses.replace(SCHEMA, columns=(*SCHEMA.columns, many)),
            epsilon=1.0,
            delta=1e-6,
            by=by,
        )


@pytest.mark.parametrize(
    ("by", "pairs"),
    [
        (BOTH, []),
        (BOTH, [("region", "smoker")]),
        (["smoker", "region", *BOTH], []),
        ([*BOTH, "region"], [("low", "smoker")]),
    ],
)
@pytest.mark.parametrize("kept", [("smoker", "region"), ("smoker", "region", "low")])
def test_whatever_is_planned_can_be_described(by, pairs, kept) -> None:
    """Its groups are counted, with numbers or without, and whatever else has both columns: nothing is paid for and refused."""
    schema = dataclasses.replace(SCHEMA, columns=tuple(x for x in SCHEMA.columns if x.name in kept))
    plan = description_plan(
        schema, epsilon=1.0, delta=1e-6, by=by, pairs=[pair for pair in pairs if {*pair} <= {*kept}]
    )
    table = people()
    found = Description.of(noisy(exact(plan, table), np.random.default_rng(2)), by=by)
    inside = (np.array(table["smoker"].to_pylist()) == "no") & (
        np.array(table["region"].to_pylist()) == "a"
    )
    group = next(group for group in found.groups if group.label == "no, a")
    assert abs(group.num_records.value - inside.sum()) < 6 * plan.stddev(("smoker", "region"))
    assert set(group.columns) == {"low"} & {*kept}
    assert str(found)


@pytest.mark.parametrize(
    "columns",
    [
        (
            column("smoker", "no", "yes"),
            column("region", "a", "b"),
            column("smoker × region", "no", "yes"),
        ),
        (column("smoker", "no", "no, yes"), column("region", "a", "yes, a")),
    ],
)
def test_groups_without_names_of_their_own_are_refused_before_anything_is_spent(columns) -> None:
    schema = Schema(columns=columns)
    with pytest.raises(
        ValueError, match=r"by has .* groups have no names of their own .* other names"
    ):
        description_plan(schema, epsilon=1.0, delta=1e-6, by=[BOTH[0]])


def test_groups_without_records_have_a_dash_and_the_reason() -> None:
    """Not the middle of the bounds, as if that were a figure; the interval that stands for it is all of the bounds."""
    plan = plan_for(by="region", pairs=(), weights={})
    table = people().filter(pyarrow.compute.not_equal(people()["region"], "d"))
    # Of 60 seeds 2 have noise that seems to be records of d.
    found = Description.of(noisy(exact(plan, table), np.random.default_rng(2)), by="region")
    groups = {group.label: group.columns for group in found.groups}
    assert [label for label, columns in groups.items() if columns["low"].hidden] == ["d", "missing"]
    assert (groups["d"]["low"].mean.low, groups["d"]["low"].mean.high) == (0, 80)
    lines = str(found).split("low by region")[1].split("high by region")[0].splitlines()[2:]
    assert all(line.count("– (too few records)") == 2 for line in lines if line)
    page = description_of(json.loads(found.to_json())).tables
    assert [x.rows[0][1][3] for x in page if x.heading == "low by region"] == [
        ("–", "too few records")
    ]
    assert "– (too few records)" not in str(Description.of(exact(plan, people())))


def counts_of_groups_have_little_noise(monkeypatch) -> None:
    group = estimates.LeastSquares.group

    def wrong(self, name, by, level):
        found = group(self, name, by, level)
        return dataclasses.replace(found, precision=9 * found.precision)

    monkeypatch.setattr(estimates.LeastSquares, "group", wrong)


def sums_of_the_next_category(monkeypatch) -> None:
    group = estimates.LeastSquares.group

    def wrong(self, name, by, level):
        found, other = group(self, name, by, level), self.columns[by].counts.size
        return dataclasses.replace(found, sums=group(self, name, by, (level + 1) % other).sums)

    monkeypatch.setattr(estimates.LeastSquares, "group", wrong)


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (counts_of_groups_have_little_noise, ("shares", "smoker")),
        (sums_of_the_next_category, ("mean", "high")),
    ],
)
def test_faults_of_groups_are_seen(fault, seen, monkeypatch) -> None:
    fault(monkeypatch)
    plan = plan_for(by="region", pairs=(), weights={})
    seldom = too_seldom(coverage(plan, people(), by=("region",), repeats=80), repeats=80)
    assert {(*seen, "region", "a"), (*seen, "region", "b")} <= seldom


def means_of_slices(monkeypatch) -> None:
    """Of a column whose slices are wide, too, as if all values were at their lower ends."""
    ends = estimates.ColumnEstimate.ends.func  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(
        estimates.ColumnEstimate, "ends", property(lambda self: (ends(self)[0],) * 2)
    )


def sums_are_without_noise(monkeypatch) -> None:
    sums = estimates.sums_of
    monkeypatch.setattr(
        estimates,
        "sums_of",
        lambda released: {name: x._replace(variance=1e-6) for name, x in sums(released).items()},
    )


def quantiles_know_no_noise(monkeypatch) -> None:
    quantile = estimates.ColumnEstimate.quantile
    monkeypatch.setattr(
        estimates.ColumnEstimate,
        "quantile",
        lambda self, share, present, level: quantile(self, share, present, 0.0),
    )


def deviations_of_another_level(monkeypatch) -> None:
    deviation = estimates.ColumnEstimate.deviation
    monkeypatch.setattr(
        estimates.ColumnEstimate, "deviation", lambda self, level: deviation(self, 0.3)
    )


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (means_of_slices, {("mean", "high")}),
        (sums_are_without_noise, {("mean", "low"), ("mean", "high"), ("mean", "visits")}),
        (quantiles_know_no_noise, {("quantile", "low", 0.9)}),
        (deviations_of_another_level, {("sd", "visits")}),
        (
            None,
            {"records", ("shares", "smoker"), ("counts", "smoker", "region"), ("mean", "visits")},
        ),
    ],
)
def test_faults_are_seen(fault, seen, monkeypatch) -> None:
    """The last: noise a third larger than the plan says."""
    if fault is not None:
        fault(monkeypatch)
    assert seen <= too_seldom(
        coverage(plan_for(), people(), level=0.9, noise=1.0 if fault else 4 / 3)
    )


@pytest.mark.parametrize("fault", [False, True])
def test_no_mean_or_spread_is_an_end_of_its_own_interval(fault, monkeypatch) -> None:
    """A share near its bound, with much noise and little, in groups, too; cut to what is possible a fifth of them would be."""
    if fault:
        cut = lambda value, ends, *most: estimates.interval(np.nan_to_num(value), *ends, *most)  # noqa: E731
        monkeypatch.setattr(estimates, "_inside", cut)
    rng = np.random.default_rng(4)
    paid = Column(name="paid", kind=Kind.REAL, bounds=(0.0, 1.0))
    schema = Schema(columns=(paid, Column(name="visits", kind=Kind.COUNT, bounds=(0, 60))))
    schema = dataclasses.replace(schema, columns=(*schema.columns, column("sex", "f", "m")))
    table = pyarrow.table(
        {
            "paid": rng.beta(0.05, 20, 3_000),
            "visits": rng.poisson(0.1, 3_000),
            "sex": rng.choice(["f", "m"], 3_000, p=[0.01, 0.99]),
        }
    )
    ends = []
    for epsilon in (0.02, 0.2, 2.0):
        released = exact(description_plan(schema, epsilon=epsilon, delta=1e-6, by="sex"), table)
        for _ in range(10):
            found = Description.of(noisy(released, rng), by="sex")
            for name, x in figures(found).items():
                if name[0] in ("mean", "sd"):
                    ends.append(not x.low < x.value < x.high)
    assert len(ends) == 3 * 10 * 3 * 4
    assert (np.mean(ends) > 0.1) if fault else not any(ends)


def test_figures_agree_and_stay_within_the_bounds() -> None:
    """Also with far more noise than records."""
    for epsilon, rows in ((1.0, 2_000), (0.02, 20)):
        plan, rng = plan_for(epsilon=epsilon), np.random.default_rng(2)
        released = exact(plan, people(rows))
        for _ in range(20):
            found = Description.of(noisy(released, rng), quantiles=SHARES)
            total = found.num_records.value
            for x in found.columns.values():
                assert x.counts.value.min() >= 0
                assert x.counts.value.sum() == pytest.approx(total, rel=1e-9)
                assert x.shares.value.sum() == pytest.approx(1.0, rel=1e-9)
            for (one, other), x in found.pairs.items():
                assert x.counts.value.min() >= 0
                for axis, name in ((1, one), (0, other)):
                    np.testing.assert_allclose(
                        x.counts.value.sum(axis),
                        found.columns[name].counts.value,
                        atol=1e-6 * total,
                    )
            for name, x in figures(found).items():
                assert np.all((x.low <= x.value) & (x.value <= x.high) & (x.low >= 0)), name
                assert np.isfinite(x.value).all(), name
                if name[0] == "shares":
                    assert np.max(x.high) <= 1
                if name[0] in ("mean", "quantile"):
                    assert x.high <= 80
            json.dumps(found.to_dict(), allow_nan=False)


def test_noise_in_empty_slices_draws_no_figure_to_the_middle_of_the_bounds() -> None:
    """A skewed count: before, when figures followed from counts without negative ones, the mean was 4.0 for 3.0 on average."""
    schema = Schema(
        columns=tuple(Column(name=f"visits{i}", kind=Kind.COUNT, bounds=(0, 60)) for i in range(8))
    )
    plan, rng = description_plan(schema, epsilon=0.5, delta=1e-6), np.random.default_rng(3)
    visits = np.minimum(rng.negative_binomial(0.5, 0.5 / 3.5, 6_000), 60)
    released, found = exact(plan, {f"visits{i}": visits for i in range(8)}), []
    for _ in range(15):
        described = Description.of(noisy(released, rng))
        found += [
            (x.mean.value, x.sd.value, x.quantiles[0.75].value) for x in described.columns.values()
        ]
    mean, sd, quantile = np.mean(found, axis=0)
    assert abs(mean - visits.mean()) < 0.25  # four standard errors of this mean of 120
    assert abs(sd - visits.std()) < 1.2  # it was 3.8 too large
    assert abs(quantile - np.quantile(visits, 0.75)) < 0.2


def test_estimates_and_variances_are_those_of_least_squares() -> None:
    """Against a dense solution with a parameter for each joint cell of three columns, two pairs of which were counted."""
    schema = Schema(
        columns=(column("a", "0", "1"), column("b", "0", "1", "2"), column("c", "0", "1"))
    )
    tables, weights = (("a",), ("b",), ("c",), ("a", "b"), ("c", "b")), (1, 2, 1, 3, 1)
    plan = MarginalsPlan(
        schema=schema, tables=tables, weights=weights, noise_multiplier=5.0, delta=1e-6
    )
    counts = 1_000 + 30 * np.random.default_rng(4).standard_normal(sum(plan.cells))
    counts[plan.cells[0] : 5] += 300  # tables that disagree
    joint = np.eye(12).reshape(2, 3, 2, 12)
    axes = {"a": 0, "b": 1, "c": 2}
    sums = {own: joint.sum(tuple({0, 1, 2} - {axes[x] for x in own})) for own in tables}
    sums[("c", "b")] = np.swapaxes(sums[("c", "b")], 0, 1)
    design = np.concatenate([sums[own].reshape(-1, 12) for own in tables])
    stddev = np.repeat([plan.drawn / weight for weight in weights], plan.cells)
    inverse = np.linalg.pinv(design.T @ (design / stddev[:, None] ** 2))
    best = inverse @ (design.T @ (counts / stddev**2))
    found = Description.of(Marginals(plan, counts, plan.state(reproducible=True)), level=0.9)
    z = NormalDist().inv_cdf(0.95)
    expected = {"records": joint.sum((0, 1, 2))} | {("counts", *own): sums[own] for own in tables}
    for name, figure in figures(found).items():
        if name in expected:
            rows = expected[name]
            np.testing.assert_allclose(figure.value, rows @ best, rtol=1e-6)
            spread = np.sqrt(np.einsum("...i,ij,...j", rows, inverse, rows))
            np.testing.assert_allclose(figure.high - rows @ best, z * spread, rtol=1e-6)
            np.testing.assert_allclose(rows @ best - figure.low, z * spread, rtol=1e-6)


def test_a_declared_step_makes_each_slice_one_value() -> None:
    """Without noise the quantiles are those of the table, and the slices say as much of the mean as the sums do."""
    doses = 0.5 * np.random.default_rng(0).binomial(40, 0.3, 3_000)
    dose = Column(name="dose", kind=Kind.REAL, bounds=(0.0, 20.0), step=0.5)
    for column in (dose, dataclasses.replace(dose, step=None)):
        plan = description_plan(Schema(columns=(column,)), epsilon=2.0, delta=1e-6)
        found = Description.of(exact(plan, {"dose": doses}), quantiles=SHARES).columns["dose"]
        assert found.mean.value == pytest.approx(doses.mean(), abs=1e-6)
        assert found.sd.value == pytest.approx(doses.std(), rel=0.01)
        values = [found.quantiles[share].value for share in SHARES]
        assert (values == [np.quantile(doses, x, method="inverted_cdf") for x in SHARES]) == (
            column is dose
        )
    assert not too_seldom(
        coverage(
            description_plan(Schema(columns=(dose,)), epsilon=2.0, delta=1e-6),
            pyarrow.table({"dose": doses}),
        )
    )


def test_the_projections_are_the_nearest() -> None:
    """Against a quadratic program by scipy."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(3)
    counts = rng.normal(2, 6, (3, 4))
    rows = projection.on_simplex(rng.normal(8, 9, 3), 30.0)
    columns = projection.on_simplex(rng.normal(8, 5, 4), 30.0)
    found = projection.with_margins(counts, rows, columns)
    same = [
        {"type": "eq", "fun": lambda x: x.reshape(3, 4).sum(1) - rows},
        {"type": "eq", "fun": lambda x: x.reshape(3, 4).sum(0)[:3] - columns[:3]},
    ]
    start = np.outer(rows, columns).ravel() / 30
    best = minimize(
        lambda x: ((x - counts.ravel()) ** 2).sum(),
        start,
        bounds=[(0, None)] * 12,
        constraints=same,
        tol=1e-10,
    )
    np.testing.assert_allclose(found.ravel(), best.x, atol=1e-3)


def test_pairs_make_figures_of_columns_more_precise_and_never_less() -> None:
    """With the same noise: a pair's counts tell about its columns, too."""

    def width(tables):
        plan = MarginalsPlan(
            schema=SCHEMA,
            tables=tables,
            weights=(1,) * len(tables),
            noise_multiplier=5.0,
            delta=1e-6,
        )
        plan = dataclasses.replace(plan, noise_multiplier=5.0 / plan.sensitivity)
        figure = Description.of(exact(plan, people())).columns["smoker"].counts
        return float(np.mean(figure.high - figure.low))

    assert width((("smoker",), ("smoker", "region"))) < 0.95 * width((("smoker",),))
    # A column that was counted only within a pair is described; one that was not counted is left
    # out.
    assert width((("smoker", "region"),)) > width((("smoker",), ("smoker", "region")))


def test_one_call_describes_a_table_and_pays_once(tmp_path) -> None:
    schema = dataclasses.replace(SCHEMA, person="who")
    born = Column(
        name="born", kind=Kind.DATE, bounds=(datetime.date(1950, 1, 1), datetime.date(2000, 12, 31))
    )
    schema = dataclasses.replace(schema, columns=(*schema.columns, born))
    table = people(4_000).append_column(
        "who", pyarrow.array([f"p{i % 2_000}" for i in range(4_000)])
    )
    table = table.append_column(
        "born", pyarrow.array([datetime.date(1970, 1, 1 + i % 28) for i in range(4_000)])
    )
    ledger = dp.Ledger.create(
        tmp_path / "l", dataset="people", epsilon=1.5, delta=1e-5, unit="one person"
    )
    for relation in dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE:
        options = {"ledger": ledger} if relation is ledger.relation else {}
        found = dp.describe(
            table, schema, epsilon=1.0, delta=1e-6, pairs=PAIRS, relation=relation, **options
        )
        assert 0.999 < found.statement.epsilon <= 1
        assert found.statement.relation == relation.name
    assert [debit.unit for debit in ledger.debits] == ["one person"]
    assert 1_900 < found.num_records.value < 2_100
    shown = " ".join(str(found).split())
    for words in (
        "Persons: ",
        "born (date, 1950-01-01 to 2000-12-31)",
        "smoker × region",
        "missing",
        "50 % quantile",
        "says nothing about a population",
    ):
        assert words in shown
    with pytest.raises(dp.SpentError):
        dp.describe(table, schema, epsilon=1.0, delta=1e-6, ledger=ledger)


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        (
            {"pairs": [("smoker", "height")]},
            "height, which the schema does not describe: choose among low",
        ),
        ({"pairs": [("smoker", "region", "low")]}, "give pairs of names"),
        ({"pairs": "smoker"}, "give pairs of names"),
        ({"pairs": [("smoker", "smoker")]}, "different columns"),
        ({"pairs": [("smoker", "region"), ("region", "smoker")]}, "each such set once"),
        ({"slices": 1}, "slices"),
    ],
)
def test_wrong_plans_are_refused(options, needle) -> None:
    with pytest.raises(ValueError, match=needle):
        plan_for(**options)


def test_wrong_levels_and_quantiles_are_refused_before_anything_is_spent(tmp_path) -> None:
    ledger = dp.Ledger.create(tmp_path / "l", dataset="people", epsilon=1.5, delta=1e-5)
    for wrong, needle in (
        ({"level": 95}, "level is 95"),
        ({"quantiles": [0, 0.5]}, "a quantile is 0"),
    ):
        with pytest.raises(ValueError, match=needle):
            dp.describe(people(20), SCHEMA, epsilon=1.0, delta=1e-6, ledger=ledger, **wrong)
    assert not ledger.debits
    plan = MarginalsPlan.calibrate(
        SCHEMA, epsilon=1.0, delta=1e-6, tables=[("low", "smoker", "region")], slices=8
    )
    released = Marginals(plan, np.zeros(sum(plan.cells)), plan.state(reproducible=True))
    with pytest.raises(ValueError, match="only three-way tables"):
        Description.of(released)
    with pytest.raises(
        ValueError, match="by has smoker × region, which was not counted: choose among low"
    ):
        Description.of(exact(plan_for(pairs=()), people(9)), by=BOTH)
    with pytest.raises(ValueError, match="by has height: give columns of categories"):
        Description.of(exact(plan_for(), people(9)), by="height")


def test_without_a_schema_the_remedy_is_said() -> None:
    for given in ((), ("schema.toml",), (SCHEMA,)):
        with pytest.raises(
            TypeError, match=r"needs a schema, epsilon and delta.*schema_from_bounds"
        ):
            dp.describe(people(20), *given, epsilon=1.0)


def test_dropped_rows_are_missing_ones_of_persons_too() -> None:
    """One schema serves fits and figures."""
    wage = Column(name="wage", kind=Kind.REAL, bounds=(0.0, 9.0), missing=Missing.DROP)
    schema = Schema(columns=(SCHEMA.columns[3], wage), target="wage", person="id", max_rows=4)
    table = {
        "smoker": ["no", "yes"] * 4_000,
        "wage": [1.0, None] * 4_000,
        "id": np.repeat(np.arange(2_000), 4).astype(str),
    }
    found = dp.describe(
        table, schema, epsilon=4.0, delta=1e-6, rng_key=dp.random.key(0), non_private_seed=True
    )
    assert 7_800 < found.num_records.value < 8_200
    assert 1_950 < found.num_persons.value < 2_050
    assert found.persons_cut.low == 0
    assert found.columns["wage"].labels[-1] == "missing"
    assert 0.4 < found.columns["wage"].shares.value[-1] < 0.6
    assert "of which 4 at most are used" in str(found.statement.unit)


def test_a_cell_that_cannot_be_read_is_named_by_its_column(tmp_path) -> None:
    ledger = dp.Ledger.create(tmp_path / "t.ledger", dataset="t", epsilon=3.0, delta=1e-5)
    schema = Schema(columns=(Column(name="a", kind=Kind.REAL, bounds=(0.0, 9.0)),))
    with pytest.raises(
        dp.tables.DataError, match="column 'a' holds something that is not a number"
    ):
        dp.describe({"a": ["1.5", "x"]}, schema, epsilon=1.0, delta=1e-6, ledger=ledger)
    assert not ledger.debits


def test_in_the_shell(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.toml").write_text(schema_to_toml(SCHEMA))
    pyarrow.csv.write_csv(people(), tmp_path / "people.csv")
    dp.Ledger.create(tmp_path / "l", dataset="people", epsilon=1.5, delta=1e-5)
    words = [
        "describe",
        "people.csv",
        "--schema",
        "schema.toml",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
    ]
    words += ["--ledger", "l", "--out", "out"]
    run = CliRunner()
    for wrong, needle in (
        ("--pair smoker", "give two columns, as in --pair low,high"),
        ("--pair smoker,height", "the schema has low, high"),
        ("--pair smoker,region --all-pairs", "give only one"),
        ("--by low", "by has low: give columns of categories"),
        ("--by smoker,height", "--by is 'smoker,height': give two columns"),
        (
            "--by smoker,region --num-records 60",
            "makes 10 groups, of 6 records on average, and the noise hides so few",
        ),
        ("--level 2", "--level is 2"),
        ("--out-of-bounds missing", "does not work with discreet describe"),
        ("--seed 1", "--ledger is for private fits"),
    ):
        refused = run.invoke(app, [*words, *wrong.split()])
        assert (refused.exit_code, needle in " ".join(refused.stderr.split())) == (2, True), (
            refused.stderr
        )
    assert not dp.Ledger("l").debits
    done = run.invoke(
        app, [*words, "--pair", "smoker,region", "--by", "region", "--level", "0.9999999", "--json"]
    )
    assert done.exit_code == 0, done.stderr
    assert (
        "For a table of 10,000 records, intervals of 99.99999 % will be at most: mean of low ±"
        in " ".join(done.stderr.split())
    )
    # Of visits some cells may be missing: then there are fewer values than records.
    assert [
        " if no cell is missing" in part for part in " ".join(done.stderr.split()).split(" ± ")[1:4]
    ] == [
        False,
        False,
        True,
    ]
    facts = json.loads(done.stdout)
    assert facts["files"] == [f"out/{name}" for name in FILES]
    groups = json.loads((tmp_path / "out/description.json").read_text())["groups"]
    assert [group["label"] for group in groups] == ["a", "b", "c", "d", "missing"]
    assert list(groups[0]["columns"]) == ["low", "high", "visits", "smoker"]
    low, high = (facts["columns"]["smoker"]["shares"][end][1] for end in ("low", "high"))
    assert low < truth(plan_for(), people())[("shares", "smoker")][1] < high < low + 0.08
    assert len(dp.Ledger("l").debits) == 1
    assert json.loads((tmp_path / "out/statement.json").read_text()) == facts["statement"]
    page = (tmp_path / "out/report.html").read_text()
    assert '<h2 id="table">The table</h2>' in page
    for share in facts["columns"]["smoker"]["shares"]["value"]:
        assert f">{100 * share:.1f} %<" in page
    assert "high by region" in page
    text = (tmp_path / "out/description.txt").read_text()
    assert "high by region" in text
    assert text.startswith("Records: ")
    again = run.invoke(app, words)
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr
    assert run.invoke(app, ["report", "out", "--out", "again.html"]).exit_code == 0
    # Whoever takes the folder for a fit, or for the counts, or these for a table, is shown the way.
    next_step = describe_command.twins_words(pathlib.Path("out"))
    for wrong in (["synth", "out"], ["describe", "out/twin.counts", "--epsilon", "1"]):
        refused = run.invoke(app, wrong)
        assert refused.exit_code == 2
        assert next_step in " ".join(refused.stderr.split())
    folder = run.invoke(app, ["fit", "--model", "twin", "--data", "out", "--out", "all"])
    assert folder.exit_code == 0, folder.stderr
    twin = run.invoke(app, [*shlex.split(next_step)[1:], "--json"])
    assert twin.exit_code == 0, twin.stderr
    # In the folder of the description, too, the statement says then what holds of twins.
    monkeypatch.setattr(
        _twin, "fit_counts", lambda _, released: fit_twins(released, components=2, num_steps=2)
    )
    for _ in range(2):
        assert (
            run.invoke(
                app, ["fit", "--model", "twin", "--data", "out/twin.counts", "--out", "out"]
            ).exit_code
            == 0
        )
        assert (
            "Pairs of columns were left out of the counts"
            in (tmp_path / "out/statement.json").read_text()
        )
        assert (
            "Pairs of columns were left out of the counts"
            in (tmp_path / "out/report.html").read_text()
        )
    assert json.loads(twin.stdout)["statement"]["epsilon"] == facts["statement"]["epsilon"]
    assert "Pairs of columns were left out of the counts" in twin.stdout
    assert (
        run.invoke(
            app, ["synth", "twin", "--twins", "1", "--rows", "30", "--out", "rows"]
        ).exit_code
        == 0
    )
    assert pyarrow.csv.read_csv("rows/twin-1.csv").num_rows == 30
    assert len(dp.Ledger("l").debits) == 1
    (tmp_path / "out/description.json").write_text((tmp_path / "out/statement.json").read_text())
    damaged = run.invoke(app, ["report", "out"])
    assert damaged.exit_code == 2
    assert "description.json is damaged" in " ".join(damaged.stderr.split())


def test_groups_are_refused_only_if_noise_hides_them(tmp_path, monkeypatch) -> None:
    """Not if there are no other columns; and persons may have more rows than there are persons."""
    monkeypatch.chdir(tmp_path)
    rows = {"smoker": ["no", "yes"] * 100, "region": ["a"] * 200, "id": np.arange(200) // 4}
    pyarrow.csv.write_csv(pyarrow.table(rows), tmp_path / "t.csv")
    alone = Schema(columns=SCHEMA.columns[3:])
    assert thin(alone, "smoker,region", 200) == 0
    few = Schema(columns=alone.columns, person="id", max_rows=8)
    assert [thin(few, "smoker", persons) for persons in (5, 100)] == [2, 0]


def thin(schema: Schema, by: str, num_records: int) -> int:
    """The exit code of a description of `t.csv` by groups."""
    (pathlib.Path.cwd() / "s.toml").write_text(schema_to_toml(schema))
    words = f"describe t.csv --schema s.toml --epsilon 5 --delta 1e-6 --by {by} --num-records {num_records} --overwrite"
    return CliRunner().invoke(app, words.split()).exit_code


@pytest.mark.parametrize("broken", ["write_statement", "write_page"])
def test_a_full_disk_after_the_release(broken, tmp_path, monkeypatch) -> None:
    """The budget spent is reported: in the file, or on the screen where there is none."""
    monkeypatch.chdir(tmp_path)
    pyarrow.csv.write_csv(people(50).select(["smoker"]), tmp_path / "people.csv")

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    place = _run if broken == "write_statement" else describe_command
    monkeypatch.setattr(place, broken, full)
    words = [
        "describe",
        "people.csv",
        "--bounds",
        "smoker=no|yes",
        "--epsilon",
        "1",
        "--out",
        "out",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "The release was made and its budget is spent" in " ".join(done.stderr.split())
    assert ("ε = " in done.stdout) == (broken == "write_statement")
    assert (tmp_path / "out/statement.json").exists() == (broken == "write_page")


FILES = (
    "statement.json",
    "statement.txt",
    "description.json",
    "description.txt",
    "twin.counts",
    "description.png",
    "report.html",
)


@pytest.mark.exhaustive
def test_shares_of_adult_at_half_an_epsilon(table, repository, monkeypatch) -> None:
    """Every share within its interval as often as stated: 300 repetitions, each share less than 4.5 deviations too seldom."""
    monkeypatch.syspath_prepend(str(repository / "examples"))
    example = importlib.import_module("adult_twin")
    schema = example.schema()
    train, _ = example.read(table("adult.csv.gz"), schema)
    plan = description_plan(schema, epsilon=0.5, delta=1e-5)
    found = coverage(plan, train, level=0.95, repeats=300)
    assert not too_seldom(found, 0.95, 300)
    shares = np.concatenate([share for (what, *_), share in found.items() if what == "shares"])
    assert np.mean(shares) > 0.945


def test_an_estimate_far_outside_leaves_an_interval_and_no_point() -> None:
    """Counts cannot be below 0, but "0 (0 to 0)" would pass for certainty."""
    figure = estimates.interval(
        np.array([-9.0, 5.0]), np.array([-12.0, 2.0]), np.array([-6.0, 8.0]), 0.0, np.inf
    )
    np.testing.assert_array_equal(figure.low, [0.0, 2.0])
    np.testing.assert_array_equal(figure.high, [3.0, 8.0])
    # Nor what is left of an interval most of which is impossible.
    figure = estimates.interval(0.0, np.array([-6.0, -6.0]), np.array([0.01, 3.0]), 0.0, np.inf)
    np.testing.assert_allclose(figure.high, [3.005, 4.5])


def test_larger_shares_have_larger_quantiles() -> None:
    """Also where noise hides the values: of these columns and groups 83 of 720 had some in the wrong order."""
    plan, rng = (
        description_plan(SCHEMA, epsilon=0.05, delta=1e-6, by="region"),
        np.random.default_rng(0),
    )
    released = exact(plan, people(300))
    for _ in range(10):
        found = Description.of(noisy(released, rng), by="region", quantiles=(0.75, 0.05, 0.5, 0.25))
        for columns in (found.columns, *(group.columns for group in found.groups)):
            for x in columns.values():
                assert list(x.quantiles) in ([], [0.75, 0.05, 0.5, 0.25])
                values = [x.quantiles[share].value for share in sorted(x.quantiles)]
                assert values == sorted(values)
                assert all(
                    figure.low <= figure.value <= figure.high for figure in x.quantiles.values()
                )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bounds", [(-1e308, 1e308), (0.0, 5e-324), (1e6, 1e6 + 1e-9)])
def test_bounds_that_have_no_slices_are_refused_before_anything_is_spent(bounds, tmp_path) -> None:
    """There were no labels for them, which was found when the budget was gone."""
    ledger = dp.Ledger.create(tmp_path / "l", dataset="people", epsilon=1.5, delta=1e-5)
    schema = Schema(columns=(Column(name="x", kind=Kind.REAL, bounds=bounds),))
    with pytest.raises(ValueError, match=r"the bounds of 'x'.*have no 64 slices"):
        dp.describe({"x": list(bounds)}, schema, epsilon=1.0, delta=1e-6, ledger=ledger)
    assert not ledger.debits


def test_what_was_done_to_the_table_is_printed() -> None:
    dose = Column(name="dose", kind=Kind.REAL, bounds=(0.0, 20.0), step=0.5)
    plan = description_plan(Schema(columns=(dose,), person="who"), epsilon=1.0, delta=1e-6)
    found = Description.of(exact(plan, {"dose": [3.0, 4.5], "who": ["a", "b"]}))
    for words in (
        "Of each person one row was counted.",
        "Values were moved to the nearest step: dose (0.5).",
    ):
        assert words in " ".join(str(found).split())
        assert words in found.to_dict()["intervals"]
    assert "step" not in Description.of(exact(plan_for(), people(9))).intervals
