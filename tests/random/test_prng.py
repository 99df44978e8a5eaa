"""ChaCha20 as JAX key types: the domain table, agreement of vmap, jit and scan with loops, and all of jax.random."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from scipy import stats

import discreet.privacy.random as dr
from discreet.privacy.random import _keys, _prng


def data(key) -> np.ndarray:
    return np.asarray(jax.random.key_data(key))


def reference_block(
    key, name: bytes, first: int = 0, second: int = 0, counter: int = 0
) -> np.ndarray:
    """OpenSSL's block for one line of the table of domains."""
    start = (
        counter.to_bytes(4, "little")
        + name
        + first.to_bytes(4, "little")
        + second.to_bytes(4, "little")
    )
    cipher = Cipher(ChaCha20(data(key).astype("<u4").tobytes(), start), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(64)), "<u4")


KEY = dr.key(20261120)


# The table of domains


def test_split_reads_halves_of_the_blocks_of_its_domain():
    children = data(jax.random.split(KEY, 5))
    for i in range(5):
        half = slice(0, 8) if i % 2 == 0 else slice(8, 16)
        np.testing.assert_array_equal(
            children[i], reference_block(KEY, b"splt", counter=i // 2)[half]
        )


def test_fold_in_and_subkey_read_the_block_of_their_number():
    for number in (0, 1, 77, 2**31, 2**32 - 1):
        np.testing.assert_array_equal(
            data(jax.random.fold_in(KEY, number)), reference_block(KEY, b"fold", number)[:8]
        )
    for purpose in dr.Purpose:
        np.testing.assert_array_equal(
            data(dr.subkey(KEY, purpose)), reference_block(KEY, b"purp", int(purpose))[:8]
        )


def test_one_block_of_bits_is_the_block_of_its_width():
    np.testing.assert_array_equal(jax.random.bits(KEY, (16,)), reference_block(KEY, b"bits", 32))
    expected = reference_block(KEY, b"bits", 16).view("<u2")
    np.testing.assert_array_equal(jax.random.bits(KEY, (32,), "uint16"), expected)
    expected = reference_block(KEY, b"bits", 8).view("u1")
    np.testing.assert_array_equal(jax.random.bits(KEY, (64,), "uint8"), expected)


def test_sixty_four_bits_are_two_words():
    with jax.enable_x64(True):
        bits = np.asarray(jax.random.bits(KEY, (8,), "uint64"))
    words = reference_block(KEY, b"bits", 64).astype(np.uint64)
    np.testing.assert_array_equal(bits, (words[:8] << np.uint64(32)) | words[8:])


def test_threefry_words_come_from_their_own_block():
    np.testing.assert_array_equal(data(dr.as_threefry(KEY)), reference_block(KEY, b"thrf")[:2])


def test_domains_differ_pairwise():
    domains = [_keys.BITS, _prng.SPLIT, _prng.FOLD_IN, _keys.PURPOSE]
    domains += [_prng.NORMAL, _keys.THREEFRY, _prng.SEED, _keys.FOREIGN]
    assert len({int(domain) for domain in domains}) == len(domains)


def test_no_two_uses_of_a_key_give_a_word_in_common():
    uses = [data(jax.random.split(KEY, 40)), data(dr.as_threefry(KEY))]
    uses += [data(jax.random.fold_in(KEY, number)) for number in range(20)]
    uses += [data(dr.subkey(KEY, purpose)) for purpose in dr.Purpose]
    uses += [
        jax.random.bits(KEY, (200,)),
        np.asarray(jax.random.bits(KEY, (400,), "uint16")).view(np.uint32),
    ]
    words = np.concatenate([np.asarray(use).reshape(-1) for use in uses])
    # About 900 words: by chance two agree with probability 1e-4; the seed is fixed.
    assert len(np.unique(words)) == len(words)


# Shapes and widths


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7,), (3, 5), (2, 3, 4), (9001,)])
def test_bits_and_children_have_the_shape_asked_for(shape):
    for width in ("uint8", "uint16", "uint32"):
        bits = jax.eval_shape(lambda key, width=width: jax.random.bits(key, shape, width), KEY)
        assert (bits.shape, bits.dtype) == (shape, width)
    keys = jax.eval_shape(lambda key: jax.random.split(key, shape), KEY)
    assert (keys.shape, keys.dtype) == (shape, KEY.dtype)


