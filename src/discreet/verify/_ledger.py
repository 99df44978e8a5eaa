"""What was released, and the event that follows from it."""

from __future__ import annotations

import dataclasses
from typing import Any

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NoOpDpEvent,
    SelfComposedDpEvent,
)

from discreet.accounting import Relation
from discreet.mechanisms import Mechanism
from discreet.verify._domain import Batch, Cut, Group, Part, Sample, Table
from discreet.verify._symbols import is_symbolic, largest, smallest, square_root

Loads = dict[tuple[Group, int], Any]
"""For each leaf of each group: the sum over releases of (bound / noise)^2, in the units of one record.

Numbers, or expressions of open parameters; so are noise multipliers, rates and counts."""


@dataclasses.dataclass
class Release:
    """One mechanism on values of one batch.

    Attributes:
        batch: whose records.
        mechanism: whose noise.
        loads: in the L2 norm.
        size: coordinates, by which a mechanism that goes by the L1 norm is bounded.
    """

    batch: Batch
    mechanism: Mechanism
    loads: Loads
    size: int


@dataclasses.dataclass
class Draw:
    """A batch is drawn; it ends where the list ends that holds this."""

    batch: Sample


@dataclasses.dataclass
class Repeat:
    """A loop."""

    loop: Any
    items: list[Any]


@dataclasses.dataclass
class Choice:
    """Branches, of which a public value chooses one."""

    branches: list[list[Any]]


@dataclasses.dataclass
class _Spent:
    """What was done to one batch: loads of the mechanisms whose releases add up, and events of the others."""

    loads: dict[Mechanism, Loads] = dataclasses.field(default_factory=dict)
    events: list[DpEvent] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, release: Release) -> _Spent:
        """What one release spends."""
        if release.mechanism.adds_up:
            return cls({release.mechanism: dict(release.loads)})
        total = sum(worst_of(release.loads))
        if release.mechanism.norm == 1:
            # The L1 norm of d numbers is at most sqrt(d) times their L2 norm.
            total = total * release.size
        return cls({}, [release.mechanism.event(1 / square_root(total))] if total != 0 else [])

    def add(self, other: _Spent, times: Any = 1) -> None:
        for mechanism, loads in other.loads.items():
            own = self.loads.setdefault(mechanism, {})
            for name, load in loads.items():
                own[name] = own.get(name, 0.0) + times * load
        self.events += [_repeated(x, times) for x in other.events] if is_symbolic(times) else other.events * times

    def event(self) -> DpEvent:
        """Releases that add up are one, exactly: their squared ratios add up, over each group's worst leaf."""
        found: list[DpEvent] = []
        for mechanism, loads in self.loads.items():
            total = sum(worst_of(loads))
            found += [mechanism.event(1 / square_root(total))] if total != 0 else []
        return _composed(found + self.events)


def worst_of(loads: Loads) -> list[Any]:
    """For each group the largest load of its leaves."""
    worst: dict[int, Any] = {}
    for (group, _), load in loads.items():
        worst[id(group)] = largest(worst[id(group)], load) if id(group) in worst else load
    return list(worst.values())


Open = dict[Batch, _Spent]


def event_of(items: list[Any], relation: Relation, times: Any = 1) -> tuple[DpEvent, float]:
    """The event of a program that is called so many times, and the slack of one call.

    Args:
        items: what was recorded, in order.
        relation: which tables are neighbours.
        times: number of calls, which may be open.
    """
    events, still_open, slack = _settle(items, relation)
    if still_open:
        raise RuntimeError("a release belongs to a batch that was never drawn; this is a mistake in discreet")
    return _repeated(_composed(events), times), slack


def _settle(items: list[Any], relation: Relation) -> tuple[list[DpEvent], Open, float]:
    """Events of what is closed, what was done to batches drawn further out, and the slack."""
    events: list[DpEvent] = []
    here: Open = {}
    drawn: list[Sample] = []
    slack = 0.0
    for item in items:
        if isinstance(item, Draw):
            drawn.append(item.batch)
            slack += item.batch.slack
        elif isinstance(item, Release):
            here.setdefault(item.batch, _Spent()).add(_Spent.of(item))
        elif isinstance(item, Repeat):
            inner, outer, more = _settle(item.items, relation)
            slack += more * item.loop.length
            if inner:
                events.append(_repeated(_composed(inner), item.loop.length))
            for batch, spent in outer.items():
                part = isinstance(batch, Part) and batch.loop is item.loop
                # Each record is in one part alone: all parts together cost what one does.
                target = batch.parent if part and batch.parent is not None else batch
                here.setdefault(target, _Spent()).add(spent, 1 if part else item.loop.length)
        elif isinstance(item, Choice):
            chosen = [_settle(branch, relation) for branch in item.branches]
            slack += largest(*(c[2] for c in chosen))
            distinct = {repr(c[0]): c[0] for c in chosen if c[0]}
            events += _worst(list(distinct.values()))
            for _, outer, _ in chosen:
                for batch, spent in outer.items():
                    here.setdefault(batch, _Spent()).add(spent)
    for batch in drawn:
        if batch in here:
            events.append(batch.event(here.pop(batch).event(), relation))
    for part in [b for b in here if isinstance(b, Cut) and not isinstance(b, Part)]:
        assert part.parent is not None
        here.setdefault(part.parent, _Spent()).add(here.pop(part))
    tables = [b for b in here if isinstance(b, Table)]
    for table in tables:
        events.append(here.pop(table).event())
    return events, here, slack


def _worst(branches: list[list[DpEvent]]) -> list[DpEvent]:
    """What covers each of several branches: the least noise if all are Gaussian, else all that differ, one after another."""
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
