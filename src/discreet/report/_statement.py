"""The privacy statement: facts, conversion to JSON and back, a text for people; built from a plan or another event."""

import dataclasses
import importlib.metadata
import json
import math
import platform
import re
import textwrap
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from dp_accounting.dp_event import DpEvent

from discreet._validate import integer, is_integer, is_real, notebook_html, refuse
from discreet.accounting import PrivacyProfile, Relation, Risk, profile, risk, suggest, upper
from discreet.clipping import contribution_bound
from discreet.plan import PrivacyPlan

WIDTH = 88


def paragraph(text: str) -> str:
    """Wrapped prose."""
    return textwrap.fill(text, WIDTH)


def wrapped(text: str) -> str:
    """Wrap each line separately, with its indentation."""
    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2 * line.startswith(" ")))
        for line in text.splitlines()
    )


def bullets(items: tuple[str, ...] | list[str]) -> str:
    """One wrapped point a line."""
    return "\n".join(
        textwrap.fill(sentence(item), WIDTH, initial_indent="  - ", subsequent_indent="    ") for item in items
    )


def sentence(text: str) -> str:
    """Capitalize a text and add a full stop.

    >>> sentence("the bounds"), sentence("Done.")
    ('The bounds.', 'Done.')
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def relation_words(relation: Relation, noun: str = "record") -> str:
    """Describe the neighbouring tables; `noun` is the unit of privacy, "record" or "person"."""
    if relation == Relation.REPLACE_ONE:
        what, whose = (
            ("the content of one record", "that record says")
            if noun == "record"
            else ("the rows of one person", "these rows say")
        )
        return (
            f"The guarantee compares two tables with the same number of {noun}s that differ in {what}. The results must look "
            f"almost the same for both. Whether a given person is in the table is not hidden; what {whose} is."
        )
    there = (
        "present in one, absent in the other" if noun == "record" else "all of their rows are in one, none in the other"
    )
    return (
        f"The guarantee compares two tables that differ by one {noun}: {there}. The results must look almost the same for both. "
        "Against a change of content the protection is weaker: a change is a removal and an addition, so twice this ε, and δ "
        "times 1 + e^ε."
    )


def _headline(statement: "Statement") -> str:
    if statement.violations:
        return "NOT PRIVATE AS RUN: see 'What broke the guarantee'."
    if statement.reproducible:
        return "NOT PRIVATE AS RUN: the random bits can be repeated (a seed was given)."
    if not math.isfinite(statement.epsilon):
        return f"NO GUARANTEE at δ = {statement.delta:g}."
    return f"ε = {upper(statement.epsilon)} at δ = {statement.delta:g}, for {statement.unit}."


_KINDS = {
    "PoissonSampling": "Poisson sampling",
    "FixedSizeSampling": "fixed-size batches",
    "FullBatch": "all records in each batch",
    "AdaptiveClipping": "adaptive",
}


_NAMES = {
    "num_steps": "steps",
    "num_records": "{}s (public)",
    "slack": "distance of the random bits from exact ones (in δ)",
    "also": "also covered",
    "noise_multiplier": "noise, in units of the bound on a {}",
}


def fact_name(name: str, noun: str = "record") -> str:
    """The name of a number of the plan in texts, where the unit of privacy is a record or a person.

    >>> fact_name("num_steps"), fact_name("noise_multiplier"), fact_name("num_records", "person")
    ('steps', 'noise, in units of the bound on a record', 'persons (public)')
    """
    return _NAMES.get(name, str(name).replace("_", " ")).format(noun)


def value_words(value: Any) -> str:
    """A value of the plan, in words.

    >>> value_words({"kind": "PoissonSampling", "rate": 0.1}), value_words(32_561)
    ('Poisson sampling, rate 0.1', '32,561')
    """
    if isinstance(value, Mapping):
        kind = [_KINDS.get(str(value["kind"]), str(value["kind"]))] if "kind" in value else []
        rest = (
            f"{str(name).replace('_', ' ')} {value_words(item)}"
            for name, item in value.items()
            if item is not None and name != "kind"
        )
        return ", ".join([*kind, *rest])
    if isinstance(value, list | tuple):
        return ", ".join(map(value_words, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def steps_words(statement: "Statement") -> str:
    """Describe the numbers of releases made and accounted for."""
    if statement.steps_completed < statement.horizon:
        return (
            f"{statement.steps_completed} of {statement.horizon} releases were made. The budget of all {statement.horizon} is "
            "spent: the accounting is valid for a number of releases fixed beforehand, so stopping early gives nothing back."
        )
    if statement.steps_completed == 1:
        return "One release was made, and ε covers it."
    return f"{statement.steps_completed:,} releases were made, and ε covers all of them."


def statement_text(statement: "Statement") -> str:
    """The whole statement, wrapped to 88 columns."""
    versions = ", ".join(f"{name} {version}" for name, version in statement.versions.items())
    kept = statement.is_private
    sections = [
        ("What broke the guarantee", bullets(statement.violations)),
        ("Use", paragraph(use_words(statement))),
        (
            "What was protected" if kept else "What should have been protected",
            paragraph(f"{statement.unit[:1].upper()}{statement.unit[1:]}. {statement.relation_in_words}"),
        ),
        ("What it means" if kept else "What it would have meant", wrapped(statement.meaning)),
        ("What left the data", bullets(statement.released)),
        ("What was done", paragraph(f"{statement.mechanism} {steps_words(statement)}")),
        (
            "Plan",
            "\n".join(f"  {fact_name(name, statement.noun)}: {value_words(x)}" for name, x in statement.plan.items()),
        ),
        (
            f"Other pairs of δ and ε that {'hold' if kept else 'would have held'}",
            "\n".join(f"  δ = {point.delta:<8g} ε = {upper(point.epsilon)}" for point in statement.profile),
        ),
        ("How ε was computed", paragraph(f"{statement.accountant} δ was {statement.delta_chosen}. {versions}.")),
        ("What was treated as public", bullets(statement.public)),
        ("Randomness", paragraph(statement.randomness)),
        ("What it does not cover", bullets(statement.not_covered)),
        ("Notes", bullets(statement.notes)),
    ]
    title = f"Privacy statement: {statement.method}"
    parts = [f"{title}\n{'=' * len(title)}", paragraph(_headline(statement))]
    parts += [paragraph(statement.about)] * bool(statement.about)
    parts += [f"{heading}\n{'-' * len(heading)}\n{body}" for heading, body in sections if body]
    return "\n\n".join(parts) + "\n"


COEFFICIENTS, PREDICTION, NOT_USABLE = "for its coefficients", "for prediction", "not usable"
"""Verdicts on the use of a result. The first includes the second."""


def use_words(statement: "Statement") -> str:
    """The verdict on the result's use and its reason, in a sentence; empty where there is none."""
    return f"{sentence(statement.use).rstrip('.')}: {sentence(statement.use_reason)}" if statement.use else ""


