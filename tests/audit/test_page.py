"""The page on audits: its figures are those of the full size, its programs run."""

import json
import runpy

import pytest


@pytest.fixture
def page(repository):
    """The page, with the tables that the site makes."""
    made = runpy.run_path(str(repository / "docs/hooks/tables.py"))["on_page_markdown"]
    return made((repository / "docs/audit.md").read_text(encoding="utf-8"))


@pytest.fixture
def results(repository):
    return json.loads((repository / "docs/audit/results.json").read_text(encoding="utf-8"))


def row(verdict) -> str:
    return f"| {verdict['target']} | {verdict['epsilon_lower']:.2f} | {verdict['claimed_epsilon']:.2f} |"


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
