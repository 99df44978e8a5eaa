"""Exact counts and sums of a table, which are not private: the only part of this package that sees records.

Counts and sums are added up piece by piece in integers (z and 1 - z^2 in units of 2^-24), so that
they depend neither on the order of the records nor on where pieces end. The programs of the queries
(`query`) are given the last rows, and the counts and sums of all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from discreet.privacy.query import padded
from discreet.tabular.marginals._plan import MarginalsPlan
from discreet.tabular.marginals._programs import ONE, PARTS
from discreet.tabular.models import Levels, coded_columns
from discreet.tabular.tables import (
    Column,
    DataError,
    OutOfBounds,
    Report,
    rows_of_persons,
    to_steps,
)

_ROWS_AT_ONCE = 2**18
_ROWS_A_PART = 2**16
"""Rows that are gathered before they are counted, and the rows of them that are counted without a break."""
_BLOCK_CELLS = 2**15
_TWO_BYTES = 2**16
"""Cells of columns that are counted together, since more would not stay in a processor's cache; and of codes of two bytes."""
_MOST_UNITS = 2**53
"""Integers up to here are exact in 64-bit floats."""


class _Piece(NamedTuple):
    """Some rows: the levels of all columns, and z and 1 - z^2 of the columns that are summed, in units of 1 / `ONE`.

    Below the levels are those of parts of slices, of the columns that are divided.
    Where a person may have several rows, also the number of the person of each row, counted from
    the last one, and whether rows of that person were left out.
    """

    levels: Int[np.ndarray, "column row"]
    values: Int[np.ndarray, "2 column row"]
    persons: Int[np.ndarray, "part row"]

    def of(self, rows: Any) -> _Piece:
        """Some of them."""
        return _Piece(*(part[..., rows] for part in self))


