"""Attacks on what is claimed: lower bounds on ε, measured on the program that runs, to be held against its upper bound.

Nothing that is released here is private: an audit repeats its releases, with keys made from a seed. Audit made-up records.
"""

from discreet.audit._bounds import clopper_pearson, epsilon_lower_bound, one_run_epsilon, one_run_p_value
from discreet.audit._fits import audit_fit
from discreet.audit._judge import Rates, judge
from discreet.audit._mechanism import audit_mechanism
from discreet.audit._one_run import audit_one_run
from discreet.audit._plot import plot_verdicts
from discreet.audit._verdict import Verdict
from discreet.audit._worst import WorstCase, canary_fit, worst_case

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
