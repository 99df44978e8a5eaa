"""Gaussian noise for 688,884 coordinates inside a compiled loop: ours, from ChaCha20, against JAX's threefry.

python -m benchmarks.noise
"""

from __future__ import annotations

import jax

import discreet as dp
from benchmarks._command import main
from benchmarks._harness import Outcome, Scale, alternate
from benchmarks._loops import keyed

DIM = 688_884


def measure(scale: Scale) -> list[Outcome]:
    """Normal variables, and the random words alone."""
    dim, steps = scale.size(DIM, 1000), scale.steps(60)
    secret, fast = dp.random.key(), jax.random.key(0)
    outcome = Outcome("noise", f"Gaussian noise, {dim:,} coordinates a step")
    programs = [
        keyed(
            "discreet, ChaCha20",
            lambda key: dp.random.normal(key, (dim,)),
            secret,
            steps,
            "tails to 9 sigma and more",
        ),
        keyed(
            "JAX, threefry",
            lambda key: jax.random.normal(key, (dim,)),
            fast,
            steps,
            "tails end at 5.42 sigma",
        ),
        keyed(
            "ChaCha20 words",
            lambda key: jax.random.bits(key, (dim,)),
            secret,
            steps,
            "the random words alone, in JAX",
        ),
        keyed("threefry words", lambda key: jax.random.bits(key, (dim,)), fast, steps),
    ]
    outcome.timings = alternate(programs, scale.rounds)
    outcome.compare(
        "ChaCha20 / threefry, normal variables", "discreet, ChaCha20", "JAX, threefry", ("<=", 1.0)
    )
    outcome.compare("ChaCha20 / threefry, words", "ChaCha20 words", "threefry words")
    outcome.facts |= {"dim": dim, "noise_bits": 32.0 * dim}
    return [outcome]


if __name__ == "__main__":
    main(measure, __doc__)
