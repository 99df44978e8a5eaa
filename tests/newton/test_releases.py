"""What a record adds to each release is bounded, proved, exact, and the same wherever it lies and whoever is beside it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discreet as dp
from discreet.accounting import Relation
from discreet.gradients import SPARE
from discreet.newton import NewtonPlan, _releases
from discreet.newton._releases import ROWS, TURN, Public, in_turns

OF_PRODUCTS = [name for name in ROWS if not name.startswith("squares")]


def public_of(rng: np.random.Generator, features: int) -> Public:
    size = features + 1
    shift, factor = rng.uniform(0, 1, (2, 6, 61))
    to = rng.normal(size=(size, size)) * np.exp(rng.normal(size=size))
    theta = rng.normal(size=size) * np.exp(rng.normal())
    made = Public(to, theta, np.exp(rng.normal()), rng.choice([0.25, 3.0]), rng.uniform(0.5, 40), shift, factor)
    return jax.tree.map(np.float64, made)


def rows_of(name: str, x: np.ndarray, y: np.ndarray, public: Public, grid: float = 2.0**13) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(
            _releases._rows(ROWS[name], jnp.asarray(x), jnp.asarray(y), jnp.ones(len(x), bool), public, grid)
        )


@pytest.mark.parametrize("name", ROWS)
def test_no_row_is_longer_than_one_and_clipping_takes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With w |z| <= c / 3, or 1/5 for the largest curvature, rows would be longer than 1, and clipping would hide it."""
    monkeypatch.setattr(_releases, "clip_records", lambda rows, norm: rows)
    worst = 0.0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        features = int(rng.integers(1, 6))
        public = public_of(rng, features)
        if "binary" in name:
            public = public._replace(cut=np.float64(1), most_curvature=np.float64(0.25))
            public = public._replace(theta=public.theta * rng.choice([0.0, 1.0, 30.0]))
        x = rng.uniform(-1, 1, (400, features)) * np.exp(rng.normal(size=(400, 1)) * 3)
        y = rng.integers(0, 2, 400) if "binary" in name else rng.choice([0, 1, 7, 900], 400)
        norms = np.linalg.norm(rows_of(name, x, y.astype(float), public), axis=1)
        assert norms.max() <= 1
        worst = max(worst, float(norms.max()))
    assert worst > 0.99


@pytest.mark.parametrize("name", ROWS)
def test_what_is_not_finite_adds_nothing(name: str) -> None:
    public = public_of(np.random.default_rng(0), 2)
    x = np.array([[np.nan, 1], [np.inf, 0], [0.5, 0.5], [1e300, 1e300]])
    rows = rows_of(name, x, np.array([1.0, 1.0, np.nan, 1.0]), public)
    assert np.isfinite(rows).all()
    assert (np.linalg.norm(rows, axis=1) <= 1).all()


@pytest.mark.parametrize("features", [1, 6, 31, 90])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_the_same_in_every_place_and_beside_any_others(name: str, features: int) -> None:
    """A last bit may move it by a step of the grid, which no noise is planned for. So the raw row is compared, to the bit."""
    rng = np.random.default_rng(features)
    public, filled = public_of(rng, features), TURN - SPARE
    one = rng.uniform(-1, 1, features)
    others = rng.uniform(-1, 1, (3 * filled, features))
    others[::3] = one

    def raw(x: Any, y: Any, mask: Any) -> Any:
        def turn(carry: float, part: Any) -> Any:
            ones = jnp.concatenate([jnp.ones((TURN, 1)), part[0]], axis=1)
            return carry, ROWS[name](ones, part[1], public)

        return jax.lax.scan(turn, 0.0, _releases.turns_of(x, y, mask))[1]

    found = []
    with jax.enable_x64(True):
        for x in (np.tile(one, (3 * filled, 1)), others):
            rows = np.asarray(jax.jit(raw)(*in_turns(x, np.ones(len(x)))))[:, :filled]
            found.append(rows.reshape(-1, features + 1)[::3])
    assert (np.concatenate(found) == found[0][0]).all()


