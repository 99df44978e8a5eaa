"""All benchmarks, in at most 25 minutes: writes results.json, results.md and the pictures.

python -m benchmarks [--quick] [--only NAME,NAME | --fill] [--out DIR] [--minutes 25]

Each workload runs in a process of its own, in the order of `WORKLOADS`. One that fails, dies or is
still at work when the time is over keeps the results that it had; their date says so. `figures`
takes twenty minutes and `synthetic` an hour, and both need tables that are not here, so they are
measured if --only names them, and then without a limit.

Without --out the results go to benchmarks/ and into docs/benchmarks.md; a quick run needs --out to
be kept. --only measures some workloads and leaves the others' results as they stand; --fill
measures nothing and writes text, pictures and page from the results that are there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import _pictures, _results
from benchmarks._harness import FULL, QUICK

# What a reader asks first comes first: time may not suffice for all.
WORKLOADS = (
    "machine",
    "noise",
    "vae",
    "full_batch",
    "first_answer",
    "logistic",
    "tables",
    "posteriors",
    "batch_sweep",
    "compile_time",
    "hierarchical",
    "overhead",
    "conv_vae",
    "memory",
    "mixture",
    "samplers",
    "calibration",
)
SLOW = ("figures", "synthetic")
HERE = _results.ROOT / "benchmarks"
PAGE = _results.ROOT / "docs" / "benchmarks.md"


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; the exit status is 1 if a workload failed (a missed bound is no failure)."""
    options = _parser().parse_args(arguments)
    asked = WORKLOADS if options.only is None else tuple(options.only.split(","))
    unknown = sorted(set(asked) - {*WORKLOADS, *SLOW})
    if unknown:
        print(
            f"There is no workload {', '.join(unknown)}. Choose from {', '.join(WORKLOADS + SLOW)}.",
            file=sys.stderr,
        )
        return 2
    folder = options.out if options.out is not None else None if options.quick else HERE
    results = _kept(folder)
    if options.part and folder is not None:
        scale = QUICK if options.quick else FULL
        measure = importlib.import_module(f"benchmarks.{options.only}").measure
        _results.add(results, measure, scale)
        write(results, folder)
        return 0
    until = time.monotonic() + 60 * options.minutes
    failed = []
    for name in WORKLOADS + SLOW:
        if name not in asked or options.fill:
            continue
        left = None if name in SLOW else until - time.monotonic()
        why, found = _measured(name, options.quick, left)
        results["workloads"] |= found
        if why:
            failed.append(f"{name} ({why})")
        if folder is not None:
            write(results, folder)
    if options.fill and folder is not None:
        write(results, folder)
    print(_results.as_markdown(results) if folder is None else _results.bounds_table(results))
    if failed:
        print(f"Failed: {', '.join(failed)}.", file=sys.stderr)
        return 1
    return _fill_page(results) if folder == HERE and PAGE.is_file() else 0


def _measured(name: str, quick: bool, seconds: float | None) -> tuple[str, dict[str, Any]]:
    """Measure a workload in a process of its own: why it failed, or "", and its outcomes."""
    if seconds is not None and seconds <= 0:
        return "no time was left", {}
    started = time.perf_counter()
    print(f"{name} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks", "--part", "--only", name, "--out", folder]
        command += ["--quick"] if quick else []
        # With what it starts itself in one group, to end with it.
        child = subprocess.Popen(command, cwd=_results.ROOT, start_new_session=True)
        try:
            code = child.wait(seconds)
            why = f"exit status {code}" if code else ""
        except subprocess.TimeoutExpired:
            why = "it was still at work when the time was over"
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        found = _kept(Path(folder))["workloads"]
    print(f"{name}: {time.perf_counter() - started:.0f} s {why}", file=sys.stderr, flush=True)
    return why, found


def _fill_page(results: dict[str, Any]) -> int:
    try:
        PAGE.write_text(_results.fill(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    except KeyError as missing:
        print(
            f"{PAGE} stays as it was: it shows {missing}, which was not measured.", file=sys.stderr
        )
        return 1
    return 0


def write(results: dict[str, Any], folder: Path) -> None:
    """JSON, text and pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(_results.as_markdown(results), encoding="utf-8")
    _pictures.draw(results["workloads"], folder)


def _kept(folder: Path | None) -> dict[str, Any]:
    if folder is None or not (folder / "results.json").is_file():
        return _results.new()
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--quick", action="store_true", help="fewer rounds and steps: to see that it runs"
    )
    made.add_argument("--only", metavar="NAMES", help=f"some of {','.join(WORKLOADS + SLOW)}")
    made.add_argument(
        "--fill", action="store_true", help="measure nothing: text, plot and page from results.json"
    )
    made.add_argument("--minutes", type=float, default=25.0, help="time for all workloads together")
    made.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    made.add_argument(
        "--out", type=Path, metavar="DIR", help="where results.json, results.md and the pictures go"
    )
    return made


if __name__ == "__main__":
    sys.exit(main())
