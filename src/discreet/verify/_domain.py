"""What the checker can know of a value: public, private in one of several ways, or a key.

An abstract value speaks of two runs of one program, on neighbouring tables, with the same keys and the same released
values. Neighbours differ in one row: under REPLACE_ONE in what it holds, under ADD_OR_REMOVE_ONE in whether the mask
keeps it, and then in what it holds as well, since padding may hold anything.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent

from discreet.accounting import Relation
from discreet.sampling import Sampling

_serial = itertools.count()

SMALLEST, LARGEST = 1e-30, 1e30
"""Numbers beyond may be zero, or infinite, in float32: nothing is said of their multiples."""


def new_symbol() -> int:
    """A name for a number that is public and not known while tracing."""
    return next(_serial)


def open_symbol() -> int:
    """A name for a parameter that is left open: it has a value, and a proof of its own, before anything runs."""
    return -1 - new_symbol()


def is_open(name: int) -> bool:
    """Whether a name is that of an open parameter."""
    return name < 0


@dataclasses.dataclass(frozen=True)
class Scale:
    """A number up to its sign: a factor times powers of public numbers that are not known while tracing.

    So that noise z * C on a sum clipped to C has a known ratio even where C moves from step to step.
    """

    factor: float
    powers: tuple[tuple[int, float], ...] = ()

    def __mul__(self, other: Scale) -> Scale:
        powers = dict(self.powers)
        for symbol, power in other.powers:
            powers[symbol] = powers.get(symbol, 0.0) + power
        return Scale(self.factor * other.factor, tuple(sorted((s, p) for s, p in powers.items() if p != 0)))

    def to(self, power: float) -> Scale:
        """A power of the number."""
        if self.factor == 0 and power < 0:
            return Scale(math.inf)
        return Scale(abs(self.factor) ** power, tuple((s, p * power) for s, p in self.powers))

    def times(self, factor: float) -> Scale:
        """A known multiple of the number."""
        return Scale(self.factor * factor, self.powers)

    def over(self, other: Scale) -> float | None:
        """The quotient, if it is known."""
        quotient = self * other.to(-1.0)
        known = not quotient.powers and math.isfinite(quotient.factor)
        return abs(quotient.factor) if known else None


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Which records a value may depend on: the table, a random sample of it, or a part of either. Identity tells them apart.

    Attributes:
        parent: what it was drawn or cut from; None for the table.
        masked: the table has a mask, so that a record may be absent.
        depth: how many loops are around the draw or the cut.
    """

    parent: Batch | None = None
    masked: bool = False
    depth: int = 0

    @property
    def whole(self) -> Batch:
        """The table or sample that a part is cut from; any other batch itself."""
        return self

    @property
    def table(self) -> Batch:
        """The table that all comes from."""
        return self if self.parent is None else self.parent.table

    @property
    def sampled(self) -> bool:
        """Whether which records these are is random."""
        return isinstance(self.whole, Sample)


class Table(Batch):
    """All records."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sample(Batch):
    """A random sample of the table.

    Attributes:
        sampling: its law.
        num_records: rows of the table.
    """

    sampling: Sampling = dataclasses.field(kw_only=True)
    num_records: int = dataclasses.field(kw_only=True)

    def event(self, mechanism: DpEvent, relation: Relation) -> DpEvent:
        """The event of what is done to the sample."""
        return self.sampling.step_event(mechanism, num_records=self.num_records, relation=relation)

    @property
    def slack(self) -> float:
        """Distance of the law that is drawn from the law that the event names."""
        return self.sampling.slack_per_step(self.num_records)


class Cut(Batch):
    """A part of a batch, of which each record is in one place at most."""

    @property
    def whole(self) -> Batch:
        """The table or sample that it is cut from."""
        assert self.parent is not None
        return self.parent.whole


@dataclasses.dataclass(frozen=True, eq=False)
class Part(Cut):
    """What one iteration of a loop sees: no other iteration sees any of it.

    Attributes:
        loop: the loop.
        before: into how many blocks of records, one after another, the loop goes at once. Of each block an iteration sees one
            piece.
    """

    loop: Any = dataclasses.field(kw_only=True)
    before: int = dataclasses.field(kw_only=True, default=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Slice(Cut):
    """The rows from `first` to `last`, both included."""

    first: int = dataclasses.field(kw_only=True)
    last: int = dataclasses.field(kw_only=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Pick(Cut):
    """Rows by their numbers, each once at most."""

    numbers: tuple[int, ...] = dataclasses.field(kw_only=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Values with a joint bound: what one clipping returned. Identity tells groups apart.

    Attributes:
        carried: it is the unknown sum that a turn of a loop starts with.
    """

    name: str = ""
    carried: bool = False
    serial: int = dataclasses.field(default_factory=lambda: next(_serial))


@dataclasses.dataclass(frozen=True)
class Term:
    """One summand of a bound: `bound` times the share that `leaves` have of the group.

    The vectors of a group's leaves have a joint L2 norm of at most 1, in units of `bound`. A value with several terms
    is within their sum.

    Attributes:
        source: the batch whose records it bounds.
    """

    group: Group
    leaves: frozenset[int]
    bound: Scale
    source: Batch


