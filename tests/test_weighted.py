"""`sum_weighted`: a record adds at most 1, whatever it holds, and the sum moves by exactly that."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet._jax import reads_unwritten
from discreet.privacy.gradients import _weighted
from discreet.privacy.mechanisms import sum_weighted

LARGEST = 2**15 - 1
EXTREME = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    5e-324,
    1e-300,
    1e-160,
    1e160,
    1.7e308,
    -1.7e308,
    np.inf,
    -np.inf,
    np.nan,
]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Changes of a program that was compiled before."""
    jax.clear_caches()
    yield monkeypatch
    jax.clear_caches()


def summed(rows: Any, weights: Any, mask: Any = None) -> np.ndarray:
    with jax.enable_x64(True):
        kept = np.ones(len(rows), bool) if mask is None else mask
        return np.asarray(sum_weighted(rows, weights, kept))


def records(
    rng: np.random.Generator, count: int, per_record: int, latents: int, outputs: int
) -> Any:
    """Records at the bound, short of it and beyond; with products at ties, rows of zeros and numbers of every size."""
    rows = rng.integers(-LARGEST, LARGEST, (count, per_record, latents), np.int16, endpoint=True)
    rows[::3] = rng.choice([-1, 0, 1], rows[::3].shape)
    rows[1::7, 0] = 0
    weights = rng.normal(size=(count, per_record, outputs))
    lengths = np.sqrt(np.maximum(np.square(rows.astype(float)).sum(axis=2), 1))
    bound = (lengths * np.sqrt(np.square(weights).sum(axis=2))).sum(axis=1)[:, None, None]
    weights /= bound
    weights *= rng.choice([1.0, 1 + 2.0**-52, 1 + 2.0**-19, 50.0, 0.5, 1e-3], (count, 1, 1))
    ties = rng.random(count) < 0.2
    weights[ties] = (np.floor(weights[ties] * 2.0**24) + 0.5) / 2.0**24
    wild = rng.random(count) < 0.2
    weights[wild, 0, 0] = rng.choice(EXTREME, wild.sum())
    return rows, weights


def worst_of(per_record: int, latents: int, outputs: int, seeds: int = 3) -> float:
    """The largest norm of what one record adds, by what the sum moves by beside 30 others."""
    worst = 0.0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        rows, weights = records(rng, 300, per_record, latents, outputs)
        base = summed(rows[:30], weights[:30])
        for place in range(30, 300):
            own = [*range(30), place]
            worst = max(worst, float(np.linalg.norm(summed(rows[own], weights[own]) - base)))
    return worst


@pytest.mark.parametrize(
    ("per_record", "latents", "outputs"), [(1, 1, 1), (1, 7, 1), (4, 3, 1), (1, 5, 3), (3, 2, 2)]
)
def test_no_record_adds_more_than_one_and_some_add_nearly_that(
    per_record: int, latents: int, outputs: int
) -> None:
    """At the edge of what counts, 1 + 2^-20, and with products that lie half way between two steps of the grid."""
    assert 1 - 1e-5 < worst_of(per_record, latents, outputs) <= 1


def at_a_tie() -> float:
    """The norm of what a record adds whose ten thousand products or so are all rounded upwards by nearly half a step."""
    sizes = np.arange(9_000, 11_000)
    rooms = np.array([_weighted.room_for(int(size), 1) for size in sizes]) * 2.0**24
    steps = np.floor(rooms / np.sqrt(sizes) - 0.5001) + 0.5001
    best = int(np.argmax(np.round(steps) * np.sqrt(sizes)))
    found = summed(
        np.ones((1, 1, sizes[best]), np.int16), np.full((1, 1, 1), steps[best] / rooms[best])
    )
    return float(np.linalg.norm(found))


def test_rounding_upwards_in_each_coordinate_stays_below_one() -> None:
    assert 1 - 2e-6 < at_a_tie() <= 1


def test_planted_rounding_that_nobody_pays_for_is_found(planted: pytest.MonkeyPatch) -> None:
    planted.setattr(_weighted, "room_for", lambda *_: 1 - _weighted._SPARED)
    assert at_a_tie() > 1


def test_a_planted_length_of_few_digits_is_found(planted: pytest.MonkeyPatch) -> None:
    made = jnp.sqrt
    planted.setattr(jnp, "sqrt", lambda x: made(x).astype(jnp.bfloat16).astype(jnp.float64))
    assert worst_of(1, 7, 1, seeds=1) > 1


