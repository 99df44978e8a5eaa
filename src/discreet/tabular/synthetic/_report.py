"""The utility of twins as a page of text, as JSON and as a picture."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet._validate import finite_or_none
from discreet.methods.plots import Shares, plot_shares
from discreet.tabular.synthetic._marginals import MarginalDistances

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = "discreet utility report, version 1"
WIDTH = 88
ONE_COLUMN = "shares of one column"
TWO_COLUMNS = "shares of two columns"
ASSOCIATION = "association of two columns"
APART = "twin and real told apart (AUC)"
MEANING = {
    "prediction": "A model was trained on each table and tested on the evaluation rows. Close to the training rows: the twin is "
    "a good substitute for such models. Close to guessing: it is not.",
    ONE_COLUMN: "Half the sum of differences between the shares of a column's levels (total variation), mean over columns: 0 "
    "if the column has the same shares in both tables, 1 if no value is in both.",
    TWO_COLUMNS: "The same for the cells of two-way tables, mean over pairs. Two samples of real rows are not at 0 either: "
    "fewer rows and more cells give larger distances.",
    ASSOCIATION: "Mean absolute difference of Cramér's V (0: independent, 1: one determines the other), over pairs. Large if a "
    "twin has lost an association or invented one.",
    APART: "Trees guess whether a row is real. 0.5: they cannot distinguish the rows; 1: they always can. High "
    "values are common; they matter if the twin must pass for the table, less if single analyses of it must be right.",
}


@dataclasses.dataclass(frozen=True)
class Resemblance:
    """One table against the evaluation rows; **not private** for them.

    Attributes:
        prediction: For each target the scores of a model that was trained on the table, tested on
            the evaluation rows.
        marginals: Distances of one and of two columns' shares.
        association: For each pair of columns, Cramér's V of the table less that of the evaluation
            rows.
        told_apart: AUC of a classifier between the table's rows and the evaluation rows; NaN for
            fewer than ten rows.
    """

    prediction: dict[str, dict[str, float]]
    marginals: MarginalDistances
    association: dict[tuple[str, str], float]
    told_apart: float

    def figures(self) -> dict[str, float]:
        """The four figures of the whole table, by their names; NaN for those of pairs if there is only one column."""
        differences = np.abs(list(self.association.values()))
        return {
            ONE_COLUMN: self.marginals.mean_one_way,
            TWO_COLUMNS: self.marginals.mean_two_way,
            ASSOCIATION: float(differences.mean()) if self.association else math.nan,
            APART: self.told_apart,
        }


@dataclasses.dataclass(frozen=True)
class UtilityReport:
    """The utility of twins as a substitute for a table; made by `utility_report`. **Not private** for the real rows.

    Attributes:
        twins: Each twin against the evaluation rows.
        training: Real training rows against the evaluation rows; None if there were none.
        guessing: For each target the scores of the best prediction that uses no other column.
        models: For each target the kind of model.
        evaluation_rows: Number of real rows compared with the twins.
        training_rows: Number of real training rows.
        twin_rows: Number of rows of each twin.
        shares: For each column the shares of its levels, of the evaluation rows and the mean over
            the twins.
    """

    twins: tuple[Resemblance, ...]
    training: Resemblance | None
    guessing: dict[str, dict[str, float]]
    models: dict[str, str]
    evaluation_rows: int
    training_rows: int
    twin_rows: tuple[int, ...]
    shares: dict[str, Shares] = dataclasses.field(repr=False)

    @property
    def statement_line(self) -> str:
        """The line that a statement should contain about this report: `statement.with_notes(report.statement_line)`.

        If the rows are among those that the statement protects, it is a violation: use
        `with_violations`.
        """
        rows = f"{self.evaluation_rows:,} evaluation rows"
        if self.training_rows:
            rows += f" and {self.training_rows:,} training rows"
        return (
            f"Not private: a report on the twins' utility has exact figures of {rows}, which its user named as non-private. No ε "
            "covers these figures; if people whom this statement protects are among the rows, its guarantee does not hold "
            "towards readers of the report."
        )

    def prediction(self, target: str, score: str) -> tuple[float, float]:
        """Mean over the twins and standard deviation between them (NaN for one twin) of one score.

        Raises:
            KeyError: No such target or score.
        """
        return _mean_and_spread([twin.prediction[target][score] for twin in self.twins])

    def figure(self, name: str) -> tuple[float, float]:
        """Likewise of one of the figures of `Resemblance.figures`."""
        return _mean_and_spread([twin.figures()[name] for twin in self.twins])

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the shares of each column's levels, twins beside evaluation rows; the title says that it is not private.

        Args:
            path: File for the picture, whose ending determines its format; by default it is not
                saved.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        twins = "the twin" if len(self.twins) == 1 else f"mean of {len(self.twins)} twins"
        title = f"NOT PRIVATE for the {self.evaluation_rows:,} evaluation rows: shares of real rows and of twins"
        return plot_shares(self.shares, ("evaluation rows (real)", twins), title=title, path=path)

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and finite numbers; undefined figures are None."""
        tables = {
            "twins": self.twins,
            "training": () if self.training is None else (self.training,),
        }
        mean, spread = (
            {
                "prediction": {
                    t: {s: self.prediction(t, s)[part] for s in x} for t, x in self.guessing.items()
                },
                **{name: self.figure(name)[part] for name in self.twins[0].figures()},
            }
            for part in (0, 1)
        )
        content = {
            "format": FORMAT,
            "is_private": False,
            "not_private": self.statement_line,
            "evaluation_rows": self.evaluation_rows,
            "training_rows": self.training_rows,
            "twin_rows": list(self.twin_rows),
            "models": self.models,
            "meaning": MEANING,
            "guessing": self.guessing,
            "mean": mean,
            "spread": spread,
            **{
                name: [_plain(comparison) for comparison in found] for name, found in tables.items()
            },
        }
        return finite_or_none(content)

    def to_json(self) -> str:
        """`to_dict` as indented JSON that any strict reader accepts."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def __str__(self) -> str:
        return _page(self)


def _page(report: UtilityReport) -> str:
    number = len(report.twins)
    title = f"Utility of {number} twin{'s' * (number > 1)}, NOT PRIVATE for the rows they are compared with"
    wide = max([len("mean absolute error"), *(len(name) for name in report.twins[0].figures())]) + 2
    training = report.training
    heads, plain = (
        f"{'':{wide}}{'twins':>20}{guessing:>12}{'training rows' if training else '':>16}".rstrip()
        for guessing in ("guessing", "")
    )
    parts = [f"{title}\n{'=' * len(title)}", _wrap(report.statement_line)]
    if report.guessing:
        lines = [_wrap(MEANING["prediction"]), "", heads]
        for target, guessed in report.guessing.items():
            lines.append(f"{target} ({report.models[target]})")
            for score, value in guessed.items():
                real = None if training is None else training.prediction[target][score]
                lines.append(
                    _line(f"  {score}", wide, *report.prediction(target, score), value, real)
                )
        parts.append("\n".join(["Prediction", "----------", *lines]))
    lines = [plain]
    for name in report.twins[0].figures():
        real = None if training is None else training.figures()[name]
        lines.append(_line(f"  {name}", wide, *report.figure(name), None, real))
        lines += [_wrap(MEANING[name], "    ")]
    parts.append("\n".join(["The whole table", "---------------", *lines, *_worst(report)]))
    return "\n\n".join(parts) + "\n"


def _worst(report: UtilityReport) -> list[str]:
    """The column and the pair that differ most."""
    columns = {
        name: np.mean([twin.marginals.one_way[name] for twin in report.twins])
        for name in report.shares
    }
    worst = max(columns, key=lambda name: columns[name])
    said = f"Farthest column: {worst} ({columns[worst]:.3f})."
    pairs = {
        pair: np.mean([twin.association[pair] for twin in report.twins])
        for pair in report.twins[0].association
    }
    if pairs:
        lost = max(pairs, key=lambda pair: abs(pairs[pair]))
        said += f" Pair whose association differs most: {lost[0]} and {lost[1]} (Cramér's V {pairs[lost]:+.3f})."
    return [_wrap(said)]


def _line(
    name: str, wide: int, mean: float, spread: float, guessed: float | None, real: float | None
) -> str:
    twins = _show(mean) + (f" ± {_show(spread)}" if math.isfinite(spread) else "")
    return f"{name:{wide}}{twins:>20}{_show(guessed):>12}{_show(real):>16}".rstrip()


def _show(value: float | None) -> str:
    """A figure for the page.

    >>> _show(0.83412), _show(1234.5), _show(None), _show(float("nan"))
    ('0.834', '1,234', '', 'none')
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return "none"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def _mean_and_spread(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _plain(comparison: Resemblance) -> dict[str, Any]:
    def pairs(of: Mapping[tuple[str, str], float]) -> list[Any]:
        return [{"columns": list(pair), "value": value} for pair, value in of.items()]

    return {
        "prediction": comparison.prediction,
        **comparison.figures(),
        "one_way": comparison.marginals.one_way,
        "two_way": pairs(comparison.marginals.two_way),
        "association_difference": pairs(comparison.association),
    }
