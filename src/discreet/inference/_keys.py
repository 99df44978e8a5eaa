"""The keys of a fit: one for each use of randomness, and none used twice (Law 5)."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int, PRNGKeyArray

from discreet import random

_used_keys: set[bytes] = set()


class StepKeys(NamedTuple):
    """One key for each use of randomness, all steps; a step folds its number in."""

    sampling: PRNGKeyArray
    noise: PRNGKeyArray
    guide: PRNGKeyArray

    @classmethod
    def derive(cls, key: PRNGKeyArray) -> StepKeys:
        """From the key of a fit."""
        purposes = (random.Purpose.SAMPLING, random.Purpose.NOISE, random.Purpose.GUIDE)
        return cls(*(random.subkey(key, purpose) for purpose in purposes))

    def at(self, step: Int[Array, ""]) -> StepKeys:
        """The keys of one step."""
        return StepKeys(*(jax.random.fold_in(key, step) for key in self))


@jax.jit
def init_keys(key: PRNGKeyArray) -> PRNGKeyArray:
    """Keys for the initial values, which see no data and may be known: threefry, for which JAX compiles less."""
    return jax.random.split(random.as_threefry(random.subkey(key, random.Purpose.INIT)), 3)


def use_key_once(key: PRNGKeyArray) -> None:
    """Refuse a secret key that drew the noise of another fit in this process (Law 5)."""
    if random.is_reproducible(key) or isinstance(key, Tracer):
        return
    digest = hashlib.sha256(np.asarray(jax.random.key_data(key)).tobytes()).digest()
    if digest in _used_keys:
        raise ValueError(
            "This key has drawn the noise of another fit. Two releases with the same noise can be subtracted from one "
            "another, and nothing stays private. Make a new key with discreet.random.key() for each fit."
        )
    _used_keys.add(digest)
