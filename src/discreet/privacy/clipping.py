"""Rules for the clipping norm: a fixed number, or a private quantile of the norms. What clips is `gradients._rows`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from discreet._validate import positive, probability, real
from discreet.privacy.gradients import Channels

__all__ = [
    "ADAPTIVE",
    "COUNT_SHARE",
    "LEAST_NORM",
    "MOST_NORM",
    "AdaptiveClipping",
    "ClippingRule",
    "ClippingSchedule",
    "FixedClipping",
    "contribution_bound",
]

COUNT_SHARE = 0.019
"""The counts' share of a release: 1 % more noise on the gradient."""
LEAST_NORM = 1e-15
MOST_NORM = 1e15
"""Limits of C. Squares of gradients, as optimizers such as Adam compute them, are normal 32-bit numbers then."""
_LEAST_CLIPPED = 0.005
_MOST_CLIPPED = 0.1
_FASTEST = 0.2


def _more_noise(share: float) -> str:
    """What a share of the release costs, in per cent of the noise on the gradient."""
    return f"{100 * (1 / math.sqrt(1 - share) - 1):.2g}"


@dataclasses.dataclass(frozen=True)
class FixedClipping:
    """The same clipping norm C in every step; a plan converts a number to it."""

    start: float  # C of the first step, and of all others; above 0
    count_share: ClassVar[float] = COUNT_SHARE
    adapts: ClassVar[bool] = False
    numbers: ClassVar[tuple[()]] = ()

    def in_words(self, noise_multiplier: float, expected_size: float) -> str:
        """Describe the bound on a record's contribution, in a sentence without its full stop."""
        del noise_multiplier, expected_size
        return (
            f"Each record's gradient is clipped to L2 norm C = {self.start:g}, and counted as clipped or not, which costs "
            f"{_more_noise(self.count_share)} % more noise"
        )

    def stated(self, bound: float, noun: str) -> str:
        """For statements: the clipping to at most `bound` in all."""
        return (
            f"Each {noun}'s gradient was clipped to the Euclidean norm C = {self.start:g}, and it was counted as clipped or "
            f"not. Everything that a {noun} added (gradient, count, and a clipped loss if there was one) had a norm of at most "
            f"{bound:.6g}"
        )


