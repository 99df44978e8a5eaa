"""`d3p.optimizers`: ADADP, which finds its own learning rate, with d3p's arguments and the layout of d3p's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.optim import _NumPyroOptim

from discreet import optimizers

__all__ = ["ADADP", "adadp"]

State = tuple[Any, Any, Any, Any]
"""The parameters; the learning rate; where a whole step from the pair's start led; the pair's start."""


def adadp(
    step_size: float | Callable[[int], float] = 1e-3,
    tol: float = 1.0,
    stability_check: bool = True,
    alpha_min: float = 0.9,
    alpha_max: float = 1.1,
) -> tuple[Callable[[Any], State], Callable[[Any, Any, State], State], Callable[[State], Any]]:
    """`discreet.optimizers.adadp` as functions `init`, `update(i, gradients, state)` and `get_params`.

    d3p's own cuts the factor between two learning rates to 0.9 and 1.1 whatever `alpha_min` and `alpha_max` say, and does
    not scale the error where a parameter is below -1. Here the two bounds hold, and the scale is max(1, |x|).

    Args:
        step_size: the first learning rate; of a schedule, its value at 0.
        tol: tolerance of the error.
        stability_check: whether steps above the tolerance are taken back.
        alpha_min: least factor between two learning rates.
        alpha_max: largest such factor.

    Raises:
        ValueError: a number out of range.
    """
    first_rate = step_size(0) if callable(step_size) else step_size
    method = optimizers.adadp(
        first_rate, tolerance=tol, min_factor=alpha_min, max_factor=alpha_max, stability_check=stability_check
    )

    def init(x0: Any) -> State:
        return x0, jnp.float32(first_rate), jax.tree.map(jnp.zeros_like, x0), x0

    def update(i: Any, g: Any, state: State) -> State:
        x, rate, stepped, start = state
        before = optimizers.AdadpState(jnp.asarray(i), jnp.asarray(rate), start, stepped)
        moves, after = method.update(g, before, x)
        assert isinstance(after, optimizers.AdadpState)
        return jax.tree.map(jnp.add, x, moves), after.learning_rate, after.full_step, after.start

    return init, update, lambda state: state[0]


class ADADP(_NumPyroOptim):
    """ADADP as a NumPyro optimizer; see `adadp` for its arguments.

    >>> ADADP(1e-2).get_params(ADADP(1e-2).init({"x": 1.0}))
    {'x': 1.0}
    """

    def __init__(
        self,
        step_size: float | Callable[[int], float] = 1e-3,
        tol: float = 1.0,
        stability_check: bool = True,
        alpha_min: float = 0.9,
        alpha_max: float = 1.1,
    ) -> None:
        super().__init__(adadp, step_size, tol, stability_check, alpha_min, alpha_max)
