"""Charts as numbers in the units of an SVG; the template draws them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

WIDTH, HEIGHT = 420, 300
LEFT, TOP, RIGHT, BOTTOM = 56, 12, 408, 256


@dataclasses.dataclass(frozen=True)
class Shape:
    """A path or dots, with the class that tells its colour."""

    style: str
    path: str = ""
    dots: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Chart:
    """A plot of two numbers.

    Attributes:
        name: tells it from the page's others, in its parts' ids.
        title: of the picture.
        description: what is to be seen, for who does not see it.
        x_label: below.
        y_label: beside.
        x: smallest and largest value.
        y: likewise.
        shapes: what is drawn, from the back to the front.
        legend: style and meaning of lines.
    """

    name: str
    title: str
    description: str
    x_label: str
    y_label: str
    x: tuple[float, float]
    y: tuple[float, float]
    shapes: tuple[Shape, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    percent: bool = False

    def at_x(self, value: float) -> float:
        """Place of a value."""
        low, high = self.x
        return LEFT + (value - low) / (high - low) * (RIGHT - LEFT)

    def at_y(self, value: float) -> float:
        """Place of a value."""
        low, high = self.y
        return BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)

    def line(self, style: str, xs: Sequence[float], ys: Sequence[float | None], *, closed: bool = False) -> Chart:
        """With a line through these points; where one has no value, it is broken."""
        parts, pen = [], "M"
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
        return [(f"{self.at_x(value):.1f}", self._label(value)) for value in ticks(*self.x)]

    @property
    def y_ticks(self) -> list[tuple[str, str]]:
        """Places and labels."""
        return [(f"{self.at_y(value):.1f}", self._label(value)) for value in ticks(*self.y)]

    def _label(self, value: float) -> str:
        return f"{100 * value:g} %" if self.percent else number(value)


def number(value: float) -> str:
    """In few digits, with a true minus sign.

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
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def span(values: Sequence[float | None], *, room: float = 0.08) -> tuple[float, float]:
    """Smallest and largest of the values, with some room about them."""
    usable = np.array([x for x in values if x is not None and math.isfinite(x)])
    if not usable.size:
        return 0.0, 1.0
    low, high = float(usable.min()), float(usable.max())
    room = room * (high - low) if high > low else max(abs(high), 1.0) / 2
    return low - room, high + room
