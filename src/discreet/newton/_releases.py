"""The programs that touch records in a private Newton fit: blocks of norm at most 1, summed exactly, with noise.

A record is a person with up to m rows, often one. A block, (row, latent), is a function of one record and of public arguments,
and its entries together have a Euclidean norm of at most 1. `products` releases the sum over records of B^T B, which one record
changes by at most 1 in Frobenius norm, and `total` that of all rows of the blocks. The bounds hold for every record, map and
point: row j has x_j with a leading 1, z_j = x_j @ to, and the record's weight w = 1 / (1 + sum |z_j|^2 / c^2) has
w sqrt(sum |z_j|^2) <= c / 2. So, by Cauchy and Schwarz, w sum |z_j| <= sqrt(m) c / 2.

| kind | block | its norm |
|---|---|---|
| sizes | number of rows n over m, and its square, over sqrt 2 | at most 1 |
| squares | sum x_j^2 over the sum of all its entries | at most 1 |
| directions | all z_j over their length | 1 |
| bins | numbers of rows with targets in bins, over m | at most 1 |
| curvature | all sqrt(v_j / v_max) w z_j 2 / c | at most 1, since v is cut at v_max |
| curvature of classes | all sqrt(p_jk / v_max) (e_k - p_j) x w z_j 2 / c | at most 1, since sum p_jk abs(e_k - p_j)^2 <= v_max |
| residual | sum (r_j / R) w z_j 2 / (c sqrt m) | at most 1, since r_j is cut at R c sqrt(m) / (2 w sum abs z), at least R |

Of K classes, vectors over the classes are in K - 1 coordinates, an orthonormal basis of those that sum to zero (`plane`);
v_max = 1 - 1 / K is the largest trace of diag(p) - p p^T, and the length of e_y - p is at most R = sqrt 2.

A row that a person does not have is zero, its leading 1 too. Blocks are rounded to a grid and clipped, so that sums are exact in
64 bits: no last bit of a sum depends on the records' order, or on which others there are. A last bit of a block would move it by
a whole step of the grid. So each block is computed alike whatever the number of records: `TURN` at a time, by one program, as
`in_turns` lays them out.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from scipy.linalg import helmert

from discreet import random
from discreet.accounting import Relation
from discreet.gradients import SPARE
from discreet.mechanisms import GAUSSIAN, clip_records, count_cells, planned_gaussian
from discreet.newton._counts import EDGES, LOG_MEANS, NUM_BINS, RATIOS
from discreet.verify import Certificate, Given, certify

TURN = 512
MOST_RECORDS = 2**26
GRID_OF_PRODUCTS = 2.0**13  # sums of products of 2^26 rows are exact in 64 bits
GRID_OF_SUMS = 2.0**24  # and so are sums of 2^26 rows
_CLIPPED_FROM = 2.0**-19  # more than `clip_records` keeps below its bound: it leaves rows of this length as they are
LARGEST_SHARED = 2**16  # numbers of a release
_FARTHEST = 20.0  # of a predictor; beyond it nothing changes


class Public(NamedTuple):
    """What rows are computed with. All of it follows from earlier releases."""

    to: Float[np.ndarray, "feature latent"]  # the map of the features
    theta: Float[np.ndarray, "latent *output"]  # the point
    reach: float = 1.0  # c
    most_curvature: float = 1.0  # v_max
    cut: float = 1.0  # R
    shift: Any = np.zeros((len(RATIOS), len(LOG_MEANS)))  # `Shift` of counts
    factor: Any = np.zeros((len(RATIOS), len(LOG_MEANS)))


class Rows(NamedTuple):
    """The rows of records. Those that a record does not have are zeros."""

    x: Float[Array, "record row feature+1"]
    y: Float[Array, "record row"]
    present: Float[Array, "record row"]


Sum = tuple[str, str]
"""The kind of a sum, and of its blocks."""

Block = Callable[[Rows, Public], Float[Array, "record block latent"]]


def _sizes(rows: Rows, public: Public) -> Array:
    del public
    share = jnp.mean(rows.present, axis=1)
    return jnp.stack([share, jnp.square(share)], axis=1)[:, None] / math.sqrt(2)


def _squares(rows: Rows, public: Public) -> Array:
    del public
    squares = jnp.sum(jnp.square(rows.x), axis=1, keepdims=True)
    return squares / jnp.sum(squares, axis=2, keepdims=True)


def _directions(rows: Rows, public: Public) -> Array:
    z = rows.x @ public.to
    return z / jnp.sqrt(jnp.sum(jnp.square(z), axis=(1, 2), keepdims=True))


def _bins(rows: Rows, public: Public) -> Array:
    del public
    levels = jnp.sum(rows.y[..., None] > EDGES[1:], axis=2)
    found = (levels[..., None] == np.arange(NUM_BINS)) * rows.present[..., None]
    return jnp.mean(found, axis=1, keepdims=True)


def _weighted(rows: Rows, public: Public) -> tuple[Array, Array, Array]:
    """Z w 2 / c, the predictor, for each output if there are several, and w sum |z| over the record's rows."""
    z = rows.x @ public.to
    lengths = jnp.sum(jnp.square(z), axis=2)
    weight = 1 / (1 + jnp.sum(lengths, axis=1, keepdims=True) / public.reach**2)
    length = weight * jnp.sum(jnp.sqrt(lengths), axis=1, keepdims=True)
    return z * (weight * 2 / public.reach)[..., None], z @ public.theta, length


