"""The statement itself: plain facts, and their JSON."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from discreet.accounting import Relation
from discreet.report._text import relation_words, statement_text

FORMAT = "discreet privacy statement, version 1"
SEVERAL_RECORDS = (
    "Several records of one person: the guarantee is for one record and weakens with each further one. Name the column that "
    "says whose a row is, and one row of each person is used."
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
        return self.unit.split("(")[0].strip().removeprefix("one ")

    def for_person(self, column: str) -> "Statement":
        """The same statement for data in which each person is one record.

        Two tables that differ by all rows of one person then become records that differ by one, so that a guarantee for
        one record is one for the person.

        Args:
            column: Name of the column that says whose a row is, of whose rows one each was kept.
        """
        relation = Relation[self.relation]
        return dataclasses.replace(
            self,
            unit=f"one person (all rows with the same '{column}', of which one is used)",
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
        content["profile"] = [{"delta": point.delta, "epsilon": point.epsilon} for point in self.profile]
        content["attack_power"] = [
            {"false_positive_rate": false_positive, "largest_true_positive_rate": true_positive}
            for false_positive, true_positive in self.attack_power
        ]
        content["posterior_beliefs"] = [
            {"before": before, "largest_after": after} for before, after in self.posterior_beliefs
        ]
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
                plain[f"{key}_reason"] = (
                    "not a number" if math.isnan(item) else "infinite: no finite value holds at this delta"
                )
        return plain
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return str(value)
