"""Discrete Laplace noise: comparisons alone, for pure epsilon on a grid.

`floor(L)` with L from the Laplace distribution of scale s has P(z) proportional to exp(-z / s) for
z >= 0 and to exp((z + 1) / s) for z < 0: a fair sign, and a magnitude G with the geometric law of q
= exp(-1 / s); the value is G, or -G - 1. For integers K, K + floor(L) = floor(K + L), so noise of
this law is a post-processing of the continuous mechanism, for all K at once.

G is made of independent parts, since q**G is a product over its binary digits:

- digit i, for i below 35, is 1 with probability q**(2**i) / (1 + q**(2**i));
- what is above them, H, is geometric again: coins that show heads with probability q**(2**35) are
  thrown until one does not. The loop is practically never entered (2**-46 a value at most), but
  without it the noise would end somewhere, and two sums could be told apart by which values they
  lead to.

Each comparison is with a threshold of 192 bits, computed from Python integers. So each probability
of a digit or a coin is right to a factor 1 +- 2**-99, and that of a value to 1 +- 2**-99 (H + 1). A
first word of 32 bits decides nearly always. Where one equals its threshold's, all values of its
chunk are made again with all words: the same values where they were decided.

Why epsilon stays pure. Sums that lie n >= 1 grid points apart in one coordinate give an output
probabilities whose logarithms differ by at most n / s + 2**-97 + n 2**-133, which is below (n / s)
(1 + 2**-60) as s <= 2**30; where the sums agree, so do the probabilities. Whoever chooses s
(`mechanisms._integers`) has a margin of 2**-21 in it. At smaller epsilon: T values, chosen
adaptively, have probabilities that are those of floor(L) to a factor 1 +- T 2**-98 (where all H are
0). So epsilon moves by at most T 2**-97 and delta by that share of itself: less than the last bit
of what an accountant computes and rounds up.

Time depends on the noise alone. Streams of the key (see the table in `_keys.py`): domain "dlap";
word 14 is 0 for first words, 1 for the others, and 2 + j for throw j + 1 of the coin; word 15 is
the number of the chunk.

Reference: Ghosh, Roughgarden, Sundararajan, "Universally utility-maximizing privacy mechanisms",
STOC 2009 (geometric noise).
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from discreet._jax import exact_product
from discreet.privacy.random._chacha import WORDS_PER_BLOCK, keystream
from discreet.privacy.random._discrete import checked_law, is_below
from discreet.privacy.random._prng import LAPLACE, nonce
from discreet.privacy.random._tables import PRECISION, WORD, exp_minus

LAPLACE_UNIT = 2**22
"""The scale of `discrete_laplace` is its factor times this."""
LEAST_LAPLACE = 128
MOST_LAPLACE = 256
_DIGITS = 35
_COINS = _DIGITS + 1  # the last is the coin of H
_THRESHOLD = 6  # words
_CHUNK = 1024
_MOST_HEADS = 2**30


@cache
def thresholds() -> np.ndarray:
    """uint32[factor - LEAST_LAPLACE, word, coin]: each coin's probability times 2**192, rounded, its highest word first."""
    one = 1 << PRECISION
    table = np.zeros((MOST_LAPLACE - LEAST_LAPLACE + 1, _THRESHOLD, _COINS), np.uint32)
    for row, factor in zip(table, range(LEAST_LAPLACE, MOST_LAPLACE + 1), strict=True):
        power = exp_minus(Fraction(1, factor * LAPLACE_UNIT))
        for coin in range(_COINS):
            share = power if coin == _DIGITS else (power << PRECISION) // (one + power)
            threshold = ((share >> PRECISION - 32 * _THRESHOLD - 1) + 1) >> 1
            row[:, coin] = [threshold >> 32 * k & 0xFFFFFFFF for k in reversed(range(_THRESHOLD))]
            power = power * power >> PRECISION
    return table


