"""Pairs of a wide table that are chosen and counted: what is proved, paid and kept, and that the right ones are chosen."""

import itertools
import math
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import mechanisms, query as query_file
from discreet.interfaces.cli._app import app
from discreet.methods.audit import Verdict
from discreet.methods.audit._audits import verdict_of
from discreet.privacy.accounting import BoundedRangeDpEvent, profile
from discreet.privacy.act import Act
from discreet.tabular.marginals import (
    Marginals,
    MarginalsPlan,
    _plan,
    _programs,
    _result,
    fit_twins,
    private_marginals,
)
from discreet.tabular.marginals._twins import UNCHOSEN, CountMatrices, Refit
from discreet.tabular.tables import Column, Kind, Schema, schema_to_toml

pytestmark = pytest.mark.usefixtures("quick_compilation")

ADD, REPLACE = dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE
NAMES = ("a", "b", "c", "long", "longer")
SCHEMA = Schema(
    columns=(
        *(
            Column(name=name, kind=Kind.CATEGORICAL, categories=("x", "y", "z"))
            for name in NAMES[:3]
        ),
        *(Column(name=name, kind=Kind.REAL, bounds=(0, 1)) for name in NAMES[3:]),
    )
)


def people(rows: int = 2000, share: float = 0.5) -> dict[str, np.ndarray]:
    """`b` follows `a`; the numbers follow nothing, and have many cells together."""
    rng = np.random.default_rng(0)
    a, c = (rng.choice(["x", "y", "z"], rows) for _ in range(2))
    b = np.where(rng.random(rows) < share, a, rng.choice(["x", "y", "z"], rows))
    return {"a": a, "b": b, "c": c, "long": rng.random(rows), "longer": rng.random(rows)}


def plan_for(**options) -> MarginalsPlan:
    one = [(name,) for name in NAMES]
    goal = {"epsilon": 1.0, "delta": 1e-6, "tables": one, "choices": 2, "slices": 24}
    return MarginalsPlan.calibrate(SCHEMA, **goal | options)


@pytest.fixture
def short(monkeypatch) -> None:
    monkeypatch.setattr("discreet.tabular.marginals._twins.CHOICE_STEPS", (60, 20))


@pytest.mark.essential
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_a_tenth_is_for_choices_and_stronger_claims_are_refused(relation, monkeypatch) -> None:
    """Stronger claims are refused; tests/test_act.py has what its programs are together."""
    plan = plan_for(relation=relation)
    key = dp.random.key()
    together, chosen = plan.event().events
    assert chosen.event == BoundedRangeDpEvent(plan.choice_epsilon)
    assert chosen.count == plan.choices == 2
    # A tenth of the budget, in squared distances of Gaussians, is for the choices.
    width = plan.choice_epsilon * (2 if relation is REPLACE else 1)
    apart = (2 if relation is REPLACE else 1) / together.noise_multiplier
    assert plan.choices * width**2 / 4 == pytest.approx(apart**2 / 9)
    monkeypatch.setattr(query_file, "_certified", query_file._certified.__wrapped__)
    true = query_file.exponential_mechanism
    with monkeypatch.context() as fault:
        fault.setattr(
            query_file, "exponential_mechanism", lambda k, s, epsilon: true(k, s, 1.01 * epsilon)
        )
        with pytest.raises(dp.PrivacyError):
            plan.choosing(key)
    count = _programs.count_cells
    with monkeypatch.context() as fault:
        fault.setattr(
            _programs,
            "count_cells",
            lambda x, m, s, t, w, c: count(x, m, s, t, [2 * i for i in w], c),
        )
        with pytest.raises(dp.PrivacyError):
            plan.choosing(key)


