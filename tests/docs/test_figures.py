"""Tables and pictures of the pages are those of the results that are kept beside them."""

import json
from pathlib import Path

METHODS = ("last iterate", "averaged", "noise-aware, trace", "noise-aware, regression")


def coverage_rows(kept: dict) -> list[str]:
    """Lines of the table in docs/noise-aware.md: share of 95 % intervals that held the truth, and their width."""
    cells = {(row["model"], row["epsilon"], row["method"]): row for row in kept["rows"]}
    lines = []
    for model, epsilon in dict.fromkeys((row["model"], row["epsilon"]) for row in kept["rows"]):
        shown = []
        for method in METHODS:
            row = cells.get((model, epsilon, method))
            shown.append(f"{100 * row['in 95%']:.0f} % ({row['width of 95%']:.3f})" if row else "")
        lines.append("| " + " | ".join([model, str(epsilon), *shown]) + " |")
    return lines


def test_coverage(repository: Path) -> None:
    kept = json.loads((repository / "docs/papers/coverage.json").read_text(encoding="utf-8"))
    page = (repository / "docs/noise-aware.md").read_text(encoding="utf-8")
    lines = coverage_rows(kept)
    assert len(lines) == 12
    assert [line for line in lines if line not in page] == []
