"""Explain a privacy profile's risk for one person, in words for statisticians who are new to privacy; and propose a target."""

import math
from dataclasses import dataclass

import numpy as np

from discreet._validate import integer
from discreet.privacy.accounting._pairs import GaussianCurve
from discreet.privacy.accounting._profile import PrivacyProfile
from discreet.privacy.accounting._relation import Relation, neighbours


def upper(value: float, digits: int = 4) -> str:
    """Format a number in few digits, rounded up so that it stays an upper bound.

    >>> upper(0.99991), upper(12.0), upper(float("inf")), upper(0.0)
    ('1', '12', 'infinite', '0')
    >>> upper(0.123401)
    '0.1235'
    """
    if not math.isfinite(value):
        return "infinite" if value > 0 else "undefined"
    shown = f"{value:.{digits}g}"
    if float(shown) < value:
        step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
        shown = f"{float(shown) + step:.{digits}g}"
    return shown


@dataclass(frozen=True)
class Suggestion:
    """A target to calibrate for, and the reason. Made by `suggest`."""

    epsilon: float
    delta: float
    why: str

    def __str__(self) -> str:
        return f"epsilon = {self.epsilon:g}, delta = {self.delta:g}. {self.why}"


def suggest(*, num_records: int) -> Suggestion:
    """Propose epsilon and delta for a table.

    epsilon = 1 for any table: it is a guarantee to one person, which does not depend on the number
    of others. delta = 1/(10 N) rounded down to one digit, and never above 1e-5.

    Args:
        num_records: Number of records N, treated as public: pass a rounded figure if the exact one
            is secret.

    Returns:
        The proposal with its reason in words.

    Raises:
        ValueError: num_records is not an integer of at least 1.

    Example:
        >>> suggest(num_records=32_561).delta
        3e-06
    """
    num_records = integer("num_records", num_records, hint="It is the public number of records.")
    share = 1 / (10 * num_records)
    exponent = math.floor(math.log10(share) + 1e-9)
    delta = min(1e-5, float(f"{math.floor(share / 10.0**exponent + 1e-9):d}e{exponent:d}"))
    why = (
        "epsilon = 1 keeps the odds of anything said about a person within a factor of e = 2.72 of what they would be without "
        "their record: an attacker who accuses 1 % of the innocent finds at most 2.72 % of the guilty. "
        f"delta is at most a tenth of 1 / {num_records:,}, so that a method which publishes a random record in the clear "
        "could not pass, and at most 1e-5. Below epsilon = 0.1 even a strong attacker learns next to nothing; above 3 the "
        "promise is weak, and above 10 it says little. The number of records is treated as public."
    )
    if num_records < 1000:
        why += (
            f" With {num_records:,} records the noise may be large next to what they say together; a simple model, full "
            "batches and public bounds help more than a larger epsilon."
        )
    return Suggestion(epsilon=1.0, delta=delta, why=why)


FALSE_POSITIVE_RATES = (0.001, 0.01, 0.05, 0.1)
PRIORS = (0.01, 0.5)


