"""What cannot be fitted is refused before anything is read or spent, with what to write instead."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from numpyro.handlers import seed, trace

import discreet as dp
from discreet.tabular.formulas import Design
from discreet.tabular.formulas._design import TAKEN
from discreet.tabular.formulas._model import in_units, model_of, records_of
from discreet.tabular.models import FAMILIES
from discreet.tabular.tables import Column, Kind, Missing, Schema

from .test_design import LEFT, SCHEMA, table

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
    "ill ~ (1 | age)": r"columns of categories.*age=1\|2\|3",
    "ill ~ (region | clinic)": r"\(1 \| region:clinic\)",
    "prop(visits, 12) ~ age": "kind binary",
    "Surv(cost, region) ~ age": "kind binary",
    "ill[maybe] ~ age": "no category",
    "cost ~ age": "kind binary",
    # formulae leaves out what follows, without a word.
    "ill ~ age region": "'region' follows what is whole",
    "ill ~ age | clinic": r"\(1 \| clinic\)",
    "ill ~ age > 50": r"I\(age > 50\)",
    "ill ~ age, region": "follows what is whole",
    "ill ~ age) + region": "follows what is whole",
    "ill ~ age % 2": "follows what is whole",
    "ill ~ age**2": r"I\(age\*\*2\)",
    "ill ~ region + (cost**2)": r"I\(age\*\*2\)",
    "ill ~ 5 + age": "the number 5",
    "5 ~ age": "the number 5",
    "ill ~ .5*age": r"I\(0.5 \* x\)",
    "ill ~ age*2": r"I\(0.5 \* age\)",
    "ill ~ -age": r"I\(-age\)",
    "ill ~ age^2": r"I\(age\*\*2\)",
    "ill ~ (1 | clinic[a])": r"I\(clinic == 'a'\)",
    "ill ~ .": "joined by",
    # As brms has it; formulae named its own classes.
    "ill ~ age + (1 + age || clinic)": r"\(1 \+ x \| g\)",
    "visits | trials(12) ~ age": r"prop\(successes, trials\)",
    "cost | cens(ill) ~ age": r"Surv\(time, event\)",
    "ill | weights(cost) ~ age": "schema's weight",
    # NumPy's options: memory that is not set, and results written over another column.
    "ill ~ maximum(age, 50, where=False)": "without a name",
    "ill ~ abs(age, where=False)": "one number",
    "ill ~ sqrt(age, cost) + cost": "one number",
    "ill ~ maximum(age, cost, visits) + visits": "one or two numbers",
    "ill ~ T(region, reference='south')": "its option is ref=",
    "ill ~ S(region, ref='south')": "its option is omit=",
    "ill ~ age + offset(log(visits))": "The offset is not finite",
    "ill ~ age + offset(5)": "the same to every row",
    "ill ~ age + offset(log(5))": "the same to every row",
    "ill ~ age + (log(visits) | clinic)": "not finite",
    "ill ~ age + (I(age > 100) | clinic)": "cannot vary between levels",
}

CODE = [
    "os.system('touch {file}')",
    "I(age.__class__)",
    "I(eval('1') + age)",
    "bs(age, df=exec('1'))",
    "bs(age, knots=np.load('{file}'))",
    "(open('{file}') | clinic)",
    "(1 | open('{file}', 'w'))",
    "offset(np.memmap('{file}'))",
    "I(age)(open('{file}', 'w'))",
    "`open`('{file}', 'w')",
    "np.lib.format.open('{file}')",
    "np.np.log(cost)",
    "C(open('{file}', 'w'))",
    "T(region, ref=open('{file}', 'w'))",
    "log(log(open('{file}', 'w')))",
]


@pytest.mark.parametrize("code", CODE)
def test_a_formula_executes_nothing(code: str, tmp_path: Path) -> None:
    code = code.format(file=tmp_path / "made")
    for formula in (
        f"ill ~ age + {code}",
        f"{code} ~ age",
        f"prop({code}, 3) ~ age",
        f"Surv(cost, {code}) ~ age",
    ):
        with pytest.raises(ValueError, match=r"formula|left side"):
            Design(formula, SCHEMA, "bernoulli")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("formula", "constants", "why"),
    [
        ("ill ~ sqrt(age)", {"sqrt": lambda cells: cells - cells.mean()}, "public number"),
        ("ill ~ I(age - k)", {"k": np.zeros(1024)}, "public number"),
        ("ill ~ I(age - k)", {"k": pandas.Series([1.0])}, "public number"),
        ("ill ~ visits + (ill | clinic)", {"ill": 3}, "a column of the schema"),
    ],
)
def test_constants_are_public_values(formula: str, constants: dict, why: str) -> None:
    """A function of all cells, or numbers by the row's place, would make a row's part depend on others."""
    with pytest.raises(ValueError, match=why):
        Design(formula, SCHEMA, "bernoulli", constants)


def test_names_and_categories_that_results_have_for_other_things() -> None:
    """A coefficient by the name of the family's `shape` was lost, and its interval that of the other."""
    shape = Column(name="shape", kind=Kind.REAL, bounds=(0, 1))
    with pytest.raises(ValueError, match="'shape' has the name"):
        Design("cost ~ age + shape", Schema(columns=(*SCHEMA.columns, shape)), "gamma")
    level = Column(name="region[south]", kind=Kind.REAL, bounds=(0, 1))
    with pytest.raises(ValueError, match="have one name"):
        Design(
            "ill ~ region + `region[south]`", Schema(columns=(*SCHEMA.columns, level)), "bernoulli"
        )
    odd = Column(
        name="odd", kind=Kind.CATEGORICAL, categories=("missing", "b"), missing=Missing.INDICATOR
    )
    with pytest.raises(ValueError, match="'missing' beside the level"):
        Design("ill ~ age + odd", Schema(columns=(*SCHEMA.columns, odd)), "bernoulli")


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_has_a_number_by_another_name(family: str) -> None:
    design = Design(f"{LEFT.get(family, 'visits')} ~ age", SCHEMA, family)
    names = set(in_units(design, model_draws(design)))
    assert {name for name in names if name.isidentifier()} <= {"age", *TAKEN}


