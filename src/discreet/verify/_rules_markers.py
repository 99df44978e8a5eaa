"""What the mechanisms' primitives mean."""

from __future__ import annotations

from typing import Any

from discreet._jax import JaxprEqn, source_line
from discreet.accounting import Relation
from discreet.mechanisms import CLIP, FIXED_SIZE, GAUSSIAN, LAPLACE, OPEN_POISSON, POISSON, SUM
from discreet.verify._bounds import over_slices, range_factor, total_of
from discreet.verify._domain import Batch, Group, Key, Private, Public, Scale, Term, Value
from discreet.verify._errors import REMEDIES, PrivacyError
from discreet.verify._interpreter import KEY_RULES, RULES, Checker, shape_of, size_per_record
from discreet.verify._keys import SECRET
from discreet.verify._ledger import Draw, Loads, Release, worst_of
from discreet.verify._rules_linear import sum_over
from discreet.verify._rules_shape import masked_rows
from discreet.verify._sums import as_sum
from discreet.verify._symbols import square_root


def _number(equation: JaxprEqn, operands: list[Value], name: str) -> tuple[list[Value], Scale | None]:
    """The arrays, and the number that is a parameter or comes last."""
    known = equation.params[name]
    if known is not None:
        return operands, Scale(abs(float(known)))
    return operands[:-1], number_of(operands[-1])


def number_of(value: Value) -> Scale | None:
    """A public number up to its sign; None for what is not public."""
    return value.scale if isinstance(value, Public) else None


