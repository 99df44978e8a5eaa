"""Epsilon of equal steps by the theorems that came before numerical accounting, each with the conditions it needs."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from numpy.typing import NDArray

from discreet.accounting._curves import GaussianCurve, smallest_epsilon
from discreet.accounting._events import Relation
from discreet.accounting._profile import profile

Array = NDArray[np.floating[Any]]

StepEpsilon = Callable[["Steps", float], float]
"""Epsilon of one use of the mechanism, without sampling, at a delta."""

_SHARES = 1 / (1 + np.exp(-np.linspace(-9.0, 9.0, 37)))
"""Shares of delta that advanced composition may keep for itself: tried all, for its theorem holds for each."""
_SLACK_SHARES = (1e-9, 1e-6, 1e-3, 0.1, 0.5, 0.9)
_RDP_ROUNDING = 1e-13
"""Of one step's log-moment, in dp_accounting's float64."""


@dataclass(frozen=True)
class Steps:
    """Equal uses of a Gaussian mechanism, each on all records or on a sample of them.

    Attributes:
        event: one step's.
        count: number of steps, fixed beforehand.
        relation: which data sets are neighbours.
        slack: total variation between one step as run and `event`.
    """

    event: dp_event.DpEvent
    count: int
    relation: Relation
    slack: float

    @property
    def noise_multiplier(self) -> float:
        """The noise's standard deviation divided by C."""
        mechanism: Any = getattr(self.event, "event", self.event)
        return mechanism.noise_multiplier

    @property
    def rate(self) -> float:
        """Sampling rate q; 1 where every step reads every record."""
        if isinstance(self.event, dp_event.SampledWithoutReplacementDpEvent):
            return self.event.sample_size / self.event.source_dataset_size
        return self.event.sampling_probability if isinstance(self.event, dp_event.PoissonSampledDpEvent) else 1.0

    @property
    def sampled_by_coins(self) -> bool:
        """Whether the sample is a Poisson sample."""
        return isinstance(self.event, dp_event.PoissonSampledDpEvent)

    @property
    def shift(self) -> float:
        """L2 sensitivity of the sum divided by the noise's standard deviation: C, or 2C where one record is replaced."""
        return (2.0 if self.relation is Relation.REPLACE_ONE else 1.0) / self.noise_multiplier


def steps_of(event: dp_event.DpEvent, relation: Relation, slack: float) -> Steps:
    """Takes a plan's event apart.

    Raises:
        ValueError: it is not a Gaussian mechanism repeated on all records, a Poisson sample or a sample without replacement.
    """
    step, count = event, 1
    if isinstance(event, dp_event.SelfComposedDpEvent):
        step, count = event.event, event.count
    inner = step
    if isinstance(step, dp_event.PoissonSampledDpEvent | dp_event.SampledWithoutReplacementDpEvent):
        inner = step.event
    if not isinstance(inner, dp_event.GaussianDpEvent):
        raise ValueError(
            f"compare_accountants: the event is {event!r}; the older theorems are compared for equal steps of a Gaussian "
            "mechanism, on all records or on a sample. Pass a PrivacyPlan, or plan.alone() of one that pays for more than steps."
        )
    return Steps(step, count, relation, slack / count)


def exact_step(steps: Steps, delta: float) -> float:
    """Epsilon of the Gaussian mechanism itself, for any noise (Balle, Wang, ICML 2018, Theorem 8)."""
    return 0.0 if delta >= 1 else smallest_epsilon(GaussianCurve(steps.shift), delta)


def classical_step(steps: Steps, delta: float) -> float:
    """sqrt(2 ln(1.25 / delta)) shift: proved where the result is below 1 (Dwork, Roth 2014, Theorem A.1), and there only."""
    return math.sqrt(2 * math.log(1.25 / delta)) * steps.shift if delta < 1 else math.inf


def classical_step_where_proved(steps: Steps, delta: float) -> float:
    """As `classical_step`; infinity where it proves nothing."""
    epsilon = classical_step(steps, delta)
    return epsilon if epsilon < 1 else math.inf


def amplified(steps: Steps, delta: float, step_epsilon: StepEpsilon) -> float:
    """Epsilon of one step at `delta`: that of the mechanism at delta / q, then log(1 + q (e^epsilon - 1)).

    Balle, Barthe, Gaboardi (NeurIPS 2018) prove it for a Poisson sample under ADD_OR_REMOVE_ONE and a sample without replacement
    under REPLACE_ONE, for any q. A Poisson sample under REPLACE_ONE follows from their Theorem 2 likewise: given every other
    record's coin, the two laws are (1-q) M0 + q M1 and (1-q) M0 + q M1', where M1 lies within C of M0 and within 2C of M1', and
    the shift here is that of 2C.
    """

    def ideal(delta: float) -> float:
        return _grown(step_epsilon(steps, delta / steps.rate), steps.rate)

    return with_slack(ideal, delta, steps.slack)


def _grown(epsilon: float, rate: float) -> float:
    if rate == 1 or epsilon == math.inf:
        return epsilon
    if epsilon < 500:
        return math.log1p(rate * math.expm1(epsilon))
    # e^epsilon overflows soon: the 1 that it dwarfs is left in.
    return min(epsilon, float(np.logaddexp(0.0, epsilon + math.log(rate))))


