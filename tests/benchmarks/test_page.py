"""The page's tables are those of the results: page and measurements cannot drift apart."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as everything
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
    for picture in ("batch_sweep.svg", *re.findall(r"benchmarks/(\w+\.svg)", page)):
        assert (repository / "benchmarks" / picture).is_file()


def test_every_mark_of_the_page_is_one_that_can_be_filled(repository: Path) -> None:
    page = (repository / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    marks = re.findall(r"<!-- begin: (\w+)(?: (\S+))? -->", page)
    names = {name.replace("_", "-") for name in WORKLOADS} | {
        "vae-128",
        "vae-1024",
        "sampler-scaling",
    }
    assert len(marks) == page.count("<!-- end -->") > 0
    assert (
        {"measured"}
        <= {what for what, _ in marks}
        <= {"bounds", "floors", "figures", "timings", "measured", "pictures"}
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


def test_a_workload_that_dies_or_lasts_too_long_keeps_what_was_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither ends the others, and the exit status says that something failed."""
    kept = {"workloads": {"toy": {"title": "old", "figures": [], "timings": [], "skipped": {}}}}
    ran: list[tuple[str, float | None]] = []

    def child(name: str, quick: bool, seconds: float | None) -> tuple[str, dict[str, Any]]:
        ran.append((name, seconds))
        return ("exit status -9", {}) if name == "noise" else ("", {})

    monkeypatch.setattr(everything, "_measured", child)
    monkeypatch.setattr(everything, "_kept", lambda folder: kept)
    monkeypatch.setattr(everything, "write", lambda results, folder: None)
    assert everything.main(["--only", "noise,machine,figures", "--out", str(tmp_path)]) == 1
    assert [name for name, _ in ran] == ["machine", "noise", "figures"]
    assert ran[0][1] is not None
    assert 1_400 < ran[0][1] < 1_500
    assert ran[2][1] is None
    assert "Failed: noise (exit status -9)." in capfd.readouterr().err
    assert kept["workloads"]["toy"]["title"] == "old"


def test_a_process_that_lasts_too_long_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With those that it started; nothing is measured where no time is left."""
    assert everything._measured("noise", True, 0.0) == ("no time was left", {})
    popen = everything.subprocess.Popen
    late = tmp_path / "late"

    def sleeps(command: list[str], **options: Any) -> Any:
        del command
        return popen(["/bin/sh", "-c", f"(sleep 1.5; touch {late}) & wait"], **options)

    monkeypatch.setattr(everything.subprocess, "Popen", sleeps)
    why, found = everything._measured("noise", True, 0.2)
    assert why == "it was still at work when the time was over"
    assert found == {}
    time.sleep(2.5)
    assert not late.exists()
