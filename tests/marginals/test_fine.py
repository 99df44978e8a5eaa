"""Counts in parts of slices: what they add and cost, that they are those of the table, and the quantiles they make."""

import dataclasses
import math

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.csv
import pytest
from tests.marginals.invented import certificate, exact, noisy
from tests.marginals.test_describe import coverage, too_seldom
from tests.marginals.test_release import measured

import discreet as dp
from discreet.tabular.marginals import (
    Description,
    Marginals,
    MarginalsPlan,
    _estimates as estimates,
    _programs,
    description_plan,
)
from discreet.tabular.tables import Column, Kind, Missing, Schema

ADD, REPLACE = dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE
SCHEMA = Schema(
    columns=(
        Column(name="bmi", kind=Kind.REAL, bounds=(0.0, 1000.0), missing=Missing.INDICATOR),
        Column(name="dose", kind=Kind.REAL, bounds=(-5.0, 500.0), step=0.25),
        Column(name="income", kind=Kind.COUNT, bounds=(0, 200_000)),
        Column(name="sex", kind=Kind.BINARY, categories=("f", "m")),
        Column(name="region", kind=Kind.CATEGORICAL, categories=("a", "b", "c")),
    )
)
DIVIDED = ("bmi", "dose", "income")


def people(rows: int = 4_000) -> pyarrow.Table:
    """All values are in a few of 64 slices."""
    rng = np.random.default_rng(0)
    bmi = np.clip(rng.gamma(30, 0.9, rows), 12, 60)
    return pyarrow.table(
        {
            "bmi": pyarrow.array(bmi, mask=rng.random(rows) < 0.1),
            "dose": np.round(rng.exponential(10, rows) * 4).clip(0, 2000) / 4,
            "income": np.round(rng.lognormal(10, 0.5, rows)).clip(0, 200_000),
            "sex": rng.choice(["f", "m"], rows, p=[0.4, 0.6]),
            "region": rng.choice(["a", "b", "c"], rows),
        }
    )


def planned(schema: Schema = SCHEMA, **options) -> MarginalsPlan:
    return description_plan(schema, **{"epsilon": 1.0, "delta": 1e-6} | options)


def test_only_wide_slices_of_which_quantiles_are_asked_are_counted_in_parts() -> None:
    """Decided by what is public. They add 3 % to Gaussian noise, as each is a table of half a column's weight."""
    plan = planned()
    assert plan.fine == tuple((name,) for name in DIVIDED)
    assert plan.fine_cells == (65 * 16, 64 * 16, 64 * 16)
    without = planned(quantiles=())
    assert not without.fine
    assert 1 < plan.noise / without.noise < 1.04
    assert planned(by=["sex", ("sex", "region")]).fine == tuple(
        (name, *key) for name in DIVIDED for key in (("sex",), ("sex", "region"))
    )
    # Years, half points, and many groups, each of few records.
    many = Column(name="many", kind=Kind.CATEGORICAL, categories=tuple(map(str, range(100))))
    others = (
        Column(name="age", kind=Kind.COUNT, bounds=(0, 99)),
        Column(name="grade", kind=Kind.REAL, bounds=(0.0, 10.0), step=0.5),
        many,
    )
    assert not planned(Schema(columns=others)).fine
    assert not planned(Schema(columns=(SCHEMA.columns[0], many)), by="many").fine
    weighed = planned(weights={"bmi": 3})
    assert dict(zip(weighed.fine, weighed.fine_weights, strict=True))[("bmi",)] == 3


def test_parts_are_counted_as_they_are(tmp_path, monkeypatch) -> None:
    """In one pass over a file or a table, in pieces, all or by category, against counts made without the library's own."""
    monkeypatch.setattr("discreet.tabular.tables._read.PIECE_BYTES", 10_000)
    pyarrow.csv.write_csv(people(), tmp_path / "people.csv")
    for by in ((), ["sex", ("sex", "region")]):
        plan = planned(by=by)
        expected = exact(plan, people())
        for table in (people(), tmp_path / "people.csv"):
            total = measured(table, plan, 100) / plan.all_weights
            counts, fine, *_ = plan.apart(total)
            np.testing.assert_array_equal(counts, expected.counts)
            np.testing.assert_array_equal(fine, expected.fine)
        assert expected.fine.sum() == len(plan.fine) * 4_000
        # The parts of a slice are all of it.
        parts = expected.fine_of(0).sum(axis=(1, 2))
        np.testing.assert_array_equal(parts, expected.table("bmi", *by[:1]).reshape(65, -1).sum(1))


def bound_without_parts(monkeypatch) -> None:
    """The noise is made for the other counts alone."""
    of_tables = property(lambda self: self.max_rows * self._length(*self.weights))
    monkeypatch.setattr(MarginalsPlan, "_of_tables", of_tables)


