"""Programs that are private, and the event that each must get. z is the noise multiplier, q the rate, C = 2."""

import functools
import math

import attr
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

import discreet as dp
from discreet import mechanisms
from discreet.privacy.mechanisms import add_noise
from discreet.privacy.sampling import PoissonSampling

from .programs import KEY, RATE, C, D, M, N, W, X, Y, certify, clipped_sum, gradients, loss, noisy

Z = 1.5
CAPACITY = PoissonSampling(RATE).capacity(N)
REPLACE = dp.Relation.REPLACE_ONE
GAUSSIAN = GaussianDpEvent(Z)
SAMPLED = PoissonSampledDpEvent(RATE, GAUSSIAN)


def like(a: DpEvent, b: DpEvent, tolerance=2e-5):
    """The same event, up to rounding of its numbers."""
    assert type(a) is type(b), (a, b)
    for field in attr.fields(type(a)):
        value, other = getattr(a, field.name), getattr(b, field.name)
        if isinstance(value, DpEvent):
            like(value, other)
        elif isinstance(value, list | tuple):
            assert len(value) == len(other), (a, b)
            for x, y in zip(value, other, strict=True):
                like(x, y)
        else:
            assert value == pytest.approx(other, rel=tolerance), (a, b)


def test_events_that_differ_are_not_alike():
    for event in (
        GAUSSIAN,
        SAMPLED,
        ComposedDpEvent([SAMPLED, GAUSSIAN]),
        SelfComposedDpEvent(GAUSSIAN, 2),
    ):
        like(event, event)
    for other in (
        ComposedDpEvent([GaussianDpEvent(1.001 * Z), GAUSSIAN]),
        ComposedDpEvent([GAUSSIAN, LaplaceDpEvent(Z)]),
        ComposedDpEvent([GAUSSIAN]),
    ):
        with pytest.raises(AssertionError):
            like(ComposedDpEvent([GAUSSIAN, GAUSSIAN]), other)


def plain(w, xs, ys, mask, key):
    return noisy(key, clipped_sum(w, xs, ys, mask), Z * C)


def scaled_before(w, xs, ys, mask, key):
    s = jax.tree.map(lambda x: x / 7.0, clipped_sum(w, xs, ys, mask))
    return noisy(key, s, Z * C / 7.0)


def scaled_after(w, xs, ys, mask, key):
    return jax.tree.map(lambda x: x * 0.1, noisy(key, clipped_sum(w, xs, ys, mask), Z * C))


def sum_by_where(w, xs, ys, mask, key):
    g = dp.clip_records(gradients(w, xs, ys), C)
    s = jax.tree.map(lambda x: jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, 0).sum(0), g)
    return noisy(key, s, Z * C)


def sum_by_product_with_the_mask(w, xs, ys, mask, key):
    """Sound after clipping, which leaves no NaN."""
    g = dp.clip_records(gradients(w, xs, ys), C)
    s = jax.tree.map(lambda x: jnp.einsum("r,r...->...", mask.astype(jnp.float32), x), g)
    return noisy(key, s, Z * C)


def ravelled(w, xs, ys, mask, key):
    flat, back = jax.flatten_util.ravel_pytree(clipped_sum(w, xs, ys, mask))
    return back(noisy(key, flat, Z * C))


def leaf_by_leaf(w, xs, ys, mask, key):
    """One clipping, noise on each leaf by a mechanism of its own: jointly one Gaussian."""
    s = clipped_sum(w, xs, ys, mask)
    return {
        name: noisy(k, s[name], Z * C) for name, k in zip(s, jax.random.split(key, 2), strict=True)
    }


def traced_norm(w, xs, ys, mask, key):
    """C moves, the noise with it."""
    norm = jnp.exp(w["b"])
    return noisy(key, clipped_sum(w, xs, ys, mask, norm), Z * norm)


def leaves_clipped_separately(w, xs, ys, mask, key):
    g, norms = gradients(w, xs, ys), {"a": 3.0, "b": 4.0}
    s = {name: dp.sum_records(dp.clip_records(g[name], norms[name]), mask) for name in g}
    return noisy(key, s, Z * 5.0)


