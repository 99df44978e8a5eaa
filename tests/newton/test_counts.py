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
