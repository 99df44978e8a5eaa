"""The result of a regression by a formula: its table, draws by the formula's names, predictions and effects."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy.special import logsumexp

from discreet._validate import ENDS, RefusedError, choice, integer, near
from discreet.methods.moments import MomentsPlan
from discreet.methods.newton import ModelPlan, NewtonPlan, OfDraws, picked
from discreet.methods.plots import new_figure, plot_posterior, save, tidy
from discreet.methods.predict import Predictions
from discreet.privacy import random
from discreet.privacy.released import Released
from discreet.privacy.report import Statement
from discreet.tabular.formulas._design import Design, Rows
from discreet.tabular.formulas._model import log_density_of_rows, mean_of, outcomes_of
from discreet.tabular.tables import EPOCH, PARTS_OF_SCHEMA, Kind, Schema

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Named = Mapping[str, Float[np.ndarray, " draw"]]
NUM_DRAWS = 2_000
_DRAWS = 1_000
_AT_ONCE = 2**21


@dataclasses.dataclass(frozen=True)
class Effect:
    """The mean of the target along one column, others being held; a function of the posterior, at no cost.

    Attributes:
        column: The column.
        values: Numbers within its bounds, or its categories.
        mean: (value,), of categories their probabilities, (value, category).
        low: The lower end of its 90 % interval.
        high: The upper end.
        target: The target's name.
        categories: Of a categorical target.
        held: Values of the other columns.
    """

    column: str
    values: tuple[Any, ...]
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    target: str
    categories: tuple[str, ...]
    held: Mapping[str, Any]

    def __str__(self) -> str:
        """A table of means and intervals."""
        rows = []
        for place, value in enumerate(self.values):
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            for which, name in enumerate(self.categories or ("",)):
                at = (place, which) if self.categories else place
                label = f"{shown} {name}".strip()
                rows.append(
                    f"{label:24}  {self.mean[at]:>10.4g}  {self.low[at]:.4g} to {self.high[at]:.4g}"
                )
        held = self._held
        return "\n".join(
            [
                f"{self.column:24}  {'mean':>10}  90 % interval",
                *rows,
                *([f"at {held}"] if held else []),
            ]
        )

    @property
    def _held(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.held.items())

    def plot(self, path: str | Path | None = None, *, axes: Any = None) -> Figure:
        """Draw means and intervals, with the values at which the others are held above.

        Args:
            path: File for the picture, whose ending determines its format. None: it is not saved.
            axes: Matplotlib axes to draw in; None: those of a new figure.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        if axes is None:
            axes = new_figure(5, 3.5).subplots()
        number = len(self.categories) or 1
        for which, name in enumerate(self.categories or (None,)):
            at = (slice(None), which) if self.categories else slice(None)
            if isinstance(self.values[0], float | datetime.date):
                (line,) = axes.plot(self.values, self.mean[at], label=name)
                axes.fill_between(
                    self.values, self.low[at], self.high[at], alpha=0.2, color=line.get_color()
                )
            else:
                places = np.arange(len(self.values))
                beside = (which - (number - 1) / 2) * 0.7 / number
                errors = [self.mean[at] - self.low[at], self.high[at] - self.mean[at]]
                axes.errorbar(places + beside, self.mean[at], errors, fmt="o", label=name)
                axes.set_xticks(places, list(self.values))
        if self.categories:
            axes.legend(
                title=self.target, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5)
            )
        axes.set(
            xlabel=self.column,
            ylabel=f"mean of {self.target}" if not self.categories else "probability",
        )
        # The mean is of these, and not of the table.
        title = f"90 % intervals{f', at {self._held}' if self.held else ''}"
        axes.set_title(title, fontsize="small", wrap=True)
        tidy(axes)
        return save(axes.figure, path)


