"""Logistic regression: 50,000 records, 100 columns, batch 500, mean-field posterior.

python -m benchmarks.logistic
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from benchmarks import _loops
from benchmarks._command import main
from benchmarks._fits import NonPrivateFit, PrivateFit, Problem
from benchmarks._harness import Outcome, Scale, alternate
from benchmarks._results import number

RECORDS, COLUMNS, BATCH = 50_000, 100, 500


def model(xs, ys, N):
    """Standard normal weights and intercept."""
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([xs.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    with numpyro.plate("records", N, xs.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=xs @ weights + intercept), obs=ys)


def problem_of(num_records: int, columns: int = COLUMNS) -> Problem:
    """Random features, labels that follow them."""
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(num_records, columns)).astype(np.float32)
    ys = (rng.random(num_records) < 1 / (1 + np.exp(-xs[:, 0]))).astype(np.float32)
    return Problem(
        model, AutoNormal(model), (jnp.asarray(xs), jnp.asarray(ys)), static={"N": num_records}
    )


def measure(scale: Scale) -> list[Outcome]:
    """Private against NumPyro."""
    problem, batch_size = problem_of(scale.size(RECORDS, 6)), scale.size(BATCH, 6)
    sampling, steps = problem.poisson(batch_size), scale.steps(20_000)
    private = PrivateFit(problem, sampling, steps)
    plain = NonPrivateFit(problem, batch_size, steps)
    title = f"logistic regression, N = {problem.num_records:,}, D = {COLUMNS}, batch {batch_size}"
    outcome = Outcome("logistic", title)
    programs = [
        plain.program(),
        private.program("discreet, Poisson", "as DPSVI.run runs it; ChaCha20"),
        PrivateFit(problem, dp.FixedSizeSampling(batch_size), steps).program(
            "discreet, fixed size"
        ),
        _loops.released_noise(private.step.released, private.step.levels, steps),
        _loops.drawn_batch(sampling, problem.data[0], steps),
    ]
    outcome.timings = alternate(programs, scale.rounds)
    ours, theirs = "discreet, Poisson", "NumPyro, not private"
    parts = outcome.together([_loops.NOISE, _loops.BATCH], theirs)
    reason = f"noise and batch alone take {number(parts)} of NumPyro's step"
    outcome.compare("private / NumPyro, not private", ours, theirs, ("<=", 1.6), reason)
    outcome.compare("the same with batches of one size", "discreet, fixed size", theirs)
    outcome.facts |= {
        "num_parameters": private.num_parameters,
        "batch_size": batch_size,
        "rows_compiled_for": sampling.capacity(problem.num_records),
        "losses_finite": bool(
            np.all(np.isfinite(private.losses)) and np.all(np.isfinite(plain.losses))
        ),
        "floor": {
            "flops": 4.0 * batch_size * (COLUMNS + 1),
            "bytes": 4.0 * 2 * batch_size * (COLUMNS + 1),
            "noise_bits": 32.0 * (COLUMNS + 2),
            "other_bits": 32.0 * (batch_size + COLUMNS + 1),
        },
    }
    return [outcome]


if __name__ == "__main__":
    main(measure, __doc__)
