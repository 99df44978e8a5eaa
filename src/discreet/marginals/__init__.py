"""Measure once: noisy counts of cross tables in one Gaussian release, and what is computed from them.

`private_marginals` counts the cross tables of a `MarginalsPlan`. It alone sees records. `Description` has shares, means,
quantiles and two-way tables with intervals; `describe` does both. `fit_twins` fits a mixture of products to the noisy counts,
from which `discreet.synthetic` draws twins.
"""

from discreet.marginals._describe import ColumnFigures, Description, Figure, PairFigures, describe, description_plan
from discreet.marginals._release import Marginals, MarginalsPlan, load_marginals, private_marginals
from discreet.marginals._twins import (
    NO_SPREAD,
    MarginalsResult,
    counts_model,
    counts_suffice,
    fit_twins,
    load_marginals_result,
    twin_tables,
)

__all__ = [
    "NO_SPREAD",
    "ColumnFigures",
    "Description",
    "Figure",
    "Marginals",
    "MarginalsPlan",
    "MarginalsResult",
    "PairFigures",
    "counts_model",
    "counts_suffice",
    "describe",
    "description_plan",
    "fit_twins",
    "load_marginals",
    "load_marginals_result",
    "private_marginals",
    "twin_tables",
]
