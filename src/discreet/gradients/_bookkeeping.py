"""The book-keeping engine: clipped sums without per-record gradients.

One forward and one backward pass give, for each layer, the values that met its weight and the gradients in its output.
The norm of a record's gradient in the weight follows from these two, and so does the sum of all records' clipped gradients,
in one contraction that is the one of an ordinary, non-private gradient with weighted rows.

With left and right vectors l, r of a block (`_layers`), G = sum_t l_t (x) r_t, and |G|^2 comes in one of three ways:

- outer: one position, |l|^2 |r|^2;
- gram: several, sum_ts <l_t, l_s> <r_t, r_s>, without forming G;
- formed: G itself, where it is smaller than the vectors that it is made of.

Rounding matters here, because a record may be made up by an attacker: positions that nearly cancel leave a small |G|,
while each product is rounded relative to sum_t |l_t| |r_t|. So each way adds to its result what rounding can have
taken away at worst, and the norm comes out too large rather than too small. Rows without such cancellation hardly
notice.

Reference:
    Goodfellow, Efficient per-example gradient computations, 2015 (norms of dense layers).
    Li, Tramèr, Liang, Hashimoto, ICLR 2022 (Gram matrices, "ghost clipping").
    Bu, Wang, Zha, Karypis, Differentially private optimization on large model at small cost, ICML 2023 (the clipped sum
    without a second backward pass, "book-keeping").
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
from discreet.gradients._contract import (
    MOST_LOST_BETWEEN,
    SPARE,
    Channels,
    ClippedSum,
    EngineReport,
    LeafReport,
    Norm,
    RecordLoss,
    check_clipping,
    finite_alone,
    is_spare,
    lost_between,
    rounding_of_sums,
    row_weights,
    scale_rows,
    squared_norms,
    sum_by_chunks,
    sum_doubles,
    whole_lanes,
)
from discreet.gradients._layers import Layer, Lookup, OneHot, Vectors
from discreet.gradients._uses import Plan, Use, find_uses, restrict, run, uses_with, zero_taps

# Up to so many parameters a sum in float64 costs little beside the rest of a step.
_FEW = 2**14
# A chunk whose sums are in float32 has at most so many rows, in blocks of at most so many, which cost 0.6 % of C.
_MOST_ROWS, _BLOCK = 576, 160
_UNIT = float(jnp.finfo(jnp.float32).eps) / 2
_TINY = float(jnp.finfo(jnp.float32).tiny)
# A record's parts before they cancel may be this many times C; sums of honest positions seldom cancel as much.
_MOST_CANCELLATION = 256.0
# The squares of so many coordinates are summed in float32, and what that can lose is added: 0.01 % of a norm.
_LONG = 2048
_HIGHEST = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class Group:
    """Uses of the same elements of a leaf, whose gradients therefore add up before their norm is taken."""

    # the uses, and whether left and right are to be exchanged to fit the first one
    uses: tuple[tuple[Use, bool], ...]
    way: str  # "outer", "gram" or "formed"
    blocks: int  # number of blocks
    positions: int  # of all uses together
    left: int  # number of coordinates of a left vector
    right: int  # likewise

    @property
    def flops(self) -> int:
        """Floating-point operations for one record's norm."""
        blocks, t, left, right = self.blocks, self.positions, self.left, self.right
        each = {
            "outer": 2 * (left + right),
            "gram": 2 * t * t * (left + right + 1),
            "formed": 2 * (t + 1) * left * right,
        }
        return blocks * each[self.way]

    @property
    def floats(self) -> int:
        """Numbers held for one record: its vectors, and what the way forms of them."""
        held = {"outer": 0, "gram": 2 * self.positions**2, "formed": self.left * self.right}
        return self.blocks * (self.positions * (self.left + self.right) + held[self.way])


def group_uses(uses: Sequence[Use], leaf_shape: tuple[int, ...]) -> tuple[Group, ...] | None:
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


def _group(members: list[tuple[Use, bool]]) -> Group:
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
    return Group(tuple(members), way, blocks, positions, left, right)


# --- one record's norm ------------------------------------------------------------------------


