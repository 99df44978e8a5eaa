"""Models as statisticians write them, with tables drawn from them: name -> model, and `drawn(name, rng, num_records)`."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

FEATURES, GROUPS = 5, 8


def weights(scale: float, size: int = FEATURES) -> Any:
    return numpyro.sample("w", dist.Normal(0, scale).expand([size]).to_event(1))


def hierarchical(x: Any, group: Any, y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 2.5))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    w = weights(2.5)
    b = numpyro.sample("b", dist.Normal(mu, tau).expand([GROUPS]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b[group] + x @ w), obs=y)


def robust(x: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0, 1))
    w = weights(1)
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.StudentT(4, a + x @ w, sigma), obs=y)


def ordinal(x: Any, y: Any) -> None:
    w = weights(2.5)
    first = numpyro.sample("first", dist.Normal(-1, 2))
    gaps = numpyro.sample("gaps", dist.Gamma(2, 1).expand([3]).to_event(1))
    cuts = first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(gaps)])
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(x @ w, cuts), obs=y)


def survival(x: Any, t: Any, dead: Any) -> None:
    """Weibull times, of which some are censored."""
    a = numpyro.sample("a", dist.Normal(0, 2))
    w = weights(1)
    k = numpyro.sample("k", dist.LogNormal(0, 0.5))
    with numpyro.plate("people", x.shape[0]):
        late = k * (jnp.log(t) - (a + x @ w))
        density = dead * (jnp.log(k) - jnp.log(t) + late) - jnp.exp(jnp.minimum(late, 20.0))
        numpyro.factor("t", density)


def inflated(x: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0, 2))
    w = weights(1)
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("people", x.shape[0]):
        rate = jnp.exp(jnp.minimum(a + x @ w, 10.0))
        numpyro.sample("y", dist.ZeroInflatedPoisson(p, rate=rate), obs=y)


def mixture(y: Any) -> None:
    m = numpyro.sample("m", dist.Normal(0, 1).expand([2, 2]).to_event(2))
    s = numpyro.sample("s", dist.LogNormal(-1, 0.5).expand([2]).to_event(1))
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(2)))
    parts = dist.Independent(dist.Normal(m, s[:, None]), 1)
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(p), parts), obs=y)


MODELS: dict[str, Any] = {
    "hierarchical": hierarchical,
    "robust": robust,
    "ordinal": ordinal,
    "survival": survival,
    "inflated": inflated,
    "mixture": mixture,
}
# Where a mixture starts: its components must be apart.
INIT: dict[str, Any] = {"mixture": {"m": np.array([[-0.3, 0.0], [0.3, 0.0]])}}


def drawn(
    name: str, rng: np.random.Generator, num_records: int
) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
    """A table, and the values of the latents that drew it."""
    x = rng.uniform(-1, 1, (num_records, FEATURES))
    w = rng.normal(size=FEATURES)
    if name == "hierarchical":
        mu = 0.5 * rng.normal()
        b = mu + 0.7 * rng.normal(size=GROUPS)
        group = rng.choice(GROUPS, num_records, p=np.arange(1, GROUPS + 1) / 36)
        y = rng.random(num_records) < 1 / (1 + np.exp(-b[group] - x @ w))
        # The mean and the scale of eight groups are known from the eight alone.
        return (x, group, y.astype(float)), {"w": w, "b": b}
    if name == "robust":
        w = w / 2
        return (x, 0.2 + x @ w + 0.3 * rng.standard_t(4, num_records)), {
            "a": 0.2,
            "w": w,
            "sigma": 0.3,
        }
    if name == "ordinal":
        gaps = np.array([0.8, 1.0, 1.2])
        cuts = -1.2 + np.append(0, np.cumsum(gaps))
        y = ((x @ w + rng.logistic(size=num_records))[:, None] > cuts).sum(axis=1)
        return (x, y), {"w": w, "first": -1.2, "gaps": gaps}
    if name == "survival":
        w = w / 2
        t = np.exp(0.5 + x @ w) * rng.weibull(1.5, num_records)
        end = rng.uniform(0.2, 4, num_records)
        return (x, np.maximum(np.minimum(t, end), 1e-3), (t < end).astype(float)), {
            "a": 0.5,
            "w": w,
            "k": 1.5,
        }
    if name == "inflated":
        w = w / 2
        y = rng.poisson(np.exp(0.7 + x @ w)) * (rng.random(num_records) > 0.25)
        return (x, y), {"a": 0.7, "w": w, "p": 0.25}
    m = np.array([[-0.7, 0.3], [0.6, -0.2]])
    first = rng.random(num_records) < 0.35
    y = np.where(first[:, None], m[0] + 0.3 * rng.normal(size=(num_records, 2)), m[1])
    y = np.where(first[:, None], y, m[1] + 0.2 * rng.normal(size=(num_records, 2)))
    return (y,), {"m": m, "s": np.array([0.3, 0.2]), "p": np.array([0.35, 0.65])}
