"""Columns follow from the schema alone, are those of formulae and of hand, and draws come back to their units exactly."""

import dataclasses
import datetime
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from formulae import design_matrices
from numpyro.handlers import seed, substitute, trace

from discreet.tabular.formulas import Design
from discreet.tabular.formulas._model import (
    features,
    in_units,
    mean_of,
    model_of,
    name_of,
    prior_of,
    records_of,
)
from discreet.tabular.models import FAMILIES
from discreet.tabular.tables import Column, DataError, Kind, Schema

REGIONS = ("north", "south", "west")
CLINICS = ("a", "b", "c", "d")
SCHEMA = Schema(
    columns=(
        Column(name="ill", kind=Kind.BINARY, categories=("no", "yes")),
        Column(name="age", kind=Kind.REAL, bounds=(20, 80)),
        Column(name="visits", kind=Kind.COUNT, bounds=(0, 12)),
        Column(name="cost", kind=Kind.REAL, bounds=(1, 200)),
        Column(name="share", kind=Kind.REAL, bounds=(0.01, 0.99)),
        Column(name="days", kind=Kind.COUNT, bounds=(1, 365)),
        Column(
            name="born",
            kind=Kind.DATE,
            bounds=(datetime.date(1940, 1, 1), datetime.date(2000, 1, 1)),
        ),
        Column(name="region", kind=Kind.CATEGORICAL, categories=REGIONS),
        Column(name="clinic", kind=Kind.CATEGORICAL, categories=CLINICS),
        Column(name="pain", kind=Kind.ORDERED, categories=("none", "some", "much")),
    ),
)


def table(size: int = 60) -> dict:
    rng = np.random.default_rng(1)
    return {
        "ill": rng.choice(["no", "yes"], size),
        "age": rng.uniform(30, 40, size),
        "visits": rng.integers(0, 9, size),
        "cost": rng.uniform(1, 90, size),
        "share": rng.uniform(0.1, 0.8, size),
        "days": rng.integers(1, 365, size),
        "born": np.datetime64("1950-01-01") + rng.integers(0, 9000, size),
        "region": rng.choice(REGIONS[:2], size),  # one level does not occur
        "clinic": rng.choice(CLINICS, size),
        "pain": rng.choice(["none", "some", "much"], size),
    }


RIGHT = [
    "age",
    "age * region",
    "age + I(age**2) + region:clinic",
    "bs(age, df=5) + np.log(cost) + pain",
    "S(region) * age + T(clinic, ref='b')",
    "region + region:age + {cost / days} + I(age > 50)",
    "bs(age, df=4) + I(visits**3) + np.exp(cost / 200):region",
    "born + np.minimum(cost, 50)",
    "I(bs(age, df=4)**2) + np.round(cost, 1)",
]


@pytest.mark.parametrize("right", RIGHT)
def test_columns_are_those_of_formulae_on_a_table_with_every_level(right: str) -> None:
    """formulae has the levels, and a spline its knots, from the table that it is first given: here the design's template."""
    design = Design(f"ill ~ {right}", SCHEMA, "bernoulli")
    cells = table()
    if "S(" in right:  # formulae refuses a table in which a level does not occur
        cells["region"] = np.resize(REGIONS, 60)
    rows = design.rows(cells)
    made = design_matrices(right, design._template())
    frame = {}
    for column in design.schema.columns:
        if column.bounds is None:
            frame[column.name] = pandas.Categorical(
                cells[column.name], column.categories, ordered=True
            )
        else:
            days = np.asarray(cells[column.name])
            frame[column.name] = (
                (days - np.datetime64("1970-01-01")).astype(float)
                if column.kind is Kind.DATE
                else days
            )
    expected = np.asarray(made.common.evaluate_new_data(pandas.DataFrame(frame)))
    assert np.allclose(rows.x, expected[:, 1:])
    assert design.names == tuple(made.common.as_dataframe().columns[1:])


def test_columns_made_by_hand() -> None:
    design = Design("ill ~ age * region + pain:I(visits - 5)", SCHEMA, "bernoulli")
    cells = {"ill": ["no"], "age": [31.0], "region": ["west"], "pain": ["some"], "visits": [3]}
    found = dict(zip(design.names, design.rows(cells).x[0].tolist(), strict=True))
    assert found["age"] == 31
    assert (found["region[south]"], found["region[west]"]) == (0, 1)
    assert (found["age:region[south]"], found["age:region[west]"]) == (0, 31)
    assert (found["pain[some]:I(visits - 5)"], found["pain[much]:I(visits - 5)"]) == (-2, 0)


