"""An audit by a single run: many canaries, each included by its own coin, and guesses about the coins.

`one_run_p_value` bounds the number of right guesses of a private program; `audit_one_run` makes and
counts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from discreet._validate import integer, probability, real
from discreet.methods.audit._audits import check_options
from discreet.methods.audit._verdict import Claim, Verdict, claimed_epsilon
from discreet.privacy.accounting import Relation, neighbours

Scored = Callable[[int, Bool[np.ndarray, " canary"]], Float[np.ndarray, " canary"]]


def one_run_p_value(
    num_canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """Bound the probability of at least v correct guesses after one run of an (ε, δ)-private program.

    Each of m canaries was a record by an independent fair coin; r guesses were made, v of them
    correct. If the program is (ε, δ)-private for each coin, then with f(k) = P[Binomial(r, e^ε / (1
    + e^ε)) >= k]

        P[at least v correct] <= f(v) + 2 m δ max over i = 1..m of (f(v - i) - f(v)) / i.

    Args:
        num_canaries: m.
        guesses: r, at most m. It may depend on the coins only through the releases.
        correct: v.
        epsilon: At least 0.
        delta: In [0, 1].

    Raises:
        ValueError: Numbers out of these ranges.

    Reference:
        Steinke, Nasr and Jagielski, Privacy auditing with one (1) training run, NeurIPS 2023,
        Theorem 5.2.

    >>> round(one_run_p_value(100, 100, 60, 0.0, 0.0), 4)
    0.0284
    """
    if not 0 <= correct <= guesses <= num_canaries or num_canaries < 1:
        raise ValueError(
            f"{correct} correct among {guesses} guesses about {num_canaries} canaries is impossible; each number must be at most "
            "the next, with at least one canary."
        )
    real("epsilon", epsilon, 0.0, math.inf)
    real("delta", delta, 0.0, 1.0)
    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, accuracy))
    # P[v > Binomial >= v - i] for i = 1..v; further i add nothing to the numerator.
    below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, accuracy))
    worst = float(np.max(below / np.arange(1, correct + 1), initial=0.0))
    return min(1.0, tail + 2 * num_canaries * delta * worst)


def one_run_epsilon(
    num_canaries: int, guesses: int, correct: int, delta: float, confidence: float
) -> float:
    """Find the largest ε, rounded down, that the number of correct guesses refutes at δ.

    Guarantee: for an (ε, δ)-private program the result exceeds ε with probability at most 1 -
    confidence. (Privacy at some ε implies privacy at any larger one, so refuting one refutes all
    below it.)

    Args:
        num_canaries: As in `one_run_p_value`.
        guesses: Likewise.
        correct: Likewise.
        delta: Likewise.
        confidence: Such as 0.99.

    >>> round(one_run_epsilon(1000, 1000, 1000, 0.0, 0.95), 3)
    5.809
    """
    level = 1 - probability("confidence", confidence, hint="0.99 is a common choice.")

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(num_canaries, guesses, correct, epsilon, delta) <= level

    if not refuted(0.0):
        return 0.0
    low = 0.0
    high = 1.0
    while refuted(high):
        low = high
        high = 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


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
    """Compute a lower bound on ε from a single run, for fits that are too expensive to repeat thousands of times.

    A fair coin decides whether each canary is in the table. After the run the attacker guesses "in"
    for the half of `guesses` with the highest scores and "out" for the half with the lowest, and
    abstains on the others; Theorem 5.2 of the reference bounds the number of correct guesses.

    Guarantee: the lower bound exceeds the program's ε at `delta` with probability at most 1 -
    confidence, if the scores depend on the canaries' coins only through the program's releases. It
    is looser than many runs: it does not bound the best attack.

    Args:
        run: Function from a seed, for the program's own key, and the Boolean membership of each
            canary to one score per canary, higher if it seems to be in. `canary_fit` makes one for
            a plan; for your own model, use the alignment of each canary's gradient with the
            released ones.
        num_canaries: m.
        claim: A plan or profile, or the ε at `delta`; for records added or removed.
        delta: The δ to audit at. It enters the bound multiplied by m.
        guesses: Number of guesses, chosen beforehand; None: a fifth of the canaries, and at least
            ten.
        confidence: Such as 0.99.
        seed: Any integer; coins and run follow from it.
        target: Description of the audited program.

    Raises:
        TypeError, ValueError: Arguments that do not make an audit, or invalid scores.

    Reference:
        Steinke, Nasr and Jagielski, Privacy auditing with one (1) training run, NeurIPS 2023,
        Algorithm 1 and Theorem 5.2.
    """
    check_options(claim, delta, 20, confidence)
    integer(
        "num_canaries",
        num_canaries,
        least=10,
        hint="A thousand are needed to show an epsilon of 3.",
    )
    guesses = min(num_canaries, max(10, num_canaries // 5)) if guesses is None else guesses
    integer("guesses", guesses, least=2, most=num_canaries)
    relation = getattr(claim, "relation", Relation.ADD_OR_REMOVE_ONE)
    if not neighbours(relation).hides_membership:
        raise ValueError(
            f"The claim is for {neighbours(relation).name('record')}, but present and absent canaries differ by a record "
            "added or removed. Pass a claim under Relation.ADD_OR_REMOVE_ONE (--relation add-or-remove-one)."
        )
    coins, own = np.random.SeedSequence(abs(int(seed))).spawn(2)
    included = np.random.default_rng(coins).random(num_canaries) < 0.5
    scores = np.asarray(run(int(own.generate_state(1)[0]), included), np.float64)
    if scores.shape != (num_canaries,) or np.isnan(scores).any():
        raise ValueError(
            f"run returned scores of shape {scores.shape}; it must return one number for each of {num_canaries} canaries."
        )
    order = np.argsort(scores, kind="stable")
    low = order[: guesses // 2]
    high = order[len(order) - (guesses - guesses // 2) :]
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