class OfFormula:
    """Predictions and effects by draws of a formula's coefficients."""

    formula: str
    family: str
    schema: Schema
    constants: Mapping[str, Any]
    draws: Named
    predictive: Named

    @property
    def design(self) -> Design:
        """The public design, made again from formula and schema."""
        found = self.__dict__.get("_design")
        if found is None:
            found = Design(self.formula, self.schema, self.family, self.constants)
            object.__setattr__(self, "_design", found)
        return found

    def predict(
        self,
        table: Any,
        *,
        key: PRNGKeyArray | None = None,
        num_samples: int = _DRAWS,
        out_of_bounds: str = "refuse",
    ) -> Predictions:
        """Predict the rows of a table. Costs nothing, and a row's predictions depend on that row alone.

        Args:
            table: Columns of the formula's right side by name, in any table that the schema
                describes.
            key: Any JAX key, for the draws; None: a new one.
            num_samples: Number of draws.
            out_of_bounds: "refuse", or "clip": a number outside its bounds moves to the nearer one.

        Returns:
            Draws of each row's mean, of categories their probabilities, and of a new target, in the
            target's unit; these are NaN for numbers of successes and for times. `estimate` is of
            draws that are shrunk where the noise hides a coefficient. All are NaN for rows that the
            schema drops, as nothing is known of these.

        Raises:
            DataError: A cell that the schema does not allow.
        """
        design = self.design
        rows = design.rows(table, out_of_bounds=out_of_bounds, with_target=False)
        of_draws, of_outcomes = jax.random.split(
            random.key() if key is None else random.check_key(key)
        )
        draws = picked(self.draws, of_draws, num_samples)
        estimate, mean = self._means_of(rows, draws)
        outcomes = outcomes_of(design, rows, draws, of_outcomes)
        outcomes[:, ~rows.present] = np.nan
        return Predictions(estimate, mean, outcomes)

    def _means_of(self, rows: Rows, draws: Named) -> tuple[np.ndarray, np.ndarray]:
        """Each row's mean, by the draws to predict with, and for each of `draws`; NaN for rows that the schema drops."""
        design = self.design
        held = len(next(iter(self.predictive.values())))
        size = max(
            1,
            _AT_ONCE // (held * max(design.family.num_classes or 1, len(design.target.categories))),
        )
        starts = range(0, len(rows.x), size)
        best = [
            mean_of(design, rows[at : at + size], self.predictive).mean(axis=0) for at in starts
        ]
        estimate = np.concatenate(best)
        mean = mean_of(design, rows, draws)
        estimate[~rows.present] = np.nan
        mean[:, ~rows.present] = np.nan
        return estimate, mean

    def marginal_effect(
        self, column: str, *, at: Mapping[str, Any] | None = None, num_values: int = 25
    ) -> Effect:
        """Compute the mean of the target along a column, the others being held; at no cost.

        Numbers are held at the middle of their bounds, and categories at the first one, unless `at`
        says otherwise. Effects of groups are 0, the population's, unless a column of the grouping is
        `column` or in `at`, as in brms.

        Args:
            column: A column of the formula's right side.
            at: Values of others, by name.
            num_values: Numbers within the bounds, evenly from the first to the last.

        Raises:
            ValueError: Another column, or a value that the schema does not allow.
        """
        design = self.design
        described = {x.name: x for x in design.schema.columns if x.name in design.formula.names}
        choice("column", column, described)
        for name in at or {}:
            if name not in described or name == column:
                meant = near(name, described)
                raise RefusedError(
                    f"at has {name!r}, which is not held{f': {meant}' if meant else ''}."
                )
        values = _values(described[column], integer("num_values", num_values, least=2))
        held = {name: _usual(x) for name, x in described.items() if name != column} | dict(at or {})
        table = {column: values} | {name: [value] * len(values) for name, value in held.items()}
        rows = design.rows(table, out_of_bounds="refuse", with_target=False)
        asked = {column, *(at or {})}
        varying = zip(rows.varying, design.groupings, strict=True)
        rows = dataclasses.replace(
            rows, varying=tuple(x * bool(asked & {*grouping.columns}) for x, grouping in varying)
        )
        common = {name for term in design.formula.terms.common_terms for name in term.var_names}
        held = {name: value for name, value in held.items() if name in common | asked}
        estimate, mean = self._means_of(rows, picked(self.draws, random.key(), _DRAWS))
        low, high = np.quantile(mean, ENDS, axis=0)
        many = estimate.ndim == 2
        return Effect(
            column=column,
            values=tuple(values),
            mean=estimate,
            low=np.minimum(low, estimate),
            high=np.maximum(high, estimate),
            target=self.schema.target or "",
            categories=design.target.categories if many else (),
            held=held,
        )


