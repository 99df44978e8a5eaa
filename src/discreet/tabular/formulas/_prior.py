"""What a formula's model expects before any record is seen: draws from its prior, which cost nothing.

A prior on coefficients says little by itself; what it says of the target shows whether it is
sensible. Features are spread evenly over their public bounds and categories, as in the design's
template.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import PRNGKeyArray
from numpyro.infer import Predictive

from discreet._validate import RefusedError, integer
from discreet.methods.choose import LINE
from discreet.privacy import random
from discreet.tabular.formulas._design import Design
from discreet.tabular.formulas._model import in_units, model_of, outcomes_of, placeholder
from discreet.tabular.formulas._regress import in_closed_form
from discreet.tabular.formulas._result import Named, OfFormula
from discreet.tabular.tables import Kind, Schema

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 20
_TABLES = 60


@dataclasses.dataclass(frozen=True, repr=False)
class Prior(OfFormula):
    """Draws from the prior of a formula's model. Public: no record is used, and nothing is spent.

    `predict` and `marginal_effect` are as those of a result.

    Attributes:
        formula: The formula.
        family: Name of the family.
        schema: The description of its columns.
        constants: Public values of names in the formula that are no columns.
        draws: Draws of each coefficient and other latent, (draw,).
    """

    formula: str
    family: str
    schema: Schema
    constants: Mapping[str, Any]
    draws: Named

    @property
    def predictive(self) -> Named:
        """The draws."""
        return self.draws

    def __repr__(self) -> str:
        """Short, without numbers."""
        return f"Prior({self.formula!r}, {self.family!r})"

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the target's shares in tables drawn from the prior, as ArviZ's `plot_ppc` of the group "prior".

        Numbers beyond the target's bounds count in the first and the last bin.

        Args:
            path: File for the picture, whose ending determines its format. None: it is not saved.

        Returns:
            The matplotlib figure.

        Raises:
            ValueError: The target is a number of successes, a time, or of a hurdle: look at
                `marginal_effect`.
            ImportError: Matplotlib is not installed.
        """
        from discreet.methods.plots import plot_replicates

        design = self.design
        # Draws of a hurdle are repeated until one is above 0, which takes long for the small means
        # that a prior allows.
        if design.family.beside or design.family.hurdle:
            raise RefusedError(
                f"The family {self.family} has no draws of new targets: `marginal_effect(column).plot()` shows what the prior "
                "says of their means."
            )
        first = {name: value[:_TABLES] for name, value in self.draws.items()}
        outcomes = outcomes_of(design, design.even_rows(), first, random.key())
        column = design.target
        if column.bounds is None:
            labels = column.categories
            levels = outcomes.astype(int)
        else:
            low, high = column.limits
            if column.kind is Kind.COUNT:
                edges = np.unique(np.linspace(low, high + 1, _BINS + 1).round())
                ends = zip(edges[:-1], edges[1:] - 1, strict=True)
                labels = tuple(f"{a:g}" if a == b else f"{a:g} to {b:g}" for a, b in ends)
            else:
                edges = np.linspace(low, high, _BINS + 1)
                labels = tuple(f"{middle:.3g}" for middle in (edges[1:] + edges[:-1]) / 2)
            levels = np.searchsorted(edges, outcomes, side="right") - 1
            levels = np.clip(levels, 0, len(labels) - 1)
        shares = np.stack([np.bincount(each, minlength=len(labels)) / len(each) for each in levels])
        return plot_replicates(
            labels,
            None,
            shares,
            axis=column.name,
            title=f"The prior of {self.formula}, before any record",
            path=path,
        )


def prior(
    formula: str,
    schema: Schema,
    *,
    family: str = "gaussian",
    constants: Mapping[str, Any] | None = None,
    num_draws: int = 1_000,
    rng_key: PRNGKeyArray | None = None,
) -> Prior:
    """Draw from the prior of `regress(formula, ..., schema, family=family)`, before anything is spent.

    Where private Newton fits (`fit_newton`), a weight's prior follows from the spread of its
    column, which the fit releases; here it is that of a column that is spread evenly within its
    bounds.

    Args:
        formula: As in `regress`, as are the next three.
        schema: As above.
        family: As above.
        constants: As above.
        num_draws: Number of draws.
        rng_key: Any JAX key; None: a new one.

    Returns:
        The draws: `plot()` shows targets, `marginal_effect(column).plot()` means along a column.

    Raises:
        ValueError: What `regress` refuses of the formula.

    >>> from discreet.tabular.tables import schema_from_bounds
    >>> schema = schema_from_bounds("ill=no|yes,age=20:60")
    >>> effect = prior("ill ~ age", schema, family="bernoulli").marginal_effect("age")
    >>> bool((effect.low < 0.1).all() and (effect.high > 0.9).all())
    True
    """
    design = Design(formula, schema, family, constants)
    key = random.as_threefry(random.key() if rng_key is None else random.check_key(rng_key))
    drawn: Any = Predictive(
        model_of(design, whole=True), num_samples=integer("num_draws", num_draws)
    )(key, placeholder(design))
    latents = {name: np.asarray(value, np.float64) for name, value in drawn.items() if name != "y"}
    if in_closed_form(design) and design.family.closed != LINE:
        columns = design.fitted_columns(design.even_rows().x)
        spread = np.where(design.levels, 1.0, columns.std(axis=0))
        latents["weights"] = latents["weights"] / (
            spread if design.family.num_classes is None else spread[:, None]
        )
        # The intercept is that at the features' mean.
        latents["intercept"] = latents["intercept"] - np.tensordot(
            columns.mean(axis=0), latents["weights"], (0, 1)
        )
    draws = in_units(design, latents)
    return Prior(formula, family, design.schema, dict(design.formula.constants), draws)
