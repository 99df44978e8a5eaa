"""Programs within programs: calls are walked into; branches and loops need public decisions."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from discreet._jax import Jaxpr, JaxprEqn, Literal, aval, hi_primitives, inner_programs, source_line
from discreet._jax import primitives as p
from discreet.verify._bounds import fresh, source_of, total_of
from discreet.verify._domain import Key, Private, Public, Value, constant, new_symbol
from discreet.verify._errors import REMEDIES, PrivacyError, chain_of
from discreet.verify._interpreter import INLINED, STRUCTURED, Checker, is_key, shape_of
from discreet.verify._join import join, of_a_turn, renamed, same
from discreet.verify._keys import KNOWN, PRIVATE, SECRET
from discreet.verify._ledger import Choice, Repeat


def inner(checker: Checker, program: Any) -> tuple[Jaxpr, list[Value]]:
    """A jaxpr, open or closed, and its constants."""
    return getattr(program, "jaxpr", program), [captured(checker, x) for x in getattr(program, "consts", ())]


def captured(checker: Checker, value: Any) -> Value:
    """A constant that a program holds. A key among them is the same in every run."""
    if is_key(value):
        return checker.keys.new(value.shape, KNOWN, "it is a constant of the program, the same in every run")
    if value.size <= _SMALL and not jnp.issubdtype(value.dtype, jnp.complexfloating):
        return constant(np.asarray(value))
    return Public()


_SMALL = 2**18  # thresholds of a sampler, whose values say its law, are among them


def _call(name: str):
    def rule(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
        jaxpr, consts = inner(checker, equation.params[name])
        return checker.walk(jaxpr, consts, operands)

    return rule


def _hi_program(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """One of JAX's own operations that is written as an object."""
    (program,) = inner_programs(equation)  # any other was refused before
    jaxpr, consts = inner(checker, program)
    return checker.walk(jaxpr, consts, operands)


def refuse_private(checker: Checker, equation: JaxprEqn, value: Value, what: str) -> None:
    """Control flow by what is private shows it: in the time it takes, if in nothing else.

    Raises:
        PrivacyError: the value is private.
    """
    if isinstance(value, Private):
        raise PrivacyError(
            f"the {what} at {source_line(equation)} depends on records.",
            REMEDIES["control"],
            chain=chain_of(checker.origin(equation, [value], what)),
        )


