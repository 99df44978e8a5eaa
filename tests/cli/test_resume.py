"""`discreet fit --checkpoint`, a crash or Ctrl-C, `discreet resume`: one debit, one statement, the same bits."""

import html
import json
import os
import random as chance
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from typer.testing import CliRunner

import discreet as dp
from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._of_records import OfRecords
from discreet.interfaces.cli._terminal import settings
from discreet.methods.inference._checkpoint import Checkpoint
from discreet.methods.inference._saved import FILE
from discreet.methods.newton._saved import SavedReleases
from discreet.storage import exclusive

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
FIT = "fit --data survey.csv --model logistic --schema schema.toml --epsilon 1 --delta 1e-5 --steps 40 --draws 10"
FIT += " --ledger survey.ledger --checkpoint saved"

NEWTON = "fit --data survey.csv --schema schema.toml --epsilon 1 --delta 1e-5 --yes --ledger survey.ledger --checkpoint saved"
NEWTONS = {
    "regression": f"{NEWTON} --model logistic",
    "model": f"{NEWTON} --model mine.py:model --by newton",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = "".join(
        f"{i % 150},{rng.integers(18, 90)},{['no', 'yes'][rng.integers(2)]}\n" for i in range(450)
    )
    (tmp_path / "survey.csv").write_text("id,age,smoker\n" + rows)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "mine.py").write_text(MODEL)
    dp.Ledger.create("survey.ledger", dataset="survey", epsilon=3.0, delta=1e-4, unit="one person")
    return tmp_path


def run(words, monkeypatch):
    monkeypatch.setattr(settings, "arguments", tuple(shlex.split(words)))
    monkeypatch.setattr(settings, "spent", None)
    monkeypatch.setattr(settings, "continue_with", None)
    return RUN.invoke(app, shlex.split(words))


def test_a_fit_that_died_goes_on(folder, monkeypatch):
    def crash(*_, **__):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "keep", crash)
        died = run(FIT, patch)
    assert died.exit_code == 1, died.output
    assert not (folder / "discreet-fit" / "statement.json").exists()
    kept = sorted(path.name for path in (folder / "saved").iterdir())
    assert kept == [FILE, "command.json", "draws.key", "persons.key"]
    assert len(dp.Ledger("survey.ledger").debits) == 1
    # From elsewhere.
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    done = run("resume ../saved", monkeypatch)
    assert done.exit_code == 0, done.output
    statement = json.loads((folder / "discreet-fit" / "statement.json").read_text())
    assert statement["plan"]["num_records"] == 150
    assert statement["receipt"]["number"] == 1
    says_person(statement, folder)
    assert len(dp.Ledger(folder / "survey.ledger").debits) == 1
    # Once more: the same results again, for nothing.
    monkeypatch.chdir(folder)
    written = released(folder / "discreet-fit")
    again = run("resume saved", monkeypatch)
    assert again.exit_code == 0, again.output
    same(released(folder / "discreet-fit"), written)
    assert len(dp.Ledger("survey.ledger").debits) == 1


def says_person(statement, folder):
    """The unit is the person wherever somebody looks for it: headline, unit, limits, page and ledger."""
    unit = "one person with up to 2 rows (all rows with the same 'id', of which 2 at most are used)"
    assert statement["unit"] == unit
    assert not any("Several records of one person" in limit for limit in statement["not_covered"])
    assert "adding or leaving out one person" in statement["meaning"]
    text = " ".join((folder / "discreet-fit" / "statement.txt").read_text().split())
    assert f"at δ = 1e-05, for {unit}." in text
    assert "one row of the table" not in text
    page = html.unescape((folder / "discreet-fit" / "report.html").read_text())
    shown = page[: page.index('id="machine"')]
    assert unit in shown
    assert "Adding or leaving out one person" in shown
    assert "one row of the table" not in shown
    assert "DPSVI, for one person with up to 2 rows" in shown
    assert "Persons (public)" in shown
    ledger = dp.Ledger(folder / "survey.ledger")
    assert [debit.unit for debit in ledger.debits] == ["one person with up to 2 rows"]
    assert "for one person with up to 2 rows" in str(ledger)


def released(out):
    """Read what a fit released: the draws of the posterior, and the private losses or the estimate."""
    with np.load(out / "posterior.npz") as file:
        found = {name: file[name] for name in file.files}
    summary = json.loads((out / "summary.json").read_text())
    return {**found, "numbers": np.array(summary.get("losses", summary.get("to_predict")))}


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert np.array_equal(value, expected[name]), name


