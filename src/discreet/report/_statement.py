"""The statement itself: plain facts, their JSON and back, and a text for people."""

import dataclasses
import json
import math
import re
import textwrap
import typing
from collections.abc import Mapping
from typing import Any

from discreet._validate import integer, is_integer, is_real, refuse
from discreet.accounting import Relation, upper

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


def relation_name(relation: str) -> str:
    """A relation in a few words, for tables and headings.

    >>> relation_name("ADD_OR_REMOVE_ONE")
    'one added or removed'
    """
    return {"ADD_OR_REMOVE_ONE": "one added or removed", "REPLACE_ONE": "one replaced"}.get(relation, relation)


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
    """How many releases were made, and how many were paid for."""
    if statement.steps_completed < statement.horizon:
        return (
            f"{statement.steps_completed} of {statement.horizon} releases were made. The budget of all {statement.horizon} is "
            "spent: the accounting is valid for a number of releases fixed beforehand, so stopping early gives nothing back."
        )
    if statement.steps_completed == 1:
        return "One release was made, and it is paid for."
    return f"{statement.steps_completed} releases were made, and all are paid for."


def statement_text(statement: "Statement") -> str:
    """The whole statement, wrapped to 88 columns."""
    versions = ", ".join(f"{name} {version}" for name, version in statement.versions.items())
    sections = [
        ("What broke the guarantee", bullets(statement.violations)),
        (
            "What was protected",
            paragraph(f"{statement.unit[:1].upper()}{statement.unit[1:]}. {statement.relation_in_words}"),
        ),
        ("What it means", wrapped(statement.meaning)),
        ("What left the data", bullets(statement.released)),
        ("What was done", paragraph(f"{statement.mechanism} {steps_words(statement)}")),
        ("Plan", "\n".join(f"  {name.replace('_', ' ')}: {value_words(x)}" for name, x in statement.plan.items())),
        (
            "Other pairs of δ and ε that hold",
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
    parts += [f"{heading}\n{'-' * len(heading)}\n{body}" for heading, body in sections if body]
    return "\n\n".join(parts) + "\n"


FORMAT = "discreet privacy statement, version 1"
SEVERAL_RECORDS = (
    "Several records of one person: the guarantee is for one record and weakens with each further one. Name the column that "
    "identifies persons: a record is then a person."
)


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
    """What a private computation spent, in numbers and words that can be handed on.

    Every number is public: it follows from the plan and never from the records. `str(statement)` is a text for people,
    `statement.to_json()` the same for programs. Built by `make_statement`.

    Attributes:
        method: What ran, for example "DPSVI".
        released: What left the data, in words.
        unit: What one unit of privacy is.
        relation: Name of the relation between neighbouring tables, for example "ADD_OR_REMOVE_ONE".
        relation_in_words: The same for a reader who does not know the name.
        epsilon: Upper bound on ε at `delta`, for the whole horizon of the plan.
        delta: The δ at which `epsilon` holds; 0 for a pure ε.
        delta_chosen: Who chose δ.
        profile: (δ, ε) pairs that hold as well.
        meaning: What this means for one person, in words.
        attack_power: Pairs (false-positive rate, largest true-positive rate) of any test for one person's record.
        posterior_beliefs: Pairs (belief before, largest belief after seeing everything), except with probability `delta`.
        gaussian_mu: The least μ for which μ-Gaussian privacy holds down to `delta`.
        warnings: What a careful reader would object to.
        mechanism: What was done to the records, in words.
        plan: The numbers of the plan.
        event: The accounted event, as dp_accounting writes it.
        steps_completed: Steps that ran.
        horizon: Steps that were paid for: the plan's, or those that ran if they are more.
        accountant: How ε was computed.
        versions: Versions of what computed it.
        public: What was treated as known to everybody.
        reproducible: Whether the random bits can be repeated; then nothing here is private.
        randomness: Where the random bits came from, in words.
        not_covered: What the guarantee does not cover.
        violations: What was done that breaks the guarantee, if anything.
        notes: Further remarks.
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

    @property
    def is_private(self) -> bool:
        """Whether the guarantee stands: secret random bits, finite ε, and no violation."""
        return not self.reproducible and not self.violations and math.isfinite(self.epsilon)

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

        Two tables that differ by all rows of one person then become records that differ by one, so that a guarantee for
        one record is one for the person.

        Args:
            column: Name of the column that identifies persons; None: each row is a record, and the statement as it is.
            max_rows: How many rows of each person were used at most.

        Raises:
            ValueError: No name, no number of rows, or several rows of nobody.
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
            not_covered=tuple(limit for limit in self.not_covered if limit != SEVERAL_RECORDS),
        )

    def with_public(self, *facts: str) -> "Statement":
        """The same statement with more facts named as public."""
        return dataclasses.replace(self, public=(*self.public, *facts))

    def with_notes(self, *notes: str) -> "Statement":
        """The same statement with further remarks."""
        return dataclasses.replace(self, notes=(*self.notes, *notes))

    def with_warnings(self, *warnings: str) -> "Statement":
        """The same statement with further things that a careful reader would object to."""
        return dataclasses.replace(self, warnings=(*self.warnings, *warnings))

    def with_violations(self, *violations: str) -> "Statement":
        """The same statement, marked as broken by what was done around the private computation."""
        return dataclasses.replace(self, violations=(*self.violations, *violations))

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and finite numbers; never NaN or infinity.

        A number that does not exist (an infinite ε) is None, and a key with `_reason` appended says why.
        """
        content: dict[str, Any] = {"format": FORMAT, "is_private": self.is_private}
        for field in dataclasses.fields(self):
            content[field.name] = getattr(self, field.name)
        content["profile"] = [dataclasses.asdict(point) for point in self.profile]
        for name, parts in _PAIRS.items():
            content[name] = [dict(zip(parts, pair, strict=True)) for pair in content[name]]
        return _finite(content)

    def to_json(self) -> str:
        """`to_dict` as indented JSON that any strict reader accepts."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def __str__(self) -> str:
        return statement_text(self)


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
    """The statement that `Statement.to_dict` made a dictionary of, or `to_json` a text.

    What is in a file is worth as much as whoever hands it on: this checks that it is whole, not that it is true.

    Args:
        content: The dictionary, of a file's JSON say.

    Returns:
        An equal statement; a number that had no value is infinite.

    Raises:
        ValueError: It is no statement, of another version, incomplete, or contradicts itself.
    """
    if not isinstance(content, Mapping) or not str(content.get("format", "")).startswith("discreet privacy statement"):
        raise ValueError("it is no discreet privacy statement: give the statement.json that a fit wrote")
    if content["format"] != FORMAT:
        raise ValueError(f"it is a {content['format']}, and this discreet reads {FORMAT!r}: use the one that wrote it")
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