def _tents(at: Array, knots: np.ndarray) -> Array:
    """Weights of linear interpolation between equidistant knots, of which the ends hold beyond them."""
    width = float(knots[1] - knots[0])
    inside = jnp.clip(at, knots[0], knots[-1])
    return jnp.maximum(1 - jnp.abs(inside[..., None] - knots) / width, 0)


def _of_binary(rows: Rows, public: Public) -> tuple[Array, Array, Array]:
    z, predictor, _ = _weighted(rows, public)
    mean = jax.nn.sigmoid(predictor)
    return z, rows.y - mean, mean * (1 - mean)


def _of_counts(rows: Rows, public: Public) -> tuple[Array, Array, Array]:
    """The cut of a record is R c sqrt(m) / (2 w sum |z|), at least R; its shift is that of the largest of RATIOS below it."""
    z, predictor, length = _weighted(rows, public)
    ratio = public.reach / 2 * math.sqrt(z.shape[1]) / length
    cut = public.cut * jnp.minimum(ratio, RATIOS[-1])
    mean = jnp.exp(jnp.clip(predictor, -_FARTHEST, _FARTHEST))
    between = _tents(predictor, LOG_MEANS)
    below = (ratio[..., None] * (1 + 1e-9) >= RATIOS).astype(z.dtype)
    own = below - jnp.concatenate([below[..., 1:], jnp.zeros_like(below[..., :1])], axis=2)
    shift = jnp.sum((between @ public.shift.T) * own, axis=2)
    factor = jnp.sum((between @ public.factor.T) * own, axis=2)
    return z, jnp.clip(rows.y - mean + shift, -cut, cut), mean * factor


def _curvature(parts: Callable[..., tuple[Array, Array, Array]]) -> Block:
    def block(rows: Rows, public: Public) -> Array:
        z, _, curvature = parts(rows, public)
        share = jnp.clip(curvature / public.most_curvature, 0, 1)
        return z * jnp.sqrt(share)[..., None]

    return block


def _residual(parts: Callable[..., tuple[Array, Array, Array]]) -> Block:
    def block(rows: Rows, public: Public) -> Array:
        z, residual, _ = parts(rows, public)
        scaled = residual / (public.cut * math.sqrt(z.shape[1]))
        return jnp.sum(z * scaled[..., None], axis=1, keepdims=True)

    return block


def plane(num_classes: int) -> Float[np.ndarray, "class class-1"]:
    """An orthonormal basis of the vectors over classes that sum to zero."""
    return helmert(num_classes).T


