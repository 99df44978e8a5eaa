"""Attacks with masks that do not mask, and rows that meet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import discreet as dp

from .attacks import Attacks, Z, clipped, guarded, marked, noise, nothing_worse_than_certified, total
from .programs import N

attack = Attacks()


@attack("rows that the mask drops are kept", Z / 2.0)
def inverted(w, x, y, m, k):
    return noise(k, total(marked(x), ~m))


@attack("branches of the mask swapped", Z / 2.0)
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


@pytest.mark.parametrize(("step", "truth", "records"), attack)
def test_nothing_worse_than_certified(step, truth, records):
    nothing_worse_than_certified(step, truth, records)