def microbatches(w, xs, ys, mask, key):
    def one(total, batch):
        return jax.tree.map(jnp.add, total, clipped_sum(w, *batch)), None

    batches = jax.tree.map(lambda x: x.reshape(4, 6, *x.shape[1:]), (xs, ys, mask))
    total, _ = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, w), batches)
    return noisy(key, total, Z * C)


def microbatches_written_out(w, xs, ys, mask, key):
    total = jax.tree.map(jnp.zeros_like, w)
    for i in range(0, N, 6):
        part = jax.tree.map(lambda x, i=i: x[i : i + 6], (xs, ys, mask))
        total = jax.tree.map(jnp.add, total, clipped_sum(w, *part))
    return noisy(key, total, Z * C)


def second_moments(w, xs, ys, mask, key):
    rows = jnp.where(mask[:, None], dp.clip_records(xs, C), 0.0)
    return noisy(key, rows.T @ rows, Z * C * C)


def record_by_record(w, xs, ys, mask, key):
    def one(total, record):
        x, y, real = record
        g = dp.clip_records(jax.tree.map(lambda g: g[None], jax.grad(loss)(w, x, y)), C)
        return jax.tree.map(lambda t, g: t + jnp.where(real, g[0], 0), total, g), None

    total, _ = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, w), (xs, ys, mask))
    return noisy(key, total, Z * C)


def with_rematerialisation(w, xs, ys, mask, key):
    g = jax.vmap(jax.grad(jax.checkpoint(loss)), (None, 0, 0))(w, xs, ys)
    return noisy(key, dp.sum_records(dp.clip_records(g, C), mask), Z * C)


def behind_a_barrier(w, xs, ys, mask, key):
    g, mask = jax.lax.optimization_barrier((dp.clip_records(gradients(w, xs, ys), C), mask))
    s, scale = jax.lax.optimization_barrier((dp.sum_records(g, mask), Z * C))
    return noisy(key, s, scale)


def with_a_public_branch(w, xs, ys, mask, key):
    s = clipped_sum(w, xs, ys, mask)
    return jax.lax.cond(
        w["b"] > 0, lambda: noisy(key, s, Z * C), lambda: jax.tree.map(jnp.zeros_like, s)
    )


def the_unused_key_returned(w, xs, ys, mask, key):
    key, own = jax.random.split(key)
    return plain(w, xs, ys, mask, own), key


ONE_GAUSSIAN = [
    plain,
    scaled_before,
    scaled_after,
    sum_by_where,
    sum_by_product_with_the_mask,
    ravelled,
    leaf_by_leaf,
    traced_norm,
    leaves_clipped_separately,
    microbatches,
    microbatches_written_out,
    second_moments,
    record_by_record,
    with_rematerialisation,
    behind_a_barrier,
    with_a_public_branch,
    the_unused_key_returned,
]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(f, marks=[pytest.mark.essential] * (f in (plain, microbatches)))
        for f in ONE_GAUSSIAN
    ],
    ids=lambda f: f.__name__,
)
def test_one_gaussian(step):
    certificate = certify(step, expect=GAUSSIAN)
    like(certificate.event, GAUSSIAN)
    like(certify(step, relation=REPLACE).event, GAUSSIAN)
    expected = jax.jit(step)(W, X, Y, M, KEY)
    jax.tree.map(lambda a, b: a.dtype == b.dtype, certificate(W, X, Y, M, KEY), expected)


def adam_loop(draw):
    optim = optax.adam(0.01)

    def step(w, xs, ys, mask, key):
        def turn(state, key):
            w, inner = state
            update, inner = optim.update(draw(w, xs, ys, mask, key), inner)
            return (optax.apply_updates(w, update), inner), w["b"]

        (w, inner), trace = jax.lax.scan(turn, (w, optim.init(w)), jax.random.split(key, 10))
        return w, inner, trace

    return step


def from_a_batch(w, xs, ys, mask, key, release=plain):
    draw, noise = jax.random.split(key)
    (bx, by, bm), drawn = dp.poisson_subsample(draw, (xs, ys, mask), RATE, CAPACITY)
    return release(w, bx, by, bm & drawn, noise)


def test_steps_of_a_loop_compose():
    like(certify(adam_loop(plain)).event, SelfComposedDpEvent(GAUSSIAN, 10))


def test_sampled_steps_compose():
    certificate = certify(adam_loop(from_a_batch))
    like(certificate.event, SelfComposedDpEvent(SAMPLED, 10))
    assert certificate.epsilon(1e-5) > 0


