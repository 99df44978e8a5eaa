"""The interface of layers: the factors of a record's gradient in a weight.

A layer is linear in its weight. Its gradient for one record is a sum over positions t of outer
products,

    G[k] = sum_t  left[k, t] (x) right[k, t],

where left comes from the value that meets the weight, and right is the gradient in the layer's
output. `k` numbers blocks of the weight that never meet (heads, groups). From these factors follow
the norm of that gradient (`_norms`) and the sum of many, without the gradient itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from discreet._jax import JaxprEqn

Vectors = Float[Array, "block position coordinate"]
Sizes = tuple[int, int, int, int]
"""Numbers of blocks, positions, and coordinates of left and of right."""
Elements = Int[np.ndarray, "block left right"]
"""The weight's elements in the order of left and right."""


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["index", "valid"], meta_fields=["size"]
)
@dataclasses.dataclass(frozen=True)
class OneHot:
    """One-hot vectors with `size` coordinates; those that are not `valid` are zero."""

    index: Int[Array, "position"]
    valid: Bool[Array, "position"]
    size: int

    def dense(self) -> Vectors:
        """The same, written out."""
        return (jax.nn.one_hot(self.index, self.size, dtype=jnp.float32) * self.valid[:, None])[
            None
        ]


class Layer(Protocol):
    """One kind of layer, for one equation. Its sum over records is a product of left and right; of a `Lookup` it is not."""

    @property
    def equation(self) -> JaxprEqn:
        """The equation."""
        ...

    def factors(self, activation: Array, cotangent: Array) -> tuple[Vectors | OneHot, Vectors]:
        """Left and right of one record, in float32 or better."""
        ...

    def arrange(self, elements: Int[np.ndarray, "..."]) -> Elements:
        """The weight's elements in the order of left and right."""
        ...

    @property
    def shape(self) -> Sizes:
        """Numbers of blocks, positions, and coordinates of left and of right."""
        ...

    def activation(self, operands: Sequence[Any]) -> Array:
        """The stored part of the operand that meets the weight; norm and sum are bilinear in it and the cotangent."""
        ...

    def restore(self, arranged: Float[Array, "block left right"]) -> Array:
        """The weight from its elements in the order of left and right: `arrange` backwards."""
        ...


def at_least_float32(x: Array) -> Array:
    """Convert to float32 at least, since low precision could round a contribution beyond its bound."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
