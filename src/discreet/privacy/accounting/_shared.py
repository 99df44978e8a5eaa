"""One bound on a record, shared between a release with Laplace noise and one with Gaussian noise.

A record moves the one by a of its bound and the other by b, where a^2 + b^2 <= 1, as the leaves of
a clipped tree are parts of one vector. For a given split the profile is that of a Laplace and of a
Gaussian mechanism beside each other, with shifts a and b times as large. The largest of these
profiles over all splits is a maximum of convex functions of e^epsilon, so it is the profile of a
pair again (Zhu, Dong, Wang, AISTATS 2022), which dominates the two releases: exactly, for one such
pair of releases. Both full bounds together, the composition, are up to 42 % of epsilon more.

Several such releases, where each split may be chosen after the earlier ones were seen: their
profile F_k obeys

    F_k(epsilon) = max over splits of  E F_(k-1)(epsilon - L),   F_0 = max(1 - e^epsilon, 0),

with the loss L of one release of that split, of a sample or of all records; it is convex in
e^epsilon and the profile of a pair again. The pair of `_BLOCK` releases is composed as any other:
it dominates a block whatever came before. Composed one by one, 30 to 1,000 of them cost up to 12 %
too much, since the worst split of one release differs with epsilon; in blocks, 1 %, and 2 % on
samples. Beside other releases blocks may take their place in any order, since whoever chooses after
seeing more gains, so that they come last in the worst case; that is so for one kind of shared
releases only.

Everything is rounded upward. Between two angles of the split both shifts are the larger ones;
losses lie on a grid by connect-the-dots, which raises the mean of each function that is convex in
e^epsilon, as F_(k-1) is, and needs it at grid points only; left of 0 a profile is 1 - alpha + alpha
G(1 / alpha), where G is that of the other direction; right of the grid it stays as it is. All these
are sums of fewer than 2,000 positive numbers, so that rounding takes less than 1e-12 of them.
Between grid points a profile is below its chord in e^epsilon.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from discreet.privacy.accounting._choices import AtomsPair, law_of
from discreet.privacy.accounting._compose import Cells, connect, discretise, foresee
from discreet.privacy.accounting._pairs import (
    Array,
    GaussianCurve,
    GaussianPair,
    GridCurve,
    LaplacePair,
    LossLaw,
    LossNodes,
    Pair,
    PoissonPair,
)

_ANGLES = 160
_CELLS = 32
_KNOTS = 512
_REACH = 9.5
"""Standard deviations of a Gaussian loss beyond which delta is below 1e-20."""
MOST_LOSS = 500.0
"""Largest epsilon of the curve, whose exponential is still a number; larger ones are not shared."""
_BLOCK = 128
_MOST_WORK = 3e10
"""Multiplications for one block; where they do not suffice, it has fewer releases."""
_GROWTH = 0.03
"""Width of a cell of the loss, over the loss, where that is more than the spacing."""
_TOLERANCE = 3e-4
"""Share of epsilon that the grid may add."""
_TAIL_MASS = 1e-20


@dataclass(frozen=True)
class SharedPair(AtomsPair):
    """The worst of all splits, where the whole bound lies `laplace` scales, or `gaussian` standard deviations, apart."""

    laplace: float
    gaussian: float

    def atoms(self) -> tuple[LossNodes, LossLaw]:
        return _shared_law(self.laplace, self.gaussian)


@dataclass(frozen=True)
class BlockPair(AtomsPair):
    """`size` shared releases of `count`, each of whatever split is then the worst.

    They are of Poisson samples, or of all records where `rate` is 1; `added` is as in `PoissonPair`.
    """

    shared: SharedPair
    rate: float
    added: bool
    size: int
    count: int

    def atoms(self) -> tuple[LossNodes, LossLaw]:
        return _block_law(self)


@dataclass(frozen=True)
class SplitPair:
    """One split: Laplace noise on sums that lie `laplace` scales apart, beside Gaussian noise; symmetric."""

    laplace: float
    gaussian: float

    def law(self, loss: Array) -> LossLaw:
        cells = _laplace_cells(self.laplace)
        gaussian = GaussianPair(self.gaussian).law(loss - cells.losses[:, None])
        lower = cells.probs * np.exp(-cells.losses)
        return LossLaw(
            cells.probs @ gaussian.upper_cdf,
            cells.probs @ gaussian.upper_sf,
            lower @ gaussian.lower_cdf,
            lower @ gaussian.lower_sf,
        )

    def nodes(self) -> LossNodes:
        cells = _laplace_cells(self.laplace)
        gaussian = GaussianPair(self.gaussian).nodes()
        lower = cells.probs * np.exp(-cells.losses)
        return LossNodes(
            np.add.outer(cells.losses, gaussian.loss).ravel(),
            np.outer(cells.probs, gaussian.upper).ravel(),
            np.outer(lower, gaussian.lower).ravel(),
        )


def in_blocks(pair: Pair, count: int) -> list[tuple[Pair, int]]:
    """`count` shared releases, each with the pair given, or samples of such: in blocks."""
    shared = pair.base if isinstance(pair, PoissonPair) else pair
    if not isinstance(shared, SharedPair):
        raise TypeError(f"{pair!r} is no pair of a shared release")
    rate, added = (pair.rate, pair.added) if isinstance(pair, PoissonPair) else (1.0, False)
    largest = _plan(shared, rate, count).largest
    if largest == 1:
        return [(pair, count)]
    sizes = [(largest, count // largest), (count % largest, 1)]
    return [(BlockPair(shared, rate, added, size, count), n) for size, n in sizes if size]


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
        cells = _laplace_cells(shift)
        curve = GaussianCurve(gaussian * math.cos(start))
        found = cells.probs @ curve.delta(knots - cells.losses[:, None]) + cells.infinity
        deltas = np.maximum(deltas, found)
    deltas = np.minimum(deltas * (1 + 1e-12), 1.0)
    return GridCurve(knots, deltas)


@functools.lru_cache(maxsize=32)
def _shared_law(laplace: float, gaussian: float) -> tuple[LossNodes, LossLaw]:
    return law_of(shared_curve(laplace, gaussian))


@functools.lru_cache(maxsize=2 * _ANGLES)
def _laplace_cells(shift: float) -> Cells:
    return discretise(LaplacePair(shift), 2 * shift / _CELLS, 0.0)


@dataclass(frozen=True)
class _Plan:
    """The size of the largest block, and its grid: of the losses for each direction, and the last points of the profiles."""

    largest: int
    spacing: float
    places: tuple[NDArray[np.int64], ...]
    lasts: tuple[int, ...]


@functools.lru_cache(maxsize=32)
def _plan(shared: SharedPair, rate: float, count: int) -> _Plan:
    pairs = _directions(shared, rate)
    spacing = max(foresee([(pair, count)], _TOLERANCE).spacing for pair in pairs)
    places = tuple(_places(pair.nodes().loss / spacing) for pair in pairs)
    largest = min(count, _BLOCK)
    while largest > 1:
        # By Chernoff's bound, with what the grid adds to the cumulants.
        outlooks = [foresee([(pair, largest)], _TOLERANCE) for pair in pairs]
        cumulants = [x.cumulants + largest * (x.orders * spacing) ** 2 / 4 for x in outlooks]
        ends = [
            np.min((more - math.log(_TAIL_MASS)) / x.orders)
            for more, x in zip(cumulants, outlooks, strict=True)
        ]
        lasts = tuple(math.ceil(end / spacing) for end in ends)
        work = sum(len(x) * last for x, last in zip(places, lasts, strict=True))
        if max(ends) < MOST_LOSS and largest * _ANGLES * work < _MOST_WORK:
            return _Plan(largest, spacing, places, lasts)
        largest //= 2
    return _Plan(1, spacing, places, ())


def _places(losses: Array) -> NDArray[np.int64]:
    """Grid points that reach from the least to the largest loss, farther apart where they are larger."""

    def upto(most: float) -> list[int]:
        found = [0, 1]
        while found[-1] < most:
            found.append(found[-1] + max(1, int(found[-1] * _GROWTH)))
        return found

    return np.array([*(-x for x in upto(float(-min(losses)))[:0:-1]), *upto(float(max(losses)))])


def _directions(base: Pair, rate: float) -> list[Pair]:
    """The pair of a release, for each direction of the relation where they differ."""
    return [base] if rate == 1 else [PoissonPair(base, rate, added) for added in (False, True)]


@functools.lru_cache(maxsize=8)
def _block_curves(shared: SharedPair, rate: float, count: int) -> list[list[GridCurve]]:
    """The profiles of 1, 2, ... releases, up to the largest block, each for each direction, rounded up."""
    plan = _plan(shared, rate, count)
    spacing = plan.spacing
    angles = np.linspace(0.0, math.pi / 2, _ANGLES + 1)
    splits = [
        SplitPair(shared.laplace * math.sin(stop), shared.gaussian * math.cos(start))
        for start, stop in itertools.pairwise(angles.tolist())
    ]
    laws = zip(*(_directions(split, rate) for split in splits), strict=True)
    kernels = [
        _Kernel.of(pairs, places, spacing) for pairs, places in zip(laws, plan.places, strict=True)
    ]
    grids = [np.arange(last + 1) * spacing for last in plan.lasts]
    curves = [GridCurve(grid, np.zeros_like(grid)) for grid in grids]
    found = []
    for _ in range(plan.largest):
        # The other direction of the last one is the first.
        deltas = [x.mean(*pair) for x, *pair in zip(kernels, curves, curves[::-1], strict=True)]
        start = max(delta[0] for delta in deltas)  # at 0 both are the total variation
        for delta in deltas:
            delta[0] = start
        curves = [GridCurve(grid, delta) for grid, delta in zip(grids, deltas, strict=True)]
        found.append(curves)
    return found


@functools.lru_cache(maxsize=32)
def _block_law(block: BlockPair) -> tuple[LossNodes, LossLaw]:
    curves = _block_curves(block.shared, block.rate, block.count)[block.size - 1]
    return law_of(*(curves[::-1] if block.added else curves))


@dataclass(frozen=True)
class _Kernel:
    """The laws of the loss for all intervals of the angle, a row each: masses at `places` of the grid, and at infinity."""

    places: NDArray[np.int64]
    probs: Array
    infinity: Array

    @staticmethod
    def of(pairs: Sequence[Pair], places: NDArray[np.int64], spacing: float) -> _Kernel:
        laws = [connect(pair, places * spacing, np.diff(places) * spacing) for pair in pairs]
        probs, infinity = zip(*laws, strict=True)
        return _Kernel(places, np.array(probs), np.reshape(infinity, (-1, 1)))

    def mean(self, curve: GridCurve, reverse: GridCurve) -> Array:
        """The largest mean of a curve at each grid point less the loss, where `reverse` is the other direction's curve."""
        last = int(self.places[-1])
        below = np.arange(last, 0, -1)
        spacing = curve.knots[1]
        there = reverse.deltas[np.minimum(below, len(reverse.deltas) - 1)]
        left = -np.expm1(-below * spacing) + np.exp(-below * spacing) * there
        right = np.full(-self.places[0], curve.deltas[-1])
        known = np.concatenate([left, curve.deltas, right])
        shifted = sliding_window_view(known, len(curve.deltas))[last - self.places]
        deltas = np.max(self.probs @ shifted + self.infinity, axis=0) * (1 + 1e-12)
        return np.minimum.accumulate(np.minimum(deltas, 1.0))
