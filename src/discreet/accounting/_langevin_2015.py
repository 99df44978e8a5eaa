"""What the first analysis of private Langevin dynamics, of 2015, makes of a run: a figure to compare with."""

import math
from typing import NamedTuple


class Bound2015(NamedTuple):
    """An epsilon as the paper of 2015 would have stated it.

    Attributes:
        epsilon: the least one that the noise affords by the paper's formula.
        in_range: whether the paper's condition on (epsilon, delta, steps, rate) holds, without which it claims nothing.
    """

    epsilon: float
    in_range: bool


def langevin_epsilon_2015(*, noise_multiplier: float, rate: float, num_steps: int, delta: float) -> Bound2015:
    """Epsilon of private stochastic gradient Langevin dynamics by the constants and advanced composition of 2015.

    **A historical figure, and no claim of discreet's.** The paper adds noise of standard deviation s to the gradient
    (N / tau) sum over a batch of tau out of N records, with s^2 >= 128 k L^2 log(2.5 k / delta) log(2 / delta) / epsilon^2
    for k = N T / tau steps and gradients of length L at most, and concludes (epsilon, delta). With q = tau / N and
    s = noise_multiplier L / q this solves for epsilon. The paper's conditions: tables of equal length that differ in one
    record, batches of a fixed size drawn without replacement, T >= epsilon^2 N / (32 tau log(2 / delta)); `in_range` says
    whether the last one holds. What runs here may have another relation and sampler; its epsilon is the plan's.

    Args:
        noise_multiplier: least noise of a step, as standard deviation on the sum of clipped gradients, divided by C.
        rate: sampling rate q.
        num_steps: k.
        delta: the delta to state epsilon at.

    Raises:
        ValueError: a number out of range.

    Reference:
        Wang, Fienberg and Smola, Privacy for free: posterior sampling and stochastic gradient Monte Carlo, ICML 2015,
        Algorithm 2 and its theorem.

    Example:
        >>> from discreet.accounting import langevin_epsilon_2015
        >>> bound = langevin_epsilon_2015(noise_multiplier=4.0, rate=0.01, num_steps=1_000, delta=1e-5)
        >>> round(bound.epsilon, 2), bound.in_range
        (13.74, False)
    """
    if not (noise_multiplier > 0 and 0 < rate <= 1 and num_steps >= 1 and 0 < delta < 1):
        raise ValueError(
            f"noise_multiplier={noise_multiplier}, rate={rate}, num_steps={num_steps}, delta={delta}: the first must be "
            "positive, the second in (0, 1], the third at least 1, and the last between 0 and 1."
        )
    variance = 128 * num_steps * math.log(2.5 * num_steps / delta) * math.log(2 / delta)
    epsilon = rate * math.sqrt(variance) / noise_multiplier
    return Bound2015(epsilon, epsilon <= rate * math.sqrt(32 * num_steps * math.log(2 / delta)))
