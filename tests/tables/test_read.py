import datetime
import gzip

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from discreet.tabular.tables import (
    Column,
    DataError,
    Kind,
    Missing,
    OutOfBounds,
    Report,
    Schema,
    column_kinds,
    column_names,
    encode,
    over_pieces,
    read_table,
    schema_from_bounds,
)

SCHEMA = schema_from_bounds("age=0:100,region=north|south|east,smoker=no|yes", target="smoker")
CSV = b"age,region,other,smoker\n50,north,secretcell,no\n75,east,2,yes\n"


def write(tmp_path, content: bytes, name: str = "table.csv"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_csv_gzip_and_parquet_agree(tmp_path) -> None:
    plain = write(tmp_path, CSV)
    packed = write(tmp_path, gzip.compress(CSV), "table.csv.gz")
    parquet = tmp_path / "table.parquet"
    columns = {"smoker": ["no", "yes"], "age": [50, 75], "region": ["north", "east"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), parquet)
    for path in (plain, packed, parquet):
        records = encode(read_table(path, SCHEMA), SCHEMA)
        np.testing.assert_array_equal(records.x, [[0, 1, 0, 0], [0.5, 0, 0, 1]])
        np.testing.assert_array_equal(records.y, [0, 1])
        assert records.feature_names == ("age", "region=north", "region=south", "region=east")
    assert column_names(plain) == ["age", "region", "other", "smoker"]


def test_columns_are_read_as_the_schema_says(tmp_path) -> None:
    """Codes such as 01 are texts although they look like numbers."""
    path = write(tmp_path, b"code,y\n01,1\n02,0\n")
    schema = schema_from_bounds("code=01|02|03,y=0|1", target="y")
    np.testing.assert_array_equal(
        encode(read_table(path, schema), schema).x, [[1, 0, 0], [0, 1, 0]]
    )


@pytest.mark.parametrize(
    ("content", "name", "needle"),
    [
        (b"", "t.csv", "is empty"),
        (b"\n", "t.csv", "is empty"),
        (b"age,region,smoker\n", "t.csv", "no rows"),
        (b"age,region,smoker", "t.csv", "has a header but no rows"),
        (b"<html>secretcell</html>", "t.csv", "no column age"),
        (
            b"Age, region,smoker\n1,north,no\n",
            "t.csv",
            "correct the capitals or spaces of age, region",
        ),
        (b"age,region\n1,north\n", "t.csv", "no column smoker. Its first line must hold the names"),
        (b"secretcell,north,no\n1,north,no\n", "t.csv", "add it if the file has none"),
        (b"age,age,region,smoker\n1,1,north,no\n", "t.csv", "1 column name.s. twice"),
        (
            b"age,region,smoker\n1,north,no\nsecretcell,north,no\n",
            "t.csv",
            "'age' holds something that is not a number",
        ),
        (b"age,region,smoker\n1,north,no\n1,secretcell\n", "t.csv", "more or fewer cells"),
        (b"age,region,smoker\n1,north,\xff\xfe\n", "t.csv", "UTF-8"),
        (b"age,region,smoker\r1,north,no\r", "t.csv", "carriage returns alone"),
        (gzip.compress(CSV * 50, mtime=0)[:-12], "t.csv.gz", "cannot be read as CSV"),
        (b"not arrow", "t.feather", "cannot be read as Feather"),
        (b"not gzip at all", "t.csv.gz", "cannot be read as CSV"),
        (b"not parquet", "t.parquet", "cannot be read as Parquet"),
        (b"", "t.parquet", "is empty"),
        (CSV, "t.xlsx", "type that is not read"),
    ],
)
def test_bad_files_are_refused_without_quoting_them(tmp_path, content, name, needle) -> None:
    path = write(tmp_path, content, name)
    with pytest.raises(DataError, match=needle) as caught:
        read_table(path, SCHEMA)
    assert "secretcell" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_columns_without_a_name_are_left_alone(tmp_path) -> None:
    """A spreadsheet's rows end in delimiters, and a data frame's begin with their number."""
    path = write(tmp_path, b",age,region,smoker,,\n0,50,north,no,,\n1,75,east,yes,,\n")
    assert read_table(path, SCHEMA)["age"].to_pylist() == [50, 75]


def test_only_a_table_without_rows_is_called_empty(tmp_path) -> None:
    """A function of a piece may find nothing, as where cells are refused: these are reported, not an empty table."""
    path = write(tmp_path, CSV)
    report = Report(OutOfBounds.REFUSE)
    assert list(over_pieces(path, SCHEMA, lambda table: None, report)) == [None]


def test_absent_files_and_folders_are_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_table(tmp_path / "none.csv", SCHEMA)
    with pytest.raises(DataError, match="is not a file"):
        read_table(tmp_path, SCHEMA)


def test_texts_in_a_parquet_column_of_numbers(tmp_path) -> None:
    path = tmp_path / "t.parquet"
    columns = {"age": ["1", "secretcell"], "region": ["north", "east"], "smoker": ["no", "no"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(DataError, match="'age' holds something that is not a number") as caught:
        read_table(path, SCHEMA)
    assert "secretcell" not in str(caught.value)


def test_kinds_come_from_the_types_of_a_parquet_file(tmp_path) -> None:
    columns = {
        "age": [1],
        "height": [1.5],
        "sex": ["f"],
        "ill": [True],
        "born": [datetime.date(2000, 1, 1)],
        "odd": [[1]],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    found = column_kinds(tmp_path / "t.parquet")
    assert found == {
        "age": "real",
        "height": "real",
        "sex": "categorical",
        "ill": "binary",
        "born": "date",
    }
    assert column_kinds(write(tmp_path, CSV)) == {}


def test_categories_that_are_numbers_match_by_value(tmp_path) -> None:
    """Integers with missing cells are often written 1.0; a code such as 01 is no number."""
    column = Column(name="ward", kind=Kind.CATEGORICAL, categories=("1", "2.0", "03", "-1"))
    schema = Schema(columns=(column,))
    path = write(tmp_path, b"ward\n1.0\n1.\n2\n 2.00\n03\n-1.0\n")
    assert encode(read_table(path, schema), schema).x.argmax(axis=1).tolist() == [0, 0, 1, 1, 2, 3]
    for cell in (b"3", b"01", b"1e0", b"1.5", b"nan"):
        with pytest.raises(DataError, match=r"outside its public categories|missing cells"):
            encode(read_table(write(tmp_path, b"ward\n" + cell + b"\n"), schema), schema)
    both = Schema(columns=(Column(name="ward", kind=Kind.CATEGORICAL, categories=("1", "1.0")),))
    assert encode(read_table(write(tmp_path, b"ward\n1\n1.0\n"), both), both).x.tolist() == [
        [1, 0],
        [0, 1],
    ]


def test_real_table_of_adult(table) -> None:
    path = table("adult.csv.gz")
    schema = schema_from_bounds(
        "age=17:90,hours_per_week=1:99,education_num=1:16,sex=Female|Male,income=<=50K|>50K",
        target="income",
    )
    records = encode(read_table(path, schema), schema)
    assert records.x.shape == (48_842, 4)
    assert records.x.dtype == np.float32
    assert 0.23 < records.y.mean() < 0.25


@pytest.mark.parametrize(
    ("categories", "words"),
    [
        (("no", "yes"), ("no", "yes")),
        (("Yes", "No"), ("No", "Yes")),
        (("true", "false"), ("false", "true")),
        (("0", "1"), "01"),
    ],
)
def test_one_schema_reads_words_and_truth_values(tmp_path, categories, words) -> None:
    """A CSV file's words and a Parquet file's truth values are the same records, whichever category comes first."""
    schema = Schema(
        columns=(
            Column(
                name="smoker", kind=Kind.BINARY, categories=categories, missing=Missing.INDICATOR
            ),
        )
    )
    truth = [True, False, None, True]
    pyarrow.parquet.write_table(pyarrow.table({"smoker": truth}), tmp_path / "a.parquet")
    texts = ["" if x is None else words[x] for x in truth]
    (tmp_path / "a.csv").write_text(
        "smoker\n" + "\n".join(f'"{x}"' if x else '""' for x in texts) + "\n"
    )
    tables = [read_table(tmp_path / name, schema) for name in ("a.parquet", "a.csv")]
    one, other = (encode(table, schema).x for table in tables)
    assert one.tolist() == other.tolist()
    assert one[0, 0] == categories.index(words[1])


def test_truth_values_without_words_are_refused_with_the_remedy() -> None:
    schema = Schema(
        columns=(Column(name="smoker", kind=Kind.BINARY, categories=("never", "ever")),)
    )
    with pytest.raises(
        DataError, match=r'holds truth values.*write categories = \["false", "true"\]'
    ):
        read_table(pyarrow.table({"smoker": [True, False]}), schema)
