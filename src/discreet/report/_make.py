"""From a plan that ran, or from the event of other releases, to the statement."""

import dataclasses
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from dp_accounting.dp_event import DpEvent

from discreet.accounting import PrivacyProfile, Relation, Risk, profile, risk, suggest
from discreet.clipping import AdaptiveClipping, contribution_bound
from discreet.plan import PrivacyPlan
from discreet.report._statement import SEVERAL_RECORDS, ProfilePoint, Statement, relation_words

UNIT = "one record (one row of the table)"
PROFILE_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
PACKAGES = ("discreet", "dp-accounting", "jax", "jaxlib", "numpyro", "numpy", "scipy")
ACCOUNTANT = (
    "ε is an upper bound. discreet's own accountant composes the privacy loss distributions of all steps numerically, rounds "
    "upward, and adds a bound on its rounding errors to δ. ε follows from the sampling scheme, the noise and the number of "
    "steps that were planned, or that ran if they are more."
)
NOT_COVERED = (
    SEVERAL_RECORDS,
    "Choices made by looking at these records without accounting: the model, its columns, bounds or categories, the "
    "settings of the fit, or which of several fits to publish.",
    "Other releases from the same records: their privacy costs add up.",
    "The compiler: in a fit, bounds on sums include their rounding if each record is computed alike beside any others, which is "
    "tested and not proved. A private standardisation has floating-point sums of 32 bits: made-up tables move them beyond C.",
    "Side channels: running time, memory, logs, and anyone with access to the machine.",
    "Error messages and interruptions that depend on the content of the records.",
    "General facts about the population: they can still be learned, and they may concern people whose data was not used.",
)
LAST_BITS = "Last bits of the released numbers: they can tell what floating-point noise was added to."
INTEGERS = (
    "Sums were rounded to a grid and the noise is a discrete Gaussian there, drawn and added in integers; the rounding is in the "
    "noise, and the distance from exact Gaussian noise is in δ."
)
FROM_SYSTEM = (
    "The random bits came from the operating system and were expanded with ChaCha20; nobody can reproduce them."
)
FROM_SEED = (
    "reproducible: not private. A seed was given, so anyone who knows or guesses it can remove the noise. The figures above "
    "are those of the same run with random bits from the operating system."
)


BATCHES_ARE_THE_CALLERS = "The user's own code drew the batches: ε holds only if it drew them as the plan says."


def make_statement(
    plan: PrivacyPlan,
    *,
    delta: float | None = None,
    steps_completed: int,
    reproducible: bool,
    public: Sequence[str] = (),
    notes: Sequence[str] = (),
    released: Sequence[str] = (),
    method: str = "DPSVI",
    user_supplied_batches: bool = False,
    contribution_bound: float | None = None,
) -> Statement:
    """State what a run of a plan spent.

    Guarantee: `epsilon` is an upper bound at `delta` for everything in `released`, under the plan's relation. It is the
    price of the whole horizon max(plan.num_steps, steps_completed): composition of privacy loss distributions is valid
    for a number of steps fixed beforehand, so a run that stopped early gets nothing back.

    Args:
        plan: What ran.
        delta: The δ at which ε is stated, in (0, 1). None: the plan's own target, else the one that
            `accounting.suggest` proposes, and the statement says so.
        steps_completed: Steps that ran; may be fewer or more than planned.
        reproducible: Whether the random bits came from a seed.
        public: Facts treated as public besides the plan's.
        notes: Remarks for the reader.
        released: What left the data, in words. Empty: the noisy sums and what is computed from them.
        method: What ran.
        user_supplied_batches: Whether the caller's code drew the batches, whose law then is an assumption.
        contribution_bound: L2 bound on all that a record adds to a release, where that is more than a gradient
            clipped to C (a loss beside it, or a count), in the first step where C moves. None: the plan's own. The
            noise multiplier is relative to it.

    Returns:
        The statement. An ε that does not exist at some δ (δ smaller than the sampler's slack) is infinite in it.

    Raises:
        ValueError: A delta outside (0, 1), or a negative number of steps.
    """
    if steps_completed < 0:
        raise ValueError(f"steps_completed is {steps_completed}: give the number of steps that ran, 0 or more")
    if delta is not None and not 0 < delta < 1:
        raise ValueError(f"delta is {delta}: give a number between 0 and 1, well below 1 / number of records")
    horizon = max(plan.num_steps, steps_completed)
    paid = plan if horizon == plan.num_steps else dataclasses.replace(plan, num_steps=horizon)
    delta, chosen = _delta(plan, delta)
    profile = paid.profile()
    risk = paid.risk(delta)
    bound = _bound(plan, contribution_bound)
    assumed = ()
    if user_supplied_batches:
        assumed = (
            "How the batches were drawn: the user's own code supplied them. The figures hold only if it drew new "
            f"batches in each step, in secret, as the plan says ({plan.sampling.in_words(plan.num_records)}).",
        )
    return Statement(
        method=method,
        released=(
            *(released or ("The noisy sum of each step, and all that was computed from these sums.",)),
            *(release.in_words() for release in plan.also),
        ),
        delta_chosen=chosen,
        **_figures(profile, risk, reproducible),
        warnings=(*risk.warnings, *([BATCHES_ARE_THE_CALLERS] if user_supplied_batches else [])),
        mechanism=_mechanism_words(plan, bound),
        plan=plan_facts(plan, bound),
        event=str(paid.event()),
        steps_completed=steps_completed,
        horizon=horizon,
        accountant=ACCOUNTANT,
        public=(*_public_facts(plan), *public),
        not_covered=(*assumed, *([] if plan.mechanism.on_grid else [LAST_BITS]), *NOT_COVERED),
        notes=tuple(notes),
    )


