"""The keys of a step.

There is one key for each use of randomness, from which a step derives its own by its number, so
that no two uses and no two steps share bits. A secret key starts one fit only (`random.claim`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from discreet.privacy import random


class StepKeys(NamedTuple):
    """One key for each use of randomness, all steps; a step folds its number in."""

    sampling: PRNGKeyArray  # draws the batch
    noise: PRNGKeyArray  # hides the sum
    guide: PRNGKeyArray  # draws the global latents. It may be known: a threefry key, for which JAX compiles less.
    local: PRNGKeyArray  # draws the bits of all records at once
    record: PRNGKeyArray  # from it each record derives a key, for draws that cannot be made at once
    # from it each record derives a key for its memory; None without a memory
    memory: PRNGKeyArray | None = None

    @classmethod
    def derive(cls, key: PRNGKeyArray, *, memory: bool = False) -> StepKeys:
        """Derive the keys from that of a fit, in which records may have a memory."""
        use = random.Purpose
        purposes = use.SAMPLING, use.NOISE, use.GUIDE, use.LOCAL_DRAWS, use.RECORDS
        sampling, noise, guide, local, record, *own = random.subkeys(
            key, (*purposes, use.MEMORY)[: 5 + memory]
        )
        return cls(sampling, noise, random.as_threefry(guide), local, record, *own)

    def at(self, step: Int[Array, ""]) -> StepKeys:
        """The keys of one step."""
        # Mapped over the secret ones: one block function to compile instead of several alike.
        own = [] if self.memory is None else [self.memory]
        secret = jnp.stack([self.sampling, self.noise, self.local, self.record, *own])
        sampling, noise, local, record, *own = jax.vmap(jax.random.fold_in, (0, None))(secret, step)
        return StepKeys(sampling, noise, jax.random.fold_in(self.guide, step), local, record, *own)
