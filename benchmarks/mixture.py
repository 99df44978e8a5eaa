"""A Gaussian mixture, d3p's Listing 6: five spherical components in two dimensions, 10,000 records, batch 100.

python -m benchmarks.mixture
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from benchmarks._command import main
from benchmarks._fits import NonPrivateFit, PrivateFit, Problem
from benchmarks._harness import Outcome, Scale, alternate

RECORDS, COMPONENTS, BATCH = 10_000, 5, 100


def model(xs, N):
    """The component of a record is summed over."""
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(COMPONENTS)))
    with numpyro.plate("components", COMPONENTS):
        locs = numpyro.sample("locs", dist.Normal(0, 4).expand([xs.shape[1]]).to_event(1))
        scales: Any = numpyro.sample("scales", dist.InverseGamma(1, 1))
    with numpyro.plate("records", N, xs.shape[0]):
        parts = dist.Normal(locs, scales[:, None]).to_event(1)
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(shares), parts), obs=xs)


def problem_of(num_records: int) -> Problem:
    """Points around five centres."""
    rng = np.random.default_rng(0)
    centres = rng.normal(scale=4.0, size=(COMPONENTS, 2))
    xs = centres[rng.integers(0, COMPONENTS, num_records)] + rng.normal(size=(num_records, 2))
    return Problem(
        model, AutoNormal(model), (jnp.asarray(xs, jnp.float32),), static={"N": num_records}
    )


def measure(scale: Scale) -> list[Outcome]:
    """Private against NumPyro."""
    problem, batch_size = problem_of(scale.size(RECORDS, 6)), scale.size(BATCH, 6)
    steps = scale.steps(8000)
    private = PrivateFit(problem, problem.poisson(batch_size), steps)
    plain = NonPrivateFit(problem, batch_size, steps)
    outcome = Outcome(
        "mixture", f"Gaussian mixture, N = {problem.num_records:,}, batch {batch_size}"
    )
    programs = [
        plain.program(),
        private.program("discreet, Poisson", "as DPSVI.run runs it; ChaCha20"),
        PrivateFit(problem, dp.FixedSizeSampling(batch_size), steps).program(
            "discreet, fixed size"
        ),
    ]
    outcome.timings = alternate(programs, scale.rounds)
    ours, theirs = "discreet, Poisson", "NumPyro, not private"
    outcome.compare("private / NumPyro, not private", ours, theirs)
    outcome.compare("the same with batches of one size", "discreet, fixed size", theirs)
    outcome.facts |= {
        "num_parameters": private.num_parameters,
        "batch_size": batch_size,
        "losses_finite": bool(
            np.all(np.isfinite(private.losses)) and np.all(np.isfinite(plain.losses))
        ),
    }
    return [outcome]


if __name__ == "__main__":
    main(measure, __doc__)
