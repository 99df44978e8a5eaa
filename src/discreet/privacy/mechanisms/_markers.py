"""Markers: one JAX primitive per privacy operation, compiled by XLA as a plain function and recognized by the verifier.

A mechanism is an object (`GaussianMechanism`, `LaplaceMechanism`) that adds its noise and declares
its event, the norm of that event and the total variation between the two; a sampler likewise
(`discreet.sampling`). The primitives:

    CLIP, SUM      rows of joint norm at most C; the sum of the rows that a mask keeps
    WEIGHTED_SUM   integer rows times weights, of joint norm at most 1, and their sum
    COUNT          integer cross tables: a record is in one cell of each
    DISTANCE       distances of cross tables from public numbers
    CHOOSE         one of several answers by the exponential mechanism
    DRAW           a secret batch of the table, and its rows; the parameter is the sampler's drawing
    NOISE          noise on a tree of arrays; the parameter is the mechanism
    CLIPPED_SUM    the contract of gradient engines. Clip and sum cannot express it, since an engine never forms the records'
                   gradients; so it is trusted, and tests check the engines
    UPDATE_ROWS    per-record state from batch to batch, which is never released

All code uses the same primitives: `dp.gaussian_mechanism` and the step of `DPSVI` bind the same
`NOISE`. Numbers known at trace time are parameters of a primitive, traced ones are operands
(`known_number`), and the verifier reads both. A new mechanism is one class, one entry in
`MECHANISMS`, and a public function that calls `add_noise` with it.

In `CLIPPED_SUM` and `UPDATE_ROWS` a user's program gets only the primitive's operands: it is traced
here for one record, so that it cannot combine two.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from discreet._dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent
from discreet._jax import ClosedJaxpr, jaxpr_as_fun, marker, one_process, open_program, types_of
from discreet._validate import RefusedError
from discreet.privacy import gradients, random
from discreet.privacy.accounting import BoundedRangeDpEvent
from discreet.privacy.gradients import (
    BookKeepingEngine,
    Channels,
    ClippedSum,
    GradientEngine,
    ReferenceEngine,
    check_positive,
)
from discreet.privacy.mechanisms._integers import (
    CHOICE_GRID,
    CHOICE_SLACK,
    GAUSSIAN_LAWS,
    LAPLACE_LAW,
    LEAST_STDDEV,
    MOST_CHOICES,
    MOST_SHARE,
    MOST_STDDEV,
    SLACK,
    UNKNOWN,
    Law,
    add_noise_on_grid,
    choose_on_grid,
    grid,
    levels_for,
    too_far,
)
from discreet.privacy.mechanisms._shards import Shards, in_turns
from discreet.privacy.random import INNER_VARIANCE, SLACK_PER_VALUE
from discreet.privacy.sampling import (
    Batch,
    Drawing,
    FixedSizeSampling,
    OpenPoisson,
    PoissonSampling,
)

FOR_SUMS = 2.0**-11
"""The additional noise with which the public mechanisms cover the rounding of sums:
`gradients.rounding_of_records` of 4,000 rows, in float32."""
_WHOLE = 64
"""Allowances for rounding are multiples of this, so that no rounding of floats makes another one of them."""
REMEDY = "Without noise nothing is private: use noise_multiplier * clipping_norm of a PrivacyPlan."


class Mechanism(abc.ABC):
    """Noise and its event. Implementations are frozen dataclasses without numbers: the noise's size is an operand.

    Attributes:
        name: The public function.
        size: The name of that function's argument for the size of the noise.
        words: The noise and its size, for statements: "Gaussian noise of standard deviation".
        norm: The norm, 1 or 2, of one record's contribution, which is the unit of the noise's size
            in `event`. 0: it adds no noise to sums, and its load is its whole cost.
        hidden: The target of the noise, for statements: the sum as a whole if the noise has a joint
            distribution.
        adds_up: Several releases of the same records are exactly one, whose squared ratio of bound
            to noise is the sum of theirs, as for Gaussian noise.
        slack: Total variation between a release as computed and one of `event`. 0 for
            floating-point noise, whose rounding is not accounted for.
        on_grid: The sum is rounded to a grid before integer noise is added (`GridMechanism`).
    """

    name: ClassVar[str]
    size: ClassVar[str]
    words: ClassVar[str]
    norm: ClassVar[int]
    hidden: ClassVar[str] = "every coordinate of the sum"
    adds_up: ClassVar[bool] = False
    slack: ClassVar[float] = 0.0
    on_grid: ClassVar[bool] = False

    @abc.abstractmethod
    def event(self, noise_multiplier: Any) -> DpEvent:
        """The event of one release with noise of this many times the norm of one record's contribution."""

    @abc.abstractmethod
    def add(
        self, key: PRNGKeyArray, leaves: list[Array], size: Any, multiplier: Any, levels: int
    ) -> list[Array]:
        """Add noise to the leaves: one draw for all coordinates, in the order of the leaves.

        `multiplier` is the largest supported ratio of `size` to the bound on one record; `levels`:
        see `levels_for`.
        """

    def rounding(self, dim: int) -> float:
        """Upper bound, in grid points and this mechanism's norm, on the distance that rounding adds between neighbours."""
        del dim
        return 0.0

    def most_multiplier(self, dim: int) -> float:
        """The default largest noise multiplier for a release of `dim` coordinates."""
        del dim
        return math.inf

    def cell(self, dim: int, multiplier: float, levels: int) -> float | None:
        """Upper bound on `rounding` divided by the size of the noise; None: unknown, and no release is proved."""
        del dim, multiplier, levels
        return None


class FloatMechanism(Mechanism):
    """Floating-point noise. The last bits of its releases distinguish neighbours."""

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray, dim: int, dtype: Any) -> Float[Array, " dim"]:
        """Independent noise of size 1 for `dim` coordinates."""

    def add(
        self, key: PRNGKeyArray, leaves: list[Array], size: Any, multiplier: Any, levels: int
    ) -> list[Array]:
        """The sum of floats and floats."""
        del multiplier, levels
        noise = size * self.noise(key, sum(x.size for x in leaves), jnp.result_type(*leaves))
        noised = []
        start = 0
        for leaf in leaves:
            # Each leaf is added to its own part of the draw; they are never copied into one vector.
            own = noise[start : start + leaf.size].reshape(leaf.shape)
            noised.append((leaf + own).astype(leaf.dtype))
            start += leaf.size
        return noised


class GridMechanism(Mechanism):
    """Integer noise on a grid, see `_integers`: `event` covers the rounding to it, and last bits."""

    on_grid: ClassVar[bool] = True

    @abc.abstractmethod
    def law(self, levels: int) -> Law:
        """The law of the noise with this number of levels."""

    def rounding(self, dim: int) -> float:
        """Twice the norm of half a grid point in each coordinate."""
        if self.norm not in (1, 2):
            raise ValueError(
                f"{self.name}: rounding is bounded in the norms 1 and 2, not in the norm {self.norm}."
            )
        return float(dim if self.norm == 1 else math.sqrt(dim))

    def most_multiplier(self, dim: int) -> float:
        """The multiplier up to which rounding adds little to the noise."""
        return UNKNOWN / self.rounding(dim)

    def cell(self, dim: int, multiplier: float, levels: int) -> float:
        return self.rounding(dim) / (
            0.49 * self.law(levels).reach - multiplier * self.rounding(dim)
        )

    def add(
        self, key: PRNGKeyArray, leaves: list[Array], size: Any, multiplier: Any, levels: int
    ) -> list[Array]:
        allowance = multiplier * self.rounding(sum(x.size for x in leaves))
        return add_noise_on_grid(key, leaves, size, allowance, self.law(levels))


