import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from discreet.interfaces.cli._app import app

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
    ("name", "says"),
    [
        ("absent.py", "does not exist"),
        ("notes.txt", "notes.txt is no Python program"),
        ("statement.json", "To read a statement: discreet explain"),
        ("step.py:other", "no function"),
        ("step.py:loss", ""),
    ],
)
def test_refusals(step: Path, name: str, says: str) -> None:
    for other in ("notes.txt", "statement.json"):
        (step.parent / other).write_text("")
    outcome = RUN.invoke(app, ["verify", str(step.parent / name)])
    assert outcome.exit_code == 2
    assert says in " ".join(outcome.stderr.split())


def test_the_text_of_each_line_is_quoted(step: Path) -> None:
    step.write_text(step.read_text().replace("dp.clip_records(gradients, 1.0)", "gradients"))
    shown = RUN.invoke(app, ["verify", str(step)]).stdout.splitlines()
    assert shown[0] == "No proof of privacy. Output result leaks:"
    assert shown[2] == "  from argument 1, xs (the records)"
    # A long path stands on a line of its own.
    assert "step.py:7 (loss) return jnp.square(x @ w - y)" in " ".join(" ".join(shown).split())
    assert shown[-2].startswith("Remedy: ")


def test_a_proof_with_symbols_has_a_formula_and_no_price(step: Path) -> None:
    text = (
        step.read_text()
        .replace("mask, key):", "mask, key, sigma):")
        .replace("stddev=4.0", "stddev=sigma")
    )
    text = text.replace("dp.random.key(), records", 'dp.random.key(), dp.symbol("sigma"), records')
    step.write_text(text)
    outcome = RUN.invoke(app, ["verify", str(step), "--delta", "1e-5"])
    assert outcome.exit_code == 0, outcome.stderr
    assert "certificate.at(sigma=...)" in " ".join(outcome.stdout.split())
    assert "1/sigma, exactly" in outcome.stdout


BROKEN = {
    "certificate": "def certificate():\n    raise RuntimeError('the cause.')\n",
    "leaves": "def leaves():\n    raise SystemExit(3)\n",
    "number": "number = 3\ndef one(): ...\ndef two(x): ...\n",
    "other": "def other():\n    return 3\n",
    "needs": "def needs(w, *, x=1): ...\n",
}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("certificate", r"fails at \S+:2 \(certificate\) with RuntimeError: the cause$"),
        ("leaves", r"fails at \S+:2 \(leaves\) with SystemExit: 3$"),
        ("number", r"no function number; without arguments it has one: name the one .*:one$"),
        ("other", "returned an object of type int: let the function return dp.certify"),
        ("needs", r"takes arguments \(w\): name a function without any"),
        ("", r"no function without a name; without arguments it has"),
    ],
)
def test_what_is_no_program_to_judge(tmp_path: Path, name: str, says: str) -> None:
    path = tmp_path / "f.py"
    path.write_text(BROKEN.get(name, "x = 1\n"))
    outcome = RUN.invoke(app, ["verify", f"{path}:{name}"])
    assert outcome.exit_code == 2
    assert re.search(says, " ".join(outcome.stderr.split())), outcome.stderr


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("x = 1\nimport absent_module\n", r":2 \(<module>\) with ModuleNotFoundError"),
        ("def f(:\n", "SyntaxError"),
    ],
)
def test_a_file_that_fails(tmp_path: Path, source: str, says: str) -> None:
    path = tmp_path / "f.py"
    path.write_text(source)
    outcome = RUN.invoke(app, ["verify", str(path)])
    assert outcome.exit_code == 2
    assert re.search(says, " ".join(outcome.stderr.split()))


def test_a_refusal_while_the_file_is_run_is_a_refusal(step: Path) -> None:
    step.write_text(
        step.read_text().replace("dp.clip_records(gradients, 1.0)", "gradients")
        + "\ncertificate = certificate()\n"
    )
    outcome = RUN.invoke(app, ["verify", str(step)])
    assert outcome.exit_code == 1
    assert "No proof of privacy" in outcome.stdout


def test_a_certificate_may_stand_in_the_file(step: Path) -> None:
    step.write_text(step.read_text() + "\nmade = certificate()\n")
    assert RUN.invoke(app, ["verify", f"{step}:made"]).exit_code == 0


def test_colour_in_a_terminal_only(step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    arguments = ["verify", str(step)]
    assert "\x1b[" in RUN.invoke(app, arguments, color=True).stdout
    assert "\x1b[" not in RUN.invoke(app, arguments).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in RUN.invoke(app, arguments, color=True).stdout


def test_lines_fit_a_terminal(step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = RUN.invoke(app, ["verify", str(step)]).stdout
    assert max(map(len, shown.splitlines())) <= 60
