"""Programs that are not private, or not as private as they say, and the reason that each must get."""

import functools
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

import discreet as dp
from discreet.privacy.sampling import PoissonSampling

from .programs import KEY, RATE, C, M, N, W, X, Y, certify, clipped_sum, gradients, loss, noisy

Z = 1.5
CAPACITY = PoissonSampling(RATE).capacity(N)
tree_sum = functools.partial(jax.tree.map, lambda x: x.sum(0))


def keep(mask, g, to=0.0):
    return jax.tree.map(lambda x: jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, to), g)


# What is wrong: how it is named, the program, what the error says.
REFUSED = []


def refused(says):
    def enter(step):
        REFUSED.append(pytest.param(step, says, id=step.__name__))
        return step

    return enter


@refused("no bound")
def no_clip(w, xs, ys, mask, key):
    return noisy(key, tree_sum(keep(mask, gradients(w, xs, ys))), Z * C)


@refused("no bound")
def no_clip_behind_a_barrier(w, xs, ys, mask, key):
    clipped, g = jax.lax.optimization_barrier(
        (dp.clip_records(gradients(w, xs, ys), C), gradients(w, xs, ys))
    )
    del clipped
    return noisy(key, tree_sum(keep(mask, g)), Z * C)


@refused("without noise")
def no_noise(w, xs, ys, mask, key):
    return clipped_sum(w, xs, ys, mask)


@refused("values for each record")
def norms_returned(w, xs, ys, mask, key):
    g = gradients(w, xs, ys)
    return noisy(key, dp.sum_records(dp.clip_records(g, C), mask), Z * C), jax.vmap(
        optax.tree.norm
    )(g)


@refused("values for each record")
def mask_returned(w, xs, ys, mask, key):
    return noisy(key, clipped_sum(w, xs, ys, mask), Z * C), mask


@refused("values for each record")
def indices_returned(w, xs, ys, mask, key):
    draw, noise = jax.random.split(key)
    rows = (xs, ys, mask, jnp.arange(N) * mask)
    (bx, by, bm, number), drawn = dp.poisson_subsample(draw, rows, RATE, CAPACITY)
    return noisy(noise, clipped_sum(w, bx, by, bm & drawn), Z * C), number


@refused("wrap around|without noise|no bound")
def batch_size_returned(w, xs, ys, mask, key):
    return noisy(key, clipped_sum(w, xs, ys, mask), Z * C), mask.sum()


@refused("no bound|without clipping")
def raw_elbo_beside(w, xs, ys, mask, key):
    value = jnp.where(mask, jax.vmap(loss, (None, 0, 0))(w, xs, ys), 0).sum()
    return noisy(key, clipped_sum(w, xs, ys, mask), Z * C), value


@refused("no bound|without clipping")
def raw_elbo_scanned_out(w, xs, ys, mask, key):
    def turn(w, key):
        value = jnp.where(mask, jax.vmap(loss, (None, 0, 0))(w, xs, ys), 0).mean()
        return jax.tree.map(jnp.add, w, noisy(key, clipped_sum(w, xs, ys, mask), Z * C)), value

    return jax.lax.scan(turn, w, jax.random.split(key, 3))


@refused("a record's values meet values computed from all records")
def centred(w, xs, ys, mask, key):
    return noisy(key, clipped_sum(w, xs - xs.mean(0), ys, mask), Z * C)


@refused("a record's values meet values computed from all records")
def batch_normalised(w, xs, ys, mask, key):
    safe = keep(mask, xs)
    mean, var = safe.mean(0), safe.var(0)
    return noisy(key, clipped_sum(w, (xs - mean) / jnp.sqrt(var + 1e-3), ys, mask), Z * C)


@refused("a record's values meet values computed from all records")
def mean_over_the_mapped_axis(w, xs, ys, mask, key):
    def one(w, x, y):
        return loss(w, x - jax.lax.pmean(x, "record"), y)

    g = jax.vmap(jax.grad(one), (None, 0, 0), axis_name="record")(w, xs, ys)
    return noisy(key, dp.sum_records(dp.clip_records(g, C), mask), Z * C)


@refused("no bound")
def mean_over_the_realised_number(w, xs, ys, mask, key):
    s = clipped_sum(w, xs, ys, mask)
    return noisy(key, jax.tree.map(lambda x: x / mask.sum(), s), Z * C / 20)


