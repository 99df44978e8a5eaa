"""The point guide: each global latent at one point of unconstrained space.

It is for the methods that draw from a posterior itself. With it the variational parameters are the
latents, and the ELBO of `_elbo` is the model's log density of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.handlers as handlers
from jaxtyping import Array, PRNGKeyArray
from numpyro.distributions import Delta, biject_to

from discreet._jax import place_of
from discreet._numpyro import artificial_records, helpful_support_errors, one_model, trace_of
from discreet.methods.inference._plates import value_of_improper
from discreet.methods.inference._records import Message, Program, Values

_SUFFIX = "_unconstrained"
# The sites that the model shares with the guide that runs it; all others are hidden when the guide
# is traced.
_SHARED = ("plate", "param")


class PointGuide:
    """A guide that puts each latent of a model at a point: one `param` site for each, in unconstrained space.

    A latent `w` gets the param `w_unconstrained` and the distribution Delta(t(u), log_density=-log
    |det dt/du|), where t maps unconstrained values into the latent's support. So log q - log p of a
    draw is minus the log prior density of u. Points start where `init_loc_fn`, one of NumPyro's
    `init_to_*`, puts them for the placeholder record; None: at the origin.
    """

    def __init__(self, model: Program, init_loc_fn: Callable[..., Any] | None = None) -> None:
        self.model = model
        self.init_loc_fn = init_loc_fn

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Array]:
        """Sample the latents, with the model's arguments; returns their values."""
        key = numpyro.prng_key()
        if key is None:
            raise ValueError(
                "A PointGuide runs its model, which may draw: seed it, as in numpyro.handlers.seed(guide, key)."
            )
        start = self._start(key, args, kwargs)
        point = {
            parameter_of(name): numpyro.param(parameter_of(name), value)
            for name, value in start.items()
        }
        sites = _latents(self.model, key, at_point(point), args, kwargs)
        values: dict[str, Any] = {
            name: numpyro.sample(name, delta_at(point, site)["fn"]) for name, site in sites.items()
        }
        return values

    def _start(self, key: PRNGKeyArray, args: Sequence[Any], kwargs: Values) -> dict[str, Array]:
        """Unconstrained initial values."""
        if self.init_loc_fn is not None:
            initial = self.init_loc_fn

            def fill(site: dict[str, Any]) -> Any:
                improper = value_of_improper(site)
                return initial(site) if improper is None else improper

            sites = _latents(self.model, key, fill, args, kwargs)
            return {
                name: jnp.asarray(bijection_of(site).inv(site["value"]))
                for name, site in sites.items()
            }
        shapes: dict[str, tuple[int, ...]] = {}

        def look() -> None:
            for name, site in _latents(self.model, key, value_of_improper, args, kwargs).items():
                shapes[name] = bijection_of(site).inverse_shape(jnp.shape(site["value"]))

        # On shapes alone: a start that needs no numbers must compute none.
        jax.eval_shape(look)
        return {name: jnp.zeros(shape) for name, shape in shapes.items()}


def parameter_of(latent: str) -> str:
    """Name of the `param` site that holds a latent's unconstrained value."""
    return latent + _SUFFIX


def at_point(params: Values) -> Callable[[Message], Any]:
    """The value of a site where a point guide's parameters put its latent; of others as `value_of_improper`.

    A model that runs by this rule has what the guide would give, which would run it twice more.
    """

    def value(site: Message) -> Any:
        u = params.get(parameter_of(site["name"])) if site["type"] == "sample" else None
        return value_of_improper(site) if u is None else bijection_of(site)(u)

    return value


def delta_at(params: Values, site: Message) -> Message:
    """The guide's site of a latent, from the model's there."""
    value = site["value"]
    log_det = bijection_of(site).log_abs_det_jacobian(params[parameter_of(site["name"])], value)
    fn = Delta(value, log_density=-jnp.sum(log_det), event_dim=jnp.ndim(value))
    return {**site, "fn": fn, "intermediates": [], "scale": 1.0}


class NoPointError(ValueError):
    """The model has no posterior density at a point of its global latents, which DPSVI does not need."""


def _latents(
    model: Program,
    key: PRNGKeyArray,
    values: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Values,
) -> dict[str, Any]:
    """The latent sites of a run of the model, in its order, at the values that `values` gives."""
    run = handlers.substitute(handlers.seed(model, key), substitute_fn=values)
    with (
        one_model,
        artificial_records(),
        handlers.block(hide_fn=lambda site: site["type"] not in _SHARED),
    ):
        try:
            sites = trace_of(run, *args, **kwargs)
        except ValueError as error:
            if "distribution got invalid" not in str(error):
                raise
            raise ValueError(
                f"{str(error).rstrip('.')} at the first values of the latents{place_of(error)}. The parameter must be valid at "
                "all values that they may have: give them priors on its support, for cut points that increase "
                "dist.TransformedDistribution(dist.Normal(0, 1).expand([n]).to_event(1), dist.transforms.OrderedTransform()), "
                "for a scale dist.HalfNormal(1)."
            ) from error
    latents = {n: s for n, s in sites.items() if s["type"] == "sample" and not s["is_observed"]}
    # Discrete latents have no point; those of one record are summed out.
    return {n: s for n, s in latents.items() if not s["fn"].support.is_discrete}


def bijection_of(site: Message) -> Any:
    """The transform from unconstrained space into a site's support."""
    with helpful_support_errors(site):
        return biject_to(site["fn"].support)
