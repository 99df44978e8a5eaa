"""The rates of this machine: multiplications, bytes and random bits a second. The floors are counted with these.

python -m benchmarks.machine
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._command import main
from benchmarks._harness import Figure, Outcome, Program, Scale, alternate
from benchmarks._loops import looped

SIDE, WORDS, LARGE = 1024, 688_884, 2**24
KEYSTREAM = "OpenSSL's ChaCha20, one core"


def measure(scale: Scale) -> list[Outcome]:
    """Rates, from the fastest rounds: a floor is what cannot be undercut."""
    side, large, words = scale.size(SIDE, 32), scale.size(LARGE, 1024), scale.size(WORDS, 1024)
    batch = scale.size(128, 8)
    programs = [
        _product("product, square", side, side, side, scale.steps(20)),
        _product("product, batch 128", batch, 784, 400, scale.steps(400)),
        triad("triad, out of cache", large, scale.steps(8)),
        triad("triad, size of the VAE", words, scale.steps(200)),
    ]
    words_alone = keystream(words, scale.steps(100))
    outcome = Outcome("machine", "rates of this machine")
    outcome.timings = alternate(
        [*programs, *([] if words_alone is None else [words_alone])], scale.rounds
    )
    fastest = {timing.name: timing.fastest for timing in outcome.timings}
    work = {
        "product, square": ("GFLOP/s", 2 * side**3),
        "product, batch 128": ("GFLOP/s", 2 * batch * 784 * 400),
        "triad, out of cache": ("GB/s", 12 * large),
        "triad, size of the VAE": ("GB/s", 12 * words),
        KEYSTREAM: ("Gbit/s", 32 * words),
    }
    for name, seconds in fastest.items():
        unit, amount = work[name]
        outcome.figures.append(Figure(name, amount / seconds / 1e9, unit))
    if words_alone is None:
        outcome.skipped[KEYSTREAM] = "cryptography is not installed"
    return [outcome]


def _product(name: str, rows: int, inner: int, columns: int, steps: int) -> Program:
    rng = np.random.default_rng(0)
    left = jnp.asarray(rng.normal(size=(rows, inner)), jnp.float32)
    right = jnp.asarray(rng.normal(size=(inner, columns)), jnp.float32)

    def body(i: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
        # One number of each product enters the next, so that none can be left out.
        return left.at[0, 0].set((left @ right)[0, 0] * 1e-9)

    return looped(name, body, left, right, steps)


def triad(name: str, size: int, steps: int) -> Program:
    """Read two arrays of this size and write one."""

    def body(i: jax.Array, total: jax.Array, added: jax.Array) -> jax.Array:
        return 0.5 * total + added

    return looped(name, body, jnp.ones(size), jnp.ones(size), steps, "two arrays read, one written")


def keystream(words: int, steps: int) -> Program | None:
    """So many random words of 32 bits a step; None without the package."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ImportError:
        return None
    encryptor = Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), mode=None).encryptor()
    zeros, into = bytes(4 * words), bytearray(4 * words + 64)

    def run() -> None:
        for _ in range(steps):
            encryptor.update_into(zeros, into)

    return Program(KEYSTREAM, run, steps)


if __name__ == "__main__":
    main(measure, __doc__)