@pytest.mark.parametrize("grid", [_releases.GRID_OF_PRODUCTS, _releases.GRID_OF_SUMS])
@pytest.mark.parametrize("name", ["squares", "residual of counts"])
def test_rows_at_the_bound_are_on_the_grid(name: str, grid: float) -> None:
    """Clipping rescaled them by a factor of 32 bits: sums were not exact where a row was as long as it may be."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (500, 3)), np.full(500, 1e4)
    x[::2] = 0
    rows = rows_of(name, x, y, public_of(rng, 3), grid) * grid
    np.testing.assert_array_equal(rows, np.round(rows))


@pytest.mark.parametrize("kind", ["products", "total"])
def test_sums_are_exact(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order, and one record more moves them by what it adds, at the end of a turn and at the beginning of the next."""
    monkeypatch.setattr(_releases, "planned_gaussian", lambda key, sums, *_: sums)
    rng = np.random.default_rng(0)
    public, filled = public_of(rng, 3), TURN - SPARE
    release = functools.partial(_releases._PROGRAMS[kind], row=ROWS["residual of binary"], noise=1.0)
    x, y = rng.uniform(-1, 1, (2 * filled + 1, 3)), rng.integers(0, 2, 2 * filled + 1).astype(float)

    def sums(rows: Any) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(release(jax.random.key(0), *in_turns(x[rows], y[rows]), public))

    whole = np.arange(len(x))
    np.testing.assert_array_equal(sums(whole), sums(rng.permutation(len(x))))
    for size in (1, 5, filled, filled + 1, 2 * filled, 2 * filled + 1):
        np.testing.assert_array_equal(sums(whole[:size]) - sums(whole[: size - 1]), sums(whole[size - 1 : size]))


@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE])
@pytest.mark.parametrize("family", ["binary", "counts"])
def test_each_release_is_proved_to_be_what_the_plan_pays_for(
    family: str, relation: Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = NewtonPlan.calibrate(
        epsilon=1.0, delta=1e-6, family=family, num_features=3, num_records=1000, relation=relation
    )
    prove = _releases.program.__wrapped__
    where = (2 * TURN, 3), ("float32", "float64"), relation, False
    with jax.enable_x64(True):
        for kind, rows, noise, _ in plan.releases:
            # A replaced record moves two bins by one each, which is less than a sum may move.
            cheaper = 2**0.5 if kind == "histogram" and relation is Relation.REPLACE_ONE else 1.0
            assert prove(kind, rows, noise, *where).event.noise_multiplier == pytest.approx(cheaper * noise, rel=1e-5)
        monkeypatch.setattr(_releases, "clip_records", lambda rows, norm: dp.clip_records(rows, 1.01 * norm))
        for kind, rows, noise, _ in plan.releases:
            if kind != "histogram":
                with pytest.raises(dp.PrivacyError, match="more than was declared"):
                    prove(kind, rows, noise, *where)


@pytest.mark.parametrize("family", ["binary", "counts"])
def test_the_releases_are_together_one_with_all_of_the_budget(family: str) -> None:
    plan = NewtonPlan.calibrate(epsilon=0.7, delta=1e-6, family=family, num_features=3, num_records=1000)
    assert 0.699 < plan.epsilon() <= 0.7
    assert sum(count * (plan.noise_multiplier / noise) ** 2 for *_, noise, count in plan.releases) == pytest.approx(1)
    assert plan.state(reproducible=False).epsilon == plan.epsilon()


@pytest.mark.parametrize(
    "change",
    [{"family": "linear"}, {"delta": 2.0}, {"num_features": 0}, {"num_records": 0}, {"epsilon": 0.0}, {"delta": 1.0}],
)
def test_wrong_plans_are_refused(change: dict[str, Any]) -> None:
    given = {"epsilon": 1.0, "delta": 1e-6, "family": "binary", "num_features": 3, "num_records": 1000}
    with pytest.raises(ValueError, match=next(iter(change))):
        NewtonPlan.calibrate(**given | change)
