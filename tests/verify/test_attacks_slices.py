"""Attacks with sums over slices whose borders differ from release to release.

`a` and `b` are two joint clips of the columns u and v of one record, as (u, v) and as (v, u). A
record with v = 0 has leaf 0 of `a` and leaf 1 of `b` at full length: who takes the one from `a` and
the other from `b` sees it twice.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discreet as dp

from .dishonest import Attacks, W, Z, nothing_worse_than_certified
from .programs import KEY, M, N, X, Y

attack = Attacks()
TWICE = Z / np.sqrt(2)


def clips(x, m=None, norm=1.0):
    """Both clips, with zeros in the rows that the mask leaves out."""
    u, v = x[:, :1], x[:, 1:2]
    found = *dp.clip_records((u, v), norm), *dp.clip_records((v, u), norm)
    return found if m is None else [jnp.where(m[:, None], leaf, 0.0) for leaf in found]


def cut(rows, first, end):
    return rows[first:end].sum(0)


def each(key, *sums):
    """A release of its own for each sum."""
    keys = jax.random.split(key, len(sums))
    return [dp.gaussian_mechanism(k, s, Z) for k, s in zip(keys, sums, strict=True)]


@attack("other borders in the second release", TWICE)
def other_borders(w, x, y, m, k):
    a0, a1, b0, b1 = clips(x, m)
    return each(k, cut(a0, 0, 4) + cut(b0, 4, N), cut(a1, 0, 2) + cut(b1, 2, N))


@attack("both in one release", TWICE)
def one_release(w, x, y, m, k):
    a0, a1, b0, b1 = clips(x, m)
    return dp.gaussian_mechanism(
        k, (cut(a0, 0, 4) + cut(b0, 4, N), cut(a1, 0, 2) + cut(b1, 2, N)), Z
    )


@attack("one release of Laplace noise, whose norm counts every coordinate", Z / 2)
def one_release_of_laplace(w, x, y, m, k):
    a0, a1, b0, b1 = clips(x, m)
    return dp.laplace_mechanism(
        k, (cut(a0, 0, 4) + cut(b0, 4, N), cut(a1, 0, 2) + cut(b1, 2, N)), Z
    )


@attack("gaps between the slices", TWICE)
def gaps(w, x, y, m, k):
    a0, a1, b0, b1 = clips(x, m)
    return each(k, cut(a0, 0, 4) + cut(b0, 6, N), cut(a1, 0, 2) + cut(b1, 3, N))


@attack("the first slice alone moves", TWICE)
def one_border_moves(w, x, y, m, k):
    a0, a1, b0, b1 = clips(x, m)
    return each(k, cut(a0, 0, 4) + cut(b0, 5, N), cut(a1, 0, 3) + cut(b1, 3, N))


@attack("without a mask", TWICE / 2)
def no_mask(w, x, y, m, k):
    a0, a1, b0, b1 = clips(x)
    return each(k, cut(a0, 0, 4) + cut(b0, 4, N), cut(a1, 0, 2) + cut(b1, 2, N))


@attack("four clips, four borders: the record is in a slice of another clip each time", Z / 2)
def four(w, x, y, m, k):
    columns = [x[:, 0:1], x[:, 1:2], x[:, 2:3], jnp.cos(x[:, 0:1])]
    groups = [
        dp.clip_records(tuple(columns[(leaf - shift) % 4] for leaf in range(4)), 1.0)
        for shift in range(4)
    ]
    borders = [(0, 20, 21, 22, N), (0, 1, 20, 21, N), (0, 1, 2, 20, N), (0, 1, 2, 3, N)]
    sums = []
    for leaf, edges in enumerate(borders):
        kept = [
            jnp.where(m[:, None], groups[g][leaf], 0.0)[edges[g] : edges[g + 1]] for g in range(4)
        ]
        sums.append(sum(part.sum(0) for part in kept))
    return each(k, *sums)


@attack("three sums, two of which have borders in common", Z / np.sqrt(2))
def two_of_three(w, x, y, m, k):
    a0, a1, b0, b1 = clips(x, m)
    sums = (
        cut(a0, 0, 4) + cut(b0, 4, N),
        cut(a1, 0, 4) + cut(b1, 4, N),
        cut(a1, 0, 2) + cut(b1, 2, N),
    )
    return each(k, *sums)


@attack("slices within slices", TWICE)
def nested(w, x, y, m, k):
    a0, a1, b0, b1 = (leaf[: N - 2] for leaf in clips(x, m))
    return each(k, cut(a0, 0, 4) + cut(b0, 4, N), cut(a1, 0, 2) + cut(b1, 2, N))


@attack("every second row", TWICE)
def strided(w, x, y, m, k):
    a0, a1, b0, b1 = clips(x, m)
    return each(k, a0[::2].sum(0) + b0[1::2].sum(0), a1[1::2].sum(0) + b1[::2].sum(0))


@attack("rows picked by their numbers", TWICE)
def picks(w, x, y, m, k):
    a0, a1, b0, b1 = clips(x, m)
    low, high, all_but_two = np.arange(4), np.arange(4, N), np.arange(2, N)
    return each(k, a0[low].sum(0) + b0[high].sum(0), a1[low[:2]].sum(0) + b1[all_but_two].sum(0))


@attack("rows picked beside a slice", TWICE)
def picks_beside_slices(w, x, y, m, k):
    a0, a1, b0, b1 = clips(x, m)
    return each(
        k, a0[np.arange(4)].sum(0) + cut(b0, 4, N), cut(a1, 0, 2) + b1[np.arange(2, N)].sum(0)
    )


@attack(
    "slices of one clip with unequal weights: a record may have the larger one in each release",
    Z / 2,
)
def one_clip_weighted(w, x, y, m, k):
    a0, a1, *_ = clips(x, m)
    return each(k, 2 * cut(a0, 0, 4) + cut(a0, 4, N), cut(a1, 0, 2) + 2 * cut(a1, 2, N))


@pytest.mark.parametrize(("step", "truth", "records"), attack)
def test_nothing_worse_than_certified(step, truth, records):
    nothing_worse_than_certified(step, truth, records)


@pytest.mark.parametrize("step", [other_borders, one_release, gaps])
def test_replacing_a_record(step):
    """The accountant doubles C, so the event's multiplier is that of a record that is added."""
    event = dp.certify(
        step, W, X, Y, M, KEY, records=(1, 2), mask=3, relation=dp.Relation.REPLACE_ONE
    ).event
    assert event.noise_multiplier <= TWICE * (1 + 1e-6)