@dataclass(frozen=True)
class Risk:
    """The largest possible risk for one person. Made by `risk`; `str()` explains it in plain words.

    Attributes:
        relation: The neighbouring relation.
        delta: The delta of `epsilon` and `posterior_beliefs`.
        epsilon: Epsilon at `delta`.
        true_positive_rates: Pairs (FPR, TPR): the largest true-positive rate any attacker can reach
            at that false-positive rate.
        posterior_beliefs: Pairs (prior, posterior): the attacker who held the record's presence (or
            its one of two values) for true with probability `prior` believes it, after seeing all
            releases, with at most `posterior`; this holds except with probability at most `delta`
            over the noise and the batches.
        right_guesses: Share of right guesses of the best attacker between two equally likely
            neighbours, (1 + delta(0))/2.
        gaussian_mu: The least mu for which the Gaussian trade-off curve G_mu (telling N(0,1) from
            N(mu,1)) allows the attacker at least as much as the profile at every epsilon between 0
            and `epsilon`: "mu-Gaussian private" down to `delta`.
        warnings: Objections of a careful reader.
    """

    relation: Relation
    delta: float
    epsilon: float
    true_positive_rates: tuple[tuple[float, float], ...]
    posterior_beliefs: tuple[tuple[float, float], ...]
    right_guesses: float
    gaussian_mu: float
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, noun: str = "record") -> str:
        """Explain the risk, in some fifteen lines; `noun` is the unit of privacy, "record" or "person"."""
        gaussian = (
            "Distinguishing the two cases is at least as hard as telling N(0, 1) from "
            f"N({self.gaussian_mu:.3g}, 1) from a single draw (mu-Gaussian privacy, down to delta)."
        )
        lines = [
            _promise(self.relation, self.epsilon, self.delta, noun),
            "",
            f"Take an attacker who knows every other {noun} and everything that was released, and who must decide whether "
            f"{neighbours(self.relation).question(noun)}. However the attack is made:",
            *(
                f"  if it wrongly says yes in {100 * false:g} % of cases, it rightly says yes in at most {_percent(true)}"
                for false, true in self.true_positive_rates
            ),
            f"  between two equally likely cases it guesses right at most {_percent(self.right_guesses)} of the time",
            "",
            f"What the releases can do to a belief (except with probability {self.delta:g}):",
            *(
                f"  held true with {100 * prior:g} % before: with at most {_percent(posterior)} afterwards"
                for prior, posterior in self.posterior_beliefs
            ),
            "",
            gaussian
            if math.isfinite(self.gaussian_mu)
            else "No Gaussian trade-off curve bounds this release.",
            "General facts about the population can still be learned, and they may concern people whose data was not used.",
            *(f"Warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)


def risk(profile: PrivacyProfile, delta: float, *, num_records: int | None = None) -> Risk:
    """Translate a profile into an attacker's success.

    Args:
        profile: The profile of the releases.
        delta: The delta at which epsilon is stated, above 0 and below 1; 0 if the profile has a
            pure epsilon.
        num_records: Public number of records, if delta is to be judged against it.

    Returns:
        Upper bounds on what any attacker can do, whatever they know besides.

    Raises:
        ValueError: Delta is not above 0 and below 1, nor 0 with a pure epsilon.

    References:
        Wasserman, Zhou, JASA 2010, and Dong, Roth, Su, JRSS-B 2022 (trade-off curves); Kairouz, Oh,
        Viswanath, ICML 2015.

    Example:
        >>> from dp_accounting import dp_event
        >>> from discreet.privacy.accounting import Relation, profile
        >>> meaning = risk(profile(dp_event.GaussianDpEvent(1.0), Relation.ADD_OR_REMOVE_ONE), 1e-5)
        >>> round(meaning.gaussian_mu, 6)
        1.0
        >>> round(meaning.right_guesses, 4)
        0.6915
    """
    if not (0 < delta < 1 or (delta == 0 and math.isfinite(profile.epsilon(0.0)))):
        raise ValueError(
            f"delta is {delta!r}; state epsilon at a delta above 0 and below 1, best well below 1 / number of records."
        )
    epsilon = profile.epsilon(delta)
    loss = _loss_exceeded_rarely(profile, delta)
    rates = np.atleast_1d(profile.true_positive_rate(np.array(FALSE_POSITIVE_RATES)))
    return Risk(
        relation=profile.relation,
        delta=delta,
        epsilon=epsilon,
        true_positive_rates=tuple(
            zip(FALSE_POSITIVE_RATES, (float(rate) for rate in rates), strict=True)
        ),
        posterior_beliefs=tuple(
            (prior, 1 / (1 + (1 - prior) / prior * math.exp(-loss))) for prior in PRIORS
        ),
        right_guesses=(1 + float(profile.delta(0.0))) / 2,
        gaussian_mu=_gaussian_mu(profile, epsilon),
        warnings=tuple(_warnings(profile, epsilon, delta, num_records)),
    )


def _loss_exceeded_rarely(profile: PrivacyProfile, delta: float) -> float:
    """A privacy loss that is exceeded with probability at most delta.

    delta(e) = E[(1 - exp(e - L))+] >= P(L > l) (1 - exp(e - l)) for any e < l, hence P(L > l) <=
    delta where l >= e - log(1 - delta(e)/delta); the best e is taken. It is a little above
    epsilon(delta): that pair alone does not say that the loss exceeds epsilon with probability
    delta at most.
    """
    if delta == 0:
        return profile.epsilon(0.0)
    epsilons, deltas = profile.curve()
    usable = deltas < delta
    if not usable.any():
        return math.inf
    return float(np.min(epsilons[usable] - np.log1p(-deltas[usable] / delta)))


def _gaussian_mu(profile: PrivacyProfile, epsilon: float) -> float:
    """The least mu with delta_mu(e) >= delta(e) for all e in [0, epsilon], by bisection on a grid of e."""
    if math.isinf(epsilon):
        return math.inf
    grid = np.linspace(0.0, epsilon, 129)
    target = np.atleast_1d(profile.delta(grid))
    if target[0] >= 1:
        return math.inf
    if target[0] <= 0:
        return 0.0
    low = 1e-12
    high = 1.0
    while np.any(GaussianCurve(high).delta(grid) < target):
        low = high
        high = 2 * high
        if high > 1e6:
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if np.any(GaussianCurve(middle).delta(grid) < target):
            low = middle
        else:
            high = middle
    return high


def _warnings(
    profile: PrivacyProfile, epsilon: float, delta: float, num_records: int | None
) -> list[str]:
    found = []
    if math.isinf(epsilon):
        found.append(
            "no finite epsilon holds at this delta: nothing is promised. Something was released without noise, or with so little "
            "that slack times e^epsilon exceeds delta, or delta is below what is resolved; choose a larger delta or add noise."
        )
    elif epsilon > 10:
        found.append(
            f"ε = {upper(epsilon)} is above 10: the bound allows an attacker to become all but certain about one "
            "person. Such a promise says little; use more noise, fewer steps or smaller batches."
        )
    elif epsilon > 3:
        found.append(
            f"epsilon = {upper(epsilon)} is above 3: a determined attacker may learn a good deal about one person."
        )
    if num_records is not None and delta * num_records >= 1:
        found.append(
            f"delta = {delta:g} is at least one over the number of records ({num_records:,}): publishing one random "
            "record in the clear would pass. Choose delta well below 1 / number of records; suggest() proposes one."
        )
    elif num_records is None and delta > 1e-3:
        found.append(
            f"delta = {delta:g} is large: it should be well below one over the number of records."
        )
    if profile.slack > 0.01 * delta:
        found.append(
            f"the sampler's finite precision takes {profile.slack:.2g} of total variation, which weighs on delta = {delta:g}."
        )
    return found


def _promise(relation: Relation, epsilon: float, delta: float, noun: str) -> str:
    if math.isinf(epsilon):
        return (
            f"No finite epsilon holds at delta = {delta:g}: the releases promise nothing to anyone."
        )
    factor = upper(math.exp(epsilon)) if epsilon < 700 else "infinity"
    return (
        f"epsilon = {upper(epsilon)} at delta = {delta:g}: {neighbours(relation).act(noun)} changes the odds of anything "
        f"that can be released by a factor of at most e^epsilon = {factor}, apart from events whose probability "
        f"it changes by at most {delta:g}."
    )


def _percent(value: float) -> str:
    return f"{upper(min(100.0, 100 * value))} %"
