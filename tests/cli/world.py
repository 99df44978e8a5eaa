"""All that the commands read, in one folder, and for each command words that do something quickly. Fits are made up."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import discreet as dp
from discreet import audit, inference, planning
from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._terminal import settings
from discreet.privacy.report import make_statement
from discreet.tabular.criticism._check import CheckedFigure
from discreet.tabular.tables import schema_from_toml

from .fits import PLAN, fitted, made_up_result

RUN = CliRunner()
assert audit  # loaded before `enter` replaces DPSVI
SCHEMA = """\
target = "smoker"
[columns.age]
kind = "real"
bounds = [0, 120]
[columns.smoker]
kind = "binary"
categories = ["no", "yes"]
"""
TABLE = "age,smoker\n" + "".join(f"{20 + i},{'yes' if i % 3 else 'no'}\n" for i in range(30))
STEP = """\
import discreet as dp, jax, jax.numpy as jnp
def certificate():
    return dp.certify(lambda x: jnp.float32(0), jax.ShapeDtypeStruct((3,), jnp.float32), records=0)
"""
FIT = "fit --data table.csv --schema schema.toml --model logistic --epsilon 1 --sampling full --steps 5 --delta 1e-5"
WORDS = {
    "demo": "demo --out demo",
    "describe": "describe table.csv --schema schema.toml --epsilon 1 --out described",
    "plan": "plan --schema schema.toml --model logistic --num-records 100 --epsilon 1 --plot new-plan.png",
    "convert": "convert table.csv --schema schema.toml --out records",
    "fit": f"{FIT} --out out",
    "resume": "resume saved",
    "synth": "synth twin --twins 1 --rows 3 --out twins",
    "report": "report twin --out report.html",
    "check": "check formula described --plot new-check.png",
    "score": "score logistic --data table.csv --epsilon 1 --delta 1e-5 --out scored",
    "predict": "predict logistic --data table.csv --out new-predictions.csv",
    "account": "account --num-records 100 --sampling full --steps 5 --noise-multiplier 9",
    "explain": "explain statement.json",
    "verify": "verify step.py --delta 1e-5",
    "audit": "audit --sampling full --steps 1 --noise-multiplier 1 --delta 1e-3 --runs 20",
    "schema init": "schema init table.csv --out new.toml",
    "schema check": "schema check schema.toml --data table.csv",
    "schema json": "schema json",
    "ledger open": "ledger open new.ledger --dataset survey --epsilon 3 --delta 1e-5",
    "ledger show": "ledger show survey.ledger",
    "ledger verify": "ledger verify survey.ledger",
    "ledger cap": "ledger cap survey.ledger --epsilon 2 --delta 1e-5",
}


def contexts(command: Any, parent: Any = None, name: str = "discreet") -> Iterator[Any]:
    """The context of a command and of all below it, in the order of the help."""
    context = typer.Context(command, info_name=name, parent=parent)
    yield context
    for below, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from contexts(child, context, below)


def commands() -> dict[str, typer.Context]:
    """Every command that does something, by its words."""
    every = contexts(typer.main.get_command(app))
    return {
        x.command_path.removeprefix("discreet "): x
        for x in every
        if not hasattr(x.command, "commands")
    }


def make(folder: Path) -> Path:
    """The folder."""
    files = {
        "table.csv": TABLE,
        "schema.toml": SCHEMA,
        "step.py": STEP,
        "mine.py": "def model(x, y=None): ...\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "statement.json").write_text(statement().to_json())
    dp.Ledger.create(folder / "survey.ledger", dataset="survey", epsilon=3.0, delta=1e-5)
    fitted(folder / "twin", schema_from_toml(folder / "schema.toml"))
    checkable(folder)
    (folder / "saved").mkdir(mode=0o700)
    (folder / "logistic").mkdir()
    np.savez(folder / "logistic" / "posterior.npz", weights=np.ones((4, 1)), intercept=np.zeros(4))
    (folder / "logistic" / "summary.json").write_text(
        json.dumps({"model": "logistic", "schema": SCHEMA})
    )
    return folder


def checkable(folder: Path) -> None:
    """A fit by a formula and the counts of its table, with made-up numbers."""
    schema = schema_from_toml(folder / "schema.toml")
    design = dp.formulas.Design("smoker ~ age", schema, "bernoulli")
    plan = dp.formulas.plan_of(
        design, epsilon=1.0, delta=1e-5, num_records=30, relation=dp.Relation.ADD_OR_REMOVE_ONE
    )
    draws = {"Intercept": np.linspace(-1, 1, 100), "age": np.linspace(-0.01, 0.01, 100)}
    told = {
        "draws": draws,
        "predictive": draws,
        "learned": dict.fromkeys(draws, 0.5),
        "constants": {},
        "plan": plan,
    }
    stated = plan.state(reproducible=False)
    fit = dp.formulas.Regression(
        formula="smoker ~ age", family="bernoulli", schema=schema, statement=stated, **told
    )
    counted = dp.marginals.description_plan(
        schema, epsilon=1.0, delta=1e-5, pairs="all", slices=4, quantiles=()
    )
    counts = np.full(sum(counted.cells), 30.0)
    sums = np.zeros(2 * sum(counted.sum_cells))
    released = dp.marginals.Marginals(counted, counts, counted.state(reproducible=False), sums)
    for name, result, file in (
        ("formula", fit, "fit.discreet"),
        ("described", released, "twin.counts"),
    ):
        (folder / name).mkdir()
        result.save(folder / name / file)


def statement(plan: dp.PrivacyPlan = PLAN) -> dp.Statement:
    """Make up a statement that a fit could have made."""
    return make_statement(plan, steps_completed=plan.num_steps, reproducible=False)


def enter(there: Path, here: Path, patch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder to work in, with fits and dry runs that are made up."""
    shutil.copytree(there, here, dirs_exist_ok=True)
    (here / "saved").chmod(0o700)
    kept = {"arguments": f"{FIT} --out resumed --checkpoint saved".split(), "folder": str(here)}
    (here / "saved" / "command.json").write_text(json.dumps(kept))
    patch.chdir(here)
    patch.setattr(inference, "DPSVI", MadeUp)
    patch.setattr(planning, "dry_run", dry_run)
    patch.setattr(dp, "check", check)
    patch.setattr(settings, "arguments", None)
    patch.setattr(settings, "debug", False)
    patch.setattr(settings, "continue_with", None)
    return here


