"""Hidden numbers of the records: kept beside the data, inferred by a network, or summed out (UAI 2017, Section 3.1).

    python examples/paper/local_latents.py [--quick]

The paper proposes to see latent variables as a hidden part of the data, which is updated without
noise and never released, and notes that summing them out is easier where the model allows it. Both,
and the third way of today, an encoder, on a factor analysis and on a Gaussian mixture whose
assignments are explicit and relaxed to points of the simplex. Measured is the mean log-density of
new points under the model, with the hidden numbers summed out, over draws of the posterior.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _experiment import STYLES, Rows, experiment, new_figure
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoNormal

import discreet as dp

WAYS = ("private memory", "encoder", "summed out")
FACTOR_SCALE = 0.5
MEANS = np.array([[0.0, 0.0], [2.0, 2.0], [2.0, -2.0], [-2.0, 2.0], [-2.0, -2.0]])
MIXTURE_SCALE = 0.5**0.5
# Start of the means: public, apart from one another, and nowhere near the truth's.
FIRST_MEANS = np.array([[0.2, 0.1], [1.0, 0.5], [0.5, -1.0], [-0.5, 1.0], [-1.0, -0.5]])


@dataclasses.dataclass(frozen=True)
class Settings:
    """Public choices of the fits."""

    num_records: int = 2000
    num_test: int = 500
    epsilons: tuple[float, ...] = (0.5, 1.0, 4.0)
    delta: float = 1e-4
    rate: float = 0.05
    num_steps: int = 2000
    clipping_norm: float = 2.0
    learning_rate: float = 0.02
    local_learning_rate: float = 0.1
    local_updates: int = 5
    temperature: float = 0.3
    ways: tuple[str, ...] = WAYS
    models: int = 2
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


FULL = Settings()
QUICK = Settings(
    epsilons=(4.0,), num_steps=600, num_test=200, ways=("private memory",), models=1, seeds=(0,)
)


class FactorAnalysis:
    """x = w z + noise, in four dimensions."""

    name, dim, locals = "factor analysis", 4, ("z",)

    def data(self, rng: np.random.Generator, size: int) -> np.ndarray:
        weights = np.array([1.5, -1.0, 0.5, 1.0])
        noise = FACTOR_SCALE * rng.normal(size=(size, self.dim))
        return (rng.normal(size=(size, 1)) * weights + noise).astype(np.float32)

    def latents(self):
        return numpyro.sample("w", dist.Normal(0, 1).expand([self.dim]).to_event(1))

    def summed_out(self, w):
        covariance = jnp.outer(w, w) + FACTOR_SCALE**2 * jnp.eye(self.dim)
        return dist.MultivariateNormal(jnp.zeros(self.dim), covariance)

    def explicit(self, w, rows):
        z: Any = numpyro.sample("z", dist.Normal(0, 1))
        return dist.Normal(z[:, None] * w, FACTOR_SCALE).to_event(1)

    def start(self):
        return {"w": np.array([0.5, -0.1, 0.1, 0.1])}

    def hidden(self, loc, scale):
        numpyro.sample("z", dist.Normal(loc[:, 0], scale[:, 0]))

    num_hidden = 1


class Mixture:
    """Five clouds of points in the plane."""

    name, dim, locals = "Gaussian mixture", 2, ("noise",)
    num_hidden = len(MEANS)

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def data(self, rng: np.random.Generator, size: int) -> np.ndarray:
        means = MEANS[rng.integers(len(MEANS), size=size)]
        return (means + MIXTURE_SCALE * rng.normal(size=(size, 2))).astype(np.float32)

    def latents(self):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(len(MEANS))))
        return weights, numpyro.sample("means", dist.Normal(0, 2).expand(MEANS.shape).to_event(2))

    def summed_out(self, latents):
        weights, means = latents
        clouds = dist.Independent(dist.Normal(means, MIXTURE_SCALE), 1)
        return dist.MixtureSameFamily(dist.Categorical(probs=weights), clouds)

    def explicit(self, latents, rows):
        weights, means = latents
        # The relaxed assignment of Maddison, Mnih and Teh (2017): a softmax of log weights and
        # Gumbel noise.
        noise: Any = numpyro.sample("noise", dist.Gumbel(0, 1).expand([len(MEANS)]).to_event(1))
        assignment = jax.nn.softmax((jnp.log(weights) + noise) / self.temperature)
        return dist.Normal(assignment @ means, MIXTURE_SCALE).to_event(1)

    def start(self):
        return {"means": FIRST_MEANS, "weights": np.full(len(MEANS), 1 / len(MEANS))}

    def hidden(self, loc, scale):
        numpyro.sample("noise", dist.Normal(loc, scale).to_event(1))


def fit(kind, way: str, x: np.ndarray, plan: dp.PrivacyPlan, settings: Settings) -> dp.DPSVI:
    """A DPSVI of the model, with its hidden numbers dealt with in one of the ways."""

    def model(x):
        latents = kind.latents()
        with numpyro.plate("rows", len(x)):
            numpyro.sample(
                "x",
                kind.summed_out(latents) if way == "summed out" else kind.explicit(latents, len(x)),
                obs=x,
            )

    start = numpyro.infer.init_to_value(values=kind.start())
    shared = AutoNormal(
        handlers.block(model, hide=list(kind.locals)), init_loc_fn=start, init_scale=0.05
    )

    def guide(x):
        shared(x)
        if way == "summed out":
            return
        with numpyro.plate("rows", len(x)):
            loc, scale = own_numbers(x) if way == "private memory" else encoded(x)
            kind.hidden(loc, scale)

    def own_numbers(x):
        shape = len(x), kind.num_hidden
        loc = numpyro.param("loc", jnp.zeros(shape))
        return loc, numpyro.param("scale", jnp.full(shape, 0.5), constraint=constraints.positive)

    def encoded(x):
        first: Any = numpyro.param(
            "first", lambda key: 0.3 * jax.random.normal(key, (kind.dim, 16))
        )
        second: Any = numpyro.param(
            "second", lambda key: 0.1 * jax.random.normal(key, (16, 2 * kind.num_hidden))
        )
        bias: Any = numpyro.param("bias", jnp.zeros(16))
        loc, scale = jnp.split(jnp.tanh(x @ first + bias) @ second, 2, axis=-1)
        return loc, 0.5 * jnp.exp(scale)

    return dp.DPSVI(
        model,
        guide,
        numpyro.optim.Adam(settings.learning_rate),
        plan=plan,
        local="private" if way == "private memory" else None,
        local_optim=numpyro.optim.Adam(settings.local_learning_rate),
        local_updates=settings.local_updates,
    )


def density(kind, draws, x: np.ndarray) -> float:
    """Mean log-density of new points in nats, averaged over the draws within the logarithm."""
    names = list(kind.start())

    def one(values):
        latents = [values[name] for name in reversed(names)]
        return kind.summed_out(latents[0] if len(latents) == 1 else latents).log_prob(x)

    each = jax.vmap(one)({name: jnp.asarray(draws[name]) for name in names})
    return float(jnp.mean(jax.scipy.special.logsumexp(each, axis=0) - jnp.log(len(each))))


def run(settings: Settings) -> Rows:
    """One row a model, way and epsilon."""
    rows: Rows = []
    for kind in (FactorAnalysis(), Mixture(settings.temperature))[: settings.models]:
        truth = kind.data(np.random.default_rng(1), settings.num_test)
        for epsilon in settings.epsilons:
            plan = dp.PrivacyPlan.calibrate(
                epsilon=epsilon,
                delta=settings.delta,
                num_records=settings.num_records,
                num_steps=settings.num_steps,
                sampling=dp.PoissonSampling(settings.rate),
                clipping_norm=settings.clipping_norm,
            )
            for way in settings.ways:
                found = []
                dpsvi = fit(kind, way, truth, plan, settings)
                for seed in settings.seeds:
                    x = kind.data(np.random.default_rng(100 + seed), settings.num_records)
                    result = dpsvi.run(dp.random.key(seed), x, progress_bar=False)
                    found.append(density(kind, result.posterior(dp.random.key(seed), 100), truth))
                rows.append(
                    {
                        "model": kind.name,
                        "way": way,
                        "epsilon": epsilon,
                        "noise_multiplier": plan.noise_multiplier,
                        "log_density": float(np.mean(found)),
                        "standard_error": float(np.std(found) / np.sqrt(len(found))),
                        "best": best(kind, truth),
                    }
                )
    return rows


def best(kind, x: np.ndarray) -> float:
    """The same of the truth itself."""
    if isinstance(kind, Mixture):
        truth = jnp.full(len(MEANS), 1 / len(MEANS)), jnp.asarray(MEANS)
        return float(jnp.mean(kind.summed_out(truth).log_prob(x)))
    return float(jnp.mean(kind.summed_out(jnp.array([1.5, -1.0, 0.5, 1.0])).log_prob(x)))


def draw(rows: Rows):
    """Log-density against epsilon, one line a way."""
    names = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = new_figure(len(names))
    for axis, name in zip(np.atleast_1d(axes), names, strict=True):
        for way, style in zip(WAYS, STYLES, strict=False):
            own = [row for row in rows if row["model"] == name and row["way"] == way]
            if not own:
                continue
            epsilons, means, errors = (
                [row[key] for row in own] for key in ("epsilon", "log_density", "standard_error")
            )
            axis.errorbar(epsilons, means, yerr=errors, label=way, capsize=2, **style)
        best = next(row["best"] for row in rows if row["model"] == name)
        axis.axhline(best, color="#aaaaaa", linewidth=0.8, label="the truth itself")
        axis.set(
            xscale="log", xlabel="epsilon", ylabel="log-density of a new point (nats)", title=name
        )
        epsilons = sorted({row["epsilon"] for row in rows})
        axis.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axis.minorticks_off()
        axis.legend()
    return figure


def check(rows: Rows, quick: bool) -> None:
    """A memory learns what summing out learns, but for what a mean-field guide and relaxed assignments lose."""
    largest = max(row["epsilon"] for row in rows)
    for name in {row["model"] for row in rows}:
        at = {row["way"]: row for row in rows if row["model"] == name and row["epsilon"] == largest}
        gap = at["private memory"]["best"] - at["private memory"]["log_density"]
        assert abs(gap) < (0.1 if quick else 0.05), (name, gap)


if __name__ == "__main__":
    experiment(__file__, __doc__, full=FULL, quick=QUICK, run=run, draw=draw, check=check)
