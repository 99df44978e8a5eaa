"""Noise in integers: a sum is rounded to a grid, and discrete Gaussian or Laplace noise is added there, exactly.

The release is g (K + Z). g is a power of two, K the integers nearest to the sum in units of g, and
Z discrete noise (`privacy.random`). Why that is private, for Gaussian noise:

- *K.* Dividing a floating-point number by g is exact, so K is within 1/2 of the quotient. Sums of
  two neighbouring tables that lie C apart have K at most C / g + sqrt(d) apart in d coordinates,
  whatever the sums are. Sums too large for the words of K become the largest, which brings no two
  of them further apart.
- *Z.* Its standard deviation s has sqrt(s^2 - 6.2) >= stddev / g + m sqrt(d), where m is the
  largest noise multiplier that the release holds for. As long as stddev / C <= m, noise and
  distance then have the ratio that a continuous Gaussian of `stddev` has, and by the theorem in
  docs/arithmetic.md the release is one of that, but for a total variation of `SLACK`.
- *K + Z* is an integer below 2^53, which a float64 holds; or, with three levels, it is made of
  integers of 24 bits and carries, in a form that depends on K + Z alone. Floats are computed from
  that.

Laplace noise goes by L1 norms: K are at most C / g + d apart, and s >= scale / g + m d. K + Z is
then a rounding of continuous noise of scale s, exactly, so that nothing is added to delta.

Every operation is exact, up to the conversion at the end: contraction to FMA, another order of
operations or another device change no bit. s is a multiple of b within a factor of two of the
largest, 648 (Laplace: 256), so that noise is 0.11 % larger than asked for on average, and 0.31 % at
most (0.3 and 0.8 %), beside what m sqrt(d) or m d adds.

A choice (`choose_on_grid`) is exact as well. Scores are rounded to integers K, in grid points of g
= 2^-16. Answers are proposed uniformly, and accepted with probability exp(-r (max K - K)): the
first accepted one has probabilities in proportion to exp(r K). Each binary digit b of the
difference has its own coin of probability exp(-r 2^b), a comparison of 128 bits, and nothing else
is inexact. Where one record moves scores by D, the K move by at most D / g + 1. With r = (epsilon /
2) / (1 / g + 1) the privacy range is then epsilon (D + g) / (1 + g).
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from discreet._jax import double
from discreet.privacy.random import (
    INNER_VARIANCE,
    LAPLACE_UNIT,
    MOST_FACTOR,
    MOST_LAPLACE,
    SLACK_PER_VALUE,
    WORD,
    discrete_gaussian,
    discrete_laplace,
)

SLACK = 2.0**31 * SLACK_PER_VALUE
"""Total variation between a release of fewer than 2**31 coordinates and a post-processing of continuous noise."""

LEAST_STDDEV = 1e-28
MOST_STDDEV = 1e30
"""Limits of noise known at trace time: beyond these a grid point is not a normal float32."""


class Law(NamedTuple):
    """Discrete noise whose size is an integer factor times a unit."""

    # The size of the noise, in grid points, that a factor of 1 stands for. For Gaussian noise it is
    # the deviation of the part that the factor multiplies, which the theorem counts as less than
    # the whole.
    unit: float
    most: int  # The largest factor
    words: int  # Of base 2**24, in which a sum is rounded
    # Makes integers from a key, a shape and a factor, and says whether they are what they should be
    draw: Callable[..., tuple[list[Array], Any]]

    @property
    def reach(self) -> float:
        """The largest size."""
        return self.unit * self.most


GAUSSIAN_LAWS = {
    levels: Law(math.sqrt(variance), MOST_FACTOR, levels, partial(discrete_gaussian, levels=levels))
    for levels, variance in INNER_VARIANCE.items()
}
"""The law of Gaussian noise by its number of levels."""
LAPLACE_LAW = Law(LAPLACE_UNIT, MOST_LAPLACE, 3, lambda *args: (discrete_laplace(*args), True))

_MARGIN = 2.0**-20  # 16 roundings to float32: more than are made
_FAST = 2.0**12  # of the grid of two levels, that m sqrt(d) may take: 0.4 to 0.8 % more noise
_FEW = 4096  # coordinates below which three levels cost next to nothing
_LEAST_FAST = 2.0**-4  # with less noise, a sum of 2**28 records is more than `LARGEST`
LARGEST = 2.0**52
"""Largest rounded sum, in grid points, if the noise is one word; sum and noise together are below 2**53."""
# of the grid of three levels, where the noise multiplier is not known: 0.02 to 0.04 % more noise
UNKNOWN = 2.0**17


def levels_for(noise_multiplier: float, dim: int) -> int:
    """Choose the number of levels of a release's noise: 2 if it has many coordinates and rounding adds little, else 3.

    Refuses noise that rounding would increase by more than a tenth with either.
    """
    share = noise_multiplier * math.sqrt(dim)
    if dim >= _FEW and noise_multiplier >= _LEAST_FAST and share <= _FAST:
        return 2
    if share > MOST_SHARE * GAUSSIAN_LAWS[3].reach:
        raise ValueError(too_far(noise_multiplier, dim))
    return 3


MOST_SHARE = 0.05
"""Of the reach of a law, what rounding may take: more adds more than a tenth to the noise."""


def too_far(noise_multiplier: float, dim: int) -> str:
    """What is wrong with such a release, and the remedy."""
    return (
        f"a noise multiplier of {noise_multiplier:g} for {dim:,} coordinates: rounding to the grid of the noise would "
        "add more than a tenth to it. Raise epsilon or delta, take fewer steps, or release fewer coordinates together."
    )


def grid(size: Any, allowance: Any, law: Law) -> tuple[Array, Array]:
    """Spacing g, a power of two, and factor b, so that b law.unit >= size / g + allowance.

    Computed in float32 with more margin than its roundings take. Where there is no such b, it is 0.
    """
    # Rounded up to an integer also so that no product is contracted with the sum below: the same b
    # in every program.
    size = jnp.asarray(size, jnp.float32)
    allowance = jnp.ceil(jnp.asarray(allowance, jnp.float32))
    reach = np.float32(law.reach * (1 - 2 * _MARGIN))
    bits = lax.bitcast_convert_type(size / (reach - allowance), jnp.int32)
    spacing = lax.bitcast_convert_type((bits + 0x7FFFFF) & ~0x7FFFFF, jnp.float32)
    needed = (size / spacing + allowance) * np.float32((1 + _MARGIN) / law.unit)
    right = (spacing > 0) & (needed > 0) & (needed <= law.most)
    return spacing, jnp.where(right, jnp.ceil(needed), 0).astype(jnp.int32)


def nearest(x: Array, spacing: Array) -> Array:
    """The integers nearest to x / spacing, cut to `LARGEST`, in float64: `double` must be in force."""
    return jnp.clip(
        jnp.round(x.astype(jnp.float64) * (1 / spacing).astype(jnp.float64)), -LARGEST, LARGEST
    )


def rounded(x: Array, spacing: Array, levels: int) -> list[Array]:
    """The integers nearest to x / spacing, as `levels` words of base 2**24, lowest first; the last has the sign."""
    largest = 2.0 ** (WORD * levels + 6)
    rest = jnp.clip(jnp.round(x * (1 / spacing).astype(x.dtype)), -largest, largest)
    words = []
    for _ in range(levels - 1):
        upper = jnp.floor(rest * 2.0**-WORD)
        words.append((rest - upper * 2.0**WORD).astype(jnp.int32))
        rest = upper
    return [*words, rest.astype(jnp.int32)]


def added(words: list[Array], noise: list[Array]) -> list[Array]:
    """The words of the sum, each but the last from 0 to 2**24 - 1: one form for each integer, whatever it is the sum of."""
    total = []
    carry = jnp.int32(0)
    for word, more in zip(
        words, [*noise, *[jnp.int32(0)] * (len(words) - len(noise))], strict=True
    ):
        total.append(word + more + carry)
        carry = total[-1] >> WORD
    return [*(word & (2**WORD - 1) for word in total[:-1]), total[-1]]


def add_noise_on_grid(
    key: PRNGKeyArray, leaves: list[Array], size: Any, allowance: Any, law: Law
) -> list[Array]:
    """Add discrete noise of at least this size: one draw for all coordinates, in the order of the leaves.

    NaN stays NaN, and a size of NaN makes all NaN. `allowance`: grid points of the noise for the
    rounding; may be traced.
    """
    spacing, factor = grid(size, allowance, law)
    noise, right = law.draw(key, (sum(x.size for x in leaves),), factor)
    unit = jnp.where(right & (factor > 0), spacing, jnp.nan)
    noised = []
    start = 0
    for leaf in leaves:
        own = [word[start : start + leaf.size].reshape(leaf.shape) for word in noise]
        start += leaf.size
        if law.words == 2:
            with double():
                total = (nearest(leaf, spacing) + own[0].astype(jnp.float64)) * unit.astype(
                    jnp.float64
                )
                noised.append(jnp.where(jnp.isnan(leaf), leaf, total.astype(leaf.dtype)))
            continue
        with double() if leaf.dtype == np.float64 else nullcontext():
            *lower, total = (
                x.astype(leaf.dtype) for x in added(rounded(leaf, spacing, law.words), own)
            )
            for word in reversed(lower):
                total = total * 2.0**WORD + word
            noised.append(jnp.where(jnp.isnan(leaf), leaf, total * unit.astype(leaf.dtype)))
    return noised


CHOICE_GRID = 2.0**-16
"""Grid of scores, each with a sensitivity of about 1."""
CHOICE_SLACK = 2.0**-100
"""Total variation between a choice among at most `MOST_CHOICES` and its law: 44 coins of 2**-128, for each of 2 m proposals."""
MOST_CHOICES = 2**20
_COIN_WORDS = 4
_PLACES = 44
"""Binary digits of the difference of two scores: beyond 2**28 scores count as 2**28 less than the largest."""


@functools.lru_cache(maxsize=64)
def coins(epsilon: float) -> tuple[tuple[int, ...], ...]:
    """The probability exp(-r 2^b) times 2**128 for each binary digit b, rounded down, as words of 32 bits, highest first."""
    with decimal.localcontext(decimal.Context(prec=80, Emin=-(10**9), Emax=10**9)):
        rate = decimal.Decimal(epsilon) / 2 / (decimal.Decimal(1 / CHOICE_GRID) + 1)
        whole = [
            int((-rate * 2**place).exp() * 2 ** (32 * _COIN_WORDS)) for place in range(_PLACES)
        ]
    words = range(_COIN_WORDS - 1, -1, -1)
    return tuple(tuple(number >> (32 * word) & 0xFFFFFFFF for word in words) for number in whole)


def choose_on_grid(key: PRNGKeyArray, scores: Array, epsilon: float) -> Array:
    """Choose the index of one score with probability proportional to exp(r K), for epsilon as defined in the module's docstring.

    There are at most `MOST_CHOICES` of them; NaN counts as the lowest of all.
    """
    count = len(scores)
    with double() if scores.dtype == np.float64 else nullcontext():
        lower, upper = rounded(
            jnp.where(jnp.isnan(scores), -jnp.inf, scores), jnp.float32(CHOICE_GRID), 2
        )
    most = upper.max()
    least = jnp.where(upper == most, lower, -1).max()
    reach = 2 ** (_PLACES - WORD)
    far = most - jnp.maximum(upper, most - 2 * reach)
    near = least - lower
    far = jnp.where(near < 0, far - 1, far)
    near = jnp.where(near < 0, near + 2**WORD, near)
    # The lowest that counts: max(K, max K - 2^44), which moves by no more than the K do.
    beyond = far >= reach
    far = jnp.where(beyond, reach - 1, far)
    near = jnp.where(beyond, 2**WORD - 1, near)
    table = np.array(coins(epsilon), np.uint32)
    live = [place for place in range(_PLACES) if table[place].any()]
    width = 1 + _COIN_WORDS * len(live)
    bits = max(1, (count - 1).bit_length())
    block = min(max(64, 2**bits), 1024)

    def propose(state: tuple[Array, Array]) -> tuple[Array, Array]:
        turn, _ = state
        words = jax.random.bits(jax.random.fold_in(key, turn), (block, width), jnp.uint32)
        place = (words[:, 0] & np.uint32(2**bits - 1)).astype(jnp.int32)
        own = jnp.minimum(place, count - 1)
        digits = [
            near[own] >> digit & 1 if digit < WORD else far[own] >> (digit - WORD) & 1
            for digit in range(_PLACES)
        ]
        accepted = place < count
        for digit in set(range(_PLACES)) - set(live):
            accepted &= digits[digit] == 0  # its coin has a chance below 2**-128
        thrown = words[:, 1:].reshape(block, len(live), _COIN_WORDS)
        limit = jnp.asarray(table[live])
        heads = jnp.zeros((block, len(live)), bool)
        for word in reversed(range(_COIN_WORDS)):
            heads = (thrown[..., word] < limit[:, word]) | (
                (thrown[..., word] == limit[:, word]) & heads
            )
        needed = jnp.stack([digits[digit] == 1 for digit in live], axis=1)
        accepted &= jnp.all(heads | ~needed, axis=1)
        return turn + 1, jnp.where(accepted.any(), own[jnp.argmax(accepted)], -1)

    return lax.while_loop(lambda state: state[1] < 0, propose, (jnp.int32(0), jnp.int32(-1)))[1]
