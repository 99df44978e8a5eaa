"""The public functions as primitives: one equation each, the same numbers, at home in every transformation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discreet as dp
from discreet import gradients, mechanisms
from discreet.privacy.sampling import PoissonSampling

ROWS = jnp.array([[3.0, 4.0], [0.3, 0.4], [jnp.nan, 0.0]])
MASK = jnp.array([True, False, True])
CALLS = {
    "clip_records": lambda key: dp.clip_records(ROWS, 1.0),
    "sum_records": lambda key: dp.sum_records(dp.clip_records(ROWS, 1.0), MASK),
    "gaussian_mechanism": lambda key: dp.gaussian_mechanism(
        key, {"a": jnp.ones(3), "b": jnp.ones(())}, 2.0
    ),
    "laplace_mechanism": lambda key: dp.laplace_mechanism(key, jnp.ones(3), 2.0),
    "poisson_subsample": lambda key: dp.poisson_subsample(key, jnp.arange(1.0, 301.0), 0.1, 300),
    "subsample_without_replacement": lambda key: dp.subsample_without_replacement(
        key, jnp.arange(300.0), 7
    ),
}
PRIMITIVES = {"clip_records": mechanisms.CLIP, "sum_records": mechanisms.SUM}
PRIMITIVES |= dict.fromkeys(("gaussian_mechanism", "laplace_mechanism"), mechanisms.NOISE)
PRIMITIVES |= dict.fromkeys(("poisson_subsample", "subsample_without_replacement"), mechanisms.DRAW)


def same(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), a, b)


def same_bits(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("name", CALLS)
def test_each_is_one_equation_and_the_same_everywhere(name):
    call, primitive, key = CALLS[name], PRIMITIVES[name], dp.random.key(3)
    equations = jax.make_jaxpr(call)(key).jaxpr.eqns
    assert [e.primitive for e in equations if e.primitive is primitive] == [primitive]
    eager = call(key)
    equal = same_bits if name == "gaussian_mechanism" else same
    equal(eager, jax.jit(call)(key))
    equal(eager, jax.lax.cond(jnp.array(True), call, call, key))
    scanned = jax.lax.scan(lambda c, k: (c, call(k)), 0, key[None])[1]
    equal(eager, jax.tree.map(lambda x: x[0], scanned))
    looped = jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, call(key)), (0, eager))[1]
    equal(eager, looped)


@pytest.mark.parametrize(
    "name", [name for name in CALLS if PRIMITIVES[name] in (mechanisms.NOISE, mechanisms.DRAW)]
)
def test_what_is_random_is_not_mapped(name):
    keys = jax.random.split(dp.random.key(0), 2)
    with pytest.raises(TypeError, match=f"{name} under vmap: one event covers one draw"):
        jax.vmap(CALLS[name])(keys)


def step_noise(key, sums):
    """The noise of a fit's step, which may be mapped over keys."""
    return mechanisms.add_noise(mechanisms.GAUSSIAN, key, sums, 1000.0, "release", multiplier=1.0)


SUMS, KEYS = jnp.zeros((2, 3)), jax.random.split(dp.random.key(0), 2)
SHARED = {
    "sums": lambda: jax.vmap(step_noise, (None, 0))(KEYS[0], SUMS),
    "sizes": lambda: jax.vmap(
        lambda s: mechanisms.add_noise(
            mechanisms.GAUSSIAN, KEYS[0], SUMS, s, "release", multiplier=1.0
        )
    )(jnp.ones(2)),
    "compiled": lambda: jax.jit(jax.vmap(jax.jit(step_noise), (None, 0)))(KEYS[0], SUMS),
    "around a map over keys": lambda: jax.vmap(jax.vmap(step_noise), (None, 0))(
        KEYS, jnp.stack([SUMS, SUMS])
    ),
    "within a map over keys": lambda: jax.vmap(jax.vmap(step_noise, (None, 0)), (0, None))(
        KEYS, SUMS
    ),
    "around a loop over keys": lambda: jax.vmap(
        lambda x: jax.lax.scan(lambda total, key: (total + step_noise(key, x), 0), x, KEYS)[0]
    )(SUMS),
    "batches": lambda: jax.vmap(lambda rates: mechanisms.draw_batch(DRAWING, KEYS[0], rates))(
        jax.tree.map(lambda x: jnp.stack([x, x]), PoissonSampling(0.5).prepare(9))
    ),
}
DRAWING = PoissonSampling(0.5).drawing(9)


@pytest.mark.parametrize("shared", SHARED)
def test_a_map_over_sums_or_batches_must_map_the_key(shared):
    with pytest.raises(TypeError, match="under vmap: all rows have one key"):
        SHARED[shared]()