def ctrl_c():
    raise KeyboardInterrupt


def said(outcome):
    return " ".join(outcome.stderr.split())


@pytest.mark.parametrize(
    "moment",
    ["mid-fit", pytest.param("between statement and posterior", marks=pytest.mark.essential)],
)
def test_ctrl_c_then_resume(folder, monkeypatch, moment):
    """The first Ctrl-C arrives after the first steps, and another one while it goes on; or when only the statement is written."""
    steps = FIT.replace("--steps 40", "--steps 300")
    keep, sent = Checkpoint.keep, []
    with monkeypatch.context() as patch:

        def stop_steps(self, state, progress, *rest, **options):
            if not sent:
                sent.append(progress.done)
                os.kill(os.getpid(), signal.SIGINT)
            keep(self, state, progress, *rest, **options)

        if moment == "mid-fit":
            patch.setattr(Checkpoint, "due", True)
            patch.setattr(Checkpoint, "keep", stop_steps)
        else:
            patch.setattr(OfRecords, "write_results", lambda *_: ctrl_c())
        outcomes = [run(steps, patch)]
        if moment == "mid-fit":
            sent.clear()
            outcomes.append(run("resume saved", patch))
    for stopped in outcomes:
        assert stopped.exit_code == 130, stopped.output
        assert "Continue with: discreet resume saved" in said(stopped)
        assert "Fitted" not in stopped.stdout
        assert ("Stopped after" in stopped.stdout) == (moment == "mid-fit")
    assert (folder / "discreet-fit" / "statement.json").exists()
    assert (folder / "discreet-fit" / "posterior.npz").exists() == (moment == "mid-fit")
    # The budget is spent: nobody may be sent away without what it bought.
    done = run("resume saved", monkeypatch)
    assert done.exit_code == 0, done.output
    statement = json.loads((folder / "discreet-fit" / "statement.json").read_text())
    assert statement["steps_completed"] == 300
    assert len(released(folder / "discreet-fit")["numbers"]) == 300
    assert len(dp.Ledger("survey.ledger").debits) == 1


def test_a_ledger_that_is_spent_meanwhile_refuses(folder, monkeypatch):
    """Two terminals spend one ledger at once: the later one has spent nothing, and says so."""

    def late(*_, **__):
        raise dp.SpentError("The cap is 1.3")

    with monkeypatch.context() as patch:
        patch.setattr(dp.Ledger, "debit", late)
        refused = run(FIT, patch)
    assert refused.exit_code == 2
    assert said(refused) == "Refused: The cap is 1.3"
    assert not dp.Ledger("survey.ledger").debits


HOLD = """
import time
from discreet.storage import exclusive
with exclusive("saved"):
    print(flush=True)
    time.sleep(99)
"""


def test_of_two_terminals_with_one_checkpoint_one_fits(folder, monkeypatch):
    """The other is refused before it spends or keeps its command, and a process that was killed leaves no lock."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        refused = run(FIT, monkeypatch)
        with pytest.raises(ValueError, match="saved is in use: another process"):
            dpsvi_run(checkpoint="saved")
        process.kill()
    assert refused.exit_code == 2
    assert (
        "saved is in use: another process or thread runs a fit with this checkpoint. Wait until"
        in said(refused)
    )
    assert list((folder / "saved").iterdir()) == []
    assert dp.Ledger("survey.ledger").debits == []
    with (
        exclusive("saved"),
        exclusive(folder / "saved"),
    ):  # the command line and the fit that it runs
        assert run(f"{FIT} --dry-run", monkeypatch).exit_code == 0
    # Refused at its claim, the other thread would remove the checkpoint of the first.
    refusal = pytest.raises(ValueError, match="saved is in use")
    with exclusive("saved"), ThreadPoolExecutor(1) as pool, refusal:
        pool.submit(dpsvi_run, checkpoint="saved").result()
    with exclusive("saved"):
        pass


def dpsvi_run(checkpoint):
    def model(x):
        mean = numpyro.sample("mean", dist.Normal())
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", dist.Normal(mean), obs=x)

    plan = dp.PrivacyPlan(
        sampling=dp.FullBatch(), clipping_norm=1.0, noise_multiplier=1.0, num_steps=1, num_records=2
    )
    dpsvi = dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(0.1), plan=plan)
    return dpsvi.run(dp.random.key(), np.zeros(2, np.float32), checkpoint=checkpoint)


def test_another_fits_statement_is_not_replaced(folder, monkeypatch):
    """A statement that is not this fit's stays, also for a fit that continues."""
    (folder / "discreet-fit").mkdir()
    (folder / "discreet-fit" / "statement.json").write_text("{}")
    assert run(FIT, monkeypatch).exit_code == 2
    with monkeypatch.context() as patch:
        patch.setattr(OfRecords, "write_results", lambda *_: ctrl_c())
        assert run(f"{FIT} --out other", patch).exit_code == 130
    (folder / "other" / "statement.json").write_text("{}")
    refused = run("resume saved", monkeypatch)
    assert refused.exit_code == 2
    assert "earlier release" in said(refused)
    assert (folder / "other" / "statement.json").read_text() == "{}"


