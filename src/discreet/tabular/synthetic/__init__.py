"""Synthetic twins: tables drawn from a fitted model, and inference from several of them.

Twins are post-processing by construction: they depend on the private table through the released
posterior only. `marginal_distances` is the exception: it compares a twin with rows that its caller
declares non-private.

Files, in reading order: `_draw`, `_twins` (all in one call), `_combine`, `_distances`.
"""

from discreet.tabular.synthetic._combine import Combined as Combined, combine as combine
from discreet.tabular.synthetic._distances import (
    MarginalDistances as MarginalDistances,
    marginal_distances as marginal_distances,
)
from discreet.tabular.synthetic._draw import (
    Fitted as Fitted,
    Model as Model,
    Posterior as Posterior,
    TwinFormat as TwinFormat,
    check_format as check_format,
    read_fitted as read_fitted,
    read_result as read_result,
    synthesize as synthesize,
    write_fitted as write_fitted,
    write_twins as write_twins,
)
from discreet.tabular.synthetic._twins import Twins as Twins, twins as twins
