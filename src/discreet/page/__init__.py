"""The statement page: `report.html`, one file for a data protection officer, from released numbers alone.

No reader of tables is in reach: of people it knows what a result, a ledger and synthetic twins hold.
"""

from discreet.page._bound import may_hold, profile_pairs, trade_off_lines, true_positive_rate
from discreet.page._budget import budget_of
from discreet.page._course import course_of, losses_of
from discreet.page._page import statement_page
from discreet.page._posterior import panel_of_summary, panels_of_draws
from discreet.page._twins import Marginals, marginals_of
from discreet.page._write import write_report

__all__ = [
    "Marginals",
    "budget_of",
    "course_of",
    "losses_of",
    "marginals_of",
    "may_hold",
    "panel_of_summary",
    "panels_of_draws",
    "profile_pairs",
    "statement_page",
    "trade_off_lines",
    "true_positive_rate",
    "write_report",
]
