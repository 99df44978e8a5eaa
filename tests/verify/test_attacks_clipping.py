"""Attacks with clipping that does not clip."""

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


@attack("a norm as truth value is no norm")
def norm_as_truth(w, x, y, m, k):
    g = guarded(x)
    n = lax.convert_element_type(lax.convert_element_type(norms(g), bool), jnp.float32)
    return noise(k, total(g * (1.0 / jnp.maximum(n, 0.5))[:, None], m))


@attack("a small norm vanishes and a tiny floor makes the factor huge")
def tiny_floor(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * (1.0 / jnp.maximum(norms(g), 1e-30))[:, None], m))


@attack("a factor that is capped far above 1, where the norm vanishes")
def high_cap(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.minimum(1e30, 1.0 / norms(g))[:, None], m))


@attack("an epsilon below the smallest number: 0 times infinity")
def denormal_epsilon(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * (1.0 / (norms(g) + 1e-39))[:, None], m))


@attack("a clipping norm below what squares can tell")
def tiny_norm(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.minimum(1.0, 1e-22 / norms(g))[:, None], m), 1e-22)


@attack("clipping numbers so small that they are lost in the squares, by rsqrt")
def tiny_rsqrt(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * lax.rsqrt(jnp.sum(g * g, 1) + 1e-37)[:, None], m))


@attack("a choice between two orders of a clipped row is longer than each", Z / np.sqrt(2))
def mixture(w, x, y, m, k):
    a = marked(x[:, :2])
    return noise(k, total(jnp.where(jnp.array([True, False]), a, a[:, ::-1]), m))


@attack("a choice by the data between two orders of a clipped row", Z / np.sqrt(2))
def mixture_by_data(w, x, y, m, k):
    a = marked(x[:, :2])
    return noise(k, total(jnp.where(a > a[:, ::-1], a, a[:, ::-1]), m))


@attack("a factor is summed with as many copies of itself", Z / np.sqrt(5))
def copies_of_factor(w, x, y, m, k):
    g = guarded(jnp.where(m[:, None], x, 0.0))
    f = jnp.broadcast_to(jnp.minimum(1.0, 1.0 / norms(g))[:, None], (N, 5))
    return noise(k, lax.dot_general(f, g, (((0,), (0,)), ((), ()))))


@attack("the longer branch of a clipping holds another row's NaN")
def nan_beside_clipping(w, x, y, m, k):
    g = guarded(x)
    n = norms(g)
    h = jnp.clip(jnp.sqrt(y), -1.0, 1.0)[:, None] * jnp.ones((N, 3))
    return noise(k, total(jnp.where((n < 1.0)[:, None], g, g / n[:, None] * h), m), 2.0)


@attack("a finite factor does not make the row finite")
def finite_factor(w, x, y, m, k):
    f = 1.0 / (norms(x) + 1.0)
    g = jnp.where(jnp.isfinite(f)[:, None], x, 0.0)
    return noise(k, total(clipped(g), m))


@attack("whether squares are finite, looked at in other places")
def finite_elsewhere(w, x, y, m, k):
    square = x[:, :, None] * jnp.ones((1, 1, 3))
    h = jnp.swapaxes(square, 1, 2)
    g = jnp.where(jnp.isfinite(h * h), square, 0.0)
    return noise(
        k, total(g * jnp.minimum(1.0, 1.0 / jnp.sqrt(jnp.sum(g * g, (1, 2))))[:, None, None], m)
    )


@attack("the norm of half of the row")
def half_norm(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.minimum(1.0, 1.0 / norms(g[:, :1]))[:, None], m))


@attack("the norm over the records")
def column_norm(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.minimum(1.0, 1.0 / jnp.sqrt(jnp.sum(g * g, 0))), m))


@attack("the mean square is no norm", Z / np.sqrt(3))
def mean_square(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.minimum(1.0, 1.0 / jnp.sqrt(jnp.mean(g * g, 1)))[:, None], m))


@attack("the norm squared")
def squared(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.minimum(1.0, 1.0 / jnp.sum(g * g, 1))[:, None], m))


@attack("the root of the norm")
def root(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.minimum(1.0, lax.rsqrt(norms(g)))[:, None], m))


@attack("maximum for minimum")
def maximum(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.maximum(1.0, 1.0 / norms(g))[:, None], m))


