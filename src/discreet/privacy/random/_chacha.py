"""The ChaCha20 keystream of RFC 8439, as arrays of 32-bit words.

A block is 16 words. From a 256-bit key, a 32-bit counter and a 96-bit nonce the block function
makes 16 words that nobody can tell from uniform ones without the key. `keystream` gives the blocks
of consecutive counters, word by word in the order of the RFC. Everything random in discreet is read
from it.

It is one JAX primitive with two ways to compute the same words. Long streams on a CPU come from
OpenSSL, where it is installed (`_openssl`); all others are computed by XLA, in one of three layouts
that differ in speed alone. What decides on a CPU is how XLA fuses: an unrolled round is recomputed
for each of its outputs, so the rounds are loops, as short as possible.

- few blocks: one round an iteration, for all together in one kernel, where XLA can be told so; else
  for one block after the other (or for two together), so that the working set is small enough for
  XLA to do it unasked.
- some blocks: the 4 by 4 states in one array, one double round an iteration, vectorised over the
  blocks.
- many blocks: the 16 state words as 16 vectors; a quarter round is a loop over its two halves,
  which are alike but for the rotations, because fused as a whole it would be computed three times
  over. Longer streams are made in chunks that stay in the cache, and that are too short for XLA to
  split each of the short kernels over the cores, which costs more than it gains.

Under `vmap` the blocks of all keys are computed together, in the layout that fits their total
number.

Reference: Nir and Langley, "ChaCha20 and Poly1305 for IETF Protocols", RFC 8439, sections 2.1 to
2.4.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from discreet._jax import can_make_one_kernel, one_kernel, two_way_primitive, untraced
from discreet.privacy.random._openssl import COUNTER, STATE_WORDS, TARGET, available

WORDS_PER_BLOCK = 16
MAX_BLOCKS = 2**32
# From so many blocks on the call of OpenSSL is the cheaper way. Alone it takes 9 microseconds and
# wins from 150 on; within a small model's step it takes 30 or more, since XLA's threads wait for
# each other and for the interpreter.
HOST_BLOCKS = 512
_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
_ROUNDS = 20
_BY_1, _BY_2, _BY_3 = np.array([[1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2]])
_TOGETHER = 2
_FEW = 8
_SOME = 512
_CHUNK = 2**13
_LANES = 16
# added to a state, it leads to the next block
_NEXT = np.eye(STATE_WORDS, dtype=np.uint32)[COUNTER]


def _half_quarter_round(a, b, c, d, first, second):
    a = a + b
    d = d ^ a
    d = (d << first) | (d >> (np.uint32(32) - first))
    c = c + d
    b = b ^ c
    b = (b << second) | (b >> (np.uint32(32) - second))
    return a, b, c, d


def quarter_round(a: Any, b: Any, c: Any, d: Any):
    """The quarter round of RFC 8439, section 2.1, elementwise."""
    a, b, c, d = _half_quarter_round(a, b, c, d, np.uint32(16), np.uint32(12))
    return _half_quarter_round(a, b, c, d, np.uint32(8), np.uint32(7))


def _few_blocks(states: Array) -> Array:
    """uint32[12] to uint32[16], or uint32[12, n] to uint32[16, n]."""
    constants = _CONSTANTS.reshape(4, *(1 for _ in states.shape[1:]))
    start = (
        jnp.broadcast_to(constants, (4, *states.shape[1:])),
        states[:4],
        states[4:8],
        states[8:],
    )

    def one_round(index, rows):
        a, b, c, d = quarter_round(*rows)
        # After a column round the rows turn left by 0, 1, 2, 3, so that diagonals become columns;
        # then back.
        by = 1 + 2 * (index % 2)
        b = lax.dynamic_slice_in_dim(jnp.concatenate([b, b]), by, 4)
        d = lax.dynamic_slice_in_dim(jnp.concatenate([d, d]), 4 - by, 4)
        return a, b, jnp.roll(c, 2, 0), d

    mixed = lax.fori_loop(0, _ROUNDS, one_round, start)
    return jnp.concatenate([x + y for x, y in zip(mixed, start, strict=True)])


def _some_blocks(states: Array) -> Array:
    """uint32[12, n] to uint32[16, n]."""

    def double_round(_, state):
        a, b, c, d = quarter_round(state[0], state[1], state[2], state[3])
        state = jnp.stack([a, jnp.roll(b, -1, 0), jnp.roll(c, -2, 0), jnp.roll(d, -3, 0)])
        if jax.default_backend() == "cpu":
            # Written once: XLA would compute the columns again for each of the diagonals' outputs.
            state = lax.optimization_barrier(state)
        a, b, c, d = quarter_round(state[0], state[1], state[2], state[3])
        return jnp.stack([a, jnp.roll(b, 1, 0), jnp.roll(c, 2, 0), jnp.roll(d, 3, 0)])

    n = states.shape[1]
    # Widths that fill no vector register are slower than the next one that does.
    rows = jnp.pad(states, ((0, 0), (0, -n % _LANES))).reshape(3, 4, -1)
    start = jnp.concatenate(
        [jnp.broadcast_to(_CONSTANTS[None, :, None], (1, *rows.shape[1:])), rows]
    )
    mixed = lax.fori_loop(0, _ROUNDS // 2, double_round, start)
    return (mixed + start).reshape(WORDS_PER_BLOCK, -1)[:, :n]


def _many_blocks(states: Array) -> Array:
    """uint32[12, n] to uint32[16, n]."""

    def half(index, s):
        index = lax.convert_element_type(index, jnp.uint32)
        first = 16 - 8 * index
        second = 12 - 5 * index
        columns = [
            _half_quarter_round(s[i], s[4 + i], s[8 + i], s[12 + i], first, second)
            for i in range(4)
        ]
        return tuple(columns[i][row] for row in range(4) for i in range(4))

    def double_round(_, s):
        s = lax.fori_loop(0, 2, half, s)
        s = tuple(s[4 * row + (i + row) % 4] for row in range(4) for i in range(4))
        s = lax.fori_loop(0, 2, half, s)
        return tuple(s[4 * row + (i - row) % 4] for row in range(4) for i in range(4))

    n = states.shape[1]
    start = (*(jnp.full((n,), constant) for constant in _CONSTANTS), *states)
    mixed = lax.fori_loop(0, _ROUNDS // 2, double_round, start)
    return jnp.stack([x + y for x, y in zip(mixed, start, strict=True)])


def blocks(states: Array) -> Array:
    """One block for each state, computed by XLA: uint32[n, 16] from uint32[n, 12], words 4 to 15 of each start state."""
    n = states.shape[0]
    if n == 1:
        return _few_blocks(states[0])[None]
    if n <= _TOGETHER:
        return _few_blocks(states.T).T
    if n <= _FEW:
        if can_make_one_kernel():
            return one_kernel(_few_blocks)(states.T).T
        return lax.map(_few_blocks, states)
    if n <= _SOME:
        return _some_blocks(states.T).T
    return _many_blocks(states.T).T


def _by_xla(states: Array, *, num_blocks: int, host: bool) -> Array:
    del host
    batch = states.shape[:-1]
    total = prod(states.shape[:-1]) * num_blocks
    shape = (*batch, num_blocks * WORDS_PER_BLOCK)
    if total == 0:
        return jnp.zeros(shape, jnp.uint32)
    if num_blocks == 1:
        return blocks(states.reshape(total, -1)).reshape(shape)
    if not batch and num_blocks > _CHUNK:
        return _in_chunks(states, num_blocks)
    numbers = jnp.arange(num_blocks, dtype=jnp.uint32)
    if not batch and _TOGETHER < num_blocks <= _FEW and not can_make_one_kernel():
        return lax.map(lambda number: _few_blocks(states + number * _NEXT), numbers).reshape(shape)
    return blocks((states[..., None, :] + numbers[:, None] * _NEXT).reshape(total, -1)).reshape(
        shape
    )


def _in_chunks(state: Array, num_blocks: int) -> Array:
    num_chunks = -(-num_blocks // _CHUNK)
    chunk = -(-num_blocks // num_chunks)
    starts = jnp.arange(num_chunks, dtype=jnp.uint32) * jnp.uint32(chunk)
    numbers = jnp.arange(chunk, dtype=jnp.uint32)
    words = lax.map(lambda start: blocks(state + (start + numbers)[:, None] * _NEXT), starts)
    return words.reshape(-1)[: num_blocks * WORDS_PER_BLOCK]


_keystream = two_way_primitive(
    "chacha20_keystream",
    _by_xla,
    length=lambda num_blocks, host: num_blocks * WORDS_PER_BLOCK,
    cpu_target=lambda batch, num_blocks, host: (
        TARGET if host and not batch and available() else None
    ),
)


def is_known(*values: Any) -> bool:
    """True outside of JAX's transformations, for values on the first device: what XLA derives stays on the device of its key."""
    first = {jax.local_devices()[0]}
    return untraced() and all(x.devices() == first for x in values if isinstance(x, Array))


