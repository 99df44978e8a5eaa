"""ChaCha20 as two JAX PRNG implementations, with one nonce domain for each use of a key.

A key is 256 bits, eight uint32 words. Every use of a key reads blocks whose nonce begins with a word of its own:

| use                              | word 13 | word 14       | word 15      | counter (word 12)   | reads             |
| -------------------------------- | ------- | ------------- | ------------ | ------------------- | ----------------- |
| `random_bits`, bit width w       | "bits"  | w             | 0            | block number        | all words         |
| `split`, child i                 | "splt"  | 0             | 0            | i // 2              | half i % 2        |
| `fold_in`, data d                | "fold"  | d             | 0            | 0                   | first half        |
| `subkey`, purpose p              | "purp"  | p             | 0            | 0                   | first half        |
| `normal`, b bits a word          | "gaus"  | b             | 0            | block number        | all words         |
| `normal`, third words of pairs   | "gaus"  | 32            | 1            | block number        | rare pairs' words |
| `as_threefry`                    | "thrf"  | 0             | 0            | 0                   | first two words   |
| integer seed (the seed is key)   | "seed"  | 0             | 0            | 0                   | first half        |
| key of another implementation    | "frgn"  | number words  | name's hash  | chunk number        | first half        |

Two different uses never read the same (key, nonce, counter): uses of different rows differ in word 13 or 15; uses of one
row differ in word 14 (width, data, purpose) or, for two children of a split, in the counter or in the half of the
block. Keys themselves differ: a derived key is half a block of its parent, so two derived keys agree with probability
2**-256 a pair.

Key hygiene: use a key once. What the table adds is that even a key used both for bits and for splitting gives
unrelated values. Using it twice for *the same* thing gives the same values, as everywhere in JAX: `split(key, 2)` and
`split(key, 3)` share their first two children, and bits of one width share words whatever the shape.

Provenance is static. `CHACHA20` marks keys whose entropy came from the operating system, `CHACHA20_SEEDED` those that
somebody can make again. The two have the same functions, so a key keeps its mark through split, fold_in, jit, vmap
and scan, and the mark can be read from the type while tracing.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from discreet._jax import define_prng_impl
from discreet.random._chacha import WORDS_PER_BLOCK, keystream

KEY_WORDS = 8


def _tag(name: bytes) -> np.uint32:
    return np.uint32(int.from_bytes(name, "little"))


BITS, SPLIT, FOLD_IN, PURPOSE = _tag(b"bits"), _tag(b"splt"), _tag(b"fold"), _tag(b"purp")
NORMAL, THREEFRY, SEED, FOREIGN = _tag(b"gaus"), _tag(b"thrf"), _tag(b"seed"), _tag(b"frgn")


def nonce(domain: np.uint32, first: jax.Array | int = 0, second: jax.Array | int = 0) -> jax.Array:
    """The three nonce words of a use: its domain and its two arguments."""
    return jnp.stack([jnp.uint32(domain), jnp.asarray(first, jnp.uint32), jnp.asarray(second, jnp.uint32)])


def derive(key: jax.Array, nonce_words: jax.Array, counter: int = 0) -> jax.Array:
    """The first half of one block: eight words, a key."""
    return keystream(key, nonce_words, 1, counter)[:KEY_WORDS]


@partial(jax.jit, static_argnums=1)
def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    num_children = prod(shape)
    if num_children == 0:
        return jnp.zeros((*shape, KEY_WORDS), jnp.uint32)
    num_blocks = -(-num_children // 2)
    if num_blocks > 2**32:
        raise ValueError(f"A key splits into at most 2**33 keys, {num_children} were asked for. Split in two stages.")
    children = keystream(key, nonce(SPLIT), num_blocks).reshape(2 * num_blocks, KEY_WORDS)
    return children[:num_children].reshape(*shape, KEY_WORDS)


@jax.jit
def _fold_in(key: jax.Array, data: jax.Array) -> jax.Array:
    return derive(key, nonce(FOLD_IN, data))


@partial(jax.jit, static_argnums=(1, 2))
def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    if bit_width not in (8, 16, 32, 64):
        raise TypeError(f"Random bits come in widths of 8, 16, 32 and 64, not {bit_width}.")
    size = prod(shape)
    if size == 0:
        return jnp.zeros(shape, f"uint{bit_width}")
    num_words = -(-size * bit_width // 32)
    words = keystream(key, nonce(BITS, bit_width), -(-num_words // WORDS_PER_BLOCK))[:num_words]
    if bit_width == 64:
        words = (words[:size].astype(jnp.uint64) << np.uint64(32)) | words[size:].astype(jnp.uint64)
    elif bit_width < 32:
        words = lax.bitcast_convert_type(words, f"uint{bit_width}").reshape(-1)[:size]
    return words.reshape(shape)


@jax.jit
def _seed(seed: jax.Array) -> jax.Array:
    """The key of an integer array, for `jax.random.key(seed, impl=...)`: its bits, hashed by one block."""
    if seed.dtype.itemsize == 8:
        words = lax.bitcast_convert_type(seed, jnp.uint32)
    else:
        words = jnp.stack([seed.astype(jnp.uint32), jnp.zeros((), jnp.uint32)])
    return derive(jnp.zeros(KEY_WORDS, jnp.uint32).at[:2].set(words), nonce(SEED))


def _no_seed(seed: jax.Array) -> jax.Array:
    del seed
    raise TypeError(
        "A key that counts as operating-system entropy cannot be made from an integer: whoever knows the integer can "
        "remove the noise. Use discreet.random.key() for a private key, or discreet.random.key(seed) for a "
        "reproducible one."
    )


def bits_of_shape(key: jax.Array, bit_width: int, shape: Sequence[int]) -> jax.Array:
    """`random_bits` of JAX's PRNG interface."""
    return _random_bits(key, bit_width, tuple(shape))


def split_to_shape(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    """`split` of JAX's PRNG interface."""
    return _split(key, tuple(shape))


def _implementation(name: str, seed: Callable[[jax.Array], jax.Array]) -> Hashable:
    return define_prng_impl(
        name=name,
        tag=name,
        key_shape=(KEY_WORDS,),
        seed=seed,
        split=split_to_shape,
        random_bits=bits_of_shape,
        fold_in=_fold_in,
    )


CHACHA20 = _implementation("chacha20", _no_seed)
CHACHA20_SEEDED = _implementation("chacha20_seeded", _seed)