def test_langevin_dynamics():
    """DP-SGLD (Wang, Fienberg, Smola 2015): where Langevin's noise is more than privacy needs, the rest is added afterwards."""

    def step(w, xs, ys, mask, key):
        def turn(w, now):
            i, key = now
            rate, (release, own) = 0.1 * (1.0 + i) ** -0.33, jax.random.split(key)
            gradient, back = jax.flatten_util.ravel_pytree(from_a_batch(w, xs, ys, mask, release))
            missing = jnp.sqrt(jnp.maximum(0.0, RATE**2 / rate - (Z * C) ** 2))
            gradient += missing * jax.random.normal(own, gradient.shape)
            w = jax.tree.map(lambda x, g: x - rate * (x + g / RATE), w, back(gradient))
            return w, w

        return jax.lax.scan(turn, w, (jnp.arange(10.0), jax.random.split(key, 10)))[1]

    like(certify(step).event, SelfComposedDpEvent(SAMPLED, 10))


def test_the_slack_of_every_draw_and_release_counts():
    sampling, count = PoissonSampling(0.05), 2000
    slack, rows = sampling.slack_per_step(count), jnp.ones(count)

    def step(xs, key):
        def turn(w, key):
            draw, noise = jax.random.split(key)
            batch, real = dp.poisson_subsample(draw, xs, 0.05, sampling.capacity(count))
            return w + noisy(noise, dp.sum_records(dp.clip_records(batch, C), real), Z * C), None

        return jax.lax.scan(turn, 0.0, jax.random.split(key, 10))[0]

    assert slack > 0
    assert mechanisms.GAUSSIAN.slack > 0
    found = dp.certify(step, rows, KEY, records=0).slack
    assert found == pytest.approx(10 * (slack + mechanisms.GAUSSIAN.slack), rel=1e-9, abs=0)


@pytest.mark.parametrize(
    "spelling", ["carried", "folded", "indexed", "derived first", "counted within"]
)
def test_ways_to_hand_out_keys(spelling):
    def step(w, xs, ys, mask, key):
        def carried(_, state):
            w, key = state
            key, own = jax.random.split(key)
            return jax.tree.map(jnp.add, w, plain(w, xs, ys, mask, own)), key

        def folded(i, w):
            return jax.tree.map(jnp.add, w, plain(w, xs, ys, mask, jax.random.fold_in(key, i)))

        keys = jax.random.split(key, 5) if spelling == "indexed" else None

        def indexed(i, w):
            return jax.tree.map(jnp.add, w, plain(w, xs, ys, mask, keys[i]))

        @jax.jit
        def counted_within(w, i):
            return i + 1, folded(i, w)

        if spelling == "counted within":
            return jax.lax.scan(
                lambda c, _: (counted_within(c[1], c[0]), None), (0, w), None, length=5
            )[0][1]
        if spelling == "carried":
            return jax.lax.fori_loop(0, 5, carried, (w, key))[0]
        if spelling == "derived first":
            return jax.lax.fori_loop(0, 5, carried, (w, jax.random.fold_in(key, 3)))[0]
        return jax.lax.fori_loop(0, 5, folded if spelling == "folded" else indexed, w)

    like(certify(step).event, SelfComposedDpEvent(GAUSSIAN, 5))


def test_a_poisson_batch():
    for relation in dp.Relation.ADD_OR_REMOVE_ONE, REPLACE:
        like(certify(from_a_batch, relation=relation).event, SAMPLED)

    def unmasked(w, xs, ys, key):
        draw, noise = jax.random.split(key)
        (bx, by), drawn = dp.poisson_subsample(draw, (xs, ys), RATE, CAPACITY)
        return plain(w, bx, by, drawn, noise)

    like(dp.certify(unmasked, W, X, Y, KEY, records=(1, 2)).event, SAMPLED)


def test_microbatches_of_a_poisson_batch():
    capacity = 24

    def step(w, xs, ys, mask, key):
        draw, noise = jax.random.split(key)
        (bx, by, bm), drawn = dp.poisson_subsample(draw, (xs, ys, mask), RATE, capacity)
        return microbatches(w, bx, by, bm & drawn, noise)

    like(certify(step).event, SAMPLED)


