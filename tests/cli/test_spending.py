"""A fit whose budget is spent when something fails or somebody stops it loses nothing."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import ledger
from discreet.interfaces.cli import _options, _report, _terminal
from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._steps import InSteps
from discreet.privacy.act import Act
from discreet.privacy.random import claim
from discreet.privacy.report import make_statement

from .world import SCHEMA

RUN = CliRunner()


@pytest.fixture
def command(tmp_path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(_terminal.settings, "debug", False)
    (tmp_path / "table.csv").write_text("age,smoker\n20,no\n60,yes\n")
    options = {
        "data": tmp_path / "table.csv",
        "model": "logistic",
        "target": "smoker",
        "out": tmp_path / "out" / "deep",
    }
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [
        "fit",
        *given,
        "--bounds",
        "age=0:100,smoker=no|yes",
        "--epsilon",
        "1",
        "--delta",
        "1e-5",
        "--by",
        "svi",
        "--yes",
    ]


def stub(
    monkeypatch: pytest.MonkeyPatch,
    samples=None,
    *,
    steps: int = 10_000,
    error: BaseException | None = None,
) -> None:
    """Put this in the place of the fit: draws, steps done, and what goes wrong with the draws."""

    def release(method):
        plan = method.plan

        def draw(key, number):
            if error is not None:
                raise error
            return samples or {"weights": np.zeros((4, 1))}

        statement = make_statement(plan, steps_completed=steps, reproducible=False)
        given = {
            "statement": statement,
            "plan": plan,
            "losses": np.ones(3),
            "steps_completed": steps,
            "posterior": draw,
        }
        return SimpleNamespace(**given), None

    monkeypatch.setattr(InSteps, "release", release)


def said(outcome) -> str:
    return " ".join(outcome.stderr.split())


@pytest.mark.parametrize(
    "error", [ValueError("secretcell"), MemoryError(), OSError(28, "No space left on device")]
)
def test_draws_that_fail_leave_the_statement(command, tmp_path, monkeypatch, error) -> None:
    stub(monkeypatch, error=error)
    outcome = RUN.invoke(app, command)
    assert outcome.exit_code == 1
    assert "The fit ran and its budget is spent; the statement is in" in said(outcome)
    assert type(error).__name__ in said(outcome)
    assert "secretcell" not in said(outcome)
    statement = json.loads((tmp_path / "out" / "deep" / "statement.json").read_text())
    assert statement["is_private"] is True


def test_a_full_disk_prints_the_statement(command, monkeypatch) -> None:
    def full(*_):
        raise OSError(28, "No space left on device")

    stub(monkeypatch)
    monkeypatch.setattr(_report, "write_file", full)
    outcome = RUN.invoke(app, command)
    assert outcome.exit_code == 1
    assert "Privacy statement" in outcome.stdout
    assert "printed on standard output" in said(outcome)
    assert "No space left on device" in said(outcome)


def test_a_disk_without_room_for_the_results_is_refused_before_anything_is_spent(
    command, tmp_path, monkeypatch
) -> None:
    from discreet import marginals

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def released(*_, **__):
        pytest.fail("something was released before the refusal")

    monkeypatch.setattr(_terminal, "_reserve", full)
    monkeypatch.setattr(InSteps, "release", released)
    monkeypatch.setattr(marginals, "private_marginals", released)
    out = tmp_path / "out" / "deep"
    words = ["describe", str(tmp_path / "table.csv"), "--bounds", "age=0:100,smoker=no|yes"]
    for asked in (command, [*words, "--epsilon", "1", "--delta", "1e-5", "--out", str(out)]):
        outcome = RUN.invoke(app, asked)
        assert outcome.exit_code == 2, outcome.output
        assert (
            "cannot be written to (No space left on device): choose another folder by --out"
            in said(outcome)
        )
        assert not (tmp_path / "out").exists()


def test_a_fit_that_diverged_is_written(command, tmp_path, monkeypatch) -> None:
    stub(
        monkeypatch,
        {"intercept": np.array([np.nan, np.inf, 1.0]), "weights": np.full((3, 1), np.nan)},
    )
    outcome = RUN.invoke(app, command)
    assert outcome.exit_code == 0, outcome.stderr
    summary = json.loads((tmp_path / "out" / "deep" / "summary.json").read_text())
    assert summary["posterior"]["age"] == {"mean": None, "sd": None, "low": None, "high": None}


def test_old_results_do_not_stay_beside_a_new_statement(command, tmp_path, monkeypatch) -> None:
    stub(monkeypatch)
    assert RUN.invoke(app, command).exit_code == 0
    stub(monkeypatch, error=MemoryError())
    assert RUN.invoke(app, [*command, "--overwrite"]).exit_code == 1
    assert sorted(path.name for path in (tmp_path / "out" / "deep").iterdir()) == [
        "statement.json",
        "statement.txt",
    ]


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_an_interrupted_fit_is_written_and_said(command, tmp_path, monkeypatch, json_too) -> None:
    stub(monkeypatch, steps=877)
    outcome = RUN.invoke(app, [*command, *json_too])
    assert outcome.exit_code == 130
    assert "Stopped after 877 of 1,000 steps. The budget of all steps is spent." in said(outcome)
    assert (tmp_path / "out" / "deep" / "summary.json").exists()
    assert "statement.json" in outcome.stdout
    assert "Fitted" not in outcome.stdout
    assert json_too or "Stopped after 877 steps of fitting logistic to 2 records." in " ".join(
        outcome.stdout.split()
    )


@pytest.mark.parametrize(
    ("error", "code", "needle"),
    [
        (KeyboardInterrupt(), 130, "Stopped before the first step: nothing was spent."),
        (ValueError("what: remedy"), 2, "Refused: what: remedy"),
    ],
)
@pytest.mark.parametrize("released", [False, True])
def test_whether_a_broken_fit_spent(
    command, tmp_path, monkeypatch, error, code, needle, released
) -> None:
    """DPSVI raises before its first release, or (a second Ctrl-C) after it; its key tells which."""
    from discreet import inference

    def fail(self, key, *_, **__):
        if released:
            claim(key)
        raise error

    monkeypatch.setattr(inference.DPSVI, "run", fail)
    outcome = RUN.invoke(app, command)
    if released:
        assert "count the ε of the whole plan as spent" in said(outcome)
        assert outcome.exit_code == (130 if code == 130 else 1)
    else:
        assert said(outcome).endswith(needle)
        assert outcome.exit_code == code
    assert not (tmp_path / "out").exists()


def test_a_ledger_charges_a_fit_its_own_epsilon_by_default(command, tmp_path, monkeypatch) -> None:
    """At the cap's own delta, epsilon = 1 was charged as 1.32; who asks for that delta reads why."""
    book = tmp_path / "book.ledger"
    dp.Ledger.create(book, dataset="t", epsilon=3.0, delta=1e-5)
    (tmp_path / "table.csv").write_text("age,smoker\n" + "20,no\n60,yes\n" * 6_000)
    with_ledger = [*command, "--ledger", str(book), "--dry-run"]
    asked = " ".join(RUN.invoke(app, with_ledger).stdout.split())
    assert "After it, ε = 1.32" in asked
    assert "δ = 1e-05 is more than a tenth of the cap's" in asked
    place = with_ledger.index("--delta")
    default = " ".join(
        RUN.invoke(app, [*with_ledger[:place], *with_ledger[place + 2 :]]).stdout.split()
    )
    assert "at δ = 1e-06" in default
    assert "After it, ε = 0.9998" in default or "After it, ε = 1 of" in default
    assert "a tenth of the cap's" not in default


