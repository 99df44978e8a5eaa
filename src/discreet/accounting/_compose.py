"""Composition: from dominating pairs and their counts to a privacy profile.

Each pair's privacy loss is put on a grid by connect-the-dots: the mass of every cell is split between the cell's two ends so that
both P's and Q's mass are kept, which can only raise the profile (Doroshenko et al., "Connect the dots", PoPETs 2022). Composition
adds independent losses, so the laws are convolved by FFT, tilted exponentially so that the digits lie where delta is decided.
What is cut off goes to an infinite loss, and the rounding of the FFT is added to delta.

dp_accounting computes the same object, from differences of hockey-stick divergences. Masses are used here instead, since a second
difference on a grid of 1e-6 loses ten of sixteen digits; and everything is vectorised, so that 10^6 steps take a fraction of a
second. The tests compare the two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import next_fast_len
from scipy.special import logsumexp

from discreet.accounting._curves import GridCurve
from discreet.accounting._pairs import LossNodes, Pair

Array = NDArray[np.floating[Any]]

_TAIL_MASS = 1e-18
"""Probability that all the cuts together may send to an infinite loss."""
_REFERENCE_DELTAS = (1e-3, 1e-6, 1e-10)
"""Deltas at which the grid is made fine enough; at the middle one the FFT has its full precision."""
_SHORT_POINTS, _EASY_POINTS, _MAX_POINTS = 2**14, 2**17, 2**21
_ULP = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class _Outlook:
    """What quadrature foresees of the composed loss: a spacing for the grid, a tilt, and the orders that bound its two tails."""

    spacing: float
    tilt: float
    low_order: float
    high_order: float


@dataclass(frozen=True)
class _Grid:
    """One pair's loss on the grid: probs[i] is the mass at (first + i) * spacing; the rest of the mass is at infinity."""

    first: int
    probs: Array
    infinity: float

    def losses(self, spacing: float) -> Array:
        return (self.first + np.arange(len(self.probs))) * spacing


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
    return _worst([_compose_one(parts, outlook, spacing) for parts, outlook in zip(directions, outlooks, strict=True)])


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


def _compose_one(parts: Sequence[tuple[Pair, int]], outlook: _Outlook, spacing: float) -> GridCurve:
    counts = [count for _, count in parts]
    while True:
        # A tilt that changes a lot within one cell serves nothing.
        tilt = min(outlook.tilt, 0.5 / spacing)
        cells = [_discretise(pair, spacing, _TAIL_MASS / (4 * sum(counts))) for pair, _ in parts]
        low, high = _chernoff_range(cells, counts, spacing, outlook)
        first, last = math.floor(low / spacing), max(math.ceil(high / spacing), 1)
        if last - first < _MAX_POINTS:
            break
        spacing *= 1.05 * (last - first) / _MAX_POINTS
    infinity = -math.expm1(sum(n * math.log1p(-cell.infinity) for n, cell in zip(counts, cells, strict=True)))
    points = int(next_fast_len(max(2, math.ceil(1.1 * (last - first + 1))), real=True) or 0)
    curves = [_convolved_deltas(cells, counts, spacing, order, first, points) for order in (0.0, tilt)]
    deltas = np.minimum(curves[0], curves[1]) + infinity + _TAIL_MASS
    start = max(first, 0)
    return _finish(np.arange(start, start + len(deltas)) * spacing, deltas, infinity)


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

    spacing, tilt = math.inf, 0.0
    for delta in _REFERENCE_DELTAS:
        # The grid adds spacing^2 (tilt^2 + tilt)/12 a step to the cumulant, hence spacing^2 (tilt + 1)/12 to epsilon.
        epsilon, order = reach(math.log(delta))
        spacing = min(spacing, math.sqrt(12 * tolerance * max(epsilon, 0.1 * scale) / ((order + 1) * total)))
        tilt = order if delta == _REFERENCE_DELTAS[1] else tilt
    high, high_order = reach(math.log(_TAIL_MASS))
    lows = (cumulants(-tilts) - math.log(_TAIL_MASS)) / -tilts
    low, low_order = float(np.max(lows)), float(tilts[int(np.argmax(lows))])
    if tolerance <= 1e-4:
        # A short grid costs nothing: use it to resolve small epsilons as well, at large deltas.
        spacing = min(spacing, (high - low) / _SHORT_POINTS)
    spacing = max(spacing, min(math.sqrt(10) * spacing, (high - low) / _EASY_POINTS))
    # One step's own losses must fit as well.
    widest = max(float(np.ptp(node.loss)) for node, _ in nodes)
    spacing = max(spacing, (high - low) / (_MAX_POINTS / 2), widest / (_MAX_POINTS / 2))
    return _Outlook(spacing=spacing, tilt=tilt, low_order=low_order, high_order=high_order)