def known_keystream(key: Any, nonce: np.ndarray, num_blocks: int, counter: Any = 0) -> np.ndarray:
    """As `keystream`, of what `is_known`: for few blocks XLA would compile a program for a tenth of a second."""
    first = np.concatenate([_CONSTANTS, jax.device_get(key), np.zeros(1, np.uint32), nonce])
    numbers = np.uint32(jax.device_get(counter)) + np.arange(num_blocks, dtype=np.uint32)
    start = np.tile(first[:, None], num_blocks)
    start[len(_CONSTANTS) + COUNTER] = numbers
    rows = start.reshape(4, 4, -1)
    mixed: Any = rows
    for _ in range(_ROUNDS // 2):
        a, b, c, d = quarter_round(*mixed)
        # As `np.roll` by -1, -2 and -3 and back, in a quarter of the time.
        a, b, c, d = quarter_round(a, b[_BY_1], c[_BY_2], d[_BY_3])
        mixed = a, b[_BY_3], c[_BY_2], d[_BY_1]
    return (np.stack(mixed) + rows).reshape(WORDS_PER_BLOCK, -1).T.reshape(-1)


def keystream(
    key: Array, nonce: Any, num_blocks: int, counter: Array | int = 0, *, host: bool = False
) -> Array:
    """The words of consecutive blocks, in the order of RFC 8439: a shorter stream is the beginning of a longer one.

    Args:
        key: uint32[8], words 4 to 11 of the state.
        nonce: uint32[3], words 13 to 15.
        num_blocks: Number of blocks of 16 words; static.
        counter: Counter of the first block, word 12; it must not run beyond 2**32 - 1.
        host: OpenSSL may make the words; see `fast_keystream`.
    """
    if num_blocks > MAX_BLOCKS:
        raise ValueError(
            f"{num_blocks * WORDS_PER_BLOCK} random words were asked of one key, but a ChaCha20 key and nonce number "
            "at most 2**36. Split the key and draw in parts."
        )
    state = jnp.concatenate([key, jnp.asarray(counter, jnp.uint32)[None], nonce])
    return _keystream(state, num_blocks=num_blocks, host=host)


def keystreams(key: Array, streams: Sequence[tuple[Array, int]]) -> list[Array]:
    """The words of several short streams, each a nonce and a number of blocks, as `keystream` makes them from counter 0."""
    states = []
    for nonce, num_blocks in streams:
        first = jnp.concatenate([key, jnp.zeros(1, jnp.uint32), nonce])
        states.append(first + jnp.arange(num_blocks, dtype=jnp.uint32)[:, None] * _NEXT)
    words = _keystream(jnp.concatenate(states), num_blocks=1, host=False).reshape(-1)
    ends = np.cumsum([num_blocks * WORDS_PER_BLOCK for _, num_blocks in streams])
    return jnp.split(words, ends[:-1])


def fast_keystream(key: Array, nonce: Array, num_blocks: int) -> tuple[Array, Array]:
    """The words of `keystream` from counter 0, by the fastest way there is, and whether they are what they should be.

    Words that were made outside XLA end with the block that XLA computes for the last counter; if
    they do not, they were not made, or not to their end, and must not be used.
    """
    if num_blocks < HOST_BLOCKS:
        return keystream(key, nonce, num_blocks), jnp.array(True)
    words = keystream(key, nonce, num_blocks, host=True)
    last = keystream(key, nonce, 1, jnp.uint32(num_blocks - 1))
    return words, jnp.all(words[-WORDS_PER_BLOCK:] == last)
