"""Tables and pictures of the pages are those of the results that are kept beside them."""

import importlib.util
import json
import runpy
from pathlib import Path

from benchmarks import _results

# Figures that the prose of docs/benchmarks.md states: workload, figure or program, sentence.
STATED = (
    ("batch-sweep", "batch 128: private / not private", "takes {} times as long as NumPyro's at batch 128"),
    ("logistic", "private / NumPyro, not private", "That of the logistic regression takes {} times as long"),
    ("conv-vae", "private / NumPyro, not private, the quicker way", "that of the convolutional VAE {} times"),
    ("vae-128", "Opacus, ghost / ours", "At batch 128 Opacus takes {} times as long as discreet"),
    ("vae-128", "jax_privacy, best microbatch / ours", "jax_privacy {} times"),
    ("vae-128", "reference engine / ours", "per-record gradients {} times"),
    ("compile-time", "logistic: compile", "Compiling the logistic regression takes {}"),
    ("batch-sweep", "batch 1,024: private / not private", ", {} at 1,024"),
    ("batch-sweep", "batch 4,096: private / not private", "and {} at 4,096"),
    (
        "noise",
        "ChaCha20 / threefry, normal variables",
        "Normal variables by ChaCha20 take {} times as long as by threefry",
    ),
    ("samplers", "JAX choice", "`jax.random.choice` {}"),
    ("samplers", "Poisson, ChaCha20", "A Poisson batch of a table of 60,000 takes {}"),
    ("sampler-scaling", "N = 100,000,000 / N = 10,000", "what one of 10⁴ does ({})"),
    ("calibration", "discreet", "for 10,000 steps takes {}"),
    ("calibration", "dp_accounting, PLD", "by dp_accounting {}"),
)
METHODS = ("last iterate", "averaged", "noise-aware, trace", "noise-aware, regression")


def coverage_rows(kept: dict) -> list[str]:
    """Lines of the table in docs/noise-aware.md: share of 95 % intervals that held the truth, and their width."""
    cells = {(row["model"], row["epsilon"], row["method"]): row for row in kept["rows"]}
    lines = []
    for model, epsilon in dict.fromkeys((row["model"], row["epsilon"]) for row in kept["rows"]):
        shown = []
        for method in METHODS:
            row = cells.get((model, epsilon, method))
            shown.append(f"{100 * row['in 95%']:.0f} % ({row['width of 95%']:.3f})" if row else "")
        lines.append("| " + " | ".join([model, str(epsilon), *shown]) + " |")
    return lines


def test_coverage(repository: Path) -> None:
    kept = json.loads((repository / "docs/papers/coverage.json").read_text(encoding="utf-8"))
    # As the site has it, which makes the table.
    made = runpy.run_path(str(repository / "docs/hooks/tables.py"))["on_page_markdown"]
    page = made((repository / "docs/noise-aware.md").read_text(encoding="utf-8"))
    lines = coverage_rows(kept)
    assert len(lines) == 12
    assert [line for line in lines if line not in page] == []


def test_benchmarks(repository: Path) -> None:
    workloads = json.loads((repository / "benchmarks/results.json").read_text(encoding="utf-8"))["workloads"]
    page = (repository / "docs/benchmarks.md").read_text(encoding="utf-8")
    for workload, name, sentence in STATED:
        figures = {figure["name"]: _results.number(figure["value"]) for figure in workloads[workload]["figures"]}
        timings = {timing["name"]: _results.duration(timing["median_us"]) for timing in workloads[workload]["timings"]}
        assert sentence.format((figures | timings)[name]) in page
    bounded = [figure for workload in workloads.values() for figure in workload["figures"] if figure["bound"]]
    missed = sum(not figure["met"] for figure in bounded)
    assert (missed, len(bounded)) == (7, 39)
    assert "Seven of 39 figures [miss their bound]" in page


def test_the_picture_of_the_cost_is_drawn_from_the_results(repository: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("privacy_cost", repository / "examples/privacy_cost.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    epsilon, accuracy, exact = script.adult()
    assert epsilon == sorted(epsilon)
    assert 0.02 > exact - min(accuracy) > 0.0
    assert sorted(script.hierarchical()) == [100, 200, 500, 1_000]
    script.draw(tmp_path / "cost.svg")
    assert (tmp_path / "cost.svg").read_text().startswith("<?xml")
    assert (repository / "docs/privacy-cost.svg").is_file()
