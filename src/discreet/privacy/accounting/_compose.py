"""Composition: from dominating pairs and their counts to a privacy profile.

Three parts, in this order. `Cells`: a pair's privacy loss on a grid, by connect-the-dots
(Doroshenko et al., "Connect the dots", PoPETs 2022): the mass of every cell is split between its
two ends so that both P's and Q's mass are kept, which can only raise the profile; what lies above
the last cell goes to an infinite loss. `Sum`: independent losses add up, so the laws are convolved
by FFT, once as they are and once tilted exponentially so that the digits lie where a small delta is
decided. `compose`: chooses grid, range and tilt, and takes the worst direction. What is cut off
goes to an infinite loss, and a bound on the rounding of the FFT is added to delta. Of many sampling
rates few are transformed: public coins between these make up the others (`_few_rates`).

The bound on rounding. Notation: x >= 0 is one step's law, tilted to exp(t loss) and normalised, so
that |x|_1 = 1; X its transform; n the number of steps; N the length of the transform; e the machine
epsilon. An FFT adds, at each of its log2(N) halvings, at most 8e times the sum of absolute values
that it adds up (twiddle factors, products and sums of a radix-5 pass need less): its result is off
by at most h = 8e log2(N) |x|_1 in every frequency, and by 8e log2(N) sqrt(N) |x|_2 in Euclidean
norm (Higham, "Accuracy and stability of numerical algorithms", theorem 24.2). The power n turns an
error h of X into at most (|X| + h)^n - |X|^n, its logarithm and exponential add 8e n (1 + |log X|)
|X|^n. The inverse transform keeps Euclidean norms but for its own 8e log2(N). Since |y|_1 <=
sqrt(N) |y|_2, which is the Euclidean norm of y's transform, all this bounds the sum of the errors
over all losses, and that bounds what they can take from delta. Errors that are relative to each
entry of x stay relative in delta.

Why not dp_accounting's composition: it is no upper bound, because what its untilted FFT rounds off
is multiplied by the number of steps and added nowhere. Given the very grids made here, for epsilon
in {0.01, 1, 10} and q in {1e-4, 0.01, 0.5}, it agrees to 5e-5 at delta = 1e-6. At delta = 1e-10 it
comes out lower by up to 1e-4 of epsilon at 10^3 steps, 0.5 % at 10^5 and 0.8 % at 10^6, and at 10^6
also higher by up to 1.1 %; its own connect-the-dots makes that 2 % lower, and 0.5 % higher at
epsilon = 0.01, delta = 1e-6: second differences of divergences on a grid of 1e-6 lose ten of
sixteen digits, masses lose none. One epsilon in one direction at 10^6 steps takes it 0.2 to 0.5 s
and some 300 MB, here 0.05 to 0.2 s, and a calibration needs some 20 of them. The tests compare the
two where that is feasible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import expit, logit, logsumexp

from discreet.privacy.accounting._pairs import GridCurve, LinearInRate, LossNodes, Pair

Array = NDArray[np.floating[Any]]

_ULP = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Cells:
    """One pair's loss on the grid: probs[i] is the mass at losses[i] = (first + i) * spacing; the rest is at infinity."""

    first: int
    losses: Array
    probs: Array
    infinity: float

    def begun_at(self, first: int) -> Cells:
        """The same law on a stretch of the grid that begins farther down."""
        more = self.first - first
        losses = self.losses[0] + np.arange(-more, 0) * (self.losses[1] - self.losses[0])
        probs = np.pad(self.probs, (more, 0))
        return Cells(first, np.concatenate([losses, self.losses]), probs, self.infinity)


