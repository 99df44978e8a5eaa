"""The fit as a program that the verifier reads before it runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from discreet._jax import untried_jax
from discreet.inference._keys import StepKeys
from discreet.inference._loop import many_steps
from discreet.inference._step import DPSVIState, PlanNumbers, PrivateStep
from discreet.inference._trace import TraceRecorder, start_mean
from discreet.plan import PrivacyPlan
from discreet.report import Statement
from discreet.verify import Certificate, Given, PrivacyError, certify


def certify_fit(
    step: PrivateStep, plan: PrivacyPlan, state: DPSVIState, leaves: list[Any], keep_gradients: bool
) -> Certificate:
    """A certificate of all the plan's steps, from the first, with the plan's own numbers.

    What is traced does not depend on the plan's numbers; the noise multiplier and the sampler's tables are operands whose
    values the proof knows. So the step is traced once for all plans, and each plan is proved by itself. Proofs are kept.

    Args:
        step: what `run` repeats.
        plan: its sampling, number of steps and relation.
        state: the state at the start; its key is not used.
        leaves: the records, or their shapes.
        keep_gradients: whether the trace holds the gradients, too.

    Raises:
        PrivacyError: there is no proof.
    """
    table = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
    shapes = tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in jax.tree.leaves(state))
    alone = plan.alone()
    facts = alone.sampling, alone.num_steps, alone.noise_multiplier, alone.relation, alone.clipping.adapts
    name = step, facts, shapes, table, keep_gradients, jax.config.values["jax_enable_x64"]
    if name not in _PROOFS:
        if len(_PROOFS) >= _MOST_PROOFS:
            _PROOFS.clear()
        _PROOFS[name] = _certify(step, plan, state, table, keep_gradients)
    return _PROOFS[name]


_MOST_PROOFS = 128
_PROOFS: dict[Any, Certificate] = {}


def _certify(
    step: PrivateStep, plan: PrivacyPlan, state: DPSVIState, table: Sequence[Any], keep_gradients: bool
) -> Certificate:
    num_records, length = table[0].shape[0], plan.num_steps
    drawing = plan.sampling.drawing(num_records)
    dim = sum(x.size for x in jax.tree.leaves(step.optim.get_params(state.optim_state)))
    recorder = TraceRecorder(dim, length)
    keep = recorder.every_step

    def fit(
        keys: StepKeys,
        optim_state: Any,
        loss_center: Any,
        clipping_norm: Any,
        numbers: PlanNumbers,
        tables: Any,
        *leaves: Any,
    ) -> dict[str, Any]:
        no_key: Any = None
        # What the records share may be known: to the verifier it is made of public numbers.
        keys = keys._replace(guide=jax.random.wrap_key_data(keys.guide, impl=implementation))
        memory = step.first_memory(len(leaves[0]))
        start = DPSVIState(optim_state, no_key, jnp.zeros((), jnp.int32), loss_center, clipping_norm, memory)
        mean, kept = start_mean(dim, recorder.keeps_mean), (keep, keep and keep_gradients)
        end, mean, losses, norms, iterates, gradients = many_steps(
            step, drawing, length, *kept, keys, start, mean, numbers, list(leaves), tables, length
        )
        released = {"losses": losses, "mean": mean, "norms": (norms, end.clipping_norm)}
        return {"state of the optimizer": end.optim_state, **released, "iterates": iterates, "gradients": gradients}

    keys = jax.eval_shape(functools.partial(StepKeys.derive, memory=step.local is not None), state.rng_key)
    keys, implementation = keys._replace(guide=jax.eval_shape(jax.random.key_data, keys.guide)), "threefry2x32"
    numbers = PlanNumbers.of(plan)
    public = (
        state.optim_state,
        state.loss_center,
        state.clipping_norm,
        numbers._replace(noise_multiplier=Given(numbers.noise_multiplier)),
        jax.tree.map(Given, plan.sampling.prepare(num_records)),
    )
    records = range(1 + len(public), 1 + len(public) + len(table))
    return certify(fit, keys, *public, *table, records=tuple(records), relation=plan.relation)


def check_provable(required: bool) -> None:
    """Refuse a fit that must be proved on a release of JAX on which nothing is, before any other work is done.

    Raises:
        PrivacyError: naming the releases on which proofs are made.
    """
    if required and (why := untried_jax()):
        raise PrivacyError(why, "install such a release, or pass require_proof=False; the statement will say so.")


def with_proof(
    statement: Statement, plan: PrivacyPlan, certified: Callable[[], Certificate], required: bool
) -> Statement:
    """The statement, with what was proved of the fit that is about to run.

    Args:
        statement: what is going to be spent.
        plan: the plan of the fit.
        certified: makes the certificate.
        required: whether to refuse without a proof that the plan covers.

    Raises:
        PrivacyError: there is none.
    """
    try:
        certificate = certified()
    except PrivacyError as error:
        if required:
            raise _refused(error) from error
        return statement.with_warnings(f"Not proved: it ran although the verifier found no proof, because {error.rule}")
    try:
        # What else the plan pays for is no leave to do more here.
        certificate.check(plan.alone())
    except PrivacyError as error:
        if required:
            raise _refused(error) from error
        return statement.with_violations(f"It ran although the verifier found that {error.rule}")
    return statement.with_notes(
        "Proved before it ran: the event was found again in the program itself, whose gradient engine is taken for what it "
        f"promises and tested for it (SHA-256 {certificate.fingerprint})."
    )


def _refused(error: PrivacyError) -> PrivacyError:
    remedy = f"{error.remedy} Or pass require_proof=False to run all the same; the statement will say so."
    return PrivacyError(error.rule, remedy, output=error.output, chain=error.chain)
