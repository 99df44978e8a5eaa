"""One command for each workload, all with the same options."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import _results
from benchmarks._harness import FULL, QUICK, Outcome, Scale


def main(
    measure: Callable[[Scale], list[Outcome]],
    description: str | None,
    plot: Callable[[dict[str, Any], Path], None] | None = None,
) -> None:
    """Measure, and print what was found."""
    made = parser(description)
    if plot is not None:
        made.add_argument(
            "--plot", type=Path, metavar="FILE", help="draw the results to FILE, .svg or .png"
        )
    options = made.parse_args()
    scale = QUICK if options.quick else FULL
    results = _results.new()
    _results.add(results, measure, scale)
    print(_results.as_markdown(results))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if plot is not None and options.plot is not None:
        (workload,) = results["workloads"].values()
        plot(workload, options.plot)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all have."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--quick", action="store_true", help="fewer rounds and steps: to see that it runs"
    )
    made.add_argument(
        "--json", type=Path, metavar="FILE", help="write the measurements to FILE as well"
    )
    return made
