"""Attacks on keys, noise, composition, samples and fakes: programs that are less private than they look."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import discreet as dp
from discreet.sampling import PoissonSampling

from .programs import KEY, RATE, C, N, X, certify, noisy

Z = 1.5
CAPACITY = PoissonSampling(RATE).capacity(N)
SEED = jax.random.key(0)
ATTACKS = []


def attack(reason):
    """No proof may be found, for the reason given."""

    def enter(step):
        ATTACKS.append(pytest.param(step, id=f"{step.__name__}: {reason}"))
        return step

    return enter


def total(xs, mask, norm=C):
    return dp.sum_records(dp.clip_records(xs, norm), mask)


def drawn(xs, mask, key, norm=C):
    (bx, bm), real = dp.poisson_subsample(key, (xs, mask), RATE, CAPACITY)
    return dp.clip_records(bx, norm), bm & real


def peek(xs):
    """The first record's bits."""
    return lax.bitcast_convert_type(xs.reshape(-1)[:8], jnp.uint32)


def private_key(xs):
    return jax.random.wrap_key_data(peek(xs), impl=KEY.dtype._impl)


def known_key():
    return jax.random.wrap_key_data(jnp.arange(8, dtype=jnp.uint32), impl=KEY.dtype._impl)


# ---- keys that depend on records


@attack("the key holds a record, under another reason after the loop")
def private_key_by_scan(w, xs, ys, mask, key):
    k, _ = lax.scan(lambda k, _: (private_key(xs), None), known_key(), None, length=2)
    return jax.random.key_data(k)


@attack("the same by a while loop")
def private_key_by_while(w, xs, ys, mask, key):
    _, k = lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, private_key(xs)), (0, known_key()))
    return jax.random.key_data(k)


@attack("one branch gives a constant, the other a record")
def private_key_by_branch(w, xs, ys, mask, key):
    return jax.random.key_data(lax.cond(w["b"] > 0, lambda: known_key(), lambda: private_key(xs)))


@attack("beside a known key")
def private_key_in_an_array(w, xs, ys, mask, key):
    return jax.random.key_data(jnp.stack([known_key(), private_key(xs)]))


@attack("beside a known key, then split")
def private_key_in_an_array_split(w, xs, ys, mask, key):
    ks = jnp.stack([known_key(), private_key(xs)])
    return jax.random.key_data(jax.vmap(jax.random.split)(ks))


@attack("a reversed array of keys")
def private_key_reversed(w, xs, ys, mask, key):
    return jax.random.key_data(jnp.stack([private_key(xs), private_key(xs)])[::-1])


@attack("a key picked by a private number")
def known_key_at_private_place(w, xs, ys, mask, key):
    ks = jax.random.split(known_key(), N + 1)
    return jax.random.key_data(ks[mask.sum()])


@attack("a key selected by a private condition")
def known_key_selected(w, xs, ys, mask, key):
    a, b = jax.random.split(known_key())
    return jax.random.key_data(jnp.where(mask.sum() > 20, a, b))


@attack("a key selected by a private condition, returned as it is")
def known_key_selected_returned(w, xs, ys, mask, key):
    a, b = jax.random.split(known_key())
    return jnp.where(mask.sum() > 20, a, b)


@attack("the batched choice of keys by rows")
def known_keys_gathered(w, xs, ys, mask, key):
    ks = jax.random.split(known_key(), 2)
    return jax.random.key_data(ks[mask.astype(jnp.int32)])


@attack("folded with a private number")
def folded_with_a_count(w, xs, ys, mask, key):
    return jax.random.key_data(jax.random.fold_in(known_key(), mask.sum()))


@attack("folded with a private number, then again with a public one")
def folded_with_a_count_and_again(w, xs, ys, mask, key):
    return jax.random.bits(jax.random.fold_in(jax.random.fold_in(known_key(), mask.sum()), 3))


@attack("the seed is a record")
def seeded_by_a_record(w, xs, ys, mask, key):
    return jax.random.uniform(jax.random.key(peek(xs)[0]))


