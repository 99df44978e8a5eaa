"""What a model and a guide are made of, found by tracing them with two and with three records.

Nothing here sees data: the traces are abstract, on shapes alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpyro.handlers as handlers
from jax import numpy as jnp
from jaxtyping import PRNGKeyArray

from discreet.inference._autoguides import auto_guides, check_auto_guide, set_up_auto_guides
from discreet.inference._plates import Program, WholePlates, value_of_improper
from discreet.inference._point import check_point_guide
from discreet.inference._records import Records


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
        local_params: the guide's `param` sites with a value for each record, and the axis that numbers the records.
    """

    record_plates: frozenset[str]
    global_latents: tuple[str, ...]
    local_latents: tuple[str, ...]
    observed: tuple[str, ...]
    guide_globals: tuple[str, ...]
    guide_locals: tuple[str, ...]
    has_model_params: bool
    local_params: tuple[tuple[str, int], ...] = ()


class Traced(NamedTuple):
    """Sites and plate sizes (declared, and subsampled or None) of one abstract trace."""

    sites: dict[str, Site]
    sizes: dict[str, tuple[int, int | None]]


def changing_plates(two: Traced, three: Traced) -> frozenset[str]:
    """The plates whose size follows the number of records."""
    return frozenset(name for name, size in two.sizes.items() if three.sizes.get(name) != size)


def _trace_abstractly(
    program: Program,
    records: Records,
    rows: int,
    key: PRNGKeyArray,
    static: Mapping[str, Any],
    num_records: int | None = None,
) -> Traced:
    """Sites and plate sizes of a program for `rows` records, without computing anything."""
    sites: dict[str, Site] = {}
    sampled = handlers.substitute(program, substitute_fn=value_of_improper)
    plates = WholePlates(sampled, None, rows, num_records=num_records)

    def run(leaves: list[Any]) -> None:
        args, kwargs = records.rebuild(leaves)
        with handlers.seed(rng_seed=key):
            trace = handlers.trace(plates).get_trace(*args, **kwargs, **static)
        for name, site in trace.items():
            sites[name] = _summary(site)

    jax.eval_shape(run, records.shapes(rows))
    return Traced(sites, plates.sizes)


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
    keeps_local: bool = False,
) -> Structure:
    """Trace model and guide for two and three records, and refuse what cannot be private.

    With `keeps_local`, the guide may have `param` sites with a value for each record.

    Raises:
        ValueError: naming the site and the remedy.
    """
    two, three, hint = _trace_model(model, records, key, static, num_records)
    record_plates = changing_plates(two, three)
    if not record_plates:
        raise ValueError(
            "No plate of the model follows the number of records, so it does not say what one record "
            "contributes. Put the observations into one, for example "
            'with numpyro.plate("data", xs.shape[0]), outside of any control flow.'
        )
    _check_plate_sizes(record_plates, two.sizes, num_records)
    _check_model(two.sites, three.sites, record_plates)
    inside = {n for n, s in two.sites.items() if record_plates.intersection(s.plates)}
    latents = [n for n, s in two.sites.items() if s.kind == "sample" and not s.observed]
    observed = tuple(n for n, s in two.sites.items() if s.kind == "sample" and s.observed)

    check_auto_guide(guide)
    check_point_guide(guide, [n for n in latents if n in inside])
    if any(True for _ in auto_guides(guide)):
        set_up_auto_guides(guide, records, placeholder, key, static, record_plates)

    guide_two = _trace_abstractly(guide, records, 2, key, static, hint)
    guide_three = _trace_abstractly(guide, records, 3, key, static, hint)
    guide_plates = changing_plates(guide_two, guide_three)
    if stray := guide_plates - record_plates:
        raise ValueError(
            f"The guide's plate {sorted(stray)[0]!r} follows the number of records, but the model has no "
            "record plate of that name. Use the model's name for it."
        )
    local_params = _local_params(guide_two.sites, guide_three.sites, keeps_local)
    _check_guide(guide_two.sites, latents, inside, record_plates)
    guide_sites = [n for n, s in guide_two.sites.items() if s.kind == "sample" and not s.observed]
    guide_inside = {n for n in guide_sites if record_plates.intersection(guide_two.sites[n].plates)}
    return Structure(
        record_plates=record_plates,
        global_latents=tuple(n for n in latents if n not in inside),
        local_latents=tuple(n for n in latents if n in inside),
        observed=observed,
        guide_globals=tuple(n for n in guide_sites if n not in guide_inside),
        guide_locals=tuple(n for n in guide_sites if n in guide_inside),
        has_model_params=any(s.kind == "param" for s in two.sites.values()),
        local_params=local_params,
    )


def _trace_model(
    model: Program, records: Records, key: PRNGKeyArray, static: Mapping[str, Any], num_records: int
) -> tuple[Traced, Traced, int | None]:
    """Trace with two and with three records; if that fails, take plates of size N for record plates (the hint)."""

    def both(hint: int | None) -> tuple[Traced, Traced, int | None]:
        two, three = (_trace_abstractly(model, records, rows, key, static, hint) for rows in (2, 3))
        return two, three, hint

    try:
        found = both(None)
        if changing_plates(*found[:2]):
            return found
    except (TypeError, ValueError, AssertionError):
        # A plate of N, with two rows inside, does not broadcast.
        found = None
    try:
        return both(num_records)
    except (TypeError, ValueError, AssertionError):
        return both(None) if found is None else found


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


def _per_record_parameters(name: str) -> ValueError:
    return ValueError(
        f"The param site {name!r} changes its shape with the number of records: each record would have "
        "parameters of its own, and publishing them publishes the record. Compute them from the record "
        'with shared weights (an amortised guide); or make the guide\'s a private memory with DPSVI(..., local="private").'
    )


def _local_params(two: Mapping[str, Site], three: Mapping[str, Site], keeps_local: bool) -> tuple[tuple[str, int], ...]:
    """The guide's `param` sites with a value for each record, each with the axis that numbers the records."""
    found: list[tuple[str, int]] = []
    for name, site in two.items():
        if site.kind != "param" or site.shape == three[name].shape:
            continue
        if not keeps_local:
            raise _per_record_parameters(name)
        shapes = site.shape, three[name].shape
        arrays = all(isinstance(shape, tuple) for shape in shapes) and len(shapes[0]) == len(shapes[1])
        axes = [i for i, pair in enumerate(zip(*shapes, strict=True)) if pair[0] != pair[1]] if arrays else []
        if len(axes) != 1 or (shapes[0][axes[0]], shapes[1][axes[0]]) != (2, 3):
            raise ValueError(
                f"The param site {name!r} changes its shape with the number of records in another way than one axis of "
                f"that length: {shapes[0]} for two records, {shapes[1]} for three. Give each record an array of its own "
                "along one axis."
            )
        found.append((name, axes[0]))
    return tuple(found)


def _check_guide(
    two: Mapping[str, Site],
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
