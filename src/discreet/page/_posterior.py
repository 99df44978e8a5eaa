"""Posterior draws as rows of a table, each with its interval drawn beside it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from discreet.page._charts import number, span

MOST_ROWS = 60
BAR = 200
"""Width of the drawn intervals."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One coordinate. Numbers that are not finite are None.

    Attributes:
        low: the 5 % quantile.
        high: the 95 % quantile.
    """

    name: str
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """As texts."""

        def cell(value: float | None) -> str:
            return "–" if value is None else number(float(f"{value:.3g}"))

        return cell(self.mean), cell(self.sd), cell(self.low), cell(self.high)


@dataclasses.dataclass(frozen=True)
class Panel:
    """The coordinates of one latent, on one scale.

    Attributes:
        name: of the latent; empty for all of them.
        rows: those that are shown.
        of: how many there are.
    """

    name: str
    rows: tuple[Row, ...]
    of: int

    @property
    def bars(self) -> list[tuple[str, str, str] | None]:
        """For each row the ends of its interval and the place of its mean; None where there is none."""
        return [
            None
            if row.mean is None or row.low is None or row.high is None
            else (self._place(row.low), self._place(row.high), self._place(row.mean))
            for row in self.rows
        ]

    @property
    def zero(self) -> str | None:
        """The place of zero, if it is on the scale."""
        low, high = self._scale
        return self._place(0.0) if low < 0 < high else None

    @property
    def _scale(self) -> tuple[float, float]:
        return span([x for row in self.rows for x in (row.low, row.high, row.mean)], room=0.05)

    def _place(self, value: float) -> str:
        low, high = self._scale
        return f"{(value - low) / (high - low) * BAR:.1f}"


def panels_of_draws(draws: Mapping[str, Any], feature_names: Sequence[str] | None = None) -> list[Panel]:
    """A panel for each latent.

    Args:
        draws: By the latent's name, along the leading axis.
        feature_names: Names of the rows of each latent that has as many coordinates.

    Raises:
        ValueError: A latent without draws.
    """
    panels = []
    for name, drawn in draws.items():
        array = np.asarray(drawn, np.float64)
        if array.ndim == 0 or array.size == 0:
            raise ValueError(f"{name!r} has no draws: pass arrays with the draws along the leading axis")
        flat = array.reshape(len(array), -1)
        if feature_names is not None and flat.shape[1] == len(feature_names) > 1:
            names = list(feature_names)
        else:
            names = [name + (f"[{','.join(map(str, i))}]" if i else "") for i in np.ndindex(array.shape[1:])]
        with np.errstate(all="ignore"):
            low, high = np.quantile(flat, [0.05, 0.95], axis=0)
            columns = zip(names, flat.mean(axis=0), flat.std(axis=0), low, high, strict=True)
            panels.append(_panel(name, [Row(label, *map(_finite, values)) for label, *values in columns]))
    return panels


def panel_of_summary(summary: Mapping[str, Mapping[str, float | None]]) -> Panel:
    """The rows that `discreet fit` wrote: by name their `mean`, `sd`, `low` and `high`."""
    parts = ("mean", "sd", "low", "high")
    return _panel("", [Row(str(name), *(_finite(row[part]) for part in parts)) for name, row in summary.items()])


def _panel(name: str, rows: list[Row]) -> Panel:
    if len(rows) <= MOST_ROWS:
        return Panel(name, tuple(rows), len(rows))
    distance = [abs(row.mean or 0.0) / max(row.sd or 0.0, 1e-300) for row in rows]
    foremost = np.sort(np.argsort(distance, kind="stable")[-MOST_ROWS:])
    return Panel(name, tuple(rows[i] for i in foremost), len(rows))


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