@attack("noise by a key made of records")
def noise_key_from_records(w, xs, ys, mask, key):
    return noisy(private_key(xs), total(xs, mask), Z * C)


# ---- noise


@attack("the noise's size is a sum over records, and what it is added to is public")
def private_stddev_on_zeros(w, xs, ys, mask, key):
    return noisy(key, jnp.zeros(3), jnp.abs(total(xs, mask)[0]) + 1.0)


@attack("the same by Laplace noise")
def private_scale_on_zeros(w, xs, ys, mask, key):
    return dp.laplace_mechanism(key, jnp.zeros(3), jnp.abs(total(xs, mask)[0]) + 1.0)


@attack("the public leaf is returned alone")
def private_stddev_on_a_public_leaf(w, xs, ys, mask, key):
    s = total(xs, mask)
    return noisy(key, {"s": s, "public": jnp.zeros(3)}, jnp.abs(s[0]) + 1.0)["public"]


@attack("the noise halves from turn to turn")
def noise_that_shrinks(w, xs, ys, mask, key):
    rows = dp.clip_records(xs, w["b"])

    def turn(c, key):
        return 0.5 * c, noisy(key, dp.sum_records(rows, mask), Z * c)

    return lax.scan(turn, w["b"], jax.random.split(key, 5))[1]


@attack("the same, the rows carried along")
def noise_that_shrinks_beside_rows(w, xs, ys, mask, key):
    def turn(state, key):
        rows, c = state
        return (rows, 0.5 * c), noisy(key, dp.sum_records(rows, mask), Z * c)

    return lax.scan(turn, (dp.clip_records(xs, w["b"]), w["b"]), jax.random.split(key, 5))[1]


@attack("rows clipped in the turn before, at twice the norm")
def noise_for_the_next_norm(w, xs, ys, mask, key):
    def turn(state, key):
        rows, c = state
        return (dp.clip_records(xs, c), 0.5 * c), noisy(key, dp.sum_records(rows, mask), Z * c)

    return lax.scan(turn, (dp.clip_records(xs, w["b"]), w["b"]), jax.random.split(key, 5))[1]


@attack("parts clipped at growing norms, noise for the first")
def noise_for_the_first_part(w, xs, ys, mask, key):
    def turn(c, x):
        return 2 * c, dp.clip_records(x, c)

    _, rows = lax.scan(turn, w["b"], xs.reshape(4, 6, 3))
    return noisy(key, dp.sum_records(rows.reshape(N, 3), mask), Z * w["b"])


@attack("a sum clipped at growing norms, noise for the first")
def noise_for_the_first_microbatch(w, xs, ys, mask, key):
    def turn(state, batch):
        s, c = state
        return (s + total(*batch, c), 2 * c), None

    (s, _), _ = lax.scan(turn, (jnp.zeros(3), w["b"]), (xs.reshape(4, 6, 3), mask.reshape(4, 6)))
    return noisy(key, s, Z * w["b"])


@attack("rows of this turn's size, noise of the next turn's")
def noise_of_the_next_turn(w, xs, ys, mask, key):
    unit = dp.clip_records(xs, 1.0)

    def turn(state, key):
        rows, c = state
        return (unit * c, 0.5 * c), noisy(key, dp.sum_records(rows, mask), Z * c)

    return lax.scan(turn, (jnp.zeros_like(xs), w["b"]), jax.random.split(key, 5))[1]


@attack("rows scaled by one turn's number, noise by the next one's")
def noise_of_the_next_element(w, xs, ys, mask, key):
    unit = dp.clip_records(xs, 1.0)

    def turn(rows, inputs):
        key, c = inputs
        return unit * c, noisy(key, dp.sum_records(rows, mask), Z * c)

    return lax.scan(turn, jnp.zeros_like(xs), (jax.random.split(key, 3), w["a"]))[1]


