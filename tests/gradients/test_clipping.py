import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import discreet
from discreet.privacy.gradients import clip_records, rounding_margin, sum_records


def joint_norms(tree, order=2):
    """In float64, so that the check does not round as the code does."""
    leaves = [np.asarray(x, np.float64).reshape(x.shape[0], -1) for x in jax.tree.leaves(tree)]
    if order == 1:
        return sum(np.abs(x).sum(axis=1) for x in leaves)
    return np.sqrt(sum(np.square(x).sum(axis=1) for x in leaves))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    dim=st.sampled_from([1, 2, 7, 300, 20_000]),
    norm=st.sampled_from([1e-6, 0.1, 1.0, 3.7, 1e6]),
    log_scale=st.floats(-12, 12),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_no_record_exceeds_the_norm_at_any_scale(seed, dim, norm, log_scale, dtype):
    rng = np.random.default_rng(seed)
    scale = min(norm * 10.0**log_scale, 1e4 if dtype == "float16" else np.inf)
    rows = {
        "a": jnp.asarray(scale * rng.standard_normal((4, dim)), dtype),
        "b": jnp.asarray(scale * rng.standard_normal((4, 2, 3)), dtype),
    }
    for order in (1, 2):
        clipped = clip_records(rows, norm, order)
        assert joint_norms(clipped, order).max() <= norm * (1 + 1e-12)


def test_rows_are_clipped_to_an_l1_norm_and_those_within_it_are_kept():
    """The L2 norm is the smaller one: rows within it may be beyond."""
    rows = jnp.array([[3.0, -4.0], [0.3, -0.4], [jnp.nan, 0.0], [jnp.inf, 1.0], [0.0, 0.0]])
    clipped = np.asarray(clip_records({"a": rows[:, :1], "b": rows[:, 1:]}, 1.0, 1)["b"])
    np.testing.assert_allclose(clipped[:, 0], [-4 / 7, -0.4, 0, 0, 0], rtol=1e-5)
    assert clipped[1] == rows[1, 1]
    assert joint_norms(clip_records(rows[:1], 1.0), order=1) > 1.3
    with pytest.raises(ValueError, match="order is 3; norms of order 1 and 2 are bounded"):
        discreet.clip_records(rows, 1.0, order=3)


def test_clipping_without_a_margin_exceeds_the_norm():
    """The trap: clip in float32 overshoots by some 1e-7, and the margin is what prevents it."""
    rows = jnp.asarray(np.random.default_rng(0).standard_normal((2000, 7)) * 10, jnp.float32)
    norms = jnp.sqrt(jnp.sum(rows**2, axis=1, keepdims=True))
    naive = rows * jnp.minimum(1.0, 1.0 / norms)
    assert joint_norms(naive).max() > 1.0
    assert joint_norms(clip_records(rows, 1.0)).max() <= 1.0


def test_rounding_a_clipped_record_to_bfloat16_exceeds_the_norm():
    rows = jnp.asarray(np.random.default_rng(0).standard_normal((2000, 7)) * 10, jnp.bfloat16)
    assert joint_norms(clip_records(rows, 1.0).astype(jnp.bfloat16)).max() > 1.001
    assert clip_records(rows, 1.0).dtype == jnp.float32


@pytest.mark.essential
def test_the_norm_is_joint_over_leaves():
    """Clipping each leaf alone would let a record add sqrt(2) C."""
    rows = {"a": jnp.full((1, 1), 50.0), "b": jnp.full((1, 1), 50.0)}
    assert joint_norms(clip_records(rows, 1.0))[0] == pytest.approx(1.0, rel=1e-5)


def test_small_records_keep_their_value():
    rows = jnp.array([[0.3, 0.4], [0.0, 0.0], [1e-30, 0.0]])
    np.testing.assert_array_equal(clip_records(rows, 1.0), rows)


@pytest.mark.parametrize("broken", [jnp.nan, jnp.inf, -jnp.inf, 3e38])
def test_a_record_that_is_not_finite_becomes_exactly_zero(broken):
    rows = {"a": jnp.array([[1.0, broken], [2.0, 0.0]]), "b": jnp.ones((2, 3))}
    clipped = clip_records(rows, 0.5)
    assert all(np.array_equal(x[0], np.zeros_like(x[0])) for x in jax.tree.leaves(clipped))
    assert joint_norms(clipped)[1] == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize(
    "norm", [0.0, -1.0, math.inf, math.nan, np.float32("inf"), jnp.float32(-1)]
)
def test_a_norm_that_bounds_nothing_is_refused(norm):
    with pytest.raises(ValueError, match="positive and finite"):
        clip_records(jnp.ones((2, 2)), norm)


def test_complex_numbers_are_refused():
    with pytest.raises(TypeError, match="real and imaginary"):
        clip_records(jnp.array([[100.0, 100.0j]]), 1.0)


def test_an_empty_tree_is_refused():
    with pytest.raises(ValueError, match="no array"):
        clip_records({}, 1.0)


def test_masked_rows_vanish_whatever_they_hold():
    # Of one column XLA would make a selection of the product.
    rows = jnp.array([[1.0, 2.0], [jnp.nan, 0.0], [jnp.inf, jnp.nan]])
    mask = jnp.array([True, False, False])
    np.testing.assert_array_equal(sum_records(rows, mask), [1.0, 2.0])
    # The trap: a mask that multiplies turns 0 * NaN into NaN.
    assert np.isnan((rows * mask[:, None].astype(rows.dtype)).sum())


def test_no_row_at_all_sums_to_zero():
    np.testing.assert_array_equal(sum_records(jnp.ones((3, 2)), jnp.zeros(3, bool)), [0.0, 0.0])


def test_the_margin_is_small():
    assert rounding_margin(100) < 3e-6
    assert rounding_margin(688_884) < 1.1e-4
