"""`import discreet as dp` finds few names, every module, and the same for type checkers as at run time."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import discreet as dp


def names_for_type_checkers() -> tuple[set[str], dict[str, str]]:
    """Modules and names (with their homes) that the TYPE_CHECKING block imports."""
    tree = ast.parse(Path(dp.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    modules, names = set(), {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert alias.asname == alias.name  # else it is not re-exported
                if node.module in ("discreet", *(f"discreet.{storey}" for storey in dp._STOREYS)):
                    modules.add(alias.name)
                else:
                    names[alias.name] = str(node.module).rpartition(".")[2]
    return modules, names


def test_type_checkers_see_what_programs_see() -> None:
    modules, names = names_for_type_checkers()
    assert names == dp._HOME
    assert modules == set(dp._modules()) - {"cli"}  # a program, not for import


def test_names_are_few_and_lead_somewhere() -> None:
    assert len(dp.__all__) <= 34  # with check and compare, which one asks of every fit, and regress
    for name, home in dp._HOME.items():
        assert getattr(dp, name) is getattr(importlib.import_module(dp._modules()[home]), name)
    assert set(dp.__all__) <= set(dir(dp))


def test_a_module_is_found_without_its_import() -> None:
    """In a fresh process: elsewhere another test may have imported the module already."""
    modules = sorted(names_for_type_checkers()[0])
    lines = [f"assert dp.{module}.__name__ == '{dp._modules()[module]}'" for module in modules]
    code = "\n".join(
        [
            "import sys, discreet as dp",
            "assert len([m for m in sys.modules if m[:9] == 'discreet.']) == 0",
            *lines,
        ]
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "name", ["nothing", "_nothing", "__wrapped__", "py", "models.MixtureOfProducts"]
)
def test_other_names_are_none(name: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute"):
        getattr(dp, name)
    assert name not in dir(dp)
