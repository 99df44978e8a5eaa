"""A table of people with a public schema: read from a file, encoded as arrays of records, and decoded again.

The schema's half (columns, bounds, categories) is loaded at once and needs nothing; the readers are
loaded when one is first used and need pyarrow. What goes wrong with a cell is reported by column
and rule, without values, rows or counts; that an error occurred at all is still something that the
data said, see docs/tables.md.

Files, in reading order: `_schema`, `_bounds` and `_schema_text` (as text); `_files`, `_cells`,
`_typed` and `_read` (reading); `_persons`, `_encode` and `_decode`; `_convert` and `_shards` (more
than memory holds).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet._validate import require
from discreet.tabular.tables._bounds import schema_from_bounds as schema_from_bounds
from discreet.tabular.tables._cells import (
    SCHEMA_FILE as SCHEMA_FILE,
    Report as Report,
    coded as coded,
    impossible_rows as impossible_rows,
    to_steps as to_steps,
)
from discreet.tabular.tables._persons import (
    keep_one_row_a_person as keep_one_row_a_person,
    rows_of_persons as rows_of_persons,
)
from discreet.tabular.tables._schema import (
    DEFAULT_MISSING_VALUES as DEFAULT_MISSING_VALUES,
    EPOCH as EPOCH,
    OTHER as OTHER,
    PARTS_OF_SCHEMA as PARTS_OF_SCHEMA,
    ZERO_OR_ONE as ZERO_OR_ONE,
    Bought as Bought,
    Column as Column,
    CsvFormat as CsvFormat,
    DataError as DataError,
    Kind as Kind,
    Missing as Missing,
    OutOfBounds as OutOfBounds,
    Schema as Schema,
)
from discreet.tabular.tables._schema_text import (
    EACH_ROW as EACH_ROW,
    blank_columns as blank_columns,
    decimal_hint as decimal_hint,
    other_kind as other_kind,
    schema_from_dict as schema_from_dict,
    schema_from_toml as schema_from_toml,
    schema_template as schema_template,
    schema_to_toml as schema_to_toml,
)

if TYPE_CHECKING:
    from discreet.tabular.tables._convert import (
        Conversion as Conversion,
        conversion_of as conversion_of,
        convert as convert,
        open_records as open_records,
    )
    from discreet.tabular.tables._decode import cells_of as cells_of, decode as decode
    from discreet.tabular.tables._encode import (
        Records as Records,
        are_levels as are_levels,
        describe_features as describe_features,
        encode as encode,
        encode_features as encode_features,
    )
    from discreet.tabular.tables._files import (
        column_kinds as column_kinds,
        column_names as column_names,
        files_of as files_of,
        sniff_csv as sniff_csv,
    )
    from discreet.tabular.tables._read import (
        over_pieces as over_pieces,
        persons_of as persons_of,
        read_table as read_table,
    )
    from discreet.tabular.tables._shards import ShardedArray as ShardedArray
    from discreet.tabular.tables._typed import (
        as_table as as_table,
        number_of as number_of,
        typed as typed,
    )


# What reads or makes pyarrow tables, by file.
_READERS = {
    "_convert": ("Conversion", "conversion_of", "convert", "open_records"),
    "_decode": ("cells_of", "decode"),
    "_encode": ("Records", "are_levels", "describe_features", "encode", "encode_features"),
    "_files": ("column_kinds", "column_names", "files_of", "sniff_csv"),
    "_read": ("over_pieces", "persons_of", "read_table"),
    "_shards": ("ShardedArray",),
    "_typed": ("as_table", "number_of", "typed"),
}


def __getattr__(name: str) -> Any:
    """Load a reader when it is first used, so that packages that need a schema alone load none."""
    for file, names in _READERS.items():
        if name in names:
            require("pyarrow", extra="tables", what=f"discreet.tables.{name}")
            globals()[name] = getattr(import_module(f"discreet.tabular.tables.{file}"), name)
            return globals()[name]
    raise AttributeError(f"module 'discreet.tabular.tables' has no attribute {name!r}")