def _of_classes(rows: Rows, public: Public) -> tuple[Array, Array, np.ndarray]:
    """Z w 2 / c, the probabilities of the classes, and the plane."""
    z, predictor, _ = _weighted(rows, public)
    basis = plane(predictor.shape[2] + 1)
    return z, jax.nn.softmax(predictor @ basis.T, axis=2), basis


def _curvature_of_classes(rows: Rows, public: Public) -> Array:
    z, chances, basis = _of_classes(rows, public)
    parts = jnp.sqrt(chances / public.most_curvature)[..., None] * (basis - (chances @ basis)[:, :, None])
    found = parts[..., None] * z[:, :, None, None]
    return found.reshape(len(z), -1, basis.shape[1] * z.shape[2])


def _residual_of_classes(rows: Rows, public: Public) -> Array:
    z, chances, basis = _of_classes(rows, public)
    seen = (rows.y[..., None] == np.arange(len(basis))).astype(z.dtype)
    scaled = ((seen - chances) @ basis) / (public.cut * math.sqrt(z.shape[1]))
    return jnp.sum(scaled[..., None] * z[:, :, None], axis=1).reshape(len(z), 1, -1)


BLOCKS: dict[str, Block] = {
    "sizes": _sizes,
    "squares": _squares,
    "directions": _directions,
    "bins": _bins,
    "curvature of binary": _curvature(_of_binary),
    "residual of binary": _residual(_of_binary),
    "curvature of counts": _curvature(_of_counts),
    "residual of counts": _residual(_of_counts),
    "curvature of classes": _curvature_of_classes,
    "residual of classes": _residual_of_classes,
}

Table = tuple[Float[Array, "record row feature"], Float[Array, "record row"], Bool[Array, "record row"], Array]
"""Features, targets, which rows there are, and which records."""


def _rows(x: Array, y: Array, present: Array) -> Rows:
    own = present.astype(jnp.float64)
    known = jnp.where(present[..., None], x, 0).astype(jnp.float64)
    return Rows(jnp.concatenate([own[..., None], known], axis=2), jnp.where(present, y, 0).astype(jnp.float64), own)


def _blocks(block: Block, table: Table, public: Public, grid: float) -> Array:
    *rows, mask = table
    found = block(_rows(*rows), public)
    return on_grid(found.reshape(len(found), -1), mask, grid).reshape(found.shape)


def on_grid(rows: Array, mask: Array, grid: float) -> Array:
    """Rows of norm at most 1, finite and on the grid: rounding leaves them below 1, and clipping leaves them on it.

    A row divided by its length is longer than 1 where squares underflowed: so it is clipped before it is rounded, too.
    """
    room = 1 - math.sqrt(rows.shape[1]) / grid - _CLIPPED_FROM
    return clip_records(jnp.round(clip_records(rows, 1.0) * room * grid) / grid, 1.0) * mask[:, None]


def turns_of(table: Sequence[Array]) -> list[Array]:
    """Arrays of `in_turns`, turn by turn."""
    return [array.reshape(-1, TURN, *array.shape[1:]) for array in table]


def _summed(block: Block, table: Table, public: Public, grid: float, add: Callable[[Array], Array]) -> Array:
    """The sum over turns of what `add` makes of the blocks of each."""

    def part(turn: Any) -> Array:
        return add(_blocks(block, turn, public, grid))

    turns = turns_of(table)
    first = jax.eval_shape(part, [array[0] for array in turns])
    return jax.lax.scan(lambda sum, turn: (sum + part(turn), None), jnp.zeros(first.shape), turns)[0]


def products(block: Block, table: Table, public: Public) -> Array:
    """The sum of B^T B over the blocks B."""
    return _summed(block, table, public, GRID_OF_PRODUCTS, lambda blocks: jnp.einsum("pri,prj->ij", blocks, blocks))


def total(block: Block, table: Table, public: Public) -> Array:
    """The sum of blocks of one row."""
    return _summed(block, table, public, GRID_OF_SUMS, lambda blocks: jnp.sum(blocks[:, 0], axis=0))


