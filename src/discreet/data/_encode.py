"""A table with a schema to arrays of records."""

import dataclasses
import enum

import numpy as np
import pyarrow

from discreet.schema import ZERO_OR_ONE, Column, DataError, Kind, Missing, Schema

# How files write 0 and 1 besides "0" and "1".
OTHER_WRITINGS = {"0.0": 0, "1.0": 1, "false": 0, "true": 1, "False": 0, "True": 1}


class OutOfBounds(enum.StrEnum):
    """What becomes of a number outside its column's public bounds."""

    REFUSE = "refuse"
    CLIP = "clip"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """Arrays whose leading axis is the records. Private: everything but names, shapes and scales.

    Attributes:
        x: float32, records by features, each entry in [-1, 1].
        y: float32, one entry a record, or None without a target. Binary: 0 or 1. Real: scaled to [-1, 1] by the public
            bounds. Count: the count itself. Categorical: the position among the categories.
        feature_names: Names of the columns of `x`, for example "age" or "region=north".
        target_centre: What to add to, after multiplying by `target_scale`, to have a real target in its own unit.
        target_scale: See `target_centre`.
    """

    x: np.ndarray
    y: np.ndarray | None
    feature_names: tuple[str, ...]
    target_centre: float = 0.0
    target_scale: float = 1.0

    @property
    def num_records(self) -> int:
        """Number of rows."""
        return len(self.x)

    def __repr__(self) -> str:
        # The generated one would print cells.
        return f"Records({self.num_records} records, {len(self.feature_names)} features)"


def encode(table: pyarrow.Table, schema: Schema, *, out_of_bounds: OutOfBounds | str = OutOfBounds.REFUSE) -> Records:
    """Encode a table as float32 arrays.

    Guarantee: each record's numbers depend on that record's cells and the schema only, so that one person's row never
    moves another's.

    Real and count columns are mapped from their bounds to [-1, 1]; a binary column becomes 0 or 1; a categorical column
    becomes one 0/1 column a category. With `missing = "indicator"` a missing cell becomes zeros, and one more 0/1 column
    says which cells were missing.

    Args:
        table: As `read_table` gives it.
        schema: The public description.
        out_of_bounds: "refuse" raises; "clip" moves a number to the nearer bound.

    Raises:
        DataError: A missing cell, a number outside its bounds, a count that is not whole, a category that the schema
            does not list. Names the column and the rule, never a value, a row or a count.
    """
    out_of_bounds = OutOfBounds(out_of_bounds)
    if table.num_rows == 0:
        raise DataError("the table has no rows: there is nothing to fit")
    blocks: list[np.ndarray] = []
    names: list[str] = []
    for column in schema.features:
        block, block_names = _feature(column, table.column(column.name), out_of_bounds)
        blocks.append(block)
        names += block_names
    target = schema.target_column
    y, centre, scale = None, 0.0, 1.0
    if target is not None:
        values = table.column(target.name)
        if target.missing is Missing.INDICATOR:
            raise DataError(
                f"column '{target.name}' is the target: its missing cells cannot be encoded, set missing = \"refuse\""
            )
        if target.bounds is None:
            y = _positions(target, values)
        else:
            y = _numbers(target, values, out_of_bounds)
            if target.kind is Kind.REAL:
                centre, scale = sum(target.bounds) / 2, (target.bounds[1] - target.bounds[0]) / 2
                y = (y - centre) / scale
        y = y.astype(np.float32)
    x = np.concatenate(blocks, axis=1, dtype=np.float32)
    return Records(x=x, y=y, feature_names=tuple(names), target_centre=centre, target_scale=scale)


def _feature(column: Column, values: pyarrow.ChunkedArray, out_of_bounds: OutOfBounds) -> tuple[np.ndarray, list[str]]:
    missing = _missing(values)
    if column.bounds is not None:
        low, high = column.bounds
        numbers = _numbers(column, values, out_of_bounds)
        block = np.clip((2 * numbers - low - high) / (high - low), -1, 1)[:, None]
        names = [column.name]
    else:
        positions = _positions(column, values)
        if column.kind is Kind.BINARY:
            block, names = positions[:, None], [f"{column.name}={column.categories[1]}"]
        else:
            block = (positions[:, None] == np.arange(len(column.categories))).astype(np.float64)
            names = [f"{column.name}={category}" for category in column.categories]
    if column.missing is Missing.INDICATOR:
        block = np.where(missing[:, None], 0.0, block)
        block, names = np.column_stack([block, missing]), [*names, f"{column.name} is missing"]
    return block, names


def _missing(values: pyarrow.ChunkedArray) -> np.ndarray:
    """Which cells are missing; NaN counts as missing."""
    return values.is_null(nan_is_null=True).to_numpy()


def _present(column: Column, values: pyarrow.ChunkedArray) -> None:
    if column.missing is Missing.REFUSE and _missing(values).any():
        raise DataError(
            f"column '{column.name}' has missing cells: fill them in by a rule that does not look at other people's rows, "
            'or (except for the target) set missing = "indicator" for it in a schema file'
        )


def _numbers(column: Column, values: pyarrow.ChunkedArray, out_of_bounds: OutOfBounds) -> np.ndarray:
    """Float64 numbers inside the column's bounds; missing cells, where allowed, are at the lower bound."""
    assert column.bounds is not None
    _present(column, values)
    low, high = column.bounds
    numbers = np.where(_missing(values), low, values.to_numpy(zero_copy_only=False))
    if out_of_bounds is OutOfBounds.CLIP:
        numbers = np.clip(numbers, low, high)
    elif (numbers < low).any() or (numbers > high).any():
        raise DataError(
            f"column '{column.name}' has values outside its public bounds {low:g} to {high:g}: widen the bounds if they "
            "were wrong, or ask for clipping (out_of_bounds='clip', --out-of-bounds clip)"
        )
    if column.kind is Kind.COUNT and (numbers != np.floor(numbers)).any():
        raise DataError(
            f"column '{column.name}' has values that are not whole: it is described as a count; use kind real"
        )
    return numbers


def _positions(column: Column, values: pyarrow.ChunkedArray) -> np.ndarray:
    """Each cell's place among the categories, as float64; -1 for missing cells, where allowed."""
    _present(column, values)
    place = {category: position for position, category in enumerate(column.categories)}
    if column.categories == ZERO_OR_ONE:
        place |= OTHER_WRITINGS
    cells = pyarrow.array(values.combine_chunks(), pyarrow.string()).dictionary_encode()
    known = np.array([place.get(text, -2) for text in cells.dictionary.to_pylist()], np.float64)
    missing = _missing(values)
    positions = np.full(len(cells), -1.0)
    positions[~missing] = known[cells.indices.drop_null().to_numpy()]
    if (positions == -2).any():
        raise DataError(
            f"column '{column.name}' has values outside its public categories {', '.join(column.categories)}: list all that "
            "can occur (they are not shown here, since they are in the private table)"
        )
    return positions
