"""A table's cells, checked against the schema column by column; what is wrong is said without showing any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from discreet.tables import ZERO_OR_ONE, Column, DataError, Kind, Missing, Schema

# How tables write 0 and 1 besides "0" and "1".
_OTHER_WRITINGS = {"0.0": 0, "1.0": 1, "false": 0, "true": 1, "False": 0, "True": 1}


def check_table(table: Any, schema: Schema, out_of_bounds: str) -> None:
    """Refuse an unknown rule, and a table in which a person has several rows."""
    if out_of_bounds not in ("refuse", "clip"):
        raise ValueError(f'out_of_bounds is {out_of_bounds!r}; it must be "refuse" or "clip".')
    if schema.person is None:
        return
    people = _chunked(table, schema.person)
    if people.null_count or len(people.unique()) < len(people):
        raise DataError(
            f"column '{schema.person}' says whose a row is, and a plan protects one row of a person: keep one of each, "
            f"table.filter(discreet.tables.keep_one_row_a_person(table['{schema.person}']))"
        )


def cells_of(table: Any, column: Column) -> tuple[Any, np.ndarray]:
    """The column as Arrow's chunked array, and which of its cells are missing."""
    cells = _chunked(table, column.name)
    missing = cells.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    if column.missing is Missing.REFUSE and missing.any():
        raise DataError(
            f"column '{column.name}' has missing cells: fill them in by a rule that does not look at other people's "
            'rows, or set missing = "indicator" for it in the schema'
        )
    return cells, missing


def _chunked(table: Any, name: str) -> Any:
    import pyarrow

    try:
        cells = table[name]
    except (KeyError, IndexError, ValueError):
        raise DataError(f"the table has no column '{name}': correct its name, or leave it out of the schema") from None
    if isinstance(cells, pyarrow.ChunkedArray):
        return cells
    try:
        return pyarrow.chunked_array([pyarrow.array(cells, from_pandas=True)])
    except pyarrow.ArrowException:
        raise DataError(
            f"column '{name}' holds cells of different types: make them all texts, or all numbers"
        ) from None


def numbers_of(column: Column, cells: Any, missing: np.ndarray, out_of_bounds: str) -> np.ndarray:
    """Float64 numbers within the column's bounds, days for a date; the lower bound where missing."""
    import pyarrow

    low, high = column.limits
    try:
        if column.kind is Kind.DATE:
            cells = cells.cast(pyarrow.date32()).cast(pyarrow.int32())
        values = cells.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
    except pyarrow.ArrowException:
        what = "date" if column.kind is Kind.DATE else "number"
        raise DataError(f"column '{column.name}' holds something that is no {what}: mend it first") from None
    values = np.where(missing, low, values)
    if out_of_bounds == "clip":
        values = np.clip(values, low, high)
    elif (values < low).any() or (values > high).any():
        raise DataError(
            f"column '{column.name}' has values outside its public bounds {column.rule()}: widen the bounds if they "
            'were wrong, or pass out_of_bounds="clip"'
        )
    if column.kind is Kind.COUNT and (values != np.floor(values)).any():
        raise DataError(f"column '{column.name}' has values that are not whole: describe it as real, not as a count")
    return values


def positions_of(column: Column, cells: Any) -> np.ndarray:
    """Each cell's place among the categories; -1 for missing cells."""
    import pyarrow

    place: Mapping[str, int] = {category: position for position, category in enumerate(column.categories)}
    if column.categories == ZERO_OR_ONE:
        place = {**_OTHER_WRITINGS, **place}
    named = cells.cast(pyarrow.string()).combine_chunks().dictionary_encode()
    known = np.array([place.get(text, -2) for text in named.dictionary.to_pylist()], np.int64)
    positions = np.full(len(named), -1)
    positions[named.is_valid().to_numpy(zero_copy_only=False)] = known[named.indices.drop_null().to_numpy()]
    if (positions == -2).any():
        raise DataError(
            f"column '{column.name}' has values outside its public categories {', '.join(column.categories)}: list all that "
            "can occur (they are not shown here, since they are in the private table)"
        )
    return positions


def stacked(columns: Sequence[np.ndarray]) -> np.ndarray:
    """The columns side by side.

    Raises:
        DataError: They have different lengths, or no rows.
    """
    if len({len(column) for column in columns}) > 1:
        raise DataError("the columns have different lengths: each must have one cell a record")
    if len(columns[0]) == 0:
        raise DataError("the table has no rows: there is nothing to fit")
    return np.stack(columns, axis=1)
