"""A model of one's own: it is told what its columns are, and can have them in their own units, with NaN, or by name."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._own_model import choose
from discreet.tabular.tables import encode, read_table, schema_from_toml

pytestmark = pytest.mark.usefixtures("quick_compilation")
RUN = CliRunner()
SCHEMA = """
[columns.leukocytes]
kind = "real"
bounds = [0, 20]
unit = "10^9/l"
missing = "indicator"

[columns.rhinovirus]
kind = "binary"
categories = ["no", "detected"]
missing = "indicator"
"""
# A table's model as people write it for twinify: columns by position, a missing cell is NaN.
MODEL = """
import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist

def model(x):
    missing = numpyro.sample("missing", dist.Beta(1.0, 1.0))
    mean = numpyro.sample("mean", dist.Normal(10.0, 5.0))
    logit = numpyro.sample("logit", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", x.shape[0]):
        absent = jnp.isnan(x[:, 0])
        numpyro.sample("is_missing", dist.Bernoulli(missing), obs=absent.astype(jnp.int32))
        level = dist.Normal(mean, 3.0).log_prob(jnp.nan_to_num(x[:, 0]))
        numpyro.factor("level", jnp.where(absent, 0.0, level))
        found = dist.Bernoulli(logits=logit).log_prob(jnp.nan_to_num(x[:, 1]))
        numpyro.factor("virus", jnp.where(jnp.isnan(x[:, 1]), 0.0, found))

def by_name(columns):
    return model(jnp.stack([columns["leukocytes"], columns["rhinovirus"]], axis=1))
"""
FIT = "fit --data covid.csv --schema covid.toml --epsilon 40 --delta 1e-5 --sampling full --clip 2 --learning-rate 0.1"
MISSING, MEAN, VIRUS = 0.3, 8.0, 0.8


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    levels, virus = rng.normal(MEAN, 3.0, 2000).clip(0, 20), rng.random(2000) < VIRUS
    gone = rng.random((2, 2000)) < [[MISSING], [0.1]]
    rows = (
        f"{'' if gone[0, i] else f'{levels[i]:.2f}'},{'' if gone[1, i] else 'detected' if virus[i] else 'no'}"
        for i in range(2000)
    )
    (tmp_path / "covid.csv").write_text("\n".join(["leukocytes,rhinovirus", *rows]) + "\n")
    (tmp_path / "covid.toml").write_text(SCHEMA)
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path


def run(words):
    return RUN.invoke(app, words.split())


@pytest.mark.parametrize(
    "function", ["model", pytest.param("by_name", marks=pytest.mark.exhaustive)]
)
def test_raw_columns_are_those_of_the_schema(folder, function):
    done = run(f"{FIT} --model mine.py:{function} --raw --steps 300")
    assert done.exit_code == 0, done.output
    posterior = json.loads((folder / "discreet-fit" / "summary.json").read_text())["posterior"]
    assert posterior["missing"]["mean"] == pytest.approx(MISSING, abs=0.05)
    # Not to the digit: the noise is another one each time, and what is asked is whose cells these
    # are.
    assert posterior["mean"]["mean"] == pytest.approx(MEAN, abs=1.5)
    # Taken from the second of the encoded columns, this would be the share of missing cells.
    assert 1 / (1 + np.exp(-posterior["logit"]["mean"])) == pytest.approx(VIRUS, abs=0.06)
    shown = done.stdout[: done.stdout.index("Fitted")]
    assert "0 to 20 10^9/l; NaN if missing" in shown
    assert "0 no, 1 detected; NaN if missing" in shown
    assert "in their own units" in " ".join(done.stdout.split())
    assert ("0: leukocytes" in shown) == (function == "model")
    assert ("'leukocytes': 0 to 20" in shown) == (function == "by_name")


def test_what_the_columns_of_x_are_is_printed_before_anything_is_spent(folder):
    done = run(f"{FIT} --model mine.py:model --dry-run")
    assert done.exit_code == 0
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[:5] == [
        "The model gets x. The columns of x, by position:",
        "0: leukocytes, 0 to 20 10^9/l, scaled to -1 to 1; 0 if missing",
        "1: leukocytes is missing, 1 if the cell is missing, else 0",
        "2: rhinovirus=detected, 1 if detected, else 0; 0 if missing",
        "3: rhinovirus is missing, 1 if the cell is missing, else 0",
    ]
    assert "With --raw" in done.stdout
    assert not (folder / "discreet-fit").exists()


def test_raw_is_for_models_of_ones_own(folder):
    done = run(f"{FIT} --model logistic --target rhinovirus --raw")
    assert done.exit_code == 2
    assert "--raw is for a model of your own" in " ".join(done.stderr.split())
    done = run("plan --schema covid.toml --model mine.py:by_name --num-records 100 --epsilon 1")
    assert done.exit_code == 2
    assert "dict of columns" in " ".join(done.stderr.split())


def test_raw_columns_hold_what_the_table_holds(folder):
    schema = schema_from_toml("covid.toml")
    (folder / "few.csv").write_text("leukocytes,rhinovirus\n7.5,detected\n,no\n20,\n")
    records = encode(read_table(folder / "few.csv", schema), schema, raw=True)
    assert records.feature_names == ("leukocytes", "rhinovirus")
    np.testing.assert_array_equal(records.x, np.float32([[7.5, 1], [np.nan, 0], [20, np.nan]]))


def test_a_model_that_is_a_partial_function(folder):
    """It has no name, and stopped the command with an AttributeError."""
    (folder / "mine.py").write_text(
        f"import functools\n{MODEL}\nmodel = functools.partial(model)\n"
    )
    chosen = choose(str(folder / "mine.py"))
    assert chosen.prepare(schema_from_toml(folder / "covid.toml")).function is chosen.function