def test_the_default_delta_of_counts_and_scores_follows_the_ledger(tmp_path) -> None:
    dp.Ledger.create(tmp_path / "book.ledger", dataset="t", epsilon=3.0, delta=3e-6)
    assert _options.suggest_delta(None, None) == 1e-6
    assert _options.suggest_delta(None, tmp_path / "book.ledger") == 3e-7
    assert _options.suggest_delta(10**9, tmp_path / "book.ledger") == 1e-10


def test_the_default_delta_follows_public_numbers_alone(tmp_path, monkeypatch) -> None:
    """A fit of a twin keeps the number of records private; --num-records 0 was taken for none."""
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(dp.planning, "dry_run", lambda *_, delta, **__: asked.append(delta))
    bounds = "--bounds age=0:99,smoker=no|yes --epsilon 1 --model"
    for rows in (30, 31, 3_000):
        RUN.invoke(app, f"plan {bounds} logistic --target smoker --num-records {rows}000".split())
        Path("table.csv").write_text("age,smoker\n" + "20,no\n" * rows)
        fits = [
            f"fit --data table.csv {bounds} twin --dry-run --json" + x
            for x in ("", " --num-records 300000")
        ]
        said = [" ".join(RUN.invoke(app, words.split()).stderr.split()) for words in fits]
        # At 1e-6 nothing said that 1 / N is less in a table of more than a million records.
        assert [
            "if there may be more than 100,000, give --num-records" in text for text in said
        ] == [True, False]
        told = [json.loads(RUN.invoke(app, words.split()).stdout)["delta"] for words in fits]
        assert told == [1e-6, 3e-7]
    assert asked == [3e-6, 3e-6, 3e-8]
    with pytest.raises(ValueError, match="num_records"):
        _options.suggest_delta(0, None)


