"""Abstract values of the variables of a program, and the arithmetic of bounds and of keys.

An abstract value describes two runs of one program, on neighbouring tables, with the same keys and the same released
values. Neighbours differ in one row: under REPLACE_ONE in its content, under ADD_OR_REMOVE_ONE in whether the mask
keeps it, and then in its content as well, since padding may hold anything. It stands for all pairs of concrete values
for which its claims are true: `Public` claims that they are equal, `Private` the claims of its groups of fields, `Key` the
names of keys.

The invariant of this file: every function returns claims that follow from the claims it is given. Each field declares how
`Private.but` and `Private.joined` treat it (`fact`). By default both drop it, which is sound.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from discreet.privacy.accounting import Relation
from discreet.privacy.sampling import Sampling
from discreet.privacy.verify._errors import Origin, Reason, Why

SMALLEST = 1e-30
LARGEST = 1e30
"""Numbers beyond may be zero, or infinite, in float32: their multiples have no bound."""


new_symbol: Callable[[], int] = functools.partial(next, itertools.count())
"""A new name, for a value, a group or a public number that is unknown at trace time."""


def is_open(name: int) -> bool:
    """True if a name denotes an open parameter: it gets a value, and a proof of its own, before anything runs."""
    return name < 0


@dataclasses.dataclass(frozen=True)
class Scale:
    """A number up to its sign: a factor times powers of public numbers that are unknown at trace time.

    So noise z * C on a sum clipped to C has a known ratio even if C changes from step to step.
    """

    factor: float
    powers: tuple[tuple[int, float], ...] = ()

    def __mul__(self, other: Scale | float) -> Scale:
        if not isinstance(other, Scale):
            return Scale(self.factor * other, self.powers)
        powers = dict(self.powers)
        for symbol, power in other.powers:
            powers[symbol] = powers.get(symbol, 0.0) + power
        return Scale(self.factor * other.factor, tuple(sorted((s, p) for s, p in powers.items() if p != 0)))

    def to(self, power: float) -> Scale:
        """A power of the number."""
        if self.factor == 0 and power < 0:
            return Scale(math.inf)
        return Scale(abs(self.factor) ** power, tuple((s, p * power) for s, p in self.powers))

    def at(self, values: dict[int, float]) -> Scale:
        """The number after substituting the known values of some symbols."""
        factor = self.factor * math.prod(values[s] ** power for s, power in self.powers if s in values)
        return Scale(factor, tuple(x for x in self.powers if x[0] not in values))

    def over(self, other: Scale) -> float | None:
        """The quotient, if it is known."""
        quotient = self * other.to(-1.0)
        known = not quotient.powers and math.isfinite(quotient.factor)
        return abs(quotient.factor) if known else None


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """The records that a value may depend on: the table, a random sample, or a part of either. Compared by identity."""

    parent: Batch | None = None  # The batch it was drawn or cut from; None for the table
    masked: bool = False  # The table has a mask, so that a record may be absent
    depth: int = 0  # The number of loops around the draw or the cut

    @property
    def whole(self) -> Batch:
        """The table or sample that a part is cut from; any other batch itself."""
        return self.parent.whole if isinstance(self, Cut) and self.parent is not None else self

    @property
    def table(self) -> Batch:
        """The table at the root."""
        return self if self.parent is None else self.parent.table

    @property
    def sampled(self) -> bool:
        """True if membership of this batch is random."""
        return isinstance(self.whole, Sample)


class Table(Batch):
    """All records."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sample(Batch):
    """A random sample of the table."""

    sampling: Sampling = dataclasses.field(kw_only=True)  # Its law
    num_records: int = dataclasses.field(kw_only=True)  # Rows of the table


