"""Batches of any size, at any of the compiled capacities, quick or careful: one sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.gradients import (
    BookKeepingEngine,
    Channels,
    ReferenceEngine,
    _bookkeeping,
)

ROWS = 24
NORM, CHANNELS = 0.5, Channels(0.02, 0.1, center=1.0, bound=5.0)


def loss(p, r):
    return jnp.sum(jnp.square(jnp.tanh(r @ p["w"] + p["b"]) @ p["v"])) + jnp.sum(jnp.log(r[:1]))


@jax.jit
def reference(p, r, mask):
    return ReferenceEngine()(loss, p, r, mask, NORM, CHANNELS)[:3]


def problem():
    rng = np.random.default_rng(3)
    p = {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in {"w": (6, 5), "b": (5,), "v": (5, 4)}.items()}
    return p, np.abs(rng.normal(size=(ROWS, 6))).astype(np.float32) + 0.1


@pytest.fixture(scope="module", params=[2**20, 0], ids=["careful", "quick where it can be"])
def total(request):
    """The engine's sum with three capacities, the largest of which does not hold all rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_bookkeeping, "_SMALL_BYTES", request.param)
        run = jax.jit(lambda p, r, mask: BookKeepingEngine((3, 8, 10))(loss, p, r, mask, NORM, CHANNELS)[:3])
        p, records = problem()
        run(p, records, np.ones(ROWS, bool))  # compiled while the patch holds
        yield run


@pytest.mark.parametrize("spoiled", [(), (0,), (2, 9), (11, 20)], ids=str)
@pytest.mark.parametrize("count", [0, 1, 3, 4, 8, 10, 11, 20, 24])
def test_every_row_counts_once(total, count, spoiled):
    p, records = problem()
    mask = np.arange(ROWS) < count
    records[count:] = np.nan  # padding may hold anything
    records[list(spoiled), 0] = [np.nan, -1.0, np.inf][len(spoiled) % 3]
    got, want = total(p, records, mask), reference(p, records, mask)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5), got, want)
    if count == 0:
        assert not any(np.any(np.asarray(x)) for x in jax.tree.leaves(got))


TINY = 7
KINDS = [0.0, 1.0, -2.0, 0.3, 1e8, 1e15, 1e30, np.nan, np.inf, -np.inf]


def two_layers(p, r):
    # The last number tells on the loss alone: where it is not above zero, a finite gradient belongs to no loss.
    return 0.5 * jnp.sum(jnp.square(r[:3] @ p["w"] + p["b"])) + jnp.log(r[3])


def rows_of_all_kinds(rng):
    rows = rng.normal(size=(24, 4)).astype(np.float32)
    rows[8:, :3] = rng.choice(KINDS, (16, 3))
    rows[:, 3] = rng.choice([0.5, 2.0, 2.0, 0.0, -1.0], 24)
    rows[:8:2, 3], rows[-1] = 2.0, np.nan
    return rows


@pytest.mark.parametrize("small", [2**20, 0], ids=["substitutes", "careful"])
@pytest.mark.parametrize("capacities", [(2,), (3, 5), (TINY,)], ids=str)
def test_every_batch_is_the_sum_of_its_rows_one_by_one(monkeypatch, small, capacities):
    """Whatever rows stand beside it, at whatever place and capacity, a row adds what it adds alone."""
    monkeypatch.setattr(_bookkeeping, "_SMALL_BYTES", small)
    rng = np.random.default_rng(len(capacities))
    p = {"w": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32), "b": jnp.asarray(rng.normal(size=2), jnp.float32)}
    batch = jax.jit(lambda r, m: BookKeepingEngine(capacities)(two_layers, p, r, m, NORM, CHANNELS)[:3])
    alone = jax.jit(lambda r: ReferenceEngine()(two_layers, p, r[None], jnp.ones(1, bool), NORM, CHANNELS)[:3])
    pool = rows_of_all_kinds(rng)
    each = [jax.tree.map(np.asarray, alone(r)) for r in pool]
    counts = [any(np.any(x) for x in jax.tree.leaves(one)) for one in each]
    assert 4 <= sum(counts) < len(pool)
    for turn in range(120):
        picked = rng.choice(24, TINY)
        mask = np.arange(TINY) < rng.integers(0, TINY + 1)
        if turn % 5 == 0:
            mask = rng.random(TINY) < 0.5  # no sampler's, and no other sum
        if turn % 7 == 0:
            picked = rng.choice(np.flatnonzero(~np.array(counts)), TINY)  # none that counts
        got = batch(pool[picked], mask)
        kept = [each[i] for i in picked[mask]]
        want = jax.tree.map(lambda *x: np.sum(x, axis=0), jax.tree.map(np.zeros_like, each[0]), *kept)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5), got, want)
