"""Programs that were wrongly proved until every rule was held against numbers (`test_rules`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import discreet as dp

from .attacks import CAPACITY
from .dishonest import Attacks, Z, marked, noise, nothing_worse_than_certified, total
from .programs import RATE, N, certify

attack = Attacks()


@attack("one record's turns of the incomplete beta function are counted for all")
def turns_in_common(w, x, y, m, k):
    b = lax.betainc(jnp.ones(N), jnp.ones(N), jnp.clip(y, 0.0, 1.0))
    return noise(k, total(marked(1e8 * (b - 0.5)[:, None]), m))


@attack(
    "clipped together, one leaf with padding and one without, each with the noise that it needs alone",
    0.9 * Z,
)
def half_masked(w, x, y, m, k):
    first, second = dp.clip_records((x, y[:, None]), 1.0)
    one, other = jax.random.split(k)
    return noise(one, total(first, m)), noise(other, second.sum(0), 2.0)


@attack("numbers with an imaginary part have a sine of any size")
def complex_sine(w, x, y, m, k):
    s = jnp.sin(lax.complex(x, x))
    s = jnp.where(s == s, s, 0.0)
    return noise(k, total(jnp.abs(s), m), 3.0)


@attack("rows turned into columns on the way into another shape")
def turned(w, x, y, m, k):
    columns = lax.reshape(x, (N, 3), (1, 0))
    return noise(k, total(marked(columns), m))


@attack("folded axes in another order")
def folded(w, x, y, m, k):
    rows = lax.rev(x.reshape(1, -1), (1,)).reshape(N, 3)
    return noise(k, total(marked(rows), m))


@attack("a record picked twice")
def picked_twice(w, x, y, m, k):
    numbers = np.array([0, 1, 1, 2])
    return noise(k, total(marked(x[numbers]), m[numbers]))


@attack("a record picked twice, from behind")
def picked_from_behind(w, x, y, m, k):
    numbers = np.array([0, N - 1, -1])
    return noise(k, total(marked(x[numbers]), m[numbers]))


@attack("records picked by a number that is not known")
def picked_unknown(w, x, y, m, k):
    numbers = jnp.full(4, w.astype(int))
    return noise(k, total(marked(x[numbers]), m[numbers]))


@attack("two picks that overlap", Z / 2.0)
def picks_that_overlap(w, x, y, m, k):
    one, other = np.arange(0, 10), np.arange(5, 15)
    return noise(k, total(marked(x[one]), m[one]) + total(marked(x[other]), m[other]))


@attack("indices that are said to be sorted, and are the records'")
def said_to_be_sorted(w, x, y, m, k):
    places = jnp.where(y > 0, 1, 0)
    rows = jnp.where(m[:, None], marked(x), 0.0)
    return noise(k, jax.ops.segment_sum(rows, places, 2, indices_are_sorted=True))


@attack("kernels of other records")
def kernels_of_others(w, x, y, m, k):
    images, kernels = jnp.ones((1, N, 3)) * x[:, :1], marked(x)[::-1][:, None]
    y = lax.conv_general_dilated(images, kernels, (1,), "SAME", feature_group_count=N)
    return noise(k, total(marked(y[0]), m))


@pytest.mark.parametrize(("step", "truth", "records"), attack)
def test_nothing_worse_than_certified(step, truth, records):
    nothing_worse_than_certified(step, truth, records)


def test_places_that_come_in_by_a_leaf_clipped_along():
    """In a sample a row's place tells who else is in it; by the norm of both, it is in the first leaf too."""

    def step(w, xs, ys, mask, key):
        draw, own = jax.random.split(key)
        (bx, bm), real = dp.poisson_subsample(draw, (xs, mask), RATE, CAPACITY)
        rows, _ = dp.clip_records((bx, jnp.arange(CAPACITY) * 1.0), 1.0)
        return dp.gaussian_mechanism(own, dp.sum_records(rows, bm & real), Z)

    with pytest.raises(dp.PrivacyError, match="place"):
        certify(step)


def test_keys_under_one_name_are_one_key():
    """A reshape may turn an array before: so it does with the names of keys."""

    def step(w, xs, ys, mask, key):
        keys = jax.random.split(key, (2, 2))
        other = lax.reshape(keys, (2, 2), (1, 0))
        s = dp.sum_records(dp.clip_records(xs, 1.0), mask)
        return dp.gaussian_mechanism(keys[0, 1], s, Z), dp.gaussian_mechanism(other[1, 0], s, Z)

    with pytest.raises(dp.PrivacyError, match="used twice"):
        certify(step)
