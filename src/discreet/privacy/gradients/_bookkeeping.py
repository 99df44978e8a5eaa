"""The book-keeping engine: clipped sums without per-record gradients.

One forward and one backward pass give, for each layer, the values that met its weight and the
gradients in its output. The norm of a record's gradient in the weight follows from these two, and
so does the sum of all records' clipped gradients, in one contraction that is the one of an
ordinary, non-private gradient with weighted rows. `_uses` finds the layers in the loss, `_layers`
and `_convolutions` know them, and `_norms` computes the norms.

Reference:
    Bu, Wang, Zha, Karypis, Differentially private optimization on large model at small cost, ICML
    2023 (the clipped sum without a second backward pass, "book-keeping").
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from discreet._jax import ClosedJaxpr, aval, double, primitives, programs_in, without_dead_code
from discreet.privacy.gradients._contract import Channels, ClippedSum, Norm, RecordLoss
from discreet.privacy.gradients._layer import Layer
from discreet.privacy.gradients._layers import Lookup
from discreet.privacy.gradients._norms import (
    HIGHEST_PRECISION,
    MOST_CANCELLATION,
    UseGroup,
    factors_of,
    squared_norm,
)
from discreet.privacy.gradients._rows import (
    check_clipping,
    row_weights,
    scale_rows,
    squared_norms,
    sum_doubles,
)
from discreet.privacy.gradients._sums import (
    MOST_LOST_BETWEEN,
    SPARE,
    finite_alone,
    is_spare,
    lost_between,
    rounding_of_sums,
    sum_by_chunks,
    whole_lanes,
)
from discreet.privacy.gradients._uses import (
    Use,
    UseMap,
    find_uses,
    restrict,
    run,
    uses_with,
    zero_taps,
)

# Up to so many parameters a sum in float64 costs little beside the rest of a step.
_FEW = 2**14
# A chunk whose sums are in float32 has at most so many rows, in blocks of at most so many, which
# cost 0.6 % of C.
_MOST_ROWS = 576
_BLOCK = 160


def group_uses(uses: Sequence[Use], leaf_shape: tuple[int, ...]) -> tuple[UseGroup, ...] | None:
    """Sort the uses of one leaf into groups that have no element in common, or None if some overlap in part."""
    if len(uses) == 1:
        return (_group([(uses[0], False)]),)
    found: list[tuple[Int[np.ndarray, "..."], list[tuple[Use, bool]]]] = []
    for use in uses:
        elements = _arranged(use, leaf_shape)
        for first, members in found:
            same = np.array_equal(elements, first)
            if same or np.array_equal(elements.swapaxes(1, 2), first):
                members.append((use, not same))
                break
        else:
            found.append((elements, [(use, False)]))
    everything = np.concatenate([elements.ravel() for elements, _ in found])
    if len(np.unique(everything)) != len(everything):
        return None
    return tuple(_group(members) for _, members in found)


def _arranged(use: Use, leaf_shape: tuple[int, ...]) -> Int[np.ndarray, "block left right"]:
    elements = use.view.elements(leaf_shape)
    depth = len(use.view.loops)
    slices = elements.reshape(-1, *elements.shape[depth:])
    return np.concatenate([use.layer.arrange(x) for x in slices])


def _group(members: list[tuple[Use, bool]]) -> UseGroup:
    first, _ = members[0]
    blocks, _, left, right = first.layer.shape
    blocks *= math.prod(loop.length for loop in first.view.loops)
    positions = 0
    for use, _ in members:
        repeated = math.prod(loop.length for loop in use.loops if loop not in use.view.loops)
        positions += repeated * use.layer.shape[1]
    if positions == 1:
        way = "outer"
    else:
        way = "formed" if left * right <= positions * (left + right) else "gram"
    return UseGroup(tuple(members), way, blocks, positions, left, right)


def weighted_sum(
    use: Use,
    activations: Array,
    cotangents: Array,
    factor: Float[Array, "record"],
    leaf: jax.ShapeDtypeStruct,
) -> Array:
    """Sum over records of factor times the gradient in the leaf, in one contraction, in the leaf's dtype.

    In float64, products are formed there: `double` must be in force.
    """
    floats = jnp.issubdtype(activations.dtype, jnp.floating)
    cotangents = cotangents.astype(leaf.dtype)
    activations = activations.astype(leaf.dtype) if floats else activations
    if floats and activations.size < cotangents.size:
        # Bilinear, so the smaller of the two is scaled and written again.
        activations = _scaled(activations, factor)
    else:
        cotangents = _scaled(cotangents, factor)
    weight = jax.eval_shape(use.view, leaf)
    if isinstance(use.layer, Lookup):
        in_weight = _transposed(use, use.layer, activations, cotangents, weight)
    else:
        in_weight = _product_of_factors(use, use.layer, activations, cotangents)
    if not use.view.moves:
        return in_weight
    (in_leaf,) = jax.linear_transpose(use.view, leaf)(in_weight)
    return in_leaf


def _sum_of_blocks(
    use: Use,
    activations: Array,
    cotangents: Array,
    factor: Array,
    leaf: jax.ShapeDtypeStruct,
    blocks: int,
) -> Array:
    """`weighted_sum` within each of so many blocks of rows, and their sum in float64.

    Several only where rows are operands of a branch: else XLA computes them by loops over blocks,
    the last ones of each otherwise.
    """
    if blocks == 1:
        parts = weighted_sum(use, activations, cotangents, factor, leaf)[None]
    else:
        cut = (x.reshape(blocks, -1, *x.shape[1:]) for x in (activations, cotangents, factor))
        parts = jax.vmap(lambda a, c, f: weighted_sum(use, a, c, f, leaf))(*cut)
    with double():
        # Term by term: XLA makes one loop of it and of what it is added to.
        return functools.reduce(jnp.add, [x.astype(jnp.float64) for x in parts])


def _scaled(rows: Array, factor: Float[Array, "record"]) -> Array:
    """Rows times their factors. Where a row is not finite, `sum_by_chunks` drops the sum; `_without_spare` clears spare rows."""
    return rows * factor.reshape(-1, *[1] * (rows.ndim - 1)).astype(rows.dtype)


def _without_spare(rows: Array) -> Array:
    """Zeros in spare rows: one of them may be no number, and zero times that is none."""
    spare = is_spare(len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
    return jnp.where(spare, 0, rows) if jnp.issubdtype(rows.dtype, jnp.floating) else rows


def _transposed(
    use: Use, layer: Lookup, activations: Array, cotangents: Array, weight: jax.ShapeDtypeStruct
) -> Array:
    apply = layer.apply
    for loop in reversed(use.loops):
        apply = jax.vmap(apply, in_axes=(0, 0 if loop in use.view.loops else None))
    batched = jax.vmap(apply, in_axes=(0, None))
    (summed,) = jax.linear_transpose(lambda w: batched(activations, w), weight)(cotangents)
    return summed


def _product_of_factors(use: Use, layer: Layer, activations: Array, cotangents: Array) -> Array:
    # both are `Vectors`
    factors: Any = jax.vmap(lambda a, c: factors_of(use, a, c))(activations, cotangents)
    left, right = factors
    if left.shape[1] == 1:
        # Contracted where they stand: XLA copies what is transposed first.
        lefts, rights = (x.reshape(-1, x.shape[-1]) for x in factors)
        arranged = jax.lax.dot_general(
            lefts, rights, (((0,), (0,)), ((), ())), precision=HIGHEST_PRECISION
        )
    else:
        arranged = jnp.einsum("nktl,nktr->klr", left, right, precision=HIGHEST_PRECISION)
    slices = [loop.length for loop in use.loops if loop in use.view.loops]
    restore = layer.restore
    for _ in slices:
        restore = jax.vmap(restore)
    return restore(arranged.reshape(*slices, -1, left.shape[-1], right.shape[-1]))


@dataclasses.dataclass(frozen=True)
class BookKeepingEngine:
    """Norms and clipped sum from each layer's inputs and output gradients; other leaves as in `ReferenceEngine`.

    Works through `jit`, `scan`, `cond`, `remat`; what a `custom_jvp` or `custom_vjp` function does
    with a parameter inside is left to its rule, and the parameter's gradient is formed for every
    record.

    Guarantee: `GradientEngine`'s. Norms are rounded up by what cancellation can hide (see above).
    """

    # how many rows a batch seldom exceeds; public. A chunk has so many, or an equal share of them,
    # whatever the batch has.
    rows: int = 128
    # the most rows of a planned batch; public. The bound holds for twice as many at least; far more
    # are refused.
    capacity: int = 1024
    # the rows of a batch come in uniformly random, secret order (`Sampling.shuffled`). Sums of
    # large models are then made in float32 within blocks of a chunk (see `_sums`).
    shuffled: bool = False
    # the most rows that are worked on at once; with 8 more, rounded up to a multiple of 16. None:
    # as many as fit into `memory_budget`.
    microbatch_size: int | None = None
    memory_budget: int = 2**30  # bytes, estimated from the shapes of one record's values

    def __call__(
        self,
        record_loss: RecordLoss,
        parameters: Any,
        records: Any,
        mask: Bool[Array, "record"],
        norm: Norm,
        channels: Channels,
    ) -> ClippedSum:
        check_clipping("BookKeepingEngine", parameters, norm)
        one = jax.eval_shape(lambda tree: jax.tree.map(lambda x: x[0], tree), records)
        book = _Book(record_loss, parameters, one)
        chunk, blocks = self._chunk(book)
        in_branch = blocks > 1
        as_they_are = functools.partial(book.clipped_sum, blocks=blocks, clear_spare=False)
        without_spare = functools.partial(book.clipped_sum, blocks=blocks, clear_spare=True)

        def chunk_sum(rows: Any, keep: Bool[Array, "row"]) -> tuple[Any, Bool[Array, "row"]]:
            made, finite = book.weighted(parameters, rows, keep, norm, channels)
            if not in_branch:
                return without_spare(made), finite
            # A spare row is seldom no number, and writing all rows again takes 3 % of a step.
            numbers = [jnp.isfinite(x[-SPARE:]).all() for x in jax.tree.leaves(made[0])]
            return ((~jnp.all(jnp.array(numbers))).astype(jnp.int32), made), finite

        positions = max(
            [group.positions for groups in book.groups.values() for group in groups], default=1
        )
        parts = MOST_CANCELLATION if positions > 1 else 1.0
        planned = 2 * self.capacity
        thin = blocks > 0 and lost_between(planned, chunk) <= MOST_LOST_BETWEEN
        finish = (as_they_are, without_spare) if in_branch else ()
        gradient, loss, count = sum_by_chunks(
            chunk_sum, records, mask, chunk, thin=thin, finish=finish
        )
        rounding = rounding_of_sums(
            mask.shape[0],
            planned,
            chunk,
            blocks=blocks,
            thin=thin,
            positions=positions,
            parts=parts,
        )
        return ClippedSum(
            gradient, loss, count, channels.joint_bound(norm) * (1.0 + rounding), rounding
        )

    def _chunk(self, book: _Book) -> tuple[int, int]:
        """Rows of a chunk, and its blocks within which sums are in float32; 0: all sums are in float64.

        The same whatever the size of the batch: chunks of other sizes are other programs, in which
        rows differ.
        """
        rows = self.rows
        narrow = (
            self.shuffled and book.size > _FEW and all(x.dtype.itemsize <= 4 for x in book.leaves)
        )
        if narrow:
            rows = in_few_chunks(rows)
        if self.microbatch_size is not None:
            rows = min(rows, self.microbatch_size)
        chunk = whole_lanes(rows, self.memory_budget // book.bytes_a_record)
        if not narrow:
            return chunk, 0
        return chunk, next(n for n in range(1, chunk + 1) if chunk <= n * _BLOCK and not chunk % n)


def in_few_chunks(rows: int) -> int:
    """Rows of as few chunks as there must be, all of one length: each has spare rows, and its sums go through memory."""
    return -(-rows // -(-rows // (_MOST_ROWS - SPARE)))


class _Book:
    """The structure of a record's loss, from its trace."""

    def __init__(self, record_loss: RecordLoss, parameters: Any, record: Any) -> None:
        self.program: ClosedJaxpr = without_dead_code(
            jax.make_jaxpr(record_loss)(parameters, record)
        )
        self.leaves: list[jax.ShapeDtypeStruct]
        self.leaves, self.tree = jax.tree.flatten(jax.eval_shape(lambda x: x, parameters))
        plan, direct = find_uses(self.program.jaxpr, len(self.leaves))
        self.groups: dict[int, tuple[UseGroup, ...]] = {}
        for leaf in set(range(len(self.leaves))) - direct:
            uses = [use for (use,) in uses_with(plan) if use.view.leaf == leaf]
            groups = group_uses(uses, self.leaves[leaf].shape) if uses else ()
            if groups is None:
                direct |= {leaf}
            else:
                self.groups[leaf] = groups
        self.plan: UseMap = restrict(plan, direct)
        self.uses = [use for (use,) in uses_with(self.plan)]
        self.direct = sorted(direct)
        self.size = sum(x.size for x in self.leaves)  # coordinates of one gradient

    def weighted(
        self, parameters: Any, rows: Any, mask: Bool[Array, "row"], norm: Norm, channels: Channels
    ) -> tuple[Weighted, Bool[Array, "row"]]:
        """The input of `clipped_sum`, and the mask of finite rows."""
        leaves = jax.tree.leaves(parameters)
        size = mask.shape[0]
        losses, gradients, met = jax.vmap(lambda row: self._one(leaves, row), axis_size=size)(rows)
        squared = jax.vmap(lambda met: self._booked_norms(met, norm), axis_size=size)(met)
        if gradients:
            squared += squared_norms(gradients, norm)
        weights = row_weights(losses, squared, self.size, mask, norm, channels)
        direct = sum_doubles(scale_rows(gradients, weights.factor, weights.keep))
        finite = jnp.isfinite(squared) | is_spare(size)
        if gradients and self._convolves:
            finite = finite_alone(
                lambda row: list(self._one(leaves, row)[1].values()), rows, finite
            )
        return (met, weights.factor, direct, sum_doubles((weights.loss, weights.count))), finite

    def clipped_sum(
        self, made: Weighted, *, blocks: int, clear_spare: bool
    ) -> tuple[Any, Array, Array]:
        """Gradient, loss and count, in float64, right if all rows are finite, or all but spare ones with `clear_spare`.

        Gradients that are one product of each row are summed in float32 within so many blocks of
        rows; in float64 if 0. The uses of a leaf are added in float64.
        """
        met, factor, direct, beside = made
        met = jax.tree.map(_without_spare, met) if clear_spare else met
        single = {
            use
            for groups in self.groups.values()
            for x in groups
            if x.way == "outer"
            for use, _ in x.uses
        }
        with double():
            sums: dict[int, Array] = {i: jnp.zeros((), jnp.float64) for i in self.groups}
        for use, (activations, cotangents) in zip(self.uses, met, strict=True):
            leaf = use.view.leaf
            like = jax.ShapeDtypeStruct(self.leaves[leaf].shape, jnp.float32)
            if blocks and use in single:
                part = _sum_of_blocks(use, activations, cotangents, factor, like, blocks)
            with double():
                if not (blocks and use in single):
                    part = weighted_sum(
                        use, activations, cotangents, factor, like.update(dtype=np.float64)
                    )
                sums[leaf] += part
        with double():
            sums = {i: jnp.broadcast_to(x, self.leaves[i].shape) for i, x in sums.items()}
        sums |= direct
        return jax.tree.unflatten(self.tree, [sums[i] for i in range(len(self.leaves))]), *beside

    def _one(self, leaves: Sequence[Array], row: Any) -> tuple[Array, dict[int, Array], Met]:
        """One record's loss, its gradients in the direct leaves, and each use's activation and cotangent."""

        def tapped(direct: dict[int, Array], taps: Any) -> tuple[Array, Any]:
            inputs = [direct.get(i, x) for i, x in enumerate(leaves)] + jax.tree.leaves(row)
            (loss,), activations = run(
                self.program.jaxpr, self.program.consts, inputs, self.plan, taps
            )
            return loss, activations

        start = {i: leaves[i] for i in self.direct}, zero_taps(self.plan)
        gradient = jax.value_and_grad(tapped, argnums=(0, 1), has_aux=True)
        (loss, activations), (direct, cotangents) = gradient(*start)
        met = [
            (activation, cotangent)
            for _, activation, cotangent in uses_with(self.plan, activations, cotangents)
        ]
        return loss, direct, met

    def _booked_norms(self, met: Met, norm: Norm) -> Float[Array, ""]:
        by_use = dict(zip(self.uses, met, strict=True))
        with double():
            total = jnp.zeros((), jnp.float64)
            for groups in self.groups.values():
                for group in groups:
                    total += squared_norm(group, [by_use[use] for use, _ in group.uses], norm)
            return total.astype(jnp.float32)

    @property
    def _convolves(self) -> bool:
        equations = (x for inner in programs_in(self.program) for x in inner.jaxpr.eqns)
        return any(x.primitive is primitives.conv_general_dilated_p for x in equations)

    @property
    def bytes_a_record(self) -> int:
        """Roughly what one record holds at once: vectors of booked leaves, gradients of the others, and values between."""
        booked = sum(group.floats for groups in self.groups.values() for group in groups)
        direct = sum(self.leaves[i].size for i in self.direct)
        between = sum(math.prod(aval(v).shape) for x in self.program.jaxpr.eqns for v in x.outvars)
        return 4 * max(1, booked + 2 * direct + between)


Met = list[tuple[Array, Array]]
"""Activation and cotangent of each use."""
Weighted = tuple[Met, Float[Array, "row"], dict[int, Array], tuple[Array, Array]]
"""What uses met, the factor of each row, the sums of direct leaves, and those of losses and counts."""
