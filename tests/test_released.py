"""What every result can do: be written into a file and read back, be a dictionary of plain values, be shown in a notebook."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.methods import METHODS, Method, X, by_moments, by_newton, model, plan

import discreet as dp
from discreet.released import Released


@pytest.fixture(scope="module", params=METHODS)
def result(request: pytest.FixtureRequest) -> Any:
    method: Method = request.param
    return method(dp.random.key())


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same to the bit."""
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one) if field.metadata.get("file", True)]
        return type(one) is type(other) and all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict | list | tuple):
        leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
        return all(same(a, b) for a, b in zip(leaves, others, strict=True))
    if isinstance(one, np.ndarray):
        return one.tobytes() == other.tobytes()
    return one == other or (one != one and other != other)  # NaN


@pytest.mark.filterwarnings("ignore::discreet.inference.UseWarning")
def test_there_and_back(result: Released, tmp_path: Path) -> None:
    path = result.save(tmp_path / "a")
    again = type(result).load(path)
    assert same(again, result)
    assert again.save(tmp_path / "b").read_bytes() == path.read_bytes()
    with pytest.raises(ValueError, match=r"is no |holds a "):
        type(result).load(Path(__file__))


@pytest.mark.filterwarnings("ignore::discreet.inference.UseWarning")
def test_it_is_a_dictionary_of_plain_values_and_is_shown(result: Any) -> None:
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


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    from discreet.storage import write_archive

    for fields in ({"centre": 1}, {"centre": np.ones(1), "scale": "1", "plan": None, "statement": None}, []):
        path = write_archive(tmp_path / "a", "private standardisation", 1, fields, ())
        with pytest.raises(ValueError, match="does not hold what a private standardisation holds"):
            dp.standardise.Scaling.load(path)


@pytest.mark.parametrize("method", [by_moments, by_newton])
@pytest.mark.filterwarnings("ignore::discreet.inference.UseWarning")
def test_draws_go_to_arviz_with_the_statement(method: Method) -> None:
    pytest.importorskip("arviz")
    result = method(dp.random.key())
    data = result.to_arviz(dp.random.key(1), 50)
    assert data["posterior"]["weights"].size == 50
    assert json.loads(data.attrs["statement"]) == result.statement.to_dict()


def test_a_chain_goes_on_from_its_checkpoint_and_names_persons(tmp_path: Path) -> None:
    chain = dp.DPSGLD(model, plan=plan(), step_size=(1e-4, 10.0, 0.55))
    key = dp.random.key()
    one, again = (chain.run(key, X, checkpoint=tmp_path, person="id", progress_bar=False) for _ in range(2))
    assert same(one.draws, again.draws)
    assert str(one.statement.unit) == "one person (all rows with the same 'id', of which one is used)"
