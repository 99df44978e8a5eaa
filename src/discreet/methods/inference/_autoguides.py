"""NumPyro's AutoGuides, set up on artificial records.

An AutoGuide searches initial values at its first call, by the model's density on the arguments of
that call. Here this call gets artificial records, so that its parameters start independently of the
data. AutoGuides that would read data later are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpyro.handlers as handlers
from jaxtyping import PRNGKeyArray
from numpyro.infer import autoguide

from discreet._numpyro import compiled_search, set_up_prototype
from discreet.methods.inference._plates import WholePlates
from discreet.methods.inference._point_guide import NoPointError, PointGuide
from discreet.methods.inference._programs import Programs
from discreet.methods.inference._records import Message, Program, Values
from discreet.methods.inference._tables_outside import reached

_DATA_READING_GUIDES = (
    autoguide.AutoLaplaceApproximation,
    autoguide.AutoDAIS,
    autoguide.AutoSemiDAIS,
    *(getattr(autoguide, name) for name in ("AutoRVRS",) if hasattr(autoguide, name)),
)
# Each latent has parameters of its own in these, so each record has, too.
SITE_BY_SITE = (autoguide.AutoNormal, autoguide.AutoDelta)


def check_kind_of_guide(
    guide: Program, guides: Sequence[Any], local_latents: Sequence[str]
) -> None:
    """Refuse AutoGuides that read the data, and a point guide for a model with latents inside the record plate."""
    if reading := [part for part in guides if isinstance(part, _DATA_READING_GUIDES)]:
        raise ValueError(
            f"{type(reading[0]).__name__} reads the data outside the private step (its density or its Hessian "
            "is that of the model given the data). Use AutoNormal, AutoMultivariateNormal or another "
            "guide that only samples."
        )
    if isinstance(guide, PointGuide) and local_latents:
        raise NoPointError(
            f"The latent site {local_latents[0]!r} is inside the record plate: each record would have its own point, and "
            "publishing it publishes the record. Sum or integrate it out of the model (for a mixture, "
            "numpyro.distributions.MixtureSameFamily), or fit it by DPSVI with an amortised guide."
        )


def _check_coverage(part: Any, inside: set[str], keeps_local: bool) -> None:
    """Refuse an AutoGuide, once set up, that has found records' latents and has no place for them."""
    for name, site in part.prototype_trace.items():
        if site["type"] != "sample" or site["is_observed"] or name not in inside:
            continue
        kind = type(part).__name__
        if not keeps_local:
            raise ValueError(
                f"{kind} would give each record its own variational parameters for the per-record latent {name!r}, and "
                "these would publish the record. DPSVI.run keeps them as a private memory beside the data with AutoNormal or "
                'AutoDelta, batches of PoissonSampling or FullBatch, and perturb="latents"; or write a guide that computes '
                "them from the record (an encoder); or integrate the latent out."
            )
        if type(part) not in SITE_BY_SITE:
            raise ValueError(
                f"{kind} joins the per-record latent {name!r} with others in one vector, of which no record has a part of its "
                "own. Use AutoNormal or AutoDelta, or a guide of your own."
            )


class NoInitialValuesError(ValueError):
    """An AutoGuide found no initial values with the placeholder record."""


def set_up_auto_guides(
    rows: list[Any],
    programs: Programs,
    key: PRNGKeyArray,
    record_plates: frozenset[str],
    inside: set[str],
    hidden: Values,
    keeps_local: bool,
) -> None:
    """Set up an AutoGuide on artificial rows, discarding any earlier setup; of other guides there is nothing to set up.

    An AutoGuide searches initial values until the model's density is finite on the arguments of its
    first call. Had that been a call with data, the initial values would depend on them. `hidden`
    has values of the sites that are summed out, which the guide must not see.
    """

    def fixed(site: Message) -> Any:
        value = hidden.get(site["name"])
        return None if value is None else jnp.broadcast_to(value, site["fn"].shape())

    guide = programs.guide
    guides = list(auto_guides(guide))
    if not guides:
        return
    for part in guides:
        if not hasattr(part, "model") or not hasattr(part, "prototype_trace"):
            raise ValueError(
                f"The guide is a {type(part).__name__}, an AutoGuide that has no model: its __init__ did not call "
                "super().__init__(model)."
            )
    models = [part.model for part in guides]
    args, kwargs = programs.arguments(rows)
    try:
        for part in guides:
            part.prototype_trace = None
            seen = handlers.block(
                handlers.substitute(part.model, substitute_fn=fixed), hide=list(hidden)
            )
            part.model = WholePlates(seen, record_plates, len(rows[0]))
        with compiled_search(), handlers.block(), handlers.seed(rng_seed=key):
            # Its first call also draws from it, operation by operation, each of which would be
            # compiled.
            alone = is_numpyros(guide) and not isinstance(guide, autoguide.AutoGuideList)
            first_call = functools.partial(set_up_prototype, guide) if alone else guide
            first_call(*args, **kwargs)
        for part in guides:
            # A list knows the whole model; what it covers are its parts.
            if not isinstance(part, autoguide.AutoGuideList):
                _check_coverage(part, inside, keeps_local)
    except RuntimeError as error:
        raise NoInitialValuesError(
            f"{type(guide).__name__} found no initial values at which the placeholder record has a finite density and "
            "gradient, so zeros and ones are no record of this model. Pass an artificial record in the support of the "
            "observations as placeholder=..., or another init_loc_fn to the guide."
        ) from error
    finally:
        for part, model in zip(guides, models, strict=True):
            part.model = model


def is_numpyros(guide: Any) -> bool:
    """True for an AutoGuide of NumPyro's own, False for a class derived from one."""
    return isinstance(guide, autoguide.AutoGuide) and type(guide).__module__.startswith("numpyro.")


def auto_guides(program: Any) -> Iterator[Any]:
    """The AutoGuides of a guide: itself, the parts of a list, and those that a function calls or wraps."""
    return (x for _, x in reached(program) if isinstance(x, autoguide.AutoGuide))
