"""The course of a fit and other line charts, as SVG."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from discreet.methods.plots import coordinate_names, running_mean

WIDTH = 420
HEIGHT = 300
LEFT = 56
TOP = 12
RIGHT = 408
BOTTOM = 256


@dataclasses.dataclass(frozen=True)
class Shape:
    """A path or dots, with the class that tells its colour."""

    style: str
    path: str = ""
    dots: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Chart:
    """A plot of two numbers."""

    name: str  # Tells it from the page's others, in its parts' ids
    title: str
    description: str  # Description for readers who cannot see the chart
    x_label: str
    y_label: str
    x: tuple[float, float]  # Smallest and largest value; `y` likewise
    y: tuple[float, float]
    shapes: tuple[Shape, ...] = ()  # The shapes, from the back to the front
    legend: tuple[tuple[str, str], ...] = ()  # Style and meaning of lines
    percent: bool = False  # True if the numbers are shares; `years`: True if those of x are years
    years: bool = False

    def at_x(self, value: float) -> float:
        """Place of a value."""
        low, high = self.x
        return LEFT + (value - low) / (high - low) * (RIGHT - LEFT)

    def at_y(self, value: float) -> float:
        """Place of a value."""
        low, high = self.y
        return BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)

    def line(
        self, style: str, xs: Sequence[float], ys: Sequence[float | None], *, closed: bool = False
    ) -> Chart:
        """With a line through these points; where one has no value, it is broken."""
        parts = []
        pen = "M"
        for x, y in zip(xs, ys, strict=True):
            if y is None or not math.isfinite(y):
                pen = "M"
                continue
            parts.append(f"{pen}{self.at_x(x):.2f} {self.at_y(y):.2f}")
            pen = "L"
        path = "".join(parts) + ("Z" if closed and parts else "")
        return dataclasses.replace(self, shapes=(*self.shapes, Shape(style, path)))

    def scatter(self, style: str, xs: Sequence[float], ys: Sequence[float | None]) -> Chart:
        """With dots at the points that are within the frame."""
        low, high = self.y
        dots = tuple(
            (f"{self.at_x(x):.1f}", f"{self.at_y(y):.1f}")
            for x, y in zip(xs, ys, strict=True)
            if y is not None and low <= y <= high
        )
        return dataclasses.replace(self, shapes=(*self.shapes, Shape(style, dots=dots)))

    @property
    def x_ticks(self) -> list[tuple[str, str]]:
        """Places and labels."""
        show = "{:g}".format if self.years else self._label
        return [(f"{self.at_x(value):.1f}", show(value)) for value in ticks(*self.x)]

    @property
    def y_ticks(self) -> list[tuple[str, str]]:
        """Places and labels."""
        return [(f"{self.at_y(value):.1f}", self._label(value)) for value in ticks(*self.y)]

    def _label(self, value: float) -> str:
        return f"{100 * value:g} %" if self.percent else number(value)


def number(value: float) -> str:
    """Format a number in few digits, with a true minus sign.

    >>> number(-1500.0), number(0.25), number(-0.0)
    ('−1,500', '0.25', '0')
    """
    shown = f"{value:,.0f}" if abs(value) >= 1_000 and value == round(value) else f"{value:.4g}"
    return ("0" if float(shown.replace(",", "")) == 0 else shown).replace("-", "−")


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten.

    >>> ticks(0, 1), ticks(-3, 12)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 5.0, 10.0])
    """
    raw = (high - low) / (most - 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def span(values: Sequence[float | None], *, room: float = 0.08) -> tuple[float, float]:
    """Smallest and largest of the values, with some room about them."""
    usable = np.array([x for x in values if x is not None and math.isfinite(x)])
    if not usable.size:
        return 0.0, 1.0
    low = float(usable.min())
    high = float(usable.max())
    room = room * (high - low) if high > low else max(abs(high), 1.0) / 2
    return low - room, high + room


MOST_LINES = 6
MOST_POINTS = 240
_SPREAD = " (spread)"


def course_of(result: Any, feature_names: Sequence[str] = ()) -> dict[str, Any]:
    """Summarize a result's trace, losses and clipping norms for JSON; post-processing, at no cost.

    There are `losses` with the running mean of a twentieth of all, `parameters` (those that moved
    farthest) and `clipping_norms`, each with its steps, and `rest`: from which step on the iterates
    have no drift. Parts that the result does not have are left out. `feature_names` name the rows
    of each latent that has as many.
    """
    course: dict[str, Any] = {}
    losses = np.asarray(getattr(result, "losses", ()), np.float64)
    if np.isfinite(losses).any():
        width = max(1, len(losses) // 20)
        chosen = _chosen(len(losses))
        course["losses"] = {
            "steps": (chosen + 1).tolist(),
            "values": _plain(losses[chosen]),
            "mean": _plain(running_mean(losses, width)[chosen]),
            "width": width,
        }
    norms = np.asarray(getattr(result, "clipping_norms", ()), np.float64)
    if norms.size > 1 and np.ptp(norms) > 0:
        chosen = _chosen(len(norms))
        course["clipping_norms"] = {"steps": (chosen + 1).tolist(), "values": _plain(norms[chosen])}
    trace = getattr(result, "trace", None)
    if trace is not None and len(trace.steps) > 1:
        course |= _trace(result, trace, feature_names)
    return course


# How numpyro's AutoNormal calls the mean and the spread of a latent, and a coordinate of them.
_OF_GUIDE = re.compile(r"(.+)_auto_(loc|scale)(?:\[(\d+)((?:,\d+)*)\])?")


def _plain_names(names: Sequence[str], features: Sequence[str]) -> list[str]:
    """A guide's parameters called by the latent and the feature that they belong to."""
    parts = [_OF_GUIDE.fullmatch(name) for name in names]
    # Coordinates are in order, so the last one counts them.
    rows = {part[1]: int(part[3]) + 1 for part in parts if part and part[3]}
    called = []
    for name, part in zip(names, parts, strict=True):
        if part is None:
            called.append(name)
            continue
        site, kind, place, other = part.groups()
        if place and rows[site] == len(features):
            site = features[int(place)] + (f"[{other[1:]}]" if other else "")
        elif place:
            site = f"{site}[{place}{other}]"
        called.append(site + _SPREAD * (kind == "scale"))
    return called


def _trace(result: Any, trace: Any, features: Sequence[str]) -> dict[str, Any]:
    iterates = trace.iterates
    steps = np.asarray(trace.steps)
    names = _plain_names(coordinate_names(result, iterates.shape[1]), features)
    travelled = np.ptp(np.where(np.isfinite(iterates), iterates, 0.0), axis=0)
    is_spread = [_SPREAD in name for name in names]
    shown = np.sort(np.lexsort((-travelled, is_spread))[:MOST_LINES])
    chosen = _chosen(len(steps))
    parameters = {
        "steps": steps[chosen].tolist(),
        "of": len(names),
        "lines": [{"name": names[i], "values": _plain(iterates[chosen, i])} for i in shown],
    }
    kept = getattr(result, "draw_steps", None)
    if kept is not None:
        rest = {"kind": "draws", "from": int(kept[0]) if len(kept) else None}
    else:
        kind = "rest"
        if len(iterates) * 0.9 < 20:  # too few for any tail to be judged (`Trace.converged_from`)
            kind = "short"
        elif trace.converged_from is None or not np.isfinite(iterates).all():
            kind = "drifting"
        rest = {"kind": kind, "from": int(steps[trace.averaged_from])}
    return {"parameters": parameters, "rest": rest}


def verdict(course: Mapping[str, Any]) -> str:
    """Describe the convergence of the fit, in words."""
    rest = course.get("rest")
    if rest is None:
        return ""
    start = f"{rest['from']:,}" if rest["from"] is not None else ""
    if rest["kind"] == "draws":
        return f"Draws are kept from step {start} on." if start else "No draw was kept."
    if rest["kind"] == "rest":
        return (
            f"The fit converged: from step {start} on the parameters show no drift, and the result is their average. That says "
            "nothing about how far the noise moved them."
        )
    if rest["kind"] == "drifting":
        return (
            "The fit had not converged: the parameters still drifted at the end. It was too short for its learning rate and "
            f"noise, so a longer fit would give other results. The result is the average from step {start} on."
        )
    return "The fit had too few steps to tell whether it converged. The result is its last iterate."


def course_charts(course: Mapping[str, Any]) -> list[Chart]:
    """Losses, parameters and clipping norms over the steps."""
    charts = []
    if losses := course.get("losses"):
        # The noise of single steps is often far larger than the whole descent, and the first means
        # are hardly means.
        mean = losses["mean"]
        steps = losses["steps"]
        width = losses["width"]
        y = span(mean[len(mean) // 80 :], room=0.3)
        said = f"Estimates of the loss, one a step, and their mean over {width} steps, which went from {_course(mean)} nats."
        if (mean[0] or 0.0) < (mean[-1] or 0.0):
            said += (
                " It rose: the noise may have moved the parameters away from what fits best. The estimate has a bias, too, since "
                "each record's loss is clipped."
            )
        legend = (("dot", "released"), ("strong", f"mean of the last {width} steps"))
        chart = Chart(
            "losses",
            "Clipped private loss",
            said,
            "step",
            "loss (nats)",
            _steps(steps),
            y,
            legend=legend,
        )
        charts.append(
            chart.scatter("dot", steps, losses["values"]).line("strong", steps, _within(mean, y))
        )
    if parameters := course.get("parameters"):
        charts.append(_parameters(parameters))
    if norms := course.get("clipping_norms"):
        values = norms["values"]
        steps = norms["steps"]
        said = f"The clipping norm of each step, from {_course(values)}."
        chart = Chart(
            "norms", "Clipping norm", said, "step", "clipping norm C", _steps(steps), span(values)
        )
        charts.append(chart.line("strong", steps, values))
    return charts


def _parameters(parameters: Mapping[str, Any]) -> Chart:
    lines = parameters["lines"]
    shown = (
        f"{len(lines)} of {parameters['of']:,}, those that moved most, spreads last"
        if len(lines) < parameters["of"]
        else "all"
    )
    chart = Chart(
        "parameters",
        f"Parameters of the fit ({shown})",
        "Values over the steps. "
        + " ".join(f"{x['name']} went from {_course(x['values'])}." for x in lines),
        "step",
        "value",
        _steps(parameters["steps"]),
        span([value for x in lines for value in x["values"]]),
        legend=tuple((f"line{i}", x["name"]) for i, x in enumerate(lines)),
    )
    for i, x in enumerate(lines):
        chart = chart.line(f"line{i}", parameters["steps"], x["values"])
    return chart


def _steps(steps: list[int]) -> tuple[float, float]:
    return (0.0, float(max(*steps, 1))) if len(steps) > 1 else (0.0, 1.0)


def _within(values: list[float | None], y: tuple[float, float]) -> list[float | None]:
    """Drop values outside of the frame."""
    return [x if x is not None and y[0] <= x <= y[1] else None for x in values]


def _course(values: list[float | None]) -> str:
    """The first and the last of noisy values, in two digits."""
    first, last = (
        "no number" if value is None else number(float(f"{value:.2g}"))
        for value in (values[0], values[-1])
    )
    return f"{first} to {last}"


def _chosen(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(np.int64))


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(f"{x:.6g}") if math.isfinite(x) else None for x in values.tolist()]
