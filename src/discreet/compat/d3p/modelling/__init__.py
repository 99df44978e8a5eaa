"""`d3p.modelling`: samples from the prior and posterior predictive distributions."""

from discreet.compat.d3p.modelling._predictive import (
    get_samples_from_trace,
    make_observed_model,
    map_args_obs_to_shape,
    sample_multi_posterior_predictive,
    sample_multi_prior_predictive,
    sample_posterior_predictive,
    sample_prior_predictive,
)

__all__ = [
    "get_samples_from_trace",
    "make_observed_model",
    "map_args_obs_to_shape",
    "sample_multi_posterior_predictive",
    "sample_multi_prior_predictive",
    "sample_posterior_predictive",
    "sample_prior_predictive",
]
