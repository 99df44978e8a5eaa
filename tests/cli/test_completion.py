"""Completion by the protocol that the shells speak, in a real bash, and how little is loaded for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._options import MODELS

from .world import RUN

CASES = {
    "": {"fit", "schema", "ledger"},
    "le": {"ledger"},
    "ledger ": {"open", "show", "verify", "cap"},
    "fit --sam": {"--sampling"},
    "fit --sampling ": {"poisson", "fixed", "full"},
    "fit --relation r": {"replace-one"},
    "fit --out-of-bounds ": {"refuse", "clip", "missing"},
    "fit --model ": set(MODELS),
    "plan --model po": {"poisson"},
    "fit --clip a": {"adaptive"},
    "synth --format p": {"parquet"},
    # Nothing of ours: the shell offers files.
    "fit --model mine": set(),
    "fit --data ": set(),
    "ledger show ": set(),
}


@pytest.mark.parametrize("words", CASES)
def test_values(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["discreet", *words.split()]
    monkeypatch.setenv("_DISCREET_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"discreet {words}")
    monkeypatch.setenv(
        "COMP_CWORD", str(len(typed) - 1 if words and not words.endswith(" ") else len(typed))
    )
    outcome = RUN.invoke(app, [], prog_name="discreet")
    assert outcome.exit_code == 0
    offered = set(outcome.stdout.split())
    if words:
        assert offered == CASES[words]
    else:
        assert offered >= CASES[words]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_DISCREET_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "discreet fit --model po")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    outcome = RUN.invoke(app, [], prog_name="discreet")
    assert "poisson" in outcome.stdout
    assert "for a count" in outcome.stdout


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_in_a_real_bash(tmp_path: Path) -> None:
    """The script that typer installs, sourced; a model by its name, and the file where no name goes on."""
    (tmp_path / "discreet").write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'from discreet.interfaces.cli import main; main()' \"$@\"\n"
    )
    (tmp_path / "discreet").chmod(0o755)
    script = """
    source <(_DISCREET_COMPLETE=source_bash discreet)
    COMP_WORDS=(discreet fit --model po); COMP_CWORD=3
    _discreet_completion discreet && echo "${COMPREPLY[@]}"
    complete -p discreet
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    completed, rule = done.stdout.splitlines()
    assert completed == "poisson"
    assert "-o default" in rule
    assert done.stderr == ""


def test_completion_and_help_load_nothing_heavy() -> None:
    heavy = ["jax", "numpy", "numpyro", "scipy", "pyarrow", "sklearn", "matplotlib"]
    code = (
        "import sys\nfrom discreet.interfaces.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    # fish's completion sanitises help texts by rich, so bash's.
    for words, more in (
        (
            [],
            {"_DISCREET_COMPLETE": "complete_bash", "COMP_WORDS": "discreet f", "COMP_CWORD": "1"},
        ),
        (["fit", "--help"], {}),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            capture_output=True,
            text=True,
            env={**os.environ, **more},
            check=True,
        )
        assert done.stdout.splitlines()[-1] == "[]"
