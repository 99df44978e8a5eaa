"""Events: the record of draws and releases, the event that follows from it, and open parameters.

In four parts: symbols, which are parameters with a name instead of a value; the list of draws, releases, loops and branches
that a walk collects, and the event that follows from it; the comparison of that event with a claimed one; and events whose
delta is a formula.

The invariant: the event covers every run of the whole program. Releases of one sample, from its draw to the end of the block
that drew it, are one mechanism on that sample, whose event the sampler names. A release of records that no draw or table
accounts for is an error, not a cost of zero. Nothing is rounded in favour of the program: branches that differ are all
charged, and a claim covers the proof only if it does so for every value of the symbols.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import attr
import numpy as np

from discreet._dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from discreet._validate import is_real
from discreet.privacy.accounting import Relation, profile, relation_name
from discreet.privacy.mechanisms import Mechanism
from discreet.privacy.verify._domain import LARGEST, SMALLEST, Batch, Cut, Group, Part, Sample, Scale, Table, new_symbol
from discreet.privacy.verify._errors import PrivacyError

_FINEST = 4096
"""Fractions with a larger denominator are written as decimals."""


def symbol(name: str, *, integer: bool = False) -> Any:
    """Create a public parameter that a proof leaves open: a positive sympy symbol.

    Pass it to `certify` where a step takes a number: noise, clipping norm, learning rate, the rate of
    `poisson_subsample`, the end of a `jax.lax.fori_loop`, or as `times`. Arithmetic and sympy's functions make expressions,
    which may be passed as well. Symbols of one name and kind are the same.

    Args:
        name: Name in the certificate, and keyword of `Certificate.at`.
        integer: The parameter is an integer, such as a number of iterations.

    Returns:
        A `sympy.Symbol`, positive.

    Raises:
        ValueError: The name is not a Python identifier.
        ImportError: Sympy is not installed.

    >>> import discreet as dp
    >>> sigma, C = dp.symbol("sigma"), dp.symbol("C")
    >>> sigma * C / C
    sigma
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"symbol: {name!r} is not a Python identifier. Pass a name such as 'sigma'.")
    kind = {"integer": True} if integer else {}
    return load_sympy().Symbol(name, positive=True, **kind)


def load_sympy() -> Any:
    """Import sympy on first use."""
    try:
        import sympy
    except ImportError as error:
        raise ImportError("Symbols need sympy, which is not installed: pip install 'discreet[symbolic]'.") from error
    return sympy


def is_symbolic(value: Any) -> bool:
    """True for a sympy expression. Does not import sympy: without it there are none."""
    sympy = sys.modules.get("sympy")
    return sympy is not None and isinstance(value, sympy.Expr)


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A formerly open argument with its value: the program is traced with the number."""

    value: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Given:
    """An argument that is traced as an operand, and whose value the proof uses: `certify` takes it in place of an array.

    So one program serves all values, and each proof concerns one of them. A certificate names its values: it proves nothing
    about the program with others.

    Attributes:
        value: The array that will be passed to the program.
    """

    value: Any


@dataclasses.dataclass
class Symbols:
    """The map from the checker's names of open parameters to sympy expressions."""

    _expressions: dict[int, Any] = dataclasses.field(default_factory=dict)

    def scale(self, expression: Any) -> Scale:
        """The checker's number for an expression: the same one for the same expression."""
        name = next((n for n, x in self._expressions.items() if x == expression), None)
        if name is None:
            name = -1 - new_symbol()  # `is_open`
            self._expressions[name] = expression
        return Scale(1.0, ((name, 1.0),))

    def expression(self, scale: Scale | None) -> Any:
        """The expression for a checker's number; None unless it consists of open parameters, at least one."""
        if scale is None or not scale.powers or not math.isfinite(scale.factor):
            return None
        if any(name not in self._expressions for name, _ in scale.powers):
            return None
        product = _exact(scale.factor)
        for name, power in scale.powers:
            product *= self._expressions[name] ** _exact(power)
        return product if product.free_symbols else float(product)

    def ratio(self, bound: Scale, noise: Scale) -> Any:
        """The quotient: a float, or an expression of open parameters; None if unknown."""
        known = bound.over(noise)
        return known if known is not None else self.expression(bound * noise.to(-1.0))


