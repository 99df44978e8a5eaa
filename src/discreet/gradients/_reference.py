"""The reference engine: every record's gradient is formed, clipped and added."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from discreet.gradients._clipping import clip_records, sum_records
from discreet.gradients._contract import ClippedSum, LossChannel, RecordLoss


@dataclasses.dataclass(frozen=True)
class ReferenceEngine:
    """`vmap` of the gradient, a microbatch at a time; the measure of all faster engines.

    Attributes:
        microbatch_size: rows whose gradients are held in memory at once; None: all of them.
            Microbatches without a real row are skipped, so padding costs little.
    """

    microbatch_size: int | None = None

    def __call__(
        self,
        record_loss: RecordLoss,
        parameters: Any,
        records: Any,
        mask: Bool[Array, "record"],
        clipping_norm: float,
        loss_channel: LossChannel,
    ) -> ClippedSum:
        """See `GradientEngine`."""
        l2_bound = loss_channel.joint_bound(clipping_norm)

        def partial_sum(rows: Any, keep: Bool[Array, "row"]) -> tuple[Any, Array]:
            return _clipped_sum(record_loss, parameters, rows, keep, clipping_norm, loss_channel)

        size = mask.shape[0]
        microbatch = size if self.microbatch_size is None else min(self.microbatch_size, size)
        if microbatch == size:
            gradient, loss = partial_sum(records, mask)
            return ClippedSum(gradient, loss, l2_bound)

        padding = -size % microbatch
        mask, records = jax.tree.map(lambda x: jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)), (mask, records))

        def body(index: Array, total: tuple[Any, Array]) -> tuple[Any, Array]:
            rows, keep = jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, index * microbatch, microbatch),
                (records, mask),
            )
            return jax.tree.map(jnp.add, total, partial_sum(rows, keep))

        # Rows that count come first, so the last of them says how many microbatches are needed.
        last = jnp.max(jnp.where(mask, jnp.arange(1, mask.shape[0] + 1), 0))
        needed = (last + microbatch - 1) // microbatch
        first = partial_sum(*jax.tree.map(lambda x: x[:microbatch], (records, mask)))
        gradient, loss = jax.lax.fori_loop(1, needed, body, first)
        return ClippedSum(gradient, loss, l2_bound)


def _clipped_sum(
    record_loss: RecordLoss,
    parameters: Any,
    records: Any,
    mask: Bool[Array, "record"],
    clipping_norm: float,
    channel: LossChannel,
) -> tuple[Any, Array]:
    losses, gradients = jax.vmap(jax.value_and_grad(record_loss), in_axes=(None, 0))(parameters, records)
    finite = jnp.isfinite(losses)
    for leaf in jax.tree.leaves(gradients):
        finite &= jnp.all(jnp.isfinite(leaf.reshape(leaf.shape[0], -1)), axis=1)
    keep = mask & finite
    gradient = sum_records(clip_records(gradients, clipping_norm), keep)
    clipped = jnp.clip(losses - channel.center, -channel.bound, channel.bound)
    return gradient, channel.weight(clipping_norm) * sum_records(clipped, keep)