def histogram(block: None, table: Table, public: Public) -> Array:
    """The numbers of records of one row whose target is in each bin of `EDGES`."""
    del block, public
    _, y, _, mask = table
    levels = jnp.sum(y > EDGES[1:], axis=1).astype(jnp.int32)
    return count_cells(levels[:, None], mask, (NUM_BINS,), ((0,),), (1,))


_SUMS: dict[str, Callable[..., Array]] = {"products": products, "total": total, "histogram": histogram}


def sum_of(kind: str, rows: str, table: Table, public: Public) -> Array:
    """The exact sum of one kind of blocks over all records."""
    return _SUMS[kind](BLOCKS.get(rows), table, public)


def proved(
    certified: Callable[[float], Certificate], arguments: Callable[[float], Any], noise: float, size: int
) -> Any:
    """A release of so many numbers, proved for this noise by the certificate of a program that is compiled once for all.

    Args:
        certified: The certificate for noise up to so much.
        arguments: The program's, with this noise as a `Given`.
        noise: Its standard deviation, in units of the bound on one record.
        size: How many numbers are released.

    Raises:
        PrivacyError: There is no proof.
    """
    most = 1.0 if noise <= GAUSSIAN.most_multiplier(size) else noise
    found = certified(most).given(*arguments(noise))
    found.check(GAUSSIAN.event(noise))
    return found


class _Shape(NamedTuple):
    """What a program is compiled for."""

    shape: tuple[int, int, int]  # records, rows, features
    dtypes: tuple[str, str]  # of features and targets
    relation: Relation
    reproducible: bool
    outputs: tuple[int, ...]  # what a predictor has: none, or K - 1
    sums: tuple[Sum, ...]

    @property
    def latents(self) -> int:
        """The number of coefficients."""
        return (self.shape[2] + 1) * math.prod(self.outputs)

    @property
    def size(self) -> int:
        """How many numbers a release has: as many as the largest sum."""
        return max(self.latents**2 if kind == "products" else max(self.latents, NUM_BINS) for kind, _ in self.sums)

    def arguments(self, noise: float) -> tuple[Any, ...]:
        """What a program is certified for."""
        latents = self.shape[2] + 1
        public = Public(np.zeros((latents, latents)), np.zeros((latents, *self.outputs)))
        return (
            random.key(0 if self.reproducible else None),
            Given(np.float64(noise)),
            jax.ShapeDtypeStruct((), np.int32),
            jax.ShapeDtypeStruct(self.shape, self.dtypes[0]),
            jax.ShapeDtypeStruct(self.shape[:2], self.dtypes[1]),
            jax.ShapeDtypeStruct(self.shape[:2], bool),
            jax.ShapeDtypeStruct(self.shape[:1], bool),
            jax.tree.map(lambda value: jax.ShapeDtypeStruct(np.shape(value), np.float64), public),
        )


@functools.lru_cache(maxsize=64)
def _certified(shape: _Shape, most: float) -> Certificate:
    """A release of any of the sums, compiled once for all of them and for all noises up to `most`."""

    def padded(sum: Sum, table: Table, public: Public) -> Array:
        found = sum_of(*sum, table, public).reshape(-1)
        return jnp.pad(found, (0, shape.size - found.size))

    def release(
        key: PRNGKeyArray, noise: Any, which: Any, x: Any, y: Any, present: Any, mask: Any, public: Public
    ) -> Any:
        sums = [functools.partial(padded, sum) for sum in shape.sums]
        return planned_gaussian(key, jax.lax.switch(which, sums, (x, y, present, mask), public), noise, most)

    return certify(release, *shape.arguments(1.0), records=(3, 4, 5), mask=6, relation=shape.relation)


