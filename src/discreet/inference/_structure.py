"""What a model and a guide are made of, found by tracing them with two and with three records.

Nothing here sees data: the traces are abstract, on shapes alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpyro.handlers as handlers
from jax import numpy as jnp
from jaxtyping import PRNGKeyArray
from numpyro.distributions import ImproperUniform, biject_to
from numpyro.infer import autoguide
from numpyro.primitives import Messenger

from discreet.inference._records import Records

Program = Callable[..., Any]

_DATA_READING_GUIDES = (
    autoguide.AutoLaplaceApproximation,
    autoguide.AutoDAIS,
    autoguide.AutoSemiDAIS,
    *(getattr(autoguide, name) for name in ("AutoRVRS",) if hasattr(autoguide, name)),
)


@dataclasses.dataclass(frozen=True)
class Site:
    """What matters of one site of a trace, free of values."""

    name: str
    kind: str
    observed: bool
    discrete: bool
    reparametrized: bool
    auxiliary: bool
    shape: Any
    plates: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Structure:
    """The parts of a model and guide pair.

    Attributes:
        record_plates: names of the plates whose size follows the number of records.
        global_latents: model latents outside the record plates, in the model's order.
        local_latents: model latents inside them, one value (or block) a record.
        observed: observed sites, all inside a record plate.
        guide_globals: guide sample sites outside the record plates, auxiliary ones included.
        guide_locals: guide sample sites inside them.
        has_model_params: whether the model has `param` sites.
    """

    record_plates: frozenset[str]
    global_latents: tuple[str, ...]
    local_latents: tuple[str, ...]
    observed: tuple[str, ...]
    guide_globals: tuple[str, ...]
    guide_locals: tuple[str, ...]
    has_model_params: bool


class WholePlates(Messenger):
    """Makes plates cover the rows they are given, in order, instead of a random subsample.

    The size that a model declares stays visible in `sizes`; the scale factor that NumPyro
    derives from it is undone by `unscaled`.
    """

    def __init__(self, fn: Program, names: frozenset[str] | None, rows: int) -> None:
        """Wrap `fn`; `names` None means every plate (used while they are being found)."""
        super().__init__(fn)
        self.names = names
        self.rows = rows
        self.sizes: dict[str, tuple[int, int | None]] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        """Set the indices of a plate."""
        if msg["type"] != "plate":
            return
        name = msg["name"]
        size, subsample_size = msg["args"]
        self.sizes[name] = (size, subsample_size)
        if self.names is None:
            rows = size if subsample_size is None else min(size, subsample_size)
        elif name in self.names:
            rows = self.rows
        else:
            return
        msg["args"] = (size, rows)
        msg["value"] = jnp.arange(rows)

    def unscaled(self, site: Mapping[str, Any]) -> Any:
        """The scale of a site without the factor size / rows of its record plates."""
        scale = 1.0 if site["scale"] is None else site["scale"]
        for frame in site["cond_indep_stack"]:
            if self.names is not None and frame.name in self.names:
                scale = scale * (frame.size / self.sizes[frame.name][0])
        return scale


def value_of_improper(site: Mapping[str, Any]) -> Any:
    """A value for a latent whose improper prior has no sampler; None, which leaves it alone, for every other site."""
    if site["type"] != "sample" or site["value"] is not None:
        return None
    base = site["fn"]
    while hasattr(base, "base_dist"):
        base = base.base_dist
    if not isinstance(base, ImproperUniform):
        return None
    transform = biject_to(site["fn"].support)
    shape = site["kwargs"].get("sample_shape", ()) + transform.inverse_shape(site["fn"].shape())
    return transform(jnp.zeros(shape))


def _trace_abstractly(
    program: Program, records: Records, rows: int, key: PRNGKeyArray, static: Mapping[str, Any]
) -> tuple[dict[str, Site], dict[str, tuple[int, int | None]]]:
    """Sites and plate sizes of a program for `rows` records, without computing anything."""
    sites: dict[str, Site] = {}
    plates = WholePlates(handlers.substitute(program, substitute_fn=value_of_improper), None, rows)

    def run(leaves: list[Any]) -> None:
        args, kwargs = records.rebuild(leaves)
        with handlers.seed(rng_seed=key):
            trace = handlers.trace(plates).get_trace(*args, **kwargs, **static)
        for name, site in trace.items():
            sites[name] = _summary(site)

    jax.eval_shape(run, records.shapes(rows))
    return sites, plates.sizes


def _summary(site: Mapping[str, Any]) -> Site:
    kind = site["type"]
    sample = kind == "sample"
    observed = bool(sample and site["is_observed"])
    # A distribution that is only ever observed need not say what its support is.
    support = site["fn"].support if sample and not observed else None
    return Site(
        name=site["name"],
        kind=kind,
        observed=observed,
        discrete=bool(support is not None and support.is_discrete),
        reparametrized=bool(sample and site["fn"].has_rsample),
        auxiliary=bool(sample and site["infer"].get("is_auxiliary", False)),
        shape=jax.tree.map(jnp.shape, site["value"]) if kind in ("sample", "param") else None,
        plates=tuple(frame.name for frame in site.get("cond_indep_stack", ())),
    )


def find_structure(
    model: Program,
    guide: Program,
    records: Records,
    placeholder: list[Any],
    key: PRNGKeyArray,
    static: Mapping[str, Any],
    num_records: int,
) -> Structure:
    """Trace model and guide for two and three records, and refuse what cannot be private.

    Raises:
        ValueError: naming the site and the remedy.
    """
    two, sizes_two = _trace_abstractly(model, records, 2, key, static)
    three, sizes_three = _trace_abstractly(model, records, 3, key, static)
    record_plates = frozenset(n for n, size in sizes_two.items() if sizes_three.get(n) != size)
    if not record_plates:
        raise ValueError(
            "No plate of the model follows the number of records, so it does not say what one record "
            "contributes. Put the observations into one, for example "
            'with numpyro.plate("data", xs.shape[0]).'
        )
    _check_plate_sizes(record_plates, sizes_two, num_records)
    _check_model(two, three, record_plates)
    _check_auto_guide(guide)
    if isinstance(guide, autoguide.AutoGuide):
        _set_up_auto_guides(guide, records, placeholder, key, static, record_plates)

    inside = {n for n, s in two.items() if record_plates.intersection(s.plates)}
    latents = [n for n, s in two.items() if s.kind == "sample" and not s.observed]
    observed = tuple(n for n, s in two.items() if s.kind == "sample" and s.observed)

    guide_two, guide_sizes = _trace_abstractly(guide, records, 2, key, static)
    guide_three, guide_sizes_three = _trace_abstractly(guide, records, 3, key, static)
    guide_plates = {n for n, size in guide_sizes.items() if guide_sizes_three.get(n) != size}
    if stray := guide_plates - record_plates:
        raise ValueError(
            f"The guide's plate {sorted(stray)[0]!r} follows the number of records, but the model has no "
            "record plate of that name. Use the model's name for it."
        )
    _check_guide(guide_two, guide_three, latents, inside, record_plates)
    guide_sites = [n for n, s in guide_two.items() if s.kind == "sample" and not s.observed]
    guide_inside = {n for n in guide_sites if record_plates.intersection(guide_two[n].plates)}
    return Structure(
        record_plates=record_plates,
        global_latents=tuple(n for n in latents if n not in inside),
        local_latents=tuple(n for n in latents if n in inside),
        observed=observed,
        guide_globals=tuple(n for n in guide_sites if n not in guide_inside),
        guide_locals=tuple(n for n in guide_sites if n in guide_inside),
        has_model_params=any(s.kind == "param" for s in two.values()),
    )


def _check_plate_sizes(
    record_plates: frozenset[str], sizes: Mapping[str, tuple[int, int | None]], num_records: int
) -> None:
    for name in sorted(record_plates):
        size, _ = sizes[name]
        # Two is the number of placeholder rows: then the size follows the array.
        if size not in (2, num_records):
            raise ValueError(
                f"The record plate {name!r} has size {size}, but the plan says num_records={num_records}. "
                "Both are public statements about the same table: make them agree."
            )


def _check_model(two: Mapping[str, Site], three: Mapping[str, Site], record_plates: frozenset[str]) -> None:
    for name, site in two.items():
        inside = bool(record_plates.intersection(site.plates))
        if site.kind == "mutable":
            raise ValueError(
                f"The model's mutable site {name!r} carries state from record to record (as batch "
                "normalisation does), which no clipping bounds. Use a layer without state, such as "
                "layer or group normalisation."
            )
        if site.kind == "param" and site.shape != three[name].shape:
            raise _per_record_parameters(name)
        if site.kind != "sample":
            continue
        if site.observed and not inside:
            raise ValueError(
                f"The observed site (or factor) {name!r} lies outside the record plate "
                f"{sorted(record_plates)[0]!r}, so it cannot be split into records and clipped. Move it "
                "into the plate; a term without data belongs into a prior."
            )
        if not site.observed and not inside and site.shape != three[name].shape:
            raise ValueError(
                f"The latent site {name!r} has a value for each record but lies outside the record plate. "
                "Move it into the plate."
            )
        if not site.observed and site.discrete:
            where = "per-record" if inside else "global"
            raise ValueError(
                f"The {where} latent site {name!r} is discrete, so its value has no gradient. Sum it out, "
                "for example with numpyro.distributions.MixtureSameFamily."
            )


def _check_auto_guide(guide: Program) -> None:
    if reading := [g for g in _auto_guides(guide) if isinstance(g, _DATA_READING_GUIDES)]:
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


def _set_up_auto_guides(
    guide: Program,
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
    guides = list(_auto_guides(guide))
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


def _auto_guides(guide: Program) -> Iterator[Any]:
    """A guide's AutoGuides: itself and, of a list, its parts."""
    if isinstance(guide, autoguide.AutoGuide):
        yield guide
    if isinstance(guide, autoguide.AutoGuideList):
        for part in guide:
            yield from _auto_guides(part)


