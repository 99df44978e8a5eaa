"""Peak memory of a fit, private and not, each in a process of its own: the auto-encoder, batch 1,024 and 8,192.

python -m benchmarks.memory
"""

from __future__ import annotations

from benchmarks._child import ask
from benchmarks._command import main
from benchmarks._harness import Figure, Outcome, Scale

MIB = 2**20


def measure(scale: Scale) -> list[Outcome]:
    """The memory that the loop adds to a process with libraries, table and compiled program; and the whole process's."""
    outcome = Outcome("memory", "peak memory, VAE with 688,884 parameters")
    batch, large, records = scale.size(1024, 8), 8192, scale.size(60_000, 8)
    private, plain = (
        ask("memory", "vae", side, batch, records) for side in ("private", "non-private")
    )
    most = None if scale.tiny else ask("memory", "vae", "private", large, records)
    outcome.facts |= {
        "private": private,
        "non_private": plain,
        "private_largest": most,
        "batch_sizes": [batch, large],
    }
    working = private["working_bytes"] / max(1, plain["working_bytes"])
    whole = private["peak_bytes"] / plain["peak_bytes"]
    outcome.figures += [
        Figure(f"batch {batch:,}: private / not private, whole process", whole, bound=("<=", 1.3)),
        Figure(
            f"batch {batch:,}: private / not private, the loop's own", working, bound=("<=", 1.3)
        ),
        Figure(f"batch {batch:,}: the loop's own, private", private["working_bytes"] / MIB, "MiB"),
        Figure(
            f"batch {batch:,}: the loop's own, not private", plain["working_bytes"] / MIB, "MiB"
        ),
    ]
    if most is not None:
        name = f"batch {large:,}: private, whole process"
        outcome.figures.append(Figure(name, most["peak_bytes"] / MIB, "MiB", ("<=", 2048)))
    return [outcome]


if __name__ == "__main__":
    main(measure, __doc__)
