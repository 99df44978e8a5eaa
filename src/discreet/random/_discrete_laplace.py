"""Discrete Laplace noise: integers from ChaCha20 words by comparisons alone, for pure epsilon on a grid.

`floor(L)` with L from the Laplace distribution of scale s has P(z) proportional to exp(-z / s) for z >= 0 and to exp((z + 1) / s)
for z < 0: a fair sign, and a magnitude G with the geometric law of q = exp(-1 / s); the value is G, or -G - 1. For integers K,
K + floor(L) = floor(K + L), so noise of this law is a post-processing of the continuous mechanism, for all K at once.

G is made of independent parts, since q**G is a product over its binary digits:

- digit i, for i below 35, is 1 with probability q**(2**i) / (1 + q**(2**i));
- what is above them, H, is geometric again: coins that show heads with probability q**(2**35) are thrown until one does not.
  The loop is practically never entered (2**-46 a value at most), but without it the noise would end somewhere, and two sums
  could be told apart by which values they lead to.

Each comparison is with a threshold of 192 bits, computed from Python integers. So each probability of a digit or a coin is
right to a factor 1 +- 2**-99, and that of a value to 1 +- 2**-99 (H + 1). A first word of 32 bits decides nearly always. Where
one equals its threshold's, all values of its chunk are made again with all words: the same values where they were decided.

Why epsilon stays pure. Sums that lie n >= 1 grid points apart in one coordinate give an output probabilities whose logarithms
differ by at most n / s + 2**-97 + n 2**-133, which is below (n / s) (1 + 2**-60) as s <= 2**30; where the sums agree, so do the
probabilities. Whoever chooses s (`mechanisms._integers`) has a margin of 2**-21 in it. At smaller epsilon: T values, chosen
adaptively, have probabilities that are those of floor(L) to a factor 1 +- T 2**-98 (where all H are 0). So epsilon moves by at
most T 2**-97 and delta by that share of itself: less than the last bit of what an accountant computes and rounds up.

Time depends on the noise alone. Streams of the key (see the table in `_keys.py`): domain "dlap"; word 14 is 0 for first words, 1
for the others, and 2 + j for throw j + 1 of the coin; word 15 is the number of the chunk.

Reference: Ghosh, Roughgarden, Sundararajan, "Universally utility-maximizing privacy mechanisms", STOC 2009 (geometric noise).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from discreet.random._chacha import WORDS_PER_BLOCK, keystream
from discreet.random._discrete_gaussian import PRECISION, WORD, exp_minus
from discreet.random._keys import check_key, nonce

LAPLACE_UNIT = 2**22
"""The scale of `discrete_laplace` is its factor times this."""
LEAST_LAPLACE, MOST_LAPLACE = 128, 256

LAPLACE_DOMAIN = np.uint32(int.from_bytes(b"dlap", "little"))

_DIGITS = 35
_COINS = _DIGITS + 1  # the last is the coin of H
_THRESHOLD = 6  # words
_CHUNK = 1024
_MOST_HEADS = 2**30


@cache
def thresholds() -> np.ndarray:
    """uint32[factor - LEAST_LAPLACE, word, coin]: each coin's probability times 2**192, rounded, its highest word first."""
    one, table = 1 << PRECISION, np.zeros((MOST_LAPLACE - LEAST_LAPLACE + 1, _THRESHOLD, _COINS), np.uint32)
    for row, factor in zip(table, range(LEAST_LAPLACE, MOST_LAPLACE + 1), strict=True):
        power = exp_minus(Fraction(1, factor * LAPLACE_UNIT))
        for coin in range(_COINS):
            share = power if coin == _DIGITS else (power << PRECISION) // (one + power)
            threshold = ((share >> PRECISION - 32 * _THRESHOLD - 1) + 1) >> 1
            row[:, coin] = [threshold >> 32 * k & 0xFFFFFFFF for k in reversed(range(_THRESHOLD))]
            power = power * power >> PRECISION
    return table


def _below(words: Sequence[jax.Array], limits: jax.Array) -> jax.Array:
    """Whether numbers of several words, highest first, are below their thresholds."""
    below = jnp.zeros(words[0].shape, bool)
    for word, limit in reversed([*zip(words, limits, strict=True)]):
        below = jnp.where(word == limit, below, word < limit)
    return below


