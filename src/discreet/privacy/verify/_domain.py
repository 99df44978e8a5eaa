"""Abstract values of the variables of a program: the lattice.

An abstract value describes two runs of one program, on neighbouring tables, with the same keys and
the same released values. Neighbours differ in one row: under REPLACE_ONE in its content, under
ADD_OR_REMOVE_ONE in whether the mask keeps it, and then in its content as well, since padding may
hold anything. It stands for all pairs of concrete values for which its claims are true: `Public`
claims that they are equal, `Private` the claims of its groups of fields, `Key` the names of keys
(`_keyring`). Bounds are in the units of `_bounds`.

The invariant of this file: every function returns claims that follow from the claims it is given.
Each field declares how `Private.but` and `Private.joined` treat it (`fact`). By default both drop
it, which is sound.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from discreet.privacy.accounting import Relation, neighbours
from discreet.privacy.verify._bounds import (
    LARGEST,
    SMALLEST,
    RecordSet,
    Sample,
    Scale,
    Table,
    Term,
    Terms,
    fresh,
    new_symbol,
    outside,
    source_of,
    total_of,
    unnamed,
)
from discreet.privacy.verify._errors import Origin, Reason, Why
from discreet.privacy.verify.recognize._facts import Norm, Turns


@dataclasses.dataclass(frozen=True, eq=False)
class Public:
    """A value that is the same in both runs."""

    # Its value, if known at trace time (small arrays only); up to rounding where not `exact`
    const: np.ndarray | None = None
    exact: bool = False  # XLA computes exactly these numbers
    # Relative difference between the computed number and `const` or `scale`, in roundings of 2^-23
    error: float = 0.0
    uniform: frozenset[int] = frozenset()  # Axes along which it is constant
    scale: Scale | None = None  # Its size, if it is one number (a scalar, or the same everywhere)
    # (loop, lowest, highest): an integer that differs between any two iterations of the loop
    counter: tuple[Any, int, int] | None = None
    # Its value in each iteration of an enclosing loop, if it is one number; up to rounding where it
    # is a float
    turns: Turns | None = None
    released: bool = False  # Computed from a release; otherwise known without the data
    limit: float | None = None  # Upper bound on the size of each element, none of which is NaN

    @property
    def magnitude(self) -> float | None:
        """The largest absolute value, or a bound on it, if known."""
        if self.const is None or self.const.dtype.kind not in "biuf":
            return self.limit
        largest = float(np.max(np.abs(self.const.astype(np.float64)), initial=0.0))
        return None if math.isnan(largest) else largest

    @property
    def rounded(self) -> float:
        """The factor by which a product with the computed value may exceed a product with `const`.

        Once that is negligible, but a loop may repeat it a million times, and XLA folds several
        constants into one. Powers of two, and numbers unknown at trace time, are exact.
        """
        if self.const is None:
            return 1.0 + self.error * 2.0**-23
        sizes = np.abs(self.const[self.const != 0].astype(np.float64))
        if self.exact and np.all(np.frexp(sizes)[0] == 0.5):
            return 1.0
        return 1.0 + (self.error + 1.0) * 2.0**-23

    @property
    def is_zero(self) -> bool:
        """Known to be zero everywhere."""
        return self.magnitude == 0.0

    def joined(self, other: Public, rank: int) -> Public:
        """The join of two public values: keep only the claims named here."""
        if same(self, other):
            return self
        released = self.released or other.released
        if (
            self.const is not None
            and other.const is not None
            and np.array_equal(self.const, other.const)
        ):
            error = max(self.error, other.error)
            return dataclasses.replace(
                constant(self.const, exact=self.exact and other.exact, error=error),
                released=released,
            )
        uniform = self.uniform & other.uniform
        return Public(
            uniform=uniform, scale=unnamed() if len(uniform) == rank else None, released=released
        )


def fact(
    default: Any, *, join: Callable[[Any, Any], Any] | None = None, compared: bool = True
) -> Any:
    """A field of a private value: one claim, whose default is the weakest; `same` compares it if `compared`.

    `join` returns the claim that two claims both imply; `Private.but` keeps such a field. Without
    `join` the claim concerns these elements alone: `but` and `joined` drop it.
    """
    return dataclasses.field(default=default, compare=compared, metadata={"join": join})


def _first(a: Any, b: Any) -> Any:
    return a or b


def _larger(a: Terms | None, b: Terms | None) -> Terms | None:
    """The join of two bounds: the larger where they share a group, or both are numbers."""
    if a is None or b is None or a == b:
        return a if a == b else None
    if len(a) == len(b) == 1:
        (x,) = a
        (y,) = b
        if (
            x.group is y.group
            and x.leaves == y.leaves
            and x.source is y.source
            and x.bound.powers == y.bound.powers
        ):
            return a if x.bound.factor >= y.bound.factor else b
    sizes = total_of(a), total_of(b)
    if sizes[0] is None or sizes[1] is None or sizes[0].powers or sizes[1].powers:
        return None
    # No common group: the larger number, in a new group.
    return fresh(max(sizes[0], sizes[1], key=lambda x: x.factor), source_of((*a, *b)))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Private:
    """A value that may differ between the runs, within the claims of five groups of fields."""

    # 1. The records that it depends on, and the axes along which they lie.
    # Values of different batches or axes have no join at all, see `Private.joined`.
    # The records it depends on; None if it mixes batches
    batch: RecordSet | None = dataclasses.field(kw_only=False, metadata={"join": _first})
    # The axes that number the records, in the order of the record index: element (.., j, ..)
    # depends on record j alone. None: no such axes.
    axes: tuple[int, ...] | None = dataclasses.field(kw_only=False, metadata={"join": _first})
    positional: bool = fact(False, join=operator.or_)  # A record's slice depends also on its place
    # Masks under which it is zero: slices of records that are not in these batches (or in those,
    # see `outside`) are exactly 0
    zero: frozenset[RecordSet] = fact(frozenset(), join=operator.and_)
    # A claim about two values need not hold for a value that alternates between them.
    # A sum over records, whose terms come from additions only. Meaningful without `axes`.
    additive: bool = fact(False, join=lambda a, b: False)
    # Masks, each with the nonzero integer (or True) that every element holds where the mask
    # excludes the record
    absent: frozenset[tuple[RecordSet, int]] = fact(frozenset())
    # Without `axes`: the axis that numbers the records and more besides, see `Fold` in
    # `recognize/_facts`
    folded: tuple[int, int, int] | None = fact(None)

    # 2. The size of the value, or the distance between the two runs.
    # With `axes`: a bound on the L2 norm of each record's slice. Without: on the L2 norm of what
    # one record adds, in the units of the event's clipping norm C. None: no bound.
    terms: tuple[Term, ...] | None = fact(None, join=_larger)
    # Bound on the size of each element that is a number
    linf: float | None = fact(None, join=lambda a, b: None if a is None or b is None else max(a, b))
    # Without `axes`: bound on the size of each element of what one record adds, in the units of C;
    # a fact of sums that a choice is made from, which only functions of single elements keep
    moves: float | None = fact(None)
    # Bound on the L1 norm of what `terms` bounds in L2, as a number
    absolute: float | None = fact(None)
    low: float | None = fact(None)  # No element that is a number lies below
    high: float | None = fact(None)  # Nor above
    # Of Booleans: upper bound on the number of True elements for each record
    most: int | None = fact(None)

    # 3. NaN and infinity.
    finite: bool = fact(False, join=operator.and_)  # No element is NaN or infinite
    lacks: frozenset[str] = fact(frozenset())  # Those of "nan", "inf" and "-inf" that do not occur
    # Where this Boolean is True, a value is finite: in the same place ("each", spot), or in the
    # whole record ("all", content). Where it is True for a whole record, that value is finite there
    # ("of", content).
    finite_where: frozenset[tuple[str, int]] = fact(frozenset())
    # Spot and content of a value; where that is finite, this is
    number_if: tuple[int, int] = fact((-1, -1))
    # For a Boolean: True exactly where the value of that spot is "nan", "inf" or "-inf"; ("never",
    # -1): nowhere
    tells: tuple[str, int] = fact(("", -1))

    # 4. Names of the elements, so that a claim applies to its own value only; and how they were computed.
    # Names the value
    serial: int = dataclasses.field(
        default_factory=new_symbol, compare=False, metadata={"join": None}
    )
    holds: int = fact(-1, compared=False)  # Names the value that this copies in another shape
    place: int = fact(-1, compared=False)  # Names the value that this copies in the same shape
    # For clipping written out in the program, see `Norm`
    norm_of: Norm | None = dataclasses.field(default=None, metadata={"join": None})
    # (n, r), where terms bound the value as computed: rounding moves it by r times the bound more
    # than one record does, and its norm is at most n times the bound (`_precision.rounding_of`)
    rounding: tuple[float, float] | None = dataclasses.field(default=None, metadata={"join": None})

    # 5. For messages; no proof depends on these.
    # Where the value came from
    origin: Origin = dataclasses.field(kw_only=False, compare=False, metadata={"join": _first})
    # Why it has no bound, or no axes
    why: Reason | None = dataclasses.field(default=None, compare=False, metadata={"join": _first})

    @property
    def content(self) -> int:
        """The name of the elements, in any shape."""
        return self.serial if self.holds < 0 else self.holds

    @property
    def spot(self) -> int:
        """The name of the elements, each in its place."""
        return self.serial if self.place < 0 else self.place

    def guarded_by(self, condition: frozenset[tuple[str, int]]) -> bool:
        """True if it is finite where a condition holds."""
        own = {
            ("each", self.spot),
            ("all", self.content),
            ("each", self.number_if[0]),
            ("all", self.number_if[1]),
        }
        return bool(own & condition)

    def but(self, **changes: Any) -> Private:
        """A new value with `changes`; claims about the old elements are dropped unless given."""
        return dataclasses.replace(self, **{**_FORGOTTEN, "serial": new_symbol(), **changes})

    def joined(self, other: Private) -> Private | None:
        """The join with another value; None if their records or axes differ."""
        if self.batch is not other.batch or self.axes != other.axes:
            return None
        if same(self, other):
            return self.but()
        return self.but(
            **{
                name: join(getattr(self, name), getattr(other, name))
                for name, join in _JOINS.items()
            }
        )


# A field without a declared join fails the import here.
_JOINS: dict[str, Any] = {
    x.name: x.metadata["join"] for x in dataclasses.fields(Private) if x.metadata["join"]
}
_FORGOTTEN = {
    x.name: x.default for x in dataclasses.fields(Private) if x.name not in (*_JOINS, "serial")
}


@dataclasses.dataclass(frozen=True, eq=False)
class Key:
    """An array of PRNG keys, by name."""

    names: np.ndarray


Value = Public | Private | Key


def private_in(values: Sequence[Value]) -> list[Private]:
    """The private ones of several values."""
    return [x for x in values if isinstance(x, Private)]


def same(a: Value, b: Value) -> bool:
    """True if two values make the same claims: names and explanations are not compared."""
    if isinstance(a, Key) or isinstance(b, Key):
        return isinstance(a, Key) and isinstance(b, Key)
    if isinstance(a, Public) != isinstance(b, Public):
        return False
    for name in [x.name for x in dataclasses.fields(a) if x.compare]:
        x = getattr(a, name)
        y = getattr(b, name)
        arrays = [isinstance(value, np.ndarray) for value in (x, y)]
        if any(arrays):
            alike = all(arrays) and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
        else:
            alike = x == y
        if not alike:
            return False
    return True


def constant(value: Any, *, exact: bool = True, error: float = 0.0) -> Public:
    """A value known at trace time."""
    array = np.asarray(value)
    uniform = frozenset(
        i for i in range(array.ndim) if array.size and np.all(array == np.take(array, [0], axis=i))
    )
    scale = None
    if len(uniform) == array.ndim and array.size and array.dtype.kind in "biuf":
        number = abs(float(array.reshape(-1)[0]))
        scale = Scale(number) if number == 0 or SMALLEST <= number <= LARGEST else None
    return Public(const=array, exact=exact, error=error, uniform=uniform, scale=scale)


Axes = tuple[int, ...]


def through_reshape(old: Axes, new: Axes, axes: Axes) -> Axes | None:
    """The axes of a reshaped array that number the same records, in the order of the record index; None without such axes.

    One axis of records may be split, and several merged in their order, beside axes of size 1 only.
    """
    if 0 in old:
        return None
    placed: dict[int, list[int]] = {}
    for ours, theirs in _blocks(old, new):
        records = [i for i in ours if i in axes]
        if not records:
            continue
        if any(old[i] != 1 for i in ours if i not in axes):
            return None
        positions = [axes.index(i) for i in records]
        if positions != list(range(positions[0], positions[0] + len(positions))):
            return None
        kept = [j for j in theirs if new[j] != 1] or theirs[:1]
        if not kept:
            return None
        placed[positions[0]] = kept
    return tuple(j for position in sorted(placed) for j in placed[position])


def _blocks(old: Axes, new: Axes) -> list[tuple[list[int], list[int]]]:
    """The smallest groups of adjacent axes, old and new, that hold the same elements."""
    blocks: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        ours = list(range(i, min(i + 1, len(old))))
        theirs = list(range(j, min(j + 1, len(new))))
        i = i + len(ours)
        j = j + len(theirs)
        while (mine := math.prod(old[k] for k in ours)) != (
            other := math.prod(new[k] for k in theirs)
        ):
            if mine < other:
                ours.append(i)
                i += 1
            else:
                theirs.append(j)
                j += 1
        blocks.append((ours, theirs))
    return blocks


def without(axes: Axes, removed: Sequence[int]) -> Axes:
    """Renumber axes after others were removed from the array; the two sets must be disjoint."""
    return tuple(a - sum(1 for r in removed if r < a) for a in axes)


def row_terms(value: Private, size: int) -> Terms | None:
    """The bound on the L2 norm of each record's slice of `size` elements; derived from the bound on elements if needed."""
    if not value.finite or value.batch is None:
        return None
    if value.terms is not None:
        return value.terms
    if value.linf is None or not math.isfinite(value.linf):
        return None
    return fresh(Scale(value.linf * math.sqrt(size)), value.batch)


