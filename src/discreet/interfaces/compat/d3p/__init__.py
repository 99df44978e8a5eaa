"""d3p's interface, implemented with discreet's noise, sampling and accounting.

A program written for d3p (Prediger, Loppi, Kaski, Honkela, PoPETs 2022(2)) runs with its import
lines changed: read `discreet.interfaces.compat.d3p` where it says `d3p`, as in

    from discreet.interfaces.compat.d3p.minibatch import subsample_batchify_data
    from discreet.interfaces.compat.d3p.svi import DPSVI
    from discreet.interfaces.compat.d3p.dputil import approximate_sigma
    import discreet.interfaces.compat.d3p as d3p                        # d3p.random.PRNGKey(...)

All names are here as well. docs/migrating-from-d3p.md explains the differences: above all, epsilon
of fixed-size batches is larger than in d3p, whose formula was not that of fixed-size batches.

Behind d3p's own modules: `_binding` (a fit and its first batch), `feistel`, and `modelling`, which
has those of predictions, mixtures, ADADP and helpers.
"""

import sys

from discreet.interfaces.compat.d3p import dputil, minibatch, modelling, random, svi  # noqa: F401
from discreet.interfaces.compat.d3p.dputil import *  # noqa: F403
from discreet.interfaces.compat.d3p.minibatch import *  # noqa: F403
from discreet.interfaces.compat.d3p.modelling import *  # noqa: F403
from discreet.interfaces.compat.d3p.svi import *  # noqa: F403

# Three small modules of d3p, imported by these names, share one file with modelling here.
gmm = optimizers = util = modelling
sys.modules.update({f"{__name__}.{name}": modelling for name in ("gmm", "optimizers", "util")})
