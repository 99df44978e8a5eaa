"""Measure once: noisy counts of cross tables in one release, and what is computed from them.

`private_marginals` counts the cross tables of a `MarginalsPlan`. It alone sees records.
`Description` has shares, means, quantiles and two-way tables with intervals; `describe` does both.
`fit_twins` fits a mixture of products to the noisy counts, from which `synthetic` draws
twins; `synthetic.twins` does all of it.

Of a release, in reading order: `_programs` (what is proved), `_wording`, `_plan`, `_result`,
`_exact` (from a table to the arguments of the programs), `_release`.

What follows from one: `_estimates` with `_tails`, `_projection` and `_crossed` (figures that agree,
with intervals), `_figures`, `_describe`, `_words`; `_widths` (how wide intervals will be); `_twins`.
"""

from discreet.tabular.marginals._describe import (
    Description as Description,
    describe as describe,
    description_plan as description_plan,
)
from discreet.tabular.marginals._estimates import fieller as fieller
from discreet.tabular.marginals._figures import (
    ColumnFigures as ColumnFigures,
    Figure as Figure,
    GroupFigures as GroupFigures,
    PairFigures as PairFigures,
)
from discreet.tabular.marginals._plan import MarginalsPlan as MarginalsPlan
from discreet.tabular.marginals._release import private_marginals as private_marginals
from discreet.tabular.marginals._result import Marginals as Marginals, release_of as release_of
from discreet.tabular.marginals._tails import tail as tail, z_of as z_of
from discreet.tabular.marginals._twins import (
    NO_SPREAD as NO_SPREAD,
    NOBODYS as NOBODYS,
    MarginalsResult as MarginalsResult,
    counts_model as counts_model,
    counts_suffice as counts_suffice,
    fit_twins as fit_twins,
    not_counted as not_counted,
)
from discreet.tabular.marginals._widths import (
    epsilon_for_widths as epsilon_for_widths,
    half_widths as half_widths,
)
from discreet.tabular.marginals._words import (
    Cell as Cell,
    Shown as Shown,
    figures_of as figures_of,
    levels_of as levels_of,
    numbers_in_words as numbers_in_words,
    tables_of as tables_of,
)
