"""The contract that every gradient engine keeps, the clipping that they share, and the engine that is its plainest reading.

An engine turns the loss of one record, f(u, x), and a batch of records into the sum over records

    sum_i  min(1, C / |g_i|) g_i,        g_i = grad_u f(u, x_i),

of which one record is at most C, whatever it holds. Two scalars may travel beside the gradient, each as one more coordinate
of the same vector: the record's clipped loss, and whether its gradient was clipped. They take a share of the joint bound, so
that gradient, loss and count are released by one mechanism and at the price of one. With shares s and t the bound of the
gradient is C, that of all three coordinates together C / sqrt(1 - s - t), and noise in proportion to the latter.

Engines differ in how they find |g_i| and the sum. `ReferenceEngine` forms every record's gradient, and is what the others
are compared with. What all do alike is here: which rows count and what each is worth (`row_weights`), and the sum over a
batch of unknown size. A Poisson batch has a random number of rows, and compiled programs have fixed shapes: a batch is
padded to a capacity that it seldom exceeds, with the true rows first and a mask. `sum_over_rows` compiles a few smaller
capacities too, takes the smallest that holds the rows of a step, and goes over the rest, if there is one, in microbatches; so
a step costs little more than the rows that are there, and no batch is ever cut.

Rows may hold NaN or infinity, and 0 * NaN is NaN: selecting a row away before a product costs a copy of all activations. So
the sums try a quick way first that is right if every row is finite, and repeat carefully, or with a finite row in the place
of those that are not (`sum_with_substitutes`), if one was not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

# --- clipping rows -------------------------------------------------------------------------------


def check_positive(what: str, value: Any, why: str) -> None:
    """Refuse a scale that is no scalar or, where it is known while tracing, not positive and finite.

    Raises:
        ValueError: saying what, why and the remedy.
    """
    if jnp.ndim(value) > 0:
        raise ValueError(f"{what} has shape {jnp.shape(value)}; it must be one number. {why}")
    if not isinstance(value, Tracer) and not (float(value) > 0 and math.isfinite(float(value))):
        raise ValueError(f"{what} is {float(value)}; it must be positive and finite. {why}")


def check_clipping(who: str, tree: Any, norm: Any) -> None:
    """Refuse a tree whose rows have no norm, and a clipping norm that bounds nothing.

    Raises:
        ValueError: the tree is empty, or the norm is not positive and finite.
        TypeError: a leaf is complex.
    """
    check_positive(f"{who}: the clipping norm", norm, "It bounds one record's contribution; 1.0 is a common choice.")
    if not jax.tree.leaves(tree):
        raise ValueError(f"{who}: the tree holds no array, so there is nothing to clip.")
    if any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in jax.tree.leaves(tree)):
        raise TypeError(f"{who}: a leaf is complex. Clip its real and imaginary parts, as two leaves.")


def rounding_margin(size: int) -> float:
    """The relative margin by which clipping aims below C, so that rounding cannot exceed it.

    A norm of `size` float32 numbers is off by about sqrt(size) units in the last place
    (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, probabilistic bound with lambda = 4;
    the worst case, linear in `size`, needs every rounding to go the same way), and the
    division and product that follow by a few more.

    Args:
        size: number of coordinates of one record.
    """
    return float(jnp.finfo(jnp.float32).eps) * (8.0 + math.sqrt(size))


def row_scale(
    squared_norm: Float[Array, "record"],
    size: int,
) -> Float[Array, "record"]:
    """The factor in [0, 1] that brings a row of the given squared norm, in units of C, to C.

    Zero where the squared norm is not finite.
    """
    target = 1.0 - rounding_margin(size)
    # An exact zero keeps the factor 1 without dividing by it.
    factor = jnp.minimum(1.0, target * jax.lax.rsqrt(jnp.maximum(squared_norm, 1e-30)))
    return jnp.where(jnp.isfinite(squared_norm), factor, 0.0)


def squared_norms(tree: Any, norm: float | Float[Array, ""]) -> Float[Array, "record"]:
    """Squared L2 norms of the rows of a tree, jointly over its leaves, in units of `norm`.

    Computed in at least float32, and relative to `norm`, so that no scale of the data
    overflows or vanishes where it matters.
    """

    def leaf(x: Array) -> Float[Array, "record"]:
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32)) / norm
        return jnp.sum(jnp.square(x.reshape(x.shape[0], -1)), axis=1)

    leaves = jax.tree.leaves(tree)
    total = leaf(leaves[0])
    for x in leaves[1:]:
        total = total + leaf(x)
    return total


def record_size(tree: Any) -> int:
    """Number of coordinates of one record of a tree whose leading axis is the records."""
    return sum(math.prod(x.shape[1:]) for x in jax.tree.leaves(tree))


def _rows(x: Array, per_record: Float[Array, "record"]) -> Array:
    return per_record.reshape(per_record.shape + (1,) * (x.ndim - 1))


def clip_records(tree: Any, norm: float | Float[Array, ""]) -> Any:
    """Scale each record's slice of a tree so that its joint L2 norm is at most `norm`: `mechanisms.clip_records`, unmarked.

    Holds after rounding to float32 (see `rounding_margin`). Low-precision leaves come back as float32: rounding a clipped
    bfloat16 up would break the bound by half a per cent.
    """
    check_clipping("clip_records", tree, norm)
    squared = squared_norms(tree, norm)
    factor = row_scale(squared, record_size(tree))
    return scale_rows(tree, factor, jnp.isfinite(squared))


def scale_rows(tree: Any, factor: Float[Array, "record"], keep: Bool[Array, "record"]) -> Any:
    """Each row times its factor, in at least float32; exactly zero where not `keep`, whatever the row holds."""

    def leaf(x: Array) -> Array:
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return jnp.where(_rows(x, keep), x * _rows(x, factor), 0.0)

    return jax.tree.map(leaf, tree)


def sum_records(tree: Any, mask: Bool[Array, "record"]) -> Any:
    """Sum over the leading axis the rows that `mask` keeps: `mechanisms.sum_records`, unmarked."""
    return jax.tree.map(lambda x: jnp.sum(jnp.where(_rows(x, mask), x, 0), axis=0), tree)


# --- the contract --------------------------------------------------------------------------------


RecordLoss = Callable[[Any, Any], Float[Array, ""]]
"""`loss(parameters, record) -> scalar`, one record at a time, unscaled."""

# Weights are less by a few units in the last place, so that rounding cannot exceed the joint bound.
_INWARD = 1.0 - 1e-6


@dataclasses.dataclass(frozen=True)
class Channels:
    """What a record adds to a release beside its gradient, and what it adds to all coordinates together.

    To the coordinate of the loss it adds `loss_weight(C) * clip(loss - center, -bound, bound)`, to that of the count
    `count_weight(C) * (1[|g| <= C] - 1/2)`. With shares s and t of loss and count, a record whose gradient is within C adds
    at most C sqrt(s / (1 - s - t)) to the loss, C sqrt(t / (1 - s - t)) to the count, and so C / sqrt(1 - s - t) to the
    three jointly. For one noise multiplier the noise on the gradient grows by 1 / sqrt(1 - s - t): one per cent for 0.02.

    Attributes:
        loss_share: Share of the squared joint bound that goes to the loss, in [0, 1); public and static. 0 switches the
            channel off.
        count_share: The same for the count.
        center: A public guess at a record's loss, in nats.
        bound: Losses further than this from `center` are clipped, in nats; positive and public.

    Raises:
        ValueError: Shares below 0, or that leave nothing to the gradient.
    """

    loss_share: float = 0.0
    count_share: float = 0.0
    center: Float[Array, ""] | float = 0.0
    bound: Float[Array, ""] | float = 1.0

    def __post_init__(self) -> None:
        """See Raises."""
        shares = self.loss_share, self.count_share
        if not (min(shares) >= 0.0 and sum(shares) < 1.0):
            raise ValueError(
                f"The shares of loss and count are {shares[0]} and {shares[1]}; each must be at least 0, and together they "
                "must be below 1, or nothing is left for the gradient. 0.02 costs one per cent more noise on the gradient."
            )

    def loss_weight(self, norm: float | Float[Array, ""]) -> Any:
        """Gradient units per nat."""
        return self.loss_limit(norm) / self.bound

    def loss_limit(self, norm: float | Float[Array, ""]) -> Any:
        """The most that one record adds to the loss's coordinate."""
        return _INWARD * norm * math.sqrt(self.loss_share / self._rest)

    def count_weight(self, norm: float | Float[Array, ""]) -> Any:
        """Gradient units per record."""
        return _INWARD * norm * 2.0 * math.sqrt(self.count_share / self._rest)

    def joint_bound(self, norm: float | Float[Array, ""]) -> Any:
        """L2 bound on one record's (gradient, loss, count) whose gradient is within `norm`."""
        return norm / math.sqrt(self._rest)

    @property
    def _rest(self) -> float:
        return 1.0 - self.loss_share - self.count_share


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
        norm: float | Float[Array, ""],
        channels: Channels,
    ) -> ClippedSum:
        """Sum the clipped gradients.

        Args:
            record_loss: the loss of one record.
            parameters: tree of floating arrays, what to differentiate in.
            records: tree of arrays whose leading axis is the records.
            mask: which rows count; True rows come first.
            norm: the clipping norm C, positive and finite; a number, or a scalar array that may be traced.
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


# --- what an engine reports ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LeafReport:
    """One leaf of what is differentiated.

    Attributes:
        name: its path in the tree.
        shape: its shape.
        way: "outer", "gram" or "formed" (see `_bookkeeping`), "per record" (its gradient is formed for every record), or
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
    norm: float | Float[Array, ""],
    channels: Channels,
) -> RowWeights:
    """The factor of each record's gradient, and the two scalars that travel beside the sum.

    Guarantee: if `squared_norms` is right up to the rounding that `rounding_margin(size)` allows for, each row adds at
    most `channels.joint_bound(norm)` to (factor * gradient, loss, count) in the joint L2 norm.

    Args:
        losses: each record's loss, in nats; any number.
        squared_norms: each record's |gradient|^2 / C^2, joint over the leaves; any number.
        size: number of coordinates of one gradient.
        mask: which rows are real.
        norm: C.
        channels: how loss and count are weighted. What has no share is exactly 0.
    """
    keep = mask & jnp.isfinite(losses) & jnp.isfinite(squared_norms)
    factor = jnp.where(keep, row_scale(squared_norms, size), 0.0)
    loss = count = jnp.zeros(())
    if channels.loss_share > 0.0:
        clipped = jnp.clip(losses - channels.center, -channels.bound, channels.bound)
        # Summed as parts of the bound: a sum of losses may be infinite, and its weight zero.
        loss = channels.loss_limit(norm) * jnp.sum(jnp.where(keep, clipped / channels.bound, 0.0))
    if channels.count_share > 0.0:
        within = jnp.where(squared_norms <= 1.0, 0.5, -0.5)
        count = channels.count_weight(norm) * jnp.sum(jnp.where(keep, within, 0.0))
    return RowWeights(keep, factor, loss, count)


