"""Posterior draws: for each coordinate a density, its mean and two intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from discreet.plots._figure import new_figure, save, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from discreet.report import Statement

_CAPTION = "Dot: mean. Thick and thin line: central 50 % and 90 % of the draws. Grey: their density."
_GRID = 160


class _Row(NamedTuple):
    name: str
    draws: Float[np.ndarray, " draw"]


def plot_posterior(
    draws: Mapping[str, Any],
    *,
    feature_names: Sequence[str] | None = None,
    units: Mapping[str, str] | None = None,
    most: int = 30,
    statement: Statement | None = None,
    note: str = "",
    path: str | Path | None = None,
) -> Figure:
    """Draw each coordinate's density, mean, and central 50 % and 90 % of the draws: a panel a latent, a row a coordinate.

    The intervals are of the draws: those of `result.posterior` lack the noise of the private fit, those of
    `result.noise_aware().posterior` allow for it.

    Args:
        draws: by the latent's name, along the leading axis, 2 at least.
        feature_names: names of the rows of each latent that has as many coordinates.
        units: what a latent's values count, for its axis.
        most: rows of a latent at most; of more, those whose mean is farthest from zero by its own spread, and the panel
            says so.
        statement: whose epsilon to print.
        note: a line below.
        path: where to save the picture, whose ending tells its format; left out, it is not saved.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no draws, or one that is not finite.
    """
    if not draws or most < 1:
        raise ValueError("There is nothing to draw: pass draws of one latent at least, and most from 1 up.")
    panels = {name: _rows(name, np.asarray(drawn, np.float64), feature_names) for name, drawn in draws.items()}
    shown = {name: _foremost(rows, most) for name, rows in panels.items()}
    heights = [0.45 + 0.33 * len(rows) for rows in shown.values()]
    figure = new_figure(7.0, 1.0 + sum(heights) + 0.45 * len(heights))
    grid = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, rows) in zip(grid, shown.items(), strict=True):
        _draw_panel(axes, rows)
        unit = (units or {}).get(name)
        part = f", {len(rows)} of {len(panels[name])} rows" if len(rows) < len(panels[name]) else ""
        axes.set_xlabel(f"{name}{f' ({unit})' if unit else ''}{part}")
    number = len(next(iter(panels.values()))[0].draws)
    spent = "" if statement is None else f" at ε = {statement.epsilon:.4g}, δ = {statement.delta:.3g}"
    figure.suptitle(f"Posterior{spent}: {number:,} draws", fontsize="large")
    figure.supxlabel("\n".join([_CAPTION, *([note] if note else [])]), fontsize="x-small", color="0.3")
    return save(figure, path)


def _rows(name: str, drawn: np.ndarray, feature_names: Sequence[str] | None) -> list[_Row]:
    if drawn.ndim == 0 or len(drawn) < 2 or drawn.size == 0:
        raise ValueError(
            f"{name!r} has shape {drawn.shape}: two draws at least, along the leading axis, make a picture."
        )
    if not np.isfinite(drawn).all():
        raise ValueError(
            f"The draws of {name!r} are not all finite: the fit diverged. Fit with a smaller learning rate, which spends again."
        )
    flat = drawn.reshape(len(drawn), -1)
    if feature_names is not None and flat.shape[1] == len(feature_names) > 1:
        names = list(feature_names)
    else:
        names = [name + (f"[{','.join(map(str, place))}]" if place else "") for place in np.ndindex(drawn.shape[1:])]
    return [_Row(label, flat[:, i]) for i, label in enumerate(names)]


def _foremost(rows: list[_Row], most: int) -> list[_Row]:
    """As many as are to be shown, in their order."""
    if len(rows) <= most:
        return rows
    distance = [abs(row.draws.mean()) / max(row.draws.std(), 1e-300) for row in rows]
    return [rows[i] for i in np.sort(np.argsort(distance)[-most:])]


def _draw_panel(axes: Any, rows: list[_Row]) -> None:
    for height, row in enumerate(reversed(rows)):
        low, lower, upper, high = np.quantile(row.draws, [0.05, 0.25, 0.75, 0.95])
        if row.draws.std() > 0:
            where, density = _density(row.draws)
            axes.fill_between(where, height, height + 0.75 * density, color="0.85", linewidth=0)
            axes.plot(where, height + 0.75 * density, color="0.6", linewidth=0.6)
        axes.plot([low, high], [height, height], color="black", linewidth=1, solid_capstyle="butt")
        axes.plot([lower, upper], [height, height], color="black", linewidth=3.5, solid_capstyle="butt")
        axes.plot(row.draws.mean(), height, "o", color="black", markerfacecolor="white", markersize=5)
    axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)], fontsize="small")
    axes.set_ylim(-0.45, len(rows) - 0.1)
    if min(row.draws.min() for row in rows) < 0 < max(row.draws.max() for row in rows):
        axes.axvline(0, color="0.5", linewidth=0.8, linestyle=":", zorder=0)
    axes.tick_params(axis="y", length=0)
    tidy(axes)
    axes.spines["left"].set_visible(False)


def _density(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kernel density of the draws between their 0.5 % and 99.5 % quantiles, its highest value 1."""
    from scipy.stats import gaussian_kde

    low, high = np.quantile(draws, [0.005, 0.995])
    where = np.linspace(low, high, _GRID)
    density = gaussian_kde(draws[:: max(1, len(draws) // 5_000)])(where)
    return where, density / density.max()
