"""Convolutions as layers: a product of patches and output pixels.

For a convolution left is the patch that the kernel sees, right the gradient in the output pixel;
groups are blocks. For a transposed convolution it is the other way round. So norms and sums are
those of matrix products.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from discreet._jax import JaxprEqn, aval
from discreet.privacy.gradients._layer import Elements, Layer, Sizes, Vectors, at_least_float32


@dataclasses.dataclass(frozen=True)
class Convolution:
    """`conv_general_dilated`: groups are blocks, output pixels are positions, left is the patch that the kernel sees.

    Its sum over records is a product of these patches, as its norm is: XLA's own gradients of
    kernels are up to fifty times slower inside a loop on a CPU, where a fit's steps are.
    """

    equation: JaxprEqn

    def activation(self, operands: Sequence[Any]) -> Array:
        return operands[0]

    @property
    def spec(self) -> Any:
        """Which axes of image, kernel and output are batch, features and pixels."""
        return self.equation.params["dimension_numbers"]

    @property
    def kernel(self) -> tuple[int, ...]:
        """The weight's shape."""
        return aval(self.equation.invars[1]).shape

    @property
    def offsets(self) -> list[tuple[int, ...]]:
        """The places of the kernel's pixels, in order."""
        return list(itertools.product(*(range(self.kernel[a]) for a in self.spec.rhs_spec[2:])))

    @property
    def shape(self) -> Sizes:
        groups = self.equation.params["feature_group_count"]
        output = aval(self.equation.outvars[0]).shape
        features_out, features_in, *_ = (self.kernel[a] for a in self.spec.rhs_spec)
        batch, _, *pixels = (output[a] for a in self.spec.out_spec)
        return (
            groups,
            batch * math.prod(pixels),
            len(self.offsets) * features_in,
            features_out // groups,
        )

    def factors(self, activation: Array, cotangent: Array) -> tuple[Vectors, Vectors]:
        groups, positions, inner, outer = self.shape
        params = self.equation.params
        pixels = [aval(self.equation.outvars[0]).shape[a] for a in self.spec.out_spec[2:]]
        image = _pixels_last(at_least_float32(activation), self.spec.lhs_spec)
        padding = [
            (low, high, step - 1)
            for (low, high), step in zip(params["padding"], params["lhs_dilation"], strict=True)
        ]
        image = jax.lax.pad(image, jnp.zeros((), image.dtype), [(0, 0, 0), *padding, (0, 0, 0)])
        right = _pixels_last(at_least_float32(cotangent), self.spec.out_spec)
        starts = [
            [o * d for o, d in zip(offset, params["rhs_dilation"], strict=True)]
            for offset in self.offsets
        ]
        left = _patches(image, starts, pixels, params["window_strides"], (positions, groups))
        left = left.reshape(positions, groups, inner)
        right = right.reshape(positions, groups, outer)
        return left.swapaxes(0, 1), right.swapaxes(0, 1)

    @property
    def order(self) -> list[int]:
        """The weight's axes, in the order in which left and right have their elements."""
        features_out, features_in, *space = self.spec.rhs_spec
        return [features_out, *space, features_in]

    def arrange(self, elements: Int[np.ndarray, "..."]) -> Elements:
        groups, _, inner, outer = self.shape
        return elements.transpose(self.order).reshape(groups, outer, inner).swapaxes(1, 2)

    def restore(self, arranged: Float[Array, "block left right"]) -> Array:
        return self._as_weight(arranged.swapaxes(1, 2))

    def _as_weight(self, ordered: Array) -> Array:
        axes = self.order
        return ordered.reshape([self.kernel[a] for a in axes]).transpose(np.argsort(axes))


@dataclasses.dataclass(frozen=True)
class _Transposed(Convolution):
    """A convolution that spreads: its input's pixels are positions, and right is the patch that each of them reaches.

    Read the other way, it would see patches of an image that is mostly the zeros put between the
    pixels.
    """

    @property
    def shape(self) -> Sizes:
        groups, _, inner, outer = super().shape
        image = aval(self.equation.invars[0]).shape
        features_in = self.kernel[self.spec.rhs_spec[1]]
        positions = math.prod(image) // (groups * features_in)
        return groups, positions, features_in, outer * (inner // features_in)

    def factors(self, activation: Array, cotangent: Array) -> tuple[Vectors, Vectors]:
        groups, positions, inner, _ = self.shape
        params = self.equation.params
        window = [self.kernel[a] for a in self.spec.rhs_spec[2:]]
        image = _pixels_last(at_least_float32(activation), self.spec.lhs_spec)
        reached = _pixels_last(at_least_float32(cotangent), self.spec.out_spec)
        pixels = image.shape[1:-1]
        # Pixel p meets offset o of the kernel in output pixel p * spread + low - o * gap.
        spread = params["lhs_dilation"]
        gap = params["rhs_dilation"]
        low = [x for x, _ in params["padding"]]
        before = [max(0, (k - 1) * g - x) for k, g, x in zip(window, gap, low, strict=True)]
        last = [(n - 1) * s + x for n, s, x in zip(pixels, spread, low, strict=True)]
        after = [max(0, x - n + 1) for x, n in zip(last, reached.shape[1:-1], strict=True)]
        reached = jnp.pad(reached, [(0, 0), *zip(before, after, strict=True), (0, 0)])
        starts = [
            [b + x - o * g for b, x, o, g in zip(before, low, offset, gap, strict=True)]
            for offset in self.offsets
        ]
        right = _patches(reached, starts, pixels, spread, (positions, groups))
        return image.reshape(positions, groups, inner).swapaxes(0, 1), right.swapaxes(0, 1)

    @property
    def order(self) -> list[int]:
        return list(self.spec.rhs_spec)

    def arrange(self, elements: Int[np.ndarray, "..."]) -> Elements:
        groups, _, inner, outer = self.shape
        ordered = elements.transpose(self.order).reshape(groups, -1, inner, len(self.offsets))
        return ordered.transpose(0, 2, 3, 1).reshape(groups, inner, outer)

    def restore(self, arranged: Float[Array, "block left right"]) -> Array:
        groups, _, inner, _ = self.shape
        ordered = arranged.reshape(groups, inner, len(self.offsets), -1)
        return self._as_weight(ordered.transpose(0, 3, 1, 2))


def _patches(
    image: Array,
    starts: Sequence[Sequence[int]],
    pixels: Sequence[int],
    strides: Sequence[int],
    shape: tuple[int, int],
) -> Array:
    """So many pixels of an image from each of these on, as (position, group, feature), side by side."""

    def seen_from(start: Sequence[int]) -> Array:
        limit = [s + (p - 1) * t + 1 for s, p, t in zip(start, pixels, strides, strict=True)]
        seen = jax.lax.slice(
            image, [0, *start, 0], [image.shape[0], *limit, image.shape[-1]], [1, *strides, 1]
        )
        return seen.reshape(*shape, -1)

    return jnp.concatenate([seen_from(start) for start in starts], axis=2)


def _pixels_last(image: Array, spec: Sequence[int]) -> Array:
    """An image as batch, pixels, features."""
    return image.transpose([spec[0], *spec[2:], spec[1]])


def convolution(equation: JaxprEqn, weight: int, of_record: Sequence[bool]) -> Layer | None:
    params = equation.params
    if weight != 1 or not of_record[0] or params["batch_group_count"] != 1:
        return None
    spreads = (
        max(params["lhs_dilation"], default=1) > 1 and max(params["window_strides"], default=1) == 1
    )
    return _Transposed(equation) if spreads else Convolution(equation)
