"""Matrix products, lookups and biases as layers that can be booked; and which equation is what layer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from discreet._jax import JaxprEqn, aval, bind, primitives
from discreet.gradients._convolutions import convolution
from discreet.gradients._layer import PRECISE, Layer, OneHot, Vectors, at_least_float32


def layer_of(equation: JaxprEqn, is_weight: Sequence[bool], of_record: Sequence[bool]) -> tuple[int, Layer] | None:
    """Which operand is a weight and what layer this is, or None if it is no known layer."""
    find = _LAYERS.get(equation.primitive)
    if find is None:
        return None
    for position, weight in enumerate(is_weight):
        layer = find(equation, position, of_record) if weight else None
        if layer is not None:
            return position, layer
    return None


# --- matrix products --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Product:
    """`dot_general`: contracted axes of the weight are left, its free axes are right, batch axes are blocks."""

    weight: int

    def activation(self, operands: Sequence[Any]) -> Array:
        return operands[1 - self.weight]

    def _axes(self, equation: JaxprEqn) -> tuple[list[int], ...]:
        contracted, batch = equation.params["dimension_numbers"]
        ndim = [aval(x).ndim for x in equation.invars]
        weight, other = self.weight, 1 - self.weight
        free = [[a for a in range(ndim[i]) if a not in (*contracted[i], *batch[i])] for i in range(2)]
        return (
            [*batch[weight], *contracted[weight], *free[weight]],
            [*batch[other], *free[other], *contracted[other]],
            [len(batch[weight]), len(free[weight]), len(free[other])],
        )

    def shape(self, equation: JaxprEqn) -> tuple[int, int, int, int]:
        contracted, batch = equation.params["dimension_numbers"]
        shapes = [aval(x).shape for x in equation.invars]
        blocks = math.prod(shapes[0][a] for a in batch[0])
        inner = math.prod(shapes[0][a] for a in contracted[0])
        free = [math.prod(s) // max(1, blocks * inner) for s in shapes]
        return blocks, free[1 - self.weight], inner, free[self.weight]

    def factors(self, equation: JaxprEqn, activation: Array, cotangent: Array) -> tuple[Vectors, Vectors]:
        blocks, positions, inner, outer = self.shape(equation)
        _, other_axes, (batch, free_weight, free_other) = self._axes(equation)
        left = at_least_float32(activation).transpose(other_axes).reshape(blocks, positions, inner)
        right = at_least_float32(cotangent)
        if self.weight == 0:
            # The output's axes are batch, those of the left operand, those of the right one.
            order = [*range(batch), *range(batch + free_weight, batch + free_weight + free_other)]
            right = right.transpose([*order, *range(batch, batch + free_weight)])
        return left, right.reshape(blocks, positions, outer)

    def arrange(self, equation: JaxprEqn, elements: Int[np.ndarray, "..."]) -> Int[np.ndarray, "block left right"]:
        blocks, _, inner, outer = self.shape(equation)
        return elements.transpose(self._axes(equation)[0]).reshape(blocks, inner, outer)

    def apply(self, equation: JaxprEqn, activation: Array, weight: Array) -> Array:
        operands = [at_least_float32(activation), weight]
        operands = operands[::-1] if self.weight == 0 else operands
        return bind(equation, operands, **PRECISE, preferred_element_type=weight.dtype)[0]


def _product(equation: JaxprEqn, weight: int, of_record: Sequence[bool]) -> Layer | None:
    return _Product(weight) if of_record[1 - weight] else None


# --- lookups ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Lookup:
    """`gather` of whole slices along one axis of a table: left is one-hot in that axis.

    Attributes:
        axis: the axis of the table.
    """

    axis: int

    def activation(self, operands: Sequence[Any]) -> Array:
        return operands[1]

    def shape(self, equation: JaxprEqn) -> tuple[int, int, int, int]:
        table, index = (aval(x).shape for x in equation.invars)
        return 1, math.prod(index[:-1]), table[self.axis], math.prod(table) // table[self.axis]

    def factors(self, equation: JaxprEqn, activation: Array, cotangent: Array) -> tuple[OneHot, Vectors]:
        _, positions, size, width = self.shape(equation)
        index = activation.reshape(positions)
        clipped = jnp.clip(index, 0, size - 1)
        valid = jnp.ones(positions, bool) if _clips(equation) else index == clipped
        offsets = list(equation.params["dimension_numbers"].offset_dims)
        rows = [a for a in range(cotangent.ndim) if a not in offsets]
        right = at_least_float32(cotangent).transpose([*rows, *offsets]).reshape(1, positions, width)
        return OneHot(clipped, valid, size), jnp.where(valid[:, None], right, 0)

    def arrange(self, equation: JaxprEqn, elements: Int[np.ndarray, "..."]) -> Int[np.ndarray, "block left right"]:
        return np.moveaxis(elements, self.axis, 0).reshape(1, elements.shape[self.axis], -1)

    def apply(self, equation: JaxprEqn, activation: Array, weight: Array) -> Array:
        return bind(equation, [weight, activation])[0]


def _clips(equation: JaxprEqn) -> bool:
    return equation.params["mode"] == jax.lax.GatherScatterMode.CLIP


def _lookup(equation: JaxprEqn, weight: int, of_record: Sequence[bool]) -> Layer | None:
    if weight != 0 or not of_record[1]:
        return None
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape = aval(equation.invars[0]).shape
    plain = len(numbers.start_index_map) == 1 and numbers.collapsed_slice_dims == numbers.start_index_map
    if not plain or numbers.operand_batching_dims:
        return None
    (axis,) = numbers.start_index_map
    whole = all(size == (1 if a == axis else full) for a, (size, full) in enumerate(zip(sizes, shape, strict=True)))
    return _Lookup(axis) if whole else None


@dataclasses.dataclass(frozen=True)
class _Slice:
    """`dynamic_slice` of one slice along one axis of a table: a lookup with one position."""

    axis: int

    def activation(self, operands: Sequence[Any]) -> Array:
        return operands[1 + self.axis]

    def shape(self, equation: JaxprEqn) -> tuple[int, int, int, int]:
        table = aval(equation.invars[0]).shape
        return 1, 1, table[self.axis], math.prod(table) // table[self.axis]

    def factors(self, equation: JaxprEqn, activation: Array, cotangent: Array) -> tuple[OneHot, Vectors]:
        _, _, size, width = self.shape(equation)
        index = jnp.clip(activation.reshape(1), 0, size - 1)
        return OneHot(index, jnp.ones(1, bool), size), at_least_float32(cotangent).reshape(1, 1, width)

    def arrange(self, equation: JaxprEqn, elements: Int[np.ndarray, "..."]) -> Int[np.ndarray, "block left right"]:
        return np.moveaxis(elements, self.axis, 0).reshape(1, elements.shape[self.axis], -1)

    def apply(self, equation: JaxprEqn, activation: Array, weight: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(weight, activation, 1, self.axis)


def _slice(equation: JaxprEqn, weight: int, of_record: Sequence[bool]) -> Layer | None:
    if weight != 0:
        return None
    sizes, shape = equation.params["slice_sizes"], aval(equation.invars[0]).shape
    cut = [a for a, (size, full) in enumerate(zip(sizes, shape, strict=True)) if size != full]
    # A slice of the full length starts at zero, whatever its index says.
    return _Slice(cut[0]) if len(cut) == 1 and sizes[cut[0]] == 1 and of_record[1 + cut[0]] else None


# --- biases -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Bias:
    """`add` of a weight of the output's size: one position, and left is the number 1."""

    def activation(self, operands: Sequence[Any]) -> Array:
        return jnp.ones(1)

    def shape(self, equation: JaxprEqn) -> tuple[int, int, int, int]:
        return 1, 1, 1, aval(equation.outvars[0]).size

    def factors(self, equation: JaxprEqn, activation: Array, cotangent: Array) -> tuple[Vectors, Vectors]:
        return activation.reshape(1, 1, 1), at_least_float32(cotangent).reshape(1, 1, -1)

    def arrange(self, equation: JaxprEqn, elements: Int[np.ndarray, "..."]) -> Int[np.ndarray, "block left right"]:
        return elements.reshape(1, 1, -1)

    def apply(self, equation: JaxprEqn, activation: Array, weight: Array) -> Array:
        # As a product, so that its sum over records is one too and needs no scaled copy of the cotangents.
        product = jnp.matmul(
            activation.astype(weight.dtype), weight.reshape(1, -1), precision=jax.lax.Precision.HIGHEST
        )
        return product.reshape(aval(equation.outvars[0]).shape)


def _bias(equation: JaxprEqn, weight: int, of_record: Sequence[bool]) -> Layer | None:
    # One that meets several positions is a sum over them, which autodiff forms as well as we could.
    same_size = aval(equation.invars[weight]).size == aval(equation.outvars[0]).size
    return _Bias() if same_size and of_record[1 - weight] else None


_LAYERS: dict[Any, Callable[[JaxprEqn, int, Sequence[bool]], Layer | None]] = {
    primitives.dot_general_p: _product,
    primitives.conv_general_dilated_p: convolution,
    primitives.gather_p: _lookup,
    primitives.dynamic_slice_p: _slice,
    primitives.add_p: _bias,
}
