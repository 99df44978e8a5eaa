"""Rényi divergences of events, which add up also where each event was chosen after seeing what the earlier ones released.

They are taken, at a fixed set of orders, from the same dominating pairs, on the same grids, as the
profiles: they only grow where one pair dominates another, since that one can be made from it by a
random map (Blackwell). Filters (`_filter`) and selections among a random number of runs are
accounted for by them.
"""

import functools
import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from discreet._dp_accounting import DpEvent
from discreet.privacy.accounting._compose import discretise, log_moment
from discreet.privacy.accounting._events import direction_parts, selections_of
from discreet.privacy.accounting._pairs import Array, Pair
from discreet.privacy.accounting._relation import Relation

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
class RenyiCurve:
    """The profile implied by Rényi divergences of some orders, except for a probability `lost`.

    Reference: Canonne, Kamath and Steinke, NeurIPS 2020, Proposition 12.
    """

    orders: Array
    divergences: Array
    lost: float

    def delta(self, epsilon: Array) -> Array:
        orders = self.orders[:, None]
        flat = np.reshape(epsilon, (1, -1))
        exponents = (orders - 1) * (
            self.divergences[:, None] - flat + np.log1p(-1 / orders)
        ) - np.log(orders)
        best = np.min(exponents + 1e-12 * (1 + np.abs(exponents)), axis=0)
        # The divergences hold given that nothing was lost, which it is on either table.
        lost = self.lost * (1 + np.exp(np.minimum(flat[0], 700.0)))
        return np.minimum(1.0, np.exp(np.minimum(best, 0.0)) + lost).reshape(np.shape(epsilon))

    @property
    def knots(self) -> Array:
        last = np.min(
            self.divergences
            + np.log1p(-1 / self.orders)
            + (40 - np.log(self.orders)) / (self.orders - 1)
        )
        return (
            np.linspace(0.0, max(float(last), 1e-3), 2049)
            if np.isfinite(last)
            else np.array([0.0, 1.0])
        )


@dataclass(frozen=True)
class RenyiBound:
    """Rényi divergences at some orders, but for a probability `slack`; of both directions of a relation, the larger."""

    # one for each order, in nats; infinite where there is no noise
    divergences: NDArray[np.float64]
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


def _selected(
    orders: NDArray[np.float64], run: RenyiBound, mean: float, shape: float
) -> NDArray[np.float64]:
    """Divergences of the best of a random number of runs, from those of one run.

    Papernot and Steinke, Hyperparameter tuning with Rényi differential privacy, ICLR 2022: Theorem
    6 for Poisson numbers of runs (shape infinite), Theorem 2 for truncated negative binomial ones.

    The tails: the divergences of a run are those of a law P' within total variation s of its law P,
    from the law Q beside it, and of some Q' within s of Q from P. So all runs are within `mean` s
    of runs by P', to which Lemma 7 is applied beside Q. Its first term is P' from Q. Its second
    asks how much likelier an event is by Q than by P', and there both cuts count: Q(E) <= Q'(E) +
    s, and P(E) <= P'(E) + s. For an event of P'(E) >= gamma, with k = 1 - 1 / order and divergence
    d, Q(E) / P'(E) <= exp(k d) gamma^(-1 / order) (1 + s / gamma) + s / gamma, whose logarithm is
    larger by 2 s / gamma at most. In Theorem 6 the delta of a run at epsilon is larger by (1 +
    e^epsilon) s.
    """
    gamma = repetitions(mean, shape)
    divergences = run.divergences
    more = np.log(mean) / (orders - 1)
    if shape == math.inf:
        one = RenyiCurve(orders, divergences, run.slack)
        found = divergences + mean * one.delta(np.log1p(1 / (orders - 1))) + more
    else:
        # Its second order is free.
        least = (
            float(np.min((1 - 1 / orders) * divergences - math.log(gamma) / orders))
            + 2 * run.slack / gamma
        )
        found = divergences + (1 + shape) * least + more
    # Divergences grow with the order, so a bound at a larger one holds as well.
    return np.minimum.accumulate(found[::-1])[::-1] * (1 + 1e-12)


def repetitions(mean: float, shape: float) -> float:
    """The parameter gamma of the truncated negative binomial law with this mean and shape; NaN for a Poisson law.

    The mean number of runs is above 1 (of a Poisson law, at least 1). The shape eta is 0 for the
    logarithmic law, 1 for the geometric one, another number from 1e-6 to 100, or infinity for the
    Poisson law, which may be 0.

    >>> round(repetitions(20, 1), 6)  # geometric: one over the mean
    0.05
    """
    if not (
        isinstance(mean, int | float)
        and 1 <= mean <= _MOST_RUNS
        and (mean > 1 or shape == math.inf)
    ):
        raise ValueError(
            f"the mean number of runs is {mean!r}; it lies above 1 and is at most {_MOST_RUNS:,}."
        )
    if not (
        isinstance(shape, int | float) and (shape == 0 or 1e-6 <= shape <= 100 or shape == math.inf)
    ):
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
            math.log(shape * odds / -math.expm1(shape * log_gamma)) - math.log(mean)
            if gamma < 1
            else -math.log(mean)
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
