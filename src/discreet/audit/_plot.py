"""Lower bounds beside claims, readable in grey."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from discreet.audit._verdict import Verdict
from discreet.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_verdicts(verdicts: Sequence[Verdict], path: str | Path | None = None) -> Figure:
    """Draw for each audit a bar up to the lower bound on ε, and a line where the claim is.

    Args:
        verdicts: at least one; the first is on top.
        path: where to save the picture, whose ending tells its format; None: it is not saved.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is nothing to draw.
    """
    if not verdicts:
        raise ValueError("There is no verdict to draw. Pass at least one.")
    figure = new_figure(8.0, 1.1 + 0.33 * len(verdicts))
    axes = figure.subplots()
    farthest = max(x for v in verdicts for x in (v.epsilon_lower, v.claimed_epsilon, 0.1) if math.isfinite(x))
    for row, verdict in enumerate(verdicts):
        shade = "0.5" if verdict.contradicted else "0.8"
        reached = min(verdict.epsilon_lower, farthest)
        axes.barh(row, reached, height=0.6, color=shade)
        if math.isfinite(verdict.claimed_epsilon):
            axes.plot([verdict.claimed_epsilon] * 2, [row - 0.42, row + 0.42], color="black", linewidth=2)
        if verdict.contradicted:
            axes.text(max(reached, 0.0), row, "  contradicted", va="center", fontsize="small")
    axes.set_yticks(range(len(verdicts)), [verdict.target for verdict in verdicts], fontsize="small")
    axes.set_ylim(len(verdicts) - 0.4, -0.6)
    accused = any(verdict.contradicted for verdict in verdicts)
    axes.set_xlim(0, (1.25 if accused else 1.05) * farthest)
    axes.set_xlabel("ε")
    figure.suptitle("Bar: lower bound that was measured. Line: upper bound that is claimed.", fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    if path is not None:
        figure.savefig(path, dpi=100)
    return figure
