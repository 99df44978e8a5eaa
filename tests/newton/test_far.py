"""Latents that records far out decide are found from the model alone."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import discreet as dp
from discreet.methods.inference import latents_of, take_apart
from discreet.methods.newton._algebra import known_less
from discreet.methods.newton._far import (
    decided_by,
    pulls_from_far,
    scales_of_squares,
    span_of,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.linspace(-1, 1, 20, dtype=np.float32)


def line(likelihood: Any) -> Any:
    def model(x: Any, y: Any) -> None:
        a = numpyro.sample("a", dist.Normal(0, 1))
        b = numpyro.sample("b", dist.Normal(0, 1))
        distribution = likelihood(a + b * x)
        with numpyro.plate("people", len(y)):
            numpyro.sample("y", distribution, obs=y)

    return model


def normal(mean: Any) -> Any:
    return dist.Normal(mean, numpyro.sample("sigma", dist.HalfNormal(1)))


def log_normal(mean: Any) -> Any:
    return dist.LogNormal(mean, numpyro.sample("sigma", dist.HalfNormal(1)))


def student_t(mean: Any) -> Any:
    return dist.StudentT(numpyro.sample("nu", dist.Gamma(2, 0.1)), mean, 1)


def cauchy(mean: Any) -> Any:
    return dist.Cauchy(mean, 1)


def poisson(mean: Any) -> Any:
    return dist.Poisson(jnp.exp(mean))


def logistic(mean: Any) -> Any:
    return dist.Bernoulli(logits=mean)


@pytest.mark.parametrize(
    ("likelihood", "decided"),
    [
        (normal, {"sigma"}),
        (log_normal, {"sigma"}),
        (student_t, {"nu"}),
        (cauchy, set()),
        (poisson, {"a", "b"}),
        # A class cannot lie far out.
        (logistic, set()),
    ],
)
def test_latents_whose_gradients_grow_without_limit_are_decided_far_out(
    likelihood: Any, decided: set[str]
) -> None:
    model = line(likelihood)
    y = (X > 0).astype(np.float32) + (likelihood is log_normal)
    records = take_apart((X, y), {})
    made_of = {"placeholder": None, "static": {}, "num_records": records.size}
    latents = latents_of(records, dp.random.key(0), model=model, **made_of)
    size = latents.num_touched
    pulls = pulls_from_far(latents, np.zeros(size))
    found = decided_by(pulls, np.eye(size), np.ones(size))
    assert {name for (name, _), far in zip(latents.touched, found, strict=True) if far} == decided
    scales = [latents.touched[place][0] for place in scales_of_squares(pulls)]
    assert scales == ["sigma"] * (likelihood is normal)


def test_a_coordinate_that_is_known_less_is_wider_and_moved() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    precision, mean = root @ root.T, rng.normal(size=4)
    wider, pull = known_less(precision, precision @ mean, 2, 0.3, 0.5)
    there = np.eye(4)[2]
    expected = np.linalg.inv(precision) + 0.5**2 * np.outer(there, there)
    np.testing.assert_allclose(np.linalg.inv(wider), expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(np.linalg.solve(wider, pull), mean - 0.3 * there, rtol=1e-8)


def test_the_few_directions_of_records_far_out() -> None:
    few = span_of(np.array([[3.0, 0, 0, 0.1], [-5.0, 0.1, 0, 0]]))
    assert few is not None
    np.testing.assert_allclose(np.abs(few.T), [[1, 0, 0, 0]], atol=0.05)
    assert span_of(np.eye(4)) is None
    assert span_of(np.zeros((0, 4))) is None


def with_outliers(mean: Any) -> Any:
    parts = [dist.Normal(mean, numpyro.sample("sigma", dist.HalfNormal(1))), dist.Normal(0, 30)]
    return dist.MixtureGeneral(dist.Categorical(jnp.array([0.95, 0.05])), parts)


def pulls_in(model: Any, *data: Any) -> np.ndarray:
    records = take_apart(data, {})
    made_of = {"placeholder": None, "static": {}, "num_records": records.size}
    latents = latents_of(records, dp.random.key(0), model=model, **made_of)
    return pulls_from_far(latents, np.zeros(latents.size))


def test_records_that_pull_nothing_are_none() -> None:
    """Of a far component a normal's gradient is 0: from such pulls no direction could be found, behind the debit."""
    assert len(pulls_in(line(with_outliers), X, X)) == 0


def test_a_column_of_codes_is_not_taken_for_what_is_observed() -> None:
    def doses(dose: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("people", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=b * dose), obs=y)

    codes = np.arange(20) % 2
    assert len(pulls_in(doses, codes, codes)) == 0


def test_beside_a_label_that_is_a_float_long_pulls_are_found() -> None:
    """Where artificial labels were no 0 or 1, each artificial record lay outside of the support, and nothing was far out."""

    def two_parts(label: Any, y: Any) -> None:
        logit, sigma = (
            numpyro.sample("logit", dist.Normal(0, 1)),
            numpyro.sample("sigma", dist.HalfNormal(1)),
        )
        with numpyro.plate("people", len(y)):
            numpyro.sample("label", dist.Bernoulli(logits=logit), obs=label)
            numpyro.sample("y", dist.Normal(0, sigma), obs=y)

    assert len(pulls_in(two_parts, (X > 0).astype(np.float32), X))
