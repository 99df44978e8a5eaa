"""Noisy counts: what one record adds, what is proved of it, that pieces make no difference, and what comes out."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow
import pyarrow.csv
import pytest
from scipy.stats import norm
from tests.marginals.invented import certificate, exact

import discreet as dp
from discreet.methods.audit import audit_mechanism
from discreet.privacy.act import Act
from discreet.privacy.mechanisms import count_cells
from discreet.tabular.marginals import MarginalsPlan, _exact, _plan, _programs, private_marginals
from discreet.tabular.tables import Column, DataError, Kind, Missing, schema_from_bounds

ADD, REPLACE = dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE
SCHEMA = schema_from_bounds(
    "age=0:99,visits=0:3,smoker=no|yes", target="smoker", target_kind="binary"
)
SIZES, TABLES, WEIGHTS = (3, 2, 2), ((0,), (2,), (0, 1), (0, 1, 2)), (1, 2, 1, 3)
C = math.sqrt(sum(w**2 for w in WEIGHTS))


def plan_for(schema=SCHEMA, **options) -> MarginalsPlan:
    names = [column.name for column in schema.columns]
    pairs = [*((name,) for name in names), *itertools.combinations(names, 2)]
    return MarginalsPlan.calibrate(
        schema, **{"epsilon": 1.0, "delta": 1e-6, "slices": 4, "tables": pairs} | options
    )


def people(rows: int, seed: int = 0) -> dict[str, list]:
    rng = np.random.default_rng(seed)
    smoker = rng.choice(["no", "yes"], rows).tolist()
    return {
        "age": rng.uniform(0, 99, rows).tolist(),
        "visits": rng.integers(0, 4, rows).tolist(),
        "smoker": smoker,
    }


def measured(table, plan: MarginalsPlan, rows: int = 9, key: bytes | None = None) -> np.ndarray:
    """The weighted counts and sums that the noise is added to, as the release computes them before it clips."""
    found = _exact.Measured(plan, rows)
    for piece in _exact.pieces(table, plan, "refuse", key):
        found.add(piece)
    counted, *sums, levels, mask = found.arguments()
    weights = (*plan.weights, *plan.fine_weights)
    program = _programs.Counts(plan.all_sizes, plan.all_columns, weights)
    if plan.width:
        sums, levels, values = *sums, levels
        sums = (sums + values.sum(axis=0)) / _programs.ONE
    with jax.enable_x64(True):
        return np.concatenate([np.asarray(program(counted, levels, mask)), sums])


def unweighted(plan: MarginalsPlan, total: np.ndarray) -> np.ndarray:
    return total[: sum(plan.cells)] / np.repeat(plan.weights, plan.cells)


def counted(levels, mask=None, further=None) -> np.ndarray:
    levels = np.asarray(levels, np.int32)
    return np.asarray(
        count_cells(
            levels,
            np.ones(len(levels), bool) if mask is None else mask,
            SIZES,
            TABLES,
            WEIGHTS,
            further,
        )
    )


@pytest.mark.essential
def test_no_record_adds_more_than_the_bound_and_the_worst_attain_it() -> None:
    """Also levels that no column has, in which a record is in no cell or in one."""
    strange = np.random.default_rng(0).integers(-3, 5, (60, 3))
    added = np.stack([counted(row[None]) for row in strange])
    assert np.linalg.norm(added, axis=1).max() <= C * (1 + 1e-6)
    apart = np.linalg.norm(added[:, None] - added[None], axis=2)
    assert apart.max() <= math.sqrt(2) * C * (1 + 1e-6)
    assert np.linalg.norm(counted([[0, 0, 0]])) == pytest.approx(C)
    assert np.linalg.norm(counted([[0, 0, 0]]) - counted([[1, 1, 1]])) == pytest.approx(
        math.sqrt(2) * C
    )
    # A count that a float cannot hold exactly: one more record must not move it by two.
    full = np.full(23, 2**24 - 1, np.int32)
    moved = counted([[0, 0, 0]], further=full) - counted(
        [[0, 0, 0]], np.zeros(1, bool), further=full
    )
    assert np.linalg.norm(moved) <= C


SHAPES = jax.ShapeDtypeStruct((40, 3), jnp.int32), jax.ShapeDtypeStruct((40,), bool)


def certified(release, relation, expect=5.0):
    event = dp.mechanisms.GAUSSIAN.event(expect * (math.sqrt(2) if relation is REPLACE else 1))
    return dp.certify(
        release, dp.random.key(), *SHAPES, records=1, mask=2, relation=relation, expect=event
    )


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_the_verifier_finds_the_true_event_and_refuses_its_neighbours(relation) -> None:
    def honest(key, levels, mask, stddev=5.0 * C):
        return dp.gaussian_mechanism(key, count_cells(levels, mask, SIZES, TABLES, WEIGHTS), stddev)

    found = certified(honest, relation).event
    assert found.noise_multiplier == pytest.approx(
        5.0 * (math.sqrt(2) if relation is REPLACE else 1)
    )

    def weights_left_out_of_the_bound(key, levels, mask):
        return honest(key, levels, mask, 5.0 * math.sqrt(len(TABLES)))

    def counted_twice(key, levels, mask):
        twice = count_cells(
            jnp.concatenate([levels, levels]), jnp.concatenate([mask, mask]), SIZES, TABLES, WEIGHTS
        )
        return dp.gaussian_mechanism(key, twice, 5.0 * C)

    def number_used_exactly(key, levels, mask):
        return honest(key, levels, mask) / mask.sum()

    def levels_of_others(key, levels, mask):
        return honest(key, levels - levels[0], mask)

    for wrong in (
        weights_left_out_of_the_bound,
        counted_twice,
        number_used_exactly,
        levels_of_others,
    ):
        with pytest.raises(dp.PrivacyError):
            certified(wrong, relation)


FAULTS = {
    "counted twice": lambda levels: 2 * counted(levels),
    "weights left out of the bound": lambda levels: (
        counted(levels) * math.sqrt(len(TABLES)) ** -1 * C
    ),
    "number used exactly": lambda levels: counted(levels) + 100 * C * len(levels),
}


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_an_audit_catches_planted_faults_and_does_not_accuse_the_release(fault) -> None:
    """False alarm: 1 %; the seed is fixed."""
    sums = FAULTS.get(fault, counted)

    def program(levels):
        value = jnp.asarray(sums(levels), jnp.float32)
        return lambda key: dp.gaussian_mechanism(key, value, C)

    claim = dp.accounting.profile(dp.mechanisms.GAUSSIAN.event(1.0), ADD)
    there, gone = [[0, 0, 0], [1, 1, 1]], [[1, 1, 1]]
    verdict = audit_mechanism(
        program(there), program(gone), claim=claim, delta=1e-3, runs=4000, progress_bar=False
    )
    assert verdict.contradicted == (fault is not None), verdict


def test_the_price_is_that_of_one_gaussian_in_closed_form() -> None:
    for relation in (ADD, REPLACE):
        plan = plan_for(relation=relation)
        mu = plan.moved / plan.noise
        spent = plan.state(reproducible=False)
        delta = norm.cdf(mu / 2 - spent.epsilon / mu) - math.exp(spent.epsilon) * norm.cdf(
            -mu / 2 - spent.epsilon / mu
        )
        assert 0.995e-6 < delta <= 1e-6
        assert 0.999 < spent.epsilon <= 1
    much = dataclasses.replace(plan_for(), noise_multiplier=1e5)
    assert certificate(much).event.noise_multiplier == pytest.approx(1e5, rel=1e-9)
    assert plan_for().weights == (1, 1, 2, 1, 2, 2)
    assert plan_for().stddev(("smoker",)) == plan_for().stddev(("age",)) / 2


def test_pieces_files_and_tables_give_the_same_counts(tmp_path, monkeypatch) -> None:
    plan, table = (
        plan_for(tables=[("age",), ("smoker", "visits"), ("age", "visits", "smoker")]),
        people(4000),
    )
    pyarrow.csv.write_csv(pyarrow.table(table), tmp_path / "people.csv")
    monkeypatch.setattr("discreet.tabular.tables._read.PIECE_BYTES", 10_000)
    sources = [table, pyarrow.table(table), tmp_path / "people.csv", people(30)]
    for source in sources:
        expected = exact(plan, people(30) if source is sources[-1] else table)
        total = measured(source, plan, 100)
        np.testing.assert_array_equal(unweighted(plan, total), expected.counts)
        np.testing.assert_allclose(total[sum(plan.cells) :], expected.sums, atol=4000 * 2.0**-24)


BOUNDED = dp.tables.Schema(
    columns=(
        Column(name="age", kind=Kind.REAL, bounds=(-3.0, 99.0), missing=Missing.INDICATOR),
        Column(name="visits", kind=Kind.COUNT, bounds=(0, 3)),
        Column(name="smoker", kind=Kind.BINARY, categories=("no", "yes")),
    )
)
SUMMED = {"tables": [(), ("age",), ("smoker",), ("age", "smoker")], "weights": {"age": 2, (): 3}}
SUMMED |= {"sums": {("age",): 2, ("visits", "smoker"): 3, ("age", "smoker"): 1}}


def sums_twice_as_heavy(monkeypatch) -> None:
    """The weights that the noise is made for are half of those that sums have."""
    terms = _exact.Measured._terms
    twice = lambda self, piece: ((a, b, 2 * weight, d) for a, b, weight, d in terms(self, piece))  # noqa: E731
    monkeypatch.setattr(_exact.Measured, "_terms", twice)


def squares_beside_numbers(monkeypatch) -> None:
    """The squares themselves, which are largest where the numbers are."""
    in_units = _exact._in_units

    def wrong(*cell):
        z, gap = in_units(*cell)
        return np.stack([z, _programs.ONE - gap])

    monkeypatch.setattr(_exact, "_in_units", wrong)


OF_ALL = {
    "tables": [("age",), ("smoker",)],
    "weights": {"age": 2},
    "sums": {("age",): 2, ("visits",): 3},
}


@pytest.mark.essential
@pytest.mark.parametrize(
    ("relation", "shape", "fault"),
    [
        (ADD, SUMMED, None),
        (ADD, SUMMED, sums_twice_as_heavy),
        (ADD, SUMMED, squares_beside_numbers),
        (REPLACE, SUMMED, None),
        (REPLACE, OF_ALL, None),
        (REPLACE, OF_ALL, sums_twice_as_heavy),
    ],
)
def test_no_neighbour_is_farther_than_the_noise_is_made_for(
    relation, shape, fault, monkeypatch
) -> None:
    """The worst of all pairs of records at bounds, between them and missing. It attains the bound, but for `_ROOM`."""
    if fault is not None:
        fault(monkeypatch)
    plan, found = plan_for(BOUNDED, relation=relation, **shape), []
    for age, visits, smoker in itertools.product(
        [-3.0, 99.0, 48.0, 22.0, 73.5, None], [0, 1, 3], ["no", "yes"]
    ):
        record = {"age": [age, 48.0], "visits": [visits, 1], "smoker": [smoker, "no"]}
        found.append(measured(pyarrow.table(record), plan))
    without = measured({"age": [48.0], "visits": [1], "smoker": ["no"]}, plan)
    others = [without] if relation is ADD else found
    farthest = max(float(np.linalg.norm(one - other)) for one in found for other in others)
    assert (farthest > plan.moved) == (fault is not None)
    assert farthest > (0.999 if (relation, shape) != (REPLACE, SUMMED) else 0.85) * plan.moved


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("bounds", "step"),
    [((-1e308, 1e308), None), ((0.0, 1e-310), None), ((0.0, 5e-324), None), ((-1.0, 1.0), 5e-324)],
)
def test_nor_where_floats_end(bounds, step, monkeypatch) -> None:
    """Widths and steps for which arithmetic gives infinity or NaN: a record moved the sums 118 times as far.

    Plans refuse most of them, for their slices.
    """
    schema = dp.tables.Schema(columns=(Column(name="x", kind=Kind.REAL, bounds=bounds, step=step),))
    with monkeypatch.context() as fault:
        fault.setattr(_plan.Levels, "edges", lambda self, column: np.arange(5.0))
        plan = plan_for(schema, tables=[("x",)], sums={("x",): 3})
        assert plan.cells
    for value in (*bounds, bounds[0] / 2 + bounds[1] / 2):
        moved = measured({"x": [value, bounds[0]]}, plan) - measured({"x": [bounds[0]]}, plan)
        assert np.linalg.norm(moved) <= plan.moved


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_the_verifier_finds_the_event_of_counts_and_sums_and_refuses_heavier_ones(
    relation, monkeypatch
) -> None:
    plan = plan_for(BOUNDED, relation=relation, **SUMMED)
    event = certificate(plan).event
    multiplier = plan.noise / plan.moved * (1 if relation is ADD else 2)
    assert event.noise_multiplier == pytest.approx(multiplier, rel=1e-9)
    assert str(plan.event()) == str(dp.mechanisms.GAUSSIAN.event(plan.event().noise_multiplier))
    honest = _programs.CountsAndSums.__call__

    def heavier(self, *arguments):
        counts, sums = honest(self, *arguments)
        return counts, 2 * sums

    monkeypatch.setattr(_programs.CountsAndSums, "__call__", heavier)
    with pytest.raises(dp.PrivacyError):
        certificate(dataclasses.replace(plan, slices=5))


def test_clipping_in_the_program_changes_no_row() -> None:
    """So what leaves the program are the exact sums, whichever rows it was given."""
    plan, table = (
        plan_for(BOUNDED, **SUMMED),
        {"age": [99.0, -3.0, 48.0], "visits": [3, 0, 1], "smoker": ["no"] * 3},
    )
    found = _exact.Measured(plan, 9)
    for piece in _exact.pieces(table, plan, "refuse", None):
        found.add(piece)
    counted, summed, levels, values, mask = found.arguments()
    with jax.enable_x64(True):
        sums = plan.query().total(counted, summed, levels, values, mask)[1]
    np.testing.assert_array_equal(np.asarray(sums) * _programs.ONE, summed + values.sum(axis=0))


@pytest.mark.parametrize("fault", [False, True])
def test_counting_in_blocks_and_parts_is_counting_one_by_one(fault, monkeypatch) -> None:
    """Levels of one byte and of two, cells below and above 2^16, missing cells, pieces that end anywhere."""
    monkeypatch.setattr(_exact, "_ROWS_AT_ONCE", 700)
    monkeypatch.setattr(_exact, "_ROWS_A_PART", 128)
    monkeypatch.setattr("discreet.tabular.tables._read.PIECE_ROWS", 300)
    if fault:
        monkeypatch.setattr(_exact, "_TWO_BYTES", 2**30)
    rng = np.random.default_rng(3)
    for many in (7, 256, 257, 300):
        words = tuple(f"w{i}" for i in range(many))
        columns = (
            Column(name="a", kind=Kind.CATEGORICAL, categories=words, missing=Missing.INDICATOR),
            Column(name="b", kind=Kind.CATEGORICAL, categories=words),
            Column(name="c", kind=Kind.REAL, bounds=(0, 9), missing=Missing.INDICATOR),
            Column(name="d", kind=Kind.BINARY, categories=("0", "1")),
        )
        plan = plan_for(
            dp.tables.Schema(columns=columns),
            tables=[("a",), ("d", "a"), ("c", "b"), ("b", "a"), ("a", "c", "d")],
        )
        for rows in (1, 9, 10, 699, 2500):
            table = {
                "a": rng.choice([*words, None], rows),
                "b": rng.choice(words, rows),
                "d": rng.choice(["0", "1"], rows),
            }
            table["c"] = np.where(rng.random(rows) < 0.2, np.nan, rng.uniform(0, 9, rows))
            table = pyarrow.table(
                {name: pyarrow.array(cells, from_pandas=True) for name, cells in table.items()}
            )
            total = unweighted(plan, measured(table, plan))
            if not fault:
                np.testing.assert_array_equal(total, exact(plan, table).counts)
        if fault and many >= 256:
            assert not np.array_equal(total, exact(plan, table).counts)


@pytest.mark.essential
def test_the_noise_has_the_size_that_is_paid_for() -> None:
    """Some 1,300 cells: their standard deviation is wrong by more than 12 % with probability below 1e-7.

    Of 400 sums by more than 20 %.
    """
    plan, table = plan_for(slices=100), people(3000)
    found = private_marginals(dp.random.key(1), table, plan, non_private_seed=True)
    deviation = [
        np.full(cells, plan.stddev(own)) for own, cells in zip(plan.tables, plan.cells, strict=True)
    ]
    true = exact(plan, table)
    assert 0.88 < ((found.counts - true.counts) / np.concatenate(deviation)).std() < 1.12
    many = dp.tables.Schema(
        columns=tuple(dataclasses.replace(SCHEMA.columns[0], name=f"x{i}") for i in range(200))
    )
    wide = plan_for(many, tables=[("x0",)], sums={(f"x{i}",): 1 + i % 3 for i in range(200)})
    table = {f"x{i}": [99.0, 3.0, 80.0] for i in range(200)}
    found = private_marginals(dp.random.key(1), table, wide, non_private_seed=True)
    noise = (found.sums - exact(wide, table).sums) * np.repeat(wide.sum_weights, 2) / wide.noise
    assert 0.8 < noise.std() < 1.2
    found = private_marginals(dp.random.key(2), people(3000), plan, non_private_seed=True)
    # One record counts for the others, too: tables are in their columns' order, or in another.
    np.testing.assert_array_equal(found.table("smoker", "age"), found.table("age", "smoker").T)
    assert found.table("age").shape == (100,)


def test_one_row_of_each_person_counts(tmp_path) -> None:
    schema = dp.tables.Schema(columns=SCHEMA.columns, target="smoker", person="who")
    table = people(900) | {"who": [str(i % 300) for i in range(900)]}
    plan = plan_for(schema)
    counts = unweighted(plan, measured(pyarrow.table(table), plan))
    assert counts.sum() == 300 * len(plan.tables)
    found = private_marginals(dp.random.key(), table, plan)
    assert found.statement.noun == "person"


def test_values_between_steps_count_as_the_nearest_step() -> None:
    stepped = Column(name="dose", kind=Kind.REAL, bounds=(0.0, 20.0), step=0.1)
    plan = plan_for(dp.tables.Schema(columns=(stepped,)), slices=64)
    doses = np.round(0.1 * np.random.default_rng(0).integers(0, 201, 500), 1)
    between = np.clip(doses + np.random.default_rng(1).uniform(-0.04, 0.04, 500), 0, 20)
    expected = measured({"dose": doses}, plan)
    np.testing.assert_array_equal(measured({"dose": between}, plan), expected)
    np.testing.assert_array_equal(unweighted(plan, expected), exact(plan, {"dose": doses}).counts)


def test_the_number_of_records_is_estimated() -> None:
    plan = plan_for()
    found = private_marginals(dp.random.key(), people(2000), plan)
    assert found.num_records != round(found.num_records)
    assert abs(found.num_records - 2000) < 60


def test_a_table_that_is_refused_costs_nothing(monkeypatch) -> None:
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    for wrong in (people(50) | {"visits": [9] * 50}, people(50) | {"smoker": ["maybe"] * 50}):
        with pytest.raises(DataError):
            private_marginals(dp.random.key(), wrong, plan_for())


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        ({"tables": [("age", "age")]}, "different columns"),
        ({"tables": [("age", "height")]}, "different columns"),
        ({"tables": [("age",), ("age", "smoker"), ("smoker", "age")]}, "each such set once"),
        ({"tables": []}, "0 tables"),
        ({"tables": [()]}, "name columns"),
        ({"sums": {("smoker",): 1}}, "a column with bounds"),
        ({"sums": {("age", "visits"): 1}}, "a column with bounds"),
        ({"sums": {("age",): 0}}, "weight"),
        ({"weights": {"height": 2}}, "height, which the schema"),
        ({"weights": {"age": 0}}, "weight"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"slices": 10**6}, "cells"),
    ],
)
def test_wrong_plans_are_refused(options, needle) -> None:
    with pytest.raises(ValueError, match=needle):
        plan_for(**options)


def test_wrong_calls_are_refused() -> None:
    plan = plan_for()
    # An array of levels does not say to whom each row belongs.
    with pytest.raises(ValueError, match="a ndarray is no table"):
        private_marginals(dp.random.key(), plan.levels.encode(people(9)), plan)
    with pytest.raises(ValueError, match="was not counted"):
        plan.place(("age", "visits", "smoker"))
