"""The privacy statement: facts, from which `_words` makes texts and `_json` a file. No text is read back for a fact."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from discreet._validate import choice, integer, notebook_html, refuse
from discreet.privacy.accounting import Relation, Risk, upper
from discreet.privacy.report._json import as_dict
from discreet.privacy.report._words import headline, relation_words, statement_text

COEFFICIENTS = "for its coefficients"
PREDICTION = "for prediction"
NOT_USABLE = "not usable"
"""Verdicts on the use of a result. The first includes the second."""
EACH_ROW_A_PERSON = "No person has two rows in the table, as the schema says."
FROM_SYSTEM = "The random bits came from the operating system and were expanded with ChaCha20; nobody can reproduce them."
FROM_SEED = (
    "reproducible: not private. A seed was given, so anyone who knows or guesses it can remove the noise. The figures above "
    "are those of the same run with random bits from the operating system."
)


@dataclasses.dataclass(frozen=True)
class Unit:
    """Whose data is protected: a record, or a person, all of whose rows are one record.

    Tables that differ by all rows of one person then differ by one record, so a guarantee for one
    record protects the person.

    Attributes:
        person: Name of the column that identifies persons; None: each row of the table is a record.
        max_rows: Largest number of rows used per person.

    Raises:
        ValueError: No name, no number of rows, or several rows without a person column.

    >>> str(Unit()), Unit("patient", 5).brief
    ('one record (one row of the table)', 'one person with up to 5 rows')
    """

    person: str | None = None
    max_rows: int = 1

    def __post_init__(self) -> None:
        most = integer("max_rows", self.max_rows)
        if self.person is None and most > 1:
            raise ValueError(
                f"max_rows is {most}, and person is not named: name the column that identifies persons, as in "
                "person='patient'; without it each record is one row, and max_rows is 1."
            )
        if self.person is not None and not (isinstance(self.person, str) and self.person.strip()):
            refuse(
                "person",
                self.person,
                "the name of the column that identifies persons",
                "Leave it out if there is none.",
            )

    @property
    def noun(self) -> str:
        """In one word: "record" or "person"."""
        return "record" if self.person is None else "person"

    @property
    def brief(self) -> str:
        """In a few words: "one record", "one person" or "one person with up to 5 rows"."""
        return f"one {self.noun}" + (
            f" with up to {self.max_rows} rows" if self.max_rows > 1 else ""
        )

    def __str__(self) -> str:
        if self.person is None:
            return f"{self.brief} (one row of the table)"
        used = "one is" if self.max_rows == 1 else f"{self.max_rows} at most are"
        return f"{self.brief} (all rows with the same '{self.person}', of which {used} used)"


RECORD = Unit()


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
class Figures:
    """What a computation costs.

    Attributes:
        relation: Name of the relation between neighbouring tables, for example "ADD_OR_REMOVE_ONE".
        epsilon: Upper bound on ε at `delta`, for the whole horizon of the plan.
        delta: The δ at which `epsilon` holds; 0 for a pure ε.
        delta_chosen: The origin of δ.
        profile: Other valid (δ, ε) pairs.
        attack_power: Pairs (false-positive rate, largest true-positive rate) of any test for one
            person's record.
        posterior_beliefs: Pairs (belief before, largest belief after seeing everything), except
            with probability `delta`.
        right_guesses: Largest share of right guesses between two equally likely neighbouring
            tables.
        gaussian_mu: The least μ for which μ-Gaussian privacy holds down to `delta`.
        epsilon_warnings: Objections of a careful reader to ε and δ.
        event: The accounted event, as dp_accounting writes it.
        accountant: The accounting method of ε.
    """

    relation: str
    epsilon: float
    delta: float
    delta_chosen: str
    profile: tuple[ProfilePoint, ...]
    attack_power: tuple[tuple[float, float], ...]
    posterior_beliefs: tuple[tuple[float, float], ...]
    right_guesses: float
    gaussian_mu: float
    epsilon_warnings: tuple[str, ...]
    event: str
    accountant: str

    def __post_init__(self) -> None:
        choice("relation", self.relation, tuple(Relation.__members__))

    @property
    def risk(self) -> Risk:
        """The same as a risk for one person, which explains itself."""
        relation = Relation[self.relation]
        power = self.attack_power
        beliefs = self.posterior_beliefs
        where = relation, self.delta, self.epsilon
        return Risk(
            *where, power, beliefs, self.right_guesses, self.gaussian_mu, self.epsilon_warnings
        )


@dataclasses.dataclass(frozen=True)
class Receipt:
    """One debit, with the hash of its entry, which covers all entries before it.

    Attributes:
        ledger: Name of the ledger's file.
        dataset: The table's name in it.
        number: Number of the entry.
        hash: SHA-256 of the entry, in hexadecimal digits.
        spent: The part of the cap's epsilon that is spent, by the filter, including this debit.
        cap_epsilon: The cap's epsilon.
        cap_delta: The cap's delta.
        unit: The privacy unit of the fit: "one record", "one person with up to 5 rows".
    """

    ledger: str
    dataset: str
    number: int
    hash: str
    spent: float
    cap_epsilon: float
    cap_delta: float
    unit: str

    def __str__(self) -> str:
        return (
            f"Debited as entry {self.number} of the ledger {self.ledger} of '{self.dataset}' (hash {self.hash[:16]}), before the "
            f"first release, for {self.unit}. ε = {upper(self.spent)} of the cap of ε = {upper(self.cap_epsilon)} at "
            f"δ = {upper(self.cap_delta)} is now spent. As long as each fit kept its guarantee, all entries together "
            "are within the cap, even if later fits were planned after the results of earlier ones were seen."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statement:
    """The privacy statement of a computation, in numbers and words for publication.

    Every number is public: it follows from the plan and never from the records, but for what the
    computation released itself. `str(statement)` is a text for people, `statement.to_json()` the
    same for programs. Built by `make_statement`.

    Attributes:
        method: The method, for example "DPSVI".
        about: What was computed, from which table and for whom, in a sentence.
        figures: What it costs: ε, δ, the event, and what an attacker can learn.
        unit: The unit of privacy.
        released: The released values, in words.
        mechanism: The mechanism, in words.
        plan: The numbers of the plan.
        steps_completed: Steps that ran.
        horizon: Steps accounted for: the plan's, or those that ran if they are more.
        versions: Versions of the software.
        public: Facts treated as public.
        not_covered: Limits of the guarantee.
        reproducible: True if the random bits can be reproduced; then nothing here is private.
        violations: Actions that void the guarantee, if any.
        cautions: Objections of a careful reader to the guarantee, beside those to ε and δ.
        data_warnings: Warnings about the data or the fit, which are no objection to the guarantee.
        notes: Further remarks.
        use: What the result may be used for, judged from releases and public facts: `COEFFICIENTS`,
            `PREDICTION`, `NOT_USABLE`, or empty where it is not judged.
        use_reason: The one reason, in a sentence without its full stop.
        receipt: The debit in a ledger.
        made_on: The day (UTC), as in "2026-11-27"; empty where it is not said.
        contact: Whom to ask.
    """

    method: str
    figures: Figures
    unit: Unit
    released: tuple[str, ...]
    mechanism: str
    plan: Mapping[str, Any]
    steps_completed: int
    horizon: int
    versions: Mapping[str, str]
    public: tuple[str, ...]
    not_covered: tuple[str, ...]
    reproducible: bool
    violations: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    data_warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    use: str = ""
    use_reason: str = ""
    about: str = ""
    receipt: Receipt | None = None
    made_on: str = ""
    contact: str = ""

    @property
    def epsilon(self) -> float:
        """Upper bound on ε at `delta`, for the whole horizon of the plan."""
        return self.figures.epsilon

    @property
    def delta(self) -> float:
        """The δ at which `epsilon` holds; 0 for a pure ε."""
        return self.figures.delta

    @property
    def relation(self) -> str:
        """Name of the relation between neighbouring tables, for example "ADD_OR_REMOVE_ONE"."""
        return self.figures.relation

    @property
    def noun(self) -> str:
        """The unit in one word: "record" or "person"."""
        return self.unit.noun

    @property
    def relation_in_words(self) -> str:
        """The relation in words."""
        return relation_words(Relation[self.relation], self.noun)

    @property
    def meaning(self) -> str:
        """The meaning for one person, in words."""
        return self.figures.risk.in_words(self.noun)

    @property
    def randomness(self) -> str:
        """The source of the random bits, in words."""
        return FROM_SEED if self.reproducible else FROM_SYSTEM

    @property
    def is_private(self) -> bool:
        """True if the guarantee holds: secret random bits, finite ε, and no violation."""
        return not self.reproducible and not self.violations and math.isfinite(self.epsilon)

    @property
    def protects_rows(self) -> bool:
        """True if a row is protected, and nothing says that no person has several."""
        return self.unit.person is None and EACH_ROW_A_PERSON not in self.public

    @property
    def privacy_warnings(self) -> tuple[str, ...]:
        """The warnings that are about the guarantee, not about the data."""
        return self.figures.epsilon_warnings + self.cautions

    @property
    def warnings(self) -> tuple[str, ...]:
        """All warnings."""
        return self.privacy_warnings + self.data_warnings

    @property
    def brief(self) -> str:
        """The cost in a few words, for a `repr`."""
        return f"epsilon={upper(self.epsilon)} at delta={self.delta:.3g}" + ", NOT PRIVATE" * (
            not self.is_private
        )

    def with_public(self, *facts: str) -> Statement:
        """The same statement with more facts named as public."""
        return dataclasses.replace(self, public=(*self.public, *facts))

    def with_notes(self, *notes: str) -> Statement:
        """The same statement with further remarks."""
        return dataclasses.replace(self, notes=(*self.notes, *notes))

    def with_cautions(self, *cautions: str) -> Statement:
        """The same statement with further objections to the guarantee."""
        return dataclasses.replace(self, cautions=(*self.cautions, *cautions))

    def with_data_warnings(self, *warnings: str) -> Statement:
        """The same statement with further warnings about the data or the fit."""
        return dataclasses.replace(self, data_warnings=(*self.data_warnings, *warnings))

    def with_violations(self, *violations: str) -> Statement:
        """The same statement with violations of the guarantee outside of the private computation."""
        return dataclasses.replace(self, violations=(*self.violations, *violations))

    def with_use(self, use: str, reason: str) -> Statement:
        """The same statement with a verdict on the use of the result."""
        return dataclasses.replace(self, use=use, use_reason=reason)

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and finite numbers; never NaN or infinity.

        A number that does not exist (an infinite ε) is None, with the reason under the key with
        `_reason` appended.
        """
        return as_dict(self)

    def to_json(self) -> str:
        """`to_dict` as indented, strict JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def __repr__(self) -> str:
        """Short: the method and its cost."""
        return f"Statement({self.method}, {self.brief})"

    def __str__(self) -> str:
        return statement_text(self)

    def _repr_html_(self) -> str:
        line = headline(self)
        return notebook_html(line, str(self), wrong=not line.startswith("ε"))


PARTS = (Statement, Figures, Unit, Receipt, ProfilePoint)
"""What a file that holds a statement is made of."""
