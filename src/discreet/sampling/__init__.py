"""Samplers: draw batches as row numbers and a mask, and name the event of a step on a batch."""

from discreet.sampling._draws import feistel_permutation
from discreet.sampling._samplers import (
    SAMPLERS,
    Batch,
    Drawing,
    FixedSizeSampling,
    FullBatch,
    OpenPoisson,
    PaddedDrawing,
    PoissonSampling,
    Sampling,
)

__all__ = [
    "SAMPLERS",
    "Batch",
    "Drawing",
    "FixedSizeSampling",
    "FullBatch",
    "OpenPoisson",
    "PaddedDrawing",
    "PoissonSampling",
    "Sampling",
    "feistel_permutation",
]