def basic(steps: Steps, delta: float, step_epsilon: StepEpsilon = exact_step) -> float:
    """T-fold basic composition of amplified steps, each at delta / T."""
    return steps.count * amplified(steps, delta / steps.count, step_epsilon)


def advanced(steps: Steps, delta: float, step_epsilon: StepEpsilon = exact_step) -> tuple[float, float]:
    """T-fold advanced composition of amplified steps, and its delta'; the least over the splits of delta.

    UAI 2017's eqs. (2), (3), (7) and (8): delta = T delta_iter + delta'.
    """
    candidates = []
    for share in _SHARES:
        kept = float(share) * delta
        step = amplified(steps, (1 - float(share)) * delta / steps.count, step_epsilon)
        candidates.append((_advanced(step, steps.count, kept), kept))
    return min(candidates)


def _advanced(epsilon: float, count: int, kept: float) -> float:
    if epsilon > 500:
        return math.inf
    return math.sqrt(2 * count * math.log(1 / kept)) * epsilon + count * epsilon * math.expm1(epsilon)


def renyi(steps: Steps, delta: float) -> float:
    """By Renyi divergences, the moments accountant's successor, as dp_accounting composes and converts them.

    dp_accounting reads a noise multiplier under REPLACE_ONE as stddev / 2C. It has no Renyi divergence for a Poisson sample with
    a record replaced: that is one record removed and one added, which costs (2 epsilon, (1 + e^epsilon) delta) of a removal's
    (epsilon, delta).
    """
    if steps.relation is Relation.REPLACE_ONE and steps.sampled_by_coins:
        removal = _renyi_curve(steps.event, steps.count, Relation.ADD_OR_REMOVE_ONE)
        return with_slack(lambda d: _twice(removal, d), delta, steps.count * steps.slack)
    halved = steps.relation is Relation.REPLACE_ONE
    event = _with_noise(steps, steps.noise_multiplier / (2 if halved else 1))
    return with_slack(_renyi_curve(event, steps.count, steps.relation), delta, steps.count * steps.slack)


def moments_as_in_2017(steps: Steps, delta: float) -> float:
    """What UAI 2017 states where noise of 2 C sigma is added: the moments accountant at sigma, under ADD_OR_REMOVE_ONE.

    As Abadi et al. compute it: from the log-moments of orders 1 to 32, by Markov's inequality.
    """
    mechanism = dp_event.GaussianDpEvent(steps.noise_multiplier / 2)
    event = mechanism if steps.rate == 1 else dp_event.PoissonSampledDpEvent(steps.rate, mechanism)
    orders, divergences = _divergences(event, Relation.ADD_OR_REMOVE_ONE, tuple(range(2, 34)))
    return float(np.min(steps.count * divergences - math.log(delta) / (orders - 1)))


def numerical(steps: Steps, delta: float) -> float:
    """By privacy loss distributions: what the library claims."""
    event = dp_event.SelfComposedDpEvent(steps.event, steps.count)
    return profile(event, steps.relation, slack=min(1.0, steps.count * steps.slack)).epsilon(delta)


def _with_noise(steps: Steps, noise_multiplier: float) -> dp_event.DpEvent:
    mechanism = dp_event.GaussianDpEvent(noise_multiplier)
    if isinstance(steps.event, dp_event.SampledWithoutReplacementDpEvent):
        sizes = steps.event.source_dataset_size, steps.event.sample_size
        return dp_event.SampledWithoutReplacementDpEvent(*sizes, mechanism)
    return dp_event.PoissonSampledDpEvent(steps.rate, mechanism) if steps.sampled_by_coins else mechanism


def _renyi_curve(event: dp_event.DpEvent, count: int, relation: Relation) -> Callable[[float], float]:
    orders, divergences = _divergences(event, relation, None)
    composed = (count * divergences).tolist()
    return lambda delta: float(compute_epsilon(orders.tolist(), composed, delta)[0])


@functools.lru_cache(maxsize=32)
def _divergences(event: dp_event.DpEvent, relation: Relation, orders: tuple[float, ...] | None) -> tuple[Array, Array]:
    """Orders, and one step's Renyi divergence at each."""
    accountant = RdpAccountant(orders, relation).compose(event)
    # Rounding may leave a divergence below what it is, even below 0, from which dp_accounting would conclude epsilon = 0.
    return accountant.orders, np.maximum(accountant.rdp, 0.0) + _RDP_ROUNDING / (accountant.orders - 1)


def _twice(epsilon_of: Callable[[float], float], delta: float) -> float:
    """Epsilon of two neighbouring steps between data sets, from that of one (group privacy)."""
    single = delta / 2
    for _ in range(100):
        epsilon = epsilon_of(single)
        if epsilon > 300:
            return math.inf
        needed = delta / (1 + math.exp(epsilon))
        if single <= needed:
            return 2 * epsilon
        single = 0.99 * needed
    return math.inf


def with_slack(epsilon_of: Callable[[float], float], delta: float, slack: float) -> float:
    """Epsilon at `delta` of what runs, from that of what it is within total variation `slack` of: infinity where unattainable."""
    if slack == 0:
        return epsilon_of(delta)
    for share in _SLACK_SHARES:
        epsilon = epsilon_of((1 - share) * delta)
        if epsilon < 500 and (1 + math.exp(epsilon)) * slack <= share * delta:
            return epsilon
    return math.inf
