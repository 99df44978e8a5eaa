"""The audit of a fit: the private step itself, on a table with the canary and on one without."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from discreet import random
from discreet.accounting import profile as profile_of
from discreet.accounting import pure_event, suggest
from discreet.audit._mechanism import ABSENT, PRESENT, audit_mechanism, check_options, progress, verdict_of
from discreet.audit._scores import Score
from discreet.audit._verdict import Verdict
from discreet.inference import DPSGLD, DPSVI, OnePosteriorSample, releases_of


def audit_fit(
    method: DPSVI | DPSGLD | OnePosteriorSample,
    with_canary: Sequence[Any],
    without_canary: Sequence[Any],
    *,
    delta: float | None = None,
    runs: int = 4000,
    confidence: float = 0.99,
    seed: int = 0,
    scores: Mapping[str, Score] | None = None,
    init_params: Mapping[str, Any] | None = None,
    target: str | None = None,
    progress_bar: bool = True,
) -> Verdict:
    """A lower bound on the ε of a fit, to be held against its plan: many short fits of two neighbouring tables.

    What runs is the fit's own step, sampler and noise (`inference.releases_of`), mapped over keys. The attacker sees, as in
    `audit_mechanism`, all that a fit may give out: the noisy gradient and the private loss of each step. **Make the
    tables up**: an audit hides nothing of them, and its keys are made from a seed.

    The tighter the neighbours saturate the clipping, the nearer the bound comes to the claim; `worst_case` makes such ones. The
    canary of one's own model is best a record whose gradient is as long as C and unlike all others.

    Args:
        method: `DPSVI` or `DPSGLD` with the plan that is audited; or `OnePosteriorSample`, of which one draw is audited: each
            call of its `run` gives `num_draws` of them.
        with_canary: arguments of `run`: arrays with the records, the canary among them.
        without_canary: the same for the neighbouring table: one record less under ADD_OR_REMOVE_ONE, one replaced under
            REPLACE_ONE. That they are neighbours, the caller has to see to where the arrays are of one length.
        delta: at which δ; None: the plan's, or a cautious choice; 0 for one posterior sample.
        runs: fits of each table.
        confidence: as in `audit_mechanism`.
        seed: likewise.
        scores: likewise; of released values (run, step, number).
        init_params: as in `DPSVI.run`.
        target: what is audited, in words.
        progress_bar: show progress after two seconds.

    Raises:
        TypeError, ValueError: tables that are no neighbours, or as `run` and `audit_mechanism`.
    """
    if not isinstance(method, DPSVI | DPSGLD | OnePosteriorSample):
        raise TypeError(
            f"method is a {type(method).__name__}; pass a DPSVI, DPSGLD or OnePosteriorSample. Other programs are audited by "
            "audit_mechanism, as functions of a key."
        )
    with_canary, without_canary = tuple(with_canary), tuple(without_canary)
    relation = method.relation if isinstance(method, OnePosteriorSample) else method.plan.relation
    _check_neighbours(with_canary, without_canary, relation.name)
    if isinstance(method, OnePosteriorSample):
        if scores or init_params:
            raise ValueError(
                "One posterior sample has neither initial values nor steps; leave scores and init_params out."
            )
        return _audit_draws(
            method, with_canary, without_canary, delta or 0.0, runs, confidence, seed, target, progress_bar
        )
    plan = method.plan.alone()
    if delta is None:
        delta = suggest(num_records=plan.num_records).delta if plan.target_delta is None else plan.target_delta
    check_options(plan, delta, runs, confidence)
    sides = (releases_of(method, *args, init_params=init_params) for args in (with_canary, without_canary))
    return audit_mechanism(
        *sides,
        claim=plan,
        delta=delta,
        runs=runs,
        confidence=confidence,
        seed=seed,
        scores=scores,
        target=target or f"{type(method).__name__}, {plan.sampling!r}, {plan.num_steps} steps",
        progress_bar=progress_bar,
    )


def _audit_draws(
    method: OnePosteriorSample,
    with_canary: Sequence[Any],
    without_canary: Sequence[Any],
    delta: float,
    runs: int,
    confidence: float,
    seed: int,
    target: str | None,
    progress_bar: bool,
) -> Verdict:
    """Last states of chains, as `run` releases them; chains of one call are run together."""
    claim = profile_of(pure_event(method.epsilon / method.num_draws), method.relation)
    check_options(claim, delta, runs, confidence)
    with progress(2 * runs, progress_bar) as done:
        sides = (with_canary, PRESENT), (without_canary, ABSENT)
        present, absent = (
            _draws(functools.partial(method.run, progress_bar=False), *s, seed, runs, done) for s in sides
        )
    return verdict_of(
        present,
        absent,
        claim=claim,
        delta=delta,
        confidence=confidence,
        scores=None,
        relation=method.relation,
        target=target or "OnePosteriorSample, one draw",
    )


def _draws(
    run: Callable[..., Any], args: Sequence[Any], side: int, seed: int, runs: int, done: Callable[[int], None]
) -> np.ndarray:
    key, found, count = jax.random.fold_in(random.key(seed), side), [], 0
    while count < runs:
        draws = run(jax.random.fold_in(key, count), *args).draws
        found.append(np.concatenate([x.reshape(len(x), -1) for x in draws.values()], axis=1))
        count += len(found[-1])
        done(len(found[-1]))
    return np.concatenate(found)[:runs]


def _check_neighbours(with_canary: Sequence[Any], without_canary: Sequence[Any], relation: str) -> None:
    """Refuse tables whose lengths are not those of neighbours.

    Raises:
        ValueError: with the lengths.
    """
    lengths = [{np.shape(x)[0] for x in jax.tree.leaves(side) if np.ndim(x)} for side in (with_canary, without_canary)]
    if any(len(x) != 1 for x in lengths):
        raise ValueError(
            "with_canary and without_canary are the arguments of run, such as (xs, ys): arrays of as many rows as each other. "
            f"These have {sorted(lengths[0])} and {sorted(lengths[1])} rows."
        )
    there, gone = (x.pop() for x in lengths)
    more = 1 if relation == "ADD_OR_REMOVE_ONE" else 0
    if there - gone != more:
        raise ValueError(
            f"The tables have {there} records with the canary and {gone} without, but under {relation} neighbours have "
            f"{'one more' if more else 'as many'} with it. Anything else would contradict a true claim."
        )
