"""Twins of a model of one's own: twinify's contract from a table to files, and each wrong input where it is refused."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._options import choose_model
from discreet.interfaces.cli._own_model import choose, read_own_fit
from discreet.interfaces.cli._report import npz
from discreet.privacy.report import make_statement
from discreet.tabular.synthetic import synthesize
from discreet.tabular.tables import (
    decode,
    read_table,
    schema_from_bounds,
    schema_from_dict,
    schema_from_toml,
)

from .fits import PLAN

pytestmark = pytest.mark.usefixtures("quick_compilation")
SCHEMA = schema_from_dict(
    {
        "columns": {
            "level": {"kind": "real", "bounds": [0, 20], "missing": "indicator"},
            "visits": {"kind": "count", "bounds": [0, 30]},
            "virus": {"kind": "binary", "categories": ["no", "detected"], "missing": "indicator"},
        }
    }
)
TOML = """
[columns.level]
kind = "real"
bounds = [0, 20]
missing = "indicator"

[columns.visits]
kind = "count"
bounds = [0, 30]

[columns.virus]
kind = "binary"
categories = ["no", "detected"]
missing = "indicator"
"""
# As twinify's example: a factory with arguments of its own, a guide by name, a table brought to
# numbers and back, and a distribution of cells that may be missing.
PROGRAM = '''
import argparse
import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
from jax.random import split
from numpyro.infer.autoguide import AutoNormal

class OrMissing(dist.Distribution):
    """A distribution whose draws are NaN with some probability."""
    support = dist.constraints.real
    def __init__(self, base, missing):
        self.base, self.missing = base, missing
        super().__init__(base.batch_shape, base.event_shape)
    def sample(self, key, sample_shape=()):
        first, second = split(key)
        gone = dist.Bernoulli(self.missing).sample(first, sample_shape + self.batch_shape)
        return jnp.where(gone == 1, jnp.nan, self.base.sample(second, sample_shape))
    def log_prob(self, value):
        there = jnp.log1p(-self.missing) + self.base.log_prob(jnp.nan_to_num(value))
        return jnp.where(jnp.isnan(value), jnp.log(self.missing), there)

def preprocess(frame):
    frame = frame[["level", "virus"]].copy()
    frame["virus"] = frame["virus"].map({"detected": 1.0, "no": 0.0})
    return frame

def postprocess(frame):
    frame["virus"] = frame["virus"].map({1.0: "detected", 0.0: "no"})
    frame["visits"] = 3
    return frame

def model_factory(arguments, words, schema):
    parser = argparse.ArgumentParser()
    parser.add_argument("--prior_mean", type=float)
    own = parser.parse_args(words, arguments)
    assert own.epsilon == 40 and len(schema.columns) == 3

    def model(x=None, num_obs_total=None):
        rows = 1 if x is None else x.shape[0]
        mean = numpyro.sample("mean", dist.Normal(own.prior_mean, 5.0))
        logit = numpyro.sample("logit", dist.Normal(0.0, 2.0))
        gone = numpyro.sample("gone", dist.Beta(1.0, 1.0))
        level, virus = (None, None) if x is None else (x[:, 0], x[:, 1])
        with numpyro.plate("batch", num_obs_total or rows, rows):
            level = numpyro.sample("level", OrMissing(dist.Normal(mean, 2.0), gone), obs=level)
            virus = numpyro.sample("virus", OrMissing(dist.Normal(jax.nn.sigmoid(logit), 0.3), 0.1 + 0 * gone), obs=virus)
        return jnp.stack([level, jnp.where(virus > 0.5, 1.0, 0.0)], axis=1)

    return model, AutoNormal(model)
'''
FIT = "fit --data covid.csv --schema covid.toml --epsilon 40 --delta 1e-5 --sampling full --clip 2 --learning-rate 0.1"
MISSING, MEAN, VIRUS = 0.3, 8.0, 0.8


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    levels, visits, virus = (
        rng.normal(MEAN, 2.0, 800).clip(0, 20),
        rng.poisson(4, 800),
        rng.random(800) < VIRUS,
    )
    gone = rng.random(800) < MISSING
    rows = (
        f"{'' if gone[i] else f'{levels[i]:.2f}'},{visits[i]},{'detected' if virus[i] else 'no'}"
        for i in range(800)
    )
    (tmp_path / "covid.csv").write_text("\n".join(["level,visits,virus", *rows]) + "\n")
    (tmp_path / "covid.toml").write_text(TOML)
    return tmp_path


def run(words: str | list[str]):
    return CliRunner().invoke(app, words.split() if isinstance(words, str) else words)


def twin(path: Path):
    return read_table(path, schema_from_toml(path.parent / "twins.schema.toml")).to_pandas()


def test_from_a_table_to_twins_of_a_program_as_twinify_takes_it(folder: Path) -> None:
    (folder / "mine.py").write_text(PROGRAM)
    done = run([*f"{FIT} --model mine.py --steps 200 --model-args".split(), "--prior_mean 10"])
    assert done.exit_code == 0, done.output
    assert "Next: discreet synth discreet-fit --model mine.py" in " ".join(done.stdout.split())
    statement = json.loads((folder / "discreet-fit" / "statement.json").read_text())
    assert any(
        "preprocess of mine.py was called with each row by itself" in note
        for note in statement["notes"]
    )

    done = run("synth discreet-fit --model mine.py --m 1 --out twins")
    assert done.exit_code == 0, done.output
    about = json.loads((folder / "twins" / "twins.json").read_text())
    assert (about["twins"], about["rows"]) == (["twin-1.csv"], 800)
    assert about["statement"] == statement
    assert "cannot be combined" in about["how_to_combine"]
    drawn = twin(folder / "twins" / "twin-1.csv")
    assert drawn["level"].mean() == pytest.approx(MEAN, abs=0.7)
    assert drawn["level"].std() == pytest.approx(2.0, abs=0.3)
    assert drawn["level"].isna().mean() == pytest.approx(MISSING, abs=0.1)
    assert (drawn["virus"] == "detected").mean() == pytest.approx(VIRUS, abs=0.2)
    assert set(drawn["visits"]) == {3}

    (folder / "mine.py").write_text(PROGRAM + "\n# changed\n")
    done = run("synth discreet-fit --model mine.py --twins 2 --rows 50 --out others --json")
    assert done.exit_code == 0, done.output
    assert "was changed since the fit" in " ".join(done.stderr.split())
    first, second = (twin(folder / "others" / f"twin-{i}.csv") for i in (1, 2))
    assert len(first) == len(second) == 50
    assert not first.equals(second)


def test_a_misspelt_name_of_a_model() -> None:
    with pytest.raises(ValueError, match=r"did you mean logistic\?"):
        choose_model("logistik")


# A program and its posterior, which no fit has made.
ROWS = """
import jax.numpy as jnp, numpyro, numpyro.distributions as dist

