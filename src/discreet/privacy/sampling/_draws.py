"""The arithmetic of draws: binomial sizes and uniform subsets. Exact, or within a stated error.

1. *Size of a Poisson batch.* SciPy's double precision stops at 2^-53, and a privacy statement adds
   up the errors of every step. So the binomial law is computed with Python integers (the rate, a
   double, is an exact fraction) and converted to 96-bit thresholds, which are compared with 96
   random bits.
2. *Uniform subset of a given size*, at a cost that follows the size, with static shapes. Draw row
   numbers that are independent and uniform, and keep the first of each: relabelling the records
   leaves the law of that sequence unchanged, so the set of its first `size` distinct members is
   uniform among all sets of that size, and stays so given that the sequence holds that many.
   Uniform row numbers come from 32 random bits modulo the number of records; words beyond the last
   whole multiple are dropped like repetitions. Nothing is approximate. Two implementations give the
   same result: one processes all draws at once, for GPUs and `vmap`; the other one by one, in one
   kernel on a CPU: 11 microseconds instead of 14 to 21 for a batch of 1,000 of any number of
   records.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax import lax, numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Int32, UInt32

from discreet._jax import can_make_one_kernel, one_kernel
from discreet._validate import is_integer, shown

MAX_RECORDS = 2**31 - 1


def check_count(value: Any, name: str) -> int:
    """Check that a value is an integer (else a TypeError) from 1 to 2^31 - 1 (else a ValueError), and return it as an int."""
    if not is_integer(value):
        raise TypeError(
            f"{name} must be an integer, but is {shown(value)}. "
            f"It counts records: pass a plain int, such as len(table)."
        )
    count = int(value)
    if not 1 <= count <= MAX_RECORDS:
        raise ValueError(
            f"{name} = {count} is outside [1, 2^31 - 1]. Row numbers are 32-bit integers and a batch needs at least "
            f"one record to draw from: pass the number of rows, or split a larger table into several fits."
        )
    return count


SIZE_WORDS = 3
SIZE_BITS = 32 * SIZE_WORDS
TAIL_BITS = 81
_GUARD_BITS = 256


@dataclass(frozen=True)
class SizeTable:
    """A law on `smallest .. largest` within a total variation of `slack` of Binomial(num_records, rate)."""

    smallest: int  # The smallest size; the binomial mass below it is at most 2^-81
    largest: int  # The largest size; the binomial mass above it is at most 2^-81
    # For each size `k` from `smallest` to `largest - 1`, P(size <= k) in units of 2^-96
    thresholds: tuple[int, ...]
    slack: float  # Upper bound on the total-variation distance

    def masses(self) -> np.ndarray:
        """The probabilities of the sizes `smallest .. largest`, as doubles."""
        edges = (0, *self.thresholds, 2**SIZE_BITS)
        return np.array([math.ldexp(b - a, -SIZE_BITS) for a, b in itertools.pairwise(edges)])

    def quantile(self, upper_tail: float) -> int:
        """The smallest size exceeded with probability at most `upper_tail`."""
        level = 2**SIZE_BITS - math.floor(Fraction(upper_tail) * 2**SIZE_BITS)
        return self.smallest + bisect.bisect_left(self.thresholds, level)


def _relative_masses(num_records: int, rate: Fraction) -> tuple[int, list[int]]:
    """The first size, and binomial masses from there in fixed point relative to the mode's, until they vanish."""
    chance = rate.numerator
    against = rate.denominator - rate.numerator
    mode = min(num_records, math.floor((num_records + 1) * rate))
    # Ratios of neighbours are below 1 on either side of the mode, so rounding errors do not grow:
    # after s steps the error is below s units of 2^-256, which is far beyond what the thresholds
    # can show.
    above = [1 << _GUARD_BITS]
    k = mode
    while above[-1] and k < num_records:
        above.append(above[-1] * (num_records - k) * chance // ((k + 1) * against))
        k += 1
    below = [1 << _GUARD_BITS]
    k = mode
    while below[-1] and k > 0:
        below.append(below[-1] * k * against // ((num_records - k + 1) * chance))
        k -= 1
    return k, below[:0:-1] + above


@functools.lru_cache(maxsize=64)
def size_table(num_records: int, rate: float) -> SizeTable:
    """Compute the table for Binomial(num_records, rate), rate in (0, 1). A few milliseconds for 10^4 expected records."""
    first, masses = _relative_masses(num_records, Fraction(rate))
    total = sum(masses)
    cut = total >> TAIL_BITS
    start = 0
    below = 0
    while below + masses[start] <= cut:
        below += masses[start]
        start += 1
    stop = len(masses) - 1
    above = 0
    while first + stop > 1 and above + masses[stop] <= cut:
        above += masses[stop]
        stop -= 1
    thresholds = []
    cumulative = below
    for mass in masses[start:stop]:
        cumulative += mass
        nearest = ((cumulative << (SIZE_BITS + 1)) + total) // (2 * total)
        thresholds.append(min(nearest, 2**SIZE_BITS - 1))
    # Tails move to the ends; each threshold is off by at most one unit, where the largest word
    # takes the place of 1.
    slack = (below + above) / total + math.ldexp(len(thresholds), -SIZE_BITS)
    return SizeTable(first + start, first + stop, tuple(thresholds), slack * (1 + 1e-9))


def words_of(numbers: Sequence[int]) -> np.ndarray:
    """Numbers of 96 bits as `uint32[3, numbers]`, most significant word first."""
    shifts = range(SIZE_BITS - 32, -1, -32)
    return np.array([[(x >> shift) & 0xFFFFFFFF for x in numbers] for shift in shifts], np.uint32)


def size_from_words(
    words: UInt32[Array, "3"], thresholds: UInt32[Array, "3 sizes"], smallest: Any
) -> Int32[Array, ""]:
    """Map 96 random bits to a size: `smallest` plus the number of thresholds at or below them."""
    high, middle, low = thresholds
    reached = (high < words[0]) | (
        (high == words[0]) & ((middle < words[1]) | ((middle == words[1]) & (low <= words[2])))
    )
    return smallest + jnp.sum(reached, dtype=jnp.int32)


Subset = tuple[Int32[Array, " capacity"], Int32[Array, ""]]

# a table of one slot for each record, if that is at most this many slots for each draw
_DIRECT_TABLE = 64
_SLOTS_PER_DRAW = 4
_ODD_START, _ODD_STEP = (
    np.uint32(0x9E3779B1),
    np.uint32(0x3C6EF372),
)  # every pass multiplies by an odd number
_WORD = 2**32
_FREE, _INVALID = np.uint32(_WORD - 1), np.uint32(_WORD - 2)  # no row numbers: those are below 2^31
# XLA splits larger kernels over cores, which fails for calls under `one_kernel`: 58,000 draws
# compile, 59,000 do not.
_MOST_ONE_BY_ONE = 2**15


def valid_words(num_records: int) -> int:
    """How many of the 2^32 words, the lowest, give a row number: as many for each row."""
    return _WORD // num_records * num_records


def shortage_bound(sizes: np.ndarray, masses: np.ndarray, num_records: int):
    """Return a function from K to an upper bound on the probability that K words hold fewer distinct records than the size.

    The number of words until k distinct records is a sum of k geometric variables, the j-th with
    success probability `valid_words / 2^32 * (1 - j / num_records)`. The bound is Chernoff's for
    each size, averaged over `masses`.
    """
    largest = int(sizes[-1])
    chance = valid_words(num_records) / _WORD * (1 - np.arange(largest) / num_records)
    with np.errstate(divide="ignore"):
        log_miss = np.log1p(-chance)
    limit = min(-log_miss[-1], 64.0)
    exponents = limit * np.linspace(0.02, 0.98, 49)
    wanted = sizes[sizes > 0]
    log_moments = np.empty((exponents.size, wanted.size))
    for row, s in enumerate(exponents):
        terms = np.log(chance) + s - np.log(-np.expm1(np.minimum(s + log_miss, -1e-300)))
        log_moments[row] = np.cumsum(terms)[wanted - 1]
    with np.errstate(divide="ignore"):
        log_masses = np.log(masses[sizes > 0])

    def bound(draws: int) -> float:
        log_tails = np.min(log_moments - exponents[:, None] * (draws + 1), axis=0)
        # The factor covers the rounding of the sums above, some 1e-10 for a million terms.
        return 1.001 * float(np.sum(np.exp(log_masses + np.minimum(log_tails, 0.0))))

    return bound


def draws_needed(
    sizes: np.ndarray, masses: np.ndarray, num_records: int, failure: float
) -> tuple[int, float]:
    """The number of words after which too few distinct records have a probability of at most `failure`."""
    bound = shortage_bound(sizes, masses, num_records)
    low = int(sizes[-1])
    if low <= 1 and valid_words(num_records) == _WORD:
        return 1, 0.0
    high = low + 8
    while bound(high) > failure:
        low = high
        high = high + 2 * (high - int(sizes[-1]))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) <= failure else (middle, high)
    return high, bound(high)


def _first_occurrences(
    rows: Int32[Array, " draw"], valid: Bool[Array, " draw"], num_records: int
) -> Bool[Array, " draw"]:
    """Mark each draw that is valid and differs from all valid draws before it."""
    draws = rows.shape[0]
    position = jnp.arange(draws, dtype=jnp.int32)
    if num_records <= max(_DIRECT_TABLE * draws, 1024):
        slot = jnp.where(valid, rows, num_records)
        table = (
            jnp.full(num_records + 1, draws, jnp.int32)
            .at[slot]
            .min(position, mode="promise_in_bounds")
        )
        return valid & (table[slot] == position)

    bits = (_SLOTS_PER_DRAW * draws - 1).bit_length()
    slots = 1 << bits

    # Every pass settles the earliest record of each slot together with its repetitions, and leaves
    # to the next pass the other records that share the slot: each pass settles some, so the loop
    # ends, after three or four as a rule, since passes place records differently. Later passes
    # write smaller numbers, so the table needs no clearing.
    def settle(carry):
        table, pending, first, number = carry
        home = (rows.astype(jnp.uint32) * (number * _ODD_STEP + _ODD_START) >> (32 - bits)).astype(
            jnp.int32
        )
        offset = number.astype(jnp.int32) * draws
        table = table.at[jnp.where(pending, home, slots)].min(
            position - offset, mode="promise_in_bounds"
        )
        winner = jnp.where(pending, table[home] + offset, position)
        repeats = rows[winner] == rows
        return (
            table,
            pending & ~repeats,
            first | (pending & (winner == position)),
            number + np.uint32(1),
        )

    table = jnp.full(slots + 1, draws, jnp.int32)
    start = (table, valid, jnp.zeros_like(valid), jnp.uint32(0))
    return lax.while_loop(lambda carry: jnp.any(carry[1]), settle, start)[2]


def _at_once(
    words: UInt32[Array, " draw"], size: Int32[Array, ""], *, num_records: int, capacity: int
) -> Subset:
    rows = (words % np.uint32(num_records)).astype(jnp.int32)
    first = _first_occurrences(rows, words <= np.uint32(valid_words(num_records) - 1), num_records)
    rank = jnp.cumsum(first, dtype=jnp.int32)
    found = jnp.minimum(rank[-1], size)
    target = jnp.where(first & (rank <= found), rank - 1, capacity)
    return jnp.zeros(capacity, jnp.int32).at[target].set(rows, mode="drop"), found


def _one_by_one(
    words: UInt32[Array, " draw"], size: Int32[Array, ""], *, num_records: int, capacity: int
) -> Subset:
    """The subset by a hash set with linear probing of the records found so far."""
    draws = words.shape[0]
    bits = (_SLOTS_PER_DRAW * draws - 1).bit_length()
    rows = words % np.uint32(num_records)
    homes = rows * _ODD_START >> np.uint32(32 - bits)
    rows = jnp.where(words <= np.uint32(valid_words(num_records) - 1), rows, _INVALID)
    wanted = size.astype(jnp.uint32)

    def turn(carry):
        index, found, table, out = carry
        row = lax.dynamic_slice_in_dim(rows, index, 1)
        home = lax.dynamic_slice_in_dim(homes, index, 1)[0]

        def is_taken(slot):
            held = lax.dynamic_slice_in_dim(table, slot, 1)
            return ((held != _FREE) & (held != row))[0]

        # The table is never full, so a free slot or the record itself is met.
        slot = lax.while_loop(
            is_taken, lambda slot: (slot + np.uint32(1)) & np.uint32(2**bits - 1), home
        )
        held = lax.dynamic_slice_in_dim(table, slot, 1)
        new = (held == _FREE) & (row != _INVALID)
        table = lax.dynamic_update_slice(table, jnp.where(new, row, held), (slot,))
        # A repetition is overwritten by the next record, or cut off at the end.
        out = lax.dynamic_update_slice(out, row, (found,))
        return index + np.uint32(1), found + new[0].astype(jnp.uint32), table, out

    zero = jnp.uint32(0)
    start = (zero, zero, jnp.full(2**bits, _FREE), jnp.zeros(capacity, jnp.uint32))
    more = lambda carry: (carry[0] < draws) & (carry[1] < wanted)  # noqa: E731
    _, found, _, out = lax.while_loop(more, turn, start)
    out = jnp.where(jnp.arange(capacity, dtype=jnp.uint32) < found, out, 0)
    return out.astype(jnp.int32), found.astype(jnp.int32)


@functools.cache
def _one_kernel_subset(num_records: int, capacity: int) -> Callable[..., Subset]:
    static = {"num_records": num_records, "capacity": capacity}
    subset = custom_vmap(one_kernel(functools.partial(_one_by_one, **static)))

    @subset.def_vmap
    def _(axis_size, in_batched, words, size):
        del axis_size
        axes = tuple(0 if batched else None for batched in in_batched)
        return jax.vmap(functools.partial(_at_once, **static), axes)(words, size), (True, True)

    return subset


def uniform_subset(
    words: UInt32[Array, " draw"], size: Int32[Array, ""] | int, *, num_records: int, capacity: int
) -> Subset:
    """The first `size` distinct records that `words` name, in draw order, zeros behind; and how many there are.

    `size` is at most `capacity`, which is static and positive.
    """
    size = jnp.asarray(size, jnp.int32)
    if words.shape[0] <= _MOST_ONE_BY_ONE and can_make_one_kernel():
        return _one_kernel_subset(num_records, capacity)(words, size)
    return _at_once(words, size, num_records=num_records, capacity=capacity)
