"""Keys, and the markers of `discreet.mechanisms`: clipping, sums, draws, noise, the gradient engine, and private memory.

Here bounds begin (`clip`, `clipped_sum`) and end (`noise`), and samples begin (`draw`). Each rule is sound by the contract of
the function that its primitive runs, which tests check. Samplers and mechanisms declare their law: this file names none of
them, and trusts only those in the lists `SAMPLERS` and `MECHANISMS`.

Noise protects only if it is fresh. So keys have names, which move with the keys, and every use spends the name (`KeyRing`):
draws from a key that was used before, is known or depends on records do not count as noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discreet._jax import JaxprEqn, aval, primitive_of, primitives as p, source_line, unstack_p
from discreet.privacy.accounting import Relation, relation_name
from discreet.privacy.mechanisms import (
    CHOICE,
    CHOOSE,
    CLIP,
    CLIPPED_SUM,
    COUNT,
    DISTANCE,
    DRAW,
    FOR_SUMS,
    MECHANISMS,
    NOISE,
    SUM,
    UPDATE_ROWS,
    WEIGHTED_SUM,
    Mechanism,
    rounding_of_records,
)
from discreet.privacy.sampling import SAMPLERS, OpenPoisson, Sampling
from discreet.privacy.verify._domain import (
    KNOWN,
    PRIVATE,
    SECRET,
    Batch,
    Cut,
    Group,
    Key,
    Part,
    Private,
    Public,
    Sample,
    Scale,
    Table,
    Term,
    Value,
    bounding,
    contribution_factor,
    fresh,
    over_slices,
    range_factor,
    total_of,
)
from discreet.privacy.verify._errors import PrivacyError, Reason, Why
from discreet.privacy.verify._events import Loads, Release, Scheduled, is_symbolic, ratio_of
from discreet.privacy.verify._interpreter import (
    IDENTITY,
    KEY_RULES,
    RULES,
    Checker,
    as_sum,
    public_result,
    rule,
    shape_of,
    size_per_record,
    summed,
    unknown,
    varies_along,
)
from discreet.privacy.verify._rules_linear import sum_over
from discreet.privacy.verify._rules_shape import masked_rows

_WORDS = 2**32
"""`fold_in` reduces numbers modulo this."""
_KEY = jax.eval_shape(lambda: jax.random.key(0))
_UNWRAP = primitive_of(jax.random.key_data, _KEY)
_WRAP = primitive_of(jax.random.wrap_key_data, jax.ShapeDtypeStruct((2,), np.uint32))
_STACK = primitive_of(lambda x: jnp.stack([x, x]), 1.0)


@rule(p.random_split_p, table=KEY_RULES)
def _split(checker: Checker, equation: JaxprEqn, operands: list[Key]) -> Key:
    (key,) = operands
    checker.keys.spend(key, "jax.random.split", source_line(equation))
    return checker.keys.new(shape_of(equation.outvars[0]), *checker.keys.kind(key))


@rule(p.random_fold_in_p, table=KEY_RULES)
def _fold_in(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Key:
    key, data = operands
    line = source_line(equation)
    shape = shape_of(equation.outvars[0])
    assert isinstance(key, Key)
    if isinstance(data, Private):
        checker.keys.spend(key, "jax.random.fold_in", line)
        return checker.keys.new(shape, PRIVATE, f"it depends on records, by jax.random.fold_in at {line}")
    if isinstance(data, Public) and shape == key.names.shape:
        number = int(data.const.reshape(-1)[0]) % _WORDS if data.const is not None and data.const.size == 1 else None
        apart = data.counter is not None and 0 <= data.counter[1] <= data.counter[2] < _WORDS
        return checker.keys.fold(key, number, data.counter if apart else None, line)
    kind, why = checker.keys.kind(key)
    checker.keys.spend(key, "jax.random.fold_in", line)
    numbers = data.const if isinstance(data, Public) else None
    if kind == SECRET and (numbers is None or len(np.unique(numbers.astype(np.uint32))) < numbers.size):
        kind = KNOWN
        why = f"the numbers folded in at {line} may be equal"
    return checker.keys.new(shape, kind, why)


@rule(p.random_bits_p, _UNWRAP, table=KEY_RULES)
def _bits(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value:
    (key,) = operands
    assert isinstance(key, Key)
    checker.keys.spend(key, equation.primitive.name, source_line(equation))
    if checker.keys.kind(key)[0] == PRIVATE:
        return checker.unbounded(equation, operands, Why.KEY("random numbers from a key that depends on records"))
    return Public()


@rule(p.random_gamma_p, table=KEY_RULES)
def _gamma(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value:
    """The rule of draws from gamma distributions, each with its own shape parameter and part of the key."""
    key, shape = operands
    found = _bits(checker, equation, [key])
    if isinstance(found, Private) or not isinstance(shape, Private):
        return found
    if shape.axes is None:
        return checker.unbounded(
            equation, operands, Why.ROWS("random numbers whose distribution depends on all records")
        )
    return Private(shape.batch, shape.axes, checker.origin(equation, operands), positional=True)


@rule(_WRAP, p.random_seed_p, table=KEY_RULES)
def _wrap(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Key:
    line = source_line(equation)
    kind = KNOWN
    why = f"it is made from numbers at {line}"
    if any(isinstance(x, Private) for x in operands):
        kind = PRIVATE
        why = f"it depends on records, by {equation.primitive.name} at {line}"
    return checker.keys.new(aval(equation.outvars[0]).shape, kind, why)


@rule(
    p.slice_p, p.squeeze_p, p.reshape_p, p.transpose_p, p.broadcast_in_dim_p, p.concatenate_p, p.dynamic_slice_p, *IDENTITY,
    _STACK, unstack_p, table=KEY_RULES,
)  # fmt: skip
def _moved(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value | list[Value]:
    """Move the names with the keys."""
    key = operands[0]
    keys = [x for x in operands if isinstance(x, Key)]
    if not keys:
        private = any(isinstance(x, Private) for x in operands)
        found = RULES.get(equation.primitive, unknown) if private else public_result
        return found(checker, equation, operands)
    params = equation.params
    shape = aval(equation.outvars[0]).shape
    primitive = equation.primitive
    if primitive is p.concatenate_p:
        return Key(np.concatenate([k.names for k in keys], axis=params["dimension"]))
    if primitive is _STACK:
        return Key(np.stack([k.names for k in keys], axis=params["axis"]))
    assert isinstance(key, Key)
    names = key.names
    if primitive is unstack_p:
        return [Key(x) for x in np.moveaxis(names, params["axis"], 0)]
    if primitive is p.slice_p:
        strides = params["strides"] or [1] * names.ndim
        window = tuple(
            slice(a, b, c) for a, b, c in zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        )
        return Key(names[window])
    if primitive is p.transpose_p:
        return Key(np.transpose(names, params["permutation"]))
    if primitive is p.broadcast_in_dim_p:
        middle = [1] * len(shape)
        for axis, n in zip(params["broadcast_dimensions"], names.shape, strict=True):
            middle[int(axis)] = n
        return Key(np.broadcast_to(names.reshape(middle), shape))
    if primitive is p.dynamic_slice_p:
        return _picked(checker, equation, operands)
    order = params.get("dimensions") if primitive is p.reshape_p else None
    return Key((names if order is None else np.transpose(names, order)).reshape(shape))


def _picked(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Key:
    """The rule of `keys[i]`, for a known place or one that differs in each iteration of the enclosing loop."""
    key, *starts = operands
    assert isinstance(key, Key)
    sizes = equation.params["slice_sizes"]
    line = source_line(equation)
    known = [int(s.const) if isinstance(s, Public) and s.const is not None else None for s in starts]
    free = [n - w for n, w in zip(key.names.shape, sizes, strict=True)]
    if all(k is not None for k in known):
        places = [min(max(k or 0, 0), most) for k, most in zip(known, free, strict=True)]
        return Key(key.names[tuple(slice(k, k + w) for k, w in zip(places, sizes, strict=True))])
    around = checker.keys.loops
    first = starts[0]
    counter = first.counter if isinstance(first, Public) else None
    distinct = counter is not None and sizes[0] == 1 and counter[1] >= 0 and counter[2] <= free[0]
    rest = all(k is not None for k in known[1:])
    kind, why = checker.keys.kind(key)
    own = checker.keys.depth_of(key)
    if distinct and rest and counter is not None and around[own:] == [counter[0]]:
        # Every iteration takes another key: all are used up, once, outside of the loop.
        checker.keys.spend_outside(key, "keys[i]", line, counter[0])
        return checker.keys.new(aval(equation.outvars[0]).shape, kind, why)
    checker.keys.spend(key, "keys[i] with an unknown index", line)
    if any(isinstance(s, Private) for s in starts):
        kind = PRIVATE
        why = f"it depends on records, by keys[i] at {line}"
    return checker.keys.new(aval(equation.outvars[0]).shape, kind, why)


def _number(equation: JaxprEqn, operands: list[Value], name: str) -> tuple[list[Value], Scale | None]:
    """Split operands into arrays and the number that is a parameter or the last operand."""
    known = equation.params[name]
    if known is not None:
        return operands, Scale(abs(float(known)))
    last = operands[-1]
    return operands[:-1], last.scale if isinstance(last, Public) else None


@rule(CLIP, table=KEY_RULES)
def clip(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of clipping: rows of joint L2 norm at most C, without NaN; a row of zeros stays zero."""
    leaves, bound = _number(equation, operands, "norm")
    private = [x for x in leaves if isinstance(x, Private)]
    if not private and len(leaves) == len(operands):
        # A row common to all records, such as the ones of a count, has the largest norm.
        return [Public(limit=bound.factor if bound is not None and not bound.powers else None) for _ in leaves]
    if not private or bound is None:
        why = Why.NOISE_SCALE("the clipping norm depends on records")
        return [checker.unbounded(equation, operands, why) for _ in leaves]
    # All leaves are scaled by one factor, so together they are one vector of norm C per record.
    group = Group()
    first = private[0]
    by_record = all(x.axes == first.axes and x.batch is first.batch for x in private)
    if any(x.batch is not first.batch for x in private):
        why = Why.ROWS("values of different samples are clipped by one norm")
        return [checker.unbounded(equation, operands, why) for _ in equation.outvars]
    shapes = [shape_of(v) for v in equation.outvars]
    single = all(s[0] == 1 for s in shapes)
    rows = by_record and (first.axes == (0,) or (first.axes == () and single))
    # Each leaf is scaled by the joint norm.
    positional = any(x.positional for x in private) or len(private) < len(leaves)
    outputs: list[Value] = []
    for number, value in enumerate(leaves):
        if not isinstance(value, Private):
            if not rows:
                why = Why.ROWS("a public leaf is clipped with private ones")
                outputs.append(checker.unbounded(equation, operands, why))
                continue
            # A public leaf beside private ones is scaled by their norm.
            value = first.but(zero=frozenset())
        if rows and first.batch is not None:
            term = Term(group, frozenset([number]), bound, first.batch)
            origin = checker.origin(equation, [value])
            linf = bound.factor if not bound.powers else None
            changes = {"linf": linf, "finite": True, "origin": origin, "positional": positional, "rounding": (1.0, 0.0)}
            outputs.append(value.but(terms=(term,), **changes))
            continue
        outputs.append(_clip_of_sum(checker, equation, value, Term(group, frozenset([number]), bound, Table()), single))
    return outputs