def squared_norm(group: Group, met: Sequence[tuple[Array, Array]], norm: Norm) -> Float[Array, ""]:
    """|G|^2 / C^2 of one record, or a little more; not finite if an element of G is not.

    `met` holds activation and cotangent of each use of the group.
    """
    factors = []
    for (use, exchanged), (activation, cotangent) in zip(group.uses, met, strict=True):
        left, right = _factors(use, activation, cotangent)
        if group.way == "outer":
            # Divided last: vectors that other leaves share are then measured once.
            with double():
                return jnp.sum(jnp.square(_lengths(left) * _lengths(right) / norm))
        right = right / norm
        if group.way == "formed" or exchanged:
            left = left.dense() if isinstance(left, OneHot) else left
        factors.append((right, left) if exchanged else (left, right))
    with double():
        spread = jnp.sum(jnp.concatenate([_lengths(left) * _lengths(right) for left, right in factors], axis=1), axis=1)
        # What a running sum of that many products can lose in forming G; the clipped sum forms it in float64.
        most = jnp.sqrt(jnp.sum(jnp.square(spread)))
        lost = _UNIT * (8 + group.positions) * most
        if group.way == "formed":
            products = [jnp.einsum("ktl,ktr->klr", *pair, precision=_HIGHEST) for pair in factors]
            formed = functools.reduce(jnp.add, products).astype(jnp.float64)
            length = jnp.sqrt(jnp.sum(jnp.square(formed)))
        else:
            # The sum over pairs is in float64, and its terms are together no more than most^2.
            length = jnp.sqrt(_gram(group, factors) + (2.0 + group.positions) ** 2 * 2.0**-52 * jnp.square(most))
        # Positions that cancel are added to the sums of all records before they do, and what is far above C there would
        # round away what other records have added.
        return jnp.square(jnp.maximum(length + lost, most / _MOST_CANCELLATION))


def _gram(group: Group, factors: Sequence[tuple[Vectors | OneHot, Vectors]]) -> Float[Array, ""]:
    """The sum of <l_t, l_s> <r_t, r_s> over all pairs, in float64, and what rounding can have taken away from it."""
    total = lost = jnp.zeros(())
    lengths = [(_lengths(left), _lengths(right)) for left, right in factors]
    for i, (left, right) in enumerate(factors):
        for j, (other_left, other_right) in enumerate(factors[: i + 1]):
            twice = 1 if i == j else 2
            lefts, rights = _inner(left, other_left), _inner(right, other_right)
            left_bound, right_bound = (a[:, :, None] * b[:, None] for a, b in zip(lengths[i], lengths[j], strict=True))
            # A product of n-vectors is off by at most n roundings of |a| |b|, and by what underflows.
            left_error = left_bound * _UNIT * (4 + group.left) + _TINY * group.left
            right_error = right_bound * _UNIT * (4 + group.right) + _TINY * group.right
            total += twice * jnp.sum(lefts.astype(jnp.float64) * rights.astype(jnp.float64))
            lost += twice * jnp.sum(left_error * (jnp.abs(rights) + right_error) + jnp.abs(lefts) * right_error)
    return jnp.maximum(total, 0.0) + lost * (1 + 2.0**-12)


def _factors(use: Use, activation: Array, cotangent: Array) -> tuple[Vectors | OneHot, Vectors]:
    """Left and right, with the iterations of loops as further blocks or positions."""
    function = use.layer.factors
    if use.view.loops:
        # The blocks of a one-hot vector would have to be told apart.
        function = functools.partial(_dense_factors, use)
    for _ in use.loops:
        function = jax.vmap(function)
    left, right = function(activation, cotangent)
    sliced = [loop in use.view.loops for loop in use.loops]
    if isinstance(left, OneHot):
        return OneHot(left.index.reshape(-1), left.valid.reshape(-1), left.size), _merge(right, sliced)
    return _merge(left, sliced), _merge(right, sliced)


def _dense_factors(use: Use, activation: Array, cotangent: Array) -> tuple[Vectors, Vectors]:
    left, right = use.layer.factors(activation, cotangent)
    return left.dense() if isinstance(left, OneHot) else left, right


def _merge(x: Array, sliced: Sequence[bool]) -> Vectors:
    depth = len(sliced)
    blocks = [a for a in range(depth) if sliced[a]]
    positions = [a for a in range(depth) if not sliced[a]]
    x = x.transpose([*blocks, depth, *positions, depth + 1, depth + 2])
    return x.reshape(math.prod(x.shape[: len(blocks) + 1]), -1, x.shape[-1])


