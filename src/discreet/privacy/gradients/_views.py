"""Views: values that are elements of one leaf of the parameters, moved about and never changed or repeated.

Reshaped, transposed and sliced weights are views, so that a gradient in one is a gradient in the
leaf.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from discreet._jax import JaxprEqn, aval, bind, primitives, unstack_p

_MOVES = (
    primitives.reshape_p,
    primitives.transpose_p,
    primitives.squeeze_p,
    primitives.slice_p,
    primitives.rev_p,
    primitives.copy_p,
    jax.lax.split_p,
    unstack_p,
)


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """Elements of one leaf, each at most once."""

    leaf: int  # the number of the leaf
    # the equations that lead from the leaf to the weight, each with the output taken and the number
    # of loops that slice the weight before it
    moves: tuple[tuple[JaxprEqn, int, int], ...] = ()
    # the scans that take the weight apart along its leading axis, outermost first
    loops: tuple[Any, ...] = ()

    def sliced(self, loop: Any) -> View:
        """The weight as an iteration of a scan sees it, which is one slice of it."""
        return dataclasses.replace(self, loops=(*self.loops, loop))

    def __call__(self, leaf: Array) -> Array:
        """The weight, with one leading axis for each of `loops`; linear in the leaf."""
        for equation, output, depth in self.moves:
            move = functools.partial(bind, equation)
            for _ in range(depth):
                move = jax.vmap(move)
            leaf = move([leaf])[output]
        return leaf

    def elements(self, shape: tuple[int, ...]) -> Int[np.ndarray, "..."]:
        """The index in the leaf, in C order, of each element of the weight."""
        with jax.ensure_compile_time_eval():
            return np.asarray(self(jnp.arange(math.prod(shape), dtype=jnp.int32).reshape(shape)))


def moved(equation: JaxprEqn, view: View | None) -> list[View] | None:
    """The views of an equation's outputs if it only moves the elements of a view; otherwise None."""
    if view is None:
        return None
    primitive = equation.primitive
    source = aval(equation.invars[0])
    if primitive is primitives.convert_element_type_p:
        # Rounding moves nothing either: a layer that books this weight accumulates in float32
        # anyway.
        floating = all(
            jnp.issubdtype(x.dtype, jnp.floating) for x in (source, aval(equation.outvars[0]))
        )
        return [view] if floating else None
    repeats = (
        primitive is primitives.broadcast_in_dim_p and source.size != aval(equation.outvars[0]).size
    )
    if repeats or not (primitive in _MOVES or primitive is primitives.broadcast_in_dim_p):
        return None
    depth = len(view.loops)
    return [
        dataclasses.replace(view, moves=(*view.moves, (equation, output, depth)))
        for output in range(len(equation.outvars))
    ]
