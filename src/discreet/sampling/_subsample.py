"""Drawing a batch and taking its rows, in one: what the marker primitives of `mechanisms` run."""

from __future__ import annotations

from typing import Any

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool

from discreet.sampling._batch import check_count
from discreet.sampling._fixed import FixedSizeSampling
from discreet.sampling._poisson import PoissonSampling


def check_capacity(rate: float, num_records: int, capacity: int) -> float:
    """The slack of a draw into `capacity` rows: the total-variation distance from independent coin flips.

    Raises:
        ValueError: more than a negligible share of the batches would not fit.
    """
    sampling = PoissonSampling(rate)
    needed = sampling.capacity(num_records)
    if check_count(capacity, "capacity") < needed:
        raise ValueError(
            f"poisson_subsample: capacity = {capacity} is too small for batches of {num_records} records at rate {rate}: one "
            f"may hold {needed} (more have a probability below 2^-80), and a batch that is cut short is no Poisson "
            f"sample. Pass capacity={needed}, that is PoissonSampling(rate).capacity(num_records)."
        )
    return sampling.slack_per_step(num_records)


def poisson_rows(
    key: jax.Array, leaves: list[Array], rate: float, capacity: int
) -> tuple[list[Array], Bool[Array, "row"]]:
    """The rows of a Poisson batch, in `capacity` rows of which those without a record are exactly zero."""
    num_records = leaves[0].shape[0]
    sampling = PoissonSampling(rate)
    batch = sampling.draw(key, sampling.prepare(num_records), num_records=num_records)
    free = capacity - batch.mask.shape[0]
    indices, mask = (jnp.pad(x, (0, free)) for x in batch)

    def rows(x: Array) -> Array:
        # A row of padding names record 0, which is none of the batch's: it must not show.
        taken = x.at[indices].get(mode="promise_in_bounds", wrap_negative_indices=False)
        return jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), taken, jnp.zeros_like(taken))

    return [rows(x) for x in leaves], mask


def fixed_size_rows(key: jax.Array, leaves: list[Array], batch_size: int) -> list[Array]:
    """The rows of a uniform set of `batch_size` records."""
    sampling = FixedSizeSampling(batch_size)
    batch: Any = sampling.draw(key, {}, num_records=leaves[0].shape[0])
    return [x.at[batch.indices].get(mode="promise_in_bounds", wrap_negative_indices=False) for x in leaves]