def _exact(number: float) -> Any:
    sympy = load_sympy()
    fraction = Fraction(number)
    fine = fraction.denominator > _FINEST
    return sympy.Float(number) if fine else sympy.Rational(fraction.numerator, fraction.denominator)


def largest(*values: Any) -> Any:
    """The largest of numbers, some of which may be open."""
    return load_sympy().Max(*set(values)) if any(map(is_symbolic, values)) else max(values)


def smallest(*values: Any) -> Any:
    """The smallest of numbers, some of which may be open."""
    return load_sympy().Min(*set(values)) if any(map(is_symbolic, values)) else min(values)


def numbers_of(event: DpEvent) -> list[Any]:
    """The numbers in an event of any kind, and in its parts: noise multipliers, rates, counts."""
    fields = attr.asdict(event, recurse=False).values()
    values = [x for value in fields for x in (value if isinstance(value, Sequence) else [value])]
    return [number for x in values for number in (numbers_of(x) if isinstance(x, DpEvent) else [x])]


def open_in(values: Any) -> tuple[str, ...]:
    """The names of the symbols in values, in order."""
    return tuple(sorted({s.name for x in values if is_symbolic(x) for s in x.free_symbols}))


def event_at(event: DpEvent, values: Mapping[str, float]) -> DpEvent:
    """Substitute numbers for the symbols of an event."""

    def at(value: Any) -> Any:
        if isinstance(value, DpEvent):
            return event_at(value, values)
        return [at(x) for x in value] if isinstance(value, Sequence) else number_at(value, values)

    if isinstance(event, SelfComposedDpEvent):
        return SelfComposedDpEvent(at(event.event), times_at(event.count, values))
    return type(event)(**{name: at(value) for name, value in attr.asdict(event, recurse=False).items()})


def number_at(value: Any, values: Mapping[str, float]) -> Any:
    """Evaluate a number or expression; an expression if some of its symbols stay open."""
    if not is_symbolic(value):
        return value
    broken = [s.name for s in value.free_symbols if s.is_integer and values.get(s.name, 0) % 1 != 0]
    if broken:
        raise ValueError(f"{broken[0]} is {values[broken[0]]!r}, but was made with integer=True. Pass an integer.")
    found = value.subs({s: values[s.name] for s in value.free_symbols if s.name in values})
    if found.free_symbols:
        return found
    return int(found) if value.is_integer else float(found)


def fixed_at(value: Any, values: Mapping[str, float]) -> Any:
    """Substitute numbers for the symbols of an argument: fixed if none stays open."""
    found = number_at(value, values)
    return found if found is value or is_symbolic(found) else Fixed(found)


def times_at(value: Any, values: Mapping[str, float]) -> Any:
    """A number of calls: an integer of at least one, or an expression."""
    found = number_at(value, values)
    if is_symbolic(found):
        return found
    if not is_real(found) or not 1 <= found < math.inf or found % 1 != 0:
        raise ValueError(
            f"times is {found!r}; a step is called a whole number of times. Pass an integer of at least 1."
        )
    return int(found)


def check_symbols(arguments: list[Any]) -> None:
    """Refuse expressions of symbols that are not known to be positive."""
    unknown = {s.name for x in arguments if is_symbolic(x) for s in x.free_symbols if not s.is_positive}
    if unknown:
        raise ValueError(
            f"certify: the symbols {', '.join(sorted(unknown))} are not declared positive, but noise, norms and rates are. "
            "Make them with dp.symbol."
        )


def checked_values(values: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, float]:
    """Values of symbols as Python numbers; refuse names that the proof did not leave open."""
    for name, value in values.items():
        if name not in known:
            open_ones = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"The certificate has no symbol {name}: {open_ones}. Give values for these.")
        if not is_real(value) or not SMALLEST <= value <= LARGEST:
            raise ValueError(
                f"{name} is {value!r}; a proof covers numbers from {SMALLEST:g} to {LARGEST:g}, beyond which float32 may take "
                "them for zero or infinite. Pass such a number."
            )
    return {name: int(x) if isinstance(x, int | np.integer) else float(x) for name, x in values.items()}


