"""The privacy profile of an event (delta for every epsilon, epsilon for every delta), calibration to a target, and a filter.

Calibration looks for the least noise, or the most steps, that keep epsilon at or below the target. It searches with a coarse
grid first, and returns only what the fine grid confirms: always the safe side.

A profile of a composition holds for events that were fixed in advance. Where each event was chosen after seeing what the earlier
ones released, its Rényi divergences still add up, as long as a stopping rule keeps their sum below a bound that was fixed first
(Feldman and Zrnic, NeurIPS 2021, Theorem 4.3): that rule is `PrivacyFilter`. The divergences are taken, at a fixed set of
orders, from the same dominating pairs, on the same grids, as the profiles: they only grow where one pair dominates another,
since that one can be made from it by a random map (Blackwell).
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from numpy.typing import ArrayLike, NDArray

from discreet._validate import positive, probability
from discreet.privacy.accounting._compose import discretise, log_moment
from discreet.privacy.accounting._events import Relation, curve_of, direction_parts, selections_of
from discreet.privacy.accounting._pairs import Curve, Pair, RenyiCurve

Array = NDArray[np.floating[Any]]

_MAX_KNOTS = 4096
LEAST_DELTA = 1e-17
"""Below it, losses that are composed numerically have no finite epsilon: what the grid leaves out may be larger."""
DELTA_HINT = "It should be well below one over the number of records, such as 1e-6."


@dataclass(frozen=True, eq=False)
class PrivacyProfile:
    """The privacy profile of an event: delta as a function of epsilon. Made by `profile`.

    Guarantee: for every epsilon, the event, run within total variation `slack` of its ideal, is (epsilon, delta(epsilon))
    differentially private under `relation`; every number is an upper bound.

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
            # With slack the bound rises again in epsilon; what holds at a smaller epsilon holds at a larger one.
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
            epsilon >= 0; infinity where no finite one is known (release without noise; delta below slack; delta below 1e-17).

        Raises:
            ValueError: Delta is outside [0, 1] or not a number.
        """
        if not 0 <= delta <= 1:
            raise ValueError(
                f"delta is {delta!r}; it is a probability, and should be well below one over the number of records. "
                "Pass a number between 0 and 1, such as 1e-6."
            )
        # With slack the bound rises again: its first crossing is found, on the knots and then by bisection between two of them.
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
            An upper bound from the profile's trade-off curve: the least over epsilon of e^eps FPR + delta and
            1 - e^-eps (1 - delta - FPR). A float for a number, an array for an array.

        Raises:
            ValueError: A rate is outside [0, 1].
        """
        rates = np.asarray(false_positive_rate, dtype=np.float64)
        if not ((rates >= 0) & (rates <= 1)).all():
            raise ValueError(f"false_positive_rate is {false_positive_rate!r}; rates lie between 0 and 1.")
        epsilons, deltas = self.curve()
        with np.errstate(over="ignore"):
            growth = np.exp(np.minimum(epsilons, 700.0))
        column = rates.reshape(-1, 1)
        best = np.minimum((growth * column + deltas).min(axis=1), (1 - (1 - deltas - column) / growth).min(axis=1))
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


