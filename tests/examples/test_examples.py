"""Every example runs, averaging over fewer fits than its figures, and its own assertions hold."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", [pytest.param("adult", marks=pytest.mark.exhaustive), "abalone"])
def test_logistic_regression_reaches_its_figures(name, table, repository):
    script = repository / "examples" / f"{name}.py"
    command = [sys.executable, script, table(f"{name}.csv.gz"), "--runs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "without privacy" in done.stdout
    assert done.stdout.count("private, epsilon") == 2


@pytest.mark.exhaustive
def test_default_settings_reach_their_figures_on_a_small_table(repository):
    script = repository / "examples" / "default_settings.py"
    command = [sys.executable, script, "--records", "2000", "--only", "linear", "groups"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2000 records: private") == 2
