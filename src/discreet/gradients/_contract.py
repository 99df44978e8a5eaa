"""The contract of gradient engines, their common clipping, and the reference engine.

An engine turns the loss of one record, f(u, x), and a batch of records into the sum over records

    sum_i  min(1, C / |g_i|) g_i,        g_i = grad_u f(u, x_i),

to which any record contributes at most C. Two scalars may accompany the gradient, as further coordinates of the same vector:
the record's clipped loss, and an indicator of whether its gradient was clipped. They take a share of the joint bound, so that
gradient, loss and count are one release at the cost of one. With shares s and t the bound of the gradient is C, that of all
three together C / sqrt(1 - s - t), and the noise is proportional to the latter.

Engines differ in how they compute |g_i| and the sum. `ReferenceEngine` forms every record's gradient; tests compare the others
with it. Common to all are the weights of rows (`row_weights`) and the sum over a batch of unknown size (`sum_by_chunks`). A
Poisson batch has a random number of rows, and compiled programs have fixed shapes: a batch is padded to a capacity that it
seldom exceeds, with the real rows first and a mask, and processed in chunks by one compiled program, until the rows end.

What one record adds is bounded for the sum *as computed*. In floating point that is not so by itself: a record that comes
first moves the running sum, and with it the rounding of later terms; artificial tables move a float32 sum by 98 C. So:

- Rows do not meet. A row is computed alike in each place of a chunk, whatever the others hold. A chunk has a multiple of `LANES`
  rows, for of other numbers XLA computes the last rows by other instructions. Of any number it does so with the last vector of a
  loop: there a * b + c * d may be rounded first on the other side, and a loss may hang on that rounding. So the last `SPARE`
  rows of a chunk are never a batch's. And the number of rows of a chunk does not follow that of the table: one record more would
  make another program, which rounds all rows otherwise. That is tested, not proved.
- Sums are in float64, where n rows in m chunks of b move by roundings of at most 2 n (b + m) 2^-53 C altogether. n is fixed by
  the plan, or the noise would follow the table's size: a batch for which that is too few is refused.
- Or, for large models, sums within blocks of a chunk are in float32, and the blocks are added in float64. Then the rows must be
  in a secret, uniformly random order. A batch without its row j is the batch in which the last row has taken place j: as likely
  as any other order. So two blocks differ, by the record and by four times what adding b rows can lose (`lost_within`), however
  large the batch.
  Blocks are cut in a branch whose operands rows are, and so written before: XLA would compute rows in blocks, too, and those at
  the end of each by other instructions.
- Where the plan has few chunks, each of these sums is rounded to float32 once it has been added, which takes half the memory
  (`lost_between`).
- Each device sums the rows that it has. A record more is one more on one device, and moves no other one to another device
  (`mechanisms._shards`): amplification by sampling takes the sums of a batch without it for equal, and so they are. Uniformly
  random orders that one such order leaves on parts of a batch are independent. So what is said above holds on that one device.

`rounding_of_sums` is the share of C that either adds. Rows may hold NaN or infinity, and
0 * NaN is NaN: in the place of a row that is not finite a finite one is computed, and counts as zero.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from discreet._jax import double

Norm = float | Float[Array, ""]
"""A clipping norm: a number, or a scalar array that may be traced."""

# --- clipping rows -------------------------------------------------------------------------------


def check_positive(what: str, value: Any, why: str) -> None:
    """Refuse a scale that is not a scalar or, if known at trace time, not positive and finite.

    Raises:
        ValueError: With the value, the reason and the remedy.
    """
    if jnp.ndim(value) > 0:
        raise ValueError(f"{what} has shape {jnp.shape(value)}; it must be one number. {why}")
    if not isinstance(value, Tracer) and not (float(value) > 0 and math.isfinite(float(value))):
        raise ValueError(f"{what} is {float(value)}; it must be positive and finite. {why}")


def check_clipping(who: str, tree: Any, norm: Any) -> None:
    """Refuse a tree whose rows have no norm, and a clipping norm that bounds nothing."""
    check_positive(f"{who}: the clipping norm", norm, "It bounds one record's contribution; 1.0 is a common choice.")
    if not isinstance(norm, Tracer) and not 1e-20 <= float(norm) <= 1e30:
        raise ValueError(
            f"{who}: the clipping norm is {float(norm):g}; 32-bit arithmetic supports norms from 1e-20 to 1e30. Scale the "
            "loss."
        )
    if not jax.tree.leaves(tree):
        raise ValueError(f"{who}: the tree contains no array. Pass at least one.")
    if any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in jax.tree.leaves(tree)):
        raise TypeError(f"{who}: a leaf is complex. Clip its real and imaginary parts, as two leaves.")


def rounding_margin(size: int) -> float:
    """The relative margin by which clipping aims below C, so that rounding cannot exceed it, for any record.

    Squares of `size` coordinates are summed in float64, which is off by at most `size` units in the last place of that.
    The conversion of the norm to float32, the root, the division and the product that follow take fewer than 16 of
    float32.
    """
    return 16.0 * 2.0**-24 + size * 2.0**-53


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


def squared_norms(tree: Any, norm: Norm) -> Float[Array, "record"]:
    """Squared L2 norms of the rows of a tree, jointly over its leaves, in units of `norm`.

    Computed in float64, and relative to `norm`, so that no scale of the data overflows or vanishes where it matters.
    """
    with double():
        squares = [jnp.square(x.astype(jnp.float64) / norm) for x in jax.tree.leaves(tree)]
        leaves = [jnp.sum(x.reshape(len(x), -1), axis=1) for x in squares]
        return functools.reduce(jnp.add, leaves).astype(jnp.float32)


def record_size(tree: Any) -> int:
    """Number of coordinates of one record of a tree whose leading axis is the records."""
    return sum(math.prod(x.shape[1:]) for x in jax.tree.leaves(tree))


def _rows(x: Array, per_record: Float[Array, "record"]) -> Array:
    return per_record.reshape(per_record.shape + (1,) * (x.ndim - 1))


def clip_records(tree: Any, norm: Norm) -> Any:
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


_BLOCK = 2**13  # rows that are added up before the sums of such blocks are


def sum_records(tree: Any, mask: Bool[Array, "record"]) -> Any:
    """Sum over the leading axis the rows that `mask` keeps: `mechanisms.sum_records`, unmarked.

    In float64, in two stages for many rows; the result is rounded to the leaf's type (`rounding_of_records`).
    """

    def leaf(x: Array) -> Array:
        kept = jnp.where(_rows(x, mask), x, 0)
        if x.dtype not in (jnp.float32, jnp.float64):
            return jnp.sum(kept, axis=0)
        with double():
            kept, blocks = kept.astype(jnp.float64), _blocks(len(x))
            if blocks:
                whole = blocks * _BLOCK
                parts = jnp.sum(kept[:whole].reshape(blocks, _BLOCK, *x.shape[1:]), axis=1)
                # XLA would make one sum of both.
                parts = jax.lax.optimization_barrier(parts)
                kept = jnp.concatenate([parts, jnp.sum(kept[whole:], axis=0, keepdims=True)])
            return jnp.sum(kept, axis=0).astype(x.dtype)

    return jax.tree.map(leaf, tree)


def _blocks(rows: int) -> int:
    """The number of full blocks; 0 for few rows, whose sum is precise enough."""
    return rows // _BLOCK if rows > 2**16 else 0


def rounding_of_records(rows: int, dtype: Any) -> float:
    """The share of C by which rounding lets one record move `sum_records` beyond its own row, if all rows are within C.

    A partial sum of k additions is off by at most k 2^-53 times the sum of the rows' norms, which is n C, and rounding
    the result to float32 by 2^-24 n C: twice, for two tables. 2^-20 is for few roundings of the rows themselves. `rows`
    counts those that the mask drops, too; `dtype` is that of the result.
    """
    blocks = _blocks(rows)
    additions = _BLOCK + 1 + blocks if blocks else rows
    last = 2.0**-23 if dtype == np.float32 else 0.0
    return rows * (additions * 2.0**-52 + last) + 2.0**-20


def sum_doubles(rows: Any) -> Any:
    """Sum over the leading axis, in float64."""
    with double():
        return jax.tree.map(lambda x: jnp.sum(x.astype(jnp.float64), axis=0), rows)


# --- the contract --------------------------------------------------------------------------------


RecordLoss = Callable[[Any, Any], Float[Array, ""]]
"""`loss(parameters, record) -> scalar`, one record at a time, unscaled."""

# Weights are less by a few units in the last place, so that rounding cannot exceed the joint bound.
_INWARD = 1.0 - 1e-6


@dataclasses.dataclass(frozen=True)
class Channels:
    """The channels of loss and count in a release, and the joint bound on a record's contribution.

    To the coordinate of the loss a record adds `loss_weight(C) * clip(loss - center, -bound, bound)`. Of the two coordinates
    of the counts it adds `count_weight(C)` to the first if its gradient is within C, else to the second; a record whose loss
    or gradient is not finite adds to neither. With shares s and t of loss and counts, a record adds at most
    C sqrt(s / (1 - s - t)) to the loss, C sqrt(t / (1 - s - t)) to the counts, and so C / sqrt(1 - s - t) to gradient, loss
    and counts jointly. For one noise multiplier the noise on the gradient grows by 1 / sqrt(1 - s - t): one per cent for 0.02.

    Raises:
        ValueError: Shares below 0, or that leave nothing to the gradient.
    """

    # Share of the squared joint bound that goes to the loss, in [0, 1); public and static. 0 switches the channel off.
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
    loss: Float[Array, ""]  # scalar: the sum of the weighted, clipped per-record losses; 0 without a share
    count: Float[Array, "two"]  # the weighted numbers of records within C, and of clipped ones; 0 without a share
    # bound on the joint L2 norm of what one record changes in (gradient, loss, count)
    l2_bound: Norm
    rounding: float = 0.0  # the share of `l2_bound` that is for the rounding of sums, as a part of the rest


class GradientEngine(Protocol):
    """A function that computes a clipped sum. Engines differ in speed and memory, never in their result.

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
        norm: Norm,
        channels: Channels,
    ) -> ClippedSum:
        """Sum the clipped gradients.

        Args:
            record_loss: The loss of one record.
            parameters: Tree of floating arrays, what to differentiate in.
            records: Tree of arrays whose leading axis is the records.
            mask: True for rows that count, which come first.
            norm: The clipping norm C, positive and finite; a number, or a scalar array that may be traced.
            channels: The channels of loss and count.
        """
        ...

    def explain(self, record_loss: RecordLoss, parameters: Any, record: Any, num_rows: int) -> EngineReport:
        """Describe the engine's algorithm for a loss.

        Args:
            record_loss: The loss of one record.
            parameters: Tree of floating arrays, or of their shapes.
            record: One record, or its shapes.
            num_rows: Rows of a batch.
        """
        ...