@attack("parts clipped at shrinking norms, noise for the last")
def noise_for_the_last_part(w, xs, ys, mask, key):
    def turn(c, x):
        return 0.5 * c, dp.clip_records(x, c)

    c, rows = lax.scan(turn, w["b"], xs.reshape(4, 6, 3))
    return noisy(key, dp.sum_records(rows.reshape(N, 3), mask), Z * c)


@attack("a while loop that shrinks the noise")
def noise_that_shrinks_in_a_while(w, xs, ys, mask, key):
    s = total(xs, mask, 1.0) * w["b"]
    s, c = lax.while_loop(lambda v: v[1] > 1e-6, lambda v: (v[0], 0.5 * v[1]), (s, w["b"]))
    return noisy(key, s, Z * c)


@attack("drawn again until the noise is small")
def noise_chosen(w, xs, ys, mask, key):
    def large(k):
        return jnp.abs(dp.random.normal(k, (3,))).max() > 0.1

    k = lax.while_loop(large, lambda k: jax.random.split(k)[0], key)
    return noisy(k, total(xs, mask), Z * C)


@attack("the loop waits for a key that makes little noise")
def noise_key_seen_by_the_condition(w, xs, ys, mask, key):
    def body(s):
        own, spare = jax.random.split(s[1])
        return own, spare

    k, _ = lax.while_loop(
        lambda s: jnp.abs(dp.random.normal(s[0], (3,))).max() > 0.1, body, tuple(jax.random.split(key))
    )
    return noisy(k, total(xs, mask), Z * C)


@attack("flushed to zero on the way, by known numbers")
def stddev_that_underflows(w, xs, ys, mask, key):
    tiny = jnp.float32(1e-30) * jnp.float32(1e-10)
    return noisy(key, total(xs, mask), tiny * jnp.float32(1e30) * jnp.float32(1e10) * Z * C)


@attack("the sum is infinite on the way")
def sum_that_overflows(w, xs, ys, mask, key):
    return noisy(key, total(xs, mask) * 1e30 * 1e30 * 1e-30 * 1e-30, Z * C)


@attack("rows are infinite on the way")
def rows_that_overflow(w, xs, ys, mask, key):
    rows = dp.clip_records(xs, C) * 1e30 * 1e30 * 1e-30 * 1e-30
    return noisy(key, dp.sum_records(rows, mask), Z * C)


@attack("the sum is infinite on the way, by a traced number")
def sum_that_overflows_by_a_traced_number(w, xs, ys, mask, key):
    b = w["b"]
    return noisy(key, total(xs, mask) * b * b * b / b / b / b, Z * C)


@attack("zero, while it is traced")
def stddev_zero(w, xs, ys, mask, key):
    return noisy(key, total(xs, mask), w["b"] * 0.0)


@attack("the noise is a difference")
def stddev_by_difference(w, xs, ys, mask, key):
    return noisy(key, total(xs, mask) * w["b"], (w["b"] * 2 - w["b"] * 2) * C)


@attack("infinite noise over infinity")
def stddev_infinite(w, xs, ys, mask, key):
    return noisy(key, total(xs, mask), jnp.float32(jnp.inf) * w["b"])


