"""`d3p.modelling`, `gmm`, `optimizers` and `util`: predictive draws, a mixture with marginalized assignments, ADADP, helpers.

Draws are post-processing of released parameters, at no cost, as long as the arguments of model and
guide are public: predictions at a person's covariates reveal them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array
from numpyro import handlers

from discreet._numpyro import NumPyroOptim, trace_of
from discreet.interfaces.compat.d3p.random import convert_to_jax_rng_key
from discreet.methods import optimizers

__all__ = [
    "ADADP",
    "GaussianMixture",
    "adadp",
    "get_samples_from_trace",
    "make_observed_model",
    "map_args_obs_to_shape",
    "sample_multi_posterior_predictive",
    "sample_multi_prior_predictive",
    "sample_posterior_predictive",
    "sample_prior_predictive",
]

Program = Callable[..., Any]
Samples = dict[str, Any]


def get_samples_from_trace(trace: Mapping[str, Any], with_intermediates: bool = False) -> Samples:
    """Extract the values of a trace's sample sites; with `with_intermediates`, pairs of a value and its intermediates."""
    sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
    if with_intermediates:
        return {name: (site["value"], site["intermediates"]) for name, site in sites.items()}
    return {name: site["value"] for name, site in sites.items()}


def _run(
    program: Program,
    key: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    values: Mapping[str, Any],
) -> Mapping[str, Any]:
    seeded = handlers.seed(handlers.substitute(program, data=dict(values)), key)
    return trace_of(seeded, *args, **kwargs)


def _many(one: Callable[..., Samples], rng_key: Any, n: int, *args: Any, **kwargs: Any) -> Samples:
    if n < 1:
        raise ValueError(f"n is {n}; draw at least once.")
    keys = jax.random.split(convert_to_jax_rng_key(rng_key), n)
    return jax.jit(jax.vmap(lambda key: one(key, *args, **kwargs)))(keys)


def sample_prior_predictive(
    rng_key: Any,
    model: Program,
    model_args: Sequence[Any],
    substitutes: Mapping[str, Any] | None = None,
    with_intermediates: bool = False,
    **kwargs: Any,
) -> Samples:
    """Draw all sample sites of a model once.

    Args:
        rng_key: A key of any kind.
        model: The model.
        model_args: Its positional arguments; omit observations to draw them.
        substitutes: Values of sites that are not drawn.
        with_intermediates: Return pairs of a value and its intermediate values.
        kwargs: The model's keyword arguments.
    """
    trace = _run(model, convert_to_jax_rng_key(rng_key), model_args, kwargs, substitutes or {})
    return get_samples_from_trace(trace, with_intermediates)


def sample_posterior_predictive(
    rng_key: Any,
    model: Program,
    model_args: Sequence[Any],
    guide: Program,
    guide_args: Sequence[Any],
    params: Mapping[str, Any],
    with_intermediates: bool = False,
    **kwargs: Any,
) -> Samples:
    """Draw the guide's latents at `params`, and the model given them, once.

    `params` are values of the `param` sites, as `DPSVI.get_params` returns them; the rest as for
    `sample_prior_predictive`, with keyword arguments for model and guide.
    """
    model_key, guide_key = jax.random.split(convert_to_jax_rng_key(rng_key))
    guide_trace = _run(guide, guide_key, guide_args, kwargs, params)
    values = {**params, **get_samples_from_trace(guide_trace)}
    model_trace = _run(model, model_key, model_args, kwargs, values)
    return {
        **get_samples_from_trace(guide_trace, with_intermediates),
        **get_samples_from_trace(model_trace, with_intermediates),
    }


def sample_multi_prior_predictive(
    rng_key: Any, n: int, model: Program, *args: Any, **kwargs: Any
) -> Samples:
    """Draw `n` times with `sample_prior_predictive`, whose arguments follow, along a new leading axis."""
    return _many(sample_prior_predictive, rng_key, n, model, *args, **kwargs)


def sample_multi_posterior_predictive(
    rng_key: Any, n: int, model: Program, *args: Any, **kwargs: Any
) -> Samples:
    """Draw `n` times with `sample_posterior_predictive`, whose arguments follow, along a new leading axis."""
    return _many(sample_posterior_predictive, rng_key, n, model, *args, **kwargs)


def map_args_obs_to_shape(
    obs: Any, *args: Any, **kwargs: Any
) -> tuple[Any, Mapping[str, Any], Mapping[str, Any]]:
    """An argument for `make_observed_model`: the observations' shape, at least two axes, and the observations as "obs"."""
    del args
    shape = jnp.shape(obs)
    return (1,) * (2 - len(shape)) + shape, kwargs, {"obs": obs}


def make_observed_model(model: Program, obs_to_model_args_fn: Callable[..., Any]) -> Program:
    """Convert a generative model to one that takes observations.

    Args:
        model: A model without observations.
        obs_to_model_args_fn: Function from the new model's arguments to `(args, kwargs,
            observations)`: the arguments of `model`, and values of its sample sites by name.
    """

    def observed(*args: Any, **kwargs: Any) -> Any:
        model_args, model_kwargs, observations = obs_to_model_args_fn(*args, **kwargs)
        return handlers.condition(model, data=observations)(*model_args, **model_kwargs)

    return observed


