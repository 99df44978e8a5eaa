"""The statement as a text for people: no symbol without its meaning."""

import math
import textwrap
from typing import TYPE_CHECKING

from discreet.accounting import Relation, upper

if TYPE_CHECKING:
    from discreet.report._statement import Statement

WIDTH = 88


def paragraph(text: str) -> str:
    """Wrapped prose."""
    return textwrap.fill(text, WIDTH)


def wrapped(text: str) -> str:
    """Each line wrapped by itself, its indentation kept."""
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
    """With a capital in front and a full stop behind.

    >>> sentence("the bounds"), sentence("Done.")
    ('The bounds.', 'Done.')
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def relation_words(relation: Relation, noun: str = "record") -> str:
    """Which tables the guarantee compares.

    Args:
        relation: Their relation.
        noun: The unit of privacy, "record" or "person".
    """
    if relation == Relation.REPLACE_ONE:
        what, whose = (
            ("the content of one record", "that record") if noun == "record" else ("the row of one person", "that row")
        )
        return (
            f"The guarantee compares two tables with the same number of {noun}s that differ in {what}. The results must look "
            f"almost the same for both. Whether a given person is in the table is not hidden; what {whose} says is."
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


def _plan(statement: "Statement") -> str:
    return "\n".join(f"  {name.replace('_', ' ')}: {_value(value)}" for name, value in statement.plan.items())


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_value(item)}" for name, item in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _profile(statement: "Statement") -> str:
    return "\n".join(f"  δ = {point.delta:<8g} ε = {upper(point.epsilon)}" for point in statement.profile)


def steps_words(statement: "Statement") -> str:
    """How many releases were made, and how many were paid for."""
    if statement.steps_completed < statement.horizon:
        return (
            f"{statement.steps_completed} of {statement.horizon} releases were made. The price is that of all "
            f"{statement.horizon}: this accounting is valid for a number of releases fixed beforehand, and stopping early on "
            "what was seen gives nothing back."
        )
    return f"{statement.steps_completed} releases were made; all are paid for."


def statement_text(statement: "Statement") -> str:
    """The whole statement, wrapped to 88 columns."""
    versions = ", ".join(f"{name} {version}" for name, version in statement.versions.items())
    sections = [
        (
            "What was protected",
            paragraph(f"{statement.unit[:1].upper()}{statement.unit[1:]}. {statement.relation_in_words}"),
        ),
        ("What it means", wrapped(statement.meaning)),
        ("What left the data", bullets(statement.released)),
        ("What was done", paragraph(f"{statement.mechanism} {steps_words(statement)}")),
        ("Plan", _plan(statement)),
        ("Pairs of δ and ε that all hold", _profile(statement)),
        ("How ε was computed", paragraph(f"{statement.accountant} δ was {statement.delta_chosen}. {versions}.")),
        ("Treated as public", bullets(statement.public)),
        ("Randomness", paragraph(statement.randomness)),
        ("What it does not cover", bullets(statement.not_covered)),
    ]
    if statement.notes:
        sections.append(("Notes", bullets(statement.notes)))
    if statement.violations:
        sections.insert(0, ("What broke the guarantee", bullets(statement.violations)))
    title = f"Privacy statement: {statement.method}"
    parts = [f"{title}\n{'=' * len(title)}", paragraph(_headline(statement))]
    parts += [f"{heading}\n{'-' * len(heading)}\n{body}" for heading, body in sections if body]
    return "\n\n".join(parts) + "\n"
