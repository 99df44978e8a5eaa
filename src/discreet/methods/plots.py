"""Pictures of releases and of what follows from them, readable in grey. matplotlib is loaded when one is drawn.

None of these functions is given a record.
"""

from __future__ import annotations

import functools
import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from discreet._validate import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from discreet.privacy.report import Statement

__all__ = [
    "GroupMeans",
    "LevelShares",
    "coordinate_labels",
    "coordinate_names",
    "draw_losses",
    "draw_trade_off",
    "new_figure",
    "plot_levels",
    "plot_posterior",
    "plot_releases",
    "plot_replicates",
    "running_mean",
]


# Told apart without colours.
STROKES = ("-", "--", "-.", ":")
SHADES = ("0.0", "0.35", "0.55")


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches, apart from pyplot, so that no window opens and nothing piles up.

    A notebook shows it as a picture; matplotlib's own figure is shown by its name until pyplot is
    imported.
    """
    require("matplotlib", extra="plot", what="A picture")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    vars(figure)["_repr_png_"] = functools.partial(_png, figure)
    return figure


def _png(figure: Figure) -> bytes:
    figure.savefig(content := io.BytesIO(), format="png", dpi=100)
    return content.getvalue()


def save(figure: Figure, path: str | Path | None) -> Figure:
    """Save the figure, if a path is given, whose ending tells the format; return it."""
    if path is not None:
        figure.savefig(path, dpi=100)
    return figure


def tidy(axes: Any) -> None:
    """Frame only where the scales are."""
    axes.spines[["top", "right"]].set_visible(False)


_CAPTION = (
    "Dot: mean. Thick and thin line: central 50 % and 90 % of the draws. Grey: their density."
)
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

    The intervals are of the draws: those of `result.posterior` lack the noise of the private fit,
    those of `result.noise_aware().posterior` allow for it.

    Args:
        draws: By the latent's name, along the leading axis, 2 at least; or by the names of its
            coordinates, as a mapping.
        feature_names: Names of the rows of each latent that has as many coordinates.
        units: Units of a latent's values, for its axis.
        most: Rows of a latent at most; of more, those whose mean is farthest from zero by its own
            spread, and the panel says so.
        statement: Statement with the epsilon to print.
        note: A line below.
        path: File for the picture, whose ending determines its format; by default it is not saved.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: No draws, or one that is not finite.
    """
    if not draws or most < 1:
        raise ValueError(
            "There is nothing to draw: pass draws of one latent at least, and most from 1 up."
        )
    panels = {
        name: [
            row
            for part, values in (drawn if isinstance(drawn, Mapping) else {name: drawn}).items()
            for row in _rows(part, np.asarray(values, np.float64), feature_names)
        ]
        for name, drawn in draws.items()
    }
    shown = {}
    for name, rows in panels.items():
        places = foremost([x.draws.mean() for x in rows], [x.draws.std() for x in rows], most)
        shown[name] = [rows[i] for i in places]
    heights = [0.45 + 0.33 * len(rows) for rows in shown.values()]
    figure = new_figure(7.0, 1.0 + sum(heights) + 0.45 * len(heights))
    grid = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, rows) in zip(grid, shown.items(), strict=True):
        _draw_panel(axes, rows)
        unit = (units or {}).get(name)
        part = f", {len(rows)} of {len(panels[name])} rows" if len(rows) < len(panels[name]) else ""
        # A single row has the latent's name beside it.
        known = "" if [row.name for row in rows] == [name] else name
        axes.set_xlabel(f"{known}{f' ({unit})' if unit else ''}{part}".lstrip())
    number = len(next(iter(panels.values()))[0].draws)
    spent = (
        "" if statement is None else f" at ε = {statement.epsilon:.4g}, δ = {statement.delta:.3g}"
    )
    figure.suptitle(f"Posterior{spent}: {number:,} draws", fontsize="large")
    figure.supxlabel(
        "\n".join([_CAPTION, *([note] if note else [])]), fontsize="x-small", color="0.3"
    )
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
    return [
        _Row(x, flat[:, i])
        for i, x in enumerate(coordinate_labels(name, drawn.shape[1:], feature_names))
    ]


def coordinate_labels(
    name: str, shape: tuple[int, ...], given: Sequence[str] | None = None
) -> list[str]:
    """Names of a latent's coordinates: those given, if they are as many, else its own with their places."""
    if given is not None and math.prod(shape) == len(given) > 1:
        return list(given)
    return [
        name + (f"[{','.join(map(str, place))}]" if place else "") for place in np.ndindex(shape)
    ]


