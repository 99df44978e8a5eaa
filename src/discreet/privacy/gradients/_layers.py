"""The layers that book-keeping knows, by the primitive of their equation.

They are matrix products, look-ups in tables, slices and biases; `_convolutions` has the
convolutions, and `_layer` says what a layer has to give. For a lookup in a table left is one-hot,
and only the index is kept. An equation that no layer knows is no error: the gradient in its weight
is formed for every record.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from discreet._jax import JaxprEqn, aval, primitives
from discreet.privacy.gradients._layer import (
    Elements,
    Layer,
    OneHot,
    Sizes,
    Vectors,
    at_least_float32,
)


def layer_of(
    equation: JaxprEqn, is_weight: Sequence[bool], of_record: Sequence[bool]
) -> tuple[int, Layer | Lookup] | None:
    """The position of the weight among the operands, and the layer; None if it is not a known layer."""
    find = _LAYERS.get(equation.primitive)
    if find is None:
        return None
    for position, weight in enumerate(is_weight):
        layer = find(equation, position, of_record) if weight else None
        if layer is not None:
            return position, layer
    return None


@dataclasses.dataclass(frozen=True)
class _Product:
    """`dot_general`: contracted axes of the weight are left, its free axes are right, batch axes are blocks."""

    equation: JaxprEqn
    weight: int  # the position of the weight among the operands

    def activation(self, operands: Sequence[Any]) -> Array:
        return operands[1 - self.weight]

    @property
    def _axes(self) -> tuple[list[int], ...]:
        contracted, batch = self.equation.params["dimension_numbers"]
        ndim = [aval(x).ndim for x in self.equation.invars]
        weight = self.weight
        other = 1 - self.weight
        free = [
            [a for a in range(ndim[i]) if a not in (*contracted[i], *batch[i])] for i in range(2)
        ]
        return (
            [*batch[weight], *contracted[weight], *free[weight]],
            [*batch[other], *free[other], *contracted[other]],
            [len(batch[weight]), len(free[weight]), len(free[other])],
        )

    @property
    def shape(self) -> Sizes:
        contracted, batch = self.equation.params["dimension_numbers"]
        shapes = [aval(x).shape for x in self.equation.invars]
        blocks = math.prod(shapes[0][a] for a in batch[0])
        inner = math.prod(shapes[0][a] for a in contracted[0])
        free = [math.prod(s) // max(1, blocks * inner) for s in shapes]
        return blocks, free[1 - self.weight], inner, free[self.weight]

    def factors(self, activation: Array, cotangent: Array) -> tuple[Vectors, Vectors]:
        blocks, positions, inner, outer = self.shape
        _, other_axes, (batch, free_weight, free_other) = self._axes
        left = at_least_float32(activation).transpose(other_axes).reshape(blocks, positions, inner)
        right = at_least_float32(cotangent)
        if self.weight == 0:
            # The output's axes are batch, those of the left operand, those of the right one.
            order = [*range(batch), *range(batch + free_weight, batch + free_weight + free_other)]
            right = right.transpose([*order, *range(batch, batch + free_weight)])
        return left, right.reshape(blocks, positions, outer)

    def arrange(self, elements: Int[np.ndarray, "..."]) -> Elements:
        blocks, _, inner, outer = self.shape
        return elements.transpose(self._axes[0]).reshape(blocks, inner, outer)

    def restore(self, arranged: Float[Array, "block left right"]) -> Array:
        shape = aval(self.equation.invars[self.weight]).shape
        (axes, _, _) = self._axes
        return arranged.reshape([shape[a] for a in axes]).transpose(np.argsort(axes))


def _product(equation: JaxprEqn, weight: int, of_record: Sequence[bool]) -> Layer | None:
    return _Product(equation, weight) if of_record[1 - weight] else None


# Norm and sum must agree on the row that an index means, so it is resolved once, for both. -1 is no
# row.
_NOWHERE = -1


def _resolved(index: Array, size: int, *, clips: bool) -> Int[Array, "..."]:
    """The rows that indices of any integer type mean, as int32."""
    # Compared in the index's own type, in which the table's size may not exist.
    last = min(size - 1, int(jnp.iinfo(index.dtype).max))
    low = index < 0
    high = index > last
    row = jnp.where(low | high, 0, index).astype(jnp.int32)
    if clips:
        return jnp.where(high, size - 1, row)
    return jnp.where(low | high, _NOWHERE, row)


def _one_hot(rows: Int[Array, "..."], size: int) -> OneHot:
    rows = rows.reshape(-1)
    return OneHot(jnp.maximum(rows, 0), rows != _NOWHERE, size)


def _rows_of(table: Array, rows: Int[Array, "..."], axis: int) -> Float[Array, "position width"]:
    """The rows of a table, zero for those that are nowhere; linear in the table."""
    rows = rows.reshape(-1)
    taken = jnp.moveaxis(table, axis, 0).reshape(table.shape[axis], -1)
    taken = taken.at[jnp.maximum(rows, 0)].get(
        mode="promise_in_bounds", wrap_negative_indices=False
    )
    return jnp.where((rows != _NOWHERE)[:, None], taken, 0)


@dataclasses.dataclass(frozen=True)
class Lookup:
    """`gather` of whole slices along one axis of a table: left is one-hot in that axis.

    The transpose of `apply`, as JAX makes it, is the best way to its sum over records. Else it is a
    `Layer`.
    """

    equation: JaxprEqn
    axis: int  # the axis of the table
    size: int  # its length
    clips: bool  # indices out of range mean the first or last row, not none

    def activation(self, operands: Sequence[Any]) -> Array:
        return _resolved(operands[1], self.size, clips=self.clips)

    @property
    def shape(self) -> Sizes:
        table, index = (aval(x).shape for x in self.equation.invars)
        return 1, math.prod(index[:-1]), self.size, math.prod(table) // self.size

    @property
    def _axes(self) -> list[int]:
        """The output's axes: those of the index, then those of a row."""
        offsets = list(self.equation.params["dimension_numbers"].offset_dims)
        return [a for a in range(aval(self.equation.outvars[0]).ndim) if a not in offsets] + offsets

    def factors(self, activation: Array, cotangent: Array) -> tuple[OneHot, Vectors]:
        _, positions, size, width = self.shape
        left = _one_hot(activation, size)
        right = at_least_float32(cotangent).transpose(self._axes).reshape(1, positions, width)
        return left, jnp.where(left.valid[:, None], right, 0)

    def arrange(self, elements: Int[np.ndarray, "..."]) -> Elements:
        return np.moveaxis(elements, self.axis, 0).reshape(1, self.size, -1)

    def apply(self, activation: Array, weight: Array) -> Array:
        """The output from a float32 weight, at the highest precision; linear in the weight."""
        axes = self._axes
        shape = aval(self.equation.outvars[0]).shape
        rows = _rows_of(weight, activation, self.axis).reshape([shape[a] for a in axes])
        return rows.transpose(np.argsort(axes))


