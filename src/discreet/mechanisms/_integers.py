"""Gaussian noise in integers: a sum is rounded to a grid, and discrete Gaussian noise is added there, exactly.

The release is g (K + Z). g is a power of two, K the integers nearest to the sum in units of g, and Z discrete Gaussian
(`discreet.random.discrete_gaussian`). Why that is private:

- *K.* Dividing a floating-point number by g is exact, so K is within 1/2 of the quotient. Sums of two neighbouring tables that
  lie C apart have K at most C / g + sqrt(d) apart in d coordinates, whatever the sums are. Sums too large for the words of K
  become the largest, which brings no two of them further apart.
- *Z.* Its standard deviation s has sqrt(s^2 - 6.2) >= stddev / g + m sqrt(d), where m is the largest noise multiplier that the
  release holds for. As long as stddev / C <= m, noise and distance then have the ratio that a continuous Gaussian of `stddev`
  has, and by the theorem in docs/arithmetic.md the release is one of that, but for a total variation of `SLACK`.
- *K + Z* is made of integers of 24 bits and carries, in a form that depends on K + Z alone; floats are computed from that form.

Every operation is exact, up to the conversion at the end: contraction to FMA, another order of operations or another device
change no bit. s is a multiple of b = 1 to 648 within a factor of two of the largest, so that noise is 0.11 % larger than asked
for on average, and 0.31 % at most, beside what m sqrt(d) adds.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from discreet.random import INNER_VARIANCE, MOST_FACTOR, SLACK_PER_VALUE, WORD, discrete_gaussian

SLACK = 2.0**31 * SLACK_PER_VALUE
"""Total variation between a release of fewer than 2**31 coordinates and a post-processing of continuous noise."""

LEAST_STDDEV, MOST_STDDEV = 1e-28, 1e30
"""Of noise that is known while tracing: beyond these a grid point is no normal float32."""

_INNER = {levels: math.sqrt(variance) for levels, variance in INNER_VARIANCE.items()}
_MARGIN = 2.0**-20  # 16 roundings to float32: more than are made
_FAST = 2.0**12  # of the grid of two levels, that m sqrt(d) may take: 0.4 to 0.8 % more noise
_FEW = 4096  # coordinates below which three levels cost next to nothing
_LEAST_FAST = 2.0**-4  # with less noise, a sum of 2**30 records has no room in two words
_UNKNOWN = 2.0**17  # of the grid of three levels, where the noise multiplier is not known: 0.02 to 0.04 % more noise


def most_multiplier(dim: int) -> float:
    """The largest noise multiplier that a release holds for if nothing is said of it."""
    return _UNKNOWN / math.sqrt(dim)


def levels_for(noise_multiplier: float, dim: int) -> int:
    """How many levels the noise of a release is made of: 2 where it is long and the rounding adds little to it, else 3.

    Raises:
        ValueError: Rounding would increase the noise by more than a tenth, even so.
    """
    share = noise_multiplier * math.sqrt(dim)
    if dim >= _FEW and noise_multiplier >= _LEAST_FAST and share <= _FAST:
        return 2
    if share > 0.05 * MOST_FACTOR * _INNER[3]:
        raise ValueError(
            f"a noise multiplier of {noise_multiplier:g} for {dim:,} coordinates: rounding to the grid of the noise would "
            "add more than a tenth to it. Release fewer coordinates together, or use less noise."
        )
    return 3


def widest_cell(dim: int, multiplier: float, levels: int) -> float:
    """At most this is sqrt(d) times the grid's spacing over `stddev`."""
    reach = 0.49 * MOST_FACTOR * _INNER[levels]
    return math.sqrt(dim) / (reach - multiplier * math.sqrt(dim))


def grid(stddev: Any, allowance: Any, levels: int) -> tuple[Array, Array]:
    """Spacing g and factor b: g is a power of two, and the discrete Gaussian of b has s^2 - 6.2 >= (stddev / g + allowance)^2.

    s^2 - 6.2 is at least b^2 INNER_VARIANCE[levels], since a level's own variance is above 6.2. Computed in float32 with more
    margin than its roundings take. Where there is no such b, it is 0.
    """
    # Rounded up to an integer also so that no product is contracted with the sum below: the same b in every program.
    stddev, allowance = jnp.asarray(stddev, jnp.float32), jnp.ceil(jnp.asarray(allowance, jnp.float32))
    reach = np.float32(MOST_FACTOR * _INNER[levels] * (1 - 2 * _MARGIN))
    bits = lax.bitcast_convert_type(stddev / (reach - allowance), jnp.int32)
    spacing = lax.bitcast_convert_type((bits + 0x7FFFFF) & ~0x7FFFFF, jnp.float32)
    needed = (stddev / spacing + allowance) * np.float32((1 + _MARGIN) / _INNER[levels])
    right = (spacing > 0) & (needed > 0) & (needed <= MOST_FACTOR)
    return spacing, jnp.where(right, jnp.ceil(needed), 0).astype(jnp.int32)


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
    total, carry = [], jnp.int32(0)
    for word, more in zip(words, [*noise, jnp.int32(0)], strict=True):
        total.append(word + more + carry)
        carry = total[-1] >> WORD
    return [*(word & (2**WORD - 1) for word in total[:-1]), total[-1]]


def add_noise_on_grid(key: PRNGKeyArray, leaves: list[Array], stddev: Any, multiplier: Any, levels: int) -> list[Array]:
    """The leaves with discrete Gaussian noise: one draw for all coordinates, in the order of the leaves.

    Args:
        key: for this release alone.
        leaves: float32 or float64. NaN stays NaN.
        stddev: of the noise at least; NaN makes all NaN.
        multiplier: the largest ratio of `stddev` to sensitivity that the release holds for; may be traced.
        levels: 2 or 3.
    """
    size = sum(x.size for x in leaves)
    spacing, factor = grid(stddev, multiplier * math.sqrt(size), levels)
    noise, right = discrete_gaussian(key, (size,), factor, levels=levels)
    unit = jnp.where(right & (factor > 0), spacing, jnp.nan)
    noised, start = [], 0
    for leaf in leaves:
        own = [word[start : start + leaf.size].reshape(leaf.shape) for word in noise]
        *lower, total = (x.astype(leaf.dtype) for x in added(rounded(leaf, spacing, levels), own))
        for word in reversed(lower):
            total = total * 2.0**WORD + word
        noised.append(jnp.where(jnp.isnan(leaf), leaf, total * unit.astype(leaf.dtype)))
        start += leaf.size
    return noised
