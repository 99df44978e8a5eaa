"""How batches are drawn: the part of a plan that d3p leaves to whoever calls `get_batch`."""

from __future__ import annotations

import dataclasses
import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from discreet import random
from discreet.accounting import Relation
from discreet.plan import PrivacyPlan
from discreet.sampling import FullBatch, PoissonSampling, Sampling


@dataclasses.dataclass(frozen=True)
class BatchLaw:
    """How batches are drawn from a table.

    Attributes:
        sampling: the sampler; of disjoint batches, one whose batches have the same size.
        num_records: rows of the table.
        disjoint: batches are the pieces of a shuffled table (d3p's `split_batchify_data`), so that a
            record is in one batch of a pass; there is no amplification by subsampling.
    """

    sampling: Sampling
    num_records: int
    disjoint: bool = False

    @property
    def relation(self) -> Relation:
        """The relation under which the law has sound accounting."""
        poisson = isinstance(self.sampling, PoissonSampling)
        return Relation.ADD_OR_REMOVE_ONE if poisson else Relation.REPLACE_ONE

    @property
    def rows(self) -> int:
        """Rows of a batch, padding included."""
        return self.sampling.capacity(self.num_records)

    @property
    def rate(self) -> float:
        """The probability that a record enters a batch."""
        return self.sampling.rate_for(self.num_records)

    @property
    def masked(self) -> bool:
        """Whether rows of a batch may be padding."""
        return isinstance(self.sampling, PoissonSampling) and self.rate < 1.0

    def units(self, num_steps: int) -> int:
        """How many releases of the plan `num_steps` updates amount to: updates, or for disjoint batches, passes."""
        return math.ceil(num_steps / (self.num_records // self.rows)) if self.disjoint else num_steps

    def plan(
        self,
        *,
        clipping_norm: float,
        noise_multiplier: float,
        num_steps: int,
        num_records: int | None = None,
        delta: float | None = None,
    ) -> PrivacyPlan:
        """The plan of `num_steps` updates, for its event.

        Guarantee for disjoint batches: under REPLACE_ONE the two versions of a record sit at the same place of the
        shuffled table, so in one pass one batch differs and its release is one Gaussian mechanism; releases
        before and after it have the same law given the past. So a pass is what one step on all records would be.
        """
        return PrivacyPlan(
            sampling=FullBatch() if self.disjoint else self.sampling,
            clipping_norm=clipping_norm,
            noise_multiplier=noise_multiplier,
            num_steps=self.units(num_steps),
            num_records=self.num_records if num_records is None else num_records,
            relation=self.relation,
            target_delta=delta,
        )

    def __str__(self) -> str:
        """For messages."""
        if self.disjoint:
            return f"disjoint batches of {self.rows} of {self.num_records} shuffled records"
        return f"{self.sampling} of {self.num_records} records"


@dataclasses.dataclass(eq=False)
class Source:
    """What is known of a batchifier, also after it is gone.

    Attributes:
        law: how its batches are drawn.
        seeded: one of its keys can be made again: then the batches are no secret, and drawing them amplifies nothing.
    """

    law: BatchLaw
    seeded: bool = False

    def note(self, rng_key: Any) -> Any:
        """Record a key's kind; return the key."""
        self.seeded = self.seeded or random.is_reproducible(rng_key)
        return rng_key


@dataclasses.dataclass(frozen=True, eq=False, weakref_slot=True, slots=True)
class GetBatch:
    """`get_batch(i, batchifier_state)` of a batchifier.

    Attributes:
        source: how its batches are drawn, and where its keys came from.
    """

    source: Source
    _get: Callable[[Any, Any], Any] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        _live.add(self)

    @property
    def law(self) -> BatchLaw:
        """How its batches are drawn."""
        return self.source.law

    def __call__(self, i: Any, batchifier_state: Any) -> Any:
        """Batch number i; the same i and state give the same batch, so use each pair once.

        Args:
            i: number of the batch, an integer, may be traced.
            batchifier_state: from `init`.
        """
        batch = self._get(i, batchifier_state)
        for array in jax.tree.leaves(batch):
            forget = functools.partial(_handed_out.pop, id(array))
            _handed_out[id(array)] = weakref.ref(array, forget), self.source
        return batch


_live: weakref.WeakSet[GetBatch] = weakref.WeakSet()

_handed_out: dict[int, tuple[weakref.ref[Any], Source]] = {}
"""The arrays that batchifiers handed out and that still exist, by identity: concrete ones, and the tracers of a
program that is being compiled. An entry goes when its array does, so that an identity is never another array's."""


def source_of(arrays: Sequence[Any]) -> Source | None:
    """The batchifier that handed out all of these arrays, unchanged; None where they are not of one batchifier."""
    sources = {entry[1] if (entry := _handed_out.get(id(array))) else None for array in arrays}
    return sources.pop() if len(sources) == 1 else None


def live_sources(rows: int) -> list[Source]:
    """The batchifiers that exist and hand out batches of so many rows: a guess at where other arrays come from."""
    return [get_batch.source for get_batch in list(_live) if get_batch.law.rows == rows]
