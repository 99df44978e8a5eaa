"""The privacy statement: what was spent, on what terms, and what it does not cover.

Files, in reading order: `_facts` (the fields), `_make` (from plans and events), `_words`, `_json`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet.privacy.report._facts import (
    COEFFICIENTS as COEFFICIENTS,
    EACH_ROW_A_PERSON as EACH_ROW_A_PERSON,
    NOT_USABLE as NOT_USABLE,
    PARTS as PARTS,
    PREDICTION as PREDICTION,
    RECORD as RECORD,
    Figures as Figures,
    ProfilePoint as ProfilePoint,
    Receipt as Receipt,
    Statement as Statement,
    Unit as Unit,
)
from discreet.privacy.report._json import statement_from_dict as statement_from_dict
from discreet.privacy.report._words import (
    LEARNED as LEARNED,
    counted as counted,
    fact_name as fact_name,
    headline as headline,
    listed as listed,
    note_words as note_words,
    public_size as public_size,
    sentence as sentence,
    steps_words as steps_words,
    unknown_words as unknown_words,
    use_words as use_words,
    value_words as value_words,
)

# Making a statement needs plans, and so JAX; reading one, or a ledger, does not (PEP 562).
_MADE = ("make_release_statement", "make_statement", "plan_facts")

if TYPE_CHECKING:
    from discreet.privacy.report._make import (
        make_release_statement as make_release_statement,
        make_statement as make_statement,
        plan_facts as plan_facts,
    )


def __getattr__(name: str) -> Any:
    if name in _MADE:
        return getattr(import_module("discreet.privacy.report._make"), name)
    raise AttributeError(f"module 'discreet.privacy.report' has no attribute {name!r}")
