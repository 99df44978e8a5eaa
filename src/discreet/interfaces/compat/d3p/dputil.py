"""`d3p.dputil`: the noise for a target epsilon, with accounting for the sampling in use.

d3p uses the Fourier accountant. Here the bounds are those of `discreet.accounting`, for the actual
sampling of the batches: d3p uses a formula for Poisson batches on fixed-size ones, and its epsilon
is too small.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from fractions import Fraction

from dp_accounting import DpEvent, dp_event

from discreet.privacy.accounting import Relation, calibrate_noise_multiplier, profile
from discreet.privacy.mechanisms import GAUSSIAN

__all__ = [
    "D3PAccountingWarning",
    "approximate_sigma",
    "approximate_sigma_remove_relation",
]

_LARGEST_TABLE = 2**31 - 1
_POISSON_SLACK = 2.0**-78
"""Slack of a Poisson batch against ideal coin flips. It matters where e^epsilon is large, beyond
epsilon = 30; a statement uses the sampler's own slack for its table, which is smaller unless q >
0.4 of more than 2^18 records."""

_told: set[str] = set()
"""Warnings already issued in this process."""


class D3PAccountingWarning(UserWarning):
    """A program's epsilon differs from d3p's, or from the requested one."""


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The target of a noise scale, and its number of steps, which is thereby fixed beforehand."""

    epsilon: float
    delta: float
    rate: float
    num_iter: int
    relation: Relation


class NoiseScale(float):
    """A noise scale: a float with its calibration.

    `DPSVI` reads from `calibration` the number of steps fixed beforehand, and compares its batches
    with those assumed. Arithmetic returns ordinary floats, without it.
    """

    calibration: Calibration | None

    def __new__(cls, value: float, calibration: Calibration | None = None) -> NoiseScale:
        self = super().__new__(cls, value)
        self.calibration = calibration
        return self


def approximate_sigma(
    target_eps: float,
    delta: float,
    q: float,
    num_iter: float,
    tol: float = 1e-4,
    force_smaller: bool = False,
    maxeval: int = 10,
) -> tuple[NoiseScale, float, int]:
    """Compute the noise for fixed-size batches (`subsample_batchify_data`) under REPLACE_ONE.

    Guarantee: with `dp_scale` = sigma, `num_iter` updates from batches of q N of N records drawn
    without replacement are (target_eps, delta)-private under REPLACE_ONE, and spend at least 0.999
    of target_eps.

    This is more noise than d3p's function returns. d3p uses the formula of Poisson batches in which
    a record was replaced for batches of fixed size, where another record takes the freed place and
    the sum moves by up to 2 C: its epsilon is too small by a factor of up to five and more (q =
    0.01, sigma = 1, 1000 steps, delta = 1e-5: 2.84 instead of at least 13.36). A
    `D3PAccountingWarning` gives the figures once per process.

    Args:
        target_eps: Target epsilon, above 0.
        delta: Target delta, above 0, well below 1 / N.
        q: Batch size / number of records.
        num_iter: Number of updates; a fraction is rounded up.
        tol: Accepted and unused: the result is always on the safe side, within 0.1 %.
        force_smaller: Likewise.
        maxeval: Likewise.

    Returns:
        sigma (noise standard deviation / clipping threshold, on the sum), the epsilon it spends,
        and the number of evaluations of the accountant.

    Raises:
        ValueError: A number out of range, or a target that no noise meets.

    Reference:
        Lebeda et al., Avoiding pitfalls for privacy accounting of subsampled mechanisms under
        composition, arXiv 2405.20769; Zhu, Dong, Wang, AISTATS 2022.
    """
    del tol, force_smaller, maxeval
    rate, steps = _check(q, num_iter)
    share = _fraction(rate)
    batch_of = functools.partial(
        dp_event.SampledWithoutReplacementDpEvent, share.denominator, share.numerator
    )
    target = Calibration(target_eps, delta, rate, steps, Relation.REPLACE_ONE)
    result = _calibrate(_releases(batch_of, rate, steps), target)
    if rate < 1:
        _say_once(result[0], result[1])
    return result


