"""Full batches: every record on every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from dp_accounting import DpEvent
from jax import numpy as jnp

from discreet.sampling._batch import Batch, Relation, check_count, check_mechanism, check_relation


@dataclass(frozen=True)
class FullBatch:
    """Every step reads every record. No randomness, no amplification, no slack.

    >>> FullBatch().rate_for(500)
    1.0
    """

    def check(self, num_records: int, relation: Relation) -> None:
        """Refuses counts outside [1, 2^31 - 1] and relations without accounting; both usual relations are sound."""
        check_count(num_records, "num_records")
        check_relation(relation)

    def step_event(self, mechanism: DpEvent, *, num_records: int, relation: Relation) -> DpEvent:
        """The mechanism's own event."""
        self.check(num_records, relation)
        check_mechanism(mechanism)
        return mechanism

    def rate_for(self, num_records: int) -> float:
        """1.0."""
        check_count(num_records, "num_records")
        return 1.0

    def expected_batch_size(self, num_records: int) -> float:
        """The number of records."""
        return float(check_count(num_records, "num_records"))

    def slack_per_step(self, num_records: int) -> float:
        """0.0: nothing is drawn."""
        check_count(num_records, "num_records")
        return 0.0

    def capacity(self, num_records: int) -> int:
        """The number of records."""
        return check_count(num_records, "num_records")

    def typical_sizes(self, num_records: int) -> tuple[int, ...]:
        """The number of records."""
        return (check_count(num_records, "num_records"),)

    def prepare(self, num_records: int) -> dict[str, Any]:
        """Nothing."""
        check_count(num_records, "num_records")
        return {}

    def draw(self, key: jax.Array, tables: Any, *, num_records: int) -> Batch:
        """All records in order; ``key`` and ``tables`` are not read."""
        del key, tables
        count = check_count(num_records, "num_records")
        return Batch(jnp.arange(count, dtype=jnp.int32), jnp.ones(count, bool))
