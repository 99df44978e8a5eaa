"""Audits: attack a program to measure a lower bound on its ε, for comparison with the claimed upper bound.

No release of an audit is private: an audit repeats its releases, with keys derived from a seed. Audit artificial records.
"""

from discreet.audit._audits import (
    WorstCase as WorstCase,
    audit_fit as audit_fit,
    audit_mechanism as audit_mechanism,
    audit_one_run as audit_one_run,
    canary_fit as canary_fit,
    worst_case as worst_case,
)
from discreet.audit._verdict import (
    Rates as Rates,
    Verdict as Verdict,
    clopper_pearson as clopper_pearson,
    epsilon_lower_bound as epsilon_lower_bound,
    judge as judge,
    one_run_epsilon as one_run_epsilon,
    one_run_p_value as one_run_p_value,
    plot_verdicts as plot_verdicts,
)
