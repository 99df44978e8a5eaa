"""Which records make a batch: samplers that hand out row numbers and a mask, and name their event."""

from discreet.sampling._batch import Batch, Sampling
from discreet.sampling._feistel import feistel_permutation
from discreet.sampling._fixed import FixedSizeSampling
from discreet.sampling._full import FullBatch
from discreet.sampling._poisson import PoissonDrawing, PoissonSampling
from discreet.sampling._subsample import check_capacity, fixed_size_rows, poisson_rows

__all__ = [
    "Batch",
    "FixedSizeSampling",
    "FullBatch",
    "PoissonDrawing",
    "PoissonSampling",
    "Sampling",
    "check_capacity",
    "feistel_permutation",
    "fixed_size_rows",
    "poisson_rows",
]