@refused("no bound|noise scale|known")
def masked_update_of_d3p(w, xs, ys, mask, key):
    """Noise scaled by the realised size of the batch."""
    s, size = clipped_sum(w, xs, ys, mask), mask.sum()
    return noisy(key, jax.tree.map(lambda x: x / size, s), Z * C / size)


@refused("condition of a while loop .* depends on records")
def private_while(w, xs, ys, mask, key):
    s = clipped_sum(w, xs, ys, mask)
    shrunk = jax.lax.while_loop(
        lambda v: jnp.abs(v["b"]) > 1, lambda v: jax.tree.map(lambda x: 0.5 * x, v), s
    )
    return noisy(key, shrunk, Z * C)


@refused("choice of a branch .* depends on records")
def private_cond(w, xs, ys, mask, key):
    s = clipped_sum(w, xs, ys, mask)
    return jax.lax.cond(s["b"] > 0, lambda: noisy(key, s, Z * C), lambda: w)


@refused("pure_callback")
def pure_callback(w, xs, ys, mask, key):
    kind = jax.ShapeDtypeStruct(xs.shape, xs.dtype)
    return noisy(key, clipped_sum(w, jax.pure_callback(lambda x: x, kind, xs), ys, mask), Z * C)


@refused("debug")
def debug_print(w, xs, ys, mask, key):
    jax.debug.print("{}", xs)
    return noisy(key, clipped_sum(w, xs, ys, mask), Z * C)


@refused("NaN")
def unguarded_nan(w, xs, ys, mask, key):
    return noisy(key, jnp.where(mask[:, None], jnp.clip(xs, -1.0, 1.0), 0.0).sum(0), 10.0)


@refused("NaN")
def guard_out_of_place(w, xs, ys, mask, key):
    """Says of one number whether another one is finite."""
    square = jnp.broadcast_to(xs[:, :, None], (N, 3, 3))
    guarded = jnp.where(jnp.isfinite(square), jnp.swapaxes(square, 1, 2), 0.0)
    return noisy(
        key, jnp.where(mask[:, None, None], jnp.clip(guarded, -1.0, 1.0), 0.0).sum(0), 10.0
    )


@refused("without clipping|no bound|NaN")
def mask_that_multiplies_over_padding(w, xs, ys, mask, key):
    rows = jnp.clip(xs, -1.0, 1.0) * mask[:, None]
    return noisy(key, rows.sum(0), 10.0)


@refused("without noise")
def one_leaf_without_noise(w, xs, ys, mask, key):
    s = clipped_sum(w, xs, ys, mask)
    return {"a": noisy(key, s["a"], Z * C), "b": s["b"]}


@refused("used twice")
def key_used_twice(w, xs, ys, mask, key):
    w = noisy(key, clipped_sum(w, xs, ys, mask), Z * C)
    return noisy(key, clipped_sum(w, xs, ys, mask), Z * C)


@refused("used twice")
def key_used_in_every_turn(w, xs, ys, mask, key):
    return jax.lax.fori_loop(0, 3, lambda i, w: noisy(key, clipped_sum(w, xs, ys, mask), Z * C), w)


@refused("used twice")
def key_drawn_from_and_split(w, xs, ys, mask, key):
    shift = jax.random.normal(key)
    own, _ = jax.random.split(key)
    return noisy(own, clipped_sum(w, xs + shift, ys, mask), Z * C)


@refused("used twice")
def folded_with_the_same_number(w, xs, ys, mask, key):
    w = noisy(jax.random.fold_in(key, 7), clipped_sum(w, xs, ys, mask), Z * C)
    return noisy(jax.random.fold_in(key, 7), clipped_sum(w, xs, ys, mask), Z * C)


@refused("a key is returned that was used for")
def key_returned(w, xs, ys, mask, key):
    return noisy(key, clipped_sum(w, xs, ys, mask), Z * C), key


@refused("a key is returned that was used for")
def parent_of_the_key_returned(w, xs, ys, mask, key):
    own, _ = jax.random.split(key)
    return noisy(own, clipped_sum(w, xs, ys, mask), Z * C), key


@refused("used twice")
def noise_returned_too(w, xs, ys, mask, key):
    released = noisy(key, clipped_sum(w, xs, ys, mask), Z * C)
    return released, Z * C * dp.random.normal(key, (4,))


@refused("without noise")
def noise_by_hand(w, xs, ys, mask, key):
    """The tails of jax.random.normal end at 5.4 standard deviations."""
    xi = jax.random.normal(key, (3,))
    return clipped_sum(w, xs, ys, mask)["a"] + Z * C * xi, xi