def test_too_many_bits_are_refused_while_tracing():
    with pytest.raises(ValueError, match="2\\*\\*36"):
        jax.eval_shape(
            lambda key: _prng.bits_of_shape(key, 32, (2**20, 2**17)), jnp.zeros(8, jnp.uint32)
        )


def test_too_many_children_are_refused_while_tracing():
    with pytest.raises(ValueError, match="two stages"):
        jax.eval_shape(
            lambda key: _prng.split_to_shape(key, (2**20, 2**14)), jnp.zeros(8, jnp.uint32)
        )


def test_an_odd_width_is_refused():
    with pytest.raises(TypeError, match="widths"):
        _prng.bits_of_shape(jnp.zeros(8, jnp.uint32), 4, (2,))


@pytest.mark.parametrize("width", ["uint8", "uint16", "uint32"])
def test_bits_are_uniform(width):
    """Chi-squared on bytes, false-alarm rate 1e-4 with a fixed seed."""
    bytes_ = np.asarray(jax.random.bits(jax.random.fold_in(KEY, 5), (400_000,), width)).view(
        np.uint8
    )
    assert stats.chisquare(np.bincount(bytes_, minlength=256)).pvalue > 1e-4


# Transformations agree with plain loops


def test_vmap_of_every_function_agrees_with_a_loop():
    keys = jax.random.split(KEY, 3)
    functions = [
        lambda k: data_of(jax.random.split(k, (2, 3))),
        lambda k: data_of(jax.random.fold_in(k, 9)),
        lambda k: jax.random.bits(k, (50,)),
        lambda k: jax.random.bits(k, (11,), "uint8"),
        lambda k: dr.normal(k, (5, 3)),
        lambda k: dr.normal(k, (3000,)),
        lambda k: data_of(dr.subkey(k, dr.Purpose.NOISE)),
        lambda k: data_of(dr.as_threefry(k)),
        lambda k: jax.random.normal(k, (4,)),
    ]
    together = jax.jit(lambda key: [function(key) for function in functions])
    loops = [np.stack(values) for values in zip(*[together(key) for key in keys], strict=True)]
    for batched, loop in zip(jax.jit(jax.vmap(together))(keys), loops, strict=True):
        if loop.dtype == np.uint32 or loop.dtype == np.uint8:
            np.testing.assert_array_equal(batched, loop)
        else:  # vectorised logarithms may differ in the last bit
            np.testing.assert_allclose(batched, loop, rtol=1e-5, atol=1e-7)


def data_of(key):
    return jax.random.key_data(key)


def test_vmap_over_data_and_over_both_agree_with_loops():
    numbers = jnp.arange(4)
    keys = jax.random.split(KEY, 4)
    both = jax.vmap(jax.random.fold_in)(keys, numbers)
    np.testing.assert_array_equal(
        data(both), [data(jax.random.fold_in(k, i)) for i, k in enumerate(keys)]
    )
    one = jax.vmap(jax.random.fold_in, (None, 0))(KEY, numbers)
    np.testing.assert_array_equal(data(one), [data(jax.random.fold_in(KEY, i)) for i in range(4)])
    grid = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(keys, numbers)
    assert len({tuple(words) for words in data(grid).reshape(-1, 8)}) == 16


def test_scan_agrees_with_a_loop():
    def step(key, index):
        key, sub = jax.random.split(jax.random.fold_in(key, index))
        return key, dr.normal(sub, (3,))

    last, values = jax.jit(lambda key: jax.lax.scan(step, key, jnp.arange(5)))(KEY)
    key = KEY
    for index in range(5):
        key, value = step(key, index)
        np.testing.assert_allclose(values[index], value, rtol=1e-5)
    np.testing.assert_array_equal(data(last), data(key))
    assert last.dtype == KEY.dtype


# Everything in jax.random

