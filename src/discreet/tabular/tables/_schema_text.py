"""Schemas as text: TOML files, read and written, and a template to fill in."""

import dataclasses
import datetime
import enum
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from discreet._validate import is_real
from discreet.tabular.tables._schema import (
    DEFAULT_MISSING_VALUES,
    ZERO_OR_ONE,
    Bought,
    Column,
    CsvFormat,
    DataError,
    Kind,
    Missing,
    OfColumn,
    OutOfBounds,
    Schema,
    all_faults,
    is_date,
)

E = TypeVar("E", bound=enum.StrEnum)
R = TypeVar("R")
# How a schema file names what was released from the data privately, with its cost.
BOUGHT = "private_from_data"
# The person of a schema that says that no person has two rows.
EACH_ROW = "each row"


def schema_from_toml(path: Path | str, *, target: str | None = None) -> Schema:
    """Read a schema file.

    The file has an optional `target`, `weight` (the column of survey weights), `person` and
    `missing_values`, and a table for each column. `person = "patient"` names the column that
    identifies persons; one row of each is used, or up to `max_rows`. `person = "each row"` says
    that no person
    has two rows::

        target = "smoker"
        person = {column = "patient", max_rows = 5}
        weight = "sampled_for"
        missing_values = ["", "?"]

        [columns.age]
        kind = "real"
        bounds = [17, 90]
        unit = "years"

        [columns.sampled_for]
        kind = "real"
        bounds = [0, 20]

        [columns.region]
        kind = "categorical"
        categories = ["north", "south"]
        missing = "indicator"

        [columns.admitted]
        kind = "date"
        bounds = [2000-01-01, 2024-12-31]

        [columns.smoker]
        kind = "binary"
        categories = ["no", "yes"]

        [csv]
        delimiter = ";"
        decimal = ","
        date_format = "%d.%m.%Y"

    Args:
        path: The file.
        target: Overrides the file's target.

    Raises:
        DataError: The file cannot be read, is no TOML, or describes no valid schema. All mistakes
            are said at once.
    """
    return schema_from_dict(_content(path), target=target)


