"""Cells of one column against the public schema: numbers within bounds, positions among categories, whose rows, what is wrong.

What is wrong with cells is gathered in a `Report`, which holds names of columns and rules, and no
value, row or count: an error message cannot quote a person. The columns are Arrow's, already of the
type that their kind needs; nothing is read here, and pyarrow is imported only where cells are
looked at, so that packages that need a schema alone do not need it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.tabular.tables._schema import (
    OTHER,
    ZERO_OR_ONE,
    Column,
    DataError,
    Kind,
    Missing,
    OfColumn,
    OutOfBounds,
    Schema,
    all_faults,
)

if TYPE_CHECKING:
    import pyarrow


# Other ways in which tables write 0 and 1.
_OTHER_WRITINGS = {"false": 0, "true": 1, "False": 0, "True": 1}
# A code such as 01 is none, nor 1e3.
_NUMBER = re.compile(r"\s*-?(0|[1-9]\d*)(\.\d*)?\s*", re.ASCII)
_ABSENT = -1
_FOREIGN = -2


@dataclasses.dataclass(frozen=True)
class Report:
    """The columns that break a rule, and the rules. It holds no value, row or count, so it cannot reveal any.

    Attributes:
        rule: The rule for cells that the schema does not allow, of columns without one of their
            own.
        faults: Faults found; several threads add to it.
    """

    rule: OutOfBounds
    faults: set[OfColumn] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        if self.rule is OutOfBounds.OTHER:
            raise DataError(
                'out_of_bounds = "other" is a rule of single columns: choose refuse, clip or missing'
            )

    def rule_of(self, column: Column) -> OutOfBounds:
        """The rule for cells that a column does not allow: its own, or that of the table."""
        return column.out_of_bounds or self.rule

    def refuse(self) -> None:
        """Raise if anything is wrong.

        Raises:
            DataError: All that is wrong, column by column.
        """
        # What cannot be read is null from then on, which is not what the reader has to mend.
        unread = {fault.column for fault in self.faults if fault.unread}
        faults = [x for x in sorted(self.faults) if not (x.missing and x.column in unread)]
        if faults:
            raise DataError(all_faults(faults))


SCHEMA_FILE = "in a schema file (discreet schema init TABLE --bounds ... writes one)"
AS_MISSING = (
    'write out_of_bounds = "missing" and missing = "indicator" (for a target: missing = "drop") for this column '
    + SCHEMA_FILE
)


def _present(column: Column, report: Report) -> None:
    """Report missing cells, where the column does not allow them."""
    if column.missing is Missing.REFUSE:
        counted = (
            ", or cells that count as missing"
            if report.rule_of(column) is OutOfBounds.MISSING
            else ""
        )
        report.faults.add(
            OfColumn(
                column.name,
                f" has missing cells{counted}: fill them in by a rule that does not look at other people's rows, or set "
                'missing = "indicator" for it (of a target missing = "drop", with which such rows contribute nothing), '
                f"{SCHEMA_FILE}",
                missing=True,
            )
        )


def coded(
    column: Column, values: pyarrow.ChunkedArray, report: Report
) -> tuple[np.ndarray, np.ndarray]:
    """The cells as numbers within the bounds, or as positions among the categories; and which are missing."""
    if column.kind.has_bounds:
        return _numbers_of(column, values, report)
    positions = _positions_of(column, values, report)
    return positions, positions < 0


def _array_of(cells: pyarrow.Array) -> np.ndarray:
    """The cells as an array of NumPy. `to_numpy` imports pandas, which takes longer than to read a small table."""
    return (
        cells.to_numpy(zero_copy_only=False)
        if cells.null_count or not len(cells)
        else np.from_dlpack(cells)
    )


def _numbers_of(
    column: Column, values: pyarrow.ChunkedArray, report: Report
) -> tuple[np.ndarray, np.ndarray]:
    """Float64 numbers inside the column's bounds, at the lower bound where missing; and which are missing."""
    low, high = column.limits
    if column.kind is Kind.DATE:
        values = values.cast("int32").cast("double")
    # A null becomes NaN, which is missing, too.
    parts = [_array_of(chunk) for chunk in values.chunks]
    numbers = parts[0] if len(parts) == 1 else np.concatenate(parts)
    least, most = numbers.min(), numbers.max()  # NaN if any is
    none = not math.isnan(least)
    missing = np.zeros(len(numbers), bool) if none else np.isnan(numbers)
    if not none:
        numbers = np.where(missing, low, numbers)
        least = numbers.min()
        most = numbers.max()
    fraction = column.kind is Kind.COUNT and numbers != np.floor(numbers)
    if not (least >= low and most <= high) or np.any(fraction):
        outside = (numbers < low) | (numbers > high)
        if report.rule_of(column) is OutOfBounds.MISSING:
            missing |= outside | fraction
            none = False
        else:
            _complain(column, bool(outside.any()), bool(np.any(fraction)), report)
        numbers = np.where(missing, low, np.clip(numbers, low, high))
    if not none:
        _present(column, report)
    return numbers, missing


