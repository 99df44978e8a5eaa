"""A filter: events that are chosen one after another, each after seeing what the earlier ones released.

A profile of a composition holds for events that were fixed in advance. Where they were not, Rényi
divergences still add up, as long as a stopping rule keeps their sum below a bound that was fixed
first (Feldman and Zrnic, NeurIPS 2021, Theorem 4.3).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet._dp_accounting import DpEvent
from discreet._validate import positive, probability
from discreet.privacy.accounting._profile import profile
from discreet.privacy.accounting._relation import Relation
from discreet.privacy.accounting._renyi import ORDERS, RenyiBound, renyi_bound

_BASIC_SHARE = 0.5
"""Share of delta for the sum of the fits' own epsilons and deltas."""
_PURE = 1e-3
"""So much more may a pure epsilon be than that at the planned delta, to take its place."""
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
    """The cost of an event at its planned delta (0: a pure event); `slack` as in `renyi_bound`.

    Where a pure epsilon is hardly larger, as that of Laplace noise, it takes none of the cap's delta.
    """
    spent = profile(event, relation=relation, slack=slack)
    epsilon = spent.epsilon(delta)
    pure = spent.epsilon(0.0)
    if pure <= (1 + _PURE) * epsilon:
        epsilon, delta = pure, 0.0
    return Cost(epsilon, delta, renyi_bound(event, relation, slack=slack))


@dataclass(frozen=True)
class PrivacyFilter:
    """Admit events one by one, with (epsilon, delta) for all of them together, even if each is chosen adaptively.

    Composition as in `profile` is a theorem about events that were fixed beforehand. Whoever looks
    at a fit before planning the next one needs another: a rule that stops before a sum passes a
    bound that was fixed first. Here there are several sums, and one of them within its bound is
    enough, for delta is shared out among them: half for the sum of the events' own epsilons and
    deltas (Rogers, Roth, Ullman and Vadhan, NeurIPS 2016, section 3), the other half in equal parts
    for Rényi divergences of 24 orders (Feldman and Zrnic, NeurIPS 2021, Theorem 4.3). Whatever
    happens, one of the sums admitted the last event; where it was a given one, a filter of that sum
    alone would have stopped nothing, so the chance of a large loss is at most its share.

    Attributes:
        epsilon: The cap, above 0.
        delta: The cap's delta, above 0 and below 1; the events' own deltas have to fit into half of
            it.

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
        delta = probability(
            "The cap's delta", self.delta, hint="It should be well below 1 / number of records."
        )
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)

    def spent(self, costs: Sequence[Cost]) -> float:
        """Compute the least cap, at this delta, that would have admitted these events; infinite if none would."""
        if not costs:
            return 0.0
        fits = (
            math.fsum(cost.delta for cost in costs) <= (_BASIC_SHARE + _ROUNDING / 2) * self.delta
        )
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
