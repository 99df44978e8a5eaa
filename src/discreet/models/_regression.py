"""Bayesian regression for a 0/1, a real and a count target."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float


def _predictor(
    x: Float[Array, "record feature"], weight_scale: float, intercept_scale: float
) -> Float[Array, " record"]:
    """Intercept plus weighted features, with independent normal priors."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, intercept_scale))
    weights = numpyro.sample("weights", dist.Normal(0.0, weight_scale).expand([x.shape[1]]).to_event(1))
    return jnp.asarray(intercept + x @ weights)


def logistic_regression(x: Float[Array, "record feature"], y: Float[Array, " record"] | None = None) -> None:
    """Logistic regression: P(y = 1) = 1 / (1 + exp(-(intercept + x · weights))).

    Priors: weights Normal(0, 2.5), intercept Normal(0, 5), after Gelman, Jakulin, Pittau and Su (2008), Ann. Appl. Stat.
    2(4), with normal in the place of Cauchy tails.

    Args:
        x: Features of about unit size.
        y: 0 or 1 for each record; None to draw it.

    >>> import jax, numpyro
    >>> drawn = numpyro.handlers.seed(logistic_regression, jax.random.key(0))
    >>> numpyro.handlers.trace(drawn).get_trace(jax.numpy.zeros((3, 2)))["y"]["value"].shape
    (3,)
    """
    logits = _predictor(x, weight_scale=2.5, intercept_scale=5.0)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def linear_regression(x: Float[Array, "record feature"], y: Float[Array, " record"] | None = None) -> None:
    """Linear regression: y is normal around intercept + x · weights with standard deviation `sigma`.

    Priors for a target scaled to [-1, 1]: weights and intercept Normal(0, 1), sigma half-normal with scale 1.

    Args:
        x: Features of about unit size.
        y: The target of each record, of about unit size; None to draw it.
    """
    mean = _predictor(x, weight_scale=1.0, intercept_scale=1.0)
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def poisson_regression(x: Float[Array, "record feature"], y: Float[Array, " record"] | None = None) -> None:
    """Poisson regression: y is a count with mean exp(intercept + x · weights).

    Priors: weights Normal(0, 1), so that a feature over its whole range multiplies the mean by about e² at most, and
    intercept Normal(0, 3).

    Args:
        x: Features of about unit size.
        y: A count for each record; None to draw it.
    """
    log_rate = _predictor(x, weight_scale=1.0, intercept_scale=3.0)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(rate=_exp(log_rate)), obs=y)


def _exp(log_rate: Float[Array, " record"]) -> Float[Array, " record"]:
    """The exponential, held below e²⁰: a wild draw of the guide gives a bad fit and not an infinite one."""
    return jnp.exp(jnp.minimum(log_rate, 20.0))
