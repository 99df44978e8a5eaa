"""DPSVI runs on the book-keeping engine, and the fit is the one that the reference engine makes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet import mechanisms
from discreet.methods.inference import _dpsvi as setup_file
from discreet.privacy.gradients import BookKeepingEngine, ReferenceEngine
from discreet.privacy.gradients._bookkeeping import _Book

pytestmark = pytest.mark.usefixtures("quick_compilation")

N, D = 200, 12


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([D]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)


def _dense(name, rows, columns):
    w = numpyro.param(
        f"{name}_w", lambda key: jax.random.normal(key, (rows, columns)) / np.sqrt(rows)
    )
    return lambda x: x @ w + numpyro.param(f"{name}_b", jnp.zeros(columns))


def vae(x):
    decode = _dense("decoder", 3, D)
    with numpyro.plate("data", N, x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("x", dist.Normal(decode(jnp.tanh(z)), 1).to_event(1), obs=x)


def vae_guide(x):
    encode, width = (
        _dense("encoder", D, 3),
        numpyro.param("width", 0.5, constraint=dist.constraints.positive),
    )
    with numpyro.plate("data", N, x.shape[0]):
        numpyro.sample("z", dist.Normal(encode(x), width).to_event(1))


def _make(model, guide, **options):
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(0.1),
        clipping_norm=0.5,
        noise_multiplier=1.0,
        num_steps=40,
        num_records=N,
    )
    return dp.DPSVI(model, guide, numpyro.optim.Adam(1e-2), plan=plan, **options)


def _tables():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, D)).astype(np.float32), (rng.random(N) < 0.5).astype(np.float32)


@functools.cache
def _reference(kind):
    with pytest.MonkeyPatch.context() as patch:
        return _fit(patch, ReferenceEngine(), *_problem(kind))


def _problem(kind):
    x, y = _tables()
    return (logistic, AutoNormal(logistic), x, y) if kind == "logistic" else (vae, vae_guide, x)


def _fit(monkeypatch, engine, model, guide, *data, **options):
    dpsvi = _make(model, guide, **options)
    if engine is not None:
        monkeypatch.setattr(setup_file, "BookKeepingEngine", lambda *args, **options: engine)
    return dpsvi.run(dp.random.key(7), *data, progress_bar=False)


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        (None, {}),
        (None, {"microbatch_size": 7}),
        (BookKeepingEngine(memory_budget=20_000), {}),
    ],
    ids=["as chosen", "microbatches", "little memory"],
)
@pytest.mark.parametrize("kind", [pytest.param("logistic", marks=pytest.mark.exhaustive), "vae"])
def test_the_fit_is_the_reference_s(monkeypatch, kind, engine, options):
    ours, reference = _fit(monkeypatch, engine, *_problem(kind), **options), _reference(kind)
    # Same key, so the same batches and the same noise; Adam's first steps have unit length, so
    # nothing is trivial.
    for name, value in reference.last_params.items():
        np.testing.assert_allclose(
            ours.last_params[name], value, rtol=2e-3, atol=2e-4, err_msg=name
        )
    np.testing.assert_allclose(ours.losses, reference.losses, rtol=1e-3)


def test_microbatch_size_limits_the_rows_at_once():
    book = _Book(lambda p, r: jnp.sum(r @ p), jnp.ones((3, 2)), jnp.ones(3))
    # of other numbers XLA would compute the last rows otherwise
    assert BookKeepingEngine(4)._chunk(book)[0] == 16


def test_a_release_that_is_no_number_shows(monkeypatch):
    """Noise that could not be made must not pass for a fit that stands still."""
    dpsvi = _make(vae, vae_guide)
    release = mechanisms.release

    def spoiled(*args):
        return jax.tree.map(lambda x: x * jnp.nan, release(*args))

    monkeypatch.setattr(mechanisms, "release", spoiled)
    result = dpsvi.run(dp.random.key(0), _tables()[0], progress_bar=False)
    assert all(np.isnan(value).all() for value in result.last_params.values())
