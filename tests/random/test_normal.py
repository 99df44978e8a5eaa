"""The Gaussian sampler: its body by statistics, its tails by driving the bits."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

import discreet.random as dr
from discreet._jax import define_prng_impl
from discreet.random._normal import exponential, gaussian_pairs

KEY = dr.key(99)
ONES = 2**32 - 1
# The words that a generator can go wrong on: ends, powers of two and their neighbours.
EXTREMES = sorted({0, ONES} | {min(max(2**i + j, 0), ONES) for i in range(33) for j in (-1, 0, 1)})


def reaches_nine(values) -> bool:
    """The tail test: all finite, and both tails beyond nine standard deviations."""
    values = np.asarray(values, np.float64)
    return bool(np.isfinite(values).all() and values.max() > 9 and values.min() < -9)


def extreme_words() -> np.ndarray:
    grid = np.stack(np.meshgrid(EXTREMES, EXTREMES[::5], EXTREMES, indexing="ij")).reshape(3, -1)
    return grid.astype(np.uint32)


def exact_uniform(high: int, low: int) -> mpmath.mpf:
    return (mpmath.mpf(high * 2**32 + low) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 64


# Tails and accuracy, by driving the bits


def test_extreme_bits_give_finite_values_beyond_nine():
    values = np.concatenate(jax.jit(gaussian_pairs)(*extreme_words()))
    assert reaches_nine(values)
    assert np.abs(values).max() == pytest.approx(np.sqrt(2 * 65 * np.log(2)), rel=1e-6)
    assert np.abs(values).min() > 0


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exponential_is_precise_at_both_ends(dtype):
    high, low, _ = extreme_words()[:, :: len(EXTREMES)]
    with jax.enable_x64(dtype == np.float64):
        values = np.asarray(jax.jit(lambda h, w: exponential(h, w, np.dtype(dtype)))(high, low))
    assert values.dtype == dtype
    with mpmath.workdps(60):
        for value, h, w in list(zip(values, high.tolist(), low.tolist(), strict=True))[::2]:
            exact = -mpmath.log(exact_uniform(h, w))
            assert abs(mpmath.mpf(float(value)) / exact - 1) < (2**-21 if dtype == np.float32 else 2**-49)


def test_pairs_are_the_exact_transform_of_their_bits():
    generator = np.random.default_rng(1)
    words = generator.integers(0, 2**32, (3, 200), dtype=np.uint32)
    words[0, :32] >>= np.arange(32, dtype=np.uint32)  # into the tail
    words[0, 32:64] |= ~(np.uint32(ONES) >> np.arange(32, dtype=np.uint32))  # and towards zero
    x, y = (np.asarray(v) for v in jax.jit(gaussian_pairs)(*words))
    with mpmath.workdps(40):
        for i, (high, low, angle) in enumerate(words.T.tolist()):
            r = mpmath.sqrt(-2 * mpmath.log(exact_uniform(high, low)))
            turn = (mpmath.mpf(angle % 2**29) + 0.5) / 2**29 * mpmath.pi / 4
            first, second = r * mpmath.cos(turn), r * mpmath.sin(turn)
            if angle >> 29 & 1:
                first, second = second, first
            first, second = (-first if angle >> 30 & 1 else first), (-second if angle >> 31 & 1 else second)
            assert abs(first - float(x[i])) < 2**-21 * r
            assert abs(second - float(y[i])) < 2**-21 * r


def test_an_even_grid_of_bits_gives_the_gaussian_quantiles():
    """Radius against Rayleigh quantiles: the transform itself, no chance involved."""
    number = 4096
    high = ((np.arange(number) + 0.5) / number * 2**32).astype(np.uint32)
    x, y = gaussian_pairs(high, np.zeros_like(high), np.full_like(high, 12345))
    probabilities = 1 - (np.arange(number) + 0.5) / number
    np.testing.assert_allclose(np.hypot(x, y), stats.rayleigh.ppf(probabilities), rtol=2e-6)


# The body; fixed seeds, false-alarm rate 1e-4 a test

SAMPLE = np.asarray(dr.normal(KEY, (1_000_001,)), np.float64)


def test_the_body_by_kolmogorov_and_smirnov():
    assert stats.kstest(SAMPLE, "norm").pvalue > 1e-4


@pytest.mark.parametrize(
    ("power", "expected", "variance"), [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)]
)
def test_moments(power, expected, variance):
    z = (np.mean(SAMPLE**power) - expected) / np.sqrt(variance / SAMPLE.size)
    assert abs(z) < stats.norm.isf(5e-5)


@pytest.mark.parametrize("threshold", [1.0, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("sign", [-1, 1])
def test_tail_frequencies(threshold, sign):
    beyond = int((sign * SAMPLE > threshold).sum())
    assert stats.binomtest(beyond, SAMPLE.size, stats.norm.sf(threshold)).pvalue > 1e-4


def test_the_two_of_a_pair_are_independent():
    half = (SAMPLE.size + 1) // 2
    x, y = SAMPLE[: half - 1], SAMPLE[half:]
    x = x[: y.size]
    bound = stats.norm.isf(5e-5) / np.sqrt(x.size)
    for f, g in [(x, y), (x**2, y**2), (np.abs(x), np.abs(y)), (x, y**2), (x[1:], x[:-1]), (x[1:], y[:-1])]:
        assert abs(np.corrcoef(f, g)[0, 1]) < bound
    angle = np.arctan2(y, x) / (2 * np.pi) + 0.5
    assert stats.kstest(angle, "uniform").pvalue > 1e-4
    assert stats.kstest((x**2 + y**2) / 2, "expon").pvalue > 1e-4


def test_the_body_in_float64():
    with jax.enable_x64(True):
        values = np.asarray(dr.normal(KEY, (200_000,), jnp.float64))
    assert values.dtype == np.float64
    assert stats.kstest(values, "norm").pvalue > 1e-4
    # More digits than float32 holds, and not the float32 stream again.
    assert np.mean(values == values.astype(np.float32)) < 1e-3
    assert abs(np.corrcoef(values, SAMPLE[:200_000])[0, 1]) < stats.norm.isf(5e-5) / np.sqrt(200_000)


# Shapes, dtypes, transformations, refusals


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2,), (25,), (3, 0), (2, 3, 5), (4097,)])
def test_shapes(shape):
    values = dr.normal(KEY, shape)
    assert values.shape == shape
    assert values.dtype == jnp.float32
    assert np.unique(values).size == values.size


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
    with pytest.raises(ValueError, match="2\\*\\*36"):
        jax.eval_shape(lambda key: dr.normal(key, (2**20, 2**17)), KEY)
