"""Models ready to use, nothing private about them.

The regressions are plain NumPyro functions of (x, y). Each takes features of about unit size (`discreet.tables.encode` maps
public bounds to [-1, 1]), has an intercept and weakly informative priors, and declares its records by
`numpyro.plate("data", x.shape[0])`. `multinomial_regression` and `hierarchical` make such a function, the latter of
(x, group, y). The others are for whole tables, of which synthetic twins are to be drawn: `MixtureOfProducts` and `TableVAE`
for mixed columns, `GaussianMixture` and `FactorAnalysis` for numbers.
"""

from discreet.models._gaussians import FactorAnalysis, GaussianMixture
from discreet.models._hierarchical import hierarchical
from discreet.models._levels import Levels
from discreet.models._products import MixtureOfProducts
from discreet.models._regression import (
    linear_regression,
    logistic_regression,
    multinomial_regression,
    negative_binomial_regression,
    poisson_regression,
)
from discreet.models._scores import Scores
from discreet.models._vae import TableVAE

__all__ = [
    "FactorAnalysis",
    "GaussianMixture",
    "Levels",
    "MixtureOfProducts",
    "Scores",
    "TableVAE",
    "hierarchical",
    "linear_regression",
    "logistic_regression",
    "multinomial_regression",
    "negative_binomial_regression",
    "poisson_regression",
]