def test_a_map_over_keys_gives_each_its_own_noise():
    noised = jax.vmap(jax.vmap(step_noise))(KEYS[None], SUMS[None])[0]
    assert not jnp.any(noised[0] == noised[1])


TWICE = {
    "a loop": lambda key: jax.lax.map(
        lambda x: dp.gaussian_mechanism(key, x, 1e4), jnp.arange(2.0)
    ),
    "Laplace noise": lambda key: [
        dp.laplace_mechanism(key, jnp.full((), x), 1e4) for x in (0.0, 1.0)
    ],
    "another size": lambda key: [
        s * dp.gaussian_mechanism(key, jnp.ones(()), 1e4 / s) for s in (1.0, 2.0)
    ],
}


@pytest.mark.parametrize("way", TWICE)
def test_a_secret_key_that_is_used_twice_hides_each_value_with_noise_of_its_own(way):
    """Two draws of size 1e4 come within 1 of one another with probability below 1e-4. Before, the values' difference was left."""
    one, other = map(float, TWICE[way](dp.random.key()))
    assert abs(one - other) > 1 + 0.1


def test_noise_is_not_differentiated():
    key = dp.random.key(0)
    with pytest.raises(TypeError, match="under grad"):
        jax.grad(lambda x: dp.gaussian_mechanism(key, x, 1.0))(1.0)
    # Beside the path of the derivative it may stand.
    assert jax.grad(lambda x: 2 * x + dp.gaussian_mechanism(key, jnp.ones(()), 1.0))(1.0) == 2.0


def test_clipping_and_summing_are_mapped_and_differentiated_as_before():
    tree = jax.random.normal(dp.random.key(0), (3, 4, 2))
    same(
        jax.vmap(lambda x: dp.clip_records(x, 0.5))(tree),
        jax.vmap(lambda x: gradients.clip_records(x, 0.5))(tree),
    )
    same(
        jax.vmap(dp.sum_records, (1, None))(tree, MASK),
        jax.vmap(gradients.sum_records, (1, None))(tree, MASK),
    )
    for ours, plain in (
        (lambda x: dp.clip_records(x, 0.5).sum(), lambda x: gradients.clip_records(x, 0.5).sum()),
        (lambda x: dp.sum_records(x, MASK).sum(), lambda x: gradients.sum_records(x, MASK).sum()),
    ):
        same(jax.grad(ours)(tree), jax.grad(plain)(tree))


@pytest.mark.parametrize("traced", [False, True])
def test_a_norm_and_a_scale_may_be_traced(traced):
    key = dp.random.key(0)

    def step(norm):
        return dp.clip_records(ROWS, norm), dp.gaussian_mechanism(key, jnp.zeros(5), 2 * norm)

    clipped, noised = jax.jit(step)(0.5) if traced else step(0.5)
    same(clipped, gradients.clip_records(ROWS, 0.5))
    np.testing.assert_array_equal(noised, dp.gaussian_mechanism(key, jnp.zeros(5), 1.0))


def test_a_poisson_batch_is_never_cut_short():
    rows = jnp.arange(1.0, 1001.0)
    needed = PoissonSampling(0.05).capacity(1000)
    with pytest.raises(ValueError, match=f"Pass capacity={needed}"):
        dp.poisson_subsample(dp.random.key(0), rows, 0.05, needed - 1)
    batch, mask = dp.poisson_subsample(
        dp.random.key(0), {"x": rows, "n": rows.astype(jnp.int32)}, 0.05, needed + 5
    )
    assert batch["x"].shape == mask.shape == (needed + 5,)
    np.testing.assert_array_equal(batch["x"] > 0, mask)
    np.testing.assert_array_equal(batch["x"], batch["n"])
    assert len(set(batch["x"][mask].tolist())) == mask.sum()


def test_a_record_is_drawn_as_often_as_the_rate_says():
    """Binomial(400, 0.2) for each of 50 records; outside 5.5 standard deviations once in 5e5 seeds."""
    step = jax.jit(lambda key: dp.poisson_subsample(key, jnp.arange(1, 51), 0.2, 50)[0])
    drawn = np.stack([step(key) for key in jax.random.split(dp.random.key(2), 400)])
    counts = np.array([(drawn == i).sum() for i in range(1, 51)])
    assert np.all(np.abs(counts - 80) < 5.5 * np.sqrt(400 * 0.2 * 0.8))


def test_rows_must_be_rows():
    with pytest.raises(ValueError, match="leading axis is the records"):
        dp.poisson_subsample(dp.random.key(0), (jnp.ones(3), jnp.ones(4)), 1.0, 3)
    with pytest.raises(ValueError, match="leading axis is the records"):
        dp.subsample_without_replacement(dp.random.key(0), jnp.ones(()), 1)
