"""What cannot be fitted is refused before anything is read or spent, with what to write instead."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

import discreet as dp
from discreet.tabular.formulas import Design
from discreet.tabular.tables import Column, Kind, Schema

from .test_design import SCHEMA, table

LOOKS = "looks at the cells"
REFUSED = {
    "ill ~ scale(age)": rf"{LOOKS}.*I\(\(x - 50\) / 10\)",
    "ill ~ region + center(age):region": rf"{LOOKS}.*I\(x - 50\)",
    "ill ~ standardize(log(cost))": LOOKS,
    "ill ~ log(scale(cost))": LOOKS,
    "ill ~ poly(age, 2)": rf"{LOOKS}.*I\(x\*\*2\)",
    "ill ~ (scale(age) | clinic)": LOOKS,
    "ill ~ cr(age, df=4)": rf"{LOOKS}.*bs\(x, df=4\)",
    "ill ~ np.mean(age)": "not known to work cell by cell",
    "ill ~ lgo(cost)": "did you mean log",
    "ill ~ I(age - np.median(age))": "not known to work cell by cell",
    "ill ~ __import__('os')": "not known to work cell by cell|cannot be read",
    "ill ~ aeg": "did you mean age",
    "ill ~": "cannot be read",
    "~ age": "cannot be read",
    "age + region": "no left side",
    "ill ~ 1": "no column on its right side",
    "ill ~ 0 + age": "no intercept",
    "ill ~ age - 1": "no intercept",
    "ill ~ ill + age": "by itself",
    "ill ~ region[north]": r"I\(region == 'north'\)",
    "log(cost) ~ age": "left side",
    "scale(ill) ~ age": "left side",
    "ill ~ log(visits)": "not finite",
    "ill ~ age + I(2 * age)": "follows from the others",
    "ill ~ C(age)": "columns of categories",
    "ill ~ (1 | age)": "columns of categories",
    "ill ~ (region | clinic)": r"\(1 \| region:clinic\)",
    "prop(visits, 12) ~ age": "kind binary",
    "Surv(cost, region) ~ age": "kind binary",
    "ill[maybe] ~ age": "no category",
    "cost ~ age": "kind binary",
}


@pytest.mark.parametrize("formula", REFUSED)
def test_a_formula_is_refused_before_a_key_is_used(formula: str) -> None:
    key = dp.random.key()
    with pytest.raises(ValueError, match=REFUSED[formula]):
        dp.regress(formula, table(), SCHEMA, family="bernoulli", epsilon=1.0, rng_key=key)
    assert not dp.random.is_used(key)


@pytest.mark.parametrize(
    ("left", "family", "why"),
    [
        ("ill", "poisson", "kind count"),
        ("pain", "gaussian", "kind real"),
        ("region", "cumulative", "kind ordered"),
        ("visits", "gamma", "above 0"),
        ("cost", "beta", "within 0 and 1"),
        ("visits", "binomial", "prop"),
        ("cost", "weibull", "Surv"),
        ("Surv(cost, region)", "weibull", "kind binary"),
        ("prop(visits, 12)", "poisson", "explains a column"),
        ("prop(visits, region)", "binomial", "numbers of trials"),
        ("prop(visits, days)", "poisson", "explains a column"),
        ("visits", "normal", "must be one of"),
    ],
)
def test_a_family_says_what_it_needs(left: str, family: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Design(f"{left} ~ age", SCHEMA, family)


def test_an_offset_of_categories_says_nothing() -> None:
    with pytest.raises(ValueError, match="the same to all categories"):
        Design("region ~ age + offset(visits)", SCHEMA, "categorical")


def test_cells_outside_are_refused_without_a_value() -> None:
    cells = table() | {"age": np.full(60, 12.75)}
    with pytest.raises(ValueError, match="'age' has values outside its public bounds") as refused:
        dp.regress("ill ~ age", cells, SCHEMA, family="bernoulli", epsilon=1.0)
    assert "12.75" not in str(refused.value)
    assert Design("ill ~ age", SCHEMA, "bernoulli").rows(cells, out_of_bounds="clip").x[0, 0] == 20


def test_persons_with_several_rows_and_too_many_effects() -> None:
    persons = dataclasses.replace(SCHEMA, person="id", max_rows=3)
    with pytest.raises(ValueError, match="one row per person"):
        Design("ill ~ age", persons, "bernoulli")
    groups = tuple(map(str, range(600)))
    schema = Schema(columns=(*SCHEMA.columns, Column(name="group", kind=Kind.CATEGORICAL, categories=groups)))
    cells = table() | {"group": np.resize(groups, 60)}
    with pytest.raises(ValueError, match="too large for a fit with intervals"):
        dp.regress("ill ~ age + (1 | group)", cells, schema, family="bernoulli", epsilon=1.0)


@pytest.mark.parametrize("family", ["hurdle_poisson", "hurdle_negbinomial", "student"])
def test_families_refuse_noise_under_which_their_intervals_are_false(family: str) -> None:
    left = "cost" if family == "student" else "visits"
    with pytest.raises(ValueError, match="too few for the family"):
        dp.regress(f"{left} ~ age", table(), SCHEMA, family=family, epsilon=1.0)


def test_without_formulae_the_error_names_the_extra() -> None:
    code = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "formulae" else find(name, package)
import discreet as dp
schema = dp.tables.schema_from_bounds("age=20:60,ill=no|yes")
dp.regress("ill ~ age", {"age": [30.0], "ill": ["no"]}, schema, family="bernoulli", epsilon=1.0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'discreet[formula]'" in done.stderr