def test_two_releases_from_one_batch_are_sampled_once():
    def twice(w, xs, ys, mask, key):
        first, second = jax.random.split(key)
        w = plain(w, xs, ys, mask, first)
        return plain(w, xs, ys, mask, second)

    together = GaussianDpEvent(Z / np.sqrt(2))
    like(
        certify(lambda *a: from_a_batch(*a, release=twice)).event,
        PoissonSampledDpEvent(RATE, together),
    )
    like(certify(twice).event, together)


def test_of_public_branches_the_worse_counts():
    def step(w, xs, ys, mask, key):
        first, second = jax.random.split(key)
        w = plain(w, xs, ys, mask, first)
        s = clipped_sum(w, xs, ys, mask)
        return jax.lax.cond(
            w["b"] > 0, lambda: noisy(second, s, Z * C), lambda: noisy(second, s, 4 * Z * C)
        )

    like(certify(step).event, ComposedDpEvent([GAUSSIAN, GAUSSIAN]))


def test_branches_of_which_another_releases():
    """From a batch drawn before, and by another mechanism: all that a branch may do counts."""

    def sampled(w, xs, ys, mask, key):
        draw, noise = jax.random.split(key)
        (bx, bm), drawn = dp.poisson_subsample(draw, (xs, mask), RATE, CAPACITY)
        s = dp.sum_records(dp.clip_records(bx, C), bm & drawn)
        return jax.lax.cond(w["b"] > 0, lambda: noisy(noise, s, Z * C), lambda: jnp.zeros(D))

    def either(w, xs, ys, mask, key):
        s = jnp.where(mask, 1.0, 0.0).sum()
        return jax.lax.cond(
            w["b"] > 0, lambda: noisy(key, s, Z), lambda: dp.laplace_mechanism(key, s, Z)
        )

    def again(w, xs, ys, mask, key):
        """After another release of the same batch: one of the branches counts beside it, not both."""
        draw, *keys = jax.random.split(key, 3)
        (bx, bm), drawn = dp.poisson_subsample(draw, (xs, mask), RATE, CAPACITY)
        s = dp.sum_records(dp.clip_records(bx, C), bm & drawn)
        first = noisy(keys[0], s, Z * C)
        return first, jax.lax.cond(
            w["b"] > 0, lambda: noisy(keys[1], s, Z * C), lambda: noisy(keys[1], s, 2 * Z * C)
        )

    like(certify(again).event, PoissonSampledDpEvent(RATE, GaussianDpEvent(Z / np.sqrt(2))))
    like(certify(sampled).event, SAMPLED)
    like(certify(either).event, ComposedDpEvent([LaplaceDpEvent(Z), GAUSSIAN]))


def test_a_batch_of_fixed_size():
    def step(w, xs, ys, key):
        draw, noise = jax.random.split(key)
        bx, by = dp.subsample_without_replacement(draw, (xs, ys), 6)
        return plain(w, bx, by, jnp.ones(6, bool), noise)

    certificate = dp.certify(step, W, X, Y, KEY, records=(1, 2), relation=REPLACE)
    like(certificate.event, SampledWithoutReplacementDpEvent(N, 6, GAUSSIAN))
    with pytest.raises(
        dp.PrivacyError, match="no sound accounting for one record added or removed"
    ):
        dp.certify(step, W, X, Y, KEY, records=(1, 2))


def test_batch_and_whole_table():
    def step(w, xs, ys, mask, key):
        first, second = jax.random.split(key)
        return from_a_batch(w, xs, ys, mask, first), plain(w, xs, ys, mask, second)

    like(certify(step).event, ComposedDpEvent([SAMPLED, GAUSSIAN]))


def test_disjoint_parts_cost_what_one_costs():
    def step(w, xs, ys, mask, key):
        parts = jax.tree.map(lambda x: x.reshape(4, 6, *x.shape[1:]), (xs, ys, mask))

        def turn(w, part):
            *rows, key = part
            return plain(w, *rows, key), None

        return jax.lax.scan(turn, w, (*parts, jax.random.split(key, 4)))[0]

    like(certify(step).event, GAUSSIAN)