class AdaptiveNumbers(NamedTuple):
    """The numbers of an `AdaptiveClipping` that a compiled fit takes as inputs."""

    quantile: Any
    learning_rate: Any
    minimum: Any
    maximum: Any

    def next_norm(
        self, norm: Float[Array, ""], clipped: Float[Array, ""], step: Int[Array, ""]
    ) -> Float[Array, ""]:
        """C of the next step; see `AdaptiveClipping.next_norm`."""
        del step
        excess = clipped - (1.0 - self.quantile)
        return jnp.clip(norm * jnp.exp(self.learning_rate * excess), self.minimum, self.maximum)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """A clipping norm C that follows a quantile of the gradients' norms, found privately while fitting.

    Use it as `clipping_norm=` of a `PrivacyPlan`; then C need not be tuned, which would cost a fit
    for each try. Each step releases, beside the sum of clipped gradients, how many of the batch's
    gradients were within C and how many were not. With c the released number of the latter divided
    by the public expected batch size q N, the next step clips to

        C exp(learning_rate (c - (1 - quantile))),   kept within [minimum, maximum].

    Guarantee: the counts are two more coordinates of the step's one Gaussian release, so plan,
    event and epsilon are those of a fixed C, which counts, too. A record adds a weight to one of
    them, and the weight is such that `count_share` of the squared joint bound of its (gradient,
    loss, counts) is the counts'; the plan's noise multiplier is relative to that joint bound. C is
    computed from earlier releases alone: it may be shown to anybody, and the noise scales with it.

    With noise multiplier sigma and count_share t, the noise on the clipped sum is z C with z =
    sigma / sqrt(1 - t), and the noise on each count is sigma_c = sigma / sqrt(t). So (z^-2 +
    sigma_c^-2)^(-1/2) = (((1 - t) + t) / sigma^2)^(-1/2) = sigma, as the paper's Theorem 1 splits
    one Gaussian (there a count has sensitivity 1/2, and does not tell clipped records from those
    that are missing or not finite). A loss share takes its part of the sum in the same way.

    C settles where the fraction `quantile` of the gradients is within it, to within the noise: c
    has standard deviation sigma / (sqrt(t) q N), beside the sampling's own; `plan.explain()` says
    so where that makes C wander. Records whose loss or gradient is not finite are not counted, and
    a public N that is a few per cent off changes little.

    **The quantile and the learning rate follow from the plan's public numbers.** Clipping is
    biased, the more the more gradients it shortens: with half of the likelihood's pull cut off a
    fit overshoots, gradients shrink, and C follows them down. On a logistic regression with 10,000
    records at epsilon = 1 the posterior mean came out 2.6 times too long with a quantile of 0.5,
    1.12 times with 0.9, and 1.03 times with 0.95. A larger C costs noise. The two are about equal
    where the clipped share is the noise that all steps leave in the mean of N gradients, in units
    of C: sigma / (q sqrt(T) N). Twice that is clipped, at least 0.5 % and at most 10 %. C rises
    fast (by 20 % a step at first) and falls slowly, so it starts low. For networks, the paper's
    quantile of 1/2 suits.

    Attributes:
        quantile: The fraction of gradients that is to be within C, above 0 and below 1. None: as
            above.
        initial: C of the first step; public. Rather too low than too high, see above.
        learning_rate: Step size of log C, above 0. None: 0.2, the paper's, which raises C a
            hundredfold in about 25 steps; less where the noise on c would let C wander, but enough
            for it to arrive.
        count_share: Share of the squared joint bound that goes to the counts, above 0 and below 1.
            The noise on the gradient grows by 1 / sqrt(1 - count_share): one per cent for 0.019.
        minimum: Public bound below which C does not fall; None: a ten-thousandth of `initial`.
        maximum: Public bound above which C does not rise; None: ten thousand times `initial`.

    Raises:
        ValueError: A number out of range.

    Reference:
        Andrew, Thakkar, McMahan and Ramaswamy, Differentially private learning with adaptive
        clipping, NeurIPS 2021.

    Example:
        >>> import discreet as dp
        >>> plan = dp.PrivacyPlan(sampling=dp.PoissonSampling(rate=0.01), clipping_norm=dp.AdaptiveClipping(quantile=0.9),
        ...     noise_multiplier=1.0, num_steps=1000, num_records=50_000)
        >>> round(plan.epsilon(delta=1e-5), 2)
        1.83
    """

    quantile: float | None = None
    initial: float = 0.1
    learning_rate: float | None = None
    count_share: float = COUNT_SHARE
    minimum: float | None = None
    maximum: float | None = None
    adapts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.quantile is not None:
            hint = (
                "It is the fraction of gradients that C leaves as they are. A higher one clips fewer gradients, with more noise; "
                "None chooses one."
            )
            probability("AdaptiveClipping: quantile", self.quantile, hint=hint)
        norms = {"minimum": self.minimum, "maximum": self.maximum}
        given = {name: norm for name, norm in norms.items() if norm is not None}
        for name, norm in {"initial": self.initial, **given}.items():
            hint = "It is an L2 bound on one record's contribution; 1.0 is a common choice."
            real(f"AdaptiveClipping: {name}", norm, LEAST_NORM, MOST_NORM, hint=hint)
        if self.learning_rate is not None:
            hint = "It is the step size of log C. None chooses one; 0.2 is the paper's choice."
            positive("AdaptiveClipping: learning_rate", self.learning_rate, hint=hint)
        hint = "It is the counts' share of the release. 0.019 costs one per cent more noise on the gradient."
        probability("AdaptiveClipping: count_share", self.count_share, hint=hint)

        # NumPy's numbers become Python's, so that a rule hashes, prints and pickles alike wherever
        # they came from.
        for name, value in vars(self).items():
            object.__setattr__(self, name, None if value is None else float(value))
        least, most = self.limits
        if not least <= self.initial <= most:
            raise ValueError(
                f"AdaptiveClipping: initial is {self.initial:g}, outside of minimum = {least:g} to maximum = {most:g}, within "
                "which C is kept. Start inside, or widen the bounds."
            )

    @property
    def limits(self) -> tuple[float, float]:
        """The public bounds within which C is kept."""
        least = max(LEAST_NORM, 1e-4 * self.initial) if self.minimum is None else self.minimum
        most = min(MOST_NORM, 1e4 * self.initial) if self.maximum is None else self.maximum
        return least, most

    @property
    def start(self) -> float:
        """C of the first step."""
        return self.initial

    def for_plan(
        self, noise_multiplier: float, rate: float, num_records: int, num_steps: int
    ) -> AdaptiveClipping:
        """The rule with a quantile and a learning rate, chosen from a plan's public numbers where they are open."""
        quantile = self.quantile
        learning_rate = self.learning_rate
        if quantile is None:
            noise = noise_multiplier / (rate * math.sqrt(num_steps) * num_records)
            quantile = 1.0 - min(max(2.0 * noise, _LEAST_CLIPPED), _MOST_CLIPPED)
        if learning_rate is None:
            # C then wanders by a factor of e^(1/2) at most, unless it could not rise e^20-fold on
            # its way.
            stddev = self.stddev_of_fraction(noise_multiplier, rate * num_records)
            steady = min(quantile, 1.0 - quantile) / max(stddev**2, 1e-30)
            learning_rate = min(_FASTEST, max(steady, 20.0 / num_steps))
        return dataclasses.replace(self, quantile=quantile, learning_rate=learning_rate)

    def next_norm(self, norm: Float[Array, ""], clipped: Float[Array, ""]) -> Float[Array, ""]:
        """C of the next step.

        Args:
            norm: C of this step.
            clipped: c, the released number of gradients longer than C divided by the public
                expected batch size; any finite number, since noise was added.
        """
        return self.numbers.next_norm(norm, clipped, jnp.int32(0))

    @property
    def numbers(self) -> AdaptiveNumbers:
        """The parameters of `next_norm`, of a rule that `for_plan` returned."""
        quantile, learning_rate = self._chosen
        return AdaptiveNumbers(quantile, learning_rate, *self.limits)

    @property
    def _chosen(self) -> tuple[float, float]:
        """Quantile and learning rate."""
        assert self.quantile is not None
        assert self.learning_rate is not None
        return self.quantile, self.learning_rate

    def stddev_of_fraction(self, noise_multiplier: float, expected_size: float) -> float:
        """Standard deviation of the noise on c."""
        return noise_multiplier / (math.sqrt(self.count_share) * expected_size)

    def wandering(self, noise_multiplier: float, expected_size: float) -> float:
        """The typical deviation of log C by noise alone, where the restoring drift is weakest.

        A random walk with steps of variance (learning_rate * stddev)^2 against a drift of
        learning_rate times the smaller of quantile and 1 - quantile settles to an exponential law
        of this scale.
        """
        quantile, learning_rate = self._chosen
        stddev = self.stddev_of_fraction(noise_multiplier, expected_size)
        return learning_rate * stddev**2 / (2 * min(quantile, 1 - quantile))

    def in_words(self, noise_multiplier: float, expected_size: float) -> str:
        """Describe the bound on a record's contribution, in a sentence without its full stop."""
        least, most = self.limits
        quantile, learning_rate = self._chosen
        wandering = self.wandering(noise_multiplier, expected_size)
        warning = ""
        if wandering > 0.6:
            warning = (
                f" (but that noise is large: C wanders by a factor of about {math.exp(min(wandering, 9.0)):.2g} around its "
                "place; a larger count_share or batch, a smaller learning_rate or a quantile nearer 1/2 would hold it)"
            )
        noise = self.stddev_of_fraction(noise_multiplier, expected_size)
        return (
            f"Each record's gradient is clipped to L2 norm C, which starts at {self.initial:g} and follows the "
            f"{quantile:.4g} quantile of the gradients' norms: each step releases c, the number of gradients longer than C "
            f"divided by the expected batch size, in the same event and with noise of standard deviation {noise:.2g}{warning}, "
            f"and the next step's C is C exp({learning_rate:.3g} (c - {1 - quantile:.3g})), between {least:g} and "
            f"{most:g}. Counting costs {_more_noise(self.count_share)} % more noise on the gradient"
        )

    def stated(self, bound: float, noun: str) -> str:
        """For statements: the clipping to at most `bound` in all."""
        least, most = self.limits
        quantile, _ = self._chosen
        return (
            f"Each {noun}'s gradient was clipped to a Euclidean norm C, which started at {self.start:g} and followed the "
            f"{quantile:.4g} quantile of the gradient norms: the number of longer gradients was released in the same sum "
            f"and divided by the expected batch size; if it exceeded {1 - quantile:.3g}, C rose for the next step, otherwise "
            "it fell, "
            f"between {least:g} and {most:g}. Everything that a {noun} added (gradient, count, and a clipped loss if there was "
            f"one) had a norm of at most {bound / self.start:.6g} C"
        )


