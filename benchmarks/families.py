"""How often the 90 % intervals of `dp.regress` hold the truth that drew a table, for each family.

`python -m benchmarks.families` prints a line for each family, number of records and ε: the share of
intervals that hold, of coefficients and of other latents. Arguments: names of families; --fits 6,
--records 2000 20000, --epsilon 0.5 3; --groups 10 adds effects of ten clinics, (1 | clinic).
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import discreet as dp
from discreet._validate import RefusedError
from discreet.tabular.formulas import Regression
from discreet.tabular.tables import Column, Kind, Schema

NUM_CLINICS = 10
RIGHT = "age + dose + region"
REGIONS = ("north", "south", "west")
Drawn = tuple[dict[str, Any], Column | tuple[Column, ...], str, dict[str, float]]
RANKS = ("none", "mild", "severe", "worst")


def predictors(
    rng: np.random.Generator, size: int
) -> tuple[dict[str, Any], np.ndarray, dict[str, float]]:
    """Columns, the predictor without its constant, and the coefficients."""
    age = rng.normal(45, 12, size).clip(20, 80)
    dose = rng.exponential(1.0, size).clip(0, 6)
    region = rng.choice(3, size, p=[0.5, 0.35, 0.15])
    truth = {
        "age": rng.normal(0, 0.02),
        "dose": rng.normal(0, 0.25),
        "region[south]": rng.normal(0, 0.4),
        "region[west]": rng.normal(0, 0.4),
    }
    levels = np.array([0, truth["region[south]"], truth["region[west]"]])
    predictor = truth["age"] * (age - 45) + truth["dose"] * (dose - 1) + levels[region]
    return {"age": age, "dose": dose, "region": np.array(REGIONS)[region]}, predictor, truth


def constant(start: float, truth: dict[str, float]) -> dict[str, float]:
    """The coefficients with the intercept, when `start` is the predictor at age 45 and dose 1."""
    return {"Intercept": start - 45 * truth["age"] - truth["dose"], **truth}


def _count(most: int) -> Column:
    return Column(name="y", kind=Kind.COUNT, bounds=(0, most), out_of_bounds="clip")  # type: ignore[arg-type]


def _bernoulli(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    yes = rng.random(len(eta)) < 1 / (1 + np.exp(0.5 - eta))
    column = Column(name="y", kind=Kind.BINARY, categories=("no", "yes"))
    return cells | {"y": np.where(yes, "yes", "no")}, column, "y", constant(-0.5, truth)


def _binomial(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    trials = rng.integers(1, 9, len(eta))
    y = rng.binomial(trials, 1 / (1 + np.exp(0.5 - eta)))
    columns = (_count(8), Column(name="trials", kind=Kind.COUNT, bounds=(1, 8)))
    return cells | {"y": y, "trials": trials}, columns, "prop(y, trials)", constant(-0.5, truth)


def _categorical(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    logits = np.stack([eta, -eta, 0 * eta], axis=1)
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    found = {}
    for place, name in enumerate(("a", "b", "c")):
        sign = (1, -1, 0)[place]
        found |= {f"{name}: {of}": sign * value for of, value in constant(0.0, truth).items()}
    column = Column(name="y", kind=Kind.CATEGORICAL, categories=("a", "b", "c"))
    return cells | {"y": np.array(["a", "b", "c"])[y]}, column, "y", found


def _cumulative(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    cuts = np.array([-1.0, 0.5, 1.8])
    y = ((eta + rng.logistic(size=len(eta)))[:, None] > cuts).sum(axis=1)
    shift = constant(0.0, truth)["Intercept"]
    names = [f"threshold[{a}|{b}]" for a, b in itertools.pairwise(RANKS)]
    column = Column(name="y", kind=Kind.ORDERED, categories=RANKS)
    found = truth | {name: float(cut - shift) for name, cut in zip(names, cuts, strict=True)}
    return cells | {"y": np.array(RANKS)[y]}, column, "y", found


def _gaussian(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    y = (30 + 10 * (eta + rng.normal(size=len(eta)))).clip(-20, 80)
    found = {name: 10 * value for name, value in truth.items()}
    column = Column(name="y", kind=Kind.REAL, bounds=(-20, 80))
    return cells | {"y": y}, column, "y", constant(30.0, found) | {"sigma": 10.0}


def _student(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    y = (30 + 10 * (eta + 0.7 * rng.standard_t(4, len(eta)))).clip(-100, 160)
    found = {name: 10 * value for name, value in truth.items()}
    column = Column(name="y", kind=Kind.REAL, bounds=(-100, 160))
    return cells | {"y": y}, column, "y", constant(30.0, found) | {"sigma": 7.0, "nu": 3.0}


def _gamma(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    y = (np.exp(2 + eta) / 2 * rng.gamma(2.0, size=len(eta))).clip(0.01, 200)
    column = Column(name="y", kind=Kind.REAL, bounds=(0.01, 200))
    return cells | {"y": y}, column, "y", constant(2.0, truth) | {"shape": 2.0}


def _beta(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    mean = 1 / (1 + np.exp(0.5 - eta))
    y = rng.beta(6 * mean, 6 * (1 - mean)).clip(0.001, 0.999)
    column = Column(name="y", kind=Kind.REAL, bounds=(0.001, 0.999))
    return cells | {"y": y}, column, "y", constant(-0.5, truth) | {"precision": 6.0}


def _poisson(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    return cells | {"y": rng.poisson(np.exp(0.7 + eta))}, _count(100), "y", constant(0.7, truth)


def _negbinomial(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    y = rng.poisson(np.exp(0.7 + eta) * rng.gamma(1.5, 1 / 1.5, len(eta)))
    return cells | {"y": y}, _count(100), "y", constant(0.7, truth) | {"concentration": 1.5}


def _inflated(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    y = rng.poisson(np.exp(0.9 + eta)) * (rng.random(len(eta)) > 0.3)
    return cells | {"y": y}, _count(100), "y", constant(0.9, truth) | {"zero": 0.3}


def _inflated_scattered(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    y = rng.poisson(np.exp(1.2 + eta) * rng.gamma(3.0, 1 / 3.0, len(eta))) * (
        rng.random(len(eta)) > 0.3
    )
    return (
        cells | {"y": y},
        _count(200),
        "y",
        constant(1.2, truth) | {"zero": 0.3, "concentration": 3.0},
    )


def _above_zero(rng: np.random.Generator, rates: np.ndarray) -> np.ndarray:
    y = np.zeros(len(rates), int)
    while (none := y == 0).any():
        y[none] = rng.poisson(rates[none])
    return y


def _hurdle(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    y = _above_zero(rng, np.exp(0.9 + eta)) * (rng.random(len(eta)) > 0.4)
    return cells | {"y": y}, _count(100), "y", constant(0.9, truth) | {"zero": 0.4}


def _hurdle_scattered(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    y = np.zeros(len(eta), int)
    while (none := y == 0).any():
        y[none] = rng.poisson(np.exp(1.2 + eta[none]) * rng.gamma(3.0, 1 / 3.0, none.sum()))
    y = y * (rng.random(len(eta)) > 0.4)
    return (
        cells | {"y": y},
        _count(200),
        "y",
        constant(1.2, truth) | {"zero": 0.4, "concentration": 3.0},
    )


def _times(rng: np.random.Generator, cells: dict[str, Any], times: np.ndarray) -> dict[str, Any]:
    end = rng.uniform(2, 60, len(times))
    died = times < end
    return cells | {"y": np.minimum(times, end).clip(0, 60), "dead": np.where(died, "yes", "no")}


_TIME = (
    Column(name="y", kind=Kind.REAL, bounds=(0, 60)),
    Column(name="dead", kind=Kind.BINARY, categories=("no", "yes")),
)


def _weibull(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    times = np.exp(3 + eta) * rng.weibull(1.5, len(eta))
    return _times(rng, cells, times), _TIME, "Surv(y, dead)", constant(3.0, truth) | {"shape": 1.5}


def _piecewise(
    rng: np.random.Generator, cells: dict[str, Any], eta: np.ndarray, truth: dict[str, float]
) -> Drawn:
    logs = np.array([0.0, 0.3, 0.5, 0.2, 0.0, -0.3])
    hazards = np.exp(-3.2 + logs)
    left = rng.exponential(size=len(eta)) * np.exp(-eta)
    before = np.append(0, np.cumsum(hazards * 10))
    bands = np.minimum(np.searchsorted(before, left, side="right") - 1, 5)
    times = 10 * bands + (left - before[bands]) / hazards[bands]
    edges = [f"log hazard[{10 * k} to {10 * k + 10}]" for k in range(1, 6)]
    others = dict(zip(edges, logs[1:].tolist(), strict=True))
    return _times(rng, cells, times), _TIME, "Surv(y, dead)", constant(-3.2, truth) | others


FAMILIES: dict[str, Callable[..., Drawn]] = {
    "gaussian": _gaussian,
    "student": _student,
    "bernoulli": _bernoulli,
    "binomial": _binomial,
    "categorical": _categorical,
    "cumulative": _cumulative,
    "poisson": _poisson,
    "negbinomial": _negbinomial,
    "zero_inflated_poisson": _inflated,
    "zero_inflated_negbinomial": _inflated_scattered,
    "hurdle_poisson": _hurdle,
    "hurdle_negbinomial": _hurdle_scattered,
    "gamma": _gamma,
    "beta": _beta,
    "weibull": _weibull,
    "piecewise": _piecewise,
}


def drawn(
    family: str, rng: np.random.Generator, size: int, groups: int = 0
) -> tuple[str, dict[str, Any], Schema, dict[str, float]]:
    """A formula, a table that was drawn from a family, its schema, and the truth by the result's names."""
    cells, eta, truth = predictors(rng, size)
    parts = np.arange(1, (groups or NUM_CLINICS) + 1)
    clinic = rng.choice(len(parts), size, p=parts / parts.sum())
    if groups:
        eta = eta + rng.normal(0, 0.5, groups)[clinic]
    table, columns, left, truth = FAMILIES[family](rng, cells, eta, truth)
    described = columns if isinstance(columns, tuple) else (columns,)
    features = (
        Column(name="age", kind=Kind.REAL, bounds=(20, 80)),
        Column(name="dose", kind=Kind.REAL, bounds=(0, 6)),
        Column(name="region", kind=Kind.CATEGORICAL, categories=REGIONS),
    )
    right = RIGHT
    if groups:
        clinics = tuple(f"clinic {number}" for number in range(groups))
        table["clinic"] = np.array(clinics)[clinic]
        features = (*features, Column(name="clinic", kind=Kind.CATEGORICAL, categories=clinics))
        right += " + (1 | clinic)"
        # Few clinics tell little of their mean.
        truth = {
            name: value
            for name, value in truth.items()
            if "Intercept" not in name and "threshold" not in name
        }
    return f"{left} ~ {right}", table, Schema(columns=(*described, *features), each_row=True), truth


