"""Events in, privacy out: epsilon and delta, calibration, and what they mean for one person. Uses no JAX."""

from discreet.accounting._as_dict import event_from_dict, event_to_dict
from discreet.accounting._calibrate import calibrate_noise_multiplier, calibrate_num_steps
from discreet.accounting._compare import Account, AccountantComparison, compare_accountants
from discreet.accounting._events import Relation, pure_event
from discreet.accounting._filter import Cost, PrivacyFilter, cost_of
from discreet.accounting._langevin_2015 import Bound2015, langevin_epsilon_2015
from discreet.accounting._profile import PrivacyProfile, profile
from discreet.accounting._renyi import ORDERS, RenyiBound, renyi_bound
from discreet.accounting._risk import Risk, risk
from discreet.accounting._suggest import Suggestion, suggest
from discreet.accounting._upper import upper

__all__ = [
    "ORDERS",
    "Account",
    "AccountantComparison",
    "Bound2015",
    "Cost",
    "PrivacyFilter",
    "PrivacyProfile",
    "Relation",
    "RenyiBound",
    "Risk",
    "Suggestion",
    "calibrate_noise_multiplier",
    "calibrate_num_steps",
    "compare_accountants",
    "cost_of",
    "event_from_dict",
    "event_to_dict",
    "langevin_epsilon_2015",
    "profile",
    "pure_event",
    "renyi_bound",
    "risk",
    "suggest",
    "upper",
]
