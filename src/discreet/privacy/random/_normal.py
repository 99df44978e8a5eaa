"""The standard Gaussian, body and tails: Box-Muller with a radius of 40 bits, and of 72 in the tail.

`jax.random.normal` inverts the CDF at 23 random bits in float32 and so never exceeds 5.42. For
privacy the missing tail counts: outputs that only one of two neighbours can produce. Here a pair is
`r cos(t), r sin(t)` with `r = sqrt(-2 log u)`, so that two words give two values; a third word
divides the tail finely, up to r = 10.06.

The first half of this file has no randomness in it: from uniform words to pairs. In float32 a pair
takes two words. The upper 24 bits of the second are the angle: three choose one of the eight
reflections of the first octant, 21 the place in it. Its other 8 bits continue the first word: u has
40 bits. Below 2**-24 it gets 32 more from a word of its own, so that the tail is as finely divided
as the body. XLA does not vectorise sine and cosine on a CPU, so both are polynomials here, and the
logarithm is one that reads mantissa and exponent off the bits. Everything is elementwise on (2,
pairs): row 0 is x, row 1 is y.
"""

from collections.abc import Sequence
from functools import partial
from math import pi, prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array

from discreet.privacy.random._chacha import WORDS_PER_BLOCK, fast_keystream, keystream
from discreet.privacy.random._keys import check_key
from discreet.privacy.random._prng import NORMAL, nonce

# Pairs whose radius word is smaller get more bits: one in 2**24.
RARE = np.uint32(2**8)

_LOW_BITS = 8
_OCTANT_BITS = 21
_SIGN = np.uint32(2**31)
_ROOT_HALF_WORD = np.uint32(0xB504F333)  # sqrt(1/2) * 2**32
_ROOT_HALF_BITS = np.int32(0x3F3504F3)  # sqrt(1/2) as float32
_MANTISSA_BITS = np.int32(23)
# Minimax in the relative error: (log(1 + f) - f + f**2 / 2) / f**3 between sqrt(1/2) - 1 and
# sqrt(2) - 1, to 2**-24.9 of log(1 + f); sin(pi / 4 * s) / s and cos(pi / 4 * s) in s**2 between 0
# and 1, to 2**-28.6 and 2**-25.1.
_LOG = (
    0.3333390951,
    -0.2500133813,
    0.1996306330,
    -0.1657758504,
    0.1491476893,
    -0.1426748633,
    0.0870043486,
)
_SINE = (0.7853981853, -0.0807454363, 0.0024900071, -0.0000359545083)
_COSINE = (1.0, -0.3084242642, 0.0158499144, -0.000318880513)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + np.float32(coefficient)
    return value


def minus_log(first: Array, second: Array, more: Array | None = None) -> Array:
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
    # in units of 2**-32
    distance = (first ^ flip).astype(jnp.float32) + rest * np.float32(2.0**-_LOW_BITS)
    bits = lax.bitcast_convert_type(distance, jnp.int32)
    exponent = (bits - _ROOT_HALF_BITS) >> _MANTISSA_BITS
    mantissa = lax.bitcast_convert_type(bits - (exponent << _MANTISSA_BITS), jnp.float32)
    f = jnp.where(upper, distance * np.float32(-(2.0**-32)), mantissa - 1)
    octaves = jnp.where(upper, np.float32(0), (exponent - 32).astype(jnp.float32))
    square = f * f
    log = f - np.float32(0.5) * square + f * square * _polynomial(_LOG, f)
    return -(octaves * np.float32(np.log(2)) + log)


