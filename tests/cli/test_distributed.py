"""`discreet fit --distributed`: the page's recipe, one debit and one statement; refusals that name a process; failures."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._report import COUNTS

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = """\
target = "age"
person = {column = "id", max_rows = 2}
[columns.age]
kind = "real"
bounds = [17, 90]
[columns.smoker]
kind = "binary"
categories = ["no", "yes"]
"""
QUICK = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "OMP_NUM_THREADS": "1"}
FIT = "fit --data survey.csv --model linear --schema schema.toml --epsilon 1 --steps 12 --draws 10 --yes"
# What `discreet` runs, with something else beforehand.
CODE = "import sys; from discreet.interfaces.cli import main; {}; sys.argv[0] = 'discreet'; main()"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = "".join(f"{i % 25},{rng.integers(18, 90)},{['no', 'yes'][i % 2]}\n" for i in range(71))
    Path("survey.csv").write_text("id,age,smoker\n" + rows)
    Path("schema.toml").write_text(SCHEMA)
    dp.Ledger.create("survey.ledger", dataset="survey", epsilon=3.0, delta=1e-2, unit="one person")
    return tmp_path


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(words, planted=("pass", "pass"), **options):
    """The processes of a command, which begin with what is planted."""
    cluster = f"--distributed --coordinator 127.0.0.1:{free_port()} --processes {len(planted)} --process-id"
    return [
        subprocess.Popen(
            [sys.executable, "-c", CODE.format(first), *f"{each} {cluster} {number}".split()],
            env={**os.environ, **QUICK},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        for number, (first, each) in enumerate(
            zip(planted, [words] * 9 if isinstance(words, str) else words)  # noqa: B905
        )
    ]


def ends(children, seconds=600):
    """Outputs, errors and exit codes."""
    said = [child.communicate(timeout=seconds) for child in children]
    return *map(list, zip(*said, strict=True)), [child.returncode for child in children]


def recipe(processes):
    """The page's commands, in as many processes."""
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    text = next(
        block
        for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        if "--distributed" in block
    )
    numbers = " ".join(map(str, range(processes)))
    for old, new in {
        "id in 0 1": f"id in {numbers}",
        "--processes 2": f"--processes {processes}",
        ":7654": f":{free_port()}",
        "discreet fit": f"{sys.executable} -c 'from discreet.interfaces.cli import main; main()' fit --steps 12 --draws 10 --yes",
    }.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_the_recipe_of_the_page_makes_one_debit_and_one_statement(folder, processes):
    """The table has persons, whose rows process 0's secret chooses; a finished fit is written again at no cost."""
    done = subprocess.run(
        ["sh", "-ec", recipe(processes)],
        env={**os.environ, **QUICK},
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("Fitted linear to 25 persons") == 1, done.stderr
    assert done.stdout.count("is spent") == 1
    assert "Gloo" not in done.stdout
    statement = json.loads(Path("fitted/statement.json").read_text())
    assert any(
        f"{processes} devices (cpu) of {processes} processes" in note for note in statement["notes"]
    )
    assert len(dp.Ledger("survey.ledger").debits) == 1
    assert sorted(os.listdir("saved")) == [
        "checkpoint.discreet",
        "draws.key",
        "persons.key",
        "statements.sha256",
    ]


def test_private_newton_is_the_method_of_several_processes(folder):
    """Where a table is fitted by it in one process; process 0 alone has the ledger, and both choose the same rows of persons."""
    fit = FIT.replace("linear", "logistic --target smoker").replace("--steps 12 ", "")
    children = start([f"{fit} --out fitted --ledger survey.ledger", f"{fit} --out fitted"])
    outputs, errors, codes = ends(children)
    assert codes == [0, 0], errors
    assert "Fitted logistic to 25 persons" in outputs[0]
    assert outputs[1] == errors[1] == ""
    assert len(dp.Ledger("survey.ledger").debits) == 1
    assert "private Newton" in Path("fitted/statement.txt").read_text()


def test_a_refusal_names_the_process_that_differs(folder):
    """In one paragraph, by process 0; nothing is spent."""
    children = start([FIT, FIT.replace("survey.csv", "elsewhere.csv")])
    outputs, errors, codes = ends(children)
    assert codes == [2, 2], errors
    assert not any(outputs)
    assert errors[0].startswith(
        "Refused: Process 1 refused: DataError: elsewhere.csv does not exist"
    )
    assert errors[1] == ""


WITHOUT_PERSONS = FIT.replace("schema.toml", "rows.toml")
COUNTED = f"fit --data fit/counts{Path(COUNTS).suffix} --model twin --components 2"
REFUSALS = [
    # Of these one process would draw the order of rows by itself, and the others wait for it.
    ([FIT, f"{FIT} --seed 3"], "Process 1 has another seed"),
    ([f"{FIT} --seed 3", f"{FIT} --seed 4"], "Process 1 has another seed"),
    ([FIT, WITHOUT_PERSONS], "Process 1 has another schema, target or person column"),
    ([FIT, f"{FIT} --dry-run"], "Process 1 has other options"),
    (COUNTED, "--distributed is for fits in steps, and fit/counts"),
    ([FIT, COUNTED], "Process 1 refused: --distributed is for fits in steps"),
    ([FIT, FIT.replace("--steps 12", "--steps 13")], "Process 1 has another plan"),
    ([f"{FIT} --ledger none.ledger", FIT], "none.ledger"),
    ([f"{FIT} --out schema.toml", FIT], "schema.toml"),
    ([FIT, f"{FIT} --checkpoint saved"], "Process 1 is given --checkpoint"),
]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        pytest.param(*case, marks=[pytest.mark.exhaustive] * (number > 0))
        for number, case in enumerate(REFUSALS)
    ],
)
def test_refusals(folder, words, reason):
    Path("rows.toml").write_text(SCHEMA.replace('person = {column = "id", max_rows = 2}', ""))
    began = time.time()
    outputs, errors, codes = ends(start(words), 100)
    assert time.time() - began < 100  # 40 on a machine that does nothing else
    assert codes == [2, 2], errors
    assert reason in " ".join(errors[0].split())
    assert not any(outputs)
    assert not os.path.exists("discreet-fit")


