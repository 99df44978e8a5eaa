"""Poisson samples: each record is in the batch independently, at one rate or at a rate for each step."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import jax
import numpy as np
from jax import lax, numpy as jnp
from jaxtyping import Array, Bool, Int32, UInt32

from discreet._dp_accounting import DpEvent, PoissonSampledDpEvent
from discreet._validate import is_real, shown
from discreet.privacy.sampling._draws import (
    SIZE_BITS,
    SIZE_WORDS,
    SizeTable,
    check_count,
    draws_needed,
    size_from_words,
    size_table,
    uniform_subset,
    words_of,
)
from discreet.privacy.sampling._interface import Batch, Drawing, Sampling, agree

_SHORTAGE = 2.0**-81
_LEAST_SLACK = 2.0**-79
_DENSE = 0.4  # batches that can hold more than this share of the records draw one coin per record


@dataclass(frozen=True)
class _DrawSizes:
    """The static numbers of a draw. `draws` is None for one coin per record."""

    table: SizeTable | None
    capacity: int
    draws: int | None
    slack: float


@functools.lru_cache(maxsize=64, typed=True)
def _draw_sizes(num_records: int, rate: float) -> _DrawSizes:
    num_records = check_count(num_records, "num_records")
    if rate == 1.0:
        return _DrawSizes(None, num_records, None, 0.0)
    table = size_table(num_records, rate)
    if table.largest > _DENSE * num_records:
        scaled = Fraction(rate) * 2**SIZE_BITS
        rounding = num_records * float(scaled - math.floor(scaled)) * 2.0**-SIZE_BITS
        return _DrawSizes(table, table.largest, None, table.slack + rounding)
    sizes = np.arange(table.smallest, table.largest + 1)
    draws, shortage = draws_needed(sizes, table.masses(), num_records, _SHORTAGE)
    return _DrawSizes(table, table.largest, draws, table.slack + shortage)


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Batches that include each record independently with probability `rate`.

    Guarantee: on every step the law of the batch is that of independent coin flips, up to a
    total-variation distance of at most `slack_per_step` (below 2^-78), which a plan adds to its
    delta. No batch is truncated and no record is preferred. The cost of a draw depends on the size
    of the batch, not of the table: the size comes from a public table of the binomial distribution
    function and 96 random bits, then a uniform subset of that size is drawn. If a batch may include
    more than 40 % of the records, one coin per record is drawn instead, from as many of 96 bits as
    needed.

    Args:
        rate: The probability q in (0, 1] that a record enters a batch. At 1.0 every batch is the
            whole table.

    Raises:
        TypeError: `rate` is not a real number, or is a bool.
        ValueError: `rate` is not finite or not in (0, 1].

    Reference:
        Balle, Barthe, Gaboardi. Privacy amplification by subsampling. NeurIPS 2018.

    >>> sampling = PoissonSampling(rate=0.01)
    >>> sampling.expected_batch_size(10_000)
    100.0
    """

    option: ClassVar[str] = "poisson"
    independent: ClassVar[bool] = True

    rate: float

    def __post_init__(self) -> None:
        if not is_real(self.rate):
            raise TypeError(
                f"The sampling rate must be a real number, but is {shown(self.rate)}. "
                f"Pass the probability that a record enters a batch, such as PoissonSampling(rate=0.01)."
            )
        rate = float(self.rate)
        if not 0.0 < rate <= 1.0:
            raise ValueError(
                f"The sampling rate is {rate}, which is not a probability in (0, 1]. For batches of about B of N records "
                f"pass rate=B / N."
            )
        object.__setattr__(self, "rate", rate)

    def _event(self, mechanism: DpEvent, num_records: int) -> DpEvent:
        del num_records
        return mechanism if self.rate == 1.0 else PoissonSampledDpEvent(self.rate, mechanism)

    def rate_for(self, num_records: int) -> float:
        self._count(num_records)
        return self.rate

    def slack_per_step(self, num_records: int) -> float:
        """Bound on the total-variation distance of a drawn batch from independent coin flips; 0.0 at rate 1.

        It covers tails, rounding and shortage. It is rounded up to 2^-79 (a larger one by a
        hundredth), so that it also holds with one record more or less: a plan needs it for both
        neighbours.
        """
        slack = _draw_sizes(num_records, self.rate).slack
        return max(_LEAST_SLACK, 1.01 * slack) if slack else 0.0

    def capacity(self, num_records: int) -> int:
        """The largest size in the table: the binomial law exceeds it with probability at most 2^-81."""
        return _draw_sizes(num_records, self.rate).capacity

    def check_capacity(self, num_records: int, capacity: int) -> int:
        """Check that every batch fits in `capacity` rows, and return that number.

        Raises:
            ValueError: More than a negligible share of the batches would not fit.
        """
        needed = self.capacity(num_records)
        if check_count(capacity, "capacity") < needed:
            raise ValueError(
                f"poisson_subsample: capacity = {capacity} is too small for batches of {num_records} records at rate "
                f"{self.rate}: one may have {needed} (more have a probability below 2^-80), and a truncated batch is not a "
                f"Poisson sample. Pass capacity={needed}, that is PoissonSampling(rate).capacity(num_records)."
            )
        return int(capacity)

    def typical_size(self, num_records: int) -> int:
        """The size exceeded with probability 0.07: 145 for 128."""
        table = _draw_sizes(num_records, self.rate).table
        return num_records if table is None else max(1, table.quantile(0.07))

    def shuffled(self, num_records: int) -> bool:
        """True if random words select the records, in the order of the words, instead of one coin per record.

        It must be true of half as many records, so that it is true of tables with one record more
        or less.
        """
        return all(
            _draw_sizes(n, self.rate).draws is not None for n in (num_records, -(-num_records // 2))
        )

    def thinned(self, rates: Sequence[float]) -> ThinnedPoisson:
        """The sampler whose step t draws at the rate `rates[t]`, above 0 and at most `rate`."""
        return ThinnedPoisson(self.rate, tuple(rates))

    def prepare(self, num_records: int) -> dict[str, np.ndarray]:
        """All numbers of a draw: the rate, and threshold words of the size table or of a coin."""
        layout = _draw_sizes(num_records, self.rate)
        tables = {"rate": np.array([self.rate], np.float64).view(np.uint32)}
        if layout.table is None:
            return tables
        if layout.draws is None:
            return {
                **tables,
                "coin": words_of([math.floor(Fraction(self.rate) * 2**SIZE_BITS)])[:, 0],
            }
        smallest = np.array(layout.table.smallest, np.int32)
        return {**tables, "thresholds": words_of(layout.table.thresholds), "smallest": smallest}

    def drawing(self, num_records: int) -> _PoissonDrawing:
        """The shapes of a draw, without the rate."""
        layout = _draw_sizes(num_records, self.rate)
        return _PoissonDrawing(num_records, layout.capacity, layout.draws, layout.table is None)

    def draw(self, key: Array, tables: Any, *, num_records: int) -> Batch:
        """Draw one batch of `capacity(num_records)` rows, the drawn records first."""
        return self.drawing(num_records).draw(key, tables)

    def in_words(self, num_records: int, noun: str = "record") -> str:
        del num_records
        if self.rate == 1:
            return f"all {noun}s"
        return f"each {noun} enters with probability {self.rate:g}, independently of all others"

    @classmethod
    def from_options(
        cls, *, rate: float | None, batch_size: int | None, num_records: int
    ) -> PoissonSampling:
        if (rate is None) == (batch_size is None):
            raise ValueError(
                "Poisson batches need one of --rate (a probability) and --batch-size (the expected size)"
            )
        if rate is None:
            assert batch_size is not None
            if not 0 < batch_size <= num_records:
                raise ValueError(
                    f"--batch-size is {batch_size}: give a size from 1 to the number of records, {num_records}"
                )
            rate = batch_size / num_records
        return cls(rate=rate)


@dataclass(frozen=True)
class _PoissonDrawing(Drawing):
    """A Poisson draw whose rate is in the tables."""

    # The number of random words that select records; None for one coin per record
    draws: int | None
    whole: bool  # The rate is 1, so nothing is drawn

    def draw(self, key: Array, tables: Any) -> Batch:
        """All records; or one coin per record, with the selected ones moved to the front; or a size and a subset of that size."""
        if self.whole:
            mask = jnp.arange(self.capacity) < self.num_records
            return Batch(jnp.where(mask, jnp.arange(self.capacity, dtype=jnp.int32), 0), mask)
        if self.draws is None:
            # More than `capacity` heads have a probability of at most 2^-81, which the slack
            # contains.
            included = _coins(
                key, jax.random.bits(key, (self.num_records,), jnp.uint32), tables["coin"]
            )
            indices = jnp.nonzero(included, size=self.capacity, fill_value=0)[0].astype(jnp.int32)
            return Batch(indices, jnp.arange(self.capacity) < jnp.sum(included, dtype=jnp.int32))
        words = jax.random.bits(key, (SIZE_WORDS + self.draws,), jnp.uint32)
        size = size_from_words(words[:SIZE_WORDS], tables["thresholds"], tables["smallest"])
        indices, found = uniform_subset(
            words[SIZE_WORDS:], size, num_records=self.num_records, capacity=self.capacity
        )
        return Batch(indices, jnp.arange(self.capacity) < found)

    def law(self, tables: Any) -> PoissonSampling | None:
        """The sampler at the rate in the tables, if they are its own and its batches fit."""
        words = tables.get("rate") if isinstance(tables, dict) else None
        if not isinstance(words, np.ndarray) or words.dtype != np.uint32 or words.shape != (2,):
            return None
        rate = float(words.view(np.float64)[0])
        if not 0.0 < rate <= 1.0:
            return None
        sampling = PoissonSampling(rate)
        own = sampling.drawing(self.num_records)
        roomier = dataclasses.replace(own, capacity=self.capacity, padding=self.padding)
        fits = own.capacity <= self.capacity and roomier == self
        return sampling if fits and agree(tables, sampling.prepare(self.num_records)) else None


def _coins(
    key: Array, words: UInt32[Array, " record"], coin: UInt32[Array, "3"]
) -> Bool[Array, " record"]:
    """Compare each record's 96 bits with the rate; the last 64 are drawn only if some first word is a tie."""
    high, middle, low = (jnp.asarray(coin)[i] for i in range(3))
    tie = words == high

    def settle() -> Bool[Array, " record"]:
        more = jax.random.bits(jax.random.fold_in(key, 1), (2, *words.shape), jnp.uint32)
        return tie & ((more[0] < middle) | ((more[0] == middle) & (more[1] < low)))

    return (words < high) | lax.cond(jnp.any(tie), settle, lambda: jnp.zeros_like(tie))


@dataclass(frozen=True)
class ThinnedPoisson(PoissonSampling):
    """Poisson batches at a rate that changes with the step; a plan makes it of its `rate_schedule`.

    Each step draws a batch at `rate`, the largest, and keeps each record of it with probability
    `rates[t] / rate`, by an independent coin of 96 bits. So each record enters independently with
    probability `rates[t]`, and those that do are in uniformly random order where those of `rate`
    are. The event is that of one step: of `at(step)`, or of the largest rate.
    """

    rates: tuple[float, ...]  # of each step

    def __post_init__(self) -> None:
        super().__post_init__()
        for step, rate in enumerate(self.rates):
            if not 0.0 < rate <= self.rate:
                raise ValueError(
                    f"rate_schedule, step {step}, is {rate:g}: it must be above 0 and at most sampling's rate, {self.rate:g}, "
                    "for which a batch has room. Give PoissonSampling the largest rate of all steps."
                )

    def _event(self, mechanism: DpEvent, num_records: int) -> DpEvent:
        return PoissonSampling(max(self.rates))._event(mechanism, num_records)

    def at(self, step: int) -> ThinnedPoisson:
        """The sampler of one step; of the last one beyond the end, as it is drawn."""
        return dataclasses.replace(
            self, rates=(self.rates[min(max(step, 0), len(self.rates) - 1)],)
        )

    def rate_for(self, num_records: int) -> float:
        self._count(num_records)
        return max(self.rates)

    def slack_per_step(self, num_records: int) -> float:
        """That of the batches at `rate`, and of the coins: each is up to 2^-96 less likely than it should be."""
        return super().slack_per_step(num_records) + 1.01 * (num_records + 1) * 2.0**-SIZE_BITS

    def prepare(self, num_records: int) -> dict[str, Any]:
        """The tables of the batches at `rate`, and for each step its rate and the threshold words of a coin."""
        rates = np.array(self.rates, np.float64).view(np.uint32).reshape(-1, 2)
        return {"whole": super().prepare(num_records), "rates": rates, "coins": self.coins()}

    def coins(self) -> UInt32[np.ndarray, "step word"]:
        """The threshold words of each step's coin."""
        # Of the exact quotient of the rates: a rounded one is off by 2^-53, for which there is no
        # slack.
        exact = [math.floor(Fraction(x) / Fraction(self.rate) * 2**SIZE_BITS) for x in self.rates]
        return words_of([min(x, 2**SIZE_BITS - 1) for x in exact]).T

    def drawing(self, num_records: int) -> _ThinnedDrawing:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The shapes of a draw, without the rates."""
        whole = super().drawing(num_records)
        return _ThinnedDrawing(num_records, whole.capacity, whole)

    def in_words(self, num_records: int, noun: str = "record") -> str:
        del num_records
        return (
            f"each {noun} enters with the step's own public probability, between {min(self.rates):g} and "
            f"{max(self.rates):g}, independently of all others"
        )


@dataclass(frozen=True)
class _ThinnedDrawing(Drawing):
    """A Poisson draw whose rates, one for each step, are in the tables, as is the number of the step."""

    whole: _PoissonDrawing

    def at(self, tables: Any, step: Int32[Array, ""]) -> Any:
        return {**tables, "step": step}

    def step_of(self, tables: Any) -> Any:
        return tables["step"]

    def draw(self, key: Array, tables: Any) -> Batch:
        """A batch at the largest rate, of which the records that a coin keeps are moved to the front."""
        key, own = jax.random.split(key)
        indices, mask = self.whole.draw(key, tables["whole"])
        coins = jnp.asarray(tables["coins"])
        coin = coins[jnp.clip(tables["step"], 0, len(coins) - 1)]
        kept = mask & _coins(own, jax.random.bits(own, mask.shape, jnp.uint32), coin)
        front = jnp.nonzero(kept, size=self.capacity, fill_value=0)[0]
        mask = jnp.arange(self.capacity) < jnp.sum(kept, dtype=jnp.int32)
        return Batch(jnp.where(mask, indices[front], 0), mask)

    def law(self, tables: Any) -> Sampling | None:
        """The sampler of all steps, if all tables but the number of the step are its own."""
        if not isinstance(tables, dict) or tables.keys() != {"whole", "rates", "coins", "step"}:
            return None
        whole = self.whole.law(tables["whole"])
        words = tables["rates"]
        if (
            whole is None
            or not isinstance(words, np.ndarray)
            or words.dtype != np.uint32
            or words.shape[1:] != (2,)
        ):
            return None
        rates = np.ascontiguousarray(words).view(np.float64)[:, 0].tolist()
        fits = (self.whole.num_records, self.whole.capacity) == (self.num_records, self.capacity)
        if not fits or not rates or not all(0.0 < x <= whole.rate for x in rates):
            return None
        sampling = ThinnedPoisson(whole.rate, tuple(rates))
        return sampling if agree(tables["coins"], sampling.coins()) else None


@dataclass(frozen=True)
class OpenPoisson(Drawing):
    """A Poisson draw whose rate, the only table, is a symbol of a proof: it can be traced, but not run."""

    def draw(self, key: Array, tables: Any) -> Batch:
        """Refuse to run."""
        raise ValueError(
            "poisson_subsample: the rate is traced, but the sampler's tables are computed from its value before the program "
            "runs. Pass a Python number; for a certificate with a symbolic rate, run certificate.at(...)."
        )

    def law(self, tables: Any) -> Sampling | None:
        """The sampler at an expression of symbols; its slack is unknown until they have values."""
        rate = tables["rate"]
        return None if rate is None or isinstance(rate, np.ndarray) else _OpenPoisson(rate)


class _OpenPoisson(PoissonSampling):
    """Poisson sampling at a rate that is an expression of a proof's symbols."""

    def __post_init__(self) -> None:
        pass  # an expression, checked to be a probability when it gets a value

    def slack_per_step(self, num_records: int) -> float:
        """0.0: the slack follows when the rate has a value."""
        self._count(num_records)
        return 0.0