class GaussianMixture(dist.MixtureSameFamily):
    """A mixture of K Gaussians with diagonal covariance, marginalized over the component.

    Marginalizing makes the density differentiable in all its parameters, which private inference
    needs: a component per record would be a parameter per record.

    Args:
        locs: Means, shape (K, *event).
        scales: Standard deviations, shape (K, *event), or (K,) for spherical components; positive.
        mixture_probabilities: Weights, shape (K,), non-negative, summing to 1.
        validate_args: As in NumPyro.

    Raises:
        ValueError: Incompatible shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> mixture = GaussianMixture(jnp.array([-1.0, 1.0]), jnp.ones(2), jnp.array([0.5, 0.5]))
        >>> mixture.num_components, mixture.event_shape, float(mixture.mean)
        (2, (), 0.0)
    """

    def __init__(
        self,
        locs: ArrayLike,
        scales: ArrayLike,
        mixture_probabilities: ArrayLike,
        *,
        validate_args: bool | None = None,
    ) -> None:
        means, spread, weights = map(jnp.asarray, (locs, scales, mixture_probabilities))
        if weights.ndim != 1 or means.shape[:1] != weights.shape:
            raise ValueError(
                f"mixture_probabilities has shape {weights.shape} and locs {means.shape}; the first must be (K,) and "
                "the second (K, *event), with one entry for each component."
            )
        if spread.shape == weights.shape:
            spread = spread.reshape(weights.shape + (1,) * (means.ndim - 1))
        if spread.ndim != means.ndim or spread.shape[0] != len(weights):
            raise ValueError(
                f"scales has shape {spread.shape}; it must be that of locs, {means.shape}, or (K,)."
            )
        components = dist.Normal(
            means, jnp.broadcast_to(spread, means.shape), validate_args=validate_args
        )
        super().__init__(
            dist.CategoricalProbs(weights, validate_args=validate_args),
            components.to_event(means.ndim - 1),
            validate_args=validate_args,
        )

    @property
    def num_components(self) -> int:
        """K."""
        return self.mixture_size


State = tuple[Any, Any, Any, Any]
"""The parameters; the learning rate; the end of a whole step from the pair's start; the pair's start."""


def adadp(
    step_size: float | Callable[[int], float] = 1e-3,
    tol: float = 1.0,
    stability_check: bool = True,
    alpha_min: float = 0.9,
    alpha_max: float = 1.1,
) -> tuple[Callable[[Any], State], Callable[[Any, Any, State], State], Callable[[State], Any]]:
    """Wrap `discreet.optimizers.adadp` as functions `init`, `update(i, gradients, state)` and `get_params`.

    d3p's version limits the factor between two learning rates to 0.9 and 1.1 regardless of
    `alpha_min` and `alpha_max`, and does not scale the error of a parameter below -1. Here the two
    bounds apply, and the scale is max(1, |x|).

    Args:
        step_size: The first learning rate; for a schedule, its value at 0.
        tol: Tolerance of the error.
        stability_check: Reject steps above the tolerance.
        alpha_min: Least factor between two learning rates.
        alpha_max: Largest such factor.

    Raises:
        ValueError: A number out of range.
    """
    first_rate = step_size(0) if callable(step_size) else step_size
    method = optimizers.adadp(
        first_rate,
        tolerance=tol,
        min_factor=alpha_min,
        max_factor=alpha_max,
        stability_check=stability_check,
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


class ADADP(NumPyroOptim):
    """ADADP as a NumPyro optimizer; see `adadp` for its arguments.

    >>> ADADP(1e-2).get_params(ADADP(1e-2).init({"x": 1.0}))
    {'x': 1.0}
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(adadp, *args, **kwargs)


def example_count(a: ArrayLike) -> int:
    """Return the length of the leading axis; 1 for a scalar.

    >>> example_count(jnp.zeros((5, 2))), example_count(3.0)
    (5, 1)
    """
    return (*jnp.shape(a), 1)[0]


def has_shape(a: Any) -> bool:
    """Check for a shape, which arrays have, and under `jit` every number."""
    return hasattr(a, "shape")


def is_array(a: Any) -> bool:
    """Check for an array with at least one axis."""
    return has_shape(a) and len(a.shape) > 0


def is_scalar(x: Any) -> bool:
    """Check for a number, or an array with exactly one.

    >>> is_scalar(2.0), is_scalar(jnp.ones((1, 1))), is_scalar((2, 3))
    (True, True, False)
    """
    return bool(np.prod(x.shape) == 1) if has_shape(x) else isinstance(x, int | float | complex)


def is_integer(x: Any) -> bool:
    """Check for an integer type of a number or of an array's entries."""
    kind = x.dtype if has_shape(x) else type(x)
    return kind is int or (isinstance(kind, np.dtype | type) and jnp.issubdtype(kind, jnp.integer))


def is_int_scalar(x: Any) -> bool:
    """Check for an integer, or an array with exactly one."""
    return is_scalar(x) and is_integer(x)


def normalize(x: ArrayLike) -> Array:
    """Scale `x` to norm 1."""
    return jnp.asarray(x) / jnp.linalg.norm(jnp.asarray(x))