class _Gaussian(Mechanism):
    """The event of Gaussian noise of either kind; the size is the standard deviation of the continuous noise."""

    name: ClassVar[str] = "gaussian_mechanism"
    size: ClassVar[str] = "stddev"
    norm: ClassVar[int] = 2
    adds_up: ClassVar[bool] = True

    def event(self, noise_multiplier: Any) -> DpEvent:
        return GaussianDpEvent(noise_multiplier)


@dataclass(frozen=True)
class FloatGaussianMechanism(_Gaussian, FloatMechanism):
    """Normal floating-point noise."""

    words: ClassVar[str] = "floating-point Gaussian noise of standard deviation"

    def noise(self, key: PRNGKeyArray, dim: int, dtype: Any) -> Float[Array, " dim"]:
        """Standard normal variables with untruncated tails."""
        return random.normal(key, (dim,), dtype)


@dataclass(frozen=True)
class GaussianMechanism(_Gaussian, GridMechanism):
    """Discrete Gaussian noise."""

    words: ClassVar[str] = "Gaussian noise of standard deviation"
    slack: ClassVar[float] = SLACK

    def law(self, levels: int) -> Law:
        return GAUSSIAN_LAWS[levels]

    def most_planned(self, noise_multiplier: float, dim: int, room: int = 0) -> float:
        """The largest multiplier that a planned release of `dim` coordinates holds for, given the plan's.

        With `room`, the law of the noise is one for all numbers of coordinates up to it: a secret
        number must not show in the law of the others' noise. What the grid allows for rounding is
        then an integer that floats hold, whatever `dim` is.

        Raises:
            ValueError: The grid cannot hold it, or there are more coordinates than room.
        """
        levels_for(noise_multiplier, max(dim, room))
        if not room:
            return max(noise_multiplier, self.most_multiplier(dim))
        if dim > room:
            raise ValueError(f"a release has {dim:,} coordinates, and there is room for {room:,}")
        allowance = (
            math.ceil(max(noise_multiplier * self.rounding(room), UNKNOWN) / _WHOLE) * _WHOLE
        )
        return allowance / self.rounding(dim)

    def drawn(
        self, stddev: float, noise_multiplier: float, dim: int, room: int = 0
    ) -> tuple[float, float]:
        """Spacing of the grid of `planned_gaussian`, 0 if there is none, and the standard deviation of its noise in grid points.

        Their product is above `stddev`, by some 0.4 %, and by up to a tenth where rounding takes
        much of the grid.

        Args:
            stddev: As of the release, as is the next.
            noise_multiplier: As there.
            dim: The number of coordinates that are released together.
            room: As in `most_planned`.
        """
        allowance = self.most_planned(noise_multiplier, dim, room) * self.rounding(dim)
        spacing, factor = map(float, grid(stddev * (1 + FOR_SUMS), allowance, self.law(3)))
        return spacing * (factor > 0), math.sqrt(
            INNER_VARIANCE[2] + int(factor) ** 2 * INNER_VARIANCE[3]
        )

    def exceeds(
        self, distance: float, stddev: float, noise_multiplier: float, dim: int, room: int = 0
    ) -> float:
        """Upper bound on the probability that the noise of `planned_gaussian` on one number is more than a distance.

        The noise is an integer of the law D(s), in grid points. Of z from t > 0 on, the sum of
        exp(-z^2 / 2 s^2) is at most the integral from t - 1 on, and that of all z is the integral
        but for a factor of 1 - 2^-170 (Poisson summation).

        Args:
            distance: Above 0.
            stddev: As in `drawn`, as are the others.
            noise_multiplier: As there.
            dim: As there.
            room: As there.
        """
        spacing, s = self.drawn(stddev, noise_multiplier, dim, room)
        # One grid point less, since the released number is rounded to a float.
        points = math.floor(distance / spacing) - 1 if spacing else 0
        if points <= 0:
            return 1.0
        return math.erfc(points / s / math.sqrt(2)) / 2 * (1 + 1e-9) + SLACK_PER_VALUE


@dataclass(frozen=True)
class LaplaceMechanism(GridMechanism):
    """Discrete Laplace noise; the size is the scale b of the continuous density exp(-|x| / b) / 2b."""

    name: ClassVar[str] = "laplace_mechanism"
    size: ClassVar[str] = "scale"
    words: ClassVar[str] = "Laplace noise of scale"
    norm: ClassVar[int] = 1

    def event(self, noise_multiplier: Any) -> DpEvent:
        return LaplaceDpEvent(noise_multiplier)

    def law(self, levels: int) -> Law:
        del levels
        return LAPLACE_LAW

    def most_planned(self, noise_multiplier: float, dim: int) -> float:
        """The largest multiplier that a planned release of `dim` coordinates holds for, given the plan's.

        Raises:
            ValueError: The grid cannot hold it.
        """
        if noise_multiplier * self.rounding(dim) > MOST_SHARE * LAPLACE_LAW.reach:
            raise ValueError(too_far(noise_multiplier, dim))
        return max(noise_multiplier, self.most_multiplier(dim))

    def drawn(self, scale: float, noise_multiplier: float, dim: int) -> float:
        """The scale of the noise of `planned_laplace`, on its grid: above `scale`, by up to 0.9 %.

        It is up to 11 % where rounding takes much of the grid, as in `most_planned`. The law of
        floor(L) has at most the variance of a Laplace variable whose scale is one grid point more.
        """
        allowance = self.most_planned(noise_multiplier, dim) * self.rounding(dim)
        spacing, factor = map(float, grid(scale * (1 + FOR_SUMS), allowance, LAPLACE_LAW))
        return spacing * (factor * LAPLACE_LAW.unit + 1)


@dataclass(frozen=True)
class ExponentialMechanism(Mechanism):
    """A selection without additive noise: its cost follows from the sensitivity of the scores."""

    name: ClassVar[str] = "exponential_mechanism"
    size: ClassVar[str] = "epsilon"
    words: ClassVar[str] = "a choice by the exponential mechanism of epsilon"
    norm: ClassVar[int] = 0
    slack: ClassVar[float] = CHOICE_SLACK
    on_grid: ClassVar[bool] = True

    def event(self, noise_multiplier: Any) -> DpEvent:
        return BoundedRangeDpEvent(1 / noise_multiplier)

    def add(
        self, key: PRNGKeyArray, leaves: list[Array], size: Any, multiplier: Any, levels: int
    ) -> list[Array]:
        """Refuse: there is no noise to add."""
        raise TypeError("the exponential mechanism adds no noise: call dp.exponential_mechanism")

    def range(self, epsilon: float, moved: float) -> float:
        """The privacy range of a selection if one record moves each score by at most `moved`; see `_integers`."""
        return epsilon * (moved + CHOICE_GRID) / (1 + CHOICE_GRID) if moved != 1 else epsilon


CHOICE = ExponentialMechanism()
GAUSSIAN = GaussianMechanism()
LAPLACE = LaplaceMechanism()
FLOAT_GAUSSIAN = FloatGaussianMechanism()
MECHANISMS: list[Mechanism] = [GAUSSIAN, LAPLACE, FLOAT_GAUSSIAN]
"""The trusted mechanisms: the verifier relies on their declared events, and on no others'."""