@pytest.mark.parametrize("right", [*RIGHT, "age + (1 + age | clinic) + offset(log(days))"])
def test_a_row_depends_on_its_cells_alone(right: str) -> None:
    design = Design(f"ill ~ {right}", SCHEMA, "bernoulli")
    whole = design.rows(table())
    for place in (0, 7, 59):
        alone = design.rows({name: cells[[place]] for name, cells in table().items()})
        assert np.array_equal(features(design, alone), features(design, whole)[[place]])
        for name, values in records_of(design, alone).items():
            assert np.array_equal(values, records_of(design, whole)[name][[place]])


@pytest.mark.parametrize("right", RIGHT)
def test_fitted_columns_lie_about_the_unit_and_hardly_correlate(right: str) -> None:
    design = Design(f"ill ~ {right}", SCHEMA, "bernoulli")
    z = design._common(design._template())[:, design.kept] @ design.to - design.centre
    assert np.abs(z).max() <= 1 + 1e-9
    numbers = z[:, ~design.levels]
    gram = np.column_stack([np.ones(len(z)), numbers]).T @ numbers
    apart = gram[1:] - np.diag(np.diag(gram[1:]))
    assert np.abs(apart).max() < 1e-6 * len(z)
    assert np.abs(gram[0]).max() < 1e-6 * len(z)


def test_names_have_the_brackets_of_the_formula() -> None:
    design = Design(
        "ill ~ I((age - 50) / 10) + I(age - 50 / 10 + visits) + I(-visits**2)", SCHEMA, "bernoulli"
    )
    assert design.names[0] == "I((age - 50) / 10)"
    assert design.names[1:] == ("I((age - (50 / 10)) + visits)", "I((-visits) ** 2)")


def test_a_column_in_two_terms_has_the_coding_of_each() -> None:
    nested = Design("ill ~ region / age", SCHEMA, "bernoulli")
    assert nested.names == Design("ill ~ region + region:age", SCHEMA, "bernoulli").names


@pytest.mark.parametrize("exponent", ["1.3", "2.7", "5"])
def test_powers_of_splines_do_not_depend_on_the_place(exponent: str) -> None:
    """NumPy's power of an array may round by the place in it."""
    design = Design(f"ill ~ I((bs(age, df=4) + 2)**{exponent})", SCHEMA, "bernoulli")
    cells = {name: np.resize(values, 1024) for name, values in table().items()}
    whole = design.rows(cells).x
    for value, row in zip(bs_of(cells["age"][:60]), whole[:60], strict=True):
        assert row.tolist() == [pow(x + 2, float(exponent)) for x in value.tolist()]


def bs_of(age: np.ndarray) -> np.ndarray:
    cells = {name: values[: len(age)] for name, values in table().items()} | {"age": age}
    return Design("ill ~ bs(age, df=4)", SCHEMA, "bernoulli").rows(cells).x


def test_missing_cells_as_the_schema_says() -> None:
    columns = {column.name: column for column in SCHEMA.columns}
    columns["age"] = dataclasses.replace(columns["age"], missing="indicator")
    columns["region"] = dataclasses.replace(columns["region"], missing="indicator")
    columns["ill"] = dataclasses.replace(columns["ill"], missing="drop")
    schema = Schema(columns=tuple(columns.values()))
    design = Design("ill ~ age + region", schema, "bernoulli")
    assert design.names == (
        "age",
        "region[south]",
        "region[west]",
        "region[missing]",
        "age is missing",
    )
    rows = design.rows(
        {"ill": ["no", None, "yes"], "age": [30.0, 40.0, None], "region": ["west", "north", None]}
    )
    assert rows.x.tolist() == [[30, 0, 1, 0, 0], [40, 0, 0, 0, 0], [50, 0, 0, 1, 1]]
    assert rows.present.tolist() == [True, False, True]
    columns["ill"] = dataclasses.replace(columns["ill"], missing="indicator")
    with pytest.raises(DataError, match="its missing cells cannot be explained"):
        Design("ill ~ age", Schema(columns=tuple(columns.values())), "bernoulli")


