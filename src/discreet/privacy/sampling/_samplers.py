"""Samplers: objects that define the law of a batch and all its consequences.

Accountant, verifier, statement, saving, checks of arguments and audits call the object's methods
and never test its class. A new sampler is one class and one entry in `SAMPLERS` at the end. The
entry means that the class is trusted: the verifier relies on a sampler's declared law
(`step_event`, `slack_per_step`, `independent`), so it refuses classes that are not listed.

A compiled program contains a sampler as its `Drawing`, with the shapes of a draw, and its tables
(`prepare`), with the numbers. So the numbers can be inputs of the program: two plans with one
drawing share the compiled loop. A drawing and the values of its tables determine the sampler
(`Drawing.law`), so the verifier can find the law of a traced program.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jax import lax, numpy as jnp
from jaxtyping import Array, Bool, Int32, UInt32

from discreet._dp_accounting import DpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent
from discreet._validate import is_real, shown
from discreet.privacy.accounting import Relation, neighbours
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

_BOTH = frozenset({Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE})


class Batch(NamedTuple):
    """The records of one step, as row numbers.

    Attributes:
        indices: Row numbers in `[0, num_records)`. Rows where `mask` is False are padding and hold
            0.
        mask: True for the rows that are in the batch. The True rows come first.
    """

    indices: Int32[Array, " capacity"]
    mask: Bool[Array, " capacity"]


class Sampling(abc.ABC):
    """The interface of samplers: name the event, size the arrays, draw batches, and describe the law in words.

    Implementations are frozen dataclasses of public numbers, and final: write a new class instead
    of a subclass. `draw` is pure JAX with static shapes; everything else runs on the host.

    Attributes:
        option: The sampler's name on the command line.
        relations: The relations under which its event is a sound account.
        independent: True if each record enters a batch independently of all others, so that drawing
            one record does not change the probabilities of others.
        constant_size: True if every batch has the same public number of records, so that a drawn
            record takes another's place.
    """

    option: ClassVar[str]
    relations: ClassVar[frozenset[Relation]] = _BOTH
    independent: ClassVar[bool]
    constant_size: ClassVar[bool] = False

    def check(self, num_records: int, relation: Relation) -> None:
        """Refuse arguments without sound accounting."""
        self._count(num_records)
        neighbours(relation)
        if relation not in self.relations:
            raise ValueError(self.unaccounted(num_records, relation))

    def unaccounted(self, num_records: int, relation: Relation) -> str:
        """Explain why a relation without sound accounting has none, and the remedy."""
        del num_records
        return f"{self!r} has no sound accounting for {neighbours(relation).name('record')}. Use another sampler or relation."

    def step_event(self, mechanism: DpEvent, *, num_records: int, relation: Relation) -> DpEvent:
        """The event of one step that applies `mechanism` to one batch, for arguments that pass `check`."""
        self.check(num_records, relation)
        if not isinstance(mechanism, DpEvent):
            raise TypeError(
                f"mechanism must be a dp_accounting DpEvent, but is of type {type(mechanism).__name__}. "
                f"Pass the event of the mechanism on one batch, such as GaussianDpEvent(noise_multiplier)."
            )
        return self._event(mechanism, num_records)

    @abc.abstractmethod
    def _event(self, mechanism: DpEvent, num_records: int) -> DpEvent:
        """The event of `mechanism` on one batch, for checked arguments."""

    @abc.abstractmethod
    def rate_for(self, num_records: int) -> float:
        """The probability that one given record enters one batch."""

    def expected_batch_size(self, num_records: int) -> float:
        """The mean number of records in a batch."""
        return self.rate_for(num_records) * self._count(num_records)

    def slack_per_step(self, num_records: int) -> float:
        """Bound on the total-variation distance between the actual law and the law that the event names."""
        self._count(num_records)
        return 0.0

    @abc.abstractmethod
    def capacity(self, num_records: int) -> int:
        """The number of rows of a `Batch`, padding included."""

    def typical_size(self, num_records: int) -> int:
        """The number of records that a batch exceeds about once in 15 steps, which is cheaper than more padding."""
        return self.capacity(num_records)

    def shuffled(self, num_records: int) -> bool:
        """True if the rows of a batch are in uniformly random, secret order, given the set of rows."""
        self._count(num_records)
        return False

    def thinned(self, rates: Sequence[float]) -> Sampling:
        """The sampler whose step t draws at the rate `rates[t]`, at most that of this sampler."""
        raise ValueError(
            f"{self!r} has one rate for all steps, and only Poisson batches are accounted for at a rate that changes. Use "
            f"PoissonSampling(rate={max(rates, default=1.0):g}), or leave rate_schedule out."
        )

    def at(self, step: int) -> Sampling:
        """The sampler of one step."""
        del step
        return self

    def prepare(self, num_records: int) -> Any:
        """Public tables for `draw`: a pytree of NumPy arrays, possibly empty."""
        self._count(num_records)
        return {}

    @abc.abstractmethod
    def draw(self, key: Array, tables: Any, *, num_records: int) -> Batch:
        """Draw one batch with a new key; `tables` come from `prepare` for the same, static number of records."""

    def drawing(self, num_records: int) -> Drawing:
        """The part of the sampler that is compiled; here the sampler itself, with its numbers."""
        return _Plain(self._count(num_records), self.capacity(num_records), self)

    @abc.abstractmethod
    def in_words(self, num_records: int, noun: str = "record") -> str:
        """A description of the draw for a statement: a clause that fits in parentheses; `noun` is "record" or "person"."""

    def check_rows(self, rows: int, num_records: int, relation: Relation, *, masked: bool) -> None:
        """Refuse a caller's batch that this sampler cannot have drawn, by its number of rows and its mask."""
        del relation
        capacity = self.capacity(num_records)
        if self.constant_size and rows != capacity:
            raise ValueError(
                f"The batch has {rows} rows, but the plan says {self} of {num_records} records, so "
                f"{capacity}. The accounting holds only for that."
            )
        if not masked and rows > capacity:
            raise ValueError(
                f"The batch has {rows} rows, more than {self} ever draws from {num_records} records. "
                "Pass a batch drawn by the plan's sampling, with mask= if it is padded."
            )

    @classmethod
    @abc.abstractmethod
    def from_options(
        cls, *, rate: float | None, batch_size: int | None, num_records: int
    ) -> Sampling:
        """The sampler that `--rate` and `--batch-size` describe; ValueError if they describe none."""

    @classmethod
    def usual_relation(cls) -> Relation:
        """The default relation."""
        return (
            Relation.ADD_OR_REMOVE_ONE
            if Relation.ADD_OR_REMOVE_ONE in cls.relations
            else Relation.REPLACE_ONE
        )

    def _count(self, num_records: int) -> int:
        """The number of records, checked."""
        return check_count(num_records, "num_records")