def test_a_planted_length_of_zero_is_found(planted: pytest.MonkeyPatch) -> None:
    """Any weight would count for a row of zeros: infinity times zero."""
    made = jnp.maximum
    planted.setattr(jnp, "maximum", lambda x, y: x if y is not None else made(x, y))
    assert not np.isfinite(summed(np.zeros((1, 1, 2), np.int16), np.full((1, 1, 1), 1.7e308))).all()


@pytest.mark.parametrize("weight", EXTREME)
def test_what_is_not_finite_adds_exactly_nothing(weight: float) -> None:
    """Whatever the rows are; and so does what the mask drops."""
    for row in (0, 1, LARGEST):
        found = summed(np.full((1, 2, 3), row, np.int16), np.full((1, 2, 1), weight))
        assert np.isfinite(found).all()
        assert np.linalg.norm(found) <= 1
        assert np.isfinite(weight) or not found.any()
    rows = np.ones((2, 1, 3), np.int16)
    weights = np.full((2, 1, 1), 0.25)
    alone = summed(rows[:1], weights[:1])
    weights[1] = weight
    np.testing.assert_array_equal(summed(rows, weights, np.array([True, False])), alone)


@pytest.mark.parametrize(("per_record", "outputs"), [(1, 1), (2, 3)])
def test_sums_are_exact(per_record: int, outputs: int) -> None:
    """In any order, in any blocks, and one record more moves them by what it adds."""
    rng = np.random.default_rng(0)
    rows, weights = records(rng, 5_000, per_record, 5, outputs)
    if per_record > 1:
        # The length that cuts weights is a sum here, whose last bits may depend on the place in a
        # table: so none is cut.
        weights = np.clip(weights, -1e-5, 1e-5)
    whole = summed(rows, weights)
    order = rng.permutation(len(rows))
    np.testing.assert_array_equal(summed(rows[order], weights[order]), whole)
    borders = [0, 1, 64, 65, 700, 4_999, 5_000]
    parts = [summed(rows[a:b], weights[a:b]) for a, b in itertools.pairwise(borders)]
    np.testing.assert_array_equal(sum(parts), whole)
    np.testing.assert_array_equal(
        whole - summed(rows[:-1], weights[:-1]), summed(rows[-1:], weights[-1:])
    )
    assert (whole * 2.0**24 == np.round(whole * 2.0**24)).all()


def test_sums_are_exact_whatever_products_are_rounded_to() -> None:
    """JAX converts float64 to float32 under this setting: one record then moved a sum by hundreds."""
    rng = np.random.default_rng(3)
    rows = rng.integers(-(2**14), 2**14, (3_000, 1, 3))
    weights = rng.uniform(-1, 1, (3_000, 1, 1)) / 2**15
    mask = np.ones(3_000, bool)
    exact = np.asarray(jax.jit(sum_weighted)(rows, weights, mask))
    with jax.default_matmul_precision("F32_F32_F32"):
        np.testing.assert_array_equal(jax.jit(sum_weighted)(rows, weights, mask), exact)


def test_it_is_the_sum() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-99, 99, (1_000, 2, 4), np.int16)
    weights = rng.uniform(-1, 1, (1_000, 2, 3)) / 3_000
    expected = np.einsum("prk,prj->kj", weights, rows.astype(float))
    np.testing.assert_allclose(summed(rows, weights), expected, rtol=3e-6, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    rows, mask = np.ones((2, 1, 3), np.int16), np.ones(2, bool)
    with pytest.raises(TypeError, match="pass integers"):
        sum_weighted(rows * 1.0, np.ones((2, 1, 1)), mask)
    with pytest.raises(ValueError, match="weights"):
        sum_weighted(rows, np.ones((2, 2, 1)), mask)
    many = [
        jax.ShapeDtypeStruct((2**26 + 1, *shape), kind)
        for shape, kind in (((1, 1), "i2"), ((1, 1), "f8"), ((), "?"))
    ]
    with pytest.raises(ValueError, match="exact for 67,108,864"):
        jax.eval_shape(sum_weighted, *many)


@pytest.mark.parametrize("shape", [(128, 1, 52), (7, 2, 3)])
def test_products_with_ones_are_no_fusions_that_read_unwritten_memory(shape: tuple) -> None:
    """XLA hands such a product in 32 bits to a library that may not compute the ones; these are in 64."""
    with jax.enable_x64(True):
        rows = jax.ShapeDtypeStruct(shape, np.int16)
        weights = jax.ShapeDtypeStruct((*shape[:2], 2), np.float64)
        mask = jax.ShapeDtypeStruct(shape[:1], bool)
        program = jax.jit(sum_weighted).lower(rows, weights, mask).compile()
    assert " dot(" in program.as_text()
    assert not reads_unwritten(program.as_text())
