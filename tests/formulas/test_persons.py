"""Persons with several rows, and survey weights, in formulas: what the fits get, what is refused, and whose ε it is."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet.tabular.formulas import Design, _regress
from discreet.tabular.tables import Column, Kind, Missing, Schema

SCHEMA = Schema(
    columns=(
        Column(name="ill", kind=Kind.BINARY, categories=("no", "yes")),
        Column(name="age", kind=Kind.REAL, bounds=(20, 80)),
        Column(name="cost", kind=Kind.REAL, bounds=(0, 100)),
        Column(name="visits", kind=Kind.COUNT, bounds=(1, 9)),
        Column(name="region", kind=Kind.CATEGORICAL, categories=("a", "b", "c")),
        Column(name="weight", kind=Kind.REAL, bounds=(0, 4)),
    ),
)
PERSONS = dataclasses.replace(SCHEMA, person="id", max_rows=3)
WEIGHTED = dataclasses.replace(SCHEMA, weight="weight")


def table(size: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    age = rng.uniform(20, 80, size)
    return {
        "ill": np.where(rng.random(size) < 1 / (1 + np.exp(3 - 0.06 * age)), "yes", "no"),
        "age": age,
        "cost": np.clip(10 + 0.5 * age + rng.normal(0, 10, size), 0, 100),
        "visits": rng.integers(1, 10, size).astype(float),
        "region": rng.choice(["a", "b", "c"], size),
        "weight": rng.uniform(0, 4, size),
        "id": np.array([f"p{number}" for number in range(size)]),
    }


class GotError(Exception):
    """What a fit was given."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function from the arguments of `regress` to those of the fit, which does not run."""

    def stop(key: Any, x: Any, y: Any, plan: Any, **how: Any) -> None:
        raise GotError(x, y, plan, how)

    monkeypatch.setattr(_regress, "fit_newton", stop)
    monkeypatch.setattr(_regress.choose, "fit_moments", stop)

    def call(*words: Any, **options: Any) -> tuple[Any, ...]:
        with pytest.raises(GotError) as got:
            dp.regress(*words, epsilon=1.0, **options)
        return got.value.args

    return call


def test_a_record_is_a_person_with_an_axis_of_rows(given: Any) -> None:
    """Five persons: of one a row has no age, and of one there are more rows than count."""
    columns = tuple(
        dataclasses.replace(x, missing=Missing.DROP) if x.name == "age" else x
        for x in PERSONS.columns
    )
    schema = dataclasses.replace(PERSONS, columns=columns)
    cells = table(12) | {"id": np.array(list("abacdbeeeeac"))}
    cells["age"][2] = np.nan
    x, y, plan, how = given("ill ~ age", cells, schema, family="bernoulli")
    assert (plan.num_records, plan.max_rows, plan.drops, plan.weighted) == (5, 3, False, False)
    assert how["person"] == "id"
    assert x.shape == (5, 3, 1)
    own = {"a": [0, 2, 10], "b": [1, 5], "c": [3, 11], "d": [4]}
    z = (cells["age"] - 50) / 30
    for person, (name, rows) in enumerate(own.items()):
        used = [row for row in rows if row != 2]
        assert name == "abcd"[person]
        assert how["mask"][person].tolist() == [row in used for row in rows] + [False] * (
            3 - len(rows)
        )
        mask = how["mask"][person]
        assert np.allclose(x[person, mask, 0], z[used])
        assert y[person, mask].tolist() == [float(cells["ill"][row] == "yes") for row in used]
    assert how["mask"][4].all()
    assert np.isin(x[4, :, 0].round(9), z[6:10].round(9)).all()


@pytest.mark.parametrize(
    ("formula", "family"), [("ill ~ age", "bernoulli"), ("cost ~ age", "gaussian")]
)
def test_survey_weights_are_over_the_largest(given: Any, formula: str, family: str) -> None:
    cells = table(30)
    _, _, plan, how = given(formula, cells, WEIGHTED, family=family)
    assert plan.weighted
    assert np.array_equal(how["weights"], cells["weight"] / 4)


def test_weights_of_persons_rows_have_their_places(given: Any) -> None:
    cells = table(4) | {"id": np.array(list("abba"))}
    schema = dataclasses.replace(WEIGHTED, person="id", max_rows=2)
    _, _, plan, how = given("region ~ age", cells, schema, family="categorical")
    assert plan.max_rows == 2
    assert np.array_equal(how["weights"], cells["weight"][[[0, 3], [1, 2]]] / 4)


