"""Rules for the clipping norm: a fixed number, or a private quantile of the gradients' norms."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from discreet._validate import positive, probability, real
from discreet.gradients import Channels

__all__ = ["AdaptiveClipping", "ClippingRule", "FixedClipping", "as_clipping_rule", "contribution_bound"]

# As for a plan: in 32-bit sums of smaller numbers too much would vanish.
_LEAST, _MOST = 1e-20, 1e30


@dataclasses.dataclass(frozen=True)
class FixedClipping:
    """The same clipping norm C in every step; a plan converts a number to it."""

    norm: float  # C, above 0
    count_share: ClassVar[float] = 0.0
    adapts: ClassVar[bool] = False

    @property
    def start(self) -> float:
        """C of the first step, and of all others."""
        return self.norm

    @property
    def numbers(self) -> tuple[()]:
        """Empty, since C is constant."""
        return ()

    def in_words(self, noise_multiplier: float, expected_size: float) -> str:
        """Describe the bound on a record's contribution, in a sentence without its full stop."""
        del noise_multiplier, expected_size
        return f"Each record's contribution is clipped to L2 norm C = {self.norm:g}"

    def stated(self, bound: float) -> tuple[str, str, str]:
        """For statements: the clipping to at most `bound` in all, the unit of the noise, and what it is a multiple of."""
        if bound <= self.norm:
            return f"Each record's contribution was clipped to the Euclidean norm C = {self.norm:g}", "", "C"
        clipped = (
            f"Each record's gradient was clipped to the Euclidean norm C = {self.norm:g} and its loss to an interval"
        )
        return f"{clipped}, so that together they contribute at most {bound:.6g}", "", "that bound"


