"""ChaCha20 as a PRNG implementation of JAX: random bits, splits and folds as blocks of one key.

JAX asks an implementation for four functions: `seed`, `split`, `fold_in` and `random_bits`. Each
reads blocks whose nonce begins with a word of its own, so that different uses of a key have
unrelated results; `_keys` has the table of all nonces. Values that are known while a program is
traced are computed at once, not compiled.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from discreet._jax import define_prng_impl
from discreet.privacy.random._chacha import WORDS_PER_BLOCK, is_known, keystream, known_keystream

KEY_WORDS = 8
_FEW_CHILDREN = 16
BITS, SPLIT, FOLD_IN, PURPOSE = np.array([b"bits", b"splt", b"fold", b"purp"]).view("<u4")
NORMAL, THREEFRY, SEED, FOREIGN, HIDE = np.array(
    [b"gaus", b"thrf", b"seed", b"frgn", b"hide"]
).view("<u4")
GAUSSIAN, LAPLACE = np.array([b"dgau", b"dlap"]).view("<u4")


def nonce(domain: np.uint32, first: Any = 0, second: Any = 0) -> Any:
    """The three nonce words of a use: its domain and its two arguments."""
    if is_known(first, second):
        return np.array([domain, *map(np.uint32, jax.device_get((first, second)))], np.uint32)
    return jnp.stack(
        [jnp.uint32(domain), jnp.asarray(first, jnp.uint32), jnp.asarray(second, jnp.uint32)]
    )


def derive(key: Any, nonce_words: Any, counter: Any = 0) -> Array:
    """The first half of one block: eight words, a key."""
    if isinstance(nonce_words, np.ndarray) and is_known(key, counter):
        return jax.device_put(known_keystream(key, nonce_words, 1, counter)[:KEY_WORDS])
    return keystream(key, nonce_words, 1, counter)[:KEY_WORDS]


def _split(key: Any, shape: tuple[int, ...]) -> Array:
    num_children = math.prod(shape)
    if num_children == 0:
        return jnp.zeros((*shape, KEY_WORDS), jnp.uint32)
    num_blocks = -(-num_children // 2)
    if num_blocks > 2**32:
        raise ValueError(
            f"A key splits into at most 2**33 keys, {num_children} were asked for. Split in two stages."
        )
    made = known_keystream if is_known(key) else keystream
    children = made(key, nonce(SPLIT), num_blocks).reshape(2 * num_blocks, KEY_WORDS)
    children = children[:num_children].reshape(*shape, KEY_WORDS)
    return jax.device_put(children) if isinstance(children, np.ndarray) else children


def _fold_in(key: Any, data: Any) -> Array:
    return derive(key, nonce(FOLD_IN, data))


_split_later = jax.jit(_split, static_argnums=1)
_fold_in_later = jax.jit(_fold_in)


@partial(jax.jit, static_argnums=(1, 2))
def bits_of_shape(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    """`random_bits` of JAX's PRNG interface."""
    if bit_width not in (8, 16, 32, 64):
        raise TypeError(f"Random bits come in widths of 8, 16, 32 and 64, not {bit_width}.")
    size = math.prod(shape)
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
def _seed(seed: Array) -> Array:
    """The key of an integer array, for `jax.random.key(seed, impl=...)`: its bits, hashed by one block."""
    if seed.dtype.itemsize == 8:
        words = lax.bitcast_convert_type(seed, jnp.uint32)
    else:
        words = jnp.stack([seed.astype(jnp.uint32), jnp.zeros((), jnp.uint32)])
    return derive(jnp.zeros(KEY_WORDS, jnp.uint32).at[:2].set(words), nonce(SEED))


def _no_seed(seed: Array) -> Array:
    del seed
    raise TypeError(
        "A key that counts as operating-system entropy cannot be made from an integer: whoever knows the integer can "
        "remove the noise. Use discreet.random.key() for a private key, or discreet.random.key(seed) for a "
        "reproducible one."
    )


def split_to_shape(key: Array, shape: tuple[int, ...]) -> Array:
    """`split` of JAX's PRNG interface."""
    few = math.prod(shape) <= _FEW_CHILDREN and is_known(key)
    return (_split if few else _split_later)(key, shape)


def fold_in(key: Array, data: Any) -> Array:
    """`fold_in` of JAX's PRNG interface."""
    return (_fold_in if is_known(key, data) else _fold_in_later)(key, data)


_implementation = partial(
    define_prng_impl,
    key_shape=(KEY_WORDS,),
    split=split_to_shape,
    random_bits=bits_of_shape,
    fold_in=fold_in,
)
CHACHA20 = _implementation(name="chacha20", tag="chacha20", seed=_no_seed)
CHACHA20_SEEDED = _implementation(name="chacha20_seeded", tag="chacha20_seeded", seed=_seed)
