"""Fixed-size sampling: every batch is a uniform set of a public number of records, without replacement."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from dp_accounting import DpEvent, SampledWithoutReplacementDpEvent
from jax import lax
from jax import numpy as jnp
from jaxtyping import Array, Int32

from discreet.sampling._batch import Batch, Relation, check_count, check_mechanism, check_relation
from discreet.sampling._subset import draws_needed, uniform_subset

_REDRAW = 2.0**-40


@functools.lru_cache(maxsize=64)
def _draws(size: int, num_records: int) -> int:
    return draws_needed(np.array([size]), np.ones(1), num_records, _REDRAW)[0]


@dataclass(frozen=True)
class FixedSizeSampling:
    """Batches of exactly ``batch_size`` different records, every such set equally likely.

    Guarantee: exactly uniform given uniform random words, each step independent of the others. The work of a draw
    follows the batch and not the table: row numbers are drawn independently and repetitions dropped (for batches of
    more than half of the records, the records to leave out are drawn). With probability below 2^-40 a draw finds too
    few different records and is made again, which leaves the law uniform.

    Sound under ``REPLACE_ONE`` only. Under ``ADD_OR_REMOVE_ONE`` neighbours have different numbers of records, so
    the inclusion probability batch_size / num_records of *every* record differs between them, and subsampling
    formulas do not apply.

    Args:
        batch_size: The number of records in a batch, at most the number of records.

    Raises:
        TypeError: ``batch_size`` is not an integer, or is a bool.
        ValueError: ``batch_size`` is below 1 or above 2^31 - 1.

    Reference:
        Prediger, Loppi, Kaski, Honkela. d3p. PoPETs 2022(2), section 4.3, walks a Feistel permutation instead, which
        is uniform only as far as its round function is random: see ``feistel_permutation``.

    >>> FixedSizeSampling(batch_size=32).rate_for(500)
    0.064
    """

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

    def check(self, num_records: int, relation: Relation) -> None:
        """Refuses batches larger than the table, and any relation but ``REPLACE_ONE``."""
        self._count(num_records)
        check_relation(relation)
        if relation == Relation.ADD_OR_REMOVE_ONE:
            raise ValueError(
                f"FixedSizeSampling(batch_size={self.batch_size}) has no sound accounting under ADD_OR_REMOVE_ONE: a "
                f"batch of fixed size from num_records records is drawn differently when one record is added, so every "
                f"record's share changes. Use PoissonSampling(rate={self.batch_size / num_records:.6g}), or declare "
                f"the number of records public with relation=Relation.REPLACE_ONE."
            )

    def step_event(self, mechanism: DpEvent, *, num_records: int, relation: Relation) -> DpEvent:
        """The event of one step: ``mechanism`` on a sample without replacement, or on everything if it is everything."""
        self.check(num_records, relation)
        check_mechanism(mechanism)
        if self.batch_size == num_records:
            return mechanism
        return SampledWithoutReplacementDpEvent(int(num_records), self.batch_size, mechanism)

    def rate_for(self, num_records: int) -> float:
        """batch_size / num_records."""
        return self.batch_size / self._count(num_records)

    def expected_batch_size(self, num_records: int) -> float:
        """batch_size."""
        self._count(num_records)
        return float(self.batch_size)

    def slack_per_step(self, num_records: int) -> float:
        """0.0: the drawn law is exactly uniform."""
        self._count(num_records)
        return 0.0

    def capacity(self, num_records: int) -> int:
        """batch_size: there is no padding."""
        self._count(num_records)
        return self.batch_size

    def typical_sizes(self, num_records: int) -> tuple[int, ...]:
        """batch_size."""
        self._count(num_records)
        return (self.batch_size,)

    def prepare(self, num_records: int) -> dict[str, Any]:
        """Nothing."""
        self._count(num_records)
        return {}

    def draw(self, key: jax.Array, tables: Any, *, num_records: int) -> Batch:
        """Draws one batch.

        Args:
            key: A typed JAX key, used for this draw only.
            tables: Not read.
            num_records: The number of records, static.

        Returns:
            A batch of ``batch_size`` rows, all of them real, in an order that means nothing.
        """
        del tables
        count = self._count(num_records)
        mask = jnp.ones(self.batch_size, bool)
        left_out = count - self.batch_size
        if left_out == 0:
            return Batch(jnp.arange(count, dtype=jnp.int32), mask)
        if left_out >= self.batch_size:
            return Batch(_distinct(key, self.batch_size, count), mask)
        kept = jnp.ones(count, bool).at[_distinct(key, left_out, count)].set(False, mode="promise_in_bounds")
        return Batch(jnp.nonzero(kept, size=self.batch_size)[0].astype(jnp.int32), mask)


def _distinct(key: jax.Array, size: int, num_records: int) -> Int32[Array, " size"]:
    """``size`` different records: a uniform set."""
    draws = _draws(size, num_records)

    def attempt(key: jax.Array) -> tuple[Int32[Array, " size"], Int32[Array, ""]]:
        words = jax.random.bits(key, (draws,), jnp.uint32)
        return uniform_subset(words, size, num_records=num_records, capacity=size)

    def again(carry):
        key = jax.random.fold_in(carry[0], 1)
        return key, *attempt(key)

    # Whether a draw holds enough different records does not depend on which they are, so drawing again keeps the set
    # uniform, where handing out a short batch would not keep the law that the event names.
    return lax.while_loop(lambda carry: carry[2] < size, again, (key, *attempt(key)))[1]