# --- what an engine reports ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LeafReport:
    """One leaf of what is differentiated.

    Attributes:
        name: Its path in the tree.
        shape: Its shape.
        way: "outer", "gram" or "formed" (see `_bookkeeping`), "per record" (its gradient is formed for every record), or
            "unused" (the loss does not depend on it).
        flops: Floating-point operations for one record's norm, beyond forward and backward pass.
        bytes: Held for one record on its account.
    """

    name: str
    shape: tuple[int, ...]
    way: str
    flops: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class EngineReport:
    """The algorithm of a clipped sum, leaf by leaf. `str` gives the table.

    Attributes:
        leaves: A line for each leaf.
        num_rows: Rows of a batch.
        microbatch_size: Rows that are worked on at once.
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
        size = sum(math.prod(x.shape) for x in self.leaves)
        lines.append(
            f"{self.microbatch_size:,} of {self.num_rows:,} rows at once: {_bytes(together)} for the norms of all leaves; "
            f"per-record gradients would take {_bytes(4 * size * self.microbatch_size)}."
        )
        return "\n".join(lines)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    texts = [x.ljust(w) if i < 3 else x.rjust(w) for i, (x, w) in enumerate(zip(cells, widths, strict=True))]
    return "  ".join(texts).rstrip()


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{number:.3g} {unit}"


# --- weights of rows -----------------------------------------------------------------------------


class RowWeights(NamedTuple):
    """The weights of records' rows."""

    keep: Bool[Array, "record"]  # rows that count: kept by the mask, with a finite loss and a finite squared norm
    # what to multiply each record's gradient with; exactly 0 where not `keep`. A gradient that is not finite must still
    # be selected away (`where`), or its sum be dropped: 0 * NaN is NaN.
    factor: Float[Array, "record"]
    loss: Float[Array, "record"]  # the weighted, clipped losses of the rows that count; 0 for the others
    count: Float[Array, "record two"]  # the weight of the counts, in the first column within C, in the second beyond


