"""d3p's names, with discreet's noise, sampling and accounting behind them.

A program written for d3p (Prediger, Loppi, Kaski, Honkela, PoPETs 2022(2)) runs with its import lines changed: read
`discreet.compat.d3p` where it says `d3p`, as in

    from discreet.compat.d3p.minibatch import subsample_batchify_data
    from discreet.compat.d3p.svi import DPSVI
    from discreet.compat.d3p.dputil import approximate_sigma
    import discreet.compat.d3p as d3p                        # d3p.random.PRNGKey(...)

All names are here as well. What differs, and why, is in docs/migrating-from-d3p.md: above all, epsilon of fixed-size
batches is larger than d3p said, because d3p's formula was not that of fixed-size batches.
"""

from discreet.compat.d3p import dputil, gmm, minibatch, modelling, optimizers, random, svi, util
from discreet.compat.d3p.dputil import (
    D3PAccountingWarning,
    approximate_sigma,
    approximate_sigma_remove_relation,
    get_epsilon_R,
    get_epsilon_S,
)
from discreet.compat.d3p.gmm import GaussianMixture
from discreet.compat.d3p.minibatch import (
    batch_size_to_q,
    poisson_batchify_data,
    poisson_sample_idxs,
    q_to_batch_size,
    split_batchify_data,
    subsample_batchify_data,
)
from discreet.compat.d3p.modelling import (
    make_observed_model,
    sample_multi_posterior_predictive,
    sample_multi_prior_predictive,
    sample_posterior_predictive,
    sample_prior_predictive,
)
from discreet.compat.d3p.optimizers import ADADP, adadp
from discreet.compat.d3p.svi import (
    DPSVI,
    clip_gradient,
    full_norm,
    get_observations_scale,
    normalize_gradient,
)

__all__ = [
    "ADADP",
    "DPSVI",
    "D3PAccountingWarning",
    "GaussianMixture",
    "adadp",
    "approximate_sigma",
    "approximate_sigma_remove_relation",
    "batch_size_to_q",
    "clip_gradient",
    "dputil",
    "full_norm",
    "get_epsilon_R",
    "get_epsilon_S",
    "get_observations_scale",
    "gmm",
    "make_observed_model",
    "minibatch",
    "modelling",
    "normalize_gradient",
    "optimizers",
    "poisson_batchify_data",
    "poisson_sample_idxs",
    "q_to_batch_size",
    "random",
    "sample_multi_posterior_predictive",
    "sample_multi_prior_predictive",
    "sample_posterior_predictive",
    "sample_prior_predictive",
    "split_batchify_data",
    "subsample_batchify_data",
    "svi",
    "util",
]
