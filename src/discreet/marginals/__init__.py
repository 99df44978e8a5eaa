"""Measure once: noisy counts of cross tables in one Gaussian release, and what is computed from them.

`private_marginals` counts the cross tables of a `MarginalsPlan`. It alone sees records. `Description` has shares, means,
quantiles and two-way tables with intervals; `describe` does both. `fit_twins` fits a mixture of products to the noisy counts,
from which `discreet.synthetic` draws twins.
"""

from discreet.marginals._describe import ColumnFigures as ColumnFigures
from discreet.marginals._describe import Description as Description
from discreet.marginals._describe import Figure as Figure
from discreet.marginals._describe import PairFigures as PairFigures
from discreet.marginals._describe import describe as describe
from discreet.marginals._describe import description_plan as description_plan
from discreet.marginals._describe import fieller as fieller
from discreet.marginals._release import Marginals as Marginals
from discreet.marginals._release import MarginalsPlan as MarginalsPlan
from discreet.marginals._release import private_marginals as private_marginals
from discreet.marginals._twins import NO_SPREAD as NO_SPREAD
from discreet.marginals._twins import MarginalsResult as MarginalsResult
from discreet.marginals._twins import counts_model as counts_model
from discreet.marginals._twins import counts_suffice as counts_suffice
from discreet.marginals._twins import fit_twins as fit_twins
from discreet.marginals._twins import not_counted as not_counted
from discreet.marginals._twins import twin_tables as twin_tables
