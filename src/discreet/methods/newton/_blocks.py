"""The curvature of a model with effects of groups, by blocks: less is unknown where entries are known to be 0.

A record has a part in one level of each grouping. So the curvature's entries between two levels
are 0, and levels resemble each other: of d effects of groups some 2 d numbers are unknown, not
d^2 / 2. Three things follow.

- `denoised` shrinks each block by itself: the other latents' by its spectrum, the levels' towards
  their mean, and what levels share with the others towards its mean over the levels.
- `root` is a map that keeps levels apart. What the others share with the levels is taken out of
  their gradients, which are then those within levels. All levels have one scale: if each had its
  own, gradients of small levels would be long, and the noise of all others large for them.
- Effects of many levels make gradients long, and so the noise of all other latents large. They are
  weighted down (`weights`) until they are half of a gradient's square: the others' noise has then
  twice the variance that it would have without them, and that of the effects is at most doubled.
- The gradients of one level, on the way, show less of its curvature than the noise hides, and since
  points follow earlier noise, it seems too large: `improved` by gradients is the others' alone.
  In intervals a level's curvature counts less where it is not sure (`surely`).

A model without such effects is one block. No record is seen here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from discreet.methods.inference import Latents
from discreet.methods.newton._algebra import (
    SCALES,
    Gradients,
    Matrix,
    Vector,
    rebuilt,
    secant,
)

LEAST_LEVEL = 0.1  # curvature of a level, of the levels' mean
LONG_SCALE = 2.5
"""A log scale of normal residuals counts as so many more latents: its gradients are long, as the residuals' squares."""
DOUBT = 2.0
"""A level's curvature counts half where its square is so many times its variance under the noise."""
LEAST_WITHIN = 0.1
"""Curvature of the other latents within levels, of their least one before that: so much at least is left by `root`."""


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Which of the latents that records touch are effects of groups.

    Attributes:
        size: Number of coordinates.
        groupings: Of each grouping the coordinates of each level's effects.
        directions: As `flat`, if there are any.
        num_scales: Number of log scales of normal residuals among the others.
    """

    size: int
    groupings: tuple[Int[np.ndarray, "level effect"], ...] = ()
    directions: Float[np.ndarray, "latent direction"] | None = None
    num_scales: int = 0

    @classmethod
    def of(
        cls,
        latents: Latents,
        names: Sequence[str],
        flat: Sequence[Mapping[str, Float[np.ndarray, "..."]]] = (),
        num_scales: int = 0,
    ) -> Blocks:
        """Those of a model; the first axis of a latent that is named here has a level in each place.

        Args:
            latents: The model's latents.
            names: As above.
            flat: Directions in which no record's likelihood changes, by the parts of latents.
            num_scales: As above.

        Raises:
            ValueError: A name is no latent with levels that records touch, or is given twice; or a
                direction cannot be used.
        """
        touched = dict(latents.touched)
        places = latents.split(np.arange(latents.num_touched))
        if len(set(names)) < len(names):
            raise ValueError("levels names a latent twice: name each once.")
        for name in names:
            if not touched.get(name):
                raise ValueError(
                    f"levels names {name!r}, which is no latent with an axis of levels that records touch. "
                    f"Such are: {', '.join(name for name, shape in touched.items() if shape) or 'none'}."
                )
        groupings = [places[name].reshape(touched[name][0], -1) for name in names]
        directions = np.zeros((latents.num_touched, len(flat)))
        for number, direction in enumerate(flat):
            for name, part in direction.items():
                if name not in touched or np.shape(part) not in ((), touched[name]):
                    raise ValueError(
                        f"flat has {name!r} of the shape {np.shape(part)}; latents that records touch are: "
                        f"{', '.join(f'{name} {shape}' for name, shape in touched.items())}."
                    )
                directions[places[name], number] = part
        if not np.isfinite(directions).all() or np.linalg.matrix_rank(directions) < len(flat):
            raise ValueError(
                "flat has a direction that is 0, not finite, or follows from the others: leave it out."
            )
        return cls(latents.num_touched, tuple(groupings), directions, num_scales)

    @property
    def flat(self) -> Float[np.ndarray, "latent direction"]:
        """Directions in which no record's likelihood changes."""
        return np.zeros((self.size, 0)) if self.directions is None else self.directions

    @property
    def told_of_flat(self) -> tuple[str, ...]:
        """What tells these directions from others, whatever is their order and basis; none of none."""
        if not self.flat.size:
            return ()
        along, _ = np.linalg.qr(self.flat)
        rng = np.random.default_rng(0)
        # Numbers in few digits: other machines may round the last ones otherwise.
        return tuple(
            f"{np.square(along.T @ rng.standard_normal(self.size)).sum():.6g}" for _ in range(2)
        )

    @functools.cached_property
    def others(self) -> Bool[np.ndarray, " latent"]:
        """True for coordinates that are no effects of groups."""
        found = np.ones(self.size, bool)
        for levels in self.groupings:
            found[levels] = False
        return found

    @functools.cached_property
    def weights(self) -> Vector:
        """Of a map's columns."""
        num_others = int(self.others.sum())
        num_effects = self.size - num_others
        weight = 1.0
        if num_others and num_effects:
            longer = num_others + LONG_SCALE * self.num_scales
            weight = min(1.0, math.sqrt(longer / num_effects))
        return np.where(self.others, 1.0, weight)

    @property
    def scales(self) -> Vector:
        """By which effects may differ less between levels than their prior says, equally likely before."""
        return SCALES if self.groupings else SCALES[:1]

    def nearer(self, scale: float) -> Matrix:
        """The map under which effects differ so many times as much between levels."""
        found = np.eye(self.size)
        for levels in self.groupings:
            for effects in levels.T:
                found[np.ix_(effects, effects)] *= scale
                found[np.ix_(effects, effects)] += (1 - scale) / len(effects)
        return found

    def largest(self, matrix: Matrix, sigma: float) -> float:
        """The edge of the noise of the noisiest block, over that block's mean eigenvalue."""
        parts = [np.flatnonzero(self.others)[None], *self.groupings]
        edges = [
            sigma * np.sqrt(2 * part.shape[1]) / np.mean(np.diag(matrix)[part])
            for part in parts
            if part.size
        ]
        return float(max(edges))

    def evenly(self, curvature: Matrix) -> Matrix:
        """A variance that is alike in all directions, of the mean 1: between blocks, by their curvature."""
        if not self.groupings:
            return np.eye(self.size)
        diagonal = np.diag(curvature)
        return np.diag(diagonal / diagonal.mean())

    def denoised(
        self, raw: Matrix, sigma: float, of_others: Callable[[Matrix], Matrix]
    ) -> tuple[Matrix, Vector]:
        """A noisy matrix with less noise, which may have negative eigenvalues, and what is left of the noise.

        Args:
            raw: The matrix; without the noise it is symmetric.
            sigma: Standard deviation of the noise of an entry.
            of_others: The same for the block of the latents that are no effects.

        Returns:
            The matrix, and for each of these latents the variance of an entry that it shares with
            an effect; for effects that of an entry within their level.
        """
        raw = (raw + raw.T) / 2  # so the noise of two entries is averaged
        others = np.flatnonzero(self.others)
        left = np.zeros(self.size)
        found = np.zeros_like(raw)
        if len(others):
            own = np.ix_(others, others)
            found[own] = of_others(raw[own])
        for number, levels in enumerate(self.groupings):
            own = levels[:, :, None], levels[:, None, :]
            variance = sigma**2 * (1 + np.eye(levels.shape[1])) / 2
            kept, unsure = _nearer_the_mean(raw[own], variance, (0,))
            values, vectors = np.linalg.eigh(kept)
            values = np.maximum(values, LEAST_LEVEL * max(float(values.mean()), 0.0))[:, None]
            found[own] = (vectors * values) @ np.swapaxes(vectors, 1, 2)
            left[levels] = unsure.mean(axis=2)
            if len(others):
                place = np.ix_(others, levels.ravel())
                found[place], unsure = _of_levels(raw[place], levels, sigma, (1,))
                found[np.ix_(levels.ravel(), others)] = found[place].T
                left[others] += unsure.mean(axis=(1, 2))
            for crossed in self.groupings[:number]:
                place = np.ix_(crossed.ravel(), levels.ravel())
                found[place] = _of_levels(raw[place], levels, sigma, (0, 1, 2))[0]
                found[np.ix_(levels.ravel(), crossed.ravel())] = found[place].T
        return found, left

    def improved(self, curvature: Matrix, gradients: Gradients, least: float) -> Matrix:
        """The curvature improved by the gradients, as by `secant`; with groups that of the others alone."""
        if not self.groupings:
            return secant(curvature, gradients, least)
        found = curvature.copy()
        others = self.others
        if others.any():
            own = np.ix_(others, others)
            shared = gradients.points[:, ~others] @ curvature[np.ix_(~others, others)]
            of_others = Gradients(
                gradients.points[:, others], gradients.values[:, others] + shared, gradients.sigma
            )
            found[own] = secant(curvature[own], of_others, least)
        return rebuilt(found, lambda values: np.maximum(values, least))

    def surely(self, curvature: Matrix, unsure: Vector) -> Matrix:
        """A curvature, less for levels by what of it is `unsure`, as `denoised` says: there records may say nearly nothing."""
        squares = np.square(np.diag(curvature))
        kept = np.where(self.others, 1.0, squares / (squares + DOUBT * unsure + 1e-300))
        return curvature * np.sqrt(np.outer(kept, kept))

    def root(self, curvature: Matrix) -> Matrix:
        """A map by which the curvature is near the identity, but for `weights`; its levels stay apart."""
        others = self.others
        inverse = np.zeros_like(curvature)
        found = np.zeros_like(curvature)
        for levels in self.groupings:
            own = levels[:, :, None], levels[:, None, :]
            values, vectors = np.linalg.eigh(curvature[own])
            values = np.maximum(values, LEAST_LEVEL * values.mean())[:, None]
            inverse[own] = (vectors / values) @ np.swapaxes(vectors, 1, 2)
            values, vectors = np.linalg.eigh(curvature[own].mean(axis=0))
            found[own] = vectors / np.sqrt(values)
        shared = inverse @ curvature[:, others]
        within = curvature[np.ix_(others, others)]
        taken = curvature[others] @ shared
        values, vectors = np.linalg.eigh(within)
        least = LEAST_WITHIN * values[:1].sum()
        # Of crossed groupings and where noise is left, it may be too much.
        while self.groupings and len(values):
            values, vectors = np.linalg.eigh(within - (taken + taken.T) / 2)
            if values[0] >= least:
                break
            taken *= 0.8
            shared *= 0.8
        inner = vectors / np.sqrt(values)
        found[np.ix_(others, others)] = inner
        found[np.ix_(~others, others)] = -shared[~others] @ inner
        return found * self.weights


