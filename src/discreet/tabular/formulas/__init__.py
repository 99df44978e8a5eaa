"""Regressions by a formula, as in brms and Bambi: `regress`.

Needs the extra `formula`. A formula is parsed by formulae (`_formula`), and its columns follow from
the public schema (`_design`). The fit is that of `newton` or `moments`, or of a NumPyro model that
is made from it (`_model`). `_regress` has the call, `_result` what it returns, `_prior` what is
expected before; `_alike` gives each cell the same bits whatever is beside it.
"""

from discreet.tabular.formulas._design import Design as Design
from discreet.tabular.formulas._prior import Prior as Prior, prior as prior
from discreet.tabular.formulas._regress import (
    fitted as fitted,
    plan_of as plan_of,
    refuse_rows as refuse_rows,
    regress as regress,
)
from discreet.tabular.formulas._result import Effect as Effect, Regression as Regression
