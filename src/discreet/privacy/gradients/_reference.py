"""The reference engine: it forms every record's own gradient, clips it and adds it up.

It computes the contract (`_contract`) by definition and holds a gradient for each row of a
microbatch. Other engines must agree with it on every test.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from discreet.privacy.gradients._contract import Channels, ClippedSum, Norm, RecordLoss
from discreet.privacy.gradients._rows import (
    check_clipping,
    record_size,
    row_weights,
    scale_rows,
    squared_norms,
    sum_doubles,
)
from discreet.privacy.gradients._sums import (
    finite_alone,
    is_spare,
    rounding_of_sums,
    sum_by_chunks,
    whole_lanes,
)


@dataclasses.dataclass(frozen=True)
class ReferenceEngine:
    """`vmap` of the gradient, a microbatch at a time; the reference for all faster engines."""

    # rows whose gradients are held in memory at once; with `SPARE`, rounded up to a multiple of
    # `LANES`. Microbatches without a real row are skipped, so padding costs little.
    microbatch_size: int = 128

    def __call__(
        self,
        record_loss: RecordLoss,
        parameters: Any,
        records: Any,
        mask: Bool[Array, "record"],
        norm: Norm,
        channels: Channels,
    ) -> ClippedSum:
        check_clipping("ReferenceEngine", parameters, norm)

        def one(record: Any) -> tuple[Array, Any]:
            return jax.value_and_grad(record_loss)(parameters, record)

        def partial_sum(rows: Any, keep: Bool[Array, "row"]) -> tuple[Any, Bool[Array, "row"]]:
            losses, gradients = jax.vmap(one)(rows)
            # A leaf that is not finite makes the norm so, and its row is dropped.
            squared = squared_norms(gradients, norm)
            weights = row_weights(losses, squared, record_size(gradients), keep, norm, channels)
            scaled = scale_rows(gradients, weights.factor, weights.keep)
            together = jnp.isfinite(losses) & jnp.isfinite(squared) | is_spare(len(keep))
            finite = finite_alone(lambda row: jax.tree.leaves(one(row)), rows, together)
            return sum_doubles((scaled, weights.loss, weights.count)), finite

        chunk = whole_lanes(self.microbatch_size)
        gradient, loss, count = sum_by_chunks(partial_sum, records, mask, chunk)
        rounding = rounding_of_sums(mask.shape[0], 0, chunk)
        return ClippedSum(
            gradient, loss, count, channels.joint_bound(norm) * (1.0 + rounding), rounding
        )