class NoNoiseError(RefusedError):
    """The noise of a mechanism is zero at trace time, so its release would not be private."""


def check_leaves(mechanism: str, leaves: list[Any]) -> list[Array]:
    if not leaves:
        raise ValueError(f"{mechanism}: the tree contains no array. Pass at least one.")
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    for array in arrays:
        if array.dtype not in (jnp.float32, jnp.float64):
            raise TypeError(
                f"{mechanism}: a leaf has dtype {array.dtype}. Noise is added in float32 or float64, since "
                "coarser numbers would round it away; convert the leaf with .astype(jnp.float32)."
            )
    return arrays


def _noised(
    key: PRNGKeyArray,
    *operands: Array,
    mechanism: Mechanism,
    size: float | None,
    multiplier: float | None,
    levels: int,
    name: str,
    mapped: bool,
) -> list[Array]:
    """The leaves with noise added. A traced size, and then a traced multiplier, come last."""
    del name
    # Noise is computed here, also under certify's traces and a caller's jit: refuse releases from
    # several processes.
    one_process("The noise of a mechanism")
    leaves = list(operands)
    scale = size
    own = multiplier
    if own is None:
        own = leaves.pop()
    if scale is None:
        # A traced size that is too small or too large makes the release NaN.
        traced = leaves.pop()
        magnitude = jnp.abs(traced)
        scale = jnp.where((magnitude >= 1e-20) & (magnitude <= 1e20), traced, jnp.nan)
    key = random.check_key(key)
    if not mapped:
        # A fit claims its key. Of the public functions nobody knows whether a key serves twice, in
        # a loop for instance.
        key = random.key_for(key, [*leaves, scale, own])
        scale = scale * (1 + FOR_SUMS * mechanism.on_grid)
    return mechanism.add(key, leaves, scale, own, levels)


def _clip(*operands: Array, norm: float | None, order: int) -> list[Array]:
    *rows, bound = (*operands, norm) if norm is not None else operands
    return gradients.clip_records(rows, bound, order)


def _sum(*operands: Array) -> list[Array]:
    *rows, mask = operands
    return gradients.sum_records(rows, mask)


def _weighted(rows: Array, weights: Array, mask: Array) -> list[Array]:
    return [gradients.sum_weighted(rows, weights, mask)]