# --- sums over the rows that are there -----------------------------------------------------------


PartialSum = Callable[[Any, Bool[Array, "row"]], Any]
"""`(rows, mask) -> tree`, additive over rows; rows that the mask drops count as exactly zero, whatever they hold."""

QuickSum = Callable[[Any, Bool[Array, "row"]], tuple[Any, Bool[Array, "row"]]]
"""The same, if all rows are finite, those that the mask drops among them; and which rows are."""


def sum_over_rows(
    careful: PartialSum,
    records: Any,
    mask: Bool[Array, "record"],
    capacities: Sequence[int],
    *,
    quick: QuickSum | None = None,
) -> Any:
    """The sum of `careful` over all rows that the mask keeps, with true rows first.

    A step runs the smallest capacity that holds its rows. What is left of a batch with more rows than the largest, and
    all of one for which `quick` will not answer, is summed with `careful`, a microbatch of the largest at a time.

    Args:
        careful: what is to be summed.
        records: tree of arrays whose leading axis is the records.
        mask: which rows count; True rows come first.
        capacities: numbers of rows to compile for. Those above the size of the mask are cut to it.
        quick: what to try first. None: `careful`, always.
    """
    size = mask.shape[0]
    capacities = sorted({min(size, x) for x in capacities})
    largest = capacities[-1]
    if capacities == [size] and quick is None:
        return careful(records, mask)
    # Rows that count come first, so the last of them says how many there are.
    rows = jnp.max(jnp.where(mask, jnp.arange(1, size + 1), 0))

    def once(capacity: int) -> tuple[Any, Bool[Array, ""]]:
        taken = jax.tree.map(lambda x: x[:capacity], (records, mask))
        if quick is None:
            return careful(*taken), jnp.array(True)
        total, finite = quick(*taken)
        return total, jnp.all(finite)

    if len(capacities) == 1:
        total, holds = once(largest)
    else:
        chosen = jnp.sum(rows > jnp.array(capacities[:-1]))
        total, holds = jax.lax.switch(chosen, [lambda c=c: once(c) for c in capacities])

    def again(index: Array, total: Any) -> Any:
        positions = index * largest + jnp.arange(largest)
        inside = jnp.minimum(positions, size - 1)
        taken = jax.tree.map(lambda x: x[inside], records)
        more = careful(taken, mask[inside] & (positions < size))
        return jax.tree.map(lambda x, y: jnp.where(index == 0, 0, x) + y, total, more)

    # A loop of no iteration leaves the sum where it is; a `cond` would copy it. It goes on from what holds.
    needed = jnp.maximum(1, (rows + largest - 1) // largest)
    return jax.lax.fori_loop(jnp.where(holds, 1, 0), needed, again, total)


def sum_with_substitutes(quick: QuickSum, records: Any, mask: Bool[Array, "record"], capacity: int) -> Any:
    """The sum of `quick` over all rows that the mask keeps: one copy of it is compiled, and nothing is selected away.

    Where a row is not finite, and in place of padding, a row that is finite stands and counts as zero; the microbatch is
    then summed again.

    Args:
        quick: what is to be summed.
        records: tree of arrays.
        mask: which rows count; True rows come first.
        capacity: rows of a microbatch.
    """
    size = mask.shape[0]
    capacity = min(capacity, size)
    lanes = jnp.arange(capacity)
    rows = jnp.max(jnp.where(mask, jnp.arange(1, size + 1), 0))

    def kept(index: Array) -> Bool[Array, "row"]:
        positions = index * capacity + lanes
        return mask[jnp.minimum(positions, size - 1)] & (positions < size)

    def attempt(carry: tuple[Array, Bool[Array, "row"], Any]) -> tuple[Array, Bool[Array, "row"], Any]:
        index, standing, total = carry
        substitute = jnp.argmax(standing)
        positions = jnp.minimum(index * capacity + jnp.where(standing, lanes, substitute), size - 1)
        more, finite = quick(jax.tree.map(lambda x: x[positions], records), standing)
        good = jnp.all(finite)
        # A row that fails as a substitute, through rounding elsewhere in the batch, leaves as well: this comes to an end.
        fails = jnp.any(~standing & ~finite) & (lanes == substitute)
        left = standing & finite & ~fails
        total = jax.tree.map(lambda x, y: x + jnp.where(good, y, 0), total, more)
        done = good | ~jnp.any(left)
        return index + done, jnp.where(done, kept(index + 1), left), total

    shapes = jax.eval_shape(lambda: quick(jax.tree.map(lambda x: x[lanes], records), mask[:capacity])[0])
    start = jnp.zeros((), jnp.int32), kept(jnp.int32(0)), jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    needed = (rows + capacity - 1) // capacity
    return jax.lax.while_loop(lambda carry: carry[0] < needed, attempt, start)[2]


# --- the engine ----------------------------------------------------------------------------------


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
        norm: float | Float[Array, ""],
        channels: Channels,
    ) -> ClippedSum:
        """See `GradientEngine`."""
        check_clipping("ReferenceEngine", parameters, norm)

        def one(record: Any) -> tuple[Array, Any]:
            return jax.value_and_grad(record_loss)(parameters, record)

        def partial_sum(rows: Any, keep: Bool[Array, "row"]) -> tuple[Any, Array, Array]:
            # XLA may make one convolution of all rows' and hide the others' by zeros, so that one that is not finite shows
            # in all.
            together = jax.vmap(one)(rows)
            whole = jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(together)]).all()
            losses, gradients = jax.lax.cond(whole, lambda: together, lambda: jax.lax.map(one, rows))
            # A leaf that is not finite makes the norm so, and its row is dropped.
            squared = squared_norms(gradients, norm)
            weights = row_weights(losses, squared, record_size(gradients), keep, norm, channels)
            scaled = scale_rows(gradients, weights.factor, weights.keep)
            return jax.tree.map(lambda x: jnp.sum(x, axis=0), scaled), weights.loss, weights.count

        gradient, loss, count = sum_over_rows(partial_sum, records, mask, [self.microbatch_size or mask.shape[0]])
        return ClippedSum(gradient, loss, count, channels.joint_bound(norm))

    def explain(self, record_loss: RecordLoss, parameters: Any, record: Any, num_rows: int) -> EngineReport:
        """See `GradientEngine`."""
        leaves = [
            LeafReport(jax.tree_util.keystr(path), x.shape, "per record", 2 * x.size, 4 * x.size)
            for path, x in jax.tree.leaves_with_path(jax.eval_shape(lambda: parameters))
        ]
        return EngineReport(tuple(leaves), num_rows, min(num_rows, self.microbatch_size or num_rows))
