"""The programs that touch records in a private Newton fit: rows of norm at most 1, summed exactly, with noise.

A row is a function of one record and of public arguments. `products` releases the sum of the rows' outer products, which one
record changes by at most 1 in Frobenius norm, and `total` that of the rows themselves. The bounds hold for every record, map and
point: x has a leading 1, z = x @ to, and the weight w = 1 / (1 + |z|^2 / c^2) has w |z| <= c / 2.

| kind | row | its norm |
|---|---|---|
| squares | x^2 over its sum | at most 1 |
| directions | z over its length | 1 |
| curvature | sqrt(v / v_max) w z 2 / c | at most 1, since v is cut at v_max |
| residual | (r / R) w z 2 / c | at most 1, since r w z is cut at R c / 2 |

Rows are rounded to a grid and clipped, so that sums are exact in 64 bits: no last bit of a sum depends on the rows' order, or
on which others there are. A last bit of a row would move it by a whole step of the grid. So each row is computed alike whatever
the number of rows: `TURN` at a time, by one program, as `in_turns` lays them out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from discreet import random
from discreet.accounting import Relation
from discreet.gradients import SPARE
from discreet.mechanisms import GAUSSIAN, clip_records, count_cells, planned_gaussian
from discreet.newton._counts import EDGES, LOG_MEANS, NUM_BINS, RATIOS
from discreet.verify import Certificate, certify

TURN = 512
MOST_RECORDS = 2**26
GRID_OF_PRODUCTS = 2.0**13  # sums of products of 2^26 rows are exact in 64 bits
GRID_OF_SUMS = 2.0**24  # and so are sums of 2^26 rows
_CLIPPED_FROM = 2.0**-19  # more than `clip_records` keeps below its bound: it leaves rows of this length as they are
_FARTHEST = 20.0  # of a predictor; beyond it nothing changes


class Public(NamedTuple):
    """What rows are computed with. All of it follows from earlier releases."""

    to: Float[np.ndarray, "feature latent"]  # the map of the features
    theta: Float[np.ndarray, " latent"]  # the point
    reach: float = 1.0  # c
    most_curvature: float = 1.0  # v_max
    cut: float = 1.0  # R
    shift: Any = np.zeros((len(RATIOS), len(LOG_MEANS)))  # `Shift` of counts
    factor: Any = np.zeros((len(RATIOS), len(LOG_MEANS)))


Row = Callable[[Array, Array, Public], Array]


def _lengths(z: Array) -> Array:
    return jnp.sum(jnp.square(z), axis=1)


def _squares(x: Array, y: Array, public: Public) -> Array:
    del y, public
    return jnp.square(x) / _lengths(x)[:, None]


def _directions(x: Array, y: Array, public: Public) -> Array:
    del y
    z = x @ public.to
    return z / jnp.sqrt(_lengths(z))[:, None]


def _weighted(x: Array, public: Public) -> tuple[Array, Array, Array]:
    """Z w 2 / c, the predictor, and w |z|."""
    z = x @ public.to
    lengths = _lengths(z)
    weight = 1 / (1 + lengths / public.reach**2)
    return z * (weight * 2 / public.reach)[:, None], z @ public.theta, weight * jnp.sqrt(lengths)


def _tents(at: Array, knots: np.ndarray) -> Array:
    """Weights of linear interpolation between equidistant knots, of which the ends hold beyond them."""
    width = float(knots[1] - knots[0])
    inside = jnp.clip(at, knots[0], knots[-1])
    return jnp.maximum(1 - jnp.abs(inside[:, None] - knots) / width, 0)


def _of_binary(x: Array, y: Array, public: Public) -> tuple[Array, Array, Array]:
    z, predictor, _ = _weighted(x, public)
    mean = jax.nn.sigmoid(predictor)
    return z, y - mean, mean * (1 - mean)


def _of_counts(x: Array, y: Array, public: Public) -> tuple[Array, Array, Array]:
    """The cut of a row is R c / (2 w |z|), at least R; its shift is that of the largest of RATIOS below it."""
    z, predictor, length = _weighted(x, public)
    cut = public.cut * public.reach / 2 / length
    mean = jnp.exp(jnp.clip(predictor, -_FARTHEST, _FARTHEST))
    between = _tents(predictor, LOG_MEANS)
    below = (cut[:, None] / public.cut * (1 + 1e-9) >= RATIOS).astype(z.dtype)
    own = below - jnp.concatenate([below[:, 1:], jnp.zeros_like(below[:, :1])], axis=1)
    shift = jnp.sum((between @ public.shift.T) * own, axis=1)
    factor = jnp.sum((between @ public.factor.T) * own, axis=1)
    return z, jnp.clip(y - mean + shift, -cut, cut), mean * factor


def _curvature(parts: Callable[..., tuple[Array, Array, Array]]) -> Row:
    def row(x: Array, y: Array, public: Public) -> Array:
        z, _, curvature = parts(x, y, public)
        share = jnp.clip(curvature / public.most_curvature, 0, 1)
        return z * jnp.sqrt(share)[:, None]

    return row


def _residual(parts: Callable[..., tuple[Array, Array, Array]]) -> Row:
    def row(x: Array, y: Array, public: Public) -> Array:
        z, residual, _ = parts(x, y, public)
        return z * (residual / public.cut)[:, None]

    return row


ROWS: dict[str, Row] = {
    "squares": _squares,
    "directions": _directions,
    "curvature of binary": _curvature(_of_binary),
    "residual of binary": _residual(_of_binary),
    "curvature of counts": _curvature(_of_counts),
    "residual of counts": _residual(_of_counts),
}


def on_grid(rows: Array, mask: Array, grid: float) -> Array:
    """Rows of norm at most 1, finite and on the grid: rounding leaves them below 1, and clipping leaves them on it."""
    room = 1 - math.sqrt(rows.shape[1]) / grid - _CLIPPED_FROM
    return clip_records(jnp.round(rows * room * grid) / grid, 1.0) * mask[:, None]


def _rows(row: Row, x: Array, y: Array, mask: Array, public: Public, grid: float) -> Array:
    ones = jnp.concatenate([jnp.ones((len(x), 1)), x.astype(jnp.float64)], axis=1)
    return on_grid(row(ones, y.astype(jnp.float64), public), mask, grid)


def turns_of(*arrays: Array) -> Any:
    """Arrays of `in_turns`, turn by turn."""
    return tuple(x.reshape(-1, TURN, *x.shape[1:]) for x in arrays)


def products(key: PRNGKeyArray, x: Array, y: Array, mask: Array, public: Public, *, row: Row, noise: float) -> Array:
    """The noisy sum of the rows' outer products; noise of standard deviation `noise` in each entry."""

    def turn(total: Array, part: tuple[Array, Array, Array]) -> tuple[Array, None]:
        rows = _rows(row, *part, public, GRID_OF_PRODUCTS)
        return total + rows.T @ rows, None

    total, _ = jax.lax.scan(turn, jnp.zeros((x.shape[1] + 1,) * 2), turns_of(x, y, mask))
    return planned_gaussian(key, total, noise, noise)


