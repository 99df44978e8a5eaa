"""The contract of gradient engines: what they return, its bound, and what they guarantee.

An engine turns the loss of one record, f(u, x), and a batch of records into the sum over records

    sum_i  min(1, C / |g_i|) g_i,        g_i = grad_u f(u, x_i),

to which any record contributes at most C. Two scalars may accompany the gradient, as further
coordinates of the same vector: the record's clipped loss, and an indicator of whether its gradient
was clipped. They take a share of the joint bound, so that gradient, loss and count are one release
at the cost of one. With shares s and t the bound of the gradient is C, that of all three together C
/ sqrt(1 - s - t), and the noise is proportional to the latter.

Engines differ in how they compute |g_i| and the sum: `_reference` forms every record's gradient,
`_bookkeeping` avoids it, and tests compare the two. Common to both are the weights of rows
(`_rows`) and the sum over a batch of unknown size (`_sums`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from jaxtyping import Array, Bool, Float

Norm = float | Float[Array, ""]
"""A clipping norm: a number, or a scalar array that may be traced."""
RecordLoss = Callable[[Any, Any], Float[Array, ""]]
"""`loss(parameters, record) -> scalar`, one record at a time, unscaled."""
# Weights are less by a few units in the last place, so that rounding cannot exceed the joint bound.
_INWARD = 1.0 - 1e-6


@dataclasses.dataclass(frozen=True)
class Channels:
    """The channels of loss and count in a release, and the joint bound on a record's contribution.

    To the coordinate of the loss a record adds `loss_weight(C) * clip(loss - center, -bound,
    bound)`. Of the two coordinates of the counts it adds `count_weight(C)` to the first if its
    gradient is within C, else to the second; a record whose loss or gradient is not finite adds to
    neither. With shares s and t of loss and counts, a record adds at most C sqrt(s / (1 - s - t))
    to the loss, C sqrt(t / (1 - s - t)) to the counts, and so C / sqrt(1 - s - t) to gradient, loss
    and counts jointly. For one noise multiplier the noise on the gradient grows by 1 / sqrt(1 - s -
    t): one per cent for 0.02.

    Raises:
        ValueError: Shares below 0, or that leave nothing to the gradient.
    """

    # Share of the squared joint bound that goes to the loss, in [0, 1); public and static. 0
    # switches the channel off.
    loss_share: float = 0.0
    count_share: float = 0.0  # The same for the two counts
    center: Float[Array, ""] | float = 0.0  # A public guess at a record's loss, in nats
    # Losses further than this from `center` are clipped, in nats; positive and public
    bound: Float[Array, ""] | float = 1.0

    def __post_init__(self) -> None:
        shares = self.loss_share, self.count_share
        if not (min(shares) >= 0.0 and sum(shares) < 1.0):
            raise ValueError(
                f"The shares of loss and count are {shares[0]} and {shares[1]}; each must be at least 0, and their sum below 1, "
                "to leave a share for the gradient. 0.02 costs one per cent more noise on the gradient."
            )

    def loss_weight(self, norm: Norm) -> Any:
        """Gradient units per nat."""
        return self.loss_limit(norm) / self.bound

    def loss_limit(self, norm: Norm) -> Any:
        """The largest contribution of one record to the loss's coordinate."""
        return _INWARD * norm * math.sqrt(self.loss_share / self._rest)

    def count_weight(self, norm: Norm) -> Any:
        """Gradient units per record."""
        return _INWARD * norm * math.sqrt(self.count_share / self._rest)

    def joint_bound(self, norm: Norm) -> Any:
        """L2 bound on one record's (gradient, loss, count) whose gradient is within `norm`."""
        return norm / math.sqrt(self._rest)

    @property
    def _rest(self) -> float:
        return 1.0 - self.loss_share - self.count_share


class ClippedSum(NamedTuple):
    """A sum over records with sensitivity `l2_bound`, as computed. Not yet private.

    All three sums are in float64.
    """

    gradient: Any  # tree like the parameters: the sum of the clipped per-record gradients
    # scalar: the sum of the weighted, clipped per-record losses; 0 without a share
    loss: Float[Array, ""]
    # the weighted numbers of records within C, and of clipped ones; 0 without a share
    count: Float[Array, "two"]
    # bound on the joint L2 norm of what one record changes in (gradient, loss, count)
    l2_bound: Norm
    # the share of `l2_bound` that is for the rounding of sums, as a part of the rest
    rounding: float = 0.0


class GradientEngine(Protocol):
    """A function that computes a clipped sum. Engines differ in speed and memory, never in their result.

    Guarantee, for any `record_loss` and any inputs, finite or not: each row that `mask` keeps
    changes the result by at most `l2_bound` in the joint L2 norm of (gradient, loss, count), a row
    that `mask` drops and a row whose loss or gradient is not finite (or whose gradient's squared
    norm, in units of C, overflows) change nothing, and every row is evaluated alone.
    """

    def __call__(
        self,
        record_loss: RecordLoss,
        parameters: Any,
        records: Any,
        mask: Bool[Array, "record"],
        norm: Norm,
        channels: Channels,
    ) -> ClippedSum:
        """Sum the clipped gradients.

        Args:
            record_loss: The loss of one record.
            parameters: Tree of floating arrays, what to differentiate in.
            records: Tree of arrays whose leading axis is the records.
            mask: True for rows that count, which come first.
            norm: The clipping norm C, positive and finite; a number, or a scalar array that may be
                traced.
            channels: The channels of loss and count.
        """
        ...