def _counted(
    levels: Array,
    mask: Array,
    *counted: Array,
    sizes: tuple[int, ...],
    tables: tuple[tuple[int, ...], ...],
    weights: tuple[int, ...],
) -> list[Array]:
    """Implement `count_cells`: one scatter per table, in integers, then converted to floats where they are exact."""
    cells = [math.prod(sizes[column] for column in table) for table in tables]
    strides = np.zeros((len(tables), len(sizes)), np.int32)
    for number, table in enumerate(tables):
        for place, column in enumerate(table):
            strides[number, column] = math.prod(sizes[c] for c in table[place + 1 :])
    levels = levels.astype(jnp.int32)
    limits = np.asarray(sizes, np.int32)
    mask = mask.reshape(-1, *[1] * (levels.ndim - 2))
    real = mask & jnp.all((levels >= 0) & (levels < limits), axis=-1)

    def add(total: Array, table: tuple[Array, Array]) -> tuple[Array, None]:
        code = table[1] + levels @ table[0]
        return total.at[jnp.where(real, code, sum(cells))].add(1, mode="drop"), None

    start = jnp.zeros(sum(cells), jnp.result_type(int))
    total, _ = jax.lax.scan(
        add, start, (jnp.asarray(strides), jnp.cumsum(jnp.asarray([0, *cells[:-1]], jnp.int32)))
    )
    dtype = jnp.result_type(float)
    weight = np.repeat(np.asarray(weights), cells)
    # A count saturates where floats become inexact: it never moves by more than one.
    most = np.asarray(2 ** (jnp.finfo(dtype).nmant + 1) // weight, total.dtype)
    before = jnp.clip(counted[0], 0, most) if counted else 0
    return [jnp.asarray(weight, dtype) * jnp.minimum(before + total, most).astype(dtype)]


def _distances(
    levels: Array,
    mask: Array,
    expected: Array,
    biases: Array,
    *counted: Array,
    sizes: tuple[int, ...],
    tables: tuple[tuple[int, ...], ...],
    weights: tuple[int, ...],
) -> list[Array]:
    """Implement `table_distances`: integers small enough to be exact."""
    cells = [math.prod(sizes[column] for column in table) for table in tables]
    counts = _counted(
        levels, mask, *counted, sizes=sizes, tables=tables, weights=(1,) * len(tables)
    )[0]
    # Counts saturate here, so that weighted sums of distances stay within a quarter of the exact
    # range.
    most = float(2 ** (jnp.finfo(counts.dtype).nmant - 2) // (max(cells) * max(weights)))
    apart = jnp.abs(
        jnp.minimum(counts, most) - jnp.clip(expected.astype(counts.dtype), -most, most)
    )
    total = (
        jnp.zeros(len(tables), counts.dtype).at[np.repeat(np.arange(len(tables)), cells)].add(apart)
    )
    room = 2 ** (jnp.finfo(counts.dtype).nmant - 2) // max(weights)
    return [(total - jnp.clip(biases.astype(counts.dtype), -room, room)) * np.asarray(weights)]


def _chosen(key: PRNGKeyArray, scores: Array, *, epsilon: float, name: str) -> list[Array]:
    del name
    one_process("A choice")
    key = random.key_for(random.check_key(key), [scores])
    return [choose_on_grid(key, scores, epsilon / (1 + FOR_SUMS))]


def _drawn(
    key: PRNGKeyArray, *operands: Array, drawing: Drawing, structure: Any, name: str, mapped: bool
) -> list[Array]:
    """Row numbers, mask, and the batch's rows of those operands that are not tables; rows without a record are zero."""
    del name, mapped
    count = structure.num_leaves
    batch = drawing.draw(random.check_key(key), jax.tree.unflatten(structure, operands[:count]))

    def rows(x: Array) -> Array:
        # A padding row has the number of record 0, which must not show.
        taken = x.at[batch.indices].get(mode="promise_in_bounds", wrap_negative_indices=False)
        return jnp.where(batch.mask.reshape(-1, *[1] * (x.ndim - 1)), taken, jnp.zeros_like(taken))

    return [*batch, *map(rows, operands[count:])]


def _draw_shapes(
    key: PRNGKeyArray, *operands: Array, drawing: Drawing, structure: Any, name: str, mapped: bool
) -> list[Array]:
    """Outputs of the types of `_drawn`, for forms that can be traced but not run."""
    del key, name, mapped
    rows = [
        jnp.zeros((drawing.capacity, *x.shape[1:]), x.dtype)
        for x in operands[structure.num_leaves :]
    ]
    return [jnp.zeros(drawing.capacity, jnp.int32), jnp.zeros(drawing.capacity, bool), *rows]


def _run(
    *operands: Any,
    implementation: ClosedJaxpr,
    layout: OperandCounts,
    shards: Shards | None,
    **parameters: Any,
) -> list[Array]:
    """The implementation; over devices, that of each device's part of the table, summed or concatenated."""
    del parameters  # for the verifier
    if shards is None:
        return jaxpr_as_fun(implementation)(*operands)
    return shards.on_each(
        jaxpr_as_fun(implementation), operands, layout.spread, summed=layout.summed
    )


CLIP = marker("clip_records", _clip, refuse=None)
SUM = marker("sum_records", _sum, refuse=None)
WEIGHTED_SUM = marker("sum_weighted", _weighted, refuse=None)
COUNT = marker("count_cells", _counted, refuse=None)
DISTANCE = marker("table_distances", _distances, refuse=None)
CHOOSE = marker(
    "choose",
    _chosen,
    refuse="one event covers one selection. Map the computation of the scores, and call the mechanism once, on the result.",
)
NOISE = marker(
    "noise",
    _noised,
    refuse="one event covers one draw of noise, so a mechanism cannot be mapped or differentiated. Map or differentiate the "
    "computation of the sum, and call the mechanism once, on the result.",
    keyed=True,
)
DRAW = marker(
    "draw",
    _drawn,
    refuse="one event covers one draw of a batch. Draw it outside of the mapped or differentiated function.",
    shapes=_draw_shapes,
    keyed=True,
)
CLIPPED_SUM = marker("clipped_sum", _run, refuse=None)
UPDATE_ROWS = marker("update_rows", _run, refuse=None)


def known_number(value: Any) -> tuple[float | None, list[Any]]:
    """Split a number: a parameter of a primitive if it is known, else an additional operand."""
    return (None, [value]) if isinstance(value, Tracer) else (float(value), [])


def clip_records(tree: Any, norm: float | Float[Array, ""], order: int = 2) -> Any:
    """Scale each record's slice of a tree so that its joint L2 norm, or with order 1 its L1 norm, is at most `norm`.

    Guarantee: for every record, finite or not, sqrt(sum over leaves of |slice|^2), or the sum of
    sizes, is <= `norm` after rounding to float32. A record with a NaN or an infinity, or whose squared norm overflows,
    becomes exactly zero. A record already within the norm keeps its value. Low-precision leaves
    come back as float32.

    Args:
        tree: Arrays whose leading axis is the records.
        norm: The bound; positive and finite, a Python number or a scalar array.
        order: 2, or 1, which `laplace_mechanism` needs.

    Returns:
        A tree of the same structure and shapes.

    Raises:
        ValueError: A norm known while tracing is not positive and finite, the tree is empty, or
            another order.
        TypeError: A leaf is complex.

    Reference:
        Abadi et al., Deep learning with differential privacy, CCS 2016, Algorithm 1.

    >>> import jax.numpy as jnp, discreet as dp
    >>> rows = jnp.array([[3.0, 4.0], [0.3, 0.4], [jnp.nan, 0.0]])
    >>> [round(float(x), 4) for x in jnp.linalg.norm(dp.clip_records(rows, 1.0), axis=1)]
    [1.0, 0.5, 0.0]
    """
    # Check all arguments here, from shapes alone.
    if order not in (1, 2):
        raise ValueError(f"clip_records: order is {order!r}; norms of order 1 and 2 are bounded.")
    jax.eval_shape(lambda x: gradients.clip_records(x, norm), tree)
    known, operands = known_number(norm)
    leaves, structure = jax.tree.flatten(tree)
    clipped = CLIP.bind(*leaves, *operands, norm=known, order=int(order))
    return jax.tree.unflatten(structure, clipped)


def sum_records(tree: Any, mask: Bool[Array, "record"]) -> Any:
    """Sum over the leading axis the rows that `mask` keeps; the others count as exactly zero.

    Guarantee: a dropped row has no influence, whatever its content (NaN included): it is replaced
    by zeros, not multiplied by zero. Rows are added in float64, and the sum is rounded to their
    type once: for n rows of norm C in float32, one record moves it by at most C (1 + n 2**-23),
    which `gaussian_mechanism` and `certify` account for. With `jax.enable_x64` and float64 rows the
    rounding is negligible.

    Args:
        tree: Arrays whose leading axis is the records.
        mask: True for real rows.

    Returns:
        A tree of the same structure without the leading axis.

    >>> import jax.numpy as jnp, discreet as dp
    >>> float(dp.sum_records(jnp.array([1.0, 2.0, jnp.nan]), jnp.array([True, True, False])))
    3.0
    """
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, SUM.bind(*leaves, mask)) if leaves else tree


def sum_weighted(
    rows: Int[Array, "record row latent"],
    weights: Float[Array, "record row output"],
    mask: Bool[Array, "record"],
) -> Float[Array, "output latent"]:
    """Sum integer rows times weights over the records and their rows, exactly.

    Guarantee: one record adds at most 1 in L2, whatever its rows and weights hold: for up to 2**26
    records that is what the sum as computed moves by, in any order of additions. Where the sum over
    its rows of |weights| |row| exceeds 1, weights are divided by it. Where that is not finite, or
    the mask drops the record, it counts as exactly zero. Products are shortened by one part in 1e6,
    and rounded to 2**-24.

    Args:
        rows: Integers, in any unit: weights are relative to it. A row of zeros counts as one of
            length 1 in that sum.
        weights: For each row one number for each output.
        mask: True for real records.

    Returns:
        The sum over records and rows of the outer products of weights and row.

    Raises:
        TypeError: Rows are not integers.
        ValueError: Shapes do not fit, or there are more records.

    >>> import jax.numpy as jnp
    >>> rows = jnp.array([[[3, 4]], [[0, 1]], [[0, 8]]])
    >>> sum_weighted(rows, jnp.array([[[0.1]], [[jnp.nan]], [[0.2]]]), jnp.ones(3, bool)).round(3)
    Array([[0.3, 1.4]], dtype=float64)
    """
    rows = jnp.asarray(rows)
    weights = jnp.asarray(weights)
    mask = jnp.asarray(mask)
    if not jnp.issubdtype(rows.dtype, jnp.integer) or mask.dtype != bool:
        raise TypeError(
            f"sum_weighted: rows are {rows.dtype} and the mask is {mask.dtype}; pass integers and Booleans."
        )
    fits = rows.ndim == weights.ndim == 3 and weights.shape[:2] == rows.shape[:2]
    if not (fits and mask.shape == rows.shape[:1] and min(weights.shape[1:]) > 0):
        raise ValueError(
            f"sum_weighted: rows have the shape {rows.shape}, weights {weights.shape} and the mask {mask.shape}; pass (record, "
            "row, latent), (record, row, output) and (record,)."
        )
    if len(mask) > gradients.MOST_WEIGHTED:
        raise ValueError(
            f"sum_weighted: of {len(mask):,} records; sums are exact for {gradients.MOST_WEIGHTED:,} at most."
        )
    return WEIGHTED_SUM.bind(rows, weights, mask)[0]


def count_cells(
    levels: Int[Array, "record *row column"],
    mask: Bool[Array, "record"],
    sizes: Sequence[int],
    tables: Sequence[Sequence[int]],
    weights: Sequence[int],
    counted: Int[Array, "cell"] | None = None,
) -> Float[Array, "cell"]:
    """Count the records, or their rows, in each cell of cross tables, each table times its weight.

    Guarantee: a record that is added or removed changes the result by at most sqrt(sum of squared
    weights) in L2, and one that is replaced by sqrt(2) times that, whatever its levels: it is in at
    most one cell of each table. A record of m rows changes it by m times that, as where all its
    rows are alike. Nothing is rounded. A row that the mask drops, or with a level that its column
    does not have, is in none.

    Args:
        levels: The level of each cell, from 0; where records have several rows, with an axis of
            rows.
        mask: True for real records.
        sizes: Number of levels of each column.
        tables: The columns of each table, by position; of no columns: one cell, with all records.
        weights: Weights of the tables, integers of at least 1.
        counted: Public counts of further records, the tables' cells concatenated, in C order.

    Returns:
        Weighted counts in the order of `counted`: float32, which end at 2^24, or float64, at 2^53,
            where JAX has 64 bits.

    Raises:
        ValueError, TypeError: Arguments of other shapes or types.

    >>> import jax.numpy as jnp
    >>> count_cells(jnp.array([[0, 1], [1, 1], [0, 1]]), jnp.ones(3, bool), (2, 2), [(0,), (0, 1)], [1, 3]).tolist()
    [2.0, 1.0, 0.0, 6.0, 0.0, 3.0]
    """
    levels = jnp.asarray(levels)
    mask = jnp.asarray(mask)
    if not jnp.issubdtype(levels.dtype, jnp.integer) or mask.dtype != bool:
        raise TypeError(
            f"count_cells: levels are {levels.dtype} and the mask is {mask.dtype}; pass integers and Booleans."
        )
    sizes = tuple(map(int, sizes))
    weights = tuple(map(int, weights))
    tables = tuple(tuple(map(int, x)) for x in tables)
    columns = [column for table in tables for column in table]
    fits = (
        levels.ndim in (2, 3) and levels.shape[-1] == len(sizes) and mask.shape == levels.shape[:1]
    )
    if not (
        fits and tables and len(weights) == len(tables) and set(columns) <= set(range(len(sizes)))
    ):
        raise ValueError(
            f"count_cells: levels have the shape {levels.shape} and the mask {mask.shape}, for {len(sizes)} columns, tables "
            f"{tables} and {len(weights)} weights. Pass a level for each column, and tables of these columns with a weight each."
        )
    cells = sum(math.prod(sizes[column] for column in table) for table in tables)
    if (
        min(weights) < 1
        or max(weights) > 2**20
        or min(sizes) < 1
        or max(cells, math.prod(levels.shape[:-1])) >= 2**30
    ):
        raise ValueError(
            f"count_cells: weights are {weights} and there are {cells} cells; pass weights from 1 to 2^20, columns with levels, "
            "and fewer than 2^30 records and cells."
        )
    further = [] if counted is None else [jnp.asarray(counted)]
    if any(x.shape != (cells,) or not jnp.issubdtype(x.dtype, jnp.integer) for x in further):
        raise ValueError(
            f"count_cells: counted has the shape {further[0].shape}; pass {cells} integers, one for each cell."
        )
    return COUNT.bind(levels, mask, *further, sizes=sizes, tables=tables, weights=weights)[0]


def table_distances(
    levels: Int[Array, "record *row column"],
    mask: Bool[Array, "record"],
    expected: Int[Array, "cell"],
    sizes: Sequence[int],
    tables: Sequence[Sequence[int]],
    weights: Sequence[int],
    biases: Int[Array, "table"],
    counted: Int[Array, "cell"] | None = None,
) -> Float[Array, "table"]:
    """Sum the distances of each cross table's counts from expected ones; subtract the bias and multiply by the weight.

    Guarantee: a record that is added or removed changes each score by at most the table's weight,
    and one that is replaced by twice that, whatever its levels: it is in at most one cell of each
    table; a record of m rows by m times that. Nothing is rounded.

    Args, beside those of `count_cells`:
        expected: Public integers, in the order of `counted`.
        biases: Public integers to subtract from the distances, saturated at 2^50 over the largest
            weight, or at 2^21 over it in float32.

    Returns:
        A score for each table, of float64 where JAX has 64 bits. Counts end at 2^50 over the
        product of the most cells and the largest weight, or at 2^21 over it in float32.

    Raises:
        ValueError, TypeError: Arguments of other shapes or types.

    >>> rows, kept = jnp.array([[0, 1], [1, 1], [0, 1]]), jnp.ones(3, bool)
    >>> table_distances(rows, kept, jnp.array([1, 2, 0, 1]), (2, 2), [(0,), (1,)], [1, 3], [0, 1]).tolist()
    [2.0, 3.0]
    """
    levels, mask, expected, biases = (jnp.asarray(x) for x in (levels, mask, expected, biases))
    sizes = tuple(map(int, sizes))
    tables = tuple(tuple(map(int, x)) for x in tables)
    weights = tuple(map(int, weights))
    further = [] if counted is None else [jnp.asarray(counted)]
    # What is refused is refused by `count_cells`; types alone are looked at.
    shape = jax.eval_shape(
        lambda x, m, *c: count_cells(x, m, sizes, tables, weights, *c), levels, mask, *further
    )
    whole = all(jnp.issubdtype(x.dtype, jnp.integer) for x in (expected, biases))
    if expected.shape != shape.shape or biases.shape != (len(tables),) or not whole:
        raise ValueError(
            f"table_distances: biases are {biases.dtype}{biases.shape}, and expected counts are {expected.dtype}"
            f"{expected.shape}; pass a bias for each of {len(tables)} tables, and {shape.shape[0]} counts, all integers."
        )
    return DISTANCE.bind(
        levels, mask, expected, biases, *further, sizes=sizes, tables=tables, weights=weights
    )[0]


def exponential_mechanism(
    key: PRNGKeyArray, scores: Float[Array, "answer"], epsilon: float
) -> Int[Array, ""]:
    """Choose one of several answers with probability proportional to exp(epsilon score / 2).

    Guarantee: if one record that is added or removed changes each score, as computed, by at most 1,
    the choice is a `BoundedRangeDpEvent(epsilon)` within total variation 2**-100, rounding and last
    bits included: the privacy losses of all answers lie within an interval of length epsilon. If by
    at most D, the event's epsilon is (D + g) / (1 + g) times that, g = 2**-16: scores should be
    scaled so that D is near 1. Scores may move up and down; where all of them move the same way the
    truth is half of that, which is not used.

    Args:
        key: A scalar key, for this call alone. Keys of `discreet.random.key` are secure.
        scores: At most 2**20, float32 or float64, rounded to multiples of g. NaN counts as the
            lowest, and what is more than 2**28 below the largest as that far below.
        epsilon: A number that is known while tracing, from 1e-6 to 200.

    Returns:
        The index of the answer, int32.

    Raises:
        ValueError: An epsilon out of range, or no or too many scores.
        TypeError: Scores of another type, or an epsilon that is known only when the program runs.

    References:
        McSherry and Talwar, FOCS 2007; Dong, Durfee and Rogers, ICML 2020, for the event; Ilvento,
        CCS 2020, for attacks on choices in floating point.

    >>> import jax.numpy as jnp, discreet as dp
    >>> int(dp.exponential_mechanism(dp.random.key(), jnp.array([0.0, 500.0, 3.0]), epsilon=1.0))
    1
    """
    if isinstance(epsilon, Tracer):
        raise TypeError(
            "exponential_mechanism: epsilon is traced. Pass a Python number: an epsilon that depends on data has no event."
        )
    if not 1e-6 <= float(epsilon) <= 200:
        raise ValueError(
            f"exponential_mechanism: epsilon is {epsilon}; it must be between 1e-6 and 200. 0.1 is common."
        )
    jax.eval_shape(random.check_key, key)
    one_process(CHOICE.name, [scores])
    (scores,) = check_leaves(CHOICE.name, [scores])
    if scores.ndim != 1 or not 1 <= len(scores) <= MOST_CHOICES:
        raise ValueError(
            f"exponential_mechanism: scores have the shape {scores.shape}; pass a vector of 1 to {MOST_CHOICES} of them."
        )
    return CHOOSE.bind(key, scores, epsilon=float(epsilon), name=CHOICE.name)[0]


def gaussian_mechanism(key: PRNGKeyArray, tree: Any, stddev: float | Float[Array, ""]) -> Any:
    """Add independent Gaussian noise to every coordinate of a tree of arrays.

    Guarantee: if one record changes the tree, as computed, by at most C in joint L2 norm, and
    stddev = noise_multiplier * C, the release is a `GaussianDpEvent(noise_multiplier)` within total
    variation 2**-136, rounding and last bits included. The tree is rounded to a grid, and the noise
    is a discrete Gaussian there: docs/arithmetic.md has the proof. It holds for noise multipliers
    up to 2**17 / sqrt(d) for d coordinates (above that, for this one), and fewer than 2**31
    coordinates.

    Args:
        key: A scalar key, for this call alone. Keys of `discreet.random.key` are secure.
        tree: float32 or float64 arrays; the value to release. Values beyond 2**48 stddev are
            released as that.
        stddev: Standard deviation of the noise, in the units of `tree`, from 1e-28 to 1e30; it gets
            up to 0.4 % more. Where it is known only when the program runs, and then below 1e-20 or
            above 1e20, the release is NaN.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: `stddev`, where known while tracing, is not positive and finite, or out of that
            range.
        TypeError: A leaf is not float32 or float64.

    Reference:
        Dwork and Roth, The algorithmic foundations of differential privacy, 2014, A.1.

    >>> import jax.numpy as jnp, discreet as dp
    >>> dp.gaussian_mechanism(dp.random.key(), {"sum": jnp.zeros(3)}, 2.0)["sum"].shape
    (3,)
    """
    return add_noise(GAUSSIAN, key, tree, stddev)


def planned_gaussian(
    key: PRNGKeyArray, tree: Any, stddev: float, noise_multiplier: float, room: int = 0
) -> Any:
    """Add Gaussian noise as `gaussian_mechanism` does, also where the noise multiplier exceeds that function's limit.

    Args:
        key: As there, as are the next two.
        tree: The value to release.
        stddev: Standard deviation of the noise.
        noise_multiplier: The plan's ratio of `stddev` to the bound on one record.
        room: As in `GaussianMechanism.most_planned`: where the number of coordinates is secret.

    Raises:
        ValueError: The grid of the noise cannot hold this multiplier; and as there.
    """
    dim = max(1, sum(x.size for x in jax.tree.leaves(tree)))
    return add_noise(
        GAUSSIAN, key, tree, stddev, multiplier=GAUSSIAN.most_planned(noise_multiplier, dim, room)
    )


def planned_laplace(key: PRNGKeyArray, tree: Any, scale: float, noise_multiplier: float) -> Any:
    """Add Laplace noise as `laplace_mechanism` does, also where the noise multiplier exceeds that function's limit.

    Args:
        key: As there, as are the next two.
        tree: The value to release.
        scale: Scale of the noise.
        noise_multiplier: The plan's ratio of `scale` to the L1 bound on one record.

    Raises:
        ValueError: The grid of the noise cannot hold this multiplier; and as there.
    """
    dim = max(1, sum(x.size for x in jax.tree.leaves(tree)))
    return add_noise(
        LAPLACE, key, tree, scale, multiplier=LAPLACE.most_planned(noise_multiplier, dim)
    )


def laplace_mechanism(key: PRNGKeyArray, tree: Any, scale: float | Float[Array, ""]) -> Any:
    """Add independent Laplace noise to every coordinate of a tree of arrays.

    Guarantee: if one record changes the tree, as computed, by at most D in joint **L1** norm, and
    scale = noise_multiplier * D, the release is a `LaplaceDpEvent(noise_multiplier)`, rounding and
    last bits included: 1 / noise_multiplier is a pure epsilon. The tree is rounded to a grid, and
    the noise is a discrete Laplace there: docs/arithmetic.md has the proof, for noise multipliers
    up to 2**17 / d for d coordinates (above that, for this one). A bound in L2 is not enough: for d
    coordinates it understates epsilon by up to sqrt(d).

    Args:
        key: A scalar key, for this call alone. Keys of `discreet.random.key` are secure.
        tree: float32 or float64 arrays; the value to release. Values beyond 2**48 scales are
            released as that.
        scale: Scale b of the density exp(-|x| / b) / 2b, in the units of `tree`, from 1e-28 to
            1e30; it gets up to 0.9 % more. Where it is known only when the program runs, and then
            below 1e-20 or above 1e20, the release is NaN.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: `scale`, where known while tracing, is not positive and finite, or out of that
            range.
        TypeError: A leaf is not float32 or float64.

    Reference:
        Dwork et al., Calibrating noise to sensitivity, TCC 2006.
    """
    return add_noise(LAPLACE, key, tree, scale)


def add_noise(
    mechanism: Mechanism,
    key: PRNGKeyArray,
    tree: Any,
    size: Any,
    name: str = "",
    *,
    multiplier: Any = None,
    levels: int = 3,
) -> Any:
    """Release a tree with a mechanism's noise; the implementation of its public function.

    Args:
        mechanism: The mechanism.
        key: A key for this release alone.
        tree: As in `gaussian_mechanism`, with the same errors.
        size: Size of the noise.
        name: Name of the caller if it is part of a step, which may be mapped.
        multiplier: The largest supported ratio of `size` to the bound on one record; None: the
            mechanism's own.
        levels: Levels of integer noise: `levels_for` of that multiplier.
    """
    who = name or mechanism.name
    what = f"{who}: {mechanism.size}"
    if jnp.ndim(size) == 0 and not isinstance(size, Tracer) and float(size) == 0:
        raise NoNoiseError(f"{what} is 0. {REMEDY}")
    check_positive(what, size, REMEDY)
    if not isinstance(size, Tracer) and not LEAST_STDDEV <= float(size) <= MOST_STDDEV:
        raise ValueError(
            f"{what} is {float(size):g}; 32-bit arithmetic supports noise from {LEAST_STDDEV:g} to {MOST_STDDEV:g}. Release the "
            "sum in other units."
        )
    jax.eval_shape(random.check_key, key)
    leaves, structure = jax.tree.flatten(tree)
    one_process(who, leaves)
    leaves = check_leaves(who, leaves)
    known, operands = known_number(size)
    if multiplier is None:
        multiplier = mechanism.most_multiplier(max(1, sum(x.size for x in leaves)))
    ratio, more = known_number(multiplier)
    noised = NOISE.bind(
        key,
        *leaves,
        *operands,
        *more,
        mechanism=mechanism,
        size=known,
        multiplier=ratio,
        levels=levels,
        name=who,
        mapped=bool(name),
    )
    return jax.tree.unflatten(structure, noised)


def draw_batch(drawing: Drawing, key: PRNGKeyArray, tables: Any) -> Batch:
    """Draw a batch of the table's rows, as a marker; the tables of `Sampling.prepare` may be traced."""
    return Batch(*_draw("draw_batch", drawing, key, tables, [], mapped=True))


def _draw(
    name: str, drawing: Drawing, key: PRNGKeyArray, tables: Any, rows: list[Array], *, mapped: bool
) -> list[Array]:
    leaves, structure = jax.tree.flatten(tables)
    return DRAW.bind(
        key, *leaves, *rows, drawing=drawing, structure=structure, name=name, mapped=mapped
    )


def poisson_subsample(
    key: PRNGKeyArray, records: Any, rate: float, capacity: int | None = None
) -> tuple[Any, Bool[Array, "capacity"]]:
    """Draw a batch that includes each record independently with probability `rate`.

    Guarantee: the batch is a Poisson sample up to a total-variation distance of
    `PoissonSampling.slack_per_step`, which a certificate adds to its delta. It is never truncated.
    Rows without a record are exactly zero. The order of rows is arbitrary.

    Args:
        key: A scalar key, for this draw alone. It must stay secret.
        records: Tree of arrays whose leading axis is the records; with padding, its own mask among
            them.
        rate: Probability q in (0, 1] that a record enters the batch; a Python number. `certify`
            also accepts programs with a traced rate; they cannot run.
        capacity: Rows of the batch; at least `PoissonSampling(rate).capacity(num_records)`, the
            default.

    Returns:
        The batch, a tree like `records` with `capacity` rows, and its mask, True for rows with a
        record.

    Raises:
        ValueError: The rate is not a probability above 0, or `capacity` could be exceeded.
        TypeError: The key is no typed key.

    Reference:
        Balle, Barthe, Gaboardi. Privacy amplification by subsampling. NeurIPS 2018.

    >>> import jax.numpy as jnp, discreet as dp
    >>> rows = jnp.arange(1.0, 101.0)
    >>> batch, mask = dp.poisson_subsample(dp.random.key(1), rows, 0.1, 100)
    >>> bool(jnp.all((batch > 0) == mask))
    True
    """
    jax.eval_shape(random.check_key, key)
    leaves, structure = _rows("poisson_subsample", records)
    num_records = leaves[0].shape[0]
    if isinstance(rate, Tracer):
        drawing = OpenPoisson(num_records, int(capacity or num_records))
        tables = {"rate": rate}
    else:
        sampling = PoissonSampling(rate)
        drawing = sampling.drawing(num_records)
        tables = sampling.prepare(num_records)
        if capacity is not None:
            drawing = dataclasses.replace(
                drawing, capacity=sampling.check_capacity(num_records, capacity)
            )
    _, mask, *batch = _draw("poisson_subsample", drawing, key, tables, leaves, mapped=False)
    return jax.tree.unflatten(structure, batch), mask


def subsample_without_replacement(key: PRNGKeyArray, records: Any, batch_size: int) -> Any:
    """Draw a batch of exactly `batch_size` distinct records, every such set equally likely.

    Guarantee: exactly uniform given uniform random words. Sound accounting exists under
    `REPLACE_ONE` only.

    Args:
        key: A scalar key, for this draw alone. It must stay secret.
        records: Tree of arrays whose leading axis is the records.
        batch_size: Records of the batch, a Python number, at most the number of records.

    Returns:
        The batch, a tree like `records` with `batch_size` rows.

    Raises:
        ValueError: `batch_size` is below 1 or above the number of records.
        TypeError: The key is no typed key.

    >>> import jax.numpy as jnp, discreet as dp
    >>> sorted(map(int, dp.subsample_without_replacement(dp.random.key(1), jnp.arange(3), 3)))
    [0, 1, 2]
    """
    jax.eval_shape(random.check_key, key)
    leaves, structure = _rows("subsample_without_replacement", records)
    drawing = FixedSizeSampling(batch_size).drawing(leaves[0].shape[0])
    _, _, *batch = _draw("subsample_without_replacement", drawing, key, {}, leaves, mapped=False)
    return jax.tree.unflatten(structure, batch)


def _rows(who: str, records: Any) -> tuple[list[Array], Any]:
    leaves, structure = jax.tree.flatten(records)
    leaves = [jnp.asarray(x) for x in leaves]
    if not leaves or any(x.ndim == 0 for x in leaves) or len({x.shape[0] for x in leaves}) != 1:
        shapes = [x.shape for x in leaves]
        raise ValueError(
            f"{who}: the records have shapes {shapes}; every array needs one row per record, as many as the others. Pass "
            "arrays whose leading axis is the records."
        )
    return leaves, structure


class OperandCounts(NamedTuple):
    """The number of operands of each kind of `CLIPPED_SUM` or `UPDATE_ROWS`, in order, after keys, row numbers and mask."""

    counts: tuple[int, ...]
    spread: int  # The number of trailing operands with a row for each record
    summed: bool  # True if the results of several devices are summed, False if concatenated

    def parts(self, operands: Sequence[Any]) -> list[list[Any]]:
        """The operands by kind."""
        ends = itertools.accumulate(self.counts)
        return [
            list(operands[end - count : end]) for count, end in zip(self.counts, ends, strict=True)
        ]


class RandomLoss(Protocol):
    """A record's loss, and the random bits that it requests."""

    @property
    def requests(self) -> Sequence[jax.ShapeDtypeStruct]:
        """Shape and dtype of each of a record's requests."""
        ...

    def make(self, key: PRNGKeyArray, num_rows: int) -> tuple[list[Array], Bool[Array, ""]]:
        """The independent, identically distributed bits of `num_rows` rows, and True if they are valid."""
        ...

    def loss(
        self, parameters: Any, record: Any, key: PRNGKeyArray, bits: Sequence[Array]
    ) -> Float[Array, ""]:
        """The loss of one record, with its own bits and key."""
        ...


def clipped_sum(
    engine: GradientEngine,
    record: RandomLoss,
    parameters: Any,
    table: Sequence[Array],
    batch: Batch,
    keys: tuple[PRNGKeyArray, PRNGKeyArray],
    norm: float | Float[Array, ""],
    channels: Channels,
    shards: Shards | None = None,
    where: Sequence[Array] = (),
) -> tuple[ClippedSum, Bool[Array, ""]]:
    """Compute the clipped sum of a batch's gradients, as a marker, and True if the bits were valid.

    Guarantee: the engine's. The loss depends on one record; its other inputs count as public. The
    random bits are generated here and used nowhere else: they belong to places in the batch, which
    leaving a record out would move.

    Args:
        engine: A gradient engine, which defines `norm` and `channels`.
        record: The loss; traced here.
        parameters: Tree of floating arrays.
        table: Record arrays, of which the engine uses the batch's rows only.
        batch: Row numbers and mask; the unmasked ones are distinct.
        keys: The key of the bits; and the one from which each record derives its own, by its row
            number.
        norm: The clipping norm.
        channels: The channels of loss and count.
        shards: The layout of the table on several devices; None: on one.
        where: The result of `Shards.where`.
    """
    leaves, structure = jax.tree.flatten(parameters)
    row = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in table]
    program = jax.make_jaxpr(record.loss)(
        types_of(parameters), row, types_of(keys[1]), list(record.requests)
    )
    known_norm, traced_norm = known_number(norm)
    public = [*program.consts, jnp.asarray(channels.center), jnp.asarray(channels.bound)]
    # The norm if traced; records' places if drawn; values that the loss closes over, center and
    # bound of its channel; parameters to differentiate; records.
    counts = len(traced_norm), len(where), len(public), len(leaves), len(table)
    layout = OperandCounts(counts, len(table), summed=True)

    def implementation(
        local: Any, own: Any, indices: Array, mask: Array, *operands: Array, first: Any = None
    ) -> list[Array]:
        norms, where, held, leaves, table = layout.parts(operands)
        *consts, center, bound = held

        def loss(u: Any, place: tuple[Array, Array | None, list[Array]]) -> Float[Array, ""]:
            index, row, bits = place
            row = index if row is None else row
            values = [
                x.at[row].get(mode="promise_in_bounds", wrap_negative_indices=False) for x in table
            ]
            closed = ClosedJaxpr(program.jaxpr, consts)
            key = jax.random.fold_in(own, index)
            return jaxpr_as_fun(closed)(*jax.tree.leaves(u), *values, key, *bits)[0]

        bits, right = record.make(local, len(indices))
        rows = None
        if shards is not None:
            places, rows, mask = shards.rows_here(first, indices, mask, where)
            indices = indices[places]
            bits = [x[places] for x in bits]
        beside = dataclasses.replace(channels, center=center, bound=bound)
        total = engine(
            loss,
            jax.tree.unflatten(structure, leaves),
            (indices, rows, bits),
            mask,
            norms[0] if norms else norm,
            beside,
        )
        roundings.append(total.rounding)
        return [*jax.tree.leaves(total.gradient), total.loss, total.count, right]

    operands = [*keys, *batch, *traced_norm, *where, *public, *leaves, *table]
    roundings: list[float] = []
    closed = _traced(implementation, operands, layout, shards)
    rounding = roundings[-1] * (1 if shards is None else max(1.0, shards.count / gradients.DEVICES))
    if any(isinstance(x, Tracer) for x in closed.consts):
        raise TypeError(
            "An engine or a source of bits closes over traced values; pass them as arguments."
        )
    *gradient, loss, count, right = CLIPPED_SUM.bind(
        *operands,
        implementation=closed,
        loss=open_program(program.jaxpr),
        layout=layout,
        norm=known_norm,
        shares=(channels.loss_share, channels.count_share),
        rounding=rounding,
        shards=shards,
        trusted=type(engine) in (BookKeepingEngine, ReferenceEngine)
        and type(shards) in (type(None), Shards),
    )
    sums = jax.tree.unflatten(structure, gradient)
    return ClippedSum(
        sums, loss, count, channels.joint_bound(norm) * (1.0 + rounding), rounding
    ), right


