"""`d3p.minibatch`: functions that hand out batches, drawn by discreet's samplers."""

from discreet.compat.d3p.minibatch._batchify import (
    poisson_batchify_data,
    split_batchify_data,
    subsample_batchify_data,
)
from discreet.compat.d3p.minibatch._law import BatchLaw, GetBatch, drawn_from_a_seed, live_laws
from discreet.compat.d3p.minibatch._sizes import batch_size_to_q, q_to_batch_size

__all__ = [
    "BatchLaw",
    "GetBatch",
    "batch_size_to_q",
    "drawn_from_a_seed",
    "live_laws",
    "poisson_batchify_data",
    "q_to_batch_size",
    "split_batchify_data",
    "subsample_batchify_data",
]