def foremost(means: Sequence[float], sds: Sequence[float], most: int) -> np.ndarray:
    """The places, in order, of so many coordinates: those whose mean is farthest from zero by its own spread."""
    with np.errstate(over="ignore"):
        distance = np.abs(means) / np.maximum(sds, 1e-300)
    return np.sort(np.argsort(distance, kind="stable")[-most:])


def _draw_panel(axes: Any, rows: list[_Row]) -> None:
    for height, row in enumerate(reversed(rows)):
        low, lower, upper, high = np.quantile(row.draws, [0.05, 0.25, 0.75, 0.95])
        if row.draws.std() > 0:
            where, density = _density(row.draws)
            axes.fill_between(where, height, height + 0.75 * density, color="0.85", linewidth=0)
            axes.plot(where, height + 0.75 * density, color="0.6", linewidth=0.6)
        axes.plot([low, high], [height, height], color="black", linewidth=1, solid_capstyle="butt")
        axes.plot(
            [lower, upper], [height, height], color="black", linewidth=3.5, solid_capstyle="butt"
        )
        axes.plot(
            row.draws.mean(), height, "o", color="black", markerfacecolor="white", markersize=5
        )
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


def plot_releases(result: Any, *, most: int = 6, path: str | Path | None = None) -> Figure:
    """Draw what a fit released, step by step; post-processing, free of budget.

    Above, the variational parameters on their unconstrained scale, of which those that travelled
    farthest are shown; the steps whose average is the result (or, of a chain, whose draws are kept)
    are shaded. A fit that still travels there was too short. Then the private losses with their
    running mean, if the fit gave a share of its budget to them; and the clipping norms, if they
    moved.

    Args:
        result: A result of `DPSVI.run` or `DPSGLD.run`.
        most: Number of parameters to show, 1 to 12.
        path: File for the picture, whose ending determines its format; by default it is not saved.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: A number of parameters that cannot be told apart, or a trace without iterates.
    """
    if not 1 <= most <= len(STROKES) * len(SHADES):
        raise ValueError(
            f"most is {most}; more than {len(STROKES) * len(SHADES)} lines cannot be told apart."
        )
    if len(result.trace.steps) == 0:
        raise ValueError(
            "The trace holds no iterate, since no step was done: there is nothing to draw."
        )
    norms = np.asarray(getattr(result, "clipping_norms", ()), np.float64)
    with_losses = bool(np.isfinite(result.losses).any())
    with_norms = bool(norms.size > 1 and np.ptp(norms) > 0)
    heights = [3.0, *[2.4] * with_losses, *[1.8] * with_norms]
    figure = new_figure(8.0, 0.7 + sum(heights))
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    rest = list(grid[1:])
    _draw_trace(grid[0], result, most)
    if with_losses:
        draw_losses(rest.pop(0), result.losses)
    if with_norms:
        axes = rest.pop(0)
        axes.plot(np.arange(1, len(norms) + 1), norms, color="black", linewidth=1, rasterized=True)
        axes.set(ylabel="clipping norm C", title="Clipping norm, adapted to the gradients")
        tidy(axes)
    for axes in grid:
        axes.yaxis.set_major_formatter("{x:,.6g}")
        axes.set_title(axes.get_title(), loc="left", fontsize="medium")
        axes.set_title("")
        axes.set_xlabel("")
    grid[-1].set_xlabel("step")
    spent = result.statement
    figure.suptitle(
        f"Releases of a fit at ε = {spent.epsilon:.4g}, δ = {spent.delta:.3g}", fontsize="large"
    )
    return save(figure, path)