def _lengths(side: Vectors | OneHot) -> Float[Array, "block position"]:
    """L2 norms of the vectors, in float64, no less than they are: squares too small for a float32 are taken as the smallest."""
    if isinstance(side, OneHot):
        return side.valid.astype(jnp.float64)[None]
    size = side.shape[-1]
    side = side.astype(jnp.float64) if size > _LONG else side
    squares = jnp.sum(jnp.square(side), axis=-1).astype(jnp.float64)
    return jnp.sqrt(squares * (1 + 2 * (2 + min(size, _LONG)) * _UNIT) + size * _TINY)


def _inner(a: Vectors | OneHot, b: Vectors | OneHot) -> Float[Array, "block position position"]:
    if isinstance(a, OneHot) and isinstance(b, OneHot):
        same = (a.index[:, None] == b.index[None]) & a.valid[:, None] & b.valid[None]
        return same.astype(jnp.float32)[None]
    if isinstance(a, OneHot):
        assert not isinstance(b, OneHot)
        return jnp.where(a.valid[:, None], b[:, :, a.index].swapaxes(1, 2), 0.0)
    if isinstance(b, OneHot):
        return _inner(b, a).swapaxes(1, 2)
    return jnp.einsum("ktl,ksl->kts", a, b, precision=_HIGHEST)


