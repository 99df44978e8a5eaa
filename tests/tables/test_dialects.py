"""Tables as people write them: other marks, encodings and dates, several files, and frames of other libraries."""

import datetime
import gzip
import importlib.resources
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from discreet.tabular.models import Levels
from discreet.tabular.tables import (
    Bought,
    Column,
    CsvFormat,
    DataError,
    Kind,
    Schema,
    column_names,
    convert,
    decode,
    over_pieces,
    read_table,
    schema_from_dict,
    schema_template,
    schema_to_toml,
    sniff_csv,
)
from discreet.tabular.tables._cells import OutOfBounds, Report

COLUMNS = (
    Column(name="größe", kind=Kind.REAL, bounds=(0, 5_000)),
    Column(
        name="born", kind=Kind.DATE, bounds=(datetime.date(1900, 1, 1), datetime.date(2030, 1, 1))
    ),
    Column(name="town", kind=Kind.CATEGORICAL, categories=("Þórshöfn", "a; b", "x")),
)
GERMAN = CsvFormat(delimiter=";", decimal=",", thousands=".", date_format="%d.%m.%Y")
TEXT = '"größe";born;town;more\n1.234,5;31.12.1999;Þórshöfn;1\n,5;01.02.2020;"a; b";"two\nlines"\n-0,25e1;1.2.2020;x;\n'
FACTS = {
    "größe": [1234.5, 0.5, -2.5],
    "born": [datetime.date(1999, 12, 31), datetime.date(2020, 2, 1), datetime.date(2020, 2, 1)],
    "town": ["Þórshöfn", "a; b", "x"],
}


def schema(csv: CsvFormat, **more) -> Schema:
    return Schema(columns=COLUMNS, csv=csv, **more)


def facts(table: pyarrow.Table) -> dict:
    return table.to_pydict()


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-be", "latin-1"]
)
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_a_table_of_another_country(tmp_path, encoding: str, name: str, monkeypatch) -> None:
    """Whatever the pieces: a byte of a character, a quoted line end and a header may lie on any border."""
    import discreet.tabular.tables._read as reader

    content = TEXT.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    described = schema(CsvFormat(**{**vars(GERMAN), "encoding": encoding}))
    for size in (5, 1 << 20):
        monkeypatch.setattr(reader, "PIECE_BYTES", size)
        assert facts(read_table(tmp_path / name, described)) == FACTS
    assert column_names(tmp_path / name, described.csv) == ["größe", "born", "town", "more"]


@pytest.mark.parametrize(
    ("csv", "cell", "number"),
    [
        (GERMAN, "1.5", None),  # never 15
        (GERMAN, "1.234", 1234.0),
        (GERMAN, "12.34,5", None),
        (GERMAN, "1234,5", 1234.5),
        (CsvFormat(delimiter=";", thousands="'"), "1'234.5", 1234.5),
        (CsvFormat(delimiter=";", decimal=","), "1.5", None),
        (CsvFormat(delimiter=";"), "1,5", None),
        (CsvFormat(delimiter=";", thousands=","), "1,500", 1500.0),
        (CsvFormat(delimiter=";", thousands=","), "1,5", None),
    ],
)
def test_a_number_is_read_as_it_is_meant_or_refused(
    tmp_path, csv: CsvFormat, cell: str, number: float | None
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"größe;b\n{cell};secretcell\n7;\n")
    described = Schema(columns=COLUMNS[:1], csv=csv)
    if number is not None:
        assert read_table(path, described)["größe"].to_pylist() == [number, 7.0]
        return
    with pytest.raises(DataError) as caught:
        read_table(path, described)
    said = str(caught.value)
    # The remedy is to say how the table is written; to blank every such cell is none.
    assert "looks like one that is written otherwise" in said
    assert "out_of_bounds" not in said
    assert "[csv]" in said
    assert cell not in said.replace("1234", "")
    assert read_table(path, described, out_of_bounds="missing")["größe"].to_pylist() == [None, 7.0]


