"""Private Newton on 2,000,000 rows of 50 columns beside scikit-learn's lbfgs, which is not private.

python -m benchmarks.full_batch

From memory, and from a folder of files as `discreet convert` writes them. The floor is the work of
all sums, each once through memory by BLAS in float64: four gradients of all records; eleven and the
products of three matrices of the pilot sample.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

import discreet as dp
from benchmarks._command import main
from benchmarks._harness import Outcome, Scale, Timing
from discreet.methods.newton import NUM_GRADIENTS, NewtonPlan, fit_newton

ROWS, COLUMNS = 2_000_000, 50
_MATRICES = 3  # the features' directions, and the curvature at two points
_BLOCK = 2_048


def measure(scale: Scale) -> list[Outcome]:
    """By the clock and in processor time, in turn."""
    rows = scale.size(ROWS, 2_000)
    columns = scale.size(COLUMNS, 3)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (rows, columns))
    y = rng.random(rows) < 1 / (1 + np.exp(-x @ rng.normal(size=columns) / 3))
    plan = NewtonPlan.calibrate(
        epsilon=1.0, delta=1e-8, family="binary", num_features=columns, num_records=rows
    )
    outcome = Outcome("full-batch", f"logistic regression, {rows:,} rows and {columns} columns")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        np.save(path, x)
        mapped = np.load(path, mmap_mode="r")
        programs: dict[str, Callable[[], Any]] = {
            "scikit-learn, lbfgs": lambda: LogisticRegression(max_iter=1_000).fit(x, y),
            "discreet, in memory": lambda: fit_newton(dp.random.key(), x, y, plan),
            "discreet, from a folder": lambda: fit_newton(dp.random.key(), mapped, y, plan),
            "floor: the sums by BLAS": lambda: _sums(x, y, plan),
        }
        by_clock, processor = _alternated(programs, min(scale.rounds, 3))
    for suffix, timings in (("", by_clock), (", processor time", processor)):
        outcome.timings += [
            Timing(f"{name}{suffix}", seconds, 1) for name, seconds in timings.items()
        ]
        peer, memory, files, least = (f"{name}{suffix}" for name in programs)
        floor = outcome.together([least], peer)
        for name, ours, limit in (("in memory", memory, 1.4), ("from a folder", files, 2.5)):
            over = outcome.together([ours], least)
            reason = f"rounding to a grid, noise and small algebra: {over:.2f} of the sums alone"
            outcome.compare(
                f"private Newton, {name} / lbfgs{suffix}", ours, peer, ("<=", limit), reason, floor
            )
    return [outcome]


def _sums(x: np.ndarray, y: np.ndarray, plan: NewtonPlan) -> np.ndarray:
    """Predictors and gradients, then products, a block at a time: nothing is read twice for one sum."""
    theta = np.zeros(x.shape[1])
    found = np.zeros((x.shape[1], x.shape[1]))
    pilot = int(plan.pilot * len(x))
    for step in range(NUM_GRADIENTS):
        gradient = np.zeros_like(theta)
        last = pilot if step < plan.num_pilot else len(x)
        for first in range(0, last, _BLOCK):
            rows = x[first : first + _BLOCK]
            residual = y[first : first + _BLOCK] - 1 / (1 + np.exp(-(rows @ theta)))
            gradient += residual @ rows
        theta = theta + 1e-9 * gradient
    for _ in range(_MATRICES):
        for first in range(0, pilot, _BLOCK):
            rows = x[first : first + _BLOCK]
            found += rows.T @ rows
    return found


def _alternated(
    programs: dict[str, Callable[[], Any]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds by the clock and of the processor, a number a round; the first round compiles and does not count."""
    clock: dict[str, list[float]] = {name: [] for name in programs}
    processor: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds + 1):
        for name, run in programs.items():
            if number == 0 and name.startswith(("scikit", "floor")):
                continue
            started = time.perf_counter()
            spent = time.process_time()
            run()
            if number:
                processor[name].append(time.process_time() - spent)
                clock[name].append(time.perf_counter() - started)
    return clock, processor


if __name__ == "__main__":
    main(measure, __doc__)
