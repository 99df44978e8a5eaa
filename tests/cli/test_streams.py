"""Outputs of all kinds, in real processes: pipes that break, disks that are full, and terminals without Greek."""

import json
import os
import subprocess
import sys

import pytest

EXPLAIN = ["explain", "--epsilon", "1", "--delta", "1e-6"]
START = [sys.executable, "-c", "from discreet.interfaces.cli import main; main()"]


def run(words, *, shell="", **environment):
    command = ["sh", "-c", f'"$0" "$@" {shell}', *START, *words] if shell else [*START, *words]
    kept = {
        k: x
        for k, x in os.environ.items()
        if not k.startswith(("LC_", "LANG", "PYTHONIOENCODING", "PYTHONUTF8"))
    }
    return subprocess.run(
        command, capture_output=True, env={**kept, **environment}, check=False, timeout=60
    )


def test_a_reader_that_goes_away() -> None:
    """The pipe is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*START, *EXPLAIN], stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "words",
    [EXPLAIN, pytest.param([*EXPLAIN, "--json"], marks=pytest.mark.exhaustive), ["fit", "--help"]],
)
def test_a_full_disk(words) -> None:
    done = run(words, shell="> /dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith(
        b"Stopped: the output cannot be read or written (No space left on device)."
    )
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii", "TERM": "dumb", "COLUMNS": "20"},
        pytest.param(
            {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            {"PYTHONIOENCODING": "latin-1", "NO_COLOR": "1"}, marks=pytest.mark.exhaustive
        ),
    ],
)
def test_terminals_without_greek(environment) -> None:
    encoding = environment.get("PYTHONIOENCODING", "ascii")
    done = run(EXPLAIN, **environment)
    assert done.returncode == 0, done.stderr
    assert "= 1 (epsilon)" in " ".join(done.stdout.decode(encoding).split())
    document = run([*EXPLAIN, "--json"], **environment)
    assert json.loads(document.stdout)["epsilon"] == 1.0
    shown = run(["fit", "--help"], **environment)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.decode(encoding)
    refused = run(["explain", "σ.json"], **environment)
    assert refused.returncode == 2
    assert b"Traceback" not in refused.stderr


def test_no_colour_where_none_is_wanted() -> None:
    done = run(["--help"], NO_COLOR="1", FORCE_COLOR="", TERM="xterm-256color")
    assert done.returncode == 0
    assert b"\x1b[3" not in done.stdout
