"""A list of wrong inputs: each is answered with exit code 2 and one paragraph that shows no cell, before anything is spent.

More stand beside what they are about: test_fit.py (options), test_schema.py,
tests/tables/test_read.py (files).
"""

import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._steps import InSteps
from discreet.tabular.tables import _convert, _files, _read, convert, open_records, schema_from_toml

RUN = CliRunner()
SCHEMA = """\
target = "smoker"
person = "id"
[columns.age]
kind = "real"
bounds = [0, 120]
[columns.visits]
kind = "count"
bounds = [0, 50]
[columns.region]
kind = "categorical"
categories = ["north", "south"]
[columns.born]
kind = "date"
bounds = [1900-01-01, 2020-12-31]
[columns.smoker]
kind = "binary"
categories = ["no", "yes"]
"""
HEADER = "id,age,visits,region,born,smoker\n"
GOOD = "".join(
    f"p{i},{20 + i},{i % 9},{'north' if i % 2 else 'south'},1980-02-0{1 + i % 9},{'yes' if i % 3 else 'no'}\n"
    for i in range(30)
)
SECRETS = "secretcell", "77.125", "1903-09-29"
SECRET = "secretcell,77.125,3,north,1903-09-29,no\n"
COMMANDS = {
    "check": "schema check schema.toml",
    "convert": "convert table.csv --schema schema.toml --out records",
    "fit": "fit --data table.csv --schema schema.toml --model logistic --epsilon 1 --out out",
}