DIES = "import os; from discreet.methods.inference._loop import TraceRecorder as T; T.extend = lambda *_: os.kill(os.getpid(), 9)"
FAILS = (
    "from discreet.methods.inference._loop import TraceRecorder as T; T.extend = lambda *_: 1 / 0"
)
FULL = (
    "import errno; from discreet.interfaces.cli import _run; "
    "_run.write_statement = lambda *_: (_ for _ in ()).throw(OSError(28, 'full'))"
)


@pytest.mark.exhaustive
def test_a_killed_process_ends_all_and_the_same_command_goes_on(folder):
    fit = f"{FIT} --ledger survey.ledger --checkpoint saved"
    _, errors, codes = ends(start(fit, ("pass", DIES)))
    assert codes == [75, -signal.SIGKILL], errors
    assert "Start all processes again with the same command" in errors[0]
    outputs, errors, codes = ends(start(fit))
    assert codes == [0, 0], errors
    assert "Fitted linear" in outputs[0]
    assert len(dp.Ledger("survey.ledger").debits) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("planted", "codes"), [((FAILS, "pass"), [70, 70]), ((FULL, "pass"), [1, 1])]
)
def test_a_failure_ends_all(folder, planted, codes):
    """Within seconds, with what is spent; a message is not shown that may quote the data."""
    children = start(FIT, planted)
    began = time.time()
    _, errors, found = ends(children)
    assert found == codes, errors
    assert "spent" in errors[0]
    assert "division" not in "".join(errors)
    assert time.time() - began < 100


@pytest.mark.exhaustive
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_after_the_same_step_and_writes_one_statement(folder, sent):
    pressed = (
        "import os; from discreet.methods.inference._loop import TraceRecorder as T; f = T.extend; "
        f"T.extend = lambda *x: (f(*x), x[1] == 1 and os.kill(os.getpid(), {int(sent)}))[0]"
    )
    outputs, errors, codes = ends(
        start(FIT.replace("--steps 12", "--steps 100000"), ("pass", pressed))
    )
    assert codes == [130, 130], errors
    assert "steps of fitting linear" in outputs[0]
    assert "of 100,000 steps" in " ".join(errors[0].split())
    assert os.path.exists("discreet-fit/statement.json")
    assert not errors[1].strip()


@pytest.mark.exhaustive
def test_sigterm_before_the_first_step_ends_all(folder):
    sent = (
        "import os; from discreet.methods.inference import DPSVI as D; f = D._begin; "
        "D._begin = lambda *x: (os.kill(os.getpid(), 15), f(*x))[1]"
    )
    _, errors, codes = ends(start(FIT, ("pass", sent)))
    assert codes == [130, 130], errors
    assert "nothing was spent" in errors[0]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--processes 2", "are for --distributed"),
        ("--distributed", "give --coordinator, --processes and --process-id"),
        ("--distributed --coordinator 127.0.0.1:7 --processes 2 --process-id 2", "process_id"),
    ],
)
def test_what_is_no_cluster_is_refused(folder, words, reason, monkeypatch):
    monkeypatch.setattr("jax.distributed.is_initialized", lambda: False)
    # JAX refuses that where it was used before, as by other tests.
    monkeypatch.setattr("jax._src.xla_bridge.backends_are_initialized", lambda: False)
    outcome = CliRunner().invoke(app, [*FIT.split(), *words.split()])
    assert outcome.exit_code == 2
    assert reason in " ".join(outcome.stderr.split())
