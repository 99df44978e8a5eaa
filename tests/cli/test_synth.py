"""From a table to twins in files: every kind of column comes back, and whatever does not fit is refused."""

import dataclasses
import datetime
import importlib
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pyarrow
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import random
from discreet.interfaces.cli import _report
from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._options import choose_model
from discreet.interfaces.cli._steps import TwinInSteps
from discreet.methods.inference import DPSVI, load_result
from discreet.privacy.report import make_statement
from discreet.storage import write_archive
from discreet.tabular.synthetic import _draw, read_fitted, synthesize
from discreet.tabular.tables import (
    Column,
    Kind,
    Missing,
    Schema,
    encode,
    read_table,
    schema_from_toml,
    schema_to_toml,
)

from .fits import PLAN, fitted

RUN = CliRunner()
BORN = (datetime.date(1999, 12, 30), datetime.date(2000, 1, 3))
# Every kind, with and without missing cells, and categories that need quotes.
SCHEMA = Schema(
    columns=(
        Column(
            name="weight, kg",
            kind=Kind.REAL,
            bounds=(-1.5, 1e9),
            missing=Missing.INDICATOR,
            unit="kg",
        ),
        Column(name="trace", kind=Kind.REAL, bounds=(-1e-7, 2e-7)),
        Column(name="visits", kind=Kind.COUNT, bounds=(0, 3), missing=Missing.INDICATOR),
        Column(name="stays", kind=Kind.COUNT, bounds=(2, 1_000)),
        Column(name="born", kind=Kind.DATE, bounds=BORN, missing=Missing.INDICATOR),
        Column(name="left", kind=Kind.DATE, bounds=BORN),
        Column(
            name="grade",
            kind=Kind.ORDERED,
            categories=("low", "middle", "high"),
            missing=Missing.INDICATOR,
        ),
        Column(
            name="town",
            kind=Kind.CATEGORICAL,
            categories=('a "b", c', " x ", "two\nlines", "1.0", "ü"),
        ),
        Column(name="smoker", kind=Kind.BINARY, categories=("0", "1"), missing=Missing.INDICATOR),
    ),
    target="smoker",
    missing_values=("?", "none"),
    person="patient",
)


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted(tmp_path_factory.mktemp("run"), SCHEMA)


def synth(*words: object):
    return RUN.invoke(app, ["synth", *map(str, words)])