def discretise(pair: Pair, spacing: float, tail_mass: float) -> Cells:
    """Connect-the-dots on the cells between multiples of `spacing`, out to where `tail_mass` is left on either side."""
    losses = np.unique(pair.nodes().loss)
    law = pair.law(losses)
    above = np.flatnonzero(law.upper_sf <= tail_mass)
    below = np.flatnonzero(law.upper_cdf <= tail_mass)
    high = losses[above[0]] if above.size else losses[-1]
    low = losses[below[-1]] if below.size else losses[0]
    first = math.floor(low / spacing)
    last = max(math.ceil(high / spacing), first + 1)
    edges = np.arange(first, last + 1) * spacing
    return Cells(first, edges, *connect(pair, edges, spacing))


def connect(pair: Pair, edges: Array, widths: Array | float) -> tuple[Array, float]:
    """Connect-the-dots: the masses at the edges of cells that are so wide, and at an infinite loss."""
    law = pair.law(edges)
    upper, upper_error = _masses(law.upper_cdf, law.upper_sf)
    lower, lower_error = _masses(law.lower_cdf, law.lower_sf)
    # The share of the upper end of the cell [a, b] is (P - e^a Q) / (1 - e^(a-b)), from P = p_a +
    # p_b, Q = p_a e^-a + p_b e^-b; rounded up, for what moves to the upper end only adds loss.
    # Where e^a overflows the whole cell moves up.
    with np.errstate(over="ignore", invalid="ignore"):
        odds = np.exp(edges[:-1])
        share = (upper - odds * lower + upper_error + odds * lower_error) / -np.expm1(-widths)
    share = np.clip(np.where(edges[:-1] < 600, share, upper), 0.0, upper)
    probs = np.zeros(len(edges))
    probs[1:] += share
    probs[:-1] += upper - share
    probs[0] += law.upper_cdf[0]
    # Above the last edge: what can be explained by the last loss stays there, the rest is infinite.
    finite = min(math.exp(min(edges[-1], 700.0)) * float(law.lower_sf[-1]), float(law.upper_sf[-1]))
    probs[-1] += finite
    return probs, min(float(law.upper_sf[-1]) - finite, 1.0)


def _masses(cdf: Array, sf: Array) -> tuple[Array, Array]:
    """Mass of each cell, from the tail that has the digits, and a bound on its rounding error.

    The normal distribution function is off by a few units in the last place near 0, and in the
    tails by about as many as the exponent -log(cdf) is large.
    """
    left = cdf[1:] < sf[:-1]
    mass = np.where(left, np.diff(cdf), -np.diff(sf))
    tail = np.minimum(cdf[1:], sf[:-1])
    return np.maximum(mass, 0.0), _ULP * tail * (8 - 4 * np.log(np.maximum(tail, 1e-300)))


_SILENT = 80.0
"""A frequency whose power is below exp(-80) is left out; tried from `_MANY_LEFT_OUT` steps on."""
_MANY_LEFT_OUT = 100
_EXTENDED = np.longdouble if np.finfo(np.longdouble).nmant == 63 else np.float64
"""80-bit floats on processors that have them: a forward transform's error is multiplied by n."""


@dataclass
class _Spectrum:
    """The product so far: log of the transform at the frequencies that are left, and what is known about its errors."""

    points: int
    many: bool
    """Whether there are so many steps that frequencies are left out."""
    kept: Any = field(default_factory=lambda: slice(None))
    log_value: Any = 0.0
    exact_growth: Any = 0.0
    """Per frequency, log of the factor by which errors of the transform may have enlarged it."""
    log_growth: Any = 0.0
    """The same for the errors of logarithm and exponential alone."""
    euclidean: float = 0.0
    """Bound on the transform's errors in Euclidean norm, steps included."""
    perturbation: float = 0.0
    """Sum of what rounding changed in the tilted laws, steps included."""
    largest: float = 0.0
    left_out: float = 0.0


def log_moment(cells: Cells, tilt: float) -> float:
    """Log of the sum of probs * exp(tilt * loss), rounded up."""
    exponents = tilt * cells.losses
    largest = float(np.max(exponents[cells.probs > 0]))
    # Bounded below, for products in the subnormal range are slow and add nothing.
    return largest + math.log(
        float(np.sum(np.exp(np.clip(exponents - largest, -200.0, 0.0)) * cells.probs))
    )


