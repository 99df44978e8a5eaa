"""Twins from noisy counts: what they keep of the table, in memory and in the shell."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.cli._app import app
from discreet.cli._report import FILES
from discreet.marginals import (
    MarginalsPlan,
    counts_suffice,
    fit_twins,
    load_marginals,
    load_marginals_result,
    private_marginals,
    twin_tables,
)
from discreet.marginals._twins import CountMatrices
from discreet.synthetic import marginal_distances, read_fitted, synthesize, write_fitted
from discreet.tables import Column, Kind, Missing, Schema, schema_to_toml

pytestmark = pytest.mark.usefixtures("quick_compilation")


def column(name, *categories, **options):
    return Column(
        name=name, kind=Kind.BINARY if len(categories) == 2 else Kind.CATEGORICAL, categories=categories, **options
    )


SCHEMA = Schema(
    columns=(
        Column(name="age", kind=Kind.REAL, bounds=(0.0, 100.0)),
        column("left", "no", "yes"),
        column("right", "no", "yes"),
        column("place", "a", "b", "c", missing=Missing.INDICATOR),
        column("odd", "no", "yes"),
    ),
    target="odd",
)


def people(rows: int = 20_000) -> pyarrow.Table:
    """`odd` is one of left and right, and not both: no pair of columns shows it."""
    rng = np.random.default_rng(0)
    left, right = rng.random(rows) < 0.5, rng.random(rows) < 0.5
    age = np.clip(20 + 50 * left + 8 * rng.standard_normal(rows), 0, 100)
    words = {name: np.where(x, "yes", "no") for name, x in (("left", left), ("right", right), ("odd", left ^ right))}
    place = np.where(age > 60, "c", rng.choice(["a", "b"], rows)).astype(object)
    place[rng.random(rows) < 0.1] = None
    return pyarrow.table({"age": age, "place": place, **words}).select([x.name for x in SCHEMA.columns])


@pytest.fixture(scope="module")
def fit():
    return fitted(twin_tables(SCHEMA))


def fitted(tables):
    plan = MarginalsPlan.calibrate(SCHEMA, epsilon=1.0, delta=1e-6, tables=tables, slices=32)
    return fit_twins(private_marginals(dp.random.key(), people(), plan), components=12, num_steps=400)


def rate_of_odd(twin) -> float:
    left, right, odd = (np.array(twin[name].to_pylist()) == "yes" for name in ("left", "right", "odd"))
    return float((odd == left ^ right).mean())


def test_twins_keep_pairs_and_with_the_target_triples(fit) -> None:
    """The true rate of odd ones is 1."""
    model, result = fit
    (twin,) = synthesize(dp.random.key(), result, model, num_twins=1)
    assert abs(len(twin) - 20_000) < 200
    found = marginal_distances(twin, people(), SCHEMA, non_private=True)
    assert found.mean_one_way < 0.02
    assert found.mean_two_way < 0.04
    assert rate_of_odd(twin) > 0.9
    age = twin["age"].to_numpy()
    assert age.min() >= 0
    assert age.max() <= 100
    assert 0.07 < twin["place"].null_count / len(twin) < 0.13


def test_pairs_alone_leave_triples_open() -> None:
    """About a half by chance: which value it has is the fit's affair."""
    model, result = fitted(None)
    (twin,) = synthesize(dp.random.key(), result, model, num_twins=1)
    assert rate_of_odd(twin) < 0.85


def test_a_fit_is_saved_and_read(fit, tmp_path) -> None:
    model, result = fit
    write_fitted(tmp_path, result, model)
    read = read_fitted(tmp_path)
    (first,) = synthesize(dp.random.key(3), read, read.model, num_twins=1, num_records=50)
    (second,) = synthesize(dp.random.key(3), result, model, num_twins=1, num_records=50)
    assert first == second
    assert read.num_records == result.num_records
    assert read.statement == result.statement
    assert "too narrow" in str(read.statement)
    with pytest.raises(ValueError, match=r"twin\.json"):
        load_marginals_result(tmp_path / "twin.json")
    write_fitted(tmp_path, result, dp.models.MixtureOfProducts(model.schema, components=3, slices=32))
    with pytest.raises(ValueError, match="names or shapes"):
        read_fitted(tmp_path)


