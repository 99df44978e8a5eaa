"""Privacy accounting: epsilon and delta of events, calibration, and the risk for one person. Does not use JAX."""

from discreet.privacy.accounting._compare import (
    Account as Account,
    AccountantComparison as AccountantComparison,
    Bound2015 as Bound2015,
    compare_accountants as compare_accountants,
    langevin_epsilon_2015 as langevin_epsilon_2015,
)
from discreet.privacy.accounting._events import (
    NOISES as NOISES,
    BoundedRangeDpEvent as BoundedRangeDpEvent,
    Relation as Relation,
    event_from_dict as event_from_dict,
    event_to_dict as event_to_dict,
    pure_event as pure_event,
)
from discreet.privacy.accounting._profile import (
    FINE_ORDERS as FINE_ORDERS,
    ORDERS as ORDERS,
    Cost as Cost,
    Planned as Planned,
    PrivacyFilter as PrivacyFilter,
    PrivacyProfile as PrivacyProfile,
    RenyiBound as RenyiBound,
    calibrate_noise_multiplier as calibrate_noise_multiplier,
    calibrate_num_steps as calibrate_num_steps,
    composed as composed,
    cost_of as cost_of,
    profile as profile,
    renyi_bound as renyi_bound,
    repetitions as repetitions,
)
from discreet.privacy.accounting._risk import (
    Risk as Risk,
    Suggestion as Suggestion,
    relation_name as relation_name,
    risk as risk,
    suggest as suggest,
    upper as upper,
)
