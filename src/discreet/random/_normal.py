"""The standard Gaussian, body and tails: Box-Muller with a radius of 40 bits, and of 72 in the tail.

`jax.random.normal` inverts the CDF at 23 random bits in float32 and so never exceeds 5.42. For privacy the missing
tail counts: outputs that only one of two neighbours can produce. Here a pair is `r cos(t), r sin(t)` with
`r = sqrt(-2 log u)`, so that two words give two values; a third word divides the tail finely, up to r = 10.06.
"""

from collections.abc import Sequence
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from discreet.random._box_muller import RARE, pairs_float32, pairs_float64
from discreet.random._chacha import WORDS_PER_BLOCK, fast_keystream, keystream
from discreet.random._keys import check_key
from discreet.random._prng import NORMAL, nonce


def normal(key: jax.Array, shape: Sequence[int] = (), dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Independent standard Gaussian values whose tails are real.

    Guarantee, for ideal random words, in float32. In exact arithmetic a pair is (r cos t, r sin t), where t is one of
    the 2**24 midpoints of equal parts of the circle and r = sqrt(-2 log u); u is one of the 2**40 midpoints of equal
    parts of (0, 1), and where it falls below 2**-24, one of the midpoints of parts 2**32 times finer. All are equally
    likely and independent. Hence (1) tails: P(r > s) is right to 2**-41 for every s and to 2**-73 for s > 5.77, until
    r ends at 10.06; what lies beyond has probability 2**-73 a pair. (2) Body: there are exact Gaussian pairs z on the
    same probability space such that |x - z| <= 2**-20 max(r, 1) in both coordinates, but for a probability of 2**-41
    a pair; this includes float32 rounding. No value is exactly zero, infinite or NaN (in float16 tiny values round
    to zero). In float64 u has 64 bits everywhere, t has 64, and |x - z| <= 2**-21 r.

    Speed: long float32 or float64 draws on a CPU take their words from OpenSSL where the packages `cryptography` and
    `cffi` are installed, three times as fast as without. The words are the same. If they could not be made, the
    computation fails with an error, and all values are NaN should the error be lost; never are they zero or old.
    How long a draw takes depends on its values only where u falls below 2**-24, once in 2**24 pairs.

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
        ValueError: an array of keys; float64 without x64 mode; 2**31 values or more.

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
    if size >= 2**31:
        raise ValueError(
            f"One draw makes fewer than 2**31 Gaussian values, not {size:,}. Draw in parts, with keys of their own."
        )
    num_pairs = -(-size // 2)
    values = _float64(key_words, num_pairs) if dtype == jnp.float64 else _float32(key_words, num_pairs)
    return values.reshape(-1)[:size].reshape(shape).astype(dtype)


def _float64(key_words: jax.Array, num_pairs: int) -> jax.Array:
    words, right = fast_keystream(key_words, nonce(NORMAL, 64), -(-4 * num_pairs // WORDS_PER_BLOCK))
    high, low, angle, angle_low = words[: 4 * num_pairs].reshape(4, num_pairs)
    return pairs_float64(high, low, angle, angle_low) + jnp.where(right, 0.0, jnp.nan)


def _float32(key_words: jax.Array, num_pairs: int) -> jax.Array:
    if 3 * num_pairs <= WORDS_PER_BLOCK:  # a third word for every pair is there already
        return pairs_float32(*keystream(key_words, nonce(NORMAL, 32), 1)[: 3 * num_pairs].reshape(3, num_pairs))
    words, right = fast_keystream(key_words, nonce(NORMAL, 32), -(-2 * num_pairs // WORDS_PER_BLOCK))
    # Cut out where they are used: what a loop shares with other code is copied into memory first.
    first, second = words[:num_pairs], words[num_pairs : 2 * num_pairs]
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

    # A loop that nearly always ends before it begins costs less than a third word for every pair, and XLA computes
    # its input once, however many computations read its output.
    values, some = pairs_float32(first, second, poison=poison).reshape(-1), (first < RARE).any()
    before_all = jnp.where(some, jnp.int32(-1), jnp.int32(-1))  # under shard_map: varies wherever the key does
    values, _, _ = lax.while_loop(lambda state: state[1], refine, (values, some, before_all))
    return values
