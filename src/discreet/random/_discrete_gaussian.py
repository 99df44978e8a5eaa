"""Discrete Gaussian noise: integers from ChaCha20 words by table look-ups and integer arithmetic, with a proved law.

`D(s)` is the law on the integers whose probabilities are proportional to exp(-z**2 / (2 s**2)). A release of
`spacing * (K + Z)`, where K is an integer vector and Z has independent `D(s)` coordinates, has no last bits to read: every
integer within 11 standard deviations occurs, whatever K is, and the one floating-point operation comes after the noise.
docs/arithmetic.md has the theorem that carries the accounting of the continuous Gaussian over to it.

From words to an integer, for s = 2**20:

1. Z = A0 + 724 A1, where A0 and A1 are independent and D(s1), s1 = s / sqrt(1 + 724**2) = 1448.3. Completing the square in
   P(Z = z) = sum over y of P(A0 = z - 724 y) P(A1 = y) leaves exp(-z**2 / (2 s**2)) times the sum of a Gaussian of deviation
   s1 / sqrt(1 + 724**2) > 2 over shifted integers, which is constant to a factor 1 +- 2**-112 (Poisson summation).
2. A is a sign bit and a magnitude. Magnitudes 0 to 8190 and "8191 or more" are drawn by Walker and Vose's alias method:
   13 bits choose a column, 114 bits are compared with its threshold. A second table divides up "8191 or more", to 16,382.
   The tables are computed from Python integers of 512 bits, and the probabilities they give are exact multiples of 2**-127.
3. A column, 18 bits of its threshold and the sign are one word, which decides all but one draw in 2**18. Only for those are
   the other 96 bits (and the words of the second table) made: block j of a second stream belongs to value j and to nothing
   else, so the result is the one that all bits together give, and it depends on neither batching nor platform.

The table is 32 KiB (it stays in a core's first cache). Time and memory accesses depend on the noise (which columns, how many
undecided draws), never on data. Streams of the key (see the table in `_keys.py`): domain "dgau", word 14 log2(s), word 15 0 for
first words and 1 for undecided values, whose blocks are counted by value.

Cost, nanoseconds of processor time a value, two Xeon cores under load, medians of five runs next to `normal` in one process
(688,884 values in a loop, added to an array):

| `normal` | 2**20 | 2**24 | two words a value alone (the floor of 2**20) |
| -------- | ----- | ----- | -------------------------------------------- |
| 3.86     | 5.51  | 7.81  | 2.48                                         |

The median of the paired ratios to `normal` is 1.43 for 2**20, and 1.84 at 100 values, where nearly all is words. The gap of
3.0 to the floor is two look-ups a value and what follows from them; vector instructions for the look-ups, and halves of a draw
on two cores, were not tried.

References: Walker, "An efficient method for generating discrete random variables with general distributions", TOMS 1977;
Vose, "A linear algorithm for generating random numbers with a given distribution", IEEE TSE 1991; Micciancio and Walter,
"Gaussian sampling over the integers: efficient, generic, constant-time", CRYPTO 2017 (the sum of two levels).
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, partial
from math import inf, prod, sqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from discreet import _validate
from discreet.random._chacha import WORDS_PER_BLOCK, fast_keystream, keystream
from discreet.random._keys import check_key, nonce

SLACK_PER_VALUE = 2.0**-95
"""Total variation between a value of `discrete_gaussian` and D(s), and between it and a rounding of a continuous Gaussian."""

DISCRETE = np.uint32(int.from_bytes(b"dgau", "little"))

_PRECISION = 512  # bits behind the point of the integers that tables are computed from
_MORE = 3  # words of threshold after the first
_PER_LEVEL = _MORE + 1 + _MORE  # words of an undecided level: its threshold, then a draw from the second table
_ENOUGH, _MOST = 0.005, 0.1  # of the noise, that a grid may add: for the faster sampler, and at all
_ROOM = 2.0**-21  # of the sensitivity: more than five roundings to float32 change
_ROW = 256  # values between which one flag says whether any is undecided

# --- tables --------------------------------------------------------------------------------------


class Alias(NamedTuple):
    """An alias table of 2**m columns: column i gives i if the random bits are below its threshold, else its alias.

    Attributes:
        entries: uint32[2**m]; the upper 32 - m bits are the first of the threshold, the others the alias. A column that
            always gives itself has the threshold 2**(31 - m), which no draw of 31 - m bits reaches.
        rest: uint32[3, 2**m], the other 96 bits of the threshold.
    """

    entries: np.ndarray
    rest: np.ndarray


class Design(NamedTuple):
    """How a deviation is made from levels: Z = A0 + factor A1 + factor**2 A2 and so on."""

    log2_stddev: int
    columns_log2: int
    levels: int
    factor: int

    @property
    def variance(self) -> Fraction:
        """The square of the deviation of a level."""
        return Fraction(4**self.log2_stddev, sum(self.factor ** (2 * level) for level in range(self.levels)))

    @property
    def last(self) -> int:
        """The magnitude from which on the second table decides."""
        return 2**self.columns_log2 - 1

    @property
    def largest(self) -> int:
        """The largest value: no sum of levels exceeds it."""
        return 2 * self.last * sum(self.factor**level for level in range(self.levels))


# The factors are the largest for which the sum over y of step 1 has a deviation of 2 at least.
DESIGNS = {20: Design(20, 13, 2, 724), 24: Design(24, 12, 3, 203)}


def _exp_minus(x: Fraction) -> int:
    """exp(-x) in units of 2**-_PRECISION for x from 0 to 1, by its series."""
    term = total = 1 << _PRECISION
    number = 0
    while term:
        number += 1
        term = -term * x.numerator // (x.denominator * number)
        total += term
    return total


def _weights(variance: Fraction, number: int) -> list[int]:
    """exp(-i**2 / (2 variance)) for i from 0, in units of 2**-_PRECISION: each is the one before times a ratio that shrinks."""
    ratio, shrink = _exp_minus(1 / (2 * variance)), _exp_minus(1 / variance)
    weights, weight = [], 1 << _PRECISION
    for _ in range(number):
        weights.append(weight)
        weight = weight * ratio >> _PRECISION
        ratio = ratio * shrink >> _PRECISION
    return weights


def _alias(weights: list[int]) -> Alias:
    """The alias table of probabilities proportional to `weights`, rounded to multiples of 2**-127 that add up to 1."""
    m = len(weights).bit_length() - 1
    bits = 31 - m + 32 * _MORE
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
    words = [[threshold >> 32 * k & 0xFFFFFFFF for threshold in thresholds] for k in reversed(range(_MORE))]
    entries = [t >> 32 * _MORE << m | alias for t, alias in zip(thresholds, aliases, strict=True)]
    return Alias(np.array(entries, np.uint32), np.array(words, np.uint32))


@cache
def tables(design: Design) -> tuple[Alias, Alias]:
    """The tables of a level: of magnitudes to "last or more", and of what is `last` or more."""
    last = design.last
    weights = _weights(design.variance, 2 * last + 1)
    # Both signs give 0, so its magnitude has half the weight of another.
    body = [weights[0], *(2 * weight for weight in weights[1:last]), 2 * sum(weights[last:])]
    return _alias(body), _alias(weights[last:])


# --- from words to integers ----------------------------------------------------------------------


def _look_up(entries: np.ndarray, word: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Column, alias, and whether the bits of the word are below, or equal to, those of the threshold."""
    m = len(entries).bit_length() - 1
    fraction_bits = np.uint32(31 - m)
    column = (word >> fraction_bits) & np.uint32(2**m - 1)
    entry = jnp.asarray(entries).at[column].get(mode="promise_in_bounds")
    fraction, threshold = word & np.uint32(2 ** (31 - m) - 1), entry >> np.uint32(m)
    return column, entry & np.uint32(2**m - 1), fraction < threshold, fraction == threshold


