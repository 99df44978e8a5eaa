"""What a sampler is: the law of a batch and all its consequences.

A compiled program contains a sampler as its `Drawing`, with the shapes of a draw, and its tables
(`prepare`), with the numbers. So the numbers can be inputs of the program: two plans with one
drawing share the compiled loop. A drawing and the values of its tables determine the sampler
(`Drawing.law`), so the verifier can find the law of a traced program.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Int32

from discreet._dp_accounting import DpEvent
from discreet.privacy.accounting import Relation, neighbours
from discreet.privacy.sampling._draws import check_count

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
        return self.sampling if agree(tables, self.sampling.prepare(self.num_records)) else None


def agree(tables: Any, own: Any) -> bool:
    """True if tables are known to equal those of a sampler's `prepare`."""
    known, structure = jax.tree.flatten(tables, is_leaf=lambda x: x is None)
    leaves, wanted = jax.tree.flatten(own)
    return structure == wanted and all(
        isinstance(x, np.ndarray) and np.array_equal(x, y)
        for x, y in zip(known, leaves, strict=True)
    )