COMMAND_LINE = """
from discreet.methods.inference import _checkpoint, _loop
_checkpoint._SECONDS = 0.0
_loop._SECONDS_A_CHUNK = 0.01
from discreet.interfaces.cli import main
main()
"""

SLOWLY = """
import time
from discreet.methods.newton._saved import SavedReleases
release = SavedReleases.release
def slowly(self, *told):
    time.sleep(0.05 * (len(self._made) == self._next))
    return release(self, *told)
SavedReleases.release = slowly
from discreet.interfaces.cli import main
main()
"""


def start(words, folder, program=COMMAND_LINE):
    command = [sys.executable, "-c", program, *shlex.split(words)]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.exhaustive
@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX systems")
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_ctrl_c_at_random_moments(folder, seed):
    """Real processes: stopped several times, a fit releases what it would have released without."""
    moments = chance.Random(seed)
    words, statement = (
        FIT.replace("--steps 40", "--steps 20000"),
        folder / "discreet-fit" / "statement.json",
    )
    with start(words, folder) as process:
        while not (folder / "saved" / FILE).exists():
            time.sleep(0.005)
            assert process.poll() is None
        # The comparison starts from the same key, by the same command, and is never stopped.
        shutil.copytree(folder / "saved", folder / "copy" / "saved")
        time.sleep(moments.uniform(0.0, 0.5))
        process.send_signal(signal.SIGINT)
        assert "Continue with: discreet resume saved" in " ".join(process.stderr.read().split())
    assert process.returncode == 130
    assert statement.exists()
    for name in ("survey.csv", "schema.toml"):
        shutil.copy(folder / name, folder / "copy" / name)
    dp.Ledger.create(
        folder / "copy" / "survey.ledger",
        dataset="survey",
        epsilon=3.0,
        delta=1e-4,
        unit="one person",
    )
    started = time.perf_counter()
    with start(words, folder / "copy") as process:
        error = process.stderr.read()
    assert process.returncode == 0, error
    whole = time.perf_counter() - started
    for moment in (moments.uniform(0.3, 1.0) * whole, None):
        before = statement.stat().st_mtime_ns if statement.exists() else 0
        with start("resume saved", folder) as process:
            if moment is not None:
                time.sleep(moment)
            else:
                # As soon as the statement is there, and before the posterior is.
                while process.poll() is None and (
                    not statement.exists() or statement.stat().st_mtime_ns == before
                ):
                    time.sleep(0.002)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            error = process.stderr.read()
        # The last: while Python itself was starting.
        assert process.returncode in (0, 130, -signal.SIGINT), error
        # On a busy machine all may be written before the signal comes. Python loses one that comes
        # while it collects garbage.
        if process.returncode == 0:
            assert (folder / "discreet-fit" / "posterior.npz").exists()
        elif moment is None and "Exception ignored" not in error:
            assert process.returncode == 130
            assert not (folder / "discreet-fit" / "posterior.npz").exists()
    with start("resume saved", folder) as process:
        error = process.stderr.read()
    assert process.returncode == 0, error
    assert len(dp.Ledger(folder / "survey.ledger").debits) == 1
    same(released(folder / "discreet-fit"), released(folder / "copy" / "discreet-fit"))


def test_a_folder_that_was_moved_is_refused(folder, monkeypatch):
    """Its command names the old place, where a fit would begin and spend again."""
    (folder / "saved").mkdir(mode=0o700)
    kept = {"arguments": f"{FIT} --checkpoint saved".split(), "folder": str(folder)}
    (folder / "saved" / "command.json").write_text(json.dumps(kept))
    (folder / "saved").rename(folder / "moved")
    done = run("resume moved", monkeypatch)
    assert done.exit_code == 2
    assert "moved was moved or copied" in " ".join(done.stderr.split())
    assert dp.Ledger("survey.ledger").debits == []


