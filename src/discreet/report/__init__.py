"""The privacy statement: what was spent, on what terms, and what it does not cover."""

from discreet.report._statement import (
    ProfilePoint,
    Statement,
    fact_name,
    make_release_statement,
    make_statement,
    plan_facts,
    sentence,
    statement_from_dict,
    steps_words,
    value_words,
)

__all__ = [
    "ProfilePoint",
    "Statement",
    "fact_name",
    "make_release_statement",
    "make_statement",
    "plan_facts",
    "sentence",
    "statement_from_dict",
    "steps_words",
    "value_words",
]
