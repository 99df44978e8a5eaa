"""Rényi divergences of events, bounded from above, and the filter that adds them up where plans were adapted.

A profile of a composition holds for events that were fixed in advance. Where each event was chosen after seeing what the earlier
ones released, its Rényi divergences still add up, as long as a stopping rule keeps their sum below a bound that was fixed first
(Feldman and Zrnic, NeurIPS 2021, Theorem 4.3): that rule is `PrivacyFilter`. The divergences are taken, at a fixed set of
orders, from the same dominating pairs, on the same grids, as the profiles: they only grow where one pair dominates another,
since that one can be made from it by a random map (Blackwell).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from discreet._validate import positive, probability
from discreet.accounting._compose import discretise, log_moment
from discreet.accounting._events import Relation, check_relation, direction_parts
from discreet.accounting._pairs import Pair
from discreet.accounting._profile import profile

ORDERS: NDArray[np.float64] = 1.0 + np.geomspace(0.5, 2000.0, 24)
"""The orders at which divergences are kept; all of them above 1."""
_TAIL_MASS = 1e-20
"""Probability that the cut of one pair's losses may send to infinity."""
_MOST_CELLS = 2**20
_CELLS_A_DEVIATION = 50
"""At which the grid adds to a cumulant no more than a few parts in ten thousand of it."""


@dataclass(frozen=True)
class RenyiBound:
    """Rényi divergences at `ORDERS`, but for a probability `slack`; of both directions of a relation, the larger.

    Attributes:
        divergences: one for each order, in nats; infinite where there is no noise.
        slack: the probability of what the divergences leave out.
    """

    divergences: NDArray[np.float64]
    slack: float


def renyi_bound(event: DpEvent, relation: Relation, *, slack: float = 0.0) -> RenyiBound:
    """Upper bounds on the Rényi divergences between what an event releases on two neighbouring data sets.

    Args:
        event: as for `profile`.
        relation: which data sets are neighbours.
        slack: probability with which the run may leave the event, such as `PrivacyPlan.slack`.

    Raises:
        ValueError: an event or relation without a known worst case.

    >>> bound = renyi_bound(dp_event.GaussianDpEvent(2.0), Relation.ADD_OR_REMOVE_ONE)
    >>> bool(np.allclose(bound.divergences, ORDERS / 8))
    True
    """
    check_relation(relation)
    if not 0 <= slack < 1:
        raise ValueError(f"slack is {slack!r}; it is a probability below 1.")
    divergences, lost = np.zeros(len(ORDERS)), 0.0
    for mu, parts in direction_parts(event, relation):
        total = ORDERS * mu**2 / 2  # Gaussians: Mironov, CSF 2017, Proposition 7
        left_out = 0.0
        for pair, count in parts:
            one, infinity = _of_pair(pair)
            total = total + count * one
            left_out += count * infinity
        divergences, lost = np.maximum(divergences, total), max(lost, left_out)
    return RenyiBound(divergences, slack + lost)


@functools.lru_cache(maxsize=64)
def _of_pair(pair: Pair) -> tuple[NDArray[np.float64], float]:
    nodes = pair.nodes()
    kept = nodes.upper > 0
    loss, weight = nodes.loss[kept], nodes.upper[kept] / np.sum(nodes.upper[kept])
    mean = float(weight @ loss)
    deviation = math.sqrt(float(weight @ (loss - mean) ** 2))
    span = float(np.ptp(loss))
    spacing = max(deviation / _CELLS_A_DEVIATION, span / _MOST_CELLS, 1e-12)
    cells = discretise(pair, spacing, _TAIL_MASS)
    # Given that the loss is finite, which it is with probability 1 - infinity.
    given = -math.log1p(-cells.infinity)
    moments = np.array([log_moment(cells, spacing, order - 1.0) for order in ORDERS])
    # A moment is a sum of positive numbers near 1: off by some units in the last place.
    moments += 16 * np.finfo(np.float64).eps * (1 + np.abs(moments))
    return np.maximum((moments + ORDERS * given) / (ORDERS - 1.0), 0.0), cells.infinity


