"""The column of survey weights: described like any other, no feature, and between 0 and 1 in the records."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.tabular.tables import (
    DataError,
    Records,
    conversion_of,
    convert,
    decode,
    encode,
    schema_from_dict,
    schema_from_toml,
    schema_to_toml,
)

COLUMNS: dict[str, Any] = {
    "age": {"kind": "real", "bounds": [0, 100]},
    "w": {"kind": "real", "bounds": [0, 8]},
    "ill": {"kind": "binary", "categories": ["no", "yes"]},
}
TABLE = {
    "id": ["a", "b", "a", "c"],
    "age": [20, 40, 60, 80],
    "w": [2.0, 8.0, 4.0, 0.0],
    "ill": ["no", "yes"] * 2,
}


def schema_of(**changes: Any) -> Any:
    return schema_from_dict({"target": "ill", "weight": "w", "columns": COLUMNS} | changes)


def test_a_weight_is_no_feature_and_a_share_of_the_largest(tmp_path: Path) -> None:
    schema = schema_of()
    records = encode(TABLE, schema)
    assert records.feature_names == ("age",)
    assert len(records.arrays) == 2
    assert records.weights is not None
    np.testing.assert_array_equal(records.weights, [0.25, 1, 0.5, 0])
    assert records.y is not None
    np.testing.assert_array_equal(records.y, [0, 1, 0, 1])
    assert "w (real, the survey weight): 0 to 8" in schema.describe()
    (tmp_path / "schema.toml").write_text(schema_to_toml(schema))
    assert schema_from_toml(tmp_path / "schema.toml") == schema
    assert decode(records.x, schema, records.y).column_names == ["age", "ill"]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("max_rows", [0, 1, 2])
def test_converted_weights_are_those_of_their_records(
    tmp_path: Path, max_rows: int, shards: int
) -> None:
    person = {"person": {"column": "id", "max_rows": max_rows}} if max_rows else {}
    schema = schema_of(**person)
    wanted = encode(TABLE, schema, key=bytes(32))
    found = convert(TABLE, schema, tmp_path / "out", key=bytes(32), shards=shards)

    def rows(records: Records) -> list[Any]:
        arrays = [
            x if isinstance(x, np.ndarray) else x.whole()
            for x in (records.x, records.y, records.weights)
        ]
        together = np.concatenate([arrays[0], arrays[1][..., None], arrays[2][..., None]], axis=-1)
        return sorted(together.reshape(len(together), -1).tolist())

    assert rows(found) == rows(wanted)
    made = conversion_of(tmp_path / "out")
    assert made is not None
    assert made.schema == schema
    convert(TABLE, schema, tmp_path / "out", key=bytes(32))


def test_a_row_without_weight_is_dropped_where_the_schema_says_so() -> None:
    table = TABLE | {"w": [2.0, None, 4.0, 0.0]}
    with pytest.raises(DataError, match="'w' has missing cells"):
        encode(table, schema_of())
    dropped = schema_of(columns=COLUMNS | {"w": {**COLUMNS["w"], "missing": "drop"}})
    records = encode(table, dropped)
    assert np.isnan(records.x[:, 0]).tolist() == [False, True, False, False]


def test_weights_above_the_bound_are_the_column_rules(tmp_path: Path) -> None:
    table = TABLE | {"w": [2.0, 80.0, 4.0, 0.0]}
    with pytest.raises(DataError, match="'w'"):
        encode(table, schema_of())
    found = encode(table, schema_of(), out_of_bounds="clip").weights
    assert found is not None
    np.testing.assert_array_equal(found, [0.25, 1, 0.5, 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": "v"}, "'v' is not described"),
        ({"weight": "ill"}, "both target and weight"),
        (
            {
                "weight": "w",
                "target": None,
                "columns": {"w": {"kind": "binary"}, "age": COLUMNS["age"]},
            },
            "a number from 0",
        ),
        ({"columns": COLUMNS | {"w": {"kind": "real", "bounds": [-1, 8]}}}, "a number from 0"),
        ({"columns": COLUMNS | {"w": {**COLUMNS["w"], "missing": "indicator"}}}, 'write "drop"'),
        ({"columns": {"w": COLUMNS["w"], "ill": COLUMNS["ill"]}}, "only the target"),
    ],
)
def test_what_is_no_weight_is_refused(changes: dict[str, Any], message: str) -> None:
    changes = {name: value for name, value in changes.items() if value is not None}
    content = {"target": "ill", "weight": "w", "columns": COLUMNS} | changes
    if "age" in content["columns"] and "ill" not in content["columns"]:
        del content["target"]
    with pytest.raises(DataError, match=message):
        schema_from_dict(content)
