"""A stand-in for the private fit: what is asked of scikit-learn's face needs no noise, and no compiled program."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import numpyro
import pytest
from sklearn import linear_model

from discreet import random
from discreet.methods import choose
from discreet.methods.inference import DPSVIResult
from discreet.methods.moments import MomentsResult
from discreet.methods.newton import NewtonResult
from discreet.privacy.report import make_statement
from discreet.tabular.estimators import _private
from discreet.tabular.models import (
    linear_regression,
    logistic_regression,
    negative_binomial_regression,
    poisson_regression,
)

statement_of = functools.lru_cache(make_statement)


MAX_WEIGHT = 10.0


def point_fit(
    model: Any, x: np.ndarray, y: np.ndarray, num_classes: int, survey: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and intercept without privacy, by least squares or scikit-learn, in the model's shapes."""
    x = np.asarray(x, np.float64)
    own = None
    if survey is not None:
        kept = survey > 0
        x = x[kept]
        y = y[kept]
        own = MAX_WEIGHT * survey[kept]
    if model in (linear_regression, poisson_regression, negative_binomial_regression):
        fitted = linear_model.Ridge(alpha=1e-3).fit(
            x, y if model is linear_regression else np.log(y + 0.1), own
        )
        return fitted.coef_, fitted.intercept_
    present = np.unique(y).astype(int)
    weights, intercept = np.zeros((x.shape[1], num_classes)), np.full(num_classes, -20.0)
    intercept[present] = 0.0
    if len(present) > 1:
        fitted = linear_model.LogisticRegression(C=10.0, solver="newton-cholesky").fit(x, y, own)
        spoken_for = present[1:] if len(present) == 2 else present
        weights[:, spoken_for], intercept[spoken_for] = fitted.coef_.T, fitted.intercept_
    if model is logistic_regression:
        return weights[:, 1] - weights[:, 0], intercept[1] - intercept[0]
    return weights, intercept


@functools.lru_cache
def latents_of(model: Any, num_features: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's latents."""

    def sites() -> dict[str, Any]:
        seeded = numpyro.handlers.seed(model, jax.random.key(0))
        trace = numpyro.handlers.trace(seeded).get_trace(np.zeros((2, num_features), np.float32))
        return {n: s["value"] for n, s in trace.items() if s["type"] == "sample" and n != "y"}

    return {name: value.shape for name, value in jax.eval_shape(sites).items()}


class PointResult(DPSVIResult, what="a point"):
    """A result at a point."""

    def posterior(self, key: Any, num_samples: int) -> dict[str, np.ndarray]:
        """Draws near the point."""
        spread = 0.01 * np.asarray(jax.random.normal(random.as_threefry(key), (num_samples, 1)))
        return {
            name: (np.reshape(value, (1, -1)) + spread).reshape(num_samples, *np.shape(value))
            for name, value in self.params.items()
        }


def fit_without_privacy(
    key: Any, settings: Any, plan: Any, x: np.ndarray, y: np.ndarray, ledger: Any = None
) -> PointResult:
    """Return what `fit_in_steps` returns, at a point and without its budget."""
    assert ledger is None
    assert x.dtype == y.dtype == np.float32
    model = settings.model
    shapes = latents_of(model, x.shape[1])
    weights, intercept = point_fit(model, x, y, num_classes=(*shapes["intercept"], 2)[0])
    point = {"weights": weights, "intercept": intercept}
    params = {name: np.broadcast_to(point.get(name, 1.0), shape) for name, shape in shapes.items()}
    statement = statement_of(
        plan, steps_completed=plan.num_steps, reproducible=random.is_reproducible(key)
    )
    nothing: dict[str, Any] = dict.fromkeys(
        ("last_params", "losses", "clipping_norms", "shares", "trace")
    )
    return PointResult(
        **nothing,
        params=params,
        statement=statement,
        plan=plan,
        steps_completed=plan.num_steps,
        _objective=None,
    )


def line_without_privacy(
    key: Any, x: np.ndarray, y: np.ndarray, plan: Any, ledger: Any = None, weights: Any = None
) -> MomentsResult:
    """Return what `fit_moments` returns, at a point and without its budget."""
    assert ledger is None
    slopes, intercept = point_fit(linear_regression, x, y, num_classes=1, survey=weights)
    mean = np.concatenate([[intercept], slopes])
    statement = plan.state(reproducible=random.is_reproducible(key))
    return MomentsResult(
        mean,
        1e-6 * np.eye(len(mean)),
        mean,
        0.01,
        0.001,
        np.ones(len(mean) - 1),
        1.0,
        plan,
        statement,
    )


def newton_without_privacy(
    key: Any,
    x: np.ndarray,
    y: np.ndarray,
    plan: Any,
    ledger: Any = None,
    names: Any = None,
    mask: Any = None,
    weights: Any = None,
) -> NewtonResult:
    """Return what `fit_newton` returns, at a point and without its budget."""
    assert ledger is None
    assert mask is None
    del names
    model = {"counts": poisson_regression, "binary": logistic_regression, "classes": None}[
        plan.family
    ]
    slopes, intercept = point_fit(model, x, y, num_classes=plan.num_classes, survey=weights)
    mean = np.concatenate([np.asarray(intercept)[None], slopes]).T.ravel()
    figures = dict.fromkeys(("kept", "ratio", "moved", "lack", "counted", "dispersion"), 1.0)
    size = {
        "covariance": 1e-6 * np.eye(len(mean)),
        "learned": np.ones(len(mean)),
        "unseen": np.zeros(plan.num_features, bool),
        "mean_squares": np.ones(plan.num_features),
        "dispersion_range": np.ones(2),
    }
    statement = plan.state(reproducible=random.is_reproducible(key))
    return NewtonResult(
        mean=mean, predictive=mean[None], plan=plan, statement=statement, **size, **figures
    )


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits in this test are the stand-in's."""
    monkeypatch.setattr(_private, "fit_in_steps", fit_without_privacy)
    monkeypatch.setattr(choose, "fit_moments", line_without_privacy)
    monkeypatch.setattr(choose, "fit_newton", newton_without_privacy)