LEFT = {
    "gaussian": "cost",
    "student": "cost",
    "bernoulli": "ill",
    "binomial": "prop(visits, 12)",
    "categorical": "region",
    "cumulative": "pain",
    "gamma": "cost",
    "beta": "share",
    "weibull": "Surv(cost, ill)",
    "piecewise": "Surv(cost, ill)",
}
EFFECTS = "age * clinic + offset(log(days) / 9) + (1 + age | ill:clinic) + (1 | pain)"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("right", ["age * clinic", EFFECTS])
def test_draws_in_units_have_the_model_s_means(family: str, right: str) -> None:
    """The model as fitted, at some latents, and the formula's coefficients on the columns as they are, say the same."""
    left = LEFT.get(family, "visits")
    for taken, other in (("ill", "region"), ("pain", "region")):
        if taken in left:
            right = right.replace(taken, other)
    if family == "categorical":
        right = right.replace("offset(log(days) / 9) + ", "")
    design = Design(f"{left} ~ {right}", SCHEMA, family)
    rows = design.rows(table())
    records = records_of(design, rows)
    latents = {name: value[:3] for name, value in prior_of(design).items()}
    others = {
        "sigma": 0.3,
        "nu": 4.0,
        "shape": 1.7,
        "precision": 5.0,
        "zero": 0.2,
        "concentration": 2.0,
    }
    model = model_of(design, whole=True)
    sites = trace(seed(model, 0)).get_trace(records)
    latents |= {name: np.full(3, others[name]) for name in sites if name in others}
    assert {name for name, site in sites.items() if site["type"] == "sample"} == {"y", *latents}
    means = mean_of(design, rows, in_units(design, latents))
    middle, width = design.unit
    for draw in range(3):
        at = {name: value[draw] for name, value in latents.items()}
        fn = trace(substitute(seed(model, 0), data=at)).get_trace(records)["y"]["fn"].base_dist
        expected = expected_of(family, fn)
        assert np.allclose(means[draw], expected * width + middle, rtol=5e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["bernoulli", "categorical", "cumulative"])
def test_an_element_of_a_latent_has_the_name_of_what_it_moves(family: str) -> None:
    right = "age * clinic + (1 + age | ill:clinic) + (1 | clinic)".replace("ill", "region")
    left = LEFT[family]
    if left == "region":
        right = right.replace("region", "ill")
    design = Design(f"{left} ~ {right}", SCHEMA, family)
    latents = {name: value[:1] for name, value in prior_of(design).items()}
    before = in_units(design, latents)
    for site, value in latents.items():
        for place in np.ndindex(value.shape[1:]):
            changed = np.array(value)
            changed[(0, *place)] += 1
            after = in_units(design, {**latents, site: changed})
            moved = {name for name in before if after[name] != before[name]}
            if site.startswith(("weights", "slope_", "spread_", "effects_")):
                assert any(x.endswith(name_of(design, site, place)) for x in moved), (site, place)
            else:
                assert name_of(design, site, place).startswith(site)


def expected_of(family: str, fn: Any) -> np.ndarray:
    """The mean of a target as the model has it, of categories their probabilities."""
    if family in ("weibull", "piecewise"):
        # The integral of survival, to the bound for hazards in bands.
        times = np.append(0, np.geomspace(1e-8, 1 if family == "piecewise" else 1e6, 20_000))
        alive = jax.vmap(lambda time: jnp.exp(-fn.cumulative(jnp.full(fn.batch_shape, time))))(
            jnp.asarray(times)
        )
        return np.asarray(np.trapezoid(np.asarray(alive, np.float64), times, axis=0))
    if family in ("bernoulli", "binomial", "categorical", "cumulative"):
        return np.asarray(fn.probs)
    return np.asarray(fn.mean)


@pytest.mark.parametrize("family", ["poisson", "gaussian", "cumulative", "weibull"])
def test_a_unit_of_the_exposure_moves_the_intercept_alone(family: str) -> None:
    """Otherwise a rate for each day, or for each century, would be far from the prior of the intercept, where a fit starts."""
    by_day, by_century = (
        Design(f"{LEFT.get(family, 'visits')} ~ age + offset(log(days / {unit}))", SCHEMA, family)
        for unit in (1, 36_525)
    )
    records = records_of(by_day, by_day.rows(table()))
    assert np.allclose(
        records["offset"], records_of(by_century, by_century.rows(table()))["offset"], atol=1e-5
    )
    evenly = {**table(365), "days": np.arange(1, 366)}
    width = by_day.unit[1] if family == "gaussian" else 1
    assert abs(records_of(by_day, by_day.rows(evenly))["offset"].mean() * width) < 0.1
    draws = prior_of(by_day)
    first = in_units(by_day, draws)
    second = in_units(by_century, draws)
    for name, values in first.items():
        moved = np.log(36_525) * (-1 if name.startswith("threshold") else 1)
        assert np.allclose(
            second[name] - values, moved if name.startswith(("Intercept", "threshold")) else 0
        )
