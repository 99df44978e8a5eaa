"""The Feistel permutation: one-to-one for every number of records, and mixed well enough that χ² finds nothing."""

import functools

import jax
import numpy as np
import pytest
from jax import lax, numpy as jnp
from scipy import stats

from discreet.interfaces.compat.d3p import feistel as _feistel
from discreet.interfaces.compat.d3p.feistel import feistel_permutation

FALSE_ALARM = 1e-6


@functools.partial(jax.jit, static_argnames="bits")
def images(keys, counts, bits):
    """For each key and count, the permutation of 0 .. count - 1, filled up to 2^bits with what lies beyond."""
    points = jnp.arange(1 << bits, dtype=jnp.uint32)

    def sorted_images(key, count):
        words = _feistel._round_words(key, bits, _feistel._round_count(bits))
        found = _feistel._walk(jnp.minimum(points, count - 1), words, bits, count)
        return jnp.sort(jnp.where(points < count, found, points))

    return lax.map(lambda pair: sorted_images(*pair), (keys, counts))


@pytest.mark.parametrize("most", [500, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_one_to_one_for_every_number_of_records_up_to_a_thousand_or_two(most):
    """One program for each width of the domain; each number of records has a key of its own."""
    keys = jax.random.split(jax.random.key(0), most + 1)
    for bits in range((most - 1).bit_length() + 1):
        counts = np.arange(2**bits // 2 + 1, min(2**bits, most) + 1, dtype=np.uint32)
        found = np.asarray(images(keys[counts], counts, bits))
        assert (found == np.arange(2**bits)).all()


@pytest.mark.parametrize("count", [2**20 - 1, 2**20, 2**20 + 1])
def test_one_to_one_for_large_tables_with_both_kinds_of_round_function(count):
    found = feistel_permutation(jax.random.key(1), jnp.arange(count), count)
    np.testing.assert_array_equal(np.sort(found), np.arange(count))


def test_distinct_images_at_the_largest_count():
    count = 2**31 - 1
    found = np.asarray(feistel_permutation(jax.random.key(1), jnp.arange(100_000), count))
    assert np.unique(found).size == 100_000
    assert found.min() >= 0
    assert found.max() < count
    assert (
        stats.chisquare(np.bincount(found.astype(np.int64) * 32 // count, minlength=32)).pvalue
        > FALSE_ALARM
    )


def pair_p_value(count, points, draws, rounds=None):
    """χ² over all ordered pairs of images of two points, over keys."""
    bits = (count - 1).bit_length()

    def pair(key):
        words = _feistel._round_words(key, bits, rounds or _feistel._round_count(bits))
        first, second = _feistel._walk(
            jnp.array(points, jnp.uint32), words, bits, jnp.uint32(count)
        )
        return first * count + second

    cells = np.asarray(jax.jit(jax.vmap(pair))(jax.random.split(jax.random.key(9), draws)))
    counts = np.bincount(cells, minlength=count * count).reshape(count, count)
    assert not counts.diagonal().any()
    return stats.chisquare(counts[~np.eye(count, dtype=bool)]).pvalue


@pytest.mark.parametrize(
    ("count", "points"), [(5, (0, 1)), (16, (0, 1)), (13, (2, 12)), (37, (0, 1))]
)
def test_pairs_of_images_are_uniform(count, points):
    assert pair_p_value(count, points, 40_000) > FALSE_ALARM


@pytest.mark.parametrize("rounds", [2, 4])
def test_too_few_rounds_are_rejected(rounds):
    """d3p's bound asks for more than two rounds; on small domains four are seen through too."""
    assert pair_p_value(16, (0, 1), 40_000, rounds) < FALSE_ALARM


def test_shapes_and_keys():
    key = jax.random.key(0)
    points = jnp.arange(12).reshape(3, 4)
    found = feistel_permutation(key, points, 500)
    assert found.shape == (3, 4)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, feistel_permutation(key, points, 500))
    assert (
        np.asarray(found) != np.asarray(feistel_permutation(jax.random.key(1), points, 500))
    ).any()
    assert feistel_permutation(key, jnp.array(7), 500).shape == ()
    with pytest.raises(ValueError, match="num_records is 0"):
        feistel_permutation(key, points, 0)


def test_points_out_of_range_end_the_walk_too():
    assert 0 <= int(feistel_permutation(jax.random.key(0), jnp.array(99), 5)) < 5