@attack("the noise's size is random")
def stddev_random(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    return noisy(b, total(xs, mask), jax.random.uniform(a) * C)


@attack("the sum is scaled after its size was known")
def sum_scaled_by_a_traced_number(w, xs, ys, mask, key):
    return noisy(key, total(xs, mask) * jnp.exp(w["b"]), Z * C)


@attack("the sum is there twice, once without noise")
def noise_subtracted(w, xs, ys, mask, key):
    s = total(xs, mask)
    return noisy(key, s, Z * C) - s


@attack("noise clipped with the sum")
def noised_less_its_public_twin(w, xs, ys, mask, key):
    released = noisy(key, total(xs, mask), Z * C)
    return released, noisy(key, jnp.zeros(3), Z * C)


@attack("noise in a row of its own")
def noise_concatenated(w, xs, ys, mask, key):
    return jnp.concatenate([noisy(key, jnp.zeros(3), Z * C), total(xs, mask)])


@attack("noise added beforehand to public zeros")
def noise_added_as_public(w, xs, ys, mask, key):
    return noisy(key, jnp.zeros(3), Z * C) + total(xs, mask)


# ---- keys used twice


@attack("split, then the parent again")
def parent_after_split(w, xs, ys, mask, key):
    a, _ = jax.random.split(key)
    return noisy(a, total(xs, mask), Z * C), noisy(key, total(xs, mask), Z * C)


@attack("the same subkey twice")
def subkey_twice(w, xs, ys, mask, key):
    ks = jax.random.split(key, 3)
    return noisy(ks[1], total(xs, mask), Z * C), noisy(ks[-2], total(xs, mask), Z * C)


@attack("split twice")
def split_twice(w, xs, ys, mask, key):
    return noisy(jax.random.split(key)[0], total(xs, mask), Z * C), noisy(
        jax.random.split(key, 3)[0], total(xs, mask), C
    )


@attack("whole numbers are divided towards zero: -7 / 2 + 10 is 7")
def folded_with_a_quotient(w, xs, ys, mask, key):
    seven = lax.div(jnp.int32(-7), jnp.int32(2)) + 10
    a, b = jax.random.fold_in(key, 7), jax.random.fold_in(key, seven)
    return noisy(a, total(xs, mask), Z * C), noisy(b, jnp.zeros(3), Z * C)


@attack("a number too large becomes the largest whole number")
def folded_with_a_saturated_number(w, xs, ys, mask, key):
    most = lax.convert_element_type(lax.add(jnp.float32(1e20), jnp.float32(0.0)), jnp.int32)
    a, b = jax.random.fold_in(key, 2**31 - 1), jax.random.fold_in(key, most)
    return noisy(a, total(xs, mask), Z * C), noisy(b, jnp.zeros(3), Z * C)


@attack("a counter in int8 wraps around")
def folded_with_a_counter_that_wraps(w, xs, ys, mask, key):
    a = jax.random.fold_in(key, 4294967168)

    def turn(i, w):
        small = i.astype(jnp.int8) + jnp.int8(120)
        return w + noisy(jax.random.fold_in(key, small), jnp.zeros(3), Z * C)

    return lax.fori_loop(0, 10, turn, w["a"]), noisy(a, total(xs, mask), Z * C)


@attack("folded with the same number in every turn")
def folded_with_an_invariant(w, xs, ys, mask, key):
    return lax.fori_loop(0, 3, lambda i, w: w + noisy(jax.random.fold_in(key, 1), total(xs, mask), Z * C), w["a"])


@attack("half the counter is the same in two turns")
def folded_with_half_the_counter(w, xs, ys, mask, key):
    return lax.fori_loop(0, 4, lambda i, w: w + noisy(jax.random.fold_in(key, i // 2), total(xs, mask), Z * C), w["a"])


@attack("an inner counter starts again in every outer turn")
def folded_with_an_inner_counter(w, xs, ys, mask, key):
    def inner(i, w):
        return w + noisy(jax.random.fold_in(key, i), total(xs, mask), Z * C)

    return lax.fori_loop(0, 2, lambda _, w: lax.fori_loop(0, 3, inner, w), w["a"])


@attack("two loops fold in the same numbers")
def folded_in_two_loops(w, xs, ys, mask, key):
    def turn(i, w):
        return w + noisy(jax.random.fold_in(key, i), total(xs, mask), Z * C)

    return lax.fori_loop(0, 3, turn, w["a"]), lax.fori_loop(2, 4, turn, w["a"])


@attack("traced numbers may be equal")
def folded_with_traced_numbers(w, xs, ys, mask, key):
    i = w["b"].astype(jnp.int32)
    a, b = jax.random.fold_in(key, i), jax.random.fold_in(key, 3)
    return noisy(a, total(xs, mask), Z * C), noisy(b, total(xs, mask), Z * C)


@attack("the key is carried and not split")
def key_carried_as_it_is(w, xs, ys, mask, key):
    def turn(state, _):
        w, k = state
        return (w + noisy(k, total(xs, mask), Z * C), k), None

    return lax.scan(turn, (w["a"], key), None, length=3)[0][0]


@attack("an index that may repeat")
def keys_at_traced_places(w, xs, ys, mask, key):
    ks = jax.random.split(key, 4)
    i = w["b"].astype(jnp.int32)
    return noisy(ks[i], total(xs, mask), Z * C), noisy(ks[0], total(xs, mask), Z * C)


@attack("a counter beyond the end takes the last key again")
def keys_beyond_the_end(w, xs, ys, mask, key):
    ks = jax.random.split(key, 3)
    return lax.fori_loop(0, 5, lambda i, w: w + noisy(ks[i], total(xs, mask), Z * C), w["a"])


@attack("one key stacked upon itself")
def keys_stacked(w, xs, ys, mask, key):
    ks = jnp.stack([key, key, key])
    return lax.scan(lambda w, k: (w + noisy(k, total(xs, mask), Z * C), None), w["a"], ks)[0]


@attack("one key broadcast")
def keys_broadcast(w, xs, ys, mask, key):
    ks = jnp.broadcast_to(key, (3,))
    return lax.scan(lambda w, k: (w + noisy(k, total(xs, mask), Z * C), None), w["a"], ks)[0]


@attack("used in one branch and after it")
def key_used_in_a_branch(w, xs, ys, mask, key):
    s = total(xs, mask)
    a = lax.cond(w["b"] > 0, lambda: noisy(key, s, Z * C), lambda: jnp.zeros(3))
    return a, noisy(key, s, Z * C)


@attack("the words of the key beside the noise")
def key_words(w, xs, ys, mask, key):
    return noisy(key, total(xs, mask), Z * C), jax.random.key_data(key)


@attack("the words of a parent")
def key_words_of_the_parent(w, xs, ys, mask, key):
    return noisy(jax.random.fold_in(key, 1), total(xs, mask), Z * C), jax.random.key_data(key)


@attack("wrapped again from its own words")
def key_wrapped_again(w, xs, ys, mask, key):
    k = jax.random.wrap_key_data(jax.random.key_data(key), impl=KEY.dtype._impl)
    return noisy(k, total(xs, mask), Z * C)


@attack("a copy is the same key")
def key_cloned(w, xs, ys, mask, key):
    return noisy(key, total(xs, mask), Z * C), noisy(jax.random.clone(key), jnp.zeros(3), Z * C)


@attack("the sample's key is that of the noise")
def sampling_key_for_the_noise(w, xs, ys, mask, key):
    rows, real = drawn(xs, mask, key)
    return noisy(key, dp.sum_records(rows, real), Z * C)


@attack("the sample's key is shown")
def sampling_key_shown(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    rows, real = drawn(xs, mask, a)
    return noisy(b, dp.sum_records(rows, real), Z * C), a


@attack("one key draws two samples")
def sampling_key_twice(w, xs, ys, mask, key):
    a, b, c = jax.random.split(key, 3)
    one, two = drawn(xs, mask, a), drawn(ys[:, None], mask, a)
    return noisy(b, dp.sum_records(*one), Z * C), noisy(c, dp.sum_records(*two), Z * C)


@attack("a sample by a known key is no secret")
def sampling_by_a_known_key(w, xs, ys, mask, key):
    rows, real = drawn(xs, mask, dp.random.key(5))
    return noisy(key, dp.sum_records(rows, real), Z * C)


# ---- samples


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

    return lax.scan(turn, jnp.zeros(3), (xs.reshape(4, 6, 3), mask.reshape(4, 6), jax.random.split(key, 4)))[1]


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


# ---- fakes, and what is done behind a curtain


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


@pytest.mark.parametrize("step", ATTACKS)
def test_attack_gets_no_proof(step):
    with pytest.raises(dp.PrivacyError):
        certify(step)
