"""What a rehearsal found, as numbers, words and a picture."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from discreet.plan import PrivacyPlan
from discreet.rehearsal._grid import Setting
from discreet.rehearsal._score import LOG_DENSITY, Scores, better_is_larger

_SHORT = 12


@dataclasses.dataclass(frozen=True)
class TableScores:
    """Fits of one invented table.

    Attributes:
        strength: How strong its truth was; see `rehearse`.
        private: Scores of the fit with noise.
        non_private: Of the fit without noise and clipping.
        blind: Of a fit that can learn nothing of the relation: to a target in another order, or none at all.
        width: How far the private fit's latents are from the other's, in its posterior's standard deviations: root mean
            square. NaN where that was not measured.
    """

    strength: float
    private: Scores
    non_private: Scores
    blind: Scores
    width: float = math.nan

    @property
    def private_gain(self) -> float:
        """Log density that the private fit gains over the blind one, in nats a held-out record."""
        return self.private[LOG_DENSITY] - self.blind[LOG_DENSITY]

    @property
    def non_private_gain(self) -> float:
        """The same of the fit without noise."""
        return self.non_private[LOG_DENSITY] - self.blind[LOG_DENSITY]


@dataclasses.dataclass(frozen=True)
class Row:
    """A setting and how it did.

    Attributes:
        setting: The setting.
        noise_multiplier: Sigma, which epsilon asks for.
        signal_to_noise: At the start: length of the clipped gradient of all records, over that of the noise left in the mean
            of all steps; median over the tables.
        tables: Its scores on each table.
    """

    setting: Setting
    noise_multiplier: float
    signal_to_noise: float
    tables: tuple[TableScores, ...]

    @property
    def lost(self) -> float:
        """Log density lost against the fits without noise: mean over the tables, nats a held-out record; inf for a bad fit."""
        lost = np.mean([t.non_private[LOG_DENSITY] - t.private[LOG_DENSITY] for t in self.tables])
        return float(lost) if np.isfinite(lost) else math.inf

    def mean(self, measure: str, kind: str = "private") -> float:
        """Mean of a measure over the tables that have it, `kind` being "private", "non_private" or "blind"."""
        return mean_of(self.tables, measure, kind)

    def spread(self, measure: str) -> tuple[float, float]:
        """Smallest and largest value of a measure over the tables."""
        values = [t.private[measure] for t in self.tables if measure in t.private]
        return (min(values), max(values)) if values else (math.nan, math.nan)


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """The proposed setting at another epsilon.

    Attributes:
        epsilon: With the plan's delta.
        tables: The scores.
    """

    epsilon: float
    tables: tuple[TableScores, ...]


def mean_of(tables: tuple[TableScores, ...], measure: str, kind: str) -> float:
    """Mean of a measure over the tables that have it."""
    values = [scores[measure] for scores in (getattr(t, kind) for t in tables) if measure in scores]
    return float(np.mean(values)) if values else math.nan


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """What `rehearse` found. It saw no data: showing it costs nothing.

    Attributes:
        plan: The proposal, calibrated.
        learning_rate: Of Adam, that goes with it.
        epsilon: As asked for.
        proposed: The proposal's scores on tables that it was not chosen on.
        rows: All settings that were tried, the proposed one first, then by what they lose, with their scores on the tables of the
            search.
        curve: The proposed setting at several epsilons, smallest first.
        verdict: "good", "costly", "strong effects only" or "hopeless".
        why: The verdict in words, with the numbers behind it and what would help.
        complete: False where Ctrl-C stopped it: then settings are missing, and `proposed` may be of the search's tables.
    """

    plan: PrivacyPlan
    learning_rate: float
    epsilon: float
    proposed: Row
    rows: tuple[Row, ...]
    curve: tuple[CurvePoint, ...]
    verdict: str
    why: str
    complete: bool

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures that there are, the most telling first."""
        names = dict.fromkeys(name for table in self.proposed.tables for name in table.non_private)
        return (*(name for name in names if name != LOG_DENSITY), LOG_DENSITY)

    def __str__(self) -> str:
        """The proposal and what is to be expected of it."""
        plan, setting = self.plan, self.proposed.setting
        lines = [
            f"Proposed for ε = {self.epsilon:g}, δ = {plan.target_delta:g} and {plan.num_records:,} records: "
            f"{setting.num_steps:,} steps at rate {setting.rate:g}, clipping norm {setting.clipping_norm:g}, learning rate "
            f"{setting.learning_rate:g} (noise multiplier {plan.noise_multiplier:.3g}).",
            "",
            "Expected, on invented tables (with noise / without; from the worst to the best table):",
        ]
        for name in self.measures:
            low, high = self.proposed.spread(name)
            worst, best = (low, high) if better_is_larger(name) else (high, low)
            private, non_private = self.proposed.mean(name), self.proposed.mean(name, "non_private")
            lines.append(f"  {name}: {private:.3f} / {non_private:.3f} ({worst:.3f} to {best:.3f})")
        lines += ["", self.why]
        if not self.complete:
            lines += ["", "Stopped early: not all settings were tried."]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything for programs; numbers that are not finite are None."""
        content = {
            "epsilon": self.epsilon,
            "delta": self.plan.target_delta,
            "num_records": self.plan.num_records,
            "proposed": _row(self.proposed),
            "verdict": str(self.verdict),
            "why": self.why,
            "complete": self.complete,
            "settings": [_row(row) for row in self.rows],
            "curve": [{"epsilon": p.epsilon, "tables": [dataclasses.asdict(t) for t in p.tables]} for p in self.curve],
        }
        return _finite(content)

    def plot(self, axes: Any = None) -> Any:
        """Draw the first measure against epsilon, with the level of fits without noise; readable in grey.

        Args:
            axes: matplotlib axes; None: new ones.

        Returns:
            The axes.
        """
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(figsize=(6, 4), layout="constrained").subplots()
        measure = self.measures[0]
        epsilons = [point.epsilon for point in self.curve]
        strengths = sorted({t.strength for t in self.proposed.tables}, reverse=True)
        for shade, marker, strength in zip(
            np.linspace(0.0, 0.6, len(strengths)), "os^Dv" * len(strengths), strengths, strict=False
        ):
            tables = [tuple(t for t in point.tables if t.strength == strength) for point in self.curve]
            name = f"signal of strength {strength:g}"
            private = [mean_of(x, measure, "private") for x in tables]
            without = [mean_of(x, measure, "non_private") for x in tables]
            axes.plot(epsilons, private, marker=marker, color=str(shade), label=name)
            axes.plot(epsilons, without, linestyle="--", color=str(shade))
        axes.plot([], [], linestyle="--", color="0.3", label="without noise")
        axes.axvline(self.epsilon, linestyle=":", color="0.7")
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{x:g}" for x in epsilons])
        axes.minorticks_off()
        axes.set(xlabel="ε", ylabel=f"{measure}, invented tables")
        axes.set_title(f"Expected at {self.plan.num_records:,} records: {self.verdict}", fontsize=_SHORT)
        axes.legend(frameon=False)
        return axes


def _row(row: Row) -> dict[str, Any]:
    names = dict.fromkeys(name for table in row.tables for name in table.non_private)
    return {
        **dataclasses.asdict(row.setting),
        "noise_multiplier": row.noise_multiplier,
        "signal_to_noise": row.signal_to_noise,
        "private": {name: row.mean(name) for name in names},
        "non_private": {name: row.mean(name, "non_private") for name in names},
        "tables": [dataclasses.asdict(t) for t in row.tables],
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
