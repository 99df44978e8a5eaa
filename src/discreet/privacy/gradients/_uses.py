"""Find the uses of parameters in a record's loss: the equations of its jaxpr where they meet the record, rerun with taps.

The loss of one record is traced once. Every value in its jaxpr is *of the record*, if the record
can change it, or *of the parameters* (or constant). Three things follow from that, one after the
other:

1. A *view* (`_views`): a value that is elements of one leaf of the parameters, moved about.
2. A *use*: an equation where a view meets a value of the record and that `_layers` knows. A leaf is
   booked if all places where it meets the record are uses; otherwise it is direct, and its gradient
   is formed for every record. Loops are walked until what they carry settles; a use within one
   counts as often as the loop turns.
3. A *tap*: a zero that is added to the output of a use. The gradient in the tap is the gradient in
   the output, so one backward pass gives it for all uses, and beside it stands the activation, the
   value that met the weight.

This affects speed only. The norm and the sum of a record's contribution are computed from the same
uses, so a missing one would make a gradient wrong, never a bound; tests compare with the reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from discreet._jax import (
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    aval,
    bind,
    inner_programs,
    primitives,
    scan_of,
)
from discreet.privacy.gradients._layer import Layer
from discreet.privacy.gradients._layers import Lookup, layer_of
from discreet.privacy.gradients._views import View, moved

UseMap = Mapping[int, Any]
"""For a jaxpr, by the number of the equation: its `Use`, or a `UseMap` for each of its inner jaxprs (a tuple)."""


@dataclasses.dataclass(frozen=True, eq=False)
class UseLoop:
    """A `scan` around a use. Identity tells one loop from another."""

    length: int


@dataclasses.dataclass(frozen=True, eq=False)
class Use:
    """One equation where a parameter meets a value of the record."""

    layer: Layer | Lookup  # the equation and its kind
    view: View  # its weight as a part of a leaf
    # the scans around it, outermost first. In those of `view.loops` the weight changes from one
    # iteration to the next; in the others each iteration is one more position where the same weight
    # is used.
    loops: tuple[UseLoop, ...]


@dataclasses.dataclass(frozen=True)
class Mark:
    """The analysis of a value: its dependence on the record and on leaves."""

    of_record: bool = False  # the record can change it
    # the leaves that it is computed from; none if the record can
    leaves: frozenset[int] = frozenset()
    view: View | None = None  # set if it is elements of one leaf, moved and not changed


_CONSTANT = Mark()
_OF_RECORD = Mark(of_record=True)


def find_uses(jaxpr: Jaxpr, num_leaves: int) -> tuple[UseMap, frozenset[int]]:
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
        finder.direct |= mark.leaves
    return plan, frozenset(finder.direct)


def restrict(plan: UseMap, direct: frozenset[int]) -> UseMap:
    """The plan without the uses of direct leaves."""
    kept: dict[int, Any] = {}
    for number, item in plan.items():
        if isinstance(item, Use):
            if item.view.leaf not in direct:
                kept[number] = item
        elif any(inner := tuple(restrict(x, direct) for x in item)):
            kept[number] = inner
    return kept


@dataclasses.dataclass
class _Finder:
    direct: set[int] = dataclasses.field(default_factory=set)

    def walk(
        self, jaxpr: Jaxpr, inputs: Sequence[Mark], loops: tuple[UseLoop, ...]
    ) -> tuple[list[Mark], UseMap]:
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

    def _equation(
        self, equation: JaxprEqn, operands: list[Mark], loops: tuple[UseLoop, ...]
    ) -> tuple[list[Mark], Any]:
        primitive = equation.primitive
        params = equation.params
        if primitive in (primitives.jit_p, primitives.remat_p):
            (inner,) = inner_programs(equation)
            outputs, plan = self.walk(inner.jaxpr, operands, loops)
            return outputs, (plan,) if plan else None
        if primitive is primitives.cond_p:
            return self._cond(params["branches"], operands, loops)
        if primitive is primitives.scan_p:
            return self._scan(equation, operands, loops)
        if not any(x.of_record for x in operands):
            leaves = frozenset[int]().union(*(x.leaves for x in operands))
            views = moved(equation, operands[0].view) if len(operands) == 1 else None
            return [
                Mark(leaves=leaves, view=views[i] if views else None)
                for i in range(len(equation.outvars))
            ], None
        found = layer_of(
            equation, [x.view is not None for x in operands], [x.of_record for x in operands]
        )
        use = None
        for position, mark in enumerate(operands):
            if found is not None and position == found[0] and mark.view is not None:
                use = Use(found[1], mark.view, loops)
            else:
                self.direct |= mark.leaves
        return [_OF_RECORD] * len(equation.outvars), use

    def _cond(
        self, branches: Sequence[Any], operands: list[Mark], loops: tuple[UseLoop, ...]
    ) -> tuple[list[Mark], tuple[UseMap, ...] | None]:
        chosen_by = operands[0]
        operands = operands[1:]
        walked = [self.walk(branch.jaxpr, operands, loops) for branch in branches]
        outputs = [
            self._join(marks, chosen_by.of_record)
            for marks in zip(*(marks for marks, _ in walked), strict=True)
        ]
        plans = tuple(plan for _, plan in walked)
        return outputs, plans if any(plans) else None

    def _scan(
        self, equation: JaxprEqn, operands: list[Mark], loops: tuple[UseLoop, ...]
    ) -> tuple[list[Mark], tuple[UseMap] | None]:
        scan = scan_of(equation)
        body = scan.body.jaxpr
        num_carry = scan.num_carry
        loop = UseLoop(scan.length)
        consts, carry, xs = scan.apart(operands)
        rows = [dataclasses.replace(x, view=x.view and x.view.sliced(loop)) for x in xs]
        # A carried value is the weaker of its start and its end; a few rounds converge, and only
        # then are the record's uses known.
        start = carry = [dataclasses.replace(x, view=None) for x in carry]
        while True:
            rehearsal = _Finder()
            outputs, _ = rehearsal.walk(body, [*consts, *carry, *rows], (*loops, loop))
            joined = [
                rehearsal._join(pair, False)
                for pair in zip(carry, outputs[:num_carry], strict=True)
            ]
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
                self.direct |= mark.leaves
            return _OF_RECORD
        return Mark(leaves=frozenset[int]().union(*(x.leaves for x in marks)))


Tree = Any


def zero_taps(plan: UseMap) -> Tree:
    """The taps of a plan."""
    taps: dict[int, Tree] = {}
    for number, item in plan.items():
        if isinstance(item, Use):
            output = aval(item.layer.equation.outvars[0])
            taps[number] = jnp.zeros(
                [*(loop.length for loop in item.loops), *output.shape], output.dtype
            )
        else:
            taps[number] = tuple(zero_taps(x) for x in item)
    return taps


def uses_with(plan: UseMap, *trees: Tree) -> list[tuple[Any, ...]]:
    """Each use of a plan, with what trees that are nested like the plan hold for it."""
    found: list[tuple[Any, ...]] = []
    for number, item in plan.items():
        inner = [tree[number] for tree in trees]
        if isinstance(item, Use):
            found.append((item, *inner))
        else:
            for branch, *parts in zip(item, *inner, strict=True):
                found += uses_with(branch, *parts)
    return found


def run(
    jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Any], plan: UseMap, taps: Tree
) -> tuple[list[Any], Tree]:
    """Evaluate a jaxpr with taps.

    Returns:
        Its outputs, and the activations.
    """
    values: dict[Var, Any] = dict(
        zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True)
    )
    activations: dict[int, Tree] = {}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for number, equation in enumerate(jaxpr.eqns):
        operands = [read(x) for x in equation.invars]
        item = plan.get(number)
        if item is None:
            outputs = bind(equation, operands)
        elif isinstance(item, Use):
            outputs = [bind(equation, operands)[0] + taps[number]]
            activations[number] = item.layer.activation(operands)
        else:
            outputs, activations[number] = _INSIDE[equation.primitive](
                equation, operands, item, taps[number]
            )
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(x) for x in jaxpr.outvars], activations


def _called(
    equation: JaxprEqn, operands: list[Any], plans: tuple[UseMap], taps: tuple[Tree]
) -> tuple[list[Any], Tree]:
    (inner,) = inner_programs(equation)

    def called(operands: list[Any], taps: Tree) -> tuple[list[Any], Tree]:
        return run(inner.jaxpr, inner.consts, operands, plans[0], taps)

    if equation.primitive is primitives.remat_p:
        prevent = equation.params["prevent_cse"]
        prevent = prevent if isinstance(prevent, bool) else any(prevent)
        called = jax.checkpoint(called, prevent_cse=prevent, policy=equation.params["policy"])
    outputs, activations = called(operands, taps[0])
    return outputs, (activations,)


def _cond(
    equation: JaxprEqn, operands: list[Any], plans: tuple[UseMap, ...], taps: tuple[Tree, ...]
) -> tuple[list[Any], Tree]:
    branches = equation.params["branches"]
    nothing = [
        jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype),
            jax.eval_shape(
                lambda ops, tap, b=b, p=p: run(b.jaxpr, b.consts, ops, p, tap)[1], operands[1:], tap
            ),
        )
        for b, p, tap in zip(branches, plans, taps, strict=True)
    ]

    def branch(number: int) -> Any:
        def taken(operands: list[Any], taps: tuple[Tree, ...]) -> tuple[list[Any], Tree]:
            inner = branches[number]
            outputs, activations = run(
                inner.jaxpr, inner.consts, operands, plans[number], taps[number]
            )
            # A branch that is not taken has met nothing.
            return outputs, tuple(activations if i == number else x for i, x in enumerate(nothing))

        return taken

    return jax.lax.switch(
        operands[0], [branch(i) for i in range(len(branches))], operands[1:], taps
    )


def _scan(
    equation: JaxprEqn, operands: list[Any], plans: tuple[UseMap], taps: tuple[Tree]
) -> tuple[list[Any], Tree]:
    scan = scan_of(equation)
    inner = scan.body
    num_carry = scan.num_carry
    consts, carry, through = scan.apart(operands)

    def body(
        carry: list[Any], xs: tuple[list[Any], Tree]
    ) -> tuple[list[Any], tuple[list[Any], Tree]]:
        rows, now = xs
        outputs, activations = run(
            inner.jaxpr, inner.consts, [*consts, *carry, *rows], plans[0], now
        )
        return outputs[:num_carry], (outputs[num_carry:], activations)

    carry, (stacked, activations) = jax.lax.scan(
        body,
        carry,
        (through, taps[0]),
        length=scan.length,
        reverse=scan.reverse,
        unroll=scan.unroll,
    )
    return [*carry, *stacked], (activations,)


_INSIDE = {
    primitives.jit_p: _called,
    primitives.remat_p: _called,
    primitives.cond_p: _cond,
    primitives.scan_p: _scan,
}
