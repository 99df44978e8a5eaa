"""All benchmarks, in about 20 minutes: writes results.json, results.md and the plot of the batch sweep.

python -m benchmarks [--quick] [--only NAME,NAME | --fill] [--out DIR]

`synthetic` takes an hour and a table that is not here, so it is measured if --only names it; other
runs keep its results.

Without --out the results go to benchmarks/ and into the tables of docs/benchmarks.md; a quick run
needs --out to be kept. --only measures some workloads and leaves the others' results as they stand;
--fill measures nothing and writes text, plot and page from the results that are there.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import jax

from benchmarks import _results, batch_sweep
from benchmarks._harness import FULL, QUICK

WORKLOADS = (
    "machine",
    "noise",
    "samplers",
    "calibration",
    "tables",
    "hierarchical",
    "logistic",
    "mixture",
    "vae",
    "conv_vae",
    "batch_sweep",
    "overhead",
    "compile_time",
    "memory",
    "posteriors",
    "figures",
)
SLOW = ("synthetic",)
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
    if options.fill:
        asked = ()
    results = _kept(folder)
    if options.only is None and not options.fill:
        results["workloads"] = {
            name: x for name, x in results["workloads"].items() if name.startswith("twins-")
        }
    failed = []
    for name in WORKLOADS + SLOW:
        if name not in asked:
            continue
        started = time.perf_counter()
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            _results.add(
                results,
                importlib.import_module(f"benchmarks.{name}").measure,
                QUICK if options.quick else FULL,
            )
        except Exception:
            traceback.print_exc()
            failed.append(name)
        jax.clear_caches()
        gc.collect()
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        if folder is not None:
            write(results, folder)
    if options.fill and folder is not None:
        write(results, folder)
    print(_results.as_markdown(results) if folder is None else _results.bounds_table(results))
    if failed:
        print(f"Failed: {', '.join(failed)}.", file=sys.stderr)
        return 1
    return _fill_page(results) if folder == HERE and PAGE.is_file() else 0


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
    """JSON, text and plot."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(_results.as_markdown(results), encoding="utf-8")
    if "batch-sweep" in results["workloads"]:
        batch_sweep.plot(results["workloads"]["batch-sweep"], folder / "batch_sweep.svg")


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
    made.add_argument(
        "--out", type=Path, metavar="DIR", help="where results.json, results.md and the plot go"
    )
    return made


if __name__ == "__main__":
    sys.exit(main())
