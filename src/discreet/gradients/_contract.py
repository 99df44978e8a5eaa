"""The contract that every gradient engine keeps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from jaxtyping import Array, Bool, Float

RecordLoss = Callable[[Any, Any], Float[Array, ""]]
"""`loss(parameters, record) -> scalar`, one record at a time, unscaled."""


@dataclasses.dataclass(frozen=True)
class LossChannel:
    """How a record's loss travels beside its gradient, as one more coordinate of the release.

    A record adds `weight(C) * clip(loss - center, -bound, bound)` to the coordinate, at most
    C sqrt(share / (1 - share)), so that gradient and loss together are within `joint_bound(C)`.

    Attributes:
        share: share of the squared joint bound that goes to the loss, in [0, 1); public and static.
            0 switches the channel off. For one noise multiplier the noise on the gradient grows by
            1 / sqrt(1 - share): one per cent for 0.02.
        center: a public guess at a record's loss, in nats.
        bound: losses further than this from `center` are clipped, in nats; positive and public.
    """

    share: float
    center: Float[Array, ""] | float = 0.0
    bound: Float[Array, ""] | float = 1.0

    def weight(self, clipping_norm: float) -> Float[Array, ""] | float:
        """Gradient units per nat."""
        # Less by a few units in the last place, so that rounding cannot exceed the joint bound.
        return (1.0 - 1e-6) * clipping_norm * math.sqrt(self.share / (1.0 - self.share)) / self.bound

    def joint_bound(self, clipping_norm: float) -> float:
        """L2 bound on one record's (gradient, loss) whose gradient is within `clipping_norm`."""
        return clipping_norm / math.sqrt(1.0 - self.share)


class ClippedSum(NamedTuple):
    """A sum over records, to which one record adds at most `l2_bound`. Not yet private.

    Attributes:
        gradient: tree like the parameters: the sum of the clipped per-record gradients.
        loss: scalar: the sum of the weighted, clipped per-record losses.
        l2_bound: bound on the joint L2 norm of one record's (gradient, loss).
    """

    gradient: Any
    loss: Float[Array, ""]
    l2_bound: float


class GradientEngine(Protocol):
    """Computes a clipped sum. Engines differ in speed and memory, never in what they return.

    Guarantee, for any `record_loss` and any inputs, finite or not: each row that `mask` keeps
    changes the result by at most `l2_bound` in the joint L2 norm of (gradient, loss), a row
    that `mask` drops and a row whose loss or gradient is not finite change nothing, and every
    row is evaluated alone.
    """

    def __call__(
        self,
        record_loss: RecordLoss,
        parameters: Any,
        records: Any,
        mask: Bool[Array, "record"],
        clipping_norm: float,
        loss_channel: LossChannel,
    ) -> ClippedSum:
        """Sum the clipped gradients.

        Args:
            record_loss: the loss of one record.
            parameters: tree of floating arrays, what to differentiate in.
            records: tree of arrays whose leading axis is the records.
            mask: which rows count; True rows come first.
            clipping_norm: L2 bound C on one record's gradient; positive and finite.
            loss_channel: how losses are clipped and weighted.
        """
        ...