def _draw_trace(axes: Any, result: Any, most: int) -> None:
    steps = np.asarray(result.trace.steps)
    iterates = np.asarray(result.trace.iterates, np.float64)
    travelled = np.ptp(np.where(np.isfinite(iterates), iterates, 0.0), axis=0)
    shown = np.sort(np.argsort(-travelled, kind="stable")[:most])
    names = coordinate_names(result, iterates.shape[1])
    kept = getattr(result, "draw_steps", None)
    if kept is None:
        first = steps[result.trace.averaged_from]
        what = "averaged"
        if result.trace.converged_from is None:
            what = "averaged, still drifting"
    else:
        first = kept[0] if len(kept) else steps[-1]
        what = "draws are kept"
    axes.axvspan(first, steps[-1], color="0.92", linewidth=0)
    middle = (first + steps[-1]) / 2
    axes.text(
        middle,
        0.98,
        what,
        transform=axes.get_xaxis_transform(),
        ha="center",
        va="top",
        fontsize="small",
    )
    for i, place in enumerate(shown):
        stroke = STROKES[i % len(STROKES)]
        shade = SHADES[i // len(STROKES)]
        line = iterates[:, place]
        axes.plot(
            steps, line, stroke, color=shade, linewidth=0.9, label=names[place], rasterized=True
        )
    every = (
        f"{len(shown)} of {len(names)}, those that moved most"
        if len(shown) < len(names)
        else f"all {len(names)}"
    )
    axes.margins(y=0.12)
    axes.set(ylabel="unconstrained value", title=f"Parameters ({every})")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", edgecolor="none")
    tidy(axes)


def coordinate_names(result: Any, dim: int) -> list[str]:
    """Names of the trace's coordinates, if the result's arrays determine them: sorted by name, as JAX flattens dicts."""
    arrays = getattr(result, "params", None)
    suffix = ""
    if arrays is None:
        # as the chain's own parameters are called, in whose order they lie
        suffix = "_unconstrained"
        arrays = {name + suffix: drawn[0] for name, drawn in result.draws.items() if len(drawn)}
    names = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(arrays)[0]:
        name = ".".join(
            str(getattr(key, "key", getattr(key, "idx", key))) for key in path
        ).removesuffix(suffix)
        names += coordinate_labels(name, np.shape(leaf))
    # An unconstrained value may have fewer coordinates than the constrained one (a simplex, a
    # covariance).
    return names if len(names) == dim else [f"coordinate {i}" for i in range(dim)]


def draw_losses(axes: Any, losses: Float[np.ndarray, "step"]) -> None:
    """The private losses, in nats, and their running mean."""
    steps = np.arange(1, len(losses) + 1)
    axes.plot(steps, losses, ".", markersize=2, color="0.75", label="released", rasterized=True)
    width = max(1, len(losses) // 20)
    mean = running_mean(losses, width)
    axes.plot(steps, mean, color="black", label=f"mean of the last {width} steps")
    # By the mean, since the noise of single steps is often far larger than the whole descent; but
    # not by its first values, which are hardly means.
    shown = mean[width // 4 :]
    shown = shown[np.isfinite(shown)]
    if shown.size and np.ptp(shown) > 0:
        room = np.ptp(shown)
        axes.set_ylim(shown.min() - 0.25 * room, shown.max() + 0.25 * room)
    axes.set(xlabel="step", ylabel="loss (nats)", title="Clipped private loss")
    axes.legend(edgecolor="none", fontsize="small", markerscale=3)
    tidy(axes)


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Means of the last `width` values, of all so far where they are fewer; values that are not finite left out.

    >>> running_mean(np.array([4.0, 2.0, 0.0, 1.0]), 2).tolist()
    [4.0, 3.0, 1.0, 0.5]
    """
    usable = np.isfinite(values)
    sums = np.cumsum(np.where(usable, values, 0.0), dtype=np.float64)
    counts = np.cumsum(usable)
    sums[width:] -= sums[:-width].copy()
    counts[width:] -= counts[:-width].copy()
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


_COLUMNS = 3
_MOST_LABELS = 8


def _name_levels(
    axes: Any, names: Sequence[str], axis: str, places: Float[np.ndarray, " level"]
) -> None:
    """Scales for levels at these places, of which so many are named as there is room for."""
    every = max(1, -(-len(names) // _MOST_LABELS))
    labels = [label if len(label) <= 14 else f"{label[:13]}…" for label in names]
    long = max(map(len, labels)) * min(len(names), _MOST_LABELS) > 30
    axes.set_xticks(
        places[::every], labels[::every], fontsize="x-small", rotation=40 if long else 0
    )
    if long:
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    axes.tick_params(axis="y", labelsize="x-small")
    axes.set_xlabel(axis, fontsize="x-small")
    axes.set_ylim(0)
    tidy(axes)


class LevelShares(NamedTuple):
    """Shares of one column's levels, with their intervals."""

    labels: Sequence[str]  # Names of the levels; of slices of numbers, where they begin
    # Of the slices, the first of which stand before other levels; None for categories
    edges: Float[np.ndarray, " slice+1"] | None
    value: Float[np.ndarray, " level"]  # Share of the records at each level
    low: Float[np.ndarray, " level"]  # Lower end of its interval
    high: Float[np.ndarray, " level"]  # Upper end of its interval
    axis: str  # Title of the labels' axis, with a unit


class GroupMeans(NamedTuple):
    """Means of one column in groups of records, with their intervals."""

    labels: Sequence[str]  # Names of the groups
    value: Float[np.ndarray, " group"]
    low: Float[np.ndarray, " group"]  # Lower end of its interval
    high: Float[np.ndarray, " group"]  # Upper end of its interval
    axis: str  # Title of the means' axis, with a unit


def plot_levels(
    columns: Mapping[str, LevelShares | GroupMeans],
    *,
    title: str,
    path: str | Path | None = None,
) -> Figure:
    """Draw a panel for each column: shares as grey bars, means as dots, intervals as black lines; numbers as histograms."""
    return save(_panels(columns, _draw_figures, title), path)


def _draw_figures(axes: Any, name: str, column: LevelShares | GroupMeans) -> None:
    if isinstance(column, LevelShares):
        _draw_levels(axes, name, column)
        return
    axes.set_title(name, fontsize="small", loc="left")
    places = np.arange(len(column.labels))
    axes.vlines(places, column.low, column.high, color="black", linewidth=1)
    axes.plot(places, column.value, "o", color="black", markersize=3)
    _name_levels(axes, column.labels, "", places)
    axes.autoscale(axis="y")
    axes.margins(x=0.1)
    axes.set_ylabel(column.axis, fontsize="x-small")


def _panels(
    columns: Mapping[str, Any], draw: Callable[[Any, str, Any], None], title: str
) -> Figure:
    """A figure with a panel for each column."""
    down = -(-len(columns) // _COLUMNS)
    figure = new_figure(10.5, 0.9 + 2.3 * down)
    grid = figure.subplots(down, _COLUMNS, squeeze=False).ravel()
    for axes, (name, column) in zip(grid, columns.items(), strict=False):
        draw(axes, name, column)
    for axes in grid[len(columns) :]:
        axes.set_axis_off()
    figure.suptitle(title, fontsize="medium", wrap=True)
    return figure


def _draw_levels(axes: Any, name: str, column: LevelShares) -> None:
    axes.set_title(name, fontsize="small", loc="left")
    if column.edges is None:
        places = np.arange(len(column.labels))
        axes.bar(places, column.value, width=0.8, color="0.8", edgecolor="white", linewidth=0.3)
        axes.vlines(places, column.low, column.high, color="black", linewidth=1)
        _name_levels(axes, column.labels, column.axis, places)
        axes.set_ylabel("share", fontsize="x-small")
        return
    widths = np.diff(column.edges)
    starts = column.edges[:-1]
    value, low, high = np.stack([column.value, column.low, column.high])[:, : len(widths)] / widths
    axes.bar(starts, value, width=widths, color="0.8", align="edge", edgecolor="0.8", linewidth=0.3)
    axes.vlines(starts + widths / 2, low, high, color="black", linewidth=1)
    axes.tick_params(labelsize="x-small")
    axes.set_xlabel(column.axis, fontsize="x-small")
    axes.set_ylabel("share per unit", fontsize="x-small")
    tidy(axes)


def plot_replicates(
    labels: Sequence[str],
    observed: Float[np.ndarray, " level"] | None,
    replicates: Float[np.ndarray, "replicate level"],
    *,
    axis: str,
    title: str,
    path: str | Path | None = None,
) -> Figure:
    """Draw shares of levels in black over those of replicates in grey, as ArviZ's `plot_ppc`; the replicates' mean is dashed.

    Without observed ones, as of a prior, there are the replicates alone.
    """
    figure = new_figure(7.0, 4.0)
    axes = figure.subplots()
    places = np.arange(len(labels), dtype=np.float64)
    for drawn in replicates:
        axes.step(places, drawn, where="mid", color="0.75", linewidth=0.5)
    axes.step([], [], color="0.75", linewidth=0.5, label="replicates")
    axes.step(
        places,
        replicates.mean(axis=0),
        where="mid",
        color="0.35",
        linestyle="--",
        label="their mean",
    )
    lowest = float(replicates.min())
    if observed is not None:
        axes.step(places, observed, where="mid", color="black", linewidth=1.5, label="released")
        lowest = min(lowest, float(observed.min()))
    axes.legend(frameon=False, fontsize="small")
    _name_levels(axes, labels, axis, places)
    axes.set_ylabel("share", fontsize="x-small")
    axes.set_ylim(min(0.0, lowest))
    figure.suptitle(textwrap.fill(title, 95), fontsize="small")
    return save(figure, path)


def draw_trade_off(axes: Any, profile: Any) -> None:
    """Draw the trade-off curve of a `PrivacyProfile`: the best attacker against guessing."""
    wrong = np.linspace(0, 1, 101)
    found = [profile.true_positive_rate(float(rate)) for rate in wrong]
    axes.fill_between(wrong, wrong, found, color="0.9", linewidth=0)
    axes.plot(wrong, found, color="black", label="best attacker")
    axes.plot(wrong, wrong, ":", color="0.4", label="guessing")
    axes.set(
        xlabel="false-positive rate",
        ylabel="true-positive rate",
        title="What the best attacker can tell",
    )
    axes.legend(frameon=False)
    tidy(axes)
