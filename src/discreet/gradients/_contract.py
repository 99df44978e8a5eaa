"""The contract that every gradient engine keeps, and what all engines do alike once a record's loss and norm are known.

An engine turns the loss of one record, f(u, x), and a batch of records into the sum over records

    sum_i  min(1, C / |g_i|) g_i,        g_i = grad_u f(u, x_i),

of which one record is at most C, whatever it holds. Two scalars may travel beside the gradient, each as one more coordinate
of the same vector: the record's clipped loss, and whether its gradient was clipped. They take a share of the joint bound, so
that gradient, loss and count are released by one mechanism and at the price of one. With shares s and t the bound of the
gradient is C, that of all three coordinates together C / sqrt(1 - s - t), and noise in proportion to the latter.

Engines differ in how they find |g_i| and the sum; the rest is here: which rows count and what each is worth
(`row_weights`), and what an engine reports of its work (`EngineReport`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from discreet.gradients._clipping import check_positive, rounding_margin, row_scale

# --- what an engine reports ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LeafReport:
    """One leaf of what is differentiated.

    Attributes:
        name: its path in the tree.
        shape: its shape.
        way: "outer", "gram" or "formed" (see `_booking`), "per record" (its gradient is formed for every record), or
            "unused" (the loss does not depend on it).
        flops: floating-point operations for one record's norm, beyond forward and backward pass.
        bytes: held for one record on its account.
    """

    name: str
    shape: tuple[int, ...]
    way: str
    flops: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class EngineReport:
    """How an engine goes about a clipped sum. `str` gives the table.

    Attributes:
        leaves: a line for each leaf.
        num_rows: rows of a batch.
        microbatch_size: rows that are worked on at once.
    """

    leaves: tuple[LeafReport, ...]
    num_rows: int
    microbatch_size: int

    def __str__(self) -> str:
        """The table."""
        header = ("leaf", "shape", "way", "flops/record", "bytes/record")
        rows = [(x.name, str(x.shape), x.way, f"{x.flops:,}", f"{x.bytes:,}") for x in self.leaves]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = [_line(header, widths), _line(tuple("-" * w for w in widths), widths)]
        lines += [_line(row, widths) for row in rows]
        together = sum(x.bytes for x in self.leaves) * self.microbatch_size
        lines.append(
            f"{self.microbatch_size:,} of {self.num_rows:,} rows at once: {_bytes(together)} for the norms of all leaves; "
            f"per-record gradients would take {_bytes(4 * self._size * self.microbatch_size)}."
        )
        return "\n".join(lines)

    @property
    def _size(self) -> int:
        return sum(math.prod(leaf.shape) for leaf in self.leaves)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    texts = [x.ljust(w) if i < 3 else x.rjust(w) for i, (x, w) in enumerate(zip(cells, widths, strict=True))]
    return "  ".join(texts).rstrip()


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{number:.3g} {unit}"


# --- the contract --------------------------------------------------------------------------------


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


# --- who counts, and how much --------------------------------------------------------------------


class RowWeights(NamedTuple):
    """What each record's row is worth.

    Attributes:
        keep: rows that count: kept by the mask, with a finite loss and a finite squared norm.
        factor: what to multiply each record's gradient with; exactly 0 where not `keep`. A gradient that is not finite
            must still be selected away (`where`): 0 * NaN is NaN.
        loss: the sum of the weighted, clipped losses of the rows that count.
        count: the weighted number of rows that count and lie within C, less half of those that count.
    """

    keep: Bool[Array, "record"]
    factor: Float[Array, "record"]
    loss: Float[Array, ""]
    count: Float[Array, ""]


def row_weights(
    losses: Float[Array, "record"],
    squared_norms: Float[Array, "record"],
    size: int,
    mask: Bool[Array, "record"],
    clipping: Clipping,
    channels: Channels,
) -> RowWeights:
    """The factor of each record's gradient, and the two scalars that travel beside the sum.

    Guarantee: if `squared_norms` is right up to the rounding that `rounding_margin(size)` allows for, each row adds at
    most `channels.joint_bound(clipping.norm)` to (factor * gradient, loss, count) in the joint L2 norm.

    Args:
        losses: each record's loss, in nats; any number.
        squared_norms: each record's |gradient|^2 / C^2, joint over the leaves; any number.
        size: number of coordinates of one gradient.
        mask: which rows are real.
        clipping: the rule and C.
        channels: how loss and count are weighted. What has no share is exactly 0.
    """
    keep = mask & jnp.isfinite(losses) & jnp.isfinite(squared_norms)
    factor = jnp.where(keep, _scale(squared_norms, size, clipping), 0.0)
    loss = count = jnp.zeros(())
    if channels.loss.share > 0.0:
        clipped = jnp.clip(losses - channels.loss.center, -channels.loss.bound, channels.loss.bound)
        # Summed as parts of the bound: a sum of losses may be infinite, and its weight zero.
        loss = channels.loss_limit(clipping.norm) * jnp.sum(jnp.where(keep, clipped / channels.loss.bound, 0.0))
    if channels.count.share > 0.0:
        within = jnp.where(squared_norms <= 1.0, 0.5, -0.5)
        count = channels.count_weight(clipping.norm) * jnp.sum(jnp.where(keep, within, 0.0))
    return RowWeights(keep, factor, loss, count)


def _scale(squared_norms: Float[Array, "record"], size: int, clipping: Clipping) -> Float[Array, "record"]:
    if clipping.rule == "clip":
        return row_scale(squared_norms, size)
    # Rows shorter than 1e-15 C are taken for as long as that: 0 / 0 has no value, and they add next to nothing.
    length = jnp.sqrt(jnp.maximum(squared_norms, 1e-30)) + clipping.stabiliser / clipping.norm
    return (1.0 - rounding_margin(size)) / length