@pytest.mark.usefixtures("short")
def test_the_dependent_pair_is_chosen_and_counted_and_none_is_twice(tmp_path) -> None:
    kept, ledger = [], dp.Ledger.create(tmp_path / "l", dataset="people", epsilon=1.0, delta=1e-5)
    plan = plan_for()
    found = private_marginals(dp.random.key(), people(), plan, ledger=ledger, keep=kept.append)
    assert found.plan.tables[5] == ("a", "b")
    assert len({frozenset(table) for table in found.plan.tables}) == 7
    assert (len(found.counts), found.plan.open, found.plan.event()) == (
        sum(found.plan.cells),
        0,
        plan.event(),
    )
    table = people()
    for one, other in found.plan.tables[5:]:
        levels = found.plan.levels.encode(table)
        places = [NAMES.index(one), NAMES.index(other)]
        exact = np.zeros([found.plan.levels.sizes[place] for place in places])
        np.add.at(exact, tuple(levels[:, places].T), 1)
        noise = (found.table(one, other) - exact) / plan.noise
        # False alarm below 1e-4: a mean square of that many normals.
        assert abs(np.mean(noise**2) - 1) < 5.5 * math.sqrt(2 / noise.size)
    assert len(ledger.debits) == 1
    assert "pairs of columns more, each chosen by the exponential mechanism" in " ".join(
        str(found.statement).split()
    )
    assert "5 releases were made" in " ".join(str(found.statement).split())
    # What was counted before the first choice, after it and after the second; each can be kept and
    # fitted.
    assert [len(part.plan.tables) for part in kept] == [5, 6, 7]
    read = Marginals.load(kept[1].save(tmp_path / "part.counts"))
    assert read.plan == kept[1].plan
    assert read.plan.open == 1
    # Pairs that were chosen by a release are no plan of another one.
    for done in (read.plan, found.plan):
        with pytest.raises(ValueError, match="pairs were chosen already"):
            private_marginals(dp.random.key(), people(), done, ledger=ledger)
    # Pairs that are in no table are named, since no interval of what relates them can be trusted.
    for part in kept:
        note = fit_twins(part, components=2, num_steps=2)[1].statement.notes[-1]
        named = {
            frozenset(pair.split(" × "))
            for pair in note.partition(": ")[2].partition(".")[0].split(", ")
        }
        assert named == {frozenset(x) for x in itertools.combinations(NAMES, 2)} - {
            frozenset(x) for x in part.plan.tables
        }
    with pytest.raises(ValueError, match="chosen already"):
        private_marginals(dp.random.key(), people(), found.plan)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("fault", [False, True])
def test_what_noise_alone_would_add_is_taken_from_the_scores(fault, monkeypatch) -> None:
    """A pair of many cells is far from any model, by chance; nothing is gained by counting it."""
    if fault:
        monkeypatch.setattr(_plan.math, "sqrt", lambda x: 0.0 if x == 2 / math.pi else x**0.5)
    plan = MarginalsPlan(
        schema=SCHEMA,
        tables=tuple((name,) for name in NAMES),
        weights=(1,) * 6,
        noise_multiplier=2.0,
        delta=1e-6,
        slices=40,
        choices=1,
        choice_epsilon=1.0,
    )
    found = private_marginals(dp.random.key(), people(share=0.25), plan)
    assert (found.plan.tables[-1] == ("a", "b")) != fault


def test_pairs_that_were_not_chosen_are_supposed_to_be_independent() -> None:
    plan = plan_for(slices=2, sums={})
    chosen = ("c", "a")
    now = _plan.dataclasses.replace(plan, tables=(*plan.tables, chosen))
    counts = np.concatenate([[100.0, 200.0, 300.0]] * 3 + [[300.0, 300.0]] * 2 + [np.arange(9.0)])
    found = CountMatrices.of(_result.Marginals(now, counts, plan.state(reproducible=True)))
    assert found.counts[0, 0, 3:6].tolist() == pytest.approx([100 / 6, 200 / 6, 300 / 6])
    assert found.stddev[0, 0, 3] == pytest.approx(UNCHOSEN * plan.noise)
    assert found.counts[0, 6:9, 0:3].reshape(-1).tolist() == list(range(9))
    assert found.stddev[0, 6, 0] == pytest.approx(plan.noise)
    assert not found.measured[0, 0:3, 6:9].any()
    refit = Refit(plan, components=2)
    assert refit._model.components == 2


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        ({"choices": 11}, "choose fewer"),
        ({"choices": -1}, "choices"),
        ({"choices": 6, "tables": list(itertools.combinations(NAMES, 2))[:5]}, "choose fewer"),
    ],
)
def test_more_choices_than_pairs_are_refused(options, needle) -> None:
    with pytest.raises(ValueError, match=needle):
        plan_for(**options)


def test_weights_of_pairs_to_be_chosen_are_one() -> None:
    plan = plan_for()
    for wrong in ({"weights": (1,) * 5 + (2, 1)}, {"choices": 1}, {"choice_epsilon": 0.0}):
        with pytest.raises(ValueError, match=r"weight of 1|choice_epsilon"):
            _plan.dataclasses.replace(plan, **wrong)


