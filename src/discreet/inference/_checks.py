"""What is refused before anything is released: options, calls and batches that do not fit the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from discreet.inference._records import Records, check_public
from discreet.inference._trace import TraceRecorder
from discreet.plan import PrivacyPlan


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
    if dpsvi.local is not None:
        _check_local(dpsvi)
    check_public(dpsvi.static_kwargs)


def _check_local(dpsvi: Any) -> None:
    if dpsvi.local != "private":
        raise ValueError(
            f'local is {dpsvi.local!r}; it must be "private", which keeps the variational parameters that each record has of '
            "its own beside the data, or None, which refuses such guides."
        )
    if type(dpsvi.local_updates) is not int or dpsvi.local_updates < 1:
        raise ValueError(
            f"local_updates is {dpsvi.local_updates!r}; a record makes a whole number of updates, at least 1."
        )
    if dpsvi.perturb == "parameters":
        raise ValueError('local="private" goes with perturb="latents" only: d3p\'s rule knows no private memory.')
    if not dpsvi.plan.sampling.independent:
        raise ValueError(
            f'local="private" with {type(dpsvi.plan.sampling).__name__} is refused: in its batches, whether one record was drawn '
            "decides what others remember, which the accounting of such batches does not cover. Use "
            "PoissonSampling(rate) or FullBatch()."
        )


def refuse_local(dpsvi: Any, what: str) -> None:
    """Refuse what is not told which records its rows are.

    Raises:
        ValueError: records have a memory.
    """
    if dpsvi.local is not None:
        raise ValueError(
            f'With local="private" each record has parameters of its own, and {what} cannot tell whose rows these are. '
            "Fit with run, which draws the batches itself."
        )


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


def without_svi_words(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `run` without those that NumPyro's `SVI.run` takes for itself.

    `stable_update` says nothing here: a record whose gradient is not finite contributes zero in any case.

    Raises:
        ValueError: one that asks for what a private fit does not do.
    """
    rest = dict(kwargs)
    rest.pop("stable_update", None)
    if rest.pop("forward_mode_differentiation", False):
        raise ValueError(
            "forward_mode_differentiation=True is not supported: each record's gradient is taken by reverse mode, which "
            "clipping needs. A loop of a fixed length (fori_loop with numbers, scan) has a reverse mode."
        )
    if rest.pop("init_state", None) is not None:
        raise ValueError(
            "init_state is not supported: a plan pays for its steps from the first. Start a new plan where another fit "
            "ended with init_params=dpsvi.get_params(state); an interrupted fit goes on with checkpoint=."
        )
    return rest


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
    plan.sampling.check_rows(records.size, plan.num_records, plan.relation, masked=mask is not None)
    if mask is None:
        return
    shape, dtype = jnp.shape(mask), jnp.asarray(mask).dtype
    if shape != (records.size,) or dtype != jnp.bool_:
        raise ValueError(
            f"mask has shape {shape} and dtype {dtype}; it must hold one Boolean for each of the {records.size} rows."
        )


def check_non_private(said: bool) -> None:
    """Refuse to compute an exact loss for someone who did not say that it is one.

    Raises:
        ValueError: with what it shows.
    """
    if not said:
        raise ValueError(
            "evaluate computes the exact loss of the records it is given, without noise, so showing it leaks. "
            "The losses that update and run return are private; or pass non_private=True if these records are "
            "public or the number stays with you."
        )


def check_paid(plan: PrivacyPlan, steps: int) -> None:
    """Refuse a step more than the plan's.

    Raises:
        ValueError: with the plan's number.
    """
    if steps >= plan.num_steps:
        raise ValueError(
            f"The plan pays for {plan.num_steps} steps, and this state has made them all. Plan more steps "
            "beforehand; adding some afterwards would cost more than was promised."
        )


def check_outside(key: Any) -> None:
    """Refuse to begin a fit within a transformation, where there is no model to look at.

    Raises:
        TypeError: the key is being traced.
    """
    if isinstance(key, Tracer):
        raise TypeError("init looks at the model outside of JAX's transformations; call it without jit, vmap or scan.")
