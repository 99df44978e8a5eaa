"""Keys: ChaCha20 as two JAX PRNG implementations, the sources of keys, and their purposes.

A key made here holds 256 bits of the operating system's entropy, and its type says so (`chacha20`);
one made from a seed is of another type (`chacha20_seeded`). The two have the same functions, so a
key keeps its type through split, fold_in, jit, vmap and scan, and a statement can say
"reproducible: not private" from the type alone, while tracing.

A key is 256 bits, eight uint32 words. Every use of a key reads blocks whose nonce begins with a
word of its own:

| use                              | word 13 | word 14       | word 15      | counter (word 12)   | reads             |
| -------------------------------- | ------- | ------------- | ------------ | ------------------- | ----------------- |
| `random_bits`, bit width w       | "bits"  | w             | 0            | block number        | all words         |
| `split`, child i                 | "splt"  | 0             | 0            | i // 2              | half i % 2        |
| `fold_in`, data d                | "fold"  | d             | 0            | 0                   | first half        |
| `subkey`, purpose p              | "purp"  | p             | 0            | 0                   | first half        |
| `normal`, b bits a word          | "gaus"  | b             | 0            | block number        | all words         |
| `normal`, third words of pairs   | "gaus"  | 32            | 1            | block number        | rare pairs' words |
| `discrete_gaussian`, first words | "dgau"  | levels        | 0            | block number        | all words         |
| `discrete_gaussian`, undecided   | "dgau"  | levels        | 1            | value's blocks      | undecided values  |
| `discrete_laplace`               | "dlap"  | kind, throw   | chunk        | block number        | all words         |
| `as_threefry`                    | "thrf"  | 0             | 0            | 0                   | first two words   |
| integer seed (the seed is key)   | "seed"  | 0             | 0            | 0                   | first half        |
| key of another implementation    | "frgn"  | number words  | name's hash  | chunk number        | first half        |
| `key_for`: its four stages       | "hide"  | number words  | 0 to 3       | block or row number | all words         |

Two different uses never read the same (key, nonce, counter): uses of different rows differ in word
13 or 15; uses of one row differ in word 14 (width, data, purpose) or, for two children of a split,
in the counter or in the half of the block. Keys themselves differ: a derived key is half a block of
its parent, so two derived keys agree with probability 2**-256 a pair.

Key hygiene: use a key once. What the table adds is that even a key used both for bits and for
splitting gives unrelated values. Using it twice for *the same* thing gives the same values, as
everywhere in JAX: `split(key, 2)` and `split(key, 3)` share their first two children, and bits of
one width share words whatever the shape.

A fit needs several independent streams of one key: the noise, the sample, the initial values, the
posterior. Each has a `Purpose`, and `subkey` derives a key for it.
"""

import hashlib
import math
import operator
import os
from collections.abc import Sequence
from enum import IntEnum
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from discreet._jax import exact_product, is_key, refuse_forked, untraced
from discreet.privacy.random._chacha import (
    WORDS_PER_BLOCK,
    fast_keystream,
    is_known,
    keystream,
)
from discreet.privacy.random._prng import (
    BITS,
    CHACHA20,
    CHACHA20_SEEDED,
    FOREIGN,
    HIDE,
    KEY_WORDS,
    PURPOSE,
    THREEFRY,
    derive,
    nonce,
)

_SEED_TAG = b"discreet.random.key, version 1:"


class Purpose(IntEnum):
    """The purpose of a subkey. Subkeys of one key for different purposes are unrelated."""

    INIT = 1
    SAMPLING = 2
    NOISE = 3
    GUIDE = 4
    POSTERIOR = 5
    LOCAL_DRAWS = 6
    RECORDS = 7
    MEMORY = 8
    LANGEVIN = 9
    MARGINALS = 11
    MOMENTS = 12
    SCORES = 13
    DEVICES = 15
    NEWTON = 16
    SCHEMA = 17
    COMPARISON = 18


