"""`d3p.random`: its functions, on discreet's ChaCha20 keys."""

from discreet.compat.d3p.random._suite import (
    PRNGKey,
    PRNGState,
    as_key,
    convert_to_jax_rng_key,
    fold_in,
    normal,
    randint,
    random_bits,
    split,
    uniform,
)

# A submodule, as in d3p; it imports the functions above.
from discreet.compat.d3p.random import debug  # isort: skip

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
