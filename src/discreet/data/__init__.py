"""A table of people with a public schema, read from a file and encoded as arrays of records.

Bounds and categories are public input: they come from the questionnaire, the code book or common sense, never from
the cells. What goes wrong with a cell is reported by column and rule, without values, rows or counts; that an error
occurred at all is still something that the data said, see docs/tables.md.
"""

from discreet.data._convert import Conversion, conversion_of, convert, open_records
from discreet.data._decode import decode
from discreet.data._encode import Records, encode
from discreet.data._files import column_names
from discreet.data._infer import infer_columns_non_private
from discreet.data._person import keep_one_row_a_person
from discreet.data._read import read_table
from discreet.data._report import OutOfBounds
from discreet.schema import (
    Column,
    DataError,
    Kind,
    Missing,
    Schema,
    schema_from_bounds,
    schema_from_dict,
    schema_from_toml,
)

__all__ = [
    "Column",
    "Conversion",
    "DataError",
    "Kind",
    "Missing",
    "OutOfBounds",
    "Records",
    "Schema",
    "column_names",
    "conversion_of",
    "convert",
    "decode",
    "encode",
    "infer_columns_non_private",
    "keep_one_row_a_person",
    "open_records",
    "read_table",
    "schema_from_bounds",
    "schema_from_dict",
    "schema_from_toml",
]
