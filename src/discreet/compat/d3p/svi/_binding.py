"""Which law the batches of so many rows follow, and the private fit that goes with it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

from discreet import inference
from discreet.compat.d3p.dputil import Calibration, D3PAccountingWarning
from discreet.compat.d3p.minibatch import BatchLaw, GetBatch, Source, live_sources, source_of
from discreet.sampling import FixedSizeSampling, PoissonSampling


@dataclasses.dataclass(frozen=True, eq=False)
class Binding:
    """A law of batches and what was built for it.

    Attributes:
        law: how batches are drawn.
        num_records: public number of records.
        clipping_norm: C, for one record's unscaled contribution.
        fit: discreet's DPSVI.
    """

    law: BatchLaw
    num_records: int
    clipping_norm: float
    fit: inference.DPSVI


@dataclasses.dataclass(frozen=True)
class Drawn:
    """How a batch was drawn, as far as it is known.

    Attributes:
        law: the law.
        sources: the batchifiers that may have drawn it; none where the caller did.
        doubt: what the law rests on where the batch's arrays are not as a batchifier handed them out; None: on nothing else.
    """

    law: BatchLaw
    sources: tuple[Source, ...]
    doubt: str | None


def find_law(
    arrays: Sequence[Any], num_records: int | None, given: Source | None, before: BatchLaw | None = None
) -> Drawn:
    """How a batch was drawn: by the batchifier that handed out these very arrays, or else as its number of rows suggests.

    Args:
        arrays: the batch.
        num_records: what the model's plate says; None: nothing.
        given: the batchifier, where the caller named it.
        before: the law of an earlier batch of the same fit.

    Raises:
        ValueError: the batchifiers in use leave it open, contradict the plate or the caller, or there is neither.
    """
    rows = arrays[0].shape[0]
    source = source_of(arrays)
    if source is not None:
        if given is not None and source.law != given.law:
            raise ValueError(f"These batches are {source.law}, but batches= names a batchifier of {given.law}.")
        return Drawn(_fitting({source.law}, rows, num_records).pop(), (source,), None)
    candidates = [given] if given is not None else live_sources(rows)
    laws = {candidate.law for candidate in candidates}
    if given is None and before is not None and before.rows == rows:
        laws = {before}
    laws = _fitting(laws, rows, num_records)
    if len(laws) > 1:
        raise ValueError(
            f"Batches of {rows} rows could come from several batchifiers: {'; '.join(sorted(map(str, laws)))}. Pass on the "
            "arrays that get_batch returns, unchanged, or say which, as in DPSVI(..., batches=get_batch)."
        )
    if laws:
        law = laws.pop()
        doubt = (
            "Batches were not the arrays that a batchifier of discreet.compat.d3p handed out, or were changed on the way "
            f"(by a jit of one's own around get_batch or update, for example). That they were drawn as {law} is taken on trust."
        )
        return Drawn(law, tuple(candidate for candidate in candidates if candidate.law == law), doubt)
    if num_records is None:
        raise ValueError(
            "The number of records is not known: the model's plate follows the batch, and no batchifier of this "
            f"program hands out batches of {rows} rows. Declare it, as in numpyro.plate('batch', N, batch_size) with "
            "DPSVI(..., N=len(data)), or pass the batchifier as DPSVI(..., batches=get_batch)."
        )
    if rows > num_records:
        raise ValueError(f"The batch has {rows} rows, but the model's plate says that there are {num_records} records.")
    return Drawn(
        BatchLaw(FixedSizeSampling(rows), num_records),
        (),
        "No batchifier of discreet.compat.d3p was found behind the batches; that they were drawn uniformly without "
        "replacement is taken on trust.",
    )


def _fitting(laws: set[BatchLaw], rows: int, num_records: int | None) -> set[BatchLaw]:
    """The laws that agree with the model's plate.

    Raises:
        ValueError: there are laws, and none agrees.
    """
    if num_records is None or not laws:
        return laws
    # Poisson batches are drawn at a rate, whatever the model takes for the number of records.
    fitting = {law for law in laws if law.num_records == num_records}
    fitting = fitting or {law for law in laws if isinstance(law.sampling, PoissonSampling)}
    if not fitting:
        other = next(iter(laws))
        raise ValueError(
            f"The model's plate says that there are {num_records} records, but batches of {rows} rows come from a "
            f"table of {other.num_records}. Pass the table's length as N, or the batchifier as batches=get_batch."
        )
    return fitting


def declared_updates(law: BatchLaw, calibration: Calibration) -> int:
    """The number of updates that noise was calibrated for.

    For disjoint batches noise is calibrated as for full batches (q = 1), one for each pass.
    """
    passes = law.disjoint and calibration.rate == 1.0
    return calibration.num_iter * (law.num_records // law.rows if passes else 1)


def warn_if_dearer(binding: Binding, noise_multiplier: float, target: Calibration | None) -> None:
    """Say so where the noise was calibrated for other batches than these, and these cost more."""
    if target is None:
        return
    plan = binding.law.plan(
        clipping_norm=binding.clipping_norm,
        noise_multiplier=noise_multiplier,
        num_steps=declared_updates(binding.law, target),
        num_records=binding.num_records,
    )
    epsilon = plan.epsilon(target.delta)
    if epsilon <= 1.001 * target.epsilon:
        return
    warnings.warn(
        f"dp_scale = {noise_multiplier:.4g} was calibrated for epsilon = {target.epsilon:g} at delta = "
        f"{target.delta:g} (q = {target.rate:g}, {target.num_iter} steps, {target.relation.name}), but the batches are "
        f"{binding.law}: under {binding.law.relation.name} they cost epsilon = {epsilon:.4g}. Use approximate_sigma with "
        "subsample_batchify_data, approximate_sigma_remove_relation with poisson_batchify_data, and the same q; for "
        "split_batchify_data calibrate one full-batch step a pass (q = 1).",
        D3PAccountingWarning,
        stacklevel=4,
    )


def source_named(batches: Any) -> Source | None:
    """The source behind a batchifier's `get_batch`; None where none was named.

    Raises:
        TypeError: something else.
    """
    if batches is None:
        return None
    if not isinstance(batches, GetBatch):
        raise TypeError(
            f"batches is a {type(batches).__name__}; pass the second thing that a batchifier of "
            "discreet.compat.d3p.minibatch returns: init, get_batch = subsample_batchify_data(...)."
        )
    return batches.source


def notes_on(law: BatchLaw, steps: int, declared: int | None) -> list[str]:
    """What a reader of the statement must know of the number of updates and of disjoint batches."""
    notes = []
    if declared is None:
        notes.append(
            f"No number of updates was declared, so ε is that of the {steps} updates made, as if their number had been "
            "fixed beforehand. If it was chosen by looking at parameters or losses, ε is not known to hold: declare "
            "num_iter, or use the noise that approximate_sigma returns."
        )
    elif steps > declared:
        notes.append(
            f"{steps} updates were made although {declared} had been declared; ε is that of all {steps}, as if they had "
            "been declared."
        )
    if law.disjoint:
        notes.append(
            f"Batches were the pieces of a shuffled table: {law.num_records // law.rows} disjoint batches of {law.rows} "
            "records a pass, each batch's sum with noise of its own. A record is in at most one batch of a pass, so a step "
            "above stands for one pass, without amplification by subsampling. This holds if each pass was taken to its "
            "end."
        )
    return notes
