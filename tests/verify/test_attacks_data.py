"""Attacks with masks that do not mask, and rows that meet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import discreet as dp

from .dishonest import (
    Attacks,
    Z,
    clipped,
    guarded,
    marked,
    noise,
    norms,
    nothing_worse_than_certified,
    total,
)
from .programs import N

attack = Attacks()


# Of two neighbours one has nothing in the row that differs, so a record moves these by C and not by
# 2C.
@attack("rows that the mask drops are kept", Z)
def inverted(w, x, y, m, k):
    return noise(k, total(marked(x), ~m))


@attack("branches of the mask swapped", Z)
def swapped_mask(w, x, y, m, k):
    return noise(k, jnp.sum(jnp.where(m[:, None], 0.0, marked(x)), 0))


@attack("the mask of the neighbour")
def rolled_mask(w, x, y, m, k):
    return noise(k, total(marked(x), jnp.roll(m, 1)))


@attack("the mask backwards")
def reversed_mask(w, x, y, m, k):
    return noise(k, total(marked(x), m[::-1]))


@attack("a mask that sorts")
def sorted_mask(w, x, y, m, k):
    return noise(k, total(marked(x), jnp.sort(m)))


@attack("a mask that counts the others")
def counting_mask(w, x, y, m, k):
    return noise(k, total(marked(x), jnp.cumsum(m) < 5))


@attack("padding gets a value after the mask", Z / 2.0)
def shifted_after_mask(w, x, y, m, k):
    r = jnp.where(m[:, None], marked(x, 0.5), 0.0)
    return noise(k, jnp.sum(jnp.clip(r + 0.1, -0.5, 0.5), 0), 0.5 * np.sqrt(3))


@attack("a mask that multiplies NaN")
def multiplied_mask(w, x, y, m, k):
    return noise(k, jnp.sum(clipped(x) * m[:, None], 0))


@attack("a mask from the data masks no padding", Z / 2.0)
def mask_of_data(w, x, y, m, k):
    return noise(k, total(marked(x), x[:, 0] > 0))


@attack("mask or data", Z / 2.0)
def mask_or(w, x, y, m, k):
    return noise(k, total(marked(x), m | (x[:, 0] > 0)))


@attack("the exponential of a masked row is not zero", Z / 2.0)
def exponential(w, x, y, m, k):
    r = jnp.where(m[:, None], marked(x), 0.0)
    return noise(k, jnp.sum(jnp.tanh(jnp.exp(r)), 0), np.sqrt(3))


@attack("clipping of centred rows")
def centred(w, x, y, m, k):
    return noise(k, total(marked(x - x.mean(0)), m))


@attack("rows in another order of axes: clipped by column")
def transposed(w, x, y, m, k):
    return noise(k, jnp.sum(marked(x.T).T, 0))


@attack("two records in one row", Z / 2.0)
def pairs(w, x, y, m, k):
    return noise(k, jnp.sum(marked(x.reshape(N // 2, 6)), 0))


@attack("all records in one row")
def flat(w, x, y, m, k):
    return noise(k, jnp.sum(marked(x.reshape(3, N)), 0))


@attack("differences of neighbours", Z / 2.0)
def differences(w, x, y, m, k):
    return noise(k, jnp.sum(marked(jnp.diff(x, axis=0)), 0))


@attack("running sums", 0.0)
def running(w, x, y, m, k):
    return noise(k, jnp.cumsum(jnp.where(m[:, None], marked(x), 0.0), 0))


@attack("sorted over the records")
def sorted_rows(w, x, y, m, k):
    return noise(k, total(marked(jnp.sort(x, 0)), m))


@attack("a convolution over the records")
def smoothed(w, x, y, m, k):
    r = jnp.where(m[:, None], marked(x), 0.0)
    out = lax.conv_general_dilated(r.T[:, None], jnp.ones((1, 1, 3)), (1,), "SAME")
    return noise(k, out[:, 0].T)


@attack("products of all pairs of records")
def gram(w, x, y, m, k):
    r = jnp.where(m[:, None], marked(x), 0.0)
    return noise(k, r @ r.T)


@attack("records picked by what they hold")
def picked(w, x, y, m, k):
    return noise(k, marked(x)[jnp.argmax(y)])


@attack("a place that depends on records")
def dynamic_place(w, x, y, m, k):
    return noise(k, lax.dynamic_slice(marked(x), (jnp.argmax(y), 0), (1, 3)))


@attack("values put at each other's places")
def histogram(w, x, y, m, k):
    place = jnp.clip(guarded(y), 0, 4).astype(jnp.int32)
    return noise(k, jnp.zeros(5).at[place].set(guarded(y)))


@attack("batch normalisation by a collective")
def collective(w, x, y, m, k):
    rows = jax.vmap(lambda r: r - lax.pmean(r, "i"), axis_name="i")(x)
    return noise(k, total(marked(rows), m))


@attack("the largest value, masked")
def largest(w, x, y, m, k):
    return noise(k, jnp.max(jnp.where(m[:, None], marked(x), 0.0), 0), 0.1)


@attack("noise on the sum, and the sum beside")
def beside(w, x, y, m, k):
    s = total(marked(x), m)
    return noise(k, s) + 1e-3 * s


@attack("released, then multiplied with what is private")
def mixed(w, x, y, m, k):
    s = total(marked(x), m)
    return noise(k, s) * s


@attack("a custom derivative whose program is another", Z / 100.0)
def custom(w, x, y, m, k):
    @jax.custom_jvp
    def f(v):
        return v * 100.0

    f.defjvp(lambda p, t: (p[0], t[0]))
    return noise(k, total(f(marked(x)), m))


@attack("a mask that is cut from another place")
def cut_mask(w, x, y, m, k):
    return noise(k, jnp.sum(jnp.where(m[12:, None], marked(x)[:12], 0.0), 0))


@attack("slices that overlap", Z / 2.0)
def overlapping(w, x, y, m, k):
    r = jnp.where(m[:, None], marked(x), 0.0)
    return noise(k, r[:14].sum(0) + r[10:].sum(0))


@attack("one record drawn along by a mask that fits another sample")
def mask_of_sample(w, x, y, m, k):
    a, b, c = jax.random.split(k, 3)
    (one, _), _ = dp.poisson_subsample(a, (x, m), 0.25, N)
    (_, keep), kept = dp.poisson_subsample(b, (x, m), 0.25, N)
    return noise(c, total(marked(one), keep & kept))


@attack("weights that grow along the records", Z / 23.0)
def weighted(w, x, y, m, k):
    r = jnp.where(m[:, None], marked(x), 0.0)
    return noise(k, jnp.arange(N, dtype=jnp.float32) @ r)


@attack("the union of the bits of integers is larger than each", Z * 4 / 7)
def union_of_bits(w, x, y, m, k):
    whole = jnp.clip(guarded(x), 0, 4).astype(jnp.int32)
    return noise(k, total(lax.reduce_or(whole, (1,)).astype(jnp.float32), m), 4.0)


@attack("the common bits of negative numbers", Z * 3 / 4)
def common_bits(w, x, y, m, k):
    whole = jnp.clip(guarded(x), -3, 0).astype(jnp.int32)
    return noise(k, total(lax.reduce_and(whole, (1,)).astype(jnp.float32), m), 3.0)


@attack("halves of the table side by side, and one of them again", Z / 2.0)
def halves(w, x, y, m, k):
    rows = dp.clip_records({"a": x, "b": x}, 1.0)
    a, b = (jnp.where(m[:, None], r, 0.0) for r in (rows["a"], rows["b"]))
    first = jnp.concatenate([a[:12].sum(0), b[12:].sum(0)])
    return noise(k, first + jnp.concatenate([a[12:].sum(0), b[12:].sum(0)]))


@attack("a sum of halves of the table, split, and one of them again", Z * 2 / 3)
def split_halves(w, x, y, m, k):
    r = jnp.where(m[:, None], marked(x[:, :2]), 0.0)
    s = jnp.split(r[:12].sum(0) + r[12:].sum(0), 2)[0]
    q = jnp.where(m[:, None], marked(x[:, :1], 2.0), 0.0)
    return noise(k, s + q[12:].sum(0), 2.0)


@attack("parts of a loop and the whole table, split", Z / 5.0)
def split_in_loop(w, x, y, m, k):
    rows = jnp.where(m[:, None], marked(x[:, :2]), 0.0)

    def turn(s, part):
        return s + jnp.split(part.sum(0) + rows.sum(0), 2)[0], None

    s, _ = lax.scan(turn, jnp.zeros(1), rows.reshape(4, N // 4, 2))
    return noise(k, s)


@attack("parts of a loop and the whole table, side by side", Z / 4.0)
def beside_in_loop(w, x, y, m, k):
    rows = dp.clip_records({"a": x, "b": x}, 1.0)
    a, b = (jnp.where(m[:, None], r, 0.0) for r in (rows["a"], rows["b"]))

    def turn(s, part):
        return s + jnp.concatenate([part.sum(0), b.sum(0)]), None

    s, _ = lax.scan(turn, jnp.zeros(6), a.reshape(4, N // 4, 3))
    return noise(k, s)


@attack("a choice among three orders of a row", Z / np.sqrt(3))
def three_orders(w, x, y, m, k):
    r = marked(x)
    return noise(
        k,
        total(
            lax.select_n(
                jnp.broadcast_to(jnp.array([0, 1, 2]), (N, 3)),
                *(jnp.roll(r, -i, 1) for i in (0, -1, -2)),
            ),
            m,
        ),
    )


@attack("a factor with another record's norm, by a sorted one")
def sorted_factor(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.sort(jnp.minimum(1.0, 1.0 / norms(g)))[:, None], m))


@attack("the norm of a row that is padded, of the row without its end", Z / 2.0)
def cut_before_norm(w, x, y, m, k):
    g = guarded(x)
    h = jnp.pad(g[:, :2], ((0, 0), (0, 1)))
    return noise(k, total(g * jnp.minimum(1.0, 1.0 / norms(h))[:, None], m))


@attack("rows turned round by a scatter within the table")
def scattered(w, x, y, m, k):
    r = marked(x)
    return noise(k, jnp.zeros((N, 3)).at[jnp.argsort(y)].add(r))


@attack("a row looked up by another record's index")
def looked_up(w, x, y, m, k):
    place = jnp.clip(guarded(y), 0, 2).astype(jnp.int32)
    return noise(k, total(jnp.take_along_axis(marked(x), jnp.roll(place, 1)[:, None], 1), m))


@attack("halves of a loop's parts with a mask of the whole", 0.0)
def mask_of_part(w, x, y, m, k):
    def turn(s, part):
        return s + jnp.where(m[: N // 4, None], part, 0.0).sum(0), None

    s, _ = lax.scan(turn, jnp.zeros(3), marked(x).reshape(4, N // 4, 3))
    return noise(k, s)


@attack("one divided by the number of records", 0.0)
def by_count(w, x, y, m, k):
    return noise(k, total(marked(x), m) / jnp.maximum(jnp.sum(m), 1))


@attack("an empty batch shows itself", 0.0)
def empty(w, x, y, m, k):
    s = total(marked(x), m)
    return lax.cond(jnp.any(m), lambda: noise(k, s), lambda: jnp.zeros(3))


def in_pieces(rows):
    """Turn t sees the records 12 a + 6 t + b."""
    return jnp.swapaxes(rows.reshape(2, 2, N // 4, *rows.shape[1:]), 0, 1)


@attack("a loop's parts, and a mask cut in other pieces")
def mask_in_other_pieces(w, x, y, m, k):
    def turn(s, part):
        rows, real = part
        return s + jnp.where(real[:, None], rows.reshape(N // 2, 3), 0.0).sum(0), None

    s, _ = lax.scan(turn, jnp.zeros(3), (in_pieces(marked(x)), m.reshape(N // 2, 2).T))
    return noise(k, s)


@attack("pieces put together in a turn, and stacked as if they were not")
def pieces_stacked(w, x, y, m, k):
    _, rows = lax.scan(lambda s, part: (s, part.reshape(N // 2, 3)), 0, in_pieces(marked(x)))
    return noise(k, total(jnp.swapaxes(rows, 0, 1).reshape(N, 3), m))


@pytest.mark.parametrize(("step", "truth", "records"), attack)
def test_nothing_worse_than_certified(step, truth, records):
    nothing_worse_than_certified(step, truth, records)
