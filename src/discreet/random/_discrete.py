"""Discrete Gaussian and Laplace noise: integers from ChaCha20 words by integer arithmetic, with proved laws.

The Gaussian comes first, by table look-ups. `D(s)` is the law on the integers whose probabilities are proportional to
exp(-z**2 / (2 s**2)). A release of
`spacing * (K + Z)`, where K is an integer vector and Z has independent `D(s)` coordinates, has no last bits to read: every
integer within 15 standard deviations occurs, whatever K is, and the one floating-point operation comes after the noise.
docs/arithmetic.md has the theorem that carries the accounting of the continuous Gaussian over to it.

The spacing is a power of two, so that dividing by it is exact; what a standard deviation needs beyond that, a factor of up to
two, comes from an integer b, up to 648, in the noise itself. From words to an integer:

1. Z = A0 + b T. T is A1 with two levels and A1 + 648 A2 with three; all A are independent and D(s1), s1 = 1618.2. Completing
   the square in P(Z = z) = sum over y of P(A0 = z - b y) P(T = y) leaves exp(-z**2 / (2 s**2)), s**2 = s1**2 + b**2 t**2 for T
   of deviation t, times the sum of a Gaussian of deviation 2.49 or more over shifted integers, which is constant to a factor
   1 +- 2**-175 (Poisson summation). So two levels give s up to 2**20, and three up to 2**29.3.
2. A is a sign bit and a magnitude. Magnitudes 0 to 8190 and "8191 or more" are drawn by Walker and Vose's alias method:
   13 bits choose a column, 178 bits are compared with its threshold. A second table, of 2**14 columns, divides up "8191 or
   more", to 24,574. The tables are computed from Python integers of 512 bits, and the probabilities they give are exact
   multiples of 2**-191 and 2**-159.
3. A column, 18 bits of its threshold and the sign are one word, which decides all but one draw in 2**18. Only for those are
   the other 160 bits (and the words of the second table) made: block j of a second stream belongs to value j and to nothing
   else, so the result is the one that all bits together give, and it depends on neither batching nor platform.

The table is 32 KiB (it stays in a core's first cache). Time and memory accesses depend on the noise (which columns, how many
undecided draws), never on data. Streams of the key (see the table in `_keys.py`): domain "dgau", word 14 the number of levels,
word 15 0 for first words and 1 for undecided values, whose blocks are counted by value.

References: Walker, "An efficient method for generating discrete random variables with general distributions", TOMS 1977;
Vose, "A linear algorithm for generating random numbers with a given distribution", IEEE TSE 1991; Micciancio and Walter,
"Gaussian sampling over the integers: efficient, generic, constant-time", CRYPTO 2017 (sums of levels).
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, partial, reduce
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array

from discreet.random._chacha import WORDS_PER_BLOCK, fast_keystream, keystream, keystreams
from discreet.random._keys import GAUSSIAN, LAPLACE, check_key, nonce

SLACK_PER_VALUE = 2.0**-167
"""Total variation between a value of `discrete_gaussian` and D(s), and between it and a rounding of a continuous Gaussian."""

MOST_FACTOR = 648
"""The largest b: with it the sum over y of step 1 has a deviation of 2.49 at least."""
INNER_VARIANCE = {2: Fraction(4**20, 1 + MOST_FACTOR**2), 3: Fraction(4**20)}
"""The square of the deviation of T, by the number of levels: D(s) has s**2 = INNER_VARIANCE[2] + b**2 INNER_VARIANCE[levels]."""
WORD = 24  # bits of the words in which sums and noise are added

PRECISION = 512  # bits behind the point of the integers that tables are computed from
_MORE, _MORE_TAIL = 5, 4  # words of a threshold after the first, in the two tables
_PER_LEVEL = _MORE + 1 + _MORE_TAIL  # words of an undecided level: its threshold, then a draw from the second table
_AT_ONCE = 32  # blocks of all values' further words, up to which they are made for all
# Values are laid over each other in so many parts, until so few flags say which are undecided.
_PARTS = 16
_FLAGS = 4096

# --- tables --------------------------------------------------------------------------------------


class Alias(NamedTuple):
    """An alias table of 2**m columns: column i gives i if the random bits are below its threshold, else its alias."""

    # uint32[2**m]; the upper 32 - m bits are the first of the threshold, the others the alias. A column that always gives
    # itself has the threshold 2**(31 - m), which no draw of 31 - m bits reaches.
    entries: np.ndarray
    rest: np.ndarray  # uint32[more, 2**m], the other bits of the threshold


class Design(NamedTuple):
    """The composition of values from levels."""

    columns_log2: int  # the logarithm of the number of columns of a level's first table; the second has twice as many
    levels: int  # 2 or 3
    factor: int  # of the third level in T; b is at most that
    variance: Fraction  # the square of a level's deviation

    @property
    def last(self) -> int:
        """The magnitude from which on the second table decides."""
        return 2**self.columns_log2 - 1


DESIGNS = {levels: Design(13, levels, MOST_FACTOR, INNER_VARIANCE[2]) for levels in (2, 3)}


def exp_minus(x: Fraction) -> int:
    """exp(-x) in units of 2**-PRECISION for x from 0 to 1, by its series."""
    term = total = 1 << PRECISION
    number = 0
    while term:
        number += 1
        term = -term * x.numerator // (x.denominator * number)
        total += term
    return total


def _alias(weights: list[int], more: int) -> Alias:
    """The alias table of probabilities proportional to `weights`, rounded to multiples of 2**-(31 + 32 more) that add to 1."""
    m = len(weights).bit_length() - 1
    bits = 31 - m + 32 * more
    full = 1 << bits
    total = sum(weights)
    shares = [((weight << m + bits) + total // 2) // total for weight in weights]
    shares[shares.index(max(shares))] += (full << m) - sum(shares)
    # Vose: a column that is not full gets what it lacks from one that is more than full.
    thresholds, aliases = [full] * len(shares), list(range(len(shares)))
    small = [i for i, share in enumerate(shares) if share < full]
    large = [i for i, share in enumerate(shares) if share >= full]
    while small:
        needy, giver = small.pop(), large[-1]
        thresholds[needy], aliases[needy] = shares[needy], giver
        shares[giver] -= full - shares[needy]
        if shares[giver] < full:
            small.append(large.pop())
    words = [[threshold >> 32 * k & 0xFFFFFFFF for threshold in thresholds] for k in reversed(range(more))]
    entries = [t >> 32 * more << m | alias for t, alias in zip(thresholds, aliases, strict=True)]
    return Alias(np.array(entries, np.uint32), np.array(words, np.uint32))


@cache
def tables(design: Design) -> tuple[Alias, Alias]:
    """The tables of a level: of magnitudes to "last or more", and of what is `last` or more."""
    last = design.last
    # exp(-i**2 / (2 variance)) for i from 0, in units of 2**-PRECISION: each is the one before times a ratio that shrinks.
    ratio, shrink = exp_minus(1 / (2 * design.variance)), exp_minus(1 / design.variance)
    weights = [1 << PRECISION]
    while len(weights) < 3 * last + 2:
        weights.append(weights[-1] * ratio >> PRECISION)
        ratio = ratio * shrink >> PRECISION
    # Both signs give 0, so its magnitude has half the weight of another.
    body = [weights[0], *(2 * weight for weight in weights[1:last]), 2 * sum(weights[last:])]
    return _alias(body, _MORE), _alias(weights[last:], _MORE_TAIL)


# --- from words to integers ----------------------------------------------------------------------


def _signed(word: Array, magnitude: Array) -> Array:
    value = magnitude.astype(jnp.int32)
    return jnp.where(word >> np.uint32(31) == 1, -value, value)


def _first(design: Design, word: Array) -> tuple[Array, Array]:
    """The value of a level by its first word, and True where that is undecided."""
    m = design.columns_log2
    column = (word >> np.uint32(31 - m)) & np.uint32(2**m - 1)
    entry = jnp.asarray(tables(design)[0].entries).at[column].get(mode="promise_in_bounds")
    # The threshold less the bits to be compared and 1, above the alias. One number, for two would be looked up twice.
    ahead = entry - (((word << np.uint32(m)) & np.uint32(2**31 - 2**m)) + np.uint32(2**m))
    ahead = lax.bitcast_convert_type(ahead, jnp.int32)
    magnitude = jnp.where(ahead >= 0, column, entry & np.uint32(2**m - 1))
    return _signed(word, magnitude), (ahead < 0) & (ahead >= -(2**m)) | (magnitude == design.last)


def _whole_look_up(table: Alias, word: Array, more: Array) -> Array:
    """Column or alias by all bits: those of one word and of `more`."""
    m = len(table.entries).bit_length() - 1
    column = (word >> np.uint32(31 - m)) & np.uint32(2**m - 1)
    entry = jnp.asarray(table.entries).at[column].get(mode="promise_in_bounds")
    fraction = word & np.uint32(2 ** (31 - m) - 1)
    limits = [entry >> np.uint32(m), *jnp.asarray(table.rest)[:, column]]
    return jnp.where(_below([fraction, *more], limits), column, entry & np.uint32(2**m - 1))


def _decided(design: Design, word: Array, more: Array) -> Array:
    """The values of levels by all their words: uint32 of any shape, and uint32[10] of those."""
    body, tail = tables(design)
    magnitude = _whole_look_up(body, word, more[:_MORE])
    further = _whole_look_up(tail, more[_MORE], more[_MORE + 1 :])
    return _signed(word, jnp.where(magnitude == design.last, magnitude + further, magnitude))


def _summed(design: Design, levels: Sequence[Array] | Array, b: Array) -> list[Array]:
    """A0 + b T as one word of base 2**24 with two levels, as two with three; the upper one has the sign."""
    if design.levels == 2:
        return [levels[0] + b * levels[1]]
    total = levels[1] + np.int32(design.factor) * levels[2]  # below 2**24
    upper = b * (total >> 12)
    return [levels[0] + b * (total & 0xFFF) + ((upper & 0xFFF) << 12), upper >> 12]


def from_words(design: Design, words: Array, size: int, b: Array, more: Callable[[Array], Array]) -> list[Array]:
    """Integers from words.

    Args:
        design: The levels.
        words: uint32[at least levels * size]: the first words of all values' level 0, then of all values' level 1, ...
        size: Number of values, at least one.
        b: int32 scalar.
        more: Function from an undecided value's number to its uint32[levels * 10].

    Returns:
        int32[size] for each word of base 2**24, as in `discrete_gaussian`.
    """
    parts = [_first(design, words[level * size : (level + 1) * size]) for level in range(design.levels)]
    undecided = parts[0][1]
    for _, flag in parts[1:]:
        undecided = undecided | flag
    # The values are written once, their flag as lowest bit: XLA would look up twice, for values and flags.
    low, *rest = _summed(design, [value for value, _ in parts], b)
    values = lax.optimization_barrier([(low << 1) | undecided.astype(jnp.int32), *rest])
    flags, places = _folded(values[0], size)

    def refine(state):
        """Make the first undecided value again, with all its words."""
        (packed, *rest), flags = state
        flag = jnp.argmax(flags & 1).astype(jnp.int32)
        among = places + flag
        undecided = packed.at[among].get(mode="promise_in_bounds") & 1
        number = among[jnp.argmax(undecided)]
        own = words.at[number + size * np.arange(design.levels)].get(mode="promise_in_bounds")
        low, *upper = _summed(design, _decided(design, own, more(number).reshape(design.levels, -1).T), b)
        left = jnp.where(among == number, 0, undecided).max()
        flags = lax.dynamic_update_slice(flags, left[None], (flag,))
        rest = [lax.dynamic_update_slice(x, new[None], (number,)) for x, new in zip(rest, upper, strict=True)]
        return [lax.dynamic_update_slice(packed, low[None] << 1, (number,)), *rest], flags

    (packed, *rest), _ = lax.while_loop(lambda state: (state[1] & 1).any(), refine, (values, flags))
    return [packed >> 1, *rest]


def _folded(packed: Array, size: int) -> tuple[Array, np.ndarray]:
    """Words whose lowest bit says whether one of some values is undecided, and where these are for the first word.

    Parts overlap where the number of values is no multiple of `_PARTS`: a value may have several words.
    """
    places = np.zeros(1, np.int32)
    while size > _FLAGS:
        length = -(-size // _PARTS)
        starts = np.minimum(np.arange(_PARTS) * length, size - length)
        packed = reduce(jnp.bitwise_or, [packed[start : start + length] for start in starts])
        places, size = np.add.outer(places, starts).reshape(-1).astype(np.int32), length
    return packed, places


# --- draws ---------------------------------------------------------------------------------------


def discrete_gaussian(
    key: Array, shape: Sequence[int] = (), factor: Array | int = MOST_FACTOR, *, levels: int = 2
) -> tuple[list[Array], Array]:
    """Draw independent discrete Gaussian integers; also returns True if they are valid.

    Guarantee, for ideal random words: each value is within total variation `SLACK_PER_VALUE` (2**-167) of D(s), the law on
    the integers with probabilities proportional to exp(-z**2 / (2 s**2)), where s**2 = v + factor**2 INNER_VARIANCE[levels],
    v = INNER_VARIANCE[2] = 1618.2**2: with the largest factor s is 2**20 (two levels) or 2**29.3 (three). Values are
    independent. Each is also within that distance of a randomised rounding of a continuous Gaussian of variance
    s**2 - 6.2, for every integer that is added to it. Every integer up to 15.2 s can occur, and none beyond 15.3 s. The
    computation has no floating-point operation: the same key gives the same integers on every platform
    and under `jit`, `vmap`, `scan` and `shard_map`. Its instructions depend on the noise alone.

    Words: one of 32 bits for each level of each value, and for one value in 2**17 two blocks of 16 words more.

    Long draws on a CPU take their words from OpenSSL where it is installed. If that fails without a word (never seen), the
    second result is False, and nothing that depends on the first may be released.

    Args:
        key: One key; use it for nothing else.
        shape: Shape of the result.
        factor: From 1 to 648; may be traced, and is not checked then.
        levels: 2 or 3.

    Returns:
        A list of int32 arrays of `shape`, and a Boolean scalar. With two levels the list holds the integers; with three
        their lower words, which are no smaller than -2**25 and below 2**26, and their upper ones, to be multiplied by 2**24.

    Raises:
        TypeError: Not a typed key.
        ValueError: An array of keys; another number of levels; a factor out of range; 2**31 values or more.

    Example:
        >>> from discreet.random import discrete_gaussian, key
        >>> (values,), right = discrete_gaussian(key(0), (3,))
        >>> values.dtype, bool(right)
        (dtype('int32'), True)
    """
    if levels not in DESIGNS:
        raise ValueError(f"levels is {levels!r}; discrete Gaussian values have 2 or 3.")
    return _draw(*_checked(key, shape, factor, 1, MOST_FACTOR), levels)


def _checked(
    key: Array, shape: Sequence[int], factor: Array | int, least: int, most: int
) -> tuple[Array, Array, tuple[int, ...]]:
    """The words of the key, the factor and the shape of a draw."""
    key = check_key(key, "key")
    if not isinstance(factor, Tracer) and not least <= int(factor) <= most:
        raise ValueError(f"factor is {factor}; it must be an integer from {least} to {most}.")
    if prod(shape) >= 2**31:
        raise ValueError(
            f"One draw makes fewer than 2**31 integers, not {prod(shape):,}. Draw in parts, with own keys."
        )
    return jax.random.key_data(key), jnp.int32(factor), tuple(shape)


@partial(jax.jit, static_argnums=(2, 3))
def _draw(key_words: Array, factor: Array, shape: tuple[int, ...], levels: int) -> tuple[list[Array], Array]:
    size, design = prod(shape), DESIGNS[levels]
    if size == 0:
        return [jnp.zeros(shape, jnp.int32) for _ in range(levels - 1)], jnp.array(True)
    first_blocks, num_words = -(-levels * size // WORDS_PER_BLOCK), levels * _PER_LEVEL
    num_blocks = -(-num_words // WORDS_PER_BLOCK)
    if size * num_blocks <= _AT_ONCE:
        # All words of all values in one go: half of what is to be compiled.
        streams = (nonce(GAUSSIAN, levels), first_blocks), (nonce(GAUSSIAN, levels, 1), size * num_blocks)
        words = keystreams(key_words, streams)
        own = words[0][: levels * size].reshape(levels, size)
        further = words[1].reshape(size, -1)[:, :num_words].T.reshape(levels, _PER_LEVEL, size).swapaxes(0, 1)
        return [x.reshape(shape) for x in _summed(design, _decided(design, own, further), factor)], jnp.array(True)
    stream, right = fast_keystream(key_words, nonce(GAUSSIAN, levels), first_blocks)

    def more(number: Array) -> Array:
        counter = number.astype(jnp.uint32) * np.uint32(num_blocks)
        return keystream(key_words, nonce(GAUSSIAN, levels, 1), num_blocks, counter)[:num_words]

    return [x.reshape(shape) for x in from_words(design, stream, size, factor, more)], right


# --- discrete Laplace noise: comparisons alone, for pure epsilon on a grid ------------------------


# `floor(L)` with L from the Laplace distribution of scale s has P(z) proportional to exp(-z / s) for z >= 0 and to exp((z +
# 1) / s) for z < 0: a fair sign, and a magnitude G with the geometric law of q = exp(-1 / s); the value is G, or -G - 1. For
# integers K, K + floor(L) = floor(K + L), so noise of this law is a post-processing of the continuous mechanism, for all K at
# once.
#
# G is made of independent parts, since q**G is a product over its binary digits:
#
# - digit i, for i below 35, is 1 with probability q**(2**i) / (1 + q**(2**i));
# - what is above them, H, is geometric again: coins that show heads with probability q**(2**35) are thrown until one does
#   not. The loop is practically never entered (2**-46 a value at most), but without it the noise would end somewhere, and two
#   sums could be told apart by which values they lead to.
#
# Each comparison is with a threshold of 192 bits, computed from Python integers. So each probability of a digit or a coin is
# right to a factor 1 +- 2**-99, and that of a value to 1 +- 2**-99 (H + 1). A first word of 32 bits decides nearly always.
# Where one equals its threshold's, all values of its chunk are made again with all words: the same values where they were
# decided.
#
# Why epsilon stays pure. Sums that lie n >= 1 grid points apart in one coordinate give an output probabilities whose
# logarithms differ by at most n / s + 2**-97 + n 2**-133, which is below (n / s) (1 + 2**-60) as s <= 2**30; where the sums
# agree, so do the probabilities. Whoever chooses s (`mechanisms._integers`) has a margin of 2**-21 in it. At smaller epsilon:
# T values, chosen adaptively, have probabilities that are those of floor(L) to a factor 1 +- T 2**-98 (where all H are 0). So
# epsilon moves by at most T 2**-97 and delta by that share of itself: less than the last bit of what an accountant computes
# and rounds up.
#
# Time depends on the noise alone. Streams of the key (see the table in `_keys.py`): domain "dlap"; word 14 is 0 for first
# words, 1 for the others, and 2 + j for throw j + 1 of the coin; word 15 is the number of the chunk.
#
# Reference: Ghosh, Roughgarden, Sundararajan, "Universally utility-maximizing privacy mechanisms", STOC 2009 (geometric
# noise).

LAPLACE_UNIT = 2**22
"""The scale of `discrete_laplace` is its factor times this."""
LEAST_LAPLACE, MOST_LAPLACE = 128, 256

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


def _below(words: Sequence[Array], limits: Sequence[Array] | Array) -> Array:
    """Compare numbers of several words, highest first, with their thresholds: True if below."""
    below = jnp.zeros(words[0].shape, bool)
    for word, limit in reversed([*zip(words, limits, strict=True)]):
        below = jnp.where(word == limit, below, word < limit)
    return below


def _heads(words: list[Array], limits: Array, again: Callable[[Array], Array]) -> Array:
    """The number of heads of the coin of H before the first tail: by its first words, and by those that `again` makes."""

    def throw(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, heads, alive = state
        alive = alive & _below(list(again(number)), limits)
        return number + 1, heads + alive, alive

    first = _below(words, limits)
    start = jnp.int32(0), first.astype(jnp.int32), first
    return lax.while_loop(lambda state: state[2].any() & (state[0] < _MOST_HEADS), throw, start)[1]


def from_coins(
    first: Array, further: Callable[[], Array], limits: Array, again: Callable[[Array], Array]
) -> list[Array]:
    """Integers from words.

    Args:
        first: uint32[37, value]: the first word of each coin, and a word of which one bit is the sign.
        further: Makes uint32[5, 36, value], the other words of each coin.
        limits: uint32[6, 36], a row of `thresholds`.
        again: Makes uint32[6, value] for throw j + 1 of the coin of H.

    Returns:
        int32[value], three of them: words of base 2**24, the lowest first, all of one sign.
    """
    limits = limits[:, :, None]
    coins, negative = first[:-1], first[-1] >> np.uint32(31) == 1

    def whole() -> tuple[Array, Array]:
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


def discrete_laplace(key: Array, shape: Sequence[int] = (), factor: Array | int = MOST_LAPLACE) -> list[Array]:
    """Draw independent integers from the law of floor(L), L Laplace of scale s = factor * 2**22.

    Guarantee, for ideal random words: each probability is that of floor(L) to a factor 1 +- 2**-99 (H + 1), where H is the
    value's magnitude over 2**35. Values are independent. Every integer up to 2**65 can occur. The computation has no
    floating-point operation: the same key gives the same integers on every platform and under `jit`, `vmap`, `scan` and
    `shard_map`. Its instructions depend on the noise alone.

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
        >>> from discreet.random import discrete_laplace, key
        >>> low, middle, high = discrete_laplace(key(0), (3,))
        >>> high.tolist()
        [0, 0, 0]
    """
    return _draw_laplace(*_checked(key, shape, factor, LEAST_LAPLACE, MOST_LAPLACE))


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
