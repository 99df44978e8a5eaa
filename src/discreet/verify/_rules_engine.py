"""What the primitives of private inference mean: a gradient engine is trusted to keep its contract, and nothing more."""

from __future__ import annotations

import math
from typing import Any

from discreet._jax import JaxprEqn, source_line
from discreet.accounting import Relation
from discreet.mechanisms import CLIPPED_SUM, DRAW, RELEASE, UPDATE_ROWS, law_of
from discreet.verify._alignment import varies_along
from discreet.verify._domain import Batch, Group, Private, Public, Scale, Term, Value
from discreet.verify._interpreter import KEY_RULES, Checker, shape_of
from discreet.verify._ledger import Draw
from discreet.verify._rules_markers import gaussian, number_of, refuse_fixed_size, spend_secret


def draw_batch(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """Row numbers of a sample of the table, and which of them count."""
    spend_secret(checker, equation, operands[0])
    params: Any = equation.params
    tables = [x.const if isinstance(x, Public) else None for x in operands[1:]]
    public = all(isinstance(x, Public) for x in operands[1:]) and not checker.table.masked
    law = law_of(params["sampling"], params["structure"], tables, params["num_records"]) if public else None
    if law is None:
        # No draw is recorded, so that what comes of it is no sample.
        why = f"[rows] nothing is known of the batches of {type(params['sampling']).__name__}"
        return [checker.unbounded(equation, operands, why) for _ in equation.outvars]
    if law[0] == "poisson":
        _, rate, slack = law
        batch = Batch("poisson", checker.table, event=(rate,), slack=slack, depth=len(checker.keys.loops))
    else:
        refuse_fixed_size(checker, equation)
        event = (params["num_records"], law[1])
        batch = Batch("fixed", checker.table, event=event, depth=len(checker.keys.loops))
    checker.items.append(Draw(batch))
    origin = checker.origin(equation, [], "a secret sample of the records")
    why = "[rows] it tells which records are in the sample"
    outputs = [Private(batch, None, origin, why=why) for _ in equation.outvars]
    checker.samples[batch] = (params["num_records"], *(x.serial for x in outputs))
    return list(outputs)


def clipped_sum(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """What a gradient engine promises: each record of the batch adds at most the joint bound to all outputs together.

    The loss cannot see two records: it is a program of one. What else it takes must be public, and the row numbers those
    of a draw, in which each record stands once.
    """
    *keys, indices, mask = operands[:4]
    params: Any = equation.params
    norms, *public, table = params["layout"].parts(operands[4:])
    for key in keys:
        spend_secret(checker, equation, key)
    why = ""
    bound = Scale(abs(params["norm"])) if params["norm"] is not None else number_of(norms[0])
    if not params["trusted"]:
        why = "[rows] nothing is known of the gradient engine"
    elif any(not isinstance(x, Public) for part in public for x in part):
        why = "[rows] the loss of one record takes what depends on others"
    elif bound is None:
        why = "[noise scale] the clipping norm is not known to be public"
    elif not _is_draw(checker, equation, indices, mask, table):
        why = "[rows] the rows are not those of a sample of the table"
    if why or bound is None:
        return _refused(checker, equation, [*operands[4:], indices], why)
    assert isinstance(indices, Private)
    assert indices.batch is not None
    joint = bound.times(1.0 / math.sqrt(1.0 - sum(params["shares"])))
    group, origin = Group("clipped_sum"), checker.origin(equation, table)
    outputs: list[Value] = []
    for number, _ in enumerate(equation.outvars[:-1]):
        term = Term(group, frozenset([number]), joint, indices.batch)
        outputs.append(Private(indices.batch, None, origin, terms=(term,), finite=True, additive=True))
    # The last says whether the random bits could be made.
    return [*outputs, Public()]


def _refused(checker: Checker, equation: JaxprEqn, operands: list[Value], why: str) -> list[Value]:
    found = checker.unbounded(equation, operands, why)
    # What is wrong with this use of the sample, not what a sample may not be used for.
    line = source_line(equation)
    return [found.but(why=f"{why} (at {line})" if line else why) for _ in equation.outvars]


def _is_draw(checker: Checker, equation: JaxprEqn, indices: Value, mask: Value, table: list[Value]) -> bool:
    """Whether row numbers and mask are what one draw gave, from just these arrays."""
    if not isinstance(indices, Private) or not isinstance(mask, Private) or indices.batch is None:
        return False
    shapes = [shape_of(x) for x in equation.invars[len(equation.invars) - len(table) :]]
    rows = {shape[0] for shape in shapes}
    by_place = checker.relation is Relation.ADD_OR_REMOVE_ONE
    for value, shape in zip(table, shapes, strict=True):
        if isinstance(value, Public):
            # What records remember starts as something public; and as with rows, it must not tell one place from another.
            if by_place and varies_along(value, shape, (0,)):
                return False
            continue
        if not isinstance(value, Private) or value.axes != (0,) or value.batch is not checker.table:
            return False
        if value.positional and by_place:
            return False
    return checker.samples.get(indices.batch) == (*rows, indices.serial, mask.serial)


def update_rows(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """Rows of the table after each record of a sample has looked at itself and at what is public.

    What a record remembers tells whether it was in earlier samples. So a sample that is drawn later is as good as fresh
    only if a record's chance to be in it depends on no other record, as in Poisson samples: see `mechanisms.update_rows`.
    """
    key, indices, mask = operands[:3]
    params: Any = equation.params
    public, table, memory = params["layout"].parts(operands[3:])
    spend_secret(checker, equation, key)
    why = ""
    if any(not isinstance(x, Public) for x in public):
        why = "[rows] what one record remembers takes what depends on others"
    elif not _is_draw(checker, equation, indices, mask, [*table, *memory]):
        why = "[rows] the rows are not those of a sample of the table"
    elif checker.draws_fixed_size or not isinstance(indices, Private) or not _is_poisson(indices):
        why = "[rows] records remember samples of a fixed size, in which one record decides what others remember"
    if why:
        return _refused(checker, equation, [*operands[3:], indices], why)
    checker.remembers = True
    origin = checker.origin(equation, [*table, *memory])
    return [Private(checker.table, (0,), origin) for _ in equation.outvars]


def _is_poisson(rows: Private) -> bool:
    return rows.batch is not None and rows.batch.kind == "poisson"


KEY_RULES.update({DRAW: draw_batch, CLIPPED_SUM: clipped_sum, RELEASE: gaussian, UPDATE_ROWS: update_rows})