class AdaptiveNumbers(NamedTuple):
    """The numbers of an `AdaptiveClipping` that a compiled fit takes as inputs."""

    quantile: Any
    learning_rate: Any
    minimum: Any
    maximum: Any

    def next_norm(self, norm: Float[Array, ""], within: Float[Array, ""]) -> Float[Array, ""]:
        """C of the next step; see `AdaptiveClipping.next_norm`."""
        return jnp.clip(norm * jnp.exp(-self.learning_rate * (within - self.quantile)), self.minimum, self.maximum)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """A clipping norm C that follows a quantile of the gradients' norms, found privately while fitting.

    Use it as `clipping_norm=` of a `PrivacyPlan`; then C need not be tuned, which would cost a fit for each try. Each
    step releases, beside the sum of clipped gradients, how many of the batch's gradients were within C. With b the
    released number divided by the public expected batch size q N, the next step clips to

        C exp(-learning_rate (b - quantile)),   kept within [minimum, maximum].

    Guarantee: the count is one more coordinate of the step's one Gaussian release, so plan, event and epsilon are those
    of a fixed C. A record adds +-1/2 times a weight to that coordinate, and the weight is such that `count_share` of
    the squared joint bound of its (gradient, loss, count) is the count's; the plan's noise multiplier is relative to
    that joint bound. C is computed from earlier releases alone: it may be shown to anybody, and the noise scales with it.

    In the paper's terms: with noise multiplier sigma and count_share t, the noise on the clipped sum is z C with
    z = sigma / sqrt(1 - t), and the noise on the number of records within C is sigma_b = sigma / (2 sqrt(t)). So
    (z^-2 + (2 sigma_b)^-2)^(-1/2) = (((1 - t) + t) / sigma^2)^(-1/2) = sigma, which is the paper's rule (Theorem 1)
    for splitting one Gaussian. A loss share takes its part of the sum in the same way.

    C settles where the fraction `quantile` of the gradients is within it, to within the noise: b has standard deviation
    sigma / (2 sqrt(t) q N), beside the sampling's own; `plan.explain()` says so where that makes C wander. Records whose
    loss or gradient is not finite are not counted, and pull b towards 1/2.

    **Choose the quantile for the purpose.** Clipping is biased, the more the more gradients it shortens. The paper's
    1/2 suits networks. For a posterior it is too low: with half of the likelihood's pull cut off the fit overshoots,
    gradients shrink, and C follows them down. On a logistic regression with 10,000 records at epsilon = 1 the
    posterior mean came out 2.6 times too long with a quantile of 0.5, 1.12 times with 0.9, and 1.03 times with 0.95,
    where the best of five fixed norms reached 0.96. A high quantile pays with more noise where a few gradients are
    very long, and rises fast (by 20 % a step) but falls slowly (2 % a step with 0.9), so start low.

    Attributes:
        quantile: The fraction of gradients that is to be within C, above 0 and below 1.
        initial: C of the first step; public. Rather too low than too high, see above.
        learning_rate: Step size of log C, above 0; 0.2, the paper's, raises C a hundredfold in about 25 steps.
        count_share: Share of the squared joint bound that goes to the count, above 0 and below 1. The noise on the
            gradient grows by 1 / sqrt(1 - count_share): half a per cent for 0.01.
        minimum: Public bound below which C does not fall; None: a ten-thousandth of `initial`.
        maximum: Public bound above which C does not rise; None: ten thousand times `initial`.

    Raises:
        ValueError: A number out of range.

    Reference:
        Andrew, Thakkar, McMahan and Ramaswamy, Differentially private learning with adaptive clipping, NeurIPS 2021.

    Example:
        >>> import discreet as dp
        >>> plan = dp.PrivacyPlan(sampling=dp.PoissonSampling(rate=0.01), clipping_norm=dp.AdaptiveClipping(quantile=0.9),
        ...     noise_multiplier=1.0, num_steps=1000, num_records=50_000)
        >>> round(plan.epsilon(delta=1e-5), 2)
        1.83
    """

    quantile: float = 0.9
    initial: float = 1.0
    learning_rate: float = 0.2
    count_share: float = 0.01
    minimum: float | None = None
    maximum: float | None = None
    adapts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        hint = (
            "It is the fraction of gradients that C leaves as they are. 0.9 is the default; a higher one clips fewer gradients, "
            "with more noise."
        )
        probability("AdaptiveClipping: quantile", self.quantile, hint=hint)
        _check_norm("AdaptiveClipping: initial", self.initial)
        hint = "It is the step size of log C. 0.2 is the paper's choice."
        positive("AdaptiveClipping: learning_rate", self.learning_rate, hint=hint)
        hint = "It is the count's share of the release. 0.01 costs half a per cent more noise on the gradient."
        probability("AdaptiveClipping: count_share", self.count_share, hint=hint)
        for name, bound in (("minimum", self.minimum), ("maximum", self.maximum)):
            if bound is not None:
                _check_norm(f"AdaptiveClipping: {name}", bound)
        # NumPy's numbers become Python's, so that a rule hashes, prints and pickles alike wherever they came from.
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
        least = max(_LEAST, 1e-4 * self.initial) if self.minimum is None else self.minimum
        most = min(_MOST, 1e4 * self.initial) if self.maximum is None else self.maximum
        return least, most

    @property
    def start(self) -> float:
        """C of the first step."""
        return self.initial

    def next_norm(self, norm: Float[Array, ""], within: Float[Array, ""]) -> Float[Array, ""]:
        """C of the next step.

        Args:
            norm: C of this step.
            within: b, the released number of gradients within C divided by the public expected batch size; any finite
                number, since noise was added.
        """
        return self.numbers.next_norm(norm, within)

    @property
    def numbers(self) -> AdaptiveNumbers:
        """The parameters of `next_norm`."""
        return AdaptiveNumbers(self.quantile, self.learning_rate, *self.limits)

    def stddev_of_fraction(self, noise_multiplier: float, expected_size: float) -> float:
        """Standard deviation of the noise on b."""
        return noise_multiplier / (2 * math.sqrt(self.count_share) * expected_size)

    def wandering(self, noise_multiplier: float, expected_size: float) -> float:
        """The typical deviation of log C by noise alone, where the restoring drift is weakest.

        A random walk with steps of variance (learning_rate * stddev)^2 against a drift of learning_rate times the
        smaller of quantile and 1 - quantile settles to an exponential law of this scale.
        """
        stddev = self.stddev_of_fraction(noise_multiplier, expected_size)
        return self.learning_rate * stddev**2 / (2 * min(self.quantile, 1 - self.quantile))

    def in_words(self, noise_multiplier: float, expected_size: float) -> str:
        """Describe the bound on a record's contribution, in a sentence without its full stop."""
        least, most = self.limits
        wandering, warning = self.wandering(noise_multiplier, expected_size), ""
        if wandering > 0.5:
            warning = (
                f" (but that noise is large: C wanders by a factor of about {math.exp(min(wandering, 9.0)):.2g} around its "
                "place; a larger count_share or batch, a smaller learning_rate or a quantile nearer 1/2 would hold it)"
            )
        noise = self.stddev_of_fraction(noise_multiplier, expected_size)
        return (
            f"Each record's contribution is clipped to L2 norm C, which starts at {self.initial:g} and follows the "
            f"{self.quantile:g} quantile of the gradients' norms: each step releases b, the number of gradients within C divided "
            f"by the expected batch size, in the same event and with noise of standard deviation "
            f"{noise:.2g}{warning}, and the next step's C is C exp(-{self.learning_rate:g} (b - {self.quantile:g})), between "
            f"{least:g} and {most:g}. Counting costs "
            f"{100 * (1 / math.sqrt(1 - self.count_share) - 1):.2g} % more noise on the gradient"
        )

    def stated(self, bound: float) -> tuple[str, str, str]:
        """For statements: the clipping to at most `bound` in all, the unit of the noise, and what it is a multiple of."""
        least, most = self.limits
        clipped = (
            f"Each record's gradient was clipped to a Euclidean norm C, which started at {self.start:g} and followed the "
            f"{self.quantile:g} quantile of the gradient norms: the number of gradients within C was released in the same sum "
            "and divided by the expected batch size; if it exceeded the quantile, C fell for the next step, otherwise it rose, "
            f"between {least:g} and {most:g}. Everything that a record added (gradient, count, and a clipped loss if there was "
            f"one) had a norm of at most {bound / self.start:.6g} C"
        )
        return clipped, " C", "that bound"


ClippingRule = FixedClipping | AdaptiveClipping


def as_clipping_rule(clipping_norm: float | AdaptiveClipping) -> ClippingRule:
    """The rule that a plan's `clipping_norm` stands for."""
    if isinstance(clipping_norm, AdaptiveClipping):
        return clipping_norm
    return FixedClipping(float(clipping_norm))


def contribution_bound(rule: ClippingRule, loss_share: float = 0.0) -> float:
    """L2 bound on all that one record adds to the first step's release: gradient, loss and count together.

    Raises:
        ValueError: The shares of loss and count leave nothing to the gradient.
    """
    return Channels(loss_share, rule.count_share).joint_bound(rule.start)


def _check_norm(what: str, value: Any) -> None:
    hint = "It is an L2 bound on one record's contribution; 1.0 is a common choice."
    real(what, value, _LEAST, _MOST, hint=hint)
