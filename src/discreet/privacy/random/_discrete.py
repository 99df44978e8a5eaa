"""Discrete Gaussian noise: integers from ChaCha20 words by integer arithmetic, with a proved law.

`D(s)` is the law on the integers whose probabilities are proportional to exp(-z**2 / (2 s**2));
`_laplace` has the other law. A release of `spacing * (K + Z)`, where K is an integer vector and Z
has independent `D(s)` coordinates, has no last bits to read: every integer within 15 standard
deviations occurs, whatever K is, and the one floating-point operation comes after the noise.
docs/arithmetic.md has the theorem that carries the accounting of the continuous Gaussian over to
it.

The spacing is a power of two, so that dividing by it is exact; what a standard deviation needs
beyond that, a factor of up to two, comes from an integer b, up to 648, in the noise itself. From
words to an integer:

1. Z = A0 + b T. T is A1 with two levels and A1 + 648 A2 with three; all A are independent and
   D(s1), s1 = 1618.2. Completing the square in P(Z = z) = sum over y of P(A0 = z - b y) P(T = y)
   leaves exp(-z**2 / (2 s**2)), s**2 = s1**2 + b**2 t**2 for T of deviation t, times the sum of a
   Gaussian of deviation 2.49 or more over shifted integers, which is constant to a factor 1 +-
   2**-175 (Poisson summation). So two levels give s up to 2**20, and three up to 2**29.3.
2. A is a sign bit and a magnitude. Magnitudes 0 to 8190 and "8191 or more" are drawn by Walker and
   Vose's alias method: 13 bits choose a column, 178 bits are compared with its threshold. A second
   table, of 2**14 columns, divides up "8191 or more", to 24,574. `_tables` makes both.
3. A column, 18 bits of its threshold and the sign are one word, which decides all but one draw in
   2**18. Only for those are the other 160 bits (and the words of the second table) made: block j of
   a second stream belongs to value j and to nothing else, so the result is the one that all bits
   together give, and it depends on neither batching nor platform.

Time and memory accesses depend on the noise (which columns, how many undecided draws), never on
data. Streams of the key (see the table in `_keys.py`): domain "dgau", word 14 the number of levels,
word 15 0 for first words and 1 for undecided values, whose blocks are counted by value.

Reference: Micciancio and Walter, "Gaussian sampling over the integers: efficient, generic,
constant-time", CRYPTO 2017 (sums of levels).
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array

from discreet.privacy.random._chacha import WORDS_PER_BLOCK, fast_keystream, keystream, keystreams
from discreet.privacy.random._keys import check_key
from discreet.privacy.random._prng import GAUSSIAN, nonce
from discreet.privacy.random._tables import (
    AT_ONCE,
    DESIGNS,
    FLAGS,
    MORE,
    MOST_FACTOR,
    PARTS,
    PER_LEVEL,
    Alias,
    Design,
    tables,
)


def _signed(word: Array, magnitude: Array) -> Array:
    value = magnitude.astype(jnp.int32)
    return jnp.where(word >> np.uint32(31) == 1, -value, value)


def _first(design: Design, word: Array) -> tuple[Array, Array]:
    """The value of a level by its first word, and True where that is undecided."""
    m = design.columns_log2
    column = (word >> np.uint32(31 - m)) & np.uint32(2**m - 1)
    entry = jnp.asarray(tables(design)[0].entries).at[column].get(mode="promise_in_bounds")
    # The threshold less the bits to be compared and 1, above the alias. One number, for two would
    # be looked up twice.
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
    return jnp.where(is_below([fraction, *more], limits), column, entry & np.uint32(2**m - 1))


def _decided(design: Design, word: Array, more: Array) -> Array:
    """The values of levels by all their words: uint32 of any shape, and uint32[10] of those."""
    body, tail = tables(design)
    magnitude = _whole_look_up(body, word, more[:MORE])
    further = _whole_look_up(tail, more[MORE], more[MORE + 1 :])
    return _signed(word, jnp.where(magnitude == design.last, magnitude + further, magnitude))


def _summed(design: Design, levels: Sequence[Array] | Array, b: Array) -> list[Array]:
    """A0 + b T as one word of base 2**24 with two levels, as two with three; the upper one has the sign."""
    if design.levels == 2:
        return [levels[0] + b * levels[1]]
    total = levels[1] + np.int32(design.factor) * levels[2]  # below 2**24
    upper = b * (total >> 12)
    return [levels[0] + b * (total & 0xFFF) + ((upper & 0xFFF) << 12), upper >> 12]


def from_words(
    design: Design, words: Array, size: int, b: Array, more: Callable[[Array], Array]
) -> list[Array]:
    """Integers from words.

    Args:
        design: The levels.
        words: uint32[at least levels * size]: the first words of all values' level 0, then of all
            values' level 1, ...
        size: Number of values, at least one.
        b: int32 scalar.
        more: Function from an undecided value's number to its uint32[levels * 10].

    Returns:
        int32[size] for each word of base 2**24, as in `discrete_gaussian`.
    """
    parts = [
        _first(design, words[level * size : (level + 1) * size]) for level in range(design.levels)
    ]
    undecided = parts[0][1]
    for _, flag in parts[1:]:
        undecided = undecided | flag
    # The values are written once, their flag as lowest bit: XLA would look up twice, for values and
    # flags.
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
        low, *upper = _summed(
            design, _decided(design, own, more(number).reshape(design.levels, -1).T), b
        )
        left = jnp.where(among == number, 0, undecided).max()
        flags = lax.dynamic_update_slice(flags, left[None], (flag,))
        rest = [
            lax.dynamic_update_slice(x, new[None], (number,))
            for x, new in zip(rest, upper, strict=True)
        ]
        return [lax.dynamic_update_slice(packed, low[None] << 1, (number,)), *rest], flags

    (packed, *rest), _ = lax.while_loop(lambda state: (state[1] & 1).any(), refine, (values, flags))
    return [packed >> 1, *rest]


def _folded(packed: Array, size: int) -> tuple[Array, np.ndarray]:
    """Words whose lowest bit says whether one of some values is undecided, and where these are for the first word.

    Parts overlap where the number of values is no multiple of `PARTS`: a value may have several
    words.
    """
    places = np.zeros(1, np.int32)
    while size > FLAGS:
        length = -(-size // PARTS)
        starts = np.minimum(np.arange(PARTS) * length, size - length)
        packed = reduce(jnp.bitwise_or, [packed[start : start + length] for start in starts])
        places = np.add.outer(places, starts).reshape(-1).astype(np.int32)
        size = length
    return packed, places


def discrete_gaussian(
    key: Array, shape: Sequence[int] = (), factor: Array | int = MOST_FACTOR, *, levels: int = 2
) -> tuple[list[Array], Array]:
    """Draw independent discrete Gaussian integers; also returns True if they are valid.

    Guarantee, for ideal random words: each value is within total variation `SLACK_PER_VALUE`
    (2**-167) of D(s), the law on the integers with probabilities proportional to exp(-z**2 / (2
    s**2)), where s**2 = v + factor**2 INNER_VARIANCE[levels], v = INNER_VARIANCE[2] = 1618.2**2:
    with the largest factor s is 2**20 (two levels) or 2**29.3 (three). Values are independent. Each
    is also within that distance of a randomised rounding of a continuous Gaussian of variance s**2
    - 6.2, for every integer that is added to it. Every integer up to 15.2 s can occur, and none
    beyond 15.3 s. The computation has no floating-point operation: the same key gives the same
    integers on every platform and under `jit`, `vmap`, `scan` and `shard_map`. Its instructions
    depend on the noise alone.

    Words: one of 32 bits for each level of each value, and for one value in 2**17 two blocks of 16
    words more.

    Long draws on a CPU take their words from OpenSSL where it is installed. If that fails without a
    word (never seen), the second result is False, and nothing that depends on the first may be
    released.

    Args:
        key: One key; use it for nothing else.
        shape: Shape of the result.
        factor: From 1 to 648; may be traced, and is not checked then.
        levels: 2 or 3.

    Returns:
        A list of int32 arrays of `shape`, and a Boolean scalar. With two levels the list holds the
        integers; with three their lower words, which are no smaller than -2**25 and below 2**26,
        and their upper ones, to be multiplied by 2**24.

    Raises:
        TypeError: Not a typed key.
        ValueError: An array of keys; another number of levels; a factor out of range; 2**31 values
            or more.

    Example:
        >>> from discreet.privacy.random import discrete_gaussian, key
        >>> (values,), right = discrete_gaussian(key(0), (3,))
        >>> values.dtype, bool(right)
        (dtype('int32'), True)
    """
    if levels not in DESIGNS:
        raise ValueError(f"levels is {levels!r}; discrete Gaussian values have 2 or 3.")
    return _draw(*checked_law(key, shape, factor, 1, MOST_FACTOR), levels)


def checked_law(
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
def _draw(
    key_words: Array, factor: Array, shape: tuple[int, ...], levels: int
) -> tuple[list[Array], Array]:
    size = prod(shape)
    design = DESIGNS[levels]
    if size == 0:
        return [jnp.zeros(shape, jnp.int32) for _ in range(levels - 1)], jnp.array(True)
    first_blocks = -(-levels * size // WORDS_PER_BLOCK)
    num_words = levels * PER_LEVEL
    num_blocks = -(-num_words // WORDS_PER_BLOCK)
    if size * num_blocks <= AT_ONCE:
        # All words of all values in one go: half of what is to be compiled.
        streams = (
            (nonce(GAUSSIAN, levels), first_blocks),
            (nonce(GAUSSIAN, levels, 1), size * num_blocks),
        )
        words = keystreams(key_words, streams)
        own = words[0][: levels * size].reshape(levels, size)
        further = (
            words[1]
            .reshape(size, -1)[:, :num_words]
            .T.reshape(levels, PER_LEVEL, size)
            .swapaxes(0, 1)
        )
        return [
            x.reshape(shape) for x in _summed(design, _decided(design, own, further), factor)
        ], jnp.array(True)
    stream, right = fast_keystream(key_words, nonce(GAUSSIAN, levels), first_blocks)

    def more(number: Array) -> Array:
        counter = number.astype(jnp.uint32) * np.uint32(num_blocks)
        return keystream(key_words, nonce(GAUSSIAN, levels, 1), num_blocks, counter)[:num_words]

    return [x.reshape(shape) for x in from_words(design, stream, size, factor, more)], right


def is_below(words: Sequence[Array], limits: Sequence[Array] | Array) -> Array:
    """Compare numbers of several words, highest first, with their thresholds: True if below."""
    below = jnp.zeros(words[0].shape, bool)
    for word, limit in reversed([*zip(words, limits, strict=True)]):
        below = jnp.where(word == limit, below, word < limit)
    return below