@dataclass(frozen=True)
class Drawing(abc.ABC):
    """The compiled part of a sampler: the shapes of a draw, and the number of records. Hashable."""

    num_records: int  # Records of the table
    capacity: int  # Rows of a batch, padding included
    _: dataclasses.KW_ONLY
    padding: int = 0  # Rows of the table behind the records; they hold none, and are in no batch

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(
                f"padding = {self.padding}: a draw from {self.num_records} records needs all of their rows."
            )

    def at(self, tables: Any, step: Int32[Array, ""]) -> Any:
        """The tables for the draw of one step, whose number may be traced."""
        del step
        return tables

    def step_of(self, tables: Any) -> Any:
        """The number of the step in the tables of `at`; None if the law does not follow it."""
        del tables

    @abc.abstractmethod
    def draw(self, key: Array, tables: Any) -> Batch:
        """Draw one batch, with tables of `Sampling.prepare`, which may be traced."""

    @abc.abstractmethod
    def law(self, tables: Any) -> Sampling | None:
        """The sampler with these tables; None if they do not determine it, or belong to another.

        Each leaf is a NumPy array, an expression of a proof's symbols, or None if it is unknown
        before the program runs.
        """


@dataclass(frozen=True)
class _Plain(Drawing):
    """A draw by a sampler whose numbers are compiled constants."""

    sampling: Sampling

    def draw(self, key: Array, tables: Any) -> Batch:
        return self.sampling.draw(key, tables, num_records=self.num_records)

    def law(self, tables: Any) -> Sampling | None:
        return self.sampling if _agree(tables, self.sampling.prepare(self.num_records)) else None


