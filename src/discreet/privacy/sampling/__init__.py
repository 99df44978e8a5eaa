"""Samplers: draw batches as row numbers and a mask, and name the event of a step on a batch.

Files, in reading order: `_interface` (what a sampler is), `_samplers`, `_poisson`, `_draws` (their
arithmetic).
"""

from discreet.privacy.sampling._interface import (
    Batch as Batch,
    Drawing as Drawing,
    Sampling as Sampling,
)
from discreet.privacy.sampling._poisson import (
    OpenPoisson as OpenPoisson,
    PoissonSampling as PoissonSampling,
    ThinnedPoisson as ThinnedPoisson,
)
from discreet.privacy.sampling._samplers import (
    SAMPLERS as SAMPLERS,
    FixedSizeSampling as FixedSizeSampling,
    FullBatch as FullBatch,
)
