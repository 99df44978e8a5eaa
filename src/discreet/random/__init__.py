"""Secure randomness: ChaCha20 keys for JAX, and a Gaussian sampler with exact tails."""

from discreet.random._discrete_gaussian import NoiseGrid, discrete_gaussian, noise_grid
from discreet.random._keys import (
    Purpose,
    as_threefry,
    check_key,
    fast_bits,
    is_reproducible,
    key,
    key_from_words,
    subkey,
    subkeys,
)
from discreet.random._normal import normal

__all__ = [
    "NoiseGrid",
    "Purpose",
    "as_threefry",
    "check_key",
    "discrete_gaussian",
    "fast_bits",
    "is_reproducible",
    "key",
    "key_from_words",
    "noise_grid",
    "normal",
    "subkey",
    "subkeys",
]
