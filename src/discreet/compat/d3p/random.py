"""`d3p.random`: its functions on ChaCha20 keys. They take keys of any kind; `debug` is JAX's own generator."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from discreet import random

__all__ = [
    "PRNGKey",
    "PRNGState",
    "as_key",
    "convert_to_jax_rng_key",
    "debug",
    "fold_in",
    "normal",
    "randint",
    "random_bits",
    "split",
    "uniform",
]

PRNGState = jax.Array
"""A scalar typed JAX key."""


def PRNGKey(seed: int | bytes | Any | None = None) -> jax.Array:  # noqa: N802 - d3p's name
    """A key: secret without a seed, reproducible with one.

    Guarantee: without a seed, 256 bits of the operating system's entropy. With one, whoever knows or guesses it can
    take the noise away, so results made from it say "reproducible: not private". (d3p did not tell the two apart.)

    Args:
        seed: None, an integer, or bytes, which are read as an integer.

    Raises:
        TypeError: the seed is none of these.

    Example:
        >>> from discreet.compat.d3p.random import PRNGKey
        >>> bool(PRNGKey(7) == PRNGKey(7))
        True
    """
    if isinstance(seed, bytes):
        return random.key(int.from_bytes(seed, "big"))
    return random.key(seed)


def as_key(key: Any, name: str = "rng_key") -> jax.Array:
    """A scalar ChaCha20 key from a key of any kind.

    Typed keys are taken as they are, or hashed into a ChaCha20 key where they are of another generator. A legacy
    `jax.random.PRNGKey` array of two words likewise; it holds 64 bits at most, so the result counts as reproducible.

    Raises:
        TypeError: not a key.
        ValueError: an array of keys.
    """
    if hasattr(key, "dtype") and key.dtype == np.uint32 and np.shape(key) == (2,):
        key = jax.random.wrap_key_data(jnp.asarray(key), impl="threefry2x32")
    return random.check_key(key, name)


def split(key: Any, num: int = 2) -> jax.Array:
    """`num` new keys."""
    return jax.random.split(as_key(key, "key"), num)


def fold_in(key: Any, data: Any) -> jax.Array:
    """A new key, from a key and an integer."""
    return jax.random.fold_in(as_key(key, "key"), data)


def random_bits(key: Any, bit_width: int, shape: Sequence[int]) -> jax.Array:
    """Uniform unsigned integers of 8, 16, 32 or 64 bits.

    Raises:
        ValueError: another width.
    """
    dtypes = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}
    if bit_width not in dtypes:
        raise ValueError(f"bit_width is {bit_width}; there are unsigned integers of {sorted(dtypes)} bits.")
    return jax.random.bits(as_key(key, "key"), tuple(shape), dtypes[bit_width])


def uniform(
    key: Any, shape: Sequence[int] = (), dtype: DTypeLike = jnp.float32, minval: Any = 0.0, maxval: Any = 1.0
) -> jax.Array:
    """Uniform values in [minval, maxval)."""
    return jax.random.uniform(as_key(key, "key"), tuple(shape), dtype, minval, maxval)


def normal(key: Any, shape: Sequence[int] = (), dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Standard Gaussian values, with tails beyond 9 standard deviations: `discreet.random.normal`.

    d3p's end at 5.42 in float32, and what lies beyond is missing from its noise.
    """
    return random.normal(as_key(key, "key"), tuple(shape), dtype)


def randint(key: Any, shape: Sequence[int], minval: Any, maxval: Any, dtype: DTypeLike = jnp.int32) -> jax.Array:
    """Uniform integers in [minval, maxval)."""
    return jax.random.randint(as_key(key, "key"), tuple(shape), minval, maxval, dtype)


def convert_to_jax_rng_key(key: Any) -> jax.Array:
    """A threefry key for JAX and NumPyro functions that sample models: post-processing only, never noise."""
    return random.as_threefry(as_key(key, "key"))


def _debug_key(seed: int | None = None) -> jax.Array:
    """A threefry key, from a seed or 32 random bits. It counts as reproducible wherever a statement is made."""
    return jax.random.key(secrets.randbits(32) if seed is None else seed)


# A module of d3p's with the same functions, on keys of JAX's own generator: what is fitted with them is marked as not private.
debug = ModuleType(f"{__name__}.debug", "d3p.random.debug: keys of JAX's own generator.")
vars(debug).update({name: globals()[name] for name in __all__ if name not in ("as_key", "debug")}, PRNGKey=_debug_key)
sys.modules[debug.__name__] = debug
