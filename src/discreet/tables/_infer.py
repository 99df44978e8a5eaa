"""Bounds and categories taken from the data. Not private; every name says so."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pyarrow.types

from discreet.tables._read import DAMAGED, column_names, existing_file, unreadable
from discreet.tables._schema import DEFAULT_MISSING_VALUES, Column, DataError, Kind, Schema

MANY_CATEGORIES = 100


def infer_columns_non_private(
    path: Path | str,
    schema: Schema | None,
    *,
    target: str | None = None,
    target_kind: Kind | None = None,
    columns: Sequence[str] | None = None,
) -> Schema:
    """Describe the columns that the schema leaves out, by looking at the data.

    NOT PRIVATE: a smallest or largest value is one person's value, and a rare category may be one person's. No (ε, δ)
    holds for anything that depends on the result. The returned schema names these columns in `inferred`.

    Args:
        path: The file.
        schema: What is publicly known already; None for nothing.
        target: Name of the column to explain, if the schema does not say.
        target_kind: The kind that the model needs of it.
        columns: Names of the columns to use; None for all in the file.

    Raises:
        DataError: A file that cannot be read, a column with one value only, or texts of too many kinds to be categories.
    """
    path = existing_file(path)
    names = list(columns) if columns is not None else column_names(path)
    known = {column.name: column for column in schema.columns} if schema else {}
    try:
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path)
        elif path.suffix in (".arrow", ".feather"):
            table = pyarrow.feather.read_table(path)
        else:
            missing = list(schema.missing_values if schema else DEFAULT_MISSING_VALUES)
            options = pyarrow.csv.ConvertOptions(null_values=missing, strings_can_be_null=True)
            table = pyarrow.csv.read_csv(path, convert_options=options)
    except DAMAGED as error:
        raise unreadable(path, error) from None
    person = schema.person if schema else None
    looked_at = [name for name in names if name not in known and name != person]
    for name in looked_at:
        known[name] = _look(name, table.column(name), target_kind if name == target else None)
    described = Schema(
        columns=tuple(known.values()),
        target=target or (schema.target if schema else None),
        missing_values=schema.missing_values if schema else DEFAULT_MISSING_VALUES,
        person=schema.person if schema else None,
    )
    return dataclasses.replace(described, inferred=(*(schema.inferred if schema else ()), *looked_at))


def _look(name: str, values: pyarrow.ChunkedArray, kind: Kind | None) -> Column:
    number = pyarrow.types.is_integer(values.type) or pyarrow.types.is_floating(values.type)
    number, date = number and kind is not Kind.BINARY, pyarrow.types.is_date(values.type)
    if number:
        numbers = values.drop_null().to_numpy().astype(np.float64)
        found = np.unique(numbers[np.isfinite(numbers)]).tolist()
    else:
        found = values.cast(pyarrow.date32() if date else pyarrow.string()).drop_null().unique().to_pylist()
    if len(found) < 2:
        raise DataError(f"column '{name}' has fewer than two different values: leave it out")
    if number:
        bounds = (0.0 if kind is Kind.COUNT else min(found), max(found))
        return Column(name=name, kind=kind or Kind.REAL, bounds=bounds)
    if date:
        return Column(name=name, kind=Kind.DATE, bounds=(min(found), max(found)))
    if len(found) > MANY_CATEGORIES:
        raise DataError(
            f"column '{name}' holds texts of more than {MANY_CATEGORIES} kinds: describe it, or leave it out"
        )
    return Column(name=name, kind=Kind.BINARY if len(found) == 2 else Kind.CATEGORICAL, categories=tuple(sorted(found)))
