"""The exponential mechanism: its law is exact in integers, and scores are rounded at a price that is paid."""

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

import discreet as dp
from discreet.privacy.accounting import BoundedRangeDpEvent
from discreet.privacy.mechanisms import CHOICE
from discreet.privacy.mechanisms._integers import CHOICE_GRID, choose_on_grid, coins

KEY, ROWS, MASK = dp.random.key(17), jnp.ones((10, 3)), jnp.ones(10, bool)
LEVEL = 1e-4


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 200.0])
def test_coins_are_right_to_128_bits(epsilon):
    with mpmath.workprec(400):
        rate = mpmath.mpf(epsilon) / 2 / (2**16 + 1)
        for place, words in enumerate(coins(epsilon)):
            known = sum(word << 32 * (3 - number) for number, word in enumerate(words))
            assert 0 <= mpmath.exp(-rate * 2**place) * 2**128 - known < 1.001


@pytest.mark.parametrize(("rate", "accepted"), [(1.0, True), (0.5, False), (2.0, False)])
def test_answers_have_their_probabilities(rate, accepted):
    """One test of 4,000 choices; half or twice epsilon fails it. So would scores that are rounded to integers."""
    scores = jnp.array([0.0, 1.25, 2.5, -1.0, 2.75])
    found = jax.jit(jax.vmap(lambda key: choose_on_grid(key, scores, 1.4)))(
        jax.random.split(KEY, 4000)
    )
    weights = np.exp(rate * 0.7 * np.asarray(scores, np.float64))
    level = stats.chisquare(np.bincount(found, minlength=5), 4000 * weights / weights.sum()).pvalue
    assert (level > LEVEL) == accepted


def test_scores_out_of_range_are_the_lowest_or_the_highest():
    compiled = jax.jit(lambda x: dp.exponential_mechanism(KEY, x, 1.0))

    def choose(*scores, dtype=jnp.float32):
        return int(compiled(jnp.array(scores, dtype)))

    assert choose(0.0, 1e30, -1e30) == 1
    assert choose(math.nan, -500.0, -math.inf) == 1
    assert choose(-(2.0**40), 0.0, 2.0**35) == 2
    with jax.enable_x64(True):
        # Integers above 2^24 that float32 takes for one.
        assert choose(1e9, 1e9 + 400, 1e9 + 100, dtype=jnp.float64) == 1


def test_neighbours_are_within_the_range_whatever_the_rounding():
    """In integers as the machine has them; of scores at odds with the grid, half of the allowance for rounding is too little."""
    rng, worst, rate = np.random.default_rng(1), 0.0, 0.5 / (1 / CHOICE_GRID + 1)
    for moved in (1.0, CHOICE_GRID, 1e-3 * CHOICE_GRID, 40.0):
        for scores in (rng.normal(0, 5, 4), (rng.integers(-50, 50, 4) + 0.5) * CHOICE_GRID):
            for signs in itertools.product((-1, 1), repeat=4):
                near = [
                    np.round((scores + half * moved * np.array(signs)) / CHOICE_GRID)
                    for half in (-0.5, 0.5)
                ]
                used = rate * np.ptp(near[1] - near[0])
                assert used <= CHOICE.range(1.0, moved) * (1 + 1e-12)
                worst = max(worst, used / (moved + CHOICE_GRID / 2))
    assert worst > 1


def choose(key, rows, mask, epsilon=0.5):
    return dp.exponential_mechanism(
        key, dp.sum_records(jnp.clip(jnp.nan_to_num(rows), -1, 1), mask), epsilon
    )


def proved(step, *args, **options):
    return dp.certify(step, KEY, *args, **{"records": 1, "mask": 2, **options}).event


