"""`d3p.random.debug`: keys of JAX's own generator. Whatever is fitted with them is marked as not private."""

from __future__ import annotations

import secrets

import jax

from discreet.compat.d3p.random import (
    PRNGState,
    convert_to_jax_rng_key,
    fold_in,
    normal,
    randint,
    random_bits,
    split,
    uniform,
)

__all__ = [
    "PRNGKey",
    "PRNGState",
    "convert_to_jax_rng_key",
    "fold_in",
    "normal",
    "randint",
    "random_bits",
    "split",
    "uniform",
]


def PRNGKey(seed: int | None = None) -> jax.Array:  # noqa: N802 - d3p's name
    """A threefry key, from a seed or 32 random bits. It counts as reproducible wherever a statement is made."""
    return jax.random.key(secrets.randbits(32) if seed is None else seed)
