"""What the scores of a rehearsal mean, in plain words."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import numpy as np

from discreet.rehearsal._result import CurvePoint, Row, TableScores

ENOUGH, HALF = 0.9, 0.5


class Verdict(enum.StrEnum):
    """How much of what there is to learn survives the noise."""

    GOOD = "good"
    COSTLY = "costly"
    STRONG_ONLY = "strong effects only"
    HOPELESS = "hopeless"


def kept(tables: Sequence[TableScores]) -> float:
    """The share of what there was to learn that the private fits have learnt: of log density above the blind fits'.

    NaN where there was nothing to learn.
    """
    learnt = sum(table.private_gain for table in tables)
    learnable = sum(table.non_private_gain for table in tables)
    return learnt / learnable if learnable > 0 and math.isfinite(learnt) else math.nan


def judge(tables: Sequence[TableScores]) -> Verdict:
    """The verdict on a setting, from its scores on several tables."""
    strengths = sorted({table.strength for table in tables})
    strong = kept([table for table in tables if table.strength == strengths[-1]])
    weak = kept([table for table in tables if table.strength == strengths[0]])
    if not strong >= HALF:
        return Verdict.HOPELESS
    if not weak >= HALF:
        return Verdict.STRONG_ONLY
    return Verdict.GOOD if kept(tables) >= ENOUGH else Verdict.COSTLY


def in_words(verdict: Verdict, row: Row, curve: Sequence[CurvePoint], epsilon: float, num_parameters: int) -> str:
    """The verdict as a paragraph: what, the numbers behind it, and what would help."""
    share = kept(row.tables)
    lost = "nothing" if not share > 0 else f"{100 * share:.0f} % of it"
    said = {
        Verdict.GOOD: f"Worth fitting: of what a fit without noise learns from such tables, this one learns {lost}.",
        Verdict.COSTLY: f"Worth fitting, at a price: of what a fit without noise learns, this one learns {lost}.",
        Verdict.STRONG_ONLY: "Only strong effects come through: where the signal is weak, the noise hides more than half of "
        f"it. Over all tables the fit learns {lost} of what a fit without noise does.".replace("of it of", "of"),
        Verdict.HOPELESS: "Hopeless: the noise dwarfs the signal. Of what a fit without noise learns from such tables, this one "
        f"learns {lost}.",
    }[verdict]
    width = float(np.median([table.width for table in row.tables]))
    behind = (
        f"The noise moves the estimates by {_short(width)} times the width of the posterior. At the start, the records' "
        f"common gradient is {_short(row.signal_to_noise)} times as long as the noise that is left in the mean of all steps."
    )
    return " ".join(filter(None, (said, behind, _what_helps(verdict, row, curve, epsilon, num_parameters))))


def _short(value: float) -> str:
    """Two digits, never with an exponent."""
    return f"{float(f'{value:.2g}'):,.10g}"


def _what_helps(verdict: Verdict, row: Row, curve: Sequence[CurvePoint], epsilon: float, num_parameters: int) -> str:
    if verdict is Verdict.GOOD:
        return ""
    if not sum(table.non_private_gain for table in row.tables) > 0:
        return "Even without noise there is nothing to learn from so few records: a simpler model may do better."
    ways = [f"fewer parameters (the model has {num_parameters}, and the noise grows with the root of their number)"]
    enough = [point for point in curve if point.epsilon > epsilon and kept(point.tables) >= ENOUGH]
    if enough:
        first = min(enough, key=lambda point: point.epsilon)
        ways = [
            f"ε = {first.epsilon:g} would keep {100 * kept(first.tables):.0f} %",
            f"so would about {first.epsilon / epsilon:.2g} times as many records at ε = {epsilon:g}",
            *ways,
        ]
    else:
        ways = ["more records", *ways, f"ε up to {max(p.epsilon for p in curve):g} does not suffice"] if curve else ways
    return f"What helps: {'; '.join(ways)}."
