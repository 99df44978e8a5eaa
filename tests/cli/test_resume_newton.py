"""`discreet fit` by private Newton, a crash or Ctrl-C, `discreet resume`: one debit, one statement, the same bits."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.cli._app import app
from discreet.cli._methods import OfRecords
from discreet.cli._terminal import settings
from discreet.inference._saved import FILE
from discreet.newton._saved import SavedReleases

pytestmark = pytest.mark.usefixtures("quick_compilation")
RUN = CliRunner()
SCHEMA = """
target = "smoker"
person = {column = "id", max_rows = 2}

[columns.age]
kind = "real"
bounds = [17, 90]

[columns.smoker]
kind = "binary"
categories = ["no", "yes"]
"""
MODEL = """
import numpyro
import numpyro.distributions as dist

def model(x, y, mask):
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    with numpyro.plate("people", x.shape[0]):
        rows = dist.Bernoulli(logits=slope * x[..., 0]).mask(mask).to_event(1)
        numpyro.sample("y", rows, obs=y)
"""
FIT = "fit --data survey.csv --schema schema.toml --epsilon 1 --delta 1e-5 --yes --ledger survey.ledger --checkpoint saved"
FITS = {"regression": f"{FIT} --model logistic", "model": f"{FIT} --model mine.py:model --by newton"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    rows = "".join(f"{i % 150},{rng.integers(18, 90)},{['no', 'yes'][rng.integers(2)]}\n" for i in range(450))
    (tmp_path / "survey.csv").write_text("id,age,smoker\n" + rows)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "mine.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    dp.Ledger.create("survey.ledger", dataset="survey", epsilon=3.0, delta=1e-4, unit="one person")
    return tmp_path


def run(words: str, patch: pytest.MonkeyPatch) -> Any:
    patch.setattr(settings, "arguments", tuple(shlex.split(words)))
    patch.setattr(settings, "spent", None)
    patch.setattr(settings, "continue_with", None)
    return RUN.invoke(app, shlex.split(words))


def said(outcome: Any) -> str:
    return " ".join(outcome.stderr.split())


def stopped_at(number: int, error: type[BaseException], words: str) -> Any:
    """The outcome of a command that dies when a release of that number was drawn, and before it is kept."""
    release = SavedReleases.release

    def dying(self: SavedReleases, program: Any, public: Any, parts: Any) -> np.ndarray:
        def drawn(*args: Any) -> np.ndarray:
            made = program(*args)
            if len(self._made) == number:
                raise error
            return made

        given: Any = drawn
        return release(self, given, public, parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SavedReleases, "release", dying)
        return run(words, patch)


def copied(folder: Path) -> Path:
    """Another folder with the same beginning of a fit, and a ledger of its own."""
    copy = folder / "copy"
    shutil.copytree(folder / "saved", copy / "saved")
    for name in ("survey.csv", "schema.toml", "mine.py"):
        shutil.copy(folder / name, copy / name)
    dp.Ledger.create(copy / "survey.ledger", dataset="survey", epsilon=3.0, delta=1e-4, unit="one person")
    return copy


def released(out: Path) -> dict[str, np.ndarray]:
    with np.load(out / "posterior.npz") as file:
        found = {name: file[name] for name in file.files}
    return {**found, "estimate": np.array(json.loads((out / "summary.json").read_text())["to_predict"])}


def same(found: Path, expected: Path) -> None:
    for (name, value), other in zip(released(found).items(), released(expected).values(), strict=True):
        assert np.array_equal(value, other), name


@pytest.mark.parametrize("name", [pytest.param("regression", marks=pytest.mark.essential), "model"])
def test_a_fit_that_was_stopped_goes_on(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped twice, it releases what it would have released without."""
    died = stopped_at(0, MemoryError, FITS[name])
    assert died.exit_code == 1, died.output
    assert "its budget is spent" in said(died)
    assert "Continue with: discreet resume saved" in said(died)
    kept = sorted(path.name for path in (folder / "saved").iterdir())
    assert kept == [FILE, "command.json", "draws.key", "persons.key"]
    copy = copied(folder)
    stopped = stopped_at(11, KeyboardInterrupt, "resume saved")
    assert stopped.exit_code == 130, stopped.output
    assert "Stopped by Ctrl-C. The fit ran and its budget is spent;" in said(stopped)
    assert "Continue with: discreet resume saved" in said(stopped)
    assert not (folder / "discreet-fit").exists()
    # From elsewhere; and once more, since it stops between statement and posterior.
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    with monkeypatch.context() as patch:
        patch.setattr(OfRecords, "write_results", lambda _: exit_by_ctrl_c())
        assert run("resume ../saved", patch).exit_code == 130
    done = run("resume saved", monkeypatch)
    assert done.exit_code == 0, done.output
    statement = json.loads((folder / "discreet-fit" / "statement.json").read_text())
    assert statement["receipt"]["number"] == 1
    assert statement["plan"]["num_records"] == 150
    assert statement["is_private"] is True
    assert len(dp.Ledger(folder / "survey.ledger").debits) == 1
    monkeypatch.chdir(copy)
    done = run(FITS[name], monkeypatch)
    assert done.exit_code == 0, done.output
    same(folder / "discreet-fit", copy / "discreet-fit")


def exit_by_ctrl_c() -> None:
    raise KeyboardInterrupt


def test_another_table_is_refused_with_the_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stopped_at(3, MemoryError, FITS["regression"]).exit_code == 1
    before = (folder / "saved" / FILE).read_bytes()
    table = folder / "survey.csv"
    table.write_text(table.read_text().replace("yes", "no"))
    refused = run("resume saved", monkeypatch)
    assert refused.exit_code == 1
    assert "saved holds a fit with other data" in said(refused)
    assert (folder / "saved" / FILE).read_bytes() == before
    assert len(dp.Ledger("survey.ledger").debits) == 1


COMMAND_LINE = """
import time
from discreet.newton._saved import SavedReleases
release = SavedReleases.release
def slowly(self, *told):
    time.sleep(0.05 * (len(self._made) == self._next))
    return release(self, *told)
SavedReleases.release = slowly
from discreet.cli import main
main()
"""


def start(words: str, folder: Path) -> Any:
    command = [sys.executable, "-c", COMMAND_LINE, *shlex.split(words)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for(file: Path, process: Any, size: int) -> None:
    while not file.exists() or file.stat().st_size <= size:
        time.sleep(0.002)
        assert process.poll() is None, process.stderr.read()


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX systems")
def test_real_processes_are_killed_and_interrupted(folder: Path) -> None:
    """By kill -9 before and in the releases, then by Ctrl-C: a fit releases what it would have released without."""
    file = folder / "saved" / FILE
    with start(FITS["model"], folder) as process:
        wait_for(file, process, 0)
        process.kill()
    copy = copied(folder)
    for sign in (signal.SIGKILL, signal.SIGINT):
        size = file.stat().st_size
        with start("resume saved", folder) as process:
            # Three or more releases later: each has some hundred bytes.
            wait_for(file, process, size + 900)
            process.send_signal(sign)
            error = " ".join(process.stderr.read().split())
        assert not (folder / "discreet-fit" / "statement.json").exists()
    assert process.returncode == 130, error
    assert "Continue with: discreet resume saved" in error
    for words, place in (("resume saved", folder), (FITS["model"], copy)):
        with start(words, place) as process:
            error = process.stderr.read()
        assert process.returncode == 0, error
        assert len(dp.Ledger(place / "survey.ledger").debits) == 1
    same(folder / "discreet-fit", copy / "discreet-fit")
