"""Twins in one call: one release gives twins and figures, and what is wrong is refused before it."""

import dataclasses

import numpy as np
import pyarrow
import pytest

import discreet as dp
from discreet.tabular.marginals import fit_twins
from discreet.tabular.synthetic import read_fitted, write_fitted
from discreet.tabular.tables import Column, Kind, Schema

pytestmark = pytest.mark.usefixtures("quick_compilation")

SCHEMA = Schema(
    columns=(
        Column(name="age", kind=Kind.REAL, bounds=(0.0, 100.0)),
        Column(name="visits", kind=Kind.COUNT, bounds=(0, 40)),
        Column(name="place", kind=Kind.CATEGORICAL, categories=("a", "b", "c")),
        Column(name="smoker", kind=Kind.BINARY, categories=("no", "yes")),
    )
)


def people(rows: int = 20_000) -> pyarrow.Table:
    rng = np.random.default_rng(0)
    place = rng.choice(["a", "b", "c"], rows, p=[0.5, 0.3, 0.2])
    age = np.clip(30 + 15 * (place == "b") + 8 * rng.standard_normal(rows), 0, 100)
    visits = np.minimum(rng.negative_binomial(0.5, 0.5 / 3.5, rows), 40)
    smoker = np.where(rng.random(rows) < age / 100, "yes", "no")
    return pyarrow.table({"age": age, "visits": visits, "place": place, "smoker": smoker})


@pytest.fixture
def short(monkeypatch) -> None:
    monkeypatch.setitem(fit_twins.__kwdefaults__, "num_steps", 2000)
    monkeypatch.setitem(fit_twins.__kwdefaults__, "components", 24)


def test_one_release_gives_twins_and_figures(short, tmp_path) -> None:
    ledger = dp.Ledger.create(tmp_path / "l", dataset="people", epsilon=1.5, delta=1e-5)
    found = dp.twins(people(), SCHEMA, epsilon=1.0, delta=1e-6, num_twins=2, ledger=ledger)
    assert len(ledger.debits) == 1
    figures = dp.describe(found, by="place", level=0.99999)
    assert figures.statement.epsilon == found.statement.epsilon <= 1
    table = people()
    for name in ("age", "visits"):
        own = figures.columns[name]
        exact = table[name].to_numpy()
        for figure, true in ((own.mean, exact.mean()), (own.sd, exact.std())):
            assert figure.low <= true <= figure.high
        twin = found.tables[0][name].to_numpy()
        assert abs(twin.mean() - own.mean.value) < 0.05 * own.sd.value
        assert abs(twin.std() / own.sd.value - 1) < 0.05
    assert [group.label for group in figures.groups] == ["a", "b", "c"]
    place = np.array(found.tables[0]["place"].to_pylist())
    ages = found.tables[0]["age"].to_numpy()
    for own, true in (("a", 30), ("b", 45), ("c", 30)):
        assert abs(ages[place == own].mean() - true) < 1.5
    # And the other way: no further debit, and the same refused budget.
    again = dp.twins(found, num_twins=1, num_records=50)
    assert len(again.tables[0]) == 50
    assert again.statement == found.statement
    assert len(ledger.debits) == 1
    write_fitted(tmp_path, found.fit.result, found.fit.model)
    assert read_fitted(tmp_path).statement == found.statement
    assert "2 twins of" in repr(found)


def test_a_description_gives_twins_and_names_the_pairs_that_it_did_not_count(short) -> None:
    described = dp.describe(people(), SCHEMA, epsilon=1.0, delta=1e-6, by="place")
    found = dp.twins(described, num_twins=1)
    assert (
        "Pairs of columns were left out of the counts: age × visits, age × smoker, visits × smoker"
        in str(found.statement.notes)
    )
    place = np.array(found.tables[0]["place"].to_pylist())
    ages = found.tables[0]["age"].to_numpy()
    # Their sums were released by place: counts alone, with noise in empty cells, draw the groups'
    # means together by 1.
    for group in described.groups:
        assert abs(ages[place == group.label].mean() - group.columns["age"].mean.value) < 0.7


def test_draws_of_a_key_are_repeated(short) -> None:
    how = {"epsilon": 1.0, "delta": 1e-6, "num_twins": 2, "num_draws": 2, "non_private_seed": True}
    one, other = (
        dp.twins(people(2_000), SCHEMA, rng_key=dp.random.key(3), **how) for _ in range(2)
    )
    assert one.tables == other.tables
    assert one.tables[0] != one.tables[1]
    assert one.fit.num_draws == 2


@pytest.mark.parametrize(
    ("options", "error", "needle"),
    [
        ({"delta": None}, TypeError, "twins needs a schema, epsilon and delta"),
        ({"num_twins": 0}, ValueError, "num_twins"),
        ({"num_records": 0}, ValueError, "num_records"),
        ({"num_draws": 2}, ValueError, "a draw for each twin"),
        ({"epsilon": -1.0}, ValueError, "epsilon"),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_spent(options, error, needle, tmp_path) -> None:
    ledger = dp.Ledger.create(tmp_path / "l", dataset="people", epsilon=1.5, delta=1e-5)
    given = {"epsilon": 1.0, "delta": 1e-6, "ledger": ledger} | options
    with pytest.raises(error, match=needle):
        dp.twins(people(50), SCHEMA, **given)
    assert not ledger.debits


def test_what_was_paid_for_is_not_paid_for_again() -> None:
    described = dp.describe(people(50), SCHEMA, epsilon=1.0, delta=1e-6)
    with pytest.raises(TypeError, match="epsilon, delta are for a table, and this is a release"):
        dp.twins(described, epsilon=1.0, delta=1e-6)
    with pytest.raises(TypeError, match="schema is for a table"):
        dp.describe(described, SCHEMA)
    with pytest.raises(TypeError, match="pairs is for a table"):
        dp.describe(described, pairs="all")


def test_rows_of_persons_are_nobodys(short) -> None:
    schema = dataclasses.replace(SCHEMA, person="who", max_rows=2)
    table = people(3_000).append_column("who", pyarrow.array((np.arange(3_000) // 3).astype(str)))
    found = dp.twins(table, schema, epsilon=4.0, delta=1e-6, num_twins=1)
    assert found.tables[0].column_names == [column.name for column in SCHEMA.columns]
    assert abs(len(found.tables[0]) - 2_000) < 200
    described = dp.describe(found, level=0.99999)
    assert described.persons_cut.low < 1_000 < described.num_persons.high
