"""A query is proved before the act begins, and runs after it; equal ones are proved once; sums are exact."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discreet as dp
from discreet.methods.moments import MomentsPlan, fit_moments
from discreet.methods.newton import ModelPlan, NewtonPlan, fit_newton
from discreet.privacy.act import Act
from discreet.privacy.gradients import SPARE
from discreet.privacy.mechanisms import clip_records, sum_records
from discreet.privacy.query import (
    GRID_OF_PRODUCTS,
    GRID_OF_SUMS,
    Gaussian,
    Query,
    in_turns,
    on_grid,
    summed,
    turns_for,
    turns_of,
)
from discreet.tabular.marginals import MarginalsPlan
from discreet.tabular.scores import ScorePlan

ADD, REPLACE = dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE
PLAN = ScorePlan.calibrate(epsilon=0.5, delta=1e-7)
NOISE = PLAN.noise_multiplier
OTHERS, ROWS, MASK = np.array([100.0, 200.0]), np.full((10, 2), 0.5), np.arange(10) < 7


def total(others: Any, rows: Any, mask: Any) -> Any:
    return others + sum_records(clip_records(rows, 1.0), mask)


def query(stddev: float = NOISE, claimed: float = NOISE, relation: Any = ADD) -> Query:
    return Query(total, Gaussian(stddev, claimed), relation)


@pytest.mark.essential
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_noise_that_is_less_than_claimed_is_refused_before_the_act_begins(
    relation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    act = Act.on(PLAN, dp.random.key())
    for wrong in (
        query(NOISE / 1.01, NOISE, relation),
        Query(lambda *x: 1.01 * total(*x), Gaussian(NOISE, NOISE), relation),
    ):
        with pytest.raises(dp.PrivacyError, match="more than was declared"):
            wrong.answer(act, OTHERS, ROWS, MASK)
    # What it claims is more than the plan.
    with pytest.raises(dp.PrivacyError, match="more than was declared"):
        query(NOISE / 2, NOISE / 2).answer(act, OTHERS, ROWS, MASK)


@pytest.mark.essential
def test_an_answer_is_proved_begun_and_run_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def noted(owner: Any, name: str) -> None:
        true = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda self, *x, **how: order.append(name) or true(self, *x, **how)
        )

    noted(Act, "prove")
    noted(Act, "begin")
    noted(dp.Certificate, "__call__")
    act = Act.on(PLAN, dp.random.key())
    found = query().answer(act, OTHERS, ROWS, MASK)
    assert order == ["prove", "begin", "__call__"]
    assert np.abs(found - OTHERS - 3.5).max() < 8 * NOISE
    assert found.dtype == np.float64
    with pytest.raises(ValueError, match="begins once"):
        query().answer(act, OTHERS, ROWS, MASK)


def test_an_answer_has_settings_of_its_own() -> None:
    """By the caller's it failed after the debit, so the budget was lost."""
    for settings in (
        jax.numpy_dtype_promotion("strict"),
        jax.transfer_guard("disallow"),
        jax.disable_jit(),
    ):
        with settings:
            assert query().answer(Act.on(PLAN, dp.random.key()), OTHERS, ROWS, MASK).shape == (2,)


def test_equal_queries_are_proved_once_for_arguments_of_one_kind() -> None:
    key = dp.random.key()
    one = query().certificate(key, OTHERS, ROWS, MASK)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (OTHERS, ROWS, MASK)]
    assert query().certificate(dp.random.key(), *shapes) is one
    others = [
        query(2 * NOISE).certificate(key, OTHERS, ROWS, MASK),
        query(claimed=NOISE / 2).certificate(key, OTHERS, ROWS, MASK),
        query(relation=REPLACE).certificate(key, OTHERS, ROWS, MASK),
        query().certificate(key, OTHERS, ROWS[:9], MASK[:9]),
        query().certificate(dp.random.key(0), OTHERS, ROWS, MASK),
        Query(lambda *x: total(*x), Gaussian(NOISE, NOISE), ADD).certificate(
            key, OTHERS, ROWS, MASK
        ),
    ]
    assert len({id(found) for found in (one, *others)}) == 7
    assert one.event.noise_multiplier == pytest.approx(NOISE, rel=1e-9)
    assert others[2].relation is REPLACE


def test_the_sum_of_the_others_is_public_and_the_last_records_are_not() -> None:
    """With the positions exchanged there is no proof: nothing bounds the sum of the others."""
    with pytest.raises(dp.PrivacyError):
        Query(
            lambda rows, others, mask: total(others, rows, mask), Gaussian(NOISE, NOISE), ADD
        ).certificate(dp.random.key(), ROWS, np.zeros((10, 2)), MASK)


def test_values_of_two_classes_are_two_queries() -> None:
    """Named tuples with the same fields are equal, so the second one was proved, and run, as the first."""

    class Once(NamedTuple):
        bound: float

        def __call__(self, rows: Any, mask: Any) -> Any:
            return sum_records(clip_records(rows, self.bound), mask)

    class Half(Once):
        def __call__(self, rows: Any, mask: Any) -> Any:
            return super().__call__(rows, mask) / 2

    assert Once(1.0) == Half(1.0)
    for total, factor in ((Once(1.0), 1), (Half(1.0), 2)):
        found = Query(total, Gaussian(NOISE, NOISE), ADD, records=(1, 2)).certificate(
            dp.random.key(), ROWS, MASK
        )
        assert found.event.noise_multiplier == pytest.approx(factor * NOISE, rel=1e-9)


