"""The twins of Adult at a small size; their own assertions are the example's."""

import subprocess
import sys

import pytest


@pytest.mark.exhaustive
def test_twins_of_adult_serve_in_its_place(table, repository):
    command = [
        sys.executable,
        repository / "examples" / "adult_twin.py",
        table("adult.csv.gz"),
        "--quick",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "trained on a twin" in done.stdout
    assert "a twin of 100,000 rows" in done.stdout