def pairs_float32(
    first: Array, second: Array, more: Array | None = None, poison: Array | None = None
) -> Array:
    """Pairs of independent Gaussian values, float32[2, n].

    Args:
        first: uint32[n], of the radius.
        second: uint32[n], of the angle, with 8 bits of the radius.
        more: uint32[n], 32 bits for the radii whose `first` is below `RARE`.
        poison: A scalar that is added to every radius: zero, or NaN if nothing of the result may be
            used.
    """
    radius = jnp.sqrt(2 * minus_log(first, second, more))
    if poison is not None:
        radius = radius + poison
    radius = radius[None]
    word = second[None]
    place = (word >> np.uint32(_LOW_BITS)) & np.uint32(2**_OCTANT_BITS - 1)
    s = (place.astype(jnp.float32) + np.float32(0.5)) * np.float32(2.0**-_OCTANT_BITS)
    square = s * s
    sine = s * _polynomial(_SINE, square)
    cosine = _polynomial(_COSINE, square)
    row = lax.broadcasted_iota(jnp.uint32, (2, 1), 0)
    # Bit 29 exchanges sine and cosine, which row 1 has the other way round; bits 31 and 30 are the
    # signs.
    swapped = (((word >> np.uint32(29)) ^ row) & np.uint32(1)).astype(bool)
    value = radius * jnp.where(swapped, sine, cosine)
    signed = lax.bitcast_convert_type(value, jnp.uint32) ^ ((word << row) & _SIGN)
    return lax.bitcast_convert_type(signed, jnp.float32)


def pairs_float64(high: Array, low: Array, angle: Array, angle_low: Array) -> Array:
    """The same in float64 from four words a pair: 64 bits of radius, 3 + 61 of angle; float64[2, n]."""
    radius = jnp.sqrt(2 * minus_log_float64(high, low))
    octant_bits = 29
    fraction = (angle & np.uint32(2**octant_bits - 1)).astype(jnp.float64)
    fraction = fraction + (angle_low.astype(jnp.float64) + 0.5) * 2.0**-32
    turn = fraction * (pi / 4 * 2.0**-octant_bits)
    cosine = radius * jnp.cos(turn)
    sine = radius * jnp.sin(turn)
    swap, negative_x, negative_y = (
        (angle >> np.uint32(bit) & np.uint32(1)).astype(bool) for bit in (29, 30, 31)
    )
    x = jnp.where(swap, sine, cosine)
    y = jnp.where(swap, cosine, sine)
    return jnp.stack([jnp.where(negative_x, -x, x), jnp.where(negative_y, -y, y)])


def minus_log_float64(high: Array, low: Array) -> Array:
    """-log(u) for u = (64-bit number + 1/2) / 2**64, with full relative precision at both ends."""
    upper = (high >> np.uint32(31)).astype(bool)
    flip = jnp.where(upper, np.uint32(0xFFFFFFFF), np.uint32(0))
    # The distance from u to the nearer of 0 and 1: in the upper half 1 - u, whose bits are the
    # complement.
    distance = (high ^ flip).astype(jnp.float64) * 2.0**-32
    distance = distance + ((low ^ flip).astype(jnp.float64) + 0.5) * 2.0**-64
    rounded = jnp.where(upper, 1 - distance, distance)
    # What 1 - distance lost by rounding matters near u = 1; to first order it is this much of the
    # logarithm.
    lost = jnp.where(upper, ((rounded - 1) + distance) / rounded, 0)
    return lost - jnp.log(rounded)


def normal(key: Array, shape: Sequence[int] = (), dtype: DTypeLike = jnp.float32) -> Array:
    """Draw independent standard Gaussian values with untruncated tails.

    Guarantee, for ideal random words, in float32. In exact arithmetic a pair is (r cos t, r sin t),
    where t is one of the 2**24 midpoints of equal parts of the circle and r = sqrt(-2 log u); u is
    one of the 2**40 midpoints of equal parts of (0, 1), and where it falls below 2**-24, one of the
    midpoints of parts 2**32 times finer. All are equally likely and independent. Hence (1) tails:
    P(r > s) is right to 2**-41 for every s and to 2**-73 for s > 5.77, until r ends at 10.06; what
    lies beyond has probability 2**-73 a pair. (2) Body: there are exact Gaussian pairs z on the
    same probability space such that |x - z| <= 2**-20 max(r, 1) in both coordinates, but for a
    probability of 2**-41 a pair; this includes float32 rounding. No value is exactly zero, infinite
    or NaN (in float16 tiny values round to zero). In float64 u has 64 bits everywhere, t has 64,
    and |x - z| <= 2**-21 r.

    Speed: long float32 or float64 draws on a CPU take their words from OpenSSL where the packages
    `cryptography` and `cffi` (the extra `fast`) are installed, three times as fast as without. The
    words are the same. If they could not be made, the computation fails with an error, and all
    values are NaN should the error be lost; never are they zero or old. How long a draw takes
    depends on its values only where u falls below 2**-24, once in 2**24 pairs.

    Not guaranteed: these are floating-point numbers, and which of them can occur depends on the
    arithmetic. An attacker who sees the lowest bits of `value + noise` may learn from them
    (Mironov, CCS 2012), as with every floating-point sampler.

    Batches of keys: use `jax.vmap`; the results are those of a loop.

    Args:
        key: One key; use it for nothing else.
        shape: Shape of the result.
        dtype: float32; float64 when JAX's x64 mode is on; float16 and bfloat16 are rounded from
            float32.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: Not a typed key, or a dtype that is none of the four.
        ValueError: An array of keys; float64 without x64 mode; 2**31 values or more.

    Example:
        >>> from discreet.privacy.random import key, normal
        >>> normal(key(0), (3,)).shape
        (3,)
    """
    key = check_key(key, "key")
    dtype = np.dtype(dtype)
    if dtype not in (jnp.float32, jnp.float64, jnp.float16, jnp.bfloat16):
        raise TypeError(f"Gaussian values are float16, bfloat16, float32 or float64, not {dtype}.")
    if dtype == jnp.float64 and jnp.result_type(float) != jnp.float64:
        raise ValueError(
            "float64 values were requested while JAX's x64 mode is off. Request float32, or call "
            "jax.config.update('jax_enable_x64', True) first."
        )
    return _normal(jax.random.key_data(key), tuple(shape), dtype)


