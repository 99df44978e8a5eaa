"""A privacy filter: a cap on what is spent, that holds where each spending was chosen after the earlier ones were seen."""

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray

from discreet.accounting._events import Relation
from discreet.accounting._profile import profile
from discreet.accounting._renyi import ORDERS, RenyiBound, renyi_bound

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


def cost_of(event: dp_event.DpEvent, relation: Relation, *, delta: float, slack: float = 0.0) -> Cost:
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
        for name, value, most in (("epsilon", self.epsilon, math.inf), ("delta", self.delta, 1.0)):
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value < most:
                raise ValueError(
                    f"The cap's {name} is {value!r}; it must be a number above 0"
                    f"{' and below 1, well below 1 / number of records' if name == 'delta' else ' and finite, such as 3'}."
                )
            object.__setattr__(self, name, float(value))

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
