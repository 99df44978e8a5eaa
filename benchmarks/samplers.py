"""Drawing row numbers: Feistel against JAX's `choice` (d3p's Table 3), Poisson, and what a larger table costs.

python -m benchmarks.samplers
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import discreet as dp
from benchmarks._command import main
from benchmarks._harness import Outcome, Program, Scale, alternate
from benchmarks._loops import keyed, looped
from discreet.interfaces.compat.d3p.feistel import feistel_permutation

RECORDS, BATCH, EXPECTED = 60_000, 128, 1_000
TABLES = (10**4, 10**8)


def measure(scale: Scale) -> list[Outcome]:
    """Batches of 128 of 60,000, then Poisson batches of 1,000 from tables of two sizes."""
    return [_table3(scale), _scaling(scale)]


def _table3(scale: Scale) -> Outcome:
    records, batch = scale.size(RECORDS, 500), scale.size(BATCH, 16)
    steps, secret, fast = scale.steps(1000), dp.random.key(), jax.random.key(0)
    few = scale.steps(60)
    programs = [
        keyed(
            "JAX choice",
            lambda key: _choice(key, records, batch),
            fast,
            few,
            "threefry; permutes the whole table",
        ),
        keyed(
            "Feistel, threefry",
            lambda key: _feistel(key, records, batch),
            fast,
            steps,
            "d3p's sampler, ours",
        ),
        keyed("Feistel, ChaCha20", lambda key: _feistel(key, records, batch), secret, steps),
        draws("fixed size, ChaCha20", dp.FixedSizeSampling(batch), records, steps),
        draws("Poisson, ChaCha20", dp.PoissonSampling(batch / records), records, steps),
    ]
    outcome = Outcome("samplers", f"row numbers of a batch, {batch} of {records:,}")
    outcome.timings = alternate(programs, scale.rounds)
    outcome.compare("JAX choice / Feistel, both threefry", "JAX choice", "Feistel, threefry")
    outcome.compare("JAX choice / ours, fixed size", "JAX choice", "fixed size, ChaCha20")
    outcome.compare("JAX choice / ours, Poisson", "JAX choice", "Poisson, ChaCha20")
    outcome.facts |= {"num_records": records, "batch_size": batch}
    return outcome


def _scaling(scale: Scale) -> Outcome:
    small, large = TABLES if not scale.tiny else (10**3, 10**4)
    expected, steps = scale.size(EXPECTED, 50), scale.steps(1000)
    programs = [
        draws(f"Poisson, N = {records:,}", dp.PoissonSampling(expected / records), records, steps)
        for records in (small, large)
    ]
    outcome = Outcome(
        "sampler-scaling",
        f"Poisson batches of {expected:,} expected records against the table's size",
    )
    outcome.timings = alternate(programs, scale.rounds)
    name = f"N = {large:,} / N = {small:,}"
    outcome.compare(name, programs[1].name, programs[0].name, ("<=", 1.3))
    return outcome


def _choice(key: jax.Array, records: int, batch: int) -> jax.Array:
    return jax.random.choice(key, records, (batch,), replace=False)


def _feistel(key: jax.Array, records: int, batch: int) -> jax.Array:
    return feistel_permutation(key, jnp.arange(batch), records)


def draws(name: str, sampling: Any, records: int, steps: int) -> Program:
    """A sampler's row numbers, added up."""
    tables = jax.tree.map(jnp.asarray, sampling.prepare(records))

    def body(i: jax.Array, total: jax.Array, fixed: Any) -> jax.Array:
        key, tables = fixed
        batch = sampling.draw(jax.random.fold_in(key, i), tables, num_records=records)
        return total + jnp.where(batch.mask, batch.indices, 0)

    start = jnp.zeros(sampling.capacity(records), jnp.int32)
    return looped(name, body, start, (dp.random.key(), tables), steps)


if __name__ == "__main__":
    main(measure, __doc__)
