"""Shares of levels of a table's columns, two tables side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from discreet.plots._figure import new_figure, save, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 3
_MOST_LABELS = 8


class Shares(NamedTuple):
    """Of one column.

    Attributes:
        labels: of its levels; of slices of numbers, where they begin.
        first: share of the first table's records at each level.
        second: likewise of the second's.
        axis: what the labels are, with a unit.
        sliced: whether the levels are slices of numbers, or categories.
    """

    labels: Sequence[str]
    first: Float[np.ndarray, " level"]
    second: Float[np.ndarray, " level"]
    axis: str
    sliced: bool


def plot_shares(
    shares: Mapping[str, Shares], names: tuple[str, str], *, title: str, path: str | Path | None = None
) -> Figure:
    """Draw a panel for each column: the first table as grey bars, the second as black marks.

    Args:
        shares: by the column's name.
        names: of the two tables.
        title: of the whole.
        path: where to save the picture, whose ending tells its format; left out, it is not saved.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    down = -(-len(shares) // _COLUMNS)
    figure = new_figure(10.5, 0.9 + 2.3 * down)
    grid = figure.subplots(down, _COLUMNS, squeeze=False).ravel()
    for axes, (name, column) in zip(grid, shares.items(), strict=False):
        _draw_column(axes, name, column)
    for axes in grid[len(shares) :]:
        axes.set_axis_off()
    figure.suptitle(title, fontsize="medium", wrap=True)
    figure.legend(*_handles(names), loc="outside lower center", ncols=2, frameon=False)
    return save(figure, path)


def _draw_column(axes: Any, name: str, column: Shares) -> None:
    places = np.arange(len(column.labels))
    axes.bar(places, column.first, width=1.0 if column.sliced else 0.8, color="0.8", edgecolor="white", linewidth=0.3)
    if column.sliced:
        axes.step(places, column.second, where="mid", color="black", linewidth=1)
    axes.plot(places, column.second, "D", color="black", markersize=3)
    every = max(1, -(-len(places) // _MOST_LABELS))
    labels = [label if len(label) <= 14 else f"{label[:13]}…" for label in column.labels]
    long = max(map(len, labels)) * min(len(places), _MOST_LABELS) > 30
    axes.set_xticks(places[::every], labels[::every], fontsize="x-small", rotation=40 if long else 0)
    if long:
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    axes.tick_params(axis="y", labelsize="x-small")
    axes.set_title(name, fontsize="small", loc="left")
    axes.set_xlabel(column.axis, fontsize="x-small")
    axes.set_ylabel("share of rows", fontsize="x-small")
    axes.set_ylim(0)
    tidy(axes)


def _handles(names: tuple[str, str]) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    second = Line2D([], [], color="black", marker="D", markersize=3, linewidth=1)
    return [Patch(color="0.8"), second], list(names)