Loads = dict[tuple[Group, int], Any]
"""For each leaf of each group: the sum over releases of (bound / noise)^2, in the units of one record.

Numbers, or expressions of open parameters; so are noise multipliers, rates and counts."""


@dataclasses.dataclass
class Release:
    """One mechanism on values of one batch."""

    batch: Batch  # The records
    mechanism: Mechanism  # The source of the noise
    loads: Loads  # In the L2 norm
    size: int  # Coordinates, for mechanisms calibrated to the L1 norm
    # An upper bound on the load added by rounding to a grid, if a record shares its bound between this release and
    # others (`_rules_markers`). Otherwise the noise covers it.
    rounding: Any = 0.0


@dataclasses.dataclass
class Repeat:
    """A loop. `before`: groups with a later serial are made anew in each iteration."""

    loop: Any
    items: list[Any]
    before: int = 0

    def turns(self) -> list[tuple[list[Any], Any]]:
        """The releases of each kind of iteration, and the number of such iterations."""
        schedules = list(_schedules_of(self.items, self.loop))
        if not schedules:
            return [(self.items, self.loop.length)]
        kinds = Counter(zip(*(x.kinds for x in schedules), strict=True))
        # Clippings of different iterations are different vectors: their leaves share no bound.
        return [
            (_of_turn(self.items, dict(zip(map(id, schedules), kind, strict=True)), self.before, {}), times)
            for kind, times in kinds.items()
        ]


@dataclasses.dataclass
class Scheduled:
    """Releases whose noise or bound changes between iterations of an enclosing loop."""

    loop: Any
    releases: list[list[Release]]  # For each kind of iteration
    kinds: tuple[int, ...]  # The kind of each iteration


def _schedules_of(items: list[Any], loop: Any) -> Iterator[Scheduled]:
    for item in items:
        if isinstance(item, Scheduled) and item.loop is loop:
            yield item
        elif isinstance(item, Repeat):
            yield from _schedules_of(item.items, loop)
        elif isinstance(item, Choice):
            for branch in item.branches:
                yield from _schedules_of(branch, loop)


def _of_turn(items: list[Any], kinds: dict[int, int], before: int, groups: dict[Group, Group]) -> list[Any]:
    """The items of one kind of iteration, with new groups for those that an iteration makes."""
    found: list[Any] = []
    for item in items:
        if isinstance(item, Repeat):
            found.append(dataclasses.replace(item, items=_of_turn(item.items, kinds, before, groups)))
        elif isinstance(item, Choice):
            found.append(
                dataclasses.replace(item, branches=[_of_turn(x, kinds, before, groups) for x in item.branches])
            )
        elif isinstance(item, Scheduled) and id(item) in kinds:
            found += [_renamed(x, before, groups) for x in item.releases[kinds[id(item)]]]
        elif isinstance(item, Scheduled):
            releases = [[_renamed(x, before, groups) for x in kind] for kind in item.releases]
            found.append(dataclasses.replace(item, releases=releases))
        else:
            found.append(_renamed(item, before, groups) if isinstance(item, Release) else item)
    return found


def _renamed(release: Release, before: int, groups: dict[Group, Group]) -> Release:
    loads: Loads = {}
    for (group, leaf), load in release.loads.items():
        own = group if group.serial < before else groups.setdefault(group, Group())
        loads[own, leaf] = load
    return dataclasses.replace(release, loads=loads)


@dataclasses.dataclass
class Choice:
    """Branches, one of which a public value selects. `before`: groups with a later serial are made in a branch."""

    branches: list[list[Any]]
    before: int


