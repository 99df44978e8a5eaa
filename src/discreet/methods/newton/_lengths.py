"""How long gradients are, by a noisy histogram; and what a bound takes away from their sum.

A few long gradients may be all that tells about a latent, as about a rare class or inflated zeros.
The noise hides bins with few of them. So beyond the last bin that stands out tails are
extrapolated: each bin is a share of the one below it. The share is the same for all, or the first
bin has one of its own. Each tail counts by how well the noisy counts agree with it.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from discreet.methods.newton._algebra import Vector
from discreet.methods.newton._model import EDGES

TAIL = 6
TOGETHER = 3.5
"""Of at most so many bins just above the last that is seen, the standard deviations by which they stand out together."""
SEEN = 3.0
ALONE = 5.0
"""Standard deviations by which a bin stands out, beside another one and alone; the second also for bins together far up."""
STEEPEST = 0.65
FALLING = 0.55
"""Of a hidden bin over the one below it, at most: of the first, and of further ones if the first has a share of its own."""
GIVEN = 0.5  # of what the noise may hide
MIDDLE = np.sqrt(EDGES[1:] * EDGES[:-1])


class Lost(NamedTuple):
    """By how much gradients are longer than a bound, together."""

    seen: float  # of those in bins that stand out
    hidden: float  # of those that the noise may hide, the mean
    variance: float  # of both

    @property
    def mean(self) -> float:
        """Of all."""
        return self.seen + self.hidden

    @property
    def square(self) -> float:
        """Mean square of all."""
        return self.mean**2 + self.variance

    @property
    def given(self) -> float:
        """What is given back: right models have far less hidden than the mean, wrong ones more."""
        return self.seen + GIVEN * self.hidden

    @property
    def left_square(self) -> float:
        """Mean square of what may be left then, or have been given back wrongly."""
        return self.hidden**2 + self.variance


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Noisy numbers of gradients in the bins of `EDGES`.

    Attributes:
        raw: The numbers.
        sigma: Standard deviation of their noise.
        bins: Number of bins that a hidden tail has.
    """

    raw: Vector
    sigma: float
    bins: int = TAIL

    @functools.cached_property
    def seen(self) -> Vector:
        """Counts where they stand out, else 0. Of a hundred bins one may exceed 3 sigma by noise, and far up it would set C.

        A long tail may lie in several bins none of which stands out: those above the last seen one
        that do so together are kept, as are others, in which a rare class may lie far from the
        rest.
        """
        high = np.concatenate([[False], self.raw >= SEEN * self.sigma, [False]])
        beside = high[:-2] | high[2:]
        seen = (self.raw >= ALONE * self.sigma) | (high[1:-1] & beside)
        above = 1 + int(np.max(np.nonzero(seen)[0], initial=-1))
        if above > 0:
            runs = [
                (
                    self.raw[start : start + length].sum() / (self.sigma * np.sqrt(length)),
                    start,
                    length,
                )
                for start in range(above, len(seen))
                for length in range(1, TAIL + 1)
            ]
            none = 0.0, 0, 0
            near = max((run for run in runs if run[1] == above), default=none)
            for (together, start, length), least in (
                (near, TOGETHER),
                (max(runs, default=none), ALONE),
            ):
                if together >= least:
                    seen[start : start + length] = True
        return np.where(seen, np.maximum(self.raw, 0), 0)

    @functools.cached_property
    def counts(self) -> Vector:
        """Counts that stand out and, in the next bins, the mean of what the noise may hide: that of the kind with more."""
        tails, chances = self._tails
        return self.seen + np.max(chances @ tails / chances.sum(axis=1, keepdims=True), axis=0)

    def lost(self, reach: float) -> Lost:
        """What a bound takes away from the gradients' lengths."""
        tails, by_kind = self._tails
        chances = by_kind.sum(axis=0)
        excess = np.maximum(MIDDLE - reach, 0)
        hidden = tails @ excess
        mean = float(chances @ hidden)
        variance = (
            chances @ np.square(hidden - mean)
            + self.sigma**2 * np.square(excess[self.seen > 0]).sum()
        )
        return Lost(float(self.seen @ excess), mean, float(variance))

    @functools.cached_property
    def _tails(self) -> tuple[Float[np.ndarray, "tail bin"], Float[np.ndarray, "2 tail"]]:
        """Tails, and how likely each is; those of a kind have a row."""
        above = 1 + int(np.max(np.nonzero(self.seen)[0], initial=-1))
        if not 0 < above < len(self.seen):
            return np.zeros((1, len(self.seen))), np.full((2, 1), 0.5)
        last = self.seen[above - 1]
        rest = self.raw[above:]
        alike = np.linspace(0, STEEPEST, 76)
        falling = np.linspace(0, FALLING, 12)
        first = np.linspace(0, min(STEEPEST * last, max(rest[0], 0.0) + SEEN * self.sigma), 61)
        kinds = [
            np.column_stack([last * alike, alike]),
            np.stack(np.meshgrid(first, falling), axis=-1).reshape(-1, 2),
        ]
        sizes = [len(kind) for kind in kinds]
        before = np.repeat(np.eye(2) / sizes, sizes, axis=1)
        first_bin, share = np.concatenate(kinds).T[:, :, None]
        order = np.arange(len(rest))
        tails = first_bin * share**order * (order < self.bins)
        misses = np.square(rest - tails)[:, : 2 * self.bins].sum(axis=1) / (2 * self.sigma**2)
        chances = before * np.exp(misses.min() - misses)
        return np.pad(tails, ((0, 0), (above, 0))), chances / chances.sum()
