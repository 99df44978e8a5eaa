"""Twins against rows that their user names as non-private."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from discreet.models import Levels
from discreet.plots import Shares
from discreet.synthetic import marginal_distances
from discreet.tables import EPOCH, Column, Kind, Missing, Schema
from discreet.utility._association import associations, told_apart
from discreet.utility._predict import guess, model_of, score
from discreet.utility._report import Comparison, UtilityReport
from discreet.utility._tables import Encoded, read

_FEW_SLICES = 8
Tables = tuple[Levels, Levels]


def utility_report(
    twins: Sequence[Any],
    evaluation_table: Any,
    schema: Schema,
    *,
    training_table: Any = None,
    non_private: bool = False,
    most_rows: int = 100_000,
) -> UtilityReport:
    """Say how far twins serve in the place of a table: **not private** for the real rows that are passed.

    Four questions, each answered by the mean over the twins and their spread: how well does a standard model that is trained on
    a twin predict real rows; how far are the shares of single columns and of pairs from the real ones; do columns go
    together as closely; and can a classifier tell a twin's rows from real ones. With `training_table` the same is asked of real
    rows, which no twin can be expected to surpass.

    The target of the schema is what is predicted (logistic regression for categories, ridge for numbers and dates,
    Poisson for counts), by all other columns; without a target, each column in turn.

    Args:
        twins: Tables, or paths of their files.
        evaluation_table: Real rows that are public, or whose figures will not be shown: best rows that no fit has seen.
        schema: The public description of all these tables.
        training_table: Real rows to compare the twins with, under the same condition; those that were fitted, say.
        non_private: Must be True, to say so.
        most_rows: Rows of a table that models are trained and tested on: of more, a random sample. Shares are of all rows.

    Raises:
        ValueError: `non_private` was not set, or no twins.
        DataError: A table does not fit the schema; says which.
    """
    if non_private is not True:
        raise ValueError(
            "The report has exact figures of the evaluation rows, and no epsilon covers them. Pass non_private=True if these "
            "rows are public, or if you will not show the figures."
        )
    if len(twins) == 0:
        raise ValueError("There is no twin to report on: pass at least one, and better five, for their spread.")
    if most_rows < 2:
        raise ValueError(f"most_rows is {most_rows}: models are trained on two rows at least, 100,000 say.")
    names = [str(twin) if isinstance(twin, str | Path) else f"twin {i}" for i, twin in enumerate(twins, start=1)]
    evaluation = read(evaluation_table, schema, "the evaluation rows", most_rows)
    encoded = [read(twin, schema, name, most_rows) for name, twin in zip(names, twins, strict=True)]
    training = None if training_table is None else read(training_table, schema, "the training rows", most_rows)
    public = evaluation.schema
    levels = Levels(public), Levels(public, _FEW_SLICES)
    targets = _targets(schema)
    return UtilityReport(
        twins=tuple(_compare(twin, evaluation, targets, levels) for twin in encoded),
        training=None if training is None else _compare(training, evaluation, targets, levels),
        guessing={column.name: guess(column, evaluation) for column in targets},
        models={column.name: model_of(column) for column in targets},
        evaluation_rows=len(evaluation.table),
        training_rows=0 if training is None else len(training.table),
        twin_rows=tuple(len(twin.table) for twin in encoded),
        shares=_shares(levels[0], evaluation, encoded),
    )


def _targets(schema: Schema) -> list[Column]:
    if schema.target_column is not None:
        return [schema.target_column]
    return list(schema.columns) if len(schema.columns) > 1 else []


def _compare(table: Encoded, evaluation: Encoded, targets: list[Column], levels: Tables) -> Comparison:
    fine, coarse = levels
    ours, theirs = (associations(coarse, _rows(coarse, each)) for each in (table, evaluation))
    return Comparison(
        prediction={column.name: score(column, table, evaluation) for column in targets},
        marginals=marginal_distances(table.table, evaluation.table, table.schema, non_private=True),
        association={pair: ours[pair] - theirs[pair] for pair in ours},
        told_apart=told_apart(_rows(fine, evaluation), _rows(fine, table)),
    )


def _rows(levels: Levels, table: Encoded) -> np.ndarray:
    return levels.encode(table.table, out_of_bounds="clip")


def _shares(levels: Levels, evaluation: Encoded, twins: list[Encoded]) -> dict[str, Shares]:
    real = _single(levels, evaluation)
    twin = np.mean([_single(levels, each) for each in twins], axis=0)
    shares = {}
    for column in levels.schema.columns:
        place = levels.places[column.name]
        labels, axis = _labels(levels, column)
        shares[column.name] = Shares(labels, real[place], twin[place], axis, column.kind.has_bounds)
    return shares


def _single(levels: Levels, table: Encoded) -> Float[np.ndarray, " level"]:
    """The share of each level."""
    rows = _rows(levels, table)
    counts = [np.bincount(rows[:, i], minlength=size) for i, size in enumerate(levels.sizes)]
    return np.concatenate(counts) / len(rows)


def _labels(levels: Levels, column: Column) -> tuple[list[str], str]:
    missing = ["missing"] if column.missing is Missing.INDICATOR else []
    if not column.kind.has_bounds:
        return [*column.categories, *missing], ""
    starts = levels.edges(column)[:-1]
    if column.kind is Kind.DATE:
        return [str(EPOCH + datetime.timedelta(days=int(day))) for day in starts] + missing, "days from"
    form = ",.0f" if column.kind is Kind.COUNT else ",.4g"
    return [f"{start:{form}}" for start in starts] + missing, f"{column.unit or 'values'} from"
