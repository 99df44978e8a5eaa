"""Generated networks: whatever a record's loss does with its parameters, book-keeping agrees with the definition."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from discreet.privacy.gradients import (
    BookKeepingEngine,
    Channels,
    ClippedSum,
)

from .blocks import BLOCKS
from .conftest import Measure
from .networks import LOSSES, ROWS, Network, build


def split_norms(norms: np.ndarray) -> list[float]:
    """Clipping norms that all, some and no rows are within, none of them near a row's norm."""
    ordered = np.sort(norms[np.isfinite(norms)])
    between = [math.sqrt(max(a, 1e-30) * b) for a, b in itertools.pairwise(ordered) if b > 1.3 * a]
    middle = between[len(between) // 2 : len(between) // 2 + 1]
    return [0.3 * float(ordered[0]) + 1e-6, *middle, 3.0 * float(ordered[-1]) + 1e-6]


def by_definition(mask: Any, C: float, channels: Channels, losses: Any, rows: Any) -> ClippedSum:
    """The clipped sum of given per-record gradients, in float64."""
    norms = Measure.row_norms(rows)
    factor = np.minimum(1.0, C / norms) * np.asarray(mask)
    gradient = jax.tree.map(
        lambda x: np.tensordot(factor, np.asarray(x, np.float64), 1),
        rows,
    )
    clipped = np.clip(
        np.asarray(losses, np.float64) - channels.center, -channels.bound, channels.bound
    )
    loss = channels.loss_weight(C) * np.sum(np.where(mask, clipped, 0.0))
    within = norms <= C
    count = channels.count_weight(C) * np.array([np.sum(mask & within), np.sum(mask & ~within)])
    return ClippedSum(gradient, loss, count, channels.joint_bound(C))


def compare(engine: Any, network: Network, shares: tuple[float, float], mask: Any) -> None:
    """The engine against the definition, for clipping norms that clip all, some and none of the rows."""
    p, record_loss, records, tolerance = network
    channels = Channels(*shares, center=0.5, bound=2.0)

    @Measure.quick_jit
    def run(p: Any, records: Any, mask: Any, norm: Any) -> Any:
        alone = jax.vmap(jax.value_and_grad(record_loss), (None, 0))(p, records)
        return engine(record_loss, p, records, mask, norm, channels), *alone

    _, losses, rows = run(p, records, mask, jnp.float32(1.0))
    norms = Measure.row_norms(rows)
    for C in split_norms(norms):
        got = run(p, records, mask, jnp.float32(C))[0]
        factors = np.minimum(1.0, C / norms)
        scales = jax.tree.map(
            lambda x, f=factors: float((f * Measure.row_norms([x]))[np.asarray(mask)].sum()), rows
        )
        Measure.assert_same(got, by_definition(mask, C, channels, losses, rows), scales, tolerance)


def groups_of_blocks() -> list[list[str]]:
    """Every block once, three to a network."""
    names = np.random.default_rng(0).permutation(sorted(BLOCKS)).tolist()
    return [names[i : i + 3] for i in range(0, len(names), 3)]


@pytest.mark.parametrize("kinds", groups_of_blocks(), ids="-".join)
def test_every_block_agrees_with_the_definition(kinds):
    network = build(kinds, list(LOSSES)[len(kinds[0]) % len(LOSSES)], seed=1)
    compare(BookKeepingEngine(), network, (0.05, 0.05), jnp.arange(ROWS) < ROWS - 1)


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=6, derandomize=True)
@given(
    kinds=st.lists(st.sampled_from(sorted(BLOCKS)), min_size=0, max_size=3),
    loss=st.sampled_from(sorted(LOSSES)),
    seed=st.integers(0, 1000),
    shares=st.sampled_from([(0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.05, 0.3)]),
    real=st.lists(st.booleans(), min_size=ROWS, max_size=ROWS),
)
def test_any_chain_of_blocks_agrees_with_the_definition(kinds, loss, seed, shares, real):
    mask = jnp.asarray(sorted(real, reverse=True))
    compare(BookKeepingEngine(), build(kinds, loss, seed), shares, mask)


@settings(deadline=None, max_examples=4, derandomize=True)
@given(
    kinds=st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=3),
    loss=st.sampled_from(sorted(LOSSES)),
    seed=st.integers(0, 1000),
    norm=st.sampled_from([1e-6, 1e-2, 1.0, 100.0]),
)
def test_no_record_of_any_scale_adds_more_than_the_bound(kinds, loss, seed, norm):
    p, record_loss, records, _ = build(kinds, loss, seed)
    rng = np.random.default_rng(seed)
    wild = {k: jnp.tile(v, (20,) + (1,) * (v.ndim - 1)) for k, v in records.items() if k != "key"}
    wild["key"] = jax.random.split(jax.random.key(seed), 20 * ROWS)
    scales = np.float32(10.0 ** rng.uniform(-6, 20, (2, 20 * ROWS)))
    wild["x"] *= scales[0][:, None, None]
    wild["y"] *= scales[1]
    wild["token"] += jnp.asarray(rng.choice([0, 0, -9, 9], wild["token"].shape), jnp.int32)
    both = Channels(0.1, 0.2, center=0.5, bound=2.0)
    run = Measure.quick_jit(
        lambda p, r, C: Measure.alone(BookKeepingEngine(), record_loss, p, r, C, both)
    )
    norms = Measure.row_norms(run(p, wild, jnp.float32(norm)))
    assert norms.max() <= both.joint_bound(norm) * (1 + 1e-5)
