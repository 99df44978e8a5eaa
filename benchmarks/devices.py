"""The processor time of `mesh=`: a step over forced devices, or over processes, against the same step on one device.

python -m benchmarks.devices
python -m benchmarks.devices --processes 2

Four devices of one process: logistic regressions of 5,000 and of 50 columns in Poisson batches, and
one in full batches. Processes, each of which works on as many records as one device does without a
mesh: the auto-encoder of d3p's Table 2, and a small regression. Each process makes both fits in
turn, and a step's time is the difference of a long and a short run, so that what a fit does once is
not in it. Not among the workloads of `python -m benchmarks`: the number of devices is that of a
whole process.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

if __name__ == "__main__" and len(sys.argv) == 1:
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    )

import jax

import discreet as dp
from benchmarks import logistic
from benchmarks._fits import PrivateFit, Problem, auto_encoder
from benchmarks._networks import dense
from discreet.methods.inference import Processes
from discreet.methods.inference._records import take_apart

ROUNDS = 7
CASES = {
    "8,000 records, 5,000 columns, batch 400": (8_000, 5_000, dp.PoissonSampling(0.05), 400),
    "8,000 records, 50 columns, batch 400": (8_000, 50, dp.PoissonSampling(0.05), 4_000),
    "100,000 records, 50 columns, full batch": (100_000, 50, dp.FullBatch(), 100),
}


def over(fit: PrivateFit, mesh: Any) -> PrivateFit:
    """The same fit with its records over a mesh."""
    records = take_apart(fit.leaves, {}, mesh)
    fit.step, fit.leaves, fit.state = fit.dpsvi._over(mesh, records, fit.state)
    return fit


def seconds(fit: PrivateFit, **options: Any) -> float:
    """Processor time of one run, of all threads."""
    started = time.process_time()
    fit.run(**options)
    return time.process_time() - started


def over_devices() -> None:
    """Print one line for each case."""
    mesh = jax.make_mesh((4,), ("records",))
    for name, (records, columns, sampling, steps) in CASES.items():
        problem: Problem = logistic.problem_of(records, columns)
        one = PrivateFit(problem, sampling, steps)
        four = over(PrivateFit(problem, sampling, steps), mesh)
        for fit in (one, four):
            fit.run()
        rounds = [(seconds(one), seconds(four)) for _ in range(ROUNDS)]
        ratio = statistics.median(b / a for a, b in rounds)
        alone, spread = (1e3 * min(x) / steps for x in zip(*rounds, strict=True))
        print(
            f"{name}: {alone:.3g} ms on one device, {spread:.3g} ms on four, ratio {ratio:.3g}",
            flush=True,
        )


def over_processes(coordinator: str, count: int, index: int) -> None:
    """Print one line for each case, from the first process."""
    started = Processes.start(coordinator, count, index)
    made = {
        f"auto-encoder, 688,884 parameters, batch 1,024 a process, {relation.name}": (
            lambda records: auto_encoder(dense(400, 50), records),
            8_192,
            1_024,
            20,
            relation,
        )
        for relation in (dp.Relation.REPLACE_ONE, dp.Relation.ADD_OR_REMOVE_ONE)
    } | {
        "regression of 50 columns, batch 400 a process": (
            lambda records: logistic.problem_of(records, 50),
            8_000,
            400,
            400,
            None,
        ),
    }
    for name, (problem, records, batch, steps, relation) in made.items():
        with Processes(started.mesh).joined() as processes:
            rate = dp.PoissonSampling(batch / records)
            alone = PrivateFit(problem(records), rate, steps, relation=relation)
            together = over(
                PrivateFit(problem(count * records), rate, steps, relation=relation), started.mesh
            )
            rounds = []
            for turn in range(ROUNDS + 1):
                times = []
                for fit, which in ((alone, Processes()), (together, processes)):
                    long, short = (
                        seconds(fit, steps=n, processes=which) for n in (3 * steps, steps)
                    )
                    times.append((long - short) / (2 * steps))
                if turn:  # the first one compiles
                    rounds.append(times)
            ratio = statistics.median(b / a for a, b in rounds)
            one, all_of_them = (1e3 * statistics.median(x) for x in zip(*rounds, strict=True))
            said = f"{one:.3g} ms a step alone, {all_of_them:.3g} ms in each of {count} processes, ratio {ratio:.3g}"
            if processes.first:
                print(f"{name}: {said}", flush=True)


def main() -> None:
    """Measure over devices, or start processes that measure."""
    parser = argparse.ArgumentParser()
    for option in ("--processes", "--index"):
        parser.add_argument(option, type=int)
    parser.add_argument("--coordinator")
    chosen = parser.parse_args()
    if chosen.processes is None:
        over_devices()
    elif chosen.index is not None:
        over_processes(chosen.coordinator, chosen.processes, chosen.index)
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            where = f"127.0.0.1:{free.getsockname()[1]}"
        command = [
            sys.executable,
            "-m",
            "benchmarks.devices",
            *sys.argv[1:],
            "--coordinator",
            where,
            "--index",
        ]
        for child in [
            subprocess.Popen([*command, str(index)]) for index in range(chosen.processes)
        ]:
            child.wait()


if __name__ == "__main__":
    main()
