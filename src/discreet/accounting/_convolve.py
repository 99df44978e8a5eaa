"""Convolution of privacy losses by FFT, with a bound on what rounding does to it.

Notation: x >= 0 is one step's law, tilted to exp(t loss) and normalised, so that |x|_1 = 1; X its transform; n the number of
steps; N the length of the transform; e the machine epsilon.

The bound on rounding. An FFT adds, at each of its log2(N) halvings, at most 8e times the sum of absolute values that it adds up
(twiddle factors, products and sums of a radix-5 pass need less): its result is off by at most h = 8e log2(N) |x|_1 in every
frequency, and by 8e log2(N) sqrt(N) |x|_2 in Euclidean norm (Higham, "Accuracy and stability of numerical algorithms", theorem
24.2). The power n turns an error h of X into at most (|X| + h)^n - |X|^n, its logarithm and exponential add
8e n (1 + |log X|) |X|^n. The inverse transform keeps Euclidean norms but for its own 8e log2(N). Since
|y|_1 <= sqrt(N) |y|_2, which is the Euclidean norm of y's transform, all this bounds the sum of the errors over all losses, and
that bounds what they can take from delta. Errors that are relative to each entry of x stay relative in delta.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft

from discreet.accounting._cells import Cells

Array = NDArray[np.floating[Any]]

_ULP = float(np.finfo(np.float64).eps)
_SILENT = 80.0
"""A frequency whose power is below exp(-80) is left out; tried from `_MANY_LEFT_OUT` steps on."""
_MANY_LEFT_OUT = 100
_EXTENDED = np.longdouble if np.finfo(np.longdouble).nmant == 63 else np.float64
"""80-bit floats on processors that have them: a forward transform's error is multiplied by n."""


@dataclass
class _Spectrum:
    """The product so far: log of the transform at the frequencies that are left, and what is known about its errors."""

    points: int
    kept: Any
    log_value: Any
    exact_growth: Any
    """Per frequency, log of the factor by which errors of the transform may have enlarged it."""
    log_growth: Any
    """The same for the errors of logarithm and exponential alone."""
    euclidean: float
    """Bound on the transform's errors in Euclidean norm, steps included."""
    perturbation: float
    """Sum of what rounding changed in the tilted laws, steps included."""
    largest: float
    left_out: float


def log_moment(cells: Cells, spacing: float, tilt: float) -> float:
    """Log of the sum of probs * exp(tilt * loss), rounded up."""
    exponents = tilt * cells.losses(spacing)
    largest = float(np.max(exponents[cells.probs > 0]))
    # Bounded below, for products in the subnormal range are slow and add nothing.
    return largest + math.log(float(np.sum(np.exp(np.clip(exponents - largest, -200.0, 0.0)) * cells.probs)))