def test_days_in_other_forms(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("born\n31.12.1999\n")
    described = Schema(columns=COLUMNS[1:2])
    with pytest.raises(
        DataError, match=r"date such as 2024-12-31, but looks like .*date_format"
    ) as caught:
        read_table(path, described)
    assert "1999" not in str(caught.value)
    path.write_text("born\nlate in 1999\n")
    with pytest.raises(DataError, match="out_of_bounds='missing'"):
        read_table(path, described)


@pytest.mark.parametrize(
    "content", [b"a\n\xff\n", "b\n".encode("utf-16"), b"a\n1\n" * 9 + b"\x00\xd8\xff"]
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "ascii"])
def test_bytes_that_are_no_text_are_not_quoted(tmp_path, content: bytes, encoding: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    column = {"kind": "ordered", "categories": ["x", "y"]}
    described = schema_from_dict({"columns": {"a": column}, "csv": {"encoding": encoding}})
    with pytest.raises(DataError) as caught:
        read_table(path, described)
    assert str(path) in str(caught.value)
    for told in ("0xff", "xd8", "position", "codec can't"):
        assert told not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("header", "encoding", "ending", "delimiter", "found", "names"),
    [
        ("a,b", "utf-8", "csv", None, "utf-8", ["a", "b"]),
        ("a;b,c;d", "utf-8-sig", "csv", ";", "utf-8", ["a", "b,c", "d"]),
        ("a\tb", "utf-8", "csv", "\t", "utf-8", ["a", "b"]),
        ("a\tb", "utf-8", "tsv", None, "utf-8", ["a", "b"]),
        ("a;b", "utf-8", "tsv", ";", "utf-8", ["a", "b"]),
        ("größe|b", "cp1252", "csv", "|", "cp1252", ["größe", "b"]),
        ("größe;b", "utf-16", "csv", ";", "utf-16", ["größe", "b"]),
        ('"a;b;c",d', "utf-8", "csv", None, "utf-8", ["a;b;c", "d"]),
        ("alone", "utf-8", "csv", None, "utf-8", ["alone"]),
    ],
)
def test_the_header_alone_says_how_a_table_is_written(
    tmp_path, header, encoding, ending, delimiter, found, names
) -> None:
    for cells in (b"", b"\xff\xd8;;;;;;\n", b"\x00\xd8\x00\xd8", b'"'):
        path = tmp_path / f"t.{ending}"
        path.write_bytes((header + "\n").encode(encoding) + cells)
        assert sniff_csv(path) == CsvFormat(delimiter=delimiter, encoding=found)
        assert column_names(path, sniff_csv(path)) == names


def test_a_header_in_one_piece_is_answered_with_the_mark(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("größe;born;town\n1;2000-01-01;x\n")
    with pytest.raises(DataError, match=r'\[csv\] with delimiter = ";"'):
        read_table(path, schema(CsvFormat()))


def test_several_files(tmp_path) -> None:
    """Columns may be in another order, and files of other types; rows come in the order of the names."""
    (tmp_path / "part-1.csv").write_text("town,größe\nx,1\n")
    (tmp_path / "part-2.csv").write_text("größe,town,z\n2,x,0\n")
    pyarrow.parquet.write_table(
        pyarrow.table({"größe": [3.0], "town": ["x"]}), tmp_path / "part-3.parquet"
    )
    described = Schema(columns=(COLUMNS[0], COLUMNS[2]))
    for source in (
        tmp_path / "part-*",
        [tmp_path / f"part-{k}" for k in ("1.csv", "2.csv", "3.parquet")],
    ):
        assert read_table(source, described)["größe"].to_pylist() == [1, 2, 3]
    records = convert(str(tmp_path / "part-*"), described, tmp_path / "records")
    assert records.num_records == 3
    (tmp_path / "part-4.csv").write_text("town\nx\n")
    with pytest.raises(DataError, match=r"part-4.csv has no column größe"):
        read_table(tmp_path / "part-*", described)
    with pytest.raises(DataError, match="no file matches"):
        read_table(tmp_path / "other-*.csv", described)
    with pytest.raises(DataError, match="no files are named"):
        read_table([], described)


class Frame:
    """A table of another library: it has this one method, and gives its rows once."""

    def __init__(self, table: pyarrow.Table) -> None:
        self.table: pyarrow.Table | None = table

    def __arrow_c_stream__(self, requested_schema=None):
        table, self.table = self.table, None
        assert table is not None, "the rows are asked for twice"
        return table.__arrow_c_stream__(requested_schema)


def test_frames_of_other_libraries(tmp_path) -> None:
    """Views of texts, as polars has them, also as categories; large texts; and rows that come once."""
    views = pyarrow.array(["x", "x", None, "a; b"], pyarrow.string_view())
    kinds = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0, 0, None, 3], pyarrow.uint32()), views
    )
    people = pyarrow.array(["p", "q", "p", "r"], pyarrow.string_view())
    for town in (views, kinds, views.cast(pyarrow.large_string())):
        described = schema_from_dict(
            {
                "person": "who",
                "columns": {
                    "town": {
                        "kind": "categorical",
                        "categories": ["x", "a; b"],
                        "missing": "indicator",
                    },
                    "n": {"kind": "real", "bounds": [0, 9]},
                },
            }
        )
        table = pyarrow.table(
            {
                "town": town,
                "n": pyarrow.array(["1", "2", "3", "4"], pyarrow.string_view()),
                "who": people,
            }
        )
        found = read_table(Frame(table), described)
        assert found["town"].to_pylist() == ["x", "x", None, "a; b"]
        assert found["n"].to_pylist() == [1, 2, 3, 4]
        assert convert(Frame(table), described, tmp_path / "r").num_records == 3
    with pytest.raises(DataError, match="a set is no table"):
        list(over_pieces(set(), described, lambda x: x, Report(OutOfBounds.REFUSE)))


