"""The reference engine: every record's gradient is formed, clipped and added."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from discreet.gradients._capacities import sum_over_rows
from discreet.gradients._clipping import check_tree, record_size, scale_rows, squared_norms
from discreet.gradients._contract import Channels, ClippedSum, Clipping, RecordLoss
from discreet.gradients._report import EngineReport, LeafReport
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
        gradient, loss, count = sum_over_rows(partial_sum, records, mask, [self.microbatch_size or size])
        return ClippedSum(gradient, loss, count, l2_bound)

    def explain(self, record_loss: RecordLoss, parameters: Any, record: Any, num_rows: int) -> EngineReport:
        """See `GradientEngine`."""
        leaves = [
            LeafReport(jax.tree_util.keystr(path), x.shape, "per record", 2 * x.size, 4 * x.size)
            for path, x in jax.tree.leaves_with_path(jax.eval_shape(lambda: parameters))
        ]
        return EngineReport(tuple(leaves), num_rows, min(num_rows, self.microbatch_size or num_rows))


def _clipped_sum(
    record_loss: RecordLoss,
    parameters: Any,
    records: Any,
    mask: Bool[Array, "record"],
    clipping: Clipping,
    channels: Channels,
) -> tuple[Any, Array, Array]:
    def one(record: Any) -> tuple[Array, Any]:
        return jax.value_and_grad(record_loss)(parameters, record)

    # XLA may make one convolution of all rows' and hide the others' by zeros, so that one that is not finite shows in all.
    together = jax.vmap(one)(records)
    whole = jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(together)]).all()
    losses, gradients = jax.lax.cond(whole, lambda: together, lambda: jax.lax.map(one, records))
    # A leaf that is not finite makes the norm so, and its row is dropped.
    squared = squared_norms(gradients, clipping.norm)
    weights = row_weights(losses, squared, record_size(gradients), mask, clipping, channels)
    scaled = scale_rows(gradients, weights.factor, weights.keep)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), scaled), weights.loss, weights.count
