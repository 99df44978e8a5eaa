"""Calibration: the least noise, or the most steps, that keep epsilon at or below a target. Always from the safe side."""

import math
from collections.abc import Callable
from typing import NoReturn

from dp_accounting import dp_event

from discreet.accounting._curves import SlackCurve, smallest_epsilon
from discreet.accounting._events import Relation, curve_of

_COARSE, _FINE = 5e-3, 1e-4
_CLOSE = 0.999
"""The calibrated plan spends at least this share of the target."""
_NOISE_RANGE = (1e-4, 1e12)
_MAX_STEPS = 10**9


def calibrate_noise_multiplier(
    event_of: Callable[[float], dp_event.DpEvent],
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    slack: float = 0.0,
) -> float:
    """Least noise multiplier whose event costs no more than (epsilon, delta).

    Guarantee: profile(event_of(result), relation, slack=slack).epsilon(delta) <= epsilon, and at least 0.999 of it.

    Args:
        event_of: the event as a function of the noise multiplier (stddev / C); its epsilon falls as the noise grows.
        epsilon: target, finite and above 0.
        delta: target, above `slack` and below 1.
        relation: which data sets are neighbours.
        slack: as in `profile`; the same for any noise.

    Returns:
        The noise multiplier.

    Raises:
        ValueError: the targets are out of range, or no noise meets them, or any noise does (delta so large that it says nothing).

    Example:
        >>> from dp_accounting import dp_event
        >>> sigma = calibrate_noise_multiplier(
        ...     dp_event.GaussianDpEvent, epsilon=1.0, delta=1e-5, relation=Relation.ADD_OR_REMOVE_ONE)
        >>> 3.73 < sigma < 3.74
        True
    """
    _check_targets(epsilon, delta, slack, epsilon_remedy="raise epsilon, lower the slack, or raise delta")

    def spent(log_noise: float, tolerance: float) -> float:
        return _epsilon(event_of(math.exp(log_noise)), delta, relation, slack, tolerance)

    guess = _solve(lambda x: spent(x, _COARSE), 0.0, epsilon, close=0.99, start_step=0.7)
    return math.exp(_solve(lambda x: spent(x, _FINE), guess, epsilon, close=_CLOSE, start_step=0.004))


def calibrate_num_steps(
    event_of: Callable[[int], dp_event.DpEvent],
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    slack_per_step: float = 0.0,
) -> int:
    """Largest number of steps whose event costs no more than (epsilon, delta).

    Guarantee: epsilon of event_of(result), with slack result * slack_per_step, is at most the target; that of one step more is not
    (up to the accountant's own relative resolution of 1e-4).

    Args:
        event_of: the event as a function of the number of steps; its epsilon grows with them.
        epsilon: target, finite and above 0.
        delta: target, above 0 and below 1.
        relation: which data sets are neighbours.
        slack_per_step: total variation between one step as run and as described.

    Returns:
        The number of steps, at least 1.

    Raises:
        ValueError: the targets are out of range, one step already costs more, or 10^9 steps still cost less.
    """
    _check_targets(epsilon, delta, slack_per_step, epsilon_remedy="raise epsilon, the noise multiplier or delta")
    known: dict[tuple[int, float], bool] = {}

    def affordable(steps: int, tolerance: float) -> bool:
        if (steps, tolerance) not in known:
            slack = min(1.0, steps * slack_per_step)
            known[steps, tolerance] = _epsilon(event_of(steps), delta, relation, slack, tolerance) <= epsilon
        return known[steps, tolerance]

    if not affordable(1, _FINE):
        raise ValueError(
            f"one step already costs more than epsilon={epsilon:g} at delta={delta:g}, so no number of steps is affordable. "
            "Raise the noise multiplier or epsilon, or lower the sampling rate."
        )
    low, high = _bracket_steps(lambda steps: affordable(steps, _COARSE), 1, 4.0)
    low, high = _bisect_steps(lambda steps: affordable(steps, _COARSE), low, high, share=1e-3)
    low, high = _bracket_steps(lambda steps: affordable(steps, _FINE), low, 1.002)
    return _bisect_steps(lambda steps: affordable(steps, _FINE), low, high, share=0.0)[0]


