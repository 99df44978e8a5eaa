"""What a record adds to each release is bounded, proved, exact, and the same wherever it lies and whoever is beside it."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discreet as dp
from discreet import query as query_file
from discreet._jax import compiled
from discreet.methods.newton import NewtonPlan, _releases
from discreet.methods.newton._releases import OF_MAPPED, OF_ROWS, Public, RegressionSums
from discreet.methods.newton._sums import Parts
from discreet.privacy.gradients import SPARE, _weighted
from discreet.privacy.query import GRID_OF_PRODUCTS, GRID_OF_SUMS, TURN, in_turns

BLOCKS = *OF_ROWS, *OF_MAPPED


def public_of(rng: np.random.Generator, features: int, name: str = "") -> Public:
    size = features + 1
    shift, factor = rng.uniform(0, 1, (2, 6, 61))
    to = rng.normal(size=(size, size)) * np.exp(rng.normal(size=size))
    theta = rng.normal(size=(size, 2) if "classes" in name else size) * np.exp(rng.normal())
    made = Public(
        to,
        theta,
        np.exp(rng.normal()),
        rng.choice([0.25, 3.0]),
        rng.uniform(0.5, 40),
        shift,
        factor,
    )
    return jax.tree.map(np.float64, made)


def raw_blocks(name: str, public: Public, *arrays: Any) -> Any:
    """Blocks of records, not yet on a grid."""
    rows = _releases._rows(*arrays)
    if name in OF_ROWS:
        return OF_ROWS[name](rows, public)
    return OF_MAPPED[name](_releases.mapped(rows, public.to), public)


def blocks_of(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    public: Public,
    grid: float = 2.0**13,
    present: np.ndarray | None = None,
    survey: np.ndarray | None = None,
) -> np.ndarray:
    """Blocks of records with an axis of rows, or without one."""
    if x.ndim == 2:
        x, y = x[:, None], y[:, None]
    rows = np.ones(y.shape, bool) if present is None else present
    with jax.enable_x64(True):
        own = [x, y, rows] if survey is None else [x, y, rows, survey]
        found = raw_blocks(name, public, *map(jnp.asarray, own))
        return np.asarray(_releases._gridded(found, jnp.ones(len(x), bool), grid))


def some_records(
    rng: np.random.Generator, name: str, count: int, most_rows: int, features: int
) -> Any:
    """Records of every length, with as many rows as can be or fewer, all alike or not."""
    shape = count, most_rows
    x = rng.uniform(-1, 1, (*shape, features)) * np.exp(rng.normal(size=(count, 1, 1)) * 3)
    x[::2] = x[::2, :1]
    y = rng.choice(
        [0, 1, 7, 900] if "counts" in name else [0, 1, 2] if "classes" in name else [0, 1], shape
    )
    y[::2] = y[::2, :1]
    present = rng.random(shape) < rng.choice([0.5, 1.0])
    present[:, 0] = True
    return x, y.astype(float), present


def worst_norm(name: str, most_rows: int) -> float:
    worst = 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        features = int(rng.integers(1, 6))
        public = public_of(rng, features, name)
        if "counts" not in name:
            of_two = rng.choice([0.5, 0.7, 1.0])
            most = (2**0.5, 2 / 3) if "classes" in name else (of_two, 0.25)
            public = public._replace(cut=np.float64(most[0]), most_curvature=np.float64(most[1]))
            public = public._replace(theta=public.theta * rng.choice([0.0, 1.0, 30.0]))
        x, y, present = some_records(rng, name, 400, most_rows, features)
        blocks = blocks_of(name, x, y, public, present=present)
        worst = max(worst, float(np.sqrt(np.square(blocks).sum(axis=(1, 2))).max()))
    return worst


@pytest.mark.parametrize("most_rows", [1, 4])
@pytest.mark.parametrize("name", BLOCKS)
def test_no_block_is_longer_than_one_and_clipping_takes_nothing(
    name: str, most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With w |z| <= 2 h / 3, or 1/5 for the largest curvature, blocks would be longer than 1, and clipping would hide it."""
    monkeypatch.setattr(query_file, "clip_records", lambda rows, norm: rows)
    assert 0.99 < worst_norm(name, most_rows) <= 1