@attack("an epsilon that is taken away")
def negative_epsilon(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.minimum(5.0, 1.0 / (norms(g) - 0.5))[:, None], m))


@attack("a negative clipping norm", Z / 7.0)
def negative_norm(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.minimum(7.0, -7.0 / norms(g))[:, None], m))


@attack("a clipping norm from the data")
def norm_from_data(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.minimum(1.0, jnp.median(norms(g)) / norms(g))[:, None], m))


@attack("rows are changed after their norm was taken")
def changed_after(w, x, y, m, k):
    g = guarded(x)
    f = jnp.minimum(1.0, 1.0 / norms(g))
    return noise(k, total((g + 3.0) * f[:, None], m))


@attack("the factor of the next record")
def factor_of_next(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * jnp.roll(jnp.minimum(1.0, 1.0 / norms(g)), 1)[:, None], m))


@attack("branches of the clipping swapped")
def swapped_branches(w, x, y, m, k):
    g = guarded(x)
    n = norms(g)[:, None]
    return noise(k, total(jnp.where(n < 1.0, g / n, g), m))


@attack("a norm in coarse numbers", 1.49)
def coarse_norm(w, x, y, m, k):
    g = guarded(x)
    n = norms(g.astype(jnp.bfloat16)).astype(jnp.float32)
    return noise(k, total(g * jnp.minimum(1.0, 1.0 / n)[:, None], m))


@attack("clipped after NaN was not selected away")
def unguarded(w, x, y, m, k):
    return noise(k, total(clipped(x), m))


@attack("a product with C may be infinite before the norm divides it")
def infinity_over_infinity(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(g * 2.0 / jnp.maximum(norms(g), 2.0)[:, None], m), 2.0)


@attack("two leaves, the norm of one")
def one_leaf(w, x, y, m, k):
    g, h = guarded(x), guarded(y)
    f = jnp.minimum(1.0, 1.0 / norms(g))
    return dp.gaussian_mechanism(k, (total(g * f[:, None], m), total(h * f, m)), Z)


@attack("two clippings of the same rows", Z / 2.0)
def two_clippings(w, x, y, m, k):
    return noise(k, total(marked(x), m) + total(marked(x), m))


@attack("one sum released twice", Z / np.sqrt(2))
def released_twice(w, x, y, m, k):
    a, b = jax.random.split(k)
    s = total(marked(x), m)
    return noise(a, s), noise(b, s)


@attack("one sum in two shapes", Z / np.sqrt(2))
def two_shapes(w, x, y, m, k):
    s = total(marked(x), m)
    return dp.gaussian_mechanism(k, (s, s[::-1][None]), Z)


@attack("a row put beside itself", Z / np.sqrt(2))
def beside_itself(w, x, y, m, k):
    r = marked(x)
    return noise(k, total(jnp.concatenate([r, r], 1), m))


@attack("a row repeated", Z / 2.0)
def repeated(w, x, y, m, k):
    return noise(k, total(jnp.broadcast_to(marked(x)[:, None], (N, 4, 3)), m))


@attack("a row times a matrix of ones", Z / 3.0 * 1.001)
def by_matrix(w, x, y, m, k):
    return noise(k, total(marked(x) @ jnp.ones((3, 3)), m))


def uneven(x, m, k, move):
    """Some of a row's elements are those of its transpose, by a comparison that is not one for all of the record."""
    rows = guarded(jnp.concatenate([x, x[:, :1]], 1)).reshape(N, 2, 2)
    norm = jnp.broadcast_to(norms(rows.reshape(N, 4))[:, None, None], rows.shape)
    short = marked(rows)
    above = move(norm, jnp.array([[0.0, 9.0], [0.0, 0.0]])) > 1.0
    return noise(k, total(jnp.where(above, jnp.swapaxes(short, 1, 2), short), m))


@attack("a norm that is raised in one place of the row", Z / np.sqrt(2))
def uneven_maximum(w, x, y, m, k):
    return uneven(x, m, k, jnp.maximum)


@attack("a norm that something is added to in one place of the row", Z / np.sqrt(2))
def uneven_sum(w, x, y, m, k):
    return uneven(x, m, k, jnp.add)


@pytest.mark.parametrize(("step", "truth", "records"), attack)
def test_nothing_worse_than_certified(step, truth, records):
    nothing_worse_than_certified(step, truth, records)