def test_what_cannot_go_on_is_said(folder, monkeypatch):
    for words, message in (
        ("resume nowhere", "contains no fit"),
        ("resume .", "contains no fit"),
        (FIT.replace("survey.ledger", "other.ledger"), "cannot be opened"),
        (FIT.replace("--epsilon 1", "--epsilon 9"), "Nothing was debited"),
        (f"{FIT} --seed 1", "would not be private"),
    ):
        done = run(words, monkeypatch)
        assert done.exit_code == 2, done.output
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.output
    assert dp.Ledger("survey.ledger").debits == []
    assert not (folder / "saved" / FILE).exists()


def stopped_at(number, error, words):
    """The outcome of a command that dies when a release of that number was drawn, and before it is kept."""
    release = SavedReleases.release

    def dying(self, program, public, parts):
        def drawn(*args):
            made = program(*args)
            if len(self._made) == number:
                raise error
            return made

        return release(self, drawn, public, parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SavedReleases, "release", dying)
        return run(words, patch)


def copied(folder):
    """Another folder with the same beginning of a fit, and a ledger of its own."""
    copy = folder / "copy"
    shutil.copytree(folder / "saved", copy / "saved")
    for name in ("survey.csv", "schema.toml", "mine.py"):
        shutil.copy(folder / name, copy / name)
    dp.Ledger.create(
        copy / "survey.ledger", dataset="survey", epsilon=3.0, delta=1e-4, unit="one person"
    )
    return copy


@pytest.mark.parametrize("name", [pytest.param("regression", marks=pytest.mark.essential), "model"])
def test_a_fit_that_was_stopped_goes_on(name, folder, monkeypatch):
    """Stopped twice, it releases what it would have released without."""
    died = stopped_at(0, MemoryError, NEWTONS[name])
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
        patch.setattr(OfRecords, "write_results", lambda *_: ctrl_c())
        assert run("resume ../saved", patch).exit_code == 130
    done = run("resume saved", monkeypatch)
    assert done.exit_code == 0, done.output
    statement = json.loads((folder / "discreet-fit" / "statement.json").read_text())
    assert statement["receipt"]["number"] == 1
    assert statement["plan"]["num_records"] == 150
    assert statement["is_private"] is True
    assert len(dp.Ledger(folder / "survey.ledger").debits) == 1
    monkeypatch.chdir(copy)
    done = run(NEWTONS[name], monkeypatch)
    assert done.exit_code == 0, done.output
    same(released(folder / "discreet-fit"), released(copy / "discreet-fit"))


def test_another_table_is_refused_with_the_reason(folder, monkeypatch):
    assert stopped_at(3, MemoryError, NEWTONS["regression"]).exit_code == 1
    before = (folder / "saved" / FILE).read_bytes()
    table = folder / "survey.csv"
    table.write_text(table.read_text().replace("yes", "no"))
    refused = run("resume saved", monkeypatch)
    assert refused.exit_code == 1
    assert "saved holds a fit with other data" in said(refused)
    assert (folder / "saved" / FILE).read_bytes() == before
    assert len(dp.Ledger("survey.ledger").debits) == 1


def wait_for(file, process, size):
    while not file.exists() or file.stat().st_size <= size:
        time.sleep(0.002)
        assert process.poll() is None, process.stderr.read()


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX systems")
def test_real_processes_are_killed_and_interrupted(folder):
    """By kill -9 before and in the releases, then by Ctrl-C: a fit releases what it would have released without."""
    file = folder / "saved" / FILE
    with start(NEWTONS["model"], folder, SLOWLY) as process:
        wait_for(file, process, 0)
        process.kill()
    copy = copied(folder)
    for sign in (signal.SIGKILL, signal.SIGINT):
        size = file.stat().st_size
        with start("resume saved", folder, SLOWLY) as process:
            # Three or more releases later: each has some hundred bytes.
            wait_for(file, process, size + 900)
            process.send_signal(sign)
            error = " ".join(process.stderr.read().split())
        assert not (folder / "discreet-fit" / "statement.json").exists()
    assert process.returncode == 130, error
    assert "Continue with: discreet resume saved" in error
    for words, place in (("resume saved", folder), (NEWTONS["model"], copy)):
        with start(words, place, SLOWLY) as process:
            error = process.stderr.read()
        assert process.returncode == 0, error
        assert len(dp.Ledger(place / "survey.ledger").debits) == 1
    same(released(folder / "discreet-fit"), released(copy / "discreet-fit"))
