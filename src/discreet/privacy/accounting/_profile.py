"""The privacy profile of an event (delta for every epsilon, epsilon for every delta), and calibration to a target.

Calibration looks for the least noise, or the most steps, that keep epsilon at or below the target.
It searches with a coarse grid first, and returns only what the fine grid confirms: always the safe
side.

A profile of a composition holds for events that were fixed in advance; `_filter` is for events
chosen one after another.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discreet._dp_accounting import ComposedDpEvent, DpEvent
from discreet._validate import positive, probability
from discreet.privacy.accounting._events import curve_of
from discreet.privacy.accounting._relation import Relation

if TYPE_CHECKING:
    from discreet.privacy.accounting._events import Curve

Array = NDArray[np.floating[Any]]

_MAX_KNOTS = 4096
LEAST_DELTA = 1e-17
"""Below it, losses that are composed numerically have no finite epsilon: what the grid leaves out may be larger."""
DELTA_HINT = "It should be well below one over the number of records, such as 1e-6."


@dataclass(frozen=True, eq=False)
class PrivacyProfile:
    """The privacy profile of an event: delta as a function of epsilon. Made by `profile`.

    Guarantee: for every epsilon, the event, run within total variation `slack` of its ideal, is
    (epsilon, delta(epsilon)) differentially private under `relation`; every number is an upper
    bound.

    Attributes:
        event: The event.
        relation: The neighbouring relation.
        slack: Total variation between the run and the event, over all steps.
    """

    event: DpEvent
    relation: Relation
    slack: float
    _curve: Curve = field(repr=False)

    def delta(self, epsilon: ArrayLike) -> float | Array:
        """Compute the smallest known delta at each epsilon.

        Args:
            epsilon: A number or an array of numbers >= 0; infinity is allowed.

        Returns:
            A float for a number, an array of the same shape for an array.

        Raises:
            ValueError: An epsilon is negative or not a number.
        """
        values = np.asarray(epsilon, dtype=np.float64)
        if np.isnan(values).any() or (values < 0).any():
            raise ValueError(
                f"epsilon is {epsilon!r}; delta(epsilon) is defined for epsilon >= 0. Pass a number of 0 or more."
            )
        flat = values.reshape(-1)
        deltas = self._with_slack(flat)
        if self.slack > 0:
            # With slack the bound rises again in epsilon; what holds at a smaller epsilon holds at
            # a larger one.
            knots = self._knots()
            best = np.minimum.accumulate(self._with_slack(knots))
            earlier = np.searchsorted(knots, flat, side="right") - 1
            deltas = np.minimum(deltas, best[np.maximum(earlier, 0)])
        deltas = np.clip(deltas, 0.0, 1.0).reshape(values.shape)
        return float(deltas) if values.ndim == 0 else deltas

    def epsilon(self, delta: float) -> float:
        """Compute the smallest known epsilon at `delta`, rounded up.

        Args:
            delta: Between 0 and 1.

        Returns:
            epsilon >= 0; infinity where no finite one is known (release without noise; delta below
            slack; delta below 1e-17).

        Raises:
            ValueError: Delta is outside [0, 1] or not a number.
        """
        if not 0 <= delta <= 1:
            raise ValueError(
                f"delta is {delta!r}; it is a probability, and should be well below one over the number of records. "
                "Pass a number between 0 and 1, such as 1e-6."
            )
        # With slack the bound rises again: its first crossing is found, on the knots and then by
        # bisection between two of them.
        knots = self._curve.knots
        met = np.flatnonzero(self._with_slack(knots) <= delta)
        if met.size == 0:
            return math.inf
        first = int(met[0])
        if first == 0:
            return 0.0
        low = float(knots[first - 1])
        high = float(knots[first])
        for _ in range(12):
            # Sections of 32: a call with 33 points costs little more than a call with one.
            points = np.linspace(low, high, 33)
            inside = np.flatnonzero(self._with_slack(points) <= delta)
            index = int(inside[0]) if inside.size else 32
            low = float(points[max(index - 1, 0)])
            high = float(points[index])
            if high - low <= 1e-13 * high:
                break
        return high

    def curve(self) -> tuple[Array, Array]:
        """Return ascending epsilons, from 0, and their deltas: at most 4096 points down to where delta is negligible."""
        knots = self._knots()
        return knots, np.asarray(self.delta(knots))

    def true_positive_rate(self, false_positive_rate: ArrayLike) -> float | Array:
        """Bound the true-positive rate of any attacker who distinguishes two neighbouring data sets.

        The attacker may know every other record, and choose both versions of the one in question.

        Args:
            false_positive_rate: A number or an array of numbers in [0, 1].

        Returns:
            An upper bound from the profile's trade-off curve: the least over epsilon of e^eps FPR +
            delta and 1 - e^-eps (1 - delta - FPR). A float for a number, an array for an array.

        Raises:
            ValueError: A rate is outside [0, 1].
        """
        rates = np.asarray(false_positive_rate, dtype=np.float64)
        if not ((rates >= 0) & (rates <= 1)).all():
            raise ValueError(
                f"false_positive_rate is {false_positive_rate!r}; rates lie between 0 and 1."
            )
        epsilons, deltas = self.curve()
        with np.errstate(over="ignore"):
            growth = np.exp(np.minimum(epsilons, 700.0))
        column = rates.reshape(-1, 1)
        best = np.minimum(
            (growth * column + deltas).min(axis=1), (1 - (1 - deltas - column) / growth).min(axis=1)
        )
        # Chance is always within reach, whatever rounding says.
        best = np.clip(best.reshape(rates.shape), rates, 1.0)
        return float(best) if rates.ndim == 0 else best

    def _with_slack(self, epsilon: Array) -> Array:
        """delta(epsilon) + (1 + e^epsilon) slack, which may rise again."""
        deltas = self._curve.delta(epsilon)
        if self.slack == 0:
            return deltas
        return np.minimum(1.0, deltas + self.slack * (1 + np.exp(np.minimum(epsilon, 700.0))))

    def _knots(self) -> Array:
        knots = self._curve.knots
        if len(knots) <= _MAX_KNOTS:
            return knots
        chosen = np.unique(np.linspace(0, len(knots) - 1, _MAX_KNOTS).round().astype(np.int64))
        return knots[chosen]


def profile(
    event: DpEvent, relation: Relation, *, slack: float = 0.0, tolerance: float = 1e-5
) -> PrivacyProfile:
    """Compute the privacy profile of an event.

    Gaussian events without sampling compose exactly. Sampled ones are composed numerically through
    their privacy loss distributions, rounded upward; epsilon comes out within some 1e-4 of the
    composed pair's own (relative), within 1e-3 in corners (rates near 1e-4 with an epsilon below
    0.1, delta below 1e-10; on processors without 80-bit floats also 10^6 steps, 2 % there). Noise
    multipliers are stddev / C under either relation: under REPLACE_ONE the accountant puts in the
    factor 2 itself.

    A RandomizedResponseDpEvent stands for any mechanism that is (epsilon, 0)-private under the
    relation asked for (`pure_event` makes one); under ADD_OR_REMOVE_ONE it must not be read as
    answers that each record gives.

    Args:
        event: dp_accounting's description of what touches the data. Composition is for a horizon
            fixed beforehand.
        relation: Relation.ADD_OR_REMOVE_ONE or Relation.REPLACE_ONE.
        slack: Total variation between what runs and `event`, summed over all steps; enters as (1 +
            e^epsilon) slack in delta.
        tolerance: Relative excess of epsilon to choose the numerical grid for. Less takes longer.

    Returns:
        The profile.

    Raises:
        ValueError: An event or a pair of event and relation without sound accounting; a bad
            probability or noise multiplier.

    References:
        Koskela, Jaelkoe, Honkela, AISTATS 2020 and Gopi, Lee, Wutschitz, NeurIPS 2021 (numerical
        composition); Doroshenko et al., PoPETs 2022 (connect-the-dots); Zhu, Dong, Wang, AISTATS
        2022 (dominating pairs).

    Example:
        >>> from dp_accounting import dp_event
        >>> step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
        >>> spent = profile(dp_event.SelfComposedDpEvent(step, 1000), Relation.ADD_OR_REMOVE_ONE)
        >>> round(spent.epsilon(1e-5), 2)
        1.83
    """
    if not 0 <= slack <= 1:
        raise ValueError(
            f"slack is {slack!r}; it is a total-variation distance, a number between 0 and 1, and far below delta to be of use."
        )
    curve = curve_of(event, relation, tolerance=tolerance)
    return PrivacyProfile(event, relation, slack, curve)


class Planned(Protocol):
    """The required interface of a plan."""

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        ...

    @property
    def slack(self) -> float:
        """Total variation between the run and the event, over all steps."""
        ...

    def event(self) -> DpEvent:
        """Return the event of all the steps."""
        ...


def composed(*plans: Planned) -> PrivacyProfile:
    """Compute the privacy profile of several plans together, such as those of a description and of the fit after it.

    Guarantee: it holds for all releases by these plans from the same records, once each, if every
    plan was made before the results of any were seen; else a `Ledger` has the cost.

    Raises:
        ValueError: No plan, or plans under different relations.

    Example:
        >>> import discreet as dp
        >>> terms = {"delta": 1e-6, "num_records": 50_000}
        >>> first = dp.moments.MomentsPlan.calibrate(epsilon=0.3, num_features=4, **terms)
        >>> fit = dp.PrivacyPlan.calibrate(epsilon=1.0, num_steps=1000, sampling=dp.PoissonSampling(rate=0.01), **terms)
        >>> round(composed(first, fit).epsilon(1e-6), 2)
        1.05
    """
    relations = {plan.relation for plan in plans}
    if len(relations) != 1:
        raise ValueError(
            "composed adds up the costs of one or more plans under one relation: make them for the same one."
        )
    slack = min(1.0, sum(plan.slack for plan in plans))
    return profile(ComposedDpEvent([plan.event() for plan in plans]), relations.pop(), slack=slack)


_COARSE = 5e-3
_FINE = 1e-5
_CLOSE = 0.9994
"""Share of the target at which the search stops, a little more than the guarantee."""
_LEAST_SHARE = 0.999
_NOISE_RANGE = (1e-3, 1e12)
_MAX_STEPS = 10**9


def calibrate_noise_multiplier(
    event_of: Callable[[float], DpEvent],
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    slack: float = 0.0,
) -> float:
    """Find the least noise multiplier whose event costs no more than (epsilon, delta).

    Guarantee: profile(event_of(result), relation, slack=slack).epsilon(delta) <= epsilon, and at
    least 0.999 of it. A target between the largest finite epsilon and infinity is refused: slack
    costs (1 + e^epsilon) slack of delta.

    Args:
        event_of: The event as a function of the noise multiplier (stddev / C); its epsilon falls as
            the noise grows.
        epsilon: Target, finite and above 0.
        delta: Target, above `slack` and below 1.
        relation: The neighbouring relation.
        slack: As in `profile`; the same for any noise.

    Returns:
        The noise multiplier.

    Raises:
        ValueError: The targets are out of range, or no noise meets them, or any noise does (delta
            so large that it says nothing), or less noise than that of a smaller epsilon has none.

    Example:
        >>> from dp_accounting import dp_event
        >>> sigma = calibrate_noise_multiplier(
        ...     dp_event.GaussianDpEvent, epsilon=1.0, delta=1e-5, relation=Relation.ADD_OR_REMOVE_ONE)
        >>> 3.73 < sigma < 3.74
        True
    """
    _check_targets(
        epsilon, delta, slack, epsilon_remedy="raise epsilon, lower the slack, or raise delta"
    )

    def spent(log_noise: float, tolerance: float) -> float:
        return profile(
            event_of(math.exp(log_noise)), relation, slack=slack, tolerance=tolerance
        ).epsilon(delta)

    guess, slope, _ = _solve(lambda x: spent(x, _COARSE), 0.0, 2.0, epsilon, close=0.99)
    found, _, reached = _solve(lambda x: spent(x, _FINE), guess, slope, epsilon, close=_CLOSE)
    if reached < _LEAST_SHARE * epsilon:
        raise ValueError(
            f"epsilon={epsilon:g} is infeasible at delta={delta:g}: ask for an epsilon of at most {_rounded_down(reached)}, or "
            "raise delta. Noise and samples are made by a computer. They differ from those of the proof by a slack (a total "
            f"variation of {slack:.3g}), which costs e^epsilon times as much of delta."
        )
    return math.exp(found)


def _rounded_down(value: float) -> str:
    """A number of three digits that is no larger."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.floor(value / unit) * unit:.6g}"


