import atexit
import errno
import gc
import os
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from discreet.interfaces.cli import _terminal, main
from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._terminal import refusing, write_file

RUN = CliRunner()


def test_the_command_exists() -> None:
    (script,) = entry_points(group="console_scripts", name="discreet")
    assert script.load() is main


def test_a_process_of_a_command_seldom_looks_for_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it imports and traces stays until it ends; at its end all is left to the system."""
    at_end = []
    monkeypatch.setattr(sys, "argv", ["discreet", "--version"])
    monkeypatch.setattr(atexit, "register", at_end.append)
    usual = gc.get_threshold()
    try:
        with pytest.raises(SystemExit):
            main()
        assert gc.isenabled()
        assert gc.get_threshold()[0] >= 100_000
        assert at_end == [gc.freeze]
    finally:
        gc.set_threshold(*usual)


def test_version_and_help() -> None:
    assert RUN.invoke(app, ["--version"]).stdout == f"discreet {version('discreet')}\n"
    for arguments in (
        ["--help"],
        ["demo", "--help"],
        ["fit", "-h"],
        ["account", "--help"],
        ["explain", "--help"],
    ):
        outcome = RUN.invoke(app, arguments)
        assert outcome.exit_code == 0
        if len(arguments) > 1:
            assert (
                f"discreet {arguments[0]} --" in outcome.stdout
                or "discreet explain" in outcome.stdout
            )


def test_help_of_fit_fits_a_screen_and_says_where_the_rest_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    brief, whole = (RUN.invoke(app, ["fit", option]).stdout for option in ("--help", "--help-all"))
    assert len(brief.splitlines()) <= 40
    for option in ("--data", "--model", "--schema", "--epsilon", "--ledger", "--out", "--help-all"):
        assert option in brief
    assert "--draws" not in brief
    for option in ("--draws", "--relation", "--seed", "--distributed", "--data"):
        assert option in whole
    # What is hidden from the help is still an option.
    assert (
        "--epsilon is missing"
        in RUN.invoke(app, ["fit", "--data", "x.csv", "--model", "twin", "--draws", "3"]).stderr
    )


def test_help_loads_nothing_heavy() -> None:
    heavy = ["jax", "scipy", "pyarrow", "sklearn", "matplotlib"]
    code = f"import sys, discreet.interfaces.cli._app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_debug_may_stand_anywhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["discreet", "explain", "absent.json", "--debug"])
    monkeypatch.setattr(_terminal.settings, "debug", False)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "Traceback" in capsys.readouterr().err


def test_refusals_and_faults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_terminal.settings, "debug", False)

    @refusing
    def command(error: Exception) -> None:
        raise error

    with pytest.raises(typer.Exit) as stopped:
        command(ValueError("the what: the remedy"))
    assert stopped.value.exit_code == 2
    assert capsys.readouterr().err == "Refused: the what: the remedy\n"
    with pytest.raises(typer.Exit) as stopped:
        command(RuntimeError("secretcell"))
    assert stopped.value.exit_code == 1
    shown = capsys.readouterr().err
    assert "RuntimeError" in shown
    assert "secretcell" not in shown


def test_the_umask_says_who_may_read(tmp_path) -> None:
    old = os.umask(0o027)
    try:
        assert write_file(tmp_path / "file.txt", "").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)


def test_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_file(tmp_path / "new" / "file.txt", "ε")
    assert path.read_text(encoding="utf-8") == "ε"
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_file(path, "other")
    assert path.read_text(encoding="utf-8") == "ε"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]


def test_the_disk_holds_the_results_before_the_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "made" / "out"
    with _terminal.folder_for_results(out, room=2**20):
        (reserved,) = out.iterdir()
        assert reserved.stat().st_size == 2**20
        assert reserved.stat().st_blocks * 512 >= 2**20
        _terminal.give_room(out)
        assert not list(out.iterdir())
        _terminal.write_file(out / "statement.json", "{}")

    def full(*_args: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        pytest.raises(ValueError, match="No space left"),
        _terminal.folder_for_results(tmp_path / "other", room=2**20),
    ):
        pytest.fail("the fit would have run")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "fit survey.csv",
            "Write --data survey.csv for survey.csv. Missing --model or --formula, --epsilon, --schema or --bounds.",
        ),
        (
            "fit survey.csv --model logistic --epsilon 1 --schema s.toml",
            "Write --data survey.csv for survey.csv. For the options",
        ),
        (
            "score out survey.csv --epsilon 1",
            "Write --data survey.csv for survey.csv. For the options",
        ),
        (
            "fit --table survey.csv",
            "No such option: --table. Write --data survey.csv for --table survey.csv.",
        ),
        (
            "plan --data survey.csv",
            "No such option: --data. discreet plan reads no table, so leave --data survey.csv out.",
        ),
        (
            "plan survey.csv --model logistic --num-records 9 --epsilon 1",
            "reads no table, so leave survey.csv out. For the",
        ),
        (
            "describe --data=survey.csv",
            "No such option: --data. Write survey.csv alone for --data=survey.csv.",
        ),
        (
            "schema check --schema s.toml",
            "No such option: --schema. Write s.toml alone for --schema s.toml.",
        ),
        ("synth --fit", "No such option: --fit. Write FILE alone for --fit FILE."),
        ("explain a b", "Got unexpected extra argument"),
    ],
)
def test_a_table_in_the_wrong_place_is_answered_with_what_to_write(words: str, said: str) -> None:
    """`fit survey.csv` missed --data without a word on survey.csv, and `plan --data` was asked whether --delta was meant."""
    outcome = RUN.invoke(app, words.split())
    assert outcome.exit_code == 2
    assert said in " ".join(outcome.stderr.split())