def total(key: PRNGKeyArray, x: Array, y: Array, mask: Array, public: Public, *, row: Row, noise: float) -> Array:
    """The noisy sum of the rows; noise of standard deviation `noise` in each coordinate."""

    def turn(total: Array, part: tuple[Array, Array, Array]) -> tuple[Array, None]:
        rows = _rows(row, *part, public, GRID_OF_SUMS)
        return total + jnp.sum(rows, axis=0), None

    total, _ = jax.lax.scan(turn, jnp.zeros(x.shape[1] + 1), turns_of(x, y, mask))
    return planned_gaussian(key, total, noise, noise)


def histogram(key: PRNGKeyArray, x: Array, y: Array, mask: Array, public: Public, *, row: None, noise: float) -> Array:
    """The noisy numbers of records whose target is in each bin of `EDGES`."""
    del x, public, row
    levels = jnp.sum(y[:, None] > EDGES[1:], axis=1).astype(jnp.int32)
    counts = count_cells(levels[:, None], mask, (NUM_BINS,), ((0,),), (1,))
    return planned_gaussian(key, counts, noise, noise)


_PROGRAMS: dict[str, Callable[..., Array]] = {"products": products, "total": total, "histogram": histogram}


@functools.lru_cache(maxsize=64)
def program(
    kind: str,
    rows: str,
    noise: float,
    shape: tuple[int, int],
    dtypes: tuple[str, str],
    relation: Relation,
    reproducible: bool,
) -> Certificate:
    """A release, proved and compiled once for tables of one shape."""
    chosen = functools.partial(_PROGRAMS[kind], row=ROWS.get(rows), noise=noise)

    def release(key: PRNGKeyArray, x: Any, y: Any, mask: Any, public: Public) -> Any:
        return chosen(key, x, y, mask, public)

    latents = shape[1] + 1
    public = Public(np.zeros((latents, latents)), np.zeros(latents))
    shapes = (
        jax.ShapeDtypeStruct(shape, dtypes[0]),
        jax.ShapeDtypeStruct(shape[:1], dtypes[1]),
        jax.ShapeDtypeStruct(shape[:1], bool),
        jax.tree.map(lambda value: jax.ShapeDtypeStruct(np.shape(value), np.float64), public),
    )
    key = random.key(0 if reproducible else None)
    return certify(release, key, *shapes, records=(1, 2), mask=3, relation=relation, expect=GAUSSIAN.event(noise))


def in_turns(*arrays: np.ndarray) -> list[np.ndarray]:
    """Arrays and a mask in turns of `TURN` rows, the last `SPARE` of which stand for nobody (`gradients._contract`).

    There are two turns at least: XLA compiles a loop of one otherwise.
    """
    filled = TURN - SPARE
    turns = max(2, -(-len(arrays[0]) // filled))

    def laid(value: np.ndarray) -> np.ndarray:
        found = np.zeros((turns, TURN, *value.shape[1:]), value.dtype)
        whole = len(value) // filled
        found[:whole, :filled] = value[: whole * filled].reshape(whole, filled, *value.shape[1:])
        left = value[whole * filled :]
        found[whole : whole + 1, : len(left)] = left
        return found.reshape(-1, *value.shape[1:])

    return [laid(x) for x in (*arrays, np.ones(len(arrays[0]), bool))]