@pytest.mark.parametrize("name", ["residual of classes", "curvature of classes"])
def test_wrong_bounds_of_classes_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual's length taken for that of one class, 1, and the curvature's trace for its largest eigenvalue, 1/2."""
    wrong = (
        {"cut": np.float64(1)}
        if name.startswith("residual")
        else {"most_curvature": np.float64(0.5)}
    )
    monkeypatch.setattr(query_file, "clip_records", lambda rows, norm: rows)
    block = OF_MAPPED[name]
    monkeypatch.setitem(OF_MAPPED, name, lambda rows, public: block(rows, public._replace(**wrong)))
    assert worst_norm(name, 1) > 1.1


def test_a_residual_of_two_classes_that_is_not_shared_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The noise of a bound of less than 1 for residuals of up to 1."""
    monkeypatch.setattr(query_file, "clip_records", lambda rows, norm: rows)
    name = "residual of binary"
    block = OF_MAPPED[name]

    def whole(rows: Any, public: Any) -> Any:
        return block(rows, public._replace(cut=1.0)) / public.cut

    monkeypatch.setitem(OF_MAPPED, name, whole)
    assert worst_norm(name, 1) > 1.3


@pytest.mark.parametrize("cut", [0.5, 0.7, 1.0])
def test_shared_residuals_are_bounded_and_their_mean_has_its_zero_and_slope_at_the_truth(
    cut: float,
) -> None:
    """A residual that is cut at R instead has a mean of up to 0.2 there."""
    predictors = np.linspace(-6, 6, 48)
    chance = 1 / (1 + np.exp(-predictors))

    def of(target: float, at: np.ndarray) -> Any:
        rows = _releases.Rows(*[jnp.ones((len(at), 1, *size)) for size in ((1,), (), (), ())])
        rows = rows._replace(x=jnp.asarray(at)[:, None, None], y=jnp.full((len(at), 1), target))
        public = Public(np.eye(1), np.ones(1), cut=np.float64(cut))
        parts = _releases._of_binary(_releases.mapped(rows, public.to), public)
        return [np.asarray(part)[:, 0] for part in parts]

    def mean(at: np.ndarray) -> np.ndarray:
        return chance * of(1.0, at)[0] + (1 - chance) * of(0.0, at)[0]

    with jax.enable_x64(True):
        assert max(np.abs(of(target, predictors)[0]).max() for target in (0.0, 1.0)) <= cut + 1e-12
        np.testing.assert_allclose(mean(predictors), 0, atol=1e-5)
        # Mapped rows have 16 bits.
        slope = (mean(predictors + 0.05) - mean(predictors - 0.05)) / 0.1
        np.testing.assert_allclose(slope, -of(1.0, predictors)[1], atol=5e-3)