@pytest.fixture
def folder(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table and its schema that go well together, and a fit that must not be reached."""
    monkeypatch.chdir(tmp_path)

    def release(method):
        pytest.fail("the fit was reached")

    monkeypatch.setattr(InSteps, "release", release)
    (tmp_path / "table.csv").write_text(HEADER + GOOD + SECRET)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def refused(folder: Path, words: str, needle: str) -> None:
    there = sorted(folder.rglob("*"))
    outcome = RUN.invoke(app, words.split())
    assert outcome.exit_code == 2, outcome.output
    said = outcome.stderr
    assert said.split()[0] == "Refused:"
    assert "\n\n" not in said.strip()
    assert "Traceback" not in said
    assert needle in " ".join(said.split())
    # What, and a remedy after a colon, a semicolon or a full stop.
    assert len(said.replace(":", ".").replace(";", ".").split(".")) > 2
    for secret in SECRETS:
        assert secret not in said
    assert sorted(folder.rglob("*")) == there


TABLES = {
    "a row too short": (
        HEADER + GOOD + "secretcell,77.125\n",
        "more or fewer cells than its header",
    ),
    "a row too long": (
        HEADER + GOOD + "secretcell,77.125,3,north,1903-09-29,no,no\n",
        "more or fewer cells",
    ),
    "semicolons": ((HEADER + SECRET).replace(",", ";"), "add it if the file has none"),
    "tabs": ((HEADER + SECRET).replace(",", "\t"), "spelt as in the schema"),
    "no header": (SECRET + GOOD, "add it if the file has none"),
    "a title above the header": ("The survey of 1903\n" + HEADER + SECRET, "has no column"),
    "another case": (HEADER.upper() + SECRET, "correct the name"),
    "no person column": (HEADER.replace("id", "nr") + SECRET, "has no column id"),
    "unknown category": (
        HEADER + SECRET.replace("north", "secretcell"),
        "'region' has values outside its public cat",
    ),
    "unknown target": (
        HEADER + SECRET.replace("no\n", "secretcell\n"),
        "'smoker' has values outside its public cat",
    ),
    "missing number": (
        HEADER + SECRET.replace("77.125", ""),
        "'age' has missing cells: fill them in",
    ),
    "NaN": (HEADER + SECRET.replace("77.125", "nan"), "'age' has missing cells"),
    "missing target": (HEADER + SECRET.replace("no\n", "\n"), "'smoker' has missing cells"),
    "infinity": (
        HEADER + SECRET.replace("77.125", "inf"),
        "'age' has values outside its public bounds 0 to 120",
    ),
    "beyond the bounds": (
        HEADER + SECRET.replace("77.125", "777.125"),
        "widen the bounds if they were wrong",
    ),
    "text for a number": (
        HEADER + SECRET.replace("77.125", "secretcell"),
        "'age' holds something that is not a number",
    ),
    "decimal comma": (
        HEADER + SECRET.replace("77.125", '"77,125"'),
        "'age' holds something that is not a number such as 1234.5, but looks like one that is written otherwise",
    ),
    "half a visit": (
        HEADER + SECRET.replace(",3,", ",2.5,"),
        "'visits' has values that are not whole",
    ),
    "no such day": (
        HEADER + SECRET.replace("1903-09-29", "1903-02-29"),
        "'born' holds something that is not a date",
    ),
    "day first": (HEADER + SECRET.replace("1903-09-29", "29.09.1903"), "a date such as 2024-12-31"),
    "nobody's row": (HEADER + SECRET.replace("secretcell", ""), "each row must say whose it is"),
    "an open quote": (HEADER + GOOD + SECRET.replace("north", '"north'), "fix the file"),
    "UTF-16": ((HEADER + SECRET).encode("utf-16"), "t"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9, "t"),
    "zeros": (bytes(5_000), "t"),
    "blank lines": ("\n\n\n", "is empty"),
}


@pytest.mark.parametrize("command", ["convert", "fit"])
@pytest.mark.parametrize("name", TABLES)
def test_tables(folder, command: str, name: str) -> None:
    content, needle = TABLES[name]
    (folder / "table.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(folder, COMMANDS[command], needle)


AGE = '[columns.age]\nkind = "real"\nbounds = [0, 120]\n'
SCHEMAS = {
    "empty": ("", "has no [columns.NAME] tables"),
    "no TOML": ("columns: age", "is not valid TOML"),
    "a table": (HEADER + GOOD, "begin with what discreet schema init TABLE writes"),
    "no UTF-8": (AGE.encode("utf-16"), "is not UTF-8 text"),
    "an unknown word above": (f"rows = 3\n{AGE}", "the schema has unknown keys rows: known are"),
    "an unknown word of a column": (f"{AGE}minimum = 0\n", "column 'age' has unknown keys minimum"),
    "an unknown kind": (AGE.replace("real", "float"), "kind is 'float': choose one of real, count"),
    "no kind": ("[columns.age]\nbounds = [0, 120]\n", "kind is not filled in: choose one of"),
    "bounds reversed": (
        AGE.replace("0, 120", "120, 0"),
        "has bounds 120 to 0: give two finite numbers, the lower one",
    ),
    "equal bounds": (AGE.replace("0, 120", "5, 5"), "the lower one first"),
    "one bound": (AGE.replace("0, 120", "120"), "bounds must be two numbers"),
    "bounds as texts": (AGE.replace("0, 120", '"0", "120"'), "bounds must be two numbers"),
    "endless bounds": (AGE.replace("0, 120", "-inf, inf"), "give two finite numbers"),
    "no bounds": ('[columns.age]\nkind = "real"\n', "has no bounds: give the public range"),
    "a count below 0": (
        AGE.replace("real", "count").replace("0, 120", "-1, 9"),
        "a count has whole bounds from 0 up",
    ),
    "dates for a number": (
        AGE.replace("0, 120", "1900-01-01, 2000-01-01"),
        "bounds must be two numbers",
    ),
    "numbers for a date": (AGE.replace("real", "date"), "bounds must be two dates"),
    "categories of a number": (
        f'{AGE}categories = ["1"]\n',
        "has categories: a real column has bounds",
    ),
    "bounds of categories": (
        AGE.replace("real", "categorical"),
        "has bounds: a categorical column has categories",
    ),
    "one category": (
        '[columns.age]\nkind = "ordered"\ncategories = ["old"]\n',
        "list all values that can occur",
    ),
    "a category twice": (
        '[columns.age]\nkind = "ordered"\ncategories = ["a", "a"]\n',
        "lists a category twice",
    ),
    "three of two": (
        '[columns.age]\nkind = "binary"\ncategories = ["a", "b", "c"]\n',
        "has exactly two",
    ),
    "a category that is missing": (
        '[columns.age]\nkind = "binary"\ncategories = ["NA", "b"]\n',
        "which also stands for a missing cell",
    ),
    "an unknown rule": (
        f'{AGE}missing = "zero"\n',
        "missing is 'zero': choose one of refuse, indicator, drop",
    ),
    "a unit of texts": ('[columns.age]\nkind = "binary"\nunit = "years"\n', "has a unit"),
    "a target that is not there": (
        f'target = "smokes"\n{AGE}',
        "the target 'smokes' is not described",
    ),
    "a target alone": (f'target = "age"\n{AGE}', "describes only the target"),
    "a person as a feature": (f'person = "age"\n{AGE}', "would single out people"),
    "several rows a person": (
        f'person = "id"\nrows_per_person = 2\n{AGE}',
        "unknown keys rows_per_person",
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(folder, name: str) -> None:
    content, needle = SCHEMAS[name]
    (folder / "schema.toml").write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )
    for command in COMMANDS.values():
        refused(folder, command, needle)


@pytest.mark.parametrize(
    ("words", "needle"),
    [
        (
            "fit --batch-size 5000",
            "--batch-size is 5000: give a size from 1 to the number of records, 31",
        ),
        ("fit --batch-size 0", "--batch-size is 0"),
        ("fit --rate -0.1", "not a probability in (0, 1]"),
        ("fit --rate 0.5 --sampling full", "omit --rate and --batch-size"),
        ("fit --sampling fixed", "give --batch-size and no --rate"),
        ("fit --sampling fixed --batch-size 32", "32"),
        (
            "fit --sampling fixed --batch-size 8 --relation add-or-remove-one",
            "for one record added or removed: a batch",
        ),
        ("fit --delta 0", "delta is 0.0"),
        ("fit --delta nan", "delta is nan"),
        ("fit --epsilon -1", "epsilon is -1.0"),
        ("fit --epsilon inf", "epsilon is inf"),
        ("fit --steps -5", "num_steps is -5"),
        ("fit --num-records -4", "num_records is -4"),
        ("fit --clip -1", "clipping_norm is -1"),
        ("fit --draws -1", "--draws is -1"),
        ("fit --model linear", "needs a real target, but 'smoker' is described as binary"),
        ("fit --target region", "needs a binary target, but 'region' is described as categorical"),
        ("fit --target height", "the target 'height' is not described"),
        ("fit --bounds age=0:1", "give only one"),
        ("fit --by svi --out table.csv", "cannot be written to"),
        ("fit --out-of-bounds skip", "'skip' is not one of 'refuse', 'clip', 'missing'"),
        ("convert --out table.csv/records", "cannot be written (Not a directory)"),
        ("convert --out nowhere/records", "cannot be written (No such file or directory)"),
        ("convert --out table.csv", "already exists: choose another --out"),
        (
            "convert --out table.csv --overwrite",
            "not a folder of converted records and nothing else",
        ),
        ("convert --out .", "already exists: choose another --out"),
        ("convert --out . --overwrite", "not a folder of converted records and nothing else"),
        ("convert --shards 0 --out shards", "shards is 0; it must be an integer from 1 to 10000"),
        ("convert --out-of-bounds skip", "'skip' is not one of 'refuse', 'clip', 'missing'"),
        ("convert --target height", "the target 'height' is not described"),
        (
            "convert --schema absent.toml",
            "cannot be read (No such file or directory): check the path",
        ),
        ("convert --schema .", "cannot be read (Is a directory): check the path"),
        ("fit --data .", "is not a file: name a .csv"),
        ("fit --data absent.parquet", "does not exist: check the path"),
    ],
)
def test_options(folder, words: str, needle: str) -> None:
    command, more = words.split(maxsplit=1)
    # The last of an option given twice counts.
    refused(folder, f"{COMMANDS[command]} {more}", needle)


@pytest.mark.parametrize(
    "words",
    [
        "--epsilon -1",
        "--delta 2",
        "--steps 0",
        "--clip -3",
        "--rate 7",
        "--num-records 0",
        "--batch-size 0",
    ],
)
def test_numbers_are_refused_before_the_table_is_read(
    folder, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_read, "files_of", lambda _: pytest.fail("the table is read"))
    name = words.split()[0].strip("-").replace("-", "_")
    names = {
        "steps": "num_steps",
        "clip": "clipping_norm",
        "rate": "probability",
        "batch_size": "--batch-size",
    }
    refused(folder, f"{COMMANDS['fit']} {words}", names.get(name, name))


@pytest.mark.parametrize("command", ["convert", "fit"])
def test_a_table_that_may_not_be_read(
    folder, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(_files, "_opened", opened)
    refused(folder, COMMANDS[command], "cannot be read with your permissions: ask its owner")


def test_whole_numbers_that_no_record_holds_exactly(folder) -> None:
    """2^53 + 1 is the first whole number that is none in floating point."""
    table = pyarrow.table({"age": [1, 2**53 + 1], "smoker": ["no", "yes"]})
    pyarrow.parquet.write_table(table, folder / "table.parquet")
    words = "fit --data table.parquet --bounds age=0:1e17,smoker=no|yes --target smoker --model logistic --epsilon 1"
    refused(folder, words, "'age' has integers beyond 2^53")


@pytest.fixture
def converted(folder) -> Path:
    outcome = RUN.invoke(app, COMMANDS["convert"].split())
    assert outcome.exit_code == 0, outcome.output
    return folder


@pytest.mark.parametrize(
    ("words", "needle"),
    [
        (
            "--schema wider.toml",
            "was converted with another schema, which differs in age: give the schema that it was",
        ),
        ("--schema target.toml --model linear", "which differs in its target"),
        (
            "--bounds age=0:120,smoker=no|yes --target smoker",
            "which differs in born, region, visits",
        ),
        ("--target age", "were converted with smoker as the target"),
        ("--out-of-bounds clip", "was converted with --out-of-bounds refuse"),
        ("--model linear", "needs a real target, but 'smoker' is described as binary"),
        (
            "--data shards --schema wider.toml",
            "was converted with another schema, which differs in age",
        ),
        ("--data spoilt", "x-01 is not the file that the index names"),
    ],
)
def test_converted_records(converted, words: str, needle: str) -> None:
    (converted / "wider.toml").write_text(SCHEMA.replace("[0, 120]", "[0, 130]"))
    (converted / "target.toml").write_text(SCHEMA.replace('target = "smoker"', 'target = "age"'))
    for name in ("shards", "spoilt"):
        convert(
            converted / "table.csv",
            schema_from_toml(converted / "schema.toml"),
            converted / name,
            shards=3,
        )
    spoilt = converted / "spoilt" / "x-01"
    spoilt.write_bytes(b"\1" * spoilt.stat().st_size)
    command = "fit --data records --model logistic --epsilon 1 --out out"
    refused(converted, f"{command} {words}", needle)


def test_a_conversion_that_is_stopped_leaves_what_was_there(
    converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, there = (converted / "records" / "x-00").read_bytes(), sorted(converted.iterdir())

    def stopped(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(_convert, "over_pieces", stopped)
    outcome = RUN.invoke(app, f"{COMMANDS['convert']} --overwrite".split())
    assert outcome.exit_code == 130
    assert "nothing was spent" in outcome.stderr
    assert (converted / "records" / "x-00").read_bytes() == before
    assert sorted(converted.iterdir()) == there


def test_converted_records_are_fitted_as_the_table_is(
    converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the schema that the file knows, or with the same given; the statement says how odd cells were treated."""
    seen = []

    def release(method):
        seen.append(method.records)
        raise ValueError("far enough")

    monkeypatch.setattr(InSteps, "release", release)
    outcome = RUN.invoke(app, f"{COMMANDS['convert']} --shards 4 --out shards --json".split())
    assert json.loads(outcome.stdout)["num_records"] == 31
    for words in ("--data records", "--data records --schema schema.toml", "--data shards"):
        outcome = RUN.invoke(app, f"fit {words} --model logistic --by svi --epsilon 1".split())
        assert "far enough" in outcome.stderr
    wanted = open_records(converted / "records")
    for records in seen[:2]:
        assert (records.x == wanted.x).all()
        assert (records.y == wanted.y).all()
    # A folder has them in the order of its shards.
    rows = [
        sorted(np.column_stack([records.x, records.y]).tolist()) for records in (seen[2], wanted)
    ]
    assert rows[0] == rows[1]
    for records in seen:
        assert records.feature_names == wanted.feature_names
    assert len(seen) == 3