def calibrate_num_steps(
    event_of: Callable[[int], DpEvent],
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    slack_per_step: float = 0.0,
    slack: float = 0.0,
) -> int:
    """Find the largest number of steps whose event costs no more than (epsilon, delta).

    Guarantee: epsilon of event_of(result), with slack + result * slack_per_step, is at most the
    target; that of one step more is not (up to the accountant's own relative resolution of 1e-4).

    Args:
        event_of: The event as a function of the number of steps; its epsilon grows with them.
        epsilon: Target, finite and above 0.
        delta: Target, above 0 and below 1.
        relation: The neighbouring relation.
        slack_per_step: Total variation between one step as run and as described.
        slack: The same of all that is in the event besides the steps.

    Returns:
        The number of steps, at least 1.

    Raises:
        ValueError: The targets are out of range, one step already costs more, or 10^9 steps still
            cost less.
    """
    _check_targets(
        epsilon,
        delta,
        slack + slack_per_step,
        epsilon_remedy="raise epsilon, the noise multiplier or delta",
    )

    @functools.cache
    def spent(steps: int, tolerance: float) -> float:
        away = min(1.0, slack + steps * slack_per_step)
        return profile(event_of(steps), relation, slack=away, tolerance=tolerance).epsilon(delta)

    if spent(1, _FINE) > epsilon:
        raise ValueError(
            f"one step already costs more than epsilon={epsilon:g} at delta={delta:g}, so no number of steps is affordable. "
            "Raise the noise multiplier or epsilon, or lower the sampling rate."
        )
    low = _largest_steps(
        lambda steps: spent(steps, _COARSE), epsilon, start=1, growth=4.0, share=1e-3
    )
    return _largest_steps(
        lambda steps: spent(steps, _FINE), epsilon, start=low, growth=1.001, share=0.0
    )


