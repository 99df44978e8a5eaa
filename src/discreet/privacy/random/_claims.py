"""One secret key, one noise: who drew what, in this process.

Two releases with the same noise can be subtracted from one another. So the noise of a key, all of
it or that of one step, is claimed just before it is drawn, and a second claim is refused. Keys from
a seed are exempt: with them nothing is private anyway, and making the same release again is what
they are for.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from discreet._jax import untraced
from discreet.privacy.random._keys import is_reproducible

INIT = -1
"""The step of a fit's beginning, for callers that make its steps one by one."""
_ALL = "all steps"
# The steps whose noise a secret key has drawn in this process, by the key's digest.
_used: dict[bytes, Any] = {}
# The run that claimed all of a key's noise, if it may continue.
_run_of: dict[bytes, str] = {}
_claiming = threading.Lock()


def is_used(key: PRNGKeyArray, step: int | Int[Array, ""] | None = None) -> bool:
    """True if the noise of one step or of any (None) was drawn from a secret key in this process."""
    if not (digest := _digest(key)):
        return False
    used = _used.get(digest, set())
    return used == _ALL or bool(used and step is None) or (step is not None and int(step) in used)


def num_claimed() -> int:
    """Number of secret keys whose noise was claimed in this process."""
    return len(_used)


def check_unused(key: PRNGKeyArray, step: int | Int[Array, ""] | None = None) -> None:
    """Refuse a secret key whose noise, of one step or of all (None), was drawn before in this process, or under a trace."""
    if is_used(key, step):
        raise ValueError(
            "This key has drawn this noise before, in another fit or from the same state. Subtracting two releases with the "
            "same noise removes it, so neither stays private. Make a new key with "
            "discreet.random.key() for each fit, and give each state to update once."
        )


def claim(
    key: PRNGKeyArray,
    step: int | Int[Array, ""] | None = None,
    *,
    run_id: str = "",
    again: bool = False,
) -> None:
    """Take a secret key's noise, of one step or of all (None), just before it is drawn.

    Args:
        key: The key.
        step: The step.
        run_id: The run that takes all of it, if it may continue after a crash.
        again: It continues, and draws the same noise for the same states.

    Raises:
        ValueError: As `check_unused`, unless this run continues.
    """
    # Of several threads with one key, one gets it.
    with _claiming:
        digest = _digest(key)
        if not again or _run_of.get(digest, run_id) != run_id:
            check_unused(key, step)
        if digest:
            _run_of[digest] = run_id
            _used[digest] = _ALL if step is None else {*_used.get(digest, ()), int(step)}


def _digest(key: PRNGKeyArray) -> bytes:
    """A digest that identifies a secret key; empty for a key that may be used again."""
    if is_reproducible(key):
        return b""
    if not untraced():
        raise ValueError(
            "A secret key was given to a private method inside of a function that JAX traces (jit, vmap, scan, ...). There "
            "nobody can see whether the key or state is used once, and two releases with one noise can be subtracted. Call the "
            "method outside, since it compiles its own program; DPSVI.run compiles the whole loop."
        )
    return hashlib.sha256(np.asarray(jax.random.key_data(key)).tobytes()).digest()
