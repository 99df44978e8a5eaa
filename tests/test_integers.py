"""Sums on the grid of the noise: what rounding to it costs is paid for, and every operation is exact."""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import discreet as dp
from discreet._jax import double
from discreet.privacy.gradients import ClippedSum
from discreet.privacy.mechanisms import (
    GAUSSIAN,
    LAPLACE,
    _integers,
    levels_for,
    planned_gaussian,
    release,
)
from discreet.privacy.random import LAPLACE_UNIT
from discreet.privacy.random._tables import INNER_VARIANCE, MOST_FACTOR

KEY = dp.random.key(16)
STDDEVS = [1e-28, 3e-7, 0.1, 1.0, np.nextafter(np.float32(2), np.float32(3)), 2.999, 3.0, 1e5, 1e30]
grid = jax.jit(
    lambda size, share, levels: _integers.grid(size, share, GAUSSIAN.law(levels)), static_argnums=2
)


def stddev_of(spacing, factor, levels):
    """The square of the noise's deviation in grid points, and the deviation in the units of the sum."""
    square = INNER_VARIANCE[2] + int(factor) ** 2 * INNER_VARIANCE[levels]
    return square, float(spacing) * math.sqrt(square)


@pytest.mark.parametrize("levels", [2, 3])
@pytest.mark.parametrize("share", [0.0, 1.0, 100.0, 4096.0, 2.0**17])
def test_the_noise_pays_for_rounding_in_exact_arithmetic(levels, share):
    """sqrt(s^2 - 6.2) >= stddev / g + m sqrt(d): the mutation that drops the last term fails for every share above 0."""
    short = 0
    for stddev in [*STDDEVS, *np.exp(np.random.default_rng(1).uniform(-40, 40, 100))]:
        spacing, factor = grid(np.float32(stddev), np.float32(share), levels)
        assert math.frexp(float(spacing))[0] == 0.5
        assert 1 <= factor <= MOST_FACTOR
        square, whole = stddev_of(spacing, factor, levels)
        with mpmath.workprec(200):
            square -= Fraction(62, 10)
            root = mpmath.sqrt(square.numerator) / mpmath.sqrt(square.denominator)
            needed = mpmath.mpf(float(np.float32(stddev))) / mpmath.mpf(float(spacing)) + share
            assert root >= needed
            short += root < needed + share
        # No more noise than that either, but for the steps of the factor.
        assert whole / stddev < (1 + share * float(spacing) / stddev) * (1 + 1 / 322)
        assert math.sqrt(10**4) * float(spacing) / stddev <= GAUSSIAN.cell(
            10**4, share / 100, levels
        )
    assert short or share < (4096 if levels == 2 else 2**17)  # less is within a step of the factor


def test_laplace_noise_pays_for_rounding_in_the_l1_norm():
    """s >= scale / g + m d in exact arithmetic, and K of sums half a grid point from the next integer, d coordinates of them."""
    for dim, scale, multiplier in itertools.product(
        (1, 1000, 10**6), (1e-28, 0.7, 1.0, 3.0, 1e30), (0.01, 0.1)
    ):
        spacing, factor = _integers.grid(
            np.float32(scale), np.float32(multiplier * dim), _integers.LAPLACE_LAW
        )
        size = Fraction(int(factor) * LAPLACE_UNIT)
        needed = (
            Fraction(float(np.float32(scale))) / Fraction(float(spacing))
            + Fraction(multiplier) * dim
        )
        assert needed <= size <= needed * Fraction(129, 128) * (1 + Fraction(1, 2**19)) + 1
        assert dim * float(spacing) / scale <= LAPLACE.cell(dim, multiplier, 3)
        most = LAPLACE.most_multiplier(dim) * dim
        assert _integers.grid(np.float32(scale), np.float32(most), _integers.LAPLACE_LAW)[1] > 0
    base = np.arange(-500, 500) + 0.5
    below, above = (
        integers((base + x).astype(np.float32), np.float32(1.0), 3) for x in (-1e-3, 1e-3)
    )
    # a record of L1 norm 2 moves them by d
    assert sum(abs(x - y) for x, y in zip(below, above, strict=True)) == 1000


@pytest.mark.parametrize(
    ("stddev", "share"), [(1.0, 2.0**21), (1.0, np.inf), (np.nan, 1.0), (np.inf, 1.0), (0.0, 1.0)]
)
def test_where_there_is_no_grid_nothing_is_released(stddev, share):
    assert grid(stddev, share, 2)[1] == 0
    out = jax.jit(lambda s, m: GAUSSIAN.add(KEY, [jnp.ones(4)], s, m, 2))(stddev, share / 2)
    assert jnp.isnan(out[0]).all()


