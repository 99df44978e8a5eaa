"""The default settings of each regression at epsilon 1, beside a fit without privacy, on simulated tables.

    python examples/default_settings.py                      # a few minutes on two idle cores
    python examples/default_settings.py --records 2000 --only logistic

Regressions: ten features, uniform in [-1, 1]; the figure is the root mean square error of intercept
and weights (those of each group) to the truth, beside that of scikit-learn without privacy (a fit
for each group). Ends by asserting that privacy costs no more than docs/models.md says.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from sklearn import linear_model

import discreet as dp
from discreet.tabular.models import (
    defaults_for,
    hierarchical,
    linear_regression,
    logistic_regression,
    negative_binomial_regression,
    poisson_regression,
)

TRUTH = np.array([0.3, 0.8, -0.5, 0.0, 0.4, -0.3, 0.8, -0.5, 0.0, 0.4, -0.3])  # intercept first
GROUPS = 5
DELTA = 1e-5
Figures = tuple[float, float]


def fitted(model, *records) -> dict[str, np.ndarray]:
    """Draws of the posterior of a private fit with the default settings."""
    settings = defaults_for(model)
    plan = settings.plan(epsilon=1.0, delta=DELTA, num_records=len(records[0]))
    result = settings.dpsvi(plan).run(dp.random.key(), *records, progress_bar=False)
    assert result.statement.epsilon <= 1
    return {
        name: np.asarray(values) for name, values in result.posterior(dp.random.key(), 500).items()
    }


def error(intercept, weights, truth=TRUTH) -> float:
    """Root mean square error of the coefficients."""
    return float(
        np.sqrt(
            np.mean((np.column_stack([np.ravel(intercept), np.atleast_2d(weights)]) - truth) ** 2)
        )
    )


def table(num_records: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Features, their predictor, and where chance comes from."""
    rng = np.random.default_rng(num_records)
    x = rng.uniform(-1, 1, (num_records, len(TRUTH) - 1)).astype(np.float32)
    return x, TRUTH[0] + x @ TRUTH[1:], rng


def regression(model, reference, draw_target) -> Callable[[int], Figures]:
    """Error of a private fit, and of scikit-learn's."""

    def measure(num_records: int) -> Figures:
        x, predictor, rng = table(num_records)
        y = draw_target(predictor, rng).astype(np.float32)
        draws = fitted(model, x, y)
        free = reference.fit(x, y)
        return error(draws["intercept"].mean(), draws["weights"].mean(axis=0)), error(
            free.intercept_, free.coef_
        )

    return measure


def groups(num_records: int) -> Figures:
    """Errors of a hierarchical logistic regression on three features, and of one without privacy for each group."""
    x, _, rng = table(num_records)
    x, group = x[:, :3], rng.integers(0, GROUPS, num_records)
    truth = TRUTH[:4] + 0.5 * rng.normal(size=(GROUPS, 4))
    predictor = truth[group, 0] + np.sum(x * truth[group, 1:], axis=1)
    y = binary(predictor, rng).astype(np.float32)
    draws = fitted(hierarchical(logistic_regression, GROUPS), x, group.astype(np.int32), y)
    alone = [
        linear_model.LogisticRegression(C=100).fit(x[group == g], y[group == g])
        for g in range(GROUPS)
    ]
    free = error([a.intercept_[0] for a in alone], [a.coef_[0] for a in alone], truth)
    return error(
        draws["group_intercept"].mean(axis=0), draws["group_weights"].mean(axis=0), truth
    ), free


def binary(predictor, rng):
    """0 or 1."""
    return rng.random(len(predictor)) < 1 / (1 + np.exp(-predictor))


POISSON = linear_model.PoissonRegressor(alpha=0.0, max_iter=1_000)
# What is measured, and by how much the private figure may be worse with 2,000 and with 30,000
# records.
MODELS: dict[str, tuple[Callable[[int], Figures], float, float]] = {
    "logistic": (
        regression(logistic_regression, linear_model.LogisticRegression(C=100), binary),
        0.2,
        0.04,
    ),
    "linear": (
        regression(
            linear_regression,
            linear_model.LinearRegression(),
            lambda p, rng: p + 0.3 * rng.normal(size=len(p)),
        ),
        0.1,
        0.02,
    ),
    "poisson": (
        regression(poisson_regression, POISSON, lambda p, rng: rng.poisson(np.exp(p))),
        0.1,
        0.02,
    ),
    "negative binomial": (
        regression(
            negative_binomial_regression,
            POISSON,
            lambda p, rng: rng.poisson(rng.gamma(2, np.exp(p) / 2)),
        ),
        0.2,
        0.04,
    ),
    "groups": (groups, 0.3, 0.1),
}


def main() -> None:
    """Fit, print, assert."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records", type=int, nargs="+", default=[2_000, 30_000], help="sizes of the tables"
    )
    parser.add_argument(
        "--only", choices=MODELS, nargs="+", default=list(MODELS), help="models (default: all)"
    )
    arguments = parser.parse_args()
    for name in arguments.only:
        measure, *allowed = MODELS[name]
        for num_records in arguments.records:
            private, free = measure(num_records)
            print(
                f"{name}, {num_records} records: private {private:.3f}, without privacy {free:.3f}",
                flush=True,
            )
            assert abs(private - free) <= allowed[num_records >= 30_000], (
                name,
                num_records,
                private,
                free,
            )


if __name__ == "__main__":
    main()