def _traced(
    implementation: Callable[..., Any],
    operands: list[Any],
    layout: OperandCounts,
    shards: Shards | None,
) -> ClosedJaxpr:
    """The program for `_run`: of all operands, or of a device's first row and its part of them."""
    if shards is None:
        return jax.make_jaxpr(implementation)(*operands)
    seen = shards.local_shapes(operands, layout.spread)
    return jax.make_jaxpr(lambda first, *x: implementation(*x, first=first))(jnp.int32(0), *seen)


class Release(NamedTuple):
    """A clipped sum with a mechanism's noise, which may be published."""

    gradient: Any  # Tree like the parameters: the noised sum of the clipped gradients
    loss: Float[Array, ""]  # Scalar: the noised sum of the weighted, clipped losses
    # The noised, weighted counts of gradients within C, and of clipped ones
    count: Float[Array, "two"]


def release(
    key: PRNGKeyArray,
    total: ClippedSum,
    noise_multiplier: Any,
    mechanism: Mechanism = GAUSSIAN,
    levels: int = 3,
) -> Release:
    """Release gradient, loss and count of a clipped sum together, by one mechanism.

    Guarantee: one `mechanism.event(noise_multiplier)`, if its norm is 2: the noise is scaled to the
    joint L2 bound that `total` carries. The multiplier may be traced; `levels` are those of
    `add_noise` for it.
    """
    sums = (total.gradient, total.loss, total.count)
    stddev = noise_multiplier * total.l2_bound
    if not mechanism.on_grid:
        sums = jax.tree.map(lambda x: x.astype(jnp.float32), sums)
    noised = add_noise(
        mechanism, key, sums, stddev, "release", multiplier=noise_multiplier, levels=levels
    )
    return Release(*jax.tree.map(lambda x: x.astype(jnp.float32), noised))


