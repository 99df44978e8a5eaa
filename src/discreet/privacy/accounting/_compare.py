"""Compare accountants on one plan, from basic composition to numerical accounting.

The theorems that preceded numerical accounting come first, each with its conditions; then the first
analysis of private Langevin dynamics, of 2015; then the table that compares them. Only figures
labelled as upper bounds are upper bounds.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import attr
import numpy as np
from numpy.typing import NDArray

from discreet._dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from discreet._validate import probability
from discreet.privacy.accounting._profile import DELTA_HINT, LEAST_DELTA, Planned, profile
from discreet.privacy.accounting._relation import Relation, neighbours
from discreet.privacy.accounting._risk import upper

Array = NDArray[np.floating[Any]]

StepEpsilon = Callable[["Steps", float], float]
"""Epsilon of one use of the mechanism, without sampling, at a delta."""

_SHARES = 1 / (1 + np.exp(-np.linspace(-9.0, 9.0, 37)))
"""Shares of delta for delta' of advanced composition: all are tried, since the theorem holds for each."""
_SLACK_SHARES = (1e-9, 1e-6, 1e-3, 0.1, 0.5, 0.9)
_RDP_ROUNDING = 1e-13
"""Rounding error of one step's log-moment, in dp_accounting's float64."""


@dataclass(frozen=True)
class Steps:
    """Equal uses of a Gaussian mechanism, each on all records or on a sample of them."""

    event: DpEvent  # one step's
    count: int  # number of steps, fixed beforehand
    relation: Relation  # which data sets are neighbours
    slack: float  # total variation between one step as run and `event`

    @property
    def noise_multiplier(self) -> float:
        """The noise's standard deviation divided by C."""
        mechanism: Any = getattr(self.event, "event", self.event)
        return mechanism.noise_multiplier

    @property
    def rate(self) -> float:
        """Sampling rate q; 1 where every step reads every record."""
        if isinstance(self.event, SampledWithoutReplacementDpEvent):
            return self.event.sample_size / self.event.source_dataset_size
        return (
            self.event.sampling_probability
            if isinstance(self.event, PoissonSampledDpEvent)
            else 1.0
        )

    @property
    def sampled_by_coins(self) -> bool:
        """True for a Poisson sample."""
        return isinstance(self.event, PoissonSampledDpEvent)

    @property
    def shift(self) -> float:
        """The L2 sensitivity of the sum (C, or 2C if one record is replaced) divided by the noise's standard deviation."""
        return neighbours(self.relation).distance / self.noise_multiplier


def steps_of(event: DpEvent, relation: Relation, slack: float) -> Steps:
    """Split a plan's event into equal steps."""
    step = event
    count = 1
    if isinstance(event, SelfComposedDpEvent):
        step = event.event
        count = event.count
    inner = step
    if isinstance(step, PoissonSampledDpEvent | SampledWithoutReplacementDpEvent):
        inner = step.event
    if not isinstance(inner, GaussianDpEvent):
        raise ValueError(
            f"compare_accountants: the event is {event!r}; the older theorems are compared for equal steps of a Gaussian "
            "mechanism, on all records or on a sample. Pass a PrivacyPlan."
        )
    return Steps(step, count, relation, slack / count)


def exact_step(steps: Steps, delta: float) -> float:
    """Epsilon of the Gaussian mechanism itself, for any noise (Balle, Wang, ICML 2018, Theorem 8)."""
    return profile(GaussianDpEvent(steps.noise_multiplier), steps.relation).epsilon(min(delta, 1.0))


def classical_step(steps: Steps, delta: float) -> float:
    """sqrt(2 ln(1.25 / delta)) shift: proved where the result is below 1 (Dwork, Roth 2014, Theorem A.1), and there only."""
    return math.sqrt(2 * math.log(1.25 / delta)) * steps.shift if delta < 1 else math.inf


def classical_step_where_proved(steps: Steps, delta: float) -> float:
    """The same as `classical_step`; infinity where it proves nothing."""
    return epsilon if (epsilon := classical_step(steps, delta)) < 1 else math.inf


def amplified(steps: Steps, delta: float, step_epsilon: StepEpsilon) -> float:
    """Epsilon of one step at `delta`: that of the mechanism at delta / q, then log(1 + q (e^epsilon - 1)).

    Balle, Barthe, Gaboardi (NeurIPS 2018) prove it for a Poisson sample under ADD_OR_REMOVE_ONE and
    a sample without replacement under REPLACE_ONE, for any q. A Poisson sample under REPLACE_ONE
    follows from their Theorem 2 likewise: given every other record's coin, the two laws are (1-q)
    M0 + q M1 and (1-q) M0 + q M1', where M1 lies within C of M0 and within 2C of M1', and the shift
    here is that of 2C.
    """
    return with_slack(
        lambda d: _grown(step_epsilon(steps, d / steps.rate), steps.rate), delta, steps.slack
    )


