"""The ChaCha20 block function of RFC 8439, on arrays of 32-bit words.

A block is 16 words. From a 256-bit key, a 32-bit counter and a 96-bit nonce the function makes a block that nobody
can tell from 16 uniform words without the key. Everything random in discreet is read from such blocks.

`keystream_words` gives many blocks that differ in their counter only. It computes the same words in one of two
layouts, which differ in speed alone (both were measured inside compiled loops on a CPU):

- few blocks: the 4 by 4 state as four rows. The working set is so small that XLA compiles the loop over the rounds
  into one kernel, so the latency is that of the arithmetic.
- many blocks: the 16 state words as 16 vectors over the blocks, in chunks that stay in the cache.

The rounds are a loop and not unrolled: XLA would recompute up to 20 rounds for each of the 16 words, and compile slowly.

Reference: Nir and Langley, "ChaCha20 and Poly1305 for IETF Protocols", RFC 8439, sections 2.1 to 2.4.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

WORDS_PER_BLOCK = 16
MAX_BLOCKS = 2**32

_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
_DOUBLE_ROUNDS = 10
_FEW_BLOCKS = 256
_CHUNK = 4096


def _rotate_left(x: jax.Array, bits: int) -> jax.Array:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def quarter_round(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array):
    """The quarter round of RFC 8439, section 2.1, elementwise."""
    a = a + b
    d = _rotate_left(d ^ a, 16)
    c = c + d
    b = _rotate_left(b ^ c, 12)
    a = a + b
    d = _rotate_left(d ^ a, 8)
    c = c + d
    b = _rotate_left(b ^ c, 7)
    return a, b, c, d


def _double_round_of_rows(rows):
    a, b, c, d = quarter_round(*rows)
    b, c, d = jnp.roll(b, -1, 0), jnp.roll(c, -2, 0), jnp.roll(d, -3, 0)
    a, b, c, d = quarter_round(a, b, c, d)
    return a, jnp.roll(b, 1, 0), jnp.roll(c, 2, 0), jnp.roll(d, 3, 0)


def _double_round_of_words(words):
    s = list(words)
    for i in range(4):
        s[i], s[4 + i], s[8 + i], s[12 + i] = quarter_round(s[i], s[4 + i], s[8 + i], s[12 + i])
    for i in range(4):
        j, k, m = 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4
        s[i], s[j], s[k], s[m] = quarter_round(s[i], s[j], s[k], s[m])
    return tuple(s)


def blocks(key: jax.Array, counters: jax.Array, nonce: jax.Array) -> jax.Array:
    """One block for each counter.

    Args:
        key: uint32[8], words 4 to 11 of the state.
        counters: uint32[n], word 12.
        nonce: uint32[3], words 13 to 15.

    Returns:
        uint32[16, n]; column i is the block of counter i.
    """
    n = counters.shape[0]
    rows = (
        jnp.broadcast_to(_CONSTANTS[:, None], (4, n)),
        jnp.broadcast_to(key[:4, None], (4, n)),
        jnp.broadcast_to(key[4:, None], (4, n)),
        jnp.concatenate([counters[None], jnp.broadcast_to(nonce[:, None], (3, n))]),
    )
    if n <= _FEW_BLOCKS:
        mixed = lax.fori_loop(0, _DOUBLE_ROUNDS, lambda _, s: _double_round_of_rows(s), rows)
        return jnp.concatenate([x + y for x, y in zip(mixed, rows, strict=True)])
    words = tuple(row[i] for row in rows for i in range(4))
    mixed = lax.fori_loop(0, _DOUBLE_ROUNDS, lambda _, s: _double_round_of_words(s), words)
    return jnp.stack([x + y for x, y in zip(mixed, words, strict=True)])


def keystream_words(key: jax.Array, nonce: jax.Array, num_words: int) -> jax.Array:
    """`num_words` words from the blocks of counters 0, 1, 2, ... under one key and nonce.

    The words come in no particular order (the one that is cheapest to write: word 0 of every block, then word 1 of
    every block, ...), each word of each block at most once. The order depends on `num_words`, so a shorter stream is
    not a prefix of a longer one.

    Args:
        key: uint32[8].
        nonce: uint32[3].
        num_words: static, at most 2**36.

    Returns:
        uint32[num_words].

    Raises:
        ValueError: `num_words` exceeds what the 32-bit counter can number.
    """
    num_blocks = -(-num_words // WORDS_PER_BLOCK)
    num_chunks = max(1, round(num_blocks / _CHUNK))
    chunk = -(-num_blocks // num_chunks)
    if num_chunks * chunk > MAX_BLOCKS:  # the padding of the last chunk counts: its counters must not wrap round
        raise ValueError(
            f"{num_words} random words were asked of one key, but a ChaCha20 key and nonce number at most 2**36. "
            "Split the key and draw in parts."
        )
    lanes = jnp.arange(chunk, dtype=jnp.uint32)
    if num_chunks == 1:
        return blocks(key, lanes, nonce).reshape(-1)[:num_words]
    starts = np.arange(num_chunks, dtype=np.uint64) * chunk
    out = lax.map(lambda start: blocks(key, start + lanes, nonce), jnp.asarray(starts.astype(np.uint32)))
    return out.reshape(-1)[:num_words]
