"""A dry run's promises for Adult are kept."""

import subprocess
import sys

import pytest


@pytest.mark.exhaustive
def test_the_fit_reaches_what_was_promised(repository, table) -> None:
    command = [sys.executable, repository / "examples" / "adult_plan.py", table("adult.csv.gz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "promised" in done.stdout
