"""Schedules: noise, or a bound, that changes from one iteration of a loop to the next.

`for t in range(T): noise(sigma[t] * ...)` has no one ratio of noise to bound. But a public number
computed from the loop's counter, or from an array that the loop scans, has a known value in each
iteration. `in_each_turn` computes these values alongside the walk, by the same arithmetic as other
known numbers (`_arithmetic`); `Schedules` finds them by the number's name when a release needs a
ratio. The release is then recorded once for each kind of iteration (`Scheduled`), and `turns_of`
gives the list of releases of each kind with the number of its iterations.

Sound, since the values are those that the machine computes, up to the error that is kept with
them, and a schedule with another name, loop or length is never combined: then there is no ratio,
and no proof. Clippings of different iterations are different vectors, so groups made within the
loop get a new name in each kind.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from discreet._jax import JaxprEqn, aval, primitives as p
from discreet.privacy.verify._arithmetic import (
    ELEMENTWISE_SHAPES,
    MOST_ERROR,
    MOVES,
    computed,
    error_of,
)
from discreet.privacy.verify._bounds import Group, Scale, is_far, is_open
from discreet.privacy.verify._domain import Public
from discreet.privacy.verify._record import Branches, Loads, MechanismUse, Repeat, Scheduled
from discreet.privacy.verify.recognize._facts import Turns


def in_each_turn(equation: JaxprEqn, values: list[Public], kind: Any) -> Turns | None:
    """The values of one number in each iteration of a loop, if its operands are known in each; compare `_evaluate`."""
    around = {x.turns.loop for x in values if x.turns is not None}
    single = math.prod(kind.shape) == 1 and np.dtype(kind.dtype).kind in "biuf"
    if len(around) != 1 or not single:
        return None
    (loop,) = around
    primitive = equation.primitive
    count = next(len(x.turns.values) for x in values if x.turns is not None)
    if primitive in MOVES:
        return values[0].turns
    if primitive is p.dynamic_slice_p:
        table = values[0].const
        starts = values[1].turns
        if table is None or table.ndim != 1 or starts is None:
            return None
        return Turns(
            loop,
            tuple(table[np.clip(starts.values, 0, table.size - 1).astype(int)].tolist()),
            values[0].error,
        )
    known: list[np.ndarray] = []
    for value, variable in zip(values, equation.invars, strict=True):
        if value.turns is not None:
            known.append(np.asarray(value.turns.values, aval(variable).dtype))
        elif value.const is not None and value.const.size == 1:
            known.append(value.const.reshape(1))
        else:
            return None
    if primitive not in ELEMENTWISE_SHAPES:
        return None
    found = computed(equation, known, jax.ShapeDtypeStruct((count,), kind.dtype), exact=False)
    if found is None:
        return None
    error = error_of(
        equation,
        known,
        [x.error if x.turns is None else x.turns.error for x in values],
        found.dtype,
    )
    return Turns(loop, tuple(found.tolist()), error) if error <= MOST_ERROR else None


_LEAST = 1e-9
"""Numbers of a schedule lie between this and its inverse."""


@dataclasses.dataclass
class Schedules:
    """The numbers of a program that are known in each iteration of a loop, by name."""

    _turns: dict[int, Turns] = dataclasses.field(default_factory=dict)

    def keep(self, scale: Scale | None, turns: Turns | None) -> None:
        """Keep a number's values in each iteration, if it is a single symbol, never zero, and of a size usual for noise."""
        if scale is None or scale.factor != 1.0 or [power for _, power in scale.powers] != [1.0]:
            return
        if turns is not None and all(_LEAST <= abs(x) <= 1 / _LEAST for x in turns.values):
            self._turns[scale.powers[0][0]] = turns

    def may_be_lost(self, product: Scale, *factors: Scale) -> bool:
        """True if a product of numbers, some unknown at trace time, may differ from its formula.

        The size of noise lies between 1e-20 and 1e20 (`is_far`). Numbers of a schedule are never
        far from 1, so one of them may be a factor as well.
        """
        powers = [
            {s: power for s, power in x.powers if not is_open(s)} for x in (product, *factors)
        ]
        scheduled = {s for x in powers for s in x if s in self._turns}
        holders = [x.keys() - scheduled for x in powers]
        several = (
            len(set().union(*holders)) > 1 or sum(map(bool, holders[1:])) > 1 or len(scheduled) > 1
        )
        far = any(abs(x[s]) > 2 for x in powers for s in scheduled & x.keys()) or is_far(product)
        return any(powers) and (several or far)

    def of(
        self, scales: Sequence[Scale], around: Sequence[Any]
    ) -> tuple[Any, list[dict[int, float]]] | None:
        """The loop, of those `around`, whose iterations change these numbers, and their values in each; None if unknown."""
        found = {s: self._turns[s] for x in scales for s, _ in x.powers if s in self._turns}
        loops = {x.loop for x in found.values()}
        if len(loops) != 1 or not loops <= set(around):
            return None
        # A power magnifies the number's own rounding error.
        errors = [
            sum(abs(power) * found[s].error for s, power in x.powers if s in found) for x in scales
        ]
        if max(errors) > MOST_ERROR:
            return None
        rows = zip(*(x.values for x in found.values()), strict=True)
        return loops.pop(), [dict(zip(found, map(abs, row), strict=True)) for row in rows]


def turns_of(repeat: Repeat) -> list[tuple[list[Any], Any]]:
    """The releases of each kind of iteration, and the number of such iterations."""
    schedules = list(_schedules_of(repeat.items, repeat.loop))
    if not schedules:
        return [(repeat.items, repeat.loop.length)]
    kinds = Counter(zip(*(x.kinds for x in schedules), strict=True))
    # Clippings of different iterations are different vectors: their leaves share no bound.
    return [
        (
            _of_turn(
                repeat.items, dict(zip(map(id, schedules), kind, strict=True)), repeat.before, {}
            ),
            times,
        )
        for kind, times in kinds.items()
    ]


def _schedules_of(items: list[Any], loop: Any) -> Iterator[Scheduled]:
    for item in items:
        if isinstance(item, Scheduled) and item.loop is loop:
            yield item
        elif isinstance(item, Repeat):
            yield from _schedules_of(item.items, loop)
        elif isinstance(item, Branches):
            for branch in item.branches:
                yield from _schedules_of(branch, loop)


def _of_turn(
    items: list[Any], kinds: dict[int, int], before: int, groups: dict[Group, Group]
) -> list[Any]:
    """The items of one kind of iteration, with new groups for those that an iteration makes."""
    found: list[Any] = []
    for item in items:
        if isinstance(item, Repeat):
            found.append(
                dataclasses.replace(item, items=_of_turn(item.items, kinds, before, groups))
            )
        elif isinstance(item, Branches):
            found.append(
                dataclasses.replace(
                    item, branches=[_of_turn(x, kinds, before, groups) for x in item.branches]
                )
            )
        elif isinstance(item, Scheduled) and id(item) in kinds:
            found += [_renamed(x, before, groups) for x in item.items[kinds[id(item)]]]
        elif isinstance(item, Scheduled):
            items = [[_renamed(x, before, groups) for x in kind] for kind in item.items]
            found.append(dataclasses.replace(item, items=items))
        else:
            found.append(_renamed(item, before, groups))
    return found


def _renamed(release: Any, before: int, groups: dict[Group, Group]) -> Any:
    if not isinstance(release, MechanismUse):
        return release
    loads: Loads = {}
    for (group, leaf), load in release.loads.items():
        own = group if group.serial < before else groups.setdefault(group, Group())
        loads[own, leaf] = load
    return dataclasses.replace(release, loads=loads)
