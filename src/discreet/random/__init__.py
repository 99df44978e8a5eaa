"""Secure randomness: ChaCha20 keys for JAX, discrete Gaussian and Laplace noise, and a Gaussian sampler with exact tails."""

from discreet.random._discrete import (
    INNER_VARIANCE,
    LAPLACE_UNIT,
    MOST_FACTOR,
    MOST_LAPLACE,
    SLACK_PER_VALUE,
    WORD,
    discrete_gaussian,
    discrete_laplace,
)
from discreet.random._keys import (
    Purpose,
    as_threefry,
    check_key,
    derives_apart,
    fast_bits,
    is_reproducible,
    key,
    key_from_words,
    secret_key,
    subkey,
    subkeys,
)
from discreet.random._normal import normal

__all__ = [
    "INNER_VARIANCE",
    "LAPLACE_UNIT",
    "MOST_FACTOR",
    "MOST_LAPLACE",
    "SLACK_PER_VALUE",
    "WORD",
    "Purpose",
    "as_threefry",
    "check_key",
    "derives_apart",
    "discrete_gaussian",
    "discrete_laplace",
    "fast_bits",
    "is_reproducible",
    "key",
    "key_from_words",
    "normal",
    "secret_key",
    "subkey",
    "subkeys",
]
