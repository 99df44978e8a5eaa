"""The layers that can be booked: what a record's gradient in a weight is made of.

Each is linear in its weight. Its gradient for one record is a sum over positions t of outer products,

    G[k] = sum_t  left[k, t] (x) right[k, t],

where left comes from the value that meets the weight, and right is the gradient in the layer's output. `k` numbers
blocks of the weight that never meet (heads, groups). For a convolution left is the patch that the kernel sees; for a
lookup in a table it is one-hot, and only the index is kept.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from discreet._jax import JaxprEqn

Vectors = Float[Array, "block position coordinate"]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["index", "valid"], meta_fields=["size"])
@dataclasses.dataclass(frozen=True)
class OneHot:
    """One-hot vectors with `size` coordinates; those that are not `valid` are zero."""

    index: Int[Array, "position"]
    valid: Bool[Array, "position"]
    size: int

    def dense(self) -> Vectors:
        """The same, written out."""
        return (jax.nn.one_hot(self.index, self.size) * self.valid[:, None])[None]


class Layer(Protocol):
    """One kind of layer, for one equation."""

    def factors(self, equation: JaxprEqn, activation: Array, cotangent: Array) -> tuple[Vectors | OneHot, Vectors]:
        """Left and right of one record, in float32 or better."""
        ...

    def arrange(self, equation: JaxprEqn, elements: Int[np.ndarray, "..."]) -> Int[np.ndarray, "block left right"]:
        """The weight's elements in the order of left and right."""
        ...

    def shape(self, equation: JaxprEqn) -> tuple[int, int, int, int]:
        """Numbers of blocks, positions, and coordinates of left and of right."""
        ...

    def activation(self, operands: Sequence[Any]) -> Array:
        """What is kept of the value that meets the weight; norm and sum are bilinear in it and the cotangent, if it floats."""
        ...


class Linear(Layer, Protocol):
    """A layer whose transpose, as JAX makes it, is the best way to its sum over records."""

    def apply(self, equation: JaxprEqn, activation: Array, weight: Array) -> Array:
        """The layer's output from a float32 weight, at the highest precision; linear in the weight."""
        ...


@runtime_checkable
class Rearranged(Layer, Protocol):
    """A layer whose sum over records is a product of left and right."""

    def restore(self, equation: JaxprEqn, arranged: Float[Array, "block left right"]) -> Array:
        """The weight from its elements in the order of left and right: `arrange` backwards."""
        ...


def at_least_float32(x: Array) -> Array:
    """Low precision would round a contribution up beyond its bound."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