def _largest_steps(
    spent: Callable[[int], float], target: float, *, start: int, growth: float, share: float
) -> int:
    """A number of steps low with spent(low) <= target < spent(high) for some high at most max(1, share * low) above it."""
    low = high = start
    while spent(high) <= target:
        if high >= _MAX_STEPS:
            raise ValueError(
                f"even {_MAX_STEPS:,} steps cost less than epsilon: with this much noise, or this large a delta, the number of "
                "steps is not what limits privacy. Lower the noise multiplier or delta, or set num_steps yourself."
            )
        low = high
        high = min(_MAX_STEPS, max(high + 1, math.ceil(high * growth)))
        growth = growth**2
    while low > 1 and spent(low) > target:
        low, high = max(1, min(low - 1, math.floor(low / growth))), low
        growth = growth**2
    attempt = 0
    while high - low > max(1, share * low):
        middle = int(math.sqrt(low * high)) if high > 2 * low else (low + high) // 2
        below = spent(low)
        above = spent(high)
        if attempt % 3 != 2 and below > 0 and math.isfinite(above):
            # epsilon is about a power of the number of steps
            weight = math.log(target / below) / math.log(above / below)
            middle = round(low * (high / low) ** weight)
        middle = min(max(middle, low + 1), high - 1)
        low, high = (middle, high) if spent(middle) <= target else (low, middle)
        attempt += 1
    return low


