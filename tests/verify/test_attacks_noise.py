"""Attacks by noise that is smaller than it looks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NoOpDpEvent
from jax import lax

import discreet as dp

from .attacks import Z, into, total
from .programs import KEY, C, N, certify, noisy

ATTACKS = []
attack = into(ATTACKS)


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
        lambda s: jnp.abs(dp.random.normal(s[0], (3,))).max() > 0.1,
        body,
        tuple(jax.random.split(key)),
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


def clipped_and_noised(stddev):
    """A sum clipped at a traced norm b, with noise of another size."""

    def step(w, xs, ys, mask, key):
        return noisy(key, total(xs, mask, w["b"]), Z * stddev(w))

    return step


NOT_THE_NORM = {
    "in a loop, halved": lambda w: lax.fori_loop(0, 3, lambda i, c: 0.5 * c, w["b"]),
    "stacked by a loop": lambda w: lax.scan(lambda c, _: (0.5 * c, c), w["b"], None, length=3)[1][
        2
    ],
    "another element": lambda w: w["a"][1],
    "an element set": lambda w: jnp.broadcast_to(w["b"], (3,)).at[1].set(1e-3)[1],
    "an element put beside": lambda w: jnp.concatenate(
        [jnp.broadcast_to(w["b"], (3,)), jnp.full(3, 1e-3)]
    )[4],
    "padding": lambda w: jnp.pad(w["b"][None], (0, 2), constant_values=1e-3)[2],
    "a minimum": lambda w: jnp.minimum(w["b"], 1e-3),
    "through float16": lambda w: w["b"].astype(jnp.float16).astype(jnp.float32),
    "through integers": lambda w: w["b"].astype(jnp.int32).astype(jnp.float32),
    "with fewer bits": lambda w: lax.reduce_precision(w["b"], 2, 1),
}


@pytest.mark.parametrize("which", NOT_THE_NORM)
def test_a_number_made_from_the_norm_is_not_the_norm(which):
    with pytest.raises(dp.PrivacyError):
        certify(clipped_and_noised(NOT_THE_NORM[which]))


@attack("one branch's norm, the other's noise")
def norm_and_noise_by_branch(w, xs, ys, mask, key):
    rows, c = lax.cond(
        w["a"][0] > 0,
        lambda: (dp.clip_records(xs, w["b"]), 0.5 * w["b"]),
        lambda: (jnp.zeros_like(xs), w["b"]),
    )
    return noisy(key, dp.sum_records(rows, mask), Z * c)


@attack("rows carried by a while loop that shrinks the noise")
def noise_that_shrinks_beside_rows_in_a_while(w, xs, ys, mask, key):
    start = dp.clip_records(xs, w["b"]), w["b"]
    rows, c = lax.while_loop(lambda s: s[1] > 1e-3, lambda s: (s[0], 0.5 * s[1]), start)
    return noisy(key, dp.sum_records(rows, mask), Z * c)


@pytest.mark.parametrize("step", ATTACKS)
def test_attack_gets_no_proof(step):
    with pytest.raises(dp.PrivacyError):
        certify(step)


@pytest.mark.parametrize(("multiplier", "claimed"), [(0.01, 0.05), (1e3, 1e4), (1e3, np.inf)])
def test_claims_of_more_noise_are_refused(multiplier, claimed):
    """At common epsilons, the deltas of both are 1, or 0."""
    event = NoOpDpEvent() if claimed == np.inf else GaussianDpEvent(claimed)
    with pytest.raises(dp.PrivacyError, match="more than was declared"):
        certify(
            lambda w, xs, ys, mask, key: noisy(key, total(xs, mask), multiplier * C), expect=event
        )


@pytest.mark.essential
@pytest.mark.parametrize("number", [0.0, 1e-36, -1e-36, np.inf, np.nan])
def test_noise_of_a_traced_size_hides_or_is_no_number(number):
    noised = jax.jit(dp.gaussian_mechanism)(KEY, jnp.ones(3), jnp.float32(number))
    assert bool(jnp.all(jnp.isnan(noised)))
