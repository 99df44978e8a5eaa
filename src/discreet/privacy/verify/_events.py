"""Events: the event that follows from the record of a walk.

All releases from one sample, from its draw to the end of the block that drew it, are one mechanism
on that sample, whose event the sampler names. Releases of Gaussian noise are one, with the summed
precision of each group's worst leaf; other mechanisms compose. A loop repeats the event of its
body; parts of the table, one an iteration, cost as much as the worst of them.

The invariant: the event covers every run of the whole program. A release of records that no draw or
table accounts for is an error, not a cost of zero. Nothing is rounded in favour of the program:
branches that differ are all charged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from discreet._dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NoOpDpEvent,
    SelfComposedDpEvent,
)
from discreet.privacy.accounting import Relation
from discreet.privacy.mechanisms import Mechanism
from discreet.privacy.sampling import Sampling
from discreet.privacy.verify._bounds import Cut, Group, Part, RecordSet, Sample, Table
from discreet.privacy.verify._record import Branches, Drawn, Loads, MechanismUse, Repeat
from discreet.privacy.verify._symbols import is_symbolic, largest, load_sympy, smallest
from discreet.privacy.verify.recognize._schedules import turns_of


@dataclasses.dataclass
class _Spent:
    """The cost charged to one batch: loads of the mechanisms whose releases add up, and events of the others.

    `alone` holds the sums over releases of each one's own load, and of `MechanismUse.rounding`.
    """

    loads: dict[Mechanism, Loads] = dataclasses.field(default_factory=dict)
    alone: dict[Mechanism, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    events: list[DpEvent] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, release: MechanismUse) -> _Spent:
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
        if is_symbolic(times):
            self.events += [_repeated(x, times) for x in other.events]
        else:
            self.events += other.events * times

    @classmethod
    def largest_of(cls, branches: Sequence[_Spent], before: int) -> _Spent:
        """An upper bound on the cost of any branch: the largest of loads that add up, and all other events that differ.

        That is the largest load of each leaf of the groups that existed `before`. Groups made in a
        branch belong to it: it spends no more on them than the sum of their largest loads.
        """
        if len(branches) == 1:
            return branches[0]
        most = cls()
        fresh = Group()
        for spent in branches:
            for mechanism, loads in spent.loads.items():
                own = most.loads.setdefault(mechanism, {})
                made = sum(
                    worst_of(
                        {name: load for name, load in loads.items() if name[0].serial > before}
                    )
                )
                for name, load in [
                    *((x, y) for x, y in loads.items() if x[0].serial < before),
                    ((fresh, 0), made),
                ]:
                    own[name] = largest(own[name], load) if name in own else load
                pairs = zip(
                    spent.alone[mechanism], most.alone.get(mechanism, (0.0, 0.0)), strict=True
                )
                alone, rounding = (largest(*pair) for pair in pairs)
                most.alone[mechanism] = alone, rounding
        distinct = {repr(spent.events): spent.events for spent in branches}
        most.events = [event for events in distinct.values() for event in events]
        return most

    def event(self) -> DpEvent:
        """The event. Releases that add up form one: their squared ratios add up, over each group's worst leaf."""
        found: list[DpEvent] = []
        for mechanism, loads in self.loads.items():
            together = sum(worst_of(loads))
            (alone, rounding) = self.alone[mechanism]
            # The load of several releases is `together` plus all roundings, but at least `together`
            # and at most `alone`.
            if any(map(is_symbolic, (together, alone, rounding))):
                total = together if together == alone else together + rounding
            else:
                total = (
                    max(together, min(alone, together + rounding))
                    if alone > together * (1 + 1e-9)
                    else together
                )
            found += _noisy(mechanism, total)
        return _composed(found + self.events)


def _noisy(mechanism: Mechanism, load: Any) -> list[DpEvent]:
    """The event of releases of this load, which may be open; none if a record moves nothing."""
    if load == 0:
        return []
    root = load_sympy().sqrt(load) if is_symbolic(load) else math.sqrt(load)
    return [mechanism.event(1 / root)]


def ratio_of(release: MechanismUse) -> Any:
    """The squared ratio of one record's contribution to the noise, in the norm of the mechanism."""
    total = sum(worst_of(release.loads))
    norm = release.mechanism.norm
    name = release.mechanism.name
    if norm not in (0, 1, 2):
        raise ValueError(
            f"{name}: a record's contribution is bounded in the norms 1 and 2, not in the norm {norm}."
        )
    # The L1 norm of d numbers is at most sqrt(d) times their L2 norm.
    return total * release.size if norm == 1 else total


def worst_of(loads: Loads) -> list[Any]:
    """The largest load among the leaves of each group."""
    worst: dict[int, Any] = {}
    for (group, _), load in loads.items():
        worst[id(group)] = largest(worst[id(group)], load) if id(group) in worst else load
    return list(worst.values())


Open = dict[RecordSet, _Spent]


def event_of(items: list[Any], relation: Relation, times: Any = 1) -> tuple[DpEvent, float]:
    """The event of `times` calls (which may be open) of a program that recorded `items`, and the slack of one call."""
    events, still_open, slack = _settle(items, relation)
    if still_open:
        raise RuntimeError(
            "a release belongs to a batch that was never drawn; this is a bug in discreet"
        )
    return _repeated(_composed(events), times), slack


def _settle(items: list[Any], relation: Relation) -> tuple[list[DpEvent], Open, float]:
    """Events of batches drawn here, costs of batches drawn further out, and the slack."""
    events: list[DpEvent] = []
    here: Open = {}
    drawn: dict[Sample, Sampling] = {}
    slack = 0.0
    for item in items:
        if isinstance(item, Drawn):
            drawn[item.batch] = item.sampling
        elif isinstance(item, Sample):
            sampling = drawn.setdefault(item, item.sampling)
            # Total variation between the law that is drawn and the law that the event names.
            slack += sampling.slack_per_step(item.num_records)
        elif isinstance(item, MechanismUse):
            slack += item.mechanism.slack
            here.setdefault(item.batch, _Spent()).add(_Spent.of(item))
        elif isinstance(item, Repeat):
            # Samples drawn in an iteration end in it: their event counts once per iteration. Costs
            # of a batch drawn outside are added to that batch, times the number of iterations.
            once: dict[RecordSet, list[_Spent]] = {}
            for inside, times in turns_of(item):
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
                # Each record is in one part: parallel composition, so all parts together cost as
                # much as one.
                assert batch.parent is not None
                here.setdefault(batch.parent, _Spent()).add(_Spent.largest_of(spent, item.before))
        elif isinstance(item, Branches):
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
    for batch, sampling in drawn.items():
        if batch in here:
            released = here.pop(batch).event()
            events.append(
                sampling.step_event(released, num_records=batch.num_records, relation=relation)
            )
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
