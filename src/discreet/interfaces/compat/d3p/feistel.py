"""d3p's random permutation, evaluated at a few points: Feistel rounds with cycle-walking (section 4.3, Eq. 8).

It is uniform only as far as its round function is random, so no sampler of discreet uses it.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import lax, numpy as jnp
from jaxtyping import Array, Int32, UInt32

from discreet._validate import integer

_TABLE_BITS = 10  # halves of up to this many bits have tables of random words as round functions
_MIXER_WORDS = 4


def _round_count(bits: int) -> int:
    """Rounds, an even number, for a domain of 2^bits: many where halves are tiny and mix slowly."""
    return 32 if bits <= 6 else 20 if bits <= 10 else 12


def _round_words(key: jax.Array, bits: int, rounds: int) -> UInt32[Array, "round word"]:
    half = (bits + 1) // 2
    return jax.random.bits(
        key, (rounds, 1 << half if half <= _TABLE_BITS else _MIXER_WORDS), jnp.uint32
    )


def _round_function(
    words: UInt32[Array, " word"], half: UInt32[Array, "*shape"], table: bool
) -> UInt32[Array, "*shape"]:
    """Evaluate a random function of one half: by a table, or by mixing with four secret words."""
    if table:
        return words[half]
    mixed = (half ^ words[0]) * np.uint32(0x9E3779B1) + words[1]
    mixed = (mixed ^ (mixed >> 15)) * (words[2] | np.uint32(1))
    mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE3D) + words[3]
    mixed = (mixed ^ (mixed >> 16)) * np.uint32(0x27D4EB2F)
    return mixed ^ (mixed >> 15)


def _network(
    values: UInt32[Array, "*shape"], words: UInt32[Array, "round word"], bits: int
) -> UInt32[Array, "*shape"]:
    """One pass of the network: a permutation of 0 .. 2^bits - 1, with alternating halves of unequal width."""
    low_bits = (bits + 1) // 2
    low_mask = np.uint32((1 << low_bits) - 1)
    high_mask = np.uint32((1 << (bits - low_bits)) - 1)
    table = low_bits <= _TABLE_BITS

    def two_rounds(number: Int32[Array, ""], halves: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = halves
        low = low ^ (_round_function(words[2 * number], high, table) & low_mask)
        high = high ^ (_round_function(words[2 * number + 1], low, table) & high_mask)
        return low, high

    start = (values & low_mask, values >> low_bits)
    low, high = lax.fori_loop(0, words.shape[0] // 2, two_rounds, start)
    return (high << low_bits) | low


def _walk(
    values: UInt32[Array, "*shape"],
    words: UInt32[Array, "round word"],
    bits: int,
    count: UInt32[Array, ""],
) -> UInt32[Array, "*shape"]:
    """Apply the network, repeatedly where it leaves 0 .. count - 1, so that it permutes those."""
    return lax.while_loop(
        lambda current: jnp.any(current >= count),
        lambda current: jnp.where(current >= count, _network(current, words, bits), current),
        _network(values, words, bits),
    )


def feistel_permutation(
    key: jax.Array, indices: Int32[Array, "*shape"], num_records: int
) -> Int32[Array, "*shape"]:
    """Evaluate a random permutation of `0 .. num_records - 1` at `indices` only.

    Guarantee: for every key the map is a bijection, so different indices give different records.
    For up to 2^20 records the round functions are tables of random words of `key`, so that the
    permutation is random in the sense of Luby and Rackoff, assuming only the security of the key's
    generator; the distance from a uniform permutation shrinks with every round but is not zero.
    Beyond that the round functions are a multiply-and-shift mixer under four secret words a round:
    a heuristic, not a cipher. Samplers with an event therefore do not use this function; use it to
    shuffle, to split into folds, or wherever a bijection suffices.

    Args:
        key: A typed JAX key, used for this permutation only. The same key gives the same
            permutation.
        indices: Integers in `[0, num_records)`, of any shape. Others are not refused (they may be
            traced), and have no meaningful image.
        num_records: The number of records N, static, from 1 to 2^31 - 1.

    Returns:
        The images, of the same shape. A network pass leaves 0 .. N - 1 with probability below one
        half, and is then
        repeated: the expected number of passes is below two, and the slowest index decides.

    Reference:
        Prediger, Loppi, Kaski, Honkela. d3p. PoPETs 2022(2), Eq. 8. Black, Rogaway. Ciphers with
        arbitrary finite domains. CT-RSA 2002 (cycle-walking). Luby, Rackoff. SIAM J. Comput. 17,
        1988.

    >>> import jax
    >>> sorted(feistel_permutation(jax.random.key(7), jax.numpy.arange(5), 5).tolist())
    [0, 1, 2, 3, 4]
    """
    count = integer("num_records", num_records, most=2**31 - 1)
    bits = (count - 1).bit_length()
    words = _round_words(key, bits, _round_count(bits))
    # An index out of range could enter a cycle that never returns: clip, so that the loop always
    # ends.
    values = jnp.clip(jnp.asarray(indices), 0, count - 1).astype(jnp.uint32)
    return _walk(values, words, bits, jnp.uint32(count)).astype(jnp.int32)
