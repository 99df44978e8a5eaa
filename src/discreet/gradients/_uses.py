"""Where the parameters of a record's loss meet the record: found in its jaxpr, without running it.

A value is *of the record* if the record can change it, otherwise *of the parameters* (or constant). A leaf of the
parameters is booked if each place where it meets a value of the record is a layer that `_layers` knows; otherwise it
is direct: its gradient is formed for every record.

This decides about speed alone. The norm and the sum of a record's contribution are both computed from the same
layers, so a use that was overlooked would make a gradient wrong, never a bound; tests compare with the reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from discreet._jax import Jaxpr, JaxprEqn, Literal, Var, aval, primitives, scan_of
from discreet.gradients._layer import Linear, Rearranged
from discreet.gradients._layers import layer_of
from discreet.gradients._views import View, moved

Plan = Mapping[int, Any]
"""For a jaxpr, by the number of the equation: its `Use`, or a `Plan` for each of its inner jaxprs (a tuple)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A `scan` around a use. Identity tells one loop from another."""

    length: int


@dataclasses.dataclass(frozen=True, eq=False)
class Use:
    """One equation where a parameter meets a value of the record.

    Attributes:
        equation: the equation.
        layer: what kind it is.
        view: how its weight is cut out of a leaf.
        loops: the scans around it, outermost first. In those of `view.loops` the weight changes from one iteration
            to the next; in the others each iteration is one more position where the same weight is used.
    """

    equation: JaxprEqn
    layer: Linear | Rearranged
    view: View
    loops: tuple[Loop, ...]


@dataclasses.dataclass(frozen=True)
class Mark:
    """What is known of a value.

    Attributes:
        of_record: the record can change it.
        leaves: the leaves that it is computed from, if the record cannot.
        view: set if it is elements of one leaf, moved and not changed.
    """

    of_record: bool = False
    leaves: frozenset[int] = frozenset()
    view: View | None = None


_CONSTANT = Mark()
_OF_RECORD = Mark(of_record=True)


def find_uses(jaxpr: Jaxpr, num_leaves: int) -> tuple[Plan, frozenset[int]]:
    """Find the uses of the first `num_leaves` inputs of a jaxpr whose other inputs are the record.

    Returns:
        The plan of all uses, and the leaves with a use that no layer explains.
    """
    finder = _Finder()
    marks = [Mark(leaves=frozenset({i}), view=View(i)) for i in range(num_leaves)]
    marks += [_OF_RECORD] * (len(jaxpr.invars) - num_leaves)
    outputs, plan = finder.walk(jaxpr, marks, ())
    for mark in outputs:
        # A loss that the record does not change: its gradient belongs to no layer.
        finder.not_booked(mark)
    return plan, frozenset(finder.direct)


def restrict(plan: Plan, direct: frozenset[int]) -> Plan:
    """The plan without the uses of direct leaves."""
    kept: dict[int, Any] = {}
    for number, item in plan.items():
        if isinstance(item, Use):
            if item.view.leaf not in direct:
                kept[number] = item
        elif any(inner := tuple(restrict(x, direct) for x in item)):
            kept[number] = inner
    return kept


class _Finder:
    def __init__(self) -> None:
        self.direct: set[int] = set()

    def not_booked(self, mark: Mark) -> None:
        if not mark.of_record:
            self.direct |= mark.leaves

    def walk(self, jaxpr: Jaxpr, inputs: Sequence[Mark], loops: tuple[Loop, ...]) -> tuple[list[Mark], Plan]:
        marks: dict[Var, Mark] = dict(zip(jaxpr.invars, inputs, strict=True))
        plan: dict[int, Any] = {}

        def read(atom: Any) -> Mark:
            return _CONSTANT if isinstance(atom, Literal) else marks.get(atom, _CONSTANT)

        for number, equation in enumerate(jaxpr.eqns):
            operands = [read(x) for x in equation.invars]
            outputs, found = self._equation(equation, operands, loops)
            if found:
                plan[number] = found
            for variable, mark in zip(equation.outvars, outputs, strict=True):
                # Integers and truth values carry no gradient.
                carries = jnp.issubdtype(aval(variable).dtype, jnp.inexact)
                marks[variable] = mark if carries or mark.of_record else _CONSTANT
        return [read(x) for x in jaxpr.outvars], plan

    def _equation(self, equation: JaxprEqn, operands: list[Mark], loops: tuple[Loop, ...]) -> tuple[list[Mark], Any]:
        primitive, params = equation.primitive, equation.params
        if primitive is primitives.jit_p:
            outputs, plan = self.walk(params["jaxpr"].jaxpr, operands, loops)
            return outputs, (plan,) if plan else None
        if primitive is primitives.remat_p:
            outputs, plan = self.walk(params["jaxpr"], operands, loops)
            return outputs, (plan,) if plan else None
        if primitive is primitives.cond_p:
            return self._cond(params["branches"], operands, loops)
        if primitive is primitives.scan_p:
            return self._scan(equation, operands, loops)
        if not any(x.of_record for x in operands):
            leaves = frozenset[int]().union(*(x.leaves for x in operands))
            views = moved(equation, operands[0].view) if len(operands) == 1 else None
            return [Mark(leaves=leaves, view=views[i] if views else None) for i in range(len(equation.outvars))], None
        found = layer_of(equation, [x.view is not None for x in operands], [x.of_record for x in operands])
        use = None
        for position, mark in enumerate(operands):
            if found is not None and position == found[0] and mark.view is not None:
                use = Use(equation, found[1], mark.view, loops)
            else:
                self.not_booked(mark)
        return [_OF_RECORD] * len(equation.outvars), use

    def _cond(
        self, branches: Sequence[Any], operands: list[Mark], loops: tuple[Loop, ...]
    ) -> tuple[list[Mark], tuple[Plan, ...] | None]:
        chosen_by, operands = operands[0], operands[1:]
        walked = [self.walk(branch.jaxpr, operands, loops) for branch in branches]
        outputs = [
            self._join(marks, chosen_by.of_record) for marks in zip(*(marks for marks, _ in walked), strict=True)
        ]
        plans = tuple(plan for _, plan in walked)
        return outputs, plans if any(plans) else None

    def _scan(
        self, equation: JaxprEqn, operands: list[Mark], loops: tuple[Loop, ...]
    ) -> tuple[list[Mark], tuple[Plan] | None]:
        scan = scan_of(equation)
        body, num_carry, loop = scan.body.jaxpr, scan.num_carry, Loop(scan.length)
        consts, carry, xs = scan.apart(operands)
        rows = [dataclasses.replace(x, view=x.view and x.view.sliced(loop)) for x in xs]
        # What is carried is what it starts as or becomes, whichever knows less; a few rounds settle it, and only then
        # is it known which uses are the record's.
        start = carry = [dataclasses.replace(x, view=None) for x in carry]
        while True:
            rehearsal = _Finder()
            outputs, _ = rehearsal.walk(body, [*consts, *carry, *rows], (*loops, loop))
            joined = [rehearsal._join(pair, False) for pair in zip(carry, outputs[:num_carry], strict=True)]
            if joined == carry:
                break
            carry = joined
        outputs, plan = self.walk(body, [*consts, *carry, *rows], (*loops, loop))
        for first, settled, later in zip(start, carry, outputs[:num_carry], strict=True):
            self._join((first, later), settled.of_record)
        stacked = [dataclasses.replace(x, view=None) for x in outputs[num_carry:]]
        return carry + stacked, (plan,) if plan else None

    def _join(self, marks: Sequence[Mark], chosen_by_record: bool) -> Mark:
        if chosen_by_record or any(x.of_record for x in marks):
            for mark in marks:
                self.not_booked(mark)
            return _OF_RECORD
        return Mark(leaves=frozenset[int]().union(*(x.leaves for x in marks)))