def _cond(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    which, *arguments = operands
    refuse_private(checker, equation, which, "choice of a branch")
    keys, items = checker.keys.snapshot(), checker.items
    outcomes: list[list[Value]] = []
    branches: list[list[Any]] = []
    used = []
    for program in equation.params["branches"]:
        checker.keys.restore(keys)
        checker.items = []
        jaxpr, consts = inner(checker, program)
        outcomes.append(checker.walk(jaxpr, consts, arguments))
        branches.append(checker.items)
        used.append(checker.keys.snapshot())
    checker.items = items
    checker.keys.restore(keys)
    checker.keys.merge(used)
    if any(branches):
        checker.items.append(Choice(branches))
    drawn = {id(x.batch) for branch in branches for x in branch if hasattr(x, "batch") and not hasattr(x, "loads")}
    results: list[Value] = []
    for values, variable in zip(zip(*outcomes, strict=True), equation.outvars, strict=True):
        results.append(_after_branches(checker, equation, list(values), shape_of(variable), drawn))
    return results


def _after_branches(
    checker: Checker, equation: JaxprEqn, values: list[Value], shape: tuple[int, ...], drawn: set[int]
) -> Value:
    if isinstance(values[0], Key):
        kinds = [checker.keys.kind(v) for v in values if isinstance(v, Key)]
        for value in values:
            if isinstance(value, Key):
                checker.keys.spend(value, "the result of a branch", source_line(equation))
        worst = min(kinds, key=lambda k: (PRIVATE, KNOWN, SECRET).index(k[0]))
        return checker.keys.new(shape, *worst)
    result = values[0]
    for value in values[1:]:
        result = join(checker, equation, result, value, shape)
    if isinstance(result, Private) and result.batch is not None and id(result.batch) in drawn:
        return checker.unbounded(
            equation, [result], "[turns] a sample leaves the branch it was drawn in, before its release"
        )
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A loop; identity tells one from another. The length is infinite where it is not known, or an expression if it is open."""

    length: Any


def unshared(value: Value, before: int) -> Value:
    """A value for the next turn: a joint bound made in this turn says nothing of values of the next."""
    if not isinstance(value, Private) or value.terms is None:
        return value
    if any(symbol >= before for t in value.terms for symbol, _ in t.bound.powers):
        return value.but(terms=None, finite=False, why=value.why or "[turns] a bound changes from turn to turn")
    if all(t.group.serial < before for t in value.terms):
        return value
    whole = total_of(value.terms)
    terms = None if whole is None or whole.powers else fresh(whole, source_of(value.terms))
    return value.but(terms=terms, finite=value.finite)


def fresh_key(checker: Checker, value: Key) -> Key:
    """The key that a turn of a loop starts with."""
    kind, why = checker.keys.kind(value)
    return checker.keys.new(value.names.shape, kind, why)


def check_carried_keys(checker: Checker, equation: JaxprEqn, start: list[Value], end: list[Value]) -> None:
    """A key handed to the next turn is used up by that; it must be as secret as the one before."""
    for first, last in zip(start, end, strict=True):
        if isinstance(first, Key) and isinstance(last, Key):
            if checker.keys.kind(last)[0] != checker.keys.kind(first)[0]:
                line = source_line(equation)
                raise PrivacyError(
                    f"the loop at {line} hands on a key that is no secret: {checker.keys.kind(last)[1]}.",
                    REMEDIES["key"],
                    chain=(line,),
                )
            checker.keys.spend(last, "the next turn of the loop", source_line(equation))


def _while(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    params: Any = equation.params
    num_test, num_body = params["cond_nconsts"], params["body_nconsts"]
    test_consts, body_consts = operands[:num_test], operands[num_test : num_test + num_body]
    start = operands[num_test + num_body :]
    line = source_line(equation)
    for value in start:
        if isinstance(value, Key):
            checker.keys.spend(value, "the first turn of the loop", line)
    counter, turns = _open_count(checker, equation, start)
    loop = Loop(float("inf") if turns is None else turns)
    (test, test_own), (body, body_own) = inner(checker, params["cond_jaxpr"]), inner(checker, params["body_jaxpr"])
    shapes = [shape_of(v) for v in equation.outvars]
    carry = [x.but(additive=False) if isinstance(x, Private) else x for x in start]
    items, keys, before = checker.items, checker.keys.snapshot(), new_symbol()
    if counter is not None:
        carry[counter] = Public(counter=(loop, 0, np.iinfo(aval(equation.outvars[counter]).dtype).max - 1))
    for attempt in range(12):
        checker.keys.restore(keys)
        checker.keys.loops.append(loop)
        checker.items = []
        begin = [fresh_key(checker, x) if isinstance(x, Key) else x for x in carry]
        (decision,) = checker.walk(test, test_own, [*test_consts, *begin])
        refuse_private(checker, equation, decision, "condition of a while loop")
        _refuse_looking_at_keys(checker, equation, begin)
        end = checker.walk(body, body_own, [*body_consts, *begin])
        check_carried_keys(checker, equation, begin, end)
        checker.keys.loops.pop()
        joined = [
            a
            if i == counter
            else of_a_turn(a, join(checker, equation, a, unshared(b, before), s), before)
            if attempt < 8
            else given_up(checker, equation, a, b)
            for i, (a, b, s) in enumerate(zip(carry, end, shapes, strict=True))
        ]
        settled = all(same(a, b) for a, b in zip(carry, joined, strict=True))
        carry = joined
        if settled:
            break
    else:
        raise not_settled(equation)
    if checker.items and turns is None:
        raise PrivacyError(
            f"the while loop at {line} makes a release in every turn, and nobody knows how many turns it takes.",
            "use jax.lax.scan, or jax.lax.fori_loop between Python numbers or from 0 to a symbol: their number of turns is "
            "fixed beforehand.",
            chain=(line,),
        )
    if checker.items:
        items.append(Repeat(loop, checker.items))
    checker.items = items
    return [Public() if i == counter else after_loop(checker, x) for i, x in enumerate(carry)]


def _open_count(checker: Checker, equation: JaxprEqn, start: list[Value]) -> tuple[int | None, Any]:
    """Of a loop that counts from zero, one by one, to an open parameter: which value counts, and the number of turns."""
    params: Any = equation.params
    test, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    if params["cond_nconsts"] or len(test.eqns) != 1 or test.eqns[0].primitive is not p.lt_p:
        return None, None
    places = [test.invars.index(x) for x in test.eqns[0].invars if x in test.invars]
    if len(places) != 2 or test.outvars[0] is not test.eqns[0].outvars[0]:
        return None, None
    counter, end = places
    begins, ends = body.invars[params["body_nconsts"] :], body.outvars
    first, last = start[counter], start[end]
    ones = any(x.outvars[0] is ends[counter] and _adds_one(x, begins[counter]) for x in body.eqns)
    if not ones or ends[end] is not begins[end] or not isinstance(first, Public) or not isinstance(last, Public):
        return None, None
    turns = checker.symbols.expression(last.scale)
    if first.const is None or first.const.ndim or first.const.dtype.kind != "i" or first.const != 0 or turns is None:
        return None, None
    return counter, turns


def _adds_one(equation: JaxprEqn, number: Any) -> bool:
    if equation.primitive is not p.add_p or equation.invars[0] is not number:
        return False
    other = equation.invars[1]
    return isinstance(other, Literal) and np.ndim(other.val) == 0 and bool(other.val == 1)


def _refuse_looking_at_keys(checker: Checker, equation: JaxprEqn, begin: list[Value]) -> None:
    """The condition sees the key that comes out of the loop: it could wait for one that makes little noise."""
    for value in begin:
        if isinstance(value, Key) and checker.keys.is_spent(value):
            line = source_line(equation)
            raise PrivacyError(
                f"the condition of the while loop at {line} draws from a key that the loop hands on.",
                REMEDIES["key"],
                chain=(line,),
            )


def not_settled(equation: JaxprEqn) -> PrivacyError:
    """For a loop of which nothing lasting was found out."""
    line = source_line(equation)
    return PrivacyError(f"nothing that lasts was found out of the loop at {line}.", REMEDIES["control"], chain=(line,))


def after_loop(checker: Checker, value: Value) -> Value:
    """A value that was carried, under another name: what was true of it in a turn need not be true of it now."""
    if isinstance(value, Key):
        return fresh_key(checker, value)
    return value.but() if isinstance(value, Private) else renamed(value)


def given_up(checker: Checker, equation: JaxprEqn, a: Value, b: Value) -> Value:
    if isinstance(a, Private) or isinstance(b, Private):
        private = [x for x in (a, b) if isinstance(x, Private)]
        return checker.unbounded(equation, private, "[turns] what one record can change grows from turn to turn")
    return Public() if isinstance(a, Public) else a


INLINED.update(
    {
        p.jit_p: _call("jaxpr"),
        p.remat_p: _call("jaxpr"),
        p.closed_call_p: _call("call_jaxpr"),
        p.custom_jvp_call_p: _call("call_jaxpr"),
        p.custom_vjp_call_p: _call("call_jaxpr"),
        **dict.fromkeys(hi_primitives(), _hi_program),
    }
)
STRUCTURED.update({p.cond_p: _cond, p.while_p: _while})
