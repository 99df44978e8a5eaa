"""The contract that every gradient engine keeps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from jaxtyping import Array, Bool, Float

from discreet.gradients._clipping import check_positive
from discreet.gradients._report import EngineReport

RecordLoss = Callable[[Any, Any], Float[Array, ""]]
"""`loss(parameters, record) -> scalar`, one record at a time, unscaled."""

# Weights are less by a few units in the last place, so that rounding cannot exceed the joint bound.
_INWARD = 1.0 - 1e-6


@dataclasses.dataclass(frozen=True)
class Clipping:
    """How a record's gradient g is brought within the L2 norm C; either way nothing it adds is longer than C.

    Attributes:
        norm: C; positive and finite. A number, or a scalar array that may be traced.
        rule: "clip": g is scaled by min(1, C / |g|), so that short gradients keep their value (Abadi et al.,
            CCS 2016). "normalise": by C / (|g| + stabiliser), so that all come close to C (Bu et al., NeurIPS 2023).
        stabiliser: for "normalise": the length, in the units of g, below which gradients fade out; above 0.

    Raises:
        ValueError: a norm that is known while tracing bounds nothing, or a rule or stabiliser that does not exist.
    """

    norm: float | Float[Array, ""]
    rule: str = "clip"
    stabiliser: float = 0.01

    def __post_init__(self) -> None:
        """See Raises."""
        check_positive("The clipping norm", self.norm, "It bounds one record's contribution; 1.0 is a common choice.")
        if self.rule not in ("clip", "normalise"):
            raise ValueError(f'The clipping rule is {self.rule!r}; it must be "clip" or "normalise".')
        check_positive(
            "The stabiliser", self.stabiliser, "It keeps gradients near zero near zero; 0.01 is a common choice."
        )


@dataclasses.dataclass(frozen=True)
class LossChannel:
    """How a record's loss travels beside its gradient, as one more coordinate of the release.

    A record adds `Channels.loss_weight(C) * clip(loss - center, -bound, bound)` to the coordinate.

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


@dataclasses.dataclass(frozen=True)
class CountChannel:
    """How many records' gradients lie within C, as one more coordinate of the release.

    A record adds `Channels.count_weight(C) * (1[|g| <= C] - 1/2)` to the coordinate: plus or minus half a weight.

    Attributes:
        share: share of the squared joint bound that goes to the count, in [0, 1); public and static.
            0 switches the channel off.
    """

    share: float = 0.0


@dataclasses.dataclass(frozen=True)
class Channels:
    """What a record adds to a release beside its gradient, and what it adds to all coordinates together.

    With shares s and t of loss and count, a record whose gradient is within C adds at most C sqrt(s / (1 - s - t)) to
    the loss, C sqrt(t / (1 - s - t)) to the count, and so C / sqrt(1 - s - t) to the three jointly.

    Attributes:
        loss: how losses are clipped, and their share.
        count: the share of the count.

    Raises:
        ValueError: shares below 0, or that leave nothing to the gradient.
    """

    loss: LossChannel
    count: CountChannel = CountChannel()

    def __post_init__(self) -> None:
        """See Raises."""
        shares = self.loss.share, self.count.share
        if not (min(shares) >= 0.0 and sum(shares) < 1.0):
            raise ValueError(
                f"The shares of loss and count are {shares[0]} and {shares[1]}; each must be at least 0, and together they "
                "must be below 1, or nothing is left for the gradient. 0.02 costs one per cent more noise on the gradient."
            )

    def loss_weight(self, norm: float | Float[Array, ""]) -> Any:
        """Gradient units per nat."""
        return self.loss_limit(norm) / self.loss.bound

    def loss_limit(self, norm: float | Float[Array, ""]) -> Any:
        """The most that one record adds to the loss's coordinate."""
        return _INWARD * norm * math.sqrt(self.loss.share / self._rest)

    def count_weight(self, norm: float | Float[Array, ""]) -> Any:
        """Gradient units per record."""
        return _INWARD * norm * 2.0 * math.sqrt(self.count.share / self._rest)

    def joint_bound(self, norm: float | Float[Array, ""]) -> Any:
        """L2 bound on one record's (gradient, loss, count) whose gradient is within `norm`."""
        return norm / math.sqrt(self._rest)

    @property
    def _rest(self) -> float:
        return 1.0 - self.loss.share - self.count.share


class ClippedSum(NamedTuple):
    """A sum over records, to which one record adds at most `l2_bound`. Not yet private.

    Attributes:
        gradient: tree like the parameters: the sum of the clipped per-record gradients.
        loss: scalar: the sum of the weighted, clipped per-record losses; 0 without a share.
        count: scalar: the weighted number of records within C less half of all; 0 without a share.
        l2_bound: bound on the joint L2 norm of one record's (gradient, loss, count).
    """

    gradient: Any
    loss: Float[Array, ""]
    count: Float[Array, ""]
    l2_bound: float | Float[Array, ""]


class GradientEngine(Protocol):
    """Computes a clipped sum. Engines differ in speed and memory, never in what they return.

    Guarantee, for any `record_loss` and any inputs, finite or not: each row that `mask` keeps
    changes the result by at most `l2_bound` in the joint L2 norm of (gradient, loss, count), a row
    that `mask` drops and a row whose loss or gradient is not finite (or whose gradient's squared norm,
    in units of C, overflows) change nothing, and every row is evaluated alone.
    """

    def __call__(
        self,
        record_loss: RecordLoss,
        parameters: Any,
        records: Any,
        mask: Bool[Array, "record"],
        clipping: Clipping,
        channels: Channels,
    ) -> ClippedSum:
        """Sum the clipped gradients.

        Args:
            record_loss: the loss of one record.
            parameters: tree of floating arrays, what to differentiate in.
            records: tree of arrays whose leading axis is the records.
            mask: which rows count; True rows come first.
            clipping: how one record's gradient is bounded.
            channels: what travels beside the gradients.
        """
        ...

    def explain(self, record_loss: RecordLoss, parameters: Any, record: Any, num_rows: int) -> EngineReport:
        """How the engine would go about it.

        Args:
            record_loss: the loss of one record.
            parameters: tree of floating arrays, or of their shapes.
            record: one record, or its shapes.
            num_rows: rows of a batch.
        """
        ...
