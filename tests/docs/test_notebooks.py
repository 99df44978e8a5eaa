"""The notebooks run as the site shows them, without a word on standard error, and leave nothing behind."""

import re
from pathlib import Path
from typing import Any

import pytest

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
    said = [output.text for cell in cells for output in cell.outputs if output.get("name") == "stderr"]
    assert said == []
    assert list(folder.iterdir()) == []
    assert sorted(FOLDER.iterdir()) == before
    return kinds(cells)


@pytest.mark.essential
def test_the_notebook_of_proofs(tmp_path: Path) -> None:
    assert "text/html" in check("proofs", tmp_path)


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
