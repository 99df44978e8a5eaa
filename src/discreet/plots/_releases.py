"""The course of a fit, of which every number is a release: parameters, private losses, clipping norms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float

from discreet.plots._figure import SHADES, STROKES, new_figure, save, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_releases(result: Any, *, most: int = 6, path: str | Path | None = None) -> Figure:
    """Draw what a fit released, step by step; post-processing, free of budget.

    Above, the variational parameters on their unconstrained scale, of which those that travelled farthest are shown; the steps
    whose average is the result (or, of a chain, whose draws are kept) are shaded. A fit that still travels there was too
    short. Then the private losses with their running mean, if the fit gave a share of its budget to them; and the clipping
    norms, if they moved.

    Args:
        result: of `DPSVI.run` or `DPSGLD.run`.
        most: how many parameters to show, 1 to 12.
        path: where to save the picture, whose ending tells its format; left out, it is not saved.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: a number of parameters that cannot be told apart, or a trace without iterates.
    """
    if not 1 <= most <= len(STROKES) * len(SHADES):
        raise ValueError(f"most is {most}; more than {len(STROKES) * len(SHADES)} lines cannot be told apart.")
    if len(result.trace.steps) == 0:
        raise ValueError("The trace holds no iterate, since no step was done: there is nothing to draw.")
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
    figure.suptitle(f"Releases of a fit at ε = {spent.epsilon:.4g}, δ = {spent.delta:.3g}", fontsize="large")
    return save(figure, path)


def _draw_trace(axes: Any, result: Any, most: int) -> None:
    steps, iterates = np.asarray(result.trace.steps), np.asarray(result.trace.iterates, np.float64)
    travelled = np.ptp(np.where(np.isfinite(iterates), iterates, 0.0), axis=0)
    shown = np.sort(np.argsort(-travelled, kind="stable")[:most])
    names = coordinate_names(result, iterates.shape[1])
    kept = getattr(result, "draw_steps", None)
    if kept is None:
        first, what = steps[result.trace.averaged_from], "averaged"
        if result.trace.converged_from is None:
            what = "averaged, still drifting"
    else:
        first, what = (kept[0] if len(kept) else steps[-1]), "draws are kept"
    axes.axvspan(first, steps[-1], color="0.92", linewidth=0)
    middle = (first + steps[-1]) / 2
    axes.text(middle, 0.98, what, transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize="small")
    for i, place in enumerate(shown):
        stroke, shade = STROKES[i % len(STROKES)], SHADES[i // len(STROKES)]
        axes.plot(steps, iterates[:, place], stroke, color=shade, linewidth=0.9, rasterized=True)
    every = f"{len(shown)} of {len(names)}, those that moved most" if len(shown) < len(names) else f"all {len(names)}"
    axes.margins(y=0.12)
    axes.set(ylabel="unconstrained value", title=f"Parameters ({every})")
    ends = np.nan_to_num(iterates[-1, shown], posinf=0.0, neginf=0.0)
    for place, end, height in zip(shown, ends, _apart(ends, 0.08 * np.ptp(axes.get_ylim())), strict=True):
        axes.annotate(
            names[place],
            xy=(steps[-1], end),
            xytext=(1.04, height),
            textcoords=("axes fraction", "data"),
            va="center",
            fontsize="small",
            arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 1},
        )
    tidy(axes)


def _apart(heights: np.ndarray, gap: float) -> np.ndarray:
    """Heights for labels, at least `gap` apart and near those given.

    >>> _apart(np.array([0.0, 0.0, 5.0]), 1.0).tolist()
    [-0.5, 0.5, 5.0]
    """
    order = np.argsort(heights, kind="stable")
    groups = [[float(height)] for height in heights[order]]
    starts = list(heights[order])
    i = 0
    while i + 1 < len(groups):
        # Labels that touch become one block about the mean of their heights.
        if starts[i] + gap * len(groups[i]) > starts[i + 1]:
            groups[i] += groups.pop(i + 1)
            starts.pop(i + 1)
            starts[i] = float(np.mean(groups[i])) - gap * (len(groups[i]) - 1) / 2
            i = max(0, i - 1)
        else:
            i += 1
    placed = np.empty(len(heights))
    placed[order] = [start + gap * k for start, group in zip(starts, groups, strict=True) for k in range(len(group))]
    return placed


def coordinate_names(result: Any, dim: int) -> list[str]:
    """Of the trace's coordinates, where the result's own arrays show them: they lie by name, as JAX flattens dicts."""
    arrays, suffix = getattr(result, "params", None), ""
    if arrays is None:
        suffix = "_unconstrained"  # as the chain's own parameters are called, in whose order they lie
        arrays = {name + suffix: drawn[0] for name, drawn in result.draws.items() if len(drawn)}
    names = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(arrays)[0]:
        name = ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path).removesuffix(suffix)
        names += [name + (f"[{','.join(map(str, place))}]" if place else "") for place in np.ndindex(np.shape(leaf))]
    # An unconstrained value may have fewer coordinates than the constrained one (a simplex, a covariance).
    return names if len(names) == dim else [f"coordinate {i}" for i in range(dim)]


def draw_losses(axes: Any, losses: Float[np.ndarray, "step"]) -> None:
    """The private losses and their running mean.

    Args:
        axes: matplotlib axes.
        losses: `result.losses`, in nats.
    """
    steps = np.arange(1, len(losses) + 1)
    axes.plot(steps, losses, ".", markersize=2, color="0.75", label="released", rasterized=True)
    width = max(1, len(losses) // 20)
    mean = running_mean(losses, width)
    axes.plot(steps, mean, color="black", label=f"mean of the last {width} steps")
    # By the mean, since the noise of single steps is often far larger than the whole descent; but not by its first
    # values, which are hardly means.
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
