"""Synthetic twins: tables drawn from a fitted model, inference from several of them, and their utility.

Twins are post-processing by construction: they depend on the private table through the released posterior only.
`marginal_distances` and `utility_report` are the exceptions; they compare twins with rows that their caller declares
non-private.
"""

from discreet.synthetic._combine import Combined, combine
from discreet.synthetic._draw import (
    Fitted,
    Model,
    Posterior,
    TwinFormat,
    check_format,
    read_fitted,
    read_result,
    synthesize,
    write_fitted,
    write_twins,
)
from discreet.synthetic._utility import Comparison, MarginalDistances, UtilityReport, marginal_distances, utility_report

__all__ = [
    "Combined",
    "Comparison",
    "Fitted",
    "MarginalDistances",
    "Model",
    "Posterior",
    "TwinFormat",
    "UtilityReport",
    "check_format",
    "combine",
    "marginal_distances",
    "read_fitted",
    "read_result",
    "synthesize",
    "utility_report",
    "write_fitted",
    "write_twins",
]
