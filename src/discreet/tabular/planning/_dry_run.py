"""`dry_run`: fit invented tables at several epsilons, by the method and the settings that would fit the real one."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from tqdm.auto import tqdm

from discreet._validate import finite_or_none, integer, positive
from discreet.methods.inference import UseWarning
from discreet.methods.newton import one_thread
from discreet.privacy.accounting import suggest
from discreet.privacy.report import COEFFICIENTS, NOT_USABLE, PREDICTION
from discreet.tabular.planning._trials import Terms, Trial, Worth, trial_for
from discreet.tabular.tables import Schema

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""The epsilons that are tried, over the one asked for."""
USES = (NOT_USABLE, PREDICTION, COEFFICIENTS)
NARROWER = (
    "That is for invented columns, which spread over their bounds. A real column that crowds at one end of them, as incomes do, "
    "needs a larger ε or narrower bounds."
)
_HALF = 0.5
_SHORT = 12


@dataclasses.dataclass(frozen=True)
class DryRunRow:
    """What fits at one epsilon are good for, over all invented tables. Numbers that a method does not give are NaN.

    Attributes:
        epsilon: At the dry run's delta.
        ratio: Standard deviation of the privacy noise over that of sampling: median.
        learned: Share of coefficients for which more than half of the prior's variance is gone.
        held: Share of the 90 % intervals that hold the true coefficient.
        score: The dry run's measure: median.
        best: The same of the truth.
        use: Verdict on the use of the fit that half of the tables reach, as `Statement.use`.
    """

    epsilon: float
    ratio: float
    learned: float
    held: float
    score: float
    best: float
    use: str

    @classmethod
    def of(cls, epsilon: float, outcomes: Sequence[Worth]) -> DryRunRow:
        """The row of several fits."""
        uses = sorted((outcome.use for outcome in outcomes), key=("", *USES).index)
        with warnings.catch_warnings(), np.errstate(invalid="ignore"):
            # The mean of nothing is NaN.
            warnings.simplefilter("ignore", RuntimeWarning)
            return cls(
                epsilon=epsilon,
                ratio=float(np.nanmedian([outcome.ratio for outcome in outcomes])),
                learned=float(
                    np.mean(np.concatenate([outcome.learned for outcome in outcomes]) > _HALF)
                ),
                held=float(np.mean(np.concatenate([outcome.held for outcome in outcomes]))),
                score=float(np.nanmedian([outcome.score for outcome in outcomes])),
                best=float(np.nanmedian([outcome.best for outcome in outcomes])),
                use=uses[len(uses) // 2],
            )


@dataclasses.dataclass(frozen=True)
class DryRun:
    """The result of `dry_run`. No data was read, so publishing it costs nothing.

    Attributes:
        method: The method in words.
        measure: The name of the score on new rows: "AUC", "accuracy" or "R²". Empty if there is
            none.
        plan: The plan of the fit at the epsilon asked for.
        epsilon: As asked for.
        delta: At which all epsilons are.
        num_records: As asked for.
        rows: What to expect at several epsilons, smallest first.
        complete: False where Ctrl-C stopped it: then rows are missing.
        note: Why the fit is in steps, or what invented tables lack; may be empty.
    """

    method: str
    measure: str
    plan: Any
    epsilon: float
    delta: float
    num_records: int
    rows: tuple[DryRunRow, ...]
    complete: bool = True
    note: str = ""

    @property
    def asked(self) -> DryRunRow:
        """What to expect at the epsilon asked for."""
        found = next((row for row in self.rows if row.epsilon == self.epsilon), None)
        if found is None:
            raise ValueError(
                f"The dry run was stopped before ε = {self.epsilon:g} was tried; rows has what was."
            )
        return found

    def least(self, use: str) -> float | None:
        """The least epsilon of those tried whose fits reach a use; None if there is none."""
        return next(
            (
                row.epsilon
                for row in self.rows
                if row.use and USES.index(row.use) >= USES.index(use)
            ),
            None,
        )

    def __str__(self) -> str:
        """The table, and the verdict."""
        lines = [
            f"{self.method} at δ = {self.delta:.3g}, {self.num_records:,} records. It has no settings but ε. Expected, on "
            "invented tables:",
            "",
            f"     ε  noise  learned  held  {self.measure or 'score':>8}   best  use",
        ]
        for row in self.rows:
            mark = "*" if row.epsilon == self.epsilon else " "
            cells = (
                _shown(row.ratio, ".3g", 5),
                _shown(100 * row.learned, ".0f", 5)
                + (" %" if math.isfinite(row.learned) else "  "),
                _shown(row.held, ".2f", 4),
                _shown(row.score, ".3f", 8),
                _shown(row.best, ".3f", 5),
            )
            lines.append(f"{mark}{row.epsilon:5.3g}  {'  '.join(cells)}  {row.use}")
        for text in (" ".join(self._legend()), self.note):
            lines += ["", text] if text else []
        if not self.complete:
            lines += ["", "Stopped early: larger ε were not tried."]
        elif self.asked.use:
            use = f"Use at ε = {self.epsilon:g}: {self.asked.use.capitalize()}."
            lines += [
                "",
                " ".join(
                    filter(
                        None, [use, self._enough(PREDICTION), self._enough(COEFFICIENTS), NARROWER]
                    )
                ),
            ]
        return "\n".join(lines)

    def _legend(self) -> list[str]:
        """What the columns mean that have numbers."""
        found = []
        if any(math.isfinite(row.ratio) for row in self.rows):
            found.append("Noise: its standard deviation over that of sampling.")
        if any(math.isfinite(row.held) for row in self.rows):
            found.append(
                "Learned: share of the coefficients that the data decide more than the prior."
            )
            found.append(
                "Held: share of the 90 % intervals that hold the invented table's true coefficient."
            )
        if self.measure:
            found.append(f"{self.measure}: on new rows; best: of the truth.")
        return found

    def _enough(self, use: str) -> str:
        least = self.least(use)
        if least is not None:
            return f"{use.capitalize()}, ε = {least:g} {'is' if least > self.rows[0].epsilon else 'or less is'} enough."
        if use == COEFFICIENTS and not any(math.isfinite(row.held) for row in self.rows):
            return ""  # such a fit has no intervals
        return f"No ε up to {self.rows[-1].epsilon:g} makes a fit usable {use}: more records or fewer columns help."

    def to_dict(self) -> dict[str, Any]:
        """Everything for programs; numbers that are not finite are None."""
        content = {
            "method": self.method,
            "measure": self.measure,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "num_records": self.num_records,
            "noise_multiplier": self.plan.noise_multiplier,
            "complete": self.complete,
            "note": self.note,
            "verdict": self.asked.use if self.complete else "",
            "least_epsilon": {use: self.least(use) for use in USES[1:]},
            "curve": [dataclasses.asdict(row) for row in self.rows],
        }
        return finite_or_none(content)

    def plot(self, path: str | Path | None = None, *, axes: Any = None) -> Figure:
        """Draw the score and the share of learned coefficients against epsilon; readable in grey.

        Args:
            path: File for the picture, whose ending determines its format. None: it is not saved.
            axes: Matplotlib axes to draw in; None: those of a new figure.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        from discreet.methods.plots import new_figure, save

        if axes is None:
            axes = new_figure(6, 4).subplots()
        epsilons = [row.epsilon for row in self.rows]
        if self.measure:
            axes.plot(
                epsilons,
                [row.score for row in self.rows],
                marker="o",
                color="0",
                label=self.measure,
            )
            axes.plot(
                epsilons,
                [row.best for row in self.rows],
                linestyle="--",
                color="0",
                label="of the truth",
            )
        if any(math.isfinite(row.learned) for row in self.rows):
            learned = [row.learned for row in self.rows]
            axes.plot(epsilons, learned, marker="s", color="0.5", label="coefficients learned")
        axes.axvline(self.epsilon, linestyle=":", color="0.7")
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{x:g}" for x in epsilons])
        axes.minorticks_off()
        axes.set(xlabel="ε", ylabel="on invented tables")
        low, high = axes.get_ylim()
        axes.set_ylim(min(0.0, low), 1.05 * high)
        verdict = f": {self.asked.use}" if self.complete and self.asked.use else ""
        axes.set_title(f"Expected at {self.num_records:,} records{verdict}", fontsize=_SHORT)
        axes.legend(frameon=False)
        return save(axes.figure, path)


def _shown(value: float, form: str, width: int) -> str:
    return format(value, f"{width}{form}") if math.isfinite(value) else "–".rjust(width)


def dry_run(
    model: Callable[..., Any] | str,
    about: Schema | Sequence[jax.ShapeDtypeStruct] | None = None,
    *,
    num_records: int,
    epsilon: float,
    delta: float | None = None,
    guide: Callable[..., Any] | None = None,
    share: float | None = None,
    kept: float | None = None,
    seed: int = 0,
    progress_bar: bool = True,
) -> DryRun:
    """Fit invented tables at the epsilon asked for and at smaller and larger ones: no data, no budget.

    Guarantee: nothing is computed from records. The schema's bounds and the model's prior are
    public, and there is no argument that a table could be passed as: a schema or shapes say what is
    public, and arrays are refused.

    Each table has features within the schema's bounds, from distributions that are themselves drawn
    (standard normals for shapes). For the regressions the weights are drawn in proportion to the
    prior and scaled, so that signals are strong, medium and weak. For other models a truth is drawn
    from the prior and moved towards its middle, and the observations are drawn from the model. The
    fits are those that the real table would get: private Newton for regressions and for models of
    one's own, noisy moments for a line, and else `DPSVI` with the default settings.

    Tables with more than four million cells are stood for by fewer rows, with noise that is as
    large beside that of sampling by rule of thumb. Scores, verdicts and the share of learned
    coefficients are then rather too low.

    Args:
        model: "logistic", "multinomial", "poisson", "negative-binomial" or "linear"; or a NumPyro
            model as for `dp.fit`.
        about: The schema of the table, for the regressions and for models that take
            `discreet.tables.encode`'s arrays; or a shape for each argument of the model.
        num_records: Public number of records, at least 20.
        epsilon: The budget.
        delta: As in `NewtonPlan.calibrate`.
        guide: A guide of the model, which is then fitted in steps. None: the method's own.
        share: Of a logistic target: a public guess of the share of the second category. None: a
            fifth to four fifths, mostly.
        kept: Where the schema drops records (`missing = "drop"`): a public guess of the share that
            is kept. None: all.
        seed: Seed of the tables and the noise, neither of which is secret here.
        progress_bar: Show progress after two seconds.

    Returns:
        What to expect at each epsilon. Ctrl-C ends with the rows so far, if there are any.

    Raises:
        ValueError: An argument is out of range, or no table can be invented.
        TypeError: A table in the place of its description.

    >>> from discreet.tabular.tables import schema_from_bounds
    >>> schema = schema_from_bounds("age=17:90,smoker=no|yes", target="smoker")
    >>> found = dry_run("logistic", schema, num_records=5_000, epsilon=1.0, progress_bar=False)
    >>> found.asked.use, found.rows[0].ratio > found.rows[-1].ratio
    ('for its coefficients', True)
    """
    integer(
        "num_records",
        num_records,
        least=20,
        hint="Nothing can be learnt from fewer records under privacy.",
    )
    positive("epsilon", epsilon)
    delta = suggest(num_records=num_records).delta if delta is None else delta
    trial = trial_for(model, about, Terms(num_records, delta, seed, share, kept), guide)
    plan = trial.plan(epsilon)
    epsilons = [epsilon if factor == 1 else float(f"{epsilon * factor:.4g}") for factor in FACTORS]
    # There is a largest ε for which noise can be calibrated.
    epsilons = [other for other in epsilons if other <= epsilon or _has_plan(trial, other)]
    rows = []
    complete = False
    disable = None if progress_bar else True
    bar = tqdm(
        total=len(epsilons) * trial.num_tables,
        desc="dry run",
        unit="fit",
        delay=2.0,
        disable=disable,
    )
    with one_thread(), bar, contextlib.suppress(KeyboardInterrupt):
        for other in epsilons:
            outcomes = []
            for number in range(trial.num_tables):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UseWarning)
                    outcomes.append(trial.fit(other, number))
                bar.update()
            rows.append(DryRunRow.of(other, outcomes))
        complete = True
    if not rows:
        raise KeyboardInterrupt
    return DryRun(
        method=trial.method,
        measure=trial.measure,
        plan=plan,
        epsilon=epsilon,
        delta=delta,
        num_records=num_records,
        rows=tuple(rows),
        complete=complete,
        note=trial.note,
    )


def _has_plan(trial: Trial, epsilon: float) -> bool:
    try:
        trial.plan(epsilon)
    except ValueError:
        return False
    return True
