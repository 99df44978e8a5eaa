"""Attacks by samples and parts, by fakes, and by what is done behind a curtain."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from jax import lax

import discreet as dp
from discreet._jax import marker

from .attacks import CAPACITY, Z, drawn, into, total
from .programs import KEY, RATE, C, N, X, certify, noisy

ATTACKS = []
attack = into(ATTACKS)


@attack("parts of a random sample, hidden behind the whole of it")
def parts_of_a_sample(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    rows, real = drawn(xs, mask, a)
    whole = dp.sum_records(rows, real)
    size = CAPACITY // 2
    batches = rows[: 2 * size].reshape(2, size, 3), real[: 2 * size].reshape(2, size)

    def turn(w, inputs):
        rows, real, key = inputs
        return w + noisy(key, dp.sum_records(rows, real) + 0.0 * whole, Z * C), None

    return lax.scan(turn, w["a"], (*batches, jax.random.split(b, 2)))[0]


@attack("row by row of a random sample, hidden behind the whole of it")
def rows_of_a_sample(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    rows, real = drawn(xs, mask, a)
    whole = dp.sum_records(rows, real)

    def turn(w, inputs):
        row, ok, key = inputs
        return w + noisy(key, jnp.where(ok, row, 0.0) + 0.0 * whole, Z * C), None

    return lax.scan(turn, w["a"], (rows, real, jax.random.split(b, CAPACITY)))[0]


@attack("clipped together with a sum over the whole table")
def clipped_with_another_batch(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    sample, table = dp.sum_records(*drawn(xs, mask, a)), total(xs, mask, 1e6)
    clipped = dp.clip_records({"a": sample[None], "b": table[None]}, C)
    return noisy(b, clipped["a"], 2 * Z * C)


@attack("a sample of a sample")
def sample_of_a_sample(w, xs, ys, mask, key):
    a, b, c = jax.random.split(key, 3)
    rows, real = drawn(xs, mask, a)
    rows, real = drawn(rows, real, b)
    return noisy(c, dp.sum_records(rows, real), Z * C)


@attack("rows that were mixed before")
def sample_of_mixed_rows(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    rows, real = drawn(xs - xs.mean(0), mask, a)
    return noisy(b, dp.sum_records(rows, real), Z * C)


@attack("the number of drawn records")
def sample_size_shown(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    rows, real = drawn(xs, mask, a)
    return noisy(b, dp.sum_records(rows, real), Z * C), real.sum()


@attack("divided by the number of drawn records")
def divided_by_the_sample_size(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    rows, real = drawn(xs, mask, a)
    return noisy(b, dp.sum_records(rows, real) / real.sum(), Z * C / CAPACITY)


@attack("a sample drawn in one branch, released outside")
def sample_out_of_a_branch(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    rows, real = lax.cond(
        w["b"] > 0,
        lambda: drawn(xs, mask, a),
        lambda: (jnp.zeros((CAPACITY, 3)), jnp.zeros(CAPACITY, bool)),
    )
    return noisy(b, dp.sum_records(rows, real), Z * C)


@attack("the sample of the first turn is kept")
def sample_kept(w, xs, ys, mask, key):
    def turn(state, inputs):
        rows, real = state
        i, key = inputs
        a, b = jax.random.split(key)
        rows, real = lax.cond(i == 0, lambda: drawn(xs, mask, a), lambda: (rows, real))
        return (rows, real), noisy(b, dp.sum_records(rows, real), Z * C)

    start = jnp.zeros((CAPACITY, 3)), jnp.zeros(CAPACITY, bool)
    return lax.scan(turn, start, (jnp.arange(3), jax.random.split(key, 3)))[1]


@attack("a running total is released in every turn")
def prefix_sums(w, xs, ys, mask, key):
    def turn(s, inputs):
        x, m, key = inputs
        s = s + total(x, m)
        return s, noisy(key, s, Z * C)

    return lax.scan(
        turn, jnp.zeros(3), (xs.reshape(4, 6, 3), mask.reshape(4, 6), jax.random.split(key, 4))
    )[1]


@attack("the table turned round: each turn sees two parts")
def parts_that_meet(w, xs, ys, mask, key):
    def turn(w, inputs):
        x, m, y, key = inputs
        return w + noisy(key, total(x * y, m), Z * C), None

    parts = xs.reshape(4, 6, 3), mask.reshape(4, 6), xs[::-1].reshape(4, 6, 3)
    return lax.scan(turn, w["a"], (*parts, jax.random.split(key, 4)))[0]


@attack("windows that overlap are taken by number")
def windows(w, xs, ys, mask, key):
    def turn(i, w):
        x, m = lax.dynamic_slice_in_dim(xs, i, 12), lax.dynamic_slice_in_dim(mask, i, 12)
        return w + noisy(jax.random.fold_in(key, i), total(x, m), Z * C)

    return lax.fori_loop(0, 4, turn, w["a"])


@attack("a function of that name under jit")
def fake_by_name(w, xs, ys, mask, key):
    @jax.jit
    def gaussian_mechanism(key, tree):
        return tree

    return gaussian_mechanism(key, total(xs, mask))


@attack("a function of that name with a derivative of its own")
def fake_by_custom_vjp(w, xs, ys, mask, key):
    @jax.custom_vjp
    def clip_records(x):
        return x

    clip_records.defvjp(lambda x: (dp.clip_records(x, C), None), lambda _, g: (g,))
    return noisy(key, dp.sum_records(clip_records(xs), mask), Z * C)


@attack("the derivative hands on raw rows")
def fake_by_custom_jvp(w, xs, ys, mask, key):
    @jax.custom_jvp
    def clip(x):
        return dp.clip_records(x, C)

    clip.defjvp(lambda p, t: (clip(*p), t[0] * p[0]))
    rows = jax.jvp(clip, (xs,), (xs,))[1]
    return noisy(key, dp.sum_records(rows, mask), Z * C)


@attack("raw values under remat")
def raw_by_remat(w, xs, ys, mask, key):
    return jax.checkpoint(lambda x: x.sum(0))(xs)


@attack("the records are a constant of an inner function")
def records_captured_inside(w, xs, ys, mask, key):
    inner = jax.jit(lambda v: v + jnp.asarray(X).sum(0))
    return noisy(key, total(xs, mask), Z * C), inner(w["a"])


@attack("the records are a constant of a loop's body")
def records_captured_in_a_loop(w, xs, ys, mask, key):
    table = np.asarray(X)
    return noisy(key, total(xs, mask), Z * C), lax.fori_loop(
        0, 2, lambda i, v: v + table.sum(0) + jnp.asarray(table)[i], w["a"]
    )


@attack("printed in an inner function")
def printed_inside(w, xs, ys, mask, key):
    s = total(xs, mask)
    lax.cond(w["b"] > 0, lambda: jax.debug.print("{}", s), lambda: None)
    return noisy(key, s, Z * C)


@attack("a callback that gives a key its words")
def words_from_outside(w, xs, ys, mask, key):
    kind = jax.ShapeDtypeStruct((8,), jnp.uint32)
    words = jax.pure_callback(lambda x: np.zeros(8, np.uint32), kind, w["b"])
    return noisy(jax.random.wrap_key_data(words, impl=KEY.dtype._impl), total(xs, mask), Z * C)


@attack("a private number of turns")
def private_number_of_turns(w, xs, ys, mask, key):
    n = mask.sum()
    return noisy(key, total(xs, mask), Z * C), lax.fori_loop(0, n, lambda i, v: v + 1.0, 0.0)


@attack("the branch is chosen by a private number, in a switch")
def private_switch(w, xs, ys, mask, key):
    return lax.switch(mask.sum() % 2, [lambda: jnp.zeros(3), lambda: jnp.ones(3)])


@attack("a sample or the table, by a choice")
def sample_or_table(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    s = jnp.where(w["b"] > 0, dp.sum_records(*drawn(xs, mask, a)), total(xs, mask))
    return noisy(b, s, Z * C)


@attack("a sample or the table, by a branch")
def sample_or_table_by_branch(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    rows, real = drawn(xs, mask, a)
    s = lax.cond(w["b"] > 0, lambda: dp.sum_records(rows, real), lambda: total(xs, mask))
    return noisy(b, s, Z * C)


@attack("public rows beside the mask: which were drawn shows")
def drawn_public_rows(w, xs, ys, mask, key):
    (bx, _), _ = dp.poisson_subsample(key, (jnp.ones((N, 3)), mask), RATE, CAPACITY)
    return bx


@attack("a permutation is no sample")
def permuted(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    order = jax.random.permutation(a, N)
    return noisy(b, total(xs[order][:6], mask[order][:6]), Z * C)


@attack("the mask of other rows")
def mask_of_other_rows(w, xs, ys, mask, key):
    return noisy(key, total(xs[:12], mask[:12]) + total(xs[12:], mask[:12]), Z * C)


def alternating(w, xs, ys, mask, key, turn):
    a, b = jax.random.split(key)
    rows, real = drawn(xs, mask, a)
    s, _ = lax.scan(turn, jnp.zeros(3), (rows, real))
    return noisy(b, s, Z * C)


@attack("a sample's sum turned round in every turn: each row's sign tells how many follow")
def signs_that_alternate(*args):
    return alternating(*args, lambda s, x: (jnp.where(x[1], x[0], 0.0) - s, None))


@attack("the same by a factor")
def signs_that_alternate_by_a_factor(*args):
    return alternating(*args, lambda s, x: (-1.0 * s + jnp.where(x[1], x[0], 0.0), None))


@attack("a sample's sum reversed in every turn")
def coordinates_that_alternate(*args):
    return alternating(*args, lambda s, x: (lax.rev(s, (0,)) + jnp.where(x[1], x[0], 0.0), None))


@attack("a sample's sum moved on in every turn")
def coordinates_that_move_on(*args):
    moved = lambda s: lax.pad(s, 0.0, ((-1, 1, 0),))  # noqa: E731
    return alternating(*args, lambda s, x: (moved(s) + jnp.where(x[1], x[0], 0.0), None))


@attack("the last part of a sample: who is in it depends on the others")
def last_part_of_a_sample(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    (bx, bm), real = dp.poisson_subsample(a, (xs, mask), RATE, N)
    parts = dp.clip_records(bx, C).reshape(4, 6, 3), (bm & real).reshape(4, 6)
    s, _ = lax.scan(lambda s, x: (dp.sum_records(*x), None), jnp.zeros(3), parts)
    return noisy(b, s, Z * C)


@attack("a loop of no turns over a sample, and a sum over the table to start with")
def table_through_a_loop_over_a_sample(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    rows, real = drawn(xs, mask, a)
    s, _ = lax.scan(
        lambda s, _: (dp.sum_records(rows, real), None), total(xs, mask), None, length=0
    )
    return noisy(b, s, Z * C)


@attack("a primitive of one's own that holds the records")
def own_primitive(w, xs, ys, mask, key):
    peek_at = marker("add", lambda x: [x + X[0]], refuse=None)
    return noisy(key, total(xs, mask), Z * C), peek_at.bind(w["a"])


@attack("the same, within a loop that no record enters")
def own_primitive_in_a_loop(w, xs, ys, mask, key):
    peek_at = marker("add", lambda x: [x + X[0]], refuse=None)
    return lax.scan(lambda w, _: (peek_at.bind(w)[0], None), w["a"], None, length=2)[0]


@attack("an exported program that holds the records")
def exported_program(w, xs, ys, mask, key):
    program = jax.export.export(jax.jit(lambda x: x + X[0]))(w["a"])
    return noisy(key, total(xs, mask), Z * C), program.call(w["a"])


@pytest.mark.parametrize("step", ATTACKS)
def test_attack_gets_no_proof(step):
    with pytest.raises(dp.PrivacyError):
        certify(step)


@pytest.mark.parametrize("relation", list(dp.Relation))
def test_other_relations_and_other_samples(relation):
    def step(w, xs, ys, mask, key):
        a, b = jax.random.split(key)
        (bx,), real = dp.poisson_subsample(a, (xs,), RATE, CAPACITY)
        sample, table = dp.sum_records(dp.clip_records(bx, C), real), total(xs, mask, 1e6)
        clipped = dp.clip_records({"a": sample[None], "b": table[None]}, C)
        return noisy(b, clipped["a"], 2 * Z * C)

    known = relation in (dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE)
    with pytest.raises(dp.PrivacyError if known else ValueError):
        certify(step, relation=relation)
    with pytest.raises(dp.PrivacyError if known else ValueError):
        certify(parts_of_a_sample, relation=relation)


def release(w, key, rows):
    return w + noisy(key, total(*rows), Z * C)


def nested_loops(w, xs, ys, mask, key):
    def outer(w, k):
        return lax.scan(lambda w, k: (release(w, k, (xs, mask)), None), w, jax.random.split(k, 4))[
            0
        ], None

    return lax.scan(outer, w["a"], jax.random.split(key, 3))[0]


def several_releases_of_each_part(w, xs, ys, mask, key):
    def outer(w, inputs):
        k, *part = inputs
        return lax.scan(lambda w, k: (release(w, k, part), None), w, jax.random.split(k, 4))[
            0
        ], None

    return lax.scan(
        outer, w["a"], (jax.random.split(key, 3), xs.reshape(3, 8, 3), mask.reshape(3, 8))
    )[0]


def several_passes_over_parts(w, xs, ys, mask, key):
    def outer(w, k):
        parts = jax.random.split(k, 4), xs.reshape(4, 6, 3), mask.reshape(4, 6)
        return lax.scan(lambda w, i: (release(w, i[0], i[1:]), None), w, parts)[0], None

    return lax.scan(outer, w["a"], jax.random.split(key, 3))[0]


def two_partitions(w, xs, ys, mask, key):
    def turn(w, inputs):
        k, x, m, other, other_m = inputs
        a, b = jax.random.split(k)
        return release(release(w, a, (x, m)), b, (other, other_m)), None

    one = xs.reshape(4, 6, 3), mask.reshape(4, 6)
    two = xs.reshape(6, 4, 3).transpose(1, 0, 2), mask.reshape(6, 4).T
    return lax.scan(turn, w["a"], (jax.random.split(key, 4), *one, *two))[0]


def two_releases_or_one_of_half_the_noise(w, xs, ys, mask, key):
    a, b, c = jax.random.split(key, 3)
    s = total(xs, mask)
    both = lambda: noisy(a, s, Z * C) + noisy(b, s, Z * C)  # noqa: E731
    return lax.cond(w["b"] > 0, both, lambda: noisy(c, s, 0.5 * Z * C))


def one_leaf_twice(w, xs, ys, mask, key):
    a, b, c = jax.random.split(key, 3)
    g = dp.sum_records(dp.clip_records({"a": xs, "b": ys}, C), mask)
    return noisy(a, g["a"], Z * C), noisy(b, g["b"], Z * C), noisy(c, g["a"] * 2, Z * C)


@pytest.mark.parametrize(
    ("step", "precision"),
    [
        (nested_loops, 12),
        (several_releases_of_each_part, 4),
        (several_passes_over_parts, 3),
        (two_partitions, 2),
        (two_releases_or_one_of_half_the_noise, 4),
        (one_leaf_twice, 5),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_releases_are_counted(step, precision):
    """Precision: how many releases of noise multiplier Z cost as much."""
    claim = GaussianDpEvent(Z / np.sqrt(precision))
    certify(step, expect=claim)
    with pytest.raises(dp.PrivacyError, match="more than was declared"):
        certify(step, expect=GaussianDpEvent(1.01 * claim.noise_multiplier))
