"""The pictures of docs/benchmarks.md, from results alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import batch_sweep, first_answer, posteriors


def draw(workloads: dict[str, Any], folder: Path) -> None:
    """Draw those whose results are there, as SVG.

    Args:
        workloads: As in results.json.
        folder: Where they go.
    """
    if "batch-sweep" in workloads:
        batch_sweep.plot(workloads["batch-sweep"], folder / "batch_sweep.svg")
    if "first-answer" in workloads:
        first_answer.plot(workloads["first-answer"], folder / "first_answer.svg")
    private = {name: x for name, x in workloads.items() if name.startswith("posteriors-")}
    shown = {name: x for name, x in private.items() if x["timings"]}
    if shown:
        posteriors.plot(shown, folder / "posteriors.svg")
