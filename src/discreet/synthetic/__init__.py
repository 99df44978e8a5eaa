"""Synthetic twins: tables drawn from a fitted model, inference from several of them, and their utility.

Twins are post-processing by construction: they depend on the private table through the released posterior only.
`marginal_distances` and `utility_report` are the exceptions; they compare twins with rows that their caller declares
non-private.
"""

from discreet.synthetic._combine import Combined as Combined
from discreet.synthetic._combine import combine as combine
from discreet.synthetic._draw import Fitted as Fitted
from discreet.synthetic._draw import Model as Model
from discreet.synthetic._draw import Posterior as Posterior
from discreet.synthetic._draw import TwinFormat as TwinFormat
from discreet.synthetic._draw import check_format as check_format
from discreet.synthetic._draw import read_fitted as read_fitted
from discreet.synthetic._draw import read_result as read_result
from discreet.synthetic._draw import synthesize as synthesize
from discreet.synthetic._draw import write_fitted as write_fitted
from discreet.synthetic._draw import write_twins as write_twins
from discreet.synthetic._utility import Comparison as Comparison
from discreet.synthetic._utility import MarginalDistances as MarginalDistances
from discreet.synthetic._utility import UtilityReport as UtilityReport
from discreet.synthetic._utility import marginal_distances as marginal_distances
from discreet.synthetic._utility import utility_report as utility_report