def _content(path: Path | str) -> dict[str, Any]:
    """The content of a schema file."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"the schema {path} cannot be read ({error.strerror}): check the path"
        ) from None
    except UnicodeDecodeError:
        raise DataError(f"the schema {path} is not UTF-8 text: save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise DataError(
            f"the schema {path} is not valid TOML ({error}): correct it, or begin with what discreet schema init TABLE writes"
        ) from None


def schema_from_dict(content: Mapping[str, Any], *, target: str | None = None) -> Schema:
    """A schema from the content of its TOML file; see `schema_from_toml`.

    >>> schema_from_dict({"columns": {"age": {"kind": "real", "bounds": [17, 90]}}}).columns[0].bounds
    (17.0, 90.0)
    """
    asked = target if target is not None else content.get("target")
    faults = []

    def found(default: R, read: Callable[..., R], *args: Any) -> R:
        try:
            return read(*args)
        except DataError as error:
            faults.append(error.args[0])
            return default

    known = {
        "columns",
        "target",
        "weight",
        "missing_values",
        "person",
        "impossible",
        "csv",
        BOUGHT,
    }
    found(None, _only, content, known, "the schema")
    columns = content.get("columns")
    if not isinstance(columns, Mapping):
        faults.append("the schema has no [columns.NAME] tables: describe each column to use in one")
        raise DataError(all_faults(faults))
    each_row = content.get("person") == EACH_ROW
    person, max_rows = found((None, 1), _person, None if each_row else content.get("person"))
    parts: dict[str, Any] = {
        # A column that cannot be read has a stand-in, so that the rest is checked, too.
        "columns": tuple(
            found(dataclasses.replace(_STAND_IN, name=name), _column, name, entry)
            for name, entry in columns.items()
        ),
        "target": None if asked is None else str(asked),
        "weight": None if "weight" not in content else str(content["weight"]),
        "missing_values": found(
            (), _texts, content.get("missing_values", DEFAULT_MISSING_VALUES), "missing_values"
        ),
        "person": person,
        "max_rows": max_rows,
        "each_row": each_row,
        "impossible": found((), _impossible, content.get("impossible", ())),
        "csv": found(CsvFormat(), _csv, content.get("csv", {})),
        "bought": found(None, _bought, content.get(BOUGHT)),
    }
    schema = found(None, lambda: Schema(**parts))
    if schema is None or faults:
        raise DataError(all_faults(faults))
    return schema


_STAND_IN = Column(name="", kind=Kind.BINARY, categories=("\0", "\1"))


def _csv(entry: Any) -> CsvFormat:
    if not isinstance(entry, Mapping) or not all(
        isinstance(value, str) for value in entry.values()
    ):
        raise DataError(
            'the schema\'s csv is no table of texts: write [csv] and below it delimiter = ";" and so on'
        )
    _only(entry, {field.name for field in dataclasses.fields(CsvFormat)}, "the schema's [csv]")
    return CsvFormat(**entry)


def _bought(entry: Any) -> Bought | None:
    """The release that bounds come from."""
    if entry is None:
        return None
    named = {
        "columns": list,
        "epsilon": (int, float),
        "delta": (int, float),
        "date": datetime.date,
        "statement": str,
    }
    fits = isinstance(entry, Mapping) and {*named} - {"statement"} <= {*entry} <= {*named}
    if not fits or not all(isinstance(value, named[name]) for name, value in entry.items()):
        raise DataError(
            f"{BOUGHT} is not as discreet schema init wrote it: columns, epsilon, delta, date, statement"
        )
    made_on = entry["date"]
    return Bought(
        columns=_texts(entry["columns"], f"{BOUGHT}: columns"),
        epsilon=entry["epsilon"],
        delta=entry["delta"],
        made_on=made_on,
        statement=entry.get("statement", ""),
    )


def _bought_value(bought: Bought | None) -> Any:
    """The release in the format of `_bought`."""
    if bought is None:
        return None
    named = {
        "columns": bought.columns,
        "epsilon": bought.epsilon,
        "delta": bought.delta,
        "date": bought.made_on,
    }
    return named | ({"statement": bought.statement} if bought.statement else {})


def _impossible(entries: Any) -> Any:
    """Pairs of columns with the values that no row has both of."""
    if not isinstance(entries, Sequence) or not all(
        isinstance(entry, Mapping) for entry in entries
    ):
        raise DataError(
            'impossible must be a list of pairs, impossible = [{sex = "male", pregnant = "yes"}]'
        )
    lists = (
        {name: [x] if isinstance(x, str) else x for name, x in entry.items()} for entry in entries
    )
    return tuple(
        tuple((name, tuple(x) if isinstance(x, Sequence) else (x,)) for name, x in one.items())
        for one in lists
    )


def _person(entry: Any) -> tuple[str | None, Any]:
    """The person's column and the number of rows to use, from a name or a table of both."""
    if entry == "":
        raise DataError(
            'the schema\'s person is not filled in: name the column that identifies persons, or write person = "each row" if no '
            "person has two rows"
        )
    if not isinstance(entry, Mapping):
        return None if entry is None else str(entry), 1
    _only(entry, {"column", "max_rows"}, "the schema's person")
    if not isinstance(entry.get("column"), str):
        raise DataError(
            'the schema\'s person names no column: write person = {column = "id", max_rows = 5}'
        )
    return entry["column"], entry.get("max_rows", 1)


def _person_value(schema: Schema) -> Any:
    """The schema's person and number of rows in the format of `_person`."""
    if schema.each_row:
        return EACH_ROW
    plain = schema.max_rows == 1 and schema.person != EACH_ROW
    return schema.person if plain else {"column": schema.person, "max_rows": schema.max_rows}


def schema_to_toml(schema: Schema, *, hints: bool = False, more: Sequence[str] = ()) -> str:
    """The text of a file that `schema_from_toml` reads as this schema.

    Args:
        schema: The schema.
        hints: Name in a comment the kind that a column of these bounds or categories may also have.
        more: Texts of further columns, as of `blank_columns`.

    >>> print(schema_to_toml(Schema(columns=(Column(name="age", kind=Kind.REAL, bounds=(17, 90), unit="years"),))))
    [columns.age]
    kind = "real"
    bounds = [17, 90]
    unit = "years"
    <BLANKLINE>
    """
    top = [
        f"{key} = {_value(value)}"
        for key, value, default in [
            ("target", schema.target, None),
            ("weight", schema.weight, None),
            ("person", _person_value(schema), None),
            ("missing_values", schema.missing_values, DEFAULT_MISSING_VALUES),
            ("impossible", [dict(pair) for pair in schema.impossible], []),
            (BOUGHT, _bought_value(schema.bought), None),
        ]
        if value != default
    ]
    parts = ["\n".join(top)] if top else []
    for column in schema.columns:
        hint = other_kind(column) if hints else ""
        lines = [
            f"[columns.{_key(column.name)}]",
            f"kind = {_value(column.kind)}" + f"   # {hint}" * bool(hint),
        ]
        if column.bounds is None:
            lines.append(f"categories = {_value(column.categories)}")
        else:
            lines.append(
                f"bounds = {_value(column.bounds if column.kind is Kind.DATE else column.limits)}"
            )
        lines += [f"step = {_value(column.step)}"] if column.step is not None else []
        lines += [f"unit = {_value(column.unit)}"] if column.unit else []
        lines += (
            [f"missing = {_value(column.missing)}"] if column.missing is not Missing.REFUSE else []
        )
        lines += (
            [f"out_of_bounds = {_value(column.out_of_bounds)}"]
            if column.out_of_bounds is not None
            else []
        )
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, *more, *_csv_table(schema.csv)]) + "\n"


