"""The public description of a table: what a column may hold, which columns there are, and which one identifies persons.

Everything in a `Schema` is public. Its bounds and categories come from the questionnaire, the code
book or common sense, never from the cells, so that whatever is computed from a schema costs no
privacy: the layout of the encoded arrays, the models of whole tables, invented tables for a dry
run, synthetic twins. This file, `_schema_text.py`, `_bounds.py`, `_cells.py` and `_persons.py` need
no reader of tables; packages that must not read a table import these only (tests/test_house.py
checks it).
"""

import dataclasses
import datetime
import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from discreet._validate import RefusedError, integer, is_real, near, notebook_html, positive


class DataError(RefusedError):
    """A table or schema that cannot be used: what, why and the remedy.

    Guarantee: the message names columns, rules and public facts. It holds no cell's value, no row's
    number, no count.
    """


class OfColumn(str):
    """A fault of one column, as a sentence without a full stop.

    Attributes:
        column: The column.
        rest: What follows its name.
        unread: Cells could not be read, and are missing from then on.
        missing: Cells are missing.
    """

    column: str
    rest: str
    unread: bool
    missing: bool

    def __new__(
        cls, column: str, rest: str, *, unread: bool = False, missing: bool = False
    ) -> "OfColumn":
        """See Attributes."""
        fault = super().__new__(cls, f"column '{column}'{rest}")
        fault.column = column
        fault.rest = rest
        fault.unread = unread
        fault.missing = missing
        return fault


def all_faults(faults: Iterable[str]) -> str:
    """Everything that is wrong, as one message: a fault with its columns once, and so a remedy with its faults."""
    together: dict[str, list[str]] = {}
    for fault in faults:
        names = together.setdefault(fault.rest if isinstance(fault, OfColumn) else fault, [])
        if isinstance(fault, OfColumn):
            names.append(f"'{fault.column}'")
    told: dict[str, list[str]] = {}
    for fault, names in together.items():
        others = f" (and likewise {', '.join(names[1:])})" if names[1:] else ""
        what, _, remedy = (f"column {names[0]}{others}{fault}" if names else fault).rpartition(": ")
        told.setdefault(remedy, []).append(what)
    return ". Also, ".join(
        ": ".join(filter(None, (", and ".join(what), remedy))) for remedy, what in told.items()
    )


DEFAULT_MISSING_VALUES = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")
ZERO_OR_ONE = ("0", "1")
OTHER = "other"
EPOCH = datetime.date(1970, 1, 1)


class Kind(enum.StrEnum):
    """The kind of a column's values."""

    REAL = "real"
    COUNT = "count"
    BINARY = "binary"
    CATEGORICAL = "categorical"
    ORDERED = "ordered"
    DATE = "date"

    @property
    def has_bounds(self) -> bool:
        """True if such a column has bounds; the others have categories."""
        return self in (Kind.REAL, Kind.COUNT, Kind.DATE)


class Missing(enum.StrEnum):
    """The rule for a missing cell.

    REFUSE: the table is refused. INDICATOR: zeros, and a 0/1 column that says which cells are
    missing. DROP: the row contributes nothing, and still counts as a record: how many there are is
    nobody's to know. Models and counts of whole tables have a level for missing cells in place of
    both.
    """

    REFUSE = "refuse"
    INDICATOR = "indicator"
    DROP = "drop"


