"""d3p's Table 2 auto-encoder on CIFAR-shaped pixels: three convolutions and a dense layer, 640,423 parameters.

python -m benchmarks.conv_vae
"""

from __future__ import annotations

import math

import discreet as dp
from benchmarks._command import main
from benchmarks._fits import NonPrivateFit, PrivateFit, auto_encoder, reference_engine
from benchmarks._floor import floor_of_network
from benchmarks._harness import Outcome, Scale, alternate
from benchmarks._networks import convolutional
from benchmarks.vae import parts_of

RECORDS = 20_000  # of 50,000, to spare memory: a step's time does not depend on it


def measure(scale: Scale) -> list[Outcome]:
    """Batches of 128."""
    architecture = convolutional() if not scale.tiny else convolutional((2, 3, 4), 3, 8)
    batch_size = scale.size(128, 4)
    problem = auto_encoder(architecture, scale.size(RECORDS, 4))
    sampling = problem.poisson(batch_size)
    private = PrivateFit(problem, sampling, scale.steps(15))
    fixed = PrivateFit(problem, dp.FixedSizeSampling(batch_size), private.steps)
    plain = NonPrivateFit(problem, batch_size, scale.steps(20))
    slow = PrivateFit(problem, sampling, 1, reference_engine(sampling, problem.num_records))
    pixels = " x ".join(str(side) for side in architecture.shape)
    title = f"convolutional VAE on {pixels} pixels, {architecture.num_parameters:,} parameters, batch {batch_size}"
    outcome = Outcome("conv-vae", title)
    programs = [
        plain.program(),
        private.program("discreet, Poisson", "as DPSVI.run runs it; ChaCha20"),
        fixed.program("discreet, fixed size"),
        slow.program("reference engine", "vmap of the gradient; the rest of the step is ours"),
    ]
    outcome.timings = alternate([*programs, *parts_of(problem, sampling, private, scale)], scale.rounds)
    ours, theirs = "discreet, Poisson", "NumPyro, not private"
    outcome.compare("private / NumPyro, not private", ours, theirs, ("<=", 2.0))
    outcome.compare("the same with batches of one size", "discreet, fixed size", theirs)
    outcome.compare("reference engine / ours", "reference engine", ours)
    outcome.facts |= {
        "num_parameters": architecture.num_parameters,
        "batch_size": batch_size,
        "rows_compiled_for": sampling.capacity(problem.num_records),
        "losses_finite": bool(abs(private.losses).max() < math.inf and abs(plain.losses).max() < math.inf),
        "floor": floor_of_network(architecture, batch_size),
    }
    return [outcome]


if __name__ == "__main__":
    main(measure, __doc__)
