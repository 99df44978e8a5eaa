"""Secure randomness: ChaCha20 keys for JAX, discrete Gaussian and Laplace noise, and a Gaussian sampler with exact tails.

Files, in reading order: `_chacha` (key and counter to words) with `_openssl`, `_prng` (words as
JAX's random bits), `_keys` (the types of keys, their purposes, all nonces), `_claims` (no key is
used twice), `_normal`, `_tables` and `_discrete` (the discrete Gaussian), `_laplace`.
"""

from discreet.privacy.random._claims import (
    INIT as INIT,
    check_unused as check_unused,
    claim as claim,
    num_claimed as num_claimed,
)
from discreet.privacy.random._discrete import discrete_gaussian as discrete_gaussian
from discreet.privacy.random._keys import (
    Purpose as Purpose,
    as_threefry as as_threefry,
    check_key as check_key,
    derives_apart as derives_apart,
    fast_bits as fast_bits,
    is_reproducible as is_reproducible,
    key as key,
    key_for as key_for,
    key_from_words as key_from_words,
    secret_key as secret_key,
    subkey as subkey,
    subkeys as subkeys,
)
from discreet.privacy.random._laplace import (
    LAPLACE_UNIT as LAPLACE_UNIT,
    MOST_LAPLACE as MOST_LAPLACE,
    discrete_laplace as discrete_laplace,
)
from discreet.privacy.random._normal import normal as normal
from discreet.privacy.random._tables import (
    INNER_VARIANCE as INNER_VARIANCE,
    MOST_FACTOR as MOST_FACTOR,
    SLACK_PER_VALUE as SLACK_PER_VALUE,
    WORD as WORD,
)