def blank_columns(
    names: Sequence[str], kinds: Mapping[str, Kind], why: Mapping[str, str]
) -> list[str]:
    """Columns to be filled in or deleted, each as a table of a schema file.

    Args:
        names: Their names.
        kinds: Kinds of columns that are known, by name.
        why: Remarks, by name.

    >>> print(*blank_columns(["born"], {"born": Kind.DATE}, {"born": "to be filled in"}))
    [columns.born]   # to be filled in
    kind = "date"
    bounds = []
    """
    return [
        f"[columns.{_key(name)}]"
        + f"   # {why.get(name)}" * bool(why.get(name))
        + "\n"
        + _blank_lines(kinds.get(name))
        for name in names
    ]


def other_kind(column: Column) -> str:
    """The kind that a column of these bounds or categories may also have, and when; empty where there is none.

    >>> other_kind(Column(name="visits", kind=Kind.REAL, bounds=(0, 50)))
    'a guess: "count", if all values are integers from 0'
    """
    if column.kind is Kind.CATEGORICAL:
        return 'a guess: "ordered", if the categories go from the lowest to the highest'
    if (
        column.kind is Kind.REAL
        and min(column.limits) >= 0
        and all(limit.is_integer() for limit in column.limits)
    ):
        return 'a guess: "count", if all values are integers from 0'
    return ""


def _csv_table(csv: CsvFormat) -> list[str]:
    lines = [
        f"{name} = {_value(x)}" for name, x in vars(csv).items() if x != getattr(CsvFormat(), name)
    ]
    return ["\n".join(["[csv]", *lines])] if lines else []


def schema_template(
    names: Sequence[str],
    *,
    target: str | None = None,
    person: str | None = None,
    csv: CsvFormat | None = None,
    kinds: Mapping[str, Kind] | None = None,
) -> str:
    """A schema file to fill in, from the names of the columns alone. `schema_from_toml` refuses it until it is filled in.

    Args:
        names: Names of the columns.
        target: The column to explain, if it is known already.
        person: The column that identifies persons, likewise, which is not described; or "each row".
        csv: The table's text format, likewise.
        kinds: Kinds of columns, likewise, by name.

    Raises:
        DataError: No names, or a target or person that is not among them.
    """
    if not names:
        raise DataError("there are no column names: a template needs a header")
    for option, name in (("target", target), ("person", None if person == EACH_ROW else person)):
        if name is not None and name not in names:
            raise DataError(
                f"the table has no column '{name}', which is to be the {option}: correct the name"
            )
    whose = (
        f"{{column = {_value(person)}, max_rows = 1}}"
        if person not in (None, EACH_ROW)
        else _value(person or "")
    )
    head = TEMPLATE_HEAD.format(
        target=f"# target = {_value('')}" if target is None else f"target = {_value(target)}",
        person=f"person = {whose}",
    )
    lines = [
        f"{_key(name)} = {_BLANK[(kinds or {}).get(name)]}" for name in names if name != person
    ]
    csv = csv or CsvFormat()
    return (
        "\n\n".join([head, "\n".join(["[columns]", *lines]), *_csv_table(csv)])
        + "\n"
        + decimal_hint(csv)
    )


def decimal_hint(csv: CsvFormat) -> str:
    """A comment to end the table [csv] of a schema with, where semicolons suggest decimal commas, which no header shows.

    >>> print(decimal_hint(CsvFormat(delimiter=";")), end="")
    # decimal = ","   # remove the first # if the table has 1234,5 for 1234.5
    """
    if csv.delimiter != ";" or csv.decimal != ".":
        return ""
    return '# decimal = ","   # remove the first # if the table has 1234,5 for 1234.5\n'


_BLANK = {
    None: '{kind = ""}',
    Kind.REAL: '{kind = "real", bounds = []}',
    Kind.DATE: '{kind = "date", bounds = []}',
    Kind.BINARY: '{kind = "binary", categories = ["false", "true"]}',
    Kind.CATEGORICAL: '{kind = "categorical", categories = []}',
}


