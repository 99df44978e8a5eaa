"""The proof of a fit, made before its first step.

`certify_fit` gives the program of the loop (`_loop.many_steps`) to the verifier, with the plan's
number of steps and with numbers whose values the proof knows. `with_proof` compares the
certificate's event with the plan's, and refuses the fit or notes in the statement what is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from discreet._jax import Memo, untried_jax
from discreet.methods.inference._loop import many_steps
from discreet.methods.inference._step import DPSVIState, PlanNumbers, PrivateStep
from discreet.methods.inference._step_keys import StepKeys
from discreet.methods.inference._trace import TraceRecorder
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.report import Statement
from discreet.privacy.verify import Certificate, Given, PrivacyError, certify


def certify_fit(
    step: PrivateStep, plan: PrivacyPlan, state: DPSVIState, leaves: list[Any], keep_gradients: bool
) -> Certificate:
    """Prove all the plan's steps, from the first, with the plan's own numbers.

    What is traced does not depend on the plan's numbers, but for the number of steps; the noise
    multiplier and the sampler's tables are operands whose values the proof knows. So plans share
    what is traced; each is proved by itself, once.
    """
    drawing = step.drawing(plan.sampler, leaves)
    table = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
    shapes = tuple(
        (x.shape, x.dtype, getattr(x, "weak_type", False)) for x in jax.tree.leaves(state)
    )
    x64 = jax.config.values["jax_enable_x64"]
    kinds = plan.noise_schedule is None, type(plan.clipping)
    program = (
        step,
        drawing,
        plan.num_steps,
        plan.relation,
        shapes,
        table,
        keep_gradients,
        x64,
        kinds,
    )
    name = program, plan.sampler, plan.noise_multipliers
    if name not in _PROOFS:
        fit, args = _program(step, plan, drawing, state, table, keep_gradients)
        if program in _PROOFS:
            _PROOFS[name] = _PROOFS[program].given(*args)
        else:
            records = tuple(range(len(args) - len(table), len(args)))
            _PROOFS[program] = _PROOFS[name] = certify(
                fit, *args, records=records, relation=plan.relation
            )
    return _PROOFS[name]


# By program and numbers, and the first one of each program by itself.
_PROOFS = Memo[Any, Certificate]()


def _program(
    step: PrivateStep,
    plan: PrivacyPlan,
    drawing: Any,
    state: DPSVIState,
    table: Sequence[Any],
    keep_gradients: bool,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The program of a fit, and its arguments: keys, public values, and the table."""
    length = plan.num_steps
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
        memory = [] if step.local is None else step.local.rows(len(leaves[0]))
        start = DPSVIState(
            optim_state, no_key, jnp.zeros((), jnp.int32), loss_center, clipping_norm, memory
        )
        mean = jnp.zeros((2 * recorder.keeps_mean, dim))
        kept = (keep, keep and keep_gradients)
        end, mean, figures, norms, iterates, gradients = many_steps(
            step, drawing, length, *kept, keys, start, mean, numbers, list(leaves), tables, length
        )
        released = {"figures": figures, "mean": mean, "norms": (norms, end.clipping_norm)}
        return {
            "state of the optimizer": end.optim_state,
            **released,
            "iterates": iterates,
            "gradients": gradients,
        }

    keys = jax.eval_shape(
        functools.partial(StepKeys.derive, memory=step.local is not None), state.rng_key
    )
    keys = keys._replace(guide=jax.eval_shape(jax.random.key_data, keys.guide))
    implementation = "threefry2x32"
    numbers = PlanNumbers.of(plan)
    if step.shards is not None and step.shards.starts is None:
        numbers = numbers._replace(
            where=[jax.ShapeDtypeStruct((step.shards.num_records,), jnp.int32)]
        )
    public = (
        state.optim_state,
        state.loss_center,
        state.clipping_norm,
        numbers._replace(noise_multiplier=Given(numbers.noise_multiplier)),
        jax.tree.map(Given, plan.sampler.prepare(drawing.num_records)),
    )
    return fit, (keys, *public, *table)


def check_provable(required: bool) -> None:
    """Refuse a fit that requires a proof on an unsupported release of JAX, before any other work."""
    if required and (why := untried_jax()):
        raise PrivacyError(
            why, "install a tested release, or pass require_proof=False; the statement will say so."
        )


def with_proof(
    statement: Statement, plan: PrivacyPlan, certified: Callable[[], Certificate], required: bool
) -> Statement:
    """Add the outcome of the proof to the statement."""
    try:
        certificate = certified()
    except PrivacyError as error:
        if required:
            raise _refused(error) from error
        return statement.with_cautions(
            f"Not proved: it ran although the verifier found no proof, because {error.rule}"
        )
    try:
        certificate.check(plan)
    except PrivacyError as error:
        if required:
            raise _refused(error) from error
        return statement.with_violations(f"It ran although the verifier found that {error.rule}")
    # Without the program's fingerprint, which follows the number of records.
    return statement.with_notes(
        "Proved before it ran: the program itself was found to release no more than the plan says. The gradient engine in it is "
        "tested, not proved."
    )


def _refused(error: PrivacyError) -> PrivacyError:
    remedy = f"{error.remedy} Or pass require_proof=False to run anyway; the statement will say so."
    return PrivacyError(error.rule, remedy, output=error.output, chain=error.chain)