class MadeUp:
    """Takes the place of `DPSVI`."""

    def __init__(self, model, guide, optim, *, plan, placeholder) -> None:
        del guide, optim, placeholder
        self.model, self.plan = model, plan

    def run(
        self,
        key,
        *arrays,
        progress_bar,
        ledger,
        checkpoint,
        mesh,
        person=None,
        max_rows=1,
        keep_gradients=False,
    ):
        del key, progress_bar, ledger, checkpoint, mesh, person, max_rows, keep_gradients
        if len(arrays) == 1:
            return made_up_result(self.model.__self__, self.plan)
        drawn = {"intercept": np.zeros(4), "weights": np.zeros((4, arrays[0].shape[1]))}
        return SimpleNamespace(
            statement=statement(self.plan),
            plan=self.plan,
            losses=np.zeros(3),
            steps_completed=self.plan.num_steps,
            params=drawn,
            posterior=lambda key, number: drawn,
        )


def dry_run(model, about, *, num_records: int, epsilon: float, **options) -> planning.DryRun:
    """The dry run itself replaced, which takes a minute."""
    del model, about, options
    plan = dp.PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=1e-5,
        sampling=dp.PoissonSampling(rate=1.0),
        clipping_norm=1.0,
        num_steps=10,
        num_records=num_records,
    )
    row = planning.DryRunRow(epsilon, 1.0, 1.0, 0.9, 0.8, 0.8, "for prediction")
    return planning.DryRun("Made up", "AUC", plan, epsilon, 1e-5, num_records, (row,))


def check(result: Any, counts: Any, *, level: float, num_replicates: int) -> dp.criticism.Check:
    """The check itself replaced, which takes seconds."""
    del num_replicates
    figure = CheckedFigure("share of yes", "", 0.6, 0.5, (0.4, 0.7), 0.3)
    target = counts.plan.schema.target_column
    stated = result.statement, counts.statement
    return dp.criticism.Check(
        target, (figure,), 0.3, level, np.full((3, 2), 0.5), ("no", "yes"), 1.4, 1e-5, stated
    )
