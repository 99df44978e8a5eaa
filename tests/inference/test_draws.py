"""The draws of a batch's records, made at once: the same law, the same loss, and nothing lifted that must not be."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats

import discreet as dp
from discreet import mechanisms, random
from discreet.methods.inference._draws import _MOST_BYTES, Draws

KEY = random.key(20261120)
RECORD = jnp.float32(0.5)


def draws_of(loss, num_rows=8):
    return Draws.of(loss, jnp.ones(2), RECORD, KEY, num_rows)


def uses_key(draws):
    """Return True if the loss still depends on the key once it has its bits."""
    bits = [jnp.zeros(x.shape, x.dtype) for x in draws.requests]
    jaxpr = jax.make_jaxpr(lambda key: draws.loss(jnp.ones(2), RECORD, key, bits))(KEY).jaxpr
    return any("random_bits" in str(equation) for equation in jaxpr.eqns)


def simple(u, x, key):
    return jnp.sum(u) * x + jnp.sum(jax.random.normal(key, (3,)))


def derived(u, x, key):
    first, second = jax.random.split(jax.random.fold_in(key, 7))
    return jnp.sum(u * jax.random.normal(first, (2,))) + x * jax.random.uniform(second)


@jax.jit
def _inner(key):
    return jax.random.normal(jax.random.split(key, 3)[1], (2, 2))


def inside_jit(u, x, key):
    return jnp.sum(u) + x * jnp.sum(_inner(key))


def particles(u, x, key):
    return jnp.mean(
        jax.vmap(lambda k: jnp.sum(u) * x * jax.random.normal(k))(jax.random.split(key, 5))
    )


def narrow(u, x, key):
    return jnp.sum(u) * x + jnp.sum(jax.random.bits(key, (5,), jnp.uint8).astype(jnp.float32))


CASES = {
    simple: [KEY],
    derived: list(jax.random.split(jax.random.fold_in(KEY, 7))),
    inside_jit: [jax.random.split(KEY, 3)[1]],
    particles: [jax.random.split(KEY, 5)],
    narrow: [KEY],
}


@pytest.mark.parametrize("loss", list(CASES), ids=lambda f: f.__name__)
def test_with_the_bits_of_its_key_the_loss_is_what_it_was(loss):
    """So the bits go where they belong."""
    draws = draws_of(loss)
    width = {"narrow": jnp.uint8}.get(loss.__name__, jnp.uint32)
    bits = [
        jax.random.bits(key, request.shape, width)
        if not key.ndim
        else jax.vmap(lambda k, r=request: jax.random.bits(k, r.shape[1:], width))(key)
        for key, request in zip(CASES[loss], draws.requests, strict=True)
    ]
    assert not uses_key(draws)
    ours = draws.loss(jnp.ones(2), RECORD, jax.random.key(0, impl=jax.random.key_impl(KEY)), bits)
    np.testing.assert_allclose(ours, loss(jnp.ones(2), RECORD, KEY), rtol=1e-6)


def test_one_key_asked_twice_is_one_request():
    def loss(u, x, key):
        a, b = jax.random.split(key)
        again, _ = jax.random.split(key)
        return (
            jnp.sum(u)
            * x
            * (jax.random.normal(a) - jax.random.normal(again) + jax.random.normal(b))
        )

    assert len(draws_of(loss).requests) == 2


@pytest.mark.parametrize(
    "key_of",
    [
        lambda key, x: jax.random.key(3),  # a constant is no secret draw
        lambda key, x: jax.random.fold_in(key, x.astype(jnp.int32)),  # the record decides
    ],
    ids=["a constant key", "a key with the record in it"],
)
def test_other_keys_are_left_alone(key_of):
    draws = draws_of(lambda u, x, key: jnp.sum(u) * x * jax.random.normal(key_of(key, x)))
    assert draws.requests == ()


def test_a_rejection_sampler_keeps_its_key():
    def loss(u, x, key):
        a, b = jax.random.split(key)
        return jnp.sum(u) * x * jax.random.normal(a) + jax.random.gamma(b, 2.0)

    draws = draws_of(loss)
    assert len(draws.requests) == 1
    bits = [jax.random.bits(jax.random.split(KEY)[0], draws.requests[0].shape)]
    np.testing.assert_allclose(
        draws.loss(jnp.ones(2), RECORD, KEY, bits), loss(jnp.ones(2), RECORD, KEY), rtol=1e-6
    )


def test_without_room_every_row_makes_its_own():
    draws = draws_of(simple, num_rows=_MOST_BYTES // 12 + 1)
    assert draws.requests == ()
    bits, right = draws.make(KEY, 4)
    assert bits == []
    assert bool(right)
    np.testing.assert_allclose(
        draws.loss(jnp.ones(2), RECORD, KEY, bits), simple(jnp.ones(2), RECORD, KEY), rtol=1e-6
    )
    assert draws_of(simple, num_rows=_MOST_BYTES // 12).requests


def test_rows_draw_uniform_bits_of_their_own():
    for loss, width in ((simple, 32), (narrow, 8)):
        (bits,), right = draws_of(loss).make(KEY, 4_000)
        assert bool(right)
        assert bits.dtype == f"uint{width}"
        share = np.asarray(bits, np.float64).ravel() / 2**width
        assert scipy.stats.kstest(share, "uniform").pvalue > (1e-4 if width == 32 else 1e-9)
        assert len(np.unique(np.asarray(bits), axis=0)) > 0.999 * 4_000
    (other,), _ = draws_of(simple).make(random.key(1), 4_000)
    (same,), _ = draws_of(simple).make(KEY, 4_000)
    assert (np.asarray(other) != np.asarray(same)).mean() > 0.999


def _model(x):
    w = numpyro.param("w", jnp.ones(2))
    with numpyro.plate("data", 40, x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("x", dist.Normal(w[0] * z + w[1], 1.0), obs=x)


def _guide(x):
    a = numpyro.param("a", 0.1)
    with numpyro.plate("data", 40, x.shape[0]):
        numpyro.sample("z", dist.Normal(a * x, 0.5))


def _dpsvi():
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(0.5),
        clipping_norm=1.0,
        noise_multiplier=1.0,
        num_steps=3,
        num_records=40,
    )
    return dp.DPSVI(_model, _guide, numpyro.optim.Adam(1e-2), plan=plan)


def test_draws_that_were_not_made_show(monkeypatch):
    """Draws may belong to places because they are secret: nothing of a step with others may be used."""
    honest = random.fast_bits
    monkeypatch.setattr(random, "fast_bits", lambda key, n: (honest(key, n)[0], jnp.array(False)))
    result = _dpsvi().run(
        random.key(0), np.linspace(-1, 1, 40, dtype=np.float32), progress_bar=False
    )
    assert all(np.isnan(x).all() for x in jax.tree.leaves(result.last_params))


def test_noise_that_was_not_made_shows(monkeypatch):
    """A gradient that is no number is usually left out of a step, but not where the release is none."""
    honest = mechanisms.release

    def without_noise(*args):
        released = honest(*args)
        return released._replace(gradient=jax.tree.map(lambda x: x * jnp.nan, released.gradient))

    monkeypatch.setattr(mechanisms, "release", without_noise)
    result = _dpsvi().run(
        random.key(0), np.linspace(-1, 1, 40, dtype=np.float32), progress_bar=False
    )
    assert all(np.isnan(x).all() for x in jax.tree.leaves(result.last_params))


def test_each_step_and_each_row_draws_anew(monkeypatch):
    seen = []
    made = Draws.make

    def watched(self, key, num_rows):
        bits, right = made(self, key, num_rows)
        jax.debug.callback(lambda *x: seen.append(np.concatenate([np.ravel(y) for y in x])), *bits)
        return bits, right

    monkeypatch.setattr(Draws, "make", watched)
    # A program that talks to the world has no proof.
    _dpsvi().run(
        random.key(0),
        np.linspace(-1, 1, 40, dtype=np.float32),
        progress_bar=False,
        require_proof=False,
    )
    jax.effects_barrier()
    together = np.concatenate(seen)
    assert len(seen) == 3
    assert len(np.unique(together)) > 0.99 * together.size