def test_steps_make_ages_whole() -> None:
    for step, low, high, want in ((1, 17, 90, 1.0), (0.1, 0.0, 0.95, 0.1), (5, 2, 20, 5.0)):
        column = Column(name="age", kind=Kind.REAL, bounds=(low, high), step=step)
        described = Schema(columns=(column,))
        values = decode(np.linspace(-1, 1, 500)[:, None], described)["age"].to_numpy()
        levels = Levels(described)
        drawn = levels.decode(
            np.zeros((40, 1), int) + levels.sizes[0] - 1, np.random.default_rng(0)
        )["age"].to_numpy()
        for found in (values, drawn):
            np.testing.assert_allclose(
                (found - low) / want, np.rint((found - low) / want), atol=1e-9
            )
            assert low <= found.min() <= found.max() <= high
            assert max(len(repr(float(x)).partition(".")[2]) for x in found) <= 1
        assert len(set(values.tolist())) == int((high - low) / step + 1e-9) + 1


def test_all_mistakes_of_a_schema_are_said_at_once() -> None:
    with pytest.raises(DataError) as caught:
        schema_from_dict(
            {
                "targt": "y",
                "target": "absent",
                "missing_values": "NA",
                "person": {"column": "a", "max_rows": 0},
                "csv": {
                    "delimiter": ";;",
                    "decimal": "x",
                    "thousands": ".,",
                    "encoding": "utf-99",
                    "date_format": "%d",
                },
                "columns": {
                    "a": {"kind": "reel", "bounds": [0, 1]},
                    "b": {"kind": "count", "bounds": [-1, 2]},
                    "c": {"kind": "count", "bounds": [0, 2], "step": 1},
                    "d": {"kind": "real", "bounds": [0, 2], "step": 3},
                    "e": {"kind": "binary", "categories": ["x", "x"]},
                    "f": 3,
                },
            }
        )
    for told in (
        *(
            "unknown keys targt",
            "target 'absent'",
            "missing_values must be a list",
            "'a' identifies persons",
        ),
        *(
            "max_rows is 0",
            "delimiter must",
            "decimal must",
            "thousands must",
            "encoding must",
            "date_format must",
        ),
        *(
            "'a': kind is 'reel'",
            "'b' (count) has bounds -1",
            "'c' (count) has a step",
            "'d' (real) has a step of 3",
        ),
        *("'e' (binary) lists", "'f' is not a table"),
    ):
        assert told in str(caught.value), told


def test_what_a_schema_says_of_files_is_written_and_read(tmp_path) -> None:
    described = schema(CsvFormat(delimiter="\t", encoding="utf-16", date_format='%d "%m" %Y'))
    import tomllib

    assert schema_from_dict(tomllib.loads(schema_to_toml(described))) == described
    template = schema_template(["a", "b"], target="a", person="b", csv=GERMAN)
    content = tomllib.loads(template)
    assert (content["target"], content["person"]) == ("a", {"column": "b", "max_rows": 1})
    assert list(content["columns"]) == ["a"]
    assert CsvFormat(**content["csv"]) == GERMAN
    with pytest.raises(DataError, match="no column 'c', which is to be the person"):
        schema_template(["a"], person="c")


def test_editors_know_what_a_schema_may_hold() -> None:
    """The JSON Schema takes each documented schema, and refuses what the reader refuses."""
    import tomllib

    jsonschema = pytest.importorskip("jsonschema")
    content = json.loads(
        importlib.resources.files("discreet.tabular.tables")
        .joinpath("schema.json")
        .read_text("utf-8")
    )
    jsonschema.Draft7Validator.check_schema(content)
    column = content["definitions"]["column"]["properties"]
    assert column["kind"]["enum"] == list(Kind)
    assert set(content["properties"]["csv"]["properties"]) == set(vars(CsvFormat()))
    assert set(column) == {
        "kind",
        *(x for x in Column.__dataclass_fields__ if x not in ("name", "kind")),
    }
    check = jsonschema.Draft7Validator(content)
    good = schema_to_toml(
        schema(
            GERMAN,
            person="id",
            max_rows=2,
            target="born",
            missing_values=("?",),
            bought=Bought(
                columns=("born",),
                epsilon=0.1,
                delta=0,
                made_on=datetime.date(2026, 1, 2),
                statement="s.json",
            ),
        )
    )
    assert check.is_valid(json.loads(json.dumps(tomllib.loads(good), default=str)))
    for bad in (
        {"kind": "real"},
        {"kind": "real", "bounds": [0, 1], "categories": ["a", "b"]},
        {"kind": "binary", "unit": "m"},
    ):
        assert not check.is_valid({"columns": {"a": bad}}), bad
    assert check.is_valid({"columns": {"a": {"kind": "binary"}}})
    assert not check.is_valid({"columns": {"a": {"kind": "binary"}}, "tagret": "a"})
