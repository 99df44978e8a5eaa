"""Finding the noise for epsilon = 1, delta = 1e-6, q = 0.01, 10,000 steps: ours against dp_accounting's calibration.

python -m benchmarks.calibration
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dp_accounting
from dp_accounting import pld

import discreet as dp
from benchmarks._command import main
from benchmarks._harness import Outcome, Program, Scale, alternate

EPSILON, DELTA, RATE, STEPS, RECORDS = 1.0, 1e-6, 0.01, 10_000, 100_000


def ours() -> float:
    """A plan, as users make one."""
    plan = dp.PrivacyPlan.calibrate(
        epsilon=EPSILON,
        delta=DELTA,
        num_records=RECORDS,
        num_steps=STEPS,
        sampling=dp.PoissonSampling(rate=RATE),
        clipping_norm=1.0,
    )
    return plan.noise_multiplier


def theirs() -> float:
    """The call of dp_accounting's own documentation."""

    def event(sigma: float) -> Any:
        step = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(step, STEPS)

    return dp_accounting.calibrate_dp_mechanism(pld.PLDAccountant, event, EPSILON, DELTA)


def measure(scale: Scale) -> list[Outcome]:
    """Seconds, and the noise that each finds."""
    found: dict[str, float] = {}
    programs = [_keeping(found, "discreet", ours), _keeping(found, "dp_accounting, PLD", theirs)]
    outcome = Outcome(
        "calibration", f"noise for epsilon {EPSILON:g}, delta {DELTA:g}, q {RATE}, {STEPS:,} steps"
    )
    outcome.timings = alternate(programs, min(scale.rounds, 5))
    outcome.compare("discreet / dp_accounting, seconds", "discreet", "dp_accounting, PLD")
    outcome.facts["noise_multiplier"] = found
    return [outcome]


def _keeping(found: dict[str, float], name: str, calibrate: Callable[[], float]) -> Program:
    def run() -> None:
        found[name] = calibrate()

    return Program(name, run, 1)


if __name__ == "__main__":
    main(measure, __doc__)
