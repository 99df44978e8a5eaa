"""Ready-made NumPyro models, and default settings to fit them. The fit is private, not the model.

The regressions are plain NumPyro functions of (x, y). Each takes features of about unit size
(`discreet.tables.encode` maps public bounds to [-1, 1]), has an intercept and weakly informative
priors, and declares its records by `numpyro.plate("data", x.shape[0])`. `multinomial_regression`
and `hierarchical` make such a function, the latter of (x, group, y). `MixtureOfProducts` models a
whole table, for synthetic twins.

Files, in reading order: `_regression`, `_hierarchical`, `_named` (by the names of the command
line), `_families` (of formulas); `_cells` with `_slices` (cells as levels), `_distributions`,
`_tables` (twins).
"""

from discreet.methods.inference import (
    Defaults as Defaults,
    defaults_for as defaults_for,
    guide_for as guide_for,
)
from discreet.tabular.models._cells import (
    Levels as Levels,
    coded_columns as coded_columns,
    refuse_second_rows as refuse_second_rows,
)
from discreet.tabular.models._families import (
    FAMILIES as FAMILIES,
    LEAST_TIME as LEAST_TIME,
    NUM_BANDS as NUM_BANDS,
    family_named as family_named,
)
from discreet.tabular.models._hierarchical import (
    contrasts as contrasts,
    groups_of as groups_of,
    hierarchical as hierarchical,
)
from discreet.tabular.models._named import (
    REGRESSIONS as REGRESSIONS,
    NamedRegression as NamedRegression,
)
from discreet.tabular.models._regression import (
    Family as Family,
    linear_regression as linear_regression,
    logistic_regression as logistic_regression,
    multinomial_regression as multinomial_regression,
    negative_binomial_regression as negative_binomial_regression,
    poisson_regression as poisson_regression,
)
from discreet.tabular.models._tables import MixtureOfProducts as MixtureOfProducts
