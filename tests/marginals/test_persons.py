"""Persons with several rows: what one of them adds, what is proved of it, which rows count, and that intervals hold."""

import dataclasses
import itertools
import json
import math
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pytest
from tests.marginals.invented import certificate, exact, noisy
from tests.marginals.test_describe import SHARES, figures, truth
from tests.marginals.test_release import measured as of_release

import discreet as dp
from discreet.methods.audit import audit_mechanism
from discreet.tabular.marginals import (
    Description,
    Marginals,
    MarginalsPlan,
    _describe as describe_file,
    _estimates as estimates,
    _exact,
    description_plan,
    private_marginals,
)
from discreet.tabular.tables import Column, Kind, Missing, Schema, rows_of_persons

ADD, REPLACE = dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE
KEY = bytes(range(32))
SCHEMA = Schema(
    columns=(
        Column(name="hours", kind=Kind.REAL, bounds=(0.0, 80.0), missing=Missing.INDICATOR),
        Column(name="visits", kind=Kind.COUNT, bounds=(0, 7)),
        Column(name="union", kind=Kind.BINARY, categories=("no", "yes")),
        Column(name="place", kind=Kind.CATEGORICAL, categories=("a", "b", "c")),
    ),
    person="who",
    max_rows=3,
)
SHAPE = {
    "tables": [("hours",), ("place",), ("place", "union")],
    "sums": {("hours",): 2, ("visits", "union"): 1},
}
SHAPE |= {"persons": {(): 2, ("place",): 3}, "weights": {"union": 2}}


def plan_for(schema=SCHEMA, **options) -> MarginalsPlan:
    return MarginalsPlan.calibrate(
        schema, **{"epsilon": 1.0, "delta": 1e-6, "slices": 4} | SHAPE | options
    )


def measured(table, plan: MarginalsPlan, last: int = 2) -> np.ndarray:
    return of_release(pyarrow.table(table), plan, last, KEY)


def rows_of(person: str, *rows) -> dict[str, list]:
    """A person's rows: hours, visits, union, place."""
    names = [column.name for column in SCHEMA.columns]
    return {name: [row[i] for row in rows] for i, name in enumerate(names)} | {
        "who": [person] * len(rows)
    }


def together(*parts) -> pyarrow.Table:
    names = [*(column.name for column in SCHEMA.columns), "who"]
    return pyarrow.table(
        {name: list(itertools.chain(*(part[name] for part in parts))) for name in names}
    )


OTHERS = (
    rows_of("ann", (9.0, 3, "no", "b"), (None, 0, "no", "c")),
    rows_of("bob", (80.0, 7, "yes", "a")),
)


def test_a_persons_rows_are_counted_and_each_person_once() -> None:
    """By hand: 4 rows of 3 persons, of whom one has four rows and three are kept."""
    plan = plan_for(SCHEMA, sums={("hours",): 2}, weights={})
    cid = rows_of(
        "cid",
        *[(40.0, 1, "no", "a"), (0.0, 1, "no", "a"), (80.0, 1, "no", "a"), (20.0, 1, "no", "b")],
    )
    table = together(*OTHERS, cid)
    kept = rows_of_persons(table["who"], 3, key=KEY)[2]
    used = table.take(pyarrow.array([0, 1, 2, *kept]))
    found = private_marginals(
        dp.random.key(0),
        table,
        dataclasses.replace(plan, noise_multiplier=1e-9),
        person_key=KEY,
        non_private_seed=True,
    )
    np.testing.assert_allclose(found.counts, exact(plan, used).counts, atol=1e-6)
    np.testing.assert_allclose(found.sums, exact(plan, used).sums, atol=1e-5)
    places = [{"c", "b"}, {"a"}, set(used["place"].to_pylist()[3:])]
    # Persons of whom all rows are kept, and others; then those with a row in a, b, c.
    expected = [2, 1, *(sum(own in x for x in places) for own in "abc")]
    np.testing.assert_allclose(found.persons, expected, atol=1e-6)


def forgotten(monkeypatch) -> None:
    """The noise is made for one row of a person."""
    monkeypatch.setattr(
        MarginalsPlan, "_of_tables", property(lambda self: math.hypot(*self.weights))
    )


