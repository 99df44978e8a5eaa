"""Programs that say where values lie are proved as if they did not; within shard_map, what devices add up is one sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

import discreet as dp

from .programs import C, certify, clipped_sum, noisy

MESH = Mesh(np.array(jax.devices()[:1]), ("d",))
ROWS = NamedSharding(MESH, P("d"))
FOUR = AbstractMesh((4,), ("d",), axis_types=(AxisType.Auto,))
ONE = P()
CUT = (P("d"), P("d"), ONE)


def test_a_sharding_constraint_is_the_identity():
    def step(w, xs, ys, mask, key):
        xs, ys, mask = (jax.lax.with_sharding_constraint(x, ROWS) for x in (xs, ys, mask))
        key = jax.lax.with_sharding_constraint(key, NamedSharding(MESH, P()))
        return noisy(key, clipped_sum(w, xs, ys, mask), 3 * C)

    assert certify(step).event.noise_multiplier == pytest.approx(3.0)


def test_arrays_that_are_laid_out_anew_are_the_same():
    there = NamedSharding(
        Mesh(np.array(jax.devices()[:1]), ("d",), axis_types=(AxisType.Explicit,)), P()
    )
    step = lambda x, m, k: release(k, jax.reshard(own(x, m), there))  # noqa: E731
    assert proved(step).event == GaussianDpEvent(2.0)


def own(rows, mask):
    return dp.sum_records(dp.clip_records(rows, 1.0), mask)


def release(key, total):
    return dp.gaussian_mechanism(key, total, 2.0)


def on_devices(body, ins=CUT, outs=ONE, **options):
    return lambda *operands: jax.shard_map(
        body, mesh=FOUR, in_specs=ins, out_specs=outs, **options
    )(*operands)


def proved(step):
    shapes = jax.ShapeDtypeStruct((16, 3), jnp.float32), jax.ShapeDtypeStruct((16,), bool)
    return dp.certify(step, *shapes, dp.random.key(), records=(0,), mask=1)


def honest(x, m, k):
    return release(k, jax.lax.psum(own(x, m), "d"))


def by_gradients(x, m, k):
    w = jax.lax.pcast(jnp.ones(3), "d", to="varying")
    rows = jax.vmap(jax.grad(lambda w, r: jnp.tanh(w @ r) ** 2), (None, 0))(w, x)
    return release(k, jax.lax.psum(own(rows, m), "d"))


def with_dropout(x, m, k):
    one, two = jax.random.split(k)
    kept = jax.random.bernoulli(jax.random.fold_in(one, jax.lax.axis_index("d")), 0.5, x.shape)
    return release(two, jax.lax.psum(own(jnp.where(kept, x, 0.0), m), "d"))


def stacked(x, mask, key):
    return release(key, on_devices(lambda x, m: own(x, m)[None], CUT[:2], P("d"))(x, mask))


def row_by_row(x, mask, key):
    return release(
        key,
        dp.sum_records(on_devices(lambda x: dp.clip_records(x, 1.0), (P("d"),), P("d"))(x), mask),
    )


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("body", [honest, by_gradients, with_dropout])
def test_a_sum_over_devices_moves_by_what_one_device_moves_by(body, check_vma):
    if body is by_gradients and not check_vma:
        return  # without the check there is no cast
    assert proved(on_devices(body, check_vma=check_vma)).event == GaussianDpEvent(2.0)


@pytest.mark.parametrize("step", [stacked, row_by_row])
def test_results_of_all_devices_one_after_the_other(step):
    assert proved(step).event.noise_multiplier == 2.0


def test_a_mean_over_devices_moves_by_a_quarter():
    event = proved(on_devices(lambda x, m, k: release(k, jax.lax.pmean(own(x, m), "d")))).event
    assert event.noise_multiplier == 8.0


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_step_over_devices_in_a_loop(check_vma):
    def fit(x, mask, key):
        step = on_devices(honest, check_vma=check_vma)
        return jax.lax.scan(
            lambda w, k: (w - step(x, mask, k), None), jnp.zeros(3), jax.random.split(key, 3)
        )[0]

    event = proved(fit).event
    assert (event.count, event.event.noise_multiplier) == (3, 2.0)


def test_a_sample_is_cut_over_devices():
    x = jax.ShapeDtypeStruct((16, 3), jnp.float32)

    def step(x, key):
        one, two = jax.random.split(key)
        return on_devices(honest)(*dp.poisson_subsample(one, x, 0.5, 16), two)

    event = dp.certify(step, x, dp.random.key(), records=(0,)).event
    assert (event.sampling_probability, event.event.noise_multiplier) == (0.5, 2.0)


def first_device(x, m, k):
    """The records on the first device depend on who else was drawn."""
    return release(k, jax.lax.psum(jnp.where(jax.lax.axis_index("d") == 0, own(x, m), 0.0), "d"))


def bent(x, m, k):
    """Each device has a part of the sample: one record less moves others to other devices."""
    return release(k, jax.lax.psum(jnp.maximum(own(x, m), 0.0), "d"))


def gradients_together(x, m, k):
    """JAX adds up the gradients by what all devices share: row 1 of one device and row 1 of the next."""
    rows = jax.vmap(jax.grad(lambda w, r: jnp.tanh(w @ r) ** 2), (None, 0))(jnp.ones(3), x)
    return release(k, jax.lax.psum(own(rows, m), "d"))


def twice(x, m, k):
    return release(k, jax.lax.psum(jax.lax.psum(own(x, m), "d"), "d"))


def own_and_all(x, m, k):
    part = own(x, m)
    return release(k, jax.lax.psum(part + jax.lax.psum(part, "d"), "d"))


def averaged_noise(x, m, k):
    return jax.lax.pmean(release(jax.random.fold_in(k, jax.lax.axis_index("d")), own(x, m)), "d")


def weighted(x, m, k):
    """The noise is a multiple of one device's weight, and the record may be on another."""
    weight = 1.0 + jax.lax.axis_index("d")
    return dp.gaussian_mechanism(k, jax.lax.psum(weight * own(x, m), "d"), 2.0)