RowUpdate = Callable[[Any, Sequence[Array], Sequence[Array], PRNGKeyArray], Sequence[Array]]
"""`(parameters, row of the records, row of the memory, key) -> row of the memory`."""


def update_rows(
    function: RowUpdate,
    parameters: Any,
    table: Sequence[Array],
    memory: Sequence[Array],
    batch: Batch,
    key: PRNGKeyArray,
    shards: Shards | None = None,
    where: Sequence[Array] = (),
) -> list[Array]:
    """Update the memory of a batch's rows, as a marker. All arguments are as in `clipped_sum`.

    Guarantee: row i of the result depends on row i of the records and of the memory, on draws of
    its own and on `parameters`, and on no other record. Nothing is released. With independent
    inclusion (Poisson samples, or all records) the memory costs nothing beyond what is released
    later: given all that is known of the other records, one record still enters a batch with
    probability q and adds at most the clipping norm, whatever it remembers; and the hockey-stick
    divergence of a mixture over what it may remember is at most the worst one's, which is the one
    accounted for (joint convexity). That is so while a sample is fresh: the verifier refuses to
    release from one after anything else was released. In batches of fixed size whether one record
    is drawn decides what others remember, and the argument fails.

    `function` is traced here, for one row; `parameters` are releases, or public; each record
    derives a key of its own from `key`.
    """
    leaves = jax.tree.leaves(parameters)
    row, kept = (
        [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in arrays] for arrays in (table, memory)
    )
    program = jax.make_jaxpr(function)(types_of(parameters), row, kept, types_of(key))
    public = [*program.consts, *leaves]
    counts = len(where), len(public), len(table), len(memory)
    layout = OperandCounts(counts, len(table) + len(memory), summed=False)

    def implementation(
        own: PRNGKeyArray, indices: Array, mask: Array, *operands: Array, first: Any = None
    ) -> list[Array]:
        where, held, table, memory = layout.parts(operands)
        consts = held[: len(program.consts)]
        leaves = held[len(program.consts) :]

        def one(index: Array, row: Array, memory: Sequence[Array]) -> list[Array]:
            values = [
                x.at[row].get(mode="promise_in_bounds", wrap_negative_indices=False)
                for x in (*table, *memory)
            ]
            return jaxpr_as_fun(ClosedJaxpr(program.jaxpr, consts))(
                *leaves, *values, jax.random.fold_in(own, index)
            )

        def update(named: tuple[Array, Array], mask: Array, memory: Sequence[Array]) -> list[Array]:
            # Rows that the mask drops are written past the end, so they are discarded.
            places = jnp.where(mask, named[1], len(memory[0]))
            found = jax.vmap(one, (0, 0, None))(*named, memory)
            return [
                x.at[places].set(new, mode="drop") for x, new in zip(memory, found, strict=True)
            ]

        rows = indices
        if shards is not None:
            places, rows, mask = shards.rows_here(first, indices, mask, where)
            indices = indices[places]
        return in_turns(update, (indices, rows), mask, memory)

    operands = [key, *batch, *where, *public, *table, *memory]
    closed = _traced(implementation, operands, layout, shards)
    if any(isinstance(x, Tracer) for x in closed.consts):
        raise TypeError(
            "The update of a row uses traced values from outside; pass them as parameters."
        )
    return UPDATE_ROWS.bind(*operands, implementation=closed, layout=layout, shards=shards)