def gaussian_mechanism(key, tree, stddev):
    return tree


@refused("without noise")
def a_function_of_that_name(w, xs, ys, mask, key):
    return jax.jit(gaussian_mechanism, static_argnums=2)(key, clipped_sum(w, xs, ys, mask), Z * C)


@refused("not secret")
def seed_in_the_program(w, xs, ys, mask, key):
    return noisy(dp.random.key(3), clipped_sum(w, xs, ys, mask), Z * C)


@refused("not secret")
def seed_made_while_it_runs(w, xs, ys, mask, key):
    return noisy(jax.random.key(3), clipped_sum(w, xs, ys, mask), Z * C)


@refused("not known to be above zero|known multiple")
def noise_of_unknown_size(w, xs, ys, mask, key):
    return noisy(key, clipped_sum(w, xs, ys, mask), jnp.exp(w["b"]))


@refused("held as bfloat16")
def sum_in_bfloat16(w, xs, ys, mask, key):
    s = dp.sum_records(dp.clip_records(xs, C), mask).astype(jnp.bfloat16)
    return noisy(key, s.astype(jnp.float32), Z * C)


@refused("place")
def place_in_a_batch(w, xs, ys, mask, key):
    """Leaving a record out moves all those behind it: each gets another weight."""
    draw, noise = jax.random.split(key)
    (bx, bm), drawn = dp.poisson_subsample(draw, (xs, mask), RATE, CAPACITY)
    rows = dp.clip_records(bx, C) * (jnp.arange(CAPACITY) / CAPACITY)[:, None]
    return noisy(noise, dp.sum_records(rows, bm & drawn), Z * C)


@refused("row by row|without a bound|place")
def batch_released_row_by_row(w, xs, ys, mask, key):
    draw, noise = jax.random.split(key)
    (bx, bm), drawn = dp.poisson_subsample(draw, (xs, mask), RATE, CAPACITY)
    return noisy(noise, keep(bm & drawn, dp.clip_records(bx, C)), Z * C)


@refused("padding rows")
def padding_sampled_as_if_real(w, xs, ys, mask, key):
    draw, noise = jax.random.split(key)
    (bx, by), drawn = dp.poisson_subsample(draw, (xs, ys), RATE, CAPACITY)
    return noisy(noise, clipped_sum(w, bx, by, drawn), Z * C)


@refused("row|record")
def pairs_of_records(w, xs, ys, mask, key):
    rows = (xs[:, None, :] - xs[None, :, :]).reshape(N * N, -1)
    return noisy(key, dp.clip_records(rows, C).sum(0), Z * C)


@refused("record|row")
def sorted_records(w, xs, ys, mask, key):
    return noisy(key, dp.sum_records(dp.clip_records(jnp.sort(xs, 0) * xs, C), mask), Z * C)


@refused("while loop .* release")
def unknown_number_of_releases(w, xs, ys, mask, key):
    def turn(state):
        w, key = state
        key, own = jax.random.split(key)
        return jax.tree.map(jnp.add, w, noisy(own, clipped_sum(w, xs, ys, mask), Z * C)), key

    return jax.lax.while_loop(lambda s: s[0]["b"] < 1, turn, (w, key))[0]


@refused("grows with each iteration|without a bound|no bound")
def sums_that_double(w, xs, ys, mask, key):
    s = clipped_sum(w, xs, ys, mask)
    s = jax.lax.fori_loop(0, 3, lambda i, s: jax.tree.map(lambda x: 2 * x, s), s)
    return noisy(key, s, Z * C)


@refused("different iterations of a loop")
def the_record_before(w, xs, ys, mask, key):
    """Each row less the one before: a record is in two of them."""

    def turn(before, row):
        x, real = row
        return x, jnp.where(real, dp.clip_records((x - before)[None], C)[0], 0.0)

    _, rows = jax.lax.scan(turn, jnp.zeros(3), (xs, mask))
    return noisy(key, rows.sum(0), Z * C)


@refused("leave the iteration|different|no bound|record")
def the_batch_before(w, xs, ys, mask, key):
    def turn(before, key):
        draw, noise = jax.random.split(key)
        (bx, bm), drawn = dp.poisson_subsample(draw, (xs, mask), RATE, CAPACITY)
        rows = dp.clip_records(bx - before, C)
        return bx, noisy(noise, dp.sum_records(rows, bm & drawn), Z * C)

    return jax.lax.scan(turn, jnp.zeros((CAPACITY, 3)), jax.random.split(key, 3))[1]