def test_a_noisy_count_and_a_clipped_mean():
    """Counting and jnp.clip bound by themselves; d numbers within B have an L2 norm of at most B sqrt(d)."""

    def step(w, xs, ys, mask, key):
        first, second = jax.random.split(key)
        safe = jnp.where(jnp.isfinite(xs), xs, 0.0)
        rows = jnp.where(mask[:, None], jnp.clip(safe, -0.5, 0.5), 0.0)
        return noisy(first, mask.sum().astype(jnp.float32), 2.0), noisy(second, rows.sum(0), 4.0)

    precision = (1 / 2.0) ** 2 + D * (0.5 / 4.0) ** 2
    like(certify(step).event, GaussianDpEvent(precision**-0.5))


@pytest.mark.parametrize("guard", ["before", "after", "in the mask", "all of a record"])
def test_values_that_are_no_numbers_are_selected_away(guard):
    def step(w, xs, ys, mask, key):
        rows = jnp.clip(xs, -0.5, 0.5)
        if guard == "before":
            rows = jnp.clip(jnp.where(jnp.isfinite(xs), xs, 0.0), -0.5, 0.5)
        elif guard == "after":
            rows = jnp.where(jnp.isfinite(xs), rows, 0.0)
        elif guard == "all of a record":
            mask = mask & jnp.all(jnp.isfinite(xs), axis=1)
        else:
            rows = jnp.where(mask[:, None] & jnp.isfinite(xs), rows, 0.0)
        return noisy(key, jnp.where(mask[:, None], rows, 0.0).sum(0), Z * 0.5 * D**0.5)

    like(certify(step).event, GAUSSIAN)


def test_laplace_noise_needs_the_l1_norm():
    def step(w, xs, ys, mask, key):
        count = jnp.where(mask, 1.0, 0.0).sum()
        return dp.laplace_mechanism(key, count, 3.0)

    def vector(w, xs, ys, mask, key):
        return dp.laplace_mechanism(key, clipped_sum(w, xs, ys, mask), Z * C * 2.0)

    def clipped(w, xs, ys, mask, key, order=1):
        rows = dp.clip_records({"x": xs, "y": ys[:, None]}, C, order=order)
        return dp.laplace_mechanism(key, dp.sum_records(rows["x"], mask), Z * C)

    like(certify(step).event, LaplaceDpEvent(3.0))
    like(certify(vector).event, LaplaceDpEvent(Z * 2.0 / np.sqrt(D + 1)))
    like(certify(clipped).event, LaplaceDpEvent(Z))
    # An L2 bound taken for one in L1.
    with pytest.raises(dp.PrivacyError, match="more than was declared"):
        certify(lambda *x: clipped(*x, order=2), expect=LaplaceDpEvent(Z))


def test_numpyro_elbo_of_a_record():
    numpyro = pytest.importorskip("numpyro")
    from numpyro import distributions as dist
    from numpyro.infer import Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    def model(xs, ys=None):
        weight = numpyro.sample("weight", dist.Normal(0, 1).expand([D]).to_event(1))
        with numpyro.plate("data", xs.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=xs @ weight), obs=ys)

    guide = AutoNormal(model)
    labels = (Y > 0).astype(jnp.float32)
    numpyro.handlers.seed(guide, jax.random.key(0))(X[:1], labels[:1])
    psi = {"weight_auto_loc": jnp.zeros(D), "weight_auto_scale": jnp.full(D, 0.1)}

    def step(psi, xs, ys, mask, key):
        draw, noise = jax.random.split(key)
        words = jax.random.bits(draw, (2,), jnp.uint32)

        def negative_elbo(psi, x, y):
            own = jax.random.wrap_key_data(words, impl="threefry2x32")
            return Trace_ELBO().loss(own, psi, model, guide, x[None], y[None])

        g = jax.vmap(jax.grad(negative_elbo), (None, 0, 0))(psi, xs, ys)
        g = dp.clip_records(g, C)
        s = jax.tree.map(lambda x: jnp.where(mask[:, None], x, 0).sum(0), g)
        return noisy(noise, s, Z * C)

    like(dp.certify(step, psi, X, labels, M, KEY, records=(1, 2), mask=3).event, GAUSSIAN)


