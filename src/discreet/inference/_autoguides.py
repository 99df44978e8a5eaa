"""AutoGuides: set up on a made-up record, and refused where they would read data or give records parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpyro.handlers as handlers
from jaxtyping import PRNGKeyArray
from numpyro.infer import autoguide
from numpyro.primitives import Messenger

from discreet.inference._plates import Fixed, WholePlates
from discreet.inference._records import Records

_DATA_READING_GUIDES = (
    autoguide.AutoLaplaceApproximation,
    autoguide.AutoDAIS,
    autoguide.AutoSemiDAIS,
    *(getattr(autoguide, name) for name in ("AutoRVRS",) if hasattr(autoguide, name)),
)
# Each latent has parameters of its own in these, so each record has, too.
_SITE_BY_SITE = (autoguide.AutoNormal, autoguide.AutoDelta)


def check_auto_guide(guide: Callable[..., Any]) -> None:
    if reading := [g for g in auto_guides(guide) if isinstance(g, _DATA_READING_GUIDES)]:
        raise ValueError(
            f"{type(reading[0]).__name__} reads the data outside the private step (its density or its Hessian "
            "is that of the model given the data). Use AutoNormal, AutoMultivariateNormal or another "
            "guide that only samples."
        )


def _check_coverage(part: Any, record_plates: frozenset[str], keeps_local: bool) -> None:
    """Refuse an AutoGuide, once set up, that has found latents inside the record plates and has nowhere to keep them."""
    for name, site in part.prototype_trace.items():
        frames = {frame.name for frame in site.get("cond_indep_stack", ())}
        if site["type"] != "sample" or site["is_observed"] or not record_plates & frames:
            continue
        kind = type(part).__name__
        if not keeps_local:
            raise ValueError(
                f"{kind} would give each record its own variational parameters for the per-record latent {name!r}, and "
                "these would publish the record. Keep them as a private memory beside the data with DPSVI(..., "
                'local="private") and AutoNormal or AutoDelta; or write a guide that computes them from the record (an '
                "encoder); or integrate the latent out."
            )
        if type(part) not in _SITE_BY_SITE:
            raise ValueError(
                f"{kind} joins the per-record latent {name!r} with others in one vector, of which no record has a part of its "
                'own. With local="private" use AutoNormal or AutoDelta, or a guide of your own.'
            )


def set_up_auto_guides(
    guide: Callable[..., Any],
    records: Records,
    placeholder: list[Any],
    key: PRNGKeyArray,
    static: Mapping[str, Any],
    record_plates: frozenset[str],
    hidden: Mapping[str, Any] | None = None,
    keeps_local: bool = False,
) -> None:
    """Let an AutoGuide find its latents on the placeholder, forgetting what it saw before.

    An AutoGuide searches initial values until the model's density is finite on the arguments of
    its first call. Had that been a call with data, the initial values would know them.

    Args:
        guide: the guide, of which AutoGuides may be parts.
        records: the arguments taken apart.
        placeholder: made-up records.
        key: for the search.
        static: public keyword arguments.
        record_plates: the plates of the records.
        hidden: values of the sites that are summed out, which the guide must not see.
        keeps_local: whether records may have variational parameters of their own.
    """
    guides = list(auto_guides(guide))
    for part in guides:
        if not hasattr(part, "model") or not hasattr(part, "prototype_trace"):
            raise ValueError(
                f"The guide is a {type(part).__name__}, an AutoGuide that has no model: its __init__ did not call "
                "super().__init__(model)."
            )
    models = [part.model for part in guides]
    args, kwargs = records.rebuild(placeholder)
    try:
        for part in guides:
            part.prototype_trace = None
            part.model = WholePlates(Fixed(part.model, hidden or {}), record_plates, len(placeholder[0]))
        with handlers.block(), handlers.seed(rng_seed=key):
            guide(*args, **kwargs, **static)
        for part in guides:
            # A list knows the whole model; what it covers are its parts.
            if not isinstance(part, autoguide.AutoGuideList):
                _check_coverage(part, record_plates, keeps_local)
    except RuntimeError as error:
        raise ValueError(
            f"{type(guide).__name__} found no initial values at which the placeholder record has a finite density, so "
            "zeros and ones are no record of this model. Pass a made-up record in the support of the observations as "
            "placeholder=..., or another init_loc_fn to the guide."
        ) from error
    finally:
        for part, model in zip(guides, models, strict=True):
            part.model = model


def auto_guides(program: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """The AutoGuides of a guide: itself, the parts of a list, and those that a function calls or wraps."""
    seen = set() if seen is None else seen
    if id(program) in seen:
        return
    seen.add(id(program))
    if isinstance(program, autoguide.AutoGuide):
        yield program
    if isinstance(program, autoguide.AutoGuideList | list | tuple):
        for part in program:
            yield from auto_guides(part, seen)
    elif isinstance(program, functools.partial):
        yield from auto_guides([program.func, *program.args, *program.keywords.values()], seen)
    elif isinstance(program, Messenger):
        yield from auto_guides(program.fn, seen)
    elif inspect.ismethod(program):
        yield from auto_guides([program.__func__, *vars(program.__self__).values()], seen)
    elif inspect.isfunction(program):
        names = inspect.getclosurevars(program)
        yield from auto_guides([*names.nonlocals.values(), *names.globals.values()], seen)
