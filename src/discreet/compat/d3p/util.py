"""`d3p.util`: helpers for shapes and kinds of arguments, as d3p's models use them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from discreet.compat.d3p.random import as_key
from discreet.sampling import feistel_permutation

__all__ = [
    "example_count",
    "has_shape",
    "is_array",
    "is_int_scalar",
    "is_integer",
    "is_scalar",
    "map_over_secondary_dims",
    "normalize",
    "sample_from_array",
    "unvectorize_shape",
    "unvectorize_shape_1d",
    "unvectorize_shape_2d",
    "unvectorize_shape_3d",
]


def map_over_secondary_dims(f: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """Turn a function of a vector (a,) into one of an array (a, b, ...), with one result for each of the entries b, ...

    >>> map_over_secondary_dims(jnp.sum)(jnp.ones((3, 2, 4))).shape
    (2, 4)
    """

    @functools.wraps(f)
    def mapped(values: Array) -> Array:
        columns = jnp.moveaxis(values, 0, -1)
        results = jax.vmap(f)(columns.reshape(-1, columns.shape[-1]))
        return results.reshape(columns.shape[:-1])

    return mapped


def example_count(a: ArrayLike) -> int:
    """The length of the leading axis; 1 for a scalar.

    >>> example_count(jnp.zeros((5, 2))), example_count(3.0)
    (5, 1)
    """
    return (*jnp.shape(a), 1)[0]


def has_shape(a: Any) -> bool:
    """Whether a value has a shape, as arrays do, and under `jit` every number."""
    return hasattr(a, "shape")


def is_array(a: Any) -> bool:
    """Whether a value is an array of at least one axis."""
    return has_shape(a) and len(a.shape) > 0


def is_scalar(x: Any) -> bool:
    """Whether a value is a number, or an array that holds exactly one.

    >>> is_scalar(2.0), is_scalar(jnp.ones((1, 1))), is_scalar((2, 3))
    (True, True, False)
    """
    return bool(np.prod(x.shape) == 1) if has_shape(x) else isinstance(x, int | float | complex)


def is_integer(x: Any) -> bool:
    """Whether a number, or an array's entries, are of an integer type."""
    kind = x.dtype if has_shape(x) else type(x)
    return kind is int or (isinstance(kind, np.dtype | type) and jnp.issubdtype(kind, jnp.integer))


def is_int_scalar(x: Any) -> bool:
    """Whether a value is an integer, or an array that holds exactly one."""
    return is_scalar(x) and is_integer(x)


def normalize(x: ArrayLike) -> Array:
    """The vector of length 1 in the direction of `x`."""
    return jnp.asarray(x) / jnp.linalg.norm(jnp.asarray(x))


def unvectorize_shape(a: ArrayLike, d: int) -> tuple[int, ...]:
    """The shape of `a`, with axes of length 1 in front so that it has at least `d`.

    >>> unvectorize_shape(jnp.zeros(3), 2), unvectorize_shape(jnp.zeros((4, 3)), 1)
    ((1, 3), (4, 3))
    """
    shape = jnp.shape(a)
    return (1,) * (d - len(shape)) + shape


unvectorize_shape_1d = functools.partial(unvectorize_shape, d=1)
unvectorize_shape_2d = functools.partial(unvectorize_shape, d=2)
unvectorize_shape_3d = functools.partial(unvectorize_shape, d=3)


def sample_from_array(rng_key: Any, x: ArrayLike, n: int, axis: int, rng_suite: Any = None) -> Array:
    """`n` different entries of `x` along an axis, in random order.

    For tools of one's own: the permutation is `discreet.sampling.feistel_permutation`, which is not exactly uniform.
    The batchifiers of `minibatch` do not use it.

    Args:
        rng_key: a key of any kind.
        x: the array.
        n: number of entries, at most the length of the axis.
        axis: the axis.
        rng_suite: accepted; the key says which generator it is for.

    Raises:
        ValueError: more entries than there are.
    """
    del rng_suite
    values = jnp.asarray(x)
    length = values.shape[axis]
    if not 0 <= n <= length:
        raise ValueError(f"n is {n}; there are {length} entries along axis {axis} to choose from without replacement.")
    return jnp.take(values, feistel_permutation(as_key(rng_key), jnp.arange(n), length), axis)