@pytest.mark.parametrize("kind", ["sum", "rows"])
@pytest.mark.parametrize(
    ("relation", "sampled", "z"),
    [(dp.Relation.ADD_OR_REMOVE_ONE, False, Z / 2), (REPLACE, False, Z), (REPLACE, True, Z / 2)],
)
def test_what_is_not_zero_without_a_record(kind, relation, sampled, z):
    """A sum that is clipped itself, and rows that padding has as well: something of length C leaves where a record comes."""

    def step(w, xs, ys, mask, key):
        draw, noise = jax.random.split(key)
        if sampled:
            xs, _ = dp.poisson_subsample(draw, xs, RATE, CAPACITY)
        if kind == "sum":
            return noisy(noise, dp.clip_records(xs.sum(0)[None], C)[0], Z * C)
        return noisy(noise, dp.clip_records(xs + 1.0, C).sum(0), Z * C)

    event = GaussianDpEvent(z)
    like(
        certify(step, relation=relation).event,
        PoissonSampledDpEvent(RATE, event) if sampled else event,
    )


def test_leaves_of_one_clipping_that_are_released_apart_pay_for_their_rounding():
    """A record that shares its bound between two releases has both rounded, and the noise of each pays for one of them."""

    def step(x, y, mask, first, second):
        a, b = dp.clip_records((x, y), C)
        a, b = dp.sum_records(a, mask), dp.sum_records(b, mask)
        most = {"multiplier": Z, "levels": 2}
        return add_noise(mechanisms.GAUSSIAN, first, a, Z * C, **most), add_noise(
            mechanisms.GAUSSIAN, second, b, Z * C, **most
        )

    def both(x, y, mask, first, second):
        del second
        a, b = (dp.sum_records(v, mask) for v in dp.clip_records((x, y), C))
        return add_noise(mechanisms.GAUSSIAN, first, (a, b), Z * C, multiplier=Z, levels=2)

    dim = 10_000
    rows, mask = jnp.ones((2, dim)), jnp.ones(2, bool)
    apart, together = (
        dp.certify(f, rows, rows, mask, *jax.random.split(KEY), records=(0, 1), mask=2)
        for f in (step, both)
    )
    assert together.event == GaussianDpEvent(Z)
    cell = mechanisms.GAUSSIAN.cell(dim, Z, 2)
    # The worst record has half of its squared bound in each.
    worst = 2 * ((1 / (Z * math.sqrt(2)) + cell) / (1 + Z * cell)) ** 2
    assert (
        1 / Z**2
        < worst
        <= apart.event.noise_multiplier**-2
        <= 1 / Z**2 + 2 * (cell / (2 * Z) + cell**2) * (1 + 1e-9)
    )


def test_more_noise_than_the_grid_was_made_for_counts_as_less():
    """For one coordinate it is made for noise multipliers up to 2**17."""

    def multiplier_of(asked):
        def step(x, mask, key):
            return dp.gaussian_mechanism(key, dp.sum_records(dp.clip_records(x, 1.0), mask), asked)

        return dp.certify(
            step, jnp.ones((3, 1)), jnp.ones(3, bool), KEY, records=0, mask=1
        ).event.noise_multiplier

    assert multiplier_of(1e5) == pytest.approx(1e5, rel=1e-12)
    cell = mechanisms.GAUSSIAN.cell(1, 2.0**17, 3)
    assert multiplier_of(1e6) == pytest.approx((1 + 2.0**17 * cell) / (1e-6 + cell), rel=1e-9)
    assert multiplier_of(1e6) < 0.999 * 1e6


def test_noise_of_a_million_times_a_traced_norm_is_proved():
    """As in a fit with a small epsilon, whose C is a state."""

    def multiplier_of(asked):
        def step(x, mask, norm, key):
            total = dp.sum_records(dp.clip_records(x, norm), mask)
            return add_noise(mechanisms.GAUSSIAN, key, total, asked * norm, multiplier=asked)

        arguments = jnp.ones((3, 1)), jnp.ones(3, bool), jnp.ones(()), KEY
        return dp.certify(step, *arguments, records=0, mask=1).event.noise_multiplier

    assert multiplier_of(1e6) == pytest.approx(1e6, rel=1e-12)
    # A factor of a number that is unknown may leave float32's range, and so may the number.
    with pytest.raises(dp.PrivacyError, match="known multiple"):
        multiplier_of(1e8)


