"""The result of an audit: a lower bound beside the claim, whether both can be true, and a picture of several."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from discreet.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = "discreet audit, version 1"
WIDTH = 88
NOT_PRIVATE = "Not private: the noise of these runs can be reproduced. Audit made-up records.\n"
IN_WORDS = {
    "ADD_OR_REMOVE_ONE": "with the canary and without it (ADD_OR_REMOVE_ONE)",
    "REPLACE_ONE": "with the canary and with another record in its place (REPLACE_ONE)",
}


class Claim(Protocol):
    """A claim for all δ at once: a `PrivacyPlan`, or a `PrivacyProfile`."""

    def epsilon(self, delta: float) -> float:
        """Upper bound on ε at δ."""
        ...


def claimed_epsilon(claim: Claim | float, delta: float) -> float:
    """The ε that is claimed at δ."""
    return float(claim) if isinstance(claim, int | float | np.number) else claim.epsilon(delta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of an audit. Not private: the noise of its runs can be reproduced from a seed.

    Attributes:
        target: What was audited.
        epsilon_lower: Lower bound on ε at `delta`. For a program whose ε is the claimed one it exceeds that with probability at
            most 1 - confidence.
        claimed_epsilon: The upper bound that it is compared with, at `delta`; infinite if none is claimed.
        delta: At which δ.
        confidence: Probability that the lower bound is one.
        runs: Releases that were made, with and without the canary together.
        relation: Name of the relation between the two tables.
        score: The statistic that the attacker uses.
        power: Lower bound on the attacker's true-positive rate where the false-positive rate is at most `false_alarm`; NaN
            after one run.
        false_alarm: Upper bound on that; NaN after one run.
        allowed_power: The largest true-positive rate that the whole claim, at all δ, leaves at that false-positive rate; NaN
            where ε is claimed at one δ only.
        mu_lower: The program is not μ-Gaussian private below this μ; NaN after one run. No bound on ε by itself.
        evidence: The counts behind the bounds.
    """

    target: str
    epsilon_lower: float
    claimed_epsilon: float
    delta: float
    confidence: float
    runs: int
    relation: str
    score: str
    power: float = math.nan
    false_alarm: float = math.nan
    allowed_power: float = math.nan
    mu_lower: float = math.nan
    evidence: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def gap(self) -> float:
        """Claimed ε minus the lower bound: what neither an attack has shown nor a proof has ruled out. Negative: contradicted."""
        return self.claimed_epsilon - self.epsilon_lower

    @property
    def contradicted(self) -> bool:
        """Whether the claim is refuted at this confidence: at `delta`, or at another δ by the same counts."""
        return self.epsilon_lower > self.claimed_epsilon or self.power > self.allowed_power

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings; a number that does not exist is None."""
        content = {"format": FORMAT, "is_private": False, "contradicted": self.contradicted, "gap": self.gap}
        content |= dataclasses.asdict(self) | {"evidence": dict(self.evidence)}
        return {k: None if isinstance(x, float) and not math.isfinite(x) else x for k, x in content.items()}

    def to_json(self) -> str:
        """`to_dict` as indented JSON that any strict reader accepts."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw lower bound and claim; see `plot_verdicts`."""
        return plot_verdicts([self], path)

    def __str__(self) -> str:
        return _text(self)


def _text(verdict: Verdict) -> str:
    title = f"Audit of {verdict.target}"
    claimed = f"ε = {verdict.claimed_epsilon:.4g}" if math.isfinite(verdict.claimed_epsilon) else "no ε"
    sure = f"{100 * verdict.confidence:g} %"
    lines = [
        f"ε is at least {verdict.epsilon_lower:.4g} at δ = {verdict.delta:g} ({sure} confidence); claimed is {claimed}.",
        f"Neighbours: {IN_WORDS.get(verdict.relation, verdict.relation)}. Runs: {verdict.runs:,}.",
        f"Score: {verdict.score}. {_counts(verdict)}",
    ]
    if not math.isnan(verdict.power):
        lines.append(
            f"The attacker is right in at least {verdict.power:.4g} of cases at a false-positive rate of at most "
            f"{verdict.false_alarm:.4g}"
            + ("." if math.isnan(verdict.allowed_power) else f"; the claim allows {verdict.allowed_power:.4g}.")
        )
        lines.append(f"It is not μ-Gaussian private for a μ below {verdict.mu_lower:.4g}.")
    return "\n".join(
        [title, "=" * len(title), "", *(textwrap.fill(x, WIDTH) for x in lines), "", _sentence(verdict), NOT_PRIVATE]
    )


def _counts(verdict: Verdict) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in verdict.evidence.items()) + "."


def _sentence(verdict: Verdict) -> str:
    if verdict.epsilon_lower > verdict.claimed_epsilon:
        text = (
            "CONTRADICTED: the program reveals more about one record than is claimed. Either the claim is wrong, or it is "
            f"about another program; a true claim is contradicted with probability {1 - verdict.confidence:.2g} at most."
        )
    elif verdict.contradicted:
        text = (
            f"CONTRADICTED: not at δ = {verdict.delta:g}, but the attacker is right more often than the claim allows at another "
            f"δ; a true claim is contradicted with probability {1 - verdict.confidence:.2g} at most."
        )
    else:
        text = (
            "Not contradicted. This proves nothing: an attack that finds little may be a weak attack. "
            f"The true ε may lie anywhere between {verdict.epsilon_lower:.4g} and {verdict.claimed_epsilon:.4g}."
        )
    return textwrap.fill(text, WIDTH) + "\n"


def plot_verdicts(verdicts: Sequence[Verdict], path: str | Path | None = None) -> Figure:
    """Draw for each audit a bar up to the lower bound on ε, and a line where the claim is.

    Args:
        verdicts: At least one; the first is on top.
        path: Where to save the picture, whose ending tells its format; None: it is not saved.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: There is nothing to draw.
    """
    if not verdicts:
        raise ValueError("There is no verdict to draw. Pass at least one.")
    figure = new_figure(8.0, 1.1 + 0.33 * len(verdicts))
    axes = figure.subplots()
    farthest = max(x for v in verdicts for x in (v.epsilon_lower, v.claimed_epsilon, 0.1) if math.isfinite(x))
    for row, verdict in enumerate(verdicts):
        shade = "0.5" if verdict.contradicted else "0.8"
        reached = min(verdict.epsilon_lower, farthest)
        axes.barh(row, reached, height=0.6, color=shade)
        if math.isfinite(verdict.claimed_epsilon):
            axes.plot([verdict.claimed_epsilon] * 2, [row - 0.42, row + 0.42], color="black", linewidth=2)
        if verdict.contradicted:
            axes.text(max(reached, 0.0), row, "  contradicted", va="center", fontsize="small")
    axes.set_yticks(range(len(verdicts)), [verdict.target for verdict in verdicts], fontsize="small")
    axes.set_ylim(len(verdicts) - 0.4, -0.6)
    accused = any(verdict.contradicted for verdict in verdicts)
    axes.set_xlim(0, (1.25 if accused else 1.05) * farthest)
    axes.set_xlabel("ε")
    figure.suptitle("Bar: lower bound that was measured. Line: upper bound that is claimed.", fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    if path is not None:
        figure.savefig(path, dpi=100)
    return figure
