"""`PrivacyPlan`: the frozen parameters of a private run, which determine its event, and so its epsilon."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from discreet._dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent
from discreet._validate import integer, is_schedule, notebook_html, positive, probability, refuse
from discreet.privacy.accounting import (
    Planned,
    PrivacyProfile,
    Relation,
    Risk,
    calibrate_noise_multiplier,
    calibrate_num_steps,
    composed,
    neighbours,
    profile,
    risk,
    suggest,
    upper,
)
from discreet.privacy.clipping import (
    ADAPTIVE,
    LEAST_NORM,
    MOST_NORM,
    AdaptiveClipping,
    ClippingRule,
    ClippingSchedule,
    FixedClipping,
)
from discreet.privacy.mechanisms import GAUSSIAN, Mechanism
from discreet.privacy.sampling import Sampling

Schedule = Sequence[float] | Callable[[int], float]
ClippingNorm = float | AdaptiveClipping | Schedule
_DELTA_HINT = "It should be well below 1 / num_records, such as 1e-6."
_MOST_NOISE = 1e6
"""Largest noise multiplier. The prover follows factors of C up to 10^7, and a record's joint bound may be larger than C."""
_MOST_SIZE = 1e18
"""Noise, and gradients that are made of it, lie between this and its inverse: their squares are 32-bit numbers."""


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """The privacy parameters of a run. Its event is derived from them and never set by hand.

    All fields are public: known without the data. A plan is immutable and hashable.

    Attributes:
        sampling: The sampling scheme of batches.
        rate_schedule: The public sampling rate of each step, or a function from the number of the
            step, from 0, to its rate; kept as numbers. For `PoissonSampling`, whose own rate is
            then the largest: it sets the room for a batch. Each different pair of rate and noise
            takes the accountant some 50 ms. None: one rate in all steps.
        clipping_norm: The rule for the L2 bound C on one record's gradient: `AdaptiveClipping`, the
            default, whose C follows a private quantile; or a number above 0, which biases the fit
            wherever gradients are longer; or one for each step, or a function from the number of
            the step, from 0, to its C.
        noise_multiplier: Noise standard deviation divided by C, on the sum of clipped
            contributions, above 0 and at most 10^6.
        noise_schedule: Public factors of the noise multiplier, one for each step, or a function
            from the number of the step, from 0, to its factor; kept as numbers. None: 1 in all
            steps.
        num_steps: Number of noisy releases, fixed beforehand, at least 1.
        num_records: Number of records N; public. Under ADD_OR_REMOVE_ONE it is a public figure near
            the true number.
        relation: The neighbouring relation.
        target_delta: The delta the plan was calibrated for; None if built by hand.
        mechanism: The mechanism for the sums, with an L2 bound: the Gaussian mechanism, or one of
            your own. `discreet.mechanisms.FLOAT_GAUSSIAN` has floating-point noise, whose last bits
            no epsilon covers.

    Example:
        >>> from discreet.privacy.sampling import PoissonSampling
        >>> plan = PrivacyPlan(
        ...     sampling=PoissonSampling(rate=0.01), noise_multiplier=1.0, num_steps=1000, num_records=50_000)
        >>> round(plan.epsilon(delta=1e-5), 2)
        1.83
    """

    sampling: Sampling
    rate_schedule: Schedule | None = None
    clipping_norm: ClippingNorm = ADAPTIVE
    noise_multiplier: float
    noise_schedule: Schedule | None = None
    num_steps: int
    num_records: int
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    target_delta: float | None = field(default=None)
    mechanism: Mechanism = GAUSSIAN

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, Sampling):
            raise TypeError(
                f"sampling is {self.sampling!r}, which is not a sampler. Pass PoissonSampling(rate), FixedSizeSampling(size) or "
                "FullBatch(), or a sampler of your own, a subclass of discreet.sampling.Sampling."
            )
        neighbours(self.relation)
        if not isinstance(self.mechanism, Mechanism) or self.mechanism.norm != 2:
            raise TypeError(
                f"mechanism is {self.mechanism!r}; a plan's sums have an L2 bound, and its mechanism is one whose noise is "
                "relative to the L2 norm: discreet.mechanisms.GAUSSIAN, or a subclass of discreet.mechanisms.Mechanism with "
                "norm = 2."
            )
        hint = "It is the public number of records; an empty table cannot be fitted."
        integer("num_records", self.num_records, hint=hint)
        norm = self.clipping_norm
        if isinstance(norm, AdaptiveClipping):
            least, most = norm.limits
        else:
            hint = (
                "It is the L2 bound on one record's contribution. 1.0 is a common choice; discreet.AdaptiveClipping() finds "
                "one while fitting."
            )
            if is_schedule(norm):
                norm = self._of_steps("clipping_norm", norm, hint)
            else:
                norm = float(positive("clipping_norm", norm, hint=hint))
            object.__setattr__(self, "clipping_norm", norm)
            least, most = (f(norm) if isinstance(norm, tuple) else norm for f in (min, max))
            if not LEAST_NORM <= least <= most <= MOST_NORM:
                raise ValueError(
                    f"clipping_norm is {norm!r}; squares of 32-bit numbers neither vanish nor overflow for norms between "
                    f"{LEAST_NORM:g} and {MOST_NORM:g}. Scale the loss, or choose a C near the length of one record's gradient."
                )
        self.sampling.check(self.num_records, self.relation)
        hint = (
            "Leave num_steps out of PrivacyPlan.calibrate to learn how many steps epsilon affords."
        )
        integer("num_steps", self.num_steps, hint=hint)
        if self.rate_schedule is not None:
            hint = f"It is a step's sampling rate, at most that of {self.sampling!r}."
            rates = self._of_steps("rate_schedule", self.rate_schedule, hint)
            object.__setattr__(self, "rate_schedule", rates)
            self.sampling.thinned(rates)
        hint = (
            "It is the noise's standard deviation divided by clipping_norm; PrivacyPlan.calibrate(epsilon=..., delta=...) finds "
            "it for you."
        )
        noise = positive("noise_multiplier", self.noise_multiplier, hint=hint)
        if self.noise_schedule is not None:
            hint = "It is a step's factor of noise_multiplier, such as 0.5 for half of the noise."
            object.__setattr__(
                self, "noise_schedule", self._of_steps("noise_schedule", self.noise_schedule, hint)
            )
        faintest = noise * min(self._factors)
        noise *= max(self._factors)
        if noise > _MOST_NOISE:
            raise ValueError(
                f"noise_multiplier is {noise:,.6g}; privacy is proved for noise of at most {_MOST_NOISE:,.0f} times "
                "clipping_norm, and more than that hides what millions of records have in common. Raise epsilon or delta, or "
                "take fewer steps or a smaller sampling rate."
            )
        if noise * most / min(self.rates) > _MOST_SIZE or faintest * least < 1 / _MOST_SIZE:
            raise ValueError(
                f"noise_multiplier is {noise!r}, and C between {least:g} and {most:g}: noise of standard deviation "
                f"noise_multiplier * C, or a gradient made of it, is too small or too large for 32-bit arithmetic. {hint}"
            )
        if self.target_delta is not None:
            probability("delta", self.target_delta, hint=_DELTA_HINT)
        # NumPy's numbers become Python's, so that a plan hashes, prints and pickles alike wherever
        # they came from.
        for name, kind in (
            ("num_steps", int),
            ("num_records", int),
            ("noise_multiplier", float),
        ):
            object.__setattr__(self, name, kind(getattr(self, name)))

    def _of_steps(self, name: str, given: Any, hint: str) -> tuple[float, ...]:
        """The numbers of a schedule, one for each step."""
        steps = integer(
            "num_steps", self.num_steps, hint="A schedule has one number for each step."
        )
        if not is_schedule(given):
            words = "a list of numbers, one for each step, or a function from the number of the step, from 0, to its number"
            refuse(name, given, words, hint)
        found = [given(step) for step in range(steps)] if callable(given) else list(given)
        if len(found) != steps:
            raise ValueError(
                f"{name} has {len(found)} numbers for {steps} steps: give one for each step, or a function from the number of "
                "the step, from 0, to its number."
            )
        return tuple(
            float(positive(f"{name}, step {i}", x, hint=hint)) for i, x in enumerate(found)
        )

    @property
    def _factors(self) -> tuple[float, ...]:
        return self.noise_schedule if isinstance(self.noise_schedule, tuple) else (1.0,)

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """The noise multiplier of each step; a single one where it is that of all steps."""
        return tuple(self.noise_multiplier * factor for factor in self._factors)

    @property
    def usual_noise(self) -> float:
        """The root mean square of the noise multipliers, each as if its step's gradient were one at the rate `rate`."""
        noise = np.multiply(self.noise_multipliers, self.rate / np.array(self.rates))
        return (
            float(math.hypot(*noise)) / math.sqrt(noise.size)
            if noise.size > 1
            else self.noise_multiplier
        )

    def lengthened(self, num_steps: int) -> Self:
        """The plan with more steps; those that it did not plan have the least noise and the largest rate."""
        more = num_steps - self.num_steps
        factors = self.noise_schedule
        norm = self.clipping_norm
        factors = factors + (min(factors),) * more if isinstance(factors, tuple) else factors
        norm = norm + norm[-1:] * more if isinstance(norm, tuple) else norm
        rates = self.rate_schedule
        rates = rates + (max(rates),) * more if isinstance(rates, tuple) else rates
        of_steps: dict[str, Any] = {
            "noise_schedule": factors,
            "rate_schedule": rates,
            "clipping_norm": norm,
        }
        return dataclasses.replace(self, num_steps=num_steps, **of_steps)

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float | None = None,
        delta: float,
        num_records: int,
        num_steps: int | None = None,
        noise_multiplier: float | None = None,
        noise_schedule: Schedule | None = None,
        sampling: Sampling,
        rate_schedule: Schedule | None = None,
        clipping_norm: ClippingNorm = ADAPTIVE,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
        shared_with: Sequence[Planned] = (),
        mechanism: Mechanism = GAUSSIAN,
    ) -> Self:
        """Solve for the omitted one of epsilon, num_steps and noise_multiplier.

        Guarantee: the epsilon of the plan and those in `shared_with` together, by
        `accounting.composed`, is at most `epsilon` at `delta`, and for an open noise multiplier at
        least 0.999 of it.

        Args:
            epsilon: Target; without one, the plan is built as given and `plan.epsilon(delta)`
                computes its cost.
            delta: Target, above 0 and below 1, and best well below 1 / num_records.
            num_records: As in the plan.
            num_steps: As in the plan; by default the most steps that epsilon permits.
            noise_multiplier: As in the plan; by default the least noise that epsilon needs.
            noise_schedule: As in the plan; `num_steps` is needed with it.
            sampling: As in the plan.
            rate_schedule: As in the plan; `num_steps` is needed with it.
            clipping_norm: As in the plan.
            relation: As in the plan.
            shared_with: Plans of other releases from the same records, such as counts before
                the fit: epsilon is the total. The returned plan does not include them; each
                is released, stated and debited by itself.
            mechanism: As in the plan.

        Returns:
            The plan, with `target_delta` set to `delta`.

        Raises:
            ValueError: Not exactly one of the three is open, an argument is out of range, or the
                target is infeasible.
        """
        probability("delta", delta, hint=_DELTA_HINT)
        given = {"epsilon": epsilon, "num_steps": num_steps, "noise_multiplier": noise_multiplier}
        still_open = [name for name, value in given.items() if value is None]
        if len(still_open) != 1:
            raise ValueError(
                f"calibrate solves for one of epsilon, num_steps and noise_multiplier, but {len(still_open)} of them are left "
                f"open{': ' + ', '.join(still_open) if still_open else ''}. Give two and omit the one you want."
            )
        scheduled = (
            noise_schedule is not None or rate_schedule is not None or is_schedule(clipping_norm)
        )
        if num_steps is None and scheduled:
            raise ValueError("A schedule has a number for each step: give num_steps, too.")
        # With 1 for what is open, so that all else is checked.
        plan = cls(
            sampling=sampling,
            rate_schedule=rate_schedule,
            clipping_norm=clipping_norm,
            noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
            noise_schedule=noise_schedule,
            num_steps=1 if num_steps is None else num_steps,
            num_records=num_records,
            relation=relation,
            target_delta=delta,
            mechanism=mechanism,
        )
        if epsilon is None:
            return plan
        shared = []
        slack = 0.0
        if shared_with:
            others = composed(*shared_with)
            shared = [others.event]
            slack = others.slack
            if others.relation is not relation:
                raise ValueError(
                    "The plans in shared_with are under another relation: make all for the same one."
                )
            if (spent := others.epsilon(delta)) >= epsilon:
                raise ValueError(
                    f"epsilon={epsilon:g} leaves nothing for the steps: the plans in shared_with cost {spent:.4g} at "
                    f"delta={delta:g}. Give them more noise, or raise epsilon."
                )

        goal: Any = {"epsilon": epsilon, "delta": delta, "relation": relation}
        if noise_multiplier is None:
            noise = calibrate_noise_multiplier(
                lambda noise: ComposedDpEvent([plan._event_of(noise, plan.num_steps), *shared]),
                slack=plan.slack + slack,
                **goal,
            )
            return dataclasses.replace(plan, noise_multiplier=noise)
        steps = calibrate_num_steps(
            lambda steps: ComposedDpEvent([plan._event_of(plan.noise_multiplier, steps), *shared]),
            slack_per_step=plan.slack,
            slack=slack,
            **goal,
        )
        return dataclasses.replace(plan, num_steps=steps)

    @property
    def rate(self) -> float:
        """Public sampling rate q: the probability that a record enters a batch; the largest that a step may have."""
        return self.sampling.rate_for(self.num_records)

    @property
    def rates(self) -> tuple[float, ...]:
        """The sampling rate of each step; a single one where it is that of all steps."""
        return self.rate_schedule if isinstance(self.rate_schedule, tuple) else (self.rate,)

    @property
    def sampler(self) -> Sampling:
        """The sampler of all steps: `sampling`, at the rates of `rate_schedule`."""
        return self.sampling if self.rate_schedule is None else self.sampling.thinned(self.rates)

    @property
    def clipping(self) -> ClippingRule:
        """The clipping rule of `clipping_norm`, with C of the first step as `start`."""
        rule = self.clipping_norm
        if isinstance(rule, tuple):
            return ClippingSchedule(rule)
        if not isinstance(rule, AdaptiveClipping):
            return FixedClipping(rule)  # pyright: ignore[reportArgumentType]
        return rule.for_plan(self.usual_noise, self.rate, self.num_records, self.num_steps)

    def check_size(self, num_records: int) -> None:
        """Refuse a table of another length than planned, where that is public, or of so much less that rows are not shuffled.

        Raises:
            ValueError: One of these.
        """
        neighbours(self.relation).check_size(num_records, self.num_records)
        # True of twice the records implies true of these, and of one more or less.
        if self.sampling.shuffled(self.num_records) and not self.sampling.shuffled(2 * num_records):
            raise ValueError(
                f"The plan is for {self.num_records} records, and the table has so few that one coin per record is drawn "
                "instead. Plan with a number of records that is about right; a public guess is enough."
            )

    @property
    def slack(self) -> float:
        """Total variation between the run and `event`, from samplers and noise, over all steps."""
        return self.num_steps * (
            self.sampler.slack_per_step(self.num_records) + self.mechanism.slack
        )

    def event(self) -> DpEvent:
        """The event of the steps, derived from sampler, noise and number of steps."""
        return self._event_of(self.noise_multiplier, self.num_steps)

    def _event_of(self, noise_multiplier: float, num_steps: int) -> DpEvent:
        counts: dict[tuple[float, float], int] = {(1.0, self.rate): num_steps}
        if self.noise_schedule is not None or self.rate_schedule is not None:
            each = [x * (num_steps // len(x)) for x in (self._factors, self.rates)]
            counts = Counter(zip(*each, strict=True))
        steps = []
        for (factor, rate), count in counts.items():
            noise = self.mechanism.event(noise_multiplier * factor)
            sampler = self.sampling if self.rate_schedule is None else self.sampling.thinned([rate])
            step = sampler.step_event(noise, num_records=self.num_records, relation=self.relation)
            steps.append(SelfComposedDpEvent(step, count))
        return steps[0] if len(steps) == 1 else ComposedDpEvent(steps)

    def profile(self) -> PrivacyProfile:
        """The plan's privacy profile, computed at the first call."""
        return self._profile

    @cached_property
    def _profile(self) -> PrivacyProfile:
        return profile(self.event(), self.relation, slack=min(1.0, self.slack))

    def epsilon(self, delta: float) -> float:
        """An upper bound on epsilon at `delta` of the whole plan; infinity where unattainable."""
        return self.profile().epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """An upper bound on delta at `epsilon` of the whole plan."""
        return float(self.profile().delta(epsilon))

    def risk(self, delta: float | None = None) -> Risk:
        """The plan's risk for one person, as numbers; `delta` as in `explain`."""
        return risk(self.profile(), self._stated_delta(delta), num_records=self.num_records)

    def __repr__(self) -> str:
        """The fields, with the relation in words."""
        values = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        values["relation"] = neighbours(self.relation).name("record")
        return f"PrivacyPlan({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def _repr_html_(self) -> str:
        delta = self._stated_delta(None)
        return notebook_html(
            f"Plan: ε = {upper(self.epsilon(delta))} at δ = {delta:g}", self.explain(delta)
        )

    def explain(self, delta: float | None = None) -> str:
        """Explain the plan, its cost, and the risk for one person in plain words.

        Args:
            delta: The delta at which to state epsilon; by default `target_delta`, else the proposal
                of `suggest`.

        Returns:
            A text of some twenty lines. It depends on public facts only.
        """
        chosen = self._stated_delta(delta)
        known = "the rule for C" if self.clipping.adapts else "C"
        mean = sum(self.rates) / len(self.rates)
        rate = "mean sampling rate" if len(self.rates) > 1 else "sampling rate"
        lines = [
            f"{self.num_steps:,} steps, each on a batch of the {self.num_records:,} records: "
            f"{self.sampler.in_words(self.num_records)}. The {rate} is q = {mean:.4g}, and a batch holds "
            f"{mean * self.num_records:,.4g} records on average.",
            f"{self.clipping.in_words(self.noise_multiplier, self.rate * self.num_records)}; the sum over the batch gets "
            f"{self.mechanism.words} {self._noise_in_words()}.",
            "",
            str(self.risk(chosen)),
            "",
            f"Public, that is known without the data: the number of records, q, {known}, the noise and "
            "the number of steps. The price is that of all the steps, also if the run is stopped early.",
        ]
        if min(self.rates) == 1 and self.num_steps > 1:
            lines.append(
                "Every step reads every record, so nothing is gained by sampling. A smaller sampling rate may buy more steps."
            )
        return "\n".join(lines)

    def _noise_in_words(self) -> str:
        clipping = self.clipping
        near = neighbours(self.relation)
        sensitivity = "C" if near.distance == 1 else f"{near.distance:g}C, {near.name('record')}"
        moves = f"one person moves the sum by up to {sensitivity}"
        # Where gradients are counted, the multiplier is relative to gradient and count together.
        least = min(self.noise_multipliers)
        most = max(self.noise_multipliers)
        if least < most:
            return f"of {least:.4g} to {most:.4g} times C and count together, by the plan's schedule ({moves})"
        noise = least / math.sqrt(1 - clipping.count_share)
        if clipping.adapts:
            return f"{noise:.4g} C, which moves with C ({moves})"
        return f"{noise * clipping.start:.4g} ({noise:.4g} C; {moves})"

    def _stated_delta(self, delta: float | None) -> float:
        if delta is not None:
            probability("delta", delta, hint=_DELTA_HINT)
            return delta
        return (
            self.target_delta
            if self.target_delta is not None
            else suggest(num_records=self.num_records).delta
        )
