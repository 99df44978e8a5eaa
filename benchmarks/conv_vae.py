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

LOOP, SINGLE = "NumPyro, not private, in a loop", "NumPyro, not private, one call a step"


def measure(scale: Scale) -> list[Outcome]:
    """Batches of 128."""
    architecture = convolutional() if not scale.tiny else convolutional((2, 3, 4), 3, 8)
    batch_size = scale.size(128, 4)
    problem = auto_encoder(architecture, scale.size(RECORDS, 4))
    sampling = problem.poisson(batch_size)
    private = PrivateFit(problem, sampling, scale.steps(2))
    fixed = PrivateFit(problem, dp.FixedSizeSampling(batch_size), private.steps)
    single = NonPrivateFit(problem, batch_size, scale.steps(4), looped=False)
    loop = NonPrivateFit(problem, batch_size, 1)
    slow = PrivateFit(problem, sampling, 1, reference_engine(sampling, problem.num_records))
    pixels = " x ".join(str(side) for side in architecture.shape)
    title = f"convolutional VAE on {pixels} pixels, {architecture.num_parameters:,} parameters, batch {batch_size}"
    outcome = Outcome("conv-vae", title)
    programs = [
        single.program(SINGLE, "convolutions outside of a loop, where XLA is quicker with them"),
        loop.program(LOOP, "SVI.update in a compiled loop, as elsewhere"),
        private.program("discreet, Poisson", "as DPSVI.run runs it; ChaCha20"),
        fixed.program("discreet, fixed size"),
        slow.program("reference engine", "vmap of the gradient; the rest of the step is ours"),
    ]
    outcome.timings = alternate(
        [*programs, *parts_of(problem, sampling, private, scale)], min(scale.rounds, 5)
    )
    ours, best = (
        "discreet, Poisson",
        min((SINGLE, LOOP), key=lambda name: outcome.timing(name).median),
    )
    outcome.compare("private / NumPyro, not private, the quicker way", ours, best, ("<=", 2.0))
    outcome.compare("private / NumPyro in a loop", ours, LOOP)
    outcome.compare("batches of one size / NumPyro, the quicker way", "discreet, fixed size", best)
    outcome.compare("reference engine / ours", "reference engine", ours)
    outcome.facts |= {
        "num_parameters": architecture.num_parameters,
        "batch_size": batch_size,
        "rows_compiled_for": sampling.capacity(problem.num_records),
        "losses_finite": bool(
            abs(private.losses).max() < math.inf and abs(single.losses).max() < math.inf
        ),
        "floor": floor_of_network(architecture, batch_size),
    }
    return [outcome]


if __name__ == "__main__":
    main(measure, __doc__)
