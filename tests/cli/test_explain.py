import json
import math

import pytest
from typer.testing import CliRunner

from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._explain import meaning
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.report import make_statement
from discreet.privacy.sampling import PoissonSampling

RUN = CliRunner()
PLAN = PrivacyPlan(
    sampling=PoissonSampling(rate=0.02),
    clipping_norm=1.0,
    noise_multiplier=1.5,
    num_steps=100,
    num_records=10_000,
)
STATEMENT = make_statement(PLAN, steps_completed=100, reproducible=False).to_dict()


def test_belief_follows_bayes() -> None:
    """Odds multiply by e^epsilon: at epsilon = ln 3, one half becomes three quarters, and one per cent 3/102."""
    belief = meaning(math.log(3), 0.0, None)["largest_belief"]
    assert belief["0.5"] == pytest.approx(0.75)
    assert belief["0.01"] == pytest.approx(3 / 102)


def test_rates_bound_the_gaussian_mechanism() -> None:
    """No test of N(0, 1) against N(mu, 1) beats the bound from its own (epsilon, delta)."""
    from scipy.stats import norm

    for mu in (0.1, 0.5, 1.0, 3.0):
        for epsilon in (0.1, 1.0, 4.0):
            delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
                -mu / 2 - epsilon / mu
            )
            for wrong, right in meaning(epsilon, delta, None)["largest_true_positive_rate"].items():
                assert norm.cdf(norm.ppf(float(wrong)) + mu) <= right + 1e-9


def test_odds_fail_as_seldom_as_said_for_the_gaussian_mechanism() -> None:
    """Its loss exceeds epsilon far more often than with probability delta, as (epsilon, delta) alone does not forbid."""
    from scipy.stats import norm

    for mu in (0.1, 0.22, 0.5, 1.0, 3.0):
        for epsilon in (0.1, 1.0, 4.0):
            delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
                -mu / 2 - epsilon / mu
            )
            facts = meaning(epsilon, delta, None)
            # The loss is normal with mean mu^2 / 2 and standard deviation mu.
            exceeding = norm.sf((math.log(facts["odds_factor"]) - mu**2 / 2) / mu)
            assert exceeding <= facts["odds_factor_fails_with_probability"]
    assert norm.sf((1.0 - 0.22**2 / 2) / 0.22) > 10 * (
        norm.cdf(0.11 - 1 / 0.22) - math.e * norm.cdf(-0.11 - 1 / 0.22)
    )


def test_a_delta_that_proves_nothing_of_beliefs() -> None:
    assert set(meaning(1.0, 0.5, None)["largest_belief"].values()) == {1.0}
    outcome = RUN.invoke(app, ["explain", "--epsilon", "1", "--delta", "0.5"])
    assert "there is no bound" in outcome.stdout
    assert "δ = 0.5 is large" in outcome.stdout


def test_rates_are_shares_for_any_epsilon() -> None:
    for epsilon in (0.0, 1e-9, 1.0, 50.0, 1e4):
        for delta in (0.0, 1e-6, 0.5):
            facts = meaning(epsilon, delta, None)
            for wrong, right in facts["largest_true_positive_rate"].items():
                assert float(wrong) <= right + 1e-9 <= 1 + 2e-9
            json.dumps(facts, allow_nan=False)


def test_warnings() -> None:
    assert meaning(1.0, 1e-6, 50_000)["warnings"] == []
    assert any("above 10" in warning for warning in meaning(12.0, 1e-6, None)["warnings"])
    assert any("1 / 100" in warning for warning in meaning(1.0, 0.01, 100)["warnings"])


def test_numbers_in_words() -> None:
    outcome = RUN.invoke(
        app, ["explain", "--epsilon", "1", "--delta", "1e-6", "--num-records", "50000"]
    )
    assert outcome.exit_code == 0
    assert "e^(ε + 0.1) = 3.004, except with probability at most 1.1e-05" in " ".join(
        outcome.stdout.split()
    )
    assert "50 % before: at most 75 % afterwards" in outcome.stdout


def test_a_statement_in_words_and_json(tmp_path) -> None:
    path = tmp_path / "statement.json"
    path.write_text(json.dumps(STATEMENT))
    outcome = RUN.invoke(app, ["explain", str(path)])
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.startswith(
        "DPSVI, for one record (one row of the table). The guarantee compares two tables"
    )
    assert "ADD_OR_REMOVE_ONE" not in outcome.stdout
    assert "NOT PRIVATE" not in outcome.stdout
    assert " ".join(str(PLAN.risk(1e-5)).split()) in " ".join(outcome.stdout.split())
    assert max(map(len, outcome.stdout.splitlines())) <= 88
    facts = json.loads(RUN.invoke(app, ["explain", str(tmp_path), "--json"]).stdout)
    assert facts["epsilon"] == PLAN.epsilon(1e-5)


def test_a_broken_statement_is_said_to_be_broken(tmp_path) -> None:
    path = tmp_path / "statement.json"
    path.write_text(
        json.dumps(
            STATEMENT | {"is_private": False, "violations": ["The bounds came from the data."]}
        )
    )
    assert (
        "NOT PRIVATE AS RUN: The bounds came from the data."
        in RUN.invoke(app, ["explain", str(path)]).stdout
    )


def test_json() -> None:
    outcome = RUN.invoke(app, ["explain", "--epsilon", "1", "--delta", "1e-6", "--json"])
    assert json.loads(outcome.stdout)["epsilon"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "needle"),
    [
        ([], "nothing to explain"),
        (["--epsilon", "1"], "nothing to explain"),
        (["--epsilon", "-1", "--delta", "1e-6"], "epsilon is -1.0"),
        (["--epsilon", "nan", "--delta", "1e-6"], "epsilon is nan"),
        (["--epsilon", "1", "--delta", "1"], "delta is 1.0"),
        (["--epsilon", "1", "--delta", "1e-6", "--num-records", "0"], "--num-records is 0"),
        (["absent.json"], "cannot be read"),
        (["{folder}"], "cannot be read"),
        (["{text}"], "is not JSON"),
        (["{other}"], "is not a discreet privacy statement"),
        (["{infinite}"], "no finite ε"),
        (["{lacking}"], "lacks meaning"),
        (["{other}", "--epsilon", "1"], "not both"),
    ],
)
def test_bad_input_is_refused_in_one_paragraph(tmp_path, arguments, needle) -> None:
    texts = {
        "text": "not json",
        "other": "[1]",
        "infinite": json.dumps(STATEMENT | {"epsilon": None}),
        "lacking": json.dumps(
            {name: fact for name, fact in STATEMENT.items() if name != "meaning"}
        ),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    places = {name: tmp_path / name for name in texts} | {"folder": tmp_path}
    outcome = RUN.invoke(app, ["explain", *(argument.format(**places) for argument in arguments)])
    assert outcome.exit_code == 2
    assert needle in " ".join(outcome.stderr.split())
    assert "Traceback" not in outcome.stderr
    assert "\n\n" not in outcome.stderr.strip()
