"""Models ready to use, nothing private about them.

The regressions are plain NumPyro functions of (x, y). Each takes features of about unit size (`discreet.data.encode` maps
public bounds to [-1, 1]), has an intercept and weakly informative priors, and declares its records by
`numpyro.plate("data", x.shape[0])`. `MixtureOfProducts` is for whole tables, of which synthetic twins are to be drawn.
"""

from discreet.models._levels import Levels
from discreet.models._products import MixtureOfProducts
from discreet.models._regression import (
    linear_regression,
    logistic_regression,
    multinomial_regression,
    negative_binomial_regression,
    poisson_regression,
)

__all__ = [
    "Levels",
    "MixtureOfProducts",
    "linear_regression",
    "logistic_regression",
    "multinomial_regression",
    "negative_binomial_regression",
    "poisson_regression",
]