def integers(x, spacing, levels) -> list[int]:
    if levels == 2:
        with double():
            return [int(k) for k in _integers.nearest(jnp.asarray(x), spacing)]
    words = [np.asarray(w) for w in _integers.rounded(jnp.asarray(x), spacing, levels)]
    return [sum(int(w.flat[i]) << 24 * k for k, w in enumerate(words)) for i in range(np.size(x))]


LIMITS = {2: 2**52, 3: 2**78}


@pytest.mark.parametrize("levels", [2, 3])
def test_sums_become_the_nearest_integers(levels):
    generator = np.random.default_rng(levels)
    x = np.concatenate(
        [
            generator.standard_normal(500) * 10.0 ** generator.integers(-12, 6, 500),
            [0.0, -0.0, 1e-38, 2.0**-20, -(2.0**-20)],
        ]
    ).astype(np.float32)
    spacing = np.float32(2.0**-19)
    for value, found in zip(x, integers(x, spacing, levels), strict=True):
        exact = Fraction(float(value)) / Fraction(float(spacing))
        limit = LIMITS[levels]
        assert abs(found - max(-limit, min(limit, exact))) <= Fraction(1, 2)
    huge = np.array([np.inf, 3e38, -3e38, -np.inf], np.float32)
    assert integers(huge, spacing, levels) == [LIMITS[levels] * sign for sign in (1, 1, -1, -1)]


def test_words_of_a_sum_are_those_of_the_integer_alone():
    """K and Z apart tell more than K + Z; the words of the sum are the same whatever they are the sum of."""
    levels = 3
    generator = np.random.default_rng(7)
    for total in (0, -1, -3, 2**24 - 1, -(2**24), 5 * 2**24 + 17, -(2**40) + 9, 2**52):
        noises = [int(n) for n in generator.integers(-(2**23), 2**23, 20)]
        forms = set()
        for noise in noises:
            rest, words = total - noise, []
            for _ in range(levels - 1):
                words.append(jnp.int32(rest & 0xFFFFFF))
                rest >>= 24
            words.append(jnp.int32(rest & 0xFFFFFFFF if rest >= 0 else rest))
            own = [jnp.int32(noise), jnp.int32(0)]
            forms.add(tuple(int(w) for w in _integers.added(words, own)))
        assert len(forms) == 1
        (form,) = forms
        assert sum(w << 24 * i for i, w in enumerate(form)) == total
        assert all(0 <= w < 2**24 for w in form[:-1])


@pytest.mark.essential
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_integers_and_noise_of_two_levels_are_added_exactly(monkeypatch, dtype):
    """Up to the cut, which is found where it leaves a float64 no room for the noise."""

    def off():
        noise = np.array([1, -1, 2**25 - 1, -(2**25 - 1), 12345], np.int32)
        law = GAUSSIAN.law(2)._replace(draw=lambda *_: ([jnp.asarray(noise)], True))
        with jax.enable_x64(True):
            sums = jnp.asarray([3e20, -3e20, 3e20, 0.75, -(2.0**40)], dtype)
            out = np.asarray(
                _integers.add_noise_on_grid(KEY, [sums.astype(dtype)], 2.0**20, 0.0, law)[0]
            )
            assert out.dtype == dtype
        spacing = float(grid(2.0**20, 0.0, 2)[0])
        sums = [
            max(-(2**52), min(2**52, round(Fraction(float(x)) / Fraction(spacing))))
            for x in np.asarray(sums)
        ]
        return [
            float(x) - float(dtype(spacing * (k + int(z))))
            for x, k, z in zip(out, sums, noise, strict=True)
        ]

    assert not any(off())
    monkeypatch.setattr(_integers, "LARGEST", 2.0**54)
    assert any(off())


@pytest.mark.parametrize("levels", [2, 3])
def test_integers_of_neighbours_are_no_farther_apart_than_is_paid_for(levels):
    """Sums half a grid point from the next integer, where rounding moves every coordinate, and others."""
    dim, stddev, multiplier = 10_000, 3.0, 40.0
    spacing, factor = grid(stddev, multiplier * math.sqrt(dim), levels)
    square, _ = stddev_of(spacing, factor, levels)
    generator = np.random.default_rng(3)
    farthest = 0.0
    for case in range(4):
        base = (
            generator.integers(-(2**20), 2**20, dim) + 0.5
            if case % 2
            else generator.standard_normal(dim) * 1e6
        )
        without = (base * float(spacing)).astype(np.float32)
        record = np.full(dim, 1.0) if case < 2 else generator.standard_normal(dim)
        record *= stddev / multiplier / np.linalg.norm(record)
        both = (without.astype(np.float64) + record).astype(np.float32)
        length = np.linalg.norm(both.astype(np.float64) - without)  # as computed
        k, other = (np.array(integers(x, spacing, levels), float) for x in (without, both))
        distance = np.linalg.norm(other - k)
        assert distance <= length / float(spacing) + math.sqrt(dim)
        farthest = max(farthest, distance / (length / float(spacing) if length else math.inf))
        assert distance * multiplier * (
            stddev / multiplier / max(length, stddev / multiplier)
        ) <= math.sqrt(square - 4)
    assert levels == 3 or farthest > 1.0


