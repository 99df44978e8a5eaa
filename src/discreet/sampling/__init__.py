"""Which records make a batch: samplers that hand out row numbers and a mask, and name their event."""

from discreet.sampling._batch import Batch, Sampling
from discreet.sampling._feistel import feistel_permutation
from discreet.sampling._fixed import FixedSizeSampling
from discreet.sampling._full import FullBatch
from discreet.sampling._poisson import PoissonSampling

__all__ = ["Batch", "FixedSizeSampling", "FullBatch", "PoissonSampling", "Sampling", "feistel_permutation"]