PROBABILITIES = jnp.array([0.2, 0.3, 0.5])
CALLS = {
    "ball": lambda k: jax.random.ball(k, 3),
    "bernoulli": lambda k: jax.random.bernoulli(k, 0.3, (5,)),
    "beta": lambda k: jax.random.beta(k, 2.0, 3.0, (5,)),
    "binomial": lambda k: jax.random.binomial(k, 10.0, 0.3, (5,)),
    "bits": lambda k: jax.random.bits(k, (5,)),
    "categorical": lambda k: jax.random.categorical(k, jnp.log(PROBABILITIES), shape=(5,)),
    "cauchy": lambda k: jax.random.cauchy(k, (5,)),
    "chisquare": lambda k: jax.random.chisquare(k, 3.0, shape=(5,)),
    "choice": lambda k: jax.random.choice(k, 10, (5,), replace=False),
    "choice with probabilities": lambda k: jax.random.choice(k, 3, (5,), p=PROBABILITIES),
    "dirichlet": lambda k: jax.random.dirichlet(k, jnp.ones(3)),
    "double_sided_maxwell": lambda k: jax.random.double_sided_maxwell(k, 0.0, 1.0, (5,)),
    "exponential": lambda k: jax.random.exponential(k, (5,)),
    "f": lambda k: jax.random.f(k, 3.0, 4.0, (5,)),
    "gamma": lambda k: jax.random.gamma(k, 2.0, (5,)),
    "generalized_normal": lambda k: jax.random.generalized_normal(k, 1.5, (5,)),
    "geometric": lambda k: jax.random.geometric(k, 0.3, (5,)),
    "gumbel": lambda k: jax.random.gumbel(k, (5,)),
    "laplace": lambda k: jax.random.laplace(k, (5,)),
    "loggamma": lambda k: jax.random.loggamma(k, 2.0, (5,)),
    "logistic": lambda k: jax.random.logistic(k, (5,)),
    "lognormal": lambda k: jax.random.lognormal(k, shape=(5,)),
    "maxwell": lambda k: jax.random.maxwell(k, (5,)),
    "multinomial": lambda k: jax.random.multinomial(k, 7.0, PROBABILITIES),
    "multivariate_normal": lambda k: jax.random.multivariate_normal(k, jnp.zeros(2), jnp.eye(2)),
    "normal": lambda k: jax.random.normal(k, (5,)),
    "complex normal": lambda k: jax.random.normal(k, (5,), "complex64"),
    "orthogonal": lambda k: jax.random.orthogonal(k, 3),
    "pareto": lambda k: jax.random.pareto(k, 2.0, (5,)),
    "permutation": lambda k: jax.random.permutation(k, 20),
    "rademacher": lambda k: jax.random.rademacher(k, (5,)),
    "randint": lambda k: jax.random.randint(k, (5,), 0, 1000),
    "rayleigh": lambda k: jax.random.rayleigh(k, 1.0, (5,)),
    "t": lambda k: jax.random.t(k, 3.0, (5,)),
    "triangular": lambda k: jax.random.triangular(k, 0.0, 0.5, 1.0, (5,)),
    "truncated_normal": lambda k: jax.random.truncated_normal(k, -1.0, 1.0, (5,)),
    "uniform": lambda k: jax.random.uniform(k, (5,)),
    "wald": lambda k: jax.random.wald(k, 1.0, (5,)),
    "weibull_min": lambda k: jax.random.weibull_min(k, 1.0, 2.0, (5,)),
}


def test_jax_random_takes_our_keys():
    for name, call in CALLS.items():
        assert jax.eval_shape(call, KEY).size, name


@pytest.mark.parametrize(
    "name", ["categorical", "choice", "gamma", "permutation", "randint", "truncated_normal"]
)
def test_jax_random_under_vmap_agrees_with_a_loop(name):
    keys = jax.random.split(KEY, 2)
    loop = np.stack([CALLS[name](key) for key in keys])
    assert np.isfinite(loop).all()
    np.testing.assert_allclose(jax.vmap(CALLS[name])(keys), loop, rtol=1e-5)


def test_poisson_needs_the_threefry_key_that_we_derive():
    with pytest.raises(NotImplementedError, match="threefry"):
        jax.random.poisson(KEY, 3.0)
    counts = np.asarray(jax.random.poisson(dr.as_threefry(KEY), 3.0, (20_000,)))
    assert abs(counts.mean() - 3.0) < 5 * np.sqrt(3.0 / 20_000)


def test_clones_and_key_arrays_work():
    keys = jax.random.split(KEY, 4).reshape(2, 2)
    assert keys.T.shape == (2, 2)
    assert jnp.concatenate([keys, keys]).shape == (4, 2)
    assert bool((jax.random.clone(KEY) == KEY).all())
    words = [tuple(row) for row in data(keys).reshape(-1, 8)]
    assert all(a != b for a, b in itertools.combinations(words, 2))
