"""A fit as a function of its key, to be run many times over by who attacks it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray

from discreet import random
from discreet.inference._checks import check_length
from discreet.inference._dpsgld import DPSGLD
from discreet.inference._dpsvi import DPSVI
from discreet.inference._keys import StepKeys
from discreet.inference._loop import many_steps
from discreet.inference._records import take_apart
from discreet.inference._step import DPSVIState, PlanNumbers, PrivateStep
from discreet.inference._trace import start_mean


def releases_of(
    method: DPSVI | DPSGLD, *args: Any, init_params: Mapping[str, Any] | None = None, **kwargs: Any
) -> Callable[[PRNGKeyArray], Float[Array, "step release"]]:
    """What a fit gives out at each step, as a function of its key: the program that `run` compiles, without its bookkeeping.

    The same samplers, step and noise, in the same loop. It can be mapped over keys. For audits of made-up records only: nothing
    is proved, debited or stated, so it takes keys made from a seed alone, with which nothing is private.

    Args:
        method: a `DPSVI` or a `DPSGLD`.
        args: the records, as `run` takes them.
        init_params: as in `DPSVI.run`. Initial values are the same for all keys: an attacker knows them.
        kwargs: likewise.

    Returns:
        A function from a key to one row for each step, and a pytree of the records that it holds. In a row are the gradient
        that the optimizer was given, times q, so for a point guide in unconstrained space the noisy sum itself and q times the
        slope of the prior; then the private loss, unless its share is 0; then C, if it moves.

    Raises:
        TypeError, ValueError: as `run`. The function itself refuses keys that are secret.
    """
    dpsvi = method._dpsvi if isinstance(method, DPSGLD) else method
    records, plan = take_apart(args, kwargs), dpsvi.plan
    plan.sampling.check(plan.num_records, plan.relation)
    check_length(plan, records.size)
    state = dpsvi._init(random.key(0), records, init_params)._replace(rng_key=None)
    step, leaves = dpsvi._initialised(), [jnp.asarray(x) for x in records.leaves]
    tables = jax.tree.map(jnp.asarray, plan.sampling.prepare(records.size))

    program = _program(step, plan.sampling.drawing(records.size), plan.num_steps)
    return Partial(program, PlanNumbers.of(plan), state, leaves, tables)


@functools.lru_cache(maxsize=8)
def _program(step: PrivateStep, drawing: Any, steps: int) -> Callable[..., Float[Array, "step release"]]:
    """One function for all tables, so that those of one shape are compiled once."""

    def releases(
        numbers: PlanNumbers, state: DPSVIState, leaves: list[Array], tables: Any, key: PRNGKeyArray
    ) -> Float[Array, "step release"]:
        if not random.is_reproducible(key):
            raise ValueError(
                "releases_of takes keys made from a seed, such as discreet.random.key(1): what it releases is accounted for "
                "nowhere. To fit records of people, call run."
            )
        keys = StepKeys.derive(key, memory=step.local is not None)
        mean = start_mean(0, keep=False)
        _, _, losses, norms, _, gradients = many_steps(
            step, drawing, steps, False, True, keys, state, mean, numbers, leaves, tables, steps
        )
        beside = [losses] * (step.loss_share > 0) + [norms] * step.adapts
        return jnp.concatenate([gradients * numbers.rate, *(x[:, None] for x in beside)], axis=1)

    return releases
