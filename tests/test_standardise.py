"""Private means and spreads: what one record adds, what it costs with a fit, and what comes out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import pld

import discreet as dp
from discreet.privacy.accounting import composed
from discreet.privacy.query import Gaussian, Query
from discreet.privacy.report import make_statement
from discreet.tabular.standardise import Standardisation, _moments, contributions, sums_of

ADD, REPLACE = dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE
LOW, HIGH = np.array([0.0, -5.0, 100.0]), np.array([1.0, 5.0, 250.0])


def plan_for(x, noise_multiplier: float = 20.0, relation=ADD) -> Standardisation:
    records, columns = x.shape
    terms = {"noise_multiplier": noise_multiplier, "delta": 1e-6, "relation": relation}
    return Standardisation(num_records=records, num_columns=columns, **terms)


def people(rows: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.stack([rng.beta(2, 6, rows), rng.normal(1, 1.5, rows), rng.normal(170, 9, rows)], 1)


def joined(x: np.ndarray) -> np.ndarray:
    rows = contributions(
        jnp.asarray(x, jnp.float32), jnp.asarray(LOW, jnp.float32), jnp.asarray(HIGH, jnp.float32)
    )
    return np.concatenate(
        [np.asarray(rows["cells"], np.float64), np.asarray(rows["gaps"], np.float64)], 1
    )


def test_the_worst_records_attain_the_sensitivity_and_none_exceeds_it() -> None:
    """Added or removed: sqrt(d). Replaced: twice that. Among random records many lie at and beyond the bounds."""
    least, most = joined(np.stack([LOW, HIGH]))
    bound = plan_for(np.zeros((2, 3))).sensitivity / (1 + 2**-14)
    assert np.linalg.norm(most) == pytest.approx(bound, rel=1e-6)
    assert np.linalg.norm(most - least) == pytest.approx(2 * bound, rel=1e-6)
    rng = np.random.default_rng(0)
    x = LOW + (HIGH - LOW) * rng.choice([-np.inf, 0, 1, 0.5, 1e-4, 1.5, 0.3], (2_000, 3))
    x[1_000:] = LOW + (HIGH - LOW) * rng.uniform(-0.1, 1.1, (1_000, 3))
    rows = joined(x)
    assert np.linalg.norm(rows, axis=1).max() <= bound * (1 + 1e-6)
    assert np.linalg.norm(rows - rng.permutation(rows), axis=1).max() <= 2 * bound * (1 + 1e-6)
    # Squares in the place of 1 - z^2, without a share of their own, would be sqrt(2) times what is
    # paid for.
    z = most[:3]
    assert np.linalg.norm([*z, *np.square(z)]) > 1.4 * bound


@pytest.mark.parametrize("relation", [ADD, pytest.param(REPLACE, marks=pytest.mark.exhaustive)])
def test_the_price_is_that_of_both_by_another_accountant(relation) -> None:
    """Calibration gives the steps what the standardisation leaves of the total, and each statement is of one release."""
    facts = {"delta": 1e-5, "num_records": 5_000, "relation": relation}
    first = Standardisation.calibrate(epsilon=0.3, num_columns=3, **facts)
    batches, rest = dp.PoissonSampling(rate=0.01), {"num_steps": 100, "shared_with": [first]}
    plan = dp.PrivacyPlan.calibrate(epsilon=1.0, sampling=batches, **facts, **rest)
    accountant = pld.PLDAccountant(relation)
    theirs = accountant.compose(plan.event()).compose(first.event()).get_epsilon(1e-5)
    assert theirs * 0.999 < composed(first, plan).epsilon(1e-5) < theirs * 1.005
    assert 0.999 <= composed(first, plan).epsilon(1e-5) <= 1
    assert plan.epsilon(1e-5) < 0.98
    fit = make_statement(plan, steps_completed=100, reproducible=False)
    for statement, own in (fit, plan), (first.state(reproducible=False), first):
        assert statement.epsilon == composed(own).epsilon(1e-5)
        assert statement.figures.event == str(own.event())
        assert any(
            "standardised their columns: their privacy costs add up" in line
            for line in statement.not_covered
        )
    with pytest.raises(ValueError, match="leaves nothing for the steps"):
        dp.PrivacyPlan.calibrate(epsilon=0.29, sampling=batches, **facts, **rest)


@pytest.mark.parametrize("relation", [pytest.param(ADD, marks=pytest.mark.exhaustive), REPLACE])
def test_with_little_noise_it_is_the_mean_and_the_standard_deviation(relation) -> None:
    x = people(5_000)
    plan = plan_for(x, 1e-3, relation)
    scaling = dp.standardise.private_standardisation(
        dp.random.key(), x, low=LOW, high=HIGH, plan=plan
    )
    clipped = np.clip(x, LOW, HIGH)
    np.testing.assert_allclose(scaling.centre, clipped.mean(0), atol=1e-4 * (HIGH - LOW).max())
    np.testing.assert_allclose(scaling.scale, clipped.std(0), rtol=2e-3)
    z = scaling(clipped)
    assert z.dtype == np.float32
    np.testing.assert_allclose(z.std(0), 1, rtol=2e-3)


@pytest.mark.essential
def test_the_noise_has_the_size_that_is_paid_for() -> None:
    """2,000 coordinates of one release: their standard deviation is wrong by more than 8 % with probability below 1e-6."""
    x = np.full((7, 1_000), 0.5, np.float32)
    bounds = jnp.zeros(1_000), jnp.ones(1_000)
    release = Query(sums_of, Gaussian(plan_for(x, 3.0).stddev, 3.0), ADD, records=(1, 4)).release
    sums = jax.jit(release)(dp.random.key(1), jnp.asarray(x), *bounds, jnp.ones(7, bool))
    noise = np.concatenate([np.asarray(sums["cells"]), np.asarray(sums["gaps"]) - 7]) / (
        3.0 * np.sqrt(1_000)
    )
    assert 0.92 < noise.std() < 1.08


@pytest.mark.exhaustive
def test_a_record_with_a_nan_adds_nothing() -> None:
    x = people(1_000).astype(np.float32)
    x[-1, 1] = np.nan
    bounds = jnp.asarray(LOW, jnp.float32), jnp.asarray(HIGH, jnp.float32)
    release = jax.jit(Query(sums_of, Gaussian(1e-3, 1e-3 / 3**0.5), ADD, records=(1, 4)).release)
    masks = np.arange(1_000) < 999, np.arange(1_000) < 1_000
    without, with_it = (
        release(dp.random.key(1), jnp.asarray(x), *bounds, jnp.asarray(mask)) for mask in masks
    )
    for name in without:
        np.testing.assert_array_equal(without[name], with_it[name])


@pytest.mark.essential
@pytest.mark.parametrize("rows", [1_009, 100_003])
def test_sums_are_exact(rows) -> None:
    """A table without one record is summed by another program, and differs by what the record adds, to the last bit."""
    x = people(rows).astype(np.float32)
    x[5:7] = LOW - 1, HIGH + 1  # as long as a row can be: clipping leaves them as they are
    bounds = LOW.astype(np.float32), HIGH.astype(np.float32)
    with jax.enable_x64(True):
        found = [
            jax.jit(sums_of)(part, *bounds, np.ones(len(part), bool))
            for part in (x, np.delete(x, 5, 0), x[5:6])
        ]
    for name in ("cells", "gaps"):
        whole, without, alone = (np.asarray(sums[name]) for sums in found)
        assert whole.dtype == np.float64
        np.testing.assert_array_equal(whole - without, alone)
        assert np.all(whole * 2**26 == np.round(whole * 2**26))  # on the grid: nothing was rounded


def test_a_spread_that_the_noise_hides_is_finite_and_positive() -> None:
    """Whatever the noise did: the noisy variance may be negative, and the noisy mean beyond the bounds."""
    for cells, gaps in [(0.0, 1e9), (1e9, 1e9), (-1e9, -1e9), (0.0, 0.0)]:
        centre, spread = _moments(
            {"cells": np.array([cells]), "gaps": np.array([gaps])}, 1_000, 50.0
        )
        assert -1 <= centre[0] <= 1
        assert 0 < spread[0] <= 1
    x = np.full((400, 1), 0.25)
    plan = plan_for(x, 5.0)
    scaling = dp.standardise.private_standardisation(dp.random.key(), x, low=0, high=1, plan=plan)
    assert 0.05 < scaling.scale[0] <= 0.5
    # Without noise a constant column has the least spread there is.
    exact = dp.standardise.private_standardisation(
        dp.random.key(), x, low=0, high=1, plan=plan_for(x, 1e-9)
    )
    assert exact.scale[0] == pytest.approx(0.5 * 1e-3, rel=0.2)


@pytest.mark.parametrize(
    ("changes", "needle"),
    [
        ({"x": np.zeros(3)}, "records by 3 columns"),
        ({"x": np.full((100, 3), "a")}, "records by 3 columns"),
        ({"x": np.zeros((0, 3))}, "records by 3 columns"),
        ({"low": [0, 0]}, "do not fit 3 columns"),
        ({"low": HIGH, "high": LOW}, "below its upper one"),
        ({"high": np.inf}, "must be finite"),
        ({"low": 1.0, "high": 1.0 + 1e-9}, "32-bit"),
        ({"plan": plan_for(np.zeros((100, 2)))}, "records by 2 columns"),
    ],
)
def test_wrong_input_is_refused(changes, needle) -> None:
    given = {
        "key": dp.random.key(),
        "x": people(100),
        "low": LOW,
        "high": HIGH,
        "plan": plan_for(people(100)),
    }
    given |= changes
    with pytest.raises(ValueError, match=needle):
        dp.standardise.private_standardisation(given.pop("key"), given.pop("x"), **given)
