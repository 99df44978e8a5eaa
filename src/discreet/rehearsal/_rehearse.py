"""`rehearse`: invent tables, fit them with and without noise under many settings, propose one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.initialization import init_to_feasible
from numpyro.optim import Adam
from tqdm import tqdm

from discreet.accounting import suggest
from discreet.inference import DPSVI, starting_objective
from discreet.models import MixtureOfProducts
from discreet.plan import PrivacyPlan
from discreet.rehearsal._fits import Fitter
from discreet.rehearsal._grid import Grid, Setting, noise_for, plan_for
from discreet.rehearsal._invent import InventedTable, Inventor, Model, template_of
from discreet.rehearsal._result import CurvePoint, Rehearsal, Row, TableScores
from discreet.rehearsal._score import LOG_DENSITY, ONE_WAY, TWO_WAY, Judge, Scores
from discreet.rehearsal._twins import grid_of_twin, template_of_twin
from discreet.rehearsal._verdict import in_words, judge
from discreet.sampling import FullBatch
from discreet.tables import Schema

STRENGTHS = (0.5, 0.25, 0.1)
STRENGTHS_OF_TWINS = (1.0, 0.5)
CURVE = (0.1, 0.3, 1.0, 3.0, 10.0)
_MOST_CELLS = 2**24
_MOST_HELD_OUT = 4_000
_ROWS_FOR_NORMS = 128
_UNLIMITED_STEPS = 1_000
_UNLIMITED_RATES = (0.02, 0.1)
_QUANTILE = 0.9
_ALIKE = 0.02
"""Settings whose losses differ by less than this share of what there is to learn are taken for equally good."""


def rehearse(
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
) -> Rehearsal:
    """A dry run of `DPSVI` on tables of nobody, to choose its plan: no data, no budget.

    Guarantee: nothing here is computed from records, so the proposal costs no privacy and may be shown. There is no
    argument that a table could be passed as: a schema or shapes say what is public, and arrays are refused.

    Invented are: features, within the schema's bounds and from distributions that are themselves drawn (standard normals
    for shapes); the truth, a draw of the model's prior; the observations, drawn from the model given both. A wide prior
    gives tables that nobody has, such as targets that are all alike or far outside their bounds. So a truth is taken
    whose target keeps to its public bounds and takes several values, and it is drawn towards the prior's middle by a
    factor, the strength: from strong signals to weak ones. Proposed is the setting that loses least log density against
    fits without noise, on average over tables of all strengths; of several that lose about as little (within 2 % of what there
    is to learn), the one with the longest way, steps times learning rate, since a real truth may lie further out than
    invented ones; for a mixture, the one with the best marginals of pairs. What it is said to reach was measured on other
    tables, with other noise.

    Args:
        model: A NumPyro model of (x, y) or (x) as for `DPSVI`; or a `MixtureOfProducts`, which brings its own schema.
        about: The schema of the table, for models that take `discreet.tables.encode`'s arrays; or a shape for each argument.
        num_records: Public number of records, at least 20.
        epsilon: To keep to, above 0.
        delta: To keep to. None: `suggest`'s.
        guide: None: `AutoNormal` started at zero, as `discreet fit` does; the mixture's own for a mixture.
        grid: The settings to try. None: `default_grid(model)`.
        strengths: Of the truths; each gets a table to search on and one to confirm by. None: 0.5, 0.25 and 0.1, for
            mixtures 1 and 0.5.
        epsilons: Where to draw `Rehearsal.curve`. None: 0.1, 0.3, 1, 3 and 10 times epsilon.
        seed: Of all that is random; nothing here is secret.
        progress_bar: Show progress. Ctrl-C ends with the best so far.

    Returns:
        The proposal, its expected scores, all settings tried, and a verdict in words.

    Raises:
        TypeError: Something that is no schema and no shape was passed, such as a table.
        ValueError: A number out of range, or a model that DPSVI refuses or that no table can be drawn from.
        KeyboardInterrupt: Ctrl-C came before the first setting was done.
    """
    _check(num_records, epsilon, delta, strengths, epsilons)
    delta = suggest(num_records=num_records).delta if delta is None else delta
    twin = model if isinstance(model, MixtureOfProducts) else None
    strengths = tuple(strengths or (STRENGTHS if twin is None else STRENGTHS_OF_TWINS))
    stage = _Stage.set(model, about, guide, num_records, seed)
    grid = default_grid(model) if grid is None else grid
    budget = _Budget(epsilon, delta, num_records)
    others = sorted({*(epsilons or (epsilon * factor for factor in CURVE))} - {epsilon})
    # Of each strength two tables, three fits of each without noise; the search; and the proposal at each epsilon.
    fits = len(strengths) * (6 + len(grid.settings(num_records, 1.0)) + 1 + len(others))
    with tqdm(total=fits, disable=not progress_bar, unit="fit", desc="dry run") as bar:
        tables = [_prepared(stage, s, seed + 1 + i, grid, bar.update) for i, s in enumerate(strengths)]
        typical = _typical_norm(stage, tables) if grid.clipping_norms is None else 1.0
        settings = grid.settings(num_records, typical)
        rows, complete = _search(stage, tables, settings, budget, bar.update)
        best = rows[0]
        proposed, curve = best, ()
        if complete:
            try:
                fresh = [_prepared(stage, s, seed + 101 + i, grid, bar.update) for i, s in enumerate(strengths)]
                proposed = _tried(stage, fresh, best.setting, budget, bar.update, fresh=True)
                curve = _curve(stage, fresh, proposed, budget, others, bar.update)
            except KeyboardInterrupt:
                complete = False
    verdict = judge(proposed.tables)
    return Rehearsal(
        plan=plan_for(best.setting, best.noise_multiplier, delta, num_records),
        learning_rate=best.setting.learning_rate,
        epsilon=epsilon,
        proposed=proposed,
        rows=tuple(rows),
        curve=curve,
        verdict=verdict,
        why=in_words(verdict, proposed, curve, epsilon, stage.num_parameters),
        complete=complete,
    )


def default_grid(model: Model | MixtureOfProducts) -> Grid:
    """The settings that are tried where nobody says which: others for mixtures, which have many more parameters."""
    return grid_of_twin(model) if isinstance(model, MixtureOfProducts) else Grid()


def _check(
    num_records: int,
    epsilon: float,
    delta: float | None,
    strengths: Sequence[float] | None,
    epsilons: Sequence[float] | None,
) -> None:
    if isinstance(num_records, bool) or not isinstance(num_records, int) or num_records < 20:
        raise ValueError(
            f"num_records is {num_records!r}; it is the public number of records, a whole number of at least 20: of fewer, "
            "nothing can be learnt under privacy"
        )
    if delta is not None and (not isinstance(delta, float) or not 0 < delta < 1):
        raise ValueError(
            f"delta is {delta!r}; it is a probability above 0 and well below 1 / num_records, such as 1e-6"
        )
    for name, values in (("epsilon", (epsilon,)), ("epsilons", epsilons or ()), ("strengths", strengths or ())):
        for value in values:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and 0 < value < math.inf):
                raise ValueError(f"{name} is or holds {value!r}; give finite numbers above 0, such as 1.0")


@dataclasses.dataclass(frozen=True)
class _Budget:
    epsilon: float
    delta: float
    num_records: int

    def noise(self, setting: Setting, epsilon: float | None = None) -> float:
        epsilon = self.epsilon if epsilon is None else epsilon
        return noise_for(epsilon, self.delta, self.num_records, setting.num_steps, setting.rate)


@dataclasses.dataclass(frozen=True)
class _Stage:
    """What all tables share."""

    inventor: Inventor
    fitter: Fitter
    judge: Judge
    num_records: int
    num_rows: int
    num_held_out: int

    @property
    def num_parameters(self) -> int:
        """Number of the latents' coordinates, in each of which a step has noise."""
        u, _ = jax.eval_shape(self.fitter.objective.link, self.fitter.start, jax.random.key(0))
        return sum(math.prod(x.shape) for x in jax.tree.leaves(u))

    @classmethod
    def set(
        cls, model: Model | MixtureOfProducts, about: Any, guide: Model | None, num_records: int, seed: int
    ) -> _Stage:
        """Trace the model, and find what DPSVI would fit."""
        placeholder = None
        if isinstance(model, MixtureOfProducts):
            if about is not None:
                raise ValueError("A MixtureOfProducts brings its own schema: leave about out")
            twin, template = model, template_of_twin(model)
            function, guide, placeholder = twin.model, guide or twin.guide(), twin.placeholder
        else:
            twin, template, function = None, template_of(() if about is None else about), model
            guide = AutoNormal(model, init_loc_fn=init_to_feasible) if guide is None else guide
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
        judge = Judge.of(objective, dict(inventor.observed), twin, start, example)
        return cls(inventor, Fitter(objective, start, num_records, twin), judge, num_records, num_rows, held_out)


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """An invented table with what fits without noise make of it."""

    table: InventedTable
    non_private: Scores
    blind: Scores
    parameters: Any
    seed: int


