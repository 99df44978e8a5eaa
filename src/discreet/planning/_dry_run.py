"""`dry_run`: invent tables, fit them with and without noise under many settings, and propose one.

Each setting is fitted to one table per strength of the signal, and the best few to another; the proposal is then fitted again
to fresh tables, with other noise, so that what is said of it was not also what chose it. Scores are compared with two fits of
the same table: one without noise, which shows what there is to learn, and a blind one, which can learn nothing of the relation.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpyro.optim import Adam
from tqdm.auto import tqdm

from discreet import random
from discreet._validate import finite_or_none, integer, positive, probability
from discreet.accounting import suggest
from discreet.inference import DPSVI, UseWarning, starting_objective, too_few
from discreet.models import MixtureOfProducts, guide_for
from discreet.moments import MomentsPlan, fit_moments
from discreet.plan import PrivacyPlan
from discreet.planning._fits import Fitter
from discreet.planning._invent import (
    LOG_DENSITY,
    ONE_WAY,
    SMALLER_IS_BETTER,
    TWO_WAY,
    Grid,
    InventedTable,
    Inventor,
    Judge,
    Model,
    Scores,
    Setting,
    default_grid,
    plan_for,
    template_of,
    template_of_twin,
)
from discreet.report import NOT_USABLE, PREDICTION
from discreet.sampling import FullBatch
from discreet.tables import Schema

# --- the result of a dry run, as numbers, text and a plot ---------------------------------


_SHORT = 12


@dataclasses.dataclass(frozen=True)
class TableScores:
    """Fits of one invented table.

    Attributes:
        strength: Strength of its truth; see `dry_run`.
        private: Scores of the fit with noise.
        non_private: Score of the fit without noise and clipping.
        blind: Score of a fit that cannot learn the relation: to a permuted target, or no fit at all.
        width: Distance of the private fit's latents from the other's, in its posterior's standard deviations: root mean
            square.
        distance: Their squared distance.
        rested: True if the private fit converged; None if there are too few steps to tell.
    """

    strength: float
    private: Scores
    non_private: Scores
    blind: Scores
    width: float = math.nan
    distance: float = math.nan
    rested: bool | None = None

    @property
    def private_gain(self) -> float:
        """Log density that the private fit gains over the blind one, in nats per held-out record."""
        return self.private[LOG_DENSITY] - self.blind[LOG_DENSITY]

    @property
    def non_private_gain(self) -> float:
        """The same of the fit without noise."""
        return self.non_private[LOG_DENSITY] - self.blind[LOG_DENSITY]


@dataclasses.dataclass(frozen=True)
class Row:
    """A setting and its scores.

    Attributes:
        setting: The setting.
        noise_multiplier: Sigma, calibrated to epsilon.
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

    @property
    def distance(self) -> float:
        """Squared distance from the latents of the fits without noise: geometric mean over the tables; NaN if unknown."""
        with np.errstate(all="ignore"):
            return float(np.exp(np.mean(np.log([table.distance for table in self.tables]))))

    @property
    def rests(self) -> bool:
        """True if four fifths of the private fits converged, or if there are too few steps to tell."""
        told = [table.rested for table in self.tables if table.rested is not None]
        return sum(told) >= 0.8 * len(told)

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
class DryRun:
    """The result of `dry_run`. No data was read, so publishing it costs nothing.

    Attributes:
        plan: The proposal, calibrated.
        learning_rate: Its learning rate for Adam.
        epsilon: As asked for.
        proposed: The proposal's scores on tables that it was not chosen on.
        rows: All settings that were tried, the proposed one first, with their scores on the tables of the search.
        curve: The proposed setting at several epsilons, smallest first.
        verdict: What the fit may be used for, as in `Statement.use`: "for prediction" or "not usable".
        why: The reason, the numbers behind it and what would help.
        complete: False where Ctrl-C stopped it: then settings are missing, and `proposed` may be of the search's tables.
        unit: Plural name of the records.
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
    unit: str = "records"

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures that there are, the most telling first."""
        names = dict.fromkeys(name for table in self.proposed.tables for name in table.non_private)
        return (*(name for name in names if name != LOG_DENSITY), LOG_DENSITY)

    def __str__(self) -> str:
        """The proposal and the results to expect."""
        plan, setting = self.plan, self.proposed.setting
        lines = [
            f"Proposed for ε = {self.epsilon:g}, δ = {plan.target_delta:g} and {plan.num_records:,} {self.unit}: "
            f"{setting.num_steps:,} steps at rate {setting.rate:g}, clipping norm {setting.clipping_norm:g}, learning rate "
            f"{setting.learning_rate:g} (noise multiplier {plan.noise_multiplier:.3g}).",
            "",
            "Expected, on invented tables (with noise / without; from the worst to the best table):",
        ]
        for name in self.measures:
            low, high = self.proposed.spread(name)
            worst, best = (high, low) if name in SMALLER_IS_BETTER else (low, high)
            private, non_private = self.proposed.mean(name), self.proposed.mean(name, "non_private")
            lines.append(f"  {name}: {private:.3f} / {non_private:.3f} ({worst:.3f} to {best:.3f})")
        if traded := self._traded():
            lines += ["", traded]
        if not self.complete:
            lines += ["", "Stopped early: not all settings were tried."]
        lines += ["", f"Use: {self.verdict.capitalize()}: {self.why}"]
        return "\n".join(lines)

    def _traded(self) -> str:
        """Describe the proposal's loss against the best setting; empty if it is the best."""
        here = self.rows[0]
        best = min((row for row in self.rows if len(row.tables) == len(here.tables)), key=lambda row: row.lost)
        own, other = here.setting, best.setting
        if own == other:
            return ""
        work = own.num_steps * own.rate / (other.num_steps * other.rate)
        further = own.num_steps * own.learning_rate / (other.num_steps * other.learning_rate)
        times = {"1": ""}  # "as large", and not "1 times as large"
        more, farther = (times.get(x, f"{x} times ") for x in (f"{work:.2g}", f"{further:.2g}"))
        told = "too little to tell" if best.rests or not here.rests else "and had not converged at its end"
        return (
            f"What this trades: {other.num_steps:,} steps at rate {other.rate:g}, clipping norm {other.clipping_norm:g} and "
            f"learning rate {other.learning_rate:g} lost the least, {here.lost - best.lost:.2g} nats a record less, "
            f"{told}. The proposal computes {more}as many gradients. Its steps times its learning rate, which limits how "
            f"far a parameter can move, are {farther}as large."
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything for programs; numbers that are not finite are None."""
        content = {
            "epsilon": self.epsilon,
            "delta": self.plan.target_delta,
            "num_records": self.plan.num_records,
            "proposed": _row(self.proposed),
            "verdict": self.verdict,
            "why": self.why,
            "complete": self.complete,
            "settings": [_row(row) for row in self.rows],
            "curve": [{"epsilon": p.epsilon, "tables": [dataclasses.asdict(t) for t in p.tables]} for p in self.curve],
        }
        return finite_or_none(content)

    def plot(self, axes: Any = None) -> Any:
        """Draw the first measure against epsilon, with the level of fits without noise; readable in grey.

        Args:
            axes: Matplotlib axes; None: new ones.

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
        axes.set_title(f"Expected at {self.plan.num_records:,} {self.unit}: {self.verdict}", fontsize=_SHORT)
        axes.legend(frameon=False)
        return axes


def _row(row: Row) -> dict[str, Any]:
    names = dict.fromkeys(name for table in row.tables for name in table.non_private)
    return {
        **dataclasses.asdict(row.setting),
        "noise_multiplier": row.noise_multiplier,
        "signal_to_noise": row.signal_to_noise,
        "rests": row.rests,
        "private": {name: row.mean(name) for name in names},
        "non_private": {name: row.mean(name, "non_private") for name in names},
        "tables": [dataclasses.asdict(t) for t in row.tables],
    }


# --- the scores in words ------------------------------------------------------------------


ENOUGH, HALF = 0.9, 0.5


def kept(tables: Sequence[TableScores]) -> float:
    """The share of the learnable log density (above the blind fits) that the private fits have learnt.

    NaN where there was nothing to learn.
    """
    learnt = sum(table.private_gain for table in tables)
    learnable = sum(table.non_private_gain for table in tables)
    return learnt / learnable if learnable > 0 and math.isfinite(learnt) else math.nan


def judge(tables: Sequence[TableScores]) -> str:
    """What a fit by a setting may be used for, by the share of a strong signal that survives the noise."""
    return PREDICTION if _kept_of(tables, strongest=True) >= HALF else NOT_USABLE


def _kept_of(tables: Sequence[TableScores], *, strongest: bool) -> float:
    """The share that is kept of the strongest signal, or of the weakest."""
    strength = (max if strongest else min)(table.strength for table in tables)
    return kept([table for table in tables if table.strength == strength])


def in_words(
    verdict: str,
    row: Row,
    curve: Sequence[CurvePoint],
    epsilon: float,
    num_parameters: int,
    rows: Sequence[Row] = (),
) -> str:
    """The reason of the verdict, the numbers behind it, and what would help; `rows` are all settings, the best first."""
    share = kept(row.tables)
    lost = f"{100 * share:.0f} %" if share > 0 else "nothing"
    reason = f"Of what a fit without noise learns from such tables, this one learns {lost}."
    weak = not _kept_of(row.tables, strongest=False) >= HALF
    if verdict == NOT_USABLE:
        reason = f"{reason[:-1]}, and even of a strong signal the noise hides more than half."
    elif weak:
        reason = f"{reason[:-1]}, but where the signal is weak the noise hides more than half of it."
    width = float(np.median([table.width for table in row.tables]))
    behind = (
        f"Single estimates are another matter than predictions: the noise moves them by {_short(width)} standard deviations of "
        "the posterior. At the start, the records' "
        f"common gradient is {_short(row.signal_to_noise)} times as long as the noise that is left in the mean of all steps."
    )
    good = verdict == PREDICTION and share >= ENOUGH and not weak
    helps = "" if good else _what_helps(row, curve, epsilon, num_parameters)
    return " ".join(filter(None, (reason, behind, helps, "" if row.rests else _convergence(row, rows, curve, epsilon))))


def _convergence(row: Row, rows: Sequence[Row], curve: Sequence[CurvePoint], epsilon: float) -> str:
    """What to expect of a proposal that did not converge, and what would let it converge."""
    count = f"{sum(bool(table.rested) for table in row.tables)} of {len(row.tables)}"
    price = min((other.lost for other in rows if other.rests), default=math.inf) - (rows[0].lost if rows else 0.0)
    dearer = f" Settings that converged lost {price:.2g} nats a record more, or worse." if 0 < price < math.inf else ""
    larger = [p.epsilon for p in curve if p.epsilon > epsilon and all(table.rested for table in p.tables)]
    enough = (
        f"ε = {min(larger):g} let all fits converge" if larger else "no larger ε that was tried let all fits converge"
    )
    return (
        f"{count} fits of invented tables converged, since the noise hides in which direction some parameters should "
        f"go.{dearer} With these settings {enough}. More records, fewer parameters and closer public bounds help."
    )


def _short(value: float) -> str:
    """Two digits, never with an exponent."""
    return f"{float(f'{value:.2g}'):,.10g}"


def _what_helps(row: Row, curve: Sequence[CurvePoint], epsilon: float, num_parameters: int) -> str:
    if not sum(table.non_private_gain for table in row.tables) > 0:
        return "Even without noise there is nothing to learn from so few records: a simpler model may do better."
    ways = [f"fewer parameters (the model has {num_parameters}, and the noise grows with the root of their number)"]
    enough = [point for point in curve if point.epsilon > epsilon and kept(point.tables) >= ENOUGH]
    if enough:
        first = min(enough, key=lambda point: point.epsilon)
        ways = [
            f"ε = {first.epsilon:g}, with which it learns {100 * kept(first.tables):.0f} %",
            f"more records: with about {first.epsilon / epsilon:.2g} times as many, ε = {epsilon:g} hides about as little "
            "(by rule of thumb, not tried)",
            *ways,
        ]
    else:
        ways = ["more records", *ways, f"ε up to {max(p.epsilon for p in curve):g} does not suffice"] if curve else ways
    return f"What helps: {'; '.join(ways)}."


# --- the search ---------------------------------------------------------------------------


STRENGTHS = (1.0, 0.5, 0.25)
STRENGTHS_OF_TWINS = (1.0, 0.5)
CURVE = (0.1, 0.3, 1.0, 3.0, 10.0)
_MOST_CELLS = 2**24
_MOST_HELD_OUT = 4_000
_ROWS_FOR_NORMS = 128
_UNLIMITED_STEPS = 1_000
_UNLIMITED_RATES = (0.02, 0.1)
_AGAIN = 4
_QUANTILE = 0.9
_ABOUT_AS_GOOD, _ALIKE = 0.1, 0.02
"""Settings whose losses differ by less than the first share of what there is to learn are taken for about equally good; of twins,
less than the second."""
_AS_NEAR = 1.1


def dry_run(
    model: Model | MixtureOfProducts,
    about: Schema | Sequence[jax.ShapeDtypeStruct] | None = None,
    *,
    num_records: int,
    epsilon: float,
    delta: float | None = None,
    guide: Model | None = None,
    grid: Grid | None = None,
    strengths: Sequence[float] | None = None,
    epsilons: Sequence[float] | None = None,
    seed: int = 0,
    progress_bar: bool = True,
) -> DryRun:
    """Choose a plan by a dry run of `DPSVI` on artificial tables: no data, no budget.

    Guarantee: nothing here is computed from records, so the proposal costs no privacy and may be shown. There is no
    argument that a table could be passed as: a schema or shapes say what is public, and arrays are refused.

    Invented are: features, within the schema's bounds and from distributions that are themselves drawn (standard normals
    for shapes); the truth, a draw of the model's prior; the observations, drawn from the model given both. A wide prior
    gives tables that nobody has, such as targets that are all alike or far outside their bounds. So a truth is taken
    whose target keeps to its public bounds and takes several values, and it is drawn towards the prior's middle by a
    factor, the strength: from strong signals to weak ones. Settings are compared by the log density that they lose against
    fits without noise, on average over tables of all strengths. Of those within a tenth of what there is to learn, those that
    converged come first, and of these the one whose latents are nearest to the ones of the fits without noise is proposed; for
    a mixture, the one with the best marginals of pairs. If the proposal does not converge on other tables, the nearest of all
    takes its place. The best few settings are fitted to twice as many tables as the others. Larger batches are tried only where
    they leave less noise in the mean of all steps. What the proposal is said to reach was measured on other tables, with other
    noise.

    Args:
        model: A NumPyro model of (x, y) or (x) as for `DPSVI`; or a `MixtureOfProducts`, which brings its own schema.
        about: The schema of the table, for models that take `discreet.tables.encode`'s arrays; or a shape for each argument.
        num_records: Public number of records, at least 20.
        epsilon: To keep to, above 0.
        delta: To keep to. None: `suggest`'s.
        guide: None: `AutoNormal` started at zero, as `discreet fit` does; the mixture's own for a mixture.
        grid: The settings to try. None: `default_grid(model)`.
        strengths: Strengths of the truths; each gets two tables to search on and one to confirm by. None: 1, 0.5 and 0.25,
            for mixtures 1 and 0.5.
        epsilons: Points of `DryRun.curve`. None: 0.1, 0.3, 1, 3 and 10 times epsilon.
        seed: Seed of all random numbers; nothing here is secret.
        progress_bar: Show progress. Ctrl-C ends with the best so far.

    Returns:
        The proposal, its expected scores, all settings tried, and a verdict in words.

    Raises:
        TypeError: Something that is no schema and no shape was passed, such as a table.
        ValueError: A number out of range, or a model that DPSVI refuses or that no table can be drawn from.
        KeyboardInterrupt: Ctrl-C came before the first setting was done.
    """
    integer("num_records", num_records, least=20, hint="Nothing can be learnt from fewer records under privacy.")
    if delta is not None:
        probability("delta", delta, hint="It should be well below 1 / num_records, such as 1e-6.")
    positive("epsilon", epsilon)
    for name, values in (("epsilons", epsilons or ()), ("strengths", strengths or ())):
        for value in values:
            positive(f"a value of {name}", value)
    delta = suggest(num_records=num_records).delta if delta is None else delta
    twin = model if isinstance(model, MixtureOfProducts) else None
    strengths = tuple(strengths or (STRENGTHS if twin is None else STRENGTHS_OF_TWINS))
    stage = _Stage.set(model, about, guide, num_records, epsilon, delta, seed)
    grid = default_grid(model) if grid is None else grid
    others = sorted({*(epsilons or (epsilon * factor for factor in CURVE))} - {epsilon})
    # Of each strength three tables, three fits of each without noise; the search; and the proposal at each epsilon.
    count = len(stage.settings(grid, 1.0))
    fits = len(strengths) * (9 + count + min(_AGAIN, count) + 1 + len(others))
    with tqdm(total=fits, disable=None if progress_bar else True, unit="fit", desc="dry run") as bar:
        stage = dataclasses.replace(stage, bar=bar)
        tables, again = ([stage.prepared(s, seed + x + i, grid) for i, s in enumerate(strengths)] for x in (1, 51))
        typical = stage.typical_norm(tables) if grid.clipping_norms is None else 1.0
        rows, complete = stage.search(tables, again, stage.settings(grid, typical))
        best = rows[0]
        proposed, curve = best, ()
        if complete:
            try:
                fresh = [stage.prepared(s, seed + 101 + i, grid) for i, s in enumerate(strengths)]
                proposed = stage.tried(fresh, best.setting, fresh=True)
                tried_most = [row for row in rows if len(row.tables) == len(best.tables)]
                if not proposed.rests and (least := _ranked(tried_most, to_converge=False)[0]) is not best:
                    # What was given up for it was given up for nothing.
                    bar.total += len(fresh)
                    best, rows = least, [least, *(row for row in rows if row is not least)]
                    proposed = stage.tried(fresh, best.setting, fresh=True)
                curve = stage.curve(fresh, proposed, others)
            except KeyboardInterrupt:
                complete = False
    plan = stage.plan(best.setting)
    verdict = judge(proposed.tables)
    why = in_words(verdict, proposed, curve, epsilon, stage.num_parameters, rows)
    if few := too_few(plan, stage.num_parameters):
        verdict = NOT_USABLE
        why = f"{few[0].upper()}{few[1:]}, whatever invented tables show. {why}"
    return DryRun(
        plan=plan,
        learning_rate=best.setting.learning_rate,
        epsilon=epsilon,
        proposed=proposed,
        rows=tuple(rows),
        curve=curve,
        verdict=verdict,
        why=why,
        complete=complete,
        unit="records" if (schema := _schema_of(model, about)) is None else unit_of(schema),
    )


def in_another_order(target: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Move the target by half a table; for persons with several rows, among the existing rows.

    >>> in_another_order(np.array([[1, 0], [2, 3], [4, 0]]), np.array([[True, False], [True, True], [True, False]])).tolist()
    [[3, 0], [4, 1], [2, 0]]
    """
    there = np.s_[:] if mask is None else mask
    moved = target.copy()
    moved[there] = np.roll(target[there], len(target[there]) // 2, axis=0)
    return moved


def _schema_of(model: Any, about: Any) -> Schema | None:
    found = model.schema if isinstance(model, MixtureOfProducts) else about
    return found if isinstance(found, Schema) else None


def unit_of(schema: Schema) -> str:
    """The plural name of the table's records.

    >>> from discreet.tables import schema_from_bounds
    >>> unit_of(schema_from_bounds("age=17:90"))
    'records'
    """
    if schema.max_rows > 1:
        return f"persons with up to {schema.max_rows} rows each"
    return "records" if schema.person is None else "persons"


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """An invented table with what fits without noise make of it."""

    table: InventedTable
    non_private: Scores
    blind: Scores
    parameters: Any
    seed: int


@dataclasses.dataclass(frozen=True)
class _Stage:
    """The state common to all tables and settings, and the search over them."""

    inventor: Inventor
    fitter: Fitter
    judge: Judge
    num_records: int
    epsilon: float
    delta: float
    num_rows: int
    num_held_out: int
    bar: Any = None  # Goes on by one with each fit

    def plan(self, setting: Setting, epsilon: float | None = None) -> PrivacyPlan:
        """The plan of a setting at an epsilon."""
        return plan_for(setting, self.epsilon if epsilon is None else epsilon, self.delta, self.num_records)

    @property
    def num_parameters(self) -> int:
        """Number of the latents' coordinates, in each of which a step has noise."""
        u, _ = jax.eval_shape(self.fitter.objective.link, self.fitter.start, jax.random.key(0))
        return sum(math.prod(x.shape) for x in jax.tree.leaves(u))

    @classmethod
    def set(
        cls,
        model: Model | MixtureOfProducts,
        about: Any,
        guide: Model | None,
        num_records: int,
        epsilon: float,
        delta: float,
        seed: int,
    ) -> _Stage:
        """Trace the model, and find what DPSVI would fit."""
        placeholder = None
        if isinstance(model, MixtureOfProducts):
            if about is not None:
                raise ValueError("A MixtureOfProducts brings its own schema: leave about out")
            twin, template = model, template_of_twin(model)
            function, placeholder = twin.model, twin.placeholder
        else:
            twin, template, function = None, template_of(() if about is None else about), model
        guide = guide_for(model) if guide is None else guide
        plan = PrivacyPlan(
            sampling=FullBatch(), clipping_norm=1.0, noise_multiplier=1.0, num_steps=1, num_records=num_records
        )
        dpsvi = DPSVI(function, guide, Adam(1.0), plan=plan, placeholder=placeholder)
        example = template.draw(np.random.default_rng(seed), 8)
        objective, start = starting_objective(dpsvi, jax.random.key(seed), *example)
        inventor = Inventor(function, template, objective.structure.global_latents, jax.random.key(seed))
        width = sum(math.prod(x.shape[1:]) for x in example)
        num_rows = min(num_records, max(1_000, _MOST_CELLS // width))
        held_out = min(_MOST_HELD_OUT, max(500, num_records))
        judge = Judge.of(objective, dict(inventor.observed), twin, start, example, template.mask)
        fitter = Fitter(objective, start, num_records, twin)
        return cls(inventor, fitter, judge, num_records, epsilon, delta, num_rows, held_out)

    @property
    def answer(self) -> int | None:
        """The argument that the model explains by others; None where it explains all of them."""
        places, template = set(self.inventor.observed.values()), self.inventor.template
        arguments = len(template.limits) - (template.mask is not None)
        return next(iter(places)) if len(places) == 1 and arguments > 1 else None

    def prepared(self, strength: float, seed: int, grid: Grid) -> _Prepared:
        """Invent a table, and fit it without noise."""
        table, key = self.inventor.table(strength, self.num_rows, self.num_held_out, seed), jax.random.key(seed)
        rate, steps = min(grid.rates_for(self.num_records)), max(_UNLIMITED_STEPS, 2 * max(grid.steps))
        best: tuple[Scores, Any] | None = None
        for learning_rate in _UNLIMITED_RATES:
            psi = self.fitter.fit_without_noise(table.rows, steps, rate, learning_rate, key)
            scores = self.judge(psi, table)
            if best is None or not best[0][LOG_DENSITY] >= scores[LOG_DENSITY]:
                best = scores, psi
            self.bar.update()
        assert best is not None
        blind = self.fitter.start
        if self.answer is not None:
            # The same target in another order: what can be known without the relation.
            rows, mask = list(table.rows), self.inventor.template.mask
            rows[self.answer] = in_another_order(rows[self.answer], None if mask is None else rows[mask])
            blind = self.fitter.fit_without_noise(rows, steps, rate, _UNLIMITED_RATES[0], key)
        self.bar.update()
        return _Prepared(table, best[0], self.judge(blind, table), best[1], seed)

    def settings(self, grid: Grid, typical: float) -> list[Setting]:
        """The grid's settings, but for rates that compute more gradients and leave as much noise in the mean of all steps."""
        found = grid.settings(self.num_records, typical)
        if grid.rates is not None:
            return found
        least: dict[int, float] = {}
        kept = set()
        for steps, rate in sorted({(x.num_steps, x.rate) for x in found}):
            noise = self.plan(Setting(steps, rate, 1.0, 1.0)).noise_multiplier / rate
            if noise < (1 - _ALIKE) * least.get(steps, math.inf):
                least[steps] = noise
                kept.add((steps, rate))
        return [x for x in found if (x.num_steps, x.rate) in kept]

    def typical_norm(self, tables: Sequence[_Prepared]) -> float:
        """A quantile of the gradients' norms of invented records at the start."""
        few = [([x[:_ROWS_FOR_NORMS] for x in t.table.rows], jax.random.key(t.seed)) for t in tables]
        lengths = np.concatenate([np.asarray(self.fitter.lengths(*x)) for x in few])
        typical = float(np.quantile(lengths, _QUANTILE))
        if not (math.isfinite(typical) and typical > 0):
            raise ValueError(
                f"The gradients of invented records have typical length {typical:g} at the start, so no clipping norm suits "
                "them. Narrow the model's priors, or pass clipping norms of your own, Grid(clipping_norms=...)."
            )
        return typical

    def tried(
        self, tables: Sequence[_Prepared], setting: Setting, epsilon: float | None = None, *, fresh: bool = False
    ) -> Row:
        """The scores of a setting; of `fresh` tables also what only the proposal is asked for."""
        noise_multiplier = self.plan(setting, epsilon).noise_multiplier
        scores = []
        for prepared in tables:
            key = jax.random.fold_in(jax.random.key(prepared.seed), 1)
            psi, rested = self.fitter.fit_and_rest(prepared.table.rows, setting, noise_multiplier, key)
            apart = self.judge.apart(psi, prepared.parameters)
            private = self.judge(psi, prepared.table)
            known = prepared.table.strength, private, prepared.non_private, prepared.blind
            scores.append(TableScores(*known, *apart, rested))
            self.bar.update()
        ratios = [self.fitter.signal_to_noise(x.table.rows, setting, noise_multiplier) for x in tables if fresh]
        return Row(setting, noise_multiplier, float(np.median(ratios)) if ratios else math.nan, tuple(scores))

    def search(
        self, tables: Sequence[_Prepared], others: Sequence[_Prepared], settings: Sequence[Setting]
    ) -> tuple[list[Row], bool]:
        """All settings on some tables, and the best of them on others, too: best first, and whether all were tried."""
        rows: list[Row] = []
        # Those with the most steps last: they take longest.
        for setting in sorted(settings, key=lambda s: s.num_steps * s.rate):
            try:
                rows.append(self.tried(tables, setting))
            except KeyboardInterrupt:
                if not rows:
                    raise
                return _ranked(rows), False
        rows = _ranked(rows)
        again = []
        for row in rows[:_AGAIN]:
            more = self.tried(others, row.setting).tables
            again.append(dataclasses.replace(row, tables=row.tables + more))
        rows = [*_ranked(again), *rows[_AGAIN:]]
        if not math.isfinite(rows[0].lost):
            raise ValueError(
                "No setting gave a finite fit of the invented tables: try smaller learning rates, or narrower priors."
            )
        return rows, True

    def curve(self, tables: Sequence[_Prepared], row: Row, others: Sequence[float]) -> tuple[CurvePoint, ...]:
        """The proposed setting at its own epsilon and at others, as far as any noise keeps to them."""
        points = [CurvePoint(self.epsilon, row.tables)]
        for other in others:
            try:
                self.plan(row.setting, other)
            except ValueError:
                continue
            points.append(CurvePoint(other, self.tried(tables, row.setting, other).tables))
        return tuple(sorted(points, key=lambda point: point.epsilon))


def _ranked(rows: Sequence[Row], *, to_converge: bool = True) -> list[Row]:
    """Rank the settings that lose about as little as the best by what the log density says little about; then others by loss.

    Of settings that are about as good, those that converged come first, if `to_converge`. Then, for a twin, those with the best
    marginals: rare levels, which the clipping of the others' gradients hides, count for little in the log density. Else those
    whose latents are nearest to those of the fits without noise, and of several as near the one with the fewest gradients.
    """
    ranked = sorted(rows, key=lambda row: row.lost)
    learnable = max(0.0, float(np.mean([table.non_private_gain for table in ranked[0].tables])))
    good = [row for row in ranked if row.lost <= ranked[0].lost + _ABOUT_AS_GOOD * learnable] or ranked
    best = [row for row in good if to_converge and row.rests] or good
    marginals = next((name for name in (TWO_WAY, ONE_WAY) if name in ranked[0].tables[0].private), None)
    if marginals:
        alike = [row for row in best if row.lost <= best[0].lost + _ALIKE * learnable] or best
        best = sorted(alike, key=lambda row: row.mean(marginals))
    else:
        best = sorted(best, key=lambda row: row.distance)
        near = [row for row in best if row.distance <= _AS_NEAR * best[0].distance]
        best = [*sorted(near, key=lambda row: row.setting.num_steps * row.setting.rate), *best[len(near) :]]
    return [*best, *(row for row in ranked if all(row is not other for other in best))]


# --- a line, which has no settings to choose ----------------------------------------------


@dataclasses.dataclass(frozen=True)
class LineDryRun:
    """The result of `dry_run_of_line`. No data was read, so publishing it costs nothing.

    Attributes:
        plan: The plan of the moments.
        without_noise: R2 of least squares on new rows of invented tables, the strongest signal first.
        with_noise: R2 of the private fit of the same.
        widths: Mean width of the weights' 90 % intervals in these fits, in half the target's bounds; that of the prior is 3.3.
        uses: The verdict on the use of each fit, as `Statement.use`.
    """

    plan: MomentsPlan
    without_noise: tuple[float, ...]
    with_noise: tuple[float, ...]
    widths: tuple[float, ...]
    uses: tuple[str, ...]

    def __str__(self) -> str:
        """The noise, and the results to expect."""
        plan = self.plan
        noises = ", ".join(f"{stddev:.4g}" for stddev in plan.stddevs)
        lines = [
            f"A line is fitted to noisy sums of products and has no settings: {len(plan.stddevs)} releases, to which each of "
            f"{plan.num_records:,} records adds at most 1, with noise {noises} (noise multiplier {plan.noise_multiplier:.3g}).",
            "",
            "Expected, on invented tables, the strongest signal first:",
        ]
        for noisy, exact, width, use in zip(self.with_noise, self.without_noise, self.widths, self.uses, strict=True):
            lines.append(
                f"  R2 on new rows {noisy:.3f} (without noise {exact:.3f}); 90 % intervals of weights {width:.2g} wide; {use}"
            )
        lines.append(
            "Widths are in halves of the range of the target's bounds; where nothing is known, the width is 3.3."
        )
        middle = self.uses[len(self.uses) // 2]
        lines += [
            "",
            f"Use: {middle.capitalize()}, if the signal is moderate. Intervals include the noise and that of sampling.",
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything for programs."""
        content = dataclasses.asdict(self)
        content["plan"] = {"noise_standard_deviations": self.plan.stddevs, "delta": self.plan.delta}
        return content


def dry_run_of_line(
    schema: Schema, *, num_records: int, epsilon: float, delta: float | None = None, seed: int = 0
) -> LineDryRun:
    """Fit noisy moments of invented tables, of which a line explains 90 %, 50 % and 10 %.

    Args:
        schema: The public description, with a target. Features are invented as `dry_run` does.
        num_records: Public number of records.
        epsilon: The budget.
        delta: As in `MomentsPlan.calibrate`.
        seed: Seed of the tables and the noise, neither of which is secret here.

    Raises:
        ValueError: An argument is out of range, or the schema's bounds were taken from data.
    """
    template, rng = template_of(schema), np.random.default_rng(seed)
    number = integer("num_records", num_records)
    width = template.draw(np.random.default_rng(seed), 1)[0].shape[1]
    plan = MomentsPlan.calibrate(epsilon=epsilon, delta=delta, num_features=width, num_records=number)
    found = []
    for place, explained in enumerate((0.9, 0.5, 0.1)):
        x = np.asarray(template.draw(rng, number + _NEW_ROWS)[0], np.float64)
        signal = (x - x.mean(axis=0)) @ rng.standard_normal(width)
        # A target of a standard deviation of a third, so that few are cut at the bounds.
        signal *= math.sqrt(explained) / 3 / max(signal.std(), 1e-9)
        y = np.clip(signal + math.sqrt(1 - explained) / 3 * rng.standard_normal(len(x)), -1, 1)
        old, new = np.s_[:number], np.s_[number:]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UseWarning)
            fit = fit_moments(random.key(3 * seed + place), x[old], y[old], plan)
        ones = np.column_stack([np.ones(len(x)), x])
        exact = np.linalg.lstsq(ones[old], y[old], rcond=None)[0]
        scores = (1 - np.square(y - ones @ line)[new].mean() / y[new].var() for line in (exact, fit.estimate))
        spread = 2 * 1.645 * np.sqrt(np.diag(fit.covariance)[1:]).mean()
        found.append((*map(float, scores), float(spread), fit.statement.use))
    return LineDryRun(plan, *zip(*found, strict=True))


_NEW_ROWS = 2_000
