"""`d3p.modelling`, `d3p.gmm` and `d3p.optimizers`: predictive draws, a mixture with its assignments summed out, and ADADP.

Draws are post-processing of released parameters, free of budget, as long as the arguments of model and guide are public:
predictions at a person's own covariates show them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro import handlers
from numpyro.optim import _NumPyroOptim

from discreet import optimizers
from discreet.compat.d3p.random import convert_to_jax_rng_key

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

# --- d3p.modelling ---


def get_samples_from_trace(trace: Mapping[str, Any], with_intermediates: bool = False) -> Samples:
    """The values of a trace's sample sites; with `with_intermediates`, pairs of a value and its intermediates."""
    sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
    if with_intermediates:
        return {name: (site["value"], site["intermediates"]) for name, site in sites.items()}
    return {name: site["value"] for name, site in sites.items()}


def _run(
    program: Program, key: Any, args: Sequence[Any], kwargs: Mapping[str, Any], values: Mapping[str, Any]
) -> Mapping[str, Any]:
    seeded = handlers.seed(handlers.substitute(program, data=dict(values)), key)
    return handlers.trace(seeded).get_trace(*args, **kwargs)


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
    """One draw of all sample sites of a model.

    Args:
        rng_key: a key of any kind.
        model: the model.
        model_args: its positional arguments; leave observations out to have them drawn.
        substitutes: values of sites that are not drawn.
        with_intermediates: return pairs of a value and its intermediate values.
        kwargs: the model's keyword arguments.
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
    """One draw of the guide's latents at `params`, and of the model given them.

    Args:
        rng_key: a key of any kind.
        model: the model.
        model_args: its positional arguments; leave observations out to have them drawn.
        guide: the guide.
        guide_args: its positional arguments.
        params: values of the `param` sites, as `DPSVI.get_params` returns them.
        with_intermediates: return pairs of a value and its intermediate values.
        kwargs: keyword arguments of model and guide.
    """
    model_key, guide_key = jax.random.split(convert_to_jax_rng_key(rng_key))
    guide_trace = _run(guide, guide_key, guide_args, kwargs, params)
    values = {**params, **get_samples_from_trace(guide_trace)}
    model_trace = _run(model, model_key, model_args, kwargs, values)
    return {
        **get_samples_from_trace(guide_trace, with_intermediates),
        **get_samples_from_trace(model_trace, with_intermediates),
    }


def sample_multi_prior_predictive(rng_key: Any, n: int, model: Program, *args: Any, **kwargs: Any) -> Samples:
    """`n` draws of `sample_prior_predictive`, whose arguments follow, along a new leading axis."""
    return _many(sample_prior_predictive, rng_key, n, model, *args, **kwargs)


def sample_multi_posterior_predictive(rng_key: Any, n: int, model: Program, *args: Any, **kwargs: Any) -> Samples:
    """`n` draws of `sample_posterior_predictive`, whose arguments follow, along a new leading axis."""
    return _many(sample_posterior_predictive, rng_key, n, model, *args, **kwargs)


def map_args_obs_to_shape(obs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Mapping[str, Any], Mapping[str, Any]]:
    """For `make_observed_model`: the observations' shape, at least two axes, and the observations as site "obs"."""
    del args
    shape = jnp.shape(obs)
    return (1,) * (2 - len(shape)) + shape, kwargs, {"obs": obs}


def make_observed_model(model: Program, obs_to_model_args_fn: Callable[..., Any]) -> Program:
    """A generative model as one that takes observations.

    Args:
        model: a model without observations.
        obs_to_model_args_fn: from the new model's arguments to `(args, kwargs, observations)`: what `model` is called
            with, and the values that its sample sites are fixed to, by name.
    """

    def observed(*args: Any, **kwargs: Any) -> Any:
        model_args, model_kwargs, observations = obs_to_model_args_fn(*args, **kwargs)
        return handlers.condition(model, data=observations)(*model_args, **model_kwargs)

    return observed


# --- d3p.gmm ---


class GaussianMixture(dist.MixtureSameFamily):
    """A mixture of K Gaussians with independent coordinates, which all share one component; the component summed out.

    Summing it out makes the density differentiable in all its parameters, which private inference needs: a component per
    record would be a parameter per record.

    Args:
        locs: means, shape (K, *event).
        scales: standard deviations, shape (K, *event), or (K,) for spherical components; positive.
        mixture_probabilities: shape (K,), non-negative, summing to 1.
        validate_args: as in NumPyro.

    Raises:
        ValueError: shapes that do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> mixture = GaussianMixture(jnp.array([-1.0, 1.0]), jnp.ones(2), jnp.array([0.5, 0.5]))
        >>> mixture.num_components, mixture.event_shape, float(mixture.mean)
        (2, (), 0.0)
    """

    def __init__(
        self, locs: ArrayLike, scales: ArrayLike, mixture_probabilities: ArrayLike, *, validate_args: bool | None = None
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
            raise ValueError(f"scales has shape {spread.shape}; it must be that of locs, {means.shape}, or (K,).")
        components = dist.Normal(means, jnp.broadcast_to(spread, means.shape), validate_args=validate_args)
        super().__init__(
            dist.CategoricalProbs(weights, validate_args=validate_args),
            components.to_event(means.ndim - 1),
            validate_args=validate_args,
        )

    @property
    def num_components(self) -> int:
        """K."""
        return self.mixture_size


# --- d3p.optimizers ---


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
