"""Tables that the site makes of the results which are kept beside the pages, so that no figure is copied by hand."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
METHODS = ("last iterate", "averaged", "noise-aware, trace", "noise-aware, regression")


def kept(name: str) -> Any:
    return json.loads((DOCS / name).read_text(encoding="utf-8"))


def number(x: float | None) -> str:
    return "–" if x is None or not math.isfinite(x) else f"{x:.2f}"


def claims() -> Iterator[tuple[str, ...]]:
    """Of an audit: what was attacked, the lower bound, the claim."""
    yield "what", "lower bound", "claimed ε"
    for row in kept("audit/results.json")["claims"]:
        yield row["target"], number(row["epsilon_lower"]), number(row["claimed_epsilon"])


def faults() -> Iterator[tuple[str, ...]]:
    """Of an audit: the planted faults, and what gives them away."""
    yield "fault", "lower bound", "claimed ε", "δ", "fits", "what gives it away"
    for row in kept("audit/results.json")["faults"]:
        bounds = number(row["epsilon_lower"]), number(row["claimed_epsilon"])
        yield row["target"], *bounds, f"{row['delta']:g}", f"{row['runs']:,}", row["because"]


def coverage() -> Iterator[tuple[str, ...]]:
    """Share of 95 % intervals that held the truth, and their width."""
    yield "model", "ε", *METHODS
    rows = kept("papers/coverage.json")["rows"]
    cells = {
        (
            row["model"],
            row["epsilon"],
            row["method"],
        ): f"{100 * row['in 95%']:.0f} % ({row['width of 95%']:.3f})"
        for row in rows
    }
    for model, epsilon in dict.fromkeys((row["model"], row["epsilon"]) for row in rows):
        yield model, str(epsilon), *(cells.get((model, epsilon, method), "") for method in METHODS)


TABLES = {"claims": claims, "faults": faults, "coverage": coverage}


def on_page_markdown(markdown: str, **others: Any) -> str:
    """Put a table in the place of each line `<!-- table: NAME -->`."""
    del others

    def table(found: re.Match[str]) -> str:
        head, *rows = TABLES[found[1]]()
        return "\n".join(
            "| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)
        )

    return re.sub(r"^<!-- table: (\w+) -->$", table, markdown, flags=re.MULTILINE)