_BASIC_SHARE = 0.5
"""Of delta, for adding up the fits' own epsilons and deltas."""
_ROUNDING = 1e-9
"""Of delta, for sums of deltas that come out a little above their half."""
_LEAST_CAP = 20.0
"""Slack is weighed as for a cap of this epsilon at least, so that lowering a cap admits no more of it."""
_SLACK_SHARE = 1e-3
"""Of delta, for what has a probability too small to matter and is no part of any divergence."""


@dataclass(frozen=True)
class Cost:
    """What one event adds to a filter.

    Attributes:
        epsilon: with `delta`, the event alone.
        delta: 0 for a pure event.
        renyi: its divergences.
    """

    epsilon: float
    delta: float
    renyi: RenyiBound


def cost_of(event: DpEvent, relation: Relation, *, delta: float, slack: float = 0.0) -> Cost:
    """What an event costs, at the delta that it was planned for.

    Args:
        event: as for `profile`.
        relation: which data sets are neighbours.
        delta: at which the event's own epsilon is taken; 0 for a pure event.
        slack: probability with which the run may leave the event.
    """
    epsilon = profile(event, relation=relation, slack=slack).epsilon(delta)
    return Cost(epsilon, delta, renyi_bound(event, relation, slack=slack))


@dataclass(frozen=True)
class PrivacyFilter:
    """Admits events one by one, and promises (epsilon, delta) for all of them together, however each was chosen.

    Composition as in `profile` is a theorem about events that were fixed beforehand. Whoever looks at a fit before planning the
    next one needs another: a rule that stops before a sum passes a bound that was fixed first. Here there are several sums, and
    one of them within its bound is enough, for delta is shared out among them: half for the sum of the events' own epsilons
    and deltas (Rogers, Roth, Ullman and Vadhan, NeurIPS 2016, section 3), the other half in equal parts for Rényi
    divergences of 24 orders (Feldman and Zrnic, NeurIPS 2021, Theorem 4.3). Whatever happens, one of the sums admitted the last
    event; where it was a given one, a filter of that sum alone would have stopped nothing, so the chance of a large loss is at
    most its share.

    Attributes:
        epsilon: the cap, above 0.
        delta: the cap's delta, above 0 and below 1; the events' own deltas have to fit into half of it.

    >>> cap = PrivacyFilter(epsilon=3.0, delta=1e-5)
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
        """The least cap, at this delta, that would have admitted these events; infinite where none would."""
        if not costs:
            return 0.0
        return min(self._basic(costs), self._renyi(costs))

    def admits(self, costs: Sequence[Cost]) -> bool:
        """Whether these events, in the order in which they came, stay below the cap together."""
        return self.spent(costs) <= self.epsilon

    def _basic(self, costs: Sequence[Cost]) -> float:
        if math.fsum(cost.delta for cost in costs) > (_BASIC_SHARE + _ROUNDING / 2) * self.delta:
            return math.inf
        return math.fsum(cost.epsilon for cost in costs)

    def _renyi(self, costs: Sequence[Cost]) -> float:
        # A probability on either of two neighbours: once as it is, once multiplied by e^epsilon.
        slack = math.fsum(cost.renyi.slack for cost in costs) * (
            1 + math.exp(min(max(self.epsilon, _LEAST_CAP), 700.0))
        )
        if slack > _SLACK_SHARE * self.delta:
            return math.inf
        share = (1 - _BASIC_SHARE - _SLACK_SHARE - _ROUNDING) * self.delta / len(ORDERS)
        total: NDArray[np.float64] = np.sum([cost.renyi.divergences for cost in costs], axis=0)
        # Canonne, Kamath and Steinke, NeurIPS 2020, Proposition 12.
        epsilons = total + np.log1p(-1 / ORDERS) - (math.log(share) + np.log(ORDERS)) / (ORDERS - 1)
        return max(0.0, float(np.min(epsilons)))