@dataclass(frozen=True)
class Sum:
    """Independent losses, `counts` of each of `parts`, and a stretch of the grid: points `first`, ..., `first + points - 1`.

    `losses` are those of the stretch that are no less than 0. `between` has, for the number of a
    part, the chances of further losses: each is of this part by a public coin with that chance, or
    else of the part before it. All these parts begin at the same loss.
    """

    parts: Sequence[Cells]
    counts: Sequence[int]
    spacing: float
    first: int
    points: int
    losses: Array
    between: Mapping[int, Sequence[float]] = field(default_factory=dict)

    def tilted(self, tilt: float) -> tuple[list[float], Array]:
        """Of the law tilted by exp(tilt * loss): log E of that, for each part, and the factors back to the law at `losses`.

        Both are exact up to the rounding that `deltas` takes along.
        """
        moments = [log_moment(cells, tilt) for cells in self.parts]
        exponent = _total(moments, self.counts, self.between)
        return moments, np.exp(np.minimum(exponent - tilt * self.losses, 700.0))

    def deltas(
        self, tilt: float, moments: Sequence[float], scale: Array, *, extended: bool = False
    ) -> tuple[Array, float]:
        """Upper bounds on delta at each of `losses`, from the law tilted by exp(tilt * loss).

        `moments` and `scale` are those of `tilted`. Losses above the last point are missing from
        it, save that they come back at smaller ones; losses below the first come back at larger
        ones, which raises delta. `extended` takes the time for more digits. Also returned is the
        bound on the sum of the tilted law's errors: times `scale`, it is part of the bounds.
        """
        kind = _EXTENDED if extended else np.float64
        steps = sum(self.counts) + sum(map(len, self.between.values()))
        spectrum = _Spectrum(self.points, steps >= _MANY_LEFT_OUT)
        halvings = math.log2(self.points)
        offset = 0
        before: Any = None
        for i, (cells, count, moment) in enumerate(
            zip(self.parts, self.counts, moments, strict=True)
        ):
            factor = _transformed(cells, tilt, moment, self.points, kind)
            _multiply(spectrum, factor, factor.value[spectrum.kept], count, halvings, kind)
            coins = self.between.get(i, ())
            for chance in coins:
                either = _by_coin(before, factor, chance, spectrum.kept)
                # That rounds once more, which is less than one halving does.
                _multiply(spectrum, either, either.value, 1, halvings + 1, kind)
            offset += (count + len(coins)) * cells.first
            before = factor
        law, error = _back(spectrum, kind)
        law = np.roll(law, (offset - self.first) % self.points)[-len(self.losses) :]
        with np.errstate(over="ignore", invalid="ignore"):
            bounds = _hockey_stick(np.maximum(law, 0.0) * scale, self.spacing) + error * scale
        # Relative errors: of the entries of each step's law, of the scale, and of sums of up to
        # 2^21 terms.
        bounds *= 1 + 2e-9 + 8 * _ULP * steps
        # Where the tilt has made everything overflow, this curve says nothing; another one will.
        return np.where(np.isnan(bounds), 1.0, np.minimum(bounds, 1.0)), error


def _total(
    moments: Sequence[float], counts: Sequence[int], between: Mapping[int, Sequence[float]]
) -> float:
    """The log moment of all losses together, from those of the parts."""
    total = sum(count * moment for count, moment in zip(counts, moments, strict=True))
    for i, chances in between.items():
        one, other = moments[i - 1 : i + 1]
        shares = np.asarray(chances)
        total += float(
            np.sum(
                np.logaddexp(np.log1p(-np.minimum(shares, 1 - _ULP)) + one, np.log(shares) + other)
            )
        )
    return total


