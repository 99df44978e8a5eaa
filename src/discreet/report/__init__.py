"""The privacy statement: what was spent, on what terms, and what it does not cover."""

from discreet.report._statement import COEFFICIENTS as COEFFICIENTS
from discreet.report._statement import DID_NOT_COUNT as DID_NOT_COUNT
from discreet.report._statement import EACH_ROW_A_PERSON as EACH_ROW_A_PERSON
from discreet.report._statement import NOT_USABLE as NOT_USABLE
from discreet.report._statement import PREDICTION as PREDICTION
from discreet.report._statement import ProfilePoint as ProfilePoint
from discreet.report._statement import Statement as Statement
from discreet.report._statement import fact_name as fact_name
from discreet.report._statement import make_release_statement as make_release_statement
from discreet.report._statement import make_statement as make_statement
from discreet.report._statement import plan_facts as plan_facts
from discreet.report._statement import sentence as sentence
from discreet.report._statement import statement_from_dict as statement_from_dict
from discreet.report._statement import steps_words as steps_words
from discreet.report._statement import use_words as use_words
from discreet.report._statement import value_words as value_words
