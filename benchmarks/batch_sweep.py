"""d3p's Figure 3: time of a step against the batch size, 16 to 4,096, for the auto-encoder of Table 2.

python -m benchmarks.batch_sweep [--plot FILE]
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax

import discreet as dp
from benchmarks._command import main
from benchmarks._fits import NonPrivateFit, PrivateFit, auto_encoder
from benchmarks._harness import Outcome, Scale, alternate
from benchmarks._networks import dense

RECORDS = 60_000
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
SIDES = {
    "NumPyro, not private": "NumPyro, not private",
    "discreet, fixed size": "discreet, batches of one size",
    "discreet, Poisson": "discreet, Poisson batches",
}


def measure(scale: Scale) -> list[Outcome]:
    """Every size in rounds of its own: three programs each."""
    architecture = dense() if not scale.tiny else dense(12, 3, 20)
    problem = auto_encoder(architecture, scale.size(RECORDS, 4))
    sizes = SIZES if not scale.tiny else (4,)
    outcome = Outcome(
        "batch-sweep", "time of a step against the batch size, VAE with 688,884 parameters"
    )
    outcome.facts["sizes"] = list(sizes)
    for size in sizes:
        steps = scale.steps(math.ceil(60 * min(1.0, 64 / size)))
        programs = [
            NonPrivateFit(problem, size, steps).program(_name("NumPyro, not private", size)),
            PrivateFit(problem, dp.FixedSizeSampling(size), steps).program(
                _name("discreet, fixed size", size)
            ),
            PrivateFit(problem, problem.poisson(size), steps).program(
                _name("discreet, Poisson", size)
            ),
        ]
        outcome.timings += alternate(programs, min(scale.rounds, 7))
        over, under = _name("discreet, Poisson", size), _name("NumPyro, not private", size)
        outcome.compare(f"batch {size:,}: private / not private", over, under)
        # Nine sizes, three programs each: what was compiled for one size is of no use to the next.
        jax.clear_caches()
    return [outcome]


def _name(side: str, size: int) -> str:
    return f"{side}, batch {size:,}"


def plot(workload: dict[str, Any], path: Path) -> None:
    """Draw the sweep from its results, as SVG or PNG by the file's ending."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context({"svg.hashsalt": "discreet", "svg.fonttype": "none", "font.size": 10}):
        figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
        sizes = workload["facts"]["sizes"]
        medians = {timing["name"]: timing["median_us"] / 1e3 for timing in workload["timings"]}
        for (side, label), marker in zip(SIDES.items(), "so^", strict=True):
            axes.plot(
                sizes,
                [medians[_name(side, size)] for size in sizes],
                marker=marker,
                markersize=4,
                label=label,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.set_xlabel("batch size (expected, for Poisson batches)")
        axes.set_ylabel("milliseconds a step, median")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


if __name__ == "__main__":
    main(measure, __doc__, plot=plot)