@dataclasses.dataclass(frozen=True)
class Program:
    """A release of one sum with some noise, proved for tables of one shape.

    Noise takes longer to compile than sums. So all sums share a program, unless the largest has more than `LARGEST_SHARED`
    numbers; a smaller sum is filled up with zeros, and the noise on these is dropped. Features and turns are filled up, too
    (`rounded_up`), so that few shapes are compiled for all tables.

    Attributes:
        sum: The sum.
        noise: Its standard deviation, in units of the bound on one record.
        certificate: Of the program.
        shape: What it was compiled for.
    """

    sum: Sum
    noise: float
    certificate: Certificate
    shape: _Shape

    def arguments(self, key: PRNGKeyArray, arrays: Sequence[Array], public: Public) -> tuple[Any, ...]:
        """The program's, for the arrays of `in_turns` and what is public for fewer features."""
        more = self.shape.shape[2] + 1 - len(public.to)
        theta = public.theta.reshape(math.prod(self.shape.outputs), -1)
        theta = np.pad(theta, ((0, 0), (0, more)))
        theta = theta.T if self.shape.outputs else theta[0]
        public = public._replace(to=np.pad(public.to, ((0, more), (0, more))), theta=theta)
        which = np.int32(self.shape.sums.index(self.sum))
        return key, np.float64(self.noise), which, *arrays, jax.tree.map(np.float64, public)

    def compile(self, key: PRNGKeyArray, arrays: Sequence[Array], public: Public) -> None:
        """Compile it for these arguments."""
        self.certificate.compile(*self.arguments(key, arrays, public))

    def __call__(self, key: PRNGKeyArray, arrays: Sequence[Array], public: Public) -> np.ndarray:
        """Make one release; a matrix is made symmetric, which halves the variance beside its diagonal."""
        found = np.asarray(self.certificate(*self.arguments(key, arrays, public)), np.float64)
        if not np.isfinite(found).all():
            raise FloatingPointError("a release is not finite")
        kind, rows = self.sum
        if kind == "histogram" or rows == "bins":
            return found[:NUM_BINS]
        if rows == "sizes":
            return found[:2]
        wide = self.shape.shape[2] + 1
        outputs = 1 if rows in ("squares", "directions") else math.prod(self.shape.outputs)
        own = np.add.outer(np.arange(outputs) * wide, np.arange(len(public.to))).reshape(-1)
        if kind == "total":
            return found[own]
        found = found[: (outputs * wide) ** 2].reshape(outputs * wide, -1)[np.ix_(own, own)]
        return (found + found.T) / 2


@functools.lru_cache(maxsize=256)
def program(
    sum: Sum,
    noise: float,
    shape: tuple[int, int, int],
    dtypes: tuple[str, str],
    relation: Relation,
    reproducible: bool,
    outputs: tuple[int, ...],
    sums: tuple[Sum, ...],
) -> Program:
    """A release of a sum, by a program that is made for other sums, too.

    Raises:
        PrivacyError: There is no proof.
    """
    made_for = _Shape(shape, dtypes, relation, reproducible, outputs, sums)
    if made_for.size > LARGEST_SHARED:
        alike = tuple(other for other in sums if (other[0] == "products") == (sum[0] == "products"))
        made_for = made_for._replace(sums=alike)
    found = proved(functools.partial(_certified, made_for), made_for.arguments, noise, made_for.size)
    return Program(sum, noise, found, made_for)


def rounded_up(size: int) -> int:
    """The next multiple of 4 with at most three binary digits before its zeros, as 4, 8, 28, 32, 40: few sizes, few programs."""
    step = max(4, 2 ** ((size - 1).bit_length() - 3))
    return max(1, -(-size // step)) * step


def in_turns(*arrays: np.ndarray) -> list[np.ndarray]:
    """Arrays of records and a mask in turns of `TURN`, the last `SPARE` of which stand for nobody (`gradients._contract`).

    There are four turns at least: XLA compiles a loop of one otherwise.
    """
    filled = TURN - SPARE
    count = len(arrays[0])
    turns = rounded_up(-(-count // filled))

    def laid(value: np.ndarray) -> np.ndarray:
        found = np.zeros((turns, TURN, *value.shape[1:]), value.dtype)
        whole = count // filled
        found[:whole, :filled] = value[: whole * filled].reshape(whole, filled, *value.shape[1:])
        left = value[whole * filled :]
        found[whole : whole + 1, : len(left)] = left
        return found.reshape(-1, *value.shape[1:])

    return [laid(array) for array in (*arrays, np.ones(count, bool))]