def _grown(epsilon: float, rate: float) -> float:
    if rate == 1 or epsilon == math.inf:
        return epsilon
    if epsilon < 500:
        return math.log1p(rate * math.expm1(epsilon))
    # e^epsilon overflows soon: the 1 that it dwarfs is left in.
    return min(epsilon, float(np.logaddexp(0.0, epsilon + math.log(rate))))


def basic(steps: Steps, delta: float) -> float:
    """T-fold basic composition of amplified steps, each at delta / T."""
    return steps.count * amplified(steps, delta / steps.count, exact_step)


def advanced(
    steps: Steps, delta: float, step_epsilon: StepEpsilon = exact_step
) -> tuple[float, float]:
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
    return math.sqrt(2 * count * math.log(1 / kept)) * epsilon + count * epsilon * math.expm1(
        epsilon
    )


def renyi(steps: Steps, delta: float) -> float:
    """By Renyi divergences, the moments accountant's successor, as dp_accounting composes and converts them.

    dp_accounting reads a noise multiplier under REPLACE_ONE as stddev / 2C. It has no Renyi
    divergence for a Poisson sample with a record replaced: that is one record removed and one
    added, which costs (2 epsilon, (1 + e^epsilon) delta) of a removal's (epsilon, delta).
    """
    near = neighbours(steps.relation)
    if not near.hides_membership and steps.sampled_by_coins:
        removal = _renyi_curve(steps.event, steps.count, Relation.ADD_OR_REMOVE_ONE)
        return with_slack(lambda d: _twice(removal, d), delta, steps.count * steps.slack)
    event: Any = steps.event
    if not near.hides_membership:
        halved = GaussianDpEvent(steps.noise_multiplier / near.distance)
        event = halved if isinstance(event, GaussianDpEvent) else attr.evolve(event, event=halved)
    return with_slack(
        _renyi_curve(event, steps.count, steps.relation), delta, steps.count * steps.slack
    )


def moments_as_in_2017(steps: Steps, delta: float) -> float:
    """The epsilon that UAI 2017 states for noise of 2 C sigma: the moments accountant at sigma, under ADD_OR_REMOVE_ONE.

    As Abadi et al. compute it, from log-moments by Markov's inequality: of orders 1 to 99, as the
    authors' code for Adult does (Abadi et al. take 32).
    """
    mechanism = GaussianDpEvent(steps.noise_multiplier / 2)
    event = mechanism if steps.rate == 1 else PoissonSampledDpEvent(steps.rate, mechanism)
    orders, divergences = _divergences(event, Relation.ADD_OR_REMOVE_ONE, tuple(range(2, 101)))
    return float(np.min(steps.count * divergences - math.log(delta) / (orders - 1)))


def numerical(steps: Steps, delta: float) -> float:
    """Epsilon by privacy loss distributions, as the library claims."""
    event = SelfComposedDpEvent(steps.event, steps.count)
    return profile(event, steps.relation, slack=min(1.0, steps.count * steps.slack)).epsilon(delta)


def _renyi_curve(event: DpEvent, count: int, relation: Relation) -> Callable[[float], float]:
    orders, divergences = _divergences(event, relation, None)
    composed = (count * divergences).tolist()
    from dp_accounting.rdp import compute_epsilon

    return lambda delta: float(compute_epsilon(orders.tolist(), composed, delta)[0])


@functools.lru_cache(maxsize=32)
def _divergences(
    event: DpEvent, relation: Relation, orders: tuple[float, ...] | None
) -> tuple[Array, Array]:
    """Orders, and one step's Renyi divergence at each."""
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders, relation).compose(event)
    # Rounding may leave a divergence below what it is, even below 0, from which dp_accounting would
    # conclude epsilon = 0.
    return accountant.orders, np.maximum(accountant.rdp, 0.0) + _RDP_ROUNDING / (
        accountant.orders - 1
    )


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
    """Epsilon at `delta` of a run within total variation `slack` of its event; infinity where unattainable."""
    if slack == 0:
        return epsilon_of(delta)
    for share in _SLACK_SHARES:
        epsilon = epsilon_of((1 - share) * delta)
        if epsilon < 500 and (1 + math.exp(epsilon)) * slack <= share * delta:
            return epsilon
    return math.inf


class Bound2015(NamedTuple):
    """An epsilon by the paper of 2015."""

    epsilon: float  # The least epsilon for this noise by the paper's formula
    # True if the paper's condition on (epsilon, delta, steps, rate) holds; otherwise it claims
    # nothing
    in_range: bool


