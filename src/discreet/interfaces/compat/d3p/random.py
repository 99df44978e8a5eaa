"""`d3p.random`: its functions on ChaCha20 keys. They take keys of any kind; `debug` is `jax.random`, for threefry keys."""

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

from discreet.privacy import random

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
    """Create a key: secret without a seed, reproducible with one.

    Guarantee: without a seed, 256 bits of the operating system's entropy. With one, anyone who
    knows or guesses it can subtract the noise, so its results are labelled "reproducible: not
    private". (d3p did not distinguish the two.)

    Args:
        seed: None, an integer, or bytes, which are read as an integer.

    Raises:
        TypeError: Any other seed.

    Example:
        >>> from discreet.interfaces.compat.d3p.random import PRNGKey
        >>> bool(PRNGKey(7) == PRNGKey(7))
        True
    """
    if isinstance(seed, bytes):
        return random.key(int.from_bytes(seed, "big"))
    return random.key(seed)


def as_key(key: Any, name: str = "rng_key") -> jax.Array:
    """Convert a key of any kind to a scalar ChaCha20 key.

    ChaCha20 keys are returned unchanged; typed keys of another generator, and legacy
    `jax.random.PRNGKey` arrays of two words, are hashed. A legacy key has at most 64 bits, so the
    result counts as reproducible.

    Raises:
        TypeError: Not a key.
        ValueError: An array of keys.
    """
    return random.check_key(_typed(key), name)


def _typed(key: Any) -> Any:
    if hasattr(key, "dtype") and key.dtype == np.uint32 and np.shape(key) == (2,):
        return jax.random.wrap_key_data(jnp.asarray(key), impl="threefry2x32")
    return key


def split(key: Any, num: int = 2) -> jax.Array:
    """Derive `num` new keys."""
    return jax.random.split(as_key(key, "key"), num)


def fold_in(key: Any, data: Any) -> jax.Array:
    """Derive a new key from a key and an integer."""
    return jax.random.fold_in(as_key(key, "key"), data)


def random_bits(key: Any, bit_width: int, shape: Sequence[int]) -> jax.Array:
    """Draw uniform unsigned integers of 8, 16, 32 or 64 bits.

    Raises:
        ValueError: Another width.
    """
    dtypes = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}
    if bit_width not in dtypes:
        raise ValueError(f"bit_width is {bit_width}; it must be one of {sorted(dtypes)}.")
    return jax.random.bits(as_key(key, "key"), tuple(shape), dtypes[bit_width])


def uniform(
    key: Any,
    shape: Sequence[int] = (),
    dtype: DTypeLike = jnp.float32,
    minval: Any = 0.0,
    maxval: Any = 1.0,
) -> jax.Array:
    """Draw uniform values in [minval, maxval)."""
    return jax.random.uniform(as_key(key, "key"), tuple(shape), dtype, minval, maxval)


def normal(key: Any, shape: Sequence[int] = (), dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Draw standard Gaussian values, with tails beyond 9 standard deviations: `discreet.random.normal`.

    d3p's end at 5.42 in float32, so its noise lacks the tails beyond.
    """
    return random.normal(as_key(key, "key"), tuple(shape), dtype)


def randint(
    key: Any, shape: Sequence[int], minval: Any, maxval: Any, dtype: DTypeLike = jnp.int32
) -> jax.Array:
    """Draw uniform integers in [minval, maxval)."""
    return jax.random.randint(as_key(key, "key"), tuple(shape), minval, maxval, dtype)


def convert_to_jax_rng_key(key: Any) -> jax.Array:
    """Derive a threefry key for JAX and NumPyro functions that sample models: post-processing only, never noise.

    A key of `jax.random` or `debug` is returned unchanged.
    """
    checked = as_key(key, "key")
    return (
        key if jax.random.key_impl(_typed(key)) == "threefry2x32" else random.as_threefry(checked)
    )


def _debug_key(seed: int | None = None) -> jax.Array:
    """Create a key of `jax.random`, from a seed or 32 random bits. Statements count it as reproducible."""
    return jax.random.PRNGKey(secrets.randbits(32) if seed is None else seed)


debug = ModuleType(
    f"{__name__}.debug", "d3p.random.debug: `jax.random`. Fits with its keys are not private."
)
vars(debug).update(
    {
        name: getattr(jax.random, name)
        for name in ("split", "fold_in", "uniform", "normal", "randint")
    },
    PRNGKey=_debug_key,
    PRNGState=PRNGState,
    random_bits=lambda key, bit_width, shape: jax.random.bits(key, shape, f"uint{bit_width}"),
    convert_to_jax_rng_key=convert_to_jax_rng_key,
)
sys.modules[debug.__name__] = debug
