"""What every sampler hands out, and the checks that all of them share."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from dp_accounting import DpEvent
from jaxtyping import Array, Bool, Int32

from discreet.accounting import Relation

MAX_RECORDS = 2**31 - 1


class Batch(NamedTuple):
    """The records of one step, as row numbers.

    Attributes:
        indices: Row numbers in ``[0, num_records)``. Rows where ``mask`` is False are padding and hold 0.
        mask: True for the rows that are in the batch. The True rows come first.
    """

    indices: Int32[Array, " capacity"]
    mask: Bool[Array, " capacity"]


@runtime_checkable
class Sampling(Protocol):
    """What a sampler can do: name its event, size its arrays, and draw batches.

    Implementations are frozen and hashable, hold public numbers only, and are final: write a new class rather than
    deriving from one. ``draw`` is pure JAX with static shapes; everything else runs on the host.
    """

    def check(self, num_records: int, relation: Relation) -> None:
        """Raises ``ValueError`` if the sampler has no sound accounting on that many records under ``relation``."""
        ...

    def step_event(self, mechanism: DpEvent, *, num_records: int, relation: Relation) -> DpEvent:
        """The event of one step that applies ``mechanism`` to one batch."""
        ...

    def rate_for(self, num_records: int) -> float:
        """The probability that one given record enters one batch."""
        ...

    def expected_batch_size(self, num_records: int) -> float:
        """The mean number of records in a batch."""
        ...

    def slack_per_step(self, num_records: int) -> float:
        """Bound on the total-variation distance between the law that is drawn and the law that the event names."""
        ...

    def capacity(self, num_records: int) -> int:
        """The number of rows of a ``Batch``, padding included."""
        ...

    def typical_sizes(self, num_records: int) -> tuple[int, ...]:
        """Increasing numbers of records worth compiling for; a batch exceeds the last with probability below 1e-3."""
        ...

    def prepare(self, num_records: int) -> Any:
        """Public tables that ``draw`` reads: a pytree of NumPy arrays, possibly empty."""
        ...

    def draw(self, key: jax.Array, tables: Any, *, num_records: int) -> Batch:
        """Draws one batch. ``tables`` comes from ``prepare`` with the same ``num_records``."""
        ...


def check_count(value: Any, name: str) -> int:
    """Returns ``value`` as an int if it is an integer from 1 to 2^31 - 1, and refuses it otherwise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{name} must be an integer, but is {value!r} of type {type(value).__name__}. "
            f"It counts records: pass a plain int, such as len(table)."
        )
    count = int(value)
    if not 1 <= count <= MAX_RECORDS:
        raise ValueError(
            f"{name} = {count} is outside [1, 2^31 - 1]. Row numbers are 32-bit integers and a batch needs at least "
            f"one record to draw from: pass the number of rows, or split a larger table into several fits."
        )
    return count


def check_relation(relation: Relation) -> None:
    """Refuses anything but the two relations that the library accounts for."""
    if relation not in (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE):
        raise ValueError(
            f"relation = {relation!r} is not accounted for. Neighbouring datasets differ by one record added or "
            f"removed, or by one record replaced: pass Relation.ADD_OR_REMOVE_ONE or Relation.REPLACE_ONE."
        )


def check_mechanism(mechanism: DpEvent) -> None:
    """Refuses what is not an event."""
    if not isinstance(mechanism, DpEvent):
        raise TypeError(
            f"mechanism must be a dp_accounting DpEvent, but is of type {type(mechanism).__name__}. "
            f"Pass the event of what is done to one batch, such as GaussianDpEvent(noise_multiplier)."
        )
