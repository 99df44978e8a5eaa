"""The page's tables are those of the results: page and measurements cannot drift apart."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _results
from benchmarks.__main__ import WORKLOADS


@pytest.fixture(scope="module")
def results(repository: Path) -> dict[str, Any]:
    path = repository / "benchmarks" / "results.json"
    if not path.is_file():
        pytest.skip("nothing was measured here: `make bench` writes benchmarks/results.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_page_shows_the_results_as_measured(repository: Path, results: dict[str, Any]) -> None:
    page = (repository / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert _results.fill(page, results) == page, (
        "run `python -m benchmarks --fill`, which fills the page's tables"
    )
    assert _results.as_markdown(results) == (repository / "benchmarks" / "results.md").read_text(
        encoding="utf-8"
    )
    assert (repository / "benchmarks" / "batch_sweep.svg").is_file()


def test_every_mark_of_the_page_is_one_that_can_be_filled(repository: Path) -> None:
    page = (repository / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    marks = re.findall(r"<!-- begin: (\w+) ?(\S*) -->", page)
    names = {name.replace("_", "-") for name in WORKLOADS} | {
        "vae-128",
        "vae-1024",
        "sampler-scaling",
    }
    assert len(marks) == page.count("<!-- end -->") > 0
    assert (
        {"measured"}
        <= {what for what, _ in marks}
        <= {"bounds", "floors", "figures", "timings", "measured"}
    )
    assert {name for _, name in marks if name} <= names


def test_results_are_those_of_a_full_run(results: dict[str, Any]) -> None:
    workloads = results["workloads"]
    assert {workload["measured"]["scale"] for workload in workloads.values()} == {"full"}
    figures = {
        (name, figure["name"])
        for name, workload in workloads.items()
        for figure in workload["figures"]
    }
    assert {
        ("vae-128", "private / NumPyro, not private"),
        ("vae-1024", "private / NumPyro, not private"),
        ("conv-vae", "private / NumPyro, not private, the quicker way"),
        ("vae-128", "Opacus, ghost / ours"),
        ("vae-128", "jax_privacy, best microbatch / ours"),
        ("vae-128", "reference engine / ours"),
        ("hierarchical", "private / by hand, same work"),
        ("logistic", "private / NumPyro, not private"),
        ("sampler-scaling", "N = 100,000,000 / N = 10,000"),
        ("batch-sweep", "batch 4,096: private / not private"),
        ("calibration", "discreet / dp_accounting, seconds"),
        ("compile-time", "vae: compile"),
        ("memory", "batch 8,192: private, whole process"),
    } <= figures
