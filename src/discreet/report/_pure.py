"""The statement of releases whose ε is pure: no δ, no noise, no batches."""

from collections.abc import Mapping, Sequence
from typing import Any

from dp_accounting import dp_event

from discreet.accounting import Relation, profile, risk
from discreet.report._make import (
    FROM_SEED,
    FROM_SYSTEM,
    NOT_COVERED,
    PROFILE_DELTAS,
    UNIT,
    versions,
)
from discreet.report._statement import ProfilePoint, Statement
from discreet.report._text import relation_words

ACCOUNTANT = (
    "ε is an upper bound, and pure: it holds at δ = 0. Each release is taken for the worst mechanism of its ε, randomised "
    "response, and discreet's own accountant adds them up, rounding upwards. It was derived from the tempering and the bound on "
    "what a record adds, as they ran."
)


def make_pure_statement(
    event: dp_event.DpEvent,
    relation: Relation,
    *,
    method: str,
    mechanism: str,
    plan: Mapping[str, Any],
    num_releases: int,
    reproducible: bool,
    released: Sequence[str],
    public: Sequence[str],
    not_covered: Sequence[str] = (),
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Statement:
    """State what releases with a pure ε spent.

    Guarantee: `epsilon` is an upper bound at δ = 0 for all `num_releases` together, under `relation`, if each is what the
    event says.

    Args:
        event: What was done, made of `accounting.pure_event`.
        relation: Which tables are neighbours.
        method: What ran.
        mechanism: What was done to the records, in words.
        plan: The numbers of the run, all public.
        num_releases: How many releases the event holds.
        reproducible: Whether the random bits came from a seed.
        released: What left the data, in words.
        public: What was treated as known to everybody.
        not_covered: What the guarantee does not cover, before what no guarantee here covers.
        notes: Remarks for the reader.
        warnings: What a careful reader would object to, besides what the figures show.

    Returns:
        The statement.

    Raises:
        ValueError: an event without sound accounting, or one with no pure ε.
    """
    spent = profile(event, relation)
    meaning = risk(spent, 0.0)
    return Statement(
        method=method,
        released=tuple(released),
        unit=UNIT,
        relation=relation.name,
        relation_in_words=relation_words(relation),
        epsilon=spent.epsilon(0.0),
        delta=0.0,
        delta_chosen="0: the ε is pure",
        profile=tuple(ProfilePoint(delta=d, epsilon=spent.epsilon(d)) for d in (*PROFILE_DELTAS, 0.0)),
        meaning=str(meaning),
        attack_power=meaning.true_positive_rates,
        posterior_beliefs=meaning.posterior_beliefs,
        gaussian_mu=meaning.gaussian_mu,
        warnings=(*meaning.warnings, *warnings),
        mechanism=mechanism,
        plan=dict(plan),
        event=str(event),
        steps_completed=num_releases,
        horizon=num_releases,
        accountant=ACCOUNTANT,
        versions=versions(),
        public=tuple(public),
        reproducible=reproducible,
        randomness=FROM_SEED if reproducible else FROM_SYSTEM,
        not_covered=(*not_covered, *NOT_COVERED),
        notes=tuple(notes),
    )
