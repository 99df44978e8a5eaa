"""Batches of fixed size and whole tables, and the list of the samplers that are trusted.

Accountant, verifier, statement, saving, checks of arguments and audits call a sampler's methods and
never test its class. A new sampler is one class and one entry in `SAMPLERS` at the end. The entry
means that the class is trusted: the verifier relies on a sampler's declared law (`step_event`,
`slack_per_step`, `independent`), so it refuses classes that are not listed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from jax import lax, numpy as jnp
from jaxtyping import Array, Int32

from discreet._dp_accounting import DpEvent, SampledWithoutReplacementDpEvent
from discreet.privacy.accounting import Relation, neighbours
from discreet.privacy.sampling._draws import (
    check_count,
    draws_needed,
    uniform_subset,
)
from discreet.privacy.sampling._interface import Batch, Sampling
from discreet.privacy.sampling._poisson import PoissonSampling

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
