"""Langevin dynamics as an optimizer: a step, and the noise missing from the release.

The noise of the private gradient is already part of what a Langevin step needs; the optimizer adds
the rest.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from discreet._numpyro import NumPyroOptim
from discreet.methods.inference._elbo import LATENT, Objective
from discreet.methods.inference._point_guide import parameter_of
from discreet.privacy import random

Schedule = Callable[[Any], Any]
_KEYS = "threefry2x32"


class LangevinState(NamedTuple):
    """The state of the chain."""

    params: dict[str, Array]  # the unconstrained latents
    # of the key that the extra noise follows from. It hides nothing: the release before it is
    # private already.
    words: UInt32[Array, "2"]
    # for each of `params` 1 where the release's noise is in its gradient, 0 where no record is
    reached: dict[str, Float[Array, ""]]


class Langevin(NumPyroOptim):
    """Stochastic gradient Langevin dynamics on a gradient that carries Gaussian noise of a known size.

    With step size eta, gradient g and the release's noise of standard deviation s in each
    coordinate of g:

        theta <- theta - (eta / 2) g + N(0, max(0, eta - (eta s / 2)^2)),

    so that the noise in theta has variance max(eta, (eta s / 2)^2): Langevin's, or the release's
    where that is larger.

    Args:
        schedule: Step size of step t = 0, 1, ...
        stddev: s, in units of the gradient; asked when a step is traced.
    """

    words: ClassVar[Mapping[str, str]] = {
        "method": "DPSGLD",
        "programs": "the model and the step sizes",
        "released": "the latents' values after every step of the chain",
    }
    """What a statement says of a fit by it in place of `_dpsvi.IN_STEPS`."""

    def __init__(self, schedule: Schedule, stddev: Callable[[], float]) -> None:
        super().__init__(lambda: (self._without_key, self._step, lambda state: state.params))
        self.schedule = schedule
        self.stddev = stddev

    def start(self, params: Mapping[str, Any], key: PRNGKeyArray, objective: Objective) -> Any:
        """The first state; the parameters that the release reaches bring its noise.

        Raises:
            ValueError: A parameter is of no latent, so it has no prior.
        """
        if strays := params.keys() - {
            parameter_of(name) for name in objective.structure.global_latents
        }:
            raise ValueError(
                f"The model's param site {min(strays)!r} has no prior, so it has no posterior to draw from. Give it one with "
                "numpyro.sample, or pass it as a public keyword argument; DPSVI fits models with param sites."
            )
        u, _ = jax.eval_shape(objective.link, params, key)
        found = jax.tree.unflatten(jax.tree.structure(u), objective.reached(u))[LATENT]
        return self.first_state(
            params, key, [parameter_of(name) for name, is_reached in found.items() if is_reached]
        )

    def first_state(
        self, params: Mapping[str, Any], key: PRNGKeyArray, reached: Collection[str]
    ) -> Any:
        """The same, given the names of the parameters that the release reaches."""
        words = jax.random.key_data(random.as_threefry(random.subkey(key, random.Purpose.LANGEVIN)))
        at = LangevinState(
            dict(params), words, {name: jnp.float32(name in reached) for name in params}
        )
        return jnp.zeros((), jnp.int32), at

    def _without_key(self, params: Any) -> Any:
        raise TypeError(
            "Langevin dynamics draw noise; start them with start(params, key, objective) instead of init."
        )

    def _step(
        self, i: Int[Array, ""], gradient: dict[str, Array], state: LangevinState
    ) -> LangevinState:
        eta = jnp.asarray(self.schedule(i), jnp.float32)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.words, impl=_KEYS), i)
        moved = {}
        for number, (name, theta) in enumerate(sorted(state.params.items())):
            there = jnp.square(0.5 * eta * self.stddev()) * state.reached[name]
            missing = jnp.sqrt(jnp.maximum(0.0, eta - there)).astype(theta.dtype)
            noise = jax.random.normal(jax.random.fold_in(key, number), theta.shape, theta.dtype)
            moved[name] = theta - (0.5 * eta).astype(theta.dtype) * gradient[name] + missing * noise
        return state._replace(params=moved)


def as_schedule(step_size: Any) -> Schedule:
    """A schedule from (a, b, gamma), for a (b + t)^-gamma, or a function of the step's number."""
    if callable(step_size):
        return step_size
    remedy = "Pass (a, b, gamma) for a * (b + t) ** -gamma, as in (1e-4, 10.0, 0.55), or a function of t = 0, 1, ..."
    parts = tuple(step_size) if isinstance(step_size, tuple | list) else ()
    if len(parts) != 3 or not all(
        isinstance(x, numbers.Real) and not isinstance(x, bool) for x in parts
    ):
        raise TypeError(f"step_size is {step_size!r}. {remedy}")
    a, b, gamma = (float(x) for x in parts)
    if not (math.isfinite(a) and math.isfinite(b) and a > 0 and b > 0 and 0 <= gamma <= 1):
        raise ValueError(
            f"step_size is ({a:g}, {b:g}, {gamma:g}); a and b must be positive, and gamma from 0 (constant) to 1: with more, "
            f"the steps together stay too short to reach the posterior. {remedy}"
        )
    return lambda step: a * (b + step) ** -gamma


def step_sizes(schedule: Schedule, num_steps: int) -> Float[np.ndarray, "step"]:
    """The step sizes of a run, computed as the run will."""
    try:
        sizes = jax.jit(jax.vmap(lambda t: jnp.asarray(schedule(t), jnp.float32)))(
            jnp.arange(num_steps)
        )
    except Exception as error:
        raise TypeError(
            f"The schedule step_size fails on a traced step number ({type(error).__name__}: {error}). Write it with "
            "jax.numpy, without Python branches on the number."
        ) from error
    sizes = np.asarray(sizes)
    if sizes.shape != (num_steps,):
        raise ValueError(
            f"The schedule step_size returns arrays of shape {sizes.shape[1:]}; it must return one number."
        )
    wrong = ~(np.isfinite(sizes) & (sizes > 0))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"The schedule step_size gives {sizes[first]} at step {first}; every step size must be positive and finite."
        )
    return sizes
