"""Audits: attack a program to measure a lower bound on its ε, for comparison with the claimed upper bound.

No release of an audit is private: an audit repeats its releases, with keys derived from a seed.
Audit artificial records.

Files, in reading order: `_verdict` (bounds from counts), `_audits` (many runs), `_one_run`,
`_worst_case` (canaries for a plan).
"""

from discreet.methods.audit._audits import (
    audit_fit as audit_fit,
    audit_mechanism as audit_mechanism,
)
from discreet.methods.audit._one_run import (
    audit_one_run as audit_one_run,
    one_run_epsilon as one_run_epsilon,
    one_run_p_value as one_run_p_value,
)
from discreet.methods.audit._verdict import (
    Rates as Rates,
    Verdict as Verdict,
    clopper_pearson as clopper_pearson,
    epsilon_lower_bound as epsilon_lower_bound,
    judge as judge,
)
from discreet.methods.audit._worst_case import (
    WorstCase as WorstCase,
    canary_fit as canary_fit,
    worst_case as worst_case,
)