def key(seed: int | None = None) -> Array:
    """Create a fresh secret key or, with a seed, a reproducible one.

    Guarantee: without a seed, the 256 bits come from the operating system's cryptographic generator
    (`os.urandom`) and are kept nowhere else. With a seed, the key is SHA-256 of the seed; anyone
    who guesses the seed can subtract the noise from every release, so results are labelled
    "reproducible: not private".

    The result works with all of `jax.random` except `poisson` (see `as_threefry`). JAX prints the
    words of a key when asked to print one, as it does for all its keys: do not log keys.

    Args:
        seed: Any integer, of any size and sign; or None.

    Returns:
        A scalar typed JAX key.

    Raises:
        TypeError: The seed is not an integer (a Boolean, a float, an array that is being traced,
            ...).
        ValueError: No seed, inside of a function that JAX traces: each call of the compiled
            function would have this key.

    Example:
        >>> import jax
        >>> from discreet.privacy.random import is_reproducible, key
        >>> bool((key(7) == key(7)) & (key(7) != key(8)) & (key() != key()))
        True
        >>> is_reproducible(key(7)), is_reproducible(key())
        (True, False)
    """
    refuse_forked()
    if seed is None:
        if not untraced():
            raise ValueError(
                "discreet.random.key() was called inside of a function that JAX traces (jit, vmap, grad, scan, ...). The key "
                "would be a constant of the program, so every call and every row would draw the same noise, which subtraction "
                "removes. Make the key outside, and pass it as an argument."
            )
        return key_from_words(
            np.frombuffer(os.urandom(4 * KEY_WORDS), dtype="<u4"), reproducible=False
        )
    try:
        if isinstance(seed, bool) or getattr(seed, "dtype", None) == np.bool_:
            raise TypeError("a Boolean")
        number = operator.index(seed)
    except TypeError as error:
        raise TypeError(
            f"A seed is an integer, got {type(seed).__name__}. Pass a Python integer for a reproducible key, or "
            "nothing for a private key from the operating system."
        ) from error
    encoded = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    digest = hashlib.sha256(_SEED_TAG + encoded).digest()
    return key_from_words(np.frombuffer(digest, dtype="<u4"), reproducible=True)


def key_from_words(words: np.ndarray, *, reproducible: bool) -> Array:
    """Restore a key from its own words; only for a fit that continues after a crash.

    Args:
        words: `jax.random.key_data` of the key: uint32[8].
        reproducible: The kind of the key.
    """
    return jax.random.wrap_key_data(
        jnp.asarray(words, jnp.uint32), impl=CHACHA20_SEEDED if reproducible else CHACHA20
    )


def is_reproducible(key: Array) -> bool:
    """Check whether a key could be reproduced: True unless it came from the operating system.

    Static: works under tracing, and on arrays of keys. Anything but a key of `key()` counts as
    reproducible.

    Args:
        key: A JAX key.
    """
    return not (isinstance(key, Array) and is_key(key) and jax.random.key_impl(key) == CHACHA20)


@cache
def derives_apart(dtype: Any) -> bool:
    """True if `split` and `fold_in` of a key type give different keys for different arguments.

    Not true of `unsafe_rbg`, where `fold_in` is an exclusive or: folding in 1 and 2, and 2 and 1,
    gives one key, and folding in a number twice the key itself. Unknown types count as False.
    """
    words = np.zeros(KEY_WORDS, np.uint32)
    ours = [jax.eval_shape(partial(key_from_words, reproducible=x), words) for x in (True, False)]
    theirs = [
        jax.eval_shape(partial(jax.random.key, 0, impl=name)) for name in ("threefry2x32", "rbg")
    ]
    return dtype in [x.dtype for x in (*ours, *theirs)]


