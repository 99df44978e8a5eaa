"""A table of people with a public schema: read from a file, encoded as arrays of records, and decoded again.

The schema's half (columns, bounds, categories) is loaded at once and needs nothing; the readers are loaded when one is first
used and need pyarrow. What goes wrong with a cell is reported by column and rule, without values, rows or counts; that an
error occurred at all is still something that the data said, see docs/tables.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet._validate import require
from discreet.tables._cells import (
    OutOfBounds,
    Report,
    impossible_rows,
    keep_one_row_a_person,
    numbers_of,
    positions_of,
    rows_of_persons,
    to_steps,
    words_of_truth,
)
from discreet.tables._schema import (
    DEFAULT_MISSING_VALUES,
    EPOCH,
    ZERO_OR_ONE,
    Column,
    CsvFormat,
    DataError,
    Kind,
    Missing,
    Schema,
)
from discreet.tables._schema_text import (
    schema_from_bounds,
    schema_from_dict,
    schema_from_toml,
    schema_template,
    schema_to_toml,
)

if TYPE_CHECKING:
    from discreet.tables._convert import Conversion, ShardedArray, conversion_of, convert, open_records
    from discreet.tables._encode import Records, decode, describe_features, encode
    from discreet.tables._read import (
        as_table,
        column_names,
        files_of,
        infer_columns_non_private,
        over_pieces,
        read_table,
        sniff_csv,
    )

__all__ = [
    "DEFAULT_MISSING_VALUES",
    "EPOCH",
    "ZERO_OR_ONE",
    "Column",
    "Conversion",
    "CsvFormat",
    "DataError",
    "Kind",
    "Missing",
    "OutOfBounds",
    "Records",
    "Report",
    "Schema",
    "ShardedArray",
    "as_table",
    "column_names",
    "conversion_of",
    "convert",
    "decode",
    "describe_features",
    "encode",
    "files_of",
    "impossible_rows",
    "infer_columns_non_private",
    "keep_one_row_a_person",
    "numbers_of",
    "open_records",
    "over_pieces",
    "positions_of",
    "read_table",
    "rows_of_persons",
    "schema_from_bounds",
    "schema_from_dict",
    "schema_from_toml",
    "schema_template",
    "schema_to_toml",
    "sniff_csv",
    "to_steps",
    "words_of_truth",
]

# What reads or makes pyarrow tables, by file.
_READERS = {
    "_convert": ("Conversion", "ShardedArray", "conversion_of", "convert", "open_records"),
    "_encode": ("Records", "decode", "describe_features", "encode"),
    "_read": (
        "as_table",
        "column_names",
        "files_of",
        "infer_columns_non_private",
        "over_pieces",
        "read_table",
        "sniff_csv",
    ),
}


def __getattr__(name: str) -> Any:
    """Load a reader when it is first used, so that packages that need a schema alone load none."""
    for file, names in _READERS.items():
        if name in names:
            require("pyarrow", extra="tables", what=f"discreet.tables.{name}")
            globals()[name] = getattr(import_module(f"discreet.tables.{file}"), name)
            return globals()[name]
    raise AttributeError(f"module 'discreet.tables' has no attribute {name!r}")
