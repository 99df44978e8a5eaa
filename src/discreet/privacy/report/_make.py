"""Statements from a plan that ran, or from the event of another release."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from discreet._dp_accounting import DpEvent, LaplaceDpEvent
from discreet.privacy.accounting import (
    BoundedRangeDpEvent,
    PrivacyProfile,
    Relation,
    profile,
    risk,
    suggest,
)
from discreet.privacy.clipping import contribution_bound as _contribution
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.report._facts import RECORD, Figures, ProfilePoint, Statement, Unit
from discreet.privacy.report._words import public_size

SEVERAL_RECORDS = (
    "Several records of one person: the guarantee is for one record and weakens with each further one. Name the column that "
    "identifies persons: a record is then a person."
)
PROFILE_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
PACKAGES = ("discreet", "dp-accounting", "jax", "jaxlib", "numpyro", "numpy", "scipy")
ACCOUNTANT = (
    "ε is an upper bound. discreet's own accountant composes the privacy loss distributions of all steps numerically, rounds "
    "upward, and adds a bound on its rounding errors to δ. ε follows from the sampling scheme, the noise and the number of "
    "steps that were planned, or that ran if they are more."
)
NOT_COVERED = (
    "Choices made by looking at these records without accounting: the model, its columns, bounds or categories, the "
    "settings of the fit, or which of several fits to publish.",
    "Other releases from the same records, such as one that standardised their columns: their privacy costs add up.",
    "The compiler: in a fit, bounds on sums include their rounding if each record is computed alike beside any others, which is "
    "tested and not proved.",
    "Side channels: running time, memory, logs, and anyone with access to the machine.",
    "Error messages and interruptions that depend on the content of the records.",
    "General facts about the population: they can still be learned, and they may concern people whose data was not used.",
)
LAST_BITS = (
    "Last bits of the released numbers: they can tell what floating-point noise was added to."
)
INTEGERS = (
    "Sums were rounded to a grid and the noise is a discrete Gaussian there, drawn and added in integers; the rounding is in the "
    "noise, and the distance from exact Gaussian noise is in δ."
)
LAPLACE_INTEGERS = (
    "Sums were rounded to a grid and the noise is a discrete Laplace variable there, drawn and added in integers; the rounding "
    "is in the noise."
)
CHOSEN = "Scores were rounded to a grid, and the choice made in integers; the rounding is in ε, the distance from its law in δ."
BATCHES_ARE_THE_CALLERS = (
    "The user's own code drew the batches: ε holds only if it drew them as the plan says."
)


def make_statement(
    plan: PrivacyPlan,
    *,
    unit: Unit = RECORD,
    delta: float | None = None,
    steps_completed: int,
    reproducible: bool,
    public: Sequence[str] = (),
    notes: Sequence[str] = (),
    released: Sequence[str] = (),
    method: str = "DPSVI",
    about: str = "",
    user_supplied_batches: bool = False,
    contribution_bound: float | None = None,
) -> Statement:
    """Make the privacy statement of a run of a plan.

    Guarantee: `epsilon` is an upper bound at `delta` for everything in `released`, under the plan's
    relation. It is the cost of the whole horizon max(plan.num_steps, steps_completed): composition
    of privacy loss distributions is valid for a number of steps fixed beforehand, so stopping early
    refunds nothing.

    Args:
        plan: The plan of the run.
        unit: The unit of privacy: what a record is.
        delta: The δ at which ε is stated, in (0, 1). None: the plan's own target, else the one that
            `accounting.suggest` proposes, and the statement says so.
        steps_completed: Steps that ran; may be fewer or more than planned.
        reproducible: True if the random bits came from a seed.
        public: Facts treated as public besides the plan's.
        notes: Remarks for the reader.
        released: The released values, in words. Empty: the noisy sums and their post-processing.
        method: The method.
        about: What was computed, from which table and for whom, in a sentence.
        user_supplied_batches: True if the caller's code drew the batches, whose law then is an
            assumption.
        contribution_bound: L2 bound on a record's contribution to a release, if that includes more
            than a gradient clipped to C (a loss, or a count); that of the first step if C is
            adaptive. None: the plan's own. The noise multiplier is relative to it.

    Returns:
        The statement. An ε that does not exist at some δ (δ smaller than the sampler's slack) is
        infinite in it.

    Raises:
        ValueError: A delta outside (0, 1), or a negative number of steps.
    """
    if steps_completed < 0:
        raise ValueError(
            f"steps_completed is {steps_completed}: give the number of steps that ran, 0 or more"
        )
    if delta is not None and not 0 < delta < 1:
        raise ValueError(
            f"delta is {delta}: give a number between 0 and 1, well below 1 / number of records"
        )
    horizon = max(plan.num_steps, steps_completed)
    paid = plan if horizon == plan.num_steps else plan.lengthened(horizon)
    chosen = "the plan's target" if delta is None else "asked for"
    delta = plan.target_delta if delta is None else delta
    if delta is None:
        delta = suggest(num_records=plan.num_records).delta
        chosen = f"chosen by default: 1 / (10 × number of {unit.noun}s) rounded down to one digit, and 1e-5 at most"
    delta = float(delta)
    clipping = plan.clipping
    bound = _contribution(clipping) if contribution_bound is None else contribution_bound
    count = public_size(unit.noun, plan.num_records, plan.relation)
    assumed = ()
    if user_supplied_batches:
        assumed = (
            "How the batches were drawn: the user's own code supplied them. The figures hold only if it drew new "
            f"batches in each step, in secret, as the plan says ({plan.sampling.in_words(plan.num_records, unit.noun)}).",
        )
    return Statement(
        method=method,
        about=about,
        released=tuple(released)
        or ("The noisy sum of each step, and all that was computed from these sums.",),
        figures=_figures(paid.event(), paid.profile(), delta, chosen, ACCOUNTANT, plan.num_records),
        unit=unit,
        cautions=(BATCHES_ARE_THE_CALLERS,) * user_supplied_batches,
        mechanism=(
            f"Each step drew a batch ({plan.sampler.in_words(plan.num_records, unit.noun)}). "
            f"{clipping.stated(bound, unit.noun)}; the contributions were summed, and {plan.mechanism.words} "
            f"{plan.noise_multiplier * bound / (clipping.start if clipping.adapts else 1.0):.6g}{' C' * clipping.adapts} "
            f"({plan.noise_multiplier:.6g} times that bound){_scheduled(plan)} was added to {plan.mechanism.hidden}."
            f"{f' {INTEGERS}' if plan.mechanism.on_grid else ''}"
        ),
        plan=plan_facts(plan, bound),
        steps_completed=steps_completed,
        horizon=horizon,
        versions=versions(),
        public=(
            f"{count}.",
            f"The plan: how batches are drawn, the {'rule for the clipping norm' if clipping.adapts else 'clipping norm'}, "
            "the noise and the number of steps.",
            *public,
        ),
        not_covered=(*assumed, *_not_covered(unit, exact=plan.mechanism.on_grid)),
        reproducible=reproducible,
        notes=tuple(notes),
    )


def _scheduled(plan: PrivacyPlan) -> str:
    least = min(plan.noise_multipliers) / plan.noise_multiplier
    most = max(plan.noise_multipliers) / plan.noise_multiplier
    return (
        f", times each step's own public factor, between {least:.6g} and {most:.6g},"
        if least != most
        else ""
    )


def _figures(
    event: DpEvent,
    spent: PrivacyProfile,
    delta: float,
    delta_chosen: str,
    accountant: str,
    num_records: int | None = None,
) -> Figures:
    found = risk(spent, delta, num_records=num_records)
    deltas = sorted({*PROFILE_DELTAS, delta}, reverse=True)
    return Figures(
        relation=found.relation.name,
        epsilon=float(found.epsilon),
        delta=delta,
        delta_chosen=delta_chosen,
        profile=tuple(ProfilePoint(delta=d, epsilon=float(spent.epsilon(d))) for d in deltas),
        attack_power=found.true_positive_rates,
        posterior_beliefs=found.posterior_beliefs,
        right_guesses=found.right_guesses,
        gaussian_mu=found.gaussian_mu,
        epsilon_warnings=found.warnings,
        event=str(event),
        accountant=accountant,
    )


def _not_covered(unit: Unit, *, exact: bool) -> tuple[str, ...]:
    """The limits of every statement; `exact` if the noise is of integers."""
    several = (SEVERAL_RECORDS,) * (unit.person is None)
    return (LAST_BITS,) * (not exact) + several + NOT_COVERED


def plan_facts(plan: PrivacyPlan, contribution_bound: float | None = None) -> dict[str, Any]:
    """The numbers of a plan as plain values for JSON; `contribution_bound` as in `make_statement`."""
    rule = plan.clipping
    sampling: Any = plan.sampling  # a dataclass, too
    bound = _contribution(rule) if contribution_bound is None else contribution_bound
    own = {
        name: list(x) if isinstance(x, tuple) else x for name, x in dataclasses.asdict(rule).items()
    }
    first = "first_" * rule.adapts
    size = "standard_deviation" if plan.mechanism.size == "stddev" else plan.mechanism.size
    return {
        "sampling": {"kind": type(sampling).__name__, **dataclasses.asdict(sampling)},
        "sampling_rate": float(plan.rate),
        **({} if plan.rate_schedule is None else {"sampling_rates": list(plan.rates)}),
        f"{first}clipping_norm": float(rule.start),
        **({"clipping": {"kind": type(rule).__name__, **own}} if rule.adapts else {}),
        "noise_multiplier": float(plan.noise_multiplier),
        **(
            {}
            if plan.noise_schedule is None
            else {"noise_multipliers": list(plan.noise_multipliers)}
        ),
        f"{first}noise_{size}": float(plan.noise_multiplier * bound),
        "noise": "integers on a grid" if plan.mechanism.on_grid else "floating-point numbers",
        "num_steps": int(plan.num_steps),
        "num_records": int(plan.num_records),
        "slack": float(plan.slack),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not known"
    return found


PURE_ACCOUNTANT = (
    "ε is an upper bound and pure: it holds at δ = 0. discreet's own accountant treats each release as the worst mechanism with "
    "its ε, randomised response, composes them and rounds upward. ε follows from the tempering and the bound on one "
    "contribution that were used."
)


RELEASE_ACCOUNTANT = (
    "ε is an upper bound, from discreet's own accountant: the privacy profile of the noise, rounded upward. It follows from the "
    "bound on one contribution and the noise that were used."
)


_ON_A_GRID = {BoundedRangeDpEvent: CHOSEN, LaplaceDpEvent: LAPLACE_INTEGERS}


def make_release_statement(
    event: DpEvent,
    relation: Relation,
    *,
    unit: Unit = RECORD,
    delta: float = 0.0,
    slack: float = 0.0,
    method: str,
    mechanism: str,
    plan: Mapping[str, Any],
    num_releases: int,
    reproducible: bool,
    released: Sequence[str],
    public: Sequence[str],
    not_covered: Sequence[str] = (),
    cautions: Sequence[str] = (),
    notes: Sequence[str] = (),
    violations: Sequence[str] = (),
    about: str = "",
    accountant: str = "",
    sums: bool = True,
    exact: bool = False,
) -> Statement:
    """Make the privacy statement of releases other than a fit by a `PrivacyPlan`.

    Guarantee: `epsilon` is an upper bound at `delta` for all `num_releases` of the event together,
    under `relation`, if each has that event. `delta` is 0 for an event made of
    `accounting.pure_event`. `slack` is the total variation between the run and the event, which
    integer noise has; if it is 0, last bits are not covered. `sums` is False where no sum or choice
    of `mechanisms` was released, `exact` True if last bits are covered without slack, as for Laplace
    noise. The other
    arguments are fields of the statement.
    """
    integers = _ON_A_GRID.get(type(event), INTEGERS)
    on_a_grid = slack or (exact and type(event) in _ON_A_GRID)
    spent = profile(event, relation, slack=slack)
    chosen = "the plan's target" if delta else "0: the ε is pure"
    accountant = accountant or (RELEASE_ACCOUNTANT if delta else PURE_ACCOUNTANT)
    return Statement(
        method=method,
        about=about,
        figures=_figures(event, spent, delta, chosen, accountant),
        unit=unit,
        released=tuple(released),
        mechanism=f"{mechanism} {integers}" if on_a_grid and sums else mechanism,
        plan=dict(plan),
        steps_completed=num_releases,
        horizon=num_releases,
        versions=versions(),
        public=tuple(public),
        not_covered=(*not_covered, *_not_covered(unit, exact=exact or bool(slack))),
        reproducible=reproducible,
        violations=tuple(violations),
        cautions=tuple(cautions),
        notes=tuple(notes),
    )
