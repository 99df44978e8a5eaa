"""Audits: attack a program to measure a lower bound on its ε, for comparison with the claimed upper bound.

No release of an audit is private: an audit repeats its releases, with keys derived from a seed. Audit artificial records.
"""

from discreet.audit._audits import WorstCase, audit_fit, audit_mechanism, audit_one_run, canary_fit, worst_case
from discreet.audit._verdict import (
    Rates,
    Verdict,
    clopper_pearson,
    epsilon_lower_bound,
    judge,
    one_run_epsilon,
    one_run_p_value,
    plot_verdicts,
)

__all__ = [
    "Rates",
    "Verdict",
    "WorstCase",
    "audit_fit",
    "audit_mechanism",
    "audit_one_run",
    "canary_fit",
    "clopper_pearson",
    "epsilon_lower_bound",
    "judge",
    "one_run_epsilon",
    "one_run_p_value",
    "plot_verdicts",
    "worst_case",
]