def root_of_rows(monkeypatch) -> None:
    """As if the rows of a person were orthogonal, without anything that makes them so."""
    of_tables = property(lambda self: math.sqrt(self.max_rows) * math.hypot(*self.weights))
    monkeypatch.setattr(MarginalsPlan, "_of_tables", of_tables)


def all_rows(monkeypatch) -> None:
    """More rows of a person than are paid for."""
    chosen = _exact.rows_of_persons
    monkeypatch.setattr(
        _exact,
        "rows_of_persons",
        lambda people, most, *, key: chosen(people, most + 1, key=key),
    )
    monkeypatch.setattr(_exact.Measured, "_by_person", unbounded)


def unbounded(self, number, rows, values):
    """The rows of the last persons, however many."""
    own = dataclasses.replace(self._plan.schema, max_rows=4)
    self._plan = dataclasses.replace(self._plan, schema=own)
    return by_person(self, number, rows, values)


by_person = _exact.Measured._by_person


def persons_by_rows(monkeypatch) -> None:
    """A person counts as often as it has rows in a category."""
    unique = lambda codes: np.sort(codes)  # noqa: E731
    monkeypatch.setattr(_exact.np, "unique", unique)


WHOLE_PERSONS = [
    [row] * times
    for row in itertools.product([0.0, 80.0, 23.0, None], [0, 7], ["no", "yes"], ["a", "b"])
    for times in (1, 3, 5)
] + [[(0.0, 0, "no", "a"), (80.0, 7, "yes", "b"), (None, 7, "no", "c")]]


@pytest.mark.essential
@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("fault", [None, forgotten, root_of_rows, all_rows])
def test_no_person_is_farther_than_the_noise_is_made_for(relation, fault, monkeypatch) -> None:
    """Tables that differ by all rows of one person, wherever its rows stand; the worst attains the bound, but for `_ROOM`.

    The bound of counts of persons is apart from it, since who is in all categories is not in one
    alone.
    """
    if fault is not None:
        fault(monkeypatch)
    plan = plan_for(relation=relation, persons={(): 1}, sums={("hours",): 1})
    without = measured(together(*OTHERS), plan)
    found = [
        measured(together(OTHERS[0], rows_of("cid", *rows), OTHERS[1]), plan)
        for rows in WHOLE_PERSONS
    ]
    others = [without] if relation is ADD else found
    farthest = max(float(np.linalg.norm(one - other)) for one in found for other in others)
    assert (farthest > plan.moved) == (fault is not None), (farthest, plan.moved)
    assert farthest > (0.99 if relation is ADD else 0.97) * plan.moved


def test_counts_of_persons_move_by_no_more_than_their_share(monkeypatch) -> None:
    """One who has a row in each category attains it; who counts once for each row would exceed it."""
    plan = plan_for(persons={("place",): 5, (): 1}, sums={})
    few = [[(9.0, 0, "no", own) for own in "abc"], [(9.0, 0, "no", "a")] * 3]
    first = sum(plan.cells)

    def farthest() -> Any:
        without = measured(together(*OTHERS), plan)
        return max(
            np.linalg.norm((measured(together(*OTHERS, rows_of("c", *x)), plan) - without)[first:])
            for x in few
        )

    assert 0.999 * plan._norm < farthest() <= plan._norm
    persons_by_rows(monkeypatch)
    assert farthest() > plan._norm


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("shape", [{}, {"sums": {}, "persons": {}}])
def test_the_verifier_finds_the_event_and_refuses_a_forgotten_bound(
    relation, shape, monkeypatch
) -> None:
    plan = plan_for(relation=relation, **shape)
    event = certificate(plan).event
    multiplier = plan.noise / plan.moved * (1 if relation is ADD else 2)
    assert event.noise_multiplier == pytest.approx(multiplier, rel=1e-9)
    assert plan.epsilon() <= 1
    for fault in (forgotten, root_of_rows):
        with monkeypatch.context() as planted:
            fault(planted)
            wrong = dataclasses.replace(plan_for(relation=relation, **shape), slices=5)
            with pytest.raises(dp.PrivacyError):
                certificate(wrong)