@partial(jax.jit, static_argnums=(1, 2))
def _normal(key_words: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    size = prod(shape)
    if size == 0:
        return jnp.zeros(shape, dtype)
    if size >= 2**31:
        raise ValueError(
            f"One draw makes fewer than 2**31 Gaussian values, not {size:,}. Draw in parts, with keys of their own."
        )
    num_pairs = -(-size // 2)
    values = (
        _float64(key_words, num_pairs) if dtype == jnp.float64 else _float32(key_words, num_pairs)
    )
    return values.reshape(-1)[:size].reshape(shape).astype(dtype)


def _float64(key_words: Array, num_pairs: int) -> Array:
    words, right = fast_keystream(
        key_words, nonce(NORMAL, 64), -(-4 * num_pairs // WORDS_PER_BLOCK)
    )
    high, low, angle, angle_low = words[: 4 * num_pairs].reshape(4, num_pairs)
    return pairs_float64(high, low, angle, angle_low) + jnp.where(right, 0.0, jnp.nan)


def _float32(key_words: Array, num_pairs: int) -> Array:
    if 3 * num_pairs <= WORDS_PER_BLOCK:  # a third word for every pair is there already
        return pairs_float32(
            *keystream(key_words, nonce(NORMAL, 32), 1)[: 3 * num_pairs].reshape(3, num_pairs)
        )
    words, right = fast_keystream(
        key_words, nonce(NORMAL, 32), -(-2 * num_pairs // WORDS_PER_BLOCK)
    )
    # Cut out where they are used: what a loop shares with other code is copied into memory first.
    first = words[:num_pairs]
    second = words[num_pairs : 2 * num_pairs]
    poison = jnp.where(right, jnp.float32(0), jnp.float32(jnp.nan))

    def refine(state):
        """Make the next rare pair again, with its third word."""
        values, _, done = state
        number = jnp.arange(num_pairs, dtype=jnp.int32)
        pending = (words[:num_pairs] < RARE) & (number > done)
        i = jnp.argmax(pending).astype(jnp.int32)
        third = keystream(key_words, nonce(NORMAL, 32, 1), 1, (i >> 4).astype(jnp.uint32))[i & 15]
        x, y = pairs_float32(words[i][None], words[num_pairs + i][None], third[None], poison)
        values = lax.dynamic_update_slice(values, x, (i,))
        values = lax.dynamic_update_slice(values, y, (num_pairs + i,))
        return values, (pending & (number > i)).any(), i

    # A loop that nearly always ends before it begins costs less than a third word for every pair,
    # and XLA computes its input once, however many computations read its output.
    values = pairs_float32(first, second, poison=poison).reshape(-1)
    some = (first < RARE).any()
    # under shard_map: varies wherever the key does
    before_all = jnp.where(some, jnp.int32(-1), jnp.int32(-1))
    values, _, _ = lax.while_loop(lambda state: state[1], refine, (values, some, before_all))
    return values