def _heads(words: list[jax.Array], limits: jax.Array, again: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """How often the coin of H shows heads before it does not: by its first words, and by those that `again` makes."""

    def throw(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        number, heads, alive = state
        alive = alive & _below(list(again(number)), limits)
        return number + 1, heads + alive, alive

    first = _below(words, limits)
    start = jnp.int32(0), first.astype(jnp.int32), first
    return lax.while_loop(lambda state: state[2].any() & (state[0] < _MOST_HEADS), throw, start)[1]


def from_coins(
    first: jax.Array, further: Callable[[], jax.Array], limits: jax.Array, again: Callable[[jax.Array], jax.Array]
) -> list[jax.Array]:
    """Integers from words.

    Args:
        first: uint32[37, value]: the first word of each coin, and a word of which one bit is the sign.
        further: makes uint32[5, 36, value], the other words of each coin.
        limits: uint32[6, 36], a row of `thresholds`.
        again: makes uint32[6, value] for throw j + 1 of the coin of H.

    Returns:
        int32[value], three of them: words of base 2**24, the lowest first, all of one sign.
    """
    limits = limits[:, :, None]
    coins, negative = first[:-1], first[-1] >> np.uint32(31) == 1

    def whole() -> tuple[jax.Array, jax.Array]:
        words = [coins, *further()]
        return _below(words, limits), _heads([x[-1] for x in words], limits[:, -1], again)

    # The first word of the coin of H has the threshold 0, so heads are among what is undecided.
    undecided = (coins == limits[0]).any()
    shown, heads = lax.cond(undecided, whole, lambda: (coins < limits[0], jnp.zeros(negative.shape, jnp.int32)))
    digits = shown[:-1].astype(jnp.int32)
    low = jnp.tensordot(1 << np.arange(WORD, dtype=np.int32), digits[:WORD], 1)
    rest = _DIGITS - WORD
    middle = jnp.tensordot(1 << np.arange(rest, dtype=np.int32), digits[WORD:], 1)
    middle, high = middle + ((heads & (2 ** (WORD - rest) - 1)) << rest), heads >> (WORD - rest)
    # -G - 1 for the negative sign.
    return [jnp.where(negative, -word - one, word) for word, one in ((low, 1), (middle, 0), (high, 0))]


def discrete_laplace(
    key: jax.Array, shape: Sequence[int] = (), factor: jax.Array | int = MOST_LAPLACE
) -> list[jax.Array]:
    """Independent integers of the law of floor(L), L Laplace of scale s = factor * 2**22.

    Guarantee, for ideal random words: each probability is that of floor(L) to a factor 1 +- 2**-99 (H + 1), where H is the
    value's magnitude over 2**35. Values are independent. Every integer up to 2**65 can occur. The computation has no
    floating-point operation: the same key gives the same integers on every platform and under `jit`, `vmap`, `scan` and
    `shard_map`. Its instructions depend on the noise alone.

    Words: 37 of 32 bits for a value; where one of 1,024 is undecided, 180 more for each of these.

    Args:
        key: one key; use it for nothing else.
        shape: of the result.
        factor: from 128 to 256; may be traced, and is not checked then.

    Returns:
        Three int32 arrays of `shape`: the words of base 2**24, the lowest first, all of one sign.

    Raises:
        TypeError: not a typed key.
        ValueError: an array of keys; a factor out of range; 2**31 values or more.

    Example:
        >>> from discreet.random import discrete_laplace, key
        >>> low, middle, high = discrete_laplace(key(0), (3,))
        >>> high.tolist()
        [0, 0, 0]
    """
    key = check_key(key, "key")
    if not isinstance(factor, Tracer) and not LEAST_LAPLACE <= int(factor) <= MOST_LAPLACE:
        raise ValueError(f"factor is {factor}; it must be an integer from {LEAST_LAPLACE} to {MOST_LAPLACE}.")
    if prod(shape) >= 2**31:
        raise ValueError(
            f"One draw makes fewer than 2**31 integers, not {prod(shape):,}. Draw in parts, with own keys."
        )
    return _draw(jax.random.key_data(key), jnp.int32(factor), tuple(shape))


@partial(jax.jit, static_argnums=2)
def _draw(key_words: jax.Array, factor: jax.Array, shape: tuple[int, ...]) -> list[jax.Array]:
    size = prod(shape)
    width = max(1, min(size, _CHUNK))
    limits = jnp.asarray(thresholds())[factor - LEAST_LAPLACE]

    def words(kind: jax.Array | int, chunk: jax.Array, *sizes: int) -> jax.Array:
        number = prod(sizes) * width
        stream = keystream(key_words, nonce(LAPLACE_DOMAIN, kind, chunk), -(-number // WORDS_PER_BLOCK))
        return stream[:number].reshape(*sizes, width)

    def make(chunk: jax.Array) -> list[jax.Array]:
        return from_coins(
            words(0, chunk, _COINS + 1),
            lambda: words(1, chunk, _THRESHOLD - 1, _COINS),
            limits,
            lambda number: words(2 + number, chunk, _THRESHOLD),
        )

    chunks = lax.map(make, jnp.arange(-(-size // width)))
    return [x.reshape(-1)[:size].reshape(shape) for x in chunks]
