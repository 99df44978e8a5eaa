"""One column and what is publicly known of it."""

import dataclasses
import datetime
import enum
import math
from collections.abc import Callable
from typing import Any

from discreet.schema._errors import DataError

DEFAULT_MISSING_VALUES = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")
ZERO_OR_ONE = ("0", "1")
EPOCH = datetime.date(1970, 1, 1)


class Kind(enum.StrEnum):
    """What a column holds."""

    REAL = "real"
    COUNT = "count"
    BINARY = "binary"
    CATEGORICAL = "categorical"
    ORDERED = "ordered"
    DATE = "date"

    @property
    def has_bounds(self) -> bool:
        """Whether such a column is described by bounds; the others are by categories."""
        return self in (Kind.REAL, Kind.COUNT, Kind.DATE)


class Missing(enum.StrEnum):
    """What becomes of a missing cell: refuse the table, or encode it as zeros beside a 0/1 column that says so."""

    REFUSE = "refuse"
    INDICATOR = "indicator"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """One column and what is publicly known of it.

    Attributes:
        name: As in the file's header.
        kind: Real, count and date columns have bounds, the others categories.
        bounds: Smallest and largest value that can occur, in the column's own unit; finite, first below second. Two
            `datetime.date` for a date.
        categories: All values that can occur. A binary column has two; the second is encoded as 1. The order of an ordered
            column's is the list's, lowest first.
        missing: What becomes of missing cells.
        unit: What the numbers count, for people: "years". Not for a column of categories.

    Raises:
        DataError: Bounds or categories that the kind does not have, or that describe nothing.
    """

    name: str
    kind: Kind
    bounds: tuple[float, float] | tuple[datetime.date, datetime.date] | None = None
    categories: tuple[str, ...] = ()
    missing: Missing = Missing.REFUSE
    unit: str = ""

    def __post_init__(self) -> None:
        where = f"column '{self.name}' ({self.kind})"
        if self.kind.has_bounds:
            self._check_bounds(where)
        else:
            self._check_categories(where)

    def _check_bounds(self, where: str) -> None:
        if self.categories:
            raise DataError(f"{where} has categories: a {self.kind} column has bounds = [lowest, highest] instead")
        if self.bounds is None:
            raise DataError(f"{where} has no bounds: give the public range of its values, bounds = [lowest, highest]")
        low, high = self.bounds
        if self.kind is Kind.DATE:
            if not (is_date(low) and is_date(high)):
                raise DataError(
                    f"{where} has bounds {low} to {high}: give two dates, bounds = [1900-01-01, 2020-12-31]"
                )
            if self.limits[0] >= self.limits[1]:
                raise DataError(f"{where} has bounds {low} to {high}: give two dates, the earlier one first")
            return
        if not (is_number(low) and is_number(high)):
            raise DataError(f"{where} has bounds {low} to {high}: give two numbers, or describe it as kind date")
        low, high = self.limits
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise DataError(f"{where} has bounds {low:g} to {high:g}: give two finite numbers, the lower one first")
        if self.kind is Kind.COUNT and (low < 0 or low != int(low) or high != int(high)):
            raise DataError(f"{where} has bounds {low:g} to {high:g}: a count has whole bounds from 0 up")

    def _check_categories(self, where: str) -> None:
        if self.bounds is not None:
            raise DataError(f"{where} has bounds: a {self.kind} column has categories = [...] instead")
        if self.unit:
            raise DataError(f"{where} has a unit: only a column with bounds is in one, leave it out")
        if len(set(self.categories)) != len(self.categories):
            raise DataError(f"{where} lists a category twice: list each value once")
        if self.kind is Kind.BINARY and len(self.categories) != 2:
            raise DataError(f"{where} has {len(self.categories)} categories: a binary column has exactly two")
        if len(self.categories) < 2:
            raise DataError(
                f"{where} has {len(self.categories)} categories: list all values that can occur, two or more"
            )

    @property
    def limits(self) -> tuple[float, float]:
        """The bounds as two numbers: those of a date are days since 1970-01-01.

        Raises:
            ValueError: The column has categories instead.

        >>> Column(name="born", kind=Kind.DATE, bounds=(datetime.date(1970, 1, 2), datetime.date(1970, 2, 1))).limits
        (1.0, 31.0)
        """
        if self.bounds is None:
            raise ValueError(f"column '{self.name}' ({self.kind}) has categories and no bounds")
        low, high = ((bound - EPOCH).days if isinstance(bound, datetime.date) else bound for bound in self.bounds)
        return float(low), float(high)

    def rule(self) -> str:
        """Bounds or categories in words, for example "17 to 90 years" or "no | yes"."""
        if self.bounds is None:
            return (" < " if self.kind is Kind.ORDERED else " | ").join(self.categories)
        show: Callable[[Any], str] = str if self.kind is Kind.DATE else "{:g}".format
        return " to ".join(map(show, self.bounds)) + (f" {self.unit}" if self.unit else "")


def is_number(value: Any) -> bool:
    """Whether it is an int or a float; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_date(value: Any) -> bool:
    """Whether it is a day of the calendar, without a time."""
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
