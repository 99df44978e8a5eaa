"""What d3p's programs leave unsaid: the number of records, and latents that only the model samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from numpyro import handlers
from numpyro.infer import autoguide

from discreet import random
from discreet.compat.d3p.svi._arguments import blank, is_array

Program = Callable[..., Any]
Trace = dict[str, dict[str, Any]]


def _trace(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int) -> Trace:
    """Sites of a program for so many rows, without values: traced on shapes alone."""
    found: Trace = {}
    leaves, structure = jax.tree.flatten(blank((args, dict(kwargs)), rows))
    arrays = [leaf for leaf in leaves if is_array(leaf)]

    def run(arrays: list[Any]) -> None:
        rest = iter(arrays)
        filled = [next(rest) if is_array(leaf) else leaf for leaf in leaves]
        args, kwargs = jax.tree.unflatten(structure, filled)
        seeded = handlers.seed(program, random.key(0))
        for name, site in handlers.trace(seeded).get_trace(*args, **kwargs).items():
            size = site["args"] if site["type"] == "plate" else None
            found[name] = {"type": site["type"], "observed": site.get("is_observed", False), "size": size}

    jax.eval_shape(run, arrays)
    return found


def declared_num_records(model: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """N of `plate("...", N, batch_size)`, where a model has such plates; None where their size follows the batch.

    Raises:
        ValueError: plates of records that declare different numbers.
    """
    two, three = (_trace(model, args, kwargs, rows) for rows in (2, 3))
    sizes: dict[str, int] = {}
    for name, site in two.items():
        if site["type"] != "plate" or name not in three:
            continue
        (size, subsample), (size_again, subsample_again) = site["size"], three[name]["size"]
        if size == size_again and subsample != subsample_again:
            sizes[name] = int(size)
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"The plates of records declare different numbers of records: {sizes}. They are public statements about one "
            "table: make them agree."
        )
    return next(iter(sizes.values()), None)


def complete_guide(model: Program, guide: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Program:
    """The guide, which draws latents that it lacks from the model's conditional prior.

    d3p's paper does so in its hierarchical model (Section 3.3, Eq. 7): the guide is for M alone, and the groups'
    weights follow from it, q(M, w) = q(M) p(w | M). Written out as a guide, their terms in the ELBO cancel.
    """
    if isinstance(guide, autoguide.AutoGuide):
        return guide
    model_sites, guide_sites = (_trace(program, args, kwargs, 2) for program in (model, guide))
    latents = {name for name, site in model_sites.items() if site["type"] == "sample" and not site["observed"]}
    missing = frozenset(latents - set(guide_sites))
    if not missing:
        return guide

    def hidden(site: Mapping[str, Any]) -> bool:
        return site["type"] in ("sample", "deterministic") and site["name"] not in missing

    def completed(*args: Any, **kwargs: Any) -> Any:
        trace = handlers.trace(guide).get_trace(*args, **kwargs)
        values = {name: site["value"] for name, site in trace.items() if site["type"] in ("sample", "param")}
        given = handlers.substitute(model, data={name: x for name, x in values.items() if name not in missing})
        with handlers.block(hide_fn=hidden):
            given(*args, **kwargs)
        return values

    return completed
