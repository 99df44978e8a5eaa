"""Audits: run a program many times on two neighbouring tables, and attack its releases.

`audit_mechanism` audits any program; `audit_fit` passes it the private step of a fit on two tables.
The attacker uses scores: those of the caller (such as a likelihood ratio), and those that
`learned_scores` learns from the first half of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from tqdm.auto import tqdm

from discreet._validate import fraction, integer, is_real, probability, real
from discreet.methods.audit._verdict import Claim, Verdict, claimed_epsilon, judge
from discreet.methods.inference import DPSGLD, DPSVI, OnePosteriorSample, releases_of
from discreet.privacy import random
from discreet.privacy.accounting import (
    PrivacyProfile,
    Relation,
    neighbours,
    profile as profile_of,
    pure_event,
    suggest,
)
from discreet.privacy.plan import PrivacyPlan

Released = Float[np.ndarray, "run *release"]
Score = Callable[[Released], Float[np.ndarray, " run"]]


def learned_scores(present: Released, absent: Released) -> dict[str, Score]:
    """Learn scores from the releases of the first half of the runs; axes: runs, then steps if there are two more axes.

    "direction": along the difference of the two means, each number divided by its variance: the
    best score for independent Gaussian noise and a canary that adds a constant. "spread": how far
    apart the steps lie in the direction of their mean difference, which shows noise that is drawn
    once for all steps.
    """
    there = _steps(present)
    gone = _steps(absent)
    fine = [x[_finite(x)] for x in (there, gone)]
    # Runs that are not finite are classified by that alone: to the side that has more of them.
    odd = np.inf if len(fine[0]) / len(there) <= len(fine[1]) / len(gone) else -np.inf
    if not all(len(x) for x in fine):
        return {"direction": _whole(lambda x: np.zeros(len(x)), odd)}
    apart = fine[0].mean(axis=0) - fine[1].mean(axis=0)
    variance = (fine[0].var(axis=0) + fine[1].var(axis=0)) / 2
    weights = _weights(apart, variance)
    common = _weights(apart.mean(axis=0), variance.mean(axis=0))
    scores = {"direction": _whole(lambda x: np.einsum("rsk,sk->r", x, weights), odd)}
    if there.shape[1] > 1:
        scores["spread"] = _whole(lambda x: np.ptp(x @ common, axis=1), odd)
    return scores


def _steps(released: Released) -> Float[np.ndarray, "run step number"]:
    wide = np.asarray(released, np.float64)
    return wide.reshape(len(wide), wide.shape[1] if wide.ndim > 2 else 1, -1)


def _finite(x: Float[np.ndarray, "run step number"]) -> Bool[np.ndarray, " run"]:
    return np.asarray(np.isfinite(x).all(axis=(1, 2)))


def _weights(apart: np.ndarray, variance: np.ndarray) -> np.ndarray:
    # Numbers without noise get a large weight if they differ, and none if they do not.
    floor = 1e-12 * max(float(np.max(np.square(apart), initial=0.0)), 1e-300)
    return apart / np.maximum(variance, floor)


def _whole(score: Callable[[Any], np.ndarray], odd: float) -> Score:
    def of(released: Released) -> np.ndarray:
        steps = _steps(released)
        fine = _finite(steps)
        return np.where(fine, score(np.where(fine[:, None, None], steps, 0.0)), odd)

    return of


Program = Callable[[PRNGKeyArray], Any]
_AT_ONCE = 1024
_MOST_BYTES = 2**32


def audit_mechanism(
    with_canary: Program,
    without_canary: Program,
    *,
    claim: Claim | float,
    delta: float,
    runs: int = 4000,
    confidence: float = 0.99,
    seed: int = 0,
    scores: Mapping[str, Score] | None = None,
    relation: Relation | None = None,
    target: str = "a mechanism",
    progress_bar: bool = True,
) -> Verdict:
    """Compute a lower bound on the ε of a program, from many runs on each of two neighbouring tables.

    Guarantee: since runs are independent, the lower bound exceeds the program's ε at `delta` with
    probability at most 1 - confidence, for any scores. The runs' keys follow from `seed`: another
    seed is another audit, and the best of many audits is not a valid audit. With a claim for all δ,
    the attacker's rates are also compared with the whole claim.

    A score and a threshold, in one of the two directions, are chosen on the first half of the runs;
    Clopper-Pearson bounds on the rates of that one test, from the second half, give ε >= log((TPR -
    δ) / FPR).

    Args:
        with_canary: Function from a key to the release with the canary in the table: an array, or a
            tree of arrays. JAX traces it; it is mapped over keys, or called in a loop if it
            contains a mechanism that refuses `vmap`.
        without_canary: The same on the neighbouring table.
        claim: The claim: a `PrivacyPlan`, a `PrivacyProfile`, or the ε at `delta`.
        delta: The δ to audit at; 0 for a pure ε.
        runs: Releases from each table; half of them choose the test. No ε above about log(runs /
            11) can be shown.
        confidence: Such as 0.99.
        seed: Any integer.
        scores: Further scores by name, each from released values (run, ...) to a number per run;
            added to those learned from the first half of the runs. A score may not use one run to
            score another.
        relation: By default the claim's, or ADD_OR_REMOVE_ONE.
        target: Description of the audited program.
        progress_bar: Show progress after two seconds.

    Raises:
        TypeError, ValueError: Arguments that do not make an audit.

    Reference:
        Jagielski, Ullman and Oprea, Auditing differentially private machine learning, NeurIPS 2020.

    >>> import jax, jax.numpy as jnp, discreet as dp
    >>> from discreet.methods.audit import audit_mechanism
    >>> def noisy(total):
    ...     return lambda key: dp.gaussian_mechanism(key, jnp.float32(total), stddev=4.0)
    >>> audit_mechanism(noisy(1.0), noisy(0.0), claim=1.0, delta=1e-5, runs=200).contradicted
    False
    """
    check_options(claim, delta, runs, confidence)
    with progress(2 * runs, progress_bar) as bar:
        # The two sides use different keys.
        sides = enumerate((with_canary, without_canary))
        present, absent = (
            repeated(program, seed, side, runs, bar.update) for side, program in sides
        )
    return verdict_of(
        present,
        absent,
        claim=claim,
        delta=delta,
        confidence=confidence,
        scores=scores,
        relation=relation,
        target=target,
    )


def verdict_of(
    present: Float[np.ndarray, "run *release"],
    absent: Float[np.ndarray, "run *release"],
    *,
    claim: Claim | float,
    delta: float,
    confidence: float,
    scores: Mapping[str, Score] | None,
    relation: Relation | None,
    target: str,
) -> Verdict:
    """Judge releases with the canary and without it, as `audit_mechanism` does."""
    half = len(present) // 2
    every = {**learned_scores(present[:half], absent[:half]), **(scores or {})}
    sides = (
        {name: np.asarray(score(x)) for name, score in every.items()} for x in (present, absent)
    )
    rates = judge(*sides, delta=delta, confidence=confidence)
    whole = claim.profile() if isinstance(claim, PrivacyPlan) else claim
    return Verdict(
        target=target,
        epsilon_lower=rates.epsilon(delta),
        claimed_epsilon=claimed_epsilon(claim, delta),
        delta=delta,
        confidence=confidence,
        runs=len(present) + len(absent),
        relation=(relation or getattr(claim, "relation", Relation.ADD_OR_REMOVE_ONE)).name,
        score=f"{rates.score}; the attacker says {rates.says!r}",
        power=rates.true_positive_rate,
        false_alarm=rates.false_positive_rate,
        allowed_power=float(whole.true_positive_rate(rates.false_positive_rate))
        if isinstance(whole, PrivacyProfile)
        else math.nan,
        mu_lower=rates.mu,
        evidence={"right": rates.caught, "wrong": rates.false_alarms, "of": rates.trials},
    )


def check_options(claim: Any, delta: float, runs: int, confidence: float) -> None:
    """Refuse arguments that do not make an audit, before anything is run."""
    if is_real(claim):
        real("claim", claim, 0.0, math.inf)
    elif not callable(getattr(claim, "epsilon", None)):
        raise TypeError(
            f"claim is a {type(claim).__name__}; pass the claimed guarantee: a PrivacyPlan, a PrivacyProfile, or the "
            "epsilon at delta as a number (infinity for none)."
        )
    fraction("delta", delta, hint="It should be well below 1 / number of records.")
    integer("runs", runs, least=20, hint="Thousands are needed to show an epsilon of 4.")
    probability("confidence", confidence, hint="0.99 is a common choice.")


def progress(total: int, shown: bool) -> Any:
    """A progress bar over runs, shown after two seconds."""
    disable = None if shown else True
    return tqdm(total=total, disable=disable, delay=2.0, unit="run", desc="audit", mininterval=0.2)


def repeated(
    program: Program, seed: int, side: int, runs: int, done: Callable[[int], object]
) -> Float[np.ndarray, "run *release"]:
    """Run a program with many keys: one compiled program, a thousand keys at a time."""
    keys = jax.random.split(jax.random.fold_in(random.key(seed), side), runs)
    # A program that is a pytree has its table as a leaf: two tables of one shape are then compiled
    # once.
    program = program if isinstance(program, Partial) else Partial(program)
    size = math.prod(jax.eval_shape(_flat, program, keys[0]).shape) * 4
    if size * 2 * runs > _MOST_BYTES:
        raise ValueError(
            f"{runs} runs from each table release {size * 2 * runs / 2**30:.3g} GiB, more than an audit keeps. Make fewer runs, "
            "audit fewer steps, or release less; the rest is not audited."
        )
    together = min(runs, _AT_ONCE, max(1, 2**28 // max(size, 1)))
    try:
        jax.eval_shape(_mapped, program, keys[:together])
        whole = _mapped
    except TypeError:
        whole = _looped  # a program that fails for another reason than `vmap` also fails here
    found = []
    for start in range(0, runs, together):
        # The last call has the size of the others, so nothing is compiled again.
        first = min(start, runs - together)
        found.append(np.asarray(whole(program, keys[first : first + together]))[start - first :])
        done(len(found[-1]))
    return np.concatenate(found)


def _flat(program: Program, key: PRNGKeyArray) -> Array:
    leaves = jax.tree.leaves(program(key))
    if len(leaves) == 1:
        return jnp.asarray(leaves[0], jnp.float32)
    return jnp.concatenate([jnp.asarray(x, jnp.float32).ravel() for x in leaves])


@jax.jit
def _mapped(program: Partial, keys: PRNGKeyArray) -> Array:
    return jax.vmap(lambda key: _flat(program, key))(keys)


@jax.jit
def _looped(program: Partial, keys: PRNGKeyArray) -> Array:
    return jax.lax.map(lambda key: _flat(program, key), keys)


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
    """Compute a lower bound on the ε of a fit, to compare with its plan, from many short fits of two neighbouring tables.

    It runs the fit's own step, sampler and noise (`inference.releases_of`), mapped over keys. The
    attacker sees all releases of a fit: the noisy gradient and the private loss of each step. **Use
    artificial tables**: an audit does not protect them, and its keys are derived from a seed.

    The bound is close to the claim if the neighbours saturate the clipping; `worst_case` makes such
    tables. For your own model, a good canary is a record whose gradient has norm C and differs from
    all others.

    Args:
        method: `DPSVI` or `DPSGLD` with the audited plan; or `OnePosteriorSample`, of which one
            draw is audited: each call of its `run` returns `num_draws` of them.
        with_canary: Arguments of `run`: arrays with the records, including the canary.
        without_canary: The same for the neighbouring table: one record less under
            ADD_OR_REMOVE_ONE, one replaced under REPLACE_ONE. If the arrays have one length, the
            caller must make sure that they are neighbours.
        delta: The δ to audit at; None: the plan's, or a cautious choice; 0 for one posterior
            sample.
        runs: Fits of each table.
        confidence: As in `audit_mechanism`.
        seed: Likewise.
        scores: Likewise; from released values (run, step, number).
        init_params: As in `DPSVI.run`.
        target: Description of the audited fit.
        progress_bar: Show progress after two seconds.

    Raises:
        TypeError, ValueError: Tables that are not neighbours, or errors of `run` and
            `audit_mechanism`.
    """
    if not isinstance(method, DPSVI | DPSGLD | OnePosteriorSample):
        raise TypeError(
            f"method is a {type(method).__name__}; pass a DPSVI, DPSGLD or OnePosteriorSample. Audit other programs with "
            "audit_mechanism, as functions of a key."
        )
    if not isinstance(method, OnePosteriorSample):
        plan = method.plan
        _check_neighbours(with_canary, without_canary, plan.relation)
        if delta is None:
            delta = (
                suggest(num_records=plan.num_records).delta
                if plan.target_delta is None
                else plan.target_delta
            )
        return audit_mechanism(
            releases_of(method, *with_canary, init_params=init_params),
            releases_of(method, *without_canary, init_params=init_params),
            claim=plan,
            delta=delta,
            runs=runs,
            confidence=confidence,
            seed=seed,
            scores=scores,
            target=target or f"{type(method).__name__}, {plan.sampling!r}, {plan.num_steps} steps",
            progress_bar=progress_bar,
        )
    _check_neighbours(with_canary, without_canary, method.relation)
    if scores or init_params:
        raise ValueError(
            "One posterior sample has neither initial values nor steps; omit scores and init_params."
        )
    claim = profile_of(pure_event(method.epsilon / method.num_draws), method.relation)
    delta = delta or 0.0
    check_options(claim, delta, runs, confidence)
    with progress(2 * runs, progress_bar) as bar:
        sides = enumerate((with_canary, without_canary))
        present, absent = (
            _draws(method, args, seed, side, runs, bar.update) for side, args in sides
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
    method: OnePosteriorSample,
    args: Sequence[Any],
    seed: int,
    side: int,
    runs: int,
    done: Callable[[int], object],
) -> np.ndarray:
    """The last states of chains, as `run` releases them; the chains of one call run together."""
    key = jax.random.fold_in(random.key(seed), side)
    found = []
    count = 0
    while count < runs:
        draws = method.run(jax.random.fold_in(key, count), *args, progress_bar=False).draws
        found.append(np.concatenate([x.reshape(len(x), -1) for x in draws.values()], axis=1))
        count += len(found[-1])
        done(len(found[-1]))
    return np.concatenate(found)[:runs]


def _check_neighbours(
    with_canary: Sequence[Any], without_canary: Sequence[Any], relation: Relation
) -> None:
    """Refuse tables whose lengths rule out that they are neighbours."""
    lengths = [
        {np.shape(x)[0] for x in jax.tree.leaves(side) if np.ndim(x)}
        for side in (with_canary, without_canary)
    ]
    if any(len(x) != 1 for x in lengths):
        raise ValueError(
            "with_canary and without_canary are the arguments of run, such as (xs, ys): arrays of equally many rows each. "
            f"These have {sorted(lengths[0])} and {sorted(lengths[1])} rows."
        )
    there, gone = (x.pop() for x in lengths)
    near = neighbours(relation)
    more = int(near.hides_membership)
    if there - gone != more:
        raise ValueError(
            f"The tables have {there} records with the canary and {gone} without, but neighbours with "
            f"{near.name('record')} have {'one more' if more else 'as many'} with it. Other tables would "
            "contradict a true claim."
        )
