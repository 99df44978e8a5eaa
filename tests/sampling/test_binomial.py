"""The size table: exact to 96 bits, tails as promised, compared word by word without a slip."""

import math
import time
from fractions import Fraction

import jax
import mpmath
import numpy as np
import pytest
from scipy import stats

from discreet.privacy.sampling._draws import SIZE_BITS, size_from_words, size_table, words_of

CASES = [
    (1, 0.5),
    (2, 1e-3),
    (40, 0.3),
    (500, 32 / 500),
    (32_561, 0.0184),
    (10**6, 1e-3),
    (10**8, 1e-10),
    (10**8, 1e-5),
]
UNIT = 2**SIZE_BITS


def exact_distribution_function(num_records, rate):
    """P(size <= k) for all k, as exact fractions."""
    q = Fraction(rate)
    masses = [
        math.comb(num_records, k) * q**k * (1 - q) ** (num_records - k)
        for k in range(num_records + 1)
    ]
    return np.cumsum(masses)


@pytest.mark.parametrize(
    ("num_records", "rate"), [(1, 0.5), (2, 1e-3), (3, 5e-324), (40, 0.3), (60, 1 / 3), (150, 0.97)]
)
def test_thresholds_and_slack_against_exact_fractions(num_records, rate):
    table = size_table(num_records, rate)
    exact = exact_distribution_function(num_records, rate)
    inner = exact[table.smallest : table.largest]
    assert all(
        abs(Fraction(t, UNIT) - f) <= Fraction(1, UNIT)
        for t, f in zip(table.thresholds, inner, strict=True)
    )

    drawn = [Fraction(0)] * table.smallest + [Fraction(t, UNIT) for t in table.thresholds]
    drawn += [Fraction(1)] * (num_records + 1 - len(drawn))
    differences = [d - f for d, f in zip(drawn, exact, strict=True)]
    distance = (
        sum(
            abs(b - a)
            for a, b in zip([Fraction(0), *differences], [*differences, Fraction(0)], strict=True)
        )
        / 2
    )
    assert distance <= Fraction(table.slack)
    assert table.slack <= 2.0**-79


@pytest.mark.parametrize(("num_records", "rate"), CASES)
def test_masses_agree_with_scipy(num_records, rate):
    table = size_table(num_records, rate)
    sizes = np.arange(table.smallest, table.largest + 1)
    distance = np.abs(table.masses() - stats.binom.pmf(sizes, num_records, rate)).sum() / 2
    assert distance < 1e-9  # SciPy's own error grows with num_records
    assert table.masses().sum() == pytest.approx(1, abs=1e-12)


def high_precision_distribution_function(sizes, smallest, num_records, rate):
    """P(smallest <= size <= k) for the given k, to some 50 digits."""
    with mpmath.workdps(60):
        q = mpmath.mpf(rate)
        mass = mpmath.exp(
            mpmath.loggamma(num_records + 1)
            - mpmath.loggamma(smallest + 1)
            - mpmath.loggamma(num_records - smallest + 1)
            + smallest * mpmath.log(q)
            + (num_records - smallest) * mpmath.log1p(-q)
        )
        total, found = mpmath.mpf(0), {}
        for k in range(smallest, max(sizes) + 1):
            total += mass
            if k in sizes:
                found[k] = total
            mass *= (num_records - k) * q / ((k + 1) * (1 - q))
        return found


@pytest.mark.parametrize(("num_records", "rate"), [(32_561, 0.0184), (10**8, 1e-5)])
def test_large_tables_hold_96_bits_where_doubles_do_not(num_records, rate):
    table = size_table(num_records, rate)
    middle = round(num_records * rate)
    sizes = {middle - 40, middle, middle + 40}
    exact = high_precision_distribution_function(sizes, max(0, middle - 700), num_records, rate)
    with mpmath.workdps(60):
        for k, f in exact.items():
            assert abs(table.thresholds[k - table.smallest] - f * UNIT) <= 1
            # The wrong version, SciPy's doubles, is off by very many units.
            assert abs(mpmath.mpf(float(stats.binom.cdf(k, num_records, rate))) - f) * UNIT > 2**32


@pytest.mark.parametrize(("num_records", "rate"), CASES)
def test_tails_are_cut_where_promised_and_not_before(num_records, rate):
    table = size_table(num_records, rate)
    below = stats.binom.cdf(table.smallest - 1, num_records, rate)
    above = stats.binom.sf(table.largest, num_records, rate)
    assert below <= 2.0**-81 * 1.001
    assert above <= 2.0**-81 * 1.001
    if table.largest > 1:
        assert stats.binom.sf(table.largest - 1, num_records, rate) > 2.0**-81 * 0.999
    assert 1 <= table.largest <= num_records


def test_quantile_is_the_smallest_size_that_is_rarely_exceeded():
    table = size_table(500, 32 / 500)
    typical = table.quantile(1e-3)
    assert (
        stats.binom.sf(typical, 500, 32 / 500) <= 1e-3 < stats.binom.sf(typical - 1, 500, 32 / 500)
    )


def test_bits_at_the_edges_of_the_table_give_the_sizes_beside_the_edge():
    table = size_table(40, 0.3)
    numbers, sizes = [0, UNIT - 1], [table.smallest, table.largest]
    for position, threshold in enumerate(table.thresholds):
        numbers += [threshold - 1, threshold]
        sizes += [table.smallest + position, table.smallest + position + 1]
    limits = words_of(table.thresholds)
    draw = jax.jit(jax.vmap(lambda w: size_from_words(w, limits, table.smallest)))
    words = [[(number >> shift) & 0xFFFFFFFF for shift in (64, 32, 0)] for number in numbers]
    np.testing.assert_array_equal(draw(np.array(words, np.uint32)), sizes)


def test_three_word_comparison_agrees_with_python_integers():
    """Words of few values, so that ties in the first and second word are common."""
    generator = np.random.default_rng(0)
    values = np.array([0, 1, 2**31, 2**32 - 1], np.uint32)
    words = generator.choice(values, (4000, 3))
    limits = generator.choice(values, (3, 50))
    whole = [sum(int(w) << s for w, s in zip(row, (64, 32, 0), strict=True)) for row in words]
    whole_limits = [
        sum(int(w) << s for w, s in zip(column, (64, 32, 0), strict=True)) for column in limits.T
    ]
    expected = [sum(limit <= number for limit in whole_limits) for number in whole]
    np.testing.assert_array_equal(
        jax.vmap(lambda w: size_from_words(w, limits, 0))(words), expected
    )


def test_the_table_s_cost_follows_the_spread_and_not_the_number_of_records():
    def seconds(num_records, rate):
        size_table.cache_clear()
        start = time.process_time()
        size_table(num_records, rate)
        return time.process_time() - start

    seconds(10**4, 0.5)
    # Twice the spread; measured twice the time.
    assert min(seconds(10**8, 1e-4) for _ in range(3)) < 20 * min(
        seconds(10**4, 0.5) for _ in range(3)
    )
