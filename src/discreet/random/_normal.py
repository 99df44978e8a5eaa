"""The standard Gaussian, body and tails: Box-Muller with a 64-bit radius.

`jax.random.normal` inverts the CDF at 23 random bits in float32 and so never exceeds 5.42. For privacy the missing
tail counts: outputs that only one of two neighbours can produce. Here a pair is `r cos(t), r sin(t)` with
`r = sqrt(-2 log u)`; u has 64 bits of its own, so r reaches 9.49, and t has 32 (61 in float64).
"""

from collections.abc import Sequence
from functools import partial
from math import pi, prod

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from discreet.random._chacha import keystream_words
from discreet.random._keys import check_key
from discreet.random._prng import NORMAL, nonce

_OCTANT_BITS = 29


def normal(key: jax.Array, shape: Sequence[int] = (), dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Independent standard Gaussian values whose tails are real.

    Guarantee, for ideal random words. (1) Tails: the radius r of a pair takes 2**64 equally likely values, the
    quantiles of the Rayleigh law at (k + 1/2) / 2**64, so P(r > s) is right to 2**-64 for every s, until r ends at
    9.49. What lies beyond has probability 2**-64 a pair. (2) Body: there are exact Gaussian pairs z on the same
    probability space such that |x - z| <= 2**-21 r, but for a probability of 2**-41 a pair; this includes float32
    rounding. No value is exactly zero, infinite or NaN (in float16 tiny values round to zero).

    Not guaranteed: these are floating-point numbers, and which of them can occur depends on the arithmetic. An
    attacker who sees the lowest bits of `value + noise` may learn from them (Mironov, CCS 2012), as with every
    floating-point sampler.

    Batches of keys: use `jax.vmap`; the results are those of a loop.

    Args:
        key: one key; use it for nothing else.
        shape: of the result.
        dtype: float32; float64 when JAX's x64 mode is on; float16 and bfloat16 are rounded from float32.

    Returns:
        An array of `shape` and `dtype`.

    Raises:
        TypeError: not a typed key, or a dtype that is none of the four.
        ValueError: an array of keys; float64 without x64 mode; more than about 2**35 values.

    Example:
        >>> from discreet.random import key, normal
        >>> normal(key(0), (3,)).shape
        (3,)
    """
    key = check_key(key, "key")
    dtype = np.dtype(dtype)
    if dtype not in (jnp.float32, jnp.float64, jnp.float16, jnp.bfloat16):
        raise TypeError(f"Gaussian values are float16, bfloat16, float32 or float64, not {dtype}.")
    if dtype == jnp.float64 and jnp.result_type(float) != jnp.float64:
        raise ValueError(
            "float64 values were asked for while JAX's x64 mode is off. Ask for float32, or call "
            "jax.config.update('jax_enable_x64', True) first."
        )
    return _normal(jax.random.key_data(key), tuple(shape), dtype)


@partial(jax.jit, static_argnums=(1, 2))
def _normal(key_words: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    size = prod(shape)
    if size == 0:
        return jnp.zeros(shape, dtype)
    pairs = -(-size // 2)
    wide = dtype == jnp.float64
    words_per_pair = 4 if wide else 3
    words = keystream_words(key_words, nonce(NORMAL, 64 if wide else 32), words_per_pair * pairs)
    x, y = gaussian_pairs(*words.reshape(words_per_pair, pairs))
    return jnp.concatenate([x, y])[:size].reshape(shape).astype(dtype)


def gaussian_pairs(
    high: jax.Array, low: jax.Array, angle: jax.Array, angle_low: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Pairs of independent Gaussian values from uniform words: the transform alone, with no randomness in it.

    Args:
        high: uint32[n], the upper half of the 64 bits of the radius.
        low: uint32[n], the lower half.
        angle: uint32[n], of the angle.
        angle_low: uint32[n], 32 more bits of the angle; given, the computation is in float64.

    Returns:
        Two arrays of n values, float32, or float64 if `angle_low` is given.
    """
    dtype = np.dtype(np.float32) if angle_low is None else np.dtype(np.float64)
    radius = jnp.sqrt(2 * exponential(high, low, dtype))
    fraction = (angle & np.uint32(2**_OCTANT_BITS - 1)).astype(dtype)
    if angle_low is None:
        fraction = fraction + dtype.type(0.5)
    else:
        fraction = fraction + (angle_low.astype(dtype) + dtype.type(0.5)) * dtype.type(2.0**-32)
    turn = fraction * dtype.type(pi / 4 * 2.0**-_OCTANT_BITS)
    cosine, sine = radius * jnp.cos(turn), radius * jnp.sin(turn)
    # The other three bits choose among the eight reflections of the first octant, all alike for a Gaussian pair.
    swap, negative_x, negative_y = ((angle >> np.uint32(bit) & np.uint32(1)).astype(bool) for bit in (29, 30, 31))
    x, y = jnp.where(swap, sine, cosine), jnp.where(swap, cosine, sine)
    return jnp.where(negative_x, -x, x), jnp.where(negative_y, -y, y)


def exponential(high: jax.Array, low: jax.Array, dtype: np.dtype) -> jax.Array:
    """-log(u) for u = (64-bit number + 1/2) / 2**64, with full relative precision at both ends."""
    upper = (high >> np.uint32(31)).astype(bool)
    flip = jnp.where(upper, np.uint32(0xFFFFFFFF), np.uint32(0))
    # The distance from u to the nearer of 0 and 1: in the upper half 1 - u, whose bits are the complement.
    distance = (high ^ flip).astype(dtype) * dtype.type(2.0**-32)
    distance = distance + ((low ^ flip).astype(dtype) + dtype.type(0.5)) * dtype.type(2.0**-64)
    rounded = jnp.where(upper, 1 - distance, distance)
    # What 1 - distance lost by rounding matters near u = 1; to first order it is this much of the logarithm.
    lost = jnp.where(upper, ((rounded - 1) + distance) / rounded, 0)
    return lost - jnp.log(rounded)
