"""Rényi divergences of events, bounded from above, at a fixed set of orders: what adds up even where plans were adapted.

A profile of a composition holds for events that were fixed in advance. Where each event was chosen after seeing what the earlier
ones released, its Rényi divergences still add up, as long as a stopping rule keeps their sum below a bound that was fixed first
(Feldman and Zrnic, NeurIPS 2021, Theorem 4.3). They are taken from the same dominating pairs, on the same grids, as the profiles:
divergences only grow where one pair dominates another, since that one can be made from it by a random map (Blackwell).
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray

from discreet.accounting._cells import discretise
from discreet.accounting._convolve import log_moment
from discreet.accounting._events import Relation, check_relation, direction_parts
from discreet.accounting._pairs import Pair

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


def renyi_bound(event: dp_event.DpEvent, relation: Relation, *, slack: float = 0.0) -> RenyiBound:
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