def _per_record_parameters(name: str) -> ValueError:
    return ValueError(
        f"The param site {name!r} changes its shape with the number of records: each record would have "
        "parameters of its own, and publishing them publishes the record. Compute them from the record "
        "with shared weights (an amortised guide)."
    )


def _check_guide(
    two: Mapping[str, Site],
    three: Mapping[str, Site],
    latents: list[str],
    inside: set[str],
    record_plates: frozenset[str],
) -> None:
    sampled = {n for n, s in two.items() if s.kind == "sample"}
    if missing := [n for n in latents if n not in sampled]:
        raise ValueError(
            f"The guide has no sample site for the model's latent {missing[0]!r}. Add one of that name, "
            "or use an AutoGuide."
        )
    for name, site in two.items():
        if site.kind == "mutable":
            raise ValueError(f"The guide's mutable site {name!r} carries state between records; remove it.")
        if site.kind == "param" and site.shape != three[name].shape:
            raise _per_record_parameters(name)
        if site.kind != "sample":
            continue
        if site.observed:
            raise ValueError(f"The guide observes the site {name!r}; observations belong into the model.")
        if name not in latents and not site.auxiliary:
            raise ValueError(
                f"The guide samples {name!r}, which is no latent of the model. Rename it, or mark it with "
                'infer={"is_auxiliary": True}.'
            )
        if not site.reparametrized:
            raise ValueError(
                f"The guide's site {name!r} has no reparametrised sampler, so gradients cannot pass through "
                "its draw. Use a distribution that has one (Normal, LogNormal, ...), or a transform of one."
            )
        in_plate = bool(record_plates.intersection(site.plates))
        if name in latents and in_plate != (name in inside):
            raise ValueError(
                f"The latent {name!r} is inside the record plate in one of model and guide and outside it "
                "in the other. Put it on the same side in both."
            )
