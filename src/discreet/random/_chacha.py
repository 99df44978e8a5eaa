"""The ChaCha20 block function of RFC 8439, on arrays of 32-bit words.

A block is 16 words. From a 256-bit key, a 32-bit counter and a 96-bit nonce the function makes a block that nobody
can tell from 16 uniform words without the key. Everything random in discreet is read from such blocks.

`blocks` makes many blocks that differ in their counter only. It computes the same words in one of three layouts that
differ in speed alone. What decides on a CPU is how XLA fuses: an unrolled round is recomputed for each of its outputs,
so the rounds are loops, as short as possible. (Microseconds inside a compiled loop, two cores: 1 block 0.3, 3 blocks
1.1, 64 blocks 5, 43,056 blocks 2,500.)

- few blocks: one at a time, one round an iteration. The working set is so small that XLA compiles the whole loop
  into one kernel.
- some blocks: the 4 by 4 states in one array, one double round an iteration, vectorised over the blocks.
- many blocks: the 16 state words as 16 vectors; a quarter round is a loop over its two halves, which are alike but
  for the rotations, because fused as a whole it would be computed three times over. Longer streams are made in
  chunks: beyond about 50,000 blocks XLA splits each of the short kernels over the cores, which costs more than it
  gains.

Reference: Nir and Langley, "ChaCha20 and Poly1305 for IETF Protocols", RFC 8439, sections 2.1 to 2.4.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

WORDS_PER_BLOCK = 16
MAX_BLOCKS = 2**32

_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
_ROUNDS = 20
_FEW = 8
_SOME = 512
_CHUNK = 2**15
_LANES = 16


def _rotate_left(x: jax.Array, bits: jax.Array | np.uint32) -> jax.Array:
    return (x << bits) | (x >> (np.uint32(32) - bits))


def _half_quarter_round(a, b, c, d, first, second):
    a = a + b
    d = _rotate_left(d ^ a, first)
    c = c + d
    b = _rotate_left(b ^ c, second)
    return a, b, c, d


def quarter_round(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array):
    """The quarter round of RFC 8439, section 2.1, elementwise."""
    a, b, c, d = _half_quarter_round(a, b, c, d, np.uint32(16), np.uint32(12))
    return _half_quarter_round(a, b, c, d, np.uint32(8), np.uint32(7))


def _one_block(key: jax.Array, counter: jax.Array, nonce: jax.Array) -> jax.Array:
    start = (jnp.asarray(_CONSTANTS), key[:4], key[4:], jnp.concatenate([counter[None], nonce]))

    def rotate_row(row, by):
        return lax.dynamic_slice_in_dim(jnp.concatenate([row, row]), by, 4)

    def one_round(index, rows):
        a, b, c, d = quarter_round(*rows)
        # After a column round the rows turn left by 0, 1, 2, 3, so that diagonals become columns; then back.
        by = 1 + 2 * (index % 2)
        return a, rotate_row(b, by), jnp.roll(c, 2), rotate_row(d, 4 - by)

    mixed = lax.fori_loop(0, _ROUNDS, one_round, start)
    return jnp.concatenate([x + y for x, y in zip(mixed, start, strict=True)])


def _start_rows(key: jax.Array, counters: jax.Array, nonce: jax.Array):
    """The four rows of the start state, each (4, blocks)."""
    n = counters.shape[0]
    return (
        jnp.broadcast_to(_CONSTANTS[:, None], (4, n)),
        jnp.broadcast_to(key[:4, None], (4, n)),
        jnp.broadcast_to(key[4:, None], (4, n)),
        jnp.concatenate([counters[None], jnp.broadcast_to(nonce[:, None], (3, n))]),
    )


def _some_blocks(key: jax.Array, counters: jax.Array, nonce: jax.Array) -> jax.Array:
    def double_round(_, state):
        a, b, c, d = quarter_round(state[0], state[1], state[2], state[3])
        b, c, d = jnp.roll(b, -1, 0), jnp.roll(c, -2, 0), jnp.roll(d, -3, 0)
        a, b, c, d = quarter_round(a, b, c, d)
        return jnp.stack([a, jnp.roll(b, 1, 0), jnp.roll(c, 2, 0), jnp.roll(d, 3, 0)])

    n = counters.shape[0]
    # Widths that fill no vector register are slower than the next one that does.
    padded = jnp.pad(counters, (0, -n % _LANES))
    start = jnp.stack(_start_rows(key, padded, nonce))
    mixed = lax.fori_loop(0, _ROUNDS // 2, double_round, start)
    return (mixed + start).reshape(WORDS_PER_BLOCK, -1)[:, :n]


def _many_blocks(key: jax.Array, counters: jax.Array, nonce: jax.Array) -> jax.Array:
    def half(index, s):
        index = lax.convert_element_type(index, jnp.uint32)
        first, second = 16 - 8 * index, 12 - 5 * index
        columns = [_half_quarter_round(s[i], s[4 + i], s[8 + i], s[12 + i], first, second) for i in range(4)]
        return tuple(columns[i][row] for row in range(4) for i in range(4))

    def double_round(_, s):
        s = lax.fori_loop(0, 2, half, s)
        s = tuple(s[4 * row + (i + row) % 4] for row in range(4) for i in range(4))
        s = lax.fori_loop(0, 2, half, s)
        return tuple(s[4 * row + (i - row) % 4] for row in range(4) for i in range(4))

    start = tuple(row[i] for row in _start_rows(key, counters, nonce) for i in range(4))
    mixed = lax.fori_loop(0, _ROUNDS // 2, double_round, start)
    return jnp.stack([x + y for x, y in zip(mixed, start, strict=True)])


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
    if n == 1:
        return _one_block(key, counters[0], nonce)[:, None]
    if n <= _FEW:
        return lax.map(lambda counter: _one_block(key, counter, nonce), counters).T
    if n <= _SOME:
        return _some_blocks(key, counters, nonce)
    return _many_blocks(key, counters, nonce)


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
    num_chunks = max(1, -(-num_blocks // _CHUNK))
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