FORMAT = "discreet privacy statement, version 1"
SEVERAL_RECORDS = (
    "Several records of one person: the guarantee is for one record and weakens with each further one. Name the column that "
    "identifies persons: a record is then a person."
)


DID_NOT_COUNT = "records did not count:"
"""Part of the warning that the fit is that of fewer records, which is no objection to the guarantee."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfilePoint:
    """One point of the privacy profile: the guarantee holds with this ε and this δ together.

    Attributes:
        delta: Probability-like, in [0, 1).
        epsilon: Upper bound; infinite where no ε can be had at this δ.
    """

    delta: float
    epsilon: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statement:
    """The privacy statement of a computation, in numbers and words for publication.

    Every number is public: it follows from the plan and never from the records. `str(statement)` is a text for people,
    `statement.to_json()` the same for programs. Built by `make_statement`.

    Attributes:
        method: The method, for example "DPSVI".
        released: The released values, in words.
        unit: The unit of privacy.
        relation: Name of the relation between neighbouring tables, for example "ADD_OR_REMOVE_ONE".
        relation_in_words: The relation in words.
        epsilon: Upper bound on ε at `delta`, for the whole horizon of the plan.
        delta: The δ at which `epsilon` holds; 0 for a pure ε.
        delta_chosen: The origin of δ.
        profile: Other valid (δ, ε) pairs.
        meaning: The meaning for one person, in words.
        attack_power: Pairs (false-positive rate, largest true-positive rate) of any test for one person's record.
        posterior_beliefs: Pairs (belief before, largest belief after seeing everything), except with probability `delta`.
        gaussian_mu: The least μ for which μ-Gaussian privacy holds down to `delta`.
        warnings: Objections of a careful reader.
        mechanism: The mechanism, in words.
        plan: The numbers of the plan.
        event: The accounted event, as dp_accounting writes it.
        steps_completed: Steps that ran.
        horizon: Steps accounted for: the plan's, or those that ran if they are more.
        accountant: The accounting method of ε.
        versions: Versions of the software.
        public: Facts treated as public.
        reproducible: True if the random bits can be reproduced; then nothing here is private.
        randomness: The source of the random bits, in words.
        not_covered: Limits of the guarantee.
        violations: Actions that void the guarantee, if any.
        notes: Further remarks.
        use: What the result may be used for, judged from releases and public facts: `COEFFICIENTS`, `PREDICTION`,
            `NOT_USABLE`, or empty where it is not judged.
        use_reason: The one reason, in a sentence without its full stop.
        about: What was computed, from which table and for whom, in a sentence.
    """

    method: str
    released: tuple[str, ...]
    unit: str
    relation: str
    relation_in_words: str
    epsilon: float
    delta: float
    delta_chosen: str
    profile: tuple[ProfilePoint, ...]
    meaning: str
    attack_power: tuple[tuple[float, float], ...]
    posterior_beliefs: tuple[tuple[float, float], ...]
    gaussian_mu: float
    warnings: tuple[str, ...]
    mechanism: str
    plan: Mapping[str, Any]
    event: str
    steps_completed: int
    horizon: int
    accountant: str
    versions: Mapping[str, str]
    public: tuple[str, ...]
    reproducible: bool
    randomness: str
    not_covered: tuple[str, ...]
    violations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    use: str = ""
    use_reason: str = ""
    about: str = ""

    @property
    def is_private(self) -> bool:
        """True if the guarantee holds: secret random bits, finite ε, and no violation."""
        return not self.reproducible and not self.violations and math.isfinite(self.epsilon)

    @property
    def protects_rows(self) -> bool:
        """True if a row is protected, and nothing says that no person has several."""
        return self.unit == UNIT and EACH_ROW_A_PERSON not in self.public

    @property
    def privacy_warnings(self) -> tuple[str, ...]:
        """The warnings that are about the guarantee, not about the data."""
        return tuple(warning for warning in self.warnings if DID_NOT_COUNT not in warning)

    @property
    def brief(self) -> str:
        """The cost in a few words, for a `repr`."""
        return f"epsilon={upper(self.epsilon)} at delta={self.delta:.3g}" + ", NOT PRIVATE" * (not self.is_private)

    @property
    def noun(self) -> str:
        """The unit in one word: "record" or "person"."""
        return self.unit.removeprefix("one ").split()[0]

    @property
    def short_unit(self) -> str:
        """The unit in a few words: "one record", "one person" or "one person with up to 5 rows"."""
        return self.unit.split("(")[0].strip()

    def for_person(self, column: str | None, max_rows: int = 1) -> "Statement":
        """The same statement for data in which each person is one record.

        Tables that differ by all rows of one person then differ by one record, so a guarantee for one record protects the
        person.

        Args:
            column: Name of the column that identifies persons; None: each row is a record, and the statement as it is.
            max_rows: Largest number of rows used per person.

        Raises:
            ValueError: No name, no number of rows, or several rows without a person column.
        """
        relation, max_rows = Relation[self.relation], integer("max_rows", max_rows)
        if column is None:
            if max_rows > 1:
                raise ValueError(
                    f"max_rows is {max_rows}, and person is not named: name the column that identifies persons, as in "
                    "person='patient'; without it each record is one row, and max_rows is 1."
                )
            return self
        if not isinstance(column, str) or not column.strip():
            refuse("person", column, "the name of the column that identifies persons", "Leave it out if there is none.")
        unit = f"one person (all rows with the same '{column}', of which one is used)"
        if max_rows > 1:
            used = f"all rows with the same '{column}', of which {max_rows} at most are used"
            unit = f"one person with up to {max_rows} rows ({used})"
        return dataclasses.replace(
            self,
            unit=unit,
            relation_in_words=relation_words(relation, "person"),
            meaning=re.sub(r"\brecord\b", "person", self.meaning),
            mechanism=re.sub(r"\brecord(s?)\b", r"person\1", self.mechanism),
            delta_chosen=self.delta_chosen.replace("number of records", "number of persons"),
            about=re.sub(r"\brecord(s?)\b", r"person\1", self.about),
            public=tuple(re.sub("^([Tt]he number of) records, N", r"\1 persons, N", fact) for fact in self.public),
            not_covered=tuple(limit for limit in self.not_covered if limit != SEVERAL_RECORDS),
        )

    def with_public(self, *facts: str) -> "Statement":
        """The same statement with more facts named as public."""
        return dataclasses.replace(self, public=(*self.public, *facts))

    def with_notes(self, *notes: str) -> "Statement":
        """The same statement with further remarks."""
        return dataclasses.replace(self, notes=(*self.notes, *notes))

    def with_warnings(self, *warnings: str) -> "Statement":
        """The same statement with further warnings."""
        return dataclasses.replace(self, warnings=(*self.warnings, *warnings))

    def with_violations(self, *violations: str) -> "Statement":
        """The same statement with violations of the guarantee outside of the private computation."""
        return dataclasses.replace(self, violations=(*self.violations, *violations))

    def with_use(self, use: str, reason: str) -> "Statement":
        """The same statement with a verdict on the use of the result."""
        return dataclasses.replace(self, use=use, use_reason=reason)

    def with_about(self, about: str) -> "Statement":
        """The same statement with what was computed, from which table and for whom, in a sentence."""
        return dataclasses.replace(self, about=about)

    def as_part_of(self, whole: "Statement") -> "Statement":
        """The same statement with the figures of a larger computation, of which this is the selected part.

        ε, δ, the event and all derived figures are the whole's, so that no figure understates the spending. Mechanism and plan
        are this part's, after the description of the whole.
        """
        figures = (
            "epsilon delta delta_chosen profile meaning attack_power posterior_beliefs gaussian_mu event accountant"
        )
        about_epsilon = ("epsilon", "delta", "no finite", "the sampler")
        return dataclasses.replace(
            self,
            **{name: getattr(whole, name) for name in figures.split()},
            warnings=(*whole.warnings, *(x for x in self.warnings if not x.startswith(about_epsilon))),
            mechanism=f"{whole.mechanism} What this run did: {self.mechanism}",
            public=tuple(dict.fromkeys((*whole.public, *self.public))),
            not_covered=tuple(dict.fromkeys((*whole.not_covered, *self.not_covered))),
            violations=tuple(dict.fromkeys((*whole.violations, *self.violations))),
            reproducible=whole.reproducible or self.reproducible,
            randomness=whole.randomness if whole.reproducible else self.randomness,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and finite numbers; never NaN or infinity.

        A number that does not exist (an infinite ε) is None, with the reason under the key with `_reason` appended.
        """
        content: dict[str, Any] = {"format": FORMAT, "is_private": self.is_private}
        for field in dataclasses.fields(self):
            content[field.name] = getattr(self, field.name)
        content["profile"] = [dataclasses.asdict(point) for point in self.profile]
        for name, parts in _PAIRS.items():
            content[name] = [dict(zip(parts, pair, strict=True)) for pair in content[name]]
        return _finite(content)

    def to_json(self) -> str:
        """`to_dict` as indented, strict JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def __str__(self) -> str:
        return statement_text(self)

    def _repr_html_(self) -> str:
        headline = _headline(self)
        return notebook_html(headline, str(self), wrong=not headline.startswith("ε"))


def _finite(value: Any) -> Any:
    """Containers copied to plain ones; a number without a value becomes None beside its reason."""
    if isinstance(value, Mapping):
        plain: dict[str, Any] = {}
        for key, item in value.items():
            plain[str(key)] = _finite(item)
            if isinstance(item, float) and not math.isfinite(item):
                infinite = "infinite: no finite value holds at this delta"
                plain[f"{key}_reason"] = "not a number" if math.isnan(item) else infinite
        return plain
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if isinstance(value, int | str) or value is None else str(value)


_PAIRS = {
    "attack_power": ("false_positive_rate", "largest_true_positive_rate"),
    "posterior_beliefs": ("before", "largest_after"),
}


def statement_from_dict(content: Any) -> Statement:
    """Read the statement from the result of `Statement.to_dict` or `to_json`; a missing number is infinite.

    A file is as trustworthy as its source: this checks that it is complete, not that it is true. Raises a ValueError if it is
    not a statement, of another version, incomplete, or contradictory.
    """
    if not isinstance(content, Mapping) or not str(content.get("format", "")).startswith("discreet privacy statement"):
        raise ValueError("it is not a discreet privacy statement: give the statement.json that a fit wrote")
    if content["format"] != FORMAT:
        raise ValueError(
            f"it is a {content['format']}, and this discreet reads {FORMAT!r}: use the version that wrote it"
        )
    names = {field.name for field in dataclasses.fields(Statement)}
    if lacking := sorted(names - set(content)):
        raise ValueError(f"the statement lacks {', '.join(lacking)}: give the statement.json as the fit wrote it")
    try:
        statement = Statement(**{name: _parsed(name, content[name]) for name in names})
    except (TypeError, KeyError):
        raise ValueError(
            "the statement has a value of the wrong kind: give the statement.json as the fit wrote it"
        ) from None
    if statement.is_private is not content.get("is_private"):
        raise ValueError("the statement contradicts itself in is_private: give the statement.json as the fit wrote it")
    return statement


def _parsed(name: str, value: Any) -> Any:
    """A field's value from JSON, by the field's type."""
    if name in _PAIRS:
        first, second = _PAIRS[name]
        return tuple((_share(pair[first]), _share(pair[second])) for pair in _of(list, value))
    if name == "profile":
        return tuple(ProfilePoint(delta=_share(x["delta"]), epsilon=_of(float, x["epsilon"])) for x in _of(list, value))
    return _share(value) if name == "delta" else _of(typing.get_type_hints(Statement)[name], value)


def _of(kind: Any, value: Any) -> Any:
    """A value of this type from JSON: numbers are at least 0, and a float that is None was infinite; else a TypeError."""
    if kind is float and value is None:
        return math.inf
    container = typing.get_origin(kind) or kind
    known = is_real if kind is float else is_integer if kind is int else None
    if known is None:
        if not isinstance(value, {tuple: list, Mapping: dict}.get(container, container)):
            raise TypeError
        return tuple(_of(typing.get_args(kind)[0], item) for item in value) if container is tuple else value
    if not known(value) or not value >= 0:
        raise TypeError
    return kind(value)


def _share(value: Any) -> float:
    if value is None or not _of(float, value) <= 1:
        raise TypeError
    return float(value)


# --- from a plan that ran, or from the event of other releases, to the statement ---------


EACH_ROW_A_PERSON = "No person has two rows in the table, as the schema says."
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
    "tested and not proved.",
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
    """Make the privacy statement of a run of a plan.

    Guarantee: `epsilon` is an upper bound at `delta` for everything in `released`, under the plan's relation. It is the
    cost of the whole horizon max(plan.num_steps, steps_completed): composition of privacy loss distributions is valid
    for a number of steps fixed beforehand, so stopping early refunds nothing.

    Args:
        plan: The plan of the run.
        delta: The δ at which ε is stated, in (0, 1). None: the plan's own target, else the one that
            `accounting.suggest` proposes, and the statement says so.
        steps_completed: Steps that ran; may be fewer or more than planned.
        reproducible: True if the random bits came from a seed.
        public: Facts treated as public besides the plan's.
        notes: Remarks for the reader.
        released: The released values, in words. Empty: the noisy sums and their post-processing.
        method: The method.
        user_supplied_batches: True if the caller's code drew the batches, whose law then is an assumption.
        contribution_bound: L2 bound on a record's contribution to a release, if that includes more than a gradient
            clipped to C (a loss, or a count); that of the first step if C is adaptive. None: the plan's own. The
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
    """The fields of every statement on a profile, its meaning and the random bits."""
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
    besides = "".join(f" ε also covers {release.in_words()}." for release in plan.also)
    return (
        f"Each step drew a batch ({plan.sampling.in_words(plan.num_records)}). {_clipping_words(plan, bound)} was "
        f"added to {plan.mechanism.hidden}.{f' {INTEGERS}' if plan.mechanism.on_grid else ''}{besides}"
    )


