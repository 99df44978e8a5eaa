"""Mechanisms: the only package that adds noise, to sums with a known L2 bound; one JAX primitive per privacy operation.

A primitive is compiled by XLA as a plain function and recognized by the verifier (`_jax.marker`):

    _kinds      the mechanisms as objects (`GaussianMechanism`, `LaplaceMechanism`, ...)
    _integers   the laws of integer noise, and the grid that it is added on
    _noise      NOISE    noise on a tree of arrays; the parameter is the mechanism
                CHOOSE   one of several answers by the exponential mechanism
    _sums       CLIP, SUM      rows of joint norm at most C; the sum of the rows that a mask keeps
                WEIGHTED_SUM   integer rows times weights, of joint norm at most 1, and their sum
                COUNT          integer cross tables: a record is in one cell of each
    _batches    DRAW     a secret batch of the table, and its rows; the parameter is the sampler's
                drawing
    _engines    CLIPPED_SUM    the contract of gradient engines
                UPDATE_ROWS    per-record state from batch to batch, which is never released
    _shards     the same over the devices of a mesh

Numbers known at trace time are parameters of a primitive, traced ones are operands
(`known_number`), and the verifier reads both. A new mechanism is one class and one entry in
`MECHANISMS` (`_kinds`), and a public function that calls `add_noise` with it (`_noise`).
"""

from discreet.privacy.gradients import rounding_of_records as rounding_of_records
from discreet.privacy.mechanisms._batches import (
    DRAW as DRAW,
    draw_batch as draw_batch,
    poisson_subsample as poisson_subsample,
    subsample_without_replacement as subsample_without_replacement,
)
from discreet.privacy.mechanisms._engines import (
    CLIPPED_SUM as CLIPPED_SUM,
    UPDATE_ROWS as UPDATE_ROWS,
    Release as Release,
    clipped_sum as clipped_sum,
    release as release,
    update_rows as update_rows,
)
from discreet.privacy.mechanisms._integers import levels_for as levels_for
from discreet.privacy.mechanisms._kinds import (
    CHOICE as CHOICE,
    FLOAT_GAUSSIAN as FLOAT_GAUSSIAN,
    FOR_SUMS as FOR_SUMS,
    GAUSSIAN as GAUSSIAN,
    LAPLACE as LAPLACE,
    MECHANISMS as MECHANISMS,
    FloatMechanism as FloatMechanism,
    GridMechanism as GridMechanism,
    Mechanism as Mechanism,
)
from discreet.privacy.mechanisms._noise import (
    CHOOSE as CHOOSE,
    NOISE as NOISE,
    NoNoiseError as NoNoiseError,
    add_noise as add_noise,
    exponential_mechanism as exponential_mechanism,
    gaussian_mechanism as gaussian_mechanism,
    laplace_mechanism as laplace_mechanism,
    planned_gaussian as planned_gaussian,
    planned_laplace as planned_laplace,
)
from discreet.privacy.mechanisms._shards import (
    InFiles as InFiles,
    Shards as Shards,
    check_mesh as check_mesh,
)
from discreet.privacy.mechanisms._sums import (
    CLIP as CLIP,
    COUNT as COUNT,
    SUM as SUM,
    WEIGHTED_SUM as WEIGHTED_SUM,
    clip_records as clip_records,
    count_cells as count_cells,
    sum_records as sum_records,
    sum_weighted as sum_weighted,
)