def test_not_a_number_stays_none_and_what_is_infinite_does_not_show():
    x = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 3e38, 1.0])
    out = dp.gaussian_mechanism(KEY, {"x": x}, 1.0)["x"]
    assert np.isnan(out).tolist() == [True, False, False, False, False]
    assert out[1] == out[3] == -out[2] > 2.0**48
    assert abs(out[4] - 1) < 12


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_bits_are_those_of_the_first_day(dtype):
    """On every platform, in every program and release of JAX."""
    with jax.enable_x64(dtype == jnp.float64):
        x = jnp.linspace(-3, 3, 7, dtype=dtype)
        once = dp.gaussian_mechanism(KEY, x, 2.5)
        traced = jax.jit(dp.gaussian_mechanism)(KEY, x, jnp.asarray(2.5, dtype))
        np.testing.assert_array_equal(once, traced)
        assert once.dtype == dtype
        spacing, _ = grid(2.5, 2.0**17, 3)
        whole = (np.asarray(once, np.float64) / float(spacing)).astype(int)
        # what float32 cannot hold
        assert np.abs(whole - KNOWN).max() <= (0 if dtype == jnp.float32 else 64)


KNOWN = [-342150592, -1029445888, 152986992, 1054920448, 14625988, 615931648, 1748383488]


def test_the_spacing_follows_the_bound():
    """Under adaptive clipping C moves within one program: noise and grid with it, bit for bit."""
    total = ClippedSum({"w": jnp.zeros(5000)}, jnp.zeros(()), jnp.zeros(()), 1.0)

    @jax.jit
    def noise(bound):
        return release(KEY, total._replace(l2_bound=bound), jnp.float32(2.0), levels=2).gradient[
            "w"
        ]

    one, small, large = noise(1.0), noise(2.0**-10), noise(2.0**10)
    np.testing.assert_array_equal(small, one * 2.0**-10)
    np.testing.assert_array_equal(large, one * 2.0**10)
    assert np.std(noise(1.5)) == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(
    ("multiplier", "dim", "levels"),
    [
        (1.0, 100, 3),
        (1.0, 10**4, 2),
        (64.0, 4096, 2),
        (65.0, 4096, 3),
        (4.9, 688_884, 2),
        (16.0, 688_884, 3),
        (1e-9, 10**4, 3),
    ],
)
def test_levels_are_the_fewest_that_suffice(multiplier, dim, levels):
    assert levels_for(multiplier, dim) == levels
    spacing, factor = grid(np.float32(multiplier), np.float32(multiplier * math.sqrt(dim)), levels)
    assert stddev_of(spacing, factor, levels)[1] / multiplier < 1.012


@pytest.mark.parametrize("share", [0.0, 0.04])
def test_the_deviation_of_what_is_drawn_is_known(share):
    """Also where rounding takes much of the grid: intervals took it to be 1.2 % above the plan's at most."""
    dim = 2**17
    multiplier = max(1.0, share * GAUSSIAN.law(3).reach / math.sqrt(dim))
    known = math.prod(GAUSSIAN.drawn(2.5, multiplier, dim))
    noise = planned_gaussian(KEY, jnp.zeros(dim), 2.5, multiplier)
    assert np.std(noise) == pytest.approx(known, rel=4.5 / math.sqrt(2 * dim))
    assert 1 + share <= known / 2.5 < 1.006 + 2.2 * share


def test_noise_that_rounding_would_increase_by_more_than_a_tenth_is_refused():
    with pytest.raises(ValueError, match="more than a tenth"):
        levels_for(1e5, 10**6)


@pytest.mark.parametrize(("known", "size"), list(itertools.product([True, False], [1e-29, 1e31])))
def test_scales_without_room_are_refused_or_poison(known, size):
    if known:
        with pytest.raises(ValueError, match="32-bit arithmetic supports"):
            dp.gaussian_mechanism(KEY, jnp.zeros(2), size)
    else:
        assert jnp.isnan(
            jax.jit(lambda s: dp.gaussian_mechanism(KEY, jnp.zeros(2), s))(jnp.float32(size))
        ).all()
