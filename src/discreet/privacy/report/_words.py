"""The statement as a text for people: every sentence that follows from its facts is written here, once."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from discreet.privacy.accounting import Relation, neighbours, upper

if TYPE_CHECKING:
    from discreet.privacy.report._facts import Statement

WIDTH = 88
LEARNED = 0.25
"""The share of the prior's variance that is gone where a coefficient is called learned."""
MOST_LISTED = 12
"""Names of columns or latents in one sentence; of more, the first ones and how many others there are."""


def paragraph(text: str) -> str:
    """Wrapped prose."""
    return textwrap.fill(text, WIDTH)


def wrapped(text: str) -> str:
    """Wrap each line separately, with its indentation."""
    return "\n".join(
        textwrap.fill(
            line,
            WIDTH,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2 * line.startswith(" ")),
        )
        for line in text.splitlines()
    )


def bullets(items: tuple[str, ...] | list[str]) -> str:
    """One wrapped point a line."""
    return "\n".join(
        textwrap.fill(sentence(item), WIDTH, initial_indent="  - ", subsequent_indent="    ")
        for item in items
    )


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "feature"), counted(1200, "feature")
    ('1 feature', '1,200 features')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """The first of some names, and how many others there are.

    >>> listed(["age"]), listed(["age", "sex"]), listed(["age", "sex", "town", "pay", "rent"], most=3)
    ('age', 'age and sex', 'age, sex, town and 2 others')
    """
    left = len(names) - most
    *first, last = [*names[:most], counted(left, "other")] if left > 0 else names
    return f"{', '.join(first)} and {last}" if first else last


def sentence(text: str) -> str:
    """Capitalize a text and add a full stop.

    >>> sentence("the bounds"), sentence("Done.")
    ('The bounds.', 'Done.')
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def relation_words(relation: Relation, noun: str) -> str:
    """Describe the neighbouring tables; `noun` is the unit of privacy, "record" or "person"."""
    if not neighbours(relation).hides_membership:
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
        "present in one, absent in the other"
        if noun == "record"
        else "all of their rows are in one, none in the other"
    )
    return (
        f"The guarantee compares two tables that differ by one {noun}: {there}. The results must look almost the same for both. "
        "Against a change of content the protection is weaker: a change is a removal and an addition, so twice this ε, and δ "
        "times 1 + e^ε."
    )


def headline(statement: Statement) -> str:
    """What a release cost, in a line."""
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
    "noise_multiplier": "noise, in units of the bound on a {}",
}


def fact_name(name: str, noun: str = "record") -> str:
    """The name of a number of the plan in texts, where the unit of privacy is a record or a person.

    >>> fact_name("num_steps"), fact_name("noise_multiplier"), fact_name("num_records", "person")
    ('steps', 'noise, in units of the bound on a record', 'persons (public)')
    """
    known = _NAMES.get(name)
    return str(name).replace("_", " ") if known is None else known.format(noun)


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


def steps_words(statement: Statement) -> str:
    """Describe the numbers of releases made and accounted for."""
    if statement.steps_completed < statement.horizon:
        return (
            f"{statement.steps_completed} of {statement.horizon} releases were made. The budget of all {statement.horizon} is "
            "spent: the accounting is valid for a number of releases fixed beforehand, so stopping early gives nothing back."
        )
    if statement.steps_completed == 1:
        return "One release was made, and ε covers it."
    return f"{statement.steps_completed:,} releases were made, and ε covers all of them."


def statement_text(statement: Statement) -> str:
    """The whole statement, wrapped to 88 columns."""
    versions = ", ".join(f"{name} {version}" for name, version in statement.versions.items())
    kept = statement.is_private
    figures = statement.figures
    sections = [
        ("What broke the guarantee", bullets(statement.violations)),
        ("Use", paragraph(use_words(statement))),
        (
            "What was protected" if kept else "What should have been protected",
            paragraph(f"{sentence(str(statement.unit))} {statement.relation_in_words}"),
        ),
        ("What it means" if kept else "What it would have meant", wrapped(statement.meaning)),
        ("What left the data", bullets(statement.released)),
        ("What was done", paragraph(f"{statement.mechanism} {steps_words(statement)}")),
        (
            "Plan",
            "\n".join(
                f"  {fact_name(name, statement.noun)}: {value_words(x)}"
                for name, x in statement.plan.items()
            ),
        ),
        (
            f"Other pairs of δ and ε that {'hold' if kept else 'would have held'}",
            "\n".join(
                f"  δ = {point.delta:<8g} ε = {upper(point.epsilon)}" for point in figures.profile
            ),
        ),
        (
            "How ε was computed",
            paragraph(f"{figures.accountant} δ was {figures.delta_chosen}. {versions}."),
        ),
        ("What was treated as public", bullets(statement.public)),
        ("Randomness", paragraph(statement.randomness)),
        ("What it does not cover", bullets(statement.not_covered)),
        ("Notes", bullets(note_words(statement))),
    ]
    title = f"Privacy statement: {statement.method}"
    parts = [f"{title}\n{'=' * len(title)}", paragraph(headline(statement))]
    parts += [paragraph(statement.about)] * bool(statement.about)
    parts += [f"{heading}\n{'-' * len(heading)}\n{body}" for heading, body in sections if body]
    return "\n\n".join(parts) + "\n"


def unknown_words(intervals: Sequence[tuple[float, float]], hidden: Sequence[str]) -> str:
    """The sentence on coefficients of which a fit says little, without its full stop; empty if there are none.

    Args:
        intervals: The 90 % interval of each, low and high.
        hidden: Names of those that the prior decides.

    >>> unknown_words([(-1.0, 0.5), (-0.2, 0.3)], [])
    'All 90 % intervals of coefficients contain 0, so no sign is known'
    >>> unknown_words([(-1.0, 0.5), (0.2, 0.3)], ["age"])
    'The prior decides the weight of age'
    """
    signs = bool(intervals) and all(low <= 0 <= high for low, high in intervals)
    parts = ["All 90 % intervals of coefficients contain 0, so no sign is known"] * signs
    if hidden:
        parts.append(f"The prior decides the weight{'s' * (len(hidden) > 1)} of {listed(hidden)}")
    return ". ".join(parts)


def note_words(statement: Statement) -> tuple[str, ...]:
    """The notes with what the statement knows of its receipt, its day and whom to ask, in sentences."""
    receipt = () if statement.receipt is None else (str(statement.receipt),)
    day = (f"Made on {statement.made_on} (UTC).",) * bool(statement.made_on)
    contact = (f"Contact: {statement.contact}.",) * bool(statement.contact)
    return statement.notes + receipt + day + contact


def use_words(statement: Statement) -> str:
    """The verdict on the result's use and its reason, in a sentence; empty where there is none."""
    return (
        f"{sentence(statement.use).rstrip('.')}: {sentence(statement.use_reason)}"
        if statement.use
        else ""
    )


def public_size(noun: str, num_records: int, relation: Relation) -> str:
    """The number of records as a public number: where neighbours differ in it, it was not charged."""
    size = f"The number of {noun}s, N = {num_records}"
    if not neighbours(relation).hides_membership:
        return size
    return (
        f"{size} (neighbouring tables differ in it by one; publishing it exactly was not charged)"
    )
