"""From counts to lower bounds on ε: the statistics of an audit, without any program to audit."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats


def clopper_pearson(
    successes: ArrayLike, trials: int, level: float
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """One-sided bounds on a probability: each of the two is wrong with probability at most `level`.

    Args:
        successes: how often it happened, an array or a number.
        trials: how often it was tried, independently.
        level: in (0, 1).

    Returns:
        Lower and upper bounds; 0 where nothing happened, 1 where it always did.

    Raises:
        ValueError: counts outside [0, trials], or a level outside (0, 1).

    Reference:
        Clopper and Pearson, The use of confidence or fiducial limits, Biometrika 26(4), 1934.

    >>> low, high = clopper_pearson(0, 100, 0.05)
    >>> round(float(low), 3), round(float(high), 3)
    (0.0, 0.03)
    """
    counts = np.asarray(successes)
    if trials < 1 or (counts < 0).any() or (counts > trials).any():
        raise ValueError(f"Of {trials} trials {successes} were successes; give counts between 0 and the trials.")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it is the probability that a bound is wrong, such as 0.01.")
    low = np.where(counts == 0, 0.0, stats.beta.ppf(level, np.maximum(counts, 1), trials - counts + 1))
    high = np.where(counts == trials, 1.0, stats.beta.isf(level, counts + 1, np.maximum(trials - counts, 1)))
    return low, high


def epsilon_lower_bound(
    true_positive_rate: ArrayLike, false_positive_rate: ArrayLike, delta: float
) -> Float[np.ndarray, "..."]:
    """The least ε with which the two rates of one test agree at δ: log((TPR - δ) / FPR), and at least 0.

    With a lower bound on the first and an upper bound on the second it is a lower bound on ε, as sure as the two are together.
    The other direction, log((1 - FPR - δ) / (1 - TPR)), is the same for the test that guesses the opposite.

    Args:
        true_positive_rate: probability that a test says "there" where the canary is.
        false_positive_rate: probability that it says so where it is not.
        delta: at which δ.

    Reference:
        Kairouz, Oh and Viswanath, The composition theorem for differential privacy, ICML 2015, Theorem 2.1; as an audit:
        Jagielski, Ullman and Oprea, NeurIPS 2020.

    >>> round(float(epsilon_lower_bound(0.5, 0.1, 0.0)), 3)
    1.609
    """
    top = np.maximum(np.asarray(true_positive_rate, float) - delta, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(top) - np.log(np.asarray(false_positive_rate, float))
    return np.maximum(np.where(top > 0, ratio, 0.0), 0.0)


def one_run_p_value(num_canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """At most how likely so many correct guesses, or more, are after one run of an (ε, δ)-private program.

    Each of m canaries was a record with probability 1/2 by a coin of its own; r guesses were made, v of them correct. If the
    program is (ε, δ)-private for each coin, then with f(k) = P[Binomial(r, e^ε / (1 + e^ε)) >= k]

        P[at least v correct] <= f(v) + 2 m δ max over i = 1..m of (f(v - i) - f(v)) / i.

    Args:
        num_canaries: m.
        guesses: r, at most m. It may not depend on the coins but through what was released.
        correct: v.
        epsilon: at least 0.
        delta: in [0, 1].

    Raises:
        ValueError: numbers out of these ranges.

    Reference:
        Steinke, Nasr and Jagielski, Privacy auditing with one (1) training run, NeurIPS 2023, Theorem 5.2.

    >>> round(one_run_p_value(100, 100, 60, 0.0, 0.0), 4)
    0.0284
    """
    if not 0 <= correct <= guesses <= num_canaries or num_canaries < 1:
        raise ValueError(
            f"{correct} correct among {guesses} guesses about {num_canaries} canaries is impossible; each number is at most the "
            "next, and there is a canary."
        )
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise ValueError(f"epsilon is {epsilon} and delta {delta}; give epsilon >= 0, and delta between 0 and 1.")
    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, accuracy))
    # P[v > Binomial >= v - i] for i = 1..v; further i add nothing to the numerator.
    below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, accuracy))
    worst = float(np.max(below / np.arange(1, correct + 1), initial=0.0))
    return min(1.0, tail + 2 * num_canaries * delta * worst)


def one_run_epsilon(num_canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The largest ε, rounded down, that so many correct guesses refute at δ.

    Guarantee: for an (ε, δ)-private program the result exceeds ε with probability at most 1 - confidence. (A program that is
    private at some ε is so at any larger one, so what refutes one refutes all below it.)

    Args:
        num_canaries: as in `one_run_p_value`.
        guesses: likewise.
        correct: likewise.
        delta: likewise.
        confidence: such as 0.99.

    >>> round(one_run_epsilon(1000, 1000, 1000, 0.0, 0.95), 3)
    5.809
    """
    level = 1 - confidence
    if not 0 < level < 1:
        raise ValueError(f"confidence is {confidence}; it is a probability below 1, such as 0.99.")

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(num_canaries, guesses, correct, epsilon, delta) <= level

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
