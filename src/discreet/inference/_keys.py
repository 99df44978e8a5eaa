"""The keys of a fit: one for each use of randomness, and none used twice (Law 5)."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int, PRNGKeyArray

from discreet import random

_ALL = "all steps"
INIT = -1
# Which steps a secret key has drawn noise for in this process, by the key's digest.
_used: dict[bytes, Any] = {}


class StepKeys(NamedTuple):
    """One key for each use of randomness, all steps; a step folds its number in.

    Attributes:
        sampling: draws the batch.
        noise: hides the sum.
        guide: draws what all records share. It may be known: a threefry key, for which JAX compiles less.
        local: draws the bits of all records at once.
        record: from it each record derives a key, for draws that cannot be made at once.
        memory: from it each record derives a key for what it remembers; None where records remember nothing.
    """

    sampling: PRNGKeyArray
    noise: PRNGKeyArray
    guide: PRNGKeyArray
    local: PRNGKeyArray
    record: PRNGKeyArray
    memory: PRNGKeyArray | None = None

    @classmethod
    def derive(cls, key: PRNGKeyArray, *, memory: bool = False) -> StepKeys:
        """From the key of a fit, in which records may have a memory."""
        use = random.Purpose
        purposes = use.SAMPLING, use.NOISE, use.GUIDE, use.LOCAL_DRAWS, use.RECORDS
        sampling, noise, guide, local, record, *own = random.subkeys(key, (*purposes, use.MEMORY)[: 5 + memory])
        return cls(sampling, noise, random.as_threefry(guide), local, record, *own)

    def at(self, step: Int[Array, ""]) -> StepKeys:
        """The keys of one step."""
        # Mapped over the secret ones: one block function to compile instead of several alike.
        own = [] if self.memory is None else [self.memory]
        secret = jnp.stack([self.sampling, self.noise, self.local, self.record, *own])
        sampling, noise, local, record, *own = jax.vmap(jax.random.fold_in, (0, None))(secret, step)
        return StepKeys(sampling, noise, jax.random.fold_in(self.guide, step), local, record, *own)


@jax.jit
def init_keys(key: PRNGKeyArray) -> PRNGKeyArray:
    """Keys for the initial values, which see no data and may be known: threefry, for which JAX compiles less."""
    return jax.random.split(random.as_threefry(random.subkey(key, random.Purpose.INIT)), 3)


def check_unused(key: PRNGKeyArray, step: int | None = None) -> None:
    """Refuse a secret key whose noise, of one step or of all (None), was drawn before in this process.

    Two releases with the same noise can be subtracted from one another. Keys from a seed are exempt: with them nothing
    is private anyway, and making the same release again is what they are for. So are keys that are being traced.

    Raises:
        ValueError: the noise was drawn before.
    """
    used = _used.get(_digest(key), set())
    if used == _ALL or (used and step is None) or step in used:
        raise ValueError(
            "This key has drawn this noise before, in another fit or from the same state. Two releases with the same "
            "noise can be subtracted from one another, and nothing stays private. Make a new key with "
            "discreet.random.key() for each fit, and give each state to update once."
        )


def claim(key: PRNGKeyArray, step: int | None = None) -> None:
    """Take a secret key's noise, just before it is drawn; see `check_unused`.

    Raises:
        ValueError: the noise was drawn before.
    """
    check_unused(key, step)
    digest = _digest(key)
    if digest:
        _used[digest] = _ALL if step is None else {*_used.get(digest, ()), step}


def take(key: PRNGKeyArray) -> None:
    """Take a key for a fit that goes on: it draws noise that it drew before, for the states that it belongs to."""
    digest = _digest(key)
    if digest:
        _used[digest] = _ALL


def _digest(key: PRNGKeyArray) -> bytes:
    """What tells secret keys apart without keeping them; empty for a key that may be used again."""
    if random.is_reproducible(key) or isinstance(key, Tracer):
        return b""
    return hashlib.sha256(np.asarray(jax.random.key_data(key)).tobytes()).digest()
