"""Poisson sampling: every record enters a batch on its own, with the same public probability."""

from __future__ import annotations

import functools
import math
import numbers
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from dp_accounting import DpEvent, PoissonSampledDpEvent
from jax import lax
from jax import numpy as jnp
from jaxtyping import Array, Bool, UInt32

from discreet.sampling._batch import Batch, Relation, check_count, check_mechanism, check_relation
from discreet.sampling._binomial import SIZE_BITS, SIZE_WORDS, SizeTable, size_from_words, size_table
from discreet.sampling._subset import draws_needed, uniform_subset

_SHORTAGE = 2.0**-81
_LEAST_SLACK = 2.0**-79
_DENSE = 0.4  # batches that can hold more than this share of the records ask each record


@dataclass(frozen=True)
class _Layout:
    """The static numbers of a draw. ``draws`` is None where each record is asked."""

    table: SizeTable | None
    capacity: int
    draws: int | None
    slack: float


@functools.lru_cache(maxsize=64)
def _layout(num_records: int, rate: float) -> _Layout:
    if rate == 1.0:
        return _Layout(None, num_records, None, 0.0)
    table = size_table(num_records, rate)
    if table.largest > _DENSE * num_records:
        scaled = Fraction(rate) * 2**SIZE_BITS
        rounding = num_records * float(scaled - math.floor(scaled)) * 2.0**-SIZE_BITS
        return _Layout(table, table.largest, None, table.slack + rounding)
    sizes = np.arange(table.smallest, table.largest + 1)
    draws, shortage = draws_needed(sizes, table.masses(), num_records, _SHORTAGE)
    return _Layout(table, table.largest, draws, table.slack + shortage)


@dataclass(frozen=True)
class PoissonSampling:
    """Batches that hold each record independently with probability ``rate``.

    Guarantee: on every step the law of the batch is that of independent coin flips, but for a total-variation distance
    of at most ``slack_per_step`` (below 2^-78), which a plan adds to its delta. No batch is truncated and no
    record is preferred. The work of a draw follows the batch and not the table: the size comes from a public table of
    the binomial distribution function and 96 random bits, then a uniform subset of that size is drawn. Where a batch
    may hold more than 40 % of the records, each record is asked instead, with 96 bits looked at as far as needed.

    Args:
        rate: The probability q in (0, 1] that a record enters a batch. At 1.0 every batch is the whole table.

    Raises:
        TypeError: ``rate`` is not a real number, or is a bool.
        ValueError: ``rate`` is not finite or not in (0, 1].

    Reference:
        Balle, Barthe, Gaboardi. Privacy amplification by subsampling. NeurIPS 2018.

    >>> sampling = PoissonSampling(rate=0.01)
    >>> sampling.expected_batch_size(10_000)
    100.0
    """

    rate: float

    def __post_init__(self) -> None:
        if isinstance(self.rate, bool) or not isinstance(self.rate, numbers.Real):
            raise TypeError(
                f"The sampling rate must be a real number, but is {self.rate!r} of type {type(self.rate).__name__}. "
                f"Pass the probability that a record enters a batch, such as PoissonSampling(rate=0.01)."
            )
        rate = float(self.rate)
        if not 0.0 < rate <= 1.0:
            raise ValueError(
                f"The sampling rate is {rate}, which is no probability in (0, 1]. For batches of about B of N records "
                f"pass rate=B / N."
            )
        object.__setattr__(self, "rate", rate)

    def check(self, num_records: int, relation: Relation) -> None:
        """Refuses counts outside [1, 2^31 - 1] and relations without accounting; both usual relations are sound."""
        check_count(num_records, "num_records")
        check_relation(relation)

    def step_event(self, mechanism: DpEvent, *, num_records: int, relation: Relation) -> DpEvent:
        """The event of one step: ``mechanism`` on a Poisson sample, or on everything at rate 1."""
        self.check(num_records, relation)
        check_mechanism(mechanism)
        return mechanism if self.rate == 1.0 else PoissonSampledDpEvent(self.rate, mechanism)

    def rate_for(self, num_records: int) -> float:
        """The rate q, whatever the number of records."""
        check_count(num_records, "num_records")
        return self.rate

    def expected_batch_size(self, num_records: int) -> float:
        """The rate q times the number of records."""
        return self.rate * check_count(num_records, "num_records")

    def slack_per_step(self, num_records: int) -> float:
        """Bound on the total-variation distance of a drawn batch from independent coin flips; 0.0 at rate 1.

        Tails, rounding and shortage together. The bound is rounded up to 2^-79 (a larger one by a hundredth), so that
        it holds with one record more or less too: a plan needs it on both of two neighbours.
        """
        slack = _layout(check_count(num_records, "num_records"), self.rate).slack
        return max(_LEAST_SLACK, 1.01 * slack) if slack else 0.0

    def capacity(self, num_records: int) -> int:
        """The largest size that the table can give: exceeded by the binomial law with probability at most 2^-81."""
        return _layout(check_count(num_records, "num_records"), self.rate).capacity

    def typical_sizes(self, num_records: int) -> tuple[int, ...]:
        """The sizes exceeded with probability 1/2, 0.15 and 1e-3.

        A batch padded to the next of them has on average 0.8 standard deviations more rows than expected: 7 % of 128.
        """
        table = _layout(check_count(num_records, "num_records"), self.rate).table
        if table is None:
            return (num_records,)
        return tuple(sorted({max(1, table.quantile(tail)) for tail in (0.5, 0.15, 0.999e-3)}))

    def prepare(self, num_records: int) -> dict[str, np.ndarray]:
        """The public tables that `draw` reads: all of a draw that follows from the rate but for lengths of arrays.

        The rate itself is among them, as the bits of a double, so that whoever has the tables can compare the two.
        """
        layout = _layout(check_count(num_records, "num_records"), self.rate)
        tables = {"rate": np.array([self.rate]).view(np.uint32)}
        if layout.table is None:
            return tables
        if layout.draws is None:
            return {**tables, "coin": _coin(self.rate)}
        return {**tables, "thresholds": layout.table.words(), "smallest": np.array(layout.table.smallest, np.int32)}

    def drawing(self, num_records: int) -> PoissonDrawing:
        """How a batch is drawn, but for the numbers in the tables: hashable, the same for all rates that share it."""
        layout = _layout(check_count(num_records, "num_records"), self.rate)
        return PoissonDrawing(None if layout.table is None else layout.capacity, layout.draws)

    def draw(self, key: jax.Array, tables: Any, *, num_records: int) -> Batch:
        """Draws one batch.

        Args:
            key: A typed JAX key, used for this draw only.
            tables: What ``prepare(num_records)`` returned.
            num_records: The number of records, static.

        Returns:
            A batch of ``capacity(num_records)`` rows, the drawn records first.
        """
        return self.drawing(num_records).draw(key, tables, num_records=num_records)


