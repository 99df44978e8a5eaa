"""Class probabilities against closed forms, NumPyro and scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import expit, softmax

from discreet.methods.predict import (
    class_probabilities,
    linear_predictor,
    probit_probabilities,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 2)).astype(np.float32)
W = (1.0 + 2.0 * RNG.normal(size=(50, 2))).astype(np.float32)


def logistic(x: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def three_classes(x: Any, y: Any = None, *, shift: float = 0.0) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    top = numpyro.sample("top", dist.HalfNormal(1.0))
    scale = numpyro.sample("scale", dist.Uniform(0.0, top))
    with numpyro.plate("data", x.shape[0]):
        logits = scale * (x @ w)[:, None] * np.array([-1.0, 0.0, 1.0]) + shift * np.array(
            [1.0, 0.0, 0.0]
        )
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


# --- probabilities -----------------------------------------------------------------------------


@pytest.mark.parametrize("max_elements", [2**22, 500])
def test_monte_carlo_is_the_mean_over_draws_whatever_the_batches(max_elements: int) -> None:
    found = class_probabilities(logistic, {"w": W}, X, max_elements=max_elements)
    expected = expit(X @ W.T).mean(axis=1)
    assert found.shape == (23, 2)
    np.testing.assert_allclose(found[:, 1], expected, rtol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-5)
    # The plug-in answer is another one.
    assert np.abs(found[:, 1] - expit(X @ W.mean(axis=0))).max() > 0.05


def test_categorical_and_constants() -> None:
    draws = {"w": W, "top": np.full(50, 2.0), "scale": np.linspace(0.1, 1.9, 50)}
    found = class_probabilities(three_classes, draws, X, None, shift=0.5)
    logits = draws["scale"] * (X @ W.T)
    table = np.stack([-logits + 0.5, 0 * logits, logits], axis=-1)
    np.testing.assert_allclose(found, softmax(table, axis=-1).mean(axis=1), rtol=1e-4)
    # An observation that is passed is not read.
    given = class_probabilities(three_classes, draws, X, np.zeros(23, np.int32), shift=0.5)
    np.testing.assert_allclose(given, found, rtol=1e-5)


def masked(x: Any, y: Any = None, mask: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("persons", x.shape[0], dim=-2), numpyro.plate("rows", x.shape[1], dim=-1):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w).mask(mask.astype(bool)), obs=y)


def test_persons_with_several_rows() -> None:
    x, mask = X[:21].reshape(7, 3, 2), np.arange(3) < np.array([1, 2, 3, 1, 2, 3, 3])[:, None]
    found = class_probabilities(masked, {"w": W}, x, None, mask, max_elements=500)
    assert found.shape == (7, 3, 2)
    np.testing.assert_allclose(found[..., 1], expit(x @ W.T).mean(axis=-1), rtol=1e-5)


def outcome(x: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def together(x: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w).to_event(1))


def centred(x: Any, y: Any = None) -> None:
    logistic(x - x.mean(0), y)


def with_local(x: Any) -> None:
    with numpyro.plate("data", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Bernoulli(logits=z))


@pytest.mark.parametrize(
    ("model", "draws", "args", "options", "message"),
    [
        (outcome, {"w": W}, (X,), {}, "values cannot be listed"),
        (together, {"w": W}, (X,), {}, "without to_event"),
        (centred, {"w": W}, (X,), {}, "rows beside it"),
        (with_local, {"w": W}, (X,), {}, "exactly one"),
        (with_local, {"w": W}, (X,), {"site": "y"}, "'z' has no draws"),
        (logistic, {"w": W}, (X,), {"site": "q"}, "no sample site 'q'"),
        (logistic, {"w": W, "v": W[:3]}, (X,), {}, "leading axis"),
        (logistic, {}, (X,), {}, "leading axis"),
        (logistic, {"w": W}, (X, X[:3]), {}, "lengths"),
        (logistic, {"w": W}, (X[:0],), {}, "at least one"),
        (
            masked,
            {"w": W},
            (X[:21].reshape(7, 3, 2),),
            {},
            "Nothing was passed for y, mask: pass what the model needs",
        ),
    ],
)
def test_refusals(model: Any, draws: Any, args: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        class_probabilities(model, draws, *args, **options)


# --- logistic regression -----------------------------------------------------------------------


def test_linear_predictor_from_draws_and_from_a_guide() -> None:
    mean, variance = linear_predictor(X, draws=W)
    np.testing.assert_allclose(mean, (X @ W.T).mean(axis=1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        variance, (X.astype(float) @ W.T.astype(float)).var(axis=1, ddof=1), rtol=1e-6
    )
    factor = np.array([[0.5, 0.0], [0.3, 0.2]])
    mean, variance = linear_predictor(X, loc=[1.0, -2.0], scale=factor)
    np.testing.assert_allclose(mean, X @ np.array([1.0, -2.0]))
    np.testing.assert_allclose(variance, np.einsum("ni,ij,nj->n", X, factor @ factor.T, X))
    np.testing.assert_allclose(
        linear_predictor(X, loc=[0, 0], scale=[2.0, 1.0])[1], X**2 @ np.array([4.0, 1.0])
    )


def test_probit_approximation_is_near_the_integral() -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    for mean in (-4.0, -1.0, 0.0, 0.5, 3.0):
        for variance in (0.0, 0.3, 2.0, 10.0, 50.0):
            exact = float(weights @ expit(mean + math.sqrt(variance) * nodes)) / math.sqrt(
                2 * math.pi
            )
            found = float(probit_probabilities(mean, variance))
            assert abs(found - exact) < 0.02
            # Without the correction it is off by far where the posterior is wide.
            if abs(mean) >= 3 and variance == 50.0:
                assert abs(expit(mean) - exact) > 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either draws"),
        ({"draws": W, "loc": [0, 0], "scale": [1, 1]}, "either draws"),
        ({"loc": [0.0, 0.0]}, "together with scale"),
        ({"draws": W[:1]}, "at least two"),
        ({"draws": W[:, :1]}, "2 weights"),
        ({"loc": [0.0], "scale": [1.0]}, "2 columns"),
    ],
)
def test_linear_predictor_refuses(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear_predictor(X, **options)
    with pytest.raises(ValueError, match="at least 0"):
        probit_probabilities(0.0, [1.0, math.nan])