class ScheduleNumbers(NamedTuple):
    """The numbers of a `ClippingSchedule` that a compiled fit takes as inputs."""

    norms: Any

    def next_norm(
        self, norm: Float[Array, ""], clipped: Float[Array, ""], step: Int[Array, ""]
    ) -> Float[Array, ""]:
        """C of the step after `step`; that of the last one stays."""
        del norm, clipped
        return self.norms[jnp.minimum(step + 1, len(self.norms) - 1)]


@dataclasses.dataclass(frozen=True)
class ClippingSchedule:
    """A public clipping norm C for each step (c_t of Algorithm 1 of UAI 2017); a plan makes it of a sequence or a function.

    The noise scales with C, so event and epsilon are those of a fixed C.
    """

    norms: tuple[float, ...]  # C of each step, above 0
    count_share: ClassVar[float] = COUNT_SHARE
    adapts: ClassVar[bool] = True

    @property
    def start(self) -> float:
        """C of the first step."""
        return self.norms[0]

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest C."""
        return min(self.norms), max(self.norms)

    @property
    def numbers(self) -> ScheduleNumbers:
        """The parameters of `next_norm`."""
        return ScheduleNumbers(np.array(self.norms))

    def in_words(self, noise_multiplier: float, expected_size: float) -> str:
        """Describe the bound on a record's contribution, in a sentence without its full stop."""
        del noise_multiplier, expected_size
        return (
            f"Each record's gradient is clipped to the L2 norm C of its step, public numbers between {self.limits[0]:g} and "
            f"{self.limits[1]:g}, and counted as clipped or not, which costs {_more_noise(self.count_share)} % more noise"
        )

    def stated(self, bound: float, noun: str) -> str:
        """For statements: the clipping to at most `bound` in all in the first step."""
        return (
            f"Each {noun}'s gradient was clipped to the Euclidean norm C of its step, public numbers between "
            f"{self.limits[0]:g} and {self.limits[1]:g}, and it was counted as clipped or not. Everything that a {noun} added "
            f"(gradient, count, and a clipped loss if there was one) had a norm of at most {bound / self.start:.6g} C"
        )


ADAPTIVE = AdaptiveClipping()
"""The default of a plan."""
ClippingRule = FixedClipping | AdaptiveClipping | ClippingSchedule


def contribution_bound(rule: ClippingRule, loss_share: float = 0.0) -> float:
    """L2 bound on all that one record adds to the first step's release: gradient, loss and count together.

    Raises:
        ValueError: The shares of loss and count leave nothing to the gradient.
    """
    return Channels(loss_share, rule.count_share).joint_bound(rule.start)