@refused("different iterations")
def a_sum_handed_on(w, xs, ys, mask, key):
    """The sum of a batch is released in the turn after the one that drew it."""

    def turn(before, key):
        draw, noise = jax.random.split(key)
        (bx, bm), drawn = dp.poisson_subsample(draw, (xs, mask), RATE, CAPACITY)
        return dp.sum_records(dp.clip_records(bx, C), bm & drawn), noisy(noise, before, Z * C)

    return jax.lax.scan(turn, jnp.zeros(3), jax.random.split(key, 3))[1]


@refused("grows with each iteration|different iterations")
def weights_that_fade_over_a_sample(w, xs, ys, mask, key):
    draw, noise = jax.random.split(key)
    (bx, bm), drawn = dp.poisson_subsample(draw, (xs, mask), RATE, CAPACITY)
    rows = jnp.where((bm & drawn)[:, None], dp.clip_records(bx, C), 0.0)
    total, _ = jax.lax.scan(lambda c, x: (0.5 * c + x, None), jnp.zeros(3), rows)
    return noisy(noise, total, Z * C)


@refused("grows with each iteration|different iterations")
def a_clock_over_a_sample(w, xs, ys, mask, key):
    draw, noise = jax.random.split(key)
    (bx, bm), drawn = dp.poisson_subsample(draw, (xs, mask), RATE, CAPACITY)
    rows = jnp.where((bm & drawn)[:, None], dp.clip_records(bx, C), 0.0)

    def turn(state, row):
        total, time = state
        return (total + jnp.cos(time) * row, time + 1.0), None

    (total, _), _ = jax.lax.scan(turn, (jnp.zeros(3), 0.0), rows)
    return noisy(noise, total, Z * C)


@refused("row|record|no bound")
def a_mask_out_of_step(w, xs, ys, mask, key):
    rows = jnp.where(mask[::-1, None], dp.clip_records(xs, C), 0.0)
    return noisy(key, rows.sum(0), Z * C)


@refused("no bound|wrap around")
def a_count_that_wraps_around(w, xs, ys, mask, key):
    return noisy(key, (mask.sum() * 2**30).astype(jnp.float32), 10.0)


@refused("rounding")
def an_offset_that_drowns_the_sum(w, xs, ys, mask, key):
    s = dp.sum_records(dp.clip_records(xs, C), mask)
    return noisy(key, (s + 1e20) - 1e20, Z * C)


@refused("not a primitive of JAX")
def another_primitive_of_that_name(w, xs, ys, mask, key):
    from jax.extend.core import Primitive

    fake = Primitive("gaussian_mechanism")
    fake.def_abstract_eval(lambda x: x)
    fake.def_impl(lambda x: x)
    return fake.bind(clipped_sum(w, xs, ys, mask)["a"])


@pytest.mark.parametrize(("step", "says"), REFUSED)
def test_refused(step, says):
    with pytest.raises(dp.PrivacyError) as caught:
        certify(step)
    assert re.search(says, caught.value.rule, re.IGNORECASE), caught.value.rule
    assert caught.value.remedy


def z_without_c(w, xs, ys, mask, key):
    return noisy(key, clipped_sum(w, xs, ys, mask), Z)


def noise_divided_but_not_the_sum(w, xs, ys, mask, key):
    return noisy(key, clipped_sum(w, xs, ys, mask), Z * C / N)


def each_leaf_with_all_of_c(w, xs, ys, mask, key):
    g = {k: dp.clip_records(x, C) for k, x in gradients(w, xs, ys).items()}
    return noisy(key, dp.sum_records(g, mask), Z * C)


def padding_not_zeroed(w, xs, ys, mask, key):
    return noisy(key, tree_sum(dp.clip_records(gradients(w, xs, ys), C)), Z * C)


def masked_before_clipping(w, xs, ys, mask, key):
    """A row of zeros has a gradient, too."""
    return noisy(
        key, tree_sum(dp.clip_records(gradients(w, keep(mask, xs), keep(mask, ys)), C)), Z * C
    )


def aggregate_clipped(w, xs, ys, mask, key):
    s = tree_sum(keep(mask, gradients(w, xs, ys)))
    s = jax.tree.map(lambda x: x[0], dp.clip_records(jax.tree.map(lambda x: x[None], s), C))
    return noisy(key, s, Z * C)


