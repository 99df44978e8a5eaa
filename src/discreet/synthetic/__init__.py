"""Synthetic twins: tables drawn from a fitted model, and what may be concluded from them.

Post-processing by construction: of the private table this room sees the released posterior only. `marginal_distances` is
the one exception; it compares with a table that its caller names as non-private.
"""

from discreet.synthetic._combine import Combined, combine
from discreet.synthetic._draw import Model, Posterior, synthesize
from discreet.synthetic._fitted import Fitted, read_fitted, write_fitted
from discreet.synthetic._marginals import MarginalDistances, marginal_distances
from discreet.synthetic._write import TwinFormat, check_format, write_twins

__all__ = [
    "Combined",
    "Fitted",
    "MarginalDistances",
    "Model",
    "Posterior",
    "TwinFormat",
    "check_format",
    "combine",
    "marginal_distances",
    "read_fitted",
    "synthesize",
    "write_fitted",
    "write_twins",
]