@dataclasses.dataclass
class _Spent:
    """The cost charged to one batch: loads of the mechanisms whose releases add up, and events of the others.

    `alone` holds the sums over releases of each one's own load, and of `Release.rounding`.
    """

    loads: dict[Mechanism, Loads] = dataclasses.field(default_factory=dict)
    alone: dict[Mechanism, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    events: list[DpEvent] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, release: Release) -> _Spent:
        """The cost of one release."""
        if release.mechanism.adds_up:
            alone = sum(worst_of(release.loads)), release.rounding
            return cls({release.mechanism: dict(release.loads)}, {release.mechanism: alone})
        return cls(events=_noisy(release.mechanism, ratio_of(release)))

    def add(self, other: _Spent, times: Any = 1) -> None:
        for mechanism, loads in other.loads.items():
            own = self.loads.setdefault(mechanism, {})
            for name, load in loads.items():
                own[name] = own.get(name, 0.0) + times * load
            before = self.alone.get(mechanism, (0.0, 0.0))
            more = other.alone[mechanism]
            self.alone[mechanism] = before[0] + times * more[0], before[1] + times * more[1]
        self.events += [_repeated(x, times) for x in other.events] if is_symbolic(times) else other.events * times

    @classmethod
    def largest_of(cls, branches: Sequence[_Spent], before: int) -> _Spent:
        """An upper bound on the cost of any branch: the largest of loads that add up, and all other events that differ.

        That is the largest load of each leaf of the groups that existed `before`. Groups made in a branch belong to it: it
        spends no more on them than the sum of their largest loads.
        """
        if len(branches) == 1:
            return branches[0]
        most = cls()
        fresh = Group()
        for spent in branches:
            for mechanism, loads in spent.loads.items():
                own = most.loads.setdefault(mechanism, {})
                made = sum(worst_of({name: load for name, load in loads.items() if name[0].serial > before}))
                for name, load in [*((x, y) for x, y in loads.items() if x[0].serial < before), ((fresh, 0), made)]:
                    own[name] = largest(own[name], load) if name in own else load
                pairs = zip(spent.alone[mechanism], most.alone.get(mechanism, (0.0, 0.0)), strict=True)
                alone, rounding = (largest(*pair) for pair in pairs)
                most.alone[mechanism] = alone, rounding
        distinct = {repr(x.events): x.events for x in branches}
        most.events = [event for events in distinct.values() for event in events]
        return most

    def event(self) -> DpEvent:
        """The event. Releases that add up form one: their squared ratios add up, over each group's worst leaf."""
        found: list[DpEvent] = []
        for mechanism, loads in self.loads.items():
            together = sum(worst_of(loads))
            (alone, rounding) = self.alone[mechanism]
            # The load of several releases is `together` plus all roundings, but at least `together` and at most `alone`.
            if any(map(is_symbolic, (together, alone, rounding))):
                total = together if together == alone else together + rounding
            else:
                total = max(together, min(alone, together + rounding)) if alone > together * (1 + 1e-9) else together
            found += _noisy(mechanism, total)
        return _composed(found + self.events)


def _noisy(mechanism: Mechanism, load: Any) -> list[DpEvent]:
    """The event of releases of this load, which may be open; none if a record moves nothing."""
    if load == 0:
        return []
    root = load_sympy().sqrt(load) if is_symbolic(load) else math.sqrt(load)
    return [mechanism.event(1 / root)]


def ratio_of(release: Release) -> Any:
    """The squared ratio of one record's contribution to the noise, in the norm of the mechanism."""
    total = sum(worst_of(release.loads))
    norm = release.mechanism.norm
    name = release.mechanism.name
    if norm not in (0, 1, 2):
        raise ValueError(f"{name}: a record's contribution is bounded in the norms 1 and 2, not in the norm {norm}.")
    # The L1 norm of d numbers is at most sqrt(d) times their L2 norm.
    return total * release.size if norm == 1 else total


def worst_of(loads: Loads) -> list[Any]:
    """The largest load among the leaves of each group."""
    worst: dict[int, Any] = {}
    for (group, _), load in loads.items():
        worst[id(group)] = largest(worst[id(group)], load) if id(group) in worst else load
    return list(worst.values())


Open = dict[Batch, _Spent]


def event_of(items: list[Any], relation: Relation, times: Any = 1) -> tuple[DpEvent, float]:
    """The event of `times` calls (which may be open) of a program that recorded `items`, and the slack of one call."""
    events, still_open, slack = _settle(items, relation)
    if still_open:
        raise RuntimeError("a release belongs to a batch that was never drawn; this is a bug in discreet")
    return _repeated(_composed(events), times), slack


