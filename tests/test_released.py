"""What every result can do: be written into a file and read back, be a dictionary of plain values, be shown in a notebook."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.methods import METHODS, Method, X, by_moments, by_newton, same

import discreet as dp
from discreet.released import Released
from discreet.storage import write_archive

pytestmark = pytest.mark.filterwarnings("ignore::discreet.inference.UseWarning")


@pytest.fixture(scope="module", params=METHODS)
def made(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A result and the key of its noise."""
    method: Method = request.param
    key = dp.random.key()
    return method(key), key


def test_there_and_back_without_key_and_records(made: tuple[Any, Any], tmp_path: Path) -> None:
    result, key = made
    path = result.save(tmp_path / "a")
    rows = X[500:504]
    for secret in (np.asarray(jax.random.key_data(key)), rows, rows.astype(np.float64)):
        assert secret.tobytes() not in path.read_bytes()
    again = type(result).load(path)
    assert same(again, result)
    assert again.save(tmp_path / "b").read_bytes() == path.read_bytes()
    with pytest.raises(ValueError, match=r"is no |holds a "):
        type(result).load(Path(__file__))
    kept = {name: getattr(result, name) for name in result._kept_in("file")}
    for fields in ({k: v for k, v in kept.items() if k != "plan"}, {**kept, "plan": None}, {**kept, "more": 1}, []):
        write_archive(path, result.what, result.version, fields, result._kinds())
        with pytest.raises(ValueError, match=f"does not hold what a {result.what} holds"):
            type(result).load(path)


def test_it_is_a_dictionary_of_plain_values_and_is_shown(made: tuple[Any, Any]) -> None:
    result, _ = made
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["statement"] == result.statement.to_dict()
    assert dp.accounting.upper(result.statement.epsilon) in result._repr_html_()
    assert not hasattr(result, "non_private_diagnostics") or "non_private_diagnostics" not in content


def test_what_is_neither_a_release_nor_public_is_in_no_file(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Mean(Released, what="mean"):
        value: float
        statement: None
        records: np.ndarray | None = dataclasses.field(default=None, metadata=dp.released.KEPT_NOWHERE)

    mean = Mean(0.5, None, np.arange(3))
    assert mean.to_dict() == {"format": "discreet mean, version 1", "value": 0.5, "statement": None}
    assert Mean.load(mean.save(tmp_path / "mean")).records is None


@pytest.mark.parametrize("method", [by_moments, by_newton])
def test_draws_go_to_arviz_with_the_statement(method: Method) -> None:
    pytest.importorskip("arviz")
    result = method(dp.random.key())
    data = result.to_arviz(dp.random.key(1), 50)
    assert data["posterior"]["weights"].size == 50
    assert json.loads(data.attrs["statement"]) == result.statement.to_dict()
