"""Every example runs, at a smaller size than its figures are for, and its own assertions hold."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [Path(os.environ["DISCREET_DATA"])] if "DISCREET_DATA" in os.environ else []
FOLDERS += [parent / "shared" / "data" for parent in ROOT.parents]


def table(name):
    for folder in FOLDERS:
        if (folder / name).is_file():
            return folder / name
    pytest.skip(f"the table {name} is not here; set DISCREET_DATA to a folder that holds it")


@pytest.mark.parametrize("name", ["adult", "abalone"])
def test_logistic_regression_reaches_its_figures(name):
    script = ROOT / "examples" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, script, table(f"{name}.csv.gz"), "--runs", "2"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "without privacy" in done.stdout
    assert done.stdout.count("private, epsilon") == 2