def _settle(items: list[Any], relation: Relation) -> tuple[list[DpEvent], Open, float]:
    """Events of batches drawn here, costs of batches drawn further out, and the slack."""
    events: list[DpEvent] = []
    here: Open = {}
    drawn: list[Sample] = []
    slack = 0.0
    for item in items:
        if isinstance(item, Sample):
            drawn.append(item)
            # Total variation between the law that is drawn and the law that the event names.
            slack += item.sampling.slack_per_step(item.num_records)
        elif isinstance(item, Release):
            slack += item.mechanism.slack
            here.setdefault(item.batch, _Spent()).add(_Spent.of(item))
        elif isinstance(item, Repeat):
            # Samples drawn in an iteration end in it: their event counts once per iteration. Costs of a batch drawn outside
            # are added to that batch, times the number of iterations.
            once: dict[Batch, list[_Spent]] = {}
            for inside, times in item.turns():
                inner, outer, more = _settle(inside, relation)
                slack += more * times
                if inner:
                    events.append(_repeated(_composed(inner), times))
                for batch, spent in outer.items():
                    if isinstance(batch, Part) and batch.loop is item.loop:
                        once.setdefault(batch, []).append(spent)
                    else:
                        here.setdefault(batch, _Spent()).add(spent, times)
            for batch, spent in once.items():
                # Each record is in one part: parallel composition, so all parts together cost as much as one.
                assert batch.parent is not None
                here.setdefault(batch.parent, _Spent()).add(_Spent.largest_of(spent, item.before))
        elif isinstance(item, Choice):
            chosen = [_settle(branch, relation) for branch in item.branches]
            slack += largest(*(c[2] for c in chosen))
            # Exactly one branch runs, and the choice is public.
            distinct = {repr(c[0]): c[0] for c in chosen if c[0]}
            events += _worst(list(distinct.values()))
            for batch in dict.fromkeys(b for _, outer, _ in chosen for b in outer):
                here.setdefault(batch, _Spent()).add(
                    _Spent.largest_of([x[1][batch] for x in chosen if batch in x[1]], item.before)
                )
    # The block ends here, and with it the samples that it drew.
    for batch in drawn:
        if batch in here:
            released = here.pop(batch).event()
            events.append(batch.sampling.step_event(released, num_records=batch.num_records, relation=relation))
    # Slices and picks are charged to their parent, as if they held all of its records.
    for part in [b for b in here if isinstance(b, Cut) and not isinstance(b, Part)]:
        assert part.parent is not None
        here.setdefault(part.parent, _Spent()).add(here.pop(part))
    tables = [b for b in here if isinstance(b, Table)]
    for table in tables:
        events.append(here.pop(table).event())
    return events, here, slack


def _worst(branches: list[list[DpEvent]]) -> list[DpEvent]:
    """An event that covers each branch: the least noise if all are Gaussian, else all that differ, composed."""
    single = [b[0] for b in branches if len(b) == 1]
    gaussian = [e for e in single if isinstance(e, GaussianDpEvent)]
    if branches and len(gaussian) == len(branches):
        return [GaussianDpEvent(smallest(*(e.noise_multiplier for e in gaussian)))]
    return [event for branch in branches for event in branch]


def _composed(events: list[DpEvent]) -> DpEvent:
    flat = [e for e in events if not isinstance(e, NoOpDpEvent)]
    if not flat:
        return NoOpDpEvent()
    return flat[0] if len(flat) == 1 else ComposedDpEvent(flat)


def _repeated(event: DpEvent, count: Any) -> DpEvent:
    if count == 1 or isinstance(event, NoOpDpEvent):
        return event
    if isinstance(event, SelfComposedDpEvent):
        return SelfComposedDpEvent(event.event, event.count * count)
    return SelfComposedDpEvent(event, count)


_TOLERANCE = 1e-5
_EPSILONS = (*(2.0**k for k in range(-10, 0)), 1.0, 2.0, 4.0, 8.0, *(4.0**k for k in range(2, 8)))
_TELLING = (1e-9, 1.0 - 1e-6)
"""Range in which deltas decide which of two events is worse."""


