"""The page on audits: its figures are those of the full size, its programs run."""

import json
import re

import pytest

from .full_size import number


@pytest.fixture
def page(repository):
    return (repository / "docs/audit.md").read_text(encoding="utf-8")


@pytest.fixture
def results(repository):
    return json.loads((repository / "docs/audit/results.json").read_text(encoding="utf-8"))


def row(verdict) -> str:
    return f"| {verdict['target']} | {number(verdict['epsilon_lower'])} | {number(verdict['claimed_epsilon'])} |"


def test_no_true_claim_was_contradicted_and_every_fault_was_caught(page, results):
    assert len(results["claims"]) >= 15
    for verdict in results["claims"]:
        assert not verdict["contradicted"]
        assert verdict["epsilon_lower"] <= verdict["claimed_epsilon"]
        assert row(verdict) in page
    assert len(results["faults"]) >= 6
    for verdict in results["faults"]:
        assert verdict["epsilon_lower"] > verdict["claimed_epsilon"]
        assert row(verdict) in page


@pytest.mark.exhaustive
def test_the_programs_of_the_page_run(page, capsys):
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    assert "Not contradicted" in capsys.readouterr().out
