"""Predictions for new rows from a fitted posterior: post-processing, which reads releases and the new rows alone.

Files, in reading order: `_classes` (class probabilities of NumPyro models),
`_outcomes` (draws of means and of new outcomes, and log densities, of any NumPyro model),
`_likelihoods` (the same of regressions, given coefficients).
"""

from discreet.methods.predict._classes import (
    class_probabilities as class_probabilities,
    linear_predictor as linear_predictor,
    probit_probabilities as probit_probabilities,
)
from discreet.methods.predict._likelihoods import (
    Likelihood as Likelihood,
    likelihood_of as likelihood_of,
)
from discreet.methods.predict._outcomes import (
    Predictions as Predictions,
    log_density_of as log_density_of,
    model_predictions as model_predictions,
)
