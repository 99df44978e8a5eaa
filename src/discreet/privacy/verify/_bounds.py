"""Sizes, batches, groups and terms: what a bound on one record's influence is made of.

A `Scale` is a number up to its sign: a factor times powers of numbers unknown at trace time. A
`RecordSet` is the set of records that a value depends on: the table, a sample of it, or a cut of
either. A `Group` is the result of one clipping: one record's leaves together are a vector of L2
norm at most 1. A `Term` is a `bound` times the share that some leaves have of a group, and a bound
is a sum of terms.

The invariant: every function returns a bound that follows from those it is given. Sums obey the
triangle inequality (`added`), multiples homogeneity (`scaled`), concatenations Pythagoras
(`stacked`). What has no common group gets a new one, which nothing else shares: that may raise the
cost, and never lowers it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from discreet.privacy.sampling import Sampling

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
        return Scale(
            self.factor * other.factor, tuple(sorted((s, p) for s, p in powers.items() if p != 0))
        )

    def to(self, power: float) -> Scale:
        """A power of the number."""
        if self.factor == 0 and power < 0:
            return Scale(math.inf)
        return Scale(abs(self.factor) ** power, tuple((s, p * power) for s, p in self.powers))

    def at(self, values: dict[int, float]) -> Scale:
        """The number after substituting the known values of some symbols."""
        factor = self.factor * math.prod(
            values[s] ** power for s, power in self.powers if s in values
        )
        return Scale(factor, tuple(x for x in self.powers if x[0] not in values))

    def over(self, other: Scale) -> float | None:
        """The quotient, if it is known."""
        quotient = self * other.to(-1.0)
        known = not quotient.powers and math.isfinite(quotient.factor)
        return abs(quotient.factor) if known else None


def unnamed() -> Scale:
    """The size of a number that has no name yet."""
    return Scale(1.0, ((new_symbol(), 1.0),))


def is_far(bound: Scale) -> bool:
    """True if a factor may leave float32's range.

    Noise f C of a traced size below 1e-20 or above 1e20 is NaN. With f from 1e-9 to 1e7 the number
    C that is unknown while tracing is therefore between 1e-27 and 1e29, and its other multiples by
    such factors are normal float32 numbers: between 1e-36 and 1e36.
    """
    least, most = (1e-9, 1e7) if bound.powers else (SMALLEST, LARGEST)
    return bound.factor != 0 and not least <= bound.factor <= most


@dataclasses.dataclass(frozen=True, eq=False)
class RecordSet:
    """The records that a value may depend on: the table, a random sample, or a part of either. Compared by identity."""

    parent: RecordSet | None = None  # The batch it was drawn or cut from; None for the table
    masked: bool = False  # The table has a mask, so that a record may be absent
    depth: int = 0  # The number of loops around the draw or the cut

    @property
    def whole(self) -> RecordSet:
        """The table or sample that a part is cut from; any other batch itself."""
        return self.parent.whole if isinstance(self, Cut) and self.parent is not None else self

    @property
    def table(self) -> RecordSet:
        """The table at the root."""
        return self if self.parent is None else self.parent.table

    @property
    def sampled(self) -> bool:
        """True if membership of this batch is random."""
        return isinstance(self.whole, Sample)


class Table(RecordSet):
    """All records."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sample(RecordSet):
    """A random sample of the table."""

    sampling: Sampling = dataclasses.field(kw_only=True)  # Its law
    num_records: int = dataclasses.field(kw_only=True)  # Rows of the table


@dataclasses.dataclass(frozen=True, eq=False)
class Part(RecordSet):
    """The records of one loop iteration, disjoint from those of every other iteration."""

    loop: Any = dataclasses.field(kw_only=True)
    # The number of consecutive blocks of records that the loop traverses at once. An iteration sees
    # one piece of each block; 0 if it does not take all pieces in order.
    before: int = dataclasses.field(kw_only=True, default=1)


@dataclasses.dataclass(frozen=True, eq=False)
class NumberedRows(RecordSet):
    """Rows by their numbers, each once at most: a range of them, or a choice."""

    numbers: range | tuple[int, ...] = dataclasses.field(kw_only=True)
    of: int = dataclasses.field(kw_only=True)  # The number of rows that they are taken of


@functools.lru_cache(maxsize=4096)
def outside(batch: RecordSet) -> RecordSet:
    """What the mask of a batch excludes: in `Private.zero` and `absent` it names the claims about its records' slices."""
    return RecordSet(batch)


