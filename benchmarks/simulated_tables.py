"""Simulated tables of two classes and of counts, by private Newton: how often the 90 % intervals hold the truth.

python -m benchmarks.simulated_tables

A line for each cell, of so many columns and records at an ε; truth, columns and their correlations
are drawn anew for each table:

- *hold*: share of the intervals that hold the truth.
- *width*: of the intervals, relative to those of the prior, the median.
- *error*: root mean square of the predictive mean's.
- *coefficients*: tables whose verdict is that the intervals may be read.

Arguments: families (binary, counts); --tables 10, --columns 2 10 20 60,
--records 500 3000 10000 50000, --epsilon 0.1 0.3 1 3, --seed 0.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from scipy.special import expit

from discreet.methods.newton import NewtonPlan, fit_invented


def drawn(
    family: str, columns: int, records: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features with correlations, targets, and the truth."""
    mix = rng.normal(size=(columns, columns)) * 0.6 / np.sqrt(columns) + 0.8 * np.eye(columns)
    x = np.clip(0.45 * rng.normal(size=(records, columns)) @ mix.T, -1, 1)
    size = 3.0 if family == "binary" else 1.2
    truth = np.append(rng.normal(), size / np.sqrt(columns) * rng.normal(size=columns))
    predictor = truth[0] + x @ truth[1:]
    if family == "binary":
        y = rng.random(records) < expit(predictor)
    else:
        y = rng.poisson(np.exp(predictor))
    return x, y.astype(float), truth


def cell(family: str, columns: int, records: int, epsilon: float, asked: Any) -> tuple[float, str]:
    """The share of intervals that hold, and the line."""
    plan = NewtonPlan.calibrate(
        epsilon=epsilon, delta=1e-6, family=family, num_features=columns, num_records=records
    )
    held = []
    widths = []
    errors = []
    uses = []
    for number in range(asked.tables):
        rng = np.random.default_rng([asked.seed, number, columns, records])
        x, y, truth = drawn(family, columns, records, rng)
        fit = fit_invented(x, y, plan, seed=number)
        deviations = np.sqrt(np.diag(fit.covariance))
        held.append(np.abs(fit.mean - truth) <= 1.645 * deviations)
        widths.append(np.sqrt(1 - np.asarray(fit.learned)))
        errors.append(fit.predictive.mean(axis=0) - truth)
        uses.append(fit.statement.use)
    hold = float(np.mean(held))
    readable = sum(use == "for its coefficients" for use in uses)
    return hold, (
        f"{family:7} {columns:4} {records:7,} {epsilon:5g} {hold:6.3f} {np.median(widths):6.3f} "
        f"{np.sqrt(np.mean(np.square(errors))):6.3f}  {readable} of {asked.tables}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*", default=["binary", "counts"])
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--columns", type=int, nargs="*", default=[2, 10, 20, 60])
    parser.add_argument("--records", type=int, nargs="*", default=[500, 3_000, 10_000, 50_000])
    parser.add_argument("--epsilon", type=float, nargs="*", default=[0.1, 0.3, 1.0, 3.0])
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print("family  columns records    ε   hold  width  error  coefficients", flush=True)
    for family in asked.families:
        found = []
        for columns in asked.columns:
            for records in asked.records:
                for epsilon in asked.epsilon:
                    hold, line = cell(family, columns, records, epsilon, asked)
                    found.append(hold)
                    print(line, flush=True)
        print(f"{family}: mean {np.mean(found):.3f}, least {min(found):.3f} of {len(found)} cells")


if __name__ == "__main__":
    main()