@pytest.mark.essential
def test_what_is_proved_is_how_far_one_record_moves_any_score():
    assert proved(choose, ROWS, MASK) == BoundedRangeDpEvent(0.5)
    # By the norm where nothing else is known; twice, where a record may leave what is not zero.
    twice = CHOICE.range(0.5, 2.0)
    assert proved(
        lambda k, r, m: dp.exponential_mechanism(
            k, dp.sum_records(dp.clip_records(r, 2.0), m), 0.5
        ),
        ROWS,
        MASK,
    ) == (BoundedRangeDpEvent(pytest.approx(twice)))
    assert proved(
        lambda k, r: choose(k, r, jnp.ones(10, bool)), ROWS, mask=None
    ) == BoundedRangeDpEvent(pytest.approx(twice))
    certificate = dp.certify(
        choose, KEY, ROWS, MASK, records=1, mask=2, expect=BoundedRangeDpEvent(0.5)
    )
    assert certificate.slack == CHOICE.slack
    assert int(certificate(KEY, ROWS.at[:, 1].set(1e3), MASK)) in range(3)
    with pytest.raises(dp.PrivacyError, match="more than was declared"):
        dp.certify(choose, KEY, ROWS, MASK, records=1, mask=2, expect=BoundedRangeDpEvent(0.25))


@pytest.mark.parametrize(
    "single",
    [jnp.negative, jnp.abs, lambda x: -jnp.abs(x), lambda x: jnp.minimum(x, 3), jax.nn.relu],
)
def test_scores_of_single_sums_move_no_further_than_these(single):
    """A median by -|below - above| was charged the joint norm of all scores: sqrt(3) times as much here."""

    def step(key, rows, mask):
        return dp.exponential_mechanism(
            key, single(dp.sum_records(jnp.sign(jnp.nan_to_num(rows)), mask)), 0.5
        )

    for relation, moved in (dp.Relation.ADD_OR_REMOVE_ONE, 0.5), (dp.Relation.REPLACE_ONE, 0.5):
        assert proved(step, ROWS, MASK, relation=relation) == BoundedRangeDpEvent(moved)


REFUSED = {
    "raw scores": lambda k, r, m: dp.exponential_mechanism(k, r.sum(0), 0.5),
    "one key for two choices": lambda k, r, m: [choose(k, r, m), choose(k, r, m)],
    "a key for a choice and for noise": lambda k, r, m: [
        choose(k, r, m), dp.gaussian_mechanism(k, dp.sum_records(dp.clip_records(r, 1.0), m), 2.0)
    ],
    "scores squared": lambda k, r, m: dp.exponential_mechanism(k, dp.sum_records(dp.clip_records(r, 1.0), m) ** 2, 0.5),
    "a key that is known": lambda k, r, m: choose(jax.random.key(0), r, m),
    "a sample": lambda k, r, m: (
        lambda b: dp.exponential_mechanism(
            jax.random.fold_in(k, 2), dp.sum_records(dp.clip_records(b[0], 1.0), b[1]), 0.5
        )
    )(dp.poisson_subsample(jax.random.fold_in(k, 1), r, 0.1, 10)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_programs_without_a_bound_are_refused(name):
    with pytest.raises(dp.PrivacyError):
        proved(REFUSED[name], ROWS, MASK)


def test_wrong_inputs():
    scores = jnp.zeros(3)
    with pytest.raises(TypeError, match="depends on data"):
        proved(lambda k, r, m: choose(k, r, m, jnp.abs(r).sum()), ROWS, MASK)
    for epsilon in (0.0, -1.0, math.nan, 300.0):
        with pytest.raises(ValueError, match="between 1e-6 and 200"):
            dp.exponential_mechanism(KEY, scores, epsilon)
    for wrong in (jnp.zeros((2, 2)), jnp.zeros(0)):
        with pytest.raises(ValueError, match="pass a vector"):
            dp.exponential_mechanism(KEY, wrong, 1.0)
    with pytest.raises(TypeError, match="int32"):
        dp.exponential_mechanism(KEY, jnp.zeros(3, jnp.int32), 1.0)
    with pytest.raises(TypeError, match="one event covers one selection"):
        jax.vmap(lambda s: dp.exponential_mechanism(KEY, s, 1.0))(jnp.zeros((2, 3)))
