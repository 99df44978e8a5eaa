"""A query: bounded rows of single records, one exact sum, noise, release.

Moments, counts, scores and each sum of a private Newton fit are queries. A query's program takes a
key, the records and public values, computes the sum (`total`) and adds noise to it. What is proved
is that program: `certify` finds in it how far one record moves the sum, and so the event, which
must be no more than the noise claims.

*The sum is exact.* Rows are integers, or bounded, rounded to a grid and clipped (`on_grid`), so
that they are multiples of the grid's step: 2^26 of them add up in 64 bits without rounding. No last
bit of a sum depends on the records' order, on which others there are, or on how the table is
divided: one record moves the sum by its own row, and by nothing else. A last bit of a row would
move it by a whole step of the grid. So each row must be computed alike whatever the number of
records: by operations that no compiler contracts, or a turn of records at a time, by one
program, as `in_turns` lays them out. XLA may compute a program's last rows otherwise,
so the last `SPARE` of each turn stand for nobody (`gradients._sums`).

*The program need not be given all records.* The exact sum over the others may be among its public
values, to which `total` adds what the last ones contribute. For two neighbouring tables whose one
difference is in the last records, that value is the same. Since the sum is exact, it is the same
sum whichever records come last, so the proof holds for every pair of neighbours.

*A query is a value.* Queries that are equal, for arguments of the same shapes, are proved and
compiled once.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from discreet._dp_accounting import DpEvent
from discreet._jax import in_own_settings
from discreet._validate import integer, positive, probability
from discreet.privacy.accounting import (
    Relation,
    calibrate_noise_multiplier,
    neighbours,
    profile,
    suggest,
)
from discreet.privacy.act import Act
from discreet.privacy.gradients import SPARE
from discreet.privacy.mechanisms import (
    GAUSSIAN,
    LAPLACE,
    clip_records,
    planned_gaussian,
    planned_laplace,
)
from discreet.privacy.report import RECORD, Statement, Unit, make_release_statement
from discreet.privacy.verify import Certificate, Given, certify

TURN = 128
"""Records of a turn. A program that computes rows for other numbers of them rounds otherwise."""
LAST = 1024
"""Records that a program sums itself where it is given the sum of the others; the number is arbitrary."""
MOST_RECORDS = 2**26
GRID_OF_PRODUCTS = 2.0**13  # sums of products of 2^26 rows are exact in 64 bits
GRID_OF_SUMS = 2.0**24  # and so are sums of 2^26 rows
_ALIGNED = 64  # bytes
# more than `clip_records` keeps below its bound: it leaves rows of this length as they are
_CLIPPED_FROM = 2.0**-19


class Noise(Hashable, Protocol):
    """What is released of a sum."""

    def event(self) -> DpEvent | None:
        """The event that is claimed; None: whoever makes the query checks the event that was found."""

    def __call__(self, key: PRNGKeyArray, total: Any) -> Any:
        """The release."""


class Gaussian(NamedTuple):
    """The sum with Gaussian noise.

    Attributes:
        stddev: Standard deviation of the noise on each number.
        noise_multiplier: The same over the bound on what one record contributes.
        room: Where how many numbers there are is secret: the most of them, for all of which the
            noise has one law. Else 0.
    """

    stddev: float
    noise_multiplier: float
    room: int = 0

    def event(self) -> DpEvent:
        """As in `Noise`."""
        return GAUSSIAN.event(self.noise_multiplier)

    def __call__(self, key: PRNGKeyArray, total: Any) -> Any:
        """As in `Noise`."""
        return planned_gaussian(key, total, *self)

    @in_own_settings
    def drawn(self, dim: int) -> float:
        """Standard deviation of the noise that is drawn, on a grid of integers, for each of `dim` numbers."""
        return math.prod(GAUSSIAN.drawn(self.stddev, self.noise_multiplier, dim, self.room))


class Laplace(NamedTuple):
    """The sum with Laplace noise, which goes by L1 norms: less noise than Gaussian for few numbers.

    Attributes:
        scale: Scale of the noise on each number.
        noise_multiplier: The same over the L1 bound on what one record contributes.
    """

    scale: float
    noise_multiplier: float

    def event(self) -> DpEvent:
        """As in `Noise`."""
        return LAPLACE.event(self.noise_multiplier)

    def __call__(self, key: PRNGKeyArray, total: Any) -> Any:
        """As in `Noise`."""
        return planned_laplace(key, total, *self)

    @in_own_settings
    def drawn(self, dim: int) -> float:
        """Standard deviation of the noise that is drawn, as in `Gaussian`."""
        return math.sqrt(2) * LAPLACE.drawn(self.scale, self.noise_multiplier, dim)


_HINT = "It should be well below one over the number of records."


class Wording(NamedTuple):
    """What a plan says of its releases: fields of their `Statement`, beside those that are computed."""

    method: str
    mechanism: str
    plan: Mapping[str, Any]
    released: Sequence[str]
    public: Sequence[str]
    about: str = ""
    exact: bool = False
    not_covered: Sequence[str] = ()
    notes: Sequence[str] = ()
    violations: Sequence[str] = ()


class QueryPlan(ABC):
    """What plans of queries have in common: they state themselves. Public.

    A plan is a frozen dataclass of public numbers, these two among them, from which its noise, its
    event, its slack and its `wording` follow.

    Attributes:
        delta: The delta at which epsilon is stated.
        relation: The neighbouring relation.
    """

    delta: float
    relation: Relation

    @property
    def num_releases(self) -> int:
        """Number of releases."""
        return 1

    @property
    @abstractmethod
    def slack(self) -> float:
        """Total variation between the run and the event: that of its releases' noise."""

    @abstractmethod
    def event(self) -> DpEvent:
        """The event of all releases, under either relation."""

    def epsilon(self, delta: float | None = None) -> float:
        """Price at `delta`; None: the plan's."""
        spent = profile(self.event(), self.relation, slack=self.slack)
        return spent.epsilon(self.delta if delta is None else delta)

    @abstractmethod
    def wording(self, unit: Unit, *args: Any, **told: Any) -> Wording:
        """What the statement says, for a unit of privacy; a plan may name what else it is told."""

    @property
    def own_unit(self) -> Unit | None:
        """The unit of privacy, where the plan names it; None: who encodes the records knows it."""
        return None

    def state(self, *, reproducible: bool, unit: Unit | None = None, **told: Any) -> Statement:
        """Make the statement of all releases, before they are made.

        Args:
            reproducible: Whether the noise can be repeated.
            unit: The unit of privacy; None: the plan's own, or a record.
            told: What `wording` is told besides.

        Raises:
            ValueError: The plan names another unit, or bounds fewer rows of a person.
        """
        own = self.own_unit
        unit = unit or own or RECORD
        if own is not None and unit != own:
            raise ValueError(f"The plan is for {own}, and a statement for {unit} would be false.")
        bounded = getattr(self, "max_rows", unit.max_rows)
        if unit.max_rows > bounded:
            raise ValueError(
                f"The plan is for at most {bounded} rows of a person, and a statement for {unit} "
                "would be false: give the plan max_rows."
            )
        return make_release_statement(
            self.event(),
            self.relation,
            unit=unit,
            delta=self.delta,
            slack=self.slack,
            num_releases=self.num_releases,
            reproducible=reproducible,
            **self.wording(unit, **told)._asdict(),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianPlan(QueryPlan):
    """What plans of queries with Gaussian noise have in common. Public.

    A plan adds public numbers, from which its noise and its `wording` follow. Under REPLACE_ONE the
    event has neighbours whose sums are two bounds apart. Counts are sqrt(2) apart, so their noise
    is `neighbours(relation).of_cells / neighbours(relation).distance` times that of other sums.

    Attributes:
        noise_multiplier: Noise standard deviation over the bound of one record, of all releases
            together.
        delta: The delta at which epsilon is stated.
        relation: The neighbouring relation.
    """

    noise_multiplier: float
    delta: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        probability("delta", self.delta, hint=_HINT)
        positive("noise_multiplier", self.noise_multiplier, hint="calibrate(epsilon=...) finds it.")

    @classmethod
    def calibrate(cls, *args: Any, **shape: Any) -> Self:
        """Find the least noise for `epsilon` and `delta`; the others are the plan's fields. A plan may name its own."""
        return cls._calibrated(*args, **shape)

    @classmethod
    def _calibrated(cls, epsilon: float, delta: float | None, **shape: Any) -> Self:
        """The plan of this shape with the least noise; delta None: `accounting.suggest`'s, if the number of records is public."""
        if delta is None and "num_records" in shape:
            delta = suggest(num_records=integer("num_records", shape["num_records"])).delta
        delta = probability("delta", delta, hint=_HINT)
        some = cls(**shape, delta=delta, noise_multiplier=1.0)
        goal = {"epsilon": epsilon, "delta": delta, "relation": some.relation, "slack": some.slack}
        noise = calibrate_noise_multiplier(
            lambda noise: dataclasses.replace(some, noise_multiplier=noise).event(), **goal
        )
        return dataclasses.replace(some, noise_multiplier=noise)

    @property
    def slack(self) -> float:
        """Total variation between the run and the event."""
        return self.num_releases * GAUSSIAN.slack

    def event(self) -> DpEvent:
        """The event of the releases, under either relation."""
        return GAUSSIAN.event(float(self.noise_multiplier))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOfRecords(GaussianPlan):
    """A `GaussianPlan` for a public number of records.

    Attributes:
        num_records: That number. Under ADD_OR_REMOVE_ONE it is a figure near the true one.
    """

    num_records: int

    def __post_init__(self) -> None:
        integer("num_records", self.num_records, most=MOST_RECORDS)
        super().__post_init__()

    def check_size(self, num_records: int) -> None:
        """Refuse more records than exact sums have, and another number than a public one.

        Raises:
            ValueError: One of these.
        """
        if num_records > MOST_RECORDS:
            raise ValueError(
                f"There are {num_records:,} records; sums are exact for at most {MOST_RECORDS:,}. Draw fewer of them."
            )
        neighbours(self.relation).check_size(num_records, self.num_records, "There are")


@dataclasses.dataclass(frozen=True)
class Query:
    """The release of one exact sum over records.

    Attributes:
        total: The sum, from the program's arguments after the key. Compared by value: a function of
            a module, or an object.
        noise: What is released of it.
        relation: The neighbouring relation.
        records: Positions of the records' arrays among the program's arguments, the key's being 0;
            then that of the mask.
    """

    total: Callable[..., Any]
    noise: Noise
    relation: Relation
    records: tuple[int, ...] = (2, 3)

    def release(self, key: PRNGKeyArray, *arguments: Any) -> Any:
        """The program."""
        return self.noise(key, self.total(*arguments))

    def certificate(self, key: PRNGKeyArray, *arguments: Any) -> Certificate:
        """Prove the program, in 64 bits.

        Args:
            key: A key of the same type as for the program.
            arguments: Those of the program, or their shapes, or `Given` ones.

        Raises:
            PrivacyError: It is more than the noise claims, or the program holds the records as a
                constant.
        """
        leaves, structure = jax.tree.flatten((key, *arguments))
        # Values of two classes may be equal, as named tuples are.
        classes = type(self.total), type(self.noise)
        found = _certified(self, classes, structure, tuple(map(_kind, leaves)))
        found.refuse_captured(key, *arguments)
        return found

    @in_own_settings
    def answer(self, act: Act, *arguments: Any, named: bool = True) -> Any:
        """Prove, begin, run: the one release of an act.

        Args:
            act: The act. Its key is that of the noise.
            arguments: Those of the program.
            named: As in `Act.prove`.

        Raises:
            PrivacyError, ValueError, SpentError: As `certificate` and `Act.begin`. Nothing was
                spent.
        """
        program = self.certificate(act.key, *arguments)
        act.prove(program, named=named)
        act.begin()
        return jax.tree.map(np.asarray, program(act.key, *arguments))


def _kind(value: Any) -> Any:
    return value if isinstance(value, Given) else jax.ShapeDtypeStruct(np.shape(value), value.dtype)


@functools.lru_cache(maxsize=128)
def _certified(query: Query, classes: Any, structure: Any, kinds: tuple[Any, ...]) -> Certificate:
    del classes
    arguments = jax.tree.unflatten(structure, kinds)
    *records, mask = query.records
    with jax.enable_x64(True):
        return certify(
            query.release,
            *arguments,
            records=records,
            mask=mask,
            relation=query.relation,
            expect=query.noise.event(),
        )


def rounded(rows: Float[Array, "record *sum"], mask: Bool[Array, "record"], grid: float) -> Array:
    """Rows on the grid, of norm at most 1 and finite. Where rounding leaves them below 1, clipping leaves them on the grid."""
    return clip_records(jnp.round(rows * grid) / grid, 1.0) * mask[:, None]


def on_grid(
    rows: Float[Array, "record sum"],
    mask: Bool[Array, "record"],
    grid: float,
    *,
    within: bool = False,
) -> Array:
    """Rows of norm at most 1, a little shorter, as `rounded` leaves them on the grid.

    A row divided by its length is longer than 1 where squares underflowed: so it is clipped before
    it is rounded, too.

    Args:
        rows: One for each record.
        mask: Of the records that there are.
        grid: Steps in 1.
        within: No row is longer than 1, but for rounding: then the bits are the same without the
            first clipping.
    """
    room = 1 - math.sqrt(rows.shape[1]) / grid - _CLIPPED_FROM
    return rounded((rows if within else clip_records(rows, 1.0)) * room, mask, grid)


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
        layout: For each array the shape, without the records' axis, and the dtype; None: its own. A
            last axis is filled up.
    """
    filled = turn - SPARE
    whole = len(arrays[0]) // filled

    def laid(value: np.ndarray, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        found = _aligned_zeros((turns, turn, *shape), np.dtype(dtype))
        own = found[..., : value.shape[-1]] if shape else found
        own[:whole, :filled] = value[: whole * filled].reshape(whole, filled, *value.shape[1:])
        left = value[whole * filled :]
        own[whole : whole + 1, : len(left)] = left
        return found.reshape(-1, *shape)

    kinds = layout or [(array.shape[1:], array.dtype) for array in arrays]
    present = laid(np.ones(len(arrays[0]), bool), (), bool)
    return [
        *(laid(np.asarray(array), *kind) for array, kind in zip(arrays, kinds, strict=True)),
        present,
    ]


def _aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros at an address from which JAX takes them on a CPU without a copy."""
    size = math.prod(shape) * dtype.itemsize
    room = np.zeros(size + _ALIGNED, np.uint8)
    start = -room.ctypes.data % _ALIGNED
    return room[start : start + size].view(dtype).reshape(shape)


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
