"""Rényi divergences of events, which add up also where each event was chosen after seeing what the earlier ones released.

They are taken, at a fixed set of orders, from the same dominating pairs, on the same grids, as the
profiles: they only grow where one pair dominates another, since that one can be made from it by a
random map (Blackwell). Filters (`_filter`) are accounted for by them.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discreet._dp_accounting import DpEvent
from discreet.privacy.accounting._compose import discretise, log_moment
from discreet.privacy.accounting._events import direction_parts
from discreet.privacy.accounting._pairs import Pair
from discreet.privacy.accounting._relation import Relation

ORDERS: NDArray[np.float64] = 1.0 + np.geomspace(0.5, 2000.0, 24)
"""The orders at which divergences are kept; all of them above 1."""
_TAIL_MASS = 1e-20
"""Probability that the cut of one pair's losses may send to infinity."""
_MOST_CELLS = 2**20
_CELLS_A_DEVIATION = 50
"""At which the grid adds to a cumulant no more than a few parts in ten thousand of it."""


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
    divergences = np.zeros(len(orders))
    lost = 0.0
    for mu, parts in direction_parts(event, relation):
        total = orders * mu**2 / 2  # Gaussians: Mironov, CSF 2017, Proposition 7
        left_out = 0.0
        for pair, count in parts:
            one, infinity = _of_pair(pair, tuple(orders))
            total = total + count * one
            left_out += count * infinity
        divergences = np.maximum(divergences, total)
        lost = max(lost, left_out)
    return RenyiBound(divergences, slack + lost)


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