@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_proof_finds_the_event_and_refuses_parts_outside_the_bound(
    laplace, relation, rows, monkeypatch
) -> None:
    schema = dataclasses.replace(SCHEMA, person="who", max_rows=rows) if rows > 1 else SCHEMA

    def plan(slices: int) -> MarginalsPlan:
        return planned(schema, relation=relation, laplace=laplace, by="sex", slices=slices)

    honest = plan(32)
    found = certificate(honest).event
    assert type(found) is type(honest.event())
    assert found.noise_multiplier == pytest.approx(honest.event().noise_multiplier, rel=1e-9)
    assert 0.999 < honest.state(reproducible=False).epsilon <= 1
    bound_without_parts(monkeypatch)
    with pytest.raises(dp.PrivacyError):
        certificate(plan(33))


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("fault", [None, bound_without_parts])
def test_no_neighbour_is_farther_than_the_noise_is_made_for(relation, fault, monkeypatch) -> None:
    """Records in all kinds of parts; the worst attain the bound, but for `_ROOM`."""
    if fault is not None:
        fault(monkeypatch)
    plan = planned(quantiles=(0.5,), relation=relation)
    plan = dataclasses.replace(plan, sums=(), sum_weights=(), fine_weights=(2, 3, 1))
    rows = people(12).slice(0, 12)
    rest = rows.slice(1)
    found = [
        measured(pyarrow.concat_tables([rows.slice(place, 1), rest]), plan)
        for place in range(len(rows))
    ]
    others = [measured(rest, plan)] if relation is ADD else found
    farthest = max(float(np.linalg.norm(one - other)) for one in found for other in others)
    assert (farthest > plan.moved) == (fault is not None), (farthest, plan.moved)
    # A replaced record leaves the number of records as it is, whose weight is 3.
    assert farthest > (0.999 if relation is ADD else 0.88) * plan.moved


@pytest.mark.parametrize("by", [(), ["sex"], [("sex", "region")]])
def test_intervals_hold_as_often_as_they_say(by) -> None:
    """Also of quantiles that are missing from most slices, and in groups."""
    repeats = 30 if by == [("sex", "region")] else 60
    found = coverage(planned(by=by), people(), by=by, repeats=repeats)
    quantiles = {name: x for name, x in found.items() if name[0] == "quantile"}
    assert len(quantiles) == 9 * (1 + (2 if by else 0) + (4 if by == [("sex", "region")] else 0))
    assert not too_seldom(found, repeats=repeats)
    assert 0.9 < np.mean([float(x) for x in quantiles.values()]) < 0.995


def parts_without_noise(monkeypatch) -> None:
    within = estimates._within
    monkeypatch.setattr(
        estimates,
        "_within",
        lambda released: {name: x._replace(variance=1e-6) for name, x in within(released).items()},
    )


def parts_of_the_next_slice(monkeypatch) -> None:
    within = estimates._within
    monkeypatch.setattr(
        estimates,
        "_within",
        lambda released: {
            name: x._replace(values=np.roll(x.values, 1, axis=0))
            for name, x in within(released).items()
        },
    )


@pytest.mark.parametrize("fault", [parts_without_noise, parts_of_the_next_slice])
def test_faults_are_seen(fault, monkeypatch) -> None:
    fault(monkeypatch)
    seldom = too_seldom(coverage(planned(), people(), repeats=60), repeats=60)
    assert [name for name in seldom if name[0] == "quantile"]


def test_variances_are_those_of_the_estimate() -> None:
    """Of the number of records below each part, against draws. False alarm: below 1e-4, and the seed is fixed."""
    schema = Schema(columns=SCHEMA.columns[:1])
    plan = planned(schema, slices=4)
    truth = exact(plan, {"bmi": np.linspace(0, 999, 3_000)})
    rng = np.random.default_rng(1)
    scores = [
        estimates.LeastSquares(noisy(truth, rng)).columns["bmi"].z_scores(0.5) for _ in range(800)
    ]
    assert np.shape(scores) == (800, 65)
    spread = np.std(np.array(scores)[:, 1:-1], axis=0)
    np.testing.assert_allclose(spread, 1.0, atol=5 / math.sqrt(2 * 800))


def test_noise_in_empty_parts_makes_no_quantile_reach_the_bounds() -> None:
    """Nearly all parts are empty; with each tested by itself the interval of the highest quantile was 50 times as wide."""
    schema = Schema(columns=(Column(name="bmi", kind=Kind.REAL, bounds=(0.0, 1000.0)),))
    plan = planned(schema, epsilon=0.1, laplace=False)
    truth = exact(plan, {"bmi": np.clip(np.random.default_rng(0).normal(27, 5, 20_000), 0, 60)})
    rng = np.random.default_rng(1)
    found = [Description.of(noisy(truth, rng), quantiles=(0.95,)) for _ in range(60)]
    highest = [x.columns["bmi"].quantiles[0.95] for x in found]
    assert np.mean([x.high - x.low for x in highest]) < 16


