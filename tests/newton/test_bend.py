"""The curvature of logistic fits with strong signals: what is computed of normal rows, and fits that arrive."""

import numpy as np
import pytest
from scipy.special import expit

from discreet.methods.newton import NewtonPlan, fit_invented
from discreet.methods.newton._algebra import Gradients
from discreet.methods.newton._bend import Bend, NormalRows

Z90 = 1.6449


def normal_rows(rng: np.random.Generator, size: int) -> tuple[NormalRows, np.ndarray]:
    """A distribution, and draws from it."""
    root = rng.normal(size=(size, size)) / 2
    mean = rng.normal(size=size) / 3
    rows = NormalRows(mean, root @ root.T, 0.2, np.zeros(size), 0.0)
    return rows, mean + rng.normal(size=(200_000, size)) @ root.T


@pytest.mark.parametrize("length", [0.5, 5.0])
def test_the_curvature_of_normal_rows_is_that_of_draws(length: float) -> None:
    """Seeded."""
    rng = np.random.default_rng(0)
    rows, z = normal_rows(rng, 4)
    theta = length * rng.normal(size=4)
    p = expit(0.2 + z @ theta)
    drawn = (z.T * (p * (1 - p))) @ z / len(z)
    found = rows.curvature(theta)
    unit = 1 / np.sqrt(np.diag(drawn))
    assert np.abs((found - drawn) * unit * unit[:, None]).max() < 0.02
    assert np.allclose(rows.pulls(theta[None], z[:1]), z[:1] @ found)
    assert (rows.along(theta) is not None) == (length > 1)


def test_gradients_far_away_become_straight() -> None:
    rng = np.random.default_rng(0)
    rows, z = normal_rows(rng, 4)
    theta = 3 * rng.normal(size=4)
    start = np.zeros(4)
    pull = (expit(0.2 + z @ theta) - expit(np.full(len(z), 0.2))) @ z / len(z)
    bend = Bend(rows, start, rows.curvature(start), rows.curvature(start))
    gradients = Gradients(start[None], pull[None], 1.0)
    near = bend.near(theta, gradients)
    asked = near.gradients.points[0] + np.linalg.solve(near.curvature, pull)
    assert np.abs(asked - theta).max() < 0.05 * np.abs(theta).max()
    along = rows.along(theta)
    assert along is not None
    assert np.allclose(along.basis.T @ along.basis, np.eye(4))
    assert along.basis[:, 0] @ theta > 0.9 * np.linalg.norm(theta)


@pytest.mark.parametrize(
    ("records", "epsilon"),
    [(10_000, 3.0), pytest.param(50_000, 1.0, marks=pytest.mark.exhaustive)],
)
def test_strong_signals_are_found_and_their_intervals_hold(records: int, epsilon: float) -> None:
    """Seeded. With the curvature taken to be the same everywhere, fits ran away."""
    held, converged = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1, 1, (records, 4))
        truth = np.append(0.0, rng.uniform(4, 8, 4) * rng.choice([-1, 1], 4))
        y = rng.random(records) < expit(x @ truth[1:])
        plan = NewtonPlan.calibrate(
            epsilon=epsilon, delta=1e-6, family="binary", num_features=4, num_records=records
        )
        found = fit_invented(x, y, plan, seed=seed, levels=np.zeros(4, bool))
        held.append(np.abs(found.mean - truth) < Z90 * np.sqrt(np.diag(found.covariance)))
        converged.append(found.converged)
    assert np.mean(held) > 0.85, np.mean(held)
    assert np.mean(converged) > 0.7, np.mean(converged)
