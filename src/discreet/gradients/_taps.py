"""Runs a record's loss with a tap on the output of each booked layer.

A tap is a zero that is added to the output; the gradient in it is the gradient in the output. Beside each tap the
run returns the activation, the value that met the weight. Taps and activations are nested like the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from discreet._jax import Jaxpr, JaxprEqn, Literal, Var, aval, bind, primitives, scan_of
from discreet.gradients._uses import Plan, Use

Tree = Any


def zero_taps(plan: Plan) -> Tree:
    """The taps of a plan."""
    return {number: _zero(item) for number, item in plan.items()}


def _zero(item: Any) -> Tree:
    if not isinstance(item, Use):
        return tuple(zero_taps(x) for x in item)
    output = aval(item.equation.outvars[0])
    return jnp.zeros([*(loop.length for loop in item.loops), *output.shape], output.dtype)


def uses_with(plan: Plan, *trees: Tree) -> list[tuple[Any, ...]]:
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


def run(jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Any], plan: Plan, taps: Tree) -> tuple[list[Any], Tree]:
    """Evaluate a jaxpr with taps.

    Returns:
        Its outputs, and the activations.
    """
    values: dict[Var, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))
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
            outputs, activations[number] = _INSIDE[equation.primitive](equation, operands, item, taps[number])
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(x) for x in jaxpr.outvars], activations


def _jit(equation: JaxprEqn, operands: list[Any], plans: tuple[Plan], taps: tuple[Tree]) -> tuple[list[Any], Tree]:
    inner = equation.params["jaxpr"]
    outputs, activations = run(inner.jaxpr, inner.consts, operands, plans[0], taps[0])
    return outputs, (activations,)


def _remat(equation: JaxprEqn, operands: list[Any], plans: tuple[Plan], taps: tuple[Tree]) -> tuple[list[Any], Tree]:
    inner, policy, prevent = (equation.params[x] for x in ("jaxpr", "policy", "prevent_cse"))

    def again(operands: list[Any], taps: Tree) -> tuple[list[Any], Tree]:
        return run(inner, (), operands, plans[0], taps)

    prevent = prevent if isinstance(prevent, bool) else any(prevent)
    outputs, activations = jax.checkpoint(again, prevent_cse=prevent, policy=policy)(operands, taps[0])
    return outputs, (activations,)


def _cond(
    equation: JaxprEqn, operands: list[Any], plans: tuple[Plan, ...], taps: tuple[Tree, ...]
) -> tuple[list[Any], Tree]:
    branches = equation.params["branches"]
    nothing = [
        jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype),
            jax.eval_shape(lambda ops, tap, b=b, p=p: run(b.jaxpr, b.consts, ops, p, tap)[1], operands[1:], tap),
        )
        for b, p, tap in zip(branches, plans, taps, strict=True)
    ]

    def branch(number: int) -> Any:
        def taken(operands: list[Any], taps: tuple[Tree, ...]) -> tuple[list[Any], Tree]:
            inner = branches[number]
            outputs, activations = run(inner.jaxpr, inner.consts, operands, plans[number], taps[number])
            # A branch that is not taken has met nothing.
            return outputs, tuple(activations if i == number else x for i, x in enumerate(nothing))

        return taken

    return jax.lax.switch(operands[0], [branch(i) for i in range(len(branches))], operands[1:], taps)


def _scan(equation: JaxprEqn, operands: list[Any], plans: tuple[Plan], taps: tuple[Tree]) -> tuple[list[Any], Tree]:
    scan = scan_of(equation)
    inner, num_carry = scan.body, scan.num_carry
    consts, carry, through = scan.apart(operands)

    def body(carry: list[Any], xs: tuple[list[Any], Tree]) -> tuple[list[Any], tuple[list[Any], Tree]]:
        rows, now = xs
        outputs, activations = run(inner.jaxpr, inner.consts, [*consts, *carry, *rows], plans[0], now)
        return outputs[:num_carry], (outputs[num_carry:], activations)

    carry, (stacked, activations) = jax.lax.scan(
        body, carry, (through, taps[0]), length=scan.length, reverse=scan.reverse, unroll=scan.unroll
    )
    return [*carry, *stacked], (activations,)


_INSIDE = {
    primitives.jit_p: _jit,
    primitives.remat_p: _remat,
    primitives.cond_p: _cond,
    primitives.scan_p: _scan,
}
