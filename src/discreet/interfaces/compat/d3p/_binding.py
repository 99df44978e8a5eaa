"""The binding of a fit to its first batch: the sampling scheme of the batch, the number of records, and the whole guide.

    arrays of the batch --> the batchifier that returned them --> their sampling scheme (`Scheme`)
    the model's plate   --> the number of records N
    both, and the shapes --> a `discreet.inference.DPSVI` with a plan for them (`Binding`)

`svi.DPSVI` binds a batch of another kind anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from numpyro import handlers
from numpyro.infer import autoguide

from discreet._numpyro import one_model, trace_of
from discreet.interfaces.compat.d3p.minibatch import BatchLaw, Source, live_sources, source_of
from discreet.interfaces.compat.d3p.modelling import is_array
from discreet.methods import inference
from discreet.methods.inference import take_apart
from discreet.privacy import random
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import FixedSizeSampling

Program = Callable[..., Any]


def comparable(public: Mapping[str, Any], rows: int) -> Any:
    """Keyword arguments as a hashable value, to distinguish fits; refuse records and traced values."""
    leaves, structure = jax.tree.flatten(dict(public))
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        raise ValueError(
            f"The keyword arguments {', '.join(public)} are traced by a jit, scan or fori_loop. Keyword arguments are public "
            "constants of the model: let the compiled function close over them instead of taking them as arguments."
        )
    for leaf in filter(is_array, leaves):
        if source_of([leaf]) is not None or leaf.shape[0] == rows > 1:
            raise ValueError(
                f"A keyword argument of init or update is an array of shape {leaf.shape}, as long as the batch. Pass records by "
                "position: as keywords they would enter every record's loss as a whole, without clipping. (Pass a public array "
                "that has this length by chance as a tuple of numbers.)"
            )
    return structure, tuple(
        (x.shape, str(x.dtype), np.asarray(x).tobytes()) if hasattr(x, "shape") else x
        for x in leaves
    )


def as_batch(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The batch in `init(key, *get_batch(0, state))` where get_batch returns (batch, mask), as d3p's README has it."""
    if len(args) == 2 and isinstance(args[0], tuple):
        source = source_of(jax.tree.leaves(args))
        if source is not None and is_array(args[1]) and args[1].dtype == bool and args[1].ndim == 1:
            return args[0]
    return args


def _trace(
    program: Program, args: tuple[Any, ...], public: Mapping[str, Any], rows: int
) -> dict[str, dict[str, Any]]:
    """The sites of a program for `rows` rows, without values: traced on shapes alone."""
    found: dict[str, dict[str, Any]] = {}
    records = take_apart(args, {})

    def run(arrays: list[Any]) -> None:
        seeded = handlers.seed(program, random.key(0))
        for name, site in trace_of(seeded, *records.rebuild(arrays)[0], **public).items():
            size = site["args"] if site["type"] == "plate" else None
            found[name] = {
                "type": site["type"],
                "observed": site.get("is_observed", False),
                "size": size,
            }

    jax.eval_shape(run, records.shapes(rows))
    return found


def declared_num_records(
    model: Program, args: tuple[Any, ...], public: Mapping[str, Any]
) -> int | None:
    """Find N of `plate("...", N, batch_size)`; None where the plates' size follows the batch.

    Raises:
        ValueError: Plates of records with different sizes.
    """
    two, three = (_trace(model, args, public, rows) for rows in (2, 3))
    sizes: dict[str, int] = {}
    for name, site in two.items():
        if site["type"] != "plate" or name not in three:
            continue
        (size, subsample) = site["size"]
        (size_again, subsample_again) = three[name]["size"]
        if size == size_again and subsample != subsample_again:
            sizes[name] = int(size)
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"The plates of records declare different numbers of records: {sizes}. They describe one table: make them agree."
        )
    return next(iter(sizes.values()), None)


