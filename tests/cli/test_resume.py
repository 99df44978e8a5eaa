"""`discreet fit --checkpoint`, a crash, `discreet resume`: one debit, one statement, and the same rows of each person."""

import json
import shlex

import numpy as np
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.cli._app import app
from discreet.cli._terminal import settings
from discreet.inference._checkpoint import FILE, Checkpoint

pytestmark = pytest.mark.usefixtures("quick_compilation")
RUN = CliRunner()
SCHEMA = """
target = "smoker"
person = "id"

[columns.age]
kind = "real"
bounds = [17, 90]

[columns.smoker]
kind = "binary"
categories = ["no", "yes"]
"""
FIT = "fit --data survey.csv --model logistic --schema schema.toml --epsilon 1 --delta 1e-5 --steps 40 --draws 10"
FIT += " --ledger survey.ledger --checkpoint saved"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = "".join(f"{i % 150},{rng.integers(18, 90)},{['no', 'yes'][rng.integers(2)]}\n" for i in range(300))
    (tmp_path / "survey.csv").write_text("id,age,smoker\n" + rows)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    dp.Ledger.create("survey.ledger", dataset="survey", epsilon=3.0, delta=1e-4)
    return tmp_path


def run(words, monkeypatch):
    monkeypatch.setattr(settings, "arguments", tuple(shlex.split(words)))
    monkeypatch.setattr(settings, "spent", None)
    return RUN.invoke(app, shlex.split(words))


def test_a_fit_that_died_goes_on(folder, monkeypatch):
    def crash(*_, **__):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "keep", crash)
        died = run(FIT, patch)
    assert died.exit_code == 1, died.output
    assert not (folder / "discreet-fit" / "statement.json").exists()
    assert sorted(path.name for path in (folder / "saved").iterdir()) == [FILE, "command.json", "persons.key"]
    assert len(dp.Ledger("survey.ledger").debits) == 1
    # From elsewhere.
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    done = run("resume ../saved", monkeypatch)
    assert done.exit_code == 0, done.output
    statement = json.loads((folder / "discreet-fit" / "statement.json").read_text())
    assert statement["plan"]["num_records"] == 150
    assert any("Debited as entry 1" in note for note in statement["notes"])
    assert len(dp.Ledger(folder / "survey.ledger").debits) == 1
    # What is done has its statement already.
    monkeypatch.chdir(folder)
    again = run("resume saved", monkeypatch)
    assert again.exit_code == 2
    assert "earlier fit" in again.stderr


def test_what_cannot_go_on_is_said(folder, monkeypatch):
    for words, message in (
        ("resume nowhere", "holds no fit"),
        ("resume .", "holds no fit"),
        (FIT.replace("survey.ledger", "other.ledger"), "cannot be opened"),
        (FIT.replace("--epsilon 1", "--epsilon 9"), "Nothing was debited"),
        (f"{FIT} --seed 1", "would not be private"),
        (FIT.replace("--schema schema.toml", "--non-private-bounds --target smoker"), "would not be private"),
    ):
        done = run(words, monkeypatch)
        assert done.exit_code == 2, done.output
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.output
    assert dp.Ledger("survey.ledger").debits == []
    assert not (folder / "saved" / FILE).exists()