class Measured:
    """Exact counts and sums over all records but the last few, and these. Not private.

    Args:
        plan: What is counted and summed.
        records: How many records are kept.
    """

    def __init__(self, plan: MarginalsPlan, records: int) -> None:
        self._plan, self._records, self._held, self._last = (
            plan,
            records,
            list[_Piece](),
            list[_Piece](),
        )
        self._blocks = _blocks(plan)
        self._cells = [
            np.zeros(math.prod(plan.all_sizes[c] for c in block), np.int64)
            for block in self._blocks
        ]
        self._sums = np.zeros(plan.width, np.int64)
        self._present: list[list[np.ndarray]] = [[] for _ in plan.persons]
        self._left = _MOST_UNITS // (ONE * max(plan.sum_weights, default=1))

    def add(self, piece: _Piece) -> None:
        """Add some rows.

        Raises:
            DataError: There are too many for exact sums.
        """
        self._left -= piece.levels.shape[1]
        if self._left < 0 and self._plan.sums:
            raise DataError(
                "the table has more rows than can be summed exactly: give smaller weights, or leave out sums"
            )
        if self._plan.max_rows > 1:
            number, left_out = piece.persons
            for table, cells, found in zip(
                self._plan.persons, self._plan.person_cells, self._present, strict=True
            ):
                level = self._plan.cells_in(piece.levels, table) if table else left_out
                found.append(np.unique(number * cells + level))
            last = number < self._records
            self._last.append(piece.of(last))
            piece = piece.of(~last)
        if sum(held.levels.shape[1] for held in self._held) >= _ROWS_AT_ONCE:
            self._count(_joined(self._held))
            self._held.clear()
        self._held.append(piece)

    def arguments(self) -> tuple[np.ndarray, ...]:
        """Those of the program, after the key: of other records exact counts and sums, of the last ones levels and values."""
        whole = _joined(self._held)
        last = _joined(self._last) if self._last else whole.of(np.s_[-self._records :])
        self._count(whole if self._last else whole.of(np.s_[: -self._records]))
        counted = _of_tables(self._plan, self._blocks, self._cells)
        rows = last.levels.T.astype(np.int32)
        values = self._values(last)
        if self._last:
            rows, values = self._by_person(last.persons[0], rows, values)
        levels, mask = padded(rows, self._records)
        if not self._plan.width:
            return counted, levels, mask
        return counted, self._sums, levels, padded(values, self._records)[0], mask

    def _by_person(
        self, number: np.ndarray, rows: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows of each of the last persons, -1 where there is none, and what each adds to the sums.

        The counts of the other persons go to the sums.
        """
        plan = self._plan
        persons = int(number.max()) + 1
        order = np.argsort(number, kind="stable")
        owner = number[order]
        levels = np.full((persons, plan.max_rows, rows.shape[1]), -1, np.int32)
        levels[owner, np.arange(len(owner)) - np.searchsorted(owner, owner)] = rows[order]
        added = np.zeros((persons, plan.width), np.int64)
        np.add.at(added, number, values)
        first = 2 * sum(plan.sum_cells)
        for weight, cells, found in zip(
            plan.person_weights, plan.person_cells, self._present, strict=True
        ):
            owner, cell = divmod(np.unique(np.concatenate(found)), cells)
            last = owner < persons
            added[owner[last], first + cell[last]] = weight * ONE
            self._sums[first : first + cells] = (
                weight * ONE * np.bincount(cell[~last], minlength=cells)
            )
            first += cells
        return levels, added

    def _count(self, piece: _Piece) -> None:
        _count(piece.levels, self._plan, self._blocks, self._cells)
        first = 0
        for level, values, weight, cells in self._terms(piece):
            for value in values:
                if cells == 1:
                    found = np.asarray([value.sum(dtype=np.int64)])
                else:
                    # floats, exact up to 2^53
                    found = np.bincount(level, value, cells).astype(np.int64)
                self._sums[first : first + cells] += weight * found
                first += cells

    def _values(self, piece: _Piece) -> Int[np.ndarray, "row sum"]:
        """What each row adds to the sums, in their units."""
        found = np.zeros((piece.levels.shape[1], len(self._sums)), np.int64)
        first = 0
        for level, values, weight, cells in self._terms(piece):
            for value in values:
                found[np.arange(len(found)), first + level.astype(np.intp)] = weight * value.astype(
                    np.int64
                )
                first += cells
        return found

    def _terms(self, piece: _Piece) -> Iterator[tuple[np.ndarray, np.ndarray, int, int]]:
        """For each sum: the cell of each row, z and 1 - z^2, the weight, and the number of cells."""
        plan = self._plan
        value = {column.name: place for place, column in enumerate(plan.summed)}
        for (name, *by), weight, cells in zip(
            plan.sums, plan.sum_weights, plan.sum_cells, strict=True
        ):
            level = (
                plan.cells_in(piece.levels, by) if by else np.zeros(piece.levels.shape[1], np.uint8)
            )
            yield level, piece.values[:, value[name]], weight, cells


def _joined(pieces: Sequence[_Piece]) -> _Piece:
    """All their rows."""
    return _Piece(*(np.concatenate(parts, axis=-1) for parts in zip(*pieces, strict=True)))


def _blocks(plan: MarginalsPlan) -> list[tuple[int, ...]]:
    """Sets of columns of few cells that contain each table: fewer than tables, and so counted in less time."""
    found = []
    sizes = plan.all_sizes
    left = sorted(
        map(frozenset, plan.all_columns),
        key=lambda table: -math.prod(sizes[column] for column in table),
    )
    together: dict[int, set[frozenset[int]]] = {}
    for table in left:
        for column in table:
            together.setdefault(column, set()).add(table)
    while left:
        block = set(left[0])
        while True:
            cells = math.prod(sizes[column] for column in block)
            fitting = [c for c in together if c not in block and cells * sizes[c] <= _BLOCK_CELLS]
            gains = {c: sum(table <= block | {c} for table in together[c]) for c in fitting}
            best = max(gains, key=lambda c: (gains[c], sizes[c]), default=None)
            if best is None or gains[best] == 0:
                break
            block.add(best)
        covered = {table for table in left if table <= block}
        left = [table for table in left if table not in covered]
        for tables in together.values():
            tables -= covered
        found.append(tuple(sorted(block)))
    return found


def _count(
    levels: Int[np.ndarray, "column row"],
    plan: MarginalsPlan,
    blocks: Sequence[tuple[int, ...]],
    counted: list[Int[np.ndarray, " cell"]],
) -> None:
    """Add the rows to the counts of the blocks: what `count_cells` does, many times faster on a CPU."""
    for block, cells in zip(blocks, counted, strict=True):
        kind = np.uint16 if len(cells) < _TWO_BYTES else np.uint32
        # A part of the rows at a time, so that codes and cells stay in a processor's cache.
        for first in range(0, levels.shape[1], _ROWS_A_PART):
            columns = levels[:, first : first + _ROWS_A_PART]
            code = columns[block[0]].astype(kind)
            for column in block[1:]:
                code *= kind(plan.all_sizes[column])
                code += columns[column]
            np.add.at(cells, code.astype(np.intp), 1)


def _of_tables(
    plan: MarginalsPlan, blocks: Sequence[tuple[int, ...]], counted: list[Int[np.ndarray, " cell"]]
) -> Int[np.ndarray, " cell"]:
    """The counts of all tables, from those of the blocks."""
    shaped = [
        cells.reshape([plan.all_sizes[c] for c in block])
        for block, cells in zip(blocks, counted, strict=True)
    ]
    found = []
    for columns in plan.all_columns:
        place = next(number for number, block in enumerate(blocks) if set(columns) <= set(block))
        axes = [blocks[place].index(column) for column in columns]
        others = tuple(axis for axis in range(shaped[place].ndim) if axis not in axes)
        kept = sorted(axes)
        found.append(
            shaped[place].sum(axis=others).transpose([kept.index(axis) for axis in axes]).ravel()
        )
    return np.concatenate(found)


def pieces(
    table: Any, plan: MarginalsPlan, out_of_bounds: str, person_key: bytes | None
) -> Iterator[_Piece]:
    """Some rows at a time; of each person at most `max_rows`."""
    from discreet.tabular.tables import as_table, files_of, over_pieces, persons_of

    table = files_of(table) or as_table(table)  # which can be read twice
    schema = plan.schema
    levels = Levels(plan.schema.without_person(), plan.slices)
    report = Report(OutOfBounds(out_of_bounds))
    kept = None
    row = 0
    if schema.person is not None:
        kept = _of_persons(persons_of(table, schema, report), schema.max_rows, person_key)

    def encoded(piece: Any) -> _Piece | None:
        # What is wrong with cells is told at the end, all of it.
        if report.faults:
            return None
        cells = [
            (column, to_steps(column, numbers), missing)
            for column, numbers, missing in coded_columns(piece, levels.schema, out_of_bounds)
        ]
        of = {column.name: (numbers, missing) for column, numbers, missing in cells}
        values = np.empty((2, len(plan.summed), piece.num_rows), np.int32)
        for place, column in enumerate(plan.summed):
            values[:, place] = _in_units(column, *of[column.name])
        found = levels.of_cells(cells)
        if plan.divided:
            place = {column.name: number for number, (column, *_) in enumerate(cells)}
            own = [place[column.name] for column in plan.divided]
            found = np.stack([*found, *(levels.parts_of(cells[x], found[x], PARTS) for x in own)])
        return _Piece(found, values, np.empty((0, piece.num_rows), np.int64))

    for found in over_pieces(table, schema, encoded, report):
        if found is not None:
            num_rows = found.levels.shape[1]
            if kept is not None:
                own = kept[:, row : row + num_rows]
                found = (found._replace(persons=own) if schema.max_rows > 1 else found).of(
                    own[0] >= 0
                )
            yield found
            row += num_rows
    report.refuse()


def _of_persons(persons: Any, max_rows: int, key: bytes | None) -> Int[np.ndarray, "2 row"]:
    """For each row the number of its person, -1 if the row is not kept; and 1 if rows of that person are not kept, else 0.

    The last person has the number 0.
    """
    rows = rows_of_persons(persons, max_rows, key=key)
    found = np.full((2, len(persons)), -1)
    person, place = np.nonzero(rows >= 0)
    found[0, rows[person, place]] = len(rows) - 1 - person
    codes = persons.cast("string").combine_chunks().dictionary_encode().indices.to_numpy()
    found[1] = (np.bincount(codes) > max_rows)[codes]
    return found


def _in_units(column: Column, numbers: np.ndarray, missing: np.ndarray) -> Int[np.ndarray, "2 row"]:
    """Values of z and 1 - z^2 in units of 1 / `ONE`: 0 where missing."""
    low, high = column.limits
    # Halves, since the whole width may be more than a float holds. What is NaN, as of a width of
    # 5e-324, becomes 1, not a large integer: nothing else bounds what a record adds to the sums.
    z = np.rint((numbers / 2 - low / 2) / (high / 2 - low / 2) * (2 * ONE)) - ONE
    z = np.fmax(np.fmin(z, ONE), -ONE)
    values = np.stack([z, ONE - np.rint(np.square(z) / ONE)])
    values[:, missing] = 0
    return values.astype(np.int32)