def fitted(family: str, formula: str, table: Any, schema: Schema, epsilon: float) -> Regression:
    """One fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dp.regress(
            formula, table, schema, family=family, epsilon=epsilon, delta=1e-6, progress_bar=False
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--fits", type=int, default=6)
    parser.add_argument("--records", type=int, nargs="*", default=[2_000, 20_000])
    parser.add_argument("--epsilon", type=float, nargs="*", default=[0.5, 3.0])
    parser.add_argument("--groups", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(
        f"{'family':26} {'N':>6} {'eps':>5} hold of      missed (misses)                verdicts     s/fit",
        flush=True,
    )
    for family in asked.families:
        for size in asked.records:
            for epsilon in asked.epsilon:
                print(
                    _line(family, size, epsilon, asked.fits, asked.seed, asked.groups), flush=True
                )


def _line(family: str, size: int, epsilon: float, fits: int, seed: int, groups: int) -> str:
    held: list[bool] = []
    missed: dict[str, int] = {}
    verdicts: dict[str, int] = {}
    start = time.process_time()
    for number in range(fits):
        rng = np.random.default_rng([seed, number, size])
        formula, table, schema, truth = drawn(family, rng, size, groups)
        try:
            result = fitted(family, formula, table, schema, epsilon)
        except RefusedError as reason:
            return f"{family:26} {size:6} {epsilon:5g} refused: {reason}"
        if family == "categorical":
            mean = {
                of: sum(truth[f"{x}: {of}"] for x in "abc") / 3
                for of in (n[3:] for n in truth if n[0] == "a")
            }
            truth = {name: value - mean[name[3:]] for name, value in truth.items()}
        interval = result.interval
        for name, value in truth.items():
            low, high = interval[name]
            held.append(bool(low <= value <= high))
            if not held[-1]:
                missed[name] = missed.get(name, 0) + 1
        use = result.statement.use
        verdicts[use] = verdicts.get(use, 0) + 1
    seconds = (time.process_time() - start) / fits
    worst = ", ".join(f"{n} {c}" for n, c in sorted(missed.items(), key=lambda x: -x[1])[:4])
    said = ", ".join(f"{use} {count}" for use, count in verdicts.items())
    return f"{family:26} {size:6} {epsilon:5g} {np.mean(held):.2f} {len(held):4}   {worst:60} {said}  {seconds:.1f}"


if __name__ == "__main__":
    main()
