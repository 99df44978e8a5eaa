"""Composition: from dominating pairs and their counts to a privacy profile.

Each pair's privacy loss is put on a grid by connect-the-dots. Composition adds independent losses, so the laws are convolved by
FFT, once as they are and once tilted exponentially so that the digits lie where a small delta is decided. What is cut off goes to
an infinite loss, and a bound on the rounding of the FFT (derived in `_convolve`) is added to delta.

Why not dp_accounting's composition: it is no upper bound, for what its untilted FFT rounds off is multiplied by the number of
steps and added nowhere. Handed the very grids made here, for epsilon in {0.01, 1, 10} and q in {1e-4, 0.01, 0.5}, it agrees to
5e-5 at delta = 1e-6. At delta = 1e-10 it comes out lower by up to 1e-4 of epsilon at 10^3 steps, 0.5 % at 10^5 and 0.8 % at 10^6,
and at 10^6 also higher by up to 1.1 %; its own connect-the-dots makes that 2 % lower, and 0.5 % higher at epsilon = 0.01,
delta = 1e-6. One epsilon in one direction at 10^6 steps takes it 0.2 to 0.5 s and some 300 MB, here 0.05 to 0.2 s, and a
calibration needs some 20 of them. The tests compare the two where it is feasible.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import next_fast_len
from scipy.special import logsumexp

from discreet.accounting._cells import Cells, discretise
from discreet.accounting._convolve import Sum, log_moment
from discreet.accounting._curves import GridCurve
from discreet.accounting._pairs import LossNodes, Pair

Array = NDArray[np.floating[Any]]

_TAIL_MASS = 1e-18
"""Probability that all the cuts together may send to an infinite loss."""
_REFERENCE_DELTAS = (1e-3, 1e-6, 1e-10)
"""Deltas at which the grid is made fine enough."""
_LEAST_DELTA = 1e-12
"""The delta down to which the FFT's digits should suffice."""
_TILTED_DELTA = 1e-7
"""The delta at which the tilted FFT has its full precision."""
_SHORT_POINTS, _EASY_POINTS, _MAX_POINTS = 2**16, 2**17, 2**21
_FINE = 1e-4
"""Tolerance from which on time is spent on digits that a search does not need."""
_ROUNDED = 2e-3
"""Share of delta that may stand for rounding before more digits are used."""
_ROOM = 1.3
"""Length of the transform, as a multiple of the range of losses: the tilted law lies higher than the law itself."""
_STRAY = 1e-10
"""Share of the tilted law that may lie beyond the end of the transform; it does no harm but to tightness."""


@dataclass(frozen=True)
class _Outlook:
    """What quadrature foresees of the composed loss: a spacing for the grid, and the orders that bound its two tails.

    `cumulants` are log E exp(order * loss) at ascending `orders`, of which the first `tilts` are of use as a tilt.
    """

    spacing: float
    orders: Array
    cumulants: Array
    tilts: int
    low_order: float
    high_order: float

    def tilt(self, end: float) -> float:
        """The largest order whose tilted law all but fits below `end`, by Chernoff's bound; 0 where none does."""
        found = 0.0
        for i in range(min(self.tilts, len(self.orders) - 1)):
            rise = self.cumulants[i + 1 :] - self.cumulants[i]
            if np.min((rise - math.log(_STRAY)) / (self.orders[i + 1 :] - self.orders[i])) <= end:
                found = float(self.orders[i])
        return found


def compose(directions: Sequence[Sequence[tuple[Pair, int]]], *, tolerance: float = 1e-5) -> GridCurve:
    """Profile of a composition: the worst over the directions of a relation.

    Args:
        directions: for each direction its dominating pairs with their counts, at least one.
        tolerance: aim for the relative excess of epsilon that the grid may cause, in the direction that decides; ten times as
            much where the grid would otherwise be longer than 2^17 points. The bound holds whatever it is.

    Returns:
        A curve that lies nowhere below the profile of the composition in any of the directions.
    """
    outlooks = [_foresee(parts, tolerance) for parts in directions]
    # The direction with the larger epsilon allows the wider grid. The other one need not be resolved more finely: its curve
    # matters only where it comes out above the first.
    spacing = max(outlook.spacing for outlook in outlooks)
    return _worst(
        [_compose_one(parts, outlook, spacing, tolerance) for parts, outlook in zip(directions, outlooks, strict=True)]
    )


