"""Keys: entropy, seeds, provenance through every transformation, refusals, NumPyro's handlers."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import discreet.privacy.random as dr
from discreet.interfaces.compat.d3p import random as d3p_random
from discreet.privacy.random import _keys


def data(key) -> np.ndarray:
    return np.asarray(jax.random.key_data(key))


def test_a_key_is_the_operating_systems_bytes(monkeypatch):
    asked = []
    monkeypatch.setattr(_keys.os, "urandom", lambda size: asked.append(size) or bytes(range(size)))
    assert data(dr.key()).astype("<u4").tobytes() == bytes(range(32))
    assert asked == [32]


def test_fresh_keys_differ():
    assert len({data(dr.key()).tobytes() for _ in range(50)}) == 50


def test_seeds_of_any_size_give_different_keys_and_the_same_again():
    seeds = [
        0,
        1,
        -1,
        127,
        128,
        255,
        256,
        -128,
        -129,
        2**31,
        2**32,
        2**64,
        -(2**64),
        10**500,
        10**5000,
    ]
    keys = [data(dr.key(seed)).tobytes() for seed in seeds]
    assert len(set(keys)) == len(seeds)
    assert keys == [data(dr.key(seed)).tobytes() for seed in seeds]
    assert data(dr.key(np.int64(128))).tobytes() == keys[4]


def test_the_key_of_a_seed_never_changes():
    # Results that people published with a seed must stay reproducible: change this only with a
    # changelog entry.
    assert data(dr.key(0))[:2].tolist() == [689825932, 2736723812]


@pytest.mark.parametrize(
    "seed", [True, np.bool_(False), 1.0, "7", np.float32(3), (1,), np.arange(3)]
)
def test_what_is_no_integer_is_refused_as_seed(seed):
    with pytest.raises(TypeError, match="seed is an integer"):
        dr.key(seed)


def test_a_traced_seed_is_refused():
    with pytest.raises(TypeError, match="seed is an integer"):
        jax.jit(lambda seed: data_of(dr.key(seed)))(3)


TRACES = {
    "jit": lambda: jax.jit(lambda x: x + jax.random.bits(dr.key()))(1),
    "vmap": lambda: jax.vmap(lambda x: x + jax.random.bits(dr.key()))(jnp.arange(2)),
    "grad": lambda: jax.grad(lambda x: x * jax.random.uniform(dr.key()))(1.0),
    "scan": lambda: jax.lax.scan(
        lambda x, _: (x + jax.random.bits(dr.key()), None), jnp.uint32(0), length=2
    ),
    "d3p": lambda: jax.jit(lambda x: x + jax.random.bits(d3p_random.PRNGKey()))(1),
}


@pytest.mark.parametrize("trace", TRACES)
def test_a_secret_key_made_under_a_trace_is_refused(trace):
    with pytest.raises(ValueError, match="pass it as an argument"):
        TRACES[trace]()
    assert jax.jit(lambda: data_of(dr.key(3)))().tolist() == data(dr.key(3)).tolist(), (
        "a seed is constant anyway"
    )


def test_the_key_for_values_depends_on_each_of_their_bits_and_on_nothing_else():
    secret = dr.key()
    value = np.random.default_rng(0).normal(size=67).astype(np.float32)
    words = np.stack([value.view(np.uint32)] * 65)
    flipped = np.random.default_rng(1).choice(67 * 32, 64, replace=False)
    words[np.arange(64), flipped // 32] ^= np.uint32(1) << (flipped % 32).astype(np.uint32)
    derived = jax.jit(jax.vmap(lambda x: data_of(dr.key_for(secret, [x[:60], x[60:]]))))(
        words.view(np.float32)
    )
    assert len(np.unique(derived[:, :2], axis=0)) == 65
    assert dr.is_reproducible(dr.key_for(dr.key(3), [value]))
    assert (data(dr.key_for(dr.key(3), [value])) == data(dr.key(3))).all(), (
        "what is not private stays as it was"
    )
    assert (data(dr.key_for(secret, [value[:60], value[60:]])) == derived[64]).all()
    assert not (data(dr.key_for(dr.key(), [value])) == derived[64]).any()


def test_the_key_for_values_is_the_same_whatever_products_are_rounded_to():
    """Under this setting 60 values had two keys: JAX converts integers to 32-bit floats, too."""
    values = [np.zeros(64, np.float32) for _ in range(3)]
    for value, last in zip(values, (1, 2, 3), strict=True):
        value[3] = last
    secret = dr.key()
    found = [data(dr.key_for(secret, [value])) for value in values]
    with jax.default_matmul_precision("F32_F32_F32"):
        again = [data(jax.jit(dr.key_for)(secret, [value])) for value in values]
    np.testing.assert_array_equal(again, found)
    assert len({each.tobytes() for each in found}) == 3


def test_the_key_for_doubles_sees_the_bits_that_floats_lack():
    with jax.enable_x64(True):
        one, other = jnp.float64(1.0), jnp.float64(1.0 + 2**-52)
    secret = dr.key()
    assert (data(dr.key_for(secret, [one])) != data(dr.key_for(secret, [other]))).all()


def data_of(key):
    return jax.random.key_data(key)


def test_jax_makes_seeded_keys_of_ours_but_never_secret_ones():
    secret, seeded = jax.random.key_impl(dr.key()), jax.random.key_impl(dr.key(0))
    keys = [data(jax.random.key(seed, impl=seeded)).tobytes() for seed in (0, 1, 2**31 - 1)]
    assert len(set(keys)) == 3
    assert dr.is_reproducible(jax.random.key(0, impl=seeded))
    with jax.enable_x64(True):
        assert (
            data(jax.random.key(2**40, impl=seeded)).tobytes()
            != data(jax.random.key(0, impl=seeded)).tobytes()
        )
    with pytest.raises(TypeError, match="operating-system entropy"):
        jax.random.key(0, impl=secret)


@pytest.mark.parametrize(("make", "expected"), [(dr.key, False), (lambda: dr.key(3), True)])
def test_provenance_survives_every_transformation(make, expected):
    seen = []

    def note(key):
        seen.append(dr.is_reproducible(key))
        return dr.normal(key, ())

    key = make()
    note(key)
    note(jax.random.fold_in(key, 1))
    note(jax.random.split(key)[1])
    note(dr.subkey(key, dr.Purpose.NOISE))
    note(dr.check_key(key))
    jax.jit(note)(key)
    jax.vmap(note)(jax.random.split(key, 3))
    jax.lax.scan(lambda k, _: (jax.random.split(k)[0], note(k)), key, None, length=2)
    jax.lax.cond(True, note, note, key)
    note(jax.tree.map(jnp.copy, key))
    note(copy.deepcopy(key))
    assert len(seen) >= 10
    assert set(seen) == {expected}


def test_all_other_keys_count_as_reproducible():
    assert dr.is_reproducible(jax.random.key(0))
    assert dr.is_reproducible(dr.as_threefry(dr.key()))
    assert dr.is_reproducible(jnp.zeros(8, jnp.uint32))
    assert not dr.is_reproducible(jax.random.split(dr.key(), 3))


def test_our_keys_pass_the_check_unchanged():
    for key in (dr.key(), dr.key(1)):
        assert dr.check_key(key) is key


def test_other_implementations_become_seeded_keys_of_all_their_words():
    implementations = ["threefry2x32", "rbg", "unsafe_rbg"]
    keys = [
        dr.check_key(jax.random.key(seed, impl=impl)) for impl in implementations for seed in (0, 1)
    ]
    assert len({data(key).tobytes() for key in keys}) == 6
    assert all(dr.is_reproducible(key) and data(key).shape == (8,) for key in keys)
    base = np.arange(4, dtype=np.uint32)
    for word in range(4):
        other = base.copy()
        other[word] += 1
        pair = [
            dr.check_key(jax.random.wrap_key_data(jnp.asarray(w), impl="rbg"))
            for w in (base, other)
        ]
        assert (data(pair[0]) != data(pair[1])).sum() >= 6
    traced = jax.jit(lambda key: dr.check_key(key))(jax.random.key(0))
    np.testing.assert_array_equal(data(traced), data(keys[0]))


@pytest.mark.parametrize(
    "function", [dr.check_key, dr.as_threefry, dr.normal, lambda k: dr.subkey(k, dr.Purpose.INIT)]
)
def test_what_is_no_single_typed_key_is_refused(function):
    for bad in (
        jax.random.PRNGKey(0),
        jnp.zeros(8, jnp.uint32),
        np.zeros(2, np.uint32),
        0,
        None,
        "key",
    ):
        with pytest.raises(TypeError, match=r"discreet\.random\.key"):
            function(bad)
    with pytest.raises(ValueError, match="vmap"):
        function(jax.random.split(dr.key(0), 2))


def test_a_refusal_names_the_argument_and_shows_no_words():
    with pytest.raises(TypeError, match="my_key") as caught:
        dr.check_key(jnp.full(8, 123456789, jnp.uint32), "my_key")
    assert "123456789" not in str(caught.value)


def test_subkeys_of_different_purposes_differ():
    key = dr.key(4)
    assert len({data(dr.subkey(key, purpose)).tobytes() for purpose in dr.Purpose}) == len(
        dr.Purpose
    )
    with pytest.raises(ValueError, match="99"):
        dr.subkey(key, 99)  # pyright: ignore[reportArgumentType]


# NumPyro


def regression(x, y=None):
    weight = numpyro.sample("weight", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample(
            "count",
            dist.Poisson(jnp.exp(weight * x)) if y is None else dist.Normal(weight * x, 1.0),
            obs=y,
        )


def test_numpyros_handlers_take_our_keys():
    x = jnp.ones(20)
    guide = AutoNormal(regression)
    svi = SVI(regression, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
    fitted = svi.run(dr.key(0), 300, x, 2 * x, progress_bar=False)
    # The posterior mean is 40 / 21.
    assert abs(float(fitted.params["weight_auto_loc"]) - 40 / 21) < 0.3
    draws = guide.sample_posterior(dr.key(1), fitted.params, sample_shape=(3,))
    assert draws["weight"].shape == (3,)

    def one(key):
        return handlers.trace(handlers.seed(regression, key)).get_trace(x, x)["weight"]["value"]

    assert jnp.unique(jax.vmap(one)(jax.random.split(dr.key(2), 8))).size == 8


@pytest.mark.parametrize("parallel", [False, True])
def test_numpyros_predictive_and_poisson_take_the_threefry_key(parallel):
    samples = {"weight": jnp.linspace(0.0, 1.0, 5)}
    predictive = Predictive(regression, samples, parallel=parallel)
    counts = predictive(dr.as_threefry(dr.key(3)), jnp.ones(4))["count"]
    assert counts.shape == (5, 4)
    assert (counts >= 0).all()


def test_known_keys_and_traced_ones_derive_the_same() -> None:
    """NumPy makes the words of the first, and XLA those of the others."""
    secret = dr.key()
    ways = {
        "split": lambda key: jax.random.split(key, (3, 3)),
        "fold_in": lambda key: jax.random.fold_in(key, 2**32 - 1),
        "subkey": lambda key: dr.subkey(key, dr.Purpose.NEWTON),
        "of another implementation": lambda key: dr.check_key(
            jax.random.wrap_key_data(jax.random.key_data(key)[:2])
        ),
    }
    for name, way in ways.items():
        assert data(way(secret)).tolist() == data(jax.jit(way)(secret)).tolist(), name
