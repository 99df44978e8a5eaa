"""The papers' experiments run at small size, keep all that made their results, and notice a fit that is broken."""

import importlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import discreet as dp

PAPER = Path(__file__).resolve().parents[2] / "examples" / "paper"
NAMES = sorted(path.stem for path in PAPER.glob("[!_]*.py"))
TABLES = {
    "uai_abalone": "abalone.csv.gz",
    "uai_adult": "adult.csv.gz",
    "vae": "t10k-images-idx3-ubyte.gz",
}


def run(script, *arguments, **environment):
    command = [sys.executable, script, *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


def check_kept(out, name, *, quick):
    """The results tell what ran, and the figure is one."""
    kept = json.loads((out / f"{name}.json").read_text())
    assert kept["experiment"] == name
    assert kept["quick"] is quick
    assert {"jax", "numpyro", "discreet"} <= set(kept["versions"])
    assert kept["settings"]
    assert kept["rows"]
    assert ET.parse(out / f"{name}.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert not list(out.glob("*.part"))
    return kept


# `make paper-quick` runs them too, one after another.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "uai_abalone" else pytest.mark.exhaustive)
        for name in NAMES
        if name != "vae_images"  # test_images.py makes files for it
    ],
)
def test_a_quick_run_finds_what_it_should_and_keeps_it(name, table, tmp_path):
    environment = {"DISCREET_DATA": str(table(TABLES[name]).parent)} if name in TABLES else {}
    done = run(PAPER / f"{name}.py", "--quick", "--out", tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    check_kept(tmp_path, name, quick=True)
    assert f"{name}.svg written" in done.stdout


TOY = """
import dataclasses
from _experiment import experiment, new_figure

@dataclasses.dataclass(frozen=True)
class Settings:
    limit: float = 1.0
    seeds: tuple[int, ...] = (0, 1)

def run(settings):
    return [{"seed": seed, "found": seed * settings.limit, "all": [seed]} for seed in settings.seeds]

def draw(rows):
    figure, axes = new_figure()
    axes.plot([row["found"] for row in rows])
    return figure

def check(rows, quick):
    assert rows[-1]["found"] < (1.0 if quick else 3.0), "too much was found"

experiment(__file__, "A toy.", full=Settings(limit=2.0), quick=Settings(), run=run, draw=draw, check=check)
"""


def test_an_experiment_keeps_its_rows_and_fails_where_its_check_does(tmp_path):
    (tmp_path / "toy.py").write_text(TOY)
    here, paper = (
        tmp_path / "results",
        {"PYTHONPATH": f"{PAPER}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )
    done = run(tmp_path / "toy.py", "--out", here, **paper)
    assert done.returncode == 0, done.stderr
    kept = check_kept(here, "toy", quick=False)
    assert kept["settings"] == {"limit": 2.0, "seeds": [0, 1]}
    assert kept["rows"] == [
        {"seed": 0, "found": 0.0, "all": [0]},
        {"seed": 1, "found": 2.0, "all": [1]},
    ]
    assert done.stdout.split()[:6] == ["seed", "found", "0", "0", "1", "2"]
    drawn = (here / "toy.svg").read_bytes()
    failed = run(tmp_path / "toy.py", "--quick", "--out", here, **paper)
    assert failed.returncode == 1
    assert "too much was found" in failed.stderr
    assert check_kept(here, "toy", quick=True)["rows"][1]["found"] == 1.0
    assert run(tmp_path / "toy.py", "--out", here, **paper).returncode == 0
    assert (here / "toy.svg").read_bytes() == drawn, "the same rows, another picture"


@pytest.mark.parametrize(
    "path", sorted((PAPER.parents[1] / "docs" / "papers").glob("*.json")), ids=lambda p: p.stem
)
def test_what_docs_show_are_full_runs_of_scripts_that_are_there(path):
    check_kept(path.parent, path.stem, quick=False)
    assert path.stem in NAMES


def test_what_the_map_of_the_papers_names_is_there(repository):
    text = (repository / "docs" / "papers.md").read_text(encoding="utf-8")
    named = {
        path
        for path in re.findall(r"`((?:src|examples|benchmarks|tests)/[^`]+)`", text)
        if "NAME" not in path
    }
    assert len(named) > 20
    assert sorted(path for path in named if not (repository / path).exists()) == []
    assert {f"examples/paper/{name}.py" for name in NAMES} <= named
    for name in re.findall(r"`dp\.(\w+)", text):
        assert hasattr(dp, name), f"dp.{name}"


@pytest.fixture
def experiment(monkeypatch):
    """A function from an experiment's name to its module."""
    monkeypatch.setattr(
        sys, "path", [str(PAPER), str(PAPER.parent), str(PAPER.parents[1]), *sys.path]
    )
    return importlib.import_module


@pytest.mark.parametrize("epsilon", [8.0, None])
def test_hierarchical_notices_a_fit_that_knows_no_groups(experiment, epsilon):
    hierarchical = experiment("hierarchical")
    levels = {1.0: 0.83, 8.0: 0.88, None: 0.89}
    good = [
        {
            "guide": "listing 4",
            "num_records": 500,
            "num_steps": 2_000,
            "epsilon": e,
            "auc": auc,
            "baseline": 0.8,
        }
        for e, auc in levels.items()
    ]
    newton = {
        "guide": "private Newton",
        "num_records": 500,
        "num_steps": None,
        "epsilon": 8.0,
        "auc": 0.87,
    }
    hierarchical.check([*good, newton], True)
    broken = [row | ({"auc": 0.79} if row["epsilon"] == epsilon else {}) for row in good]
    with pytest.raises(AssertionError):
        hierarchical.check([*broken, newton], True)
    with pytest.raises(AssertionError):
        hierarchical.check([*good, newton | {"auc": 0.79}], True)


@pytest.mark.parametrize(
    ("side", "loss"), [("discreet", 543.0), ("NumPyro", 543.0), ("discreet", 100.0)]
)
def test_vae_notices_a_fit_that_learns_nothing_or_pays_nothing(experiment, side, loss):
    vae = experiment("vae")
    good = [
        {"what": "MNIST", "side": name, "loss": 150.0 + 50.0 * (name == vae.PRIVATE), "ratio": None}
        for name in ("discreet", "NumPyro")
    ]
    vae.check(good, True)
    with pytest.raises(AssertionError):
        vae.check([row | ({"loss": loss} if row["side"] == side else {}) for row in good], True)


def test_samplers_notices_a_batch_with_a_record_twice(experiment, monkeypatch):
    samplers = experiment("samplers")
    settings = samplers.Settings(num_records=40, batch_size=8)
    samplers.check_draws(settings)
    draws = samplers.draws_of(settings)
    monkeypatch.setattr(
        samplers,
        "draws_of",
        lambda _: draws | {samplers.CHOICE: lambda key: draws[samplers.CHOICE](key) // 20},
    )
    with pytest.raises(AssertionError, match=samplers.CHOICE):
        samplers.check_draws(settings)


def test_the_runner_says_how_each_went(tmp_path):
    """The copy has three experiments: one that runs, one that is wrong and one whose table is absent."""
    (tmp_path / "__main__.py").write_text((PAPER / "__main__.py").read_text())
    (tmp_path / "_helper.py").write_text("raise RuntimeError")
    (tmp_path / "right.py").write_text("print('found')")
    (tmp_path / "wrong.py").write_text("raise AssertionError('not found')")
    (tmp_path / "absent.py").write_text("raise SystemExit('No table here.')")
    done = run(tmp_path, "--quick")
    assert done.returncode == 1
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[-3:])
    assert lines["right"].startswith("ok")
    assert lines["wrong"].startswith("FAILED")
    assert lines["absent"].startswith("no data")
    assert "not found" in done.stderr
    assert run(tmp_path, "right").returncode == 0
    assert "no experiment is called 'left'" in run(tmp_path, "left").stderr