@pytest.mark.parametrize("name", ["residual of binary", "curvature of binary"])
def test_wrong_bounds_of_persons_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight of each row by itself, as if it were a person, and a bound without the root of the number of rows.

    Residuals of counts are cut at what the rows of a person have together, however they came about.
    """
    monkeypatch.setattr(query_file, "clip_records", lambda rows, norm: rows)
    made = _releases.mapped

    def by_row(rows: Any, to: Any) -> Any:
        alone = made(jax.tree.map(lambda value: value.reshape(-1, 1, *value.shape[2:]), rows), to)
        units = alone.units.reshape(*rows.y.shape, -1)
        return alone._replace(
            units=units,
            length=alone.length.reshape(rows.y.shape)[:, 0],
            y=rows.y,
            survey=rows.survey,
        )

    with monkeypatch.context() as patch:
        patch.setattr(_releases, "mapped", by_row)
        assert worst_norm(name, 4) > 1.5
    if name == "residual of binary":
        monkeypatch.setattr(
            _releases, "math", SimpleNamespace(sqrt=lambda value: 1.0 if value == 4 else value**0.5)
        )
        assert worst_norm(name, 4) > 1.9


@pytest.mark.parametrize("name", BLOCKS)
def test_what_is_not_finite_adds_nothing(name: str) -> None:
    public = public_of(np.random.default_rng(0), 2, name)
    x = np.array([[np.nan, 1], [np.inf, 0], [0.5, 0.5], [1e300, 1e300]])
    blocks = blocks_of(name, x, np.array([1.0, 1.0, np.nan, 1.0]), public)
    assert np.isfinite(blocks).all()
    assert (np.linalg.norm(blocks, axis=(1, 2)) <= 1).all()


@pytest.mark.parametrize("name", ["weights", "residual of classes", "curvature of counts"])
def test_a_weight_counts_at_most_once(name: str) -> None:
    """Whatever it is: 7 and infinity as 1, less than 0 as 0; with one that is no number a record adds nothing."""
    rng = np.random.default_rng(0)
    public = public_of(rng, 2, name)
    x, y, present = some_records(rng, name, 40, 3, 2)
    ones = blocks_of(name, x, y, public, present=present)
    for weight, times in ((7.0, 1), (np.inf, 1), (-3.0, 0), (np.nan, 0)):
        found = blocks_of(name, x, y, public, present=present, survey=np.full(y.shape, weight))
        own = times * ones
        if name == "weights" and weight < 0:
            own[..., :2] = ones[..., :2]
        np.testing.assert_array_equal(found, own)


@pytest.mark.parametrize("name", BLOCKS)
def test_rows_that_a_person_does_not_have_add_nothing_whatever_they_hold(name: str) -> None:
    rng = np.random.default_rng(0)
    public = public_of(rng, 2, name)
    x, y, present = some_records(rng, name, 40, 3, 2)
    other = np.where(present[..., None], x, np.nan), np.where(present, y, 1e9)
    found = blocks_of(name, *other, public, present=present)
    np.testing.assert_array_equal(found, blocks_of(name, x, y, public, present=present))
    # Nobody's rows are zeros. Whose rows are all absent is not finite, so zero.
    np.testing.assert_array_equal(
        blocks_of(name, x, y, public, present=np.zeros_like(present)), 0 * found
    )


@pytest.mark.parametrize(
    ("features", "most_rows"), [(1, 1), (6, 1), (31, 1), (90, 1), (1, 2), (6, 3), (31, 7)]
)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_the_same_in_every_place_and_beside_any_others(
    name: str, features: int, most_rows: int
) -> None:
    """A last bit may move it by a step of the grid, which no noise is planned for. So the raw block is compared, to the bit."""
    rng = np.random.default_rng(features)
    public, filled = public_of(rng, features, name), TURN - SPARE
    one = rng.uniform(-1, 1, (most_rows, features))
    others = rng.uniform(-1, 1, (3 * filled, most_rows, features))
    others[::3] = one
    mine = rng.random(most_rows) < 0.8
    mine[0] = True
    theirs = rng.random((len(others), most_rows)) < 0.8
    theirs[::3] = mine

    def raw(which: Any, *table: Any) -> Any:
        def turn(carry: float, part: Any) -> Any:
            return carry, raw_blocks(name, public, *part[:3])

        def chosen() -> Any:
            return jax.lax.scan(turn, 0.0, _releases._turns(table))[1]

        # The certified program chooses among sums.
        shape = jax.eval_shape(chosen).shape
        return jax.lax.switch(which, [lambda: jnp.zeros(shape), chosen])

    found = []
    with jax.enable_x64(True):
        for x, present in (
            (np.tile(one, (3 * filled, 1, 1)), np.tile(mine, (3 * filled, 1))),
            (others, theirs),
        ):
            table = np.int32(1), *Parts([x, np.ones(x.shape[:2]), present]).read(0)
            # Small fits compile it quickly.
            program = compiled(jax.jit(raw).lower(*table), quickly=features == 6)
            blocks = np.asarray(program(*table))[:3, :filled]
            found.append(blocks.reshape(-1, *blocks.shape[2:])[::3])
    assert (np.concatenate(found) == found[0][0]).all()


def places_of(family: str, features: int, most_rows: int, kept: bool) -> set[bytes]:
    """What one record adds to a gradient, by the programs of fits, in each place of a turn beside any others."""
    rng = np.random.default_rng(features)
    name, filled, turns = f"residual of {family}", TURN - SPARE, 4
    x = rng.uniform(-1, 1, (turns * filled, most_rows, features))
    y = rng.integers(0, 2, x.shape[:2]).astype(float)
    present = rng.random(y.shape) < 0.8
    x[::2], y[::2], present[::2] = x[0], y[0], True
    # One of its rows counts: the order of additions is not what is compared.
    survey = np.ones(y.shape)
    survey[:, 1:] = 0
    outputs = (2,) if family == "classes" else ()
    layout = _releases.layout_for([x, y, present, survey], features)
    sums = RegressionSums(layout, dp.Relation.ADD_OR_REMOVE_ONE, False, outputs, (("total", name),))
    public = public_of(rng, features, name)
    with jax.enable_x64(True):
        *table, mask = in_turns([x, y, present, survey], turns, layout=layout)
        if kept:
            *table, _ = compiled(jax.jit(_releases.map_table).lower([*table, mask], public.to))(
                [*table, mask], public.to
            )
        of = jax.jit(sums.of_prepared if kept else sums.of)
        alone = np.arange(len(mask))
        # Small fits compile it quickly, but not where mapped rows are kept.
        program = compiled(
            of.lower(np.int32(0), public, [*table, alone == 0]), quickly=not kept and most_rows == 3
        )
        places = np.flatnonzero(mask)[: 2 * filled : 2]
        return {
            np.asarray(program(np.int32(0), public, [*table, alone == x])).tobytes() for x in places
        }


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    ("family", "features", "most_rows"),
    [("binary", 8, 3), ("counts", 12, 1), ("classes", 5, 2), ("binary", 51, 1)],
)
def test_a_gradient_has_the_same_bits_of_a_record_in_every_place(
    family: str, features: int, most_rows: int, kept: bool, finest: pytest.MonkeyPatch
) -> None:
    """On so fine a grid that each last bit of a weight shows."""
    assert len(places_of(family, features, most_rows, kept)) == 1


def test_a_planted_last_bit_in_one_place_is_found(finest: pytest.MonkeyPatch) -> None:
    shares = _releases._shares
    one = np.where(np.arange(TURN) == 40, 1 + 2.0**-52, 1)[:, None]
    finest.setattr(_releases, "_shares", lambda *given: shares(*given) * one)
    assert len(places_of("binary", 8, 3, True)) == 2


@pytest.fixture
def finest(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    jax.clear_caches()
    monkeypatch.setattr(_weighted, "PRODUCTS", 2.0**62)
    yield monkeypatch
    jax.clear_caches()


@pytest.mark.parametrize("grid", [GRID_OF_PRODUCTS, GRID_OF_SUMS])
@pytest.mark.parametrize("name", ["squares", "residual of counts"])
def test_rows_at_the_bound_are_on_the_grid(name: str, grid: float) -> None:
    """Clipping rescaled them by a factor of 32 bits: sums were not exact where a row was as long as it may be."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (500, 3)), np.full(500, 1e4)
    x[::2] = 0
    rows = blocks_of(name, x, y, public_of(rng, 3), grid) * grid
    np.testing.assert_array_equal(rows, np.round(rows))


