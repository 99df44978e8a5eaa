"""Batches of any size, at any of the compiled capacities, quick or careful: one sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.gradients import (
    BookKeepingEngine,
    Channels,
    Clipping,
    CountChannel,
    LossChannel,
    ReferenceEngine,
    _bookkeeping,
)

ROWS = 24
CLIPPING, CHANNELS = Clipping(0.5), Channels(LossChannel(0.02, 1.0, 5.0), CountChannel(0.1))


def loss(p, r):
    return jnp.sum(jnp.square(jnp.tanh(r @ p["w"] + p["b"]) @ p["v"])) + jnp.sum(jnp.log(r[:1]))


@jax.jit
def reference(p, r, mask):
    return ReferenceEngine()(loss, p, r, mask, CLIPPING, CHANNELS)[:3]


def problem():
    rng = np.random.default_rng(3)
    p = {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in {"w": (6, 5), "b": (5,), "v": (5, 4)}.items()}
    return p, np.abs(rng.normal(size=(ROWS, 6))).astype(np.float32) + 0.1


@pytest.fixture(scope="module", params=[2**20, 0], ids=["careful", "quick where it can be"])
def total(request):
    """The engine's sum with three capacities, the largest of which does not hold all rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_bookkeeping, "_SMALL_BYTES", request.param)
        run = jax.jit(lambda p, r, mask: BookKeepingEngine((3, 8, 10))(loss, p, r, mask, CLIPPING, CHANNELS)[:3])
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