def _worst(curves: Sequence[GridCurve]) -> GridCurve:
    """The largest of the curves, on the grid of the longest one."""
    if len(curves) == 1:
        return curves[0]
    longest = max(curves, key=lambda curve: curve.epsilons[-1])
    deltas = longest.deltas.copy()
    for curve in curves:
        inside = int(np.searchsorted(longest.epsilons, curve.epsilons[-1]))
        deltas[:inside] = np.maximum(deltas[:inside], curve.delta(longest.epsilons[:inside]))
        deltas[inside:] = np.maximum(deltas[inside:], curve.deltas[-1])
    return GridCurve(epsilons=longest.epsilons, deltas=deltas)


def _compose_one(parts: Sequence[tuple[Pair, int]], outlook: _Outlook, spacing: float, tolerance: float) -> GridCurve:
    counts = [count for _, count in parts]
    while True:
        cells = [discretise(pair, spacing, _TAIL_MASS / (4 * sum(counts))) for pair, _ in parts]
        low, high = _chernoff_range(cells, counts, spacing, outlook)
        first, last = math.floor(low / spacing), max(math.ceil(high / spacing), 1)
        if last - first < _MAX_POINTS:
            break
        spacing *= 1.05 * (last - first) / _MAX_POINTS
    infinity = -math.expm1(sum(n * math.log1p(-cell.infinity) for n, cell in zip(counts, cells, strict=True)))
    points = int(next_fast_len(max(2, math.ceil(_ROOM * (last - first + 1))), real=True) or 0)
    stretch = Sum(cells, counts, spacing, first, points)
    deltas = _deltas(stretch, outlook, sharp=tolerance <= _FINE) + infinity + _TAIL_MASS
    return _finish(np.arange(stretch.start, first + points) * spacing, deltas, infinity)


def _deltas(stretch: Sum, outlook: _Outlook, *, sharp: bool) -> Array:
    """The lower of two bounds: of the law as it is, for large deltas, and of the law tilted upward, for small ones."""
    # A tilt that changes a lot within one cell serves nothing.
    tilt = min(outlook.tilt((stretch.first + stretch.points) * stretch.spacing), 0.5 / stretch.spacing)
    deltas, error = stretch.deltas(0.0, stretch.moments(0.0))
    moments = stretch.moments(tilt)
    # What rounding will add to the lower bound, where the first one tells how large delta is, and where it just ceases to.
    rounding = error * np.minimum(stretch.scale(tilt, moments), 1.0)
    told = int(np.argmax(deltas <= max(4 * error, _LEAST_DELTA))) + 1
    extended = sharp and bool(np.any(rounding[:told] > _ROUNDED * np.maximum(deltas[:told], _LEAST_DELTA)))
    if tilt > 0 or extended:
        deltas = np.minimum(deltas, stretch.deltas(tilt, moments, extended=extended)[0])
    return deltas