Cut = Part | NumberedRows
"""A part of a batch that contains each record at most once."""


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Values with a joint bound: the outputs of one clipping. Groups are compared by identity.

    Leaves of one group are parts of one vector of norm at most 1. Released together with equal
    noise they cost as much as that vector, once and not per leaf.
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

    The vectors of a group's leaves have a joint L2 norm of at most 1, in units of `bound`. A value
    with several terms is within their sum.
    """

    group: Group
    leaves: frozenset[int]
    bound: Scale
    source: RecordSet  # The batch whose records it bounds


Terms = tuple[Term, ...]
"""A bound: the sum of its terms."""


def scaled(terms: Terms, factor: Scale | float) -> Terms:
    """The bound of a multiple."""
    return tuple(Term(t.group, t.leaves, t.bound * factor, t.source) for t in terms)


def bounding(terms: Terms | None, source: RecordSet) -> Terms | None:
    """The same bound for the same records in another batch."""
    return None if terms is None else tuple(dataclasses.replace(t, source=source) for t in terms)


def fresh(bound: Scale, source: RecordSet) -> Terms:
    """A bound in a group of its own."""
    return (Term(Group(), frozenset([0]), bound, source),)


def added(first: Terms, second: Terms) -> Terms:
    """The bound of a sum: the triangle inequality, after merging equal terms."""
    # Leaves of one group are not merged: a + b of two of them may be sqrt(2) times as long as
    # either bound.
    merged: dict[tuple[int, frozenset[int], tuple, int], Term] = {}
    for t in (*first, *second):
        name = (id(t.group), t.leaves, t.bound.powers, id(t.source))
        if name in merged:
            t = Term(
                t.group,
                t.leaves,
                Scale(merged[name].bound.factor + t.bound.factor, t.bound.powers),
                t.source,
            )
        merged[name] = t
    return tuple(merged.values())


def source_of(terms: Sequence[Term]) -> RecordSet:
    """The batch whose records several terms bound; for different parts, the batch that contains them."""
    sources = {t.source for t in terms}
    return sources.pop() if len(sources) == 1 else terms[0].source.whole


def stacked(parts: Sequence[Terms], source: RecordSet) -> Terms | None:
    """The bound of concatenated values, as one vector; None if it is not one number.

    Disjoint leaves of one group have the group's bound jointly; otherwise squares add up.
    """
    if len(parts) <= 1:
        return parts[0] if parts else ()
    single = [p[0] for p in parts if len(p) == 1]
    alike = len({(id(t.group), t.bound.powers, t.source) for t in single}) == 1
    if alike and len(single) == len(parts) and are_apart(single):
        bound = max((t.bound for t in single), key=lambda b: b.factor)
        leaves = frozenset().union(*(t.leaves for t in single))
        return (Term(single[0].group, leaves, bound, single[0].source),)
    # Different groups have no joint bound, so squares add up, in a new group.
    total = [total_of(p) for p in parts]
    known = [t for t in total if t is not None]
    if len(known) < len(total) or len({t.powers for t in known}) != 1:
        return None
    return fresh(Scale(math.sqrt(sum(t.factor**2 for t in known)), known[0].powers), source)


def named_since(terms: Terms | None, before: int) -> bool:
    """True if a bound has a number that is unknown at trace time and was named in this loop, whose names begin at `before`."""
    return any(symbol >= before for t in terms or () for symbol, _ in t.bound.powers)


def are_apart(terms: Sequence[Term]) -> bool:
    """True if no two terms have a leaf in common."""
    return len(frozenset().union(*(t.leaves for t in terms))) == sum(len(t.leaves) for t in terms)


def total_of(terms: Terms) -> Scale | None:
    """A bound as one number; None unless its terms are multiples of one another.

    Disjoint leaves of one group are parts of one vector, so a sum of multiples of them obeys Cauchy
    and Schwarz.
    """
    if not terms:
        return Scale(0.0)
    if len({t.bound.powers for t in terms}) > 1:
        return None
    of_group: dict[tuple[int, int], list[Term]] = {}
    for t in terms:
        of_group.setdefault((id(t.group), id(t.source)), []).append(t)
    sizes = [([t.bound.factor for t in same], are_apart(same)) for same in of_group.values()]
    return Scale(
        sum(math.hypot(*x) if apart else sum(x) for x, apart in sizes), terms[0].bound.powers
    )
