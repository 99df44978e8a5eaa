"""The privacy statement: what was spent, on what terms, and what it does not cover."""

from discreet.report._make import make_statement, plan_facts
from discreet.report._parse import statement_from_dict
from discreet.report._pure import make_pure_statement
from discreet.report._statement import ProfilePoint, Statement
from discreet.report._text import sentence, steps_words

__all__ = [
    "ProfilePoint",
    "Statement",
    "make_pure_statement",
    "make_statement",
    "plan_facts",
    "sentence",
    "statement_from_dict",
    "steps_words",
]