def clip(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """Rows of joint L2 norm at most C, without NaN; a row of zeros stays one."""
    leaves, bound = _number(equation, operands, "norm")
    private = [x for x in leaves if isinstance(x, Private)]
    if not private or bound is None:
        outputs = [checker.unbounded(equation, operands, "[noise scale] the clipping norm depends on records")] * len(
            leaves
        )
        return list(outputs)
    group = Group("clip_records")
    first = private[0]
    by_record = all(x.axes == first.axes and x.batch is first.batch for x in private)
    if any(x.batch is not first.batch for x in private):
        why = "[rows] values of different samples are clipped by one norm"
        return [checker.unbounded(equation, operands, why) for _ in equation.outvars]
    shapes = [shape_of(v) for v in equation.outvars]
    single = all(s[0] == 1 for s in shapes)
    # Each leaf is scaled by the norm of all.
    positional = any(x.positional for x in private) or len(private) < len(leaves)
    outputs: list[Value] = []
    for number, value in enumerate(leaves):
        if not isinstance(value, Private):
            # A public leaf beside private ones is scaled by their norm.
            value = first.but(zero=frozenset())
            if not by_record or first.axes not in ((0,), ()):
                outputs.append(
                    checker.unbounded(equation, operands, "[rows] a public leaf is clipped with what is private")
                )
                continue
        if by_record and (first.axes == (0,) or (first.axes == () and single)) and first.batch is not None:
            term = Term(group, frozenset([number]), bound, first.batch)
            origin = checker.origin(equation, [value])
            linf = bound.factor if not bound.powers else None
            outputs.append(value.but(terms=(term,), linf=linf, finite=True, origin=origin, positional=positional))
            continue
        outputs.append(
            _clip_of_sum(checker, equation, value, Term(group, frozenset([number]), bound, Batch("table")), single)
        )
    return outputs


def _clip_of_sum(checker: Checker, equation: JaxprEqn, value: Private, term: Term, single: bool) -> Private:
    batch = value.batch
    factor = (
        range_factor(batch, checker.relation)
        if batch is not None and batch.kind not in ("part", "slice", "pick")
        else 0.0
    )
    if batch is None or not single or value.axes is not None or factor == 0.0:
        why = "[rows] clip_records bounds one row, but here a record has an influence on other rows too"
        return checker.unbounded(equation, [value], why)
    # Whatever it was, it is a vector of norm C now; one record may turn it round.
    if factor > 1.0:
        checker.notes.append(
            f"the sensitivity is 2C, since a sum was clipped and not the records ({source_line(equation)})"
        )
    terms = (Term(term.group, term.leaves, term.bound.times(factor), batch),)
    return Private(batch, None, checker.origin(equation, [value]), terms=terms, finite=True)


def total(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The sum of the rows that a mask keeps."""
    *leaves, mask = operands
    outputs: list[Value] = []
    for value, variable, result in zip(leaves, equation.invars, equation.outvars, strict=False):
        own = equation.replace(outvars=[result])
        if isinstance(value, Private) and value.axes is None and value.terms is None:
            outputs.append(
                checker.unbounded(equation, [value], "[rows] what is summed does not have one row per record")
            )
            continue
        rows = masked_rows(checker, equation, mask, value, shape_of(variable), shape_of(equation.invars[-1]))
        summed = sum_over(checker, own, rows, shape_of(variable), (0,)) if isinstance(rows, Private) else Public()
        outputs.append(summed)
    return outputs


def spend_secret(checker: Checker, equation: JaxprEqn, key: Value) -> None:
    """Use up the key of a mechanism or a draw.

    Raises:
        PrivacyError: it is no secret, or was used before.
    """
    line, name = source_line(equation), equation.primitive.name
    if not isinstance(key, Key):
        raise PrivacyError(f"the key of {name} at {line} depends on records.", REMEDIES["key"], chain=(line,))
    kind, why = checker.keys.kind(key)
    if kind != SECRET:
        raise PrivacyError(
            f"the key of {name} at {line} is no secret: {why}. Whoever knows the program can subtract the noise.",
            "pass the key as an argument of the step, made by dp.random.key(), and derive others with jax.random.split.",
            chain=(line,),
        )
    checker.keys.spend(key, name, line)


def gaussian(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """A release, if the noise is a known multiple of what one record can add."""
    return _mechanism(checker, equation, operands, "stddev")


def laplace(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The same in the L1 norm."""
    return _mechanism(checker, equation, operands, "scale")


def _mechanism(checker: Checker, equation: JaxprEqn, operands: list[Value], parameter: str) -> list[Value]:
    spend_secret(checker, equation, operands[0])
    arrays, noise = _number(equation, operands[1:], parameter)
    if equation.params[parameter] is None and not isinstance(operands[-1], Public):
        why = "[noise scale] the size of the noise depends on records"
        return [checker.unbounded(equation, operands, why) for _ in equation.outvars]
    if not any(isinstance(x, Private) for x in arrays):
        return [Public() for _ in equation.outvars]
    outputs: list[Value] = []
    released: list[tuple[Private, int]] = []
    for value, variable in zip(arrays, equation.outvars, strict=True):
        shape = shape_of(variable)
        if not isinstance(value, Private):
            outputs.append(Public())
            continue
        found = as_sum(checker, value, shape)
        why = _why_not(found, noise)
        if why:
            outputs.append(checker.unbounded(equation, [found], why))
            continue
        released.append((found, size_per_record(shape, None)))
        outputs.append(Public(released=True))
    if released and noise is not None:
        try:
            _record(checker, released, noise, parameter)
        except _NoRatioError as error:
            why = str(error)
            return [
                x if isinstance(v, Public) else checker.unbounded(equation, [v], why)
                for x, v in zip(outputs, arrays, strict=True)
            ]
    return outputs


class _NoRatioError(Exception):
    """The noise is no known multiple of the bound."""


def _why_not(value: Private, noise: Scale | None) -> str:
    if value.terms is None:
        return value.why or "[clip] noise is added to a value without a bound on one record's influence"
    if noise is None or noise.factor == 0:
        return "[noise scale] the noise is not known to be above zero"
    if value.batch is None:
        return "[clip] values of different samples are mixed in one release"
    if value.batch.kind == "part" and value.batch.whole.kind != "table":
        return "[position] parts of a random sample are released: which part a record is in depends on the others"
    return ""


def _record(checker: Checker, released: list[tuple[Private, int]], noise: Scale, parameter: str) -> None:
    by_batch: dict[Batch, list[tuple[Private, int]]] = {}
    for value, size in released:
        assert value.batch is not None
        by_batch.setdefault(value.batch, []).append((value, size))
    found: list[Release] = []
    for batch, values in by_batch.items():
        if checker.remembers and batch.kind == "poisson" and not _is_fresh(checker, batch):
            raise _NoRatioError("[rows] records may have remembered that they were in this sample, and told so since")
        loads: Loads = {}
        for value, _ in values:
            assert value.terms is not None
            for name, load in _loads(checker, over_slices(value.terms), noise):
                loads[name] = loads.get(name, 0) + load
        if parameter == "stddev":
            found.append(Release(batch, loads))
            continue
        # The L1 norm of d numbers is at most sqrt(d) times their L2 norm.
        ratio = square_root(sum(worst_of(loads)) * sum(size for _, size in values))
        if ratio != 0:
            found.append(Release(batch, {}, 1 / ratio))
    checker.items += found


def _is_fresh(checker: Checker, batch: Batch) -> bool:
    """Whether nothing else was drawn or released since a sample was drawn."""
    drawn = [i for i, x in enumerate(checker.items) if isinstance(x, Draw) and x.batch is batch]
    return bool(drawn) and all(isinstance(x, Release) and x.batch is batch for x in checker.items[drawn[0] + 1 :])


def _loads(checker: Checker, terms: tuple[Term, ...], noise: Scale) -> list[tuple[tuple[Group, int], Any]]:
    if len(terms) == 1:
        ratio = checker.symbols.ratio(terms[0].bound, noise)
        if ratio is not None:
            return [((terms[0].group, leaf), ratio**2) for leaf in terms[0].leaves]
    total_bound = total_of(terms)
    ratio = None if total_bound is None else checker.symbols.ratio(total_bound, noise)
    if ratio is None:
        raise _NoRatioError("[noise scale] the noise is not a known multiple of the bound on one record's influence")
    return [((Group(), 0), ratio**2)]


def poisson(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """A new batch; its rows are zero where the mask, the last output, is False."""
    params: Any = equation.params
    table = _table_of(operands[1:])
    parent = table or Batch("table", masked=False)
    event, slack = (params["rate"],), params["slack"]
    return _draw(
        checker, equation, operands, Batch("poisson", parent, event=event, slack=slack, depth=len(checker.keys.loops))
    )


def open_poisson(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """A new batch at a rate that is an open parameter; the slack is known when that has a value."""
    *drawn, rate = operands
    known = checker.symbols.expression(rate.scale) if isinstance(rate, Public) else None
    if known is None and any(isinstance(x, Private) for x in operands):
        spend_secret(checker, equation, operands[0])
        why = "[rate] the sampling rate is not known before the program runs"
        return [checker.unbounded(equation, operands, why) for _ in equation.outvars]
    parent = _table_of(drawn[1:]) or Batch("table", masked=False)
    batch = Batch("poisson", parent, event=(known,), depth=len(checker.keys.loops))
    return _draw(checker, equation, drawn, batch)


def refuse_fixed_size(checker: Checker, equation: JaxprEqn) -> None:
    """Batches of fixed size have an event under REPLACE_ONE only, and where records remember nothing.

    Raises:
        PrivacyError: under another relation, or with a memory.
    """
    if checker.relation is not Relation.REPLACE_ONE:
        raise PrivacyError(
            f"{equation.primitive.name} at {source_line(equation)} draws a batch of fixed size, which has no sound accounting "
            "under ADD_OR_REMOVE_ONE: with one record more, every other record's chance to be drawn changes.",
            "certify with relation=dp.Relation.REPLACE_ONE, or draw with dp.poisson_subsample.",
            chain=(source_line(equation),),
        )
    checker.draws_fixed_size = True
    if checker.remembers:
        raise PrivacyError(
            f"{equation.primitive.name} at {source_line(equation)} draws a batch of fixed size, and records remember earlier "
            "batches: whether one record was drawn decides what others remember, which no accounting here covers.",
            "draw with Poisson sampling, or let every record be in every batch.",
            chain=(source_line(equation),),
        )


def fixed_size(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """A new batch, all of whose rows are records."""
    if _table_of(operands[1:]) is not None:
        refuse_fixed_size(checker, equation)
    num_records = shape_of(equation.invars[1])[0]
    parent = _table_of(operands[1:]) or Batch("table", masked=False)
    event = (num_records, equation.params["batch_size"])
    return _draw(checker, equation, operands, Batch("fixed", parent, event=event, depth=len(checker.keys.loops)))


def _table_of(values: list[Value]) -> Batch | None:
    return next((x.batch for x in values if isinstance(x, Private)), None)


def _draw(checker: Checker, equation: JaxprEqn, operands: list[Value], batch: Batch) -> list[Value]:
    spend_secret(checker, equation, operands[0])
    records = operands[1:]
    if not any(isinstance(x, Private) for x in records):
        return [Public() for _ in equation.outvars]
    add_remove = checker.relation is Relation.ADD_OR_REMOVE_ONE
    for value in records:
        rows = isinstance(value, Private) and value.axes == (0,) and value.batch is batch.parent
        if not rows or batch.table is not batch.parent:
            why = "[rows] a sample is drawn from something that is not one row per record of the table"
            return [checker.unbounded(equation, operands, why) for _ in equation.outvars]
        assert isinstance(value, Private)
        if value.positional and add_remove and not batch.table.masked:
            why = "[position] rows depend on their number in the table, which changes when a record is removed"
            return [checker.unbounded(equation, operands, why) for _ in equation.outvars]
    checker.items.append(Draw(batch))
    outputs: list[Value] = []
    for value in records:
        assert isinstance(value, Private)
        terms = value.terms
        if terms is not None:
            terms = tuple(Term(t.group, t.leaves, t.bound, batch) for t in terms)
        zero = value.zero | {batch} if batch.kind == "poisson" else value.zero
        origin = checker.origin(equation, [value])
        outputs.append(value.but(batch=batch, terms=terms, zero=zero, origin=origin, positional=False))
    if batch.kind == "poisson":
        origin = checker.origin(equation, records)
        outputs.append(Private(batch, (0,), origin, linf=1.0, finite=True, zero=frozenset([batch])))
    return outputs


RULES[CLIP] = clip
RULES[SUM] = total
KEY_RULES.update({GAUSSIAN: gaussian, LAPLACE: laplace, POISSON: poisson})
KEY_RULES.update({OPEN_POISSON: open_poisson, FIXED_SIZE: fixed_size})