def langevin_epsilon_2015(
    *, noise_multiplier: float, rate: float, num_steps: int, delta: float
) -> Bound2015:
    """Compute epsilon of private stochastic gradient Langevin dynamics by the constants and advanced composition of 2015.

    **A historical figure, not discreet's claim.** The paper adds noise of standard deviation s to
    the gradient (N / tau) sum over a batch of tau out of N records, with s^2 >= 128 k L^2 log(2.5 k
    / delta) log(2 / delta) / epsilon^2 for k = N T / tau steps and gradients of length L at most,
    and concludes (epsilon, delta). With q = tau / N and s = noise_multiplier L / q this solves for
    epsilon. The paper's conditions: tables of equal length that differ in one record, batches of a
    fixed size drawn without replacement, T >= epsilon^2 N / (32 tau log(2 / delta)); `in_range`
    says whether the last one holds. What runs here may have another relation and sampler; its
    epsilon is the plan's.

    Args:
        noise_multiplier: Least noise of a step, as standard deviation on the sum of clipped
            gradients, divided by C.
        rate: Sampling rate q.
        num_steps: k.
        delta: The delta to state epsilon at.

    Raises:
        ValueError: A number out of range.

    Reference:
        Wang, Fienberg and Smola, Privacy for free: posterior sampling and stochastic gradient Monte
            Carlo, ICML 2015,
        Algorithm 2 and its theorem.

    Example:
        >>> from discreet.privacy.accounting import langevin_epsilon_2015
        >>> bound = langevin_epsilon_2015(noise_multiplier=4.0, rate=0.01, num_steps=1_000, delta=1e-5)
        >>> round(bound.epsilon, 2), bound.in_range
        (13.74, False)
    """
    if not (noise_multiplier > 0 and 0 < rate <= 1 and num_steps >= 1 and 0 < delta < 1):
        raise ValueError(
            f"noise_multiplier={noise_multiplier}, rate={rate}, num_steps={num_steps}, delta={delta}: the first must be "
            "positive, the second in (0, 1], the third at least 1, and the last between 0 and 1."
        )
    variance = 128 * num_steps * math.log(2.5 * num_steps / delta) * math.log(2 / delta)
    epsilon = rate * math.sqrt(variance) / noise_multiplier
    return Bound2015(epsilon, epsilon <= rate * math.sqrt(32 * num_steps * math.log(2 / delta)))


PLD = "privacy loss distributions (PLD)"


@dataclass(frozen=True)
class Account:
    """One accountant's figure.

    Attributes:
        name: The accountant.
        epsilon: Its epsilon at `delta`; infinity if it gives none.
        delta: The delta of all the steps together.
        source: The publication of the method.
        upper_bound: True if epsilon is an upper bound for the plan.
        note: The assumptions; if `upper_bound` is False, the reason.
    """

    name: str
    epsilon: float
    delta: float
    source: str
    upper_bound: bool
    note: str


@dataclass(frozen=True)
class AccountantComparison:
    """The figures of several accountants for one plan. Made by `compare_accountants`; `print` it for a table.

    Attributes:
        rows: One figure per accountant, from the oldest to the library's own.
    """

    rows: tuple[Account, ...]
    _steps: Steps = field(repr=False)

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        relation = neighbours(self._steps.relation).name("record")
        lines = [
            f"{self._steps.count:,} steps, q = {self._steps.rate:.4g}, delta = {self.rows[0].delta:g}, {relation}"
        ]
        lines += [
            f"{row.name:<{width}}  {upper(row.epsilon):>9}  "
            + (row.note if row.upper_bound else f"not an upper bound here: {row.note}")
            for row in self.rows
        ]
        lines[1:1] = [f"{'accountant':<{width}}  {'epsilon':>9}  note"]
        return "\n".join(lines)