def check_expected(event: DpEvent, slack: float, claimed: Any, relation: Relation, notes: tuple[str, ...]) -> None:
    """Refuse a claim weaker than the proof: `claimed` is an event, or a plan with an event and a slack."""
    expected = (
        claimed.event() if not isinstance(claimed, DpEvent) and callable(getattr(claimed, "event", None)) else claimed
    )
    if not isinstance(expected, DpEvent):
        raise TypeError(f"expect is a {type(claimed).__name__}; pass a dp_accounting DpEvent, or a PrivacyPlan.")
    stated = getattr(claimed, "relation", relation)
    if stated is not relation:
        raise PrivacyError(
            f"the plan speaks of {relation_name(stated.name, 'record')}, the proof of {relation_name(relation.name, 'record')}.",
            f"certify with relation=dp.Relation.{stated.name}, or make the plan for the other relation.",
        )
    if covers(expected, event, slack, relation):
        paid = getattr(claimed, "slack", None)
        # A bare event has no slack, and the slack of an open event is unknown.
        if paid is None or slack <= paid * (1 + 1e-9):
            return
        raise PrivacyError(
            f"samplers and noise differ from the event by a total variation of {slack:.3g}, and the claim covers {paid:.3g}.",
            "declare the plan that runs: it includes the slack of its sampler and its mechanism.",
        )
    because = f", because {'; '.join(notes)}" if notes else ""
    names = open_in([*numbers_of(event), *numbers_of(expected)])
    if names:
        because += f". They are compared for all values of {', '.join(names)}"
    raise PrivacyError(
        f"the program does more than was declared: you declared {_short(expected)}, the program has {_short(event)}{because}.",
        "scale the noise to the sensitivity of the program (noise multiplier times clipping norm, after all scaling of the "
        "sum), or declare its event.",
    )


def covers(expected: DpEvent, event: DpEvent, slack: float, relation: Relation) -> bool:
    """True if a claim is at least as large as the proof, for all values of symbols open in either."""
    ours = _parts(event)
    theirs = _parts(expected)
    if not open_in([*numbers_of(event), *numbers_of(expected)]):
        alike = ours.keys() == theirs.keys() and all(math.isclose(ours[k], theirs[k], rel_tol=_TOLERANCE) for k in ours)
        return alike or not _worse(event, slack, expected, relation)
    return ours.keys() <= theirs.keys() and all(_at_most(ours[k], theirs[k]) for k in ours)


def _at_most(ours: Any, theirs: Any) -> bool:
    """True if one number is at most another for all values of the symbols; unknown counts as False."""
    quotient = _plain(ours / theirs)
    return not is_symbolic(quotient) and quotient <= 1 + _TOLERANCE


def _plain(number: Any, digits: int = 17) -> Any:
    """A number rounded to `digits`, or an expression in its simplest form."""
    if not is_symbolic(number):
        return float(f"{number:.{digits}g}")
    sympy = load_sympy()
    simple = sympy.simplify(sympy.nsimplify(number, rational=True))
    return simple if simple.free_symbols else float(f"{float(simple):.{digits}g}")


_GAUSSIAN = ("gaussian",)


def _parts(event: DpEvent, count: Any = 1) -> dict[tuple, Any]:
    """The parts of a composition: Gaussian precision, and counts of other events by kind and numbers."""
    if isinstance(event, NoOpDpEvent):
        return {}
    if isinstance(event, GaussianDpEvent):
        return {_GAUSSIAN: count / event.noise_multiplier**2 if event.noise_multiplier else math.inf}
    if isinstance(event, SelfComposedDpEvent):
        return _parts(event.event, count * event.count)
    if not isinstance(event, ComposedDpEvent):
        return {(type(event).__name__, *map(_rounded, attr.asdict(event, recurse=False).values())): count}
    found: dict[tuple, Any] = {}
    for part in event.events:
        for name, amount in _parts(part, count).items():
            found[name] = found.get(name, 0) + amount
    return found


def _rounded(value: Any) -> Any:
    """A number in an event, or an event, so that those that differ by rounding are equal."""
    if isinstance(value, DpEvent):
        return frozenset((name, _plain(amount, 6)) for name, amount in _parts(value).items())
    if isinstance(value, Sequence):
        return tuple(map(_rounded, value))
    return value if isinstance(value, int) else _plain(value, 6)