def to_steps(column: Column, numbers: np.ndarray) -> np.ndarray:
    """Drawn numbers of a column, moved to its nearest step, if it has steps.

    >>> to_steps(Column(name="age", kind=Kind.REAL, bounds=(17, 90), step=1), np.array([56.63, 90.0]))
    array([57., 90.])
    """
    if column.step is None:
        return numbers
    low, high = column.limits
    steps = np.clip(
        np.rint((numbers - low) / column.step),
        0,
        np.floor((high - low) / column.step * (1 + 1e-12)),
    )
    # 3 steps of 0.1 are 0.3, not 0.30000000000000004.
    decimals = max(
        len(f"{Decimal(repr(float(x))).normalize():f}".partition(".")[2])
        for x in (low, column.step)
    )
    return np.round(low + steps * column.step, decimals)


def _complain(column: Column, outside: bool, fraction: bool, report: Report) -> None:
    if outside and report.rule_of(column) is OutOfBounds.REFUSE:
        report.faults.add(
            OfColumn(
                column.name,
                f" has values outside its public bounds {column.rule()}: widen the bounds if they were wrong, or ask for "
                "clipping (--out-of-bounds clip; in Python out_of_bounds='clip')",
            )
        )
    if fraction:
        report.faults.add(
            OfColumn(
                column.name,
                " has values that are not whole, and it is described as a count: round them, or describe it as kind real (a "
                "poisson or negative-binomial model needs a count, a linear one a real target)",
            )
        )


def _positions_of(column: Column, values: pyarrow.ChunkedArray, report: Report) -> np.ndarray:
    """Position of each cell among the categories; negative for missing cells."""
    import pyarrow

    place = {category: position for position, category in enumerate(column.categories)} | {
        None: _ABSENT
    }
    if column.categories == ZERO_OR_ONE:
        place |= _OTHER_WRITINGS
    numbers = [_value_of(category) for category in column.categories]
    # By value where no text is the same: a column of integers with missing cells is often written
    # 1.0.
    by_value: dict[Decimal | None, int] = {
        value: position
        for position, value in enumerate(numbers)
        if value is not None and numbers.count(value) == 1
    }
    chunks = []
    for chunk in values.chunks:
        cells = chunk if pyarrow.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        texts = cells.dictionary.to_pylist()
        known = [
            place[text] if text in place else by_value.get(_value_of(text), _FOREIGN)
            for text in texts
        ]
        indices = cells.indices.fill_null(len(known)) if cells.null_count else cells.indices
        chunks.append(np.array([*known, _ABSENT], np.int32).take(_array_of(indices)))
    positions = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    if report.rule_of(column) is OutOfBounds.OTHER:
        positions = np.where(positions == _FOREIGN, place[OTHER], positions)
    lowest = positions.min()
    if lowest == _FOREIGN and report.rule_of(column) is not OutOfBounds.MISSING:
        report.faults.add(
            OfColumn(
                column.name,
                f" has values outside its public categories {', '.join(column.categories)}: check their spelling and "
                f"capitals, and list all that can occur (those of the table are private, and not shown), or {AS_MISSING}",
            )
        )
    if lowest == _ABSENT or (
        lowest == _FOREIGN
        and (report.rule_of(column) is OutOfBounds.MISSING or (positions == _ABSENT).any())
    ):
        _present(column, report)
    return positions


def _value_of(text: str) -> Decimal | None:
    return Decimal(text.strip()) if _NUMBER.fullmatch(text) else None


_WORDS = (("false", "true"), ("no", "yes"), ("0", "1"), ("f", "t"), ("n", "y"), ("off", "on"))
"""Words for false and true, so that one schema reads a CSV file's words and a Parquet file's Booleans."""


def words_of_truth(column: Column, values: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Truth values as the categories that mean them, whichever comes first.

    >>> import pyarrow
    >>> smoker = Column(name="smoker", kind=Kind.BINARY, categories=("Yes", "No"))
    >>> words_of_truth(smoker, pyarrow.chunked_array([[True, False, None]])).to_pylist()
    ['Yes', 'No', None]

    Raises:
        DataError: No two categories mean them. The column's type is public, and no cell is told.
    """
    import pyarrow

    meant = {category.casefold(): category for category in column.categories}
    for false, true in _WORDS:
        if false in meant and true in meant:
            places = [chunk.cast(pyarrow.int8()) for chunk in values.chunks]
            coded = [
                pyarrow.DictionaryArray.from_arrays(x, [meant[false], meant[true]]) for x in places
            ]
            return pyarrow.chunked_array([x.dictionary_decode() for x in coded], pyarrow.string())
    raise DataError(
        f"column '{column.name}' holds truth values, and its categories {', '.join(column.categories)} are no words for these: "
        'write categories = ["false", "true"], or ["no", "yes"]'
    )


def impossible_rows(table: pyarrow.Table, schema: Schema) -> np.ndarray:
    """The mask of rows with an impossible combination of values, by the schema. Missing cells do not count."""
    described = {column.name: column for column in schema.columns}

    def has(name: str, values: Sequence[Any]) -> np.ndarray:
        cells = table[name].combine_chunks()
        if described[name].bounds is None:
            texts = cells.dictionary_encode()
            known = np.array([text in values for text in texts.dictionary.to_pylist()] + [False])
            return known[texts.indices.fill_null(len(known) - 1).to_numpy()]
        numbers = cells.to_numpy(zero_copy_only=False)
        if described[name].kind is Kind.DATE:
            values = [np.datetime64(value) for value in values]
        return (numbers >= values[0]) & (numbers <= values[1])

    found = np.zeros(table.num_rows, bool)
    for pair in schema.impossible:
        found |= np.logical_and(*(has(name, values) for name, values in pair))
    return found
