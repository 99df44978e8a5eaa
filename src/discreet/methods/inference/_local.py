"""Parameters of the records themselves, which stay beside the data and are never released."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from discreet.methods.inference._elbo import Objective
from discreet.privacy import mechanisms
from discreet.privacy.sampling import Batch


@dataclasses.dataclass(frozen=True)
class LocalUpdates:
    """The update of a record's own variational parameters when it is in a batch: the E-step.

    These parameters, and their optimizer state, are one row of each array of the memory. They
    follow the gradient of the record's own loss at the batch's draw of what is shared, with draws
    of their own. So a row of the memory depends on one record, on that record's own randomness, and
    on releases.
    """

    objective: Objective
    # optimizer of one record's parameters; told apart by `optim_digest`, what it computes
    optim: Any = dataclasses.field(compare=False)
    optim_digest: str
    num_updates: int  # updates that a record makes each time it is in a batch

    @property
    def _start(self) -> Any:
        return self.optim.init(dict(self.objective.local_start))

    def rows(self, num_records: int) -> list[Array]:
        """The initial memory, which is independent of the records."""
        return [
            jnp.broadcast_to(jnp.asarray(x), (num_records, *jnp.shape(x)))
            for x in jax.tree.leaves(self._start)
        ]

    def parameters(self, memory: Sequence[Array]) -> list[Array]:
        """The records' unconstrained parameters, as they stand behind the record arrays in `Objective.record_loss`."""
        structure = jax.tree.structure(self._start)
        return jax.vmap(
            lambda *row: self._ordered(self.optim.get_params(jax.tree.unflatten(structure, row)))
        )(*memory)

    def update(
        self,
        u: Any,
        table: Sequence[Array],
        memory: Sequence[Array],
        batch: Batch,
        key: PRNGKeyArray,
        shards: mechanisms.Shards | None,
        where: Sequence[Array],
    ) -> list[Array]:
        """Update the memory of a batch's records, given the shared draw `u`."""
        structure = jax.tree.structure(self._start)

        def row(
            u: Any, record: Sequence[Array], own: Sequence[Array], key: PRNGKeyArray
        ) -> list[Array]:
            def once(state: Any, key: PRNGKeyArray) -> tuple[Any, None]:
                def loss(own: Mapping[str, Array]) -> Float[Array, ""]:
                    return self.objective.record_loss(u, [*record, *self._ordered(own)], key)

                value, gradient = jax.value_and_grad(loss)(self.optim.get_params(state))
                return self.optim.update(gradient, state, value=value), None

            state, _ = jax.lax.scan(
                once, jax.tree.unflatten(structure, own), jax.random.split(key, self.num_updates)
            )
            # A record without a finite gradient adds nothing to the release or the memory.
            finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(state)]))
            return [
                jnp.where(finite, new, old)
                for new, old in zip(jax.tree.leaves(state), own, strict=True)
            ]

        return mechanisms.update_rows(row, u, table, memory, batch, key, shards, where)

    def _ordered(self, own: Mapping[str, Array]) -> list[Array]:
        return [own[name] for name, _ in self.objective.structure.local_params]