@pytest.mark.parametrize("name", DIVIDED[::2])
def test_quantiles_with_loose_bounds_are_as_near_as_the_noise_allows(name) -> None:
    """Beside those of slices alone, at the same budget; means are hardly farther."""
    own = next(column for column in SCHEMA.columns if column.name == name)
    schema = Schema(columns=(dataclasses.replace(own, missing=Missing.REFUSE),))
    values = people(20_000)[name].fill_null(27.0)
    table = pyarrow.table({name: values})
    right = np.quantile(values.to_numpy(), (0.25, 0.5, 0.75))
    rng = np.random.default_rng(2)
    errors = {}
    for asked in ((), (0.5,)):
        released = exact(planned(schema, quantiles=asked), table)
        found = []
        for _ in range(60):
            quantiles = Description.of(noisy(released, rng), quantiles=(0.25, 0.5, 0.75))
            found.append([x.value for x in quantiles.columns[name].quantiles.values()] - right)
        errors[asked] = np.sqrt(np.mean(np.square(found)))
    assert errors[(0.5,)] < {"bmi": 0.05, "income": 0.8}[name] * errors[()]


def test_a_release_has_them_and_keeps_them(tmp_path) -> None:
    """Quantiles of the table, of persons' rows and in groups, and the statement says how. False alarm: below 1e-4."""
    table = people().append_column("who", pyarrow.array(np.arange(4_000) // 2))
    schema = dataclasses.replace(SCHEMA, person="who", max_rows=2)
    released = dp.describe(table, schema, epsilon=60.0, delta=1e-6, by="sex").released
    found = Description.of(released, by="sex", level=1 - 1e-6)
    men = people().filter(pyarrow.compute.equal(people()["sex"], "m"))
    for rows, columns in ((people(), found.columns), (men, found.groups[1].columns)):
        for name in DIVIDED:
            values = rows[name].drop_null().to_numpy()
            for share, figure in columns[name].quantiles.items():
                right = np.quantile(values, share, method="inverted_cdf")
                assert figure.low <= right <= figure.high, (name, share)
        # A slice has 15.6.
        assert columns["bmi"].quantiles[0.5].high - columns["bmi"].quantiles[0.5].low < 5
    # Its parts of the error leave no number below 1.
    assert Description.of(released, level=1 - 2.0**-50).columns["bmi"].quantiles
    assert "3 columns was also counted in 16 parts" in found.statement.mechanism
    kept = Marginals.load(found.released.save(tmp_path / "twin.counts"))
    np.testing.assert_array_equal(kept.fine, found.released.fine)
    again = Description.of(kept, by="sex", level=1 - 1e-6)
    assert again.columns["bmi"].quantiles == found.columns["bmi"].quantiles


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        ({"fine": {("sex",): 1}}, "fine has .* a column with bounds"),
        ({"fine": {("bmi", "dose"): 1}}, "fine has .* a column with bounds"),
        ({"fine": {("bmi",): 0}}, "weight"),
    ],
)
def test_wrong_plans_are_refused(options, needle) -> None:
    with pytest.raises(ValueError, match=needle):
        MarginalsPlan.calibrate(SCHEMA, epsilon=1.0, delta=1e-6, **options)


def test_a_number_on_an_edge_is_in_the_part_that_begins_there() -> None:
    """For all kinds of columns: the part that `searchsorted` finds, also where parts are empty."""
    rng = np.random.default_rng(3)
    for column in SCHEMA.columns[:3]:
        plan = planned(Schema(columns=(dataclasses.replace(column, missing=Missing.REFUSE),)))
        edges = plan.levels.part_edges(plan.schema.columns[0], _programs.PARTS)
        low, high = column.limits
        numbers = np.concatenate([edges, np.nextafter(edges, low), rng.uniform(low, high, 999)])
        numbers = np.clip(numbers, low, high)
        numbers = numbers if column.kind is Kind.REAL else np.floor(numbers)
        cell = (plan.schema.columns[0], numbers, np.zeros(len(numbers), bool))
        found = plan.levels.of_cells([cell])[0]
        part = plan.levels.parts_of(cell, found, _programs.PARTS)
        expected = np.searchsorted(edges, numbers, side="right") - 1
        expected = np.minimum(expected, len(edges) - 2)
        np.testing.assert_array_equal(found.astype(int) * _programs.PARTS + part, expected)
