"""The tutorial's commands run in order, in an empty folder beside a copy of examples/, and print what the page says they print.

Everything on the page is run as it stands. Two things are not what the reader has: `curl` is a
stand-in that hands out our copy of the table, in the form in which UCI has it; and `make demo` is
left to CI, which runs it first. In `make test` the table is cut to 4,000 rows, the twins' fit is
given fewer steps, and the dry run of `discreet plan`, which takes half a minute, answers at once
what it answers at full size. `make test-all` leaves all that out: the whole table, and each command
a process of its own.
"""

import contextlib
import gzip
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import planning
from discreet.interfaces.cli._app import app
from discreet.methods.newton import NewtonPlan
from discreet.privacy.report import COEFFICIENTS
from discreet.tabular.marginals import fit_twins
from discreet.tabular.planning import DryRun, DryRunRow
from discreet.tabular.tables import describe_features

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
SETUP = "make demo\n. .venv/bin/activate\nmkdir tutorial\ncd tutorial\n"
ROWS = {"train": 4_000, "test": 1_000}
SMALLER = {"twin": ["--components", "4"]}
CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    server.sendall(json.dumps([os.getcwd(), sys.argv[1:]]).encode() + b"\\n")
    code, text = json.loads(server.makefile().read())
print(text, end="")
sys.exit(code)
"""


def blocks(page: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page in order: the language, the content."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def check(expected: str, output: str, *, tolerance: float, least: float = 0.2) -> None:
    """Every line of the page occurs in the output, in the page's order, with figures within a share of its own, or of `least`."""
    printed = " ".join(re.sub(r"[│┃]", " ", output).split())

    def near(ours: str, theirs: str) -> bool:
        figure, real = (float(text.replace(",", "")) for text in (ours, theirs))
        return abs(figure - real) <= tolerance * max(abs(figure), least)

    for line in expected.splitlines():
        if line == "...":
            continue
        words = " ".join(line.split())
        pattern = re.escape(NUMBER.sub("\0", words)).replace(re.escape("\0"), f"({NUMBER.pattern})")
        places = list(re.finditer(pattern, printed))
        assert places, f"not printed: {words}\n\nbut:\n{output}"
        figures = NUMBER.findall(words)
        fitting = [place for place in places if all(map(near, figures, place.groups()))]
        assert fitting, f"{words}\nbut:\n{places[0][0]}"
        printed = printed[fitting[0].end() :]


def archive(path: Path, table: Path, rows: dict[str, int]) -> None:
    """Adult as UCI hands it out."""
    with gzip.open(table, "rt") as file:
        lines = [line.rstrip("\n").split(",") for line in file][1:]
    halves = {
        split: [", ".join(cells[1:]) for cells in lines if cells[0] == split]
        for split in ("train", "test")
    }
    halves = {split: content[: rows.get(split)] for split, content in halves.items()}
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("adult.data", "".join(f"{line}\n" for line in halves["train"]) + "\n")
        stray = "|1x3 Cross validator\n"
        zipped.writestr(
            "adult.test", stray + "".join(f"{line}.\n" for line in halves["test"]) + "\n"
        )


def dry_run(model: str, schema: Any, *, progress_bar: bool, seed: int, **terms: Any) -> DryRun:
    """In the place of a dry run: what it finds for the page's command."""
    del model, progress_bar, seed
    assert [terms.pop(name) for name in ("guide", "share", "kept")] == [None] * 3
    width = len(describe_features(schema))
    plan = NewtonPlan.calibrate(family="binary", num_features=width, **terms)
    row = DryRunRow(terms["epsilon"], 1.18, 0.84, 1.0, 0.712, 0.728, COEFFICIENTS)
    return DryRun(
        "Private Newton",
        "AUC",
        plan,
        terms["epsilon"],
        terms["delta"],
        terms["num_records"],
        (row,),
    )


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


