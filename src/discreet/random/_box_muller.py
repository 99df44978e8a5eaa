"""From uniform words to Gaussian pairs: `r cos(t), r sin(t)` with `r = sqrt(-2 log u)`, and no randomness in it.

In float32 a pair takes two words. The upper 24 bits of the second are the angle: three choose one of the eight
reflections of the first octant, 21 the place in it. Its other 8 bits continue the first word: u has 40 bits. Below
2**-24 it gets 32 more from a word of its own, so that the tail is as finely divided as the body.

XLA does not vectorise sine and cosine on a CPU, so both are polynomials here, and the logarithm is one that reads
mantissa and exponent off the bits. Everything is elementwise on (2, pairs): row 0 is x, row 1 is y.
"""

from math import pi

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Pairs whose radius word is smaller get more bits: one in 2**24.
RARE = np.uint32(2**8)

_LOW_BITS = 8
_OCTANT_BITS = 21
_SIGN = np.uint32(2**31)
_ROOT_HALF_WORD = np.uint32(0xB504F333)  # sqrt(1/2) * 2**32
_ROOT_HALF_BITS = np.int32(0x3F3504F3)  # sqrt(1/2) as float32
_MANTISSA_BITS = np.int32(23)
# Minimax in the relative error: (log(1 + f) - f + f**2 / 2) / f**3 between sqrt(1/2) - 1 and sqrt(2) - 1, to 2**-24.9
# of log(1 + f); sin(pi / 4 * s) / s and cos(pi / 4 * s) in s**2 between 0 and 1, to 2**-28.6 and 2**-25.1.
_LOG = (0.3333390951, -0.2500133813, 0.1996306330, -0.1657758504, 0.1491476893, -0.1426748633, 0.0870043486)
_SINE = (0.7853981853, -0.0807454363, 0.0024900071, -0.0000359545083)
_COSINE = (1.0, -0.3084242642, 0.0158499144, -0.000318880513)


def _polynomial(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + np.float32(coefficient)
    return value


def minus_log(first: jax.Array, second: jax.Array, more: jax.Array | None = None) -> jax.Array:
    """-log(u) in float32, with full relative precision at both ends.

    Args:
        first: uint32[n], the upper 32 bits of u.
        second: uint32[n]; its lowest 8 bits are the next of u.
        more: uint32[n], 32 more bits, used where `first` is below `RARE`.
    """
    # Above sqrt(1/2) it is the distance from 1 that counts, whose bits are the complement.
    upper = first >= _ROOT_HALF_WORD
    flip = jnp.where(upper, np.uint32(0xFFFFFFFF), np.uint32(0))
    low = ((second ^ flip) & np.uint32(2**_LOW_BITS - 1)).astype(jnp.float32)
    if more is None:
        rest = low + np.float32(0.5)
    else:
        finer = (more.astype(jnp.float32) + np.float32(0.5)) * np.float32(2.0**-32)
        rest = low + jnp.where(first < RARE, finer, np.float32(0.5))
    distance = (first ^ flip).astype(jnp.float32) + rest * np.float32(2.0**-_LOW_BITS)  # in units of 2**-32
    bits = lax.bitcast_convert_type(distance, jnp.int32)
    exponent = (bits - _ROOT_HALF_BITS) >> _MANTISSA_BITS
    mantissa = lax.bitcast_convert_type(bits - (exponent << _MANTISSA_BITS), jnp.float32)
    f = jnp.where(upper, distance * np.float32(-(2.0**-32)), mantissa - 1)
    octaves = jnp.where(upper, np.float32(0), (exponent - 32).astype(jnp.float32))
    square = f * f
    log = f - np.float32(0.5) * square + f * square * _polynomial(_LOG, f)
    return -(octaves * np.float32(np.log(2)) + log)


def pairs_float32(
    first: jax.Array, second: jax.Array, more: jax.Array | None = None, poison: jax.Array | None = None
) -> jax.Array:
    """Pairs of independent Gaussian values, float32[2, n].

    Args:
        first: uint32[n], of the radius.
        second: uint32[n], of the angle, with 8 bits of the radius.
        more: uint32[n], 32 bits for the radii whose `first` is below `RARE`.
        poison: a scalar that is added to every radius: zero, or NaN if nothing of the result may be used.
    """
    radius = jnp.sqrt(2 * minus_log(first, second, more))
    if poison is not None:
        radius = radius + poison
    radius, word = radius[None], second[None]
    place = (word >> np.uint32(_LOW_BITS)) & np.uint32(2**_OCTANT_BITS - 1)
    s = (place.astype(jnp.float32) + np.float32(0.5)) * np.float32(2.0**-_OCTANT_BITS)
    square = s * s
    sine, cosine = s * _polynomial(_SINE, square), _polynomial(_COSINE, square)
    row = lax.broadcasted_iota(jnp.uint32, (2, 1), 0)
    # Bit 29 exchanges sine and cosine, which row 1 has the other way round; bits 31 and 30 are the signs.
    swapped = (((word >> np.uint32(29)) ^ row) & np.uint32(1)).astype(bool)
    value = radius * jnp.where(swapped, sine, cosine)
    signed = lax.bitcast_convert_type(value, jnp.uint32) ^ ((word << row) & _SIGN)
    return lax.bitcast_convert_type(signed, jnp.float32)


def pairs_float64(high: jax.Array, low: jax.Array, angle: jax.Array, angle_low: jax.Array) -> jax.Array:
    """The same in float64 from four words a pair: 64 bits of radius, 3 + 61 of angle; float64[2, n]."""
    radius = jnp.sqrt(2 * minus_log_float64(high, low))
    octant_bits = 29
    fraction = (angle & np.uint32(2**octant_bits - 1)).astype(jnp.float64)
    fraction = fraction + (angle_low.astype(jnp.float64) + 0.5) * 2.0**-32
    turn = fraction * (pi / 4 * 2.0**-octant_bits)
    cosine, sine = radius * jnp.cos(turn), radius * jnp.sin(turn)
    swap, negative_x, negative_y = ((angle >> np.uint32(bit) & np.uint32(1)).astype(bool) for bit in (29, 30, 31))
    x, y = jnp.where(swap, sine, cosine), jnp.where(swap, cosine, sine)
    return jnp.stack([jnp.where(negative_x, -x, x), jnp.where(negative_y, -y, y)])


def minus_log_float64(high: jax.Array, low: jax.Array) -> jax.Array:
    """-log(u) for u = (64-bit number + 1/2) / 2**64, with full relative precision at both ends."""
    upper = (high >> np.uint32(31)).astype(bool)
    flip = jnp.where(upper, np.uint32(0xFFFFFFFF), np.uint32(0))
    # The distance from u to the nearer of 0 and 1: in the upper half 1 - u, whose bits are the complement.
    distance = (high ^ flip).astype(jnp.float64) * 2.0**-32
    distance = distance + ((low ^ flip).astype(jnp.float64) + 0.5) * 2.0**-64
    rounded = jnp.where(upper, 1 - distance, distance)
    # What 1 - distance lost by rounding matters near u = 1; to first order it is this much of the logarithm.
    lost = jnp.where(upper, ((rounded - 1) + distance) / rounded, 0)
    return lost - jnp.log(rounded)