@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """Where a private value came from: the last equation, and the operand that matters most; or an argument.

    Attributes:
        mask: it comes from the mask alone, as far as this way tells.
    """

    line: str
    what: str
    parent: Origin | None = None
    mask: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Public:
    """The same in both runs.

    Attributes:
        const: its value, if known while tracing (small arrays only); up to rounding where not `exact`.
        exact: XLA comes to these very numbers.
        uniform: axes along which it does not change.
        scale: what it is a multiple of, if it is one number (a scalar, or the same everywhere).
        counter: (loop, lowest, highest): an integer that no two turns of the loop share.
        released: computed from a release; otherwise known without the data.
    """

    const: np.ndarray | None = None
    exact: bool = False
    uniform: frozenset[int] = frozenset()
    scale: Scale | None = None
    counter: tuple[Any, int, int] | None = None
    released: bool = False

    @property
    def magnitude(self) -> float | None:
        """The largest absolute value, if known."""
        if self.const is None or self.const.dtype.kind not in "biuf":
            return None
        largest = float(np.max(np.abs(self.const.astype(np.float64)), initial=0.0))
        return None if math.isnan(largest) else largest

    @property
    def is_zero(self) -> bool:
        """Known to be zero everywhere."""
        return self.magnitude == 0.0


# What an operation does not hand on unless its rule says so.
_OWN = {
    "holds": -1,
    "norm_of": None,
    "low": None,
    "high": None,
    "finite_where": frozenset(),
    "place": -1,
    "number_if": (-1, -1),
    "folded": None,
    "true": frozenset(),
    "lacks": frozenset(),
    "tells": ("", -1),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Private:
    """May differ between the runs.

    Attributes:
        batch: the records it depends on; None if it mixes batches.
        axes: the axes that number the records, in the order of the record index: element (.., j, ..) depends on record
            j alone. None: no such axes.
        terms: a bound. With `axes`: on the L2 norm of each record's slice. Without: on the L2 norm of what one record
            adds, in the units of the event's clipping norm C. None: no bound.
        linf: bound on the size of each element that is a number.
        low: no element that is a number lies below.
        high: nor above.
        finite: no element is NaN or infinite.
        zero: masks under which it is zero: slices of records that are not in these batches are exactly 0.
        positional: a record's slice depends also on its place.
        additive: a sum over records; its terms came about by adding only. Counts without `axes`.
        origin: where it came from.
        why: why it has no bound, or no axes.
        finite_where: where this truth value is True, a value is finite: in the same place ("each", spot), or all over the
            record ("all", content). Where it is True all over a record, so is that value finite ("of", content).
        serial: names the value.
        holds: names the value of which this is a copy in another shape.
        place: names the value of which this is a copy in the same shape.
        number_if: spot and content of a value; where that is finite, this is.
        folded: without `axes`: the axis that numbers the records and more besides, see `_rules_convolutions`.
        norm_of: see `_norms`.
        true: masks under which a truth value is True where there is no record.
        lacks: which of "nan", "inf" and "-inf" no element is.
        tells: of a truth value: True just where the value of that spot is "nan", "inf" or "-inf"; ("never", -1): nowhere.
    """

    batch: Batch | None
    axes: tuple[int, ...] | None
    origin: Origin
    terms: tuple[Term, ...] | None = None
    linf: float | None = None
    low: float | None = None
    high: float | None = None
    finite: bool = False
    zero: frozenset[Batch] = frozenset()
    positional: bool = False
    additive: bool = False
    why: str = ""
    finite_where: frozenset[tuple[str, int]] = frozenset()
    norm_of: Any = None
    serial: int = dataclasses.field(default_factory=lambda: next(_serial))
    holds: int = -1
    place: int = -1
    number_if: tuple[int, int] = (-1, -1)
    folded: tuple[int, int, int] | None = None
    true: frozenset[Batch] = frozenset()
    lacks: frozenset[str] = frozenset()
    tells: tuple[str, int] = ("", -1)

    @property
    def content(self) -> int:
        """Names the elements, in whatever shape."""
        return self.serial if self.holds < 0 else self.holds

    @property
    def spot(self) -> int:
        """Names the elements, each in its place."""
        return self.serial if self.place < 0 else self.place

    def guarded_by(self, condition: frozenset[tuple[str, int]]) -> bool:
        """Whether it is finite where a condition holds."""
        own = {("each", self.spot), ("all", self.content), ("each", self.number_if[0]), ("all", self.number_if[1])}
        return bool(own & condition)

    def but(self, **changes: Any) -> Private:
        """A copy with other attributes, and another identity."""
        return dataclasses.replace(self, **{**_OWN, "serial": next(_serial), **changes})


@dataclasses.dataclass(frozen=True, eq=False)
class Key:
    """An array of PRNG keys, by name."""

    names: np.ndarray


Value = Public | Private | Key


def constant(value: Any, *, exact: bool = True) -> Public:
    """A value known while tracing."""
    array = np.asarray(value)
    uniform = frozenset(i for i in range(array.ndim) if array.size and np.all(array == np.take(array, [0], axis=i)))
    scale = None
    if len(uniform) == array.ndim and array.size and array.dtype.kind in "biuf":
        number = abs(float(array.reshape(-1)[0]))
        scale = Scale(number) if number == 0 or SMALLEST <= number <= LARGEST else None
    return Public(const=array, exact=exact, uniform=uniform, scale=scale)
