"""The mechanisms as objects: each adds its noise and declares its event.

It also declares the norm of that event, and the total variation between the event and a release as
the machine computes it. The verifier believes those in `MECHANISMS`, and no others.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from discreet._dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent
from discreet.privacy import random
from discreet.privacy.accounting import BoundedRangeDpEvent
from discreet.privacy.mechanisms._integers import (
    CHOICE_GRID,
    CHOICE_SLACK,
    GAUSSIAN_LAWS,
    LAPLACE_LAW,
    MOST_SHARE,
    SLACK,
    UNKNOWN,
    Law,
    add_noise_on_grid,
    grid,
    levels_for,
    too_far,
)
from discreet.privacy.random import INNER_VARIANCE, SLACK_PER_VALUE

FOR_SUMS = 2.0**-11
"""The additional noise with which the public mechanisms cover the rounding of sums:
`gradients.rounding_of_records` of 4,000 rows, in float32."""
_WHOLE = 64
"""Allowances for rounding are multiples of this, so that no rounding of floats makes another one of them."""


class Mechanism(abc.ABC):
    """Noise and its event. Implementations are frozen dataclasses without numbers: the noise's size is an operand.

    Attributes:
        name: The public function.
        size: The name of that function's argument for the size of the noise.
        words: The noise and its size, for statements: "Gaussian noise of standard deviation".
        norm: The norm, 1 or 2, of one record's contribution, which is the unit of the noise's size
            in `event`. 0: it adds no noise to sums, and its load is its whole cost.
        hidden: The target of the noise, for statements: the sum as a whole if the noise has a joint
            distribution.
        adds_up: Several releases of the same records are exactly one, whose squared ratio of bound
            to noise is the sum of theirs, as for Gaussian noise.
        slack: Total variation between a release as computed and one of `event`. 0 for
            floating-point noise, whose rounding is not accounted for.
        on_grid: The sum is rounded to a grid before integer noise is added (`GridMechanism`).
    """

    name: ClassVar[str]
    size: ClassVar[str]
    words: ClassVar[str]
    norm: ClassVar[int]
    hidden: ClassVar[str] = "every coordinate of the sum"
    adds_up: ClassVar[bool] = False
    slack: ClassVar[float] = 0.0
    on_grid: ClassVar[bool] = False

    @abc.abstractmethod
    def event(self, noise_multiplier: Any) -> DpEvent:
        """The event of one release with noise of this many times the norm of one record's contribution."""

    @abc.abstractmethod
    def add(
        self, key: PRNGKeyArray, leaves: list[Array], size: Any, multiplier: Any, levels: int
    ) -> list[Array]:
        """Add noise to the leaves: one draw for all coordinates, in the order of the leaves.

        `multiplier` is the largest supported ratio of `size` to the bound on one record; `levels`:
        see `levels_for`.
        """

    def rounding(self, dim: int) -> float:
        """Upper bound, in grid points and this mechanism's norm, on the distance that rounding adds between neighbours."""
        del dim
        return 0.0

    def most_multiplier(self, dim: int) -> float:
        """The default largest noise multiplier for a release of `dim` coordinates."""
        del dim
        return math.inf

    def cell(self, dim: int, multiplier: float, levels: int) -> float | None:
        """Upper bound on `rounding` divided by the size of the noise; None: unknown, and no release is proved."""
        del dim, multiplier, levels
        return None


class FloatMechanism(Mechanism):
    """Floating-point noise. The last bits of its releases distinguish neighbours."""

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray, dim: int, dtype: Any) -> Float[Array, " dim"]:
        """Independent noise of size 1 for `dim` coordinates."""

    def add(
        self, key: PRNGKeyArray, leaves: list[Array], size: Any, multiplier: Any, levels: int
    ) -> list[Array]:
        """The sum of floats and floats."""
        del multiplier, levels
        noise = size * self.noise(key, sum(x.size for x in leaves), jnp.result_type(*leaves))
        noised = []
        start = 0
        for leaf in leaves:
            # Each leaf is added to its own part of the draw; they are never copied into one vector.
            own = noise[start : start + leaf.size].reshape(leaf.shape)
            noised.append((leaf + own).astype(leaf.dtype))
            start += leaf.size
        return noised


