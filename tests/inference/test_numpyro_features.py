"""Features of NumPyro programs, each checked by one exact step against NumPyro's own gradient."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.handlers as handlers
import pytest
from flax import nnx
from numpyro.contrib.module import random_nnx_module
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO, init_to_median, init_to_uniform
from numpyro.infer.autoguide import AutoDelta, AutoNormal
from numpyro.infer.reparam import LocScaleReparam

from discreet import random
from discreet.methods.inference import DPSVI

pytestmark = pytest.mark.usefixtures("quick_compilation")

rng = np.random.default_rng(2024)
ROWS = 30
X = jnp.asarray(rng.normal(size=(ROWS, 2)), jnp.float32)
Y = X @ jnp.array([1.0, -1.0]) + jnp.asarray(rng.normal(size=ROWS), jnp.float32)
LABELS = jnp.asarray(rng.integers(0, 2, ROWS))
TASKS = jnp.asarray(rng.normal(size=(ROWS, 3)), jnp.float32)
PRESENT = jnp.asarray(rng.random(ROWS) < 0.7)
GROUP = jnp.asarray(rng.integers(0, 3, ROWS))
GRADES = jnp.asarray(rng.integers(0, 4, ROWS))


def auto(model, guide=AutoNormal, start=init_to_median):
    """A program with an AutoGuide."""
    made = guide(model, init_loc_fn=start)
    # One guide for both: for a dynamic support an AutoGuide remembers the support of its first
    # call.
    return lambda: (model, made)


def several_sites(x, y, labels):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.LogNormal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)
        with handlers.scale(scale=0.3):
            numpyro.sample("label", dist.Bernoulli(logits=2 * x @ w), obs=labels)
        numpyro.factor("penalty", -0.1 * jnp.sum(w**2) * y**2)


def scaled(y):
    return handlers.scale(centre, scale=0.25)(y)


def centre(y):
    with handlers.scale(scale=2.0):
        mean = numpyro.sample("mean", dist.Normal(0, 3))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def masked(y, present):
    mean = numpyro.sample("mean", dist.Normal(0, 3))
    with numpyro.plate("people", len(y)), handlers.mask(mask=present):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def nested_plates(tasks):
    with numpyro.plate("tasks", tasks.shape[1], dim=-1):
        mean = numpyro.sample("mean", dist.Normal(0, 2))
    noise = numpyro.sample("noise", dist.Gamma(2, 2))
    with (
        numpyro.plate("people", tasks.shape[0], dim=-2),
        numpyro.plate("answers", tasks.shape[1], dim=-1),
    ):
        numpyro.sample("y", dist.Normal(mean, noise), obs=tasks)


def explicit_size(y, N=ROWS):
    mean = numpyro.sample("mean", dist.Normal(0, 3))
    with numpyro.plate("people", N, len(y)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def subsampled(y, rows=ROWS):
    mean = numpyro.sample("mean", dist.Normal(0, 3))
    with numpyro.plate("people", len(y), subsample_size=rows):
        numpyro.sample("y", dist.Normal(mean, 1), obs=numpyro.subsample(y, event_dim=0))


def indexed(y, rows=ROWS):
    mean = numpyro.sample("mean", dist.Normal(0, 3))
    with numpyro.plate("people", len(y), subsample_size=rows) as index:
        numpyro.sample("y", dist.Normal(mean, 1), obs=y[index])


def dictionary(table):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", len(table["y"])):
        numpyro.sample("y", dist.Normal(table["x"] @ w, 1), obs=table["y"])


def empirical_bayes(x, y):
    width = numpyro.param("width", 2.0, constraint=dist.constraints.positive)
    noise = numpyro.param("noise", 0.5, constraint=dist.constraints.interval(0.1, 3.0))
    w = numpyro.sample("w", dist.Normal(0, width).expand([2]).to_event(1))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)


def dynamic_support(y):
    width = numpyro.sample("width", dist.Gamma(2, 1))
    mean = numpyro.sample("mean", dist.Uniform(-width, 2 * width))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def bounded_supports(tasks):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    ordered = dist.TransformedDistribution(
        dist.Normal(0, 1).expand([3]).to_event(1), dist.transforms.OrderedTransform()
    )
    locations = numpyro.sample("locations", ordered)
    cholesky = numpyro.sample("cholesky", dist.LKJCholesky(3, concentration=2.0))
    with numpyro.plate("people", len(tasks)):
        numpyro.sample("y", dist.Normal(cholesky @ locations, weights).to_event(1), obs=tasks)


def ordinal(x, grades):
    w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), (2,)))
    first = dist.TransformedDistribution(
        dist.Normal(0, 1).expand([3]).to_event(1), dist.transforms.OrderedTransform()
    )
    cutpoints = numpyro.sample("cutpoints", first)
    with numpyro.plate("people", len(x)):
        numpyro.sample("grade", dist.OrderedLogistic(x @ w, cutpoints), obs=grades)


@handlers.reparam(config={"effect": LocScaleReparam(0)})
def reparametrised(group, y):
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    with numpyro.plate("groups", 3):
        effect = numpyro.sample("effect", dist.Normal(0, spread))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Normal(effect[group], 1), obs=y)


NETWORK = nnx.Linear(2, 1, rngs=nnx.Rngs(0))


def bayesian_layer(x, y):
    network = random_nnx_module("network", NETWORK, prior=dist.Normal(0, 1))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Normal(network(x)[..., 0], 1), obs=y)


def local_latent(x, y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    spread = numpyro.sample("spread", dist.LogNormal(0, 1))
    with numpyro.plate("people", len(y)):
        z = numpyro.sample("z", dist.Normal(mean, spread))
        numpyro.sample("y", dist.Normal(z * x[:, 0], 1), obs=y)


def local_guide(x, y):
    location = numpyro.param("location", jnp.array([0.1, -0.2]))
    mean = numpyro.sample("mean", dist.Normal(location[0], 0.5))
    numpyro.sample("spread", dist.LogNormal(location[1], 0.3))
    slope = numpyro.param("slope", 0.7)
    with numpyro.plate("people", len(y)):
        numpyro.sample("z", dist.Delta(slope * y + mean * x[:, 1], log_density=0.1 * slope * y))


def auxiliary_guide(y):
    spread = numpyro.param("spread", 0.5, constraint=dist.constraints.positive)
    base = numpyro.sample("base", dist.Normal(0.3, spread), infer={"is_auxiliary": True})
    numpyro.sample("mean", dist.Delta(jnp.sinh(base), log_density=-jnp.log(jnp.cosh(base))))


PROGRAMS = {
    "several observed sites": (auto(several_sites), (X, Y, LABELS), {}),
    "scale around everything": (auto(scaled), (Y,), {}),
    "mask": (auto(masked), (Y, PRESENT), {}),
    "nested plates": (auto(nested_plates), (TASKS,), {}),
    "plate with N": (auto(explicit_size), (Y,), {"N": ROWS}),
    "subsample": (auto(subsampled), (Y,), {}),
    "subsample by index": (auto(indexed), (Y,), {"rows": ROWS}),
    "dictionary": (auto(dictionary), ({"x": X, "y": Y},), {}),
    "param sites": (auto(empirical_bayes), (X, Y), {}),
    "dynamic support": (auto(dynamic_support), (Y,), {}),
    "simplex, ordered, Cholesky": (auto(bounded_supports, start=init_to_uniform), (TASKS,), {}),
    "ordinal with improper prior": (auto(ordinal), (X, GRADES), {}),
    "reparam": (auto(reparametrised), (GROUP, Y), {}),
    "random network": (auto(bayesian_layer), (X, Y), {}),
    "delta": (auto(several_sites, AutoDelta), (X, Y, LABELS), {}),
    "local latents": (lambda: (local_latent, local_guide), (X, Y), {}),
    "auxiliary site": (lambda: (centre, auxiliary_guide), (Y,), {}),
}


_MORE = {
    "several observed sites",
    "scale around everything",
    "delta",
    "auxiliary site",
    "dynamic support",
    "nested plates",
    "ordinal with improper prior",
    "plate with N",
    "subsample by index",
    "dictionary",
    "simplex, ordered, Cholesky",
    "reparam",
    "random network",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in _MORE)) for name in PROGRAMS],
)
def test_one_step_is_numpyros(twins, name):
    program, records, static = PROGRAMS[name]
    twins(program, *records, **static).first_step().check()


def test_a_batch_is_scaled_by_the_sampling_rate_and_its_padding_ignored(twins):
    """NumPyro scales by N / rows, which for this batch is 1 / rate."""
    twins(auto(explicit_size), Y, rate=0.5, N=ROWS).first_step(rows=ROWS // 2).check()


@pytest.mark.parametrize(
    "loss",
    [
        Trace_ELBO(3),
        TraceMeanField_ELBO(),
        pytest.param(TraceMeanField_ELBO(2), marks=pytest.mark.exhaustive),
    ],
)
def test_every_elbo_is_numpyros(twins, loss):
    twins(lambda: (local_latent, local_guide), X, Y, loss=loss).first_step().check()


def test_records_may_come_by_name_and_from_numpy(exact_plan):
    _, guide = auto(masked)()
    dpsvi = DPSVI(masked, guide, numpyro.optim.Adam(0.1), plan=exact_plan(ROWS, 3))
    by_position = dpsvi.run(random.key(0), Y, PRESENT, progress_bar=False)
    by_name = dpsvi.run(
        random.key(0), present=np.asarray(PRESENT), y=np.asarray(Y), progress_bar=False
    )
    assert np.any(by_position.trace.iterates[0] != by_position.trace.iterates[-1])
    assert by_position.params.keys() == by_name.params.keys()
    for name, value in by_position.params.items():
        np.testing.assert_allclose(value, by_name.params[name], rtol=1e-5, atol=1e-6)