@dataclass(frozen=True)
class _Factor:
    """The transform of one loss's tilted law, what rounding did to that law, and its Euclidean norm."""

    value: Any
    moment: float
    perturbation: float
    norm: float


def _transformed(cells: Cells, tilt: float, moment: float, points: int, kind: Any) -> _Factor:
    exponents = tilt * cells.losses
    tilted = cells.probs * np.exp(np.where(cells.probs > 0, exponents - moment, 0.0))
    rows = -(-len(tilted) // points)
    if rows > 1:
        tilted = np.pad(tilted, (0, rows * points - len(tilted)))
        exponents = np.pad(exponents, (0, rows * points - len(exponents)))
    perturbation = 4 * _ULP * (float(np.sum(tilted * np.abs(exponents))) + abs(moment))
    tilted = tilted.reshape(rows, -1).sum(axis=0)
    norm = math.sqrt(float(np.sum(tilted**2)))
    return _Factor(rfft(tilted.astype(kind), points), moment, perturbation, norm)


def _by_coin(one: _Factor, other: _Factor, chance: float, kept: Any) -> _Factor:
    """The second with this chance, at the frequencies that are kept."""
    # Of the mixed law, tilted and normalised.
    share = float(expit(logit(chance) + other.moment - one.moment))
    rounding = 8 * _ULP * (4 + abs(one.moment) + abs(other.moment))
    return _Factor(
        (1 - share) * one.value[kept] + share * other.value[kept],
        math.nan,
        (1 - share) * one.perturbation + share * other.perturbation + rounding,
        (1 - share) * one.norm + share * other.norm,
    )


def _multiply(
    spectrum: _Spectrum, factor: _Factor, transform: Any, count: int, halvings: float, kind: Any
) -> None:
    """Multiplies `count` steps into the spectrum, by their transform at the frequencies that are kept."""
    unit = 8 * float(np.finfo(kind).eps)
    error = unit * halvings
    spectrum.perturbation += count * factor.perturbation
    size = np.abs(transform)
    silent = size == 0
    if spectrum.many:
        with np.errstate(divide="ignore"):
            silent = np.real(spectrum.log_value) + count * np.log(size) <= -_SILENT
    if np.any(silent):
        log_most = np.real(spectrum.log_value) + spectrum.exact_growth + np.zeros(len(size))
        log_most = log_most[silent] + count * np.log(size[silent] + error)
        spectrum.left_out += math.sqrt(2 * float(np.sum(np.exp(2 * log_most))))
        transform = transform[~silent]
        size = size[~silent]
        spectrum.kept = np.arange(spectrum.points // 2 + 1)[spectrum.kept][~silent]
        for name in ("log_value", "exact_growth", "log_growth"):
            value = getattr(spectrum, name)
            setattr(spectrum, name, value[~silent] if isinstance(value, np.ndarray) else value)
    log_transform = np.log(transform)
    log_growth = count * unit * (1 + np.abs(log_transform).astype(np.float64))
    spectrum.log_value = spectrum.log_value + count * log_transform
    spectrum.log_growth = spectrum.log_growth + log_growth
    spectrum.exact_growth = (
        spectrum.exact_growth + count * np.log1p(error / size).astype(np.float64) + log_growth
    )
    spectrum.euclidean += count * error * math.sqrt(spectrum.points) * factor.norm
    spectrum.largest += count * error


def _back(spectrum: _Spectrum, kind: Any) -> tuple[Array, float]:
    """The law of the sum, and a bound on the sum of its errors."""
    points = spectrum.points
    log_size = spectrum.log_value.real.astype(np.float64)
    size = np.exp(log_size)

    gained: list[float] = []
    for growth in (spectrum.exact_growth, spectrum.log_growth):
        with np.errstate(over="ignore"):
            more = np.where(
                growth < 1e-3,
                size * np.expm1(np.minimum(growth, 1.0)),
                np.exp(log_size + growth) - size,
            )
            # Both halves of the spectrum, hence the 2.
            gained.append(math.sqrt(2 * float(np.sum(more**2))))
    by_frequency, by_logarithm = gained
    by_norm = by_logarithm + spectrum.euclidean * math.exp(min(spectrum.largest, 700.0))
    forward = min(by_frequency, by_norm) + spectrum.perturbation + spectrum.left_out
    inverse = 8 * (1 + math.log2(points)) * math.sqrt(2 * float(np.sum(size**2)))
    # This error is not multiplied by the number of steps: extended floats matter for few steps
    # only.
    kind = kind if inverse * _ULP > forward else np.float64
    half = np.zeros(points // 2 + 1, dtype=np.result_type(kind, np.complex64))
    half[spectrum.kept] = np.exp(spectrum.log_value)
    law = np.asarray(irfft(half, points)).astype(np.float64)
    return law, forward + inverse * float(np.finfo(kind).eps)


def _hockey_stick(probs: Array, spacing: float) -> Array:
    """sum_{i>j} p_i (1 - e^(l_j - l_i)) for every j, for losses l that are `spacing` apart.

    With A_j = sum_{i>j} p_i it is (1 - e^-spacing) sum_{m>=j} e^(l_j - l_m) A_m: sums of positive
    terms, which lose no digit.
    """
    above = np.append(np.cumsum(probs[:0:-1])[::-1], 0.0)
    discounted = np.empty_like(probs)
    # In blocks within which no exponential leaves the range of floats.
    block = max(1, int(400 / spacing))
    carry = 0.0
    for start in range((len(probs) - 1) // block * block, -1, -block):
        part = above[start : start + block]
        growth = np.exp(spacing * np.arange(len(part)))
        carried = carry * math.exp(-spacing * len(part))
        discounted[start : start + block] = growth * (
            np.cumsum((part / growth)[::-1])[::-1] + carried
        )
        carry = float(discounted[start])
    return -math.expm1(-spacing) * discounted


_TAIL_MASS = 1e-18
"""Probability that all the cuts together may send to an infinite loss."""
_REFERENCE_DELTAS = (1e-3, 1e-6, 1e-10)
"""Deltas at which the grid is made fine enough."""
_LEAST_DELTA = 1e-12
"""The delta down to which the FFT's digits should suffice."""
_TILTED_DELTA = 1e-7
"""The delta at which the tilted FFT has its full precision."""
_SHORT_POINTS = 2**16
_EASY_POINTS = 2**17
_MAX_POINTS = 2**21
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
    """Quadrature estimates for the composed loss: a spacing for the grid, and the orders that bound its two tails.

    `cumulants` are log E exp(order * loss) at ascending `orders`, of which the first `tilts` are of
    use as a tilt.
    """

    spacing: float
    orders: Array
    cumulants: Array
    tilts: int
    low_order: float
    high_order: float


def compose(
    directions: Sequence[Sequence[tuple[Pair, int]]], *, tolerance: float = 1e-5
) -> GridCurve:
    """Profile of a composition: a curve that lies nowhere below it in any direction of a relation, each given as counted pairs.

    The grid aims for a relative excess of epsilon of `tolerance`, in the direction that decides;
    ten times as much where it would otherwise be longer than 2^17 points. The bound holds whatever
    it is.
    """
    thinned = [_few_rates(parts) for parts in directions]
    outlooks = [
        foresee([(x, n + len(coins.get(i, ()))) for i, (x, n) in enumerate(parts)], tolerance)
        for parts, coins in thinned
    ]
    # The direction with the larger epsilon allows the wider grid. The other one need not be
    # resolved more finely: its curve matters only where it comes out above the first.
    spacing = max(outlook.spacing for outlook in outlooks)
    curves = [
        _compose_one(*parts, outlook, spacing, tolerance)
        for parts, outlook in zip(thinned, outlooks, strict=True)
    ]
    if len(curves) == 1:
        return curves[0]
    # The largest of the curves, on the grid of the longest one.
    longest = max(curves, key=lambda curve: curve.knots[-1])
    deltas = longest.deltas.copy()
    for curve in curves:
        inside = int(np.searchsorted(longest.knots, curve.knots[-1]))
        deltas[:inside] = np.maximum(deltas[:inside], curve.delta(longest.knots[:inside]))
        deltas[inside:] = np.maximum(deltas[inside:], curve.deltas[-1])
    return GridCurve(longest.knots, deltas)


_MOST_RATES = 48
"""Different sampling rates of one release up to which each is transformed by itself."""
_SPREAD = 2e-4
"""Share that the coins between fewer rates may add to the sum of their squares."""


def _few_rates(
    parts: Sequence[tuple[Pair, int]],
) -> tuple[list[tuple[Pair, int]], dict[int, list[float]]]:
    """Parts in which Poisson samples of one release have few different rates, and the coins between these, as in `Sum`.

    A sample at rate q = (1 - c) a + c b costs no more than one at b with chance c, or else at a, by
    a public coin: H_alpha is jointly convex in the two laws of a pair, and those of a Poisson
    sample are linear in the rate. The coin adds (q - a) (b - q) to the squared rate.
    """
    rates: dict[Any, dict[float, int]] = {}
    others: list[tuple[Pair, int]] = []
    for pair, count in parts:
        if isinstance(pair, LinearInRate):
            found = rates.setdefault(replace(cast(Any, pair), rate=1.0), {})
            found[pair.rate] = found.get(pair.rate, 0) + count
        else:
            others.append((pair, count))
    release = max(rates, key=lambda x: len(rates[x]), default=None)
    if release is None or len(rates[release]) <= _MOST_RATES:
        return list(parts), {}
    each = np.array(sorted(rates[release]))
    counts = np.array([rates[release][rate] for rate in each])
    kept = _some_of(each, counts)
    few: list[tuple[Pair, int]] = [
        (replace(release, rate=float(each[i])), int(counts[i])) for i in kept
    ]
    between: dict[int, list[float]] = {}
    for j in range(1, len(kept)):
        inside = slice(kept[j - 1] + 1, kept[j])
        low, high = each[kept[j - 1]], each[kept[j]]
        chances = np.minimum((each[inside] - low) / (high - low) * (1 + 8 * _ULP), 1.0)
        between[j] = np.repeat(chances, counts[inside]).tolist()
    others += [
        (replace(other, rate=rate), count)
        for other, found in rates.items()
        for rate, count in found.items()
        if other != release
    ]
    return few + others, between


def _some_of(rates: Array, counts: NDArray[np.integer[Any]]) -> list[int]:
    """The places in ascending rates, the first and the last included, of those between which coins add little."""
    kept = [0, len(rates) - 1]

    def added(low: int, high: int) -> float:
        inside = rates[low : high + 1]
        return float(counts[low : high + 1] @ ((inside - inside[0]) * (inside[-1] - inside)))

    costs = [added(*kept)]
    while sum(costs) > _SPREAD * float(counts @ rates**2):
        i = int(np.argmax(costs))
        low, high = kept[i : i + 2]
        middle = int(np.searchsorted(rates, (rates[low] + rates[high]) / 2))
        middle = min(max(middle, low + 1), high - 1)
        kept.insert(i + 1, middle)
        costs[i : i + 1] = [added(low, middle), added(middle, high)]
    return kept


def _compose_one(
    parts: Sequence[tuple[Pair, int]],
    between: Mapping[int, Sequence[float]],
    outlook: _Outlook,
    spacing: float,
    tolerance: float,
) -> GridCurve:
    counts = [count for _, count in parts]
    # As many of each as there may be.
    most = [n + len(between.get(i, ())) + len(between.get(i + 1, ())) for i, n in enumerate(counts)]
    while True:
        cells = [discretise(pair, spacing, _TAIL_MASS / (4 * sum(most))) for pair, _ in parts]
        if between:
            mixed = range(max(between) + 1)
            least = min(cells[i].first for i in mixed)
            cells[: len(mixed)] = [cells[i].begun_at(least) for i in mixed]
        low, high = _chernoff_range(cells, counts, between, spacing, outlook)
        first = math.floor(low / spacing)
        last = max(math.ceil(high / spacing), 1)
        if last - first < _MAX_POINTS:
            break
        spacing *= 1.05 * (last - first) / _MAX_POINTS
    infinity = -math.expm1(
        sum(n * math.log1p(-cell.infinity) for n, cell in zip(most, cells, strict=True))
    )
    points = int(next_fast_len(max(2, math.ceil(_ROOM * (last - first + 1))), real=True) or 0)
    epsilons = np.arange(max(first, 0), first + points) * spacing
    stretch = Sum(cells, counts, spacing, first, points, epsilons, between)
    deltas = _deltas(stretch, outlook, sharp=tolerance <= _FINE) + infinity + _TAIL_MASS
    deltas = np.minimum(np.minimum.accumulate(deltas), 1.0)
    if epsilons[0] > 0:
        # Nothing but cut-off mass lies below the first point, so delta is linear in e^epsilon from
        # there down to 0: extend it.
        epsilons = np.insert(epsilons, 0, 0.0)
        deltas = np.insert(deltas, 0, 1.0)
    floor = infinity + _TAIL_MASS
    used = min(int(np.searchsorted(-deltas, -1.0001 * floor)) + 2, len(deltas))
    return GridCurve(epsilons[:used], deltas[:used])


def _deltas(stretch: Sum, outlook: _Outlook, *, sharp: bool) -> Array:
    """The lower of two bounds: of the law as it is, for large deltas, and of the law tilted upward, for small ones."""
    # The largest order whose tilted law all but fits below the end, by Chernoff's bound; 0 where
    # none does.
    end = (stretch.first + stretch.points) * stretch.spacing
    tilt = 0.0
    for i in range(min(outlook.tilts, len(outlook.orders) - 1)):
        rise = outlook.cumulants[i + 1 :] - outlook.cumulants[i]
        if np.min((rise - math.log(_STRAY)) / (outlook.orders[i + 1 :] - outlook.orders[i])) <= end:
            tilt = float(outlook.orders[i])
    # A tilt that changes a lot within one cell serves nothing.
    tilt = min(tilt, 0.5 / stretch.spacing)
    deltas, error = stretch.deltas(0.0, *stretch.tilted(0.0))
    moments, scale = stretch.tilted(tilt)
    # What rounding will add to the lower bound, where the first one tells how large delta is, and
    # where it just ceases to.
    rounding = error * np.minimum(scale, 1.0)
    told = int(np.argmax(deltas <= max(4 * error, _LEAST_DELTA))) + 1
    extended = sharp and bool(
        np.any(rounding[:told] > _ROUNDED * np.maximum(deltas[:told], _LEAST_DELTA))
    )
    if tilt > 0 or extended:
        deltas = np.minimum(deltas, stretch.deltas(tilt, moments, scale, extended=extended)[0])
    return deltas


def foresee(parts: Sequence[tuple[Pair, int]], tolerance: float) -> _Outlook:
    total = sum(count for _, count in parts)
    nodes = []
    for pair, count in parts:
        kept = (found := pair.nodes()).upper > 1e-4 * _TAIL_MASS / total
        nodes.append((LossNodes(*(part[kept] for part in found)), count))
    mean = variance = 0.0
    for node, count in nodes:
        step_mean = float(node.upper @ node.loss)
        mean += count * step_mean
        variance += count * float(node.upper @ (node.loss - step_mean) ** 2)
    # A loss that is all but constant (little noise, one direction) has a variance that is rounding
    # error.
    scale = max(math.sqrt(variance), 1e-4 * abs(mean), 1e-150)
    tilts = np.geomspace(1e-3, 1e3, 97) / scale
    # Log E exp(order * loss) of the whole composition, for orders above and below 0.
    upward, downward = (
        np.sum(
            [
                n * logsumexp(np.outer(orders, node.loss) + np.log(node.upper), axis=1)
                for node, n in nodes
            ],
            axis=0,
        )
        for orders in (tilts, -tilts)
    )
    # By Chernoff's bound: how far up the losses reach but for each of these probabilities, and the
    # orders that show it.
    log_masses = [math.log(mass) for mass in (*_REFERENCE_DELTAS, _TILTED_DELTA, _TAIL_MASS)]
    reaches = (upward - np.reshape(log_masses, (-1, 1))) / tilts
    *epsilons, _, high = np.min(reaches, axis=1).tolist()
    *orders, tilted_order, high_order = tilts[np.argmin(reaches, axis=1)].tolist()
    lows = (downward - math.log(_TAIL_MASS)) / -tilts
    low = float(np.max(lows))
    # The grid adds spacing^2 (tilt^2 + tilt)/12 a step to the cumulant, hence spacing^2 (tilt +
    # 1)/12 to epsilon.
    spacing = min(
        math.sqrt(12 * tolerance * max(epsilon, 0.1 * scale) / ((order + 1) * total))
        for epsilon, order in zip(epsilons, orders, strict=True)
    )
    if tolerance <= _FINE:
        # A short grid costs nothing: use it to resolve small epsilons as well, at large deltas.
        spacing = min(spacing, (high - low) / _SHORT_POINTS)
    spacing = max(spacing, min(math.sqrt(10) * spacing, (high - low) / _EASY_POINTS))
    # One step's own losses must fit as well.
    widest = max(float(np.ptp(node.loss)) for node, _ in nodes)
    spacing = max(spacing, (high - low) / (_MAX_POINTS / 2), widest / (_MAX_POINTS / 2))
    # Tilts up to the best one for the smallest delta, and all larger orders to bound their tails
    # with.
    return _Outlook(
        spacing=spacing,
        orders=tilts,
        cumulants=upward,
        tilts=int(np.searchsorted(tilts, tilted_order, side="right")),
        low_order=float(tilts[np.argmax(lows)]),
        high_order=high_order,
    )


def _chernoff_range(
    cells: Sequence[Cells],
    counts: Sequence[int],
    between: Mapping[int, Sequence[float]],
    spacing: float,
    outlook: _Outlook,
) -> tuple[float, float]:
    """Losses outside of which the composed grid law has probability at most `_TAIL_MASS` on either side, by Chernoff's bound.

    From the grid law itself and not from quadrature: where the losses are smaller than a cell, the
    two differ, and the best orders are those at which single cells are seen.
    """
    low = high = 0.0
    for i, (n, cell) in enumerate(zip(counts, cells, strict=True)):
        last = cell.first + len(cell.probs) - 1
        low += (n + len(between.get(i, ()))) * cell.first * spacing
        high += n * last * spacing
        if i in between:
            before = cells[i - 1].first + len(cells[i - 1].probs) - 1
            high += len(between[i]) * max(last, before) * spacing
    bounds: dict[int, list[float]] = {}
    for sign, best in ((-1, outlook.low_order), (1, outlook.high_order)):
        orders = [
            sign * order
            for order in (0.7 * best, best, 1.4 * best, 0.3 / spacing, 1 / spacing, 3 / spacing)
        ]
        moments = [
            _total([log_moment(cell, order) for cell in cells], counts, between) for order in orders
        ]
        bounds[sign] = [
            (moment - math.log(_TAIL_MASS)) / order
            for moment, order in zip(moments, orders, strict=True)
        ]
    return max(low, *bounds[-1]), min(high, *bounds[1])
