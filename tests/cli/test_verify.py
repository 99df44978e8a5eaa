import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from discreet.cli._app import app

RUN = CliRunner()
PAGE = Path(__file__).resolve().parents[2] / "docs/proofs.md"


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """The program of the page on proofs, as a file."""
    path = tmp_path / "step.py"
    path.write_text(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])
    return path


def test_a_proof(step: Path) -> None:
    outcome = RUN.invoke(app, ["verify", str(step), "--delta", "1e-5"])
    assert outcome.exit_code == 0, outcome.stderr
    assert "Proved." in outcome.stdout
    assert "GaussianDpEvent(noise_multiplier=4.0)" in outcome.stdout
    assert "epsilon = 0.9" in outcome.stdout


def test_a_leak_is_shown_with_its_lines(step: Path) -> None:
    step.write_text(step.read_text().replace("dp.clip_records(gradients, 1.0)", "gradients"))
    outcome = RUN.invoke(app, ["verify", f"{step}:certificate"])
    assert outcome.exit_code == 1
    assert "No proof of privacy" in outcome.stdout
    assert "step.py:1" in outcome.stdout
    assert "dp.clip_records" in outcome.stdout


@pytest.mark.parametrize(
    ("name", "says"), [("absent.py", "does not exist"), ("step.py:other", "no function"), ("step.py:loss", "")]
)
def test_refusals(step: Path, name: str, says: str) -> None:
    outcome = RUN.invoke(app, ["verify", str(step.parent / name)])
    assert outcome.exit_code == 2
    assert says in " ".join(outcome.stderr.split())
