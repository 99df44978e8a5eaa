import json

import pytest
from typer.testing import CliRunner

from discreet.interfaces.cli._app import app

RUN = CliRunner()
BASE = ["account", "--num-records", "100000"]
POISSON = [*BASE, "--rate", "0.01"]


def facts(*arguments: str) -> dict:
    outcome = RUN.invoke(app, [*arguments, "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(outcome.stdout, parse_constant=pytest.fail)


def test_epsilon_noise_and_steps_agree() -> None:
    """The three questions about one plan have one answer."""
    priced = facts(*POISSON, "--steps", "1000", "--noise-multiplier", "1", "--delta", "1e-5")
    # Known value: dp_accounting's PLD gives 1.828 for this much-used example.
    assert 1.80 < priced["epsilon"] < 1.86
    asked = str(priced["epsilon"])
    noise = facts(*POISSON, "--steps", "1000", "--epsilon", asked, "--delta", "1e-5")[
        "noise_multiplier"
    ]
    assert noise == pytest.approx(1.0, rel=2e-3)
    steps = facts(*POISSON, "--noise-multiplier", "1", "--epsilon", asked, "--delta", "1e-5")[
        "num_steps"
    ]
    assert 990 <= steps <= 1010


def test_batch_size_is_the_expected_size() -> None:
    rate = facts(*BASE, "--batch-size", "1000", "--steps", "10", "--noise-multiplier", "2")
    assert rate["sampling"] == {"kind": "PoissonSampling", "rate": 0.01}
    assert rate["delta"] == 1e-6
    assert rate["relation"] == "ADD_OR_REMOVE_ONE"


def test_fixed_size_is_not_poisson() -> None:
    """DESIGN's trap: the Poisson formula says 2.84 here; the truth under REPLACE_ONE is at least 13.36."""
    fixed = facts(
        *BASE,
        "--sampling",
        "fixed",
        "--batch",
        "1000",
        "--steps",
        "1000",
        "--noise-multiplier",
        "1",
        "--delta",
        "1e-5",
    )
    assert fixed["relation"] == "REPLACE_ONE"
    assert fixed["epsilon"] > 13.36


def test_full_batches_and_unattainable_delta() -> None:
    full = facts(
        *BASE, "--sampling", "full", "--steps", "1", "--noise-multiplier", "4", "--delta", "1e-5"
    )
    assert full["epsilon"] == pytest.approx(1.0, abs=0.2)


def test_text_explains() -> None:
    outcome = RUN.invoke(
        app, [*POISSON, "--steps", "100", "--noise-multiplier", "1", "--delta", "1e-6"]
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert "1e-06" in outcome.stdout


@pytest.mark.parametrize(
    ("arguments", "needle"),
    [
        (POISSON, "exactly two must be given"),
        ([*POISSON, "--steps", "10"], "exactly two must be given"),
        (
            [*POISSON, "--steps", "10", "--epsilon", "1", "--noise-multiplier", "1"],
            "exactly two must be given",
        ),
        ([*BASE, "--steps", "10", "--epsilon", "1"], "need one of --rate"),
        ([*POISSON, "--batch", "10", "--steps", "10", "--epsilon", "1"], "need one of --rate"),
        ([*BASE, "--batch", "100001", "--steps", "10", "--epsilon", "1"], "--batch-size is 100001"),
        ([*BASE, "--rate", "0", "--steps", "10", "--epsilon", "1"], "rate"),
        ([*BASE, "--rate", "nan", "--steps", "10", "--epsilon", "1"], "rate"),
        (
            [*POISSON, "--sampling", "full", "--steps", "10", "--epsilon", "1"],
            "full batches contain all records",
        ),
        (
            [*POISSON, "--sampling", "fixed", "--steps", "10", "--epsilon", "1"],
            "described by their size",
        ),
        ([*POISSON, "--steps", "0", "--epsilon", "1"], "num_steps is 0"),
        ([*POISSON, "--steps", "10", "--epsilon", "-1"], "epsilon"),
        ([*POISSON, "--steps", "10", "--epsilon", "1", "--delta", "1"], "delta is 1.0"),
        ([*POISSON, "--steps", "10", "--noise-multiplier", "0"], "noise_multiplier is 0"),
        (
            ["account", "--num-records", "0", "--rate", "0.1", "--steps", "10", "--epsilon", "1"],
            "--num-records is 0",
        ),
        (
            [
                *BASE,
                "--sampling",
                "fixed",
                "--batch",
                "10",
                "--relation",
                "add-or-remove-one",
                "--steps",
                "1",
                "--epsilon",
                "1",
            ],
            "",
        ),
    ],
)
def test_bad_input_is_refused_in_one_paragraph(arguments, needle) -> None:
    outcome = RUN.invoke(app, arguments)
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("Refused: ")
    assert needle in " ".join(outcome.stderr.split())
    assert "\n\n" not in outcome.stderr.strip()


def test_compare_shows_every_accountant() -> None:
    arguments = [*POISSON, "--steps", "10", "--noise-multiplier", "2", "--delta", "1e-5"]
    outcome = RUN.invoke(app, [*arguments, "--compare"])
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.startswith(
        "10 steps, q = 0.01, delta = 1e-05, one record added or removed\n"
    )
    for name in ("basic composition", "advanced composition", "Renyi", "PLD"):
        assert name in outcome.stdout
    priced = facts(*arguments, "--compare")
    assert priced["accountants"][-1]["epsilon"] == priced["epsilon"]
    assert "accountants" not in facts(*arguments)
