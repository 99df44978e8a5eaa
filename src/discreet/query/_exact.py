"""Exact sums over records: rows on a grid, and as many of them at a time, by one program, whatever their number.

A row that is bounded, rounded to a grid and clipped (`on_grid`) is a multiple of the grid's step, and 2^26 of them add up in 64
bits without rounding. So no last bit of a sum depends on the records' order, on which others there are, or on how the table is
divided: one record moves the sum by its own row, and by nothing else.

A last bit of a row would move it by a whole step of the grid. So each row must be computed alike whatever the number of
records: a turn of them at a time, by one program, as `in_turns` lays them out. XLA may compute a program's last rows otherwise,
so the last `SPARE` of each turn stand for nobody (`gradients._contract`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from discreet.gradients import SPARE
from discreet.mechanisms import clip_records

TURN = 128
"""Records of a turn. A program that computes rows for other numbers of them rounds otherwise."""
LAST = 1024
"""Records that a program sums itself where it is given the sum of the others; the number is arbitrary."""
MOST_RECORDS = 2**26
GRID_OF_PRODUCTS = 2.0**13  # sums of products of 2^26 rows are exact in 64 bits
GRID_OF_SUMS = 2.0**24  # and so are sums of 2^26 rows
_CLIPPED_FROM = 2.0**-19  # more than `clip_records` keeps below its bound: it leaves rows of this length as they are


def rounded(rows: Float[Array, "record *sum"], mask: Bool[Array, "record"], grid: float) -> Array:
    """Rows on the grid, of norm at most 1 and finite. Where rounding leaves them below 1, clipping leaves them on the grid."""
    return clip_records(jnp.round(rows * grid) / grid, 1.0) * mask[:, None]


def on_grid(rows: Float[Array, "record sum"], mask: Bool[Array, "record"], grid: float) -> Array:
    """Rows of norm at most 1, a little shorter, as `rounded` leaves them on the grid.

    A row divided by its length is longer than 1 where squares underflowed: so it is clipped before it is rounded, too.
    """
    room = 1 - math.sqrt(rows.shape[1]) / grid - _CLIPPED_FROM
    return rounded(clip_records(rows, 1.0) * room, mask, grid)


def turns_for(num_records: int, turn: int = TURN) -> int:
    """The number of turns that have room for so many records."""
    return -(-num_records // (turn - SPARE))


def in_turns(
    arrays: Sequence[np.ndarray],
    turns: int,
    turn: int = TURN,
    layout: Sequence[tuple[tuple[int, ...], str]] | None = None,
) -> list[np.ndarray]:
    """Arrays of records, and the mask of who there is, in so many turns, filled up with zeros.

    Args:
        arrays: The records' arrays.
        turns: Number of turns. Let there be two at least: XLA compiles a loop of one otherwise.
        turn: Records of a turn.
        layout: For each array the shape, without the records' axis, and the dtype; None: its own. A last axis is filled up.
    """
    filled = turn - SPARE
    whole = len(arrays[0]) // filled

    def laid(value: np.ndarray, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        found = np.zeros((turns, turn, *shape), dtype)
        own = found[..., : value.shape[-1]] if shape else found
        own[:whole, :filled] = value[: whole * filled].reshape(whole, filled, *value.shape[1:])
        left = value[whole * filled :]
        own[whole : whole + 1, : len(left)] = left
        return found.reshape(-1, *shape)

    kinds = layout or [(array.shape[1:], array.dtype) for array in arrays]
    present = laid(np.ones(len(arrays[0]), bool), (), bool)
    return [*(laid(np.asarray(array), *kind) for array, kind in zip(arrays, kinds, strict=True)), present]


def turns_of(table: Sequence[Array], turn: int = TURN) -> list[Array]:
    """Arrays of `in_turns`, turn by turn."""
    return [array.reshape(-1, turn, *array.shape[1:]) for array in table]


def summed(add: Callable[..., Array], turns: Sequence[Array]) -> Array:
    """The sum over turns of what `add` makes of the arrays of each."""
    first = jax.eval_shape(add, *(jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in turns))
    start = jnp.zeros(first.shape)
    return jax.lax.scan(lambda total, turn: (total + add(*turn), None), start, tuple(turns))[0]


def padded(rows: np.ndarray, size: int = LAST) -> tuple[np.ndarray, np.ndarray]:
    """Rows, filled up with zeros to so many, and the mask of those that there are."""
    room = np.zeros((size, *rows.shape[1:]), rows.dtype)
    room[: len(rows)] = rows
    return room, np.arange(size) < len(rows)
