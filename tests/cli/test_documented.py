"""The commands that README, docs and help texts print work as printed."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import audit, planning
from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._of_records import OfRecords
from discreet.interfaces.cli._steps import InSteps
from discreet.privacy.report import make_statement
from discreet.tabular.marginals import fit_twins
from discreet.tabular.tables import describe_features, encode, read_table, schema_from_toml

from .fits import made_up_result
from .world import check, dry_run

RUN = CliRunner()
ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "docs/command-line.md",
    "docs/choosing-epsilon.md",
    "docs/your-model.md",
    "docs/tables.md",
    "docs/migrating-from-twinify.md",
]
SURVEY = "age,visits,region,income,smoker\n20,3,north,100,no\n88,0,east,50000,yes\n"

# Without records it returns a row.
MINE = """
import jax.numpy as jnp, numpyro, numpyro.distributions as dist

def model(x=None, y=None):
    return jnp.append(numpyro.sample("weights", dist.Normal().expand([{width}]).to_event(1)), 1.0)

def guide(x=None, y=None):  # so that it is fitted in steps
    pass
"""


def printed_commands() -> list[str]:
    blocks = [
        block
        for page in PAGES
        for block in re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    ]
    text = "\n".join(blocks).replace("\\\n", " ")
    in_pages = [
        line.split("  #")[0].strip() for line in text.splitlines() if line.startswith("discreet ")
    ]
    in_help = [
        example
        for source in (ROOT / "src/discreet/interfaces/cli").glob("*.py")
        for example in re.findall(r"`(discreet \w+ --.*?)`", source.read_text())
    ]
    return sorted({*in_pages, *in_help})


@pytest.mark.parametrize(
    "command", [command for command in printed_commands() if " demo" not in command]
)
def test_a_printed_command_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def release(method):
        plan = method.plan
        if method.whole is not None:
            return made_up_result(method.whole, plan), None
        statement = make_statement(plan, steps_completed=plan.num_steps, reproducible=False)
        samples = {"weights": np.zeros((4, method.records.x.shape[1]))}
        if method.own is None:
            samples["intercept"] = np.zeros(4)
        result = SimpleNamespace(
            statement=statement, plan=plan, losses=np.zeros(3), steps_completed=plan.num_steps
        )
        result.posterior = lambda key, number: samples
        return result, None

    def audited(worst, **options):
        """The attack itself replaced, which takes ten seconds."""
        facts = {
            "target": "a plan",
            "confidence": options["confidence"],
            "relation": "REPLACE_ONE",
            "score": "direction",
        }
        claimed = worst.method.plan.epsilon(1e-3)
        return audit.Verdict(
            epsilon_lower=0.5, claimed_epsilon=claimed, delta=1e-3, runs=options["runs"], **facts
        )

    monkeypatch.setitem(fit_twins.__kwdefaults__, "num_steps", 3)
    monkeypatch.setattr(audit.WorstCase, "audit", audited)
    monkeypatch.setattr(InSteps, "release", release)
    # The survey has two rows.
    monkeypatch.setattr(OfRecords, "check_use", lambda _: None)
    monkeypatch.setattr(planning, "dry_run", dry_run)
    monkeypatch.setattr(dp, "check", check)
    monkeypatch.chdir(tmp_path)
    Path("survey.csv").write_text(SURVEY)
    Path("step.py").write_text(
        re.findall(r"```python\n(.*?)```", (ROOT / "docs/proofs.md").read_text(), re.DOTALL)[0]
    )
    toml = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/tables.md").read_text(), re.DOTALL)[0]
    Path("schema.toml").write_text(toml)
    Path("mine.py").write_text(
        MINE.format(width=len(describe_features(schema_from_toml("schema.toml"))))
    )
    if "visits.parquet" in command:
        command = command.replace("visits.parquet", "survey.csv")
    if "--data survey.records" in command:
        RUN.invoke(app, shlex.split("convert survey.csv --schema schema.toml --out survey.records"))
    if command.startswith(("discreet score", "discreet predict")):
        Path("new.csv" if "predict" in command else "held-out.csv").write_text(SURVEY)
    if "statement.json" in command or command.startswith(("discreet score", "discreet predict")):
        RUN.invoke(
            app,
            shlex.split(
                "fit --data survey.csv --model linear --target age --schema schema.toml --epsilon 1"
            ),
        )
    if command.startswith(("discreet synth", "discreet report")):
        model = "mine.py:model" if "mine.py" in command else "twin"
        fit = f"fit --data survey.csv --model {model} --schema schema.toml --epsilon 1 --delta 1e-5"
        assert RUN.invoke(app, shlex.split(fit)).exit_code == 0
        # The survey's two rows make twins as short.
        command = re.sub("--rows [0-9]+", "--rows 20", command)
    if command.startswith("discreet report"):
        dp.Ledger.create("survey.ledger", dataset="survey", epsilon=3.0, delta=1e-5)
        RUN.invoke(app, shlex.split("synth discreet-fit --twins 2 --rows 20 --out twins"))
    if command.startswith("discreet check"):
        how = "--schema schema.toml --epsilon 1 --delta 1e-5"
        RUN.invoke(
            app, shlex.split(f"describe survey.csv {how} --all-pairs --slices 4 --out described")
        )
        RUN.invoke(
            app,
            shlex.split(f"fit --data survey.csv {how} --formula 'smoker ~ age' --family bernoulli"),
        )
    if "--private-bounds" in command:
        header, *rows = SURVEY.splitlines(keepends=True)
        Path("survey.csv").write_text(header + "".join(rows) * 3000)
    outcome = RUN.invoke(app, shlex.split(command)[1:])
    assert outcome.exit_code == 0, outcome.stderr


def test_there_are_commands_to_try() -> None:
    assert {command.split()[1] for command in printed_commands()} == {
        "demo",
        "schema",
        "describe",
        "plan",
        "convert",
        "fit",
        "synth",
        "report",
        "check",
        "score",
        "predict",
        "account",
        "explain",
        "verify",
        "audit",
    }


def test_the_schema_of_the_docs_reads_a_table(tmp_path: Path) -> None:
    (tmp_path / "survey.csv").write_text(SURVEY + "?,1,?,0,no\n")
    page = (ROOT / "docs/tables.md").read_text()
    (tmp_path / "schema.toml").write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    schema = schema_from_toml(tmp_path / "schema.toml")
    with pytest.raises(ValueError, match="'age' has missing cells"):
        encode(read_table(tmp_path / "survey.csv", schema), schema)
    (tmp_path / "survey.csv").write_text(SURVEY + "30,1,?,0,no\n")
    records = encode(read_table(tmp_path / "survey.csv", schema), schema)
    assert records.feature_names[-1] == "region is missing"
    np.testing.assert_array_equal(records.x[:, -1], [0, 0, 1])


def test_the_further_kinds_and_the_python_of_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/tables.md").read_text()
    first, further = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("schema.toml").write_text(further)
    schema = schema_from_toml("schema.toml")
    assert schema.person == "patient"
    assert schema.describe()[1:] == (
        "born (date): 1900-01-01 to 2020-12-31",
        "height (real): 100 to 220 cm",
    )
    Path("schema.toml").write_text(first)
    Path("survey.csv").write_text(SURVEY)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    assert names["records"].x.shape == (2, 6)
