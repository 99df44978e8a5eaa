"""Models ready to use: plain NumPyro functions of (x, y), nothing private about them.

Each takes features of about unit size (`discreet.data.encode` maps public bounds to [-1, 1]), has an intercept and weakly
informative priors, and declares its records by `numpyro.plate("data", x.shape[0])`.
"""

from discreet.models._regression import linear_regression, logistic_regression, poisson_regression

__all__ = ["linear_regression", "logistic_regression", "poisson_regression"]
