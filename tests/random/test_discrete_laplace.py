"""Discrete Laplace integers: the thresholds in exact arithmetic, words to integers against a reference, and the law of draws."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from discreet.privacy.random import LAPLACE_UNIT, discrete_laplace, key
from discreet.privacy.random._laplace import from_coins, thresholds

DIGITS, WORDS = 35, 6


def whole(words) -> int:
    """The number whose words of 32 bits are these, the highest first."""
    return sum(int(w) << 32 * k for k, w in enumerate(reversed(list(words))))


def test_every_probability_is_right_to_a_factor_of_2_to_the_minus_99():
    """The proof that epsilon is pure adds up these errors, over 35 digits and the coin above them."""
    with mpmath.workprec(700):
        for factor in (128, 129, 200, 256):
            lost = mpmath.mpf(0)
            for coin in range(DIGITS + 1):
                power = mpmath.exp(-(mpmath.mpf(2) ** coin) / (factor * LAPLACE_UNIT))
                share = power if coin == DIGITS else power / (1 + power)
                found = (
                    mpmath.mpf(whole(thresholds()[factor - 128, :, coin])) / mpmath.mpf(2) ** 192
                )
                assert abs(found - share) <= mpmath.mpf(2) ** -193
                lost += max(
                    abs(mpmath.log(found / share)), abs(mpmath.log((1 - found) / (1 - share)))
                )
            assert lost <= mpmath.mpf(2) ** -99
            assert 2.0**-93 <= float(share) <= 2.0**-46


def by_hand(first, further, limits, again) -> list[int]:
    values = []
    for v in range(first.shape[1]):
        shown = [
            whole([first[c, v], *further[:, c, v]]) < whole(limits[:, c]) for c in range(DIGITS + 1)
        ]
        heads, more = 0, shown[-1]
        while more:
            heads, more = heads + 1, whole(again[heads, :, v]) < whole(limits[:, -1])
        magnitude = sum(1 << i for i in range(DIGITS) if shown[i]) + (heads << DIGITS)
        values.append(-magnitude - 1 if first[-1, v] >> 31 else magnitude)
    return values


@pytest.mark.parametrize("undecided", [False, True])
def test_words_become_the_integers_that_a_reference_makes(undecided):
    """Also where first words equal their thresholds', later ones decide, and the coin of H is thrown again and again."""
    generator = np.random.default_rng(5)
    limits = thresholds()[77].copy()
    first = generator.integers(0, 2**32, (DIGITS + 2, 64), dtype=np.uint32)
    further = generator.integers(0, 2**32, (WORDS - 1, DIGITS + 1, 64), dtype=np.uint32)
    again = generator.integers(0, 2**32, (40, WORDS, 64), dtype=np.uint32)
    first[-2] |= 1  # the coin of H is decided
    if undecided:
        # A coin of H that shows heads half of the time, and words that agree with their thresholds'
        # one after another.
        limits[:, -1] = [0, 2**31, 0, 0, 0, 0]
        agree = generator.random((WORDS, DIGITS + 1, 64)) < 0.7
        first[:-1] = np.where(agree[0], limits[0][:, None], first[:-1])
        for word in range(WORDS - 1):
            further[word, :-1] = np.where(
                agree[word + 1], limits[word + 1][:, None], further[word]
            )[:-1]
        first[-2] = 0
        again[:, 0] = 0
        again[-1, 0] = 1
    low, middle, high = jax.jit(from_coins, static_argnums=(1, 3))(
        first, lambda: jnp.asarray(further), limits, lambda number: jnp.asarray(again)[number]
    )
    expected = by_hand(first, further, limits, again)
    found = [
        int(a) + (int(b) << 24) + (int(c) << 48) for a, b, c in zip(low, middle, high, strict=True)
    ]
    if undecided:
        assert max(abs(x) >> DIGITS for x in expected) >= 3
    assert found == expected


@pytest.mark.parametrize("factor", [128, 201])
def test_draws_follow_the_law(factor):
    """Digits of every size: the whole by Kolmogorov and Smirnov, small ones by their remainders; chunks do not repeat."""
    words = [np.asarray(w, np.int64) for w in discrete_laplace(key(8), (100_000,), factor)]
    values = words[0] + (words[1] << 24)
    assert not words[2].any()
    assert len(np.unique(values)) > len(values) - 30  # a few meet by chance
    assert stats.kstest((values + 0.5) / (factor * LAPLACE_UNIT), "laplace").pvalue > 1e-3
    for modulus in (2, 64, 1000, 2**20):
        counts = np.bincount(values % modulus * 50 // modulus if modulus > 50 else values % modulus)
        shares = (
            np.bincount(np.arange(modulus) * 50 // modulus) if modulus > 50 else np.ones(modulus)
        )
        assert stats.chisquare(counts, counts.sum() * shares / shares.sum()).pvalue > 1e-4


def test_words_of_neighbouring_sums_lead_to_the_same_values():
    """The least and the largest that 35 digits alone can show are no end: with heads there are further values."""
    limits = thresholds()[0]
    everything = np.zeros((DIGITS + 2, 2), np.uint32)
    everything[-1] = [0, 2**31]

    def again(number):
        return jnp.where(number < 2**22, 0, jnp.full((WORDS, 2), 2**32 - 1, jnp.uint32)).astype(
            jnp.uint32
        )

    words = from_coins(
        everything, lambda: jnp.zeros((WORDS - 1, DIGITS + 1, 2), jnp.uint32), limits, again
    )
    values = [sum(int(w[i]) << 24 * k for k, w in enumerate(words)) for i in range(2)]
    largest = 2**DIGITS - 1 + ((2**22 + 1) << DIGITS)
    assert values == [largest, -largest - 1]
    assert math.log2(largest) > 57


@pytest.mark.parametrize("wrong", [{"factor": 127}, {"factor": 257}, {"shape": (2**31,)}])
def test_what_cannot_be_drawn_is_refused(wrong):
    with pytest.raises(ValueError, match=r"must be an integer from 128 to 256|fewer than 2\*\*31"):
        discrete_laplace(key(1), **wrong)


def test_bits_are_those_of_the_first_day():
    """On every platform, in every program and release of JAX."""
    words = discrete_laplace(key(16), (4,), 200)
    mapped = jax.vmap(lambda k: jnp.stack(discrete_laplace(k, (4,), 200)))(key(16)[None])[0]
    np.testing.assert_array_equal(jnp.stack(words), mapped)
    assert [int(a) + (int(b) << 24) for a, b in zip(words[0], words[1], strict=True)] == KNOWN


KNOWN = [500429385, -205995378, 2043138514, 736238979]
