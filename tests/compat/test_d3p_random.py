"""d3p's random suite on ChaCha20 keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discreet.interfaces.compat.d3p as d3p
from discreet.privacy.random import is_reproducible


def words(key):
    return np.asarray(jax.random.key_data(key))


def test_keys_are_secret_without_a_seed_and_say_so_with_one():
    assert not is_reproducible(d3p.random.PRNGKey())
    assert not np.array_equal(words(d3p.random.PRNGKey()), words(d3p.random.PRNGKey()))
    assert is_reproducible(d3p.random.PRNGKey(3))
    assert np.array_equal(words(d3p.random.PRNGKey(3)), words(d3p.random.PRNGKey(jnp.int32(3))))
    assert np.array_equal(words(d3p.random.PRNGKey(b"\x01\x00")), words(d3p.random.PRNGKey(256)))
    assert is_reproducible(d3p.random.as_key(d3p.random.debug.PRNGKey())), (
        "debug keys are never private"
    )
    with pytest.raises(TypeError, match="seed"):
        d3p.random.PRNGKey(0.5)


def test_provenance_survives_split_and_fold_in():
    for key, reproducible in ((d3p.random.PRNGKey(), False), (d3p.random.PRNGKey(1), True)):
        first, second = d3p.random.split(key)
        assert d3p.random.split(key, 5).shape == (5,)
        for child in (first, second, d3p.random.fold_in(key, 3)):
            assert is_reproducible(child) == reproducible


def test_keys_of_other_kinds_are_taken_in_but_count_as_reproducible():
    legacy, typed = jax.random.PRNGKey(5), jax.random.key(5)
    assert np.array_equal(words(d3p.random.as_key(legacy)), words(d3p.random.as_key(typed)))
    assert is_reproducible(d3p.random.as_key(legacy))
    with pytest.raises(TypeError, match="typed JAX key"):
        d3p.random.as_key(np.zeros((4, 4), np.uint32))  # what jax-chacha-prng's keys looked like
    with pytest.raises(ValueError, match="array of keys"):
        d3p.random.as_key(d3p.random.split(typed))


def test_values():
    key = d3p.random.PRNGKey(0)
    uniform = d3p.random.uniform(key, (1000,), minval=2.0, maxval=4.0)
    assert uniform.min() >= 2
    assert uniform.max() < 4
    assert abs(uniform.mean() - 3) < 0.1
    normal = d3p.random.normal(key, (1000,))
    assert abs(normal.std() - 1) < 0.1
    integers = d3p.random.randint(key, (1000,), 0, 3)
    assert set(np.asarray(integers)) == {0, 1, 2}
    assert d3p.random.random_bits(key, 8, (4,)).dtype == jnp.uint8
    with pytest.raises(ValueError, match="bit_width"):
        d3p.random.random_bits(key, 7, (4,))


def test_debug_is_jax_random():
    debug, key = d3p.random.debug, jax.random.PRNGKey(4)
    assert np.array_equal(debug.PRNGKey(4), key)
    assert np.array_equal(debug.normal(key, (5,)), jax.random.normal(key, (5,)))
    assert np.array_equal(debug.random_bits(key, 16, (5,)), jax.random.bits(key, (5,), jnp.uint16))
    # Models are sampled with the same keys as by JAX and NumPyro themselves.
    assert d3p.random.convert_to_jax_rng_key(key) is key
    assert (
        str(jax.random.key_impl(d3p.random.convert_to_jax_rng_key(d3p.random.PRNGKey(4))))
        == "threefry2x32"
    )
