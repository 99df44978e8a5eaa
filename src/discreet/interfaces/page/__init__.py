"""The statement page: `report.html`, one file for a data protection officer, from released numbers alone.

No reader of tables is in reach: of people it knows what a result, a ledger and synthetic twins
hold.

Files, in reading order: `_bound` (what attackers can do), `_charts`, `_page`, `_description`.
"""

from discreet.interfaces.page._bound import (
    may_hold as may_hold,
    profile_pairs as profile_pairs,
    trade_off_lines as trade_off_lines,
    true_positive_rate as true_positive_rate,
)
from discreet.interfaces.page._charts import course_of as course_of
from discreet.interfaces.page._description import description_of as description_of
from discreet.interfaces.page._page import (
    budget_of as budget_of,
    panel_of_summary as panel_of_summary,
    panels_of_draws as panels_of_draws,
    statement_page as statement_page,
    write_report as write_report,
)
