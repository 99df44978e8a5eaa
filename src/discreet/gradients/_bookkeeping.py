"""The book-keeping engine: clipped sums without per-record gradients.

One forward and one backward pass give, for each layer, the values that met its weight and the gradients in its output.
The norm of a record's gradient in the weight follows from these two (`_booking`), and so does the sum of all records'
clipped gradients, in one contraction that is the one of an ordinary, non-private gradient with weighted rows.

Reference:
    Goodfellow, Efficient per-example gradient computations, 2015 (norms of dense layers).
    Li, Tramèr, Liang, Hashimoto, ICLR 2022 (Gram matrices, "ghost clipping").
    Bu, Wang, Zha, Karypis, Differentially private optimization on large model at small cost, ICML 2023 (the clipped sum
    without a second backward pass, "book-keeping").
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from discreet._jax import ClosedJaxpr, aval, without_dead_code
from discreet.gradients._booking import Group, group_uses, squared_norm, weighted_sum
from discreet.gradients._clipping import check_tree, scale_rows, squared_norms
from discreet.gradients._contract import (
    Channels,
    ClippedSum,
    Clipping,
    EngineReport,
    LeafReport,
    RecordLoss,
    row_weights,
)
from discreet.gradients._reference import sum_over_rows, sum_with_substitutes
from discreet.gradients._uses import Plan, Use, find_uses, restrict, run, uses_with, zero_taps

# A batch that takes less is compiled once, for one capacity.
_SMALL_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class BookKeepingEngine:
    """Norms and clipped sum from each layer's inputs and output gradients; other leaves as in `ReferenceEngine`.

    Works through `jit`, `scan`, `cond`, `remat`; what a `custom_jvp` or `custom_vjp` function does with a parameter
    inside is left to its rule, and the parameter's gradient is formed for every record.

    Guarantee: `GradientEngine`'s. Norms are rounded up by what cancellation can hide (see `_booking`).

    Attributes:
        capacities: numbers of rows to compile for, increasing. A batch runs at the smallest that holds its rows, and a
            larger one in microbatches of the largest. Empty: one, the size of the batch.
        microbatch_size: the most rows that are worked on at once. None: as many as fit into `memory_budget`.
        memory_budget: bytes, estimated from the shapes of one record's values.
    """

    capacities: tuple[int, ...] = ()
    microbatch_size: int | None = None
    memory_budget: int = 2**30

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
        check_tree("BookKeepingEngine", parameters)
        one = jax.eval_shape(lambda tree: jax.tree.map(lambda x: x[0], tree), records)
        book = _Book(record_loss, parameters, one)

        def careful(rows: Any, keep: Bool[Array, "row"]) -> tuple[Any, Array, Array]:
            return book.clipped_sum(parameters, rows, keep, clipping, channels, select=True)[0]

        def quick(rows: Any, keep: Bool[Array, "row"]) -> tuple[tuple[Any, Array, Array], Bool[Array, "row"]]:
            return book.clipped_sum(parameters, rows, keep, clipping, channels, select=False)

        capacities = self._capacities(mask.shape[0], book)
        if max(capacities) * book.bytes_a_record <= _SMALL_BYTES:
            gradient, loss, count = sum_with_substitutes(quick, records, mask, max(capacities))
        else:
            gradient, loss, count = sum_over_rows(careful, records, mask, capacities, quick=quick)
        return ClippedSum(gradient, loss, count, channels.joint_bound(clipping.norm))

    def explain(self, record_loss: RecordLoss, parameters: Any, record: Any, num_rows: int) -> EngineReport:
        """See `GradientEngine`."""
        book = _Book(record_loss, parameters, record)
        return EngineReport(book.report(), num_rows, max(self._capacities(num_rows, book)))

    def _capacities(self, size: int, book: _Book) -> list[int]:
        limit = self.microbatch_size or max(1, self.memory_budget // book.bytes_a_record)
        return [min(x, limit, size) for x in self.capacities or (size,)]


class _Book:
    """What is known of a record's loss before any record is seen."""

    def __init__(self, record_loss: RecordLoss, parameters: Any, record: Any) -> None:
        self.program: ClosedJaxpr = without_dead_code(jax.make_jaxpr(record_loss)(parameters, record))
        paths, self.tree = jax.tree.flatten_with_path(jax.eval_shape(lambda x: x, parameters))
        self.names = [jax.tree_util.keystr(path) for path, _ in paths]
        self.leaves: list[jax.ShapeDtypeStruct] = [x for _, x in paths]
        plan, direct = find_uses(self.program.jaxpr, len(self.leaves))
        self.groups: dict[int, tuple[Group, ...]] = {}
        for leaf in set(range(len(self.leaves))) - direct:
            uses = [use for (use,) in uses_with(plan) if use.view.leaf == leaf]
            groups = group_uses(uses, self.leaves[leaf].shape) if uses else ()
            if groups is None:
                direct |= {leaf}
            else:
                self.groups[leaf] = groups
        self.plan: Plan = restrict(plan, direct)
        self.direct = sorted(direct)

    def clipped_sum(
        self,
        parameters: Any,
        rows: Any,
        mask: Bool[Array, "row"],
        clipping: Clipping,
        channels: Channels,
        *,
        select: bool,
    ) -> tuple[tuple[Any, Array, Array], Bool[Array, "row"]]:
        """Gradient, loss and count; and which rows are finite.

        Args:
            parameters: the parameters.
            rows: tree of arrays.
            mask: which rows count.
            clipping: the rule.
            channels: what travels beside the gradient.
            select: select rows that do not count away before they are multiplied by their factor, zero: 0 * NaN is
                NaN. That copies the activations; without it the sum is right if all rows are finite.
        """
        leaves, size = jax.tree.leaves(parameters), mask.shape[0]
        losses, gradients, met = jax.vmap(lambda row: self._one(leaves, row), axis_size=size)(rows)
        squared = jax.vmap(lambda met: self._booked_norms(met, clipping.norm), axis_size=size)(met)
        if gradients:
            squared += squared_norms(gradients, clipping.norm)
        weights = row_weights(losses, squared, sum(x.size for x in self.leaves), mask, clipping, channels)
        scaled = scale_rows(gradients, weights.factor, weights.keep)
        if select:
            met = jax.tree.map(lambda x: jnp.where(weights.keep.reshape(-1, *[1] * (x.ndim - 1)), x, 0), met)
        sums = {i: jnp.sum(x, axis=0) for i, x in scaled.items()} | self._booked_sums(met, weights.factor)
        gradient = jax.tree.unflatten(self.tree, [sums[i] for i in range(len(leaves))])
        return (gradient, weights.loss, weights.count), jnp.isfinite(squared)

    def _one(self, leaves: Sequence[Array], row: Any) -> tuple[Array, dict[int, Array], Met]:
        """One record's loss, its gradients in the direct leaves, and each use's activation and cotangent."""

        def tapped(direct: dict[int, Array], taps: Any) -> tuple[Array, Any]:
            inputs = [direct.get(i, x) for i, x in enumerate(leaves)] + jax.tree.leaves(row)
            (loss,), activations = run(self.program.jaxpr, self.program.consts, inputs, self.plan, taps)
            return loss, activations

        start = {i: leaves[i] for i in self.direct}, zero_taps(self.plan)
        gradient = jax.value_and_grad(tapped, argnums=(0, 1), has_aux=True)
        (loss, activations), (direct, cotangents) = gradient(*start)
        met = [(activation, cotangent) for _, activation, cotangent in uses_with(self.plan, activations, cotangents)]
        return loss, direct, met

    def _booked_norms(self, met: Met, norm: float | Float[Array, ""]) -> Float[Array, ""]:
        by_use = dict(zip(self._uses(), met, strict=True))
        total = jnp.zeros(())
        for groups in self.groups.values():
            for group in groups:
                total += squared_norm(group, [by_use[use] for use, _ in group.uses], norm)
        return total

    def _booked_sums(self, met: Met, factor: Float[Array, "row"]) -> dict[int, Array]:
        sums: dict[int, Array] = {i: jnp.zeros((), self._sum_dtype(i)) for i in self.groups}
        for use, (activations, cotangents) in zip(self._uses(), met, strict=True):
            leaf = use.view.leaf
            like = jax.ShapeDtypeStruct(self.leaves[leaf].shape, self._sum_dtype(leaf))
            sums[leaf] += weighted_sum(use, activations, cotangents, factor, like)
        return {i: jnp.broadcast_to(x, self.leaves[i].shape) for i, x in sums.items()}

    def _uses(self) -> list[Use]:
        return [use for (use,) in uses_with(self.plan)]

    def _sum_dtype(self, leaf: int) -> Any:
        return jnp.promote_types(self.leaves[leaf].dtype, jnp.float32)

    @property
    def bytes_a_record(self) -> int:
        """Roughly what one record holds at once: vectors of booked leaves, gradients of the others, and values between."""
        booked = sum(group.floats for groups in self.groups.values() for group in groups)
        direct = sum(self.leaves[i].size for i in self.direct)
        between = sum(math.prod(aval(v).shape) for x in self.program.jaxpr.eqns for v in x.outvars)
        return 4 * max(1, booked + 2 * direct + between)

    def report(self) -> tuple[LeafReport, ...]:
        """A line for each leaf."""
        lines = []
        for i, (name, leaf) in enumerate(zip(self.names, self.leaves, strict=True)):
            groups = self.groups.get(i)
            if groups is None:
                lines.append(LeafReport(name, leaf.shape, "per record", 2 * leaf.size, 4 * leaf.size))
            elif not groups:
                lines.append(LeafReport(name, leaf.shape, "unused", 0, 0))
            else:
                ways = " + ".join(sorted({x.way for x in groups}))
                flops, floats = sum(x.flops for x in groups), sum(x.floats for x in groups)
                lines.append(LeafReport(name, leaf.shape, ways, flops, 4 * floats))
        return tuple(lines)


Met = list[tuple[Array, Array]]
