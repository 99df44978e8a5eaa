"""How often `dp.check` says that a model does not fit, of right models and of wrong ones.

`python -m benchmarks.checks` prints a line for each case: tables that were said not to fit, and the
p-values. Each table has 10,000 records with features that go together, 16 slices of numbers, ε = 1
for the fit and ε = 1 for the counts. Arguments: names of cases; --tables 8, --seed 0.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import discreet as dp
from discreet.tabular.criticism import Check
from discreet.tabular.tables import Column, Kind, OutOfBounds, Schema

NUM_RECORDS = 10_000
EPSILON = 1.0
REGIONS = ("north", "south", "west")
CLINICS = tuple(f"clinic {number}" for number in range(8))
RIGHT = "age + bmi + region"
FEATURES = (
    Column(name="age", kind=Kind.REAL, bounds=(20, 80)),
    Column(name="bmi", kind=Kind.REAL, bounds=(15, 45)),
    Column(name="region", kind=Kind.CATEGORICAL, categories=REGIONS),
)
BINARY = Column(name="y", kind=Kind.BINARY, categories=("no", "yes"))
COUNT = Column(name="y", kind=Kind.COUNT, bounds=(0, 30), out_of_bounds=OutOfBounds.CLIP)
CLINIC = Column(name="clinic", kind=Kind.CATEGORICAL, categories=CLINICS)
YEARS = Column(name="years", kind=Kind.REAL, bounds=(0.25, 4))

Cells = dict[str, Any]
Case = tuple[
    str, str, tuple[Column, ...], Callable[[np.random.Generator, Cells, np.ndarray], Cells]
]


def people(rng: np.random.Generator) -> tuple[Cells, np.ndarray]:
    """Features with correlations, and the predictor around 0."""
    age = rng.normal(48, 13, NUM_RECORDS).clip(20, 80)
    bmi = (27 + 0.15 * (age - 48) + rng.normal(0, 4, NUM_RECORDS)).clip(15, 45)
    region = (rng.random(NUM_RECORDS) + 0.01 * (age - 48) > np.array([[0.5], [0.85]])).sum(axis=0)
    effects = rng.normal(0, [0.02, 0.06, 0.4, 0.4])
    predictor = effects[0] * (age - 48) + effects[1] * (bmi - 27)
    predictor = predictor + np.array([0.0, effects[2], effects[3]])[region]
    return {"age": age, "bmi": bmi, "region": np.array(REGIONS)[region]}, predictor


def _yes(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    return np.where(rng.random(len(logits)) < 1 / (1 + np.exp(-logits)), "yes", "no")


def _binary(start: float) -> Callable[..., Cells]:
    return lambda rng, cells, eta: {"y": _yes(rng, start + eta)}


def _poisson(start: float) -> Callable[..., Cells]:
    return lambda rng, cells, eta: {"y": rng.poisson(np.exp(start + eta))}


def _scattered(start: float, k: float) -> Callable[..., Cells]:
    def drawn(rng: np.random.Generator, cells: Cells, eta: np.ndarray) -> Cells:
        return {"y": rng.poisson(np.exp(start + eta) * rng.gamma(k, 1 / k, len(eta)))}

    return drawn


def _line(rng: np.random.Generator, cells: Cells, eta: np.ndarray) -> Cells:
    return {"y": (30 + 10 * (eta + rng.normal(size=len(eta)))).clip(-20, 80)}


def _classes(rng: np.random.Generator, cells: Cells, eta: np.ndarray) -> Cells:
    logits = np.stack([eta, -eta, 0 * eta], axis=1)
    return {"y": np.array(["a", "b", "c"])[(logits + rng.gumbel(size=logits.shape)).argmax(axis=1)]}


def _sizes(rng: np.random.Generator, cells: Cells, eta: np.ndarray) -> Cells:
    return {"y": (np.exp(2 + eta) / 2 * rng.gamma(2.0, size=len(eta))).clip(0.5, 100)}


def _in_clinics(rng: np.random.Generator, cells: Cells, eta: np.ndarray) -> Cells:
    clinic = rng.integers(len(CLINICS), size=len(eta))
    effects = rng.normal(0, 0.5, len(CLINICS))
    return {"clinic": np.array(CLINICS)[clinic], "y": _yes(rng, eta - 0.5 + effects[clinic])}


def _by_years(start: float) -> Callable[..., Cells]:
    def drawn(rng: np.random.Generator, cells: Cells, eta: np.ndarray) -> Cells:
        years = rng.exponential(1.5, len(eta)).clip(0.25, 4)
        return {"years": years, "y": rng.poisson(years * np.exp(start + eta))}

    return drawn


def _bent(rng: np.random.Generator, cells: Cells, eta: np.ndarray) -> Cells:
    return {"y": _yes(rng, eta - 0.5 + 0.6 * np.square((cells["age"] - 48) / 13))}


REAL = Column(name="y", kind=Kind.REAL, bounds=(-20, 80))
CLASSES = Column(name="y", kind=Kind.CATEGORICAL, categories=("a", "b", "c"))
SIZES = Column(name="y", kind=Kind.REAL, bounds=(0.5, 100))
BY_YEARS = f"y ~ {RIGHT} + offset(log(years))"
RIGHT_ONES: dict[str, Case] = {
    "bernoulli": ("bernoulli", f"y ~ {RIGHT}", (BINARY,), _binary(-0.5)),
    "bernoulli of 2 %": ("bernoulli", f"y ~ {RIGHT}", (BINARY,), _binary(-4.0)),
    "bernoulli of clinics": (
        "bernoulli",
        f"y ~ {RIGHT} + (1 | clinic)",
        (BINARY, CLINIC),
        _in_clinics,
    ),
    "categorical": ("categorical", f"y ~ {RIGHT}", (CLASSES,), _classes),
    "gaussian": ("gaussian", f"y ~ {RIGHT}", (REAL,), _line),
    "gamma": ("gamma", f"y ~ {RIGHT}", (SIZES,), _sizes),
    "poisson": ("poisson", f"y ~ {RIGHT}", (COUNT,), _poisson(0.7)),
    "poisson by years": ("poisson", BY_YEARS, (COUNT, YEARS), _by_years(0.3)),
    "rare counts by years": ("poisson", BY_YEARS, (COUNT, YEARS), _by_years(-3.0)),
    "negbinomial": ("negbinomial", f"y ~ {RIGHT}", (COUNT,), _scattered(0.7, 2.0)),
}
WRONG_ONES: dict[str, Case] = {
    "overdispersed": ("poisson", f"y ~ {RIGHT}", (COUNT,), _scattered(0.7, 2.0)),
    "little overdispersed": ("poisson", f"y ~ {RIGHT}", (COUNT,), _scattered(0.7, 6.0)),
    "without the square": ("bernoulli", f"y ~ {RIGHT}", (BINARY,), _bent),
    "without years": ("poisson", f"y ~ {RIGHT}", (COUNT, YEARS), _by_years(0.3)),
    "without clinics": ("bernoulli", f"y ~ {RIGHT}", (BINARY, CLINIC), _in_clinics),
}
CASES = RIGHT_ONES | WRONG_ONES


def checked(name: str, seed: int) -> Check:
    """Draw a table of a case, fit it, count it, and check the fit."""
    family, formula, columns, drawn = CASES[name]
    rng = np.random.default_rng([seed, len(name)])
    cells, predictor = people(rng)
    table = cells | drawn(rng, cells, predictor)
    schema = Schema(columns=(*FEATURES, *columns), target="y", each_row=True)
    terms: dict[str, Any] = {"epsilon": EPSILON, "delta": 1e-6}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = dp.regress(formula, table, schema, family=family, progress_bar=False, **terms)
        counts = dp.describe(table, schema, pairs="all", slices=16, **terms)
        return dp.check(result, counts)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for name in asked.cases:
        start = time.process_time()
        found = [checked(name, asked.seed + number) for number in range(asked.tables)]
        seconds = (time.process_time() - start) / asked.tables
        alarms = sum(not check.fits for check in found)
        listed = " ".join(f"{check.p:.3f}" for check in sorted(found, key=lambda check: check.p))
        print(
            f"{name:22} {alarms:2} of {len(found)} do not fit   p {listed}   {seconds:.0f} s each",
            flush=True,
        )


if __name__ == "__main__":
    main()