def check_key(key: Any, name: str = "rng_key") -> Array:
    """Check that a key is one scalar typed key; a key of another implementation becomes a "chacha20_seeded" key.

    The new key is derived from all the words of the old one, and counts as reproducible: a threefry
    key has at most 64 bits, of unknown origin.

    Args:
        key: The caller's argument.
        name: Its name in the caller's documentation, for the error.

    Returns:
        A scalar key of discreet's.

    Raises:
        TypeError: Not a typed key, for example a legacy `jax.random.PRNGKey` array of words.
        ValueError: An array of keys.
    """
    if not (isinstance(key, Array) and is_key(key)):
        raise TypeError(
            f"{name} must be a typed JAX key, got {_describe(key)}. Make one with discreet.random.key()."
        )
    if key.ndim:
        raise ValueError(
            f"{name} must be one key, got an array of keys of shape {key.shape}. Pass one of them, or map over them "
            "with jax.vmap."
        )
    impl = jax.random.key_impl(key)
    if impl in (CHACHA20, CHACHA20_SEEDED):
        return key
    words = _digest(jax.random.key_data(key).reshape(-1), str(impl))
    return jax.random.wrap_key_data(words, impl=CHACHA20_SEEDED)


def secret_key(rng_key: Any, who: str, non_private_seed: bool) -> Array:
    """Check a key like `check_key`, and refuse one from a seed unless the caller permits it.

    Args:
        rng_key: The caller's argument.
        who: The caller's name, for the error.
        non_private_seed: Permit keys from a seed.

    Raises:
        ValueError: A key made from a seed; and as `check_key`.
        TypeError: As `check_key`.
    """
    key = check_key(rng_key)
    if is_reproducible(key) and not non_private_seed:
        raise ValueError(
            f"{who}: the key was made from a seed, so its noise can be subtracted. Pass discreet.random.key(), or "
            "non_private_seed=True for a test."
        )
    return key


def _describe(key: Any) -> str:
    """Describe an argument without its values, which may be secret."""
    if hasattr(key, "dtype") and hasattr(key, "shape"):
        legacy = " (a legacy key)" if key.dtype == np.uint32 else ""
        return f"an array of {key.dtype} and shape {key.shape}{legacy}"
    return f"a value of type {type(key).__name__}"


def _digest(words: Array, impl_name: str) -> Array:
    """Eight words that depend on all of `words`, on their number and on the name, by chaining blocks."""
    name_hash = int.from_bytes(hashlib.sha256(impl_name.encode()).digest()[:4], "little")
    # What is known is computed by NumPy: nothing is compiled for it.
    arrays: Any = np if is_known(words) else jnp
    padded = arrays.pad(arrays.asarray(words), (0, -words.size % KEY_WORDS))
    state: Any = np.zeros(KEY_WORDS, np.uint32)
    for index, chunk in enumerate(padded.reshape(-1, KEY_WORDS)):
        mixed = arrays.asarray(state) ^ chunk
        state = derive(mixed, nonce(FOREIGN, words.size, name_hash), counter=index)
    return state


def subkey(key: Array, purpose: Purpose) -> Array:
    """Derive the key for one purpose, unrelated to `split`, `fold_in`, bits and other purposes of the same key.

    Args:
        key: One key, of any implementation; may be traced.
        purpose: The purpose of the subkey.

    Returns:
        A scalar key that is reproducible if and only if `key` is.

    Raises:
        TypeError: Not a typed key.
        ValueError: An array of keys, or not a `Purpose`.

    Example:
        >>> from discreet.privacy.random import Purpose, key, subkey
        >>> bool(subkey(key(0), Purpose.NOISE) == subkey(key(0), Purpose.SAMPLING))
        False
    """
    key = check_key(key, "key")
    words = derive(jax.random.key_data(key), nonce(PURPOSE, int(Purpose(purpose))))
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(key))


def subkeys(key: Array, purposes: Sequence[Purpose]) -> Array:
    """Derive subkeys for several purposes together; see `subkey`.

    Args:
        key: One key, of any implementation; may be traced.
        purposes: The purposes of the subkeys.

    Returns:
        An array of keys, one for each purpose.

    Example:
        >>> from discreet.privacy.random import Purpose, key, subkey, subkeys
        >>> bool(subkeys(key(0), [Purpose.NOISE, Purpose.SAMPLING])[1] == subkey(key(0), Purpose.SAMPLING))
        True
    """
    key = check_key(key, "key")
    numbers = jnp.array([int(Purpose(x)) for x in purposes], jnp.uint32)
    words = jax.vmap(lambda number: derive(jax.random.key_data(key), nonce(PURPOSE, number)))(
        numbers
    )
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(key))