@dataclasses.dataclass(frozen=True, eq=False)
class Part(Batch):
    """The records of one loop iteration, disjoint from those of every other iteration."""

    loop: Any = dataclasses.field(kw_only=True)
    # The number of consecutive blocks of records that the loop traverses at once. An iteration sees one piece of each
    # block; 0 if it does not take all pieces in order.
    before: int = dataclasses.field(kw_only=True, default=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows(Batch):
    """Rows by their numbers, each once at most: a range of them, or a choice."""

    numbers: range | tuple[int, ...] = dataclasses.field(kw_only=True)


Cut = Part | Rows
"""A part of a batch that contains each record at most once."""


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Values with a joint bound: the outputs of one clipping. Groups are compared by identity.

    Leaves of one group are parts of one vector of norm at most 1. Released together with equal noise they cost as much as
    that vector, once and not per leaf.
    """

    carried: bool = False  # It is the unknown sum that an iteration starts with
    serial: int = dataclasses.field(default_factory=new_symbol)


@functools.lru_cache(maxsize=4096)
def group_of(*what: Any) -> Group:
    """The group that these things determine: the same one each time."""
    return Group()


@dataclasses.dataclass(frozen=True)
class Term:
    """One summand of a bound: `bound` times the share that `leaves` have of the group.

    The vectors of a group's leaves have a joint L2 norm of at most 1, in units of `bound`. A value with several terms
    is within their sum.
    """

    group: Group
    leaves: frozenset[int]
    bound: Scale
    source: Batch  # The batch whose records it bounds


@dataclasses.dataclass(frozen=True)
class Turns:
    """The values of one public number in each iteration of a loop, known at trace time."""

    loop: Any
    values: tuple[float, ...]
    error: float = 0.0  # As in `Public`


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
    # Its value in each iteration of an enclosing loop, if it is one number; up to rounding where it is a float
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

        Once that is negligible, but a loop may repeat it a million times, and XLA folds several constants into one. Powers
        of two, and numbers unknown at trace time, are exact.
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
        if self.const is not None and other.const is not None and np.array_equal(self.const, other.const):
            error = max(self.error, other.error)
            return dataclasses.replace(
                constant(self.const, exact=self.exact and other.exact, error=error), released=released
            )
        uniform = self.uniform & other.uniform
        return Public(uniform=uniform, scale=unnamed() if len(uniform) == rank else None, released=released)


@dataclasses.dataclass(frozen=True, eq=False)
class Norm:
    """The relation of a value to n, the joint L2 norm of a record's slices of some values.

    - "squares": sums of their squares; over all their elements where only the axes of the records are left;
    - "norm": n <= value * bound;
    - "factor": |value| * n <= bound;
    - "above": truth values; where False, n <= bound. "below": where True.
    """

    kind: str  # One of these
    contents: frozenset[int]  # The values whose norm it is
    bound: Scale = Scale(1.0)  # See above
    size: int = 0  # Elements of a record in all of them
    # For a norm: value * bound is at least `FLOOR`. For a factor: finite unless the norm is NaN, and underflow of squares
    # does not matter. Otherwise the bound does not hold either, and the product may be infinite.
    safe: bool = False
    # None of the values holds NaN or infinity; otherwise the relation may fail where one does
    finite: bool = False

    @property
    def group(self) -> Group:
        """The values in units of their joint norm, whichever factors clip them."""
        return group_of("norm", self.contents)


def fact(default: Any, *, join: Callable[[Any, Any], Any] | None = None, compared: bool = True) -> Any:
    """A field of a private value: one claim, whose default is the weakest; `same` compares it if `compared`.

    `join` returns the claim that two claims both imply; `Private.but` keeps such a field. Without `join` the claim concerns
    these elements alone: `but` and `joined` drop it.
    """
    return dataclasses.field(default=default, compare=compared, metadata={"join": join})


def _first(a: Any, b: Any) -> Any:
    return a or b


def _larger(a: tuple[Term, ...] | None, b: tuple[Term, ...] | None) -> tuple[Term, ...] | None:
    """The join of two bounds: the larger where they share a group, or both are numbers."""
    if a is None or b is None or a == b:
        return a if a == b else None
    if len(a) == len(b) == 1:
        (x,) = a
        (y,) = b
        if x.group is y.group and x.leaves == y.leaves and x.source is y.source and x.bound.powers == y.bound.powers:
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
    batch: Batch | None = dataclasses.field(kw_only=False, metadata={"join": _first})
    # The axes that number the records, in the order of the record index: element (.., j, ..) depends on record j alone.
    # None: no such axes.
    axes: tuple[int, ...] | None = dataclasses.field(kw_only=False, metadata={"join": _first})
    positional: bool = fact(False, join=operator.or_)  # A record's slice depends also on its place
    # Masks under which it is zero: slices of records that are not in these batches are exactly 0
    zero: frozenset[Batch] = fact(frozenset(), join=operator.and_)
    # A claim about two values need not hold for a value that alternates between them.
    # A sum over records, whose terms come from additions only. Meaningful without `axes`.
    additive: bool = fact(False, join=lambda a, b: False)
    # Masks, each with the nonzero integer (or True) that every element holds where the mask excludes the record
    absent: frozenset[tuple[Batch, int]] = fact(frozenset())
    # Without `axes`: the axis that numbers the records and more besides, see `Fold` in `_rules_linear`
    folded: tuple[int, int, int] | None = fact(None)

    # 2. The size of the value, or the distance between the two runs.
    # With `axes`: a bound on the L2 norm of each record's slice. Without: on the L2 norm of what one record adds, in
    # the units of the event's clipping norm C. None: no bound.
    terms: tuple[Term, ...] | None = fact(None, join=_larger)
    # Bound on the size of each element that is a number
    linf: float | None = fact(None, join=lambda a, b: None if a is None or b is None else max(a, b))
    # Without `axes`: bound on the size of each element of what one record adds, in the units of C; a fact of sums that
    # a choice is made from, which only functions of single elements keep
    moves: float | None = fact(None)
    low: float | None = fact(None)  # No element that is a number lies below
    high: float | None = fact(None)  # Nor above
    most: int | None = fact(None)  # Of Booleans: upper bound on the number of True elements for each record

    # 3. NaN and infinity.
    finite: bool = fact(False, join=operator.and_)  # No element is NaN or infinite
    lacks: frozenset[str] = fact(frozenset())  # Those of "nan", "inf" and "-inf" that do not occur
    # Where this Boolean is True, a value is finite: in the same place ("each", spot), or in the whole record
    # ("all", content). Where it is True for a whole record, that value is finite there ("of", content).
    finite_where: frozenset[tuple[str, int]] = fact(frozenset())
    number_if: tuple[int, int] = fact((-1, -1))  # Spot and content of a value; where that is finite, this is
    # For a Boolean: True exactly where the value of that spot is "nan", "inf" or "-inf"; ("never", -1): nowhere
    tells: tuple[str, int] = fact(("", -1))

    # 4. Names of the elements, so that a claim applies to its own value only; and how they were computed.
    # Names the value
    serial: int = dataclasses.field(default_factory=new_symbol, compare=False, metadata={"join": None})
    holds: int = fact(-1, compared=False)  # Names the value that this copies in another shape
    place: int = fact(-1, compared=False)  # Names the value that this copies in the same shape
    # For clipping written out in the program, see `Norm`
    norm_of: Norm | None = dataclasses.field(default=None, metadata={"join": None})
    # (n, r), where terms bound the value as computed: rounding moves it by r times the bound more than one record
    # does, and its norm is at most n times the bound (`_interpreter.rounding_of`)
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
        own = {("each", self.spot), ("all", self.content), ("each", self.number_if[0]), ("all", self.number_if[1])}
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
        return self.but(**{name: join(getattr(self, name), getattr(other, name)) for name, join in _JOINS.items()})


# A field without a declared join fails the import here.
_JOINS: dict[str, Any] = {x.name: x.metadata["join"] for x in dataclasses.fields(Private) if x.metadata["join"]}
_FORGOTTEN = {x.name: x.default for x in dataclasses.fields(Private) if x.name not in (*_JOINS, "serial")}


@dataclasses.dataclass(frozen=True, eq=False)
class Key:
    """An array of PRNG keys, by name."""

    names: np.ndarray


Value = Public | Private | Key


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


def unnamed() -> Scale:
    """The size of a number that has no name yet."""
    return Scale(1.0, ((new_symbol(), 1.0),))


def constant(value: Any, *, exact: bool = True, error: float = 0.0) -> Public:
    """A value known at trace time."""
    array = np.asarray(value)
    uniform = frozenset(i for i in range(array.ndim) if array.size and np.all(array == np.take(array, [0], axis=i)))
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
        while (mine := math.prod(old[k] for k in ours)) != (other := math.prod(new[k] for k in theirs)):
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


def scaled(terms: tuple[Term, ...], factor: Scale | float) -> tuple[Term, ...]:
    """The bound of a multiple."""
    return tuple(Term(t.group, t.leaves, t.bound * factor, t.source) for t in terms)


def bounding(terms: tuple[Term, ...] | None, source: Batch) -> tuple[Term, ...] | None:
    """The same bound for the same records in another batch."""
    return None if terms is None else tuple(dataclasses.replace(t, source=source) for t in terms)


def fresh(bound: Scale, source: Batch) -> tuple[Term, ...]:
    """A bound in a group of its own."""
    return (Term(Group(), frozenset([0]), bound, source),)


def added(first: tuple[Term, ...], second: tuple[Term, ...]) -> tuple[Term, ...]:
    """The bound of a sum: the triangle inequality, after merging equal terms."""
    # Leaves of one group are not merged: a + b of two of them may be sqrt(2) times as long as either bound.
    merged: dict[tuple[int, frozenset[int], tuple, int], Term] = {}
    for t in (*first, *second):
        name = (id(t.group), t.leaves, t.bound.powers, id(t.source))
        if name in merged:
            t = Term(t.group, t.leaves, Scale(merged[name].bound.factor + t.bound.factor, t.bound.powers), t.source)
        merged[name] = t
    return tuple(merged.values())


def source_of(terms: Sequence[Term]) -> Batch:
    """The batch whose records several terms bound; for different parts, the batch that contains them."""
    sources = {t.source for t in terms}
    return sources.pop() if len(sources) == 1 else terms[0].source.whole


def stacked(parts: Sequence[tuple[Term, ...]], source: Batch) -> tuple[Term, ...] | None:
    """The bound of concatenated values, as one vector; None if it is not one number.

    Disjoint leaves of one group have the group's bound jointly; otherwise squares add up.
    """
    if len(parts) <= 1:
        return parts[0] if parts else ()
    single = [p[0] for p in parts if len(p) == 1]
    if len(single) == len(parts) and len({(id(t.group), t.bound.powers, t.source) for t in single}) == 1:
        count = sum(len(t.leaves) for t in single)
        leaves = frozenset().union(*(t.leaves for t in single))
        if len(leaves) == count:
            bound = max((t.bound for t in single), key=lambda b: b.factor)
            return (Term(single[0].group, leaves, bound, single[0].source),)
    # Different groups have no joint bound, so squares add up, in a new group.
    total = [total_of(p) for p in parts]
    known = [t for t in total if t is not None]
    if len(known) < len(total) or len({t.powers for t in known}) != 1:
        return None
    return fresh(Scale(math.sqrt(sum(t.factor**2 for t in known)), known[0].powers), source)


def over_slices(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Merge the terms of a sum over disjoint slices of the table: a record is in one of them, so the largest counts.

    A record in a slice moves within that slice's group. Two sums may share the merged group only if they assign every record
    the same group. So it is named by the groups and their slices: with other borders, a record between the old border and the
    new would be in one group in the first sum and in another in the second, and its loads would add.
    """
    ranges = [t.source.numbers for t in terms if isinstance(t.source, Rows) and isinstance(t.source.numbers, range)]
    if len(terms) < 2 or len(ranges) < len(terms):
        return terms
    pairs = sorted(zip(ranges, terms, strict=True), key=lambda pair: (pair[0].start, pair[0].stop))
    apart = all(a.stop <= b.start for (a, _), (b, _) in itertools.pairwise(pairs))
    alike = len({(t.leaves, t.bound.powers, t.source.parent) for t in terms}) == 1
    if not (apart and alike) or terms[0].source.parent is None:
        return terms
    bound = max((t.bound for t in terms), key=lambda b: b.factor)
    # Slices of one group give every record that group, wherever the borders are.
    groups = {t.group for t in terms}
    group = groups.pop() if len(groups) == 1 else group_of("slices", *((t.group, t.source) for _, t in pairs))
    return (Term(group, terms[0].leaves, bound, terms[0].source.parent),)


def total_of(terms: tuple[Term, ...]) -> Scale | None:
    """A bound as one number; None unless its terms are multiples of one another."""
    if not terms:
        return Scale(0.0)
    if len({t.bound.powers for t in terms}) > 1:
        return None
    return Scale(sum(t.bound.factor for t in terms), terms[0].bound.powers)


def row_terms(value: Private, size: int) -> tuple[Term, ...] | None:
    """The bound on the L2 norm of each record's slice of `size` elements; derived from the bound on elements if needed."""
    if not value.finite or value.batch is None:
        return None
    if value.terms is not None:
        return value.terms
    if value.linf is None or not math.isfinite(value.linf):
        return None
    return fresh(Scale(value.linf * math.sqrt(size)), value.batch)


def contribution_factor(value: Private, relation: Relation) -> tuple[float, Reason | None]:
    """The factor from a bound on rows to C in the units of an event, or 0 and the reason why there is none.

    An event's C is what one record adds to a sum; under REPLACE_ONE the accountant doubles it. Where absent rows are not
    exactly zero, adding a record also removes the padding's contribution: 2C.
    """
    batch = value.batch
    assert batch is not None
    whole = batch.whole
    table = batch.table
    add_remove = relation is Relation.ADD_OR_REMOVE_ONE
    if whole is table:
        return (2.0 if add_remove and not (table.masked and table in value.zero) else 1.0), None
    if value.positional:
        return 0.0, Why.POSITION("a row's place in a random sample has an influence on it")
    if add_remove and table.masked and table not in value.zero:
        return 0.0, Why.MASK("the sample was drawn from padding rows too, and their contributions are not zero")
    assert isinstance(whole, Sample)
    return (1.0 if whole.sampling.constant_size or whole in value.zero else 2.0), None


def range_factor(batch: Batch, relation: Relation) -> float:
    """The same factor for any value within a ball of radius C; 0 where there is no bound."""
    whole = batch.whole
    if isinstance(whole, Table):
        return 2.0 if relation is Relation.ADD_OR_REMOVE_ONE else 1.0
    if relation is Relation.ADD_OR_REMOVE_ONE and whole.table.masked:
        return 0.0
    return 1.0 if isinstance(whole, Sample) and whole.sampling.constant_size else 2.0


SECRET = "secret"
KNOWN = "known"
PRIVATE = "private"
"""Secret: from a key argument, so its noise is fresh. Known: from a number of the program, or mixed.
Private: draws from it depend on records."""


@dataclasses.dataclass
class _Record:
    kind: str
    depth: int
    why: str
    use: tuple[str, str] | None = None
    folds: dict[Any, str] = dataclasses.field(default_factory=dict)

    @property
    def taken(self) -> tuple[str, str] | None:
        """The purpose and place of the key's use; None if it is unused."""
        return self.use or next((("jax.random.fold_in", line) for line in self.folds.values()), None)


@dataclasses.dataclass(eq=False)
class KeyRing:
    """All keys of a program. Each may be split, folded, drawn from, passed to a mechanism or returned: one of these, once.

    Folding numbers into one key is one use, as long as the numbers differ.
    """

    loops: list[Any] = dataclasses.field(default_factory=list)
    _records: dict[int, _Record] = dataclasses.field(default_factory=dict)
    _next: int = 0

    def snapshot(self) -> dict[int, _Record]:
        """Copy the state of all keys, so that a branch can be tried."""
        return {name: dataclasses.replace(r, folds=dict(r.folds)) for name, r in self._records.items()}

    def restore(self, saved: dict[int, _Record]) -> None:
        """Return to a snapshot."""
        self._records = saved
        self._records = self.snapshot()

    def merge(self, others: list[dict[int, _Record]]) -> None:
        """Combine branches: a key is used if one of them used it."""
        for other in others:
            for name, record in other.items():
                mine = self._records.setdefault(name, record)
                mine.use = mine.use or record.use
                mine.folds.update(record.folds)

    def new(self, shape: tuple[int, ...], kind: str, why: str = "") -> Key:
        """Create keys with new names."""
        start = self._next
        self._next = self._next + math.prod(shape)
        self._records |= {name: _Record(kind, len(self.loops), why) for name in range(start, self._next)}
        return Key(np.arange(start, self._next, dtype=np.int64).reshape(shape))

    def anew(self, key: Key) -> Key:
        """The keys of another iteration: as many of the same kind, with new names."""
        return self.new(key.names.shape, *self.kind(key))

    def shared(self, key: Key, shape: tuple[int, ...], loop: Any, purpose: str, line: str) -> Key:
        """The keys of one iteration of a loop, each of which takes its own part of an array."""
        self.spend(key, purpose, line)
        self.loops.append(loop)
        part = self.new(shape, *self.kind(key))
        self.loops.pop()
        return part

    def _of(self, key: Key) -> list[_Record]:
        return [self._records[int(name)] for name in key.names.reshape(-1)]

    def kind(self, key: Key) -> tuple[str, str]:
        """The kind of an array of keys, and why: secret only if all are, private if one is."""
        found = ((kind, x.why) for kind in (PRIVATE, KNOWN) for x in self._of(key) if x.kind == kind)
        return next(found, (SECRET, ""))

    def spend(self, key: Key, purpose: str, line: str) -> None:
        """Record the use of keys. Known keys are not secret and may be reused."""
        if len(np.unique(key.names)) < key.names.size and self.kind(key)[0] == SECRET:
            self._refuse(purpose, line, "the same key several times in one array", line)
        for record in self._of(key):
            if record.kind != SECRET:
                continue
            if record.taken is not None:
                self._refuse(purpose, line, *record.taken)
            # Made outside of a loop and used inside: used in every iteration.
            if any(loop.length != 1 for loop in self.loops[record.depth :]):
                self._refuse(purpose, line, "the same, in another iteration of the loop", line)
            record.use = (purpose, line)

    def depth_of(self, key: Key) -> int:
        """The largest number of loops around the creation of one of the keys."""
        return max((x.depth for x in self._of(key)), default=0)

    def spend_in(self, loop: Any, key: Key, purpose: str, line: str) -> None:
        """Record the use of keys in every iteration of the loop."""
        self.loops.append(loop)
        self.spend(key, purpose, line)
        self.loops.pop()

    def spend_outside(self, key: Key, purpose: str, line: str, loop: Any) -> None:
        """Record the use of keys of which every iteration of the loop takes another."""
        kept = self.loops
        self.loops = [x for x in self.loops if x is not loop]
        self.spend(key, purpose, line)
        self.loops = kept

    def fold(self, key: Key, const: Any, counter: tuple[Any, int, int] | None, line: str) -> Key:
        """The keys of `jax.random.fold_in`, for a known number or for a counter of the enclosing loop."""
        kind, why = self.kind(key)
        if kind != SECRET:
            return self.new(key.names.shape, kind, why)
        for record in self._of(key):
            # The loops since the key was made: only a counter of a single one differs in every iteration.
            around = [loop for loop in self.loops[record.depth :] if loop.length != 1]
            if record.use is not None:
                self._refuse("jax.random.fold_in", line, *record.use)
            if around and (counter is None or [counter[0]] != around):
                self._refuse("jax.random.fold_in", line, "the same number, in another iteration of the loop", line)
            if counter is not None:
                taken = (counter[1], counter[2])
            elif const is not None:
                taken = (const, const)
            else:
                if record.taken is not None:
                    self._refuse("jax.random.fold_in", line, *record.taken)
                taken = (-(2**40), 2**40)
            for (low, high), where in record.folds.items():
                if low <= taken[1] and taken[0] <= high:
                    again = "jax.random.fold_in with a number that may be the same"
                    self._refuse(again, line, "jax.random.fold_in", where)
            record.folds[taken] = line
        return self.new(key.names.shape, SECRET)

    def use_of(self, key: Key) -> tuple[str, str] | None:
        """The purpose and place of the first use among the keys; None if all are unused."""
        return next((x.taken for x in self._of(key) if x.taken), None)

    def _refuse(self, purpose: str, line: str, before: str, where: str) -> None:
        raise Why.KEY.refusal(
            f"a key is used twice: for {purpose} at {line}, and for {before} at {where}. Two draws from one key are equal, so "
            "one noise can be subtracted from the other.",
            where,
            line,
        )
