"""The programs that touch records in a private Newton fit: blocks of norm at most 1, summed exactly, with noise.

A record is a person with up to m rows, often one. A block, (row, latent), is a function of one
record and of public arguments, and its entries together have a Euclidean norm of at most 1.
`products` releases the sum over records of B^T B, which one record changes by at most 1 in
Frobenius norm, and `total` that of all rows of the blocks. The bounds hold for every record, map
and point: row j has x_j with a leading 1, z_j = x_j @ to, and the record's weight w = min(1, h /
sqrt(sum |z_j|^2)) has w sqrt(sum |z_j|^2) <= h. So, by Cauchy and Schwarz, w sum |z_j| <= sqrt(m)
h. No weight with this bound is larger anywhere.

| kind | block | its norm |
|---|---|---|
| sizes | number of rows n over m, and its square, over sqrt 2 | at most 1 |
| weights | these two, the mean of the survey weights s_j and that of their squares, over 2 | at most 1 |
| squares | sum x_j^2 over the sum of all its entries | at most 1 |
| directions | all z_j over their length | 1 |
| bins | numbers of rows with targets in bins, over m | at most 1 |
| curvature | all sqrt(v_j / v_max) w z_j / h | at most 1, since v is cut at v_max |
| curvature of classes | all sqrt(p_jk / v_max) (e_k - p_j) x w z_j / h | at most 1, since sum p_jk abs(e_k - p_j)^2 <= v_max |
| residual | sum (r_j / R) w z_j / (h sqrt m) | at most 1, since r_j is cut at R h sqrt(m) / (w sum abs z), at least R |

Of two classes, a residual counts by min(1, R / max(p, 1 - p)), which takes nothing where p is near
1/2; R, from 1/2 to 1, is the less the larger the noise. For R = 1/2 it is the slope of a convex loss
of the margin m, the predictor with the target's sign: exp(-m) / 2, and (1 - m) / 2 below 0.

Of K classes, vectors over the classes are in K - 1 coordinates, an orthonormal basis of those that
sum to zero (`plane`); v_max = 1 - 1 / K is the largest trace of diag(p) - p p^T, and the length of
e_y - p is at most R = sqrt 2.

With survey weights, 0 <= s_j <= 1, a row counts s_j times in each sum but that of sizes.

A row that a person does not have is zero, its leading 1 too. `query` makes the sums exact and adds
the noise.

*What does not change is computed once.* All releases after the map is known need z_j and nothing
else of the features: so a record's rows are kept as integers of 16 bits in the direction of z, and
a length (`Mapped`). A gradient is the sum of these integers times a weight, which
`mechanisms.sum_weighted` cuts, rounds and adds up exactly. The program that is proved maps the rows
itself; that of a large table does so once for all of its releases (`map_table`), by the same
function.
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
from jaxtyping import Array, Float, Int
from scipy.linalg import helmert

from discreet._jax import exact_product
from discreet.methods.newton._counts import EDGES, LOG_MEANS, NUM_BINS, RATIOS
from discreet.methods.newton._sums import LARGEST_SHARED, Program, RowShapes, Sums, proved
from discreet.privacy.mechanisms import count_cells, sum_weighted
from discreet.privacy.query import GRID_OF_PRODUCTS, GRID_OF_SUMS, on_grid, summed, turns_of

_SHORTEST = 1e-100  # of a mapped record
_FARTHEST = 20.0  # of a predictor; beyond it nothing changes


class Public(NamedTuple):
    """What rows are computed with. All of it follows from earlier releases."""

    to: Float[np.ndarray, "feature latent"]  # the map of the features
    theta: Float[np.ndarray, "latent *output"]  # the point
    reach: float = 1.0  # h
    most_curvature: float = 1.0  # v_max
    cut: float = 1.0  # R
    shift: Any = np.zeros((len(RATIOS), len(LOG_MEANS)))  # `Shift` of counts
    factor: Any = np.zeros((len(RATIOS), len(LOG_MEANS)))


class Rows(NamedTuple):
    """The rows of records. Those that a record does not have are zeros."""

    x: Float[Array, "record row feature+1"]
    y: Float[Array, "record row"]
    present: Float[Array, "record row"]
    survey: Float[Array, "record row"]  # weights in [0, 1]


UNIT = 2.0**15 - 1
"""Length 1 in the numbers of `Mapped.units`."""


class Mapped(NamedTuple):
    """The rows of records, mapped: z = units * length / UNIT. What is computed once for a map, and kept for all its releases.

    Sixteen bits move a row by less than 2^-14 of the record's length in a direction. Predictors are
    of the same rows, so a fit is one of a table whose features are rounded so.
    """

    # all of a record's have together the length `UNIT` at most
    units: Int[Array, "record row latent"]
    length: Float[Array, " record"]  # NaN where it is not finite: then nothing of the record counts
    y: Float[Array, "record row"]
    survey: Float[Array, "record row"]


def mapped(rows: Rows, to: Float[Array | np.ndarray, "feature latent"]) -> Mapped:
    """Map the rows of records, each for itself."""
    z = exact_product(rows.x, to)
    length = _lengths(z)
    # Rounding moves each number by at most 1/2.
    longest = UNIT - math.sqrt(z.shape[1] * z.shape[2]) / 2 - 1
    units = jnp.round(z * (longest / length)[:, None, None])
    units = jnp.where(jnp.isfinite(length)[:, None, None], units, 0).astype(jnp.int16)
    return Mapped(units, length * (UNIT / longest), rows.y, rows.survey)


def _lengths(z: Float[Array, "record row latent"]) -> Float[Array, " record"]:
    """Those of records; NaN where they are not finite, or 0, or so short that their squares may underflow."""
    length = jnp.sqrt(jnp.sum(jnp.square(z), axis=(1, 2)))
    return jnp.where(jnp.isfinite(length) & (length > _SHORTEST), length, jnp.nan)


Sum = tuple[str, str]
"""The kind of a sum, and of its blocks."""


def _sizes(rows: Rows, public: Public) -> Array:
    del public
    share = jnp.mean(rows.present, axis=1)
    return jnp.stack([share, jnp.square(share)], axis=1)[:, None] / math.sqrt(2)


def _weights(rows: Rows, public: Public) -> Array:
    means = [jnp.mean(power, axis=1) for power in (rows.survey, jnp.square(rows.survey))]
    both = [math.sqrt(2) * _sizes(rows, public)[:, 0], jnp.stack(means, axis=1)]
    return jnp.concatenate(both, axis=1)[:, None] / 2


def _squares(rows: Rows, public: Public) -> Array:
    del public
    squares = jnp.square(rows.x)
    weighted = jnp.sum(squares * rows.survey[..., None], axis=1, keepdims=True)
    return weighted / jnp.sum(squares, axis=(1, 2))[:, None, None]


def _directions(rows: Rows, public: Public) -> Array:
    z = rows.x * jnp.diagonal(public.to)
    return z * (jnp.sqrt(rows.survey) / _lengths(z)[:, None])[..., None]


def _bins(rows: Rows, public: Public) -> Array:
    del public
    levels = jnp.sum(rows.y[..., None] > EDGES[1:], axis=2)
    found = (levels[..., None] == np.arange(NUM_BINS)) * rows.survey[..., None]
    return jnp.mean(found, axis=1, keepdims=True)


def _shares(rows: Mapped, public: Public) -> Float[Array, "record row"]:
    """W |z| / h, over `UNIT`: `units` times this are the rows z w / h."""
    return (jnp.minimum(rows.length / public.reach, 1) / UNIT)[:, None]


def _predictor(rows: Mapped, public: Public) -> Array:
    """The predictor of each row, for each output if there are several."""
    # XLA converts integers in half of the time where it also multiplies them.
    z = rows.units.astype(jnp.float64) * (rows.length / UNIT)[:, None, None]
    return exact_product(z, public.theta)


def _tents(at: Array, knots: np.ndarray) -> Array:
    """Weights of linear interpolation between equidistant knots, of which the ends hold beyond them."""
    width = float(knots[1] - knots[0])
    inside = jnp.clip(at, knots[0], knots[-1])
    return jnp.maximum(1 - jnp.abs(inside[..., None] - knots) / width, 0)


def _of_binary(rows: Mapped, public: Public) -> tuple[Array, Array]:
    """A residual is at most max(p, 1 - p), so this share of it is at most R; it does not depend on y, so its mean stays 0."""
    mean = jax.nn.sigmoid(_predictor(rows, public))
    share = jnp.minimum(1, public.cut / jnp.maximum(mean, 1 - mean))
    return share * (rows.y - mean), share * mean * (1 - mean)


def _of_counts(rows: Mapped, public: Public) -> tuple[Array, Array]:
    """The cut of a record is R h sqrt(m) / (w sum |z|), at least R; its shift is that of the largest of RATIOS below it."""
    predictor = _predictor(rows, public)
    lengths = jnp.sqrt(jnp.sum(jnp.square(rows.units.astype(jnp.float64)), axis=2))
    ratio = math.sqrt(predictor.shape[1]) / (
        _shares(rows, public) * jnp.sum(lengths, axis=1, keepdims=True)
    )
    cut = public.cut * jnp.minimum(ratio, RATIOS[-1])
    mean = jnp.exp(jnp.clip(predictor, -_FARTHEST, _FARTHEST))
    between = _tents(predictor, LOG_MEANS)
    below = (ratio[..., None] * (1 + 1e-9) >= RATIOS).astype(mean.dtype)
    own = below - jnp.concatenate([below[..., 1:], jnp.zeros_like(below[..., :1])], axis=2)
    shift = jnp.sum(exact_product(between, public.shift.T) * own, axis=2)
    factor = jnp.sum(exact_product(between, public.factor.T) * own, axis=2)
    return jnp.clip(rows.y - mean + shift, -cut, cut), mean * factor


Parted = Callable[[Mapped, Public], tuple[Array, Array]]
"""The residuals and the curvatures."""


def _curvature(parts: Parted, rows: Mapped, public: Public) -> Array:
    share = jnp.clip(parts(rows, public)[1] / public.most_curvature, 0, 1) * rows.survey
    return rows.units * (_shares(rows, public) * jnp.sqrt(share))[..., None]


def _pull(parts: Parted, rows: Mapped, public: Public) -> Float[Array, "record row 1"]:
    residual, _ = parts(rows, public)
    scaled = rows.survey * residual / (public.cut * math.sqrt(residual.shape[1]))
    return (scaled * _shares(rows, public))[..., None]


def plane(num_classes: int) -> Float[np.ndarray, "class class-1"]:
    """An orthonormal basis of the vectors over classes that sum to zero."""
    return helmert(num_classes).T


def _of_classes(rows: Mapped, public: Public) -> tuple[Array, np.ndarray]:
    """The probabilities of the classes, and the plane."""
    predictor = _predictor(rows, public)
    basis = plane(predictor.shape[2] + 1)
    return jax.nn.softmax(exact_product(predictor, basis.T), axis=2), basis


def _curvature_of_classes(rows: Mapped, public: Public) -> Array:
    chances, basis = _of_classes(rows, public)
    parts = jnp.sqrt(chances / public.most_curvature)[..., None] * (
        basis - exact_product(chances, basis)[:, :, None]
    )
    scaled = rows.units * (_shares(rows, public) * jnp.sqrt(rows.survey))[..., None]
    found = parts[..., None] * scaled[:, :, None, None]
    return found.reshape(len(found), -1, basis.shape[1] * scaled.shape[2])


def _pull_of_classes(rows: Mapped, public: Public) -> Float[Array, "record row class-1"]:
    chances, basis = _of_classes(rows, public)
    seen = (rows.y[..., None] == np.arange(len(basis))).astype(chances.dtype)
    scaled = exact_product(seen - chances, basis) / (public.cut * math.sqrt(chances.shape[1]))
    return scaled * (_shares(rows, public) * rows.survey)[..., None]


PULLS: dict[str, Callable[[Mapped, Public], Float[Array, "record row output"]]] = {
    "residual of binary": functools.partial(_pull, _of_binary),
    "residual of counts": functools.partial(_pull, _of_counts),
    "residual of classes": _pull_of_classes,
}
"""The weights of `units` in gradients."""


def _residual(name: str, rows: Mapped, public: Public) -> Array:
    pulls = PULLS[name](rows, public)
    units = rows.units.astype(jnp.float64)
    found = jnp.einsum("prk,prj->pkj", pulls, units, precision=jax.lax.Precision.HIGHEST)
    return found.reshape(len(found), 1, -1)


OF_ROWS: dict[str, Callable[[Rows, Public], Float[Array, "record block latent"]]] = {
    "sizes": _sizes,
    "weights": _weights,
    "squares": _squares,
    "directions": _directions,
    "bins": _bins,
}
OF_MAPPED: dict[str, Callable[[Mapped, Public], Float[Array, "record block latent"]]] = {
    "curvature of binary": functools.partial(_curvature, _of_binary),
    "curvature of counts": functools.partial(_curvature, _of_counts),
    "curvature of classes": _curvature_of_classes,
    **{name: functools.partial(_residual, name) for name in PULLS},
}

Table = Sequence[Array]
"""Features, (record, row, feature); targets, which rows there are and, if there are any, survey
weights, each (record, row); and which records there are."""


def _rows(x: Array, y: Array, present: Array, survey: Array | None = None) -> Rows:
    own = present.astype(jnp.float64)
    known = jnp.where(present[..., None], x, 0).astype(jnp.float64)
    target = jnp.where(present, y, 0).astype(jnp.float64)
    weights = (
        own if survey is None else jnp.where(present, jnp.clip(survey, 0, 1), 0).astype(jnp.float64)
    )
    rows = Rows(jnp.concatenate([own[..., None], known], axis=-1), target, own, weights)
    return rows if y.ndim == 2 else jax.tree.map(lambda value: value[:, None], rows)


def _gridded(found: Array, mask: Array, grid: float) -> Array:
    """No block is longer than 1: lengths that squares might make too short are refused by `_lengths`."""
    return on_grid(found.reshape(len(found), -1), mask, grid, within=True).reshape(found.shape)


def _turns(table: Table) -> list[Array]:
    """Turn by turn; without an axis for the rows of a record if it has one, with which XLA takes half as long again."""
    *rows, mask = table
    if rows[0].shape[1] == 1:
        rows = [array[:, 0] if array.ndim > 1 else array for array in rows]
    return turns_of([*rows, mask])


def _histogram(table: Table) -> Array:
    """The numbers of records of one row whose target is in each bin of `EDGES`."""
    y = table[1]
    mask = table[-1]
    levels = jnp.sum(y > EDGES[1:], axis=1).astype(jnp.int32)
    return count_cells(levels[:, None], mask, (NUM_BINS,), ((0,),), (1,))


def _added(kind: str, name: str, rows: Rows | Mapped, mask: Array, public: Public) -> Array:
    """What the records of a turn add to a sum."""
    if isinstance(rows, Mapped) and kind == "total":
        return sum_weighted(rows.units, PULLS[name](rows, public), mask).reshape(-1)
    found = (
        OF_MAPPED[name](rows, public) if isinstance(rows, Mapped) else OF_ROWS[name](rows, public)
    )
    blocks = _gridded(found, mask, GRID_OF_PRODUCTS if kind == "products" else GRID_OF_SUMS)
    if kind == "total":
        return jnp.sum(blocks[:, 0], axis=0)
    # Of one block each, XLA multiplies matrices in half of the time.
    return (
        exact_product(blocks[:, 0].T, blocks[:, 0])
        if blocks.shape[1] == 1
        else jnp.einsum("pri,prj->ij", blocks, blocks, precision=jax.lax.Precision.HIGHEST)
    )


def sum_of(kind: str, name: str, table: Table, public: Public) -> Array:
    """The exact sum over all records of one kind: of B^T B over the blocks B, of blocks of one row, or of counts."""
    if kind == "histogram":
        return _histogram(table)

    def add(*turn: Array) -> Array:
        rows = _rows(*turn[:-1])
        return _added(
            kind, name, rows if name in OF_ROWS else mapped(rows, public.to), turn[-1], public
        )

    return summed(add, _turns(table))


def sum_of_mapped(kind: str, name: str, table: Table, public: Public) -> Array:
    """The same sum, to the bit, of the arrays that `map_table` makes."""

    def add(*turn: Array) -> Array:
        units, length, *others = turn[:-1]
        if units.ndim == 2:
            units, *others = (array[:, None] for array in (units, *others))
        return _added(kind, name, Mapped(units, length, *others), turn[-1], public)

    return summed(add, _turns(table))


def map_table(table: Table, to: Array) -> list[Array]:
    """The mapped rows of a table, and which records there are."""

    def turn(carry: Array, part: tuple[Array, ...]) -> tuple[Array, Mapped]:
        return carry, mapped(_rows(*part[:-1]), to)

    found = jax.lax.scan(turn, jnp.zeros(()), tuple(_turns(table)))[1]
    return [*(array.reshape(-1, *array.shape[2:]) for array in found), table[-1]]


@dataclasses.dataclass(frozen=True)
class RegressionSums(Sums):
    """The sums of a regression, with features filled up (`rounded_up`), so that few shapes are compiled for all tables.

    Attributes:
        outputs: What a predictor has: none, or K - 1.
        sums: Kinds of sums and of blocks.
    """

    outputs: tuple[int, ...]
    sums: tuple[Sum, ...]

    @property
    def _wide(self) -> int:
        return self.layout[0][0][-1] + 1

    @property
    def size(self) -> int:
        """As there."""
        latents = self._wide * math.prod(self.outputs)
        return max(
            latents**2 if kind == "products" else max(latents, NUM_BINS) for kind, _ in self.sums
        )

    @property
    def nowhere(self) -> Public:
        """As there."""
        return Public(np.zeros((self._wide, self._wide)), np.zeros((self._wide, *self.outputs)))

    def of(self, which: Any, public: Public, arrays: Sequence[Array]) -> Array:
        """As there."""

        def padded(sum: Sum, table: Table, public: Public) -> Array:
            found = sum_of(*sum, table, public).reshape(-1)
            return jnp.pad(found, (0, self.size - found.size))

        return jax.lax.switch(
            which, [functools.partial(padded, sum) for sum in self.sums], tuple(arrays), public
        )

    def is_prepared(self, which: int) -> bool:
        """As there."""
        kind, name = self.sums[which]
        return kind != "histogram" and name in OF_MAPPED

    def prepared_with(self, public: Public) -> Float[np.ndarray, "feature latent"]:
        """As there."""
        return public.to

    def prepare(self, made_with: Array, arrays: Sequence[Array]) -> list[Array]:
        """As there: the mapped rows."""
        return map_table(arrays, made_with)

    def of_prepared(self, which: Any, public: Public, arrays: Sequence[Array]) -> Array:
        """As there."""

        def padded(sum: Sum, table: Table, public: Public) -> Array:
            found = sum_of_mapped(*sum, table, public).reshape(-1)
            return jnp.pad(found, (0, self.size - found.size))

        own = [place for place in range(len(self.sums)) if self.is_prepared(place)]
        chosen = jnp.searchsorted(np.array(own), which)
        return jax.lax.switch(
            chosen, [functools.partial(padded, self.sums[x]) for x in own], tuple(arrays), public
        )

    def filled(self, public: Public) -> Public:
        """As there."""
        more = self._wide - len(public.to)
        theta = public.theta.reshape(math.prod(self.outputs), -1)
        theta = np.pad(theta, ((0, 0), (0, more)))
        theta = theta.T if self.outputs else theta[0]
        return public._replace(to=np.pad(public.to, ((0, more), (0, more))), theta=theta)

    def cut(self, which: int, found: np.ndarray, public: Public) -> np.ndarray:
        """As there; a matrix is made symmetric, which halves the variance beside its diagonal."""
        kind, rows = self.sums[which]
        if kind == "histogram" or rows == "bins":
            return found[:NUM_BINS]
        if rows in ("sizes", "weights"):
            return found[: 4 if rows == "weights" else 2]
        wide = self._wide
        outputs = 1 if rows in ("squares", "directions") else math.prod(self.outputs)
        own = np.add.outer(np.arange(outputs) * wide, np.arange(len(public.to))).reshape(-1)
        if kind == "total":
            return found[own]
        found = found[: (outputs * wide) ** 2].reshape(outputs * wide, -1)[np.ix_(own, own)]
        return (found + found.T) / 2


def layout_for(table: Sequence[np.ndarray], num_features: int) -> RowShapes:
    """Features, filled up to so many, as numbers of 32 bits unless they have 64; all else of its own type."""
    x, *others = table
    rows = x.shape[1]
    wide = x.dtype.kind == "f" and x.dtype.itemsize == 8
    own = [((rows,), str(array.dtype)) for array in others]
    return ((rows, num_features), "float64" if wide else "float32"), *own


def program_of(sum: Sum, noise: float, turns: int, made_for: RegressionSums) -> Program:
    """A release of one of the sums, by a program that can release the others, too, unless they have very many numbers.

    Raises:
        PrivacyError: There is no proof.
    """
    if made_for.size > LARGEST_SHARED:
        alike = tuple(
            other for other in made_for.sums if (other[0] == "products") == (sum[0] == "products")
        )
        made_for = dataclasses.replace(made_for, sums=alike)
    return proved(made_for, made_for.sums.index(sum), noise, turns)