def _heads(words: list[Array], limits: Array, again: Callable[[Array], Array]) -> Array:
    """The number of heads of the coin of H before the first tail: by its first words, and by those that `again` makes."""

    def throw(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, heads, alive = state
        alive = alive & is_below(list(again(number)), limits)
        return number + 1, heads + alive, alive

    first = is_below(words, limits)
    start = jnp.int32(0), first.astype(jnp.int32), first
    return lax.while_loop(lambda state: state[2].any() & (state[0] < _MOST_HEADS), throw, start)[1]


def from_coins(
    first: Array, further: Callable[[], Array], limits: Array, again: Callable[[Array], Array]
) -> list[Array]:
    """Integers from words.

    Args:
        first: uint32[37, value]: the first word of each coin, and a word of which one bit is the
            sign.
        further: Makes uint32[5, 36, value], the other words of each coin.
        limits: uint32[6, 36], a row of `thresholds`.
        again: Makes uint32[6, value] for throw j + 1 of the coin of H.

    Returns:
        int32[value], three of them: words of base 2**24, the lowest first, all of one sign.
    """
    limits = limits[:, :, None]
    coins = first[:-1]
    negative = first[-1] >> np.uint32(31) == 1

    def whole() -> tuple[Array, Array]:
        words = [coins, *further()]
        return is_below(words, limits), _heads([x[-1] for x in words], limits[:, -1], again)

    # The first word of the coin of H has the threshold 0, so heads are among what is undecided.
    undecided = (coins == limits[0]).any()
    shown, heads = lax.cond(
        undecided, whole, lambda: (coins < limits[0], jnp.zeros(negative.shape, jnp.int32))
    )
    digits = shown[:-1].astype(jnp.int32)
    low = exact_product(1 << np.arange(WORD, dtype=np.int32), digits[:WORD])
    rest = _DIGITS - WORD
    middle = exact_product(1 << np.arange(rest, dtype=np.int32), digits[WORD:])
    middle = middle + ((heads & (2 ** (WORD - rest) - 1)) << rest)
    high = heads >> (WORD - rest)
    # -G - 1 for the negative sign.
    return [
        jnp.where(negative, -word - one, word) for word, one in ((low, 1), (middle, 0), (high, 0))
    ]


def discrete_laplace(
    key: Array, shape: Sequence[int] = (), factor: Array | int = MOST_LAPLACE
) -> list[Array]:
    """Draw independent integers from the law of floor(L), L Laplace of scale s = factor * 2**22.

    Guarantee, for ideal random words: each probability is that of floor(L) to a factor 1 +- 2**-99
    (H + 1), where H is the value's magnitude over 2**35. Values are independent. Every integer up
    to 2**65 can occur. The computation has no floating-point operation: the same key gives the same
    integers on every platform and under `jit`, `vmap`, `scan` and `shard_map`. Its instructions
    depend on the noise alone.

    Words: 37 of 32 bits for a value; where one of 1,024 is undecided, 180 more for each of these.

    Args:
        key: One key; use it for nothing else.
        shape: Shape of the result.
        factor: From 128 to 256; may be traced, and is not checked then.

    Returns:
        Three int32 arrays of `shape`: the words of base 2**24, the lowest first, all of one sign.

    Raises:
        TypeError: Not a typed key.
        ValueError: An array of keys; a factor out of range; 2**31 values or more.

    Example:
        >>> from discreet.privacy.random import discrete_laplace, key
        >>> low, middle, high = discrete_laplace(key(0), (3,))
        >>> high.tolist()
        [0, 0, 0]
    """
    return _draw_laplace(*checked_law(key, shape, factor, LEAST_LAPLACE, MOST_LAPLACE))


@partial(jax.jit, static_argnums=2)
def _draw_laplace(key_words: Array, factor: Array, shape: tuple[int, ...]) -> list[Array]:
    size = prod(shape)
    width = max(1, min(size, _CHUNK))
    limits = jnp.asarray(thresholds())[factor - LEAST_LAPLACE]

    def words(kind: Array | int, chunk: Array, *sizes: int) -> Array:
        number = prod(sizes) * width
        stream = keystream(key_words, nonce(LAPLACE, kind, chunk), -(-number // WORDS_PER_BLOCK))
        return stream[:number].reshape(*sizes, width)

    def make(chunk: Array) -> list[Array]:
        return from_coins(
            words(0, chunk, _COINS + 1),
            lambda: words(1, chunk, _THRESHOLD - 1, _COINS),
            limits,
            lambda number: words(2 + number, chunk, _THRESHOLD),
        )

    chunks = lax.map(make, jnp.arange(-(-size // width)))
    return [x.reshape(-1)[:size].reshape(shape) for x in chunks]
