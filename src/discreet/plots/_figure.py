"""A figure to draw on, and into a file with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Told apart without colours.
STROKES = ("-", "--", "-.", ":")
SHADES = ("0.0", "0.35", "0.55")


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches, apart from pyplot, so that no window opens and nothing piles up.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Pictures are drawn by matplotlib, which is not installed. Install it with pip install 'discreet[plot]'."
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: str | Path | None) -> Figure:
    """Save the figure, if a path is given, whose ending tells the format; return it."""
    if path is not None:
        figure.savefig(path, dpi=100)
    return figure


def tidy(axes: Any) -> None:
    """Frame only where the scales are."""
    axes.spines[["top", "right"]].set_visible(False)