def complete_guide(
    model: Program, guide: Program, args: tuple[Any, ...], public: Mapping[str, Any]
) -> Program:
    """Complete a guide: draw latents that it lacks from the model's conditional prior.

    See the hierarchical model of d3p's paper (Section 3.3, Eq. 7): the guide covers M alone, and
    q(M, w) = q(M) p(w | M). The terms of w in the ELBO cancel.
    """
    if isinstance(guide, autoguide.AutoGuide):
        return guide
    model_sites, guide_sites = (_trace(program, args, public, 2) for program in (model, guide))
    latents = {
        name
        for name, site in model_sites.items()
        if site["type"] == "sample" and not site["observed"]
    }
    missing = frozenset(latents - set(guide_sites))
    if not missing:
        return guide

    def hidden(site: Mapping[str, Any]) -> bool:
        return site["type"] in ("sample", "deterministic") and site["name"] not in missing

    def completed(*args: Any, **kwargs: Any) -> Any:
        trace = trace_of(guide, *args, **kwargs)
        values = {
            name: site["value"]
            for name, site in trace.items()
            if site["type"] in ("sample", "param")
        }
        given = handlers.substitute(
            model, data={name: x for name, x in values.items() if name not in missing}
        )
        with one_model, handlers.block(hide_fn=hidden):
            given(*args, **kwargs)
        return values

    return completed


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The sampling scheme of a batch, as far as it is known."""

    law: BatchLaw  # the law
    sources: tuple[Source, ...]  # the batchifiers that may have drawn it; none where the caller did
    # the assumption behind the law if no batchifier returned the batch's arrays; otherwise None
    doubt: str | None


@dataclasses.dataclass(frozen=True, eq=False)
class Binding:
    """The sampling scheme of batches, and discreet's DPSVI for them, whose plan is that of a loop of unknown length."""

    law: BatchLaw
    fit: inference.DPSVI

    def plan(self, num_steps: int) -> PrivacyPlan:
        """The plan of `num_steps` updates."""
        plan = self.fit.plan
        return self.law.plan(
            num_steps=num_steps,
            clipping_norm=plan.clipping_norm,
            noise_multiplier=plan.noise_multiplier,
            num_records=plan.num_records,
        )


def find_law(
    arrays: Sequence[Any],
    num_records: int | None,
    given: Source | None,
    before: BatchLaw | None = None,
) -> Scheme:
    """Find the sampling scheme of a batch: that of the batchifier that returned its arrays, or else by its number of rows.

    `num_records` is the size of the model's plate, `given` the batchifier that the caller named,
    `before` the law of an earlier batch of the same fit. Raises a ValueError if they contradict one
    another or are ambiguous.
    """
    rows = arrays[0].shape[0]
    source = source_of(arrays)
    if source is not None:
        if given is not None and source.law != given.law:
            raise ValueError(
                f"These batches are {source.law}, but batches= names a batchifier of {given.law}."
            )
        _check_plate({source.law}, rows, num_records)
        return Scheme(source.law, (source,), None)
    candidates = [given] if given is not None else live_sources(rows)
    laws = {candidate.law for candidate in candidates}
    if given is None and before is not None and before.rows == rows:
        laws = {before}
    laws = _check_plate(laws, rows, num_records)
    if len(laws) > 1:
        raise ValueError(
            f"Batches of {rows} rows could come from several batchifiers: {'; '.join(sorted(map(str, laws)))}. Pass the arrays "
            "that get_batch returns unchanged, or name the batchifier, as in DPSVI(..., batches=get_batch)."
        )
    if laws:
        law = laws.pop()
        doubt = (
            "Batches were not the arrays that a batchifier of discreet.compat.d3p returned, or were changed since (by a jit "
            f"around get_batch or update, for example). That they were drawn as {law} is taken on trust."
        )
        return Scheme(
            law, tuple(candidate for candidate in candidates if candidate.law == law), doubt
        )
    if num_records is None:
        raise ValueError(
            "The number of records is not known: the model's plate follows the batch, and no batchifier of this "
            f"program returns batches of {rows} rows. Declare it, as in numpyro.plate('batch', N, batch_size) with "
            "DPSVI(..., N=len(data)), or pass the batchifier as DPSVI(..., batches=get_batch)."
        )
    if rows > num_records:
        raise ValueError(
            f"The batch has {rows} rows, but the model's plate declares {num_records} records."
        )
    doubt = (
        "No batchifier of discreet.compat.d3p was found behind the batches; that they were drawn uniformly without "
        "replacement is taken on trust."
    )
    return Scheme(BatchLaw(FixedSizeSampling(rows), num_records), (), doubt)


def _check_plate(laws: set[BatchLaw], rows: int, num_records: int | None) -> set[BatchLaw]:
    """The laws consistent with the model's plate; ValueError if there are laws but none is."""
    if num_records is None or not laws:
        return laws
    # Poisson batches are drawn at a rate, independent of the number of records in the model.
    fitting = {law for law in laws if law.num_records == num_records}
    fitting = fitting or {law for law in laws if not law.sampling.constant_size}
    if not fitting:
        raise ValueError(
            f"The model's plate declares {num_records} records, but batches of {rows} rows come from a "
            f"table of {next(iter(laws)).num_records}. Pass the table's length as N, or the batchifier as batches=get_batch."
        )
    return fitting