def _parts() -> tuple[type, ...]:
    return (ModelPlan, NewtonPlan, MomentsPlan, *PARTS_OF_SCHEMA)


@dataclasses.dataclass(frozen=True, repr=False)
class Regression(OfFormula, OfDraws, Released, what="regression by a formula", parts=_parts):
    """The posterior of a regression by a formula: privacy noise and sampling noise are both in it.

    Everything in it is covered by `statement`. Names are those of the formula, numbers in the units
    of its columns.

    Attributes:
        formula: The formula.
        family: Name of the family.
        schema: The description of its columns.
        constants: Public values of names in the formula that are no columns.
        draws: Draws of each coefficient and other latent, (draw,). Intervals come from them.
        predictive: Draws to predict with, likewise: shrunk where the noise hides a coefficient.
        learned: For each the share of the prior's variance that is gone; where it is small, the
            prior decides.
        plan: The plan of the fit.
        statement: The privacy statement.
    """

    formula: str
    family: str
    schema: Schema
    constants: Mapping[str, Any]
    draws: Named
    predictive: Named
    learned: Mapping[str, float]
    plan: Any
    statement: Statement

    def plot(self, path: str | Path | None = None, **options: Any) -> Figure:
        """Draw the posterior, as `discreet.plots.plot_posterior` does: the effects of a grouping in one panel.

        Args:
            path: File for the picture; by default it is not saved.
            options: As there.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        panels: dict[str, dict[str, np.ndarray]] = {}
        for name, value in self.draws.items():
            of = name.partition("[")[0]
            panels.setdefault(of if "|" in of else name, {})[name] = value
        return plot_posterior(panels, statement=self.statement, path=path, **options)

    def log_density(self, table: Any) -> Float[np.ndarray, " row"]:
        """The log of the mean density, over draws to predict with, of each row's known target. Not private.

        Args:
            table: The formula's columns by name, with the target.

        Returns:
            One number a row, in nats; 0 of rows that the schema drops.
        """
        design = self.design
        rows = design.rows(table)
        held = len(next(iter(self.predictive.values())))
        size = max(
            1,
            _AT_ONCE // (held * max(design.family.num_classes or 1, len(design.target.categories))),
        )
        found = [np.empty(0)]
        for start in range(0, len(rows.x), size):
            densities = log_density_of_rows(design, rows[start : start + size], self.predictive)
            found.append(logsumexp(densities, axis=0) - np.log(held))
        return np.concatenate(found)


def _values(column: Any, size: int) -> list[Any]:
    if column.bounds is None:
        return list(column.categories)
    low, high = column.limits
    numbers = np.linspace(low, high, size)
    if column.kind is Kind.REAL:
        return numbers.tolist()
    whole = sorted(set(np.rint(numbers).tolist()))
    return [_day(x) for x in whole] if column.kind is Kind.DATE else whole


def _usual(column: Any) -> Any:
    if column.bounds is None:
        return column.categories[0]
    middle = sum(column.limits) / 2
    if column.kind is Kind.REAL:
        return middle
    return _day(middle) if column.kind is Kind.DATE else float(np.rint(middle))


def _day(number: float) -> datetime.date:
    return EPOCH + datetime.timedelta(int(number))
