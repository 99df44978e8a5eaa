"""The point guide: each global latent of a model at one point of unconstrained space, and the exact density there.

With it the private step is that of the posterior's own density: `Objective.link` gives u, the unconstrained latents, and
as data-free term -[log p(theta) + log |d theta / d u|], the negative log prior density of u.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.handlers as handlers
from jaxtyping import Array, PRNGKeyArray
from numpyro.distributions import Delta, biject_to
from numpyro.infer.util import helpful_support_errors

from discreet.inference._plates import Program, value_of_improper

_SUFFIX = "_unconstrained"
# What the model shares with the guide that runs it; all else is hidden from who traces the guide.
_SHARED = ("plate", "param")


class PointGuide:
    """A guide that puts each latent of a model at a point: one `param` site for each, in unconstrained space.

    A latent `w` gets the param `w_unconstrained` and the distribution Delta(t(u), log_density=-log |det dt/du|), where t
    maps unconstrained values into the latent's support. So log q - log p of a draw is minus the log prior density of u.

    Args:
        model: the model.
        init_loc_fn: one of NumPyro's `init_to_*`, evaluated on the placeholder record; None: the origin of
            unconstrained space.
    """

    def __init__(self, model: Program, init_loc_fn: Callable[..., Any] | None = None) -> None:
        """See the class."""
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
        point = {name: numpyro.param(parameter_of(name), value) for name, value in start.items()}

        def at_point(site: Mapping[str, Any]) -> Any:
            if site["type"] == "sample" and site["name"] in point:
                return _transform(site)(point[site["name"]])
            return None

        values = {}
        for name, site in _latents(self.model, key, at_point, args, kwargs).items():
            transform, u, value = _transform(site), point[name], site["value"]
            log_det = jnp.sum(transform.log_abs_det_jacobian(u, value))
            values[name] = numpyro.sample(name, Delta(value, log_density=-log_det, event_dim=jnp.ndim(value)))
        return values

    def _start(self, key: PRNGKeyArray, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Array]:
        """Unconstrained initial values."""
        if self.init_loc_fn is not None:
            initial = self.init_loc_fn
            fill = lambda site: value_of_improper(site) if _is_improper(site) else initial(site)  # noqa: E731
            sites = _latents(self.model, key, fill, args, kwargs)
            return {name: jnp.asarray(_transform(site).inv(site["value"])) for name, site in sites.items()}
        shapes: dict[str, tuple[int, ...]] = {}

        def look() -> None:
            for name, site in _latents(self.model, key, value_of_improper, args, kwargs).items():
                shapes[name] = _transform(site).inverse_shape(jnp.shape(site["value"]))

        # On shapes alone: a start that needs no numbers must compute none.
        jax.eval_shape(look)
        return {name: jnp.zeros(shape) for name, shape in shapes.items()}


def parameter_of(latent: str) -> str:
    """Name of the `param` site that holds a latent's unconstrained value."""
    return latent + _SUFFIX


def check_point_guide(guide: Program, local_latents: Sequence[str]) -> None:
    """Refuse a point guide for a model with latents inside the record plate.

    Raises:
        ValueError: naming the first.
    """
    if isinstance(guide, PointGuide) and local_latents:
        raise ValueError(
            f"The latent site {local_latents[0]!r} lies inside the record plate: each record would have a point of its "
            "own, and publishing it publishes the record. Sum or integrate it out of the model (for a mixture, "
            "numpyro.distributions.MixtureSameFamily), or fit it by DPSVI with an amortised guide."
        )


def _latents(
    model: Program, key: PRNGKeyArray, values: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The latent sites of a run of the model, in its order, at the values that `values` gives."""
    run = handlers.substitute(handlers.seed(model, key), substitute_fn=values)
    with handlers.block(hide_fn=lambda site: site["type"] not in _SHARED):
        sites = handlers.trace(run).get_trace(*args, **kwargs)
    latents = {n: s for n, s in sites.items() if s["type"] == "sample" and not s["is_observed"]}
    # Discrete latents have no point; those of one record are summed out.
    return {n: s for n, s in latents.items() if not s["fn"].support.is_discrete}


def _is_improper(site: Mapping[str, Any]) -> bool:
    return value_of_improper(site) is not None


def _transform(site: Mapping[str, Any]) -> Any:
    with helpful_support_errors(site):
        return biject_to(site["fn"].support)
