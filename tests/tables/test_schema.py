import pytest

from discreet.tabular.tables import (
    Column,
    DataError,
    Kind,
    Missing,
    Schema,
    schema_from_bounds,
    schema_from_dict,
    schema_from_toml,
)

TOML = """
target = "smoker"
missing_values = ["", "?"]

[columns.age]
kind = "real"
bounds = [17, 90]

[columns.visits]
kind = "count"
bounds = [0, 50]

[columns.region]
kind = "categorical"
categories = ["north", "south", "east"]
missing = "indicator"

[columns.smoker]
kind = "binary"
categories = ["no", "yes"]
"""


def test_toml_is_read_whole(tmp_path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(TOML)
    schema = schema_from_toml(path)
    assert schema == Schema(
        columns=(
            Column(name="age", kind=Kind.REAL, bounds=(17.0, 90.0)),
            Column(name="visits", kind=Kind.COUNT, bounds=(0.0, 50.0)),
            Column(
                name="region",
                kind=Kind.CATEGORICAL,
                categories=("north", "south", "east"),
                missing=Missing.INDICATOR,
            ),
            Column(name="smoker", kind=Kind.BINARY, categories=("no", "yes")),
        ),
        target="smoker",
        missing_values=("", "?"),
    )
    assert schema_from_toml(path, target="visits").target == "visits"
    assert [column.name for column in schema.features] == ["age", "visits", "region"]


def test_bounds_line() -> None:
    schema = schema_from_bounds(
        "age=17:90, net=-1e3:1e3,region=north|south|east,smoker=<=1 a day|more",
        target="smoker",
        target_kind=Kind.BINARY,
    )
    kinds = {column.name: column.kind for column in schema.columns}
    assert kinds == {"age": "real", "net": "real", "region": "categorical", "smoker": "binary"}
    assert schema.columns[1].bounds == (-1000.0, 1000.0)
    assert schema.columns[3].categories == ("<=1 a day", "more")


def test_a_bounds_line_orders_categories() -> None:
    pain, answer = schema_from_bounds("pain=none < mild<severe,answer=no<yes").columns
    assert pain == Column(name="pain", kind=Kind.ORDERED, categories=("none", "mild", "severe"))
    assert answer == Column(name="answer", kind=Kind.ORDERED, categories=("no", "yes"))


def test_a_bounds_line_has_counts() -> None:
    visits = Column(name="visits", kind=Kind.COUNT, bounds=(0, 20))
    assert schema_from_bounds("visits=0..20").columns == (visits,)
    # as a text, too
    schema = schema_from_bounds("age=17:90,visits=0:20", target="visits", target_kind="count")
    assert schema.target_column == visits


def test_a_binary_target_need_not_be_described() -> None:
    schema = schema_from_bounds("age=17:90", target="smoker", target_kind=Kind.BINARY)
    assert schema.target_column == Column(name="smoker", kind=Kind.BINARY, categories=("0", "1"))


def test_a_count_target_is_a_count() -> None:
    schema = schema_from_bounds("age=17:90,visits=0:20", target="visits", target_kind=Kind.COUNT)
    assert schema.target_column == Column(name="visits", kind=Kind.COUNT, bounds=(0, 20))


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("", "no columns"),
        ("age", "not understood"),
        ("age=", "not understood"),
        ("age=17", "not understood"),
        ("=1:2", "not understood"),
        ("age=a:b", "must be two numbers or two dates"),
        ("born=2000-02-30:2001-01-01", "must be two numbers or two dates"),
        ("born=2001-01-01:2000-01-01", "the earlier one first"),
        ("age=90:17", "the lower one first"),
        ("age=nan:17", "the lower one first"),
        ("age=0:inf", "finite"),
        ("age=1:2,age=1:3", "twice"),
        ("region=a|a", "twice"),
        ("pain=a<b<a", "twice"),
        ("visits=0..a", "must be two numbers"),
        ("visits=0..2.5", "whole"),
        ("pain=<5", "stands for a missing cell"),
    ],
)
def test_bad_bounds_are_refused(text, needle) -> None:
    with pytest.raises(DataError, match=needle):
        schema_from_bounds(text)


def test_a_target_must_be_described_and_explained() -> None:
    with pytest.raises(DataError, match="target 'b' is not described"):
        schema_from_bounds("a=0:1", target="b")
    with pytest.raises(DataError, match="only the target"):
        schema_from_bounds("a=0:1", target="a")


@pytest.mark.parametrize(
    ("column", "needle"),
    [
        ({}, "kind is not filled in"),
        ({"kind": "number"}, "choose one of real, count, binary, categorical"),
        ({"kind": "real"}, "no bounds"),
        ({"kind": "real", "bounds": 3}, "two numbers"),
        ({"kind": "real", "bounds": [1, 2, 3]}, "two numbers"),
        ({"kind": "real", "bounds": [True, False]}, "two numbers"),
        ({"kind": "real", "bounds": ["a", "b"]}, "two numbers"),
        ({"kind": "real", "bounds": [0, 1], "categories": ["a", "b"]}, "has categories"),
        ({"kind": "count", "bounds": [-1, 3]}, "whole bounds from 0"),
        ({"kind": "count", "bounds": [0, 3.5]}, "whole bounds from 0"),
        ({"kind": "binary", "categories": ["a", "b", "c"]}, "exactly two"),
        ({"kind": "categorical"}, "0 categories"),
        ({"kind": "categorical", "categories": "ab"}, "must be a list"),
        ({"kind": "categorical", "categories": ["a", "b"], "bounds": [0, 1]}, "has bounds"),
        ({"kind": "binary", "missing": "zero"}, "choose one of refuse, indicator, drop"),
        ({"kind": "real", "bound": [0, 1]}, "unknown keys bound"),
        (7, "not a table"),
    ],
)
def test_bad_columns_are_refused(column, needle) -> None:
    with pytest.raises(DataError, match=needle):
        schema_from_dict({"columns": {"a": column}})


@pytest.mark.parametrize(
    ("content", "needle"),
    [
        (b"a = ", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"x = 1", "unknown keys x"),
        (b"", "no .columns.NAME."),
    ],
)
def test_bad_schema_files_are_refused(tmp_path, content, needle) -> None:
    path = tmp_path / "schema.toml"
    path.write_bytes(content)
    with pytest.raises(DataError, match=needle):
        schema_from_toml(path)


def test_an_absent_schema_file_is_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        schema_from_toml(tmp_path / "none.toml")