@dataclass(frozen=True)
class PoissonDrawing:
    """A Poisson draw whose rate is in its tables.

    Attributes:
        capacity: Rows of a batch; None at rate 1, where a batch is the table.
        draws: Random words that name records; None where each record is asked.
    """

    capacity: int | None
    draws: int | None

    def draw(self, key: jax.Array, tables: Any, *, num_records: int) -> Batch:
        """As ``PoissonSampling.draw``."""
        if self.capacity is None:
            return Batch(jnp.arange(num_records, dtype=jnp.int32), jnp.ones(num_records, bool))
        if self.draws is None:
            return _ask_each(key, tables["coin"], num_records, self.capacity)
        words = jax.random.bits(key, (SIZE_WORDS + self.draws,), jnp.uint32)
        size = size_from_words(words[:SIZE_WORDS], tables["thresholds"], tables["smallest"])
        indices, found = uniform_subset(words[SIZE_WORDS:], size, num_records=num_records, capacity=self.capacity)
        return Batch(indices, jnp.arange(self.capacity) < found)

    def sampling(self, tables: Any, num_records: int) -> PoissonSampling | None:
        """The sampling that these tables belong to; None where they belong to none, or to another drawing."""
        rate = np.asarray(tables["rate"]).view(np.float64)[0]
        if not 0 < rate <= 1:
            return None
        found = PoissonSampling(float(rate))
        expected = found.prepare(num_records)
        same = expected.keys() == tables.keys() and all(np.array_equal(x, tables[name]) for name, x in expected.items())
        return found if same and found.drawing(num_records) == self else None


def _coin(rate: float) -> UInt32[np.ndarray, "3"]:
    """A rate in units of 2^-96, rounded down, most significant word first."""
    scaled = math.floor(Fraction(rate) * 2**SIZE_BITS)
    return np.array([(scaled >> shift) & 0xFFFFFFFF for shift in (64, 32, 0)], np.uint32)


def _ask_each(key: jax.Array, coin: UInt32[Array, "3"], num_records: int, capacity: int) -> Batch:
    """One coin flip for each record, then the heads moved to the front."""
    # More than ``capacity`` heads have a probability of at most 2^-81, which the slack contains.
    included = _coins(key, jax.random.bits(key, (num_records,), jnp.uint32), coin)
    indices = jnp.nonzero(included, size=capacity, fill_value=0)[0].astype(jnp.int32)
    return Batch(indices, jnp.arange(capacity) < jnp.sum(included, dtype=jnp.int32))


def _coins(key: jax.Array, words: UInt32[Array, " record"], coin: UInt32[Array, "3"]) -> Bool[Array, " record"]:
    """Whether each record's 96 bits lie below the rate; the last 64 are drawn only if some first word is a tie."""
    high, middle, low = coin
    tie = words == high

    def settle() -> Bool[Array, " record"]:
        more = jax.random.bits(jax.random.fold_in(key, 1), (2, *words.shape), jnp.uint32)
        return tie & ((more[0] < middle) | ((more[0] == middle) & (more[1] < low)))

    return (words < high) | lax.cond(jnp.any(tie), settle, lambda: jnp.zeros_like(tie))
