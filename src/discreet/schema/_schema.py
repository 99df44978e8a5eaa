"""The public description of a table: columns with kinds and bounds or categories."""

import dataclasses
import enum
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from discreet.schema._errors import DataError

DEFAULT_MISSING_VALUES = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")
ZERO_OR_ONE = ("0", "1")

E = TypeVar("E", bound=enum.StrEnum)


class Kind(enum.StrEnum):
    """What a column holds."""

    REAL = "real"
    COUNT = "count"
    BINARY = "binary"
    CATEGORICAL = "categorical"


class Missing(enum.StrEnum):
    """What becomes of a missing cell: refuse the table, or encode it as zeros beside a 0/1 column that says so."""

    REFUSE = "refuse"
    INDICATOR = "indicator"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """One column and what is publicly known of it.

    Attributes:
        name: As in the file's header.
        kind: Real and count columns have bounds, binary and categorical ones categories.
        bounds: Smallest and largest value that can occur, in the column's own unit; finite, first below second.
        categories: All values that can occur. A binary column has two; the second is encoded as 1.
        missing: What becomes of missing cells.
    """

    name: str
    kind: Kind
    bounds: tuple[float, float] | None = None
    categories: tuple[str, ...] = ()
    missing: Missing = Missing.REFUSE

    def __post_init__(self) -> None:
        where = f"column '{self.name}' ({self.kind})"
        if self.kind in (Kind.REAL, Kind.COUNT):
            if self.categories:
                raise DataError(f"{where} has categories: a {self.kind} column has bounds = [lowest, highest] instead")
            if self.bounds is None:
                raise DataError(
                    f"{where} has no bounds: give the public range of its values, bounds = [lowest, highest]"
                )
            low, high = self.bounds
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise DataError(f"{where} has bounds {low:g} to {high:g}: give two finite numbers, the lower one first")
            if self.kind is Kind.COUNT and (low < 0 or low != int(low) or high != int(high)):
                raise DataError(f"{where} has bounds {low:g} to {high:g}: a count has whole bounds from 0 up")
            return
        if self.bounds is not None:
            raise DataError(f"{where} has bounds: a {self.kind} column has categories = [...] instead")
        if len(set(self.categories)) != len(self.categories):
            raise DataError(f"{where} lists a category twice: list each value once")
        if self.kind is Kind.BINARY and len(self.categories) != 2:
            raise DataError(f"{where} has {len(self.categories)} categories: a binary column has exactly two")
        if len(self.categories) < 2:
            raise DataError(
                f"{where} has {len(self.categories)} categories: list all values that can occur, two or more"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns to use, in order, and which of them is explained by the others.

    Columns of the file that the schema does not name are not read. Everything here is public.

    Attributes:
        columns: The columns.
        target: Name of the column to explain; None if there is none.
        missing_values: Texts that stand for a missing cell in a CSV file.
        inferred: Names of columns whose bounds or categories were taken from the data. Not empty: no guarantee holds.

    Raises:
        DataError: No columns, a name twice, or a target that is not among them.
    """

    columns: tuple[Column, ...]
    target: str | None = None
    missing_values: tuple[str, ...] = DEFAULT_MISSING_VALUES
    inferred: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names:
            raise DataError("the schema names no columns: describe each column to use, with its bounds or categories")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"the schema describes {', '.join(twice)} twice: describe each column once")
        if self.target is not None and self.target not in names:
            raise DataError(
                f"the target '{self.target}' is not described: give its bounds or categories like any other column's"
            )
        if self.target is not None and len(names) == 1:
            raise DataError("the schema describes only the target: describe at least one column that explains it")

    @property
    def features(self) -> tuple[Column, ...]:
        """All columns but the target."""
        return tuple(column for column in self.columns if column.name != self.target)

    @property
    def target_column(self) -> Column | None:
        """The column to explain."""
        return next((column for column in self.columns if column.name == self.target), None)

    def describe(self) -> tuple[str, ...]:
        """One line a column, for the list of public facts in a statement."""
        lines = []
        for column in self.columns:
            if column.bounds is not None:
                rule = f"{column.bounds[0]:g} to {column.bounds[1]:g}"
            else:
                rule = " | ".join(column.categories)
            role = ", the target" if column.name == self.target else ""
            lines.append(f"{column.name} ({column.kind}{role}): {rule}")
        return tuple(lines)


def schema_from_toml(path: Path | str, *, target: str | None = None) -> Schema:
    """Read a schema file.

    The file has an optional `target`, optional `missing_values`, and a table for each column::

        target = "smoker"
        missing_values = ["", "?"]

        [columns.age]
        kind = "real"
        bounds = [17, 90]

        [columns.region]
        kind = "categorical"
        categories = ["north", "south"]
        missing = "indicator"

        [columns.smoker]
        kind = "binary"
        categories = ["no", "yes"]

    Args:
        path: The file.
        target: Overrides the file's target.

    Raises:
        DataError: The file cannot be read, is no TOML, or describes no valid schema.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"the schema {path} cannot be read ({error.strerror}): check the path") from None
    except UnicodeDecodeError:
        raise DataError(f"the schema {path} is not UTF-8 text: save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"the schema {path} is not valid TOML: {error}") from None
    return schema_from_dict(content, target=target)


def schema_from_dict(content: Mapping[str, Any], *, target: str | None = None) -> Schema:
    """A schema from the content of its TOML file; see `schema_from_toml`.

    >>> schema_from_dict({"columns": {"age": {"kind": "real", "bounds": [17, 90]}}}).columns[0].bounds
    (17.0, 90.0)
    """
    _only(content, {"columns", "target", "missing_values"}, "the schema")
    columns = content.get("columns")
    if not isinstance(columns, Mapping):
        raise DataError("the schema has no [columns.NAME] tables: describe each column to use in one")
    asked = target if target is not None else content.get("target")
    missing_values = content.get("missing_values", DEFAULT_MISSING_VALUES)
    return Schema(
        columns=tuple(_column(name, entry) for name, entry in columns.items()),
        target=None if asked is None else str(asked),
        missing_values=_texts(missing_values, "missing_values"),
    )


def _column(name: str, entry: Any) -> Column:
    where = f"column '{name}'"
    if not isinstance(entry, Mapping):
        raise DataError(f"{where} is not a table: write [columns.{name}] and below it kind = ...")
    _only(entry, {"kind", "bounds", "categories", "missing"}, where)
    kind = _choice(Kind, entry.get("kind"), f"{where}: kind")
    bounds = entry.get("bounds")
    if bounds is not None:
        if not isinstance(bounds, Sequence) or len(bounds) != 2 or not all(_is_number(bound) for bound in bounds):
            raise DataError(f"{where}: bounds must be two numbers, bounds = [lowest, highest]")
        bounds = (float(bounds[0]), float(bounds[1]))
    categories = _texts(entry.get("categories", ZERO_OR_ONE if kind is Kind.BINARY else ()), f"{where}: categories")
    missing = _choice(Missing, entry.get("missing", Missing.REFUSE), f"{where}: missing")
    return Column(name=name, kind=kind, bounds=bounds, categories=categories, missing=missing)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _choice(choices: type[E], value: Any, where: str) -> E:
    try:
        return choices(value)
    except ValueError:
        raise DataError(f"{where} is {value!r}: choose one of {', '.join(choices)}") from None


def _texts(values: Any, where: str) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise DataError(f'{where} must be a list, for example ["no", "yes"]')
    return tuple(str(value).lower() if isinstance(value, bool) else str(value) for value in values)


def _only(content: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(content) - known)
    if unknown:
        raise DataError(f"{where} has unknown keys {', '.join(unknown)}: known are {', '.join(sorted(known))}")