@pytest.mark.parametrize(
    ("step", "z"),
    [
        (z_without_c, Z / C),
        (noise_divided_but_not_the_sum, Z / N),
        (each_leaf_with_all_of_c, Z / 2**0.5),
        (padding_not_zeroed, Z / 2),
        (masked_before_clipping, Z / 2),
        (aggregate_clipped, Z / 2),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_mismatch(step, z):
    """Private, but less than was claimed."""
    assert certify(step).event.noise_multiplier == pytest.approx(z, rel=1e-6)
    with pytest.raises(dp.PrivacyError, match="does more than was declared") as caught:
        certify(step, expect=GaussianDpEvent(Z))
    if step is padding_not_zeroed:
        assert "2C, since rows without a record are not exactly zero" in str(caught.value)


def test_no_noise_at_all():
    with pytest.raises(
        dp.PrivacyError, match="adds no noise: gaussian_mechanism: stddev is 0"
    ) as caught:
        certify(
            lambda w, xs, ys, mask, key: noisy(key, clipped_sum(w, xs, ys, mask), 0.0 * C),
            expect=GaussianDpEvent(Z),
        )
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(dp.PrivacyError, match="adds no noise: laplace_mechanism: scale is 0"):
        certify(
            lambda w, xs, ys, mask, key: dp.laplace_mechanism(
                key, clipped_sum(w, xs, ys, mask), 0.0
            )
        )
    with pytest.raises(ValueError, match="must be positive") as caught:
        certify(lambda w, xs, ys, mask, key: noisy(key, clipped_sum(w, xs, ys, mask), -1.0))
    assert not isinstance(caught.value, dp.PrivacyError)
    with pytest.raises(dp.PrivacyError, match="not known to be above zero"):
        certify(
            lambda w, xs, ys, mask, key: noisy(
                key, clipped_sum(w, xs, ys, mask), jnp.zeros(()) * w["b"] * 0
            )
        )


def test_a_claim_of_amplification_without_sampling():
    with pytest.raises(dp.PrivacyError, match="does more than was declared"):
        certify(
            lambda w, xs, ys, mask, key: noisy(key, clipped_sum(w, xs, ys, mask), Z * C),
            expect=PoissonSampledDpEvent(0.1, GaussianDpEvent(Z)),
        )


def test_without_a_mask_a_record_is_replaced():
    def step(w, xs, ys, key):
        return noisy(key, clipped_sum(w, xs, ys, jnp.ones(N, bool)), Z * C)

    assert dp.certify(step, W, X, Y, KEY, records=(1, 2)).event.noise_multiplier == pytest.approx(
        Z / 2
    )
    event = dp.certify(step, W, X, Y, KEY, records=(1, 2), relation=dp.Relation.REPLACE_ONE).event
    assert event.noise_multiplier == pytest.approx(Z)


def test_records_captured_by_the_function():
    def step(w, xs, ys, mask, key):
        return noisy(key, clipped_sum(w, xs, ys, mask), Z * C), X.sum(0)

    with pytest.raises(dp.PrivacyError, match="holds the records as a constant"):
        certify(step)


def test_a_table_with_holes_or_its_mask_captured_by_the_function():
    holes = X.at[0, 0].set(jnp.nan)
    for constant in holes, M:

        def step(w, xs, ys, mask, key, constant=constant):
            return noisy(key, clipped_sum(w, xs, ys, mask), Z * C), jnp.where(
                constant, 1.0, 0.0
            ).sum()

        with pytest.raises(dp.PrivacyError, match="holds the records as a constant"):
            dp.certify(step, W, holes, Y, M, KEY, records=(1, 2), mask=3)


def test_a_function_that_is_not_pure():
    count = iter(range(10))

    def step(w, xs, ys, mask, key):
        return noisy(key, clipped_sum(w, xs + next(count), ys, mask), Z * C)

    with pytest.raises(dp.PrivacyError, match="differs each time"):
        certify(step)


def test_the_error_names_output_lines_rule_and_remedy():
    with pytest.raises(dp.PrivacyError) as caught:
        certify(lambda w, xs, ys, mask, key: {"new": no_clip(w, xs, ys, mask, key)})
    error = caught.value
    assert error.output == "result['new']['a']"
    assert error.chain[0] == "argument 1, xs (the records)"
    assert any("programs.py" in line for line in error.chain)
    assert any("test_suite_refused.py" in line for line in error.chain)
    assert "dp.clip_records" in error.remedy
    assert M.shape == (N,)
    assert Y.shape == (N,)
