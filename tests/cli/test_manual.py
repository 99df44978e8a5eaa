"""Manual pages: all of them, without a complaint of the programs that read them, and with what the help says."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from discreet.cli._app import app
from discreet.cli._manual import contexts, pages, text

from .world import RUN


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man") / "man1"
    outcome = RUN.invoke(app, ["manual", "--out", str(folder)])
    assert outcome.exit_code == 0, outcome.stderr
    return folder


def shown(*command: str, files: list[Path]) -> str:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "100", "MANROFFOPT": "", "MAN_KEEP_FORMATTING": ""}
    done = subprocess.run([*command, *files], capture_output=True, text=True, env=environment, check=False)
    # mandoc says all on standard output. A page has no date of its own.
    said = done.stderr if "groff" in command else done.stdout + done.stderr
    assert [line for line in said.splitlines() if "missing date" not in line] == []
    return re.sub(".\b", "", done.stdout)


def test_each_command_has_a_page(folder: Path) -> None:
    commands = [x.command_path.replace(" ", "-") for x in contexts(typer.main.get_command(app))]
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.1" for name in commands)
    assert all(path.read_bytes().isascii() for path in folder.iterdir())


def test_a_page_says_what_the_help_says() -> None:
    for path, page in pages(typer.main.get_command(app)):
        (context,) = [x for x in contexts(typer.main.get_command(app)) if x.command_path == " ".join(path)]
        for parameter in context.command.get_params(context):
            assert text(parameter.opts[0]) in page or parameter.param_type_name == "argument"
            assert text(" ".join(parameter.help.split()))[:40].split("\\(ga")[0] in page
        assert all(heading in page for heading in (".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH EXIT STATUS"))


@pytest.mark.skipif(not shutil.which("groff"), reason="there is no groff")
def test_groff_does_not_complain(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        page = shown("groff", "-man", "-Tutf8", "-ww", files=[path])
        assert "EXIT STATUS" in page
    assert "(ε, δ)-differential privacy" in shown("groff", "-man", "-Tutf8", files=[folder / "discreet-fit.1"])


@pytest.mark.skipif(not shutil.which("mandoc"), reason="there is no mandoc")
def test_mandoc_does_not_complain(folder: Path) -> None:
    shown("mandoc", "-T", "lint", "-W", "warning", files=sorted(folder.iterdir()))


@pytest.mark.parametrize(
    ("words", "roff"),
    [
        (".TH x", r"\&.TH x"),
        ("'a' `b`", r"\(aqa\(aq \(gab\(ga"),
        ("a\\b --c^~", r"a\eb \-\-c\(ha\(ti"),
        ("ε", r"\[u03B5]"),
    ],
)
def test_text_is_escaped(words: str, roff: str) -> None:
    assert text(words) == roff


def test_one_page_and_a_wrong_name() -> None:
    assert RUN.invoke(app, ["manual", "ledger", "show"]).stdout.startswith(".TH DISCREET\\-LEDGER\\-SHOW 1")
    outcome = RUN.invoke(app, ["manual", "ledgers"])
    assert outcome.exit_code == 2
    assert "there is no command ledgers" in outcome.stderr
