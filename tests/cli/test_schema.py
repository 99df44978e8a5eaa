import dataclasses
import json
import re
import tomllib

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._steps import InSteps
from discreet.privacy.act import Act
from discreet.privacy.report import make_statement
from discreet.tabular.tables import (
    Column,
    CsvFormat,
    DataError,
    Kind,
    Missing,
    encode,
    read_table,
    schema_from_bounds,
    schema_from_toml,
)

RUN = CliRunner()
HEADER = "id,age,region,born,smoker\n"
ROWS = "".join(
    f"{i % 5},{20 + i},{'north' if i % 2 else 'south'},20{10 + i}-02-03,{'yes' if i % 3 else 'no'}\n"
    for i in range(12)
)


@pytest.fixture
def survey(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "survey.csv"
    path.write_text(HEADER + ROWS)
    return path


def run(*words: str, code: int = 0):
    outcome = RUN.invoke(app, [str(word) for word in words])
    assert outcome.exit_code == code, outcome.output
    return outcome


def test_a_template_knows_the_header_and_no_cell(survey) -> None:
    """Rows of any length, bytes that are no text, quotes that never end: the template is the same."""
    run("schema", "init", survey)
    template = (survey.parent / "schema.toml").read_text()
    assert list(tomllib.loads(template)["columns"]) == ["id", "age", "region", "born", "smoker"]
    for cells in (b"", b"1,2\n", b"\xff\xfe\x00,,,,,,,,,,\n", b'"', b"secretcell,1,2,3,4,5\n" * 9):
        survey.write_bytes(HEADER.encode() + cells)
        run("schema", "init", survey, "--overwrite")
        assert (survey.parent / "schema.toml").read_text() == template


def test_a_template_has_the_kinds_that_a_parquet_file_says(survey) -> None:
    table = pyarrow.table({"age": [1.5], "region": ["north"], "smoker": [True]})
    pyarrow.parquet.write_table(table, survey.with_suffix(".parquet"))
    run("schema", "init", survey.with_suffix(".parquet"))
    columns = tomllib.loads((survey.parent / "schema.toml").read_text())["columns"]
    assert [column["kind"] for column in columns.values()] == ["real", "categorical", "binary"]


def test_with_a_seed_the_same_rows_of_each_person_are_kept(
    survey, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "--bounds", "age=0:120,smoker=no|yes", "--target", "smoker", "--person", "id"
    run("schema", "init", survey, *words)
    calls = []

    def release(method):
        calls.append(method.records)
        raise ValueError("far enough")

    monkeypatch.setattr(InSteps, "release", release)
    words = [
        "fit",
        "--data",
        "survey.csv",
        "--model",
        "logistic",
        "--schema",
        "schema.toml",
        "--epsilon",
        "1",
        "--yes",
        "--by",
        "svi",
        "--seed",
        "1",
    ]
    run(*words, code=2)
    run(*words, code=2)
    assert [len(records.x) for records in calls] == [5, 5]
    assert (calls[0].x == calls[1].x).all()


def test_bounds_become_a_file_in_which_a_column_can_have_more(survey) -> None:
    """No cell is read."""
    survey.write_bytes(HEADER.encode().replace(b",", b";") + b"\xff\xfe")
    bounds = "age=0:120,smoker=no|yes"
    described = schema_from_bounds(bounds, target="smoker")
    for person, rows in (("id", 1), ("id:5", 5)):
        words = "--target", "smoker", "--person", person, "--overwrite"
        run("schema", "init", survey, "--bounds", bounds, *words)
        written = schema_from_toml(survey.parent / "schema.toml")
        expected = dataclasses.replace(described, person="id", max_rows=rows)
        assert written == dataclasses.replace(expected, csv=CsvFormat(delimiter=";"))


def test_a_kind_that_bounds_do_not_show_is_marked_as_a_guess(survey) -> None:
    """Counts have bounds that numbers may have, too; the file still means what --bounds means."""
    bounds = "age=0:120,dose=0:1.5,net=-9:9,region=a|b|c,smoker=no|yes,born=1900-01-01:2020-12-31"
    told = " ".join(run("schema", "init", survey, "--bounds", bounds).stdout.split())
    assert "Check the kind of age and region: it is a guess" in told
    text = (survey.parent / "schema.toml").read_text()
    marked = [line for line in text.splitlines() if line.startswith("kind") and "#" in line]
    assert marked == [
        'kind = "real"   # a guess: "count", if all values are integers from 0',
        'kind = "categorical"   # a guess: "ordered", if the categories go from the lowest to the highest',
    ]
    assert (
        schema_from_toml(survey.parent / "schema.toml").columns
        == schema_from_bounds(bounds).columns
    )
    facts = run("schema", "init", survey, "--bounds", bounds, "--overwrite", "--json").stdout
    assert json.loads(facts)["guessed"] == ["age", "region"]


def test_messages_lead_from_decimal_commas_to_a_table_that_is_read(survey) -> None:
    """No header shows decimal commas: the file has the line as a comment, and the error names the line and its place."""
    survey.write_text("age;dose\n30;1,5\n40;2,25\n")
    line = 'decimal = ","'
    with pytest.raises(
        DataError, match=rf"write {line} .* a line \[csv\] above it at the end, in a schema file"
    ):
        read_table({"dose": ["1,5"]}, schema_from_bounds("dose=0:9"))
    for options in ([], ["--bounds", "age=0:120,dose=0:9"]):
        said = run("schema", "init", survey, *options, "--overwrite").stdout
        assert "for 1234,5 remove the # in its last line" in " ".join(said.split())
        text = (survey.parent / "schema.toml").read_text()
        assert text.splitlines()[-1].startswith(f"# {line}")
    schema = schema_from_toml(survey.parent / "schema.toml")
    with pytest.raises(DataError, match=rf"write {line} .* below \[csv\] in the schema,"):
        read_table(survey, schema)
    (survey.parent / "schema.toml").write_text(text.replace(f"# {line}", line))
    assert read_table(survey, schema_from_toml(survey.parent / "schema.toml"))[
        "dose"
    ].to_pylist() == [1.5, 2.25]


@pytest.fixture
def people(survey):
    """Many enough for bounds at ε = 2."""
    rng = np.random.default_rng(0)
    n = 3000
    columns = {
        "id": range(n),
        "age": rng.integers(17, 91, n),
        "dose, mg": rng.lognormal(2, 1, n).round(3),
        "region": ["north", "south"] * (n // 2),
        "smoker": ["no", "yes"] * (n // 2),
    }
    pyarrow.csv.write_csv(pyarrow.table({name: list(x) for name, x in columns.items()}), survey)
    return survey


BUY = "schema", "init", "survey.csv", "--private-bounds", "--epsilon", "2", "--delta", "1e-6"


@pytest.mark.essential
def test_bounds_are_bought_and_every_statement_says_so(people) -> None:
    run(
        "ledger",
        "open",
        "s.ledger",
        "--dataset",
        "s",
        "--epsilon",
        "9",
        "--delta",
        "1e-4",
        "--unit",
        "one person",
    )
    known = (
        "--bounds",
        "smoker=no|yes",
        "--target",
        "smoker",
        "--person",
        "id:3",
        "--ledger",
        "s.ledger",
    )
    done = run(*BUY, *known)
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"age       0 to (128|256|512)", lines[0])
    assert lines[2] == "region    nothing found: more texts than numbers: describe it by categories"
    assert "Describe region in it, or delete them." in " ".join(lines)
    assert "Budget: ε = 2 of 9 in s.ledger is spent" in done.stdout
    assert "kind is not filled in" in run("schema", "check", "schema.toml", code=2).stderr
    file = people.parent / "schema.toml"
    text = file.read_text()
    file.write_text(
        text.replace('kind = ""', 'kind = "categorical"\ncategories = ["north", "south"]')
    )
    schema = schema_from_toml(file)
    assert (schema.person, schema.max_rows, schema.target) == ("id", 3, "smoker")
    assert [column.name for column in schema.columns] == ["age", "dose, mg", "smoker", "region"]
    assert schema.bought is not None
    assert (schema.bought.columns, schema.bought.statement) == (
        ("age", "dose, mg"),
        "schema.statement.json",
    )
    words = schema.bought.in_words()
    assert words in " ".join(run("schema", "check", "schema.toml").stdout.split())
    assert (
        json.loads(run("schema", "check", "schema.toml", "--json").stdout)["bought"]["delta"]
        == 1e-6
    )
    statement = json.loads((people.parent / "schema.statement.json").read_text())
    assert statement["about"] == "Bounds of 3 columns of “survey.csv”, for a schema."
    assert "Of each person one row was counted" in str(statement)
    run(
        "describe",
        "survey.csv",
        "--schema",
        "schema.toml",
        "--epsilon",
        "1",
        "--ledger",
        "s.ledger",
        "--out",
        "d",
    )
    described = (people.parent / "d" / "statement.txt").read_text()
    assert " ".join(described.split()).count(words) == 1
    assert "smoker (binary, the target): no | yes; region" in " ".join(described.split())
    assert "age (real)" not in " ".join(described.split())
    assert len(run("ledger", "show", "s.ledger").stdout.splitlines()) > 3


def test_bounds_of_named_columns_and_in_json(people) -> None:
    done = run(*BUY, "--column", "dose, mg", "--person", "each row", "--json")
    facts = json.loads(done.stdout)
    assert list(facts["found"]) == ["dose, mg"]
    assert facts["files"] == ["schema.toml", "schema.statement.json"]
    schema = schema_from_toml(people.parent / "schema.toml")
    assert [column.name for column in schema.columns] == ["dose, mg"]
    assert schema.each_row
    assert (
        "schema.statement.json already exists" in run(*BUY, "--out", "schema.json", code=2).stderr
    )


def test_categories_are_bought_with_bounds_or_alone(people) -> None:
    words = "--private-categories", "--person", "id"
    done = run(*BUY, *words)
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"age       0 to (128|256|512)", lines[0])
    assert "region    north | south | other" in lines
    assert "A text is shown if its noisy count is above" in done.stdout
    schema = schema_from_toml(people.parent / "schema.toml")
    assert [column.rule() for column in schema.columns][2:] == [
        "north | south | other",
        "no | yes | other",
    ]
    statement = json.loads((people.parent / "schema.statement.json").read_text())
    assert statement["about"].startswith(
        "Bounds of 4 columns and categories of 4 columns of “survey.csv”"
    )
    alone = [
        "schema",
        "init",
        "survey.csv",
        "--private-categories",
        "--epsilon",
        "2",
        "--delta",
        "1e-6",
        "--column",
    ]
    assert (
        "region  north | south | other"
        in run(*alone, "region", *words[1:], "--out", "alone.toml").stdout
    )
    assert schema_from_toml(people.parent / "alone.toml").columns[0].out_of_bounds == "other"


def test_a_purchase_that_finds_nothing_says_what_was_spent(people) -> None:
    done = run(*BUY, "--column", "region", code=1)
    said = " ".join(done.stdout.split())
    assert "No schema was written: no column has bounds or categories." in said
    assert "Spent: ε = 2 at δ = 1e-06." in said
    assert "Files: schema.statement.json" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--epsilon 1", "--epsilon is for --private-bounds: a template reads no cell"),
        ("--column age", "--column is for --private-bounds"),
        ("--private-bounds", "say how much, as in --epsilon 0.1"),
        ("--private-bounds --epsilon 0", "epsilon is 0.0"),
        (
            "--private-bounds --epsilon 1 --column agee",
            "--column: the table has no column 'agee': did you mean age?",
        ),
        ("--private-bounds --epsilon 1 --person no", "--person: the table has no column 'no'"),
        (
            "--private-bounds --epsilon 1 --column age --bounds age=0:9",
            "names 'age', which --bounds",
        ),
        (
            "--private-bounds --epsilon 1 --bounds age=0:9,id=0:9,region=a|b,born=0:9,smoker=a|b",
            "no column is left",
        ),
    ],
)
def test_wrong_purchases_are_refused_before_the_table_is_read(
    survey, words: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    survey.write_bytes(HEADER.encode() + b"\xff\xfe")
    assert why in " ".join(run("schema", "init", survey, *words.split(), code=2).stderr.split())


def test_check_says_what_a_schema_describes(survey) -> None:
    (survey.parent / "s.toml").write_text(
        'person = "id"\n[columns.age]\nkind = "real"\nbounds = [0, 120]\nunit = "years"\n'
    )
    said = run("schema", "check", "s.toml", "--data", survey).stdout
    assert "age (real): 0 to 120 years" in said
    assert "the same 'id', of which one is used" in " ".join(said.split())
    assert "does not say" not in said
    (survey.parent / "s.toml").write_text('[columns.age]\nkind = "real"\nbounds = [0, 120]\n')
    assert (
        "The schema does not say whether a person may have several rows"
        in run("schema", "check", "s.toml").stdout
    )


def test_the_statement_of_a_fit_says_what_a_record_is(
    survey, monkeypatch: pytest.MonkeyPatch
) -> None:
    from discreet.interfaces.cli._statement import about_words, complete_statement
    from discreet.privacy.plan import PrivacyPlan
    from discreet.privacy.sampling import FullBatch
    from discreet.tabular.tables import Kind, Missing, Schema

    schema = Schema(columns=(Column(name="age", kind=Kind.REAL, bounds=(0, 120)),), person="id")
    plan = PrivacyPlan(
        sampling=FullBatch(), clipping_norm=1.0, noise_multiplier=4.0, num_steps=1, num_records=5
    )
    statement = make_statement(plan, steps_completed=1, reproducible=False)
    notes = " ".join(complete_statement(statement, schema, "missing").notes)
    assert "Each person is one record" in notes
    assert "were treated as missing" in notes
    clips = dataclasses.replace(schema.columns[0], out_of_bounds="clip")
    stated = complete_statement(statement, dataclasses.replace(schema, columns=(clips,)), "refuse")
    assert (
        "The schema has its own rules for cells that it does not allow in age (clip)."
        in stated.notes
    )
    assert (
        "moved to the nearest bound (age); whether there were is not published. All results"
        in " ".join(stated.data_warnings)
    )
    clipped = complete_statement(statement, schema, "clip")
    assert clipped.data_warnings == stated.data_warnings
    assert not complete_statement(statement, schema, "refuse").data_warnings
    drops = dataclasses.replace(schema, columns=(dataclasses.replace(clips, missing=Missing.DROP),))
    headline = about_words("mine.py:model", drops, "a.csv")
    assert (
        "Rows with a missing cell in “age” are left out. Of each person one row is used" in headline
    )
    for each_row in (False, True):
        stated = complete_statement(
            statement, dataclasses.replace(schema, person=None, each_row=each_row), "missing"
        )
        assert (
            "No person has two rows in the table, as the schema says." in stated.public
        ) == each_row
        assert (
            any("does not say whether a person may have several rows" in x for x in stated.notes)
            != each_row
        )


@pytest.mark.parametrize(
    ("words", "needle"),
    [
        ("schema init absent.csv", "does not exist"),
        ("schema init survey.xlsx", "type that is not read"),
        ("schema init empty.csv", "is empty"),
        ("schema init twice.csv", "1 column name(s) twice"),
        ("schema init survey.csv --out survey.csv", "survey.csv already exists"),
        (
            "schema init survey.csv --target height",
            "has no column 'height', which is to be the target",
        ),
        ("schema check absent.toml", "cannot be read"),
        ("schema check template.toml", "column 'age': kind is not filled in"),
        ("schema check person.toml", "unknown keys rows_per_person"),
        ("schema check height.toml --data survey.csv", "has no column height"),
        (
            "fit --data survey.csv --model linear --schema age.toml --target age --epsilon 1",
            "describes only the target",
        ),
        (
            "fit --data survey.csv --model a --schema age.toml --epsilon 1",
            "the model 'a' is not known",
        ),
        (
            "fit --data survey.csv --model linear --target age --bounds age=0:99,region=a|b --epsilon 1 --out-of-bounds drop",
            "'drop' is not one of 'refuse', 'clip', 'missing'",
        ),
        (
            "fit --data survey.csv --model linear --target age --bounds age=0:99,born=0:1 --epsilon 1",
            "'born' holds something that is not a number",
        ),
        (
            "fit --data survey.csv --model linear --target age --bounds age=0:9,region=a|b --epsilon 1",
            "0 to 9: widen the bounds if they were wrong, or ask for clipping (--out-of-bounds clip; in Python "
            "out_of_bounds='clip'). Also, column 'region' has values outside its public categories a, b",
        ),
    ],
)
def test_wrong_input_is_answered_in_one_paragraph(survey, words: str, needle: str) -> None:
    folder = survey.parent
    (folder / "survey.xlsx").write_text("x")
    (folder / "empty.csv").write_text("")
    (folder / "twice.csv").write_text("a,a\n")
    (folder / "template.toml").write_text('[columns.age]\nkind = ""\n')
    age = '[columns.age]\nkind = "real"\nbounds = [0, 120]\n'
    (folder / "age.toml").write_text(age)
    (folder / "person.toml").write_text(f'person = "id"\nrows_per_person = 4\n{age}')
    (folder / "height.toml").write_text(f'{age}[columns.height]\nkind = "real"\nbounds = [0, 3]\n')
    said = run(*words.split(), code=2).stderr
    assert said.startswith("Refused: ")
    assert "\n\n" not in said
    assert needle in " ".join(said.split())


def test_a_bought_target_of_two_texts_is_binary_and_others_are_left_out(people) -> None:
    """A rare third text is not shown, and its rows count as dropped ones; other columns of two texts have "other"."""
    text = people.read_text().splitlines()
    people.write_text(
        "\n".join(
            [text[0], *(line.rpartition(",")[0] + ",unknown" for line in text[1:4]), *text[4:]]
        )
    )
    run(*BUY, "--private-categories", "--person", "id", "--target", "smoker")
    schema = schema_from_toml(people.parent / "schema.toml")
    target = schema.target_column
    assert (target.kind, target.categories) == (Kind.BINARY, ("no", "yes"))
    assert (target.missing, target.out_of_bounds) == (Missing.DROP, "missing")
    assert schema.columns[2].categories == ("north", "south", "other")
    fit = (
        "fit --data survey.csv --model logistic --schema schema.toml --epsilon 1 --num-records 3000"
    )
    assert "6 parameters" in run(*fit.split(), "--delta", "1e-6", "--dry-run").stdout
    records = encode(read_table(people, schema), schema)
    assert np.isnan(records.y).sum() == 3