def model_draws(design: Design) -> dict[str, np.ndarray]:
    model = model_of(design, whole=True)
    sites = trace(seed(model, 0)).get_trace(records_of(design, design.rows(table())))
    return {
        name: np.asarray(site["value"])[None]
        for name, site in sites.items()
        if site["type"] == "sample" and not site["is_observed"]
    }


def test_more_successes_than_trials() -> None:
    with pytest.raises(ValueError, match="said to be of 5 trials"):
        Design("prop(visits, 5) ~ age", SCHEMA, "binomial")
    design = Design("prop(visits, days) ~ age", SCHEMA, "binomial")
    cells = table() | {"days": np.ones(60, int)}
    with pytest.raises(ValueError, match="more successes than trials"):
        design.rows(cells)
    assert np.max(design.rows(cells, out_of_bounds="clip").y) == 1
    days = dataclasses.replace(SCHEMA.columns[5], missing="indicator")
    schema = Schema(columns=(*SCHEMA.columns[:5], days, *SCHEMA.columns[6:]))
    with pytest.raises(ValueError, match="numbers of trials"):
        Design("prop(visits, days) ~ age", schema, "binomial")


@pytest.mark.parametrize("formula", REFUSED)
def test_a_formula_is_refused_before_a_key_is_used(formula: str) -> None:
    claimed = dp.random.num_claimed()
    with pytest.raises(ValueError, match=REFUSED[formula]):
        dp.regress(formula, table(), SCHEMA, family="bernoulli", epsilon=1.0)
    assert dp.random.num_claimed() == claimed


@pytest.mark.parametrize(
    ("left", "family", "why"),
    [
        ("ill", "poisson", "kind count"),
        ("ill", "negbinomial", "the family negbinomial"),
        ("ill", "hurdle_poisson", "the family hurdle_poisson"),
        ("ill", "zero_inflated_poisson", "the family zero_inflated_poisson"),
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
        ("visits", "negativebinomial", "Did you mean negbinomial"),
    ],
)
def test_a_family_says_what_it_needs(left: str, family: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Design(f"{left} ~ age", SCHEMA, family)


def test_a_schema_is_none_of_its_lines() -> None:
    text: Any = "ill=no|yes,age=20:60"
    with pytest.raises(TypeError, match=r"schema is a str: .*schema_from_bounds"):
        Design("ill ~ age", text, "bernoulli")


def test_an_offset_of_categories_says_nothing() -> None:
    with pytest.raises(ValueError, match="the same to all categories"):
        Design("region ~ age + offset(visits)", SCHEMA, "categorical")


def test_cells_outside_are_refused_without_a_value() -> None:
    cells = table() | {"age": np.full(60, 12.75)}
    with pytest.raises(ValueError, match="'age' has values outside its public bounds") as refused:
        dp.regress("ill ~ age", cells, SCHEMA, family="bernoulli", epsilon=1.0)
    assert "12.75" not in str(refused.value)
    assert Design("ill ~ age", SCHEMA, "bernoulli").rows(cells, out_of_bounds="clip").x[0, 0] == 20


def test_too_many_effects() -> None:
    groups = tuple(map(str, range(600)))
    schema = Schema(
        columns=(*SCHEMA.columns, Column(name="group", kind=Kind.CATEGORICAL, categories=groups))
    )
    cells = table() | {"group": np.resize(groups, 60)}
    with pytest.raises(ValueError, match="too large for a fit with intervals"):
        dp.regress("ill ~ age + (1 | group)", cells, schema, family="bernoulli", epsilon=1.0)


def test_a_family_refuses_noise_under_which_its_intervals_are_false() -> None:
    with pytest.raises(ValueError, match="too few for the family"):
        dp.regress("cost ~ age", table(), SCHEMA, family="student", epsilon=1.0)


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


@pytest.mark.parametrize(
    ("family", "line", "remedy"),
    [
        ("poisson", "y=0:20", "in a line of bounds by y=0..20"),
        ("cumulative", "y=a|b|c", "in a line of bounds by y=a<b<c"),
    ],
)
def test_a_line_of_bounds_can_say_what_a_family_needs(family: str, line: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        Design("y ~ x", dp.tables.schema_from_bounds(f"x=0:1,{line}"), family)
    written = remedy.rpartition(" ")[2]
    assert Design("y ~ x", dp.tables.schema_from_bounds(f"x=0:1,{written}"), family).names == ("x",)