def approximate_sigma_remove_relation(
    target_eps: float,
    delta: float,
    q: float,
    num_iter: float,
    tol: float = 1e-4,
    force_smaller: bool = False,
    maxeval: int = 10,
) -> tuple[NoiseScale, float, int]:
    """Compute the noise for Poisson batches (`poisson_batchify_data`) under ADD_OR_REMOVE_ONE.

    Guarantee: as for `approximate_sigma`, for batches that include each record independently with
    probability q. It is too little for fixed-size batches; `DPSVI.init` then warns, with figures.

    Arguments, results and errors as for `approximate_sigma`; q is the sampling rate.

    Example:
        >>> sigma, eps, _ = approximate_sigma_remove_relation(1.0, 1e-6, 0.01, 10_000)
        >>> round(sigma, 2), 0.999 <= eps <= 1.0
        (4.3, True)
    """
    del tol, force_smaller, maxeval
    rate, steps = _check(q, num_iter)
    target = Calibration(target_eps, delta, rate, steps, Relation.ADD_OR_REMOVE_ONE)
    return _calibrate(_poisson(rate, steps), target, poisson=rate < 1)


def whole_steps(num_iter: float) -> int:
    """Round a number of steps up (d3p's programs compute it as epochs / q); it must be finite and at least 1."""
    if not (math.isfinite(num_iter) and num_iter >= 1):
        raise ValueError(
            f"The number of iterations is {num_iter}; it must be at least 1 and finite."
        )
    return math.ceil(num_iter * (1 - 1e-12))


def _check(q: float, num_iter: float) -> tuple[float, int]:
    if not 0 < q <= 1:
        raise ValueError(f"q is {q}; it is batch size / number of records, above 0 and at most 1.")
    return float(q), whole_steps(num_iter)


def _fraction(rate: float) -> Fraction:
    """Batch size and table size for a rate, whose ratio is never below it: the accounting uses only the ratio."""
    share = Fraction(rate).limit_denominator(_LARGEST_TABLE)
    if float(share) < rate:
        share = Fraction(math.ceil(Fraction(rate) * _LARGEST_TABLE), _LARGEST_TABLE)
    return share


def _releases(
    batch_of: Callable[[DpEvent], DpEvent], rate: float, steps: int
) -> Callable[[float], DpEvent]:
    """A function from the noise to the event of `steps` steps."""

    def event_of(noise: float) -> DpEvent:
        step: DpEvent = dp_event.GaussianDpEvent(noise)
        return dp_event.SelfComposedDpEvent(batch_of(step) if rate < 1 else step, steps)

    return event_of


def _poisson(rate: float, steps: int) -> Callable[[float], DpEvent]:
    return _releases(functools.partial(dp_event.PoissonSampledDpEvent, rate), rate, steps)


def _calibrate(
    event_of: Callable[[float], DpEvent], target: Calibration, *, poisson: bool = False
) -> tuple[NoiseScale, float, int]:
    evaluations = 0
    slack = target.num_iter * (GAUSSIAN.slack + _POISSON_SLACK * poisson)

    def counted(noise: float) -> DpEvent:
        nonlocal evaluations
        evaluations += 1
        return event_of(noise)

    sigma = calibrate_noise_multiplier(
        counted, epsilon=target.epsilon, delta=target.delta, relation=target.relation, slack=slack
    )
    spent = profile(event_of(sigma), target.relation, slack=slack).epsilon(target.delta)
    return NoiseScale(sigma, target), spent, evaluations


def _say_once(sigma: NoiseScale, epsilon: float) -> None:
    if "approximate_sigma" in _told or sigma.calibration is None:
        return
    _told.add("approximate_sigma")
    target = sigma.calibration
    theirs = profile(_poisson(target.rate, target.num_iter)(sigma), Relation.REPLACE_ONE).epsilon(
        target.delta
    )
    warnings.warn(
        f"approximate_sigma returns sigma = {sigma:.4g} for epsilon = {epsilon:.4g} at delta = {target.delta:g} "
        f"(q = {target.rate:g}, {target.num_iter} steps). d3p computes epsilon = {theirs:.4g} for that sigma, and so "
        "returns less noise: it uses a formula for Poisson batches on batches of fixed size, where replacing a record "
        "moves the sum by twice the clipping threshold. Results that d3p published as private at some epsilon spent "
        "more. Poisson batches (poisson_batchify_data with approximate_sigma_remove_relation) need less noise.",
        D3PAccountingWarning,
        stacklevel=3,
    )
