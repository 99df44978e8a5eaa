"""Survey weights of a model of one's own: what a record adds, intervals of the population, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from tests.newton.test_own import TERMS, line, of_model, on_a_line, plan_of, public_of, rows_of

import discreet as dp
from discreet.methods.newton import _model
from discreet.methods.newton._model import KINDS
from discreet.privacy.query import TURN


def two_kinds(y: Any) -> None:
    """A mixture, whose component of a record is summed out."""
    m = numpyro.sample("m", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", len(y)):
        kind = numpyro.sample("kind", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(m[kind], 1), obs=y)


@pytest.mark.parametrize("model", [line, two_kinds])
def test_a_gradient_counts_as_often_as_its_weight_says(model: Any) -> None:
    """Also where a latent is summed out: the logarithm of the sum is weighted, not its terms."""
    x, y = on_a_line(TURN)
    data = [x, y] if model is line else [y]
    latents = of_model(model, *data)
    public = public_of(latents, np.random.default_rng(0))
    weights = np.random.default_rng(1).uniform(0, 1, TURN)
    with jax.enable_x64(True):
        leaves = [jnp.asarray(column) for column in data]
        once, _ = _model._mapped(latents, leaves, public)
        often, length = _model._mapped(latents, [*leaves, jnp.asarray(weights)], public)
    np.testing.assert_allclose(often, weights[:, None] * np.asarray(once), rtol=1e-12)
    np.testing.assert_allclose(length, np.linalg.norm(often, axis=1), rtol=1e-12)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lengths"])
def test_no_weight_makes_a_row_longer_than_one(kind: str) -> None:
    x, y = on_a_line(TURN)
    latents = of_model(line, x, y)
    # Larger ones are refused, but the bound does not rest on that.
    weights = 10.0 ** np.random.default_rng(1).uniform(-300, 308, TURN)
    weights[:2] = 0.0
    longest = 0.0
    for seed in range(5):
        public = public_of(latents, np.random.default_rng(seed))
        with jax.enable_x64(True):
            leaves = [jnp.asarray(column) for column in (x, y, weights)]
            rows = np.asarray(rows_of(kind, latents, leaves, jnp.ones(TURN, bool), public))
        norms = np.linalg.norm(rows, axis=1)
        assert norms.max() <= 1
        assert (norms[:2] == 0).all()
        longest = max(longest, float(norms.max()))
    assert longest > 0.999


def informative(
    rng: np.random.Generator, num_records: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Records of the line; those with a large y are in the table three times as often, and have a third of the weight."""
    x, y = on_a_line(4 * num_records, int(rng.integers(2**31)))
    often = np.where(y > 0.5, 0.75, 0.25)
    inside = np.flatnonzero(rng.random(len(y)) < often)[:num_records]
    return x[inside], y[inside], 0.25 / often[inside]


def test_intervals_hold_the_population_and_have_the_weights_variance() -> None:
    """At ε = 50 the noise is little, and the closed form of the weighted line and of its sandwich says what is right.

    Without weights the intercept is 0.25 too large, 25 of its standard deviations. The noise moves
    an estimate by a quarter of these, so that 1.5 of them are 6 of its own.
    """
    x, y, weights = informative(np.random.default_rng(0), 5_000)
    ones = np.column_stack([np.ones_like(x), x]).astype(float)
    inverse = np.linalg.inv((weights[:, None] * ones).T @ ones)
    mean = inverse @ ones.T @ (weights * y)
    rows = (weights * (y - ones @ mean))[:, None] * ones
    spread = np.sqrt(np.diag(inverse @ rows.T @ rows @ inverse))
    assert (np.abs(mean - [0.5, -1]) < 3 * spread).all()
    found = dp.fit(line, x, y, weights=weights, epsilon=50.0, **TERMS)
    assert isinstance(found, dp.newton.DPNewtonResult)
    draws = np.column_stack([found.draws["a"], found.draws["b"]])
    assert (np.abs(draws.mean(axis=0) - mean) < 1.5 * spread).all()
    np.testing.assert_allclose(draws.std(axis=0), spread, rtol=0.3)
    assert "5,000 records with survey weights" in str(found.statement)


def with_own(x: Any, y: Any, weights: Any = None) -> None:
    line(x, y if weights is None else weights * y)


def with_any(x: Any, y: Any, **columns: Any) -> None:
    with_own(x, y, columns.get("weights"))


def with_tuning(x: Any, y: Any) -> None:
    scale = numpyro.param("scale", 1.0)
    line(scale * x, y)


def wide(x: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0, 1).expand([101]).to_event(1))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Normal(b.sum() * x, 0.5), obs=y)


@pytest.mark.parametrize(
    ("model", "weights", "why"),
    [
        (line, np.full(300, -1.0), "divide them by the largest"),
        (line, np.full(300, 1.5), "divide them by the largest"),
        (line, np.full(300, np.nan), "divide them by the largest"),
        (line, np.ones((300, 1)), "divide them by the largest"),
        (line, np.array(["2"] * 300), "no number"),
        (with_own, np.ones(300), "the model takes an argument of this name"),
        (with_any, np.ones(300), "the model takes an argument of this name"),
        (with_tuning, np.ones(300), "weights is not for this fit"),
        (wide, np.ones(300), "at most 100 coordinates"),
    ],
)
def test_weights_that_cannot_be_used_are_refused_before_anything_is_spent(
    model: Any, weights: Any, why: str, tmp_path: Any
) -> None:
    x, y = on_a_line(300)
    ledger = dp.Ledger.create(tmp_path / "l.ledger", epsilon=1.0, delta=1e-5, dataset="d")
    with pytest.raises(ValueError, match=why):
        dp.fit(model, x, y, weights=weights, epsilon=1.0, ledger=ledger, **TERMS)
    assert ledger.spent == 0


def test_a_checkpoint_is_of_the_table_with_its_weights(tmp_path: Any) -> None:
    x, y = on_a_line(300)
    newton = dp.DPNewton(line, plan=plan_of(300))
    key = dp.random.key()
    options: dict[str, Any] = {"checkpoint": tmp_path, "progress_bar": False}
    newton.run(key, x, y, weights=np.ones(300), **options)
    with pytest.raises(ValueError, match="other data"):
        newton.run(key, x, y, weights=np.full(300, 0.5), **options)