@pytest.mark.parametrize("fault", [None, forgotten, root_of_rows])
def test_an_audit_of_whole_persons_catches_planted_faults(fault, monkeypatch) -> None:
    """False alarm: 1 %; the seed is fixed."""
    if fault is not None:
        fault(monkeypatch)
    plan = dataclasses.replace(
        plan_for(persons={(): 1}, sums={("hours",): 1}), noise_multiplier=1.0
    )
    alike = rows_of("cid", *[(80.0, 7, "yes", "a")] * 9)
    there, gone = (np.float32(measured(together(*OTHERS, *more), plan)) for more in ((alike,), ()))
    claim = dp.accounting.profile(plan.event(), ADD)

    def program(value):
        return lambda key: dp.gaussian_mechanism(key, value, plan.noise)

    verdict = audit_mechanism(
        program(there), program(gone), claim=claim, delta=1e-3, runs=4000, progress_bar=False
    )
    assert verdict.contradicted == (fault is not None), verdict


def test_where_rows_stand_and_pieces_end_makes_no_difference(monkeypatch) -> None:
    """But for the order of persons, which decides who is counted by the program itself."""
    rng = np.random.default_rng(0)
    rows = 600
    table = {
        "hours": rng.uniform(0, 80, rows),
        "visits": rng.integers(0, 8, rows),
        "union": rng.choice(["no", "yes"], rows),
        "place": rng.choice(["a", "b", "c"], rows),
        "who": np.repeat(np.arange(200), 3).astype(str),
    }
    table, plan = pyarrow.table(table), plan_for()
    expected = measured(table, plan)
    kept = exact(plan, table)
    np.testing.assert_allclose(
        expected[: sum(plan.cells)], kept.counts * np.repeat(plan.weights, plan.cells)
    )
    monkeypatch.setattr("discreet.tabular.tables._read.PIECE_ROWS", 70)
    monkeypatch.setattr(_exact, "_ROWS_AT_ONCE", 100)
    for last in (1, 7, 200, 500):
        np.testing.assert_allclose(
            measured(table.take(rng.permutation(rows)), plan, last), expected, atol=1e-9
        )


def visits(persons: int = 700) -> pyarrow.Table:
    """Persons with one to five rows, which are alike; their rows are scattered over the table."""
    rng = np.random.default_rng(5)
    number = rng.integers(1, 6, persons)
    who = np.repeat(np.arange(persons), number)
    usual = rng.uniform(20, 50, persons)[who]
    rows = len(who)
    hours = pyarrow.array(
        np.clip(usual + rng.normal(0, 4, rows), 0, 80), mask=rng.random(rows) < 0.1
    )
    table = {
        "hours": hours,
        "visits": rng.binomial(7, usual / 80),
        "union": np.where(rng.random(rows) < 0.3, "yes", "no"),
        "place": rng.choice(["a", "b", "c"], rows, p=[0.5, 0.4, 0.1]),
        "who": who.astype(str),
    }
    return pyarrow.table(table).take(rng.permutation(rows))


def kept(table: pyarrow.Table, key: bytes) -> pyarrow.Table:
    rows = rows_of_persons(table["who"], 3, key=key)
    return table.take(pyarrow.array(np.sort(rows[rows >= 0])))


def noise_of_one_row(monkeypatch) -> None:
    monkeypatch.setattr(MarginalsPlan, "drawn", property(lambda self: self.noise / self.max_rows))


def half_the_noise_of_persons(monkeypatch) -> None:
    persons_of = estimates.persons_of

    def wrong(released, by, z):
        return persons_of(released, by, z / 2)

    monkeypatch.setattr(describe_file, "persons_of", wrong)