def _agree(tables: Any, own: Any) -> bool:
    """True if tables are known to equal those of a sampler's `prepare`."""
    known, structure = jax.tree.flatten(tables, is_leaf=lambda x: x is None)
    leaves, wanted = jax.tree.flatten(own)
    return structure == wanted and all(
        isinstance(x, np.ndarray) and np.array_equal(x, y)
        for x, y in zip(known, leaves, strict=True)
    )


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
        return sampling if fits and _agree(tables, sampling.prepare(self.num_records)) else None


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
        return sampling if _agree(tables["coins"], sampling.coins()) else None


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


_REDRAW = 2.0**-40


@functools.lru_cache(maxsize=64)
def _draws(size: int, num_records: int) -> int:
    return draws_needed(np.array([size]), np.ones(1), num_records, _REDRAW)[0]


@dataclass(frozen=True)
class FixedSizeSampling(Sampling):
    """Batches of exactly `batch_size` distinct records, every such set equally likely.

    Guarantee: exactly uniform given uniform random words, each step independent of the others. The
    cost of a draw depends on the size of the batch, not of the table: row numbers are drawn
    independently and repetitions dropped (for batches of more than half of the records, the
    complement is drawn). With probability below 2^-40 a draw finds too few distinct records and is
    repeated, which leaves the law uniform.

    Sound under `REPLACE_ONE` only. Under `ADD_OR_REMOVE_ONE` neighbours have different numbers of
    records, so the inclusion probability batch_size / num_records of *every* record differs between
    them, and subsampling formulas do not apply.

    Args:
        batch_size: The number of records in a batch, at most the number of records.

    Raises:
        TypeError: `batch_size` is not an integer, or is a bool.
        ValueError: `batch_size` is below 1 or above 2^31 - 1.

    Reference:
        Prediger, Loppi, Kaski, Honkela. d3p. PoPETs 2022(2), section 4.3, walks a Feistel
        permutation instead, which
        is uniform only as far as its round function is random: see `discreet.compat.d3p.feistel`.

    >>> FixedSizeSampling(batch_size=32).rate_for(500)
    0.064
    """

    option: ClassVar[str] = "fixed"
    relations: ClassVar[frozenset[Relation]] = frozenset({Relation.REPLACE_ONE})
    independent: ClassVar[bool] = False
    constant_size: ClassVar[bool] = True

    batch_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", check_count(self.batch_size, "batch_size"))

    def _count(self, num_records: int) -> int:
        count = check_count(num_records, "num_records")
        if self.batch_size > count:
            raise ValueError(
                f"batch_size = {self.batch_size} exceeds num_records = {count}, and a batch without replacement cannot "
                f"hold a record twice. Lower batch_size, or use FullBatch() to read every record on every step."
            )
        return count

    def unaccounted(self, num_records: int, relation: Relation) -> str:
        return (
            f"{self!r} has no sound accounting for {neighbours(relation).name('record')}: a batch of fixed size from "
            "num_records records is drawn differently when one record is added, so every record's share changes. Use "
            f"PoissonSampling(rate={self.batch_size / num_records:.6g}), or declare the number of records public with "
            "relation=Relation.REPLACE_ONE (--relation replace-one)."
        )

    def _event(self, mechanism: DpEvent, num_records: int) -> DpEvent:
        if self.batch_size == num_records:
            return mechanism
        return SampledWithoutReplacementDpEvent(int(num_records), self.batch_size, mechanism)

    def rate_for(self, num_records: int) -> float:
        return self.batch_size / self._count(num_records)

    def expected_batch_size(self, num_records: int) -> float:
        self._count(num_records)
        return float(self.batch_size)

    def capacity(self, num_records: int) -> int:
        """`batch_size`, without padding."""
        self._count(num_records)
        return self.batch_size

    def shuffled(self, num_records: int) -> bool:
        """True for batches of at most half the records, which are drawn one after the other."""
        return self._count(num_records) - self.batch_size >= self.batch_size

    def draw(self, key: Array, tables: Any, *, num_records: int) -> Batch:
        """Draw one batch of `batch_size` rows, all real, in arbitrary order; `tables` is unused."""
        del tables
        count = self._count(num_records)
        mask = jnp.ones(self.batch_size, bool)
        left_out = count - self.batch_size
        if left_out == 0:
            return Batch(jnp.arange(count, dtype=jnp.int32), mask)
        if self.shuffled(num_records):
            return Batch(_distinct(key, self.batch_size, count), mask)
        kept = (
            jnp.ones(count, bool)
            .at[_distinct(key, left_out, count)]
            .set(False, mode="promise_in_bounds")
        )
        return Batch(jnp.nonzero(kept, size=self.batch_size)[0].astype(jnp.int32), mask)

    def in_words(self, num_records: int, noun: str = "record") -> str:
        return f"{self.batch_size} of {num_records} {noun}s, drawn without replacement, all choices equally likely"

    @classmethod
    def from_options(
        cls, *, rate: float | None, batch_size: int | None, num_records: int
    ) -> FixedSizeSampling:
        del num_records
        if batch_size is None or rate is not None:
            raise ValueError(
                "fixed-size batches are described by their size: give --batch-size and no --rate"
            )
        return cls(batch_size=batch_size)