def _clip_of_sum(checker: Checker, equation: JaxprEqn, value: Private, term: Term, single: bool) -> Private:
    batch = value.batch
    factor = range_factor(batch, checker.relation) if batch is not None and not isinstance(batch, Cut) else 0.0
    if batch is None or not single or value.axes is not None or factor == 0.0:
        why = Why.ROWS("clip_records bounds one row, but here a record influences other rows too")
        return checker.unbounded(equation, [value], why)
    # The result is a vector of norm C; one record may reverse it.
    if factor > 1.0:
        checker.notes.append(
            f"the sensitivity is 2C, since a sum was clipped and not the records ({source_line(equation)})"
        )
    terms = (Term(term.group, term.leaves, term.bound * factor, batch),)
    return Private(batch, None, checker.origin(equation, [value]), terms=terms, finite=True)


@rule(SUM)
def total(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of `sum_records`: the sum of the rows that a mask keeps."""
    *leaves, mask = operands
    outputs: list[Value] = []
    for value, variable, result in zip(leaves, equation.invars, equation.outvars, strict=False):
        own = equation.replace(outvars=[result])
        if isinstance(value, Private) and value.axes is None and value.terms is None:
            outputs.append(
                checker.unbounded(equation, [value], Why.ROWS("the summed array does not have one row per record"))
            )
            continue
        # As the function computes it: a select, then a sum.
        rows = masked_rows(checker, equation, mask, value, shape_of(variable), shape_of(equation.invars[-1]))
        summed = sum_over(checker, own, rows, shape_of(variable), (0,)) if isinstance(rows, Private) else Public()
        if isinstance(summed, Private) and summed.axes is None:
            summed = dataclasses.replace(summed, rounding=_of_rows(value, shape_of(variable)[0], aval(result).dtype))
        if isinstance(rows, Private) and isinstance(summed, Private) and summed.terms is not None and rows.axes == (0,):
            # The record that differs adds only its own row.
            factor = contribution_factor(rows, checker.relation)[0]
            summed = dataclasses.replace(summed, moves=None if rows.linf is None else rows.linf * factor)
        outputs.append(summed)
    return outputs


def _of_rows(value: Value, count: int, dtype: Any) -> tuple[float, float] | None:
    """`Private.rounding` of a sum of clipped rows, or of public ones of limited size."""
    share = 0.0
    if isinstance(value, Private):
        if value.rounding is None or value.axes != (0,):
            return None
        share = value.rounding[1]
    elif not isinstance(value, Public) or value.magnitude is None:
        return None
    if np.dtype(dtype) not in (np.float32, np.float64):
        return None
    return float(count), share + rounding_of_records(count, dtype)


@rule(WEIGHTED_SUM)
def weighted_sum(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of `sum_weighted`: a record adds a vector of norm at most 1, made of its own rows and weights.

    Where the mask drops it, it adds exactly zero. Public rows, or public weights, bound the norm no less.
    """
    rows, weights, mask = operands
    private = [x for x in (rows, weights) if isinstance(x, Private)]
    if any(x.axes != (0,) or x.batch is not private[0].batch for x in private):
        why = Why.ROWS("what is weighted and summed does not have one row per record of the same table")
        return [checker.unbounded(equation, operands, why)]
    shapes = [shape_of(variable) for variable in equation.invars]
    # A record's product is zero where one of its factors is: what is not finite is dropped.
    found = private[0].but(zero=frozenset().union(*(x.zero for x in private))) if private else rows
    kept = masked_rows(checker, equation, mask, found, shapes[0], shapes[2])
    if not isinstance(kept, Private):
        return [Public()]
    if kept.axes != (0,) or kept.batch is None:
        return [kept]
    public = [(x, shape) for x, shape in zip((rows, weights), shapes, strict=False) if isinstance(x, Public)]
    placed = any(varies_along(x, shape, (0,)) for x, shape in public) or any(x.positional for x in private)
    origin = checker.origin(equation, operands)
    terms = fresh(Scale(1.0), kept.batch)
    bounded = kept.but(terms=terms, linf=None, finite=True, positional=kept.positional or placed, origin=origin)
    total = summed(checker, bounded, shapes[0], additive=True)
    return [dataclasses.replace(total, rounding=(float(shapes[0][0]), 0.0))]


@rule(COUNT)
def count(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """The rule of cross tables: each record adds a vector with one entry, the weight, in each table, or zero.

    So its norm is the root of the sum of squared weights. Two such vectors are at most sqrt(2) times that apart, while arbitrary
    vectors of this norm may be twice as far: under REPLACE_ONE the event's C, half of the distance, is smaller by sqrt(2). That
    holds for the table only: in a sample an absent record adds zero, which is not nearer.
    """
    params: Any = equation.params
    half = checker.relation is Relation.REPLACE_ONE
    norm = math.sqrt(sum(weight**2 for weight in params["weights"]))
    return _of_cells(
        checker, equation, operands, lambda batch: norm / math.sqrt(2 if half and not batch.sampled else 1)
    )


@rule(DISTANCE)
def distance(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """The rule of weighted sums over cross tables of |count - expected|: a record is in one cell of each and moves its sum by 1.

    A replaced record leaves one cell and enters another, which moves a sum by 2 at most. That is the 2C of REPLACE_ONE.
    """
    weights = [float(weight) for weight in equation.params["weights"]]
    found = _of_cells(checker, equation, operands, lambda batch: math.hypot(*weights))
    if found.terms is None:
        return found
    # All terms have the factor of one added or removed record; without a mask, of one added and one removed.
    factor = sum(t.bound.factor for t in found.terms) / math.hypot(*weights)
    return dataclasses.replace(found, moves=max(weights) * factor, additive=False)


def _of_cells(checker: Checker, equation: JaxprEqn, operands: list[Value], norm: Callable[[Batch], float]) -> Private:
    """The L2 influence of a record that is in one cell of each cross table."""
    levels, mask, *counted = operands
    if any(isinstance(x, Private) for x in counted):
        why = Why.ROWS("counts are compared with, or added to, values that depend on records")
        return checker.unbounded(equation, operands, why)
    if isinstance(levels, Private):
        if levels.axes != (0,):
            return checker.unbounded(equation, operands, Why.ROWS("what is counted does not have one row per record"))
        # A row of zeros is in a cell, too.
        levels = levels.but(zero=frozenset(), terms=None, linf=None)
    rows = masked_rows(checker, equation, mask, levels, shape_of(equation.invars[0]), shape_of(equation.invars[1]))
    if not isinstance(rows, Private) or rows.axes != (0,) or rows.batch is None:
        return checker.unbounded(equation, operands, Why.ROWS("what is counted does not have one row per record"))
    terms = fresh(Scale(norm(rows.batch)), rows.batch)
    origin = checker.origin(equation, operands)
    counts = rows.but(terms=terms, linf=None, finite=True, origin=origin)
    total = summed(checker, counts, shape_of(equation.invars[0]), additive=True)
    return dataclasses.replace(total, rounding=(math.inf, 0.0))  # exact; further counts may be large


def spend_secret(checker: Checker, equation: JaxprEqn, key: Value) -> None:
    """Use up the key of a mechanism or a draw; refuse one that is not secret, or was used before."""
    line = source_line(equation)
    name: str = equation.params.get("name", equation.primitive.name)
    if not isinstance(key, Key):
        raise Why.KEY.refusal(f"the key of {name} at {line} depends on records.", line)
    kind, why = checker.keys.kind(key)
    if kind != SECRET:
        raise PrivacyError(
            f"the key of {name} at {line} is not secret: {why}. Anyone who knows the program can subtract the noise.",
            "pass the key as an argument of the step, made by dp.random.key(), and derive others with jax.random.split.",
            chain=(line,),
        )
    checker.keys.spend(key, name, line)


@rule(NOISE, table=KEY_RULES)
def noise(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of mechanisms: a release, if the noise is a known multiple of one record's contribution."""
    spend_secret(checker, equation, operands[0])
    params: Any = equation.params
    mechanism: Mechanism = params["mechanism"]
    if mechanism not in MECHANISMS:
        why = Why.MECHANISM(f"the noise of {type(mechanism).__name__} is not on the list")
        return [checker.unbounded(equation, operands, why) for _ in equation.outvars]
    arrays, multiplier = _number(equation, operands[1:], "multiplier")
    arrays, noise = _number(equation, arrays, "size")
    if any(not isinstance(x, Public) for x in operands[1 + len(arrays) :]):
        why = Why.NOISE_SCALE("the size of the noise depends on records")
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
        checker.mechanisms[mechanism] = None
        try:
            paid = FOR_SUMS if mechanism.on_grid and not params["mapped"] else 0.0
            larger = _for_sums(checker, equation, [value.rounding for value, _ in released], paid)
            checker.items += _recorded(checker, equation, released, noise * (1 / larger), multiplier)
        except _NoRatioError as error:
            return [
                x if isinstance(v, Public) else checker.unbounded(equation, [v], *error.args)
                for x, v in zip(outputs, arrays, strict=True)
            ]
    return outputs


def _for_sums(
    checker: Checker, equation: JaxprEqn, found: list[tuple[float, float] | None], paid: float, times: float = 1.0
) -> float:
    """The factor by which the rounding of sums enlarges their sensitivity beyond the mechanism's allowance."""
    share = math.hypot(*(x[1] for x in found if x is not None)) * times
    if None in found or math.isinf(share):
        checker.unrounded.append(source_line(equation))
        return 1.0
    if share <= paid:
        return 1.0
    factor = (1 + share) / (1 + paid)
    note = f"rounding enlarges the sensitivity by {factor - 1:.2g} ({source_line(equation)}): many rows are summed in float32"
    checker.notes.append(f"{note}; use float64 (jax.enable_x64) to avoid it")
    return factor


@rule(CHOOSE, table=KEY_RULES)
def choose(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of selection: each score needs a bound on one record's influence, per element or else by the joint norm.

    Selection from a random sample is refused, since its cost is unknown.
    """
    spend_secret(checker, equation, operands[0])
    scores = operands[1]
    if not isinstance(scores, Private):
        return [Public()]
    found = as_sum(checker, scores, shape_of(equation.invars[1]))
    why = _why_not(found, Scale(1.0))
    if why is not None:
        return [checker.unbounded(equation, [found], why)]
    assert found.batch is not None
    assert found.terms is not None
    norm = total_of(over_slices(found.terms))
    bound = norm if found.moves is None else Scale(found.moves)
    if found.batch.whole.sampled:
        why = Why.MECHANISM("an answer is selected by a random sample of the records, for which no event is known")
    elif norm is None or bound is None or norm.powers:
        why = Why.NOISE_SCALE("the bound on one record's influence on a score is not a known number")
    if why is not None or norm is None or bound is None:
        assert why is not None
        return [checker.unbounded(equation, [found], why)]
    checker.mechanisms[CHOICE] = None
    # The rounding of the sum, known relative to the joint norm, moves one score by no more than all of them.
    times = norm.factor / bound.factor if bound.factor > 0 else 1.0
    factor = _for_sums(checker, equation, [found.rounding], FOR_SUMS, times)
    # No composed release shares its bound.
    epsilon = CHOICE.range(equation.params["epsilon"], bound.factor * factor)
    checker.items.append(Release(found.batch, CHOICE, {(Group(), 0): epsilon**2}, 1))
    return [Public(released=True)]


class _NoRatioError(Exception):
    """The noise is not a known multiple of the bound; its argument is the reason."""


def _why_not(value: Private, noise: Scale | None) -> Reason | None:
    if value.terms is None:
        return value.why or Why.CLIP("noise is added to a value without a bound on one record's influence")
    if noise is None or noise.factor == 0:
        return Why.NOISE_SCALE("the noise is not known to be above zero")
    if value.batch is None:
        return Why.CLIP("values of different samples are mixed in one release")
    if isinstance(value.batch, Part) and value.batch.sampled:
        return Why.POSITION("parts of a random sample are released: which part a record is in depends on the others")
    return None


def _grid(equation: JaxprEqn, multiplier: Scale | None) -> tuple[float, float] | None:
    """The grid that sums are rounded to, see `mechanisms._integers`; None where nothing is rounded.

    That is the noise multiplier up to which the noise covers the rounding, which must be known, and the cell: the largest
    distance, in noises, that rounding adds between the sums of neighbours.
    """
    params: Any = equation.params
    mechanism = params["mechanism"]
    dim = sum(math.prod(shape_of(x)) for x in equation.outvars)
    if not mechanism.rounding(dim):
        return None
    if multiplier is None or multiplier.powers:
        raise _NoRatioError(Why.NOISE_SCALE("the noise multiplier is unknown"))
    cell = mechanism.cell(dim, multiplier.factor, params["levels"])
    if cell is None:
        unknown = f"{type(mechanism).__name__} rounds sums, and does not state what share of its noise that is (`cell`)"
        raise _NoRatioError(Why.MECHANISM(unknown))
    return multiplier.factor, cell


def _recorded(
    checker: Checker, equation: JaxprEqn, released: list[tuple[Private, int]], noise: Scale, multiplier: Scale | None
) -> list[Any]:
    """The cost of a release: one for all iterations, or else one for each iteration of an enclosing loop."""
    params: Any = equation.params
    try:
        return _releases(checker, released, noise, params["mechanism"], _grid(equation, multiplier))
    except _NoRatioError:
        bounds = [t.bound for value, _ in released for t in value.terms or ()]
        schedule = checker.turn_by_turn([noise, *bounds, *([] if multiplier is None else [multiplier])])
        if schedule is None:
            raise
    loop, turns = schedule
    kinds: dict[tuple[float, ...], int] = {}
    found: list[list[Release]] = []
    for numbers in turns:
        kind = tuple(numbers.values())
        if kind not in kinds:
            kinds[kind] = len(kinds)
            known: list[tuple[Private, int]] = []
            for value, size in released:
                terms = tuple(dataclasses.replace(t, bound=t.bound.at(numbers)) for t in value.terms or ())
                known.append((value.but(terms=terms), size))
            grid = _grid(equation, None if multiplier is None else multiplier.at(numbers))
            found.append(_releases(checker, known, noise.at(numbers), params["mechanism"], grid))
    return [Scheduled(loop, found, tuple(kinds[tuple(numbers.values())] for numbers in turns))]


def _releases(
    checker: Checker,
    released: list[tuple[Private, int]],
    noise: Scale,
    mechanism: Mechanism,
    grid: tuple[float, float] | None,
) -> list[Release]:
    # Values released by one call have independent noise of one size, so their loads add up by group.
    by_batch: dict[Batch, list[tuple[Private, int]]] = {}
    for value, size in released:
        assert value.batch is not None
        by_batch.setdefault(value.batch, []).append((value, size))
    found: list[Release] = []
    for batch, values in by_batch.items():
        if checker.remembers and batch.sampled and not _is_fresh(checker, batch):
            why = "the state of records may depend on this sample and may have been released since"
            raise _NoRatioError(Why.ROWS(why))
        loads: Loads = {}
        for value, _ in values:
            assert value.terms is not None
            terms = over_slices(value.terms)
            bound = total_of(terms)
            ratio = None if bound is None else checker.symbols.ratio(bound, noise)
            if ratio is None:
                why = "the noise is not a known multiple of the bound on one record's influence"
                raise _NoRatioError(Why.NOISE_SCALE(why))
            # Several terms have no common group: their sum is a new bound, which no other release shares.
            alone = len(terms) == 1
            for name in [(terms[0].group, leaf) for leaf in terms[0].leaves] if alone else [(Group(), 0)]:
                loads[name] = loads.get(name, 0) + ratio**2
        found.append(Release(batch, mechanism, loads, sum(size for _, size in values)))
        if grid is not None:
            found[-1] = _rounded(checker, found[-1], *grid)
    return found


def _rounded(checker: Checker, release: Release, most: float, cell: float) -> Release:
    """The load that rounding to the grid adds to a release whose values move by x <= r noises for one record.

    r^2 is the sum of its loads, times the number of coordinates if the mechanism uses L1 norms. With the noise for a
    multiplier m enlarged by 1 + m c, where c is the cell, the integers move by (x + c) / (1 + m c). If r >= 1 / m,
    that is at most r for x = r. A record that shares its bound among several releases has less of x in each; then
    (x + c) / (1 + m c) <= x + c (1 - m x)+, whose square is at most x^2 + c / (2 m) + c^2 (`Release.rounding`). If r < 1 / m the
    loads are those of (r + c) / (1 + m c).
    """
    total = ratio_of(release)
    loads = release.loads
    if is_symbolic(total):
        # The certificate assumes r >= 1 / m for open parameters.
        checker.most_multiplier = min(checker.most_multiplier, most)
    elif total * (most * (1 + 1e-5)) ** 2 < 1:
        checker.beyond = True
        exceeds = f"a noise multiplier of {1 / math.sqrt(total):.4g} exceeds the limit of the grid, {most:.4g}"
        checker.notes.append(f"{exceeds}: rounding takes part of the noise")
        larger = ((1 + cell / math.sqrt(total)) / (1 + most * cell)) ** 2
        loads = {name: load * larger for name, load in loads.items()}
    return dataclasses.replace(release, loads=loads, rounding=cell / (2 * most) + cell**2)


def _is_fresh(checker: Checker, batch: Batch) -> bool:
    """True if nothing else was drawn or released since the draw of a sample."""
    if batch not in checker.items:
        return False
    since = checker.items[checker.items.index(batch) + 1 :]
    kinds = [kind for x in since for kind in (x.releases if isinstance(x, Scheduled) else [[x]])]
    return all(isinstance(x, Release) and x.batch is batch for kind in kinds for x in kind)


@rule(DRAW, table=KEY_RULES)
def draw(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of sampling: row numbers, mask, and sampled rows, which are zero where the mask is False.

    The sampler's law follows from the drawing and the tables' values (`Drawing.law`).
    """
    spend_secret(checker, equation, operands[0])
    params: Any = equation.params
    count = params["structure"].num_leaves
    tables = operands[1 : 1 + count]
    records = operands[1 + count :]
    if records and not any(isinstance(x, Private) for x in records):
        return [Public() for _ in equation.outvars]

    drawing = params["drawing"]
    sampling = _law(checker, drawing, params["structure"], tables)
    table = next((x.batch for x in records if isinstance(x, Private)), checker.table)
    private = [x for x in records if isinstance(x, Private) and x.axes == (0,) and x.batch is table]
    numbered = checker.relation is Relation.ADD_OR_REMOVE_ONE and any(x.positional for x in private)
    # Where no draw is recorded, the results are not a sample.
    if isinstance(sampling, Reason):
        return _refused(checker, equation, operands, sampling)
    if not isinstance(table, Table) or len(private) < len(records) or (not records and table.masked):
        why = Why.ROWS("a sample is drawn from something that is not one row per record of the table")
        return _refused(checker, equation, operands, why)
    if numbered and not table.masked:
        why = Why.POSITION("rows depend on their number in the table, which changes when a record is removed")
        return _refused(checker, equation, operands, why)
    _check_sampler(checker, equation, sampling)
    # From here on the records are those of the sample; a draw without a release is free.
    batch = Sample(table, depth=len(checker.keys.loops), sampling=sampling, num_records=drawing.num_records)
    checker.items.append(batch)
    origin = checker.origin(equation, records, "" if records else "a secret sample of the records")
    # Row numbers reveal who was drawn: nothing may be computed from them, but `clipped_sum` recognizes them by name.
    numbers = Private(batch, None, origin, why=Why.ROWS("it reveals which records are in the sample"))
    mask = Private(batch, (0,), origin, linf=1.0, finite=True, zero=frozenset([batch]))
    checker.samples[batch] = (drawing.num_records + drawing.padding, numbers.serial, mask.serial)
    outputs: list[Value] = [numbers, mask]
    for value in private:
        changes = {"terms": bounding(value.terms, batch), "zero": value.zero | {batch}, "positional": False}
        outputs.append(value.but(batch=batch, origin=checker.origin(equation, [value]), **changes))
    return outputs


def _law(checker: Checker, drawing: Any, structure: Any, tables: list[Value]) -> Sampling | Reason:
    """The sampler that a drawing implements with these tables, or why there is none that the proof trusts."""
    public = [x for x in tables if isinstance(x, Public)]
    if type(drawing) is OpenPoisson:
        known = [checker.symbols.expression(x.scale) for x in public]
    else:
        known = [x.const if x.exact else None for x in public]
    sampling = drawing.law(jax.tree.unflatten(structure, known)) if len(public) == len(tables) else None
    if sampling is None:
        return Why.RATE("the sampling rate is not known before the program runs")
    if type(drawing) is OpenPoisson:
        return sampling
    # A sampler on the list has to use its own drawing: a subclass may draw differently.
    if type(sampling) in SAMPLERS and type(sampling.drawing(drawing.num_records)) is type(drawing):
        return sampling
    return Why.SAMPLER(f"the sampler {type(sampling).__name__} is not on the list")


def _check_sampler(checker: Checker, equation: JaxprEqn, sampling: Sampling) -> None:
    """Refuse a sampler without an event for this relation, or with per-record state unless records are independent."""
    line = source_line(equation)
    name: str = equation.params.get("name", equation.primitive.name)
    if checker.relation not in sampling.relations:
        others = " or ".join(f"dp.Relation.{x.name}" for x in sorted(sampling.relations, key=lambda x: x.name))
        why = f", which has no sound accounting for {relation_name(checker.relation.name, 'record')}"
        if sampling.constant_size:
            why = f" of fixed size{why}: one additional record changes every other record's probability of being drawn"
        raise PrivacyError(
            f"{name} at {line} draws a batch{why}.",
            f"certify with relation={others}, or draw with dp.poisson_subsample.",
            chain=(line,),
        )
    if sampling.independent:
        return
    checker.draws_dependently = True
    if checker.remembers:
        raise PrivacyError(
            f"{name} at {line} draws a batch in which one record's place depends on others', and records keep state of "
            "earlier batches: drawing one record changes the state of others, which no accounting here covers.",
            "draw with Poisson sampling, or let every record be in every batch.",
            chain=(line,),
        )


@rule(CLIPPED_SUM, table=KEY_RULES)
def clipped_sum(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The contract of gradient engines: each record of the batch adds at most the joint bound to all outputs together.

    The loss is a program of one record, so it cannot combine two. Its other inputs must be public, and the row numbers those
    of a draw, in which each record occurs once.
    """
    *keys, indices, mask = operands[:4]
    params: Any = equation.params
    norms, *public, table = params["layout"].parts(operands[4:])
    for key in keys:
        spend_secret(checker, equation, key)
    why = None
    _, bound = _number(equation, norms, "norm")
    if not params["trusted"]:
        why = Why.ROWS("the gradient engine is not on the list")
    elif any(not isinstance(x, Public) for part in public for x in part):
        why = Why.ROWS("the loss of one record depends on others")
    elif bound is None:
        why = Why.NOISE_SCALE("the clipping norm is not known to be public")
    elif not _is_draw(checker, equation, indices, mask, table):
        why = _no_draw(checker, indices)
    if why is not None or bound is None:
        assert why is not None
        return _refused(checker, equation, [*operands[4:], indices], why)
    assert isinstance(indices, Private)
    assert indices.batch is not None
    # The engine divides the joint bound between the gradient on one side and loss and count on the other; `norm` is the
    # gradient's.
    joint = bound * ((1.0 + params["rounding"]) / math.sqrt(1.0 - sum(params["shares"])))
    group = Group()
    origin = checker.origin(equation, table)
    outputs: list[Value] = []
    for number, _ in enumerate(equation.outvars[:-1]):
        term = Term(group, frozenset([number]), joint, indices.batch)
        exact = {"finite": True, "additive": True, "rounding": (math.inf, 0.0)}  # included in the bound
        outputs.append(Private(indices.batch, None, origin, terms=(term,), **exact))
    # The last output is True if the random bits could be generated.
    return [*outputs, Public()]


def _no_draw(checker: Checker, indices: Value) -> Reason:
    """The reason why row numbers are not those of a draw: that of a refused draw, if they come from one."""
    unknown = isinstance(indices, Private) and (indices.batch is None or indices.batch not in checker.samples)
    own = indices.why if unknown and isinstance(indices, Private) else None
    return own or Why.ROWS("the rows are not those of a sample of the table")


def _refused(checker: Checker, equation: JaxprEqn, operands: list[Value], why: Reason) -> list[Value]:
    found = checker.unbounded(equation, operands, why)
    # The fault is in this use of the sample, not in the sample.
    return [found.but(why=why.at(source_line(equation))) for _ in equation.outvars]


def _is_draw(checker: Checker, equation: JaxprEqn, indices: Value, mask: Value, table: list[Value]) -> bool:
    """True if row numbers and mask come from one draw from these arrays."""
    if not isinstance(indices, Private) or not isinstance(mask, Private) or indices.batch is None:
        return False
    shapes = [shape_of(x) for x in equation.invars[len(equation.invars) - len(table) :]]
    rows = {shape[0] for shape in shapes}
    by_place = checker.relation is Relation.ADD_OR_REMOVE_ONE
    for value, shape in zip(table, shapes, strict=True):
        if isinstance(value, Public):
            # The state of records starts as public values, which, like rows, must not depend on the place.
            if by_place and varies_along(value, shape, (0,)):
                return False
            continue
        if not isinstance(value, Private) or value.axes != (0,) or value.batch is not checker.table:
            return False
        if value.positional and by_place:
            return False
    return checker.samples.get(indices.batch) == (*rows, indices.serial, mask.serial)


@rule(UPDATE_ROWS, table=KEY_RULES)
def update_rows(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of `update_rows`: each record of a sample updates its state from itself and public values.

    A record's state reveals whether it was in earlier samples. So a later sample counts as fresh only if a record's
    probability of being drawn depends on no other record, as in Poisson samples: see `mechanisms.update_rows`.
    """
    key, indices, mask = operands[:3]
    params: Any = equation.params
    *public, table, memory = params["layout"].parts(operands[3:])
    spend_secret(checker, equation, key)
    why = None
    if any(not isinstance(x, Public) for part in public for x in part):
        why = Why.ROWS("the state of one record depends on others")
    elif not _is_draw(checker, equation, indices, mask, [*table, *memory]):
        why = _no_draw(checker, indices)
    elif checker.draws_dependently:
        why = Why.ROWS("records keep state of samples of a fixed size, in which one record affects the state of others")
    if why:
        return _refused(checker, equation, [*operands[3:], indices], why)
    checker.remembers = True
    origin = checker.origin(equation, [*table, *memory])
    return [Private(checker.table, (0,), origin) for _ in equation.outvars]
