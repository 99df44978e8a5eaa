"""The one door to the parts of JAX that are not in its public interface.

JAX promises stability for `jax.*` only. What discreet needs beyond that passes through this file, so that a new
JAX release can break one short file and no other. Each name says where it comes from and why it is needed.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.extend.random import define_prng_impl
from jax.interpreters.partial_eval import dce_jaxpr

__all__ = ["captured_arrays", "define_prng_impl", "program_text", "used_inputs"]
# `define_prng_impl` (jax.extend.random): makes a key type out of our own split, fold_in and bits. JAX calls its
# `jax.extend` modules "semi-public": kept, but outside the deprecation policy.


def used_inputs(function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """Which inputs the outputs of a function depend on, found by dead-code elimination of its jaxpr.

    Args:
        function: a traceable function.
        args: example arguments, pytrees of arrays.

    Returns:
        A tuple like `args`, each leaf True if some output may depend on it.
    """
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    _, used = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return jax.tree.unflatten(jax.tree.structure(args), used)


def program_text(function: Callable[..., Any], *args: Any) -> str:
    """What a function computes, as text: its jaxpr without dead code and without unused inputs, and its constants.

    Two calls give the same text if the same operations with the same constants lead to the outputs; shapes of inputs
    that the outputs do not depend on do not show.

    Args:
        function: a traceable function.
        args: example arguments, pytrees of arrays.
    """
    closed = jax.make_jaxpr(function)(*args)
    jaxpr, used = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    constants = [np.asarray(x).tobytes().hex() for x in closed.consts if not _is_key(x)]
    return f"{jaxpr} {used} {constants}"


def captured_arrays(function: Callable[..., Any], *args: Any) -> list[Any]:
    """The arrays that a function uses without taking them as arguments: its closure's, as JAX sees it.

    Args:
        function: a traceable function.
        args: example arguments, pytrees of arrays or of their shapes.
    """
    found: list[Any] = []
    pending = [jax.make_jaxpr(function)(*args)]
    while pending:
        closed = pending.pop()
        found += [x for x in closed.consts if not _is_key(x)]
        for equation in closed.jaxpr.eqns:
            inner = jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr))
            pending += [x for x in inner if isinstance(x, ClosedJaxpr)]
    return found


def _is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