def _distinct(key: Array, size: int, num_records: int) -> Int32[Array, " size"]:
    """Draw a uniform set of `size` distinct records."""
    draws = _draws(size, num_records)

    def attempt(key: Array) -> tuple[Int32[Array, " size"], Int32[Array, ""]]:
        words = jax.random.bits(key, (draws,), jnp.uint32)
        return uniform_subset(words, size, num_records=num_records, capacity=size)

    def again(carry):
        key = jax.random.fold_in(carry[0], 1)
        return key, *attempt(key)

    # Having enough distinct records is independent of their identity, so drawing again keeps the
    # set uniform; a short batch would change the law that the event names.
    return lax.while_loop(lambda carry: carry[2] < size, again, (key, *attempt(key)))[1]


@dataclass(frozen=True)
class FullBatch(Sampling):
    """Every step reads every record. No randomness, no amplification, no slack.

    >>> FullBatch().rate_for(500)
    1.0
    """

    option: ClassVar[str] = "full"
    independent: ClassVar[bool] = True

    def _event(self, mechanism: DpEvent, num_records: int) -> DpEvent:
        del num_records
        return mechanism

    def rate_for(self, num_records: int) -> float:
        self._count(num_records)
        return 1.0

    def capacity(self, num_records: int) -> int:
        return self._count(num_records)

    def draw(self, key: Array, tables: Any, *, num_records: int) -> Batch:
        """Return all records in order; `key` and `tables` are unused."""
        del key, tables
        count = self._count(num_records)
        return Batch(jnp.arange(count, dtype=jnp.int32), jnp.ones(count, bool))

    def in_words(self, num_records: int, noun: str = "record") -> str:
        del num_records
        return f"all {noun}s"

    def check_rows(self, rows: int, num_records: int, relation: Relation, *, masked: bool) -> None:
        """Refuse a table of another length if the relation makes the length public."""
        del masked
        neighbours(relation).check_size(rows, num_records)

    @classmethod
    def from_options(
        cls, *, rate: float | None, batch_size: int | None, num_records: int
    ) -> FullBatch:
        del num_records
        if rate is not None or batch_size is not None:
            raise ValueError(
                "full batches contain all records: omit --rate and --batch-size, or choose another --sampling"
            )
        return cls()


SAMPLERS: list[type[Sampling]] = [PoissonSampling, FixedSizeSampling, FullBatch]
"""The trusted samplers: proofs, saved results and the command line support no others."""
