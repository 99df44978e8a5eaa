"""Which records make a batch: samplers that carry their law, draw row numbers and a mask, and name their event."""

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
