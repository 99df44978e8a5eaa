"""`d3p.modelling`: samples from prior and posterior predictive distributions, with NumPyro's handlers.

They are post-processing of released parameters, free of budget, as long as the arguments of model and guide are public:
predictions at a person's own covariates show them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers

from discreet.compat.d3p.random import convert_to_jax_rng_key

__all__ = [
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


def _many(one: Callable[[Any], Samples], rng_key: Any, n: int) -> Samples:
    if n < 1:
        raise ValueError(f"n is {n}; draw at least once.")
    return jax.jit(jax.vmap(one))(jax.random.split(convert_to_jax_rng_key(rng_key), n))


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


def sample_multi_prior_predictive(
    rng_key: Any,
    n: int,
    model: Program,
    model_args: Sequence[Any],
    substitutes: Mapping[str, Any] | None = None,
    with_intermediates: bool = False,
    **kwargs: Any,
) -> Samples:
    """`n` draws of `sample_prior_predictive`, along a new leading axis."""

    def one(key: Any) -> Samples:
        return sample_prior_predictive(key, model, model_args, substitutes, with_intermediates, **kwargs)

    return _many(one, rng_key, n)


def sample_multi_posterior_predictive(
    rng_key: Any,
    n: int,
    model: Program,
    model_args: Sequence[Any],
    guide: Program,
    guide_args: Sequence[Any],
    params: Mapping[str, Any],
    with_intermediates: bool = False,
    **kwargs: Any,
) -> Samples:
    """`n` draws of `sample_posterior_predictive`, along a new leading axis."""

    def one(key: Any) -> Samples:
        return sample_posterior_predictive(
            key, model, model_args, guide, guide_args, params, with_intermediates, **kwargs
        )

    return _many(one, rng_key, n)


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