# --- sixty columns in the shell -----------------------------------------------------------------


def wide(columns: int, rows: int = 1500) -> tuple[dict[str, np.ndarray], Schema]:
    """A chain of columns with two or three levels, and every tenth a number; the target is the last."""
    rng, data, described, hidden = np.random.default_rng(1), {}, [], np.zeros(rows)
    for place in range(columns):
        hidden = 0.8 * hidden + 0.6 * rng.standard_normal(rows)
        name, words = f"x{place}", ("low", "high") if place % 3 == 0 else ("low", "middle", "high")
        if place % 10 == 5:
            data[name] = np.clip(np.floor(4 + 2 * hidden), 0, 9)
            described.append(Column(name=name, kind=Kind.COUNT, bounds=(0, 9)))
            continue
        cuts = [0.0] if len(words) == 2 else [-0.5, 0.5]
        data[name] = np.array(words)[np.searchsorted(cuts, hidden)]
        kind = Kind.BINARY if len(words) == 2 else Kind.CATEGORICAL
        described.append(Column(name=name, kind=kind, categories=words))
    return data, Schema(columns=tuple(described), target="x9")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("columns", [10, pytest.param(60, marks=pytest.mark.exhaustive)])
def test_a_table_of_sixty_columns_in_the_shell(columns, tmp_path, monkeypatch) -> None:
    """Described, fitted by all pairs, by choices, and again after a fit that was broken off between choices; twins are drawn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(fit_twins.__kwdefaults__, "num_steps", 20)
    data, schema = wide(columns)
    pyarrow.csv.write_csv(pyarrow.table(data), "wide.csv")
    (tmp_path / "schema.toml").write_text(schema_to_toml(schema))
    run, given = (
        CliRunner(),
        ["wide.csv", "--schema", "schema.toml", "--epsilon", "1", "--delta", "1e-6"],
    )
    words = ["fit", "--model", "twin", "--data", *given, "--components", "4"]
    if columns > 25:
        described = run.invoke(app, ["describe", *given])
        assert described.exit_code == 0, described.stderr
        next_step = "discreet fit --model twin --data discreet-description/twin.counts --out twin"
        assert f"Next: {next_step} makes twins" in " ".join(described.stdout.split())
        done = run.invoke(app, [*words, "--out", "all"])
        assert done.exit_code == 0, done.stderr
        assert len(Marginals.load("all/twin.counts").plan.tables) == columns + math.comb(columns, 2)
    with monkeypatch.context() as broken:
        true = Refit.__call__
        calls = []
        broken.setattr(
            Refit,
            "__call__",
            lambda *args: calls.append(1) or (true(*args) if len(calls) < 3 else 1 / 0),
        )
        failed = run.invoke(app, [*words, "--choices", "4", "--out", "chosen"])
    assert failed.exit_code == 1
    assert "chosen/twin.counts" in failed.stderr
    part = Marginals.load("chosen/twin.counts")
    assert len(part.plan.tables) == 2 * columns - 1 + 2
    again = [
        "fit",
        "--model",
        "twin",
        "--data",
        "chosen/twin.counts",
        "--components",
        "4",
        "--out",
        "again",
    ]
    assert run.invoke(app, again).exit_code == 0
    drawn = run.invoke(app, ["synth", "again", "--twins", "1", "--out", "twins"])
    assert drawn.exit_code == 0, drawn.stderr
    twin = pyarrow.csv.read_csv("twins/twin-1.csv")
    assert twin.column_names == [column.name for column in schema.columns]
    whole = run.invoke(app, [*words, "--choices", "2", "--out", "whole"])
    assert whole.exit_code == 0, whole.stderr
    assert "left out of the counts" in Path("whole/statement.txt").read_text()
    for wrong in (["--by", "svi"], ["--steps", "3"]):
        assert run.invoke(app, [*words, "--choices", "4", *wrong, "--out", "no"]).exit_code == 2


# --- the whole loop is audited -------------------------------------------------------------

BITS = tuple(
    Column(name=f"bit{place}", kind=Kind.BINARY, categories=("no", "yes")) for place in range(9)
)
LOOP_DELTA = 1e-3


def loop_plan(choice_epsilon: float, choices: int = 12) -> MarginalsPlan:
    return MarginalsPlan(
        schema=Schema(columns=BITS),
        tables=tuple((column.name,) for column in BITS),
        weights=(1,) * (len(BITS) + choices),
        noise_multiplier=6.0,
        delta=LOOP_DELTA,
        choices=choices,
        choice_epsilon=choice_epsilon,
    )


class Adversary:
    """In the place of the model: a record takes every third candidate away from what is expected, the others nearer."""

    def __init__(self, plan: MarginalsPlan) -> None:
        del plan

    def __call__(self, released, pairs):
        del released
        return np.concatenate(
            [[1, 0, 0, 1] if place % 3 else [0, 0, 0, 2] for place in range(len(pairs))]
        )


def audited(plan: MarginalsPlan, runs: int, monkeypatch) -> list[Verdict]:
    """Audit the plan, and one with a single choice, by many runs of `private_marginals` with a record and without.

    The attacker sees the counts of the record's cells, and which candidates were chosen.
    The programs are proved once for all runs; nothing else of the loop is replaced.
    """
    candidates, own = list(plan.candidates.tables), len(plan.tables)

    def released(table, seed) -> list[float]:
        found = private_marginals(dp.random.key(seed), table, plan, non_private_seed=True)
        counts = [found.table(*names).ravel()[0] for names in found.plan.tables]
        thirds = sum((candidates.index(names) - own) % 3 == 0 for names in found.plan.tables[own:])
        return [sum(counts[:own]), sum(counts[own:]), thirds]

    with monkeypatch.context() as quick:
        quick.setattr("discreet.tabular.marginals._twins.Refit", Adversary)
        # A fault that is planted in a mechanism is in programs that are made from then on.
        quick.setattr(query_file, "_certified", query_file._certified.__wrapped__)
        key = dp.random.key(0)
        known = {"certificate": plan.certificate(key, 8), "choosing": plan.choosing(key, 8)}
        for name, value in {**known, "state": plan.state(reproducible=True)}.items():
            quick.setattr(MarginalsPlan, name, lambda *_, value=value, **__: value)
        sides = ({column.name: cells for column in BITS} for cells in (["no", "yes"], ["yes"]))
        sides = zip(sides, (0, runs), strict=True)
        both = [
            np.array([released(table, 10**6 + first + run) for run in range(runs)])
            for table, first in sides
        ]
    together, choices = plan.event().events
    once = _plan.ComposedDpEvent([together, choices.event])
    scores = {"chosen": lambda x: x[:, 2], "counts": lambda x: x[:, 1]}
    how = {
        "delta": LOOP_DELTA,
        "confidence": 0.99,
        "scores": scores,
        "relation": plan.relation,
        "target": "the loop",
    }
    return [
        verdict_of(*both, claim=profile(event, plan.relation), **how)
        for event in (plan.event(), once)
    ]


@pytest.mark.parametrize(
    "fault",
    [
        "chosen pairs have little noise",
        *(
            pytest.param(x, marks=pytest.mark.exhaustive)
            for x in ("choices are paid for once", "a record moves scores by 4")
        ),
    ],
)
def test_an_audit_of_the_whole_loop_finds_what_is_wrong_with_it(fault, monkeypatch) -> None:
    """And does not accuse the loop as it is, in the exhaustive cases; seeds are fixed."""
    plan, runs = loop_plan(0.2, choices=3), 100
    with monkeypatch.context() as planted:
        if fault == "chosen pairs have little noise":
            choosing = MarginalsPlan.choosing
            less = _plan.dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier / 50)
            wrong = lambda own, *rest: (choosing(own, *rest)[0], choosing(less, *rest)[1])  # noqa: E731
            planted.setattr(MarginalsPlan, "choosing", wrong)
            # Before it runs, the sum of the proofs is more than the plan.
            with pytest.raises(dp.PrivacyError, match="does more than was declared"):
                audited(plan, 1, planted)
            planted.setattr(Act, "prove", lambda *_, **__: None)
        elif fault == "choices are paid for once":
            plan, runs = loop_plan(1.5), 800
        else:
            plan, runs = loop_plan(0.4), 800
            true = mechanisms._integers.coins
            planted.setattr(mechanisms._integers, "coins", lambda epsilon: true(4 * epsilon))
        found, once = audited(plan, runs, planted)
    if fault == "choices are paid for once":
        assert once.contradicted
        assert not found.contradicted
    else:
        assert found.contradicted