class OutOfBounds(enum.StrEnum):
    """The rule for a cell that the schema does not allow.

    REFUSE: the table is refused. CLIP: a number or date is moved to the nearer bound; anything else
    is refused. MISSING: the cell counts as missing, also one that is no number, no date or no
    category of the schema, and the column's rule for missing cells applies. OTHER: of one
    categorical column, any other text counts as its category "other".
    """

    REFUSE = "refuse"
    CLIP = "clip"
    MISSING = "missing"
    OTHER = "other"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """One column and what is publicly known of it.

    Attributes:
        name: As in the file's header.
        kind: Real, count and date columns have bounds, the others categories.
        bounds: Smallest and largest value that can occur, in the column's own unit; finite, first
            below second. Two `datetime.date` for a date.
        categories: All values that can occur. A binary column has two; the second is encoded as 1.
            An ordered column's categories are listed lowest first.
        missing: The rule for missing cells.
        out_of_bounds: The rule for cells that the column does not allow; None: that of the whole
            table.
        unit: Unit of the numbers, for display, such as "years". Not for a column of categories.
        step: Of a real column: values that are drawn, as for a synthetic twin, are its lower bound
            and whole steps above it. Cells of the table may lie between; noisy counts and sums take
            the nearest step. None: a power of ten, of which each slice of the bounds holds 20 or
            more (without slices, the bounds 10,000 or more).

    Raises:
        DataError: Bounds or categories that do not suit the kind, or that are empty.
    """

    name: str
    kind: Kind
    bounds: tuple[float, float] | tuple[datetime.date, datetime.date] | None = None
    categories: tuple[str, ...] = ()
    missing: Missing = Missing.REFUSE
    out_of_bounds: OutOfBounds | None = None
    unit: str = ""
    step: float | None = None

    def __post_init__(self) -> None:
        try:
            # A text that is not made one would pass for neither rule.
            object.__setattr__(self, "kind", Kind(self.kind))
            object.__setattr__(self, "missing", Missing(self.missing))
            if self.out_of_bounds is not None:
                object.__setattr__(self, "out_of_bounds", OutOfBounds(self.out_of_bounds))
        except ValueError as error:
            raise DataError(OfColumn(self.name, f": {error}")) from None
        where = f"column '{self.name}' ({self.kind})"
        if self.step is not None:
            if self.kind is not Kind.REAL:
                raise DataError(f"{where} has a step: only a real column has one, leave it out")
            try:
                positive("step", self.step, hint="1 makes integers.")
            except ValueError as error:
                raise DataError(f"{where}: {error}") from None
        if self.out_of_bounds is OutOfBounds.MISSING and not self.may_be_missing:
            raise DataError(
                f'{where} has out_of_bounds = "missing", and its missing cells are refused: add missing = "indicator", or '
                '(as for a target) missing = "drop"'
            )
        if self.out_of_bounds is OutOfBounds.CLIP and not self.kind.has_bounds:
            raise DataError(
                f'{where} has out_of_bounds = "clip", which is for numbers and dates: write "refuse" or "missing"'
            )
        listed = self.kind is Kind.CATEGORICAL and OTHER in self.categories
        if self.out_of_bounds is OutOfBounds.OTHER and not listed:
            raise DataError(
                f'{where} has out_of_bounds = "other": that is for a categorical column with a category "other"'
            )
        if self.kind.has_bounds:
            self._check_bounds(where)
        else:
            self._check_categories(where)

    def _check_bounds(self, where: str) -> None:
        if self.categories:
            raise DataError(
                f"{where} has categories: a {self.kind} column has bounds = [lowest, highest] instead"
            )
        if self.bounds is None:
            raise DataError(
                f"{where} has no bounds: give the public range of its values, bounds = [lowest, highest]"
            )
        low, high = self.bounds
        if self.kind is Kind.DATE:
            if not (is_date(low) and is_date(high)):
                raise DataError(
                    f"{where} has bounds {low} to {high}: give two dates, bounds = [1900-01-01, 2020-12-31]"
                )
            if self.limits[0] >= self.limits[1]:
                raise DataError(
                    f"{where} has bounds {low} to {high}: give two dates, the earlier one first"
                )
            return
        if not (is_real(low) and is_real(high)):
            raise DataError(
                f"{where} has bounds {low} to {high}: give two numbers, or describe it as kind date"
            )
        low, high = self.limits
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise DataError(
                f"{where} has bounds {low:g} to {high:g}: give two finite numbers, the lower one first"
            )
        if self.step is not None and self.step > high - low:
            raise DataError(
                f"{where} has a step of {self.step:g}, which is longer than from bound to bound"
            )
        if self.kind is Kind.COUNT and (low < 0 or low != int(low) or high != int(high)):
            raise DataError(
                f"{where} has bounds {low:g} to {high:g}: a count has whole bounds from 0 up"
            )

    def _check_categories(self, where: str) -> None:
        if self.bounds is not None:
            raise DataError(
                f"{where} has bounds: a {self.kind} column has categories = [...] instead"
            )
        if self.unit:
            raise DataError(
                f"{where} has a unit: only a column with bounds is in one, leave it out"
            )
        if len(set(self.categories)) != len(self.categories):
            raise DataError(f"{where} lists a category twice: list each value once")
        if self.kind is Kind.BINARY and len(self.categories) != 2:
            raise DataError(
                f"{where} has {len(self.categories)} categories: a binary column has exactly two"
            )
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
        low, high = (
            (bound - EPOCH).days if isinstance(bound, datetime.date) else bound
            for bound in self.bounds
        )
        return float(low), float(high)

    @property
    def may_be_missing(self) -> bool:
        """True if the table is not refused for a missing cell of this column."""
        return self.missing is not Missing.REFUSE

    def rule(self) -> str:
        """Bounds or categories in words, for example "17 to 90 years" or "no | yes"."""
        if self.bounds is None:
            return (" < " if self.kind is Kind.ORDERED else " | ").join(self.categories)
        show: Callable[[Any], str] = str if self.kind is Kind.DATE else "{:g}".format
        return " to ".join(map(show, self.bounds)) + (f" {self.unit}" if self.unit else "")


