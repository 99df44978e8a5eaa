"""The notebooks run as the site shows them, without a word on standard error, and leave nothing behind."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
# What the extra `docs` installs, in which `make test` runs.
nbclient = pytest.importorskip("nbclient")
jupytext = pytest.importorskip("jupytext")


def executed(path: Path, folder: Path) -> list[Any]:
    """The code cells of a notebook after a run in that folder."""
    notebook = jupytext.read(path)
    place = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, kernel_name="python3", timeout=600, resources=place).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cells: list[Any]) -> set[str]:
    return {kind for cell in cells for output in cell.outputs for kind in output.get("data", {})}


def check(name: str, folder: Path) -> set[str]:
    """Run a notebook; return the kinds of what it shows."""
    before = sorted(FOLDER.iterdir())
    cells = executed(FOLDER / f"{name}.py", folder)
    said = [
        output.text for cell in cells for output in cell.outputs if output.get("name") == "stderr"
    ]
    assert said == []
    assert list(folder.iterdir()) == []
    assert sorted(FOLDER.iterdir()) == before
    return kinds(cells)


@pytest.mark.essential
def test_the_notebook_of_proofs(tmp_path: Path) -> None:
    assert "text/html" in check("proofs", tmp_path)


def installed_with(extra: str, project: dict[str, Any]) -> set[str]:
    """The distributions that an extra of discreet brings, by pyproject.toml and by what is installed."""
    own = {**project["optional-dependencies"], "": project["dependencies"]}
    queue, found = [Requirement(f"discreet[{extra}]")], set()
    while queue:
        wanted = queue.pop()
        name, extras = canonicalize_name(wanted.name), {"", *wanted.extras}
        if {(name, x) for x in extras} <= found:
            continue
        found |= {(name, x) for x in extras}
        if name == "discreet":
            queue += [Requirement(x) for e in extras for x in own[e]]
            continue
        try:
            needs = [Requirement(x) for x in metadata.requires(name) or ()]
        except metadata.PackageNotFoundError:  # of another platform
            continue
        queue += [
            x
            for x in needs
            if x.marker is None or any(x.marker.evaluate({"extra": e}) for e in extras)
        ]
    return {name for name, _ in found}


def test_the_notebook_of_proofs_needs_no_more_than_its_extra(
    repository: Path, tmp_path: Path
) -> None:
    """`make docs` runs it in an environment of its own, which has sympy only if the extra brings it."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = installed_with("docs", project)
    hidden = {
        module
        for module, names in metadata.packages_distributions().items()
        if brought.isdisjoint(map(canonicalize_name, names))
    }
    assert {"pytest", "flax"} <= hidden
    code = f"import sys; sys.modules.update(dict.fromkeys({sorted(hidden)}))\n"
    code += (FOLDER / "proofs.py").read_text(encoding="utf-8")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["census", "own_model", "hierarchical", "vae"])
def test_a_fit_shows_its_statement_and_pictures(name: str, tmp_path: Path) -> None:
    assert {"text/html", "image/png"} <= check(name, tmp_path)


@pytest.mark.exhaustive
def test_the_notebook_of_twins(tmp_path: Path) -> None:
    assert "text/html" in check("twins", tmp_path)


@pytest.mark.exhaustive
def test_the_notebook_of_the_audit(tmp_path: Path) -> None:
    cells = executed(FOLDER / "audit.py", tmp_path)
    said = "".join(output.text for cell in cells for output in cell.outputs)
    assert said.count("Not contradicted") == 2


def test_notebooks_are_small_and_listed(repository: Path) -> None:
    settings = (repository / "mkdocs.yml").read_text(encoding="utf-8")
    gallery = (FOLDER / "index.md").read_text(encoding="utf-8")
    paths = sorted(FOLDER.glob("*.py"))
    assert len(paths) == 7
    for path in paths:
        cells = jupytext.read(path).cells
        assert 5 <= len(cells) <= 14, path.name
        assert cells[0].source.startswith("# "), path.name
        assert f"notebooks/{path.name}" in settings
        assert f"({path.name})" in gallery
        for link in re.findall(r"\]\(([^)#:]+)", path.read_text(encoding="utf-8")):
            assert (FOLDER / link).is_file(), f"{path.name} links to {link}"
