"""What `mesh=` costs: a step over four forced devices of this machine, against the same step on one, in processor time.

python -m benchmarks.devices

Logistic regressions of 5,000 and of 50 columns in Poisson batches, and one in full batches. Not among the workloads of
`python -m benchmarks`: the number of devices is that of a whole process.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"

import jax

import discreet as dp
from benchmarks import logistic
from benchmarks._fits import PrivateFit, Problem
from discreet.inference._records import take_apart

ROUNDS = 7
CASES = {
    "8,000 records, 5,000 columns, batch 400": (8_000, 5_000, dp.PoissonSampling(0.05), 400),
    "8,000 records, 50 columns, batch 400": (8_000, 50, dp.PoissonSampling(0.05), 4_000),
    "100,000 records, 50 columns, full batch": (100_000, 50, dp.FullBatch(), 100),
}


def over(fit: PrivateFit, mesh: Any) -> PrivateFit:
    """The same fit with its records over a mesh."""
    records = take_apart(fit.leaves, {}, mesh)
    fit.step, fit.leaves, fit.state = fit.dpsvi._over(mesh, records, fit.state)
    return fit


def seconds(fit: PrivateFit) -> float:
    """Processor time of one run, of all threads."""
    started = time.process_time()
    fit.run()
    return time.process_time() - started


def main() -> None:
    """Print one line for each case."""
    mesh = jax.make_mesh((4,), ("records",))
    for name, (records, columns, sampling, steps) in CASES.items():
        problem: Problem = logistic.problem_of(records, columns)
        one = PrivateFit(problem, sampling, steps)
        four = over(PrivateFit(problem, sampling, steps), mesh)
        for fit in (one, four):
            fit.run()
        rounds = [(seconds(one), seconds(four)) for _ in range(ROUNDS)]
        ratio = statistics.median(b / a for a, b in rounds)
        alone, spread = (1e3 * min(x) / steps for x in zip(*rounds, strict=True))
        print(f"{name}: {alone:.3g} ms on one device, {spread:.3g} ms on four, ratio {ratio:.3g}", flush=True)


if __name__ == "__main__":
    main()
