"""Generated networks: whatever a record's loss does with its parameters, book-keeping agrees with the reference."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.gradients import (
    BookKeepingEngine,
    Channels,
    Clipping,
    CountChannel,
    LossChannel,
    ReferenceEngine,
)

from .blocks import BLOCKS
from .networks import LOSSES, ROWS, Network, build


def split_norms(norms: np.ndarray) -> list[float]:
    """Clipping norms that all, some and no rows are within, none of them near a row's norm."""
    ordered = np.sort(norms[np.isfinite(norms)])
    between = [math.sqrt(max(a, 1e-30) * b) for a, b in itertools.pairwise(ordered) if b > 1.3 * a]
    middle = between[len(between) // 2 : len(between) // 2 + 1]
    return [0.3 * float(ordered[0]) + 1e-6, *middle, 3.0 * float(ordered[-1]) + 1e-6]


def channels(loss_share: float, count_share: float) -> Channels:
    return Channels(LossChannel(loss_share, center=0.5, bound=2.0), CountChannel(count_share))


def compare(measure: Any, engine: Any, network: Network, rule: str, shares: tuple[float, float], mask: Any) -> None:
    """Both engines in one program, for clipping norms that clip all, some and none of the rows."""
    p, record_loss, records, tolerance = network

    @measure.quick_jit
    def run(p: Any, records: Any, mask: Any, norm: Any) -> Any:
        args = record_loss, p, records, mask, Clipping(norm, rule), channels(*shares)
        return engine(*args), ReferenceEngine()(*args), jax.vmap(jax.grad(record_loss), (None, 0))(p, records)

    rows = run(p, records, mask, jnp.float32(1.0))[2]
    norms = measure.row_norms(rows)
    for C in split_norms(norms):
        got, want, _ = run(p, records, mask, jnp.float32(C))
        factors = np.minimum(1.0, C / norms) if rule == "clip" else C / (norms + 0.01)
        scales = jax.tree.map(lambda x, f=factors: float((f * measure.row_norms([x]))[np.asarray(mask)].sum()), rows)
        measure.assert_same(got, want, scales, tolerance)


def groups_of_blocks() -> list[list[str]]:
    """Every block once, three to a network."""
    names = np.random.default_rng(0).permutation(sorted(BLOCKS)).tolist()
    return [names[i : i + 3] for i in range(0, len(names), 3)]


@pytest.mark.parametrize("kinds", groups_of_blocks(), ids="-".join)
def test_every_block_agrees_with_the_reference(measure, kinds):
    network = build(kinds, list(LOSSES)[len(kinds[0]) % len(LOSSES)], seed=1)
    compare(measure, BookKeepingEngine(), network, "clip", (0.05, 0.05), jnp.arange(ROWS) < ROWS - 1)


@settings(deadline=None, max_examples=9, derandomize=True)
@given(
    kinds=st.lists(st.sampled_from(sorted(BLOCKS)), min_size=0, max_size=3),
    loss=st.sampled_from(sorted(LOSSES)),
    seed=st.integers(0, 1000),
    rule=st.sampled_from(["clip", "normalise"]),
    shares=st.sampled_from([(0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.05, 0.3)]),
    real=st.lists(st.booleans(), min_size=ROWS, max_size=ROWS),
)
def test_any_chain_of_blocks_agrees_with_the_reference(measure, kinds, loss, seed, rule, shares, real):
    mask = jnp.asarray(sorted(real, reverse=True))
    compare(measure, BookKeepingEngine(), build(kinds, loss, seed), rule, shares, mask)


@settings(deadline=None, max_examples=5, derandomize=True)
@given(
    kinds=st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=3),
    loss=st.sampled_from(sorted(LOSSES)),
    seed=st.integers(0, 1000),
    rule=st.sampled_from(["clip", "normalise"]),
    norm=st.sampled_from([1e-6, 1e-2, 1.0, 100.0]),
)
def test_no_record_of_any_scale_adds_more_than_the_bound(measure, kinds, loss, seed, rule, norm):
    p, record_loss, records, _ = build(kinds, loss, seed)
    rng = np.random.default_rng(seed)
    wild = {k: jnp.tile(v, (20,) + (1,) * (v.ndim - 1)) for k, v in records.items() if k != "key"}
    wild["key"] = jax.random.split(jax.random.key(seed), 20 * ROWS)
    scales = np.float32(10.0 ** rng.uniform(-6, 20, (2, 20 * ROWS)))
    wild["x"] *= scales[0][:, None, None]
    wild["y"] *= scales[1]
    wild["token"] += jnp.asarray(rng.choice([0, 0, -9, 9], wild["token"].shape), jnp.int32)
    both = channels(0.1, 0.2)
    run = measure.quick_jit(lambda r, C: measure.alone(BookKeepingEngine(), record_loss, p, r, Clipping(C, rule), both))
    norms = measure.row_norms(run(wild, jnp.float32(norm)))
    assert norms.max() <= both.joint_bound(norm) * (1 + 1e-5)


@pytest.mark.parametrize("rule", ["clip", "normalise"])
@pytest.mark.parametrize(
    ("kinds", "loss"), [(["attention", "recurrence"], "regularised"), (["embedding_in_a_loop"], "linear")]
)
def test_the_reference_agrees_with_the_definition(measure, kinds, loss, rule):
    """So that whatever agrees with the reference agrees with a loop over the records, in float64."""
    p, record_loss, records, _ = build(kinds, loss, seed=3)
    # Keys cannot be padded, as rows are here to fill the last microbatch.
    records.pop("key")
    mask = jnp.arange(ROWS) < ROWS - 1
    both = channels(0.1, 0.2)
    norms = measure.definition(record_loss, p, records, mask, Clipping(1.0), both)[3]
    run = measure.quick_jit(
        lambda norm: ReferenceEngine(microbatch_size=4)(record_loss, p, records, mask, Clipping(norm, rule), both)
    )
    for C in split_norms(norms):
        got = run(jnp.float32(C))
        gradient, value, count, _ = measure.definition(record_loss, p, records, mask, Clipping(C, rule), both)
        for left, right in zip(jax.tree.leaves(got.gradient), gradient, strict=True):
            np.testing.assert_allclose(left, right, atol=1e-5 * C * ROWS)
        assert float(got.loss) == pytest.approx(value, rel=1e-5, abs=1e-6 * C)
        assert float(got.count) == pytest.approx(count, rel=1e-5, abs=1e-6 * C)
