import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from discreet.interfaces.cli._app import app

RUN = CliRunner()
SCHEMA = """
target = "smoker"
[columns.age]
kind = "real"
bounds = [0, 100]
[columns.smoker]
kind = "binary"
categories = ["no", "yes"]
"""
WRONG = [
    ({"schema": "absent.toml"}, "absent.toml cannot be read"),
    ({"twin": "absent.csv"}, "absent.csv"),
    ({"twin": "odd.csv"}, "odd.csv: column 'smoker' has values outside its public categories"),
    ({"real": "absent.csv"}, "the evaluation rows: "),
    ({"target": "income"}, "the target 'income' is not described"),
    ({"plot": "marginals.txt"}, "give it the ending"),
    ({"plot": "absent/marginals.png"}, "the folder absent does not exist"),
]


@pytest.fixture
def files(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("schema.toml").write_text(SCHEMA)
    Path("odd.csv").write_text("age,smoker\n20,secretcell\n")
    for seed, name in enumerate(("real.csv", "twin-1.csv", "twin-2.parquet")):
        rng = np.random.default_rng(seed)
        age = rng.uniform(0, 100, 60)
        table = pyarrow.table(
            {"age": age, "smoker": np.where(age + rng.normal(0, 20, 60) > 50, "yes", "no")}
        )
        (pyarrow.csv.write_csv if name.endswith("csv") else pyarrow.parquet.write_table)(
            table, name
        )


def words(twin="twin-1.csv", real="real.csv", schema="schema.toml", **options: str) -> list[str]:
    more = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [
        "utility",
        twin,
        "twin-2.parquet",
        "--evaluation-non-private",
        real,
        "--schema",
        schema,
        *more,
    ]


def test_a_page_a_picture_and_json(files) -> None:
    outcome = RUN.invoke(app, words(plot="marginals.png"))
    assert outcome.exit_code == 0, outcome.stderr
    assert "NOT PRIVATE" in outcome.stdout.splitlines()[0]
    assert "NOT PRIVATE: the report contains exact figures" in outcome.stderr
    assert Path("marginals.png").stat().st_size > 1_000
    outcome = RUN.invoke(app, [*words(), "--training-non-private", "real.csv", "--json"])
    content = json.loads(outcome.stdout)
    assert content["is_private"] is False
    assert (len(content["twins"]), len(content["training"]), content["evaluation_rows"]) == (
        2,
        1,
        60,
    )


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_wrong_input_is_refused_with_one_paragraph(files, changes, said) -> None:
    outcome = RUN.invoke(app, words(**changes))
    assert outcome.exit_code == 2, outcome.output
    assert said in " ".join(outcome.stderr.split())
    assert "\n\n" not in outcome.stderr
    assert outcome.stdout == ""
    assert "secretcell" not in outcome.output


def test_the_real_rows_must_be_named_non_private(files) -> None:
    outcome = RUN.invoke(app, ["utility", "twin-1.csv", "--schema", "schema.toml"])
    assert outcome.exit_code == 2
    assert "--evaluation-non-private" in outcome.output
