"""Rows lie on a grid, wherever in a table they are, and each record is in it once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.gradients import SPARE
from discreet.query import GRID_OF_PRODUCTS, GRID_OF_SUMS, in_turns, on_grid, summed, turns_for, turns_of


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
            return np.asarray(summed(add, turns_of([jnp.asarray(y) for y in in_turns([own], turns_for(len(own)))])))

    whole, other = np.arange(300), np.random.default_rng(1).permutation(300)
    np.testing.assert_array_equal(total(whole), total(other))
    np.testing.assert_array_equal(total(whole) - total(whole[1:]), total(whole[:1]))
    assert (total(whole, grid=False) != total(other, grid=False)).any()