@dataclass(frozen=True)
class Sum:
    """Independent losses, `counts` of each of `parts`, and a stretch of the grid: points `first`, ..., `first + points - 1`."""

    parts: Sequence[Cells]
    counts: Sequence[int]
    spacing: float
    first: int
    points: int

    @property
    def start(self) -> int:
        """Index of the smallest loss that `deltas` and `scale` speak of: 0, or the first of the stretch."""
        return max(self.first, 0)

    def moments(self, tilt: float) -> list[float]:
        """Log E exp(tilt * loss) of each part, up to the rounding that `deltas` takes along."""
        return [log_moment(cells, self.spacing, tilt) for cells in self.parts]

    def scale(self, tilt: float, moments: Sequence[float]) -> Array:
        """What turns the tilted law back into the law, at each grid point from `start` on."""
        exponent = sum(count * moment for count, moment in zip(self.counts, moments, strict=True))
        losses = np.arange(self.start, self.first + self.points) * self.spacing
        return np.exp(np.minimum(exponent - tilt * losses, 700.0))

    def deltas(self, tilt: float, moments: Sequence[float], *, extended: bool = False) -> tuple[Array, float]:
        """Upper bounds on delta at each grid point from `start` on, from the law tilted by exp(tilt * loss).

        Losses above the last point are missing from it, save that they come back at smaller ones; losses below the first come
        back at larger ones, which raises delta.

        Args:
            tilt: 0 or more.
            moments: self.moments(tilt).
            extended: take the time for more digits.

        Returns:
            The bounds, and the bound on the sum of the tilted law's errors: times `scale`, it is part of them.
        """
        total = sum(self.counts)
        kind = _EXTENDED if extended else np.float64
        spectrum = _Spectrum(self.points, slice(None), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        for cells, count, moment in zip(self.parts, self.counts, moments, strict=True):
            _multiply(spectrum, cells, count, self.spacing, tilt, moment, kind)
        law, error = _back(spectrum, kind)
        offset = sum(count * cells.first for cells, count in zip(self.parts, self.counts, strict=True))
        law = np.roll(law, (offset - self.first) % self.points)[self.start - self.first :]
        scale = self.scale(tilt, moments)
        with np.errstate(over="ignore", invalid="ignore"):
            bounds = _hockey_stick(np.maximum(law, 0.0) * scale, self.spacing) + error * scale
        # Relative errors: of the entries of each step's law, of the scale, and of sums of up to 2^21 terms.
        bounds *= 1 + 2e-9 + 8 * _ULP * total
        # Where the tilt has made everything overflow, this curve says nothing; another one will.
        return np.where(np.isnan(bounds), 1.0, np.minimum(bounds, 1.0)), error


def _multiply(
    spectrum: _Spectrum, cells: Cells, count: int, spacing: float, tilt: float, moment: float, kind: Any
) -> None:
    """Multiplies the transform of `count` steps into the spectrum."""
    points = spectrum.points
    exponents = tilt * cells.losses(spacing)
    tilted = cells.probs * np.exp(exponents - moment)
    rows = -(-len(tilted) // points)
    if rows > 1:
        tilted = np.pad(tilted, (0, rows * points - len(tilted)))
        exponents = np.pad(exponents, (0, rows * points - len(exponents)))
    spectrum.perturbation += count * 4 * _ULP * (float(np.sum(tilted * np.abs(exponents))) + abs(moment))
    tilted = tilted.reshape(rows, -1).sum(axis=0)

    unit = 8 * float(np.finfo(kind).eps)
    error = unit * math.log2(points)
    transform = rfft(tilted.astype(kind), points)[spectrum.kept]
    size = np.abs(transform)
    silence = math.exp(-_SILENT / count) if count >= _MANY_LEFT_OUT else 0.0
    audible = np.flatnonzero(size > silence)
    if len(audible) < len(size):
        dropped = 2 * (len(size) - len(audible))
        spectrum.left_out += math.sqrt(dropped) * math.exp(count * math.log(silence + error))
        transform, size = transform[audible], size[audible]
        spectrum.kept = audible if isinstance(spectrum.kept, slice) else spectrum.kept[audible]
        for name in ("log_value", "exact_growth", "log_growth"):
            value = getattr(spectrum, name)
            setattr(spectrum, name, value[audible] if isinstance(value, np.ndarray) else value)
    log_transform = np.log(transform)
    log_growth = count * unit * (1 + np.abs(log_transform).astype(np.float64))
    spectrum.log_value = spectrum.log_value + count * log_transform
    spectrum.log_growth = spectrum.log_growth + log_growth
    spectrum.exact_growth = spectrum.exact_growth + count * np.log1p(error / size).astype(np.float64) + log_growth
    spectrum.euclidean += count * error * math.sqrt(points) * math.sqrt(float(np.sum(tilted**2)))
    spectrum.largest += count * error


def _back(spectrum: _Spectrum, kind: Any) -> tuple[Array, float]:
    """The law of the sum, and a bound on the sum of its errors."""
    points = spectrum.points
    log_size = spectrum.log_value.real.astype(np.float64)
    size = np.exp(log_size)

    def gained(growth: Array) -> float:
        # Both halves of the spectrum, hence the 2.
        with np.errstate(over="ignore"):
            more = np.where(growth < 1e-3, size * np.expm1(np.minimum(growth, 1.0)), np.exp(log_size + growth) - size)
            return math.sqrt(2 * float(np.sum(more**2)))

    by_frequency = gained(spectrum.exact_growth)
    by_norm = gained(spectrum.log_growth) + spectrum.euclidean * math.exp(min(spectrum.largest, 700.0))
    forward = min(by_frequency, by_norm) + spectrum.perturbation + spectrum.left_out
    inverse = 8 * (1 + math.log2(points)) * math.sqrt(2 * float(np.sum(size**2)))
    # This error is not multiplied by the number of steps: extended floats matter for few steps only.
    kind = kind if inverse * _ULP > forward else np.float64
    half = np.zeros(points // 2 + 1, dtype=np.result_type(kind, np.complex64))
    half[spectrum.kept] = np.exp(spectrum.log_value)
    law = np.asarray(irfft(half, points)).astype(np.float64)
    return law, forward + inverse * float(np.finfo(kind).eps)


def _hockey_stick(probs: Array, spacing: float) -> Array:
    """sum_{i>j} p_i (1 - e^(l_j - l_i)) for every j, for losses l that are `spacing` apart.

    With A_j = sum_{i>j} p_i it is (1 - e^-spacing) sum_{m>=j} e^(l_j - l_m) A_m: sums of positive terms, which lose no digit.
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
        discounted[start : start + block] = growth * (np.cumsum((part / growth)[::-1])[::-1] + carried)
        carry = float(discounted[start])
    return -math.expm1(-spacing) * discounted
