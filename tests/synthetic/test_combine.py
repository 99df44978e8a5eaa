"""Intervals from twins hold the truth as often as they say, and those of wrong rules do not."""

import numpy as np
import pytest
from scipy import stats

from discreet.tabular.synthetic import combine

LEVEL = 0.95
REPEATS = 4_000
TRUTH = 0.7


def twins_of_a_mean(m: int, rows: int, *, noise_aware: bool = True, seed: int = 3):
    """Means of m twins of a table of 200 standard normal records, of which a mean with noise was released; repeated.

    Returns the estimates and their squared standard errors, twins along the leading axis.
    """
    rng, records, noise = np.random.default_rng(seed), 200, 0.1
    released = (
        TRUTH + rng.normal(size=REPEATS) / np.sqrt(records) + noise * rng.normal(size=REPEATS)
    )
    # With a flat prior the posterior of the population's mean, given the released one, is normal
    # about it.
    stddev = np.sqrt(1 / records + (noise**2 if noise_aware else 0))
    means = released + stddev * rng.normal(size=(m, REPEATS))
    estimates = means + rng.normal(size=(m, REPEATS)) / np.sqrt(rows)
    return estimates, rng.chisquare(rows - 1, size=(m, REPEATS)) / (rows - 1) / rows


def coverage(interval) -> float:
    return float(np.mean((interval[0] <= TRUTH) & (interval[1] >= TRUTH)))


# False alarms: a binomial share of 4,000 is outside these with probability 1e-4 if the true one is
# the level (two sides).
NO_FEWER, NO_MORE = stats.binom.ppf([0.5e-4, 1 - 0.5e-4], REPEATS, LEVEL) / REPEATS


@pytest.mark.parametrize("rows", [200, 5_000])
def test_intervals_hold_the_truth_as_often_as_they_say(rows) -> None:
    combined = combine(*twins_of_a_mean(50, rows), level=LEVEL)
    assert NO_FEWER <= coverage(combined.interval) <= NO_MORE


@pytest.mark.parametrize("m", [2, 5])
def test_few_short_twins_give_wide_intervals_rather_than_wrong_ones(m) -> None:
    combined = combine(*twins_of_a_mean(m, 50), size_ratio=50 / 200, level=LEVEL)
    assert combined.floored.any()
    assert coverage(combined.interval) >= NO_FEWER


def test_no_interval_is_endless() -> None:
    # Where T is hardly above zero it has next to no degrees of freedom: one interval of 4,000 was
    # 10 ** 5 times as long.
    low, high = combine(*twins_of_a_mean(20, 50), size_ratio=50 / 200).interval
    assert (high - low).max() < 10 * np.median(high - low)


def test_pooled_rows_are_no_data() -> None:
    estimates, variances = twins_of_a_mean(50, 200)
    reach = stats.norm.ppf((1 + LEVEL) / 2) * np.sqrt(variances.mean(axis=0) / 50)
    mean = estimates.mean(axis=0)
    assert coverage([mean - reach, mean + reach]) < 0.25


def test_one_twin_taken_for_data_is_wrong_too() -> None:
    estimates, variances = twins_of_a_mean(1, 200)
    reach = stats.norm.ppf((1 + LEVEL) / 2) * np.sqrt(variances[0])
    assert coverage([estimates[0] - reach, estimates[0] + reach]) < 0.8


def test_the_rule_for_imputed_tables_is_too_wide() -> None:
    estimates, variances = twins_of_a_mean(50, 200)
    combined = combine(estimates, variances)
    imputed = np.sqrt(combined.within + (1 + 1 / 50) * combined.between)
    reach = stats.norm.ppf((1 + LEVEL) / 2) * imputed
    assert coverage([combined.estimate - reach, combined.estimate + reach]) > NO_MORE


def test_a_posterior_that_leaves_the_noise_out_gives_narrow_intervals() -> None:
    combined = combine(*twins_of_a_mean(50, 5_000, noise_aware=False), level=LEVEL)
    assert coverage(combined.interval) < 0.85


def test_figures_by_hand() -> None:
    combined = combine(
        [[1.0, 0.0], [3.0, 0.0]], [[1.0, 4.0], [2.0, 4.0]], level=0.5, size_ratio=0.25
    )
    # b = 2, v = 1.5: T = 1.5 * 2 - 1.5 = 1.5 with (1 - 1.5 / 3)² degrees of freedom. And b = 0, v =
    # 4: 0.25 * 4.
    np.testing.assert_allclose(combined.estimate, [2.0, 0.0])
    np.testing.assert_allclose(combined.standard_error, [1.5**0.5, 1.0])
    np.testing.assert_allclose(combined.degrees_of_freedom, [0.25, 1.0])
    np.testing.assert_array_equal(combined.floored, [False, True])
    # The quartile of a t distribution with one degree of freedom is one.
    np.testing.assert_allclose(combined.interval[:, 1], [-1.0, 1.0])
    assert "50% interval" in str(combined)


def test_named_coefficients_are_combined_each_by_itself() -> None:
    estimates, variances = (
        [[1.0, 0.0], [3.0, 0.5], [2.5, 0.2]],
        [[0.1, 0.01], [0.2, 0.02], [0.1, 0.01]],
    )
    combined = combine(estimates, variances, names=["age", "sex"])
    dicts = [
        [dict(zip(["sex", "age"], row[::-1], strict=True)) for row in part]
        for part in (estimates, variances)
    ]
    for each in (combined, combine(*dicts)):
        assert str(each["sex"]) == str(combine([0.0, 0.5, 0.2], [0.01, 0.02, 0.01]))
        assert each["age"].interval.tolist() == combined.interval[:, 0].tolist()
    assert str(combined).startswith("age  2.16")
    with pytest.raises(KeyError, match="not among the quantities: age, sex"):
        combined["income"]


def test_an_analysis_that_lacks_a_coefficient_is_named() -> None:
    full, short = {"age": 1.0, "region=north": 2.0}, {"age": 1.0}
    for twins in ([full, short], [short, full]):
        with pytest.raises(ValueError, match="not all have region=north"):
            combine(twins, [full, full])


@pytest.mark.parametrize(
    ("estimates", "variances", "options", "words"),
    [
        ([1.0], [1.0], {}, "at least two"),
        ([1.0, 2.0], [1.0], {}, "leading axis"),
        (1.0, 1.0, {}, "leading axis"),
        ([1.0, 2.0], [1.0, -1.0], {}, "negative"),
        ([1.0, np.nan], [1.0, 1.0], {}, "not finite"),
        ([1.0, 2.0], [1.0, 1.0], {"level": 95}, "level"),
        ([1.0, 2.0], [1.0, 1.0], {"size_ratio": 0}, "size_ratio"),
        ([[1.0], [2.0]], [[1.0], [1.0]], {"names": ["a", "b"]}, "a name of its own"),
    ],
)
def test_wrong_input_is_refused(estimates, variances, options, words) -> None:
    with pytest.raises(ValueError, match=words):
        combine(estimates, variances, **options)