@pytest.mark.parametrize("most_rows", [1, 3])
@pytest.mark.parametrize("kind", ["products", "total"])
def test_sums_are_exact(kind: str, most_rows: int) -> None:
    """In any order, and one record more moves them by what it adds, at the end of a turn and at the beginning of the next."""
    rng = np.random.default_rng(0)
    public, filled = public_of(rng, 3), TURN - SPARE
    shape = 2 * filled + 1, most_rows
    x, y = rng.uniform(-1, 1, (*shape, 3)), rng.integers(0, 2, shape).astype(float)

    def sums(rows: Any) -> np.ndarray:
        with jax.enable_x64(True):
            table = Parts([x[rows], y[rows], np.ones(y[rows].shape, bool)]).read(0)
            return np.asarray(_releases.sum_of(kind, "residual of binary", table, public))

    whole = np.arange(len(x))
    np.testing.assert_array_equal(sums(whole), sums(rng.permutation(len(x))))
    for size in (1, 5, filled, filled + 1, 2 * filled, 2 * filled + 1):
        np.testing.assert_array_equal(
            sums(whole[:size]) - sums(whole[: size - 1]), sums(whole[size - 1 : size])
        )


@pytest.mark.parametrize("most_rows", [1, 3])
@pytest.mark.parametrize("family", ["binary", "counts"])
def test_the_releases_are_together_one_with_all_of_the_budget(family: str, most_rows: int) -> None:
    shape = {"family": family, "num_features": 3, "num_records": 1000, "max_rows": most_rows}
    plan = NewtonPlan.calibrate(epsilon=0.7, delta=1e-6, **shape)
    assert sum(
        count * (plan.noise_multiplier / noise) ** 2 for *_, noise, count in plan.releases
    ) == pytest.approx(1)


@pytest.mark.parametrize("change", [{"family": "linear"}, {"max_rows": 0}])
def test_wrong_plans_are_refused(change: dict[str, Any]) -> None:
    given = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "family": "binary",
        "num_features": 3,
        "num_records": 1000,
    }
    with pytest.raises(ValueError, match=next(iter(change))):
        NewtonPlan.calibrate(**given | change)