class Shell:
    """Runs blocks of commands by bash; what `discreet` is to do comes back to this process, if it is to be quick."""

    def __init__(self, folder: Path, tools: Path, *, quick: bool) -> None:
        self.folder, self.quick = folder, quick
        self.environment = {
            **os.environ,
            "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self.server = socket.socket(socket.AF_UNIX)
        if quick:
            address = str(tools / "s")
            self.server.bind(address)
            self.server.listen()
            self.server.settimeout(0.02)
            executable(tools / "discreet", CLIENT.format(python=sys.executable, address=address))
        else:
            run = "from discreet.interfaces.cli import main; main()"
            executable(tools / "discreet", f"#!/bin/sh\nexec {sys.executable} -c '{run}' \"$@\"\n")

    def __call__(self, block: str) -> str:
        command = ["bash", "-euo", "pipefail", "-c", block]
        with (self.folder.parent / "output").open("w+") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            while process.poll() is None:
                if self.quick:
                    self._serve()
                else:
                    process.wait()
            output.seek(0)
            text = output.read()
        assert process.returncode == 0, f"{block}\nended with {process.returncode}:\n{text}"
        return text

    def _serve(self) -> None:
        """One command of the command line, if one is asked for."""
        with contextlib.suppress(TimeoutError):
            client, _ = self.server.accept()
            with client:
                client.settimeout(10)
                folder, arguments = json.loads(client.makefile().readline())
                name = "twin" if arguments[0] == "fit" and "twin" in arguments else arguments[0]
                with contextlib.chdir(folder):
                    outcome = CliRunner().invoke(app, [*arguments, *SMALLER.get(name, [])])
                client.sendall(json.dumps([outcome.exit_code, outcome.output]).encode())


def python(names: dict, folder: Path) -> Callable[[str], str]:
    """Runs blocks of Python one after the other, as a notebook does."""

    def run(block: str) -> str:
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(block, "docs/tutorial.md", "exec"), names)
        return output.getvalue()

    return run


@pytest.fixture
def tutorial(
    tmp_path: Path, tmp_path_factory, repository: Path, table
) -> Iterator[Callable[[bool], dict]]:
    """Runs the page; returns the names that its Python has made."""
    (tmp_path / "tutorial").mkdir()
    (tmp_path / "examples").mkdir()
    shutil.copy(repository / "examples" / "adult.schema.toml", tmp_path / "examples")
    tools = tmp_path_factory.mktemp("t")
    shells: list[Shell] = []

    def run(quick: bool) -> dict:
        archive(tools / "adult.zip", table("adult.csv.gz"), ROWS if quick else {})
        executable(tools / "curl", f'#!/bin/sh\ncp {tools}/adult.zip "$3"\n')
        page = (repository / "docs" / "tutorial.md").read_text(encoding="utf-8")
        if quick:
            page = page.replace("32561", "4000").replace("32_561", "4_000")
            page = page.replace("32,561", "4,000").replace("32,543", "4,000")
        (language, setup), *rest = blocks(page)
        assert (language, setup) == ("sh", SETUP)
        shells.append(Shell(tmp_path / "tutorial", tools, quick=quick))
        names: dict[str, Any] = {}
        runners = {"sh": shells[0], "python": python(names, tmp_path / "tutorial")}
        output = ""
        for language, content in rest:
            if language == "text":
                # What a hundred steps on 4,000 rows make of accuracies and weights is chance: of
                # figures below 2 any within 1.
                check(
                    content,
                    output,
                    **({"tolerance": 0.5, "least": 2.0} if quick else {"tolerance": 0.03}),
                )
            else:
                output = runners[language](content)
        return {**names, "debits": dp.Ledger(tmp_path / "tutorial" / "adult.ledger").debits}

    yield run
    for shell in shells:
        shell.server.close()


def test_the_tutorial_runs_as_printed(
    tutorial, quick_compilation, monkeypatch: pytest.MonkeyPatch
) -> None:
    del quick_compilation
    monkeypatch.setattr(planning, "dry_run", dry_run)
    monkeypatch.setitem(fit_twins.__kwdefaults__, "num_steps", 100)
    names = tutorial(True)
    assert names["result"].statement.epsilon <= 0.3
    assert len(names["debits"]) == 4


@pytest.mark.exhaustive
def test_the_tutorial_runs_at_full_size(tutorial) -> None:
    tutorial(False)


def test_what_is_not_printed_is_noticed() -> None:
    check(
        "5 twins of 4,000 rows\n...\nAUC 0.878",
        "5 twins of 4,000 rows and\n more. AUC │ 0.870 ±",
        tolerance=0.02,
    )
    with pytest.raises(AssertionError, match="not printed"):
        check("AUC 0.878\nAUC 0.9", "AUC 0.878", tolerance=0.02)
    with pytest.raises(AssertionError, match=r"AUC 0\.8\s"):
        check("AUC 0.878", "AUC 0.8", tolerance=0.02)