TABLE = "age,smoker\n" + "20,no\n60,yes\n" * 500
BOUNDED = "--bounds age=0:100,smoker=no|yes --epsilon 1 --delta 1e-6 --ledger book.ledger --out out"
RELEASING = {
    "counts": f"describe table.csv {BOUNDED}",
    "scores": "score fitted --data table.csv --epsilon 1 --delta 1e-6 --ledger book.ledger --out scored",
    "bounds": "schema init table.csv --private-bounds --epsilon 1 --delta 1e-6 --ledger book.ledger --out new.toml",
    "twins": f"fit --data table.csv --model twin {BOUNDED}",
    "a formula": f"fit --data table.csv --formula smoker~age --family bernoulli {BOUNDED}",
    "Newton": f"fit --data table.csv --model logistic --target smoker {BOUNDED}",
    "moments": f"fit --data table.csv --model linear --target age {BOUNDED}",
    "steps": f"fit --data table.csv --model logistic --target smoker --steps 3 --yes {BOUNDED}",
}


@pytest.fixture
def book(tmp_path, monkeypatch: pytest.MonkeyPatch) -> dp.Ledger:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_terminal.settings, "debug", False)
    Path("table.csv").write_text(TABLE)
    Path("fitted").mkdir()
    np.savez("fitted/posterior.npz", weights=np.zeros((3, 1)), intercept=np.zeros(3))
    Path("fitted/summary.json").write_text(json.dumps({"model": "logistic", "schema": SCHEMA}))
    return dp.Ledger.create("book.ledger", dataset="t", epsilon=3.0, delta=1e-4)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        *((what, KeyboardInterrupt()) for what in RELEASING),
        ("scores", ValueError("secretcell")),
        ("steps", MemoryError()),
    ],
)
def test_what_ends_between_debit_and_release_is_no_refusal(what, error, book, monkeypatch) -> None:
    """Of counts, scores and bounds it was said that nothing was spent, and the ledger had the debit."""
    begin = Act.begin

    def ends(self: Act) -> None:
        begin(self)
        raise error

    monkeypatch.setattr(Act, "begin", ends)
    outcome = RUN.invoke(app, RELEASING[what].split())
    assert len(book.debits) == 1, outcome.stderr
    assert (
        "its budget is spent; no statement was written, so count the ε of the whole plan as spent"
        in said(outcome)
    )
    assert "secretcell" not in said(outcome)
    assert outcome.exit_code == (130 if isinstance(error, KeyboardInterrupt) else 1)


@pytest.mark.parametrize("what", ["counts", "Newton", "steps"])
def test_a_ledger_that_cannot_be_written_to_is_a_refusal(what, book, monkeypatch) -> None:
    """It can be read, so it is the debit that is refused, behind the claim of the key."""

    def locked(*_):
        raise dp.ledger.LedgerError("book.ledger cannot be opened (Permission denied).")

    monkeypatch.setattr(ledger, "_appending", locked)
    outcome = RUN.invoke(app, RELEASING[what].split())
    assert "Refused: book.ledger cannot be opened (Permission denied)." in said(outcome)
    assert outcome.exit_code == 2
    assert not book.debits
