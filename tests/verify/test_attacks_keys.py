"""Attacks by keys: such that depend on records, and such that are used twice."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import discreet as dp

from .attacks import Z, drawn, into, known_key, peek, private_key, total
from .programs import KEY, C, M, N, X, certify, noisy

ATTACKS = []
attack = into(ATTACKS)


@attack("the key holds a record, under another reason after the loop")
def private_key_by_scan(w, xs, ys, mask, key):
    k, _ = lax.scan(lambda k, _: (private_key(xs), None), known_key(), None, length=2)
    return jax.random.key_data(k)


@attack("the same by a while loop")
def private_key_by_while(w, xs, ys, mask, key):
    _, k = lax.while_loop(
        lambda s: s[0] < 2, lambda s: (s[0] + 1, private_key(xs)), (0, known_key())
    )
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


@attack("integers are divided towards zero: -7 / 2 + 10 is 7")
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
    return lax.fori_loop(
        0, 3, lambda i, w: w + noisy(jax.random.fold_in(key, 1), total(xs, mask), Z * C), w["a"]
    )


@attack("half the counter is the same in two turns")
def folded_with_half_the_counter(w, xs, ys, mask, key):
    return lax.fori_loop(
        0,
        4,
        lambda i, w: w + noisy(jax.random.fold_in(key, i // 2), total(xs, mask), Z * C),
        w["a"],
    )


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


@attack("mapped over numbers of which two are equal")
def folded_with_equal_numbers(w, xs, ys, mask, key):
    ks = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(3) // 2)
    return lax.scan(lambda w, k: (w + noisy(k, total(xs, mask), Z * C), None), w["a"], ks)[0]


@attack("mapped over numbers, and once more with one of them")
def folded_with_one_of_them(w, xs, ys, mask, key):
    ks = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(3))
    first = noisy(jax.random.fold_in(key, 1), total(xs, mask), Z * C)
    return lax.scan(lambda w, k: (w + noisy(k, total(xs, mask), Z * C), None), first, ks)[0]


@attack("logarithms round otherwise in XLA: the quotient may be 2")
def folded_with_a_rounded_number(w, xs, ys, mask, key):
    number = (jnp.log(jnp.float32(8)) / jnp.log(jnp.float32(2))).astype(jnp.int32)
    a, b = jax.random.fold_in(key, 2), jax.random.fold_in(key, number)
    return noisy(a, total(xs, mask), Z * C), noisy(b, jnp.zeros(3), Z * C)


@attack("a counter that comes round at 2^32")
def folded_with_a_counter_that_comes_round(w, xs, ys, mask, key):
    def turn(state, _):
        i, w = state
        return (i + 2**30, w + noisy(jax.random.fold_in(key, i), total(xs, mask), Z * C)), None

    return lax.scan(turn, (jnp.int32(0), w["a"]), None, length=9)[0][1]


@attack("a counter that a function counts, and the turn counts back")
def folded_with_a_counter_that_is_counted_back(w, xs, ys, mask, key):
    def turn(state, _):
        i, w = state
        return (
            jax.jit(lambda i, j: (i - 1, j - 1)[1])(i, i + 1),
            w + noisy(jax.random.fold_in(key, i), total(xs, mask), Z * C),
        ), None

    return lax.scan(turn, (jnp.int32(0), w["a"]), None, length=9)[0][1]


@attack("keys of a loop, one of them again")
def scanned_keys_again(w, xs, ys, mask, key):
    ks = jax.random.split(key, 4)

    def turn(w, k):
        return w + noisy(k, total(xs, mask), Z * C), None

    return lax.scan(turn, w["a"], ks, reverse=True)[0], lax.scan(turn, w["a"], ks[1:2])[0]


@attack("used keys are stacked and returned")
def scanned_keys_returned(w, xs, ys, mask, key):
    ks = jax.random.split(key, 4)
    return lax.scan(lambda w, k: (w + noisy(k, total(xs, mask), Z * C), k), w["a"], ks)


@attack("the used key is carried out")
def used_key_carried_out(w, xs, ys, mask, key):
    def turn(state, _):
        w, k, _ = state
        a, b = jax.random.split(k)
        return (w + noisy(b, total(xs, mask), Z * C), a, b), None

    return lax.scan(turn, (w["a"], *jax.random.split(key)), None, length=3)[0]


@attack("the parent of the used key is carried out")
def parent_key_carried_out(w, xs, ys, mask, key):
    def turn(state, _):
        w, k, _ = state
        a, b = jax.random.split(k)
        return (w + noisy(b, total(xs, mask), Z * C), a, k), None

    return lax.scan(turn, (w["a"], *jax.random.split(key)), None, length=3)[0]


@attack("one of two keys by a condition, then one of the two")
def key_chosen_and_again(w, xs, ys, mask, key):
    a, b = jax.random.split(key)
    k = lax.cond(w["b"] > 0, lambda: a, lambda: b)
    return noisy(k, total(xs, mask), Z * C), noisy(a, total(xs, mask), Z * C)


@attack("random bits of the noise's key")
def bits_of_the_key(w, xs, ys, mask, key):
    return jax.random.bits(key, (4,)), noisy(key, total(xs, mask), Z * C)


@attack("numbers folded in are the same modulo 2^32")
def folded_modulo(w, xs, ys, mask, key):
    fold = jax.extend.core.primitives.random_fold_in_p.bind
    a, b = fold(key, jnp.int32(-1)), fold(key, jnp.uint32(2**32 - 1))
    return noisy(a, total(xs, mask), Z * C), noisy(b, total(xs, mask), Z * C)


@attack("this turn's key, and the next turn's")
def neighbouring_keys(w, xs, ys, mask, key):
    keys, s = jax.random.split(key, 5), total(xs, mask)
    return lax.fori_loop(
        0, 4, lambda i, w: w + noisy(keys[i], s, Z * C) + noisy(keys[i + 1], s, Z * C), w["a"]
    )


@attack("one array of keys in two loops")
def keys_in_two_loops(w, xs, ys, mask, key):
    keys, s = jax.random.split(key, 4), total(xs, mask)
    once = lambda w: lax.fori_loop(0, 4, lambda i, w: w + noisy(keys[i], s, Z * C), w)  # noqa: E731
    return once(w["a"]), once(w["a"])


@pytest.mark.parametrize("step", ATTACKS)
def test_attack_gets_no_proof(step):
    with pytest.raises(dp.PrivacyError):
        certify(step)


def test_keys_whose_children_may_be_equal():
    """Folding is an exclusive or in `unsafe_rbg`: two releases have the same noise, and their difference has none."""

    def step(xs, mask, key):
        a, b = (jax.random.fold_in(jax.random.fold_in(key, i), 3 - i) for i in (1, 2))
        s = total(xs, mask)
        return noisy(a, s, Z * C), noisy(b, s, Z * C)

    key = jax.random.key(0, impl="unsafe_rbg")
    first, second = step(X, M, key)
    assert jnp.array_equal(first, second)
    with pytest.raises(dp.PrivacyError, match="may be equal"):
        dp.certify(step, X, M, key, records=0, mask=1)
    dp.certify(step, X, M, jax.random.key(0, impl="rbg"), records=0, mask=1)
