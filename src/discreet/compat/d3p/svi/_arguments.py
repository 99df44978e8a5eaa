"""The arguments of `init` and `update`: arrays of records among static values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def is_array(leaf: Any) -> bool:
    """Whether an argument holds records along its leading axis."""
    return isinstance(leaf, jax.Array | np.ndarray) and leaf.ndim > 0


def blank(args: Any, rows: int) -> Any:
    """The arguments with all arrays replaced by zeros of so many rows."""
    return jax.tree.map(lambda x: np.zeros((rows, *x.shape[1:]), x.dtype) if is_array(x) else x, args)


class Layout:
    """Where arrays go among static arguments; hashable, so that `jit` knows what it compiled for."""

    def __init__(self, structure: Any, statics: tuple[tuple[Any] | None, ...]) -> None:
        self._structure = structure
        self._statics = statics

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Layout, list[Array]]:
        """The layout of a call's arguments, and its arrays."""
        leaves, structure = jax.tree.flatten((args, dict(kwargs)), is_leaf=lambda x: x is None)
        leaves = [x.item() if isinstance(x, jax.Array | np.ndarray | np.generic) and x.ndim == 0 else x for x in leaves]
        arrays: list[Any] = [leaf for leaf in leaves if is_array(leaf)]
        return cls(structure, tuple(None if is_array(leaf) else (leaf,) for leaf in leaves)), arrays

    def fill(self, arrays: list[Array]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with these arrays."""
        rest = iter(arrays)
        leaves = [next(rest) if static is None else static[0] for static in self._statics]
        return jax.tree.unflatten(self._structure, leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and (self._structure, self._statics) == (other._structure, other._statics)

    def __hash__(self) -> int:
        return hash((self._structure, self._statics))


def count_rows(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Rows of a batch.

    Raises:
        ValueError: arrays of different lengths, or none.
    """
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves((args, dict(kwargs))) if is_array(leaf)}
    if len(sizes) != 1:
        raise ValueError(
            f"The arrays of the batch have {sorted(sizes) or 'no'} rows; the leading axis of every array is the records. Pass "
            "public arrays of another kind as keyword arguments to DPSVI."
        )
    return sizes.pop()


def as_mask(mask: Any, rows: int) -> jax.Array:
    """A mask of so many rows, from one or from a single truth value."""
    mask = jnp.asarray(mask)
    return jnp.full(rows, mask.astype(bool)) if mask.ndim == 0 else mask