def _is_range(column: Column, values: tuple[Any, ...]) -> bool:
    fits = is_date if column.kind is Kind.DATE else is_real
    assert column.bounds is not None
    return (
        len(values) == 2
        and all(map(fits, values))
        and column.bounds[0] <= values[0] <= values[1] <= column.bounds[1]
    )


def is_date(value: Any) -> bool:
    """True for a day of the calendar, without a time."""
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CsvFormat:
    """The text format of a table: a public fact, in the schema's `[csv]`.

    Attributes:
        delimiter: The character between cells; None: a tab in a .tsv file, otherwise a comma.
        decimal: The character before the decimals of a number.
        thousands: The character between groups of three digits; empty: none.
        encoding: A text encoding of Python.
        date_format: The format of days, in the codes of `datetime.strptime`.

    Raises:
        DataError: One of them cannot be used.
    """

    delimiter: str | None = None
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    date_format: str = "%Y-%m-%d"

    def __post_init__(self) -> None:
        faults = []
        if self.delimiter is not None and not _is_mark(self.delimiter):
            faults.append("delimiter must be one character such as ; or \\t")
        if not _is_mark(self.decimal):
            faults.append("decimal must be one character such as ,")
        if self.thousands and (not _is_mark(self.thousands) or self.thousands == self.decimal):
            faults.append("thousands must be one character, and not that of decimal")
        try:
            "".encode(self.encoding)
        except (LookupError, ValueError):
            faults.append(
                "encoding must be one that Python knows, for example latin-1, cp1252 or utf-16"
            )
        try:
            for day in (datetime.date(1987, 6, 5), datetime.date(2031, 12, 30)):
                if (
                    datetime.datetime.strptime(
                        day.strftime(self.date_format), self.date_format
                    ).date()
                    != day
                ):
                    raise ValueError
        except (ValueError, re.error):
            faults.append("date_format must say day, month and year, for example %d.%m.%Y")
        if faults:
            raise DataError(f"the schema's [csv]: {'; '.join(faults)}")