def as_threefry(key: Array) -> Array:
    """Derive a threefry key, for code that takes no other: post-processing only.

    `jax.random.poisson` (and so NumPyro's `Poisson.sample`) and NumPyro's `Predictive` work with
    threefry keys only. A threefry key holds 64 bits and threefry is not a cryptographic generator:
    never use it for noise or for sampling records. Drawing from a released posterior needs no
    secrecy, so there it is safe. The key itself is not exposed: what is derived is two words of a
    ChaCha20 block.

    Args:
        key: One key, of any implementation; may be traced.

    Returns:
        A scalar threefry key.

    Raises:
        TypeError: Not a typed key.
        ValueError: An array of keys.

    Example:
        >>> import jax
        >>> from discreet.privacy.random import as_threefry, key
        >>> jax.random.poisson(as_threefry(key(0)), 3.0, (2,)).shape
        (2,)
    """
    key = check_key(key, "key")
    words = derive(jax.random.key_data(key), nonce(THREEFRY))[:2]
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def key_for(key: Array, values: Sequence[Any]) -> Array:
    """Derive the key of the noise that hides these values; a reproducible key is returned unchanged.

    Within a compiled program nobody can see that a key is used twice. With noise from this key two
    uses for different values have unrelated noise, which subtraction does not remove; two uses for
    the same values give the same result. The values are shortened by a universal hash with secret
    factors: a sum of 16-bit parts times 32-bit factors, modulo 2**32, agrees for two different rows
    with probability 2**-17 at most, and a row has eight such sums. Each row then enters one block
    of ChaCha20, and the blocks are combined by exclusive or.

    Args:
        key: One key of discreet's; may be traced.
        values: Arrays or numbers of 32 or 64 bits, of which every bit counts; may be private.

    Returns:
        A scalar key of the type of `key`.
    """
    if is_reproducible(key):
        return key
    arrays = [x if isinstance(x, Array) else jnp.asarray(x) for x in values]
    words = jnp.concatenate([lax.bitcast_convert_type(x, jnp.uint32).reshape(-1) for x in arrays])
    size = words.size
    own = derive(jax.random.key_data(key), nonce(HIDE, words.size))
    # As many blocks make the factors as rows are digested.
    length = max(KEY_WORDS, 1 << (math.isqrt(size).bit_length()))
    rows = jnp.pad(words, (0, -size % length)).reshape(-1, length)
    parts = jnp.concatenate([rows & np.uint32(0xFFFF), rows >> np.uint32(16)], axis=1)
    factors = keystream(own, nonce(HIDE, size, 1), length).reshape(KEY_WORDS, 2 * length)
    short = exact_product(parts, factors.T)
    digest = jax.vmap(lambda row, number: derive(own ^ row, nonce(HIDE, size, 2), number))
    blocks = digest(short, jnp.arange(len(short), dtype=jnp.uint32))
    total = lax.reduce(blocks, np.uint32(0), lax.bitwise_xor, (0,))
    return jax.random.wrap_key_data(derive(own ^ total, nonce(HIDE, size, 3)), impl=CHACHA20)


def fast_bits(key: Array, num_words: int) -> tuple[Array, Array]:
    """Compute the words of `jax.random.bits(key, (num_words,))`; also returns True if they are valid.

    Long draws on a CPU come from OpenSSL where it is installed. If it fails without a word (never
    seen), the second result is False, and nothing that depends on the first may be used.

    Args:
        key: One key; use it for nothing else.
        num_words: Number of words; static.

    Returns:
        uint32[num_words], and a Boolean scalar.

    Raises:
        TypeError: Not a typed key.
        ValueError: An array of keys, or more words than a key can number.
    """
    words = jax.random.key_data(check_key(key, "key"))
    stream, right = fast_keystream(words, nonce(BITS, 32), -(-num_words // WORDS_PER_BLOCK))
    return stream[:num_words], right
