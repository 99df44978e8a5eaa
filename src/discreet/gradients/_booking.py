"""How the norm of one record's gradient in a leaf is found from its layers, and the layers' clipped sum.

With left and right vectors l, r of a block (`_layers`), G = sum_t l_t (x) r_t, and |G|^2 comes in one of three ways:

- outer: one position, |l|^2 |r|^2;
- gram: several, sum_ts <l_t, l_s> <r_t, r_s>, without forming G;
- formed: G itself, where it is smaller than the vectors that it is made of.

Rounding matters here, because a record may be made up by an attacker: positions that nearly cancel leave a small |G|,
while each product is rounded relative to sum_t |l_t| |r_t|. So each way adds to its result what rounding can have
taken away at worst, and the norm comes out too large rather than too small. Rows without such cancellation hardly
notice.
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
from jaxtyping import Array, Float, Int

from discreet.gradients._layers import Linear, OneHot, Rearranged, Vectors, at_least_float32
from discreet.gradients._uses import Use

_UNIT = float(jnp.finfo(jnp.float32).eps) / 2
_TINY = float(jnp.finfo(jnp.float32).tiny)
# A record's parts before they cancel may be this many times C; sums of honest positions seldom cancel as much.
_MOST_CANCELLATION = 256.0
_HIGHEST = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class Group:
    """Uses of the same elements of a leaf, whose gradients therefore add up before their norm is taken.

    Attributes:
        uses: the uses, and whether left and right are to be exchanged to fit the first one.
        way: "outer", "gram" or "formed".
        blocks: number of blocks.
        positions: of all uses together.
        left: number of coordinates of a left vector.
        right: likewise.
    """

    uses: tuple[tuple[Use, bool], ...]
    way: str
    blocks: int
    positions: int
    left: int
    right: int

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
            if elements.shape == first.shape and np.array_equal(elements, first):
                members.append((use, False))
                break
            exchanged = elements.swapaxes(1, 2)
            if exchanged.shape == first.shape and np.array_equal(exchanged, first):
                members.append((use, True))
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
    return np.concatenate([use.layer.arrange(use.equation, x) for x in slices])


def _group(members: list[tuple[Use, bool]]) -> Group:
    first, _ = members[0]
    blocks, _, left, right = first.layer.shape(first.equation)
    blocks *= math.prod(loop.length for loop in first.view.loops)
    positions = 0
    for use, _ in members:
        repeated = math.prod(loop.length for loop in use.loops if loop not in use.view.loops)
        positions += repeated * use.layer.shape(use.equation)[1]
    if positions == 1:
        way = "outer"
    else:
        way = "formed" if left * right <= positions * (left + right) else "gram"
    return Group(tuple(members), way, blocks, positions, left, right)


# --- one record's norm ------------------------------------------------------------------------


def squared_norm(group: Group, met: Sequence[tuple[Array, Array]], norm: float | Float[Array, ""]) -> Float[Array, ""]:
    """|G|^2 / C^2 of one record, or a little more; not finite if an element of G is not.

    Args:
        group: the group.
        met: activation and cotangent of each of its uses.
        norm: C.
    """
    factors = []
    for (use, exchanged), (activation, cotangent) in zip(group.uses, met, strict=True):
        left, right = _factors(use, activation, cotangent)
        if group.way == "outer":
            # Divided last: vectors that other leaves share are then measured once.
            return jnp.sum(jnp.square(_lengths(left) * _lengths(right) / norm))
        right = right / norm
        if group.way == "formed" or exchanged:
            left = left.dense() if isinstance(left, OneHot) else left
        factors.append((right, left) if exchanged else (left, right))
    spread = jnp.sum(jnp.concatenate([_lengths(left) * _lengths(right) for left, right in factors], axis=1), axis=1)
    # What a running sum of that many products can lose in forming G, and once more in adding it to the clipped sum.
    most = jnp.sqrt(jnp.sum(jnp.square(spread)))
    lost = 2 * _UNIT * (8 + group.positions) * most
    if group.way == "formed":
        products = [jnp.einsum("ktl,ktr->klr", *pair, precision=_HIGHEST) for pair in factors]
        length = jnp.sqrt(jnp.sum(jnp.square(functools.reduce(jnp.add, products))))
    else:
        length = jnp.sqrt(_gram(group, factors))
    # Positions that cancel are added to the sums of all records before they do, and what is far above C there would
    # round away what other records have added.
    return jnp.square(jnp.maximum(length + lost, most / _MOST_CANCELLATION))


def _gram(group: Group, factors: Sequence[tuple[Vectors | OneHot, Vectors]]) -> Float[Array, ""]:
    """The sum of <l_t, l_s> <r_t, r_s> over all pairs, and what rounding can have taken away from it."""
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
            total += twice * jnp.sum(lefts * rights)
            lost += twice * jnp.sum(left_error * (jnp.abs(rights) + right_error) + jnp.abs(lefts) * right_error)
            # Sums over pairs run in eight lanes at least.
            lost += twice * _UNIT * (8 + group.positions**2 / 8) * jnp.sum(jnp.abs(lefts * rights))
    return jnp.maximum(total, 0.0) + lost


def _factors(use: Use, activation: Array, cotangent: Array) -> tuple[Vectors | OneHot, Vectors]:
    """Left and right, with the iterations of loops as further blocks or positions."""
    function = functools.partial(use.layer.factors, use.equation)
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
    left, right = use.layer.factors(use.equation, activation, cotangent)
    return left.dense() if isinstance(left, OneHot) else left, right


def _merge(x: Array, sliced: Sequence[bool]) -> Vectors:
    depth = len(sliced)
    blocks = [a for a in range(depth) if sliced[a]]
    positions = [a for a in range(depth) if not sliced[a]]
    x = x.transpose([*blocks, depth, *positions, depth + 1, depth + 2])
    return x.reshape(math.prod(x.shape[: len(blocks) + 1]), -1, x.shape[-1])


def _lengths(side: Vectors | OneHot) -> Float[Array, "block position"]:
    """L2 norms of the vectors, no less than they are: squares too small for a float32 are taken as the smallest."""
    if isinstance(side, OneHot):
        return side.valid.astype(jnp.float32)[None]
    return jnp.sqrt(jnp.sum(jnp.square(side), axis=-1) + side.shape[-1] * _TINY)


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
    """Sum over records of factor times the gradient in the leaf, in one contraction.

    Args:
        use: the use.
        activations: leading axis the records.
        cotangents: likewise.
        factor: each record's factor.
        leaf: shape and dtype of the sum.
    """
    cotangents = at_least_float32(cotangents)
    if jnp.issubdtype(activations.dtype, jnp.floating) and activations.size < cotangents.size:
        # Bilinear, so the smaller of the two is scaled and written again.
        activations = _scaled(at_least_float32(activations), factor)
    else:
        cotangents = _scaled(cotangents, factor)
    weight = jax.eval_shape(use.view, leaf)
    if isinstance(use.layer, Rearranged):
        in_weight = _product_of_factors(use, use.layer, activations, cotangents).astype(weight.dtype)
    else:
        in_weight = _transposed(use, use.layer, activations, cotangents.astype(weight.dtype), weight)
    if not use.view.moves:
        return in_weight
    (in_leaf,) = jax.linear_transpose(use.view, leaf)(in_weight)
    return in_leaf


def _scaled(rows: Array, factor: Float[Array, "record"]) -> Array:
    return rows * factor.reshape(-1, *[1] * (rows.ndim - 1)).astype(rows.dtype)


def _transposed(use: Use, layer: Linear, activations: Array, cotangents: Array, weight: jax.ShapeDtypeStruct) -> Array:
    apply = functools.partial(layer.apply, use.equation)
    for loop in reversed(use.loops):
        apply = jax.vmap(apply, in_axes=(0, 0 if loop in use.view.loops else None))
    batched = jax.vmap(apply, in_axes=(0, None))
    (summed,) = jax.linear_transpose(lambda w: batched(activations, w), weight)(cotangents)
    return summed


def _product_of_factors(use: Use, layer: Rearranged, activations: Array, cotangents: Array) -> Array:
    factors: Any = jax.vmap(lambda a, c: _factors(use, a, c))(activations, cotangents)  # both are `Vectors`
    left, right = factors
    if left.shape[1] == 1:
        # Contracted where they stand: XLA copies what is transposed first.
        lefts, rights = (x.reshape(-1, x.shape[-1]) for x in factors)
        arranged = jax.lax.dot_general(lefts, rights, (((0,), (0,)), ((), ())), precision=_HIGHEST)
    else:
        arranged = jnp.einsum("nktl,nktr->klr", left, right, precision=_HIGHEST)
    slices = [loop.length for loop in use.loops if loop in use.view.loops]
    restore = functools.partial(layer.restore, use.equation)
    for _ in slices:
        restore = jax.vmap(restore)
    return restore(arranged.reshape(*slices, -1, left.shape[-1], right.shape[-1]))
