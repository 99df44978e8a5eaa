"""Samplers: draw batches as row numbers and a mask, and name the event of a step on a batch."""

from discreet.privacy.sampling._samplers import (
    SAMPLERS as SAMPLERS,
    Batch as Batch,
    Drawing as Drawing,
    FixedSizeSampling as FixedSizeSampling,
    FullBatch as FullBatch,
    OpenPoisson as OpenPoisson,
    PoissonSampling as PoissonSampling,
    Sampling as Sampling,
    ThinnedPoisson as ThinnedPoisson,
)
