"""The histogram of counts: its interval of the dispersion allows for rows that count unequally, or come together."""

from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet.methods.newton import NewtonPlan, _fit, fit_newton
from discreet.methods.newton._counts import EDGES, NUM_BINS, Counts


@pytest.mark.parametrize("rows", [1, 20])
def test_the_interval_of_the_dispersion_holds_for_weights_and_for_persons(rows: int) -> None:
    """Of 2,000 rows with few large weights, or of 200 persons whose 20 rows are equal; seeds are fixed.

    Taken for as many independent rows of weight 1, 34 and 36 of 50 intervals held, of 90 %.
    """
    held = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        size = 2_000 if rows == 1 else 200
        levels = np.sum(rng.negative_binomial(2.0, 0.4, size)[:, None] > EDGES[1:], axis=1)
        weights = np.where(rng.random(size) < 0.02, 1.0, 0.02) if rows == 1 else np.ones(size)
        each = rows * weights / weights.mean()
        scatter = rows * np.mean(weights**2) / weights.mean() ** 2
        low, high = Counts(np.bincount(levels, each, NUM_BINS), 1.0, float(scatter)).plausible
        held += low <= 2.0 <= high
    assert held >= 43


def test_a_fit_says_how_its_rows_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of 1,000 persons have four rows and half one; a tenth of the rows weigh 1 and the others 0.2.

    The bound of a fifth is many deviations of the noise at ε = 50.
    """
    found = []

    def counts(*args: Any) -> Counts:
        found.append(args[2])
        return Counts(*args)

    monkeypatch.setattr(_fit, "Counts", counts)
    rng = np.random.default_rng(0)
    size = 1_000
    mask = np.arange(4) < np.where(np.arange(size) % 2, 4, 1)[:, None]
    weights = np.where(rng.random((size, 4)) < 0.1, 1.0, 0.2)
    plan = NewtonPlan.calibrate(
        num_records=size,
        num_features=1,
        family="counts",
        max_rows=4,
        weighted=True,
        epsilon=50.0,
        delta=1e-6,
    )
    x = rng.uniform(-1, 1, (size, 4, 1))
    y = rng.negative_binomial(2.0, 0.4, (size, 4))
    fit_newton(dp.random.key(0), x, y, plan, mask=mask, weights=weights, person="id")
    (scatter,) = found
    rows = np.sum(mask.sum(axis=1) ** 2) / mask.sum()
    assert scatter == pytest.approx(
        rows * np.mean(weights[mask] ** 2) / weights[mask].mean() ** 2, rel=0.2
    )


def rare(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A level of one in ten records and an age; and the log means, whose constant is -2.8."""
    rng = np.random.default_rng(seed)
    level = rng.random(4_000) < 0.1
    age = rng.uniform(-1, 1, 4_000)
    return np.column_stack([level, age]).astype(float), 1.5 * level + 0.3 * age - 2.8


def test_a_rare_level_with_a_strong_effect_is_found() -> None:
    """Its rows are long, so products by the square of their weight say too little of the curvature, and steps go too far.

    By these, 12 of 12 fits did not converge, and one estimate was off by 5.4. Seeds are fixed; of 30
    fits by a right version all converged, and estimates were off by up to 0.3.
    """
    for seed in range(3):
        x, predictor = rare(seed)
        y = np.random.default_rng(seed + 100).poisson(np.exp(predictor))
        plan = NewtonPlan.calibrate(
            num_records=len(y), num_features=2, family="counts", epsilon=10.0, delta=1e-6
        )
        found = fit_newton(dp.random.key(seed), x, y, plan, levels=np.array([True, False]))
        assert found.converged
        assert found.mean == pytest.approx([-2.8, 1.5, 0.3], abs=0.6)


def test_a_known_weight_is_kept_and_the_others_are_fitted_beside_it() -> None:
    """Numbers of events in known times, whose logarithm is a column with the weight 2; seeds are fixed.

    Without it, or with its weight fitted, estimates would be off by 1 or its interval have a width.
    """
    x, predictor = rare(1)
    rng = np.random.default_rng(1)
    offset = rng.uniform(-1, 1, len(x)) - 0.5 * x[:, 1] / 2
    x = np.column_stack([x[:, :1], offset / 2, x[:, 1:]])
    y = rng.poisson(np.exp(1.0 + predictor + offset))
    plan = NewtonPlan.calibrate(
        num_records=len(y), num_features=3, family="counts", epsilon=10.0, delta=1e-6
    )
    known = np.array([np.nan, 2.0, np.nan])
    levels = np.array([True, False, False])
    found = fit_newton(dp.random.key(1), x, y, plan, levels=levels, known=known)
    assert found.mean == pytest.approx([-1.8, 1.5, 2.0, 0.3], abs=0.3)
    assert found.mean[2] == pytest.approx(2.0, abs=1e-9)
    assert found.covariance[2] == pytest.approx(0.0, abs=1e-9)
    assert found.learned[2] == 1
    draws = found.predictive.mean(axis=0)
    assert draws == pytest.approx([-1.8, 1.5, 2.0, 0.3], abs=0.3)


@pytest.mark.parametrize(
    ("known", "family"),
    [([1.0], "counts"), ([np.nan, np.inf], "counts"), ([1.0, np.nan], "classes")],
)
def test_known_weights_that_cannot_be_are_refused(known: list[float], family: str) -> None:
    x, _ = rare(0)
    plan = NewtonPlan.calibrate(
        num_records=len(x), num_features=2, family=family, epsilon=1.0, delta=1e-6
    )
    with pytest.raises(ValueError, match="known must be 2 finite numbers"):
        fit_newton(dp.random.key(0), x, np.zeros(len(x)), plan, known=np.array(known))