def compare_accountants(plan: Planned, delta: float) -> AccountantComparison:
    """Compute the cost of a plan by each generation of accountants, and which of the figures are upper bounds.

    Basic and advanced composition take each step as a Gaussian mechanism on a sample: (epsilon,
    delta / q) of the mechanism becomes (log(1 + q (e^epsilon - 1)), delta) of the step. That holds
    for Poisson samples and samples without replacement alike, with a sensitivity of C or, where one
    record is replaced, 2C. The mechanism's epsilon is the exact one (Balle, Wang 2018), so that
    both hold for any noise. Advanced composition takes the split of delta that serves it best. Each
    row is charged the slack, the distance between sampler and event: basic and advanced composition
    step by step, where it costs e^epsilon of one step, and the others that of all steps together.
    So the first two may be finite where the others are not.

    The rows "as in UAI 2017" are what Jälkö, Dikmen and Honkela compute: one with the classical
    formula sqrt(2 ln(1.25 / delta)) / sigma, which is proved for an epsilon below 1 only; under
    REPLACE_ONE, another by the moments accountant at half the noise multiplier, as if one record
    were added or removed.

    A row whose own conditions fail is an upper bound all the same where the PLD's epsilon, which is
    one, lies below it: its note says so. Else it is marked as none.

    Args:
        plan: A `PrivacyPlan`.
        delta: The delta of all the steps together; above 0 and below 1.

    Returns:
        The comparison: `rows`, and a table by `print`.

    Raises:
        ValueError: Delta is out of range, or the event is not made of equal Gaussian steps.

    References:
        Dwork, Roth, "The algorithmic foundations of differential privacy", 2014, Theorems 3.16,
        3.20 and A.1; Jälkö, Dikmen, Honkela, UAI 2017; Abadi et al., CCS 2016; Mironov, CSF 2017;
        Balle, Barthe, Gaboardi, NeurIPS 2018.

    Example:
        >>> import discreet as dp
        >>> plan = dp.PrivacyPlan(
        ...     sampling=dp.PoissonSampling(rate=0.05), clipping_norm=5.0, noise_multiplier=2.4, num_steps=1000, num_records=3341)
        >>> [round(row.epsilon, 1) for row in dp.accounting.compare_accountants(plan, 1e-3).rows]
        [171.4, 56.5, 118.9, 2.3, 2.0]
    """
    delta = probability("delta", delta, hint=DELTA_HINT)
    steps = steps_of(plan.event(), plan.relation, plan.slack)
    return AccountantComparison(_accounts(steps, delta), steps)


def _accounts(steps: Steps, delta: float) -> tuple[Account, ...]:
    claimed = numerical(steps, delta)
    slack = steps.count * steps.slack
    why = f": slack of {slack:.2g} costs e^epsilon times itself of it" if slack > 0 else ""

    def row(
        name: str, epsilon: float, source: str, note: str, gap: str = "", why: str = why
    ) -> Account:
        """A figure; `gap` is the missing condition of its proof, `why` the reason of an infinite epsilon."""
        if epsilon == math.inf:
            return Account(
                name, epsilon, delta, source, True, f"no finite epsilon at this delta{why}"
            )
        if not gap:
            return Account(name, epsilon, delta, source, True, note)
        if epsilon >= claimed:
            return Account(
                name,
                epsilon,
                delta,
                source,
                True,
                f"{gap}; it holds because PLD's epsilon is no larger",
            )
        return Account(name, epsilon, delta, source, False, gap)

    exact, kept = advanced(steps, delta)
    classical, classical_kept = advanced(steps, delta, classical_step_where_proved)
    gap = ""
    if classical == math.inf:
        gap = "the classical Gaussian formula needs an epsilon below 1 on the batch"
        classical, classical_kept = advanced(steps, delta, classical_step)
    replaced = not neighbours(steps.relation).hides_membership
    swapped = steps.sampled_by_coins and replaced
    note = f"{steps.count:,} times a step's epsilon at delta / {steps.count:,}"
    rows = [
        row("basic composition", basic(steps, delta), "Dwork and Roth 2014, Theorem 3.16", note)
    ]
    note = f"exact Gaussian mechanism, delta' = {kept:.3g}"
    rows.append(row("advanced composition", exact, "Dwork and Roth 2014, Theorem 3.20", note))
    name = "advanced composition, as in UAI 2017"
    source = "Jälkö, Dikmen, Honkela 2017, eqs. (7), (8)"
    rows.append(
        row(
            name,
            classical,
            source,
            f"classical Gaussian formula, delta' = {classical_kept:.3g}",
            gap,
        )
    )
    name = "Renyi (moments accountant)"
    source = "Mironov 2017; Abadi et al. 2016; dp_accounting"
    note = "one record replaced = one removed and one added" if swapped else "by dp_accounting"
    rows.append(row(name, renyi(steps, delta), source, note))
    if replaced:
        gap = "it is for Poisson samples, and these batches are of fixed size"
        if steps.rate == 1:
            gap = "" if steps.slack == 0 else "the distance between sampler and event is not in it"
        elif steps.sampled_by_coins:
            gap = "its proof halves epsilon for twice the noise, and adds two deltas without the factor e^epsilon"
        name = "moments accountant, as in UAI 2017"
        source = "Jälkö, Dikmen, Honkela 2017, Theorem 2"
        note = "without sampling, one record removed at half the noise is one replaced"
        rows.append(row(name, moments_as_in_2017(steps, delta), source, note, gap))
    # The slack is not the reason where epsilon is infinite without it, too.
    if (
        claimed == math.inf
        and delta < LEAST_DELTA
        and numerical(replace(steps, slack=0.0), delta) == math.inf
    ):
        why = f": it is below {LEAST_DELTA:g}, the least that numerical composition resolves"
    rows.append(
        row(
            PLD,
            claimed,
            "what discreet claims: plan.epsilon(delta)",
            "the plan's own epsilon",
            why=why,
        )
    )
    return tuple(rows)