class GridMechanism(Mechanism):
    """Integer noise on a grid, see `_integers`: `event` covers the rounding to it, and last bits."""

    on_grid: ClassVar[bool] = True

    @abc.abstractmethod
    def law(self, levels: int) -> Law:
        """The law of the noise with this number of levels."""

    def rounding(self, dim: int) -> float:
        """Twice the norm of half a grid point in each coordinate."""
        if self.norm not in (1, 2):
            raise ValueError(
                f"{self.name}: rounding is bounded in the norms 1 and 2, not in the norm {self.norm}."
            )
        return float(dim if self.norm == 1 else math.sqrt(dim))

    def most_multiplier(self, dim: int) -> float:
        """The multiplier up to which rounding adds little to the noise."""
        return UNKNOWN / self.rounding(dim)

    def cell(self, dim: int, multiplier: float, levels: int) -> float:
        return self.rounding(dim) / (
            0.49 * self.law(levels).reach - multiplier * self.rounding(dim)
        )

    def add(
        self, key: PRNGKeyArray, leaves: list[Array], size: Any, multiplier: Any, levels: int
    ) -> list[Array]:
        allowance = multiplier * self.rounding(sum(x.size for x in leaves))
        return add_noise_on_grid(key, leaves, size, allowance, self.law(levels))


class _Gaussian(Mechanism):
    """The event of Gaussian noise of either kind; the size is the standard deviation of the continuous noise."""

    name: ClassVar[str] = "gaussian_mechanism"
    size: ClassVar[str] = "stddev"
    norm: ClassVar[int] = 2
    adds_up: ClassVar[bool] = True

    def event(self, noise_multiplier: Any) -> DpEvent:
        return GaussianDpEvent(noise_multiplier)


@dataclass(frozen=True)
class FloatGaussianMechanism(_Gaussian, FloatMechanism):
    """Normal floating-point noise."""

    words: ClassVar[str] = "floating-point Gaussian noise of standard deviation"

    def noise(self, key: PRNGKeyArray, dim: int, dtype: Any) -> Float[Array, " dim"]:
        """Standard normal variables with untruncated tails."""
        return random.normal(key, (dim,), dtype)


@dataclass(frozen=True)
class GaussianMechanism(_Gaussian, GridMechanism):
    """Discrete Gaussian noise."""

    words: ClassVar[str] = "Gaussian noise of standard deviation"
    slack: ClassVar[float] = SLACK

    def law(self, levels: int) -> Law:
        return GAUSSIAN_LAWS[levels]

    def most_planned(self, noise_multiplier: float, dim: int, room: int = 0) -> float:
        """The largest multiplier that a planned release of `dim` coordinates holds for, given the plan's.

        With `room`, the law of the noise is one for all numbers of coordinates up to it: a secret
        number must not show in the law of the others' noise. What the grid allows for rounding is
        then an integer that floats hold, whatever `dim` is.

        Raises:
            ValueError: The grid cannot hold it, or there are more coordinates than room.
        """
        levels_for(noise_multiplier, max(dim, room))
        if not room:
            return max(noise_multiplier, self.most_multiplier(dim))
        if dim > room:
            raise ValueError(f"a release has {dim:,} coordinates, and there is room for {room:,}")
        allowance = (
            math.ceil(max(noise_multiplier * self.rounding(room), UNKNOWN) / _WHOLE) * _WHOLE
        )
        return allowance / self.rounding(dim)

    def drawn(
        self, stddev: float, noise_multiplier: float, dim: int, room: int = 0
    ) -> tuple[float, float]:
        """Spacing of the grid of `planned_gaussian`, 0 if there is none, and the standard deviation of its noise in grid points.

        Their product is above `stddev`, by some 0.4 %, and by up to a tenth where rounding takes
        much of the grid.

        Args:
            stddev: As of the release, as is the next.
            noise_multiplier: As there.
            dim: The number of coordinates that are released together.
            room: As in `most_planned`.
        """
        allowance = self.most_planned(noise_multiplier, dim, room) * self.rounding(dim)
        spacing, factor = map(float, grid(stddev * (1 + FOR_SUMS), allowance, self.law(3)))
        return spacing * (factor > 0), math.sqrt(
            INNER_VARIANCE[2] + int(factor) ** 2 * INNER_VARIANCE[3]
        )

    def exceeds(
        self, distance: float, stddev: float, noise_multiplier: float, dim: int, room: int = 0
    ) -> float:
        """Upper bound on the probability that the noise of `planned_gaussian` on one number is more than a distance.

        The noise is an integer of the law D(s), in grid points. Of z from t > 0 on, the sum of
        exp(-z^2 / 2 s^2) is at most the integral from t - 1 on, and that of all z is the integral
        but for a factor of 1 - 2^-170 (Poisson summation).

        Args:
            distance: Above 0.
            stddev: As in `drawn`, as are the others.
            noise_multiplier: As there.
            dim: As there.
            room: As there.
        """
        spacing, s = self.drawn(stddev, noise_multiplier, dim, room)
        # One grid point less, since the released number is rounded to a float.
        points = math.floor(distance / spacing) - 1 if spacing else 0
        if points <= 0:
            return 1.0
        return math.erfc(points / s / math.sqrt(2)) / 2 * (1 + 1e-9) + SLACK_PER_VALUE