def _is_mark(text: str) -> bool:
    return len(text) == 1 and not text.isalnum() and text not in '"\r\n+-'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bought:
    """Where bounds and categories of a schema come from that were released privately from the data.

    Attributes:
        columns: Names of their columns.
        epsilon: What the release cost.
        delta: Its delta.
        made_on: The day of the release.
        statement: The file of its statement; empty: not named.

    Raises:
        DataError: No release costs that.
    """

    columns: tuple[str, ...]
    epsilon: float
    delta: float
    made_on: datetime.date
    statement: str = ""

    def __post_init__(self) -> None:
        if not (0 <= self.epsilon < math.inf and 0 <= self.delta <= 1):
            raise DataError(
                f"bounds were bought at ε = {self.epsilon} and δ = {self.delta}: no release has these"
            )

    def to_dict(self) -> dict[str, Any]:
        """As in a schema file, but for the date, which is a text."""
        return dataclasses.asdict(self) | {"made_on": str(self.made_on)}

    def in_words(self) -> str:
        """What a statement says of it, whose figures do not include it.

        >>> Bought(columns=("age",), epsilon=0.1, delta=1e-6, made_on=datetime.date(2026, 5, 4)).in_words()
        'The schema of age was released from the data on 2026-05-04, at ε = 0.1 and δ = 1e-06. That cost comes on top.'
        """
        where = f" ({self.statement})" if self.statement else ""
        return (
            f"The schema of {', '.join(self.columns)} was released from the data on {self.made_on}, at ε = {self.epsilon:g} "
            f"and δ = {self.delta:g}{where}. That cost comes on top."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns to use, in order, the target among them, and the column that names a row's person.

    Columns of the file that the schema does not name are not read. Everything here is public.

    A plan protects a record. If a person may have several rows, name the column with the person: a
    record is then a person with at most `max_rows` rows. That person's rows and a secret key decide
    which; see `discreet.tables.rows_of_persons`.

    Attributes:
        columns: The columns.
        target: Name of the target column; None if there is none.
        weight: Name of the column with the row's survey weight: a number from 0, whose upper bound
            is the largest that one may have. Regressions count a row so often, and it is no feature
            of theirs; counts and twins take it as any number.
        missing_values: Texts that stand for a missing cell in a CSV file.
        person: Name of the column with the row's person; never a feature. None: each row is another
            person's.
        max_rows: The largest number of rows of a person that are used, 1 at least. It decides the
            shape of the arrays, so it is public and never taken from the table.
        each_row: True if it is known that no person has two rows. False without a person: nobody
            said.
        impossible: Values of two columns that no row has both of, such as (("sex", ("male",)),
            ("pregnant", ("yes",))): categories, or the least and the largest number or date. Rows
            of synthetic twins never have both; those of the table are not checked, and a missing
            cell is no such value.
        csv: The table's text format.
        bought: The release from which bounds of columns come; None: all is publicly known.

    Raises:
        DataError: All that is wrong: no columns, a name twice, a target that is not among them, a
            person column that is, a category that also stands for a missing cell, several rows
            without a person, or impossible values that the columns do not have.
    """

    columns: tuple[Column, ...]
    target: str | None = None
    missing_values: tuple[str, ...] = DEFAULT_MISSING_VALUES
    person: str | None = None
    max_rows: int = 1
    each_row: bool = False
    weight: str | None = None
    csv: CsvFormat = CsvFormat()
    impossible: tuple[tuple[tuple[str, tuple[Any, ...]], ...], ...] = ()
    bought: Bought | None = None

    def __post_init__(self) -> None:
        faults = list(self._faults())
        if faults:
            raise DataError(all_faults(faults))

    def _faults(self) -> Iterator[str]:
        names = [column.name for column in self.columns]
        if not names:
            yield "the schema names no columns: describe each column to use, with its bounds or categories"
            return
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            yield f"the schema describes {', '.join(twice)} twice: describe each column once"
        if self.target is not None and self.target not in names:
            meant = near(self.target, names)
            yield (
                f"the target '{self.target}' is not described: {f'{meant} If not, ' if meant else ''}"
                "give its bounds or categories like any other column's"
            )
        elif self.target is not None and not self.features:
            yield "the schema describes only the target: describe at least one column that explains it"
        yield from self._weight_faults()
        for column in self.columns:
            both = sorted(set(column.categories) & set(self.missing_values))
            if both:
                yield OfColumn(
                    column.name,
                    f" has the category '{both[0]}', which also stands for a missing cell: give the schema its own "
                    "missing_values without it, or take it out of the categories",
                )
        if self.bought is not None and (unknown := sorted({*self.bought.columns} - {*names})):
            yield f"the schema says that bounds or categories of {', '.join(unknown)} were bought, but does not describe it"
        if self.each_row and self.person is not None:
            yield f"each row is another person's, so '{self.person}' identifies none: leave out one of them"
        if self.person in names:
            yield (
                f"the column '{self.person}' identifies persons, so that it would single out people as a feature: take it "
                "out of the described columns"
            )
        try:
            integer("max_rows", self.max_rows)
        except (TypeError, ValueError) as error:
            yield f"the schema's person: {error}"
            return
        if self.person is None and self.max_rows > 1:
            yield "the schema has max_rows, but no person: name the column that identifies persons"
        yield from self._impossible_faults()

    def _weight_faults(self) -> Iterator[str]:
        column = self.weight_column
        if self.weight is None:
            return
        if column is None:
            yield f"the weight '{self.weight}' is not described: give its bounds like any other column's"
        elif self.weight == self.target:
            yield f"'{self.weight}' is both target and weight: take one of them out"
        elif column.kind not in (Kind.REAL, Kind.COUNT) or column.limits[0] < 0:
            yield (
                f"the weight '{self.weight}' must be a number from 0: describe it as kind real with bounds = [0, 20], the second "
                "of which is the largest that a row may have"
            )
        elif column.missing is Missing.INDICATOR:
            yield f'the weight \'{self.weight}\' has missing = "indicator": write "drop", with which such rows contribute nothing'

    def _impossible_faults(self) -> Iterator[str]:
        if self.impossible and self.max_rows > 1:
            yield (
                "the schema has impossible values, and persons with several rows: twins of such persons are drawn without them, "
                "leave one out"
            )
        described = {column.name: column for column in self.columns}
        for pair in self.impossible:
            if len(pair) != 2 or len({name for name, _ in pair} & described.keys()) != 2:
                yield (
                    f"impossible names {', '.join(name for name, _ in pair)}: give two described columns, as in "
                    'impossible = [{sex = "male", pregnant = "yes"}]'
                )
                continue
            for name, values in pair:
                column = described[name]
                fits = (
                    _is_range(column, values)
                    if column.bounds
                    else {*values} <= {*column.categories}
                )
                if not values or not fits:
                    remedy = (
                        "the least and the largest of them, [0, 14]"
                        if column.bounds
                        else "some of these categories"
                    )
                    yield f"impossible values of '{name}' are not among {column.rule()}: give {remedy}"

    def only_features(self) -> "Schema":
        """The same without target, person and weight: for rows of which the features alone are known."""
        return dataclasses.replace(
            self.without_person(), columns=self.features, target=None, weight=None, impossible=()
        )

    def without_person(self) -> "Schema":
        """The description of rows that are nobody's, such as those of a synthetic twin."""
        return dataclasses.replace(self, person=None, max_rows=1)

    def of_twins(self) -> "Schema":
        """The description of the files of a synthetic twin, which are written with commas and points, in UTF-8."""
        return dataclasses.replace(self, csv=CsvFormat())

    @property
    def features(self) -> tuple[Column, ...]:
        """All columns but the target and the weight."""
        return tuple(
            column for column in self.columns if column.name not in (self.target, self.weight)
        )

    @property
    def drops(self) -> tuple[str, ...]:
        """Names of the columns without which a row contributes nothing."""
        return tuple(column.name for column in self.columns if column.missing is Missing.DROP)

    @property
    def drops_records(self) -> bool:
        """True if a missing cell leaves its record out; of a person with several rows it leaves out the row."""
        return bool(self.drops) and self.max_rows == 1

    @property
    def target_column(self) -> Column | None:
        """The target column."""
        return next((column for column in self.columns if column.name == self.target), None)

    @property
    def weight_column(self) -> Column | None:
        """The column of the survey weights."""
        return next((column for column in self.columns if column.name == self.weight), None)

    def weight_words(self, *, weighs: bool = False) -> str:
        """Whether rows count by their survey weights, for a schema that has them.

        >>> column = Column(name="w", kind=Kind.REAL, bounds=(0, 8))
        >>> Schema(columns=(column,), weight="w").weight_words()
        'The survey weights in “w” are not applied: each row counts once, so results are not those of the population.'
        """
        if weighs:
            return (
                f"A row counts as often as its survey weight in “{self.weight}” says, so results are those of the population "
                "that the weights stand for."
            )
        return (
            f"The survey weights in “{self.weight}” are not applied: each row counts once, so results are not those of the "
            "population."
        )

    def _repr_html_(self) -> str:
        headline = f"Schema of {len(self.columns)} columns, for {'rows' if self.person is None else 'persons'}"
        return notebook_html(headline, "\n".join(self.describe()))

    def describe(self) -> tuple[str, ...]:
        """One line a column, for the list of public facts in a statement."""
        roles = {self.weight: ", the survey weight", self.target: ", the target"}
        return tuple(
            f"{x.name} ({x.kind}{roles.get(x.name, '')}): {x.rule()}" for x in self.columns
        )


PARTS_OF_SCHEMA = (Schema, Bought, Column, CsvFormat, Kind, Missing, OutOfBounds)
"""The classes of a schema's objects, for files that hold one (`storage`)."""
