"""The public description of a table: columns with kinds and bounds or categories, and what becomes of odd cells.

Needs no reader of tables and no array library, so that rooms which must never touch a table can know its form.
"""

from discreet.schema._bounds import schema_from_bounds
from discreet.schema._column import DEFAULT_MISSING_VALUES, EPOCH, ZERO_OR_ONE, Column, Kind, Missing
from discreet.schema._errors import DataError
from discreet.schema._schema import Schema
from discreet.schema._toml import schema_from_dict, schema_from_toml, schema_template, schema_to_toml

__all__ = [
    "DEFAULT_MISSING_VALUES",
    "EPOCH",
    "ZERO_OR_ONE",
    "Column",
    "DataError",
    "Kind",
    "Missing",
    "Schema",
    "schema_from_bounds",
    "schema_from_dict",
    "schema_from_toml",
    "schema_template",
    "schema_to_toml",
]