def _bracket_steps(affordable: Callable[[int], bool], start: int, growth: float) -> tuple[int, int]:
    """Returns an affordable number of steps and a larger one that is not."""
    low = high = max(start, 1)
    if affordable(low):
        while affordable(high):
            if high >= _MAX_STEPS:
                raise ValueError(
                    f"even {_MAX_STEPS:,} steps cost less than epsilon: with this much noise, or this large a delta, the number of "
                    "steps is not what limits privacy. Lower the noise multiplier or delta, or set num_steps yourself."
                )
            low, high = high, min(_MAX_STEPS, max(high + 1, math.ceil(high * growth)))
            growth = growth**2
        return low, high
    while low > 1 and not affordable(low):
        low, high = max(1, min(low - 1, math.floor(low / growth))), low
        growth = growth**2
    return low, high


def _bisect_steps(affordable: Callable[[int], bool], low: int, high: int, *, share: float) -> tuple[int, int]:
    while high - low > max(1, share * low):
        middle = int(math.sqrt(low * high)) if high > 2 * low else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low, high


def _epsilon(event: dp_event.DpEvent, delta: float, relation: Relation, slack: float, tolerance: float) -> float:
    curve = curve_of(event, relation, tolerance=tolerance)
    return smallest_epsilon(SlackCurve(curve, slack) if slack > 0 else curve, delta)


def _solve(spent: Callable[[float], float], start: float, target: float, *, close: float, start_step: float) -> float:
    """Finds x with close * target <= spent(x) <= target, for a falling function of x = log(noise multiplier).

    Brackets the target by growing steps, then interpolates log(spent) linearly between the ends, aiming a little below the target,
    with a bisection whenever that has not halved the bracket twice running.
    """
    values: dict[float, float] = {}

    def at(x: float) -> float:
        if x not in values:
            values[x] = spent(x)
        return values[x]

    low, high = _bracket(at, start, target, close, start_step)
    aim = math.log(target * (1 + close) / 2)
    for attempt in range(200):
        if close * target <= at(high) <= target or high - low < 1e-14 * max(1.0, abs(high)):
            break
        middle = (low + high) / 2
        if attempt % 3 != 2 and at(high) > 0 and math.isfinite(at(low)):
            above, below = math.log(at(low)), math.log(at(high))
            share = (above - aim) / (above - below) if above > below else 0.5
            middle = low + (high - low) * min(max(share, 0.01), 0.99)
        low, high = (middle, high) if at(middle) > target else (low, middle)
    return high


def _bracket(at: Callable[[float], float], start: float, target: float, close: float, step: float) -> tuple[float, float]:
    smallest, largest = math.log(_NOISE_RANGE[0]), math.log(_NOISE_RANGE[1])
    low = high = start
    while at(high) > target:
        if high >= largest:
            _refuse_infeasible(target)
        # epsilon falls at least about as 1/noise, so the ratio to the target says how far to go.
        ratio = at(high) / target
        stride = max(step, min(math.log(ratio), 3.0)) if math.isfinite(ratio) else max(step, 1.5)
        low, high = high, min(largest, high + 1.02 * stride)
        step *= 2
    while at(low) <= target:
        if close * target <= at(low):
            return low, low
        if low <= smallest:
            raise ValueError(
                f"epsilon={target:g} is met by any noise multiplier, even {_NOISE_RANGE[0]:g}: delta is so large that a record "
                "may be shown in the clear with that probability. Choose delta well below one over the number of records."
            )
        ratio = target / at(low) if at(low) > 0 else math.inf
        low, high = max(smallest, low - max(step, min(0.55 * math.log(ratio), 3.0) if math.isfinite(ratio) else 1.5)), low
        step *= 2
    return low, high


def _refuse_infeasible(epsilon: float) -> NoReturn:
    raise ValueError(
        f"no noise multiplier up to {_NOISE_RANGE[1]:g} brings epsilon down to {epsilon:g} at this delta: the slack (what the "
        "sampler's finite precision costs) or the smallest delta that can be accounted for (1e-17) is in the way. "
        "Raise delta or epsilon, or take fewer steps."
    )


def _check_targets(epsilon: float, delta: float, slack: float, *, epsilon_remedy: str) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"epsilon is {epsilon!r}; a target is a finite number above 0. Common choices lie between 0.1 and 10.")
    if not 0 < delta < 1:
        raise ValueError(
            f"delta is {delta!r}; it is a probability above 0 and below 1, and should be well below one over the number of "
            "records, such as 1e-6."
        )
    if not 0 <= slack:
        raise ValueError(f"slack is {slack!r}; it is a total-variation distance, 0 or more.")
    if 2 * slack >= delta:
        raise ValueError(
            f"delta={delta:g} is infeasible: what runs differs from what is accounted for by a total variation of {slack:.3g}, "
            f"which costs at least {2 * slack:.3g} of delta whatever the noise. To be feasible, {epsilon_remedy}."
        )
