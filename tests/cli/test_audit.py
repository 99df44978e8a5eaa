"""`discreet audit`: exit codes, files, refusals."""

import json

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from discreet import mechanisms
from discreet.interfaces.cli._app import app

pytestmark = pytest.mark.usefixtures("quick_compilation")

RUN = CliRunner()
SMALL = [
    "audit",
    "--sampling",
    "full",
    "--steps",
    "1",
    "--delta",
    "1e-3",
    "--runs",
    "200",
    "--relation",
    "replace-one",
]
SMALL += ["--num-records", "8"]


def test_a_true_claim(tmp_path):
    files = ["--out", str(tmp_path / "verdict.json")]
    outcome = RUN.invoke(app, [*SMALL, "--noise-multiplier", "2", *files])
    assert outcome.exit_code == 0, outcome.stderr
    assert "Not contradicted. This proves nothing" in " ".join(outcome.stdout.split())
    content = json.loads((tmp_path / "verdict.json").read_text())
    assert content["claimed_epsilon"] == pytest.approx(3.14, abs=0.01)


def test_a_contradiction_has_an_exit_code(monkeypatch):
    monkeypatch.setattr(
        mechanisms,
        "release",
        lambda key, total, noise, *of: mechanisms.Release(*jax.tree.map(jnp.float32, total[:3])),
    )
    outcome = RUN.invoke(app, [*SMALL, "--epsilon", "1", "--json"])
    assert outcome.exit_code == 1, outcome.stderr
    content = json.loads(outcome.stdout)
    assert content["contradicted"] is True
    assert content["claimed_epsilon"] <= 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give one of --noise-multiplier and --epsilon"),
        (
            ["--noise-multiplier", "1", "--epsilon", "1"],
            "give one of --noise-multiplier and --epsilon",
        ),
        (["--noise-multiplier", "1"], "one of --rate"),
        (["--noise-multiplier", "1", "--rate", "0.1", "--runs", "3"], "runs is 3"),
        (["--noise-multiplier", "1", "--rate", "0.1", "--others", "0"], "others is 0"),
        (["--noise-multiplier", "1", "--rate", "0.1", "--confidence", "1"], "confidence is 1"),
        (
            ["--noise-multiplier", "1", "--rate", "0.1", "--out", "verdict.txt"],
            "give it the ending .json",
        ),
        (
            ["--noise-multiplier", "1", "--rate", "0.1", "--out", "absent/x.json"],
            "does not exist: create it",
        ),
    ],
)
def test_bad_input(arguments, says):
    outcome = RUN.invoke(app, ["audit", *arguments])
    assert outcome.exit_code == 2
    assert says in " ".join(outcome.stderr.split())