def test_records_that_the_sum_holds_are_refused_also_where_the_query_was_proved_before() -> None:
    table = np.random.default_rng(0).normal(size=(10, 2))

    def held(rows: Any, mask: Any) -> Any:
        return sum_records(clip_records(rows, 1.0), mask) + jnp.asarray(table).sum(axis=0)

    one = Query(held, Gaussian(NOISE, NOISE), ADD, records=(1, 2))
    one.certificate(dp.random.key(), ROWS, MASK)
    with pytest.raises(dp.PrivacyError, match="holds the records as a constant"):
        one.certificate(dp.random.key(), table, MASK)


@pytest.mark.parametrize("turn", [64, 128])
@pytest.mark.parametrize("past", [-1, 0, 1])
def test_turns_hold_each_record_once(turn: int, past: int) -> None:
    """In the first places of each turn, the last of which are nobody's; a turn more where the last one is full."""
    number = 3 * (turn - SPARE) + past
    x, y = np.arange(2.0 * number).reshape(number, 2), np.arange(1, number + 1)
    turns = turns_for(number, turn)
    assert turns == (4 if past == 1 else 3)
    wide, target, mask = in_turns([x, y], turns, turn, layout=[((5,), "float32"), ((), "int64")])
    assert len(mask) == turns * turn
    assert not mask.reshape(turns, turn)[:, -SPARE:].any()
    np.testing.assert_array_equal(wide[mask][:, :2], x)
    np.testing.assert_array_equal(target[mask], y)
    assert not wide[~mask].any()
    assert not wide[:, 2:].any()
    assert not target[~mask].any()


@pytest.mark.parametrize("grid", [GRID_OF_PRODUCTS, GRID_OF_SUMS])
def test_rows_beyond_the_bound_are_on_the_grid(grid: float) -> None:
    """The square of 1.45e-154 is zero, so such a row over its length was longer than 1, and clipping moved it off the grid."""
    with jax.enable_x64(True):
        tiny = jnp.full((4, 8), 1.45e-154).at[:, 0].set(1.5e-154)
        over = jax.jit(lambda z: z / jnp.sqrt(jnp.sum(jnp.square(z), axis=1, keepdims=True)))(tiny)
        rows = np.asarray(on_grid(over, jnp.ones(4, bool), grid)) * grid
    assert np.linalg.norm(over, axis=1).min() > 1
    np.testing.assert_array_equal(rows, np.round(rows))


def test_sums_over_turns_are_exact() -> None:
    """In any order, and one record more moves them by what it adds; without the grid they are rounded."""
    x = np.random.default_rng(0).normal(size=(300, 3))

    def total(rows: Any, grid: bool = True) -> np.ndarray:
        def add(x: Any, mask: Any) -> Any:
            x = x / jnp.sqrt(jnp.sum(jnp.square(x), axis=1, keepdims=True) + 1e-9)
            return jnp.sum(on_grid(x, mask, GRID_OF_SUMS) if grid else x * mask[:, None], axis=0)

        with jax.enable_x64(True):
            own = x[rows]
            return np.asarray(
                summed(
                    add, turns_of([jnp.asarray(y) for y in in_turns([own], turns_for(len(own)))])
                )
            )

    whole, other = np.arange(300), np.random.default_rng(1).permutation(300)
    np.testing.assert_array_equal(total(whole), total(other))
    np.testing.assert_array_equal(total(whole) - total(whole[1:]), total(whole[:1]))
    assert (total(whole, grid=False) != total(other, grid=False)).any()


TERMS: dict[str, Any] = {"epsilon": 0.7, "delta": 1e-6}
SIZED = {**TERMS, "num_records": 1_000}
SCHEMA = dp.tables.schema_from_bounds("x=0:1,y=0:1")
PLANS = {
    "scores": lambda: ScorePlan.calibrate(**TERMS),
    "counts": lambda: MarginalsPlan.calibrate(SCHEMA, **TERMS),
    "moments": lambda: MomentsPlan.calibrate(num_features=2, **SIZED),
    "Newton": lambda: NewtonPlan.calibrate(family="binary", num_features=2, **SIZED),
    "Newton of models": lambda: ModelPlan.calibrate(**SIZED),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_costs_what_was_asked_for_and_refuses_numbers_out_of_range(name: str) -> None:
    """Three of them took delta=0, and stated an infinite epsilon."""
    plan: Any = PLANS[name]()
    assert 0.995 * 0.7 < plan.epsilon() <= 0.7
    wrong = [("noise_multiplier", x) for x in (0.0, -1.0, np.inf, np.nan, "1")]
    wrong += [("delta", x) for x in (0.0, 1.0, np.nan, None)]
    sizes = {"num_records", "num_features"} & vars(plan).keys()
    wrong += [(field, x) for field in sizes for x in (0, 2.5, True)]
    for field, value in wrong:
        with pytest.raises(ValueError, match=f"{field} is "):
            dataclasses.replace(plan, **{field: value})


@pytest.mark.parametrize("name", ["moments", "Newton"])
def test_more_records_than_sums_are_exact_for_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 2^27 sums would have been rounded."""
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    plan: Any = PLANS[name]()
    zeros = np.broadcast_to(np.float64(0), (2**26 + 1, 2))  # no memory
    fits: dict[str, Any] = {
        "moments": lambda key: fit_moments(key, zeros, zeros[:, 0], plan),
        "Newton": lambda key: fit_newton(key, zeros, zeros[:, 0], plan),
    }
    with pytest.raises(ValueError, match="sums are exact for at most 67,108,864"):
        fits[name](dp.random.key())