@dataclass(frozen=True)
class LaplaceMechanism(GridMechanism):
    """Discrete Laplace noise; the size is the scale b of the continuous density exp(-|x| / b) / 2b."""

    name: ClassVar[str] = "laplace_mechanism"
    size: ClassVar[str] = "scale"
    words: ClassVar[str] = "Laplace noise of scale"
    norm: ClassVar[int] = 1

    def event(self, noise_multiplier: Any) -> DpEvent:
        return LaplaceDpEvent(noise_multiplier)

    def law(self, levels: int) -> Law:
        del levels
        return LAPLACE_LAW

    def most_planned(self, noise_multiplier: float, dim: int) -> float:
        """The largest multiplier that a planned release of `dim` coordinates holds for, given the plan's.

        Raises:
            ValueError: The grid cannot hold it.
        """
        if noise_multiplier * self.rounding(dim) > MOST_SHARE * LAPLACE_LAW.reach:
            raise ValueError(too_far(noise_multiplier, dim))
        return max(noise_multiplier, self.most_multiplier(dim))

    def drawn(self, scale: float, noise_multiplier: float, dim: int) -> float:
        """The scale of the noise of `planned_laplace`, on its grid: above `scale`, by up to 0.9 %.

        It is up to 11 % where rounding takes much of the grid, as in `most_planned`. The law of
        floor(L) has at most the variance of a Laplace variable whose scale is one grid point more.
        """
        allowance = self.most_planned(noise_multiplier, dim) * self.rounding(dim)
        spacing, factor = map(float, grid(scale * (1 + FOR_SUMS), allowance, LAPLACE_LAW))
        return spacing * (factor * LAPLACE_LAW.unit + 1)


@dataclass(frozen=True)
class ExponentialMechanism(Mechanism):
    """A selection without additive noise: its cost follows from the sensitivity of the scores."""

    name: ClassVar[str] = "exponential_mechanism"
    size: ClassVar[str] = "epsilon"
    words: ClassVar[str] = "a choice by the exponential mechanism of epsilon"
    norm: ClassVar[int] = 0
    slack: ClassVar[float] = CHOICE_SLACK
    on_grid: ClassVar[bool] = True

    def event(self, noise_multiplier: Any) -> DpEvent:
        return BoundedRangeDpEvent(1 / noise_multiplier)

    def add(
        self, key: PRNGKeyArray, leaves: list[Array], size: Any, multiplier: Any, levels: int
    ) -> list[Array]:
        """Refuse: there is no noise to add."""
        raise TypeError("the exponential mechanism adds no noise: call dp.exponential_mechanism")

    def range(self, epsilon: float, moved: float) -> float:
        """The privacy range of a selection if one record moves each score by at most `moved`; see `_integers`."""
        return epsilon * (moved + CHOICE_GRID) / (1 + CHOICE_GRID) if moved != 1 else epsilon


CHOICE = ExponentialMechanism()
GAUSSIAN = GaussianMechanism()
LAPLACE = LaplaceMechanism()
FLOAT_GAUSSIAN = FloatGaussianMechanism()
MECHANISMS: list[Mechanism] = [GAUSSIAN, LAPLACE, FLOAT_GAUSSIAN]
"""The trusted mechanisms: the verifier relies on their declared events, and on no others'."""