def _foresee(parts: Sequence[tuple[Pair, int]], tolerance: float) -> _Outlook:
    total = sum(count for _, count in parts)
    nodes = [(_without_cut(pair.nodes(), _TAIL_MASS / total), count) for pair, count in parts]
    mean = variance = 0.0
    for node, count in nodes:
        step_mean = float(node.upper @ node.loss)
        mean += count * step_mean
        variance += count * float(node.upper @ (node.loss - step_mean) ** 2)
    # A loss that is all but constant (little noise, one direction) has a variance that is rounding error.
    scale = max(math.sqrt(variance), 1e-4 * abs(mean), 1e-150)
    tilts = np.geomspace(1e-3, 1e3, 97) / scale

    def cumulants(orders: Array) -> Array:
        """Log E exp(order * loss) of the whole composition."""
        with np.errstate(divide="ignore"):
            return np.sum(
                [n * logsumexp(np.outer(orders, node.loss) + np.log(node.upper), axis=1) for node, n in nodes], axis=0
            )

    upward = cumulants(tilts)

    def reach(log_mass: float) -> tuple[float, float]:
        bounds = (upward - log_mass) / tilts
        best = int(np.argmin(bounds))
        return float(bounds[best]), float(tilts[best])

    spacing = math.inf
    for delta in _REFERENCE_DELTAS:
        # The grid adds spacing^2 (tilt^2 + tilt)/12 a step to the cumulant, hence spacing^2 (tilt + 1)/12 to epsilon.
        epsilon, order = reach(math.log(delta))
        spacing = min(spacing, math.sqrt(12 * tolerance * max(epsilon, 0.1 * scale) / ((order + 1) * total)))
    high, high_order = reach(math.log(_TAIL_MASS))
    lows = (cumulants(-tilts) - math.log(_TAIL_MASS)) / -tilts
    low, low_order = float(np.max(lows)), float(tilts[int(np.argmax(lows))])
    if tolerance <= _FINE:
        # A short grid costs nothing: use it to resolve small epsilons as well, at large deltas.
        spacing = min(spacing, (high - low) / _SHORT_POINTS)
    spacing = max(spacing, min(math.sqrt(10) * spacing, (high - low) / _EASY_POINTS))
    # One step's own losses must fit as well.
    widest = max(float(np.ptp(node.loss)) for node, _ in nodes)
    spacing = max(spacing, (high - low) / (_MAX_POINTS / 2), widest / (_MAX_POINTS / 2))
    # Tilts up to the best one for the smallest delta, and all larger orders to bound their tails with.
    return _Outlook(
        spacing=spacing,
        orders=tilts,
        cumulants=upward,
        tilts=int(np.searchsorted(tilts, reach(math.log(_TILTED_DELTA))[1], side="right")),
        low_order=low_order,
        high_order=high_order,
    )


def _without_cut(nodes: LossNodes, tail_mass: float) -> LossNodes:
    kept = nodes.upper > 1e-4 * tail_mass
    return LossNodes(*(part[kept] for part in nodes))


def _chernoff_range(
    cells: Sequence[Cells], counts: Sequence[int], spacing: float, outlook: _Outlook
) -> tuple[float, float]:
    """Losses outside of which the composed grid law has probability at most `_TAIL_MASS` on either side, by Chernoff's bound.

    From the grid law itself and not from quadrature: where the losses are smaller than a cell, the two differ, and the best
    orders are those at which single cells are seen.
    """

    def bound(order: float) -> float:
        moment = sum(n * log_moment(cell, spacing, order) for n, cell in zip(counts, cells, strict=True))
        return (moment - math.log(_TAIL_MASS)) / order

    lowest = sum(n * cell.first for n, cell in zip(counts, cells, strict=True))
    highest = sum(n * (cell.first + len(cell.probs) - 1) for n, cell in zip(counts, cells, strict=True))
    factors = (0.7, 1.0, 1.4)
    single = (0.3 / spacing, 1 / spacing, 3 / spacing)
    low = max(bound(-order) for order in (*(outlook.low_order * factor for factor in factors), *single))
    high = min(bound(order) for order in (*(outlook.high_order * factor for factor in factors), *single))
    return max(low, lowest * spacing), min(high, highest * spacing)


def _finish(epsilons: Array, deltas: Array, infinity: float) -> GridCurve:
    deltas = np.minimum(np.minimum.accumulate(deltas), 1.0)
    if epsilons[0] > 0:
        # Nothing but cut-off mass lies below the first point, so delta is linear in e^epsilon from there down to 0: extend it.
        epsilons, deltas = np.insert(epsilons, 0, 0.0), np.insert(deltas, 0, 1.0)
    floor = infinity + _TAIL_MASS
    used = min(int(np.searchsorted(-deltas, -1.0001 * floor)) + 2, len(deltas))
    return GridCurve(epsilons=epsilons[:used], deltas=deltas[:used])