# --- the clipped sum --------------------------------------------------------------------------


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
    use: Use, activations: Array, cotangents: Array, factor: Array, leaf: jax.ShapeDtypeStruct, blocks: int
) -> Array:
    """`weighted_sum` within each of so many blocks of rows, and their sum in float64.

    Several only where rows are operands of a branch: else XLA computes them by loops over blocks, the last ones of each
    otherwise.
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


def _transposed(use: Use, layer: Lookup, activations: Array, cotangents: Array, weight: jax.ShapeDtypeStruct) -> Array:
    apply = layer.apply
    for loop in reversed(use.loops):
        apply = jax.vmap(apply, in_axes=(0, 0 if loop in use.view.loops else None))
    batched = jax.vmap(apply, in_axes=(0, None))
    (summed,) = jax.linear_transpose(lambda w: batched(activations, w), weight)(cotangents)
    return summed


def _product_of_factors(use: Use, layer: Layer, activations: Array, cotangents: Array) -> Array:
    factors: Any = jax.vmap(lambda a, c: _factors(use, a, c))(activations, cotangents)  # both are `Vectors`
    left, right = factors
    if left.shape[1] == 1:
        # Contracted where they stand: XLA copies what is transposed first.
        lefts, rights = (x.reshape(-1, x.shape[-1]) for x in factors)
        arranged = jax.lax.dot_general(lefts, rights, (((0,), (0,)), ((), ())), precision=_HIGHEST)
    else:
        arranged = jnp.einsum("nktl,nktr->klr", left, right, precision=_HIGHEST)
    slices = [loop.length for loop in use.loops if loop in use.view.loops]
    restore = layer.restore
    for _ in slices:
        restore = jax.vmap(restore)
    return restore(arranged.reshape(*slices, -1, left.shape[-1], right.shape[-1]))


# --- the engine ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class BookKeepingEngine:
    """Norms and clipped sum from each layer's inputs and output gradients; other leaves as in `ReferenceEngine`.

    Works through `jit`, `scan`, `cond`, `remat`; what a `custom_jvp` or `custom_vjp` function does with a parameter
    inside is left to its rule, and the parameter's gradient is formed for every record.

    Guarantee: `GradientEngine`'s. Norms are rounded up by what cancellation can hide (see above).
    """

    # how many rows a batch seldom exceeds; public. A chunk has so many, or an equal share of them, whatever the batch has.
    rows: int = 128
    # the most rows of a planned batch; public. The bound holds for twice as many at least; far more are refused.
    capacity: int = 1024
    # the rows of a batch come in uniformly random, secret order (`Sampling.shuffled`). Sums of large models are then made
    # in float32 within blocks of a chunk (see `_contract`).
    shuffled: bool = False
    # the most rows that are worked on at once; with 8 more, rounded up to a multiple of 16. None: as many as fit into
    # `memory_budget`.
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

        positions = max([group.positions for groups in book.groups.values() for group in groups], default=1)
        parts = _MOST_CANCELLATION if positions > 1 else 1.0
        planned = 2 * self.capacity
        thin = blocks > 0 and lost_between(planned, chunk) <= MOST_LOST_BETWEEN
        finish = (as_they_are, without_spare) if in_branch else ()
        gradient, loss, count = sum_by_chunks(chunk_sum, records, mask, chunk, thin=thin, finish=finish)
        rounding = rounding_of_sums(
            mask.shape[0], planned, chunk, blocks=blocks, thin=thin, positions=positions, parts=parts
        )
        return ClippedSum(gradient, loss, count, channels.joint_bound(norm) * (1.0 + rounding), rounding)

    def explain(self, record_loss: RecordLoss, parameters: Any, record: Any, num_rows: int) -> EngineReport:
        book = _Book(record_loss, parameters, record)
        return EngineReport(book.report(), num_rows, self._chunk(book)[0])

    def _chunk(self, book: _Book) -> tuple[int, int]:
        """Rows of a chunk, and its blocks within which sums are in float32; 0: all sums are in float64.

        The same whatever the size of the batch: chunks of other sizes are other programs, in which rows differ.
        """
        rows = self.rows
        narrow = self.shuffled and book.size > _FEW and all(x.dtype.itemsize <= 4 for x in book.leaves)
        if narrow:
            # As many chunks as there must be, all of one length: each has spare rows, and its sums go through memory.
            rows = -(-rows // -(-rows // (_MOST_ROWS - SPARE)))
        if self.microbatch_size is not None:
            rows = min(rows, self.microbatch_size)
        chunk = whole_lanes(rows, self.memory_budget // book.bytes_a_record)
        if not narrow:
            return chunk, 0
        return chunk, next(n for n in range(1, chunk + 1) if chunk <= n * _BLOCK and not chunk % n)


class _Book:
    """The structure of a record's loss, from its trace."""

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
        self.uses = [use for (use,) in uses_with(self.plan)]
        self.direct = sorted(direct)
        self.size = sum(x.size for x in self.leaves)  # coordinates of one gradient

    def weighted(
        self,
        parameters: Any,
        rows: Any,
        mask: Bool[Array, "row"],
        norm: Norm,
        channels: Channels,
    ) -> tuple[Weighted, Bool[Array, "row"]]:
        """The input of `clipped_sum`, and the mask of finite rows."""
        leaves, size = jax.tree.leaves(parameters), mask.shape[0]
        losses, gradients, met = jax.vmap(lambda row: self._one(leaves, row), axis_size=size)(rows)
        squared = jax.vmap(lambda met: self._booked_norms(met, norm), axis_size=size)(met)
        if gradients:
            squared += squared_norms(gradients, norm)
        weights = row_weights(losses, squared, self.size, mask, norm, channels)
        direct = sum_doubles(scale_rows(gradients, weights.factor, weights.keep))
        finite = jnp.isfinite(squared) | is_spare(size)
        if gradients and self._convolves:
            finite = finite_alone(lambda row: list(self._one(leaves, row)[1].values()), rows, finite)
        return (met, weights.factor, direct, sum_doubles((weights.loss, weights.count))), finite

    def clipped_sum(self, made: Weighted, *, blocks: int, clear_spare: bool) -> tuple[Any, Array, Array]:
        """Gradient, loss and count, in float64, right if all rows are finite, or all but spare ones with `clear_spare`.

        Gradients that are one product of each row are summed in float32 within so many blocks of rows; in float64 if 0.
        The uses of a leaf are added in float64.
        """
        met, factor, direct, beside = made
        met = jax.tree.map(_without_spare, met) if clear_spare else met
        single = {use for groups in self.groups.values() for x in groups if x.way == "outer" for use, _ in x.uses}
        with double():
            sums: dict[int, Array] = {i: jnp.zeros((), jnp.float64) for i in self.groups}
        for use, (activations, cotangents) in zip(self.uses, met, strict=True):
            leaf = use.view.leaf
            like = jax.ShapeDtypeStruct(self.leaves[leaf].shape, jnp.float32)
            if blocks and use in single:
                part = _sum_of_blocks(use, activations, cotangents, factor, like, blocks)
            with double():
                if not (blocks and use in single):
                    part = weighted_sum(use, activations, cotangents, factor, like.update(dtype=np.float64))
                sums[leaf] += part
        with double():
            sums = {i: jnp.broadcast_to(x, self.leaves[i].shape) for i, x in sums.items()}
        sums |= direct
        return jax.tree.unflatten(self.tree, [sums[i] for i in range(len(self.leaves))]), *beside

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
"""Activation and cotangent of each use."""
Weighted = tuple[Met, Float[Array, "row"], dict[int, Array], tuple[Array, Array]]
"""What uses met, the factor of each row, the sums of direct leaves, and those of losses and counts."""