def _figures(spent: PrivacyProfile, risk: Risk, reproducible: bool) -> dict[str, Any]:
    """What every statement says of a profile, its meaning and the random bits."""
    deltas = sorted({*PROFILE_DELTAS, risk.delta}, reverse=True)
    return {
        "unit": UNIT,
        "relation": risk.relation.name,
        "relation_in_words": relation_words(risk.relation),
        "epsilon": float(spent.epsilon(risk.delta)),
        "delta": risk.delta,
        "profile": tuple(ProfilePoint(delta=d, epsilon=float(spent.epsilon(d))) for d in deltas),
        "meaning": str(risk),
        "attack_power": risk.true_positive_rates,
        "posterior_beliefs": risk.posterior_beliefs,
        "gaussian_mu": risk.gaussian_mu,
        "versions": versions(),
        "reproducible": reproducible,
        "randomness": FROM_SEED if reproducible else FROM_SYSTEM,
    }


def _delta(plan: PrivacyPlan, asked: float | None) -> tuple[float, str]:
    if asked is not None:
        return float(asked), "asked for"
    if plan.target_delta is not None:
        return float(plan.target_delta), "the plan's target"
    return (
        suggest(num_records=plan.num_records).delta,
        "chosen by default: 1 / (10 × number of records) rounded down to one digit, and 1e-5 at most",
    )


def _bound(plan: PrivacyPlan, given: float | None) -> float:
    return contribution_bound(plan.clipping) if given is None else given


def _mechanism_words(plan: PrivacyPlan, bound: float) -> str:
    besides = "".join(f" Also paid for: {release.in_words()}." for release in plan.also)
    return (
        f"Each step drew a batch ({plan.sampling.in_words(plan.num_records)}). {_clipping_words(plan, bound)} was "
        f"added to every coordinate of the sum. {f'{INTEGERS} ' if plan.mechanism.on_grid else ''}Only these noisy sums left "
        f"the data.{besides}"
    )


def _clipping_words(plan: PrivacyPlan, bound: float) -> str:
    """How contributions were bounded, summed and hidden."""
    rule, noise, added = plan.clipping, f"noise multiplier {plan.noise_multiplier:.6g}", plan.mechanism.words
    if isinstance(rule, AdaptiveClipping):
        least, most = rule.limits
        return (
            f"Each record's gradient was clipped to a Euclidean norm C, which started at {rule.start:g} and followed the "
            f"{rule.quantile:g} quantile of the gradient norms: the number of gradients within C was released in the same sum "
            "and divided by the expected batch size; if it exceeded the quantile, C fell for the next step, otherwise it rose, "
            f"between {least:g} and {most:g}. Everything that a record added (gradient, count, and a clipped loss if there was "
            f"one) had a norm of at most {bound / rule.start:.6g} C; the contributions were summed, and {added} "
            f"{plan.noise_multiplier * bound / rule.start:.6g} C ({noise} × that bound)"
        )
    clipped, scale = f"Each record's contribution was clipped to the Euclidean norm C = {rule.start:g}", "C"
    if bound > rule.start:
        clipped = f"Each record's gradient was clipped to the Euclidean norm C = {rule.start:g}"
        clipped += f" and its loss to an interval, so that together they contribute at most {bound:.6g}"
        scale = "that bound"
    return (
        f"{clipped}; the contributions were summed, and {added} {plan.noise_multiplier * bound:.6g} ({noise} × {scale})"
    )


