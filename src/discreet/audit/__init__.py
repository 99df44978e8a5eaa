"""Audits: attack a program to measure a lower bound on its ε, for comparison with the claimed upper bound.

No release of an audit is private: an audit repeats its releases, with keys derived from a seed. Audit artificial records.
"""

from discreet.audit._audits import WorstCase as WorstCase
from discreet.audit._audits import audit_fit as audit_fit
from discreet.audit._audits import audit_mechanism as audit_mechanism
from discreet.audit._audits import audit_one_run as audit_one_run
from discreet.audit._audits import canary_fit as canary_fit
from discreet.audit._audits import worst_case as worst_case
from discreet.audit._verdict import Rates as Rates
from discreet.audit._verdict import Verdict as Verdict
from discreet.audit._verdict import clopper_pearson as clopper_pearson
from discreet.audit._verdict import epsilon_lower_bound as epsilon_lower_bound
from discreet.audit._verdict import judge as judge
from discreet.audit._verdict import one_run_epsilon as one_run_epsilon
from discreet.audit._verdict import one_run_p_value as one_run_p_value
from discreet.audit._verdict import plot_verdicts as plot_verdicts
