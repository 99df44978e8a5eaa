"""Ready-made NumPyro models, and default settings to fit them. The fit is private, not the model.

The regressions are plain NumPyro functions of (x, y). Each takes features of about unit size (`discreet.tables.encode` maps
public bounds to [-1, 1]), has an intercept and weakly informative priors, and declares its records by
`numpyro.plate("data", x.shape[0])`. `multinomial_regression` and `hierarchical` make such a function, the latter of
(x, group, y). The others model whole tables, for synthetic twins: `MixtureOfProducts` and `TableVAE` for mixed columns,
`GaussianMixture` and `FactorAnalysis` for numbers.
"""

from discreet.models._cells import Levels, Scores
from discreet.models._defaults import Defaults, defaults_for, guide_for
from discreet.models._regression import (
    contrasts,
    groups_of,
    hierarchical,
    linear_regression,
    logistic_regression,
    multinomial_regression,
    negative_binomial_regression,
    poisson_regression,
)
from discreet.models._tables import FactorAnalysis, GaussianMixture, MixtureOfProducts, TableVAE

__all__ = [
    "Defaults",
    "FactorAnalysis",
    "GaussianMixture",
    "Levels",
    "MixtureOfProducts",
    "Scores",
    "TableVAE",
    "contrasts",
    "defaults_for",
    "groups_of",
    "guide_for",
    "hierarchical",
    "linear_regression",
    "logistic_regression",
    "multinomial_regression",
    "negative_binomial_regression",
    "poisson_regression",
]