def _without_cut(nodes: LossNodes, tail_mass: float) -> LossNodes:
    kept = nodes.upper > 1e-4 * tail_mass
    return LossNodes(*(part[kept] for part in nodes))


def _discretise(pair: Pair, spacing: float, tail_mass: float) -> _Grid:
    """Connect-the-dots on the cells between multiples of `spacing`."""
    first, last = _support(pair, spacing, tail_mass)
    edges = np.arange(first, last + 1) * spacing
    law = pair.law(edges)
    upper, upper_error = _cell_masses(law.upper_cdf, law.upper_sf)
    lower, lower_error = _cell_masses(law.lower_cdf, law.lower_sf)
    # The share of the upper end of the cell [a, b] is (P - e^a Q) / (1 - e^(a-b)), from P = p_a + p_b, Q = p_a e^-a + p_b e^-b;
    # rounded up, for what moves to the upper end only adds loss. Where e^a overflows the whole cell moves up.
    with np.errstate(over="ignore", invalid="ignore"):
        odds = np.exp(edges[:-1])
        share = (upper - odds * lower + 8 * _ULP * (upper_error + odds * lower_error)) / -math.expm1(-spacing)
    share = np.clip(np.where(edges[:-1] < 600, share, upper), 0.0, upper)
    probs = np.zeros(len(edges))
    probs[1:] += share
    probs[:-1] += upper - share
    probs[0] += law.upper_cdf[0]
    # Above the last edge: what can be explained by the last loss stays there, the rest is infinite.
    finite = min(math.exp(min(edges[-1], 700.0)) * float(law.lower_sf[-1]), float(law.upper_sf[-1]))
    probs[-1] += finite
    return _Grid(first=first, probs=probs, infinity=min(float(law.upper_sf[-1]) - finite, 1.0))


def _support(pair: Pair, spacing: float, tail_mass: float) -> tuple[int, int]:
    """Grid indices between which all but `tail_mass` on either side lies."""
    losses = np.unique(pair.nodes().loss)
    law = pair.law(losses)
    above = np.flatnonzero(law.upper_sf <= tail_mass)
    below = np.flatnonzero(law.upper_cdf <= tail_mass)
    high = losses[above[0]] if above.size else losses[-1]
    low = losses[below[-1]] if below.size else losses[0]
    first, last = math.floor(low / spacing), math.ceil(high / spacing)
    return first, max(last, first + 1)


def _cell_masses(cdf: Array, sf: Array) -> tuple[Array, Array]:
    """Mass of each cell, from the tail that has the digits, and the size of the numbers it was subtracted from."""
    left = cdf[1:] < sf[:-1]
    mass = np.where(left, np.diff(cdf), -np.diff(sf))
    return np.maximum(mass, 0.0), np.minimum(cdf[1:], sf[:-1])


def _log_moment(cell: _Grid, spacing: float, tilt: float) -> float:
    exponents = tilt * cell.losses(spacing)
    largest = float(np.max(exponents[cell.probs > 0]))
    # Bounded below, for products in the subnormal range are slow and add nothing.
    return largest + math.log(float(np.sum(np.exp(np.clip(exponents - largest, -200.0, 0.0)) * cell.probs)))