def _nearer_the_mean(
    raw: Float[np.ndarray, "..."], variance: Any, axes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers shrunk towards their mean over levels, and what they then vary by; of differences between levels one variance.

    Args:
        raw: The numbers, each with noise.
        variance: The variance of the noise.
        axes: Axes over which differences are alike; the middle one has levels.
    """
    levels = axes[len(axes) // 2]
    mean = raw.mean(axis=levels, keepdims=True)
    off = raw - mean
    between = np.maximum(np.square(off).mean(axis=axes, keepdims=True) - variance, 0.0)
    kept = mean + off * (between / (between + variance + 1e-300))
    # How much levels differ is known to so much.
    count = math.prod(raw.shape[axis] for axis in axes)
    most = between + variance * math.sqrt(2 / count)
    unsure = most * variance / (most + variance + 1e-300) + variance / raw.shape[levels]
    return kept, unsure


def _of_levels(
    part: Float[np.ndarray, "other effect"],
    levels: Int[np.ndarray, "level effect"],
    sigma: float,
    axes: tuple[int, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """What others share with levels, by `_nearer_the_mean`."""
    shaped = part.reshape(len(part), *levels.shape)
    kept, unsure = _nearer_the_mean(shaped, sigma**2 / 2, axes)
    return kept.reshape(part.shape), unsure