def test_an_offset_is_a_column_whose_weight_is_known(given: Any) -> None:
    """Also of persons with several rows: the column times its weight is the offset less its middle."""
    cells = table(6) | {"id": np.array(list("abbaca"))}
    design = Design("visits ~ region + offset(log(age))", PERSONS, "poisson")
    x, _, plan, how = given(design.formula.text, cells, PERSONS, family="poisson")
    assert (plan.num_features, plan.max_rows) == (3, 3)
    assert np.isnan(how["known"][:2]).all()
    assert how["levels"].tolist() == [True, True, False]
    offset = np.log(cells["age"])[[[0, 3, 5], [1, 2, 2]]] - design.middle_offset
    found = x[:2, :, 2] * how["known"][2]
    assert np.allclose(found[how["mask"][:2]], offset[how["mask"][:2]])
    assert np.abs(x[:, :, 2]).max() <= 1


REFUSED = {
    ("cost ~ age", "gaussian", PERSONS): "may have 3 rows, which bernoulli",
    ("ill ~ age + (1 | region)", "bernoulli", PERSONS): "poisson take without groups, and",
    ("visits ~ age + offset(log(age))", "negbinomial", PERSONS): "groups and offsets: choose",
    ("visits ~ age", "gamma", PERSONS): "may have 3 rows",
    ("ill ~ age + (1 | region)", "bernoulli", WEIGHTED): "take weight out of the schema",
    (
        "visits ~ age",
        "gamma",
        WEIGHTED,
    ): "Survey weights, here 'weight', are for bernoulli and poisson",
}


@pytest.mark.parametrize(("formula", "family", "schema"), REFUSED)
def test_what_no_method_has_is_refused_with_what_to_choose(
    formula: str, family: str, schema: Schema
) -> None:
    with pytest.raises(ValueError, match=REFUSED[formula, family, schema]):
        dp.regress(formula, table(30), schema, family=family, epsilon=1.0)


def test_a_person_with_two_rows_is_refused_where_one_is_said_to_be_all() -> None:
    cells = table(30) | {"id": np.repeat([f"p{number}" for number in range(15)], 2)}
    with pytest.raises(ValueError, match="'id' identifies persons"):
        dp.regress(
            "ill ~ age",
            cells,
            dataclasses.replace(PERSONS, max_rows=1),
            family="bernoulli",
            epsilon=1.0,
        )


def test_intervals_are_of_persons_whose_rows_repeat_each_other() -> None:
    """Three copies of each of 4,000 persons tell no more than one. The estimate is within 6
    deviations of the truth but for one run in millions, and copies that counted as persons would
    have a deviation of 0.6 of the right one.
    """
    one = table(4_000, seed=1)
    thrice = {name: np.repeat(values, 3) for name, values in one.items()}
    several = dp.regress("ill ~ age", thrice, PERSONS, family="bernoulli", epsilon=20.0, delta=1e-6)
    single = dp.regress("ill ~ age", one, SCHEMA, family="bernoulli", epsilon=20.0, delta=1e-6)
    assert several.plan.num_records == 4_000
    assert several.statement.unit.noun == "person"
    assert "persons" in several.statement.about
    deviation = several.draws["age"].std()
    assert abs(several.draws["age"].mean() - 0.06) < 6 * deviation
    assert 0.8 < deviation / single.draws["age"].std() < 1.6
    assert np.isfinite(several.log_density(thrice)).all()
    held_out = {name: np.repeat(values, 2) for name, values in table(500, seed=2).items()}
    other = dataclasses.replace(several, draws=several.predictive)
    found = dp.compare({"a": several, "b": other}, held_out, epsilon=1.0, delta=1e-6)
    assert found.statement.unit.noun == "person"


def test_a_weighted_fit_is_that_of_the_population() -> None:
    """The old with high costs and the young with low ones are three times as frequent in the sample; weights take that back.

    The estimate is within 6 deviations of the slope in all but for one run in millions.
    """
    rng = np.random.default_rng(9)
    cells = table(20_000, seed=3)
    seen = rng.random(20_000) < np.where((cells["cost"] > 35) == (cells["age"] > 50), 0.9, 0.3)
    cells = {name: values[seen] for name, values in cells.items()}
    cells["weight"] = np.where((cells["cost"] > 35) == (cells["age"] > 50), 1.0, 3.0)
    schema = dataclasses.replace(
        WEIGHTED,
        columns=(*SCHEMA.columns[:-1], Column(name="weight", kind=Kind.REAL, bounds=(0, 3))),
    )
    plain = np.polyfit(cells["age"], cells["cost"], 1)[0]
    result = dp.regress("cost ~ age", cells, schema, epsilon=10.0, delta=1e-6)
    mean = result.draws["age"].mean()
    assert abs(mean - 0.5) < min(6 * result.draws["age"].std(), abs(plain - 0.5) / 2)
    assert "results are those of the population" in " ".join(str(result.statement).split())
