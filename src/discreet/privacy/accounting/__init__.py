"""Privacy accounting: epsilon and delta of events, calibration, and the risk for one person. Does not use JAX.

Files, in reading order: `_relation` (neighbours), `_pairs` (the cost of one use), `_choices` and
`_replaced` (more pairs), `_events` (from events to pairs), `_compose`, `_profile` (ε, δ and
calibration), `_renyi` and `_filter` (budgets), `_risk` (in words), `_compare`.
"""

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
    event_from_dict as event_from_dict,
    event_to_dict as event_to_dict,
    pure_event as pure_event,
)
from discreet.privacy.accounting._filter import (
    Cost as Cost,
    PrivacyFilter as PrivacyFilter,
    cost_of as cost_of,
)
from discreet.privacy.accounting._profile import (
    Planned as Planned,
    PrivacyProfile as PrivacyProfile,
    calibrate_noise_multiplier as calibrate_noise_multiplier,
    calibrate_num_steps as calibrate_num_steps,
    composed as composed,
    profile as profile,
)
from discreet.privacy.accounting._relation import (
    Neighbours as Neighbours,
    Relation as Relation,
    neighbours as neighbours,
)
from discreet.privacy.accounting._renyi import (
    ORDERS as ORDERS,
    RenyiBound as RenyiBound,
    renyi_bound as renyi_bound,
)
from discreet.privacy.accounting._risk import (
    Risk as Risk,
    Suggestion as Suggestion,
    risk as risk,
    suggest as suggest,
    upper as upper,
)