def refused(outcome, *words: str) -> None:
    text = " ".join(outcome.stderr.split())
    assert outcome.exit_code == 2, text
    assert "Refused: " in text
    assert outcome.stdout == ""
    for word in words:
        assert word in text


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_a_twin_is_read_by_its_schema(
    fit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format
) -> None:
    monkeypatch.setattr(_draw, "PIECE_ROWS", 30)
    outcome = synth(fit, "--twins", 2, "--rows", 100, "--format", file_format, "--out", tmp_path)
    assert outcome.exit_code == 0, outcome.stderr
    about = json.loads((tmp_path / "twins.json").read_text())
    assert about["twins"] == [f"twin-1.{file_format}", f"twin-2.{file_format}"]
    assert about["statement"]["delta"] == read_fitted(fit).result.statement.delta
    assert "T = (1 + 1/m) b - v" in (tmp_path / "twins.txt").read_text()
    assert "Privacy statement" in (tmp_path / "twins.txt").read_text()
    schema = schema_from_toml(tmp_path / "twins.schema.toml")
    assert (schema.columns, schema.person) == (SCHEMA.columns, None)
    twins = [read_table(tmp_path / name, schema) for name in about["twins"]]
    assert twins[0] != twins[1]
    model = read_fitted(fit).model
    for twin in twins:
        assert len(twin) == 100
        levels = model.levels.encode(twin.append_column("patient", pyarrow.array(range(100))))
        assert all(len(set(column)) > 1 for column in levels.T)
        for column in SCHEMA.columns:
            missing = twin.column(column.name).null_count
            assert (0 < missing < 100) if column.missing is Missing.INDICATOR else missing == 0
        without = schema.columns[:-1]
        encode(twin, Schema(columns=without, missing_values=schema.missing_values))


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_both_formats_hold_the_same_cells_to_the_last_digit(
    fit: Path, tmp_path: Path, file_format
) -> None:
    """The same seed, in one piece: what the file holds is what was drawn."""
    assert (
        synth(fit, "--twins", 1, "--seed", 3, "--format", file_format, "--out", tmp_path).exit_code
        == 0
    )
    read = read_fitted(fit)
    (drawn,) = synthesize(random.key(3), read, read.model, num_twins=1)
    schema = schema_from_toml(tmp_path / "twins.schema.toml")
    assert read_table(tmp_path / f"twin-1.{file_format}", schema) == read_table(drawn, schema)
    assert len(drawn) == 50


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_a_twin_of_persons_has_several_rows_of_each(tmp_path: Path, file_format) -> None:
    several = dataclasses.replace(SCHEMA, max_rows=3)
    outcome = synth(
        fitted(tmp_path / "fit", several),
        "--twins",
        1,
        "--rows",
        60,
        "--format",
        file_format,
        "--out",
        tmp_path,
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert "60 persons" in outcome.stdout
    schema = schema_from_toml(tmp_path / "twins.schema.toml")
    assert schema == several
    records = encode(
        read_table(tmp_path / f"twin-1.{file_format}", schema),
        dataclasses.replace(schema, target=None),
    )
    assert records.num_records == 60
    assert records.mask is not None
    assert {*records.mask.sum(axis=1).tolist()} == {1, 2, 3}


@pytest.mark.parametrize("missing", [("",), ("", "?"), ("gone", "")])
def test_one_column_with_missing_cells(tmp_path: Path, missing) -> None:
    """A line with nothing on it would be no row."""
    column = Column(name="x", kind=Kind.REAL, bounds=(0, 1), missing=Missing.INDICATOR)
    schema = Schema(columns=(column,), missing_values=missing)
    assert (
        synth(
            fitted(tmp_path / "fit", schema), "--twins", 1, "--rows", 200, "--out", tmp_path
        ).exit_code
        == 0
    )
    twin = read_table(tmp_path / "twin-1.csv", schema)
    assert len(twin) == 200
    assert 0 < twin["x"].null_count < 200


def test_plain_texts_have_no_quotes(tmp_path: Path) -> None:
    columns = (
        Column(name="town", kind=Kind.CATEGORICAL, categories=("north", "south-east", "<=5")),
        Column(name="age", kind=Kind.COUNT, bounds=(0, 9), missing=Missing.INDICATOR),
    )
    schema = Schema(columns=columns, missing_values=("?",))
    assert (
        synth(
            fitted(tmp_path / "fit", schema), "--twins", 1, "--rows", 200, "--out", tmp_path
        ).exit_code
        == 0
    )
    text = (tmp_path / "twin-1.csv").read_text()
    assert text.startswith("town,age\n")
    assert '"' not in text
    assert ",?\n" in text


def test_seeds_repeat_twins_and_nothing_else_does(fit: Path, tmp_path: Path) -> None:
    texts = []
    for name, words in (
        ("a", ["--seed", 1]),
        ("b", ["--seed", 1]),
        ("c", ["--seed", 2]),
        ("d", []),
        ("e", []),
    ):
        assert (
            synth(fit, "--twins", 1, "--rows", 20, "--out", tmp_path / name, *words).exit_code == 0
        )
        texts.append((tmp_path / name / "twin-1.csv").read_text())
    assert texts[0] == texts[1]
    assert len(set(texts)) == 4


def test_earlier_twins_are_replaced_when_asked(fit: Path, tmp_path: Path) -> None:
    assert synth(fit, "--twins", 11, "--rows", 2, "--out", tmp_path).exit_code == 0
    assert (tmp_path / "twin-01.csv").exists()
    (tmp_path / "mine.txt").write_text("stays")
    refused(synth(fit, "--twins", 1, "--out", tmp_path), "already contains twins", "--overwrite")
    outcome = synth(
        fit,
        "--twins",
        1,
        "--rows",
        2,
        "--format",
        "parquet",
        "--out",
        tmp_path,
        "--overwrite",
        "--json",
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert json.loads(outcome.stdout)["twins"] == ["twin-1.parquet"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "mine.txt",
        "twin-1.parquet",
        "twins.json",
        "twins.schema.toml",
        "twins.txt",
    }


def test_a_fit_that_is_not_private_is_called_so(tmp_path: Path) -> None:
    seeded = fitted(
        tmp_path / "fit",
        SCHEMA,
        statement=make_statement(PLAN, steps_completed=4, reproducible=True),
    )
    outcome = synth(seeded, "--twins", 1, "--rows", 2, "--out", tmp_path)
    assert outcome.exit_code == 0
    assert "NOT PRIVATE: the fit" in outcome.stderr
    assert json.loads((tmp_path / "twins.json").read_text())["statement"]["is_private"] is False


def test_what_cannot_be_drawn_is_refused(fit: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    refused(synth(fit, "--rows", 0, *out), "--rows is 0")
    refused(synth(fit, "--twins", 0, *out), "--twins is 0")
    refused(synth(fit, "--twins", 1_001, *out), "--twins is 1001")
    refused(synth(fit, "--format", "xlsx", *out), "'xlsx' is not one of 'csv', 'parquet'")
    refused(synth(tmp_path / "absent", *out), "absent is not a folder", "discreet fit --model twin")
    refused(synth(tmp_path, *out), "has no twin.model", "--model twin")
    (tmp_path / "file").write_text("")
    refused(synth(fit, "--out", tmp_path / "file"), "is a file")
    no_word = Schema(columns=SCHEMA.columns, missing_values=(), person="patient")
    refused(
        synth(fitted(tmp_path / "fit", no_word), *out),
        "permits missing cells but has no text",
        "Parquet",
    )
    wild = {"component_auto_loc": np.full(2, np.nan, np.float32)}
    params = {**read_fitted(fit).result.params, **wild}
    refused(synth(fitted(tmp_path / "fit", SCHEMA, params=params), *out), "not finite")
    assert not (tmp_path / "out").exists()


def _written(**changes):
    def write(path: Path) -> None:
        model = dataclasses.replace(read_fitted(path.parent).model, **changes)
        write_archive(path, _draw._WHAT, _draw._VERSION, model, _draw._KINDS)

    return write


@pytest.mark.parametrize(
    ("name", "edit", "words"),
    [
        (
            _draw.MODEL,
            lambda path: path.write_bytes(path.read_bytes().replace(b'"high"', b'"hugh"')),
            "twin.model is damaged",
        ),
        (_draw.MODEL, _written(components=3), "does not fit twin.model"),
        (_draw.MODEL, _written(slices=100_001), "twin.model is damaged"),
        (
            _draw.MODEL,
            lambda path: write_archive(path, "model of a table", 2, None, ()),
            "written by a newer discreet",
        ),
        (
            _draw.MODEL,
            lambda path: write_archive(path, "model of a table", 1, "another", ()),
            "twin.model is damaged",
        ),
        (_draw.MODEL, lambda path: path.write_text("{}"), "is no model of a table"),
        (_draw.RESULT, lambda path: path.write_bytes(path.read_bytes()[:-9]), "only a part of one"),
        (_draw.RESULT, Path.unlink, "cannot be read"),
    ],
)
def test_a_folder_that_was_tampered_with_is_refused(tmp_path: Path, name, edit, words) -> None:
    fitted(tmp_path / "fit", SCHEMA)
    edit(tmp_path / "fit" / name)
    refused(synth(tmp_path / "fit", "--out", tmp_path / "out"), words)
    assert not (tmp_path / "out").exists()


# --- the fit before it ---------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two rows a person, which must become one."""
    (tmp_path / "schema.toml").write_text(
        'person = "id"\n[columns.age]\nkind = "count"\nbounds = [0, 3]\nmissing = "indicator"\n'
        '[columns.smoker]\nkind = "binary"\ncategories = ["no", "yes"]\n'
    )
    rows = [f"{i // 2},{i % 4 if i % 5 else ''},{'yes' if i % 3 else 'no'}" for i in range(400)]
    (tmp_path / "table.csv").write_text("\n".join(["id,age,smoker", *rows]) + "\n")
    return tmp_path / "table.csv"


def fit_words(table: Path, *more: str) -> list[str]:
    folder = table.parent
    return [
        *(
            "fit",
            "--data",
            str(table),
            "--schema",
            str(folder / "schema.toml"),
            "--model",
            "twin",
            "--epsilon",
            "1",
        ),
        *("--out", str(folder / "fit"), "--yes", *more),
    ]


@pytest.mark.parametrize("max_rows", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_from_a_table_to_twins(
    table: Path, monkeypatch: pytest.MonkeyPatch, quick_compilation, max_rows
) -> None:
    schema = table.parent / "schema.toml"
    if max_rows > 1:
        person = f'person = {{column = "id", max_rows = {max_rows}}}'
        schema.write_text(schema.read_text().replace('person = "id"', person))
    monkeypatch.setattr(
        DPSVI.run, "__kwdefaults__", {**(DPSVI.run.__kwdefaults__ or {}), "require_proof": False}
    )
    words = [
        word
        for word in fit_words(table, "--components", "1", "--steps", "5", "--epsilon", "9")
        if word != "--yes"
    ]
    outcome = RUN.invoke(app, words)
    assert outcome.exit_code == 2
    assert "one component are independent" in " ".join(outcome.stderr.split())
    outcome = RUN.invoke(app, fit_words(table, "--components", "2", "--steps", "5"))
    assert outcome.exit_code == 0, outcome.stderr
    out = table.parent / "fit"
    names = {path.name for path in out.iterdir()}
    written = {"statement.json", "statement.txt", "report.html", "twin.result", "twin.model"}
    assert names - {"fit.png"} == written
    assert names <= set(_report.FILES)
    assert f"discreetsynth{out}" in "".join(outcome.stdout.split())
    result, model = read_fitted(out)
    # A record is a person; the statement in the result is the one that was published.
    assert result.plan.num_records == 200
    assert result.statement.to_json() == (out / "statement.json").read_text()
    assert any("Each person is one record" in note for note in result.statement.notes)
    assert any("understate their uncertainty at small" in note for note in result.statement.notes)
    assert model.components == 2
    table.unlink()
    assert synth(out, "--out", table.parent / "twins").exit_code == 0
    twins = table.parent / "twins"
    twin = read_table(twins / "twin-1.csv", schema_from_toml(twins / "twins.schema.toml"))
    assert len(twin) == 200 if max_rows == 1 else len(twin["id"].unique()) == 200 < len(twin) < 600


@pytest.mark.exhaustive
def test_draws_without_the_guide_are_the_guides(fit: Path) -> None:
    """To five standard errors of 400 draws, in 292 numbers four times: a false alarm in 1,500 other seeds."""
    read = read_fitted(fit)
    params, model = read.result.params, read.model
    guided = load_result(
        fit / "twin.result", model.model, model.guide(), placeholder=model.placeholder
    )
    ours, theirs = (one.posterior(random.key(1), 400) for one in (read, guided))
    assert set(ours) == set(theirs)
    for name in theirs:
        loc, scale = params[f"{name}_auto_loc"], params[f"{name}_auto_scale"]
        for drawn in (ours[name], theirs[name]):
            np.testing.assert_array_less(np.abs(np.mean(drawn, axis=0) - loc), 5 * scale / 20)
            np.testing.assert_array_less(np.abs(np.std(drawn, axis=0) / scale - 1), 5 / 800**0.5)


def test_defaults_of_a_twin(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def release(method):
        calls.append(method)
        raise ValueError("enough")

    monkeypatch.setattr(TwinInSteps, "release", release)
    refused(RUN.invoke(app, fit_words(table, "--by", "svi")), "enough")
    (method,) = calls
    plan = method.plan
    assert (plan.num_steps, plan.rate, method.learning_rate) == (300, 1.0, 0.05)
    assert plan.clipping_norm == dp.AdaptiveClipping()
    assert method.whole.components == 16
    assert method.records.x.dtype == jnp.int32


def test_options_that_a_twin_has_not(table: Path) -> None:
    refused(RUN.invoke(app, fit_words(table, "--components", "0")), "--components is 0")
    refused(RUN.invoke(app, fit_words(table, "--out-of-bounds", "missing")), "refuse or clip")
    refused(RUN.invoke(app, fit_words(table, "--bounds", "age=0:3")), "describe the same thing")
    with pytest.raises(ValueError, match="--components is for --model twin"):
        choose_model("logistic", components=3)
    table.write_text(table.read_text().replace(",yes", ",maybe"))
    refused(RUN.invoke(app, fit_words(table)), "'smoker' has values outside its public categories")
    assert not (table.parent / "fit").exists()


def test_the_schema_of_adult_is_that_of_the_example(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repository / "examples"))
    written = schema_from_toml(repository / "examples" / "adult.schema.toml")
    example = importlib.import_module("adult_twin")
    assert written == example.schema()
    assert schema_to_toml(written) == schema_to_toml(example.schema())