def multiplier(step):
    return dp.certify(step, W, X, Y, M, KEY, records=(1, 2), mask=3).event.noise_multiplier


def test_the_same_borders_share_the_bound():
    """Leaf 0 of either clip in one release and leaf 1 in the other: together they are one record, once."""

    def step(w, x, y, m, k):
        a0, a1, b0, b1 = clips(x, m)
        return each(k, cut(a0, 0, 4) + cut(b0, 4, N), cut(a1, 0, 4) + cut(b1, 4, N))

    assert multiplier(step) == pytest.approx(Z)


def test_slices_of_one_clip_share_its_bound_wherever_the_borders_are():
    def step(w, x, y, m, k):
        a0, a1, *_ = clips(x, m)
        return each(k, cut(a0, 0, 4) + cut(a0, 4, N), cut(a1, 0, 2) + cut(a1, 2, N))

    assert multiplier(step) == pytest.approx(Z)


def test_other_borders_are_exactly_two_releases():
    assert multiplier(other_borders) == pytest.approx(TWICE)
    assert multiplier(four) == pytest.approx(Z / 2)


def test_in_a_loop():
    """One iteration's releases are one event, and the borders differ within it."""

    def step(w, x, y, m, k):
        a0, a1, b0, b1 = clips(x, m)

        def body(carry, key):
            first, second = each(key, cut(a0, 0, 4) + cut(b0, 4, N), cut(a1, 0, 2) + cut(b1, 2, N))
            return carry + first + second, None

        return jax.lax.scan(body, jnp.zeros(1), jax.random.split(k, 4))[0]

    event = dp.certify(step, W, X, Y, M, KEY, records=(1, 2), mask=3).event
    assert event.count == 4
    assert event.event.noise_multiplier == pytest.approx(TWICE)


def test_one_record_that_is_copied_along_its_own_axis_counts_as_often() -> None:
    def step(key, xs):
        wide = jnp.broadcast_to(dp.clip_records(xs, 1.0), (5, 3))
        return dp.gaussian_mechanism(key, wide.sum(0), 1.0)

    found = dp.certify(step, KEY, jnp.zeros((1, 3)), records=1, relation=dp.Relation.REPLACE_ONE)
    # and not 1 / sqrt(5), as if the copies were five records
    assert found.event.noise_multiplier <= 1 / 5