def _solve(
    spent: Callable[[float], float], start: float, slope: float, target: float, *, close: float
) -> tuple[float, float, float]:
    """Finds x with close * target <= spent(x) <= target, for a falling function of x = log(noise multiplier).

    Secant steps on log(spent), aimed a little below the target; once the target is bracketed,
    within the bracket, every third time to its middle. Where spent jumps over the whole window,
    returns the safe side of the jump. `slope` is that of -log(spent) at `start`, as far as known;
    returned with x are that at x, and spent(x).
    """
    smallest, largest = (math.log(limit) for limit in _NOISE_RANGE)
    aim = math.log(target * (1 + close) / 2)
    low = high = previous = None
    least = 0.0
    x = start
    for attempt in range(200):
        value = spent(x)
        log_value = math.log(value) if value > 0 else -math.inf
        if previous is not None and x != previous[0] and math.isfinite(log_value - previous[1]):
            slope = min(max((previous[1] - log_value) / (x - previous[0]), 0.3), 30.0)
        previous = (x, log_value)
        if close * target <= value <= target:
            return x, slope, value
        if value > target:
            low = x
        else:
            high = x
            least = value
        stride = (
            (log_value - aim) / slope if math.isfinite(log_value) else math.copysign(1.5, log_value)
        )
        if low is None or high is None:
            if x >= largest and high is None:
                raise ValueError(
                    f"no noise multiplier up to {_NOISE_RANGE[1]:g} brings epsilon down to {target:g} at this delta: the slack "
                    "(what the sampler's finite precision costs) or the smallest delta that can be accounted for "
                    f"({LEAST_DELTA:g}) is in the way. Raise delta or epsilon, or take fewer steps."
                )
            if x <= smallest and low is None:
                raise ValueError(
                    f"epsilon={target:g} is met by any noise multiplier, even {_NOISE_RANGE[0]:g}: delta is so large that a "
                    "record may be shown in the clear with that probability. Choose delta well below one over the number of "
                    "records."
                )
            # A step that fell short once is lengthened the next time.
            stride = min(max(stride * (1 + 0.5 * max(0, attempt - 1)), -3.0), 3.0)
            x = min(max(x + stride, smallest), largest)
        elif high - low < 1e-14 * max(1.0, abs(high)):
            return high, slope, least
        else:
            inside = low < x + stride < high and attempt % 3 != 2
            x = x + stride if inside else low + (high - low) / 2
    return (largest if high is None else high), slope, least


def _check_targets(epsilon: float, delta: float, slack: float, *, epsilon_remedy: str) -> None:
    positive("epsilon", epsilon, hint="Common choices lie between 0.1 and 10.")
    probability("delta", delta, hint=DELTA_HINT)
    if not slack >= 0:
        raise ValueError(f"slack is {slack!r}; it is a total-variation distance, 0 or more.")
    if 2 * slack >= delta:
        raise ValueError(
            f"delta={delta:g} is infeasible: what runs differs from what is accounted for by a total variation of {slack:.3g}, "
            f"which costs at least {2 * slack:.3g} of delta whatever the noise. To be feasible, {epsilon_remedy}."
        )