def plan_facts(plan: PrivacyPlan, contribution_bound: float | None = None) -> dict[str, Any]:
    """The numbers of a plan as plain values for JSON; `contribution_bound` as in `make_statement`."""
    bound, norm, first = _bound(plan, contribution_bound), plan.clipping_norm, ""
    clipping: dict[str, Any] = {}
    if dataclasses.is_dataclass(norm):
        clipping = {"clipping": {"kind": type(norm).__name__, **dataclasses.asdict(norm)}}
    if plan.clipping.adapts:
        first = "first_"
    sampling = plan.sampling
    options = dataclasses.asdict(sampling) if dataclasses.is_dataclass(sampling) else {}
    return {
        "sampling": {"kind": type(sampling).__name__, **options},
        "sampling_rate": float(plan.rate),
        f"{first}clipping_norm": float(plan.clipping.start),
        **clipping,
        "noise_multiplier": float(plan.noise_multiplier),
        f"{first}noise_{plan.mechanism.words.split(' of ')[-1].replace(' ', '_')}": float(
            plan.noise_multiplier * bound
        ),
        "noise": "integers on a grid" if plan.mechanism.on_grid else "floating-point numbers",
        "num_steps": int(plan.num_steps),
        "num_records": int(plan.num_records),
        "slack": float(plan.slack),
        **({"also": [str(release) for release in plan.also]} if plan.also else {}),
    }


def _public_facts(plan: PrivacyPlan) -> tuple[str, ...]:
    count = f"The number of records, N = {plan.num_records}"
    if plan.relation == Relation.ADD_OR_REMOVE_ONE:
        count += " (neighbouring tables differ in it by one; publishing it exactly was not charged)"
    return (
        f"{count}.",
        f"The plan: how batches are drawn, the {'rule for the clipping norm' if plan.clipping.adapts else 'clipping norm'}, "
        "the noise multiplier and the number of steps.",
    )


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
    "its ε, randomised response, composes them and rounds upward. ε follows from the tempering and the bound on a record's "
    "contribution that were used."
)


RELEASE_ACCOUNTANT = (
    "ε is an upper bound, from discreet's own accountant: the privacy profile of the noise, rounded upward. It follows from the "
    "bound on a record's contribution and the noise that were used."
)


def make_release_statement(
    event: DpEvent,
    relation: Relation,
    *,
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
    warnings: Sequence[str] = (),
) -> Statement:
    """State what releases spent that are no fit by a `PrivacyPlan`.

    Guarantee: `epsilon` is an upper bound at `delta` for all `num_releases` of the event together, under `relation`, if
    each is what the event says. `delta` is 0 for an event made of `accounting.pure_event`. `slack` is the total variation
    between what ran and the event, which noise in integers has; where it is 0, last bits are not covered. The other
    arguments are fields of the statement.

    Raises:
        ValueError: An event without sound accounting, or one with no ε at this δ.
    """
    spent = profile(event, relation, slack=slack)
    meaning = risk(spent, delta)
    return Statement(
        method=method,
        released=tuple(released),
        delta_chosen="asked for" if delta else "0: the ε is pure",
        **_figures(spent, meaning, reproducible),
        warnings=(*meaning.warnings, *warnings),
        mechanism=f"{mechanism} {INTEGERS}" if slack else mechanism,
        plan=dict(plan),
        event=str(event),
        steps_completed=num_releases,
        horizon=num_releases,
        accountant=RELEASE_ACCOUNTANT if delta else PURE_ACCOUNTANT,
        public=tuple(public),
        not_covered=(*not_covered, *([] if slack else [LAST_BITS]), *NOT_COVERED),
    )
