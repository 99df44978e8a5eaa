"""The audit by one run: many canaries, each in the table by a coin of its own, and guesses about the coins."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

from discreet.accounting import Relation
from discreet.audit._bounds import one_run_epsilon
from discreet.audit._mechanism import check_options
from discreet.audit._verdict import Claim, Verdict, claimed_epsilon

Scored = Callable[[int, Bool[np.ndarray, " canary"]], Float[np.ndarray, " canary"]]


def audit_one_run(
    run: Scored,
    num_canaries: int,
    *,
    claim: Claim | float,
    delta: float,
    guesses: int | None = None,
    confidence: float = 0.99,
    seed: int = 0,
    target: str = "one run",
) -> Verdict:
    """A lower bound on ε from a single run, for fits that take too long to be run thousands of times.

    Each canary is in the table by a fair coin. After the run the attacker names the half of `guesses` with the highest scores
    as in, the half with the lowest as out, and says nothing of the others; Theorem 5.2 of the reference bounds how many may be
    right.

    Guarantee: the lower bound exceeds the program's ε at `delta` with probability at most 1 - confidence, if the canaries' coins
    reach the scores through what the program released alone. It is looser than many runs: no bound on the best attack.

    Args:
        run: from a seed, for the program's own key, and which canaries are records, to one score for each canary, higher where
            it seems to be in. `canary_fit` makes one for a plan; for a model of one's own, take the alignment of each canary's
            gradient with the released ones.
        num_canaries: m.
        claim: a plan or profile, or the ε at `delta`; for records added or removed.
        delta: at which δ. It enters the bound m times over.
        guesses: how many canaries to guess about, chosen beforehand; None: a fifth of them, and ten at least.
        confidence: such as 0.99.
        seed: any integer; coins and run follow from it.
        target: what is audited, in words.

    Raises:
        TypeError, ValueError: arguments that make no audit, or scores that are none.

    Reference:
        Steinke, Nasr and Jagielski, Privacy auditing with one (1) training run, NeurIPS 2023, Algorithm 1 and Theorem 5.2.
    """
    check_options(claim, delta, 20, confidence)
    if num_canaries < 10:
        raise ValueError(
            f"num_canaries is {num_canaries}; at least 10 are needed, and a thousand to show an epsilon of 3."
        )
    guesses = min(num_canaries, max(10, num_canaries // 5)) if guesses is None else guesses
    if not 2 <= guesses <= num_canaries:
        raise ValueError(f"guesses is {guesses}; give a number from 2 to that of the canaries, {num_canaries}.")
    relation = getattr(claim, "relation", Relation.ADD_OR_REMOVE_ONE)
    if relation is not Relation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            f"The claim is under {relation.name}, but canaries that are there or not differ by a record added or removed. Pass a "
            "claim under ADD_OR_REMOVE_ONE."
        )
    coins, own = np.random.SeedSequence(abs(int(seed))).spawn(2)
    included = np.random.default_rng(coins).random(num_canaries) < 0.5
    scores = np.asarray(run(int(own.generate_state(1)[0]), included), np.float64)
    if scores.shape != (num_canaries,) or np.isnan(scores).any():
        raise ValueError(
            f"run gave scores of shape {scores.shape}; it must give one number for each of {num_canaries} canaries."
        )
    order = np.argsort(scores, kind="stable")
    low, high = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    correct = int(included[high].sum() + (~included[low]).sum())
    return Verdict(
        target=target,
        epsilon_lower=one_run_epsilon(num_canaries, guesses, correct, delta, confidence),
        claimed_epsilon=claimed_epsilon(claim, delta),
        delta=delta,
        confidence=confidence,
        runs=1,
        relation=relation.name,
        score="the canaries' own",
        evidence={"canaries": num_canaries, "guesses": guesses, "right": correct},
    )
