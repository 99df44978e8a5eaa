"""The statement page: `report.html`, one file for a data protection officer, from released numbers alone.

No reader of tables is in reach: of people it knows what a result, a ledger and synthetic twins hold.
"""

from discreet.page._bound import may_hold, profile_pairs, trade_off_lines, true_positive_rate
from discreet.page._charts import course_of, losses_of
from discreet.page._description import description_of
from discreet.page._page import (
    Marginals,
    budget_of,
    marginals_of,
    panel_of_summary,
    panels_of_draws,
    statement_page,
    utility_page,
    write_report,
)

__all__ = [
    "Marginals",
    "budget_of",
    "course_of",
    "description_of",
    "losses_of",
    "marginals_of",
    "may_hold",
    "panel_of_summary",
    "panels_of_draws",
    "profile_pairs",
    "statement_page",
    "trade_off_lines",
    "true_positive_rate",
    "utility_page",
    "write_report",
]
