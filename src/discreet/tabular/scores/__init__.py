"""Scores of a fit on held-out records, and the comparison of several fits, under differential privacy.

Files, in reading order: `_plan` (what a row adds at most, and what the sums cost), `_terms` (from
rows to integers), `_metrics` (the release and its figures), `_compare` (several fits on the same
rows).
"""

from discreet.tabular.scores._compare import (
    Comparison as Comparison,
    ComparisonPlan as ComparisonPlan,
    compare as compare,
)
from discreet.tabular.scores._metrics import (
    Estimate as Estimate,
    PrivateMetrics as PrivateMetrics,
    private_metrics as private_metrics,
)
from discreet.tabular.scores._plan import ScorePlan as ScorePlan
