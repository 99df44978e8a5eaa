"""The reference engine: every record's gradient is formed, clipped and added."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from discreet.gradients._clipping import check_tree, record_size, scale_rows, squared_norms
from discreet.gradients._contract import Channels, ClippedSum, Clipping, RecordLoss
from discreet.gradients._rows import row_weights


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
        clipping: Clipping,
        channels: Channels,
    ) -> ClippedSum:
        """See `GradientEngine`."""
        check_tree("ReferenceEngine", parameters)
        l2_bound = channels.joint_bound(clipping.norm)

        def partial_sum(rows: Any, keep: Bool[Array, "row"]) -> tuple[Any, Array, Array]:
            return _clipped_sum(record_loss, parameters, rows, keep, clipping, channels)

        size = mask.shape[0]
        microbatch = size if self.microbatch_size is None else min(self.microbatch_size, size)
        if microbatch == size:
            return ClippedSum(*partial_sum(records, mask), l2_bound)

        padding = -size % microbatch
        mask, records = jax.tree.map(lambda x: jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)), (mask, records))

        def body(index: Array, total: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
            rows, keep = jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, index * microbatch, microbatch),
                (records, mask),
            )
            return jax.tree.map(jnp.add, total, partial_sum(rows, keep))

        # Rows that count come first, so the last of them says how many microbatches are needed.
        last = jnp.max(jnp.where(mask, jnp.arange(1, mask.shape[0] + 1), 0))
        needed = (last + microbatch - 1) // microbatch
        first = partial_sum(*jax.tree.map(lambda x: x[:microbatch], (records, mask)))
        gradient, loss, count = jax.lax.fori_loop(1, needed, body, first)
        return ClippedSum(gradient, loss, count, l2_bound)


def _clipped_sum(
    record_loss: RecordLoss,
    parameters: Any,
    records: Any,
    mask: Bool[Array, "record"],
    clipping: Clipping,
    channels: Channels,
) -> tuple[Any, Array, Array]:
    losses, gradients = jax.vmap(jax.value_and_grad(record_loss), in_axes=(None, 0))(parameters, records)
    # A leaf that is not finite makes the norm so, and its row is dropped.
    squared = squared_norms(gradients, clipping.norm)
    weights = row_weights(losses, squared, record_size(gradients), mask, clipping, channels)
    scaled = scale_rows(gradients, weights.factor, weights.keep)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), scaled), weights.loss, weights.count