def _lookup(equation: JaxprEqn, weight: int, of_record: Sequence[bool]) -> Lookup | None:
    if weight != 0 or not of_record[1]:
        return None
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    shape = aval(equation.invars[0]).shape
    plain = (
        len(numbers.start_index_map) == 1
        and numbers.collapsed_slice_dims == numbers.start_index_map
    )
    if not plain or numbers.operand_batching_dims:
        return None
    (axis,) = numbers.start_index_map
    whole = all(
        size == (1 if a == axis else full)
        for a, (size, full) in enumerate(zip(sizes, shape, strict=True))
    )
    clips = equation.params["mode"] == jax.lax.GatherScatterMode.CLIP
    return Lookup(equation, axis, shape[axis], clips) if whole else None


class _Slice(Lookup):
    """`dynamic_slice` of one slice along one axis of a table: a lookup with one position, of an index that is clipped."""

    def activation(self, operands: Sequence[Any]) -> Array:
        return _resolved(operands[1 + self.axis], self.size, clips=True)

    @property
    def shape(self) -> Sizes:
        return 1, 1, self.size, math.prod(aval(self.equation.invars[0]).shape) // self.size

    def factors(self, activation: Array, cotangent: Array) -> tuple[OneHot, Vectors]:
        return _one_hot(activation, self.size), at_least_float32(cotangent).reshape(1, 1, -1)

    def apply(self, activation: Array, weight: Array) -> Array:
        return _rows_of(weight, activation, self.axis).reshape(aval(self.equation.outvars[0]).shape)


def _slice(equation: JaxprEqn, weight: int, of_record: Sequence[bool]) -> Lookup | None:
    if weight != 0:
        return None
    sizes = equation.params["slice_sizes"]
    shape = aval(equation.invars[0]).shape
    cut = [a for a, (size, full) in enumerate(zip(sizes, shape, strict=True)) if size != full]
    # A slice of the full length starts at zero, whatever its index says.
    plain = len(cut) == 1 and sizes[cut[0]] == 1 and of_record[1 + cut[0]]
    return _Slice(equation, cut[0], shape[cut[0]], clips=True) if plain else None


@dataclasses.dataclass(frozen=True)
class _Bias:
    """`add` of a weight of the output's size: one position, and left is the number 1."""

    equation: JaxprEqn
    weight: int

    def activation(self, operands: Sequence[Any]) -> Array:
        return jnp.ones(1)

    @property
    def shape(self) -> Sizes:
        return 1, 1, 1, aval(self.equation.outvars[0]).size

    def factors(self, activation: Array, cotangent: Array) -> tuple[Vectors, Vectors]:
        return activation.reshape(1, 1, 1), at_least_float32(cotangent).reshape(1, 1, -1)

    def arrange(self, elements: Int[np.ndarray, "..."]) -> Elements:
        return elements.reshape(1, 1, -1)

    def restore(self, arranged: Float[Array, "block left right"]) -> Array:
        return arranged.reshape(aval(self.equation.invars[self.weight]).shape)


def _bias(equation: JaxprEqn, weight: int, of_record: Sequence[bool]) -> Layer | None:
    # One that meets several positions is a sum over them, which autodiff forms as well as we could.
    same_size = aval(equation.invars[weight]).size == aval(equation.outvars[0]).size
    return _Bias(equation, weight) if same_size and of_record[1 - weight] else None


def _convolution(equation: JaxprEqn, weight: int, of_record: Sequence[bool]) -> Layer | None:
    from discreet.privacy.gradients._convolutions import convolution  # few models have one

    return convolution(equation, weight, of_record)


_LAYERS: dict[Any, Callable[[JaxprEqn, int, Sequence[bool]], Layer | Lookup | None]] = {
    primitives.dot_general_p: _product,
    primitives.conv_general_dilated_p: _convolution,
    primitives.gather_p: _lookup,
    primitives.dynamic_slice_p: _slice,
    primitives.add_p: _bias,
}
