"""What is written about releases in several places agrees: bounds, recipe, workflows and the page on supported versions."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from discreet import _jax, _numpyro


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_conda_recipe_asks_for_what_pip_installs(
    repository: Path, project: dict[str, Any]
) -> None:
    recipe = (repository / "packaging" / "conda" / "meta.yaml").read_text(encoding="utf-8")
    assert f'version = "{project["version"]}"' in recipe
    run = recipe.partition("  run:\n")[2].partition("\n\n")[0]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["tables"], *extras["cli"], *extras["fast"]]
    wanted = [x for x in map(Requirement, wanted) if x.name != "discreet"]
    asked = [Requirement(x) for x in re.findall(r"- (.*)", run)]
    assert {(x.name, x.specifier) for x in asked} == {
        ("python", Requirement(f"python{project['requires-python']}").specifier),
        *((x.name, x.specifier) for x in wanted),
    }


def test_the_bounds_are_lifted_for_the_weekly_trial(repository: Path, tmp_path: Path) -> None:
    for name in (
        ".ci/lift-bounds",
        "pyproject.toml",
        "src/discreet/_jax.py",
        "src/discreet/_numpyro.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repository / name, tmp_path / name)
    subprocess.run([tmp_path / ".ci/lift-bounds"], check=True)
    lifted = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "dependencies"
    ]
    for name, module in (("jax", _jax), ("numpyro", _numpyro)):
        assert f"{name}>={module.TRIED_FROM},<99" in lifted
        text = (tmp_path / f"src/discreet/_{name}.py").read_text(encoding="utf-8")
        assert f'TRIED_FROM = "{module.TRIED_FROM}"\nUNTRIED_FROM = "99"' in text


def test_the_page_says_what_is_tested(repository: Path, project: dict[str, Any]) -> None:
    page = (repository / "docs" / "supported-versions.md").read_text(encoding="utf-8")
    workflow = (repository / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert f"| Python | {', '.join(pythons)} |" in page
    assert re.findall(r'"(3\.\d+)"', workflow) == pythons
    for name in ("jax", "numpyro"):
        (bounds,) = [x for x in project["dependencies"] if x.startswith(f"{name}>")]
        assert f"`{bounds}`" in page


def test_a_tag_is_published_only_if_it_is_the_version(
    repository: Path, project: dict[str, Any]
) -> None:
    workflow = (repository / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    (check,) = re.findall(r"run: (test \"\$GITHUB_REF_NAME\".*)", workflow)
    for tag, code in ((f"v{project['version']}", 0), ("v99.0.0", 1)):
        done = subprocess.run(
            ["bash", "-c", check],
            cwd=repository,
            env={"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == code
