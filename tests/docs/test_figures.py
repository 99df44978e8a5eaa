"""Tables and pictures of the pages are those of the results that are kept beside them."""

import importlib.util
import itertools
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import _results

# Figures that the prose of docs/benchmarks.md states: workload, figure or program, sentence.
STATED = (
    (
        "batch-sweep",
        "batch 128: private / not private",
        "takes {} times as long as NumPyro's at batch 128",
    ),
    (
        "logistic",
        "private / NumPyro, not private",
        "That of the logistic regression takes {} times as long",
    ),
    (
        "conv-vae",
        "private / NumPyro, not private, the quicker way",
        "that of the convolutional VAE {} times",
    ),
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
    (
        "figures-one-mean",
        "mean age: error, discreet / diffprivlib",
        "a mean alone has {} times the error of diffprivlib's",
    ),
    (
        "figures-one-mean",
        "mean age: half-width, discreet / diffprivlib",
        "{} times its 95 % half-width",
    ),
    (
        "figures-group-means",
        "mean by age race: error, discreet / OpenDP, Laplace",
        "Group means have {} times the error of OpenDP's",
    ),
    ("calibration", "discreet", "for 10,000 steps takes {}"),
    ("calibration", "dp_accounting, PLD", "by dp_accounting {}"),
)
METHODS = ("last iterate", "averaged", "noise-aware, trace", "noise-aware, regression")


def script(path: Path) -> ModuleType:
    """A program of the repository as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


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
    workloads = json.loads((repository / "benchmarks/results.json").read_text(encoding="utf-8"))[
        "workloads"
    ]
    page = (repository / "docs/benchmarks.md").read_text(encoding="utf-8")
    for workload, name, sentence in STATED:
        figures = {
            figure["name"]: _results.number(figure["value"])
            for figure in workloads[workload]["figures"]
        }
        timings = {
            timing["name"]: _results.duration(timing["median_us"])
            for timing in workloads[workload]["timings"]
        }
        assert sentence.format((figures | timings)[name]) in page
    ten = {
        figure["name"]: figure["value"] for figure in workloads["figures-ten-questions"]["figures"]
    }
    for noise in ("Laplace", "Gaussian"):
        assert ten[f"questions with an error of at most that of OpenDP, {noise}"] == 10
    assert "OpenDP's, which answers none of ten questions better" in page
    bounded = [
        figure
        for workload in workloads.values()
        for figure in workload["figures"]
        if figure["bound"]
    ]
    missed = sum(not figure["met"] for figure in bounded)
    assert (missed, len(bounded)) == (7, 61)
    assert "Seven of 61 figures [miss their bound]" in page


def test_the_picture_of_the_cost_is_drawn_from_the_results(
    repository: Path, tmp_path: Path
) -> None:
    drawn = script(repository / "examples/privacy_cost.py")
    epsilon, accuracy, exact = drawn.adult()
    assert epsilon == sorted(epsilon)
    assert 0.02 > exact - min(accuracy) > 0.0
    assert sorted(drawn.hierarchical()) == [100, 200, 500, 1_000]
    drawn.draw(tmp_path / "cost.svg")
    assert (tmp_path / "cost.svg").read_text().startswith("<?xml")
    assert (repository / "docs/privacy-cost.svg").is_file()


@pytest.fixture
def house(repository: Path) -> ModuleType:
    return script(repository / "tools/draw_house.py")


def files_in(svg: str) -> list[str]:
    """The files on the drawn path of a fit."""
    found = re.findall(
        r'<g class="(\w+)"><circle[^\n]*\n<text[^>]*class="code strong">([^<]+)</text>', svg
    )
    return [f"{storey}/{name}.py" for storey, name in found]


def test_the_pictures_of_the_architecture_are_drawn_from_the_code(
    repository: Path, house: ModuleType
) -> None:
    """But for the order of a fit's path, which takes a fit: see the next test."""
    storeys, path = (
        (repository / "docs" / name).read_text(encoding="utf-8")
        for name in ("storeys.svg", "fit-path.svg")
    )
    again = "draw it again: python tools/draw_house.py"
    assert house.storeys() == storeys, again
    files = files_in(path)
    assert len(files) > 40
    assert house.fit_path(files) == path, again
    assert set(house.PHRASES) <= set(files), "phrases of files that no fit runs through"
    # Planted: files in another order, and one that no fit begins with.
    assert house.fit_path([*files[:2], files[3], files[2], *files[4:]]) != path
    with pytest.raises(ValueError, match="PARTS"):
        house.fit_path(files[1:])


def test_the_path_of_a_fit_is_that_of_a_fit(repository: Path) -> None:
    """In a process of its own: what an earlier fit has traced is not traced again."""
    command = [sys.executable, str(repository / "tools/draw_house.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["storeys.svg", "fit-path.svg"])
def test_no_words_of_a_picture_overlap(repository: Path, house: ModuleType, name: str) -> None:
    """By the widths of a wide font."""
    svg = (repository / "docs" / name).read_text(encoding="utf-8")
    found = re.search(r'viewBox="0 0 (\d+) ([\d.]+)"', svg)
    assert found
    edges = float(found[1]), float(found[2])
    boxes = []
    for x, y, size, look, words in re.findall(
        r'<text x="([\d.]+)" y="([\d.]+)" font-size="([\d.]+)"(?: class="([\w ]+)")?>([^<]+)<', svg
    ):
        looks = look.split()
        width = house.width_of(words, float(size), code="code" in looks, bold="bold" in looks)
        left = float(x) - width * ("end" in looks)
        boxes.append((left, float(y) - float(size), left + width, float(y), words))
    assert len(boxes) > 80
    for left, top, right, bottom, words in boxes:
        assert 0 < left < right < edges[0], words
        assert 0 < top < bottom < edges[1], words
    for a, b in itertools.combinations(boxes, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, f"'{a[4]}' and '{b[4]}'"


def test_words_that_are_too_long_for_a_picture_are_refused(house: ModuleType) -> None:
    with pytest.raises(ValueError, match="shorten it"):
        house.Drawing("test").text(0, 0, "words", 10, 20)
    with pytest.raises(ValueError, match="give it a phrase in PHRASES"):
        house.phrase("methods/newton/_fit.py")
