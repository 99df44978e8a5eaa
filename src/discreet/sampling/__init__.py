"""Which records make a batch: samplers that hand out row numbers and a mask, and name their event."""

from ._batch import Batch, Sampling
from ._feistel import feistel_permutation
from ._fixed import FixedSizeSampling
from ._full import FullBatch
from ._poisson import PoissonSampling

__all__ = ["Batch", "FixedSizeSampling", "FullBatch", "PoissonSampling", "Sampling", "feistel_permutation"]
