"""The statement page: `report.html`, one file for a data protection officer, from released numbers alone.

No reader of tables is in reach: of people it knows what a result, a ledger and synthetic twins hold.
"""

from discreet.page._bound import may_hold as may_hold
from discreet.page._bound import profile_pairs as profile_pairs
from discreet.page._bound import trade_off_lines as trade_off_lines
from discreet.page._bound import true_positive_rate as true_positive_rate
from discreet.page._charts import course_of as course_of
from discreet.page._charts import losses_of as losses_of
from discreet.page._description import description_of as description_of
from discreet.page._page import Marginals as Marginals
from discreet.page._page import budget_of as budget_of
from discreet.page._page import marginals_of as marginals_of
from discreet.page._page import panel_of_summary as panel_of_summary
from discreet.page._page import panels_of_draws as panels_of_draws
from discreet.page._page import statement_page as statement_page
from discreet.page._page import write_report as write_report