def contribution_factor(
    value: Private, relation: Relation, norm: int = 2
) -> tuple[float, Reason | None]:
    """The factor from a bound on rows to C in the units of an event, or 0 and the reason why there is none.

    An event's C is what one record adds to a sum; under REPLACE_ONE the accountant doubles it.
    Where absent rows are not exactly zero, adding a record also removes the padding's contribution:
    2C. Two rows without negative elements are at most sqrt(2) C apart in L2, since their product is
    not negative; in L1 they may be 2C apart.
    """
    batch = value.batch
    assert batch is not None
    whole = batch.whole
    table = batch.table
    add_remove = neighbours(relation).hides_membership
    near = norm == 2 and value.low is not None and value.low >= 0
    apart = math.sqrt(2.0) if near else 2.0
    one_sided = bool({whole, outside(whole)} & value.zero)
    if whole is table:
        return ((1.0 if table.masked and one_sided else apart) if add_remove else apart / 2.0), None
    if value.positional:
        return 0.0, Why.POSITION("a row's place in a random sample has an influence on it")
    if add_remove and table.masked and table not in value.zero:
        return 0.0, Why.MASK(
            "the sample was drawn from padding rows too, and their contributions are not zero"
        )
    assert isinstance(whole, Sample)
    return (1.0 if whole.sampling.constant_size or one_sided else apart), None


def range_factor(batch: RecordSet, relation: Relation) -> float:
    """The same factor for any value within a ball of radius C; 0 where there is no bound."""
    whole = batch.whole
    if isinstance(whole, Table):
        return 2.0 if neighbours(relation).hides_membership else 1.0
    if neighbours(relation).hides_membership and whole.table.masked:
        return 0.0
    return 1.0 if isinstance(whole, Sample) and whole.sampling.constant_size else 2.0
