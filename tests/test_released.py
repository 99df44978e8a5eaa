"""What every result can do: be written into a file and read back, be a dictionary of plain values, be shown in a notebook."""

import dataclasses
import itertools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.methods import METHODS, Method, X, same

import discreet as dp
from discreet.privacy.released import Released
from discreet.storage import write_archive
from discreet.tabular.formulas import _regress
from discreet.tabular.marginals import _describe
from discreet.tabular.synthetic import _twins
from discreet.tabular.tables import schema_from_bounds

pytestmark = pytest.mark.filterwarnings("ignore::discreet.methods.inference.UseWarning")


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
    with pytest.raises(ValueError, match="to_csv and to_parquet"):
        result.save(tmp_path / "a.csv")
    again = type(result).load(path)
    assert same(again, result)
    assert again.save(tmp_path / "b").read_bytes() == path.read_bytes()
    with pytest.raises(ValueError, match=r"is no |holds a "):
        type(result).load(Path(__file__))
    kept = {name: getattr(result, name) for name in result._kept_in("file")}
    for fields in (
        {k: v for k, v in kept.items() if k != "plan"},
        {**kept, "plan": None},
        {**kept, "more": 1},
        [],
    ):
        write_archive(path, result.what, result.version, fields, result._kinds())
        with pytest.raises(ValueError, match=f"does not hold what a {result.what} holds"):
            type(result).load(path)


def test_short_forms_round_epsilon_up_and_say_what_is_not_private(made: tuple[Any, Any]) -> None:
    """Some wrote epsilon rounded down, and nothing of a seed."""
    result, _ = made
    of_twins = dp.marginals.MarginalsResult(latents={}, num_records=2, statement=result.statement)
    for released, seeded in itertools.product((result, of_twins), (False, True)):
        figures = dataclasses.replace(result.statement.figures, epsilon=0.12344999)
        stated = dataclasses.replace(result.statement, figures=figures, reproducible=seeded)
        shown = repr(dataclasses.replace(released, statement=stated))
        assert "epsilon=0.1235 at delta=" in shown
        assert ("NOT PRIVATE" in shown) == seeded


def test_it_is_a_dictionary_of_plain_values_and_is_shown(made: tuple[Any, Any]) -> None:
    result, _ = made
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["statement"] == result.statement.to_dict()
    assert dp.accounting.upper(result.statement.epsilon) in result._repr_html_()
    assert "non_private_diagnostics" not in content
    again = pickle.loads(pickle.dumps(result))
    assert same(again, result)
    assert getattr(again, "non_private_diagnostics", None) is None


def test_what_is_neither_a_release_nor_public_is_in_no_file(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Mean(Released, what="mean"):
        value: float
        statement: None
        records: np.ndarray | None = dataclasses.field(
            default=None, metadata=dp.released.KEPT_NOWHERE
        )

    mean = Mean(0.5, None, np.arange(3))
    assert mean.to_dict() == {"format": "discreet mean, version 1", "value": 0.5, "statement": None}
    assert Mean.load(mean.save(tmp_path / "mean")).records is None


def test_what_has_intervals_prints_them_alike(made: tuple[Any, Any]) -> None:
    result, _ = made
    if not hasattr(result, "interval"):
        return
    drawn = result.posterior(dp.random.key(1), 5_000)
    lines = str(result).splitlines()
    assert "90 % interval" in lines[0]
    assert dp.report.use_words(result.statement) in lines
    assert "array(" not in repr(result)
    for name, (low, high) in result.interval.items():
        share = np.mean((drawn[name] >= low) & (drawn[name] <= high), axis=0)
        assert np.all(np.abs(share - 0.9) < 0.03)
        assert any(line.startswith(name) for line in lines)


def test_draws_are_as_many_as_are_asked_for_and_go_to_arviz_with_the_statement(
    made: tuple[Any, Any],
) -> None:
    """For ArviZ, those of a fit in steps need its guide: test_inference_data.py has them."""
    result, _ = made
    if not hasattr(result, "posterior"):
        return
    key, number = dp.random.key(1), 1 if isinstance(result, dp.inference.OPSResult) else 5_000
    drawn, again = (jax.tree.map(np.asarray, result.posterior(key, number)) for _ in range(2))
    assert {len(x) for x in drawn.values()} == {number}
    assert same(again, drawn)
    with pytest.raises(ValueError, match="num_samples is 0"):
        result.posterior(key, 0)
    if not isinstance(result, dp.DPSVIResult):
        pytest.importorskip("arviz")
        released = isinstance(result, dp.inference.OPSResult | dp.inference.DPSGLDResult)
        data = result.to_arviz() if released else result.to_arviz(key, 50)
        assert set(data["posterior"].data_vars) == set(drawn)
        assert json.loads(data.attrs["statement"]) == result.statement.to_dict()


PAID = {"epsilon": 1.0, "delta": 1e-6}
INTERRUPTED: dict[str, tuple[Any, str, Callable[[dp.Ledger], Any]]] = {
    "describe": (
        _describe.Description,
        "of",
        lambda ledger: dp.describe({"x": X}, schema_from_bounds("x=0:1"), **PAID, ledger=ledger),
    ),
    "twins": (
        _twins,
        "synthesize",
        lambda ledger: dp.twins({"x": X}, schema_from_bounds("x=0:1"), **PAID, ledger=ledger),
    ),
    "estimators": (
        dp.estimators.LogisticRegression,
        "_learn",
        lambda ledger: dp.estimators.LogisticRegression(bounds=(0, 1), **PAID).fit(
            X[:, None], X > 0.5, ledger=ledger
        ),
    ),
    "regress": (
        _regress,
        "_named",
        lambda ledger: dp.regress(
            "y ~ x",
            {"x": X, "y": np.where(X > 0.5, "yes", "no")},
            schema_from_bounds("x=0:1,y=no|yes"),
            family="bernoulli",
            **PAID,
            ledger=ledger,
        ),
    ),
}


@pytest.mark.parametrize("act", INTERRUPTED)
def test_ctrl_c_behind_a_release_loses_nothing(
    act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is computed from a release may take long; its budget is spent."""

    def interrupted(*anything: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    owner, name, call = INTERRUPTED[act]
    monkeypatch.setattr(owner, name, interrupted)
    ledger = dp.Ledger.create(tmp_path / "a.ledger", dataset="a", epsilon=5.0, delta=1e-4)
    with pytest.raises(KeyboardInterrupt) as caught:
        call(ledger)
    released = caught.value.__dict__["partial_result"]
    assert released.statement.receipt.hash == ledger.entries[-1]["hash"]
    assert type(released).load(released.save(tmp_path / "paid")).statement == released.statement
    assert "paid for, and not lost" in caught.value.__notes__[0]
