import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from discreet.privacy.gradients import BookKeepingEngine, Channels, ReferenceEngine


def record_loss(u, record):
    x, y = record
    hidden = jnp.tanh(x @ u["w"])
    return 0.5 * (hidden @ u["v"] - y) ** 2


def problem(size, seed=0):
    rng = np.random.default_rng(seed)
    u = {
        "w": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32),
        "v": jnp.asarray(rng.normal(size=4), jnp.float32),
    }
    x = jnp.asarray(rng.normal(size=(size, 3)), jnp.float32)
    y = jnp.asarray(3 * rng.normal(size=size), jnp.float32)
    return u, [x, y]


one_record = jax.jit(jax.value_and_grad(record_loss))


def one_by_one(u, records, mask, norm, channels):
    """The definition, in a Python loop and float64."""
    total = {k: np.zeros(v.shape) for k, v in u.items()}
    loss = 0.0
    counts = np.zeros(2)
    for i in np.flatnonzero(np.asarray(mask)):
        value, gradient = one_record(u, [np.asarray(r)[i] for r in records])
        gradient = {k: np.asarray(v, np.float64) for k, v in gradient.items()}
        length = math.sqrt(sum((v**2).sum() for v in gradient.values()))
        if not math.isfinite(length) or not math.isfinite(float(value)):
            continue
        factor = min(1.0, norm / max(length, 1e-300))
        total = {k: total[k] + gradient[k] * factor for k in total}
        clipped = np.clip(float(value) - channels.center, -channels.bound, channels.bound)
        loss += channels.loss_weight(norm) * float(clipped)
        counts[int(length > norm)] += channels.count_weight(norm)
    return total, loss, counts


@settings(deadline=None, max_examples=6)
@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([1, 5, 8]),  # few shapes: each is compiled anew
    real=st.integers(0, 9),
    microbatch=st.sampled_from([1, 2, 4, 100]),
    norm=st.sampled_from([0.05, 1.0, 100.0]),
    count_share=st.sampled_from([0.0, 0.1, 0.6]),
    traced=st.booleans(),
    broken=st.booleans(),
)
def test_equals_the_definition(seed, size, real, microbatch, norm, count_share, traced, broken):
    u, (x, y) = problem(size, seed)
    if broken:
        x = x.at[0, 0].set(jnp.nan)
    mask = jnp.arange(size) < real
    channels = Channels(0.1, count_share, center=1.0, bound=2.0)
    engine = ReferenceEngine(microbatch_size=microbatch)

    def run(norm):
        return engine(record_loss, u, [x, y], mask, norm, channels)

    got = jax.jit(run)(norm) if traced else jax.jit(lambda: run(norm))()
    gradient, loss, counts = one_by_one(u, [x, y], mask, norm, channels)
    for name in u:
        np.testing.assert_allclose(got.gradient[name], gradient[name], atol=1e-4 * norm, rtol=1e-4)
    assert float(got.loss) == pytest.approx(loss, abs=1e-5 * norm, rel=1e-4)
    np.testing.assert_allclose(got.count, counts, atol=1e-5 * norm, rtol=1e-4)
    assert float(got.l2_bound) == pytest.approx(norm / math.sqrt(0.9 - count_share), rel=1e-4)


def test_one_record_moves_the_sum_by_at_most_the_bound():
    """The contract itself, over every row of a batch that is clipped hard."""
    u, records = problem(50, 3)
    records[1] = records[1] * 1e4
    channels = Channels(0.2, 0.3, bound=5.0)
    engine = ReferenceEngine(microbatch_size=8)
    compiled = jax.jit(lambda mask, norm: engine(record_loss, u, records, mask, norm, channels))
    full = compiled(jnp.ones(50, bool), 0.7)
    moved = []
    for i in range(50):
        without = compiled(jnp.ones(50, bool).at[i].set(False), 0.7)
        change = jax.tree.map(lambda a, b: np.asarray(a - b, np.float64), full[:3], without[:3])
        moved.append(math.sqrt(sum((x**2).sum() for x in jax.tree.leaves(change))))
    # Differences of float32 sums carry the rounding of the sums.
    assert max(moved) <= full.l2_bound * (1 + 1e-4)
    assert max(moved) > 0.99 * full.l2_bound


def test_padding_costs_nothing():
    """Microbatches without a real row are skipped: the compiled loop runs as often as needed."""
    u, _ = problem(1)
    calls = []

    def counted(u, record):
        jax.debug.callback(lambda: calls.append(1))
        return record_loss(u, record)

    records = [jnp.ones((90, 3)), jnp.ones(90)]
    engine = ReferenceEngine(microbatch_size=16)
    engine(counted, u, records, jnp.arange(90) < 25, 1.0, Channels())
    jax.effects_barrier()
    # One call a microbatch, of 24 rows and 8 to spare: two of the four.
    assert len(calls) == 2


def test_parameters_without_a_norm_are_refused():
    facts = [jnp.ones((2, 3)), jnp.ones(2)], jnp.ones(2, bool), 1.0, Channels()
    with pytest.raises(ValueError, match="no array"):
        ReferenceEngine()(lambda u, record: record[1], {}, *facts)
    with pytest.raises(TypeError, match="real and imaginary"):
        ReferenceEngine()(lambda u, record: jnp.abs(u), jnp.complex64(1j), *facts)


def conv(image, kernel, groups):
    return jax.lax.conv_general_dilated(
        image[None],
        kernel,
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )[0]


@pytest.mark.parametrize("engine", [ReferenceEngine(), ReferenceEngine(3), BookKeepingEngine()])
def test_a_broken_image_does_not_show_in_the_gradients_of_others(engine):
    """Gradients of a kernel that is not a leaf itself, in groups: XLA makes one convolution of all records'."""
    rng = np.random.default_rng(0)
    u = {
        "k": jnp.asarray(rng.normal(size=(3, 3, 1, 4)), jnp.float32),
        "v": jnp.asarray(rng.normal(size=4), jnp.float32),
    }
    images, channels = (
        rng.normal(size=(6, 5, 5, 2)).astype(np.float32),
        Channels(0.02, center=1.0, bound=5.0),
    )

    @jax.jit
    def total(images, mask):
        def loss(u, image):
            return jnp.sum(jnp.tanh(conv(image, jnp.exp(u["k"]), 2)) @ u["v"])

        return engine(loss, u, images, mask, 0.5, channels)[:2]

    mask = np.ones(6, bool)
    want = total(images[[0, 1, 3, 4, 5, 5]], mask & (np.arange(6) < 5))
    assert np.linalg.norm(want[0]["k"]) > 0.5
    for broken in (np.nan, np.inf):
        images[2] = broken
        got = total(images, mask)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), got, want)