@pytest.mark.parametrize("fault", [None, noise_of_one_row, half_the_noise_of_persons])
def test_intervals_hold_the_figures_of_the_rows_kept_and_of_persons(fault, monkeypatch) -> None:
    """30 releases of the same table, each with rows of its own choice: 95 % intervals."""
    if fault is not None:
        fault(monkeypatch)
    table = visits()
    people = truth_of_persons(table)
    plan = description_plan(
        SCHEMA, epsilon=2.0, delta=1e-6, by=["union"], pairs=[("union", "place")], slices=8
    )
    held: dict = {}
    for draw in range(30):
        key = bytes([draw]) * 32
        released = private_marginals(
            dp.random.key(draw), table, plan, person_key=key, non_private_seed=True
        )
        used = kept(table, key)
        found = Description.of(released, by=["union"], level=0.95, quantiles=SHARES)
        true = (
            truth(plan, used.drop(["who"]), ("union",))
            | people
            | {
                ("persons", group): len(
                    set(used.filter(pyarrow.compute.equal(used["union"], group))["who"].to_pylist())
                )
                for group in ("no", "yes")
            }
        )
        every = figures(found) | {"persons": found.num_persons, "cut": found.persons_cut}
        every |= {("persons", group.label): group.num_persons for group in found.groups}
        for name, x in every.items():
            inside = (x.low <= true[name] + 1e-9) & (true[name] - 1e-9 <= x.high)
            held.setdefault(name, []).append(np.mean(inside))
    of_persons = [
        x for name, x in held.items() if name in ("persons", "cut") or name[0] == "persons"
    ]
    of_rows = [
        x for name, x in held.items() if name not in ("persons", "cut") and name[0] != "persons"
    ]
    if fault is None:
        assert 0.93 < np.mean(of_rows) < 0.99
        assert np.mean(of_persons) > 0.9
    elif fault is noise_of_one_row:
        assert np.mean(of_rows) < 0.93
    else:
        assert np.mean(of_persons) < 0.85


def truth_of_persons(table: pyarrow.Table) -> dict:
    number = np.unique(table["who"].to_numpy(zero_copy_only=False), return_counts=True)[1]
    return {"persons": len(number), "cut": int((number > 3).sum())}


def test_text_and_json_say_that_figures_are_of_the_rows_kept() -> None:
    found = dp.describe(visits(), SCHEMA, epsilon=4.0, delta=1e-6, by="union", level=0.99999)
    shown = " ".join(str(found).split())
    facts = found.to_dict()
    for words in (
        "Rows: ",
        "Persons: ",
        "have more rows, which were left out",
        "Of each person at most 3 rows were counted, chosen by a secret order. All figures are of these rows",
    ):
        assert words in shown
    assert "at most 3 rows were counted" in facts["intervals"]
    assert facts["counted"] == "rows"
    assert facts["num_persons"]["low"] < 700 < facts["num_persons"]["high"]
    assert [group["num_persons"]["value"] > 0 for group in facts["groups"]] == [True, True]
    assert found.statement.unit == dp.report.Unit("who", 3)
    assert "Of each person at most 3 rows were used" in found.statement.mechanism
    json.dumps(facts, allow_nan=False)
    one = dp.describe(visits(), dataclasses.replace(SCHEMA, max_rows=1), epsilon=4.0, delta=1e-6)
    assert (one.num_persons, one.to_dict()["counted"]) == (None, "persons")


@pytest.mark.parametrize("wrong", [("hours",), ("union", "union"), ("height",)])
def test_wrong_tables_of_persons_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="persons has"):
        plan_for(persons={wrong: 1})


def test_persons_are_not_counted_apart_where_each_has_one_row() -> None:
    with pytest.raises(ValueError, match="max_rows is above 1"):
        plan_for(dataclasses.replace(SCHEMA, max_rows=1))


def test_no_more_persons_have_rows_that_were_left_out_than_there_are() -> None:
    plan = description_plan(SCHEMA, epsilon=1.0, delta=1e-6)
    released = exact(plan, kept(visits(50), KEY).drop(["who"]))
    found = Description.of(dataclasses.replace(released, persons=np.array([-30.0, 50.0])))
    assert (found.num_persons.value, found.persons_cut.value) == (20.0, 20.0)
    assert found.persons_cut.low <= 20 < 50 < found.persons_cut.high


def test_counts_of_persons_are_kept_in_the_file(tmp_path) -> None:
    plan = plan_for()
    found = noisy(exact(plan, kept(visits(50), KEY).drop(["who"])), np.random.default_rng(0))
    read = Marginals.load(found.save(tmp_path / "some.counts"))
    np.testing.assert_array_equal(read.persons_of("place"), found.persons[2:])
    with pytest.raises(ValueError, match="persons were not counted by"):
        read.persons_of("union")
