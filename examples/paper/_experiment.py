"""The frame of every experiment: flags, results kept with all that made them, figures that can be read in grey.

An experiment is a script that calls `experiment(...)` with two settings, `full` and `quick`, and
three functions: `run` makes rows, `draw` a figure of them, `check` asserts what they must show.
`--quick` is for a first look and for CI.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

# The other examples' _tables, and the benchmarks' networks and stop watches.
sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[1:3]]

Rows = list[dict[str, Any]]
VERSIONS = (
    "discreet",
    "jax",
    "jaxlib",
    "numpyro",
    "optax",
    "dp-accounting",
    "scikit-learn",
    "numpy",
)
# Told apart by dashes and markers as well as by shade.
STYLES = (
    {"color": "#000000", "linestyle": "-", "marker": "o"},
    {"color": "#555555", "linestyle": "--", "marker": "s"},
    {"color": "#000000", "linestyle": ":", "marker": "^"},
    {"color": "#888888", "linestyle": "-.", "marker": "D"},
    {"color": "#333333", "linestyle": (0, (5, 1)), "marker": "v"},
    {"color": "#aaaaaa", "linestyle": "-", "marker": "x"},
    {"color": "#000000", "linestyle": (0, (3, 1, 1, 1)), "marker": "*"},
)


def experiment(
    script: str,
    description: str | None,
    *,
    full: Any,
    quick: Any,
    run: Callable[[Any], Rows],
    draw: Callable[[Rows], Any],
    check: Callable[[Rows, bool], None],
) -> None:
    """Read the flags, run, keep, draw, print and check.

    Args:
        script: `__file__`; its stem names what is written.
        description: `__doc__`, for `--help`.
        full: settings of the whole experiment, a frozen dataclass of plain numbers, seeds included.
        quick: the same at a size for CI.
        run: rows of results, of plain numbers and strings, from settings.
        draw: a matplotlib figure of the rows.
        check: asserts what the rows must show; its second argument is whether they are the quick
            ones.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a small size: seconds instead of minutes"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("paper-results"), help="folder of results (%(default)s)"
    )
    arguments = parser.parse_args()
    settings = quick if arguments.quick else full
    started = time.perf_counter()
    rows = run(settings)
    seconds = time.perf_counter() - started
    name = Path(script).stem
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = {
        "experiment": name,
        "quick": arguments.quick,
        "settings": dataclasses.asdict(settings),
        "seconds": round(seconds, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {package: version(package) for package in VERSIONS},
        "rows": rows,
    }
    _write(arguments.out / f"{name}.json", (json.dumps(kept, indent=1) + "\n").encode())
    figure = draw(rows)
    picture = arguments.out / f"{name}.svg"
    # No date and no random names in the file: the same rows make the same picture.
    figure.savefig(picture.with_suffix(".part"), format="svg", metadata={"Date": None})
    picture.with_suffix(".part").replace(picture)
    print_table(rows)
    print(f"{seconds:.0f} s; {picture.with_suffix('.json')} and {picture.name} written.")
    check(rows, arguments.quick)


def new_figure(columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """Figure and axes, side by side, without a display."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {"svg.hashsalt": "discreet", "font.size": 9, "lines.markersize": 4, "lines.linewidth": 1.2}
    )
    return plt.subplots(1, columns, figsize=(4.6 * columns, 3.4), layout="constrained", **options)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows as a plain table; columns as in the first row, without those that hold lists."""
    if not rows:
        return
    names = [name for name, value in rows[0].items() if not isinstance(value, list)]
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def _write(path: Path, content: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)
