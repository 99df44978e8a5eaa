"""Arrays to a table with the schema's columns, types and bounds: the inverse of `_encode`.

Arrays that no table encodes to, such as draws of a model, become the nearest table. So a synthetic
twin has no cell that the schema forbids.
"""

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.types

from discreet.tabular.tables._cells import to_steps
from discreet.tabular.tables._encode import Layout
from discreet.tabular.tables._schema import Column, Kind, Missing, Schema


def decode(
    x: npt.ArrayLike, schema: Schema, y: npt.ArrayLike | None = None, *, raw: bool = False
) -> pyarrow.Table:
    """A table with the schema's columns, types, bounds and categories, from arrays as `encode` gives them.

    Arrays that are not an encoding, say the draws of a model, become the nearest table: numbers are
    clipped to their bounds, counts and dates are rounded, and a categorical cell is the category
    with the largest number.

    Args:
        x: Records by features, in the order of the names that `encode` gives.
        schema: The public description.
        y: One entry a record; needed if and only if the schema has a target.
        raw: True if the arrays are in the columns' own units, as `encode(raw=True)` gives them,
            with NaN for a missing cell.

    Returns:
        Real columns as 64-bit floats, counts as 64-bit integers, dates as days, categories as
        texts; a missing cell is null.

    Raises:
        ValueError: Arrays of other shapes, or a number that is not finite.

    >>> from discreet.tabular.tables import schema_from_bounds
    >>> decode([[0.0, 1.0], [1.0, 0.0]], schema_from_bounds("age=20:60,smoker=no|yes")).to_pylist()
    [{'age': 40.0, 'smoker': 'yes'}, {'age': 60.0, 'smoker': 'no'}]
    """
    layout = Layout(schema, raw)
    x = np.asarray(x, np.float64)
    if x.ndim != 2 or x.shape[1] != len(layout.feature_names):
        raise ValueError(
            f"x has the shape {x.shape}: the schema's records have {len(layout.feature_names)} features"
        )
    if (y is None) != (schema.target is None):
        raise ValueError(
            f"the schema has {'no' if y is not None else 'a'} target: give y if and only if it has one"
        )
    columns = {}
    first = 0
    for column in schema.features:
        last = first + len(layout.names(column))
        columns[column.name] = _column(column, x[:, first:last], raw)
        first = last
    target = schema.target_column
    if target is not None:
        values = np.asarray(y, np.float64)
        if values.shape != x.shape[:1]:
            raise ValueError(
                f"y has the shape {values.shape}: give one entry for each of the {len(x)} records"
            )
        centre, scale = layout.target_scaling
        columns[target.name] = cells_of(target, values * scale + centre)
    return pyarrow.table(
        {column.name: columns[column.name] for column in schema.columns if column.name in columns}
    )


def _column(column: Column, block: np.ndarray, raw: bool) -> pyarrow.Array:
    missing = None
    if raw:
        missing = np.isnan(block[:, 0]) if column.missing is Missing.INDICATOR else None
        return cells_of(
            column, block[:, 0] if missing is None else np.where(missing, 0.0, block[:, 0]), missing
        )
    if column.missing is Missing.INDICATOR:
        block, missing = block[:, :-1], block[:, -1] > 0.5
    if column.kind is Kind.CATEGORICAL:
        _finite(column, block)
        numbers = block.argmax(axis=1).astype(np.float64)
    elif column.kind is Kind.BINARY:
        numbers = block[:, 0]
    else:
        low, high = column.limits if column.kind.has_bounds else (0, len(column.categories) - 1)
        numbers = low + (block[:, 0] + 1) / 2 * (high - low)
    return cells_of(column, numbers, missing)


def cells_of(
    column: Column, numbers: np.ndarray, missing: np.ndarray | None = None
) -> pyarrow.Array:
    """The cells of counts, days, positions among the categories, or numbers in the column's own unit; null where missing."""
    _finite(column, numbers)
    low, high = column.limits if column.kind.has_bounds else (0, len(column.categories) - 1)
    numbers = np.clip(
        numbers if column.kind is Kind.REAL or numbers.dtype.kind == "i" else np.rint(numbers),
        low,
        high,
    )
    if column.kind is Kind.REAL:
        return pyarrow.array(to_steps(column, numbers), mask=missing)
    if column.kind is Kind.COUNT:
        return pyarrow.array(numbers.astype(np.int64), mask=missing)
    whole = pyarrow.array(numbers.astype(np.int32), mask=missing)
    if column.kind is Kind.DATE:
        return whole.cast(pyarrow.date32())
    return pyarrow.array(column.categories).take(whole)


def _finite(column: Column, numbers: np.ndarray) -> None:
    if not np.isfinite(numbers).all():
        raise ValueError(
            f"column '{column.name}' has numbers that are not finite: they are no cells (a missing one is NaN in raw columns, "
            'and needs missing = "indicator" in the schema)'
        )
