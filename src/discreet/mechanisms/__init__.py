"""The one place where noise is added, to sums whose L2 bound travels with them.

What stands here is one JAX primitive each: a mark that the verifier reads (`verify`) around a function that XLA
compiles as if there were no mark.
"""

from discreet.mechanisms._engine import (
    CLIPPED_SUM,
    DRAW,
    RELEASE,
    Release,
    clipped_sum,
    draw_batch,
    drawing_of,
    law_of,
    release,
)
from discreet.mechanisms._marked import (
    CLIP,
    FIXED_SIZE,
    GAUSSIAN,
    LAPLACE,
    OPEN_POISSON,
    POISSON,
    SUM,
    NoNoiseError,
    clip_records,
    gaussian_mechanism,
    laplace_mechanism,
    poisson_subsample,
    subsample_without_replacement,
    sum_records,
)
from discreet.mechanisms._memory import UPDATE_ROWS, update_rows

__all__ = [
    "CLIP",
    "CLIPPED_SUM",
    "DRAW",
    "FIXED_SIZE",
    "GAUSSIAN",
    "LAPLACE",
    "OPEN_POISSON",
    "POISSON",
    "RELEASE",
    "SUM",
    "UPDATE_ROWS",
    "NoNoiseError",
    "Release",
    "clip_records",
    "clipped_sum",
    "draw_batch",
    "drawing_of",
    "gaussian_mechanism",
    "laplace_mechanism",
    "law_of",
    "poisson_subsample",
    "release",
    "subsample_without_replacement",
    "sum_records",
    "update_rows",
]