def row_weights(
    losses: Float[Array, "record"],
    squared_norms: Float[Array, "record"],
    size: int,
    mask: Bool[Array, "record"],
    norm: Norm,
    channels: Channels,
) -> RowWeights:
    """The factor of each record's gradient, and its contributions to loss and count.

    Guarantee: if `squared_norms` is right up to the rounding that `rounding_margin(size)` allows for, each row adds at
    most `channels.joint_bound(norm)` to (factor * gradient, loss, count) in the joint L2 norm.

    Args:
        losses: Each record's loss, in nats; any number.
        squared_norms: Each record's |gradient|^2 / C^2, joint over the leaves; any number.
        size: Number of coordinates of one gradient.
        mask: True for real rows.
        norm: C.
        channels: The weights of loss and count. Without a share they are exactly 0.
    """
    keep = mask & jnp.isfinite(losses) & jnp.isfinite(squared_norms)
    factor = jnp.where(keep, row_scale(squared_norms, size), 0.0)
    loss = jnp.zeros(keep.shape)
    count = jnp.zeros((*keep.shape, 2))
    if channels.loss_share > 0.0:
        clipped = jnp.clip(losses - channels.center, -channels.bound, channels.bound)
        # As parts of the bound: a loss may be near infinity, and its weight zero.
        loss = channels.loss_limit(norm) * jnp.where(keep, clipped / channels.bound, 0.0)
    if channels.count_share > 0.0:
        within = squared_norms <= 1.0
        count = channels.count_weight(norm) * jnp.stack([keep & within, keep & ~within], axis=-1)
    return RowWeights(keep, factor, loss, count)


