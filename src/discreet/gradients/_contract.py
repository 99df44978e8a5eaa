"""The contract that every gradient engine keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from jaxtyping import Array, Bool, Float

RecordLoss = Callable[[Any, Any], Float[Array, ""]]
"""`loss(parameters, record) -> scalar`, one record at a time, unscaled."""


class LossChannel(NamedTuple):
    """How a record's loss travels beside its gradient, as one more coordinate of the release.

    A record adds `weight * clip(loss - center, -bound, bound)` to the coordinate, so its
    magnitude is at most `weight * bound`. All four numbers are public.

    Attributes:
        center: a public guess at a record's loss, in nats.
        bound: losses further than this from `center` are clipped, in nats; positive.
        weight: gradient units per nat; 0 switches the channel off.
    """

    center: Float[Array, ""] | float
    bound: Float[Array, ""] | float
    weight: Float[Array, ""] | float

    @classmethod
    def sharing(
        cls,
        share: float,
        clipping_norm: float,
        *,
        center: Float[Array, ""] | float,
        bound: Float[Array, ""] | float,
    ) -> LossChannel:
        """Give the loss `share` of the squared L2 bound of the joint contribution.

        The gradient keeps its clipping norm C; the joint bound becomes C / sqrt(1 - share),
        and so does, for one noise multiplier, the noise on the gradient: share = 0.02 costs
        one per cent more noise.
        """
        weight = clipping_norm * math.sqrt(share / (1.0 - share))
        return cls(center=center, bound=bound, weight=weight / bound)


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
        *,
        loss_share: float,
    ) -> ClippedSum:
        """Sum the clipped gradients.

        Args:
            record_loss: the loss of one record.
            parameters: tree of floating arrays, what to differentiate in.
            records: tree of arrays whose leading axis is the records.
            mask: which rows count; True rows come first.
            clipping_norm: L2 bound C on one record's gradient; positive and finite.
            loss_channel: how losses are clipped and weighted.
            loss_share: the share with which `loss_channel` was made; fixes the joint bound.
        """
        ...