def _prepared(stage: _Stage, strength: float, seed: int, grid: Grid, done: Callable[[], Any]) -> _Prepared:
    table, key = stage.inventor.table(strength, stage.num_rows, stage.num_held_out, seed), jax.random.key(seed)
    rate, steps = max(grid.rates_for(stage.num_records)), max(_UNLIMITED_STEPS, 2 * max(grid.steps))
    best: tuple[Scores, Any] | None = None
    for learning_rate in _UNLIMITED_RATES:
        psi = stage.fitter.fit_without_noise(table.rows, steps, rate, learning_rate, key)
        scores = stage.judge(psi, table)
        if best is None or not best[0][LOG_DENSITY] >= scores[LOG_DENSITY]:
            best = scores, psi
        done()
    assert best is not None
    blind = stage.fitter.start
    if (answer := _answer(stage)) is not None:
        # The same target in another order: what can be known without the relation.
        rows = [np.roll(x, len(x) // 2, axis=0) if i == answer else x for i, x in enumerate(table.rows)]
        blind = stage.fitter.fit_without_noise(rows, steps, rate, _UNLIMITED_RATES[0], key)
    done()
    return _Prepared(table, best[0], stage.judge(blind, table), best[1], seed)


def _answer(stage: _Stage) -> int | None:
    """The argument that the model explains by others; None where it explains all of them."""
    places = set(stage.inventor.observed.values())
    return next(iter(places)) if len(places) == 1 and len(stage.inventor.template.limits) > 1 else None


def _typical_norm(stage: _Stage, tables: Sequence[_Prepared]) -> float:
    lengths = [
        stage.fitter.lengths([x[:_ROWS_FOR_NORMS] for x in t.table.rows], jax.random.key(t.seed)) for t in tables
    ]
    typical = float(np.quantile(np.concatenate([np.asarray(x) for x in lengths]), _QUANTILE))
    if not (math.isfinite(typical) and typical > 0):
        raise ValueError(
            f"The gradients of invented records have typical length {typical:g} at the start, so no clipping norm suits them. "
            "Narrow the model's priors, or pass clipping norms of your own, Grid(clipping_norms=...)."
        )
    return typical


def _search(
    stage: _Stage,
    tables: Sequence[_Prepared],
    settings: Sequence[Setting],
    budget: _Budget,
    done: Callable[[], Any],
) -> tuple[list[Row], bool]:
    """All settings, best first, and whether all were tried."""
    rows: list[Row] = []
    # Those with the most steps last: they take longest.
    for setting in sorted(settings, key=lambda s: s.num_steps * s.rate):
        try:
            rows.append(_tried(stage, tables, setting, budget, done))
        except KeyboardInterrupt:
            if not rows:
                raise
            return _ranked(rows), False
    rows = _ranked(rows)
    if not math.isfinite(rows[0].lost):
        raise ValueError(
            "No setting gave a finite fit of the invented tables: try smaller learning rates, or narrower priors."
        )
    return rows, True


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """By loss; but first, of those about as good as the best, the one that is better where the log density says little.

    For a twin that is the one with the best marginals: rare levels, which the clipping of the others' gradients hides, count
    for little in the log density. Else it is the one that can carry parameters furthest: a real truth may lie further from
    the middle of the prior than invented ones, and steps that are too few or too small never get there.
    """
    ranked = sorted(rows, key=lambda row: row.lost)
    learnable = float(np.mean([table.non_private_gain for table in ranked[0].tables]))
    alike = [row for row in ranked if row.lost <= ranked[0].lost + _ALIKE * max(0.0, learnable)] or ranked
    marginals = next((name for name in (TWO_WAY, ONE_WAY) if name in ranked[0].tables[0].private), None)
    if marginals is None:
        first = max(alike, key=lambda row: row.setting.num_steps * row.setting.learning_rate)
    else:
        first = min(alike, key=lambda row: row.mean(marginals))
    return [first, *(row for row in ranked if row is not first)]


def _tried(
    stage: _Stage,
    tables: Sequence[_Prepared],
    setting: Setting,
    budget: _Budget,
    done: Callable[[], Any],
    *,
    fresh: bool = False,
    epsilon: float | None = None,
) -> Row:
    noise_multiplier = budget.noise(setting, epsilon)
    scores = []
    for prepared in tables:
        key = jax.random.fold_in(jax.random.key(prepared.seed), 1)
        psi = stage.fitter.fit(prepared.table.rows, setting, noise_multiplier, key)
        width = stage.judge.width(psi, prepared.parameters) if fresh else math.nan
        private = stage.judge(psi, prepared.table)
        scores.append(TableScores(prepared.table.strength, private, prepared.non_private, prepared.blind, width=width))
        done()
    ratios = [stage.fitter.signal_to_noise(p.table.rows, setting, noise_multiplier) for p in tables] if fresh else []
    return Row(setting, noise_multiplier, float(np.median(ratios)) if ratios else math.nan, tuple(scores))


def _curve(
    stage: _Stage,
    tables: Sequence[_Prepared],
    row: Row,
    budget: _Budget,
    others: Sequence[float],
    done: Callable[[], Any],
) -> tuple[CurvePoint, ...]:
    """The proposed setting at its own epsilon and at others, as far as any noise keeps to them."""
    points = [CurvePoint(budget.epsilon, row.tables)]
    for epsilon in others:
        try:
            budget.noise(row.setting, epsilon)
        except ValueError:
            continue
        points.append(CurvePoint(epsilon, _tried(stage, tables, row.setting, budget, done, epsilon=epsilon).tables))
    return tuple(sorted(points, key=lambda point: point.epsilon))
