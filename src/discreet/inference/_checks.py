"""What is refused before anything is released: options, calls and batches that do not fit the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from discreet.inference._records import Records, check_public
from discreet.inference._trace import TraceRecorder
from discreet.plan import PrivacyPlan
from discreet.sampling import FixedSizeSampling, FullBatch


def check_options(dpsvi: Any) -> None:
    """Refuse options of a DPSVI that make no sense.

    Raises:
        TypeError, ValueError: naming the option.
    """
    if not isinstance(dpsvi.plan, PrivacyPlan):
        raise TypeError(
            f"plan is a {type(dpsvi.plan).__name__}, not a PrivacyPlan. Make one with "
            "discreet.PrivacyPlan.calibrate(epsilon=..., delta=..., ...)."
        )
    if dpsvi.perturb not in ("latents", "parameters"):
        raise ValueError(f'perturb is {dpsvi.perturb!r}; it must be "latents" or "parameters".')
    if not 0.0 <= dpsvi.loss_share < 1.0:
        raise ValueError(
            f"loss_share is {dpsvi.loss_share}; it is a share of the release, at least 0 and below 1. 0.02 costs "
            "one per cent more noise on the gradient."
        )
    count_share = dpsvi.plan.clipping.count_share
    if dpsvi.loss_share + count_share >= 1.0:
        raise ValueError(
            f"loss_share is {dpsvi.loss_share} and the clipping rule's count_share {count_share}; together they must be "
            "below 1, or nothing of the release is left for the gradient. 0.02 and 0.01 are common choices."
        )
    if dpsvi.loss_bound is not None and not 1e-30 <= dpsvi.loss_bound <= 1e30:
        raise ValueError(
            f"loss_bound is {dpsvi.loss_bound}; it must be positive and finite, in nats: from 1e-30 to 1e30, between which "
            "32-bit arithmetic tells numbers from 0 and infinity. None takes the placeholder's loss."
        )
    if dpsvi.microbatch_size is not None and dpsvi.microbatch_size < 1:
        raise ValueError(f"microbatch_size is {dpsvi.microbatch_size}; it must be at least 1.")
    check_public(dpsvi.static_kwargs)


@contextmanager
def explain_steps(args: Sequence[Any]) -> Iterator[None]:
    """NumPyro's `run` takes the number of steps first; say so where a model fails on it."""
    try:
        yield
    except (TypeError, AttributeError) as error:
        if not args or type(args[0]) is not int:
            raise
        raise ValueError(
            f"The model fails with {args[0]} as its first argument ({error}). If that is the number of steps: leave it out, "
            "the plan says it. run(key, xs, ys) takes the key and the model's arguments."
        ) from error


def check_length(plan: PrivacyPlan, size: int) -> None:
    """Refuse a table of another length than the plan's, where the relation makes the length public.

    Raises:
        ValueError: with both lengths.
    """
    # Under ADD_OR_REMOVE_ONE the exact number of records is what neighbours differ in: no check may show it.
    if plan.relation.name != "ADD_OR_REMOVE_ONE" and size != plan.num_records:
        raise ValueError(
            f"The arrays hold {size} records, but the plan says num_records={plan.num_records}, which the relation "
            f"{plan.relation.name} makes public. Calibrate a plan for {size} records."
        )


def check_room(psi: Any, num_steps: int) -> None:
    """Refuse to keep gradients where the trace has no room for every iterate that they belong to.

    Raises:
        ValueError: with the sizes.
    """
    dim = sum(x.size for x in jax.tree.leaves(psi))
    if not TraceRecorder(dim, num_steps).every_step:
        raise ValueError(
            f"keep_gradients=True needs every iterate, and {num_steps} of {dim} parameters are more than the trace's 64 MiB. "
            "Leave it out, or plan fewer steps."
        )


def check_batch(plan: PrivacyPlan, records: Records, mask: Any) -> None:
    """Refuse a batch that the plan's sampling cannot have drawn.

    Raises:
        ValueError: with the sizes.
    """
    sampling = plan.sampling
    capacity = sampling.capacity(plan.num_records)
    if isinstance(sampling, FullBatch):
        check_length(plan, records.size)
    elif isinstance(sampling, FixedSizeSampling) and records.size != capacity:
        raise ValueError(
            f"The batch has {records.size} rows, but the plan says {sampling} of {plan.num_records} records, so "
            f"{capacity}. The accounting holds only for that."
        )
    elif mask is None and records.size > capacity:
        raise ValueError(
            f"The batch has {records.size} rows, more than {sampling} ever draws from {plan.num_records} records. "
            "Pass a batch drawn by the plan's sampling, with mask= if it is padded."
        )
    if mask is None:
        return
    shape, dtype = jnp.shape(mask), jnp.asarray(mask).dtype
    if shape != (records.size,) or dtype != jnp.bool_:
        raise ValueError(
            f"mask has shape {shape} and dtype {dtype}; it must hold one Boolean for each of the {records.size} rows."
        )
