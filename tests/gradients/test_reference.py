import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.gradients import LossChannel, ReferenceEngine


def record_loss(u, record):
    x, y = record
    hidden = jnp.tanh(x @ u["w"])
    return 0.5 * (hidden @ u["v"] - y) ** 2


def problem(size, seed=0):
    rng = np.random.default_rng(seed)
    u = {"w": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32), "v": jnp.asarray(rng.normal(size=4), jnp.float32)}
    x = jnp.asarray(rng.normal(size=(size, 3)), jnp.float32)
    y = jnp.asarray(3 * rng.normal(size=size), jnp.float32)
    return u, [x, y]


def one_by_one(u, records, mask, clipping_norm, channel):
    """The definition, in a Python loop and float64."""
    total = {k: np.zeros(v.shape) for k, v in u.items()}
    loss = 0.0
    for i in np.flatnonzero(np.asarray(mask)):
        value, gradient = jax.value_and_grad(record_loss)(u, [r[i] for r in records])
        gradient = {k: np.asarray(v, np.float64) for k, v in gradient.items()}
        norm = math.sqrt(sum((v**2).sum() for v in gradient.values()))
        if not math.isfinite(norm) or not math.isfinite(float(value)):
            continue
        total = {k: total[k] + gradient[k] * min(1.0, clipping_norm / max(norm, 1e-300)) for k in total}
        loss += channel.weight(clipping_norm) * float(
            np.clip(float(value) - channel.center, -channel.bound, channel.bound)
        )
    return total, loss


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 1000),
    size=st.integers(1, 9),
    real=st.integers(0, 9),
    microbatch=st.sampled_from([None, 1, 2, 4, 100]),
    clipping_norm=st.sampled_from([0.05, 1.0, 100.0]),
    broken=st.booleans(),
)
def test_equals_the_definition(seed, size, real, microbatch, clipping_norm, broken):
    u, (x, y) = problem(size, seed)
    if broken:
        x = x.at[0, 0].set(jnp.nan)
    mask = jnp.arange(size) < real
    channel = LossChannel(0.1, center=1.0, bound=2.0)
    engine = ReferenceEngine(microbatch_size=microbatch)
    got = engine(record_loss, u, [x, y], mask, clipping_norm, channel)
    gradient, loss = one_by_one(u, [x, y], mask, clipping_norm, channel)
    for name in u:
        np.testing.assert_allclose(got.gradient[name], gradient[name], atol=1e-4 * clipping_norm, rtol=1e-4)
    assert float(got.loss) == pytest.approx(loss, abs=1e-5 * clipping_norm, rel=1e-4)
    assert got.l2_bound == clipping_norm / math.sqrt(0.9)


def test_one_record_moves_the_sum_by_at_most_the_bound():
    """The contract itself, over every row of a batch that is clipped hard."""
    u, records = problem(50, 3)
    records[1] = records[1] * 1e4
    channel = LossChannel(0.2, bound=5.0)
    engine = ReferenceEngine(microbatch_size=8)
    compiled = jax.jit(lambda mask: engine(record_loss, u, records, mask, 0.7, channel))
    full = compiled(jnp.ones(50, bool))
    moved = []
    for i in range(50):
        without = compiled(jnp.ones(50, bool).at[i].set(False))
        change = jax.tree.map(lambda a, b: np.asarray(a - b, np.float64), full[:2], without[:2])
        moved.append(math.sqrt(sum((x**2).sum() for x in jax.tree.leaves(change))))
    # Differences of float32 sums carry the rounding of the sums.
    assert max(moved) <= full.l2_bound * (1 + 1e-4)
    assert max(moved) > 0.99 * full.l2_bound


@pytest.mark.parametrize("share", [0.0, 0.02, 0.99])
def test_the_share_is_one_of_the_squared_bound(share):
    channel = LossChannel(share, bound=3.0)
    assert math.hypot(2.0, channel.weight(2.0) * 3.0) == pytest.approx(channel.joint_bound(2.0), rel=2e-6)
    assert math.hypot(2.0, channel.weight(2.0) * 3.0) <= channel.joint_bound(2.0)
    assert channel.joint_bound(2.0) == pytest.approx(2.0 / math.sqrt(1 - share))


def test_padding_costs_nothing():
    """Microbatches without a real row are skipped: the compiled loop runs as often as needed."""
    u, _ = problem(1)
    calls = []

    def counted(u, record):
        jax.debug.callback(lambda: calls.append(1))
        return record_loss(u, record)

    records = [jnp.ones((40, 3)), jnp.ones(40)]
    engine = ReferenceEngine(microbatch_size=4)
    engine(counted, u, records, jnp.arange(40) < 5, 1.0, LossChannel(0.0))
    jax.effects_barrier()
    # One call a microbatch: two of the ten.
    assert len(calls) == 2
