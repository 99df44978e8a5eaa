"""Optimizers of NumPyro and optax behind one interface, and the digest of their program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.example_libraries.optimizers import Optimizer
from jaxtyping import PRNGKeyArray
from numpyro import optim as numpyro_optim

from discreet._jax import program_digest
from discreet._numpyro import NumPyroOptim
from discreet.methods.inference._elbo import Objective


def optimizer_digest(optim: Any, psi: Mapping[str, Any], state: Any = None) -> str:
    """The digest of an optimizer's program, from its first state on."""

    def step(psi: Any, state: Any, gradient: Any, value: Any) -> Any:
        first = optim.init(psi) if state is None else state
        after = optim.update(gradient, first, value=value)
        return first, after, optim.get_params(after)

    state = None if state is None else jax.eval_shape(lambda: state)
    return program_digest(
        jax.make_jaxpr(step)(psi, state, psi, jax.ShapeDtypeStruct((), jnp.float32))
    )


def as_numpyro_optim(optim: Any) -> Any:
    """Convert an optimizer to NumPyro's interface, if necessary."""
    if isinstance(optim, numpyro_optim.Minimize):
        raise ValueError(
            "numpyro.optim.Minimize evaluates the loss many times a step, each of which would be a release. Use a "
            "first-order optimizer such as numpyro.optim.Adam."
        )
    if isinstance(optim, NumPyroOptim):
        return optim
    if isinstance(optim, Optimizer):
        return NumPyroOptim(lambda *parts: parts, *optim)
    if isinstance(optim, tuple) and hasattr(optim, "init") and hasattr(optim, "update"):
        _refuse_special(optim)
        return numpyro_optim.optax_to_numpyro(optim)
    raise TypeError(
        f"optim is a {type(optim).__name__}; it must be an optimizer of numpyro.optim or an "
        "optax.GradientTransformation, for example numpyro.optim.Adam(1e-2)."
    )


def _refuse_special(optim: Any) -> None:
    """Refuse an optax optimizer that asks for the loss as a function, as `optax.lbfgs` does, or for two sets of parameters."""
    toy = {"x": np.zeros(1, np.float32)}
    try:
        jax.eval_shape(lambda x: optim.update(x, optim.init(x), x), toy)
    except Exception as error:
        if isinstance(error, AttributeError) and "'fast'" in str(error):
            raise ValueError(
                "optim is optax.lookahead, which needs parameters of its own type, with slow copies, and a fit has one set of "
                "them. Pass the optimizer within it; DPSVIResult.params are a mean of the last iterates already."
            ) from None
        # Whatever else it may need (names of parameters, the loss's value) it will say when it is
        # used.
        if isinstance(error, TypeError) and "value_fn" in str(error):
            raise ValueError(
                "optim evaluates the loss many times a step (a line search, as in optax.lbfgs), each of which would be a "
                "release. Use a first-order optimizer such as optax.adam."
            ) from None


def start_optimizer(
    optim: Any, psi: Mapping[str, Any], key: PRNGKeyArray, objective: Objective
) -> Any:
    """The optimizer's first state; one that draws noise (`Langevin`) starts with a key, for an objective."""
    return optim.start(psi, key, objective) if hasattr(optim, "start") else optim.init(psi)