def on_one_device(x, m, k):
    drawn = jax.lax.cond(
        jax.lax.axis_index("d") == 0, lambda: release(k, own(x, m)), lambda: jnp.zeros(3)
    )
    return drawn[None]


UNSOUND = {
    "noise on each device with one key": (
        lambda x, m, k: release(k, own(x, m))[None],
        CUT,
        P("d"),
        "key is used twice",
    ),
    "noise on one device": (on_one_device, CUT, P("d"), "key is used twice"),
    "mean of noise": (averaged_noise, CUT, P(), "on each device by itself"),
    "not summed": (
        lambda x, m, k: release(k, own(x, m)),
        CUT,
        P(),
        "key is used twice|same on all devices",
    ),
    "said to be replicated": (
        lambda x, m, k: own(x, m),
        CUT,
        P(),
        "declared the same on all devices",
    ),
    "summed twice": (twice, CUT, P(), "once per device"),
    "of the whole table": (honest, (P(), P(), P()), P(), "once per device"),
    "own and all": (own_and_all, CUT, P(), "once per device"),
    "unknown weights": (weighted, CUT, P(), "other than in jax.lax.psum"),
    "gathered": (
        lambda x, m, k: release(k, jax.lax.all_gather(own(x, m), "d")),
        CUT,
        P("d"),
        "key is used twice",
    ),
    "rows added": (
        lambda x, m, k: release(k, jax.lax.psum(dp.clip_records(x, 1.0), "d")),
        CUT,
        P(),
        "rows of several",
    ),
    "by jax.grad": (gradients_together, CUT, P(), "pcast"),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_what_devices_do_apart_is_refused(name):
    body, ins, outs, words = UNSOUND[name]
    with pytest.raises(dp.PrivacyError, match=f"(?i){words}"):
        proved(on_devices(body, ins, outs, check_vma=name == "by jax.grad"))


@pytest.mark.parametrize(
    ("body", "words"), [(first_device, "place in a random sample"), (bent, "other than in")]
)
def test_a_sample_over_devices_is_summed_and_nothing_else(body, words):
    def step(x, key):
        one, two = jax.random.split(key)
        return on_devices(body)(*dp.poisson_subsample(one, x, 0.5, 16), two)

    with pytest.raises(dp.PrivacyError, match=words):
        dp.certify(step, jax.ShapeDtypeStruct((16, 3), jnp.float32), dp.random.key(), records=(0,))


def test_some_of_the_devices_are_refused():
    mesh = AbstractMesh((2, 2), ("d", "e"), axis_types=(AxisType.Auto,) * 2)
    for ins in (CUT, (P(("d", "e")), P(("d", "e")), P())):
        step = jax.shard_map(honest, mesh=mesh, in_specs=ins, out_specs=P(), check_vma=False)
        with pytest.raises(dp.PrivacyError, match="some of"):
            proved(step)


def test_devices_that_meet_in_a_loop_are_refused_with_what_to_do():
    def body(x, m, k):
        return jax.lax.scan(
            lambda w, k: (w - honest(x, m, k), None), jnp.zeros(3), jax.random.split(k, 3)
        )[0]

    with pytest.raises(dp.PrivacyError, match="move shard_map inside it"):
        proved(on_devices(body))
