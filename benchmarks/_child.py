"""Measurements that need a process of their own: compile time with nothing cached, and peak memory.

python -m benchmarks._child WHAT PROBLEM SIDE BATCH RECORDS prints one line of JSON.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def ask(what: str, problem: str, side: str, batch_size: int, records: int) -> dict[str, Any]:
    """Run one measurement in a fresh process.

    Raises:
        RuntimeError: it failed; the message holds what it wrote.
    """
    settings = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("JAX_COMPILATION_CACHE")
    }
    settings["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [settings.get("PYTHONPATH")])]
    )
    if what in ("memory", "mapped"):
        # Freed buffers go back to the system at once, so that a peak is what is in use at one time.
        settings |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    arguments = [
        sys.executable,
        "-m",
        "benchmarks._child",
        what,
        problem,
        side,
        str(batch_size),
        str(records),
    ]
    done = subprocess.run(
        arguments, cwd=ROOT, env=settings, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"Measuring {' '.join(arguments[3:])} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _fit(problem: str, side: str, batch_size: int, records: int, steps: int) -> Callable[[], Any]:
    from benchmarks import _networks, logistic
    from benchmarks._fits import NonPrivateFit, PrivateFit, auto_encoder

    make = {"vae": lambda n: auto_encoder(_networks.dense(), n), "logistic": logistic.problem_of}[
        problem
    ]
    made = make(records)

    def start() -> Any:
        if side == "non-private":
            return NonPrivateFit(made, batch_size, steps)
        return PrivateFit(made, made.poisson(batch_size), steps)

    return start


def _compile(problem: str, side: str, batch_size: int, records: int) -> dict[str, float]:
    import jax

    jax.block_until_ready(jax.numpy.zeros(1) + 1)  # the backend starts before the clock
    start = _fit(problem, side, batch_size, records, 1)
    by_xla: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **_: (
            by_xla.append(duration_secs) if event.endswith("backend_compile_duration") else None
        )
    )
    started = time.perf_counter()
    fit = start()
    ready = time.perf_counter()
    by_xla.clear()
    fit.run()
    compiled = time.perf_counter()
    fit.run()
    again = time.perf_counter() - compiled
    return {
        "init_seconds": ready - started,
        "compile_seconds": compiled - ready - again,
        "xla_seconds": sum(by_xla),
    }


def _memory(problem: str, side: str, batch_size: int, records: int) -> dict[str, float]:
    fit = _fit(problem, side, batch_size, records, 8)()
    fit.run()
    fit.run()
    gc.collect()
    _trim()
    # Not getrusage, whose peak begins with that of the process which started this one.
    whole = _status("VmHWM")
    before = _status("VmRSS")
    forgotten = _forget_peak()
    fit.run()
    peak = _status("VmHWM")
    # Where the peak cannot be forgotten, compiling may have reached further than running.
    return {
        "working_bytes": peak - before,
        "peak_bytes": max(whole, peak),
        "exact": float(forgotten),
    }


def _mapped(path: str, side: str, batch_size: int, records: int) -> dict[str, float]:
    """The private memory that a fit of converted records adds to the process, sampled every millisecond."""
    from benchmarks import tables
    from benchmarks._fits import PrivateFit

    # All libraries loaded, and all compiled that does not depend on the number of records.
    small = Path(path).with_suffix(".small")
    tables.write_numbers(small, batch_size)
    PrivateFit(warm := tables.problem_of(small), warm.poisson(batch_size // 2), 8).run()
    gc.collect()
    _trim()
    before, stop, peak = _status("RssAnon"), threading.Event(), [0]

    def watch() -> None:
        while not stop.wait(1e-3):
            peak[0] = max(peak[0], _status("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    problem = tables.problem_of(Path(path), side == "memory")
    fit = PrivateFit(problem, problem.poisson(batch_size), 2_000)
    fit.run()
    fit.run()
    stop.set()
    watcher.join()
    return {
        "grown_bytes": max(peak[0], _status("RssAnon")) - before,
        "before_bytes": before,
        "records": records,
    }


def _trim() -> None:
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except OSError:
        return


def _forget_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status holds no {name}: peak memory is measured on Linux only.")


if __name__ == "__main__":
    measure = {"compile": _compile, "memory": _memory, "mapped": _mapped}[sys.argv[1]]
    print(json.dumps(measure(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))))