def _chernoff_range(
    cells: Sequence[_Grid], counts: Sequence[int], spacing: float, outlook: _Outlook
) -> tuple[float, float]:
    """Losses outside of which the composed grid law has probability at most `_TAIL_MASS` on either side, by Chernoff's bound.

    From the grid law itself and not from quadrature: where the losses are smaller than a cell, the two differ, and the best
    orders are those at which single cells are seen.
    """

    def bound(order: float) -> float:
        moment = sum(n * _log_moment(cell, spacing, order) for n, cell in zip(counts, cells, strict=True))
        return (moment - math.log(_TAIL_MASS)) / order

    lowest = sum(n * cell.first for n, cell in zip(counts, cells, strict=True))
    highest = sum(n * (cell.first + len(cell.probs) - 1) for n, cell in zip(counts, cells, strict=True))
    factors = (0.7, 1.0, 1.4)
    single = (0.3 / spacing, 1 / spacing, 3 / spacing)
    low = max(bound(-order) for order in (*(outlook.low_order * factor for factor in factors), *single))
    high = min(bound(order) for order in (*(outlook.high_order * factor for factor in factors), *single))
    return max(low, lowest * spacing), min(high, highest * spacing)


def _convolved_deltas(
    cells: Sequence[_Grid], counts: Sequence[int], spacing: float, tilt: float, first: int, points: int
) -> Array:
    """Delta at the grid points max(first, 0), ..., first + points - 1, from the law tilted by exp(tilt * loss)."""
    log_moment = 0.0
    offset = 0
    spectrum = np.zeros(points // 2 + 1, dtype=np.complex128)
    kept = slice(None)
    exponent = 0.0
    for cell, count in zip(cells, counts, strict=True):
        moment = _log_moment(cell, spacing, tilt)
        tilted = cell.probs * np.exp(tilt * cell.losses(spacing) - moment)
        rows = -(-len(tilted) // points)
        wrapped = np.pad(tilted, (0, rows * points - len(tilted))).reshape(rows, points).sum(axis=0)
        transform = np.fft.rfft(wrapped)[kept]
        # Frequencies that the power makes negligible are most of them: leave them out from here on.
        audible = np.flatnonzero(np.abs(transform) > math.exp(-80.0 / count))
        kept = audible if isinstance(kept, slice) else kept[audible]
        exponent = (exponent[audible] if isinstance(exponent, np.ndarray) else exponent) + count * np.log(
            transform[audible]
        )
        log_moment += count * moment
        offset += count * cell.first
    spectrum[kept] = np.exp(exponent)
    start = max(first, 0)
    law = np.roll(np.fft.irfft(spectrum, points), (offset - first) % points)[start - first :]
    losses = np.arange(start, first + points) * spacing
    rounding = 32 * _ULP * (sum(counts) + math.log2(points))
    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.exp(np.minimum(log_moment - tilt * losses, 700.0))
        deltas = _hockey_stick(np.maximum(law, 0.0) * scale, spacing) + rounding * scale
    # Where the tilt has made everything overflow, this curve says nothing; the other one will.
    return np.where(np.isnan(deltas), 1.0, np.minimum(deltas, 1.0))


def _hockey_stick(probs: Array, spacing: float) -> Array:
    """sum_{i>j} p_i (1 - e^(l_j - l_i)) for every j, for losses l that are `spacing` apart."""
    above = np.cumsum(probs[::-1])[::-1]
    discounted = np.empty_like(probs)
    # sum_{i>=j} p_i e^(l_j - l_i), in blocks within which no exponential leaves the range of floats.
    block = max(1, int(400 / spacing))
    carry = 0.0
    for start in range((len(probs) - 1) // block * block, -1, -block):
        part = probs[start : start + block]
        growth = np.exp(spacing * np.arange(len(part)))
        carried = carry * math.exp(-spacing * len(part))
        discounted[start : start + block] = growth * (np.cumsum((part / growth)[::-1])[::-1] + carried)
        carry = float(discounted[start])
    return np.append(np.maximum(above[1:] - math.exp(-spacing) * discounted[1:], 0.0), 0.0)


def _finish(epsilons: Array, deltas: Array, infinity: float) -> GridCurve:
    deltas = np.minimum(np.minimum.accumulate(deltas), 1.0)
    if epsilons[0] > 0:
        # Nothing but cut-off mass lies below the first point, so delta is linear in e^epsilon from there down to 0: extend it.
        epsilons, deltas = np.insert(epsilons, 0, 0.0), np.insert(deltas, 0, 1.0)
    floor = infinity + _TAIL_MASS
    used = min(int(np.searchsorted(-deltas, -1.0001 * floor)) + 2, len(deltas))
    return GridCurve(epsilons=epsilons[:used], deltas=deltas[:used])
