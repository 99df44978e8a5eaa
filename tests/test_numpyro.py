"""The tested releases of NumPyro, and what discreet takes from it beside its documentation."""

import tomllib
from pathlib import Path

import numpyro
import pytest

from discreet import _numpyro
from discreet.inference._records import take_apart


def test_the_package_asks_for_the_releases_that_were_tried(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"numpyro>={_numpyro.TRIED_FROM},<{_numpyro.UNTRIED_FROM}" in project["dependencies"]


def test_the_installed_release_was_tried() -> None:
    assert not _numpyro.untried_numpyro()


@pytest.mark.parametrize("version", ["0.21.9", _numpyro.UNTRIED_FROM, "1000.0", "0.22.0.dev1"])
def test_any_other_release_is_named_before_a_fit(monkeypatch, version) -> None:
    monkeypatch.setattr(numpyro, "__version__", version)
    with (
        pytest.warns(UserWarning, match=rf"tested on NumPyro 0\.22 .* this is NumPyro {version}"),
        pytest.raises(ValueError, match="No argument is an array"),
    ):
        take_apart([1.0], {})


def test_open_plates_are_those_around() -> None:
    assert _numpyro.open_plates() == []
    with numpyro.plate("outer", 3), numpyro.handlers.seed(rng_seed=0), numpyro.plate("inner", 2):
        assert [plate.name for plate in _numpyro.open_plates()] == ["outer", "inner"]


def test_the_search_is_numpyros_again_afterwards() -> None:
    search = _numpyro.numpyro_util.find_valid_initial_params
    with _numpyro.searching_by(lambda its: lambda: its):
        assert _numpyro.numpyro_util.find_valid_initial_params() is search  # pyright: ignore[reportCallIssue]
    assert _numpyro.numpyro_util.find_valid_initial_params is search
