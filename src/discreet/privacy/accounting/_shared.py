"""One bound on a record, shared between a release with Laplace noise and one with Gaussian noise.

A record moves the one by a of its bound and the other by b, where a^2 + b^2 <= 1, as the leaves of
a clipped tree are parts of one vector. For a given split the profile is that of a Laplace and of a
Gaussian mechanism beside each other, with shifts a and b times as large. The largest of these
profiles over all splits is a maximum of convex functions of e^epsilon, so it is the profile of a
pair again (Zhu, Dong, Wang, AISTATS 2022), which dominates the two releases: exactly, for one such
pair of releases. Both full bounds together, the composition, are up to 42 % of epsilon more.

Everything is rounded upward. Between two angles of the split both shifts are the larger ones; the
Laplace loss lies on a grid by connect-the-dots; and between grid points of epsilon the profile is
below its chord in e^epsilon.
"""

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np

from discreet.privacy.accounting._choices import law_of
from discreet.privacy.accounting._compose import discretise
from discreet.privacy.accounting._pairs import (
    Array,
    GaussianCurve,
    GridCurve,
    LaplacePair,
    LossLaw,
    LossNodes,
)

_ANGLES = 96
_CELLS = 32
_KNOTS = 512
_REACH = 9.5
"""Standard deviations of a Gaussian loss beyond which delta is below 1e-20."""
MOST_LOSS = 500.0
"""Largest epsilon of the curve, whose exponential is still a number; larger ones are not shared."""


@dataclass(frozen=True)
class SharedPair:
    """The worst of all splits, where the whole bound lies `laplace` scales, or `gaussian` standard deviations, apart."""

    laplace: float
    gaussian: float

    def law(self, loss: Array) -> LossLaw:
        atoms, law = _shared_law(self.laplace, self.gaussian)
        place = np.searchsorted(atoms.loss, loss, side="right")
        return LossLaw(*(part[place] for part in law))

    def nodes(self) -> LossNodes:
        return _shared_law(self.laplace, self.gaussian)[0]


def reach_of(laplace: float, gaussian: float) -> float:
    """The largest epsilon at which the profile of these shifts is not negligible."""
    return laplace + gaussian**2 / 2 + _REACH * gaussian


@functools.lru_cache(maxsize=32)
def shared_curve(laplace: float, gaussian: float) -> GridCurve:
    """The profile of a `SharedPair`, rounded up."""
    knots = np.linspace(0.0, reach_of(laplace, gaussian), _KNOTS)
    angles = np.linspace(0.0, math.pi / 2, _ANGLES + 1)
    deltas = np.zeros(len(knots))
    for start, stop in itertools.pairwise(angles.tolist()):
        shift = laplace * math.sin(stop)
        cells = discretise(LaplacePair(shift), 2 * shift / _CELLS, 0.0)
        curve = GaussianCurve(gaussian * math.cos(start))
        found = cells.probs @ curve.delta(knots - cells.losses[:, None]) + cells.infinity
        deltas = np.maximum(deltas, found)
    deltas = np.minimum(deltas * (1 + 1e-12), 1.0)
    return GridCurve(knots, deltas)


@functools.lru_cache(maxsize=32)
def _shared_law(laplace: float, gaussian: float) -> tuple[LossNodes, LossLaw]:
    return law_of(shared_curve(laplace, gaussian))