def profile(event: DpEvent, relation: Relation, *, slack: float = 0.0, tolerance: float = 1e-5) -> PrivacyProfile:
    """Compute the privacy profile of an event.

    Gaussian events without sampling compose exactly. Sampled ones are composed numerically through their privacy loss
    distributions, rounded upward; epsilon comes out within some 1e-4 of the composed pair's own (relative), within 1e-3 in
    corners (rates near 1e-4 with an epsilon below 0.1, delta below 1e-10; on processors without 80-bit floats also 10^6 steps,
    2 % there). Noise multipliers are stddev / C under either relation: under REPLACE_ONE the accountant puts in the factor 2
    itself.

    A RandomizedResponseDpEvent stands for any mechanism that is (epsilon, 0)-private under the relation asked for (`pure_event`
    makes one); under ADD_OR_REMOVE_ONE it must not be read as answers that each record gives.

    Args:
        event: dp_accounting's description of what touches the data. Composition is for a horizon fixed beforehand.
        relation: Relation.ADD_OR_REMOVE_ONE or Relation.REPLACE_ONE.
        slack: Total variation between what runs and `event`, summed over all steps; enters as (1 + e^epsilon) slack in delta.
        tolerance: Relative excess of epsilon to choose the numerical grid for. Less takes longer.

    Returns:
        The profile.

    Raises:
        ValueError: An event or a pair of event and relation without sound accounting; a bad probability or noise multiplier.

    References:
        Koskela, Jaelkoe, Honkela, AISTATS 2020 and Gopi, Lee, Wutschitz, NeurIPS 2021 (numerical composition);
        Doroshenko et al., PoPETs 2022 (connect-the-dots); Zhu, Dong, Wang, AISTATS 2022 (dominating pairs).

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
    if selections_of(event)[0]:
        # They are accounted for by their Rényi divergences, which add up.
        bound = renyi_bound(event, relation, orders=FINE_ORDERS)
        curve = RenyiCurve(FINE_ORDERS, bound.divergences, bound.slack)
    else:
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
    """Compute the privacy profile of several plans together, such as those of a standardisation and of the fit after it.

    Guarantee: it holds for all releases by these plans from the same records, once each, if every plan was made before the
    results of any were seen; else a `Ledger` has the cost.

    Raises:
        ValueError: No plan, or plans under different relations.

    Example:
        >>> import discreet as dp
        >>> terms = {"delta": 1e-6, "num_records": 50_000}
        >>> first = dp.standardise.Standardisation.calibrate(epsilon=0.3, num_columns=4, **terms)
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
    event_of: Callable[[float], DpEvent], *, epsilon: float, delta: float, relation: Relation, slack: float = 0.0
) -> float:
    """Find the least noise multiplier whose event costs no more than (epsilon, delta).

    Guarantee: profile(event_of(result), relation, slack=slack).epsilon(delta) <= epsilon, and at least 0.999 of it. A target
    between the largest finite epsilon and infinity is refused: slack costs (1 + e^epsilon) slack of delta.

    Args:
        event_of: The event as a function of the noise multiplier (stddev / C); its epsilon falls as the noise grows.
        epsilon: Target, finite and above 0.
        delta: Target, above `slack` and below 1.
        relation: The neighbouring relation.
        slack: As in `profile`; the same for any noise.

    Returns:
        The noise multiplier.

    Raises:
        ValueError: The targets are out of range, or no noise meets them, or any noise does (delta so large that it says nothing),
            or less noise than that of a smaller epsilon has none.

    Example:
        >>> from dp_accounting import dp_event
        >>> sigma = calibrate_noise_multiplier(
        ...     dp_event.GaussianDpEvent, epsilon=1.0, delta=1e-5, relation=Relation.ADD_OR_REMOVE_ONE)
        >>> 3.73 < sigma < 3.74
        True
    """
    _check_targets(epsilon, delta, slack, epsilon_remedy="raise epsilon, lower the slack, or raise delta")

    def spent(log_noise: float, tolerance: float) -> float:
        return profile(event_of(math.exp(log_noise)), relation, slack=slack, tolerance=tolerance).epsilon(delta)

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

    Guarantee: epsilon of event_of(result), with slack + result * slack_per_step, is at most the target; that of one step more
    is not (up to the accountant's own relative resolution of 1e-4).

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
        ValueError: The targets are out of range, one step already costs more, or 10^9 steps still cost less.
    """
    _check_targets(
        epsilon, delta, slack + slack_per_step, epsilon_remedy="raise epsilon, the noise multiplier or delta"
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
    low = _largest_steps(lambda steps: spent(steps, _COARSE), epsilon, start=1, growth=4.0, share=1e-3)
    return _largest_steps(lambda steps: spent(steps, _FINE), epsilon, start=low, growth=1.001, share=0.0)


def _largest_steps(spent: Callable[[int], float], target: float, *, start: int, growth: float, share: float) -> int:
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

    Secant steps on log(spent), aimed a little below the target; once the target is bracketed, within the bracket, every third
    time to its middle. Where spent jumps over the whole window, returns the safe side of the jump. `slope` is that of -log(spent)
    at `start`, as far as known; returned with x are that at x, and spent(x).
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
        stride = (log_value - aim) / slope if math.isfinite(log_value) else math.copysign(1.5, log_value)
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


ORDERS: NDArray[np.float64] = 1.0 + np.geomspace(0.5, 2000.0, 24)
"""The orders at which divergences are kept; all of them above 1."""
FINE_ORDERS: NDArray[np.float64] = 1.0 + np.geomspace(0.02, 20_000.0, 240)
"""Orders from which the price of a selection is taken."""
_TAIL_MASS = 1e-20
"""Probability that the cut of one pair's losses may send to infinity."""
_MOST_CELLS = 2**20
_MOST_RUNS = 10**6
_CELLS_A_DEVIATION = 50
"""At which the grid adds to a cumulant no more than a few parts in ten thousand of it."""


@dataclass(frozen=True)
class RenyiBound:
    """Rényi divergences at some orders, but for a probability `slack`; of both directions of a relation, the larger."""

    divergences: NDArray[np.float64]  # one for each order, in nats; infinite where there is no noise
    slack: float  # the probability of what the divergences leave out


def renyi_bound(
    event: DpEvent, relation: Relation, *, slack: float = 0.0, orders: NDArray[np.float64] = ORDERS
) -> RenyiBound:
    """Upper bounds on the Rényi divergences between what an event releases on two neighbouring data sets.

    Args:
        event: As for `profile`.
        relation: The neighbouring relation.
        slack: Probability with which the run may leave the event, such as `PrivacyPlan.slack`.
        orders: Orders of the divergences, all above 1.

    Raises:
        ValueError: An event or relation without a known worst case.

    >>> from dp_accounting import dp_event
    >>> bound = renyi_bound(dp_event.GaussianDpEvent(2.0), Relation.ADD_OR_REMOVE_ONE)
    >>> bool(np.allclose(bound.divergences, ORDERS / 8))
    True
    """
    if not 0 <= slack < 1:
        raise ValueError(f"slack is {slack!r}; it is a probability below 1.")
    chosen, rest = selections_of(event)
    divergences = np.zeros(len(orders))
    lost = 0.0
    for mu, parts in direction_parts(rest, relation):
        total = orders * mu**2 / 2  # Gaussians: Mironov, CSF 2017, Proposition 7
        left_out = 0.0
        for pair, count in parts:
            one, infinity = _of_pair(pair, tuple(orders))
            total = total + count * one
            left_out += count * infinity
        divergences = np.maximum(divergences, total)
        lost = max(lost, left_out)
    for selection, count in chosen:
        # Every order that helps, whichever are asked for.
        one = renyi_bound(selection.event, relation, orders=np.union1d(orders, FINE_ORDERS))
        both = _selected(np.union1d(orders, FINE_ORDERS), one, selection.mean, selection.shape)
        divergences = divergences + count * both[np.isin(np.union1d(orders, FINE_ORDERS), orders)]
        lost += count * selection.mean * one.slack
    return RenyiBound(divergences, slack + lost)


def _selected(orders: NDArray[np.float64], run: RenyiBound, mean: float, shape: float) -> NDArray[np.float64]:
    """Divergences of the best of a random number of runs, from those of one run.

    Papernot and Steinke, Hyperparameter tuning with Rényi differential privacy, ICLR 2022: Theorem 6 for Poisson numbers of runs
    (shape infinite), Theorem 2 for truncated negative binomial ones.

    The tails: the divergences of a run are those of a law P' within total variation s of its law P, from the law Q beside it,
    and of some Q' within s of Q from P. So all runs are within `mean` s of runs by P', to which Lemma 7 is applied beside Q. Its
    first term is P' from Q. Its second asks how much likelier an event is by Q than by P', and there both cuts count: Q(E) <=
    Q'(E) + s, and P(E) <= P'(E) + s. For an event of P'(E) >= gamma, with k = 1 - 1 / order and divergence d, Q(E) / P'(E) <=
    exp(k d) gamma^(-1 / order) (1 + s / gamma) + s / gamma, whose logarithm is larger by 2 s / gamma at most. In Theorem 6 the
    delta of a run at epsilon is larger by (1 + e^epsilon) s.
    """
    gamma = repetitions(mean, shape)
    divergences = run.divergences
    more = np.log(mean) / (orders - 1)
    if shape == math.inf:
        one = RenyiCurve(orders, divergences, run.slack)
        found = divergences + mean * one.delta(np.log1p(1 / (orders - 1))) + more
    else:
        # Its second order is free.
        least = float(np.min((1 - 1 / orders) * divergences - math.log(gamma) / orders)) + 2 * run.slack / gamma
        found = divergences + (1 + shape) * least + more
    # Divergences grow with the order, so a bound at a larger one holds as well.
    return np.minimum.accumulate(found[::-1])[::-1] * (1 + 1e-12)


def repetitions(mean: float, shape: float) -> float:
    """The parameter gamma of the truncated negative binomial law with this mean and shape; NaN for a Poisson law.

    The mean number of runs is above 1 (of a Poisson law, at least 1). The shape eta is 0 for the logarithmic law, 1 for the
    geometric one, another number from 1e-6 to 100, or infinity for the Poisson law, which may be 0.

    >>> round(repetitions(20, 1), 6)  # geometric: one over the mean
    0.05
    """
    if not (isinstance(mean, int | float) and 1 <= mean <= _MOST_RUNS and (mean > 1 or shape == math.inf)):
        raise ValueError(f"the mean number of runs is {mean!r}; it lies above 1 and is at most {_MOST_RUNS:,}.")
    if not (isinstance(shape, int | float) and (shape == 0 or 1e-6 <= shape <= 100 or shape == math.inf)):
        raise ValueError(
            f"the shape of the number of runs is {shape!r}: give 0 (logarithmic), 1 (geometric), another number from 1e-6 to "
            "100, or infinity (Poisson)."
        )
    if shape == math.inf:
        return math.nan
    from scipy.optimize import brentq

    def too_many(log_gamma: float) -> float:
        gamma = math.exp(log_gamma)
        odds = math.expm1(-log_gamma)  # (1 - gamma) / gamma
        if shape == 0:
            return math.log(odds / -log_gamma) - math.log(mean)
        return (
            math.log(shape * odds / -math.expm1(shape * log_gamma)) - math.log(mean) if gamma < 1 else -math.log(mean)
        )

    return math.exp(float(cast(float, brentq(too_many, -200.0, -1e-12, xtol=1e-15))))


@functools.lru_cache(maxsize=64)
def _of_pair(pair: Pair, at: tuple[float, ...]) -> tuple[NDArray[np.float64], float]:
    orders = np.array(at)
    nodes = pair.nodes()
    kept = nodes.upper > 0
    loss = nodes.loss[kept]
    weight = nodes.upper[kept] / np.sum(nodes.upper[kept])
    mean = float(weight @ loss)
    deviation = math.sqrt(float(weight @ (loss - mean) ** 2))
    span = float(np.ptp(loss))
    spacing = max(deviation / _CELLS_A_DEVIATION, span / _MOST_CELLS, 1e-12)
    cells = discretise(pair, spacing, _TAIL_MASS)
    # Given that the loss is finite, which it is with probability 1 - infinity.
    given = -math.log1p(-cells.infinity)
    moments = np.array([log_moment(cells, order - 1.0) for order in orders])
    # A moment is a sum of positive numbers near 1: off by some units in the last place.
    moments += 16 * np.finfo(np.float64).eps * (1 + np.abs(moments))
    return np.maximum((moments + orders * given) / (orders - 1.0), 0.0), cells.infinity


_BASIC_SHARE = 0.5
"""Share of delta for the sum of the fits' own epsilons and deltas."""
_ROUNDING = 1e-9
"""Share of delta for rounding of sums of deltas slightly above their half."""
_LEAST_CAP = 20.0
"""Slack is weighed as for a cap of this epsilon at least, so that lowering a cap admits no more of it."""
_SLACK_SHARE = 1e-3
"""Share of delta for negligible probabilities that no divergence includes."""


@dataclass(frozen=True)
class Cost:
    """The cost that one event adds to a filter."""

    epsilon: float  # with `delta`, the event alone
    delta: float  # 0 for a pure event
    renyi: RenyiBound  # its divergences


def cost_of(event: DpEvent, relation: Relation, *, delta: float, slack: float = 0.0) -> Cost:
    """The cost of an event at its planned delta (0: a pure event); `slack` as in `renyi_bound`."""
    epsilon = profile(event, relation=relation, slack=slack).epsilon(delta)
    return Cost(epsilon, delta, renyi_bound(event, relation, slack=slack))


@dataclass(frozen=True)
class PrivacyFilter:
    """Admit events one by one, with (epsilon, delta) for all of them together, even if each is chosen adaptively.

    Composition as in `profile` is a theorem about events that were fixed beforehand. Whoever looks at a fit before planning the
    next one needs another: a rule that stops before a sum passes a bound that was fixed first. Here there are several sums, and
    one of them within its bound is enough, for delta is shared out among them: half for the sum of the events' own epsilons
    and deltas (Rogers, Roth, Ullman and Vadhan, NeurIPS 2016, section 3), the other half in equal parts for Rényi
    divergences of 24 orders (Feldman and Zrnic, NeurIPS 2021, Theorem 4.3). Whatever happens, one of the sums admitted the last
    event; where it was a given one, a filter of that sum alone would have stopped nothing, so the chance of a large loss is at
    most its share.

    Attributes:
        epsilon: The cap, above 0.
        delta: The cap's delta, above 0 and below 1; the events' own deltas have to fit into half of it.

    >>> cap = PrivacyFilter(epsilon=3.0, delta=1e-5)
    >>> from dp_accounting import dp_event
    >>> step = cost_of(dp_event.GaussianDpEvent(5.0), Relation.ADD_OR_REMOVE_ONE, delta=1e-6)
    >>> [round(cap.spent([step] * times), 2) for times in (1, 2, 5)]
    [0.83, 1.4, 2.3]
    >>> cap.admits([step] * 5), cap.admits([step] * 9)
    (True, False)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        epsilon = positive("The cap's epsilon", self.epsilon, hint="3 is a common cap.")
        delta = probability("The cap's delta", self.delta, hint="It should be well below 1 / number of records.")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)

    def spent(self, costs: Sequence[Cost]) -> float:
        """Compute the least cap, at this delta, that would have admitted these events; infinite if none would."""
        if not costs:
            return 0.0
        fits = math.fsum(cost.delta for cost in costs) <= (_BASIC_SHARE + _ROUNDING / 2) * self.delta
        basic = math.fsum(cost.epsilon for cost in costs) if fits else math.inf
        # A probability on either of two neighbours: once as it is, once multiplied by e^epsilon.
        weight = 1 + math.exp(min(max(self.epsilon, _LEAST_CAP), 700.0))
        slack = weight * math.fsum(cost.renyi.slack for cost in costs)
        if slack > _SLACK_SHARE * self.delta:
            return basic
        share = (1 - _BASIC_SHARE - _SLACK_SHARE - _ROUNDING) * self.delta / len(ORDERS)
        total: NDArray[np.float64] = np.sum([cost.renyi.divergences for cost in costs], axis=0)
        # Canonne, Kamath and Steinke, NeurIPS 2020, Proposition 12.
        epsilons = total + np.log1p(-1 / ORDERS) - (math.log(share) + np.log(ORDERS)) / (ORDERS - 1)
        return min(basic, max(0.0, float(np.min(epsilons))))

    def admits(self, costs: Sequence[Cost]) -> bool:
        """Check that these events, in this order, stay below the cap together."""
        return self.spent(costs) <= self.epsilon
