"""Events in, privacy out: epsilon and delta, calibration, and what they mean for one person. Uses no JAX."""

from discreet.accounting._compare import (
    Account,
    AccountantComparison,
    Bound2015,
    Planned,
    compare_accountants,
    langevin_epsilon_2015,
)
from discreet.accounting._events import BoundedRangeDpEvent, Relation, event_from_dict, event_to_dict, pure_event
from discreet.accounting._profile import (
    FINE_ORDERS,
    ORDERS,
    Cost,
    PrivacyFilter,
    PrivacyProfile,
    RenyiBound,
    calibrate_noise_multiplier,
    calibrate_num_steps,
    cost_of,
    profile,
    renyi_bound,
    repetitions,
)
from discreet.accounting._risk import Risk, Suggestion, relation_name, risk, suggest, upper

__all__ = [
    "FINE_ORDERS",
    "ORDERS",
    "Account",
    "AccountantComparison",
    "Bound2015",
    "BoundedRangeDpEvent",
    "Cost",
    "Planned",
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
    "relation_name",
    "renyi_bound",
    "repetitions",
    "risk",
    "suggest",
    "upper",
]