def rows(x=None, y=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 1 if x is None else x.shape[0]):
        x = numpyro.sample("x", dist.Normal(mean, 0.0001).expand([1, 2]).to_event(1), obs=x)
        return {returned}

def draw_(latents, num_records, rng):
    import pandas
    return pandas.DataFrame({{"a": [latents["mean"]] * num_records, "b": 0.5}})
"""
BOUNDS = "a=-1:1,b=-1:1"


def prepared(
    tmp_path: Path, returned: str = "x", *, raw: bool = False, more: str = "", schema=None
):
    (tmp_path / "mine.py").write_text(ROWS.format(returned=returned) + more)
    return choose(f"{tmp_path / 'mine.py'}:rows").prepare(
        schema or schema_from_bounds(BOUNDS), raw=raw
    )


@pytest.mark.parametrize("returned", ["x", "(x[:, 0], x[:, 1])", "{'a': x[:, 0], 'b': x[:, 1]}"])
def test_the_row_may_be_an_array_a_tuple_or_a_dict(tmp_path: Path, returned: str) -> None:
    table = prepared(tmp_path, returned).draw(
        {"mean": np.float32(0.5)}, 7, np.random.default_rng(0)
    )
    np.testing.assert_allclose(table.to_pandas(), 0.5, atol=0.01)
    assert table.shape == (7, 2)


def test_the_target_is_the_last_cell_in_its_own_unit(tmp_path: Path) -> None:
    schema = schema_from_bounds("a=-1:1,b=0:10", target="b")
    table = prepared(tmp_path, schema=schema).draw(
        {"mean": np.float32(0.5)}, 3, np.random.default_rng(0)
    )
    np.testing.assert_allclose(table.to_pandas()["b"], 7.5, atol=0.01)


def test_a_draw_of_the_users_own(tmp_path: Path) -> None:
    table = prepared(tmp_path, more="\ndraw = draw_\n").draw(
        {"mean": -0.25}, 2, np.random.default_rng(0)
    )
    assert table.to_pylist() == [{"a": -0.25, "b": 0.5}] * 2


def test_rows_of_several_posterior_draws_come_from_one_call(tmp_path: Path) -> None:
    more = "\ncalls = []\ndef postprocess(frame):\n    calls.append(len(frame))\n    return frame\n"
    model = prepared(tmp_path, raw=True, more=more)
    draws = {"mean": np.linspace(-0.5, 0.5, 6, dtype=np.float32)}
    (table,) = synthesize(
        jax.random.key(0), draws, model, num_twins=1, num_records=6, rows_per_draw=1
    )
    np.testing.assert_allclose(table.to_pandas()["a"], draws["mean"], atol=0.01)
    assert model.own.module.calls == [6]


def test_a_program_that_fails_is_named_with_its_place(folder: Path) -> None:
    fails = (
        "def model(x):\n    mean = numpyro.sample('mean', dist.Normal(0, 1).expand([{}]))\n    {}\n"
    )
    row = "with numpyro.plate('r', x.shape[0]): numpyro.sample('x', dist.Normal(mean, 1).to_event(1), obs=x)"
    for body, message in (
        (
            fails.format(3, "no_such_name"),
            "mine.py fails at mine.py:4 (model) with NameError: name 'no_such_name' is",
        ),
        (fails.format(5, row), "mine.py fails with ValueError: Incompatible shapes"),
        (fails.format(3, "numpyro.factor('all', x.sum())"), "Refused: No record's loss"),
    ):
        (folder / "mine.py").write_text("import numpyro, numpyro.distributions as dist\n" + body)
        done = run(f"{FIT} --model mine.py --raw --steps 2")
        said = " ".join(done.stderr.split())
        assert (done.exit_code, message in said) == (2, True), said
        assert ("x has the columns level, visits, virus" in said) == ("mine.py fails" in message)


@pytest.mark.parametrize(
    ("returned", "raw", "more", "message"),
    [
        ("None", False, "", r"should return one row of 2 numbers \(a, b\) .* and returned nothing"),
        ("x[:, :1]", False, "", "returned 1 numbers"),
        ("'x'", False, "", "and returned str"),
        (
            "x * jnp.nan",
            True,
            "",
            "column 'a' has numbers that are not finite.* needs missing = \"indicator\"",
        ),
        (
            "x",
            True,
            "postprocess = lambda frame: frame.assign(c=1)",
            r"postprocess of .* returned columns a, b, c, and the schema has the columns a, b: let postprocess return",
        ),
        (
            "x",
            True,
            "postprocess = lambda frame: frame[['a']]",
            "returned columns a, and the schema has",
        ),
        ("x", True, "postprocess = lambda frame: frame['z']", "failed .*KeyError"),
        (
            "x",
            True,
            "postprocess = lambda frame: 3",
            "postprocess of .* returned int, and the schema",
        ),
    ],
)
def test_rows_that_are_none_of_the_table(
    tmp_path: Path, returned: str, raw: bool, more: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        prepared(tmp_path, returned, raw=raw, more=more).draw(
            {"mean": 0.5}, 2, np.random.default_rng(0)
        )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError(f'secret {frame.iloc[0, 0]}')", r"with ValueError\. It is called"),
        ("return 3", "with AttributeError"),
        ("return frame.iloc[[0, 0]]", "several rows for one"),
        ("return frame if frame.a[0] > 0 else frame[['a']]", "other columns for another row"),
        ("return frame[frame.a > 5]", "left no rows"),
    ],
)
def test_preprocess_sees_one_row_and_its_errors_quote_no_cell(
    tmp_path: Path, body: str, message: str
) -> None:
    model = prepared(tmp_path, more=f"\ndef preprocess(frame):\n    {body}\n")
    table = decode([[0.125, 0.25], [-0.125, 0.5]], model.schema, raw=True)
    with pytest.raises(ValueError, match=message) as caught:
        model.preprocessed(table)
    assert "0.125" not in str(caught.value)


def test_preprocess_cannot_look_at_other_rows(tmp_path: Path) -> None:
    """Centred by the mean of what it sees, each row is centred by itself; a dropped row is gone."""
    model = prepared(
        tmp_path,
        more="\ndef preprocess(frame):\n    return (frame - frame.mean())[frame.b < 0.9]\n",
    )
    records = model.preprocessed(
        decode([[0.1, 0.2], [0.5, 0.6], [0.0, 1.0]], model.schema, raw=True)
    )
    np.testing.assert_array_equal(records.x, np.zeros((2, 2), np.float32))
    assert records.feature_names == ("a", "b")


def test_what_is_no_fit_of_this_model(tmp_path: Path) -> None:
    model = prepared(tmp_path)
    name, folder = model.own.name, tmp_path / "fit"
    folder.mkdir()
    (folder / "model.json").write_text(model.settings_text())
    statement = make_statement(PLAN, steps_completed=4, reproducible=False)
    (folder / "statement.json").write_text(statement.to_json())
    draws = np.arange(3, dtype=np.float32)
    (folder / "posterior.npz").write_bytes(npz({"mean": draws}))
    fit = read_own_fit(folder, name)
    assert fit.statement == statement
    np.testing.assert_array_equal(
        np.sort(fit.posterior(jax.random.key(0), 6)["mean"]), np.repeat(draws, 2)
    )

    with pytest.raises(ValueError, match="name the model again"):
        read_own_fit(folder, None)
    refused = run(
        ["synth", str(folder), "--model", name, "--twins", "4", "--out", str(tmp_path / "twins")]
    )
    assert (refused.exit_code, "fit with more --draws" in " ".join(refused.stderr.split())) == (
        2,
        True,
    )
    for draws, message in (
        (
            {"sd": np.ones(3, np.float32)},
            "is not the model of this fit: the posterior has a latent sd",
        ),
        ({"mean": np.ones((3, 2), np.float32)}, r"latent mean of shape \(2,\), and the model \(\)"),
        ({"mean": np.full(3, np.nan, np.float32)}, "not finite"),
    ):
        (folder / "posterior.npz").write_bytes(npz(draws))
        with pytest.raises(ValueError, match=message):
            read_own_fit(folder, name)
    (folder / "posterior.npz").write_bytes(b"")
    with pytest.raises(ValueError, match="is damaged"):
        read_own_fit(folder, name)
    (tmp_path / "mine.py").write_text("def rows(x):\n    return x.shape\n")
    (folder / "posterior.npz").write_bytes(npz({"mean": np.ones(3, np.float32)}))
    with pytest.raises(
        ValueError, match=r"cannot be called without records.*one row and return it"
    ):
        read_own_fit(folder, name)


def test_a_factory_that_fails_or_makes_no_model(tmp_path: Path) -> None:
    for body, message in (
        ("raise RuntimeError('no')", "RuntimeError: no. It is called with"),
        ("return 3", "returned int: let it return a model"),
        ("return lambda x: x, 7", "returned function, int: let it return a model"),
    ):
        (tmp_path / "mine.py").write_text(
            f"def model_factory(arguments, words, schema):\n    {body}\n"
        )
        with pytest.raises(ValueError, match=message):
            choose(str(tmp_path / "mine.py")).prepare(SCHEMA)