def test_from_a_table_to_twins_in_the_shell(tmp_path, monkeypatch) -> None:
    """By counts, unless asked otherwise. A fit that fails leaves the counts, and is repeated from them for nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(fit_twins.__kwdefaults__, "num_steps", 20)
    pyarrow.csv.write_csv(people(500), "people.csv")
    (tmp_path / "schema.toml").write_text(schema_to_toml(SCHEMA))
    dp.Ledger.create("people.ledger", dataset="people", epsilon=1.0, delta=1e-5)
    run = CliRunner()
    words = ["fit", "--data", "people.csv", "--model", "twin", "--schema", "schema.toml", "--epsilon", "1"]
    words += ["--ledger", "people.ledger"]
    refused = run.invoke(app, [*words, "--by", "marginals", "--steps", "3"])
    assert refused.exit_code == 2
    assert not (tmp_path / "discreet-fit").exists()
    with monkeypatch.context() as broken:
        broken.setattr(CountMatrices, "of", lambda released: 1 / 0)
        failed = run.invoke(app, [*words, "--components", "4"])
    assert failed.exit_code == 1
    again = "discreet fit --data discreet-fit/twin.counts --model twin --out discreet-fit"
    assert again in " ".join(failed.stderr.split())
    Path("people.csv").unlink()
    done = run.invoke(app, [*again.split()[1:], "--components", "4"])
    assert done.exit_code == 0, done.output
    assert "twin.counts" in {path.name for path in Path("discreet-fit").iterdir()} <= set(FILES)
    content = json.loads((tmp_path / "discreet-fit" / "statement.json").read_text())
    assert content["method"] == "noisy counts"
    assert content["epsilon"] <= 1
    assert 500 not in content["plan"].values()
    done = run.invoke(app, ["synth", "discreet-fit", "--out", "twins"])
    assert done.exit_code == 0, done.output
    about = json.loads((tmp_path / "twins" / "twins.json").read_text())
    assert "too narrow" in about["how_to_combine"]
    assert 300 < about["rows"] < 700
    # Elsewhere, to the same twin; nothing that was chosen for the release can be chosen again.
    elsewhere = [*again.split()[1:-1], "other", "--components", "4"]
    refused = run.invoke(app, [*elsewhere, "--epsilon", "2"])
    assert "were paid for" in refused.stderr
    done = run.invoke(app, elsewhere)
    assert done.exit_code == 0, done.output
    first, second = (read_fitted(Path(x)).result for x in ("discreet-fit", "other"))
    assert first.statement == second.statement
    np.testing.assert_array_equal(first.latents["base"], second.latents["base"])
    assert len(dp.Ledger("people.ledger").entries) == 2


def test_counts_are_saved_and_read(tmp_path) -> None:
    plan = MarginalsPlan.calibrate(SCHEMA, epsilon=1.0, delta=1e-6, tables=[("odd", "place"), ("age",)])
    released = private_marginals(dp.random.key(), people(500), plan)
    read = load_marginals(released.save(tmp_path / "some.counts"))
    assert read.plan == plan
    assert read.statement == released.statement
    np.testing.assert_array_equal(read.table("place", "odd"), released.table("place", "odd"))
    dataclasses.replace(released, counts=released.counts[1:]).save(tmp_path / "some.counts")
    with pytest.raises(ValueError, match="is damaged"):
        load_marginals(tmp_path / "some.counts")


def test_where_counts_suffice() -> None:
    columns = [column(f"{i}", "no", "yes") for i in range(26)]
    assert counts_suffice(SCHEMA)
    assert counts_suffice(Schema(columns=tuple(columns[:25])))
    assert not counts_suffice(Schema(columns=tuple(columns)))
    assert not counts_suffice(Schema(columns=(column("place", *map(str, range(1001))),)))
    assert not counts_suffice(dataclasses.replace(SCHEMA, person="id", max_rows=2))
