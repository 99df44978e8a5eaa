import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from discreet.privacy.gradients import BookKeepingEngine, Channels, ReferenceEngine, row_weights
from discreet.privacy.gradients._rows import squared_norms

EVERYTHING = [
    0.0,
    1e-30,
    1e-12,
    1e-3,
    0.7,
    0.70001,
    1.0,
    3.0,
    1e6,
    1e18,
    3e38,
    np.inf,
    np.nan,
    -1e6,
    -np.inf,
]


@functools.cache
def _contributions(shares):
    """Compiled once for all numbers that may be traced."""

    def one(gradient, loss, norm, center, bound):
        channels = Channels(*shares, center=center, bound=bound)
        squared = squared_norms(gradient[None], norm)
        weights = row_weights(loss[None], squared, gradient.size, jnp.ones(1, bool), norm, channels)
        row = jnp.where(weights.keep, gradient * weights.factor, 0.0)
        return jnp.concatenate([row, weights.loss, weights.count[0]])

    return jax.jit(jax.vmap(one, in_axes=(0, 0, None, None, None)))


def contributions(gradients, losses, norm, channels):
    """Compute each record's contribution, all coordinates, one record at a time, in float64."""
    numbers = map(jnp.float32, (norm, channels.center, channels.bound))
    compiled = _contributions((channels.loss_share, channels.count_share))
    return np.asarray(compiled(gradients, losses, *numbers), np.float64)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    dim=st.sampled_from([1, 2, 7, 3000]),
    norm=st.sampled_from([1e-6, 0.1, 1.0, 3.7, 1e6]),
    shares=st.sampled_from(
        [(0.0, 0.0), (0.02, 0.0), (0.0, 0.02), (0.02, 0.01), (0.5, 0.49), (0.01, 0.98)]
    ),
    center=st.sampled_from([0.0, 7.5, -1e4]),
    bound=st.sampled_from([1e-3, 1.0, 3e4]),
)
def test_a_record_adds_at_most_the_joint_bound_whatever_it_holds(
    seed, dim, norm, shares, center, bound
):
    rng = np.random.default_rng(seed)
    scales = np.array([0.0, 1e-30, 1e-3, 0.5, 1.0, 1.0, 1.0001, 10.0, 1e9, 1e30])
    rows = rng.standard_normal((len(scales), dim))
    rows *= (norm * scales / np.linalg.norm(rows, axis=1))[:, None]
    with np.errstate(over="ignore"):
        rows = np.concatenate(
            [rows.astype(np.float32), rng.choice(EVERYTHING, (50, dim)).astype(np.float32)]
        )
    losses = rng.choice(EVERYTHING, len(rows)).astype(np.float32)
    losses[rng.random(len(rows)) < 0.5] = 1e30
    channels = Channels(shares[0], shares[1], center=center, bound=bound)
    added = contributions(jnp.asarray(rows), jnp.asarray(losses), norm, channels)
    assert np.all(np.isfinite(added))
    joint = float(np.float32(norm)) / math.sqrt(1 - shares[0] - shares[1])
    assert np.linalg.norm(added, axis=1).max() <= joint
    assert channels.joint_bound(norm) == pytest.approx(joint, rel=1e-6)
    # What is not finite adds exactly nothing, to any coordinate.
    broken = ~np.isfinite(losses) | ~np.all(np.isfinite(rows), axis=1)
    assert np.all(added[broken] == 0.0)


def test_the_joint_bound_is_reached():
    """No budget is wasted: a long gradient with a far loss adds the bound itself."""
    channels = Channels(0.02, 0.01, center=0.0, bound=2.0)
    added = contributions(jnp.full((1, 9), 1e6), jnp.array([1e6]), 3.0, channels)
    assert np.linalg.norm(added) == pytest.approx(3.0 / math.sqrt(0.97), rel=1e-4)


def test_a_count_that_is_not_in_the_bound_exceeds_it():
    """The trap: weighting the count as if the loss had no share leaves too little room."""
    channels = Channels(0.5, 0.3, center=0.0, bound=2.0)
    added = contributions(jnp.full((1, 9), 1e6), jnp.array([1e6]), 3.0, channels)[0]
    without_count = Channels(0.5).joint_bound(3.0)
    assert np.linalg.norm(added[:-2]) > without_count
    assert np.linalg.norm(added) <= channels.joint_bound(3.0)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.99])
@pytest.mark.parametrize("part", ["loss", "count"])
def test_the_share_is_one_of_the_squared_bound(share, part):
    loss, count = (share, 0.0) if part == "loss" else (0.0, share)
    channels = Channels(loss, count, bound=3.0)
    extra = math.hypot(channels.loss_weight(2.0) * 3.0, channels.count_weight(2.0))
    assert math.hypot(2.0, extra) == pytest.approx(channels.joint_bound(2.0), rel=2e-6)
    assert math.hypot(2.0, extra) <= channels.joint_bound(2.0)
    assert channels.joint_bound(2.0) == pytest.approx(2.0 / math.sqrt(1 - share))


@pytest.mark.essential
def test_counts_who_is_within_and_drops_who_is_not_finite():
    squared = jnp.array([0.0, 0.9, 1.0, 1.1, jnp.inf, jnp.nan, 0.1, 0.1])
    losses = jnp.zeros(8).at[6].set(jnp.nan)
    mask = jnp.arange(8) < 7
    channels = Channels(0.0, 0.1)
    weights = row_weights(losses, squared, 3, mask, 1.0, channels)
    np.testing.assert_array_equal(weights.keep, [True] * 4 + [False] * 4)
    np.testing.assert_array_equal(weights.factor[4:], np.zeros(4))
    within, clipped = weights.count.sum(axis=0) / channels.count_weight(1.0)
    assert float(within) == pytest.approx(3.0, rel=1e-6)
    assert float(clipped) == pytest.approx(1.0, rel=1e-6)
    assert not weights.loss.any()


def test_short_gradients_keep_their_length():
    squared = jnp.array([0.01, 4.0]) ** 2
    args = jnp.zeros(2), squared, 3, jnp.ones(2, bool)
    nothing = Channels()
    np.testing.assert_allclose(row_weights(*args, 1.0, nothing).factor, [1.0, 0.25], rtol=1e-5)


def clipped_to(norm, engine=None):
    return (engine or BookKeepingEngine())(
        jnp.dot, jnp.ones(2), jnp.ones((1, 2)), jnp.ones(1, bool), norm, Channels()
    )


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (lambda: clipped_to(0.0), "positive"),
        (lambda: clipped_to(math.nan), "positive"),
        (lambda: clipped_to(jnp.ones(3)), "one number"),
        (lambda: clipped_to(-1.0, ReferenceEngine()), "positive"),
        (lambda: Channels(1.0), "below 1"),
        (lambda: Channels(0.6, 0.4), "below 1"),
        (lambda: Channels(0.0, -0.1), "at least 0"),
        (lambda: Channels(math.nan), "at least 0"),
    ],
)
def test_what_bounds_nothing_is_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        wrong()


@pytest.mark.parametrize("bound", [1e-30, 1.0, 5e37])
def test_losses_near_the_largest_number_add_no_infinity(bound):
    """A sum of 16 losses of 5e37 is infinite, and would show through any noise."""
    channels = Channels(0.5, center=0.0, bound=bound)
    losses, short = jnp.full(16, 3e38), jnp.zeros(16)
    found = row_weights(losses, short, 3, jnp.ones(16, bool), 2.0, channels).loss
    np.testing.assert_allclose(found, 2.0, rtol=1e-5)