# --- sums over the rows that are there -----------------------------------------------------------


def floats_of_a_vector(flags: str) -> int:
    """The float32s of a vector in loops that XLA makes for a CPU, by its flags: of 256 bits or fewer unless they ask for more.

    So it is with AVX-512 (seen), too; with vectors of 128 bits, as ARM has, the last 4 rows are computed otherwise.
    """
    widths = re.findall(r"--xla_cpu_prefer_vector_width=(\d+)", flags)
    return max(8, int(widths[-1]) // 32) if widths else 8


SPARE = floats_of_a_vector(os.environ.get("XLA_FLAGS", ""))
"""The number of rows at the end of a chunk that stay empty."""
LANES = max(16, 2 * SPARE)
"""The number of rows of a chunk is a multiple of this."""

ChunkSum = Callable[[Any, Bool[Array, "row"]], tuple[Any, Bool[Array, "row"]]]
"""`(rows, mask) -> float64 tree, finite`: the sum over the rows that the mask keeps, right if all rows are finite, those that
it drops among them; and which rows are."""


def finite_alone(values: Callable[[Any], list[Array]], rows: Any, together: Bool[Array, "row"]) -> Bool[Array, "row"]:
    """The mask of finite rows, evaluated one by one with `values` if some are not finite `together`.

    XLA may make one convolution of all rows', and hide the others' by zeros, so that one that is not finite shows in all.
    """

    def one_by_one() -> Bool[Array, "row"]:
        alone = jax.lax.map(lambda row: jnp.array([jnp.all(jnp.isfinite(x)) for x in values(row)]).all(), rows)
        return jnp.where(jnp.all(alone), together, alone)

    return jax.lax.cond(jnp.all(together), lambda: together, one_by_one)


def whole_lanes(rows: int, most: int = 2**30) -> int:
    """The least multiple of `LANES` with room for `rows` and `SPARE`, but for the largest that is no more than `most`."""
    return LANES * max(1, min(-(-(rows + SPARE) // LANES), most // LANES))


def is_spare(rows: int) -> Bool[np.ndarray, "row"]:
    """The mask of the last `SPARE` rows of a chunk."""
    return np.arange(rows) >= rows - SPARE


def sum_by_chunks(
    chunk_sum: ChunkSum,
    records: Any,
    mask: Bool[Array, "record"],
    chunk: int,
    *,
    thin: bool = False,
    finish: Sequence[Callable[[Any], Any]] = (),
) -> Any:
    """The sum over all rows that the mask keeps, in float64. One copy of `chunk_sum` is compiled, and nothing is selected away.

    Where a row is not finite, and in place of padding, a row that is finite stands and counts as zero; the chunk is then summed
    again. True rows of the mask come first; `chunk` is a multiple of `LANES`. The running sum is kept as float32 if `thin`.
    With `finish`, `chunk_sum` returns a number and what this one of the functions makes the sum of, in a branch: what it takes is
    written before.
    """
    size, filled = mask.shape[0], chunk - SPARE
    lanes = jnp.arange(chunk, dtype=jnp.int32)
    # Rows that count come first, so the last of them says how many there are.
    rows = jnp.max(jnp.where(mask, jnp.arange(1, size + 1, dtype=jnp.int32), 0))

    def kept(index: Array) -> Bool[Array, "row"]:
        positions = index * filled + lanes
        return mask[jnp.minimum(positions, size - 1)] & (positions < size) & (lanes < filled)

    def added(total: Any, more: Any) -> Any:
        with double():
            return jax.tree.map(lambda x, y: (x.astype(jnp.float64) + y).astype(x.dtype), total, more)

    # Under `vmap` in a loop, not as a selection: that would be no branch.
    @jax.custom_batching.sequential_vmap
    def branch(good: Array, total: Any, more: Any) -> Any:
        ways = [lambda total, made, way=way: added(total, way(made)) for way in finish]
        return jax.lax.cond(good, lambda x, y: jax.lax.switch(y[0], ways, x, y[1]), lambda x, _: x, total, more)

    def attempt(carry: tuple[Array, Bool[Array, "row"], Any]) -> tuple[Array, Bool[Array, "row"], Any]:
        index, standing, total = carry
        substitute = jnp.argmax(standing).astype(jnp.int32)
        positions = jnp.minimum(index * filled + jnp.where(standing, lanes, substitute), size - 1)
        more, finite = chunk_sum(jax.tree.map(lambda x: x[positions], records), standing)
        good = jnp.all(finite)
        # A row that fails as a substitute, through rounding elsewhere in the batch, leaves as well: this comes to an end.
        fails = jnp.any(~standing & ~finite) & (lanes == substitute)
        left = standing & finite & ~fails
        if finish:
            total = branch(good, total, more)
        else:
            with double():
                total = jax.tree.map(lambda x, y: jnp.where(good, y, x), total, added(total, more))
        done = good | ~jnp.any(left)
        return index + done.astype(jnp.int32), jnp.where(done, kept(index + 1), left), total

    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((chunk, *x.shape[1:]), x.dtype), (records, mask))
    shapes = jax.eval_shape(lambda *rows: finish[0](chunk_sum(*rows)[0][1]) if finish else chunk_sum(*rows)[0], *one)
    with double():
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32 if thin else jnp.float64), shapes)
    start = jnp.zeros((), jnp.int32), kept(jnp.int32(0)), zero
    needed = (rows + filled - 1) // filled
    total = jax.lax.while_loop(lambda carry: carry[0] < needed, attempt, start)[2]
    with double():
        return jax.tree.map(lambda x: x.astype(jnp.float64), total)


LEAST_LOST = 2.0**-14
"""At least this share of C is charged for sums in float64, so that one bound holds for all tables that a plan may meet."""
DEVICES = 16
"""The same bound holds for sums over so many devices, which lose as much each, and a little in adding up: 2 `DEVICES` times."""


MOST_LOST_BETWEEN = 2.0**-9
"""At most this share of C is for keeping the running sum as float32; else it is kept as float64."""


def lost_within(rows: int) -> float:
    """The share of C by which a float32 sum of so many products, one a row, may be off, whatever the order of additions.

    The order may differ from coordinate to coordinate. In a tree of additions the product of row i goes through d_i roundings,
    its own included. So a coordinate is off by at most the sum of d_i |r_i| v, v = 2^-24 / (1 - b 2^-24) for b rows, and its
    square, by Cauchy and Schwarz, by at most Q v^2 times the sum of r_i^2, Q that of d_i^2. Summed over the coordinates the
    latter is within b C^2. Q is largest if rows are added one after the other: d = b, b, b - 1, ..., 2. For any other tree has
    two pairs of rows that are added to one another first. If one row of the pair at depth e moves to join a row of the pair at
    the largest depth d, Q grows by d^2 - e^2 + 4 d - 2 e + 3. Then b Q is below (b + 2)^4 / 3.
    """
    return (rows + 2) ** 2 / math.sqrt(3.0) * 2.0**-24 / (1.0 - rows * 2.0**-24)


def lost_between(rows: int, chunk: int) -> float:
    """The share of C by which two float32 running sums over `rows` rows may differ by rounding alone.

    Each of m sums is off by at most 2^-24 of its norm. For n rows, f in each chunk but the last one, the norms are within f C,
    2 f C, ..., (m - 1) f C and n C. Since (m - 1) f < n, they add up to less than n (m / 2 + 1) C, in each of the two tables.
    Over devices it is no more: each rounds the sum of its own rows, as often as it has chunks, one of them perhaps not full.
    """
    return (rows / (chunk - SPARE) + 3) * rows * 2.0**-24 * (1.0 + 2.0**-10)


def rounding_of_sums(
    capacity: int,
    planned: int,
    chunk: int,
    *,
    blocks: int = 0,
    thin: bool = False,
    positions: int = 1,
    parts: float = 1.0,
) -> float:
    """The share of C by which one additional record can move `sum_by_chunks` beyond its own row.

    It depends on the plan alone: if it depended on the batch, so would the noise, whose size would reveal an additional record.

    Args:
        capacity: The most rows of a batch.
        planned: Rows that the bound has to hold for.
        chunk: Rows of a chunk.
        blocks: Blocks of a chunk, all of one length, within which sums are in float32, over rows in uniformly random order, one
            product to each; 0: all sums are in float64.
        thin: As in `sum_by_chunks`.
        positions: Products that a row adds to a coordinate, summed in float64.
        parts: L2 norm of these products, at most this many times C.

    Raises:
        ValueError: The bound does not hold for so many rows as the capacity.
    """
    filled = chunk - SPARE  # the others are rows of zeros, which adding does not round

    def lost(rows: int) -> float:
        # Each product is rounded twice, once with its factor, and each sum once.
        doubles = 4.0 * DEVICES * rows * (filled * positions + -(-rows // filled) + 4) * parts * 2.0**-53
        return max(LEAST_LOST, doubles) + (lost_between(rows, chunk) if thin else 0.0)

    charged = lost(planned)
    if lost(capacity) > charged:
        raise ValueError(
            f"A batch may have {capacity} rows, many more than expected from the plan's number of records, so the rounding of "
            "their sum may exceed the noise's allowance. Plan with a number of records that is about right: a public guess."
        )
    within = 4.0 * lost_within(min(filled, chunk // blocks)) if blocks else 0.0
    # As a float32 has it: the same number in a program and in its proof.
    return float(np.nextafter(np.float32(1.0 + charged + within), np.float32(2.0**30))) - 1.0


# --- the engine ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ReferenceEngine:
    """`vmap` of the gradient, a microbatch at a time; the reference for all faster engines."""

    # rows whose gradients are held in memory at once; with `SPARE`, rounded up to a multiple of `LANES`. Microbatches
    # without a real row are skipped, so padding costs little.
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
        return ClippedSum(gradient, loss, count, channels.joint_bound(norm) * (1.0 + rounding), rounding)

    def explain(self, record_loss: RecordLoss, parameters: Any, record: Any, num_rows: int) -> EngineReport:
        leaves = [
            LeafReport(jax.tree_util.keystr(path), x.shape, "per record", 2 * x.size, 4 * x.size)
            for path, x in jax.tree.leaves_with_path(jax.eval_shape(lambda: parameters))
        ]
        return EngineReport(tuple(leaves), num_rows, whole_lanes(self.microbatch_size))
