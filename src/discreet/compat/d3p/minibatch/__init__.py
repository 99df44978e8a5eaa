"""`d3p.minibatch`: functions that hand out batches, drawn by discreet's samplers."""

from discreet.compat.d3p.minibatch._batchify import (
    poisson_batchify_data,
    split_batchify_data,
    subsample_batchify_data,
)
from discreet.compat.d3p.minibatch._law import BatchLaw, GetBatch, Source, live_sources, source_of
from discreet.compat.d3p.minibatch._sizes import batch_size_to_q, q_to_batch_size

__all__ = [
    "BatchLaw",
    "GetBatch",
    "Source",
    "batch_size_to_q",
    "live_sources",
    "poisson_batchify_data",
    "q_to_batch_size",
    "source_of",
    "split_batchify_data",
    "subsample_batchify_data",
]
