import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer.util import log_density
from scipy import special, stats

from discreet.tabular.models import (
    hierarchical,
    linear_regression,
    logistic_regression,
    multinomial_regression,
    negative_binomial_regression,
    poisson_regression,
)

WEIGHTS = np.array([0.8, -0.5, 0.0])
INTERCEPT = 0.3


def table_for(name: str):
    rng = np.random.default_rng(5)
    x = rng.uniform(-1, 1, size=(4_000, 3)).astype(np.float32)
    predictor = INTERCEPT + x @ WEIGHTS
    if name == "logistic":
        return x, (rng.random(len(x)) < 1 / (1 + np.exp(-predictor))).astype(np.float32)
    if name == "linear":
        return x, (predictor + 0.2 * rng.normal(size=len(x))).astype(np.float32)
    return x, rng.poisson(np.exp(predictor)).astype(np.float32)


BY_HAND = {
    "logistic": (
        logistic_regression,
        2.5,
        5.0,
        lambda y, a: stats.bernoulli.logpmf(y, special.expit(a)),
    ),
    "linear": (linear_regression, 1.0, 1.0, lambda y, a: stats.norm.logpdf(y, a, 0.4)),
    "poisson": (poisson_regression, 1.0, 3.0, lambda y, a: stats.poisson.logpmf(y, np.exp(a))),
    "negative binomial": (
        negative_binomial_regression,
        1.0,
        3.0,
        lambda y, a: stats.nbinom.logpmf(y, 2.0, 2.0 / (2.0 + np.exp(a))),
    ),
}
FURTHER = {
    "linear": ("sigma", 0.4, stats.halfnorm()),
    "negative binomial": ("concentration", 2.0, stats.lognorm(1.5, scale=np.e)),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_each_model_has_the_density_that_its_docstring_says(name) -> None:
    model, weight_scale, intercept_scale, observed = BY_HAND[name]
    x, y = (part[:50] for part in table_for(name))
    values = {"weights": jnp.asarray(WEIGHTS, jnp.float32), "intercept": jnp.float32(INTERCEPT)}
    expected = stats.norm.logpdf(WEIGHTS, 0, weight_scale).sum() + stats.norm.logpdf(
        INTERCEPT, 0, intercept_scale
    )
    expected += observed(y, INTERCEPT + x @ WEIGHTS).sum()
    if name in FURTHER:
        site, value, prior = FURTHER[name]
        values[site] = jnp.float32(value)
        expected += prior.logpdf(value)
    found, _ = log_density(model, (x, y), {}, values)
    assert float(found) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ["logistic", "negative binomial", "multinomial", "hierarchical"])
def test_a_record_of_several_rows_has_the_density_of_its_rows(name) -> None:
    """Rows that are not there add exactly nothing to density and gradient, whatever their cells hold."""
    model = BY_HAND[name][0] if name in BY_HAND else multinomial_regression(2)
    model = hierarchical(poisson_regression, 3) if name == "hierarchical" else model
    x, y = (part[:12].reshape(4, 3, *part.shape[1:]) for part in table_for(name))
    y = np.minimum(y, 1) if name == "multinomial" else y
    group = (np.arange(12, dtype=np.float32).reshape(4, 3) % 3,) if name == "hierarchical" else ()
    mask = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]], bool)
    alone = (x[mask], *(part[mask] for part in group), y[mask])
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    trace = numpyro.handlers.trace(seeded).get_trace(*alone)
    values = {
        n: s["value"] for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]
    }

    def density(values, args):
        return log_density(model, args, {}, values)[0]

    expected = jax.value_and_grad(density)(values, alone)
    padded = []
    for part in (x, *group, y):
        garbage = np.resize(np.array([np.nan, -np.inf, 7e30, np.inf], np.float32), part.shape)
        padded.append(np.where(mask if part.ndim == 2 else mask[..., None], part, garbage))
    found = jax.value_and_grad(density)(values, (*padded, mask))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected
    )
    with pytest.raises(ValueError, match="no mask of the real"):
        density(values, (x, *group, y))
    with pytest.raises(ValueError, match="mask has the shape"):
        density(values, (x, *group, y, mask.T))


@pytest.mark.parametrize(
    "model",
    [logistic_regression, linear_regression, poisson_regression, negative_binomial_regression],
)
def test_the_record_plate_follows_the_table(model) -> None:
    for num_records in (2, 3):
        seeded = numpyro.handlers.seed(model, jax.random.key(0))
        trace = numpyro.handlers.trace(seeded).get_trace(np.zeros((num_records, 4), np.float32))
        assert trace["data"]["args"][0] == num_records
        assert trace["y"]["value"].shape == (num_records,)
        assert trace["weights"]["value"].shape == (4,)
        assert np.isfinite(trace["y"]["value"]).all()


@pytest.mark.parametrize("name", [*BY_HAND, "multinomial"])
def test_a_dropped_row_has_no_density(name) -> None:
    """It is NaN throughout, and its class 0 as an integer: with a finite density it would count."""
    model = multinomial_regression(3) if name == "multinomial" else BY_HAND[name][0]
    x, y = np.full((1, 3), np.nan, np.float32), np.full(1, np.nan, np.float32)
    shape = (3,) if name == "multinomial" else ()
    values = {
        "intercept": jnp.zeros(shape),
        "weights": jnp.zeros((3, *shape)),
        "sigma": 0.4,
        "concentration": 3.0,
    }
    density = jax.jit(lambda values, *args: log_density(model, args, {}, values)[0])
    assert not jnp.isfinite(density(values, x, y))
    assert jnp.isfinite(density(values, np.zeros_like(x), np.zeros_like(y)))


def test_classes_sum_to_zero_and_their_number_is_public() -> None:
    seeded = numpyro.handlers.seed(multinomial_regression(3), jax.random.key(0))
    trace = numpyro.handlers.trace(seeded).get_trace(np.zeros((5, 4), np.float32))
    assert trace["weights"]["value"].shape == (4, 3)
    np.testing.assert_allclose(trace["weights"]["value"].sum(axis=1), 0, atol=1e-5)
    assert abs(float(trace["intercept"]["value"].sum())) < 1e-5
    assert set(np.asarray(trace["y"]["value"]).tolist()) <= {0, 1, 2}
    for wrong in (1, 2.0, True):
        with pytest.raises(ValueError, match="num_classes"):
            multinomial_regression(wrong)