def _worse(event: DpEvent, slack: float, expected: DpEvent, relation: Relation) -> bool:
    ours = _parts(event)
    theirs = _parts(expected)
    if not theirs:
        return bool(ours)
    # Gaussian against Gaussian needs no numbers: the larger precision reveals more.
    if ours.keys() <= theirs.keys() == {_GAUSSIAN}:
        return sum(ours.values()) > sum(theirs.values()) * (1 + _TOLERANCE)
    proved, claimed = (profile(x, relation, slack=min(1.0, slack)) for x in (event, expected))
    pairs = [(float(proved.delta(x)), float(claimed.delta(x))) for x in _EPSILONS]
    # Where no delta separates the two, equal deltas do not order the events, and the claim is refused.
    telling = any(_TELLING[0] < claim < _TELLING[1] for _, claim in pairs)
    return not telling or any(found > claim * (1 + 100 * _TOLERANCE) + 1e-13 for found, claim in pairs)


def _short(event: DpEvent) -> str:
    if isinstance(event, GaussianDpEvent):
        return f"Gaussian noise of {_plain(event.noise_multiplier, 6)} times the clipping norm"
    return repr(event)


def delta_formula(event: DpEvent, relation: Relation, epsilon: Any = None) -> Any:
    """Delta as an exact function of epsilon and the event's symbols; None where no closed form is known.

    Epsilon is a number or an expression; by default a symbol of that name.
    """
    sympy = load_sympy()
    epsilon = sympy.Symbol("epsilon", nonnegative=True) if epsilon is None else epsilon
    sensitivity = _sensitivity(relation)
    if isinstance(event, LaplaceDpEvent):
        return sympy.Max(0, 1 - sympy.exp((epsilon - sensitivity / event.noise_multiplier) / 2))
    precision = _precision(event)
    if precision is None:
        return None
    mu = sensitivity * sympy.sqrt(precision)
    if mu == 0:
        return sympy.Integer(0)
    near = (epsilon / mu - mu / 2) / sympy.sqrt(2)
    far = (epsilon / mu + mu / 2) / sympy.sqrt(2)
    return sympy.erfc(near) / 2 - sympy.exp(epsilon) * sympy.erfc(far) / 2


def formula_lines(event: DpEvent, relation: Relation) -> list[str]:
    """Exact formulas for the cost of an event, as lines of text; empty if no formula is known."""
    sympy = load_sympy()
    precision = _precision(event)
    if precision is not None and precision != 0:
        mu = _sensitivity(relation) * sympy.sqrt(precision)
        return [
            f"delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu) with mu = {mu}, exactly"
        ]
    if isinstance(event, LaplaceDpEvent):
        pure = _sensitivity(relation) / event.noise_multiplier
        return [f"delta(epsilon) = {delta_formula(event, relation)}, exactly; at delta = 0, epsilon = {pure}"]
    count, step = (event.count, event.event) if isinstance(event, SelfComposedDpEvent) else (1, event)
    if not isinstance(step, PoissonSampledDpEvent) or relation is not Relation.ADD_OR_REMOVE_ONE:
        return []
    inner = _precision(step.event)
    if inner is None:
        return []
    q = step.sampling_probability
    z = 1 / sympy.sqrt(inner)
    T = count
    x = sympy.Symbol("x", real=True)
    loss = sympy.log(1 - q + q * sympy.exp((2 * x - 1) / (2 * z**2)))
    return [
        "delta(epsilon) = the larger of E max(0, 1 - exp(epsilon - L)) and E max(0, 1 - exp(epsilon + M)), exactly, where",
        f"L is the sum of {T} independent {loss} with x from N(1, s) at probability {q}, else from N(0, s),",
        f"M is the sum of {T} independent ones with x from N(0, s); s = {z**2}",
    ]


def _sensitivity(relation: Relation) -> int:
    """The sensitivity to one record, in units of C."""
    return 2 if relation is Relation.REPLACE_ONE else 1


def _precision(event: DpEvent) -> Any:
    """The inverse square of the joint noise multiplier of Gaussian releases; None if there are others."""
    parts = _parts(event)
    return parts.get(_GAUSSIAN, 0) if parts.keys() <= {_GAUSSIAN} else None
