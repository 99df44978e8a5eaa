"""`discreet ledger`: each command, and each wrong word."""

import json

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.interfaces.cli._app import app

RUN = CliRunner()


def run(*words, code=0):
    outcome = RUN.invoke(app, ["ledger", *(str(word) for word in words)])
    assert outcome.exit_code == code, outcome.output
    return outcome


@pytest.fixture
def book(tmp_path):
    file = tmp_path / "survey.ledger"
    run(
        "open",
        file,
        "--dataset",
        "survey",
        "--epsilon",
        "2",
        "--delta",
        "1e-5",
        "--relation",
        "replace-one",
    )
    return file


def test_its_beginning_says_whose_privacy_it_keeps(tmp_path):
    given = ("--dataset", "survey", "--epsilon", "2", "--delta", "1e-5")
    rows = " ".join(run("open", tmp_path / "rows", *given).stdout.split())
    assert "The unit of privacy is one record: fits of another unit are refused." in rows
    assert "--unit 'one person'" in rows
    persons = " ".join(
        run("open", tmp_path / "persons", *given, "--unit", "one person").stdout.split()
    )
    assert persons.endswith("The unit of privacy is one person: fits of another unit are refused.")


def test_it_is_begun_shown_verified_and_capped(book):
    ledger = dp.Ledger(book)
    assert ledger.relation is dp.Relation.REPLACE_ONE
    plan = dp.PrivacyPlan(
        sampling=dp.FullBatch(),
        clipping_norm=1.0,
        noise_multiplier=9.0,
        num_steps=1,
        num_records=9,
        relation=dp.Relation.REPLACE_ONE,
    )
    receipt = ledger.debit(plan, delta=1e-6, method="DPSVI")
    assert "2 entries" in " ".join(run("verify", book, "--hash", receipt.hash[:16]).output.split())
    assert "DPSVI" in run("show", book).output
    facts = json.loads(run("show", book, "--json").output)
    assert facts["spent"] == receipt.spent
    assert facts["epsilon_if_planned_together"] < receipt.spent
    assert [debit["number"] for debit in facts["debits"]] == [1]
    run("cap", book, "--epsilon", "1.5", "--delta", "1e-5")
    assert dp.Ledger(book).cap.epsilon == 1.5


WRONG = {
    "begun twice": (
        ["open", "{}", "--dataset", "x", "--epsilon", "1", "--delta", "1e-5"],
        "already exists",
    ),
    "no cap": (
        ["open", "{}.new", "--dataset", "x", "--epsilon", "0", "--delta", "1e-5"],
        "must be a finite number above 0",
    ),
    "no name": (
        ["open", "{}.new", "--dataset", " ", "--epsilon", "1", "--delta", "1e-5"],
        "no name",
    ),
    "no folder": (
        ["open", "{}/x", "--dataset", "x", "--epsilon", "1", "--delta", "1e-5"],
        "cannot be written",
    ),
    "not there": (["show", "{}.other"], "cannot be opened"),
    "a higher cap": (["cap", "{}", "--epsilon", "3", "--delta", "1e-5"], "--raise"),
    "another entry": (["verify", "{}", "--hash", "0123456789"], "no entry with the hash"),
    "a short hash": (["verify", "{}", "--hash", "0"], "at least 8"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_in_a_paragraph(book, what):
    words, message = WRONG[what]
    before = book.read_bytes()
    stderr = " ".join(run(*(word.format(book) for word in words), code=2).stderr.split())
    assert message in stderr
    assert "Traceback" not in stderr
    assert book.read_bytes() == before
    assert [path.name for path in book.parent.iterdir()] == [book.name]


def test_an_edited_line_is_noticed(book):
    book.write_text(book.read_text().replace('"epsilon":2.0', '"epsilon":9.0'))
    assert "was changed" in " ".join(run("verify", book, code=2).stderr.split())
