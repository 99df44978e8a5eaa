"""The privacy statement: what was spent, on what terms, and what it does not cover."""

from discreet.report._facts import COEFFICIENTS as COEFFICIENTS
from discreet.report._facts import EACH_ROW_A_PERSON as EACH_ROW_A_PERSON
from discreet.report._facts import NOT_USABLE as NOT_USABLE
from discreet.report._facts import PARTS as PARTS
from discreet.report._facts import PREDICTION as PREDICTION
from discreet.report._facts import RECORD as RECORD
from discreet.report._facts import Figures as Figures
from discreet.report._facts import ProfilePoint as ProfilePoint
from discreet.report._facts import Receipt as Receipt
from discreet.report._facts import Statement as Statement
from discreet.report._facts import Unit as Unit
from discreet.report._json import statement_from_dict as statement_from_dict
from discreet.report._make import make_release_statement as make_release_statement
from discreet.report._make import make_statement as make_statement
from discreet.report._make import plan_facts as plan_facts
from discreet.report._words import counted as counted
from discreet.report._words import fact_name as fact_name
from discreet.report._words import headline as headline
from discreet.report._words import listed as listed
from discreet.report._words import note_words as note_words
from discreet.report._words import sentence as sentence
from discreet.report._words import steps_words as steps_words
from discreet.report._words import use_words as use_words
from discreet.report._words import value_words as value_words
