"""From a model to its first step, nothing cached: auto-encoder and logistic regression, in processes of their own.

python -m benchmarks.compile_time
"""

from __future__ import annotations

from benchmarks._child import ask
from benchmarks._command import main
from benchmarks._harness import Figure, Outcome, Scale, Timing, quartiles, ratio
from benchmarks._results import duration

BOUNDS = {"vae": 8.0, "logistic": 2.0}
SIDES = {"private": "discreet, Poisson", "non-private": "NumPyro, not private"}


def measure(scale: Scale) -> list[Outcome]:
    """Seconds to trace and compile, private and not, in turn."""
    outcome = Outcome(
        "compile-time", "time to trace and compile, each in a fresh process without a cache"
    )
    rounds = 1 if scale.tiny else min(scale.rounds, 3)
    sizes = {"vae": (128, 60_000), "logistic": (scale.size(500, 6), scale.size(50_000, 6))}
    problems = ("logistic",) if scale.tiny else tuple(BOUNDS)
    for problem in problems:
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        starts: list[float] = []
        by_xla: list[float] = []
        for _ in range(rounds):
            for side in SIDES:
                answer = ask("compile", problem, side, *sizes[problem])
                seconds[side].append(answer["compile_seconds"])
                if side == "private":
                    starts.append(answer["init_seconds"])
                    by_xla.append(answer["xla_seconds"])
        timings = {side: Timing(f"{problem}: {SIDES[side]}", seconds[side], 1) for side in SIDES}
        outcome.timings += [
            *timings.values(),
            Timing(f"{problem}: DPSVI and its init, before that", starts, 1),
        ]
        low, middle, high = quartiles(seconds["private"])
        xla = duration(1e6 * quartiles(by_xla)[1])
        reason = f"XLA compiles for {xla}, the rest is tracing and lowering"
        limit = ("<=", BOUNDS[problem])
        outcome.figures.append(
            Figure(f"{problem}: compile", middle, "s", limit, low, high, reason=reason)
        )
        outcome.figures.append(
            ratio(f"{problem}: private / not private", timings["private"], timings["non-private"])
        )
    return [outcome]


if __name__ == "__main__":
    main(measure, __doc__)