def test_laplace_noise_pays_for_its_grid_in_the_l1_norm():
    """For d coordinates it is made for noise multipliers up to 2**17 / d."""

    def multiplier_of(asked, dim):
        def step(x, mask, key):
            return dp.laplace_mechanism(
                key, dp.sum_records(dp.clip_records(x, 1.0), mask), asked * np.sqrt(dim)
            )

        certificate = dp.certify(
            step, jnp.ones((3, dim)), jnp.ones(3, bool), KEY, records=0, mask=1
        )
        assert not any("last bits" in x for x in certificate.assumptions)
        assert certificate.slack == 0
        return certificate.event.noise_multiplier

    assert multiplier_of(1e3, 100) == pytest.approx(1e3, rel=1e-12)
    most = mechanisms.LAPLACE.most_multiplier(100)
    cell = mechanisms.LAPLACE.cell(100, most, 3)
    assert multiplier_of(1e5, 100) == pytest.approx((1 + most * cell) / (1e-5 + cell), rel=1e-9)


@pytest.mark.essential
def test_products_of_the_rows_of_one_record_are_bounded_by_the_norm_of_all_rows():
    """By Cauchy and Schwarz; a product with the rows of another record is not."""

    def step(x, mask, key, turn=False):
        kept = jnp.where(mask[:, None], dp.clip_records(x, C), 0.0).reshape(6, 2, 3)
        other = kept[::-1] if turn else kept
        return noisy(key, jnp.einsum("nri,nrj->ij", kept, other), Z * C**2)

    arguments = jnp.ones((6, 6)), jnp.ones(6, bool), KEY
    assert dp.certify(step, *arguments, records=0, mask=1).event.noise_multiplier == pytest.approx(
        Z
    )
    with pytest.raises(dp.PrivacyError):
        dp.certify(functools.partial(step, turn=True), *arguments, records=0, mask=1)


@pytest.mark.essential
def test_histograms_and_class_sums_cost_what_they_are():
    """A record goes to one place, or to three."""
    rows, mask, codes = jnp.ones((6, 3)), jnp.ones(6, bool), jnp.zeros(6, jnp.int32)

    def multiplier(total):
        def step(x, codes, mask, key):
            kept = jnp.where(mask[:, None], dp.clip_records(x, C), 0.0)
            return noisy(key, total(kept, codes, mask), Z * C)

        return dp.certify(
            step, rows, codes, mask, KEY, records=(0, 1), mask=2
        ).event.noise_multiplier

    classes, several = jnp.zeros((4, 3)), jnp.zeros(4)
    assert multiplier(lambda x, k, m: jax.ops.segment_sum(x, k, 4)) == pytest.approx(Z)
    assert multiplier(lambda x, k, m: classes.at[k].add(x)) == pytest.approx(Z)
    assert multiplier(lambda x, k, m: jnp.bincount(k, weights=C * m, length=4)) == pytest.approx(Z)
    # Absent records are sent where there is no bin; in the last bin, and where numbers beyond it
    # are clipped, they count.
    assert multiplier(
        lambda x, k, m: C * jnp.bincount(jnp.where(m, k, 4), length=4)
    ) == pytest.approx(Z)
    assert multiplier(lambda x, k, m: C * jnp.bincount(m * k + 4 * ~m, length=4)) == pytest.approx(
        Z
    )
    assert multiplier(lambda x, k, m: jnp.zeros(4).at[jnp.where(~m, 9, k)].add(C)) == pytest.approx(
        Z
    )
    assert multiplier(
        lambda x, k, m: C * jax.ops.segment_sum(jnp.ones(6), jnp.where(m, k, 4), 4)
    ) == pytest.approx(Z)
    # Of two places, one each: sqrt(2) apart.
    for seen in (
        lambda k, m: jnp.zeros(4).at[jnp.where(m, k, 3)].add(C),
        lambda k, m: jnp.zeros(4).at[jnp.where(m, k, -1)].add(C),  # the last
        lambda k, m: jnp.zeros(4).at[jnp.where(m, k, 4)].add(C, mode="clip"),
        lambda k, m: jnp.zeros(4).at[jnp.where(m & (k > 0), k, k + 4)].add(C),
        lambda k, m: C * jnp.bincount(jnp.where(m, k, -1), length=4),  # the first
        lambda k, m: C * jnp.bincount(jnp.where(m, k, 4), length=5),
    ):
        assert multiplier(lambda x, k, m, seen=seen: seen(k, m)) == pytest.approx(Z / 2**0.5)
    # Where it is the record that has no bin, only its padding counts.
    assert multiplier(lambda x, k, m: jnp.zeros(4).at[jnp.where(m, 4, k)].add(C)) == pytest.approx(
        Z
    )
    assert multiplier(lambda x, k, m: jax.nn.one_hot(k, 4).T @ x) == pytest.approx(Z)
    assert multiplier(
        lambda x, k, m: jnp.einsum("nk,nd->kd", jax.nn.one_hot(k, 4), x)
    ) == pytest.approx(Z)
    assert multiplier(lambda x, k, m: dp.sum_records(C * jax.nn.one_hot(k, 4), m)) == pytest.approx(
        Z
    )
    # What is not in the table counts as much as the public rows are long.
    assert multiplier(
        lambda x, k, m: dp.sum_records(dp.clip_records(jnp.ones(6), C), m)
    ) == pytest.approx(Z)
    # All of a record's three numbers may come to one place.
    assert multiplier(
        lambda x, k, m: several.at[k[:, None] + jnp.arange(3)].add(x)
    ) == pytest.approx(Z / math.sqrt(3))
    # Without a mask a record that is not there counts all the same, wherever its padding says.
    assert multiplier(lambda x, k, m: C * jax.ops.segment_sum(jnp.ones(6), k, 4)) == pytest.approx(
        Z / 2**0.5
    )
    # Each record's numbers at the places that all records choose.
    with pytest.raises(dp.PrivacyError, match="to places that other records can reach"):
        multiplier(
            lambda x, k, m: several.at[jnp.broadcast_to(k, (6, 6))].add(
                jnp.broadcast_to(x[:, :1], (6, 6))
            )
        )


