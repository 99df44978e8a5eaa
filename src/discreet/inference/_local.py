"""Variational parameters of the records themselves: kept beside the data, updated without noise, never released."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from discreet import mechanisms
from discreet.inference._objective import Objective
from discreet.sampling import Batch


@dataclasses.dataclass(frozen=True)
class LocalUpdates:
    """What each record does with its own variational parameters when it is in a batch: the E-step.

    A record remembers them, and what the optimizer keeps of them, as one row of each array of the memory. They follow the
    gradient of the record's own loss at the batch's draw of what is shared, with draws of their own. So a row of the memory
    depends on one record, on that record's own randomness, and on releases.

    Attributes:
        optim: optimizer of one record's parameters; told apart by `optim_digest`, what it computes.
        num_updates: updates that a record makes each time it is in a batch.
    """

    objective: Objective
    optim: Any = dataclasses.field(compare=False)
    optim_digest: str
    num_updates: int

    @property
    def _start(self) -> Any:
        return self.optim.init(dict(self.objective.local_start))

    def rows(self, num_records: int) -> list[Array]:
        """The memory at the start, which knows nothing of the records."""
        return [jnp.broadcast_to(jnp.asarray(x), (num_records, *jnp.shape(x))) for x in jax.tree.leaves(self._start)]

    def parameters(self, memory: Sequence[Array]) -> list[Array]:
        """The records' unconstrained parameters, as they stand behind the record arrays in `Objective.record_loss`."""
        structure = jax.tree.structure(self._start)
        return jax.vmap(lambda *row: self._ordered(self.optim.get_params(jax.tree.unflatten(structure, row))))(*memory)

    def update(
        self, u: Any, table: Sequence[Array], memory: Sequence[Array], batch: Batch, key: PRNGKeyArray
    ) -> list[Array]:
        """The memory after the records of a batch have looked at the shared draw `u`."""
        structure = jax.tree.structure(self._start)

        def row(u: Any, record: Sequence[Array], own: Sequence[Array], key: PRNGKeyArray) -> list[Array]:
            def once(state: Any, key: PRNGKeyArray) -> tuple[Any, None]:
                return self._once(u, record, state, key), None

            state, _ = jax.lax.scan(once, jax.tree.unflatten(structure, own), jax.random.split(key, self.num_updates))
            # A record without a finite gradient adds nothing to the release; nor does it remember anything.
            finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(state)]))
            return [jnp.where(finite, new, old) for new, old in zip(jax.tree.leaves(state), own, strict=True)]

        return mechanisms.update_rows(row, u, table, memory, batch, key)

    def _once(self, u: Any, record: Sequence[Array], state: Any, key: PRNGKeyArray) -> Any:
        def loss(own: Mapping[str, Array]) -> Float[Array, ""]:
            return self.objective.record_loss(u, [*record, *self._ordered(own)], key)

        value, gradient = jax.value_and_grad(loss)(self.optim.get_params(state))
        return self.optim.update(gradient, state, value=value)

    def _ordered(self, own: Mapping[str, Array]) -> list[Array]:
        return [own[name] for name, _ in self.objective.structure.local_params]