def _clipping_words(plan: PrivacyPlan, bound: float) -> str:
    """Describe the clipping, the sum and the noise."""
    clipped, unit, scale = plan.clipping.stated(bound)
    size = plan.noise_multiplier * bound / (plan.clipping.start if unit else 1.0)
    return (
        f"{clipped}; the contributions were summed, and {plan.mechanism.words} {size:.6g}{unit} "
        f"({plan.noise_multiplier:.6g} times {scale})"
    )


def plan_facts(plan: PrivacyPlan, contribution_bound: float | None = None) -> dict[str, Any]:
    """The numbers of a plan as plain values for JSON; `contribution_bound` as in `make_statement`."""

    def described(x: Any) -> dict[str, Any]:
        fields = dataclasses.fields(x) if dataclasses.is_dataclass(x) else ()
        return {"kind": type(x).__name__, **{field.name: getattr(x, field.name) for field in fields}}

    bound = _bound(plan, contribution_bound)
    first = "first_" * plan.clipping.adapts
    return {
        "sampling": described(plan.sampling),
        "sampling_rate": float(plan.rate),
        f"{first}clipping_norm": float(plan.clipping.start),
        **({"clipping": described(plan.clipping)} if plan.clipping.adapts else {}),
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
        "the noise and the number of steps.",
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
    """Make the privacy statement of releases other than a fit by a `PrivacyPlan`.

    Guarantee: `epsilon` is an upper bound at `delta` for all `num_releases` of the event together, under `relation`, if
    each has that event. `delta` is 0 for an event made of `accounting.pure_event`. `slack` is the total variation
    between the run and the event, which integer noise has; if it is 0, last bits are not covered. The other
    arguments are fields of the statement.
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