def test_microbatches_cut_by_split_cost_what_one_batch_does():
    def step(x, mask, key):
        blocks = zip(jnp.split(x, 3), jnp.split(mask, 3), strict=True)
        return noisy(
            key,
            sum(dp.sum_records(dp.clip_records(*block[:1], C), block[1]) for block in blocks),
            Z * C,
        )

    def other_masks(x, mask, key):
        blocks = zip(jnp.split(x, 3), jnp.split(mask, 3)[::-1], strict=True)
        return noisy(
            key,
            sum(dp.sum_records(dp.clip_records(*block[:1], C), block[1]) for block in blocks),
            Z * C,
        )

    rows, mask = jnp.ones((6, 3)), jnp.ones(6, bool)
    assert dp.certify(step, rows, mask, KEY, records=0, mask=1).event == GaussianDpEvent(Z)
    with pytest.raises(dp.PrivacyError):
        dp.certify(other_masks, rows, mask, KEY, records=0, mask=1)


def test_a_gated_recurrent_loss_is_a_function_of_its_record():
    """To the rules the carry grows by one in each iteration, which makes it depend on no other record."""

    def loss(w, series):
        def cell(h, x):
            gate = jax.nn.sigmoid(x * w[0] + h * w[1])
            return (1 - gate) * jnp.tanh(x * w[2] + gate * h) + gate * h, None

        return jnp.square(jax.lax.scan(cell, 0.0, series)[0])

    def step(w, series, mask, key):
        found = jax.vmap(jax.grad(loss), (None, 0))(w, series)
        return noisy(key, dp.sum_records(dp.clip_records(found, C), mask), Z * C)

    given = jnp.ones(3), jnp.ones((5, 12)), jnp.ones(5, bool), KEY
    assert dp.certify(step, *given, records=1, mask=2).event == GaussianDpEvent(Z)


def test_rows_of_a_large_table_are_selected_by_its_mask():
    """More elements than the checker holds: zeros stay zeros, and ones are what an absent row would add."""
    rows, mask = np.zeros((3000, 3), np.float32), np.ones(3000, bool)

    def event(filler):
        def program(key, xs, mask):
            clipped = jnp.where(mask[:, None], dp.clip_records(xs, C), filler)
            return dp.gaussian_mechanism(key, clipped.sum(0), stddev=Z * C)

        return dp.certify(program, KEY, rows, mask, records=(1,), mask=2).event

    like(event(0.0), GAUSSIAN)
    assert event(1.0).noise_multiplier <= Z * C / (C + math.sqrt(3))