def _signed(word: jax.Array, magnitude: jax.Array) -> jax.Array:
    value = magnitude.astype(jnp.int32)
    return jnp.where(word >> np.uint32(31) == 1, -value, value)


def _first(design: Design, word: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What a level is by its first word, and whether that is undecided."""
    column, alias, below, equal = _look_up(tables(design)[0].entries, word)
    magnitude = jnp.where(below, column, alias)
    return _signed(word, magnitude), equal | (magnitude == design.last)


def _whole_look_up(table: Alias, word: jax.Array, more: jax.Array) -> jax.Array:
    """Column or alias by all bits: one word and three more."""
    column, alias, below, equal = _look_up(table.entries, word)
    rest = jnp.asarray(table.rest)[:, column]
    for index in range(_MORE):
        below = below | (equal & (more[index] < rest[index]))
        equal = equal & (more[index] == rest[index])
    return jnp.where(below, column, alias)


def _decided(design: Design, word: jax.Array, more: jax.Array) -> jax.Array:
    """What a level is by all its words: a scalar and uint32[7]."""
    body, tail = tables(design)
    magnitude = _whole_look_up(body, word, more[:_MORE])
    further = _whole_look_up(tail, more[_MORE], more[_MORE + 1 :])
    return _signed(word, jnp.where(magnitude == design.last, magnitude + further, magnitude))


def _summed(design: Design, levels: Sequence[jax.Array]) -> jax.Array:
    total = levels[-1]
    for level in levels[-2::-1]:
        total = total * np.int32(design.factor) + level
    return total


def from_words(design: Design, words: jax.Array, size: int, more: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Integers from words.

    Args:
        design: the deviation and its levels.
        words: uint32[at least levels * size]: the first words of all values' level 0, then of all values' level 1, ...
        size: how many values, at least one.
        more: the uint32[levels * 7] of the value of a number, for undecided ones.

    Returns:
        int32[size].
    """
    parts = [_first(design, words[level * size : (level + 1) * size]) for level in range(design.levels)]
    undecided = parts[0][1]
    for _, flag in parts[1:]:
        undecided = undecided | flag
    # One array that is written once: values with their flag as lowest bit. XLA would look up twice, for values and flags.
    packed = (_summed(design, [value for value, _ in parts]) << 1) | undecided.astype(jnp.int32)
    packed = lax.optimization_barrier(packed)
    rows, width = -(-size // _ROW), min(_ROW, size)
    flags = jnp.pad(packed & 1, (0, rows * _ROW - size)).reshape(rows, _ROW).any(1)

    def refine(state):
        """Make the first undecided value again, with all its words."""
        packed, flags = state
        row = jnp.argmax(flags).astype(jnp.int32)
        start = jnp.minimum(row * _ROW, size - width)
        part = lax.dynamic_slice(packed, (start,), (width,))
        place = jnp.argmax(part & 1).astype(jnp.int32)
        number = start + place
        further = more(number).reshape(design.levels, _PER_LEVEL)
        own = [lax.dynamic_slice(words, (level * size + number,), (1,))[0] for level in range(design.levels)]
        value = _summed(design, [_decided(design, own[level], further[level]) for level in range(design.levels)])
        part = lax.dynamic_update_slice(part, value[None] << 1, (place,))
        flags = lax.dynamic_update_slice(flags, (part & 1).any()[None], (row,))
        return lax.dynamic_update_slice(packed, part, (start,)), flags

    packed, _ = lax.while_loop(lambda state: state[1].any(), refine, (packed, flags))
    return packed >> 1


# --- draws ---------------------------------------------------------------------------------------


def discrete_gaussian(
    key: jax.Array, shape: Sequence[int] = (), *, log2_stddev: int = 20
) -> tuple[jax.Array, jax.Array]:
    """Independent discrete Gaussian integers, and whether they are what they should be.

    Guarantee, for ideal random words: each value is within total variation `SLACK_PER_VALUE` (2**-95) of D(s), s =
    2**log2_stddev, the law on the integers with probabilities proportional to exp(-z**2 / (2 s**2)); values are
    independent. Each value is also within that distance of a randomised rounding of a continuous Gaussian of variance
    s**2 - 4, for every integer that is added to it. Every integer up to 11.3 s (20) or 16 s (24) can occur, and none beyond
    11.4 s or 20.3 s. The computation has no floating-point operation: the same key gives the same integers on every platform
    and under `jit`, `vmap`, `scan` and `shard_map`. Its instructions depend on the noise alone.

    Words: one of 32 bits for each level of each value (two levels for 20, three for 24), and for one value in 2**17 (20) or
    2**18 (24) one or two blocks of 16 words more.

    Long draws on a CPU take their words from OpenSSL where it is installed. If that fails without a word (never seen), the
    second result is False, and nothing that depends on the first may be released.

    Args:
        key: one key; use it for nothing else.
        shape: of the result.
        log2_stddev: 20 or 24.

    Returns:
        int32 of `shape`, and a Boolean scalar.

    Raises:
        TypeError: not a typed key.
        ValueError: an array of keys; another deviation; 2**31 values or more.

    Example:
        >>> from discreet.random import discrete_gaussian, key
        >>> values, right = discrete_gaussian(key(0), (3,))
        >>> values.dtype, bool(right)
        (dtype('int32'), True)
    """
    key = check_key(key, "key")
    if log2_stddev not in DESIGNS:
        raise ValueError(f"log2_stddev is {log2_stddev!r}; there are tables for 20 and 24.")
    if prod(shape) >= 2**31:
        raise ValueError(
            f"One draw makes fewer than 2**31 integers, not {prod(shape):,}. Draw in parts, with own keys."
        )
    return _draw(jax.random.key_data(key), tuple(shape), log2_stddev)


@partial(jax.jit, static_argnums=(1, 2))
def _draw(key_words: jax.Array, shape: tuple[int, ...], log2_stddev: int) -> tuple[jax.Array, jax.Array]:
    size, design = prod(shape), DESIGNS[log2_stddev]
    if size == 0:
        return jnp.zeros(shape, jnp.int32), jnp.array(True)
    stream, right = fast_keystream(key_words, nonce(DISCRETE, log2_stddev), -(-design.levels * size // WORDS_PER_BLOCK))
    num_words = design.levels * _PER_LEVEL
    num_blocks = -(-num_words // WORDS_PER_BLOCK)

    def more(number: jax.Array) -> jax.Array:
        counter = number.astype(jnp.uint32) * np.uint32(num_blocks)
        return keystream(key_words, nonce(DISCRETE, log2_stddev, 1), num_blocks, counter)[:num_words]

    return from_words(design, stream, size, more).reshape(shape), right


# --- the grid that the integers stand for ----------------------------------------------------------


class NoiseGrid(NamedTuple):
    """A grid on which `discrete_gaussian` is the noise of a Gaussian mechanism.

    Attributes:
        spacing: Distance between grid points, in units of the L2 sensitivity.
        log2_stddev: The deviation of the noise in units of the spacing, as `discrete_gaussian` takes it.
    """

    spacing: float
    log2_stddev: int

    @property
    def stddev(self) -> float:
        """The deviation of the noise in units of the sensitivity: slightly more than the noise multiplier."""
        return self.spacing * 2**self.log2_stddev


def noise_grid(noise_multiplier: float, dim: int, *, rounding: float = 1.0) -> NoiseGrid:
    """The grid for a vector and a noise multiplier: as fine as integers of a deviation that there is a table for allow.

    Guarantee: let x and x' be `dim` numbers each, at most the L2 sensitivity C apart; K and K' integers such that each
    coordinate of (K - x/g) - (K' - x'/g) is at most `rounding`, with g = spacing C, or a number that at most five
    roundings to float32 make smaller. Then K + Z and K' + Z are within total variation dim * `SLACK_PER_VALUE` of
    randomised roundings, by one rule, of Gaussian vectors whose means are at most 1 / noise_multiplier deviations apart.

    Rounding to integers lengthens the distance by rounding * sqrt(dim), so the noise is larger by a factor of
    1 + rounding * sqrt(dim) * noise_multiplier / 2**log2_stddev. Where that exceeds 1.005 for 2**20, 2**24 is used.

    Args:
        noise_multiplier: Deviation of the noise in units of the sensitivity, from 2**-10.
        dim: How many values are released together, from 1 to 2**31 - 1.
        rounding: 1 if each vector is rounded to the nearest integers, 1/2 if the two differ by one rounded vector.

    Returns:
        The spacing and the deviation.

    Raises:
        ValueError: An argument out of its range, or noise that the grid would increase by more than a tenth.

    Example:
        >>> from discreet.random import noise_grid
        >>> grid = noise_grid(1.0, 688_884)
        >>> grid.log2_stddev, round(grid.stddev, 4)
        (20, 1.0008)
    """
    multiplier = _validate.real("noise_multiplier", noise_multiplier, 2.0**-10, inf)
    size = _validate.integer("dim", dim, 1, 2**31 - 1)
    longer = sqrt(size) * _validate.real("rounding", rounding, 0.0, 16.0)
    for log2_stddev, most in ((20, _ENOUGH), (24, _MOST)):
        # 2**-39 of it is what a deviation of 2 of the randomised rounding takes from s**2; the rest is for float32.
        length = 2.0**log2_stddev / multiplier * (1 - _ROOM) - longer
        if length * (1 + most) * multiplier >= 2.0**log2_stddev:
            return NoiseGrid(1 / length, log2_stddev)
    raise ValueError(
        f"a noise multiplier of {multiplier:g} for {size:,} values would be increased by more than a tenth by rounding to "
        "the finest grid there is: release fewer values together, or use less noise."
    )
