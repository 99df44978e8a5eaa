"""The audit of any program: many releases with the canary, many without, and a test between them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray
from tqdm import tqdm

from discreet import random
from discreet.accounting import PrivacyProfile, Relation
from discreet.audit._judge import judge
from discreet.audit._scores import Score, learned_scores, scored
from discreet.audit._verdict import Claim, Verdict, claimed_epsilon
from discreet.plan import PrivacyPlan

Program = Callable[[PRNGKeyArray], Any]
_AT_ONCE = 1024
_MOST_BYTES = 2**32
# The sides draw from keys of their own.
PRESENT, ABSENT = 0, 1


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
    """A lower bound on the ε of a program, from many runs on each of two neighbouring tables.

    Guarantee: the runs being independent, the lower bound exceeds the program's ε at `delta` with probability at most
    1 - confidence, whatever the scores. The runs' keys follow from `seed`: another seed is another audit, and the best of many
    audits is none. With a claim for all δ, the verdict also holds the attacker's rates against all of it.

    A score and a threshold, in one of the two directions, are chosen on the first half of the runs; Clopper-Pearson bounds on
    the rates of that one test, from the second half, give ε >= log((TPR - δ) / FPR).

    Args:
        with_canary: from a key to what is released with the canary in the table: an array, or a tree of arrays. For JAX to
            trace; mapped over keys, or looped over where it holds a mechanism that refuses to be mapped.
        without_canary: the same on the neighbouring table.
        claim: what is claimed: a `PrivacyPlan`, a `PrivacyProfile`, or the ε at `delta`.
        delta: at which δ; 0 for a pure ε.
        runs: releases from each table; half of them choose the test. No ε above about log(runs / 11) can be shown.
        confidence: such as 0.99.
        seed: any integer.
        scores: further scores by name, each from released values (run, ...) to a number for each run; beside those that are
            learned from the first half of the runs. A score may not look at one run to score another.
        relation: left out, the claim's, or ADD_OR_REMOVE_ONE.
        target: what is audited, in words.
        progress_bar: show progress after two seconds.

    Raises:
        TypeError, ValueError: arguments that make no audit.

    Reference:
        Jagielski, Ullman and Oprea, Auditing differentially private machine learning, NeurIPS 2020.

    >>> import jax, jax.numpy as jnp, discreet as dp
    >>> from discreet.audit import audit_mechanism
    >>> def noisy(total):
    ...     return lambda key: dp.gaussian_mechanism(key, jnp.float32(total), stddev=4.0)
    >>> audit_mechanism(noisy(1.0), noisy(0.0), claim=1.0, delta=1e-5, runs=200).contradicted
    False
    """
    check_options(claim, delta, runs, confidence)
    with progress(2 * runs, progress_bar) as done:
        sides = (with_canary, PRESENT), (without_canary, ABSENT)
        present, absent = (repeated(program, seed, side, runs, done) for program, side in sides)
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
    """The verdict on releases with the canary and without it, as `audit_mechanism` gives it."""
    half = len(present) // 2
    every = {**learned_scores(present[:half], absent[:half]), **(scores or {})}
    rates = judge(*scored(every, present, absent), delta=delta, confidence=confidence)
    whole = _whole(claim)
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
        allowed_power=math.nan if whole is None else float(whole.true_positive_rate(rates.false_positive_rate)),
        mu_lower=rates.mu,
        evidence={"right": rates.caught, "wrong": rates.false_alarms, "of": rates.trials},
    )


def _whole(claim: Claim | float) -> PrivacyProfile | None:
    """The claim at all δ, if it is one."""
    if isinstance(claim, PrivacyPlan):
        return claim.profile()
    return claim if isinstance(claim, PrivacyProfile) else None


def check_options(claim: Any, delta: float, runs: int, confidence: float) -> None:
    """Refuse what makes no audit, before it takes its time.

    Raises:
        TypeError, ValueError: saying which.
    """
    if isinstance(claim, bool) or not (isinstance(claim, numbers.Real) or callable(getattr(claim, "epsilon", None))):
        raise TypeError(
            f"claim is a {type(claim).__name__}; pass what the program promises: a PrivacyPlan, a PrivacyProfile, or the "
            "epsilon at delta as a number (infinity for no promise)."
        )
    if isinstance(claim, numbers.Real) and not float(claim) >= 0:
        raise ValueError(f"claim is {claim}; an epsilon is at least 0.")
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta}; give a number from 0 up to 1, well below 1 / number of records.")
    if isinstance(runs, bool) or not isinstance(runs, numbers.Integral) or runs < 20:
        raise ValueError(
            f"runs is {runs!r}; of each table at least 20 are needed, and thousands to show an epsilon of 4."
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it is a probability below 1, such as 0.99.")


@contextmanager
def progress(total: int, shown: bool) -> Iterator[Callable[[int], Any]]:
    """A bar over runs, after two seconds."""
    with tqdm(total=total, disable=not shown, delay=2.0, unit="run", desc="audit", mininterval=0.2) as bar:
        yield lambda count: bar.update(count)


def repeated(
    program: Program, seed: int, side: int, runs: int, done: Callable[[int], Any] = lambda count: None
) -> Float[np.ndarray, "run *release"]:
    """What a program releases with so many keys: one compiled program, a thousand keys at a time."""
    keys = jax.random.split(jax.random.fold_in(random.key(seed), side), runs)
    # A program that is a tree holds its table as an argument: two tables of one shape are then compiled once.
    program = program if isinstance(program, Partial) else Partial(program)
    size = math.prod(jax.eval_shape(_flat, program, keys[0]).shape) * 4
    if size * 2 * runs > _MOST_BYTES:
        raise ValueError(
            f"{runs} runs from each table release {size * 2 * runs / 2**30:.3g} GiB, more than an audit keeps. Make fewer runs, "
            "audit fewer steps, or release less: what is left out of an audit is not audited."
        )
    together = min(runs, _AT_ONCE, max(1, 2**28 // max(size, 1)))
    whole = _mapped if _can_be_mapped(program, keys[:together]) else _looped
    found = []
    for start in range(0, runs, together):
        # The last call is as long as the others, so that nothing is compiled anew.
        first = min(start, runs - together)
        found.append(np.asarray(whole(program, keys[first : first + together]))[start - first :])
        done(len(found[-1]))
    return np.concatenate(found)


def _flat(program: Program, key: PRNGKeyArray) -> Array:
    leaves = jax.tree.leaves(program(key))
    if len(leaves) == 1:
        return jnp.asarray(leaves[0], jnp.float32)
    return jnp.concatenate([jnp.asarray(x, jnp.float32).ravel() for x in leaves])


def _can_be_mapped(program: Partial, keys: PRNGKeyArray) -> bool:
    """Whether no mechanism in it refuses; what fails for another reason fails in a loop, too."""
    try:
        jax.eval_shape(_mapped, program, keys)
    except TypeError:
        return False
    return True


@jax.jit
def _mapped(program: Partial, keys: PRNGKeyArray) -> Array:
    return jax.vmap(lambda key: _flat(program, key))(keys)


@jax.jit
def _looped(program: Partial, keys: PRNGKeyArray) -> Array:
    return jax.lax.map(lambda key: _flat(program, key), keys)