def _blank_lines(kind: Kind | None) -> str:
    return "\n".join(_BLANK[kind].strip("{}").split(", ", 1))


TEMPLATE_HEAD = """\
# What is publicly known of each column: from the questionnaire, the code book or common sense, never from the cells.
# Delete the columns that are not to be read, and fill in the others:
#   {{kind = "real", bounds = [0, 100]}}                  a number; also unit = "cm"; step = 1 makes it whole in twins
#   {{kind = "count", bounds = [0, 50]}}                  an integer from 0
#   {{kind = "date", bounds = [1900-01-01, 2025-12-31]}}
#   {{kind = "binary", categories = ["no", "yes"]}}       the second is encoded as 1
#   {{kind = "categorical", categories = ["north", "south", "east"]}}
#   {{kind = "ordered", categories = ["low", "middle", "high"]}}
# Missing cells are refused, unless a column has missing = "indicator", or as a target missing = "drop", by which such rows
# contribute nothing. Cells that a column does not list or bound, such as an answer that you do not want of the target, are
# refused, unless it also has out_of_bounds = "missing".

# Whose is a row? "each row" if no person has two rows; else the column that identifies persons, and the most rows to use:
# person = {{column = "id", max_rows = 1}}
{person}

# The column to explain:
{target}
# weight = "w"  # the column of survey weights, of kind real: its upper bound is the largest that a row may have
# missing_values = ["", "NA"]
# impossible = [{{sex = "male", pregnant = "yes"}}]  # values of two columns that no row of a twin has both of
# How a CSV file is written, as a table [csv] at the end of this file, where otherwise than 1234.5 and 2024-12-31 in UTF-8:
#   delimiter = ";"   decimal = ","   thousands = "."   date_format = "%d.%m.%Y"   encoding = "cp1252", utf-16 and so on"""


def _column(name: str, entry: Any) -> Column:
    try:
        facts = _facts(name, entry)
    except DataError as error:
        raise DataError(OfColumn(name, str(error))) from None
    return Column(name=name, **facts)


def _facts(name: str, entry: Any) -> dict[str, Any]:
    """What a schema says of a column. What is wrong is said without its name."""
    if not isinstance(entry, Mapping):
        raise DataError(f" is not a table: write [columns.{name}] and below it kind = ...")
    _only(entry, {"kind", "bounds", "categories", "missing", "out_of_bounds", "unit", "step"}, "")
    kind = _choice(Kind, entry.get("kind"), ": kind")
    bounds = entry.get("bounds")
    if bounds is not None:
        fits = is_real
        what = "two numbers, bounds = [lowest, highest]"
        if kind is Kind.DATE:
            fits = is_date
            what = "two dates, bounds = [1900-01-01, 2020-12-31]"
        if not isinstance(bounds, list | tuple) or len(bounds) != 2 or not all(map(fits, bounds)):
            raise DataError(f": bounds must be {what}")
        bounds = (
            (bounds[0], bounds[1]) if kind is Kind.DATE else (float(bounds[0]), float(bounds[1]))
        )
    categories = _texts(
        entry.get("categories", ZERO_OR_ONE if kind is Kind.BINARY else ()), ": categories"
    )
    missing = _choice(Missing, entry.get("missing", Missing.REFUSE), ": missing")
    rule = entry.get("out_of_bounds")
    if rule is not None:
        rule = _choice(OutOfBounds, rule, ": out_of_bounds")
    unit = entry.get("unit", "")
    if not isinstance(unit, str):
        raise DataError(': unit must be a text, for example "years"')
    return {
        "kind": kind,
        "bounds": bounds,
        "categories": categories,
        "missing": missing,
        "out_of_bounds": rule,
        "unit": unit,
        "step": entry.get("step"),
    }


def _value(value: Any) -> str:
    """A text, number, date, list or mapping of them as TOML."""
    if isinstance(value, str):
        # TOML's basic strings are JSON's, but for one character that JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items()) + "}"
        )
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return repr(int(value))
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _value(name)


def _choice(choices: type[E], value: Any, where: str) -> E:
    try:
        return choices(value)
    except ValueError:
        said = "not filled in" if value in (None, "") else repr(value)
        raise DataError(f"{where} is {said}: choose one of {', '.join(choices)}") from None


def _texts(values: Any, where: str) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise DataError(f'{where} must be a list, for example ["no", "yes"]')
    return tuple(str(value).lower() if isinstance(value, bool) else str(value) for value in values)


def _only(content: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(content) - known)
    if unknown:
        raise DataError(
            f"{where} has unknown keys {', '.join(unknown)}: known are {', '.join(sorted(known))}"
        )
