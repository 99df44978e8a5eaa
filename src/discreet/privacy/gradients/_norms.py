"""The norm of one record's gradient in a weight, from the layer's inputs and the gradients in its output.

With left and right vectors l, r of a block (`_layer`), G = sum_t l_t (x) r_t, and |G|^2 comes in
one of three ways:

- outer: one position, |l|^2 |r|^2;
- gram: several, sum_ts <l_t, l_s> <r_t, r_s>, without forming G;
- formed: G itself, where it is smaller than the vectors that it is made of.

Rounding matters here, because a record may be made up by an attacker: positions that nearly cancel
leave a small |G|, while each product is rounded relative to sum_t |l_t| |r_t|. So each way adds to
its result what rounding can have taken away at worst, and the norm comes out too large rather than
too small. Rows without such cancellation hardly notice.

Reference:
    Goodfellow, Efficient per-example gradient computations, 2015 (norms of dense layers).
    Li, Tramèr, Liang, Hashimoto, ICLR 2022 (Gram matrices, "ghost clipping").
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from discreet._jax import double
from discreet.privacy.gradients._contract import Norm
from discreet.privacy.gradients._layer import OneHot, Vectors
from discreet.privacy.gradients._uses import Use

_UNIT = float(jnp.finfo(jnp.float32).eps) / 2
_TINY = float(jnp.finfo(jnp.float32).tiny)
# A record's parts before they cancel may be this many times C; sums of honest positions seldom
# cancel as much.
MOST_CANCELLATION = 256.0
# The squares of so many coordinates are summed in float32, and what that can lose is added: 0.01 %
# of a norm.
_LONG = 2048
HIGHEST_PRECISION = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class UseGroup:
    """Uses of the same elements of a leaf, whose gradients therefore add up before their norm is taken."""

    # the uses, and whether left and right are to be exchanged to fit the first one
    uses: tuple[tuple[Use, bool], ...]
    way: str  # "outer", "gram" or "formed"
    blocks: int  # number of blocks
    positions: int  # of all uses together
    left: int  # number of coordinates of a left vector
    right: int  # likewise

    @property
    def floats(self) -> int:
        """Numbers held for one record: its vectors, and what the way forms of them."""
        held = {"outer": 0, "gram": 2 * self.positions**2, "formed": self.left * self.right}
        return self.blocks * (self.positions * (self.left + self.right) + held[self.way])


def squared_norm(
    group: UseGroup, met: Sequence[tuple[Array, Array]], norm: Norm
) -> Float[Array, ""]:
    """|G|^2 / C^2 of one record, or a little more; not finite if an element of G is not.

    `met` holds activation and cotangent of each use of the group.
    """
    factors = []
    for (use, exchanged), (activation, cotangent) in zip(group.uses, met, strict=True):
        left, right = factors_of(use, activation, cotangent)
        if group.way == "outer":
            # Divided last: vectors that other leaves share are then measured once.
            with double():
                return jnp.sum(jnp.square(_lengths(left) * _lengths(right) / norm))
        right = right / norm
        if group.way == "formed" or exchanged:
            left = left.dense() if isinstance(left, OneHot) else left
        factors.append((right, left) if exchanged else (left, right))
    with double():
        spread = jnp.sum(
            jnp.concatenate([_lengths(left) * _lengths(right) for left, right in factors], axis=1),
            axis=1,
        )
        # What a running sum of that many products can lose in forming G; the clipped sum forms it
        # in float64.
        most = jnp.sqrt(jnp.sum(jnp.square(spread)))
        lost = _UNIT * (8 + group.positions) * most
        if group.way == "formed":
            products = [
                jnp.einsum("ktl,ktr->klr", *pair, precision=HIGHEST_PRECISION) for pair in factors
            ]
            formed = functools.reduce(jnp.add, products).astype(jnp.float64)
            length = jnp.sqrt(jnp.sum(jnp.square(formed)))
        else:
            # The sum over pairs is in float64, and its terms are together no more than most^2.
            length = jnp.sqrt(
                _gram(group, factors) + (2.0 + group.positions) ** 2 * 2.0**-52 * jnp.square(most)
            )
        # Positions that cancel are added to the sums of all records before they do, and what is far
        # above C there would round away what other records have added.
        return jnp.square(jnp.maximum(length + lost, most / MOST_CANCELLATION))


def _gram(group: UseGroup, factors: Sequence[tuple[Vectors | OneHot, Vectors]]) -> Float[Array, ""]:
    """The sum of <l_t, l_s> <r_t, r_s> over all pairs, in float64, and what rounding can have taken away from it."""
    total = lost = jnp.zeros(())
    lengths = [(_lengths(left), _lengths(right)) for left, right in factors]
    for i, (left, right) in enumerate(factors):
        for j, (other_left, other_right) in enumerate(factors[: i + 1]):
            twice = 1 if i == j else 2
            lefts = _inner(left, other_left)
            rights = _inner(right, other_right)
            left_bound, right_bound = (
                a[:, :, None] * b[:, None] for a, b in zip(lengths[i], lengths[j], strict=True)
            )
            # A product of n-vectors is off by at most n roundings of |a| |b|, and by what
            # underflows.
            left_error = left_bound * _UNIT * (4 + group.left) + _TINY * group.left
            right_error = right_bound * _UNIT * (4 + group.right) + _TINY * group.right
            total += twice * jnp.sum(lefts.astype(jnp.float64) * rights.astype(jnp.float64))
            lost += twice * jnp.sum(
                left_error * (jnp.abs(rights) + right_error) + jnp.abs(lefts) * right_error
            )
    return jnp.maximum(total, 0.0) + lost * (1 + 2.0**-12)


def factors_of(use: Use, activation: Array, cotangent: Array) -> tuple[Vectors | OneHot, Vectors]:
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
        return OneHot(left.index.reshape(-1), left.valid.reshape(-1), left.size), _merge(
            right, sliced
        )
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
    return jnp.einsum("ktl,ksl->kts", a, b, precision=HIGHEST_PRECISION)
