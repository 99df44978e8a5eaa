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

from discreet.inference._plates import WholePlates
from discreet.inference._records import Records

_DATA_READING_GUIDES = (
    autoguide.AutoLaplaceApproximation,
    autoguide.AutoDAIS,
    autoguide.AutoSemiDAIS,
    *(getattr(autoguide, name) for name in ("AutoRVRS",) if hasattr(autoguide, name)),
)


def check_auto_guide(guide: Callable[..., Any]) -> None:
    if reading := [g for g in auto_guides(guide) if isinstance(g, _DATA_READING_GUIDES)]:
        raise ValueError(
            f"{type(reading[0]).__name__} reads the data outside the private step (its density or its Hessian "
            "is that of the model given the data). Use AutoNormal, AutoMultivariateNormal or another "
            "guide that only samples."
        )


def _check_coverage(part: Any, record_plates: frozenset[str]) -> None:
    """Refuse an AutoGuide, once set up, that has found latents inside the record plates."""
    for name, site in part.prototype_trace.items():
        frames = {frame.name for frame in site.get("cond_indep_stack", ())}
        if site["type"] == "sample" and not site["is_observed"] and record_plates & frames:
            raise ValueError(
                f"{type(part).__name__} would give each record its own variational parameters for the "
                f"per-record latent {name!r}, and these would publish the record. Write a guide that "
                "computes them from the record (an encoder), or integrate the latent out."
            )


def set_up_auto_guides(
    guide: Callable[..., Any],
    records: Records,
    placeholder: list[Any],
    key: PRNGKeyArray,
    static: Mapping[str, Any],
    record_plates: frozenset[str],
) -> None:
    """Let an AutoGuide find its latents on the placeholder, forgetting what it saw before.

    An AutoGuide searches initial values until the model's density is finite on the arguments of
    its first call. Had that been a call with data, the initial values would know them.
    """
    guides = list(auto_guides(guide))
    models = [part.model for part in guides]
    args, kwargs = records.rebuild(placeholder)
    try:
        for part in guides:
            part.prototype_trace = None
            part.model = WholePlates(part.model, record_plates, len(placeholder[0]))
        with handlers.block(), handlers.seed(rng_seed=key):
            guide(*args, **kwargs, **static)
        for part in guides:
            # A list knows the whole model; what it covers are its parts.
            if not isinstance(part, autoguide.AutoGuideList):
                _check_coverage(part, record_plates)
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
