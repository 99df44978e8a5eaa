"""The cost of progress bar, trace of iterates, Ctrl-C and chunks: `run_steps` against its loop in one call.

python -m benchmarks.overhead
"""

from __future__ import annotations

import contextlib
import io

import jax
import jax.numpy as jnp

import discreet as dp
from benchmarks import hierarchical, logistic
from benchmarks._command import main
from benchmarks._fits import PrivateFit, Problem, auto_encoder
from benchmarks._harness import Outcome, Scale, alternate
from benchmarks._networks import dense
from benchmarks._results import duration
from discreet.methods.inference import _loop
from discreet.methods.inference._step import PlanNumbers

BOUND = 1.02


class BareLoop(PrivateFit):
    """The same steps in one call of the compiled loop: no iterate is kept, and nobody watches."""

    def run(self, progress_bar: bool = False) -> None:
        """Make `steps` releases."""
        tables = jax.tree.map(
            jnp.asarray, self.dpsvi.plan.sampling.prepare(self.leaves[0].shape[0])
        )
        plan, num_records = self.dpsvi.plan, self.leaves[0].shape[0]
        static = self.step, plan.sampling.drawing(num_records), self.steps, False, False
        numbers = PlanNumbers.of(plan)
        # As each fit does once: the trace and the program are there from the run before.
        compiled = _loop._chunk.lower(
            *static, self.state, jnp.zeros((0, 0)), numbers, self.leaves, tables, jnp.int32(0)
        ).compile()
        state = jax.tree.map(jnp.copy, self.state._replace(rng_key=dp.random.key()))
        self.state, *_ = jax.block_until_ready(
            compiled(state, jnp.zeros((0, 0)), numbers, self.leaves, tables, jnp.int32(self.steps))
        )


class WatchedFit(PrivateFit):
    """As `DPSVI.run` runs it, with a progress bar that is drawn to a text nobody reads."""

    def run(self, progress_bar: bool = True) -> None:
        """Make `steps` releases."""
        with contextlib.redirect_stderr(io.StringIO()):
            super().run(progress_bar)


def measure(scale: Scale) -> list[Outcome]:
    """Small, middling and large steps."""
    rows = scale.size(logistic.RECORDS, 6)
    problems: dict[str, tuple[Problem, int, int]] = {
        "hierarchical": (hierarchical.problem_of(), hierarchical.BATCH, scale.steps(100_000)),
        "logistic": (logistic.problem_of(rows), scale.size(logistic.BATCH, 6), scale.steps(30_000)),
    }
    if not scale.tiny:
        problems["vae"] = auto_encoder(dense(400, 50), 60_000), 128, scale.steps(500)
    outcome = Outcome(
        "overhead", "progress bar, trace and chunks, against the compiled loop in one call"
    )
    for name, (problem, batch_size, steps) in problems.items():
        sampling = problem.poisson(batch_size)
        watched, bare = WatchedFit(problem, sampling, steps), BareLoop(problem, sampling, steps)
        run, alone = f"{name}: as run", f"{name}: the loop alone"
        programs = [watched.program(run), bare.program(alone)]
        outcome.timings += alternate(programs, min(scale.rounds, 7))
        once = outcome.timing(run).median - outcome.timing(alone).median
        reason = f"{duration(1e6 * max(once, 0.0) * steps)} a fit of {steps:,} steps"
        outcome.compare(f"{run} / the loop alone", run, alone, ("<=", BOUND), reason)
    return [outcome]


if __name__ == "__main__":
    main(measure, __doc__)
