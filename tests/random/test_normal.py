"""The Gaussian sampler: its body by statistics, its tails by driving the bits."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

import discreet.privacy.random as dr
from discreet._jax import define_prng_impl
from discreet.privacy.random import _normal
from discreet.privacy.random._chacha import keystream
from discreet.privacy.random._normal import (
    RARE,
    minus_log,
    minus_log_float64,
    pairs_float32,
    pairs_float64,
)
from discreet.privacy.random._prng import NORMAL, nonce

KEY = dr.key(99)
ONES = 2**32 - 1
# The words that a generator can go wrong on: ends, powers of two and their neighbours.
EXTREMES = sorted({0, ONES} | {min(max(2**i + j, 0), ONES) for i in range(33) for j in (-1, 0, 1)})


def reaches_nine(values) -> bool:
    """The tail test: all finite, and both tails beyond nine standard deviations."""
    values = np.asarray(values, np.float64)
    return bool(np.isfinite(values).all() and values.max() > 9 and values.min() < -9)


def extreme_words() -> np.ndarray:
    grid = np.stack(np.meshgrid(EXTREMES, EXTREMES, EXTREMES[::5], indexing="ij")).reshape(3, -1)
    return grid.astype(np.uint32)


def exact_uniform(first: int, second: int, third: int):
    """u of float32: 40 bits, and 32 more below 2**-24."""
    bits = first * 2**8 + second % 2**8
    half = mpmath.mpf(1) / 2
    if first < int(RARE):
        return (mpmath.mpf(bits * 2**32 + third) + half) / mpmath.mpf(2) ** 72
    return (mpmath.mpf(bits) + half) / mpmath.mpf(2) ** 40


def exact_pair(first: int, second: int, third: int):
    r = mpmath.sqrt(-2 * mpmath.log(exact_uniform(first, second, third)))
    turn = (mpmath.mpf(second // 2**8 % 2**21) + 0.5) / 2**21 * mpmath.pi / 4
    x, y = r * mpmath.cos(turn), r * mpmath.sin(turn)
    if second >> 29 & 1:
        x, y = y, x
    return r, (-x if second >> 31 & 1 else x), (-y if second >> 30 & 1 else y)


# Tails and accuracy, by driving the bits


def test_extreme_bits_give_finite_values_beyond_ten():
    values = np.asarray(jax.jit(pairs_float32)(*extreme_words()))
    assert reaches_nine(values)
    assert np.abs(values).max() == pytest.approx(np.sqrt(2 * 73 * np.log(2)), rel=1e-6)
    assert np.abs(values).min() > 0
    assert reaches_nine(wide_values())


def wide_values() -> np.ndarray:
    with jax.enable_x64(True):
        high, angle, low = extreme_words()
        return np.asarray(jax.jit(pairs_float64)(high, low, angle, low))


def test_inverse_cdf_on_23_bits_fails_the_same_test():
    words = jnp.asarray(EXTREMES, jnp.uint32)
    driven = define_prng_impl(
        name="driven",
        tag="driven",
        key_shape=(1,),
        seed=lambda seed: seed[None].astype(jnp.uint32),
        split=lambda key, shape: jnp.broadcast_to(key, (*shape, 1)),
        random_bits=lambda key, width, shape: jnp.resize(words, shape),
        fold_in=lambda key, data: key,
    )
    values = jax.random.normal(jax.random.key(0, impl=driven), (len(EXTREMES),))
    assert not reaches_nine(values)
    assert 5.4 < np.abs(values).max() < 5.43


def test_the_logarithm_is_precise_at_both_ends():
    words = extreme_words()[:, ::17]
    values = np.asarray(jax.jit(minus_log)(*words))
    without = np.asarray(jax.jit(minus_log)(*words[:2]))
    common = words[0] >= RARE
    np.testing.assert_array_equal(values[common], without[common])
    with mpmath.workdps(60):
        for value, bits in list(zip(values, words.T.tolist(), strict=True))[::2]:
            assert abs(mpmath.mpf(float(value)) / -mpmath.log(exact_uniform(*bits)) - 1) < 2**-22


def test_the_logarithm_in_float64_is_precise_at_both_ends():
    high, low, _ = extreme_words()[:, :: len(EXTREMES)]
    with jax.enable_x64(True):
        values = np.asarray(jax.jit(minus_log_float64)(high, low))
    assert values.dtype == np.float64
    with mpmath.workdps(60):
        for value, h, w in list(zip(values, high.tolist(), low.tolist(), strict=True))[::2]:
            exact = -mpmath.log(
                (mpmath.mpf(h * 2**32 + w) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 64
            )
            assert abs(mpmath.mpf(float(value)) / exact - 1) < 2**-49


def test_pairs_are_the_exact_transform_of_their_bits():
    generator = np.random.default_rng(1)
    words = generator.integers(0, 2**32, (3, 600), dtype=np.uint32)
    words[0, :32] >>= np.arange(32, dtype=np.uint32)  # into the tail
    words[0, 32:64] |= ~(np.uint32(ONES) >> np.arange(32, dtype=np.uint32))  # and towards zero
    # where the logarithm changes
    words[0, 64:128] = np.uint32(0xB504F333) + np.arange(-32, 32).astype(np.uint32)
    words[0, 128:256] = np.arange(256 - 64, 256 + 64)  # about where the third word begins to count
    words[1, 256:300] &= np.uint32(0xE00000FF)  # next to the axes
    words[1, 300:344] |= np.uint32(0x1FFFFF00)  # and to the diagonals
    x, y = np.asarray(jax.jit(pairs_float32)(*words), np.float64)
    with mpmath.workdps(40):
        for i, bits in enumerate(words.T.tolist()):
            r, first, second = exact_pair(*bits)
            assert abs(first - x[i]) < 2**-21.5 * r
            assert abs(second - y[i]) < 2**-21.5 * r


def test_an_even_grid_of_bits_gives_the_gaussian_quantiles():
    """Radius against Rayleigh quantiles: the transform itself, no chance involved."""
    number = 4096
    first = ((np.arange(number) + 0.5) / number * 2**32).astype(np.uint32)
    x, y = pairs_float32(first, np.full_like(first, 12345))
    probabilities = 1 - (np.arange(number) + 0.5) / number
    np.testing.assert_allclose(np.hypot(x, y), stats.rayleigh.ppf(probabilities), rtol=2e-6)


def test_an_even_grid_of_angles_is_the_whole_circle():
    second = (np.arange(4096) << 20).astype(np.uint32) + np.uint32(0x80000)
    x, y = np.asarray(pairs_float32(np.full_like(second, 2**31), second), np.float64)
    turns = np.sort(np.arctan2(y, x) / (2 * np.pi) % 1)
    np.testing.assert_allclose(turns, (np.arange(4096) + 0.5) / 4096, atol=1e-6)


def test_poison_spoils_every_value():
    words = np.random.default_rng(1).integers(0, 2**32, (2, 50), dtype=np.uint32)
    assert np.isnan(pairs_float32(*words, poison=jnp.float32(jnp.nan))).all()


@pytest.mark.parametrize("size", [50, 2001])
def test_rare_pairs_are_made_again_with_a_third_word_of_their_own(size, monkeypatch):
    """With a bound at which one pair in eight is rare, and a transform that shows its words."""

    def show(first, second, more=None, poison=None):
        del poison
        words = (first, second) if more is None else (second, more)
        return jnp.stack(words).astype(jnp.float32)

    monkeypatch.setattr(_normal, "RARE", np.uint32(2**29))
    monkeypatch.setattr(_normal, "pairs_float32", show)

    def draw(key):
        return _normal._normal.__wrapped__(data_of(key), (size,), np.dtype(np.float32))

    def expected(key):
        pairs = -(-size // 2)
        blocks = -(-2 * pairs // 16)
        words = np.asarray(
            keystream(data_of(key), nonce(NORMAL, 32), blocks)[: 2 * pairs].reshape(2, pairs)
        )
        third = np.asarray(keystream(data_of(key), nonce(NORMAL, 32, 1), blocks)[:pairs])
        rare = words[0] < 2**29
        assert 0 < rare.sum() < pairs / 4
        values = np.where(rare, np.stack([words[1], third]), words).astype(np.float32)
        return values.reshape(-1)[:size]

    keys = jax.random.split(KEY, 3)
    np.testing.assert_array_equal(draw(KEY), expected(KEY))
    np.testing.assert_array_equal(jax.vmap(draw)(keys), np.stack([expected(key) for key in keys]))


def data_of(key):
    return jax.random.key_data(key)


# The body; fixed seeds, false-alarm rate 1e-4 a test


@pytest.fixture(scope="module")
def sample():
    return np.asarray(dr.normal(KEY, (1_000_001,)), np.float64)


def test_the_body_by_kolmogorov_and_smirnov(sample):
    assert stats.kstest(sample, "norm").pvalue > 1e-4


@pytest.mark.parametrize(
    ("power", "expected", "variance"),
    [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)],
)
def test_moments(sample, power, expected, variance):
    z = (np.mean(sample**power) - expected) / np.sqrt(variance / sample.size)
    assert abs(z) < stats.norm.isf(5e-5)


@pytest.mark.parametrize("threshold", [1.0, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("sign", [-1, 1])
def test_tail_frequencies(sample, threshold, sign):
    beyond = int((sign * sample > threshold).sum())
    assert stats.binomtest(beyond, sample.size, stats.norm.sf(threshold)).pvalue > 1e-4


def test_the_two_of_a_pair_are_independent(sample):
    half = (sample.size + 1) // 2
    x, y = sample[: half - 1], sample[half:]
    x = x[: y.size]
    bound = stats.norm.isf(5e-5) / np.sqrt(x.size)
    for f, g in [
        (x, y),
        (x**2, y**2),
        (np.abs(x), np.abs(y)),
        (x, y**2),
        (x[1:], x[:-1]),
        (x[1:], y[:-1]),
    ]:
        assert abs(np.corrcoef(f, g)[0, 1]) < bound
    angle = np.arctan2(y, x) / (2 * np.pi) + 0.5
    assert stats.kstest(angle, "uniform").pvalue > 1e-4
    assert stats.kstest((x**2 + y**2) / 2, "expon").pvalue > 1e-4


def test_the_body_in_float64(sample):
    with jax.enable_x64(True):
        values = np.asarray(dr.normal(KEY, (200_000,), jnp.float64))
    assert values.dtype == np.float64
    assert stats.kstest(values, "norm").pvalue > 1e-4
    # More digits than float32 holds, and not the float32 stream again.
    assert np.mean(values == values.astype(np.float32)) < 1e-3
    assert abs(np.corrcoef(values, sample[:200_000])[0, 1]) < stats.norm.isf(5e-5) / np.sqrt(
        200_000
    )


# Shapes, dtypes, transformations, refusals


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2,), (25,), (3, 0), (2, 3, 5), (4097,)])
def test_shapes(shape):
    values = jax.eval_shape(lambda key: dr.normal(key, shape), KEY)
    assert (values.shape, values.dtype) == (shape, jnp.float32)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_short_floats_are_rounded_from_float32(dtype):
    values = dr.normal(KEY, (100,), dtype)
    assert values.dtype == dtype
    np.testing.assert_array_equal(values, dr.normal(KEY, (100,)).astype(dtype))


def test_a_call_repeated_gives_the_same_and_another_key_something_else():
    np.testing.assert_array_equal(dr.normal(KEY, (7,)), dr.normal(KEY, (7,)))
    assert (dr.normal(jax.random.fold_in(KEY, 1), (7,)) != dr.normal(KEY, (7,))).all()


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match="x64"):
        dr.normal(KEY, (2,), jnp.float64)
    for dtype in (jnp.int32, jnp.complex64, jnp.bool_):
        with pytest.raises(TypeError, match="float32"):
            dr.normal(KEY, (2,), dtype)


def test_too_many_values_are_refused_while_tracing():
    with pytest.raises(ValueError, match="2\\*\\*31"):
        jax.eval_shape(lambda key: dr.normal(key, (2**20, 2**11)), KEY)
