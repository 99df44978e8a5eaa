"""Accountants side by side: what the same run would have been said to cost, from basic composition to today."""

import dataclasses
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from dp_accounting import dp_event

from discreet.accounting import _theorems
from discreet.accounting._events import Relation
from discreet.accounting._theorems import Steps
from discreet.accounting._upper import upper

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLD = "privacy loss distributions (PLD)"

# How a line tells itself from the others in grey: stroke, marker, shade.
_STROKES = (
    (":", "v", "0.55"),
    ("-.", "s", "0.45"),
    ("--", "^", "0.6"),
    ((0, (5, 1)), "D", "0.25"),
    ((0, (1, 1)), "p", "0.4"),
    ("-", "o", "0.0"),
)


class Planned(Protocol):
    """What is asked of a plan."""

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbours."""
        ...

    @property
    def slack(self) -> float:
        """Total variation between what runs and the event, over all steps."""
        ...

    def event(self) -> dp_event.DpEvent:
        """Returns the event of all the steps."""
        ...


@dataclass(frozen=True)
class Account:
    """One accountant's figure.

    Attributes:
        name: the accountant.
        epsilon: what it says at `delta`; infinity where it says nothing.
        delta: the delta of all the steps together.
        source: where the method is from.
        upper_bound: whether epsilon is an upper bound for the plan.
        note: what it rests on; where `upper_bound` is False, why not.
    """

    name: str
    epsilon: float
    delta: float
    source: str
    upper_bound: bool
    note: str


@dataclass(frozen=True)
class AccountantComparison:
    """What several accountants say of one plan. Made by `compare_accountants`; `print` it for a table.

    Attributes:
        rows: one figure an accountant, from the oldest to the one that the library claims.
    """

    rows: tuple[Account, ...]
    _steps: Steps = field(repr=False)

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        relation = self._steps.relation.name
        lines = [f"{self._steps.count:,} steps, q = {self._steps.rate:.4g}, delta = {self.rows[0].delta:g}, {relation}"]
        lines += [
            f"{row.name:<{width}}  {upper(row.epsilon):>9}  "
            + (row.note if row.upper_bound else f"not an upper bound here: {row.note}")
            for row in self.rows
        ]
        lines[1:1] = [f"{'accountant':<{width}}  {'epsilon':>9}  note"]
        return "\n".join(lines)

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draws each accountant's epsilon against the number of steps, up to the plan's.

        A hollow marker stands where a figure is no upper bound. Needs matplotlib (`pip install 'discreet[plot]'`).

        Args:
            path: where to save the picture, whose ending tells its format; left out, it is not saved.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError(
                "AccountantComparison.plot draws with matplotlib, which is not installed. Install it with "
                "pip install 'discreet[plot]'; print(comparison) shows the figures without it."
            ) from error

        counts = np.unique(np.geomspace(1, self._steps.count, 9).round().astype(int))
        tables = [_accounts(dataclasses.replace(self._steps, count=int(n)), self.rows[0].delta) for n in counts]
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        hollow = False
        for i, (stroke, marker, shade) in zip(range(len(self.rows)), _STROKES[-len(self.rows) :], strict=True):
            epsilons = np.array([table[i].epsilon for table in tables])
            shown = np.where(np.isfinite(epsilons) & (epsilons > 0), epsilons, np.nan)
            axes.plot(counts, shown, linestyle=stroke, marker=marker, color=shade, label=self.rows[i].name)
            unproved = ~np.array([table[i].upper_bound for table in tables])
            axes.plot(counts[unproved], shown[unproved], marker, color=shade, markerfacecolor="white")
            hollow |= bool(unproved.any())
        axes.set(xscale="log", yscale="log", xlabel="number of steps", ylabel=f"ε at δ = {self.rows[0].delta:g}")
        axes.legend(fontsize="small", title="hollow: no upper bound" if hollow else None)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def compare_accountants(plan: Planned, delta: float) -> AccountantComparison:
    """Says what a plan costs by each generation of accountants, and which of the figures are upper bounds.

    Basic and advanced composition take each step as a Gaussian mechanism on a sample: (epsilon, delta / q) of the mechanism
    becomes (log(1 + q (e^epsilon - 1)), delta) of the step. That holds for Poisson samples and samples without replacement
    alike, with a sensitivity of C or, where one record is replaced, 2C. The mechanism's epsilon is the exact one (Balle, Wang
    2018), so that both hold for any noise. Advanced composition takes the split of delta that serves it best. The distance
    between sampler and event is charged to each.

    The rows "as in UAI 2017" are what Jälkö, Dikmen and Honkela compute: one with the classical formula
    sqrt(2 ln(1.25 / delta)) / sigma, which is proved for an epsilon below 1 only; under REPLACE_ONE, another by the moments
    accountant at half the noise multiplier, as if one record were added or removed.

    A row whose own conditions fail is an upper bound all the same where the PLD's epsilon, which is one, lies below it: its note
    says so. Else it is marked as none.

    Args:
        plan: a `PrivacyPlan`.
        delta: of all the steps together; above 0 and below 1.

    Returns:
        The comparison: `rows`, a table by `print`, a picture by `plot`.

    Raises:
        ValueError: delta is out of range, or the event is not made of equal Gaussian steps.

    References:
        Dwork, Roth, "The algorithmic foundations of differential privacy", 2014, Theorems 3.16, 3.20 and A.1; Jälkö, Dikmen,
        Honkela, UAI 2017; Abadi et al., CCS 2016; Mironov, CSF 2017; Balle, Barthe, Gaboardi, NeurIPS 2018.

    Example:
        >>> import discreet as dp
        >>> plan = dp.PrivacyPlan(
        ...     sampling=dp.PoissonSampling(rate=0.05), clipping_norm=5.0, noise_multiplier=2.4, num_steps=1000, num_records=3341)
        >>> [round(row.epsilon, 1) for row in dp.accounting.compare_accountants(plan, 1e-3).rows]
        [171.4, 56.5, 118.9, 2.3, 2.0]
    """
    usable = isinstance(delta, numbers.Real) and not isinstance(delta, bool)
    if not (usable and 0 < delta < 1):
        raise ValueError(
            f"delta is {delta!r}; it is a probability above 0 and below 1, and should be well below 1 / num_records, "
            "such as 1e-6."
        )
    steps = _theorems.steps_of(plan.event(), plan.relation, plan.slack)
    return AccountantComparison(_accounts(steps, float(delta)), steps)


def _accounts(steps: Steps, delta: float) -> tuple[Account, ...]:
    claimed = _theorems.numerical(steps, delta)

    def row(name: str, epsilon: float, source: str, note: str, gap: str = "") -> Account:
        """A figure; `gap` says what its proof lacks."""
        if epsilon == math.inf:
            return Account(name, epsilon, delta, source, True, "no finite epsilon at this delta")
        if not gap:
            return Account(name, epsilon, delta, source, True, note)
        if epsilon >= claimed:
            return Account(name, epsilon, delta, source, True, f"{gap}; it holds because PLD's epsilon is no larger")
        return Account(name, epsilon, delta, source, False, gap)

    rows = [
        row(
            "basic composition",
            _theorems.basic(steps, delta),
            "Dwork and Roth 2014, Theorem 3.16",
            f"{steps.count:,} times a step's epsilon at delta / {steps.count:,}",
        ),
        *_advanced_rows(steps, delta, row),
        row(
            "Renyi (moments accountant)",
            _theorems.renyi(steps, delta),
            "Mironov 2017; Abadi et al. 2016; dp_accounting",
            "one record replaced = one removed and one added"
            if steps.sampled_by_coins and steps.relation is Relation.REPLACE_ONE
            else "by dp_accounting",
        ),
    ]
    if steps.relation is Relation.REPLACE_ONE:
        rows.append(_moments_row(steps, delta, row))
    rows.append(row(PLD, claimed, "what discreet claims: plan.epsilon(delta)", "the plan's own epsilon"))
    return tuple(rows)


def _advanced_rows(steps: Steps, delta: float, row: Callable[..., Account]) -> list[Account]:
    exact, kept = _theorems.advanced(steps, delta)
    classical, classical_kept = _theorems.advanced(steps, delta, _theorems.classical_step_where_proved)
    gap = ""
    if classical == math.inf:
        gap = "the classical Gaussian formula needs an epsilon below 1 on the batch"
        classical, classical_kept = _theorems.advanced(steps, delta, _theorems.classical_step)
    return [
        row(
            "advanced composition",
            exact,
            "Dwork and Roth 2014, Theorem 3.20",
            f"exact Gaussian mechanism, delta' = {kept:.3g}",
        ),
        row(
            "advanced composition, as in UAI 2017",
            classical,
            "Jälkö, Dikmen, Honkela 2017, eqs. (7), (8)",
            f"classical Gaussian formula, delta' = {classical_kept:.3g}",
            gap,
        ),
    ]


def _moments_row(steps: Steps, delta: float, row: Callable[..., Account]) -> Account:
    epsilon = _theorems.moments_as_in_2017(steps, delta)
    if steps.rate == 1:
        gap = "" if steps.slack == 0 else "the distance between sampler and event is not in it"
    elif steps.sampled_by_coins:
        gap = "its proof halves epsilon for twice the noise, and adds two deltas without the factor e^epsilon"
    else:
        gap = "it is for Poisson samples, and these batches are of fixed size"
    return row(
        "moments accountant, as in UAI 2017",
        epsilon,
        "Jälkö, Dikmen, Honkela 2017, Theorem 2",
        "without sampling, one record removed at half the noise is one replaced",
        gap,
    )
