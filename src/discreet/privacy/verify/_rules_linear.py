"""Sums, matrix products, convolutions and linear algebra.

Here rows become sums: over the axes of the records, one record changes a sum by its own row
(`summed` in `_rows`). Over other axes Cauchy-Schwarz bounds the growth of a row's norm: sqrt(n) for
a sum of n elements, the Frobenius norm for a public matrix, the product of norms for two rows of
one record. Any function of single records keeps rows rows, such as decompositions and transforms of
the last axes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from discreet._jax import JaxprEqn, dtype_of, primitives as p, shard_map_p
from discreet.privacy.verify._arithmetic import MOST_EXACT
from discreet.privacy.verify._bounds import scaled
from discreet.privacy.verify._control import inner
from discreet.privacy.verify._domain import Axes, Private, Public, Value, private_in, without
from discreet.privacy.verify._errors import NoBoundError, Why
from discreet.privacy.verify._interpreter import Checker
from discreet.privacy.verify._moved import rows_apart
from discreet.privacy.verify._registry import STRUCTURED, rule
from discreet.privacy.verify._rows import (
    all_finite,
    as_sum,
    is_integer,
    is_whole,
    shape_in,
    shape_of,
    shape_out,
    shapes_in,
    size_per_record,
    summed,
    varies_along,
)
from discreet.privacy.verify._rules_elementwise import product_of_norms
from discreet.privacy.verify.recognize._clipping import clipped_by, largest_of, sum_of
from discreet.privacy.verify.recognize._folds import fold_of, folded_rows

_UNCLIPPED = Why.CLIP("a sum over records of rows without a bound")
_WRAPS = Why.WHOLE_NUMBERS("a sum of integers that may wrap around has no bound")


@rule(p.reduce_sum_p)
def reduce_sum(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """A sum over some axes."""
    return sum_over(checker, equation, operands[0], shape_in(equation), equation.params["axes"])


@rule(p.psum_p)
def _psum(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of `psum` over axes that `vmap` names, a sum over them; those of devices are in `_devices`."""
    params: Any = equation.params
    if params["axis_index_groups"] is not None or not all(
        isinstance(x, int) for x in params["axes"]
    ):
        raise NoBoundError(Why.ROWS("psum over some of the records, or over devices"))
    found: list[Value] = []
    for value, variable, result in zip(operands, equation.invars, equation.outvars, strict=True):
        own = equation.replace(primitive=p.reduce_sum_p, invars=[variable], outvars=[result])
        found.append(reduce_sum(checker, own, [value]) if isinstance(value, Private) else Public())
    return found


def sum_over(
    checker: Checker, equation: JaxprEqn, value: Value, shape: Axes, axes: Sequence[int]
) -> Private:
    """The sum of a private value over some axes."""
    assert isinstance(value, Private)
    gone = [int(i) for i in axes]
    if value.axes is None:
        found = as_sum(checker, value, shape)
        return _times_root(checker, equation, found, math.prod(shape[i] for i in gone))
    records = [i for i in gone if i in value.axes]
    others = math.prod(shape[i] for i in gone if i not in value.axes)
    if records:
        return _over_records(checker, equation, value, shape, records, others)
    return _within_rows(checker, equation, value, gone, others)


def _within_rows(
    checker: Checker, equation: JaxprEqn, value: Private, gone: list[int], others: int
) -> Private:
    assert value.axes is not None
    terms = None if value.terms is None else scaled(value.terms, math.sqrt(others))
    linf = (
        None
        if value.linf is None or _overflows(equation, value.linf * others)
        else value.linf * others
    )
    exact = is_whole(equation.outvars[0])
    kept = without(value.axes, gone)
    return value.but(
        axes=kept,
        origin=checker.origin(equation, [value]),
        terms=terms,
        linf=linf,
        finite=exact or (value.finite and (terms is not None or linf is not None)),
        norm_of=sum_of(equation, value, kept, others)
        if equation.primitive is p.reduce_sum_p
        else None,
    )


def _over_records(
    checker: Checker,
    equation: JaxprEqn,
    value: Private,
    shape: Axes,
    records: list[int],
    others: int,
) -> Private:
    assert value.batch is not None
    assert value.axes is not None
    if value.batch.sampled and len(records) < len(value.axes):
        why = "rows of a random sample are summed in parts: the part of a record depends on the others"
        return checker.unbounded(equation, [value], Why.POSITION(why))
    count = math.prod(shape[i] for i in value.axes)
    if is_integer(equation):
        most = None if value.linf is None else value.linf * others * count
        if most is None or _overflows(equation, most) or most >= MOST_EXACT:
            return checker.unbounded(equation, [value], _WRAPS)
    return _times_root(checker, equation, summed(checker, value, shape, additive=True), others)


def _overflows(equation: JaxprEqn, most: float) -> bool:
    return is_integer(equation) and most > np.iinfo(dtype_of(equation.outvars[0])).max


def _times_root(checker: Checker, equation: JaxprEqn, value: Private, count: int) -> Private:
    """The bound on one record's contribution after sums of `count` elements."""
    if value.terms is None:
        return checker.unbounded(equation, [value], value.why or _UNCLIPPED)
    if is_integer(equation) and count > 1:
        return checker.unbounded(equation, [value], _WRAPS)
    terms = scaled(value.terms, math.sqrt(count))
    moves = None if value.moves is None else value.moves * count
    absolute = value.absolute if count == 1 else None
    origin = checker.origin(equation, [value])
    return value.but(terms=terms, moves=moves, absolute=absolute, origin=origin)


@rule(
    p.reduce_max_p, p.reduce_min_p, p.reduce_prod_p, p.reduce_and_p, p.reduce_or_p, p.reduce_xor_p, p.argmax_p, p.argmin_p,
    p.cumsum_p, p.cumprod_p, p.cummax_p, p.cummin_p, p.cumlogsumexp_p,
)  # fmt: skip
def within_rows_only(
    checker: Checker, equation: JaxprEqn, operands: list[Value]
) -> Private | list[Value]:
    """The rule of reductions and scans that may act only within a row: max, product, sort, cumsum, argmax, ..."""
    private = private_in(operands)
    axes = _reduced_axes(equation)
    first = private[0]
    if len(private) < len(operands) or any(
        x.axes != first.axes or x.batch is not first.batch for x in private
    ):
        raise NoBoundError(Why.ROWS(f"{equation.primitive.name} of rows and other values"))
    if first.axes is None or set(axes) & set(first.axes):
        raise NoBoundError(
            Why.ROWS(
                f"{equation.primitive.name} over records makes each result depend on all of them"
            )
        )
    smaller = len(shape_out(equation)) < len(shape_in(equation))
    kept = without(first.axes, axes) if smaller else first.axes
    positional = any(x.positional for x in private)
    found: list[Value] = []
    for variable in equation.outvars:
        result = Private(
            first.batch, kept, checker.origin(equation, operands), positional=positional
        )
        truths = dtype_of(variable).kind == "b"  # for numbers it combines bits
        chooses = equation.primitive in (p.reduce_max_p, p.reduce_min_p)
        chooses |= truths and equation.primitive in (p.reduce_and_p, p.reduce_or_p)
        if chooses and 0 not in shape_in(equation):
            norm = (
                largest_of(equation, first, kept) if equation.primitive is p.reduce_max_p else None
            )
            result = result.but(linf=first.linf, zero=first.zero, finite=first.finite, norm_of=norm)
        if equation.primitive is p.reduce_and_p and size_per_record(shape_of(variable), kept) == 1:
            # All of a record's elements are finite, wherever they move.
            where = first.finite_where | {
                ("all", content) for kind, content in first.finite_where if kind == "of"
            }
            result = dataclasses.replace(result, finite_where=where)
        found.append(dataclasses.replace(result, finite=result.finite or is_whole(variable)))
    return found


def _reduced_axes(equation: JaxprEqn) -> list[int]:
    params: Any = equation.params
    found = (
        params["axes"]
        if "axes" in params
        else [params["dimension" if "dimension" in params else "axis"]]
    )
    return [int(i) for i in found]


@rule(p.dot_general_p)
def dot_general(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """The rule of matrix products: rows times public matrices, rows times rows, and sums over records."""
    contract, batch = (
        [[int(i) for i in side] for side in pair] for pair in equation.params["dimension_numbers"]
    )
    shapes = shapes_in(equation)
    if any(isinstance(x, Private) and x.axes is None for x in operands):
        return _dot_of_sums(checker, equation, operands)
    first, second = operands
    if isinstance(first, Private) and isinstance(second, Private):
        assert first.axes is not None
        assert second.axes is not None
        same = first.batch is second.batch and len(first.axes) == len(second.axes)
        positional = first.positional or second.positional
        if same and first.axes == ():
            return _rows_of(checker, equation, operands, (), positional)
        pairs = list(zip(first.axes, second.axes, strict=False))
        if same and pairs and all(_place(batch, a, b) for a, b in pairs):
            found = _rows_of(
                checker,
                equation,
                operands,
                tuple(batch[0].index(a) for a in first.axes),
                positional,
            )
            terms = (
                None if is_whole(equation.outvars[0]) else product_of_norms(first, second, shapes)
            )
            return (
                found
                if terms is None
                else found.but(terms=terms, finite=first.finite and second.finite)
            )
        if same and pairs and all(_place(contract, a, b) for a, b in pairs):
            return _sum_of_products(checker, equation, first, second, shapes)
        raise NoBoundError(Why.ROWS("a product joins each record with every other"))
    side = 0 if isinstance(first, Private) else 1
    value = operands[side]
    other = operands[1 - side]
    assert isinstance(value, Private)
    assert isinstance(other, Public)
    summed_over = set(value.axes or ()) & set(contract[side])
    by = _weighted_sum if summed_over else _by_public
    return by(checker, equation, value, other, side, contract, batch)


def _place(sides: list[list[int]], a: int, b: int) -> bool:
    return a in sides[0] and b in sides[1] and sides[0].index(a) == sides[1].index(b)


def _rows_of(
    checker: Checker, equation: JaxprEqn, operands: Sequence[Value], axes: Axes, positional: bool
) -> Private:
    first = next(x for x in operands if isinstance(x, Private))
    zero = frozenset().union(
        *(
            x.zero
            for i, x in enumerate(operands)
            if isinstance(x, Private) and all_finite([operands[1 - i]])
        )
    )
    origin = checker.origin(equation, operands)
    return Private(first.batch, axes, origin, zero=zero, positional=positional)


def _by_public(
    checker: Checker,
    equation: JaxprEqn,
    value: Private,
    other: Public,
    side: int,
    contract: list,
    batch: list,
) -> Private:
    """The product of each row with a public matrix."""
    assert value.axes is not None
    shapes = shapes_in(equation)
    free = [
        [i for i in range(len(shapes[s])) if i not in contract[s] and i not in batch[s]]
        for s in (0, 1)
    ]
    place = {axis: n for n, axis in enumerate(batch[side])}
    start = len(batch[0]) + (len(free[0]) if side else 0)
    place |= {axis: start + n for n, axis in enumerate(free[side])}
    shared = [batch[1 - side][batch[side].index(a)] for a in value.axes if a in batch[side]]
    positional = value.positional or varies_along(other, shapes[1 - side], tuple(shared))
    axes = tuple(place[a] for a in value.axes)
    operands = [value, other] if side == 0 else [other, value]
    found = _rows_of(checker, equation, operands, axes, positional)
    factor = _weight(other, shapes[1 - side])
    if value.terms is None or factor is None:
        return found
    return found.but(terms=scaled(value.terms, factor), finite=value.finite, zero=value.zero)


def _weighted_sum(
    checker: Checker,
    equation: JaxprEqn,
    value: Private,
    other: Public,
    side: int,
    contract: list,
    batch: list,
) -> Private:
    """A sum over records with public weights: a record contributes its row times its weights."""
    assert value.axes is not None
    shapes = shapes_in(equation)
    if not set(value.axes) <= set(contract[side]) or batch[0] or is_whole(equation.outvars[0]):
        raise NoBoundError(Why.ROWS("only some axes of the records are summed"))
    theirs = tuple(contract[1 - side][contract[side].index(a)] for a in value.axes)
    weight = _weight(other, shapes[1 - side], theirs)
    if weight is None:
        raise NoBoundError(Why.CLIP("a sum over records with weights of unknown size has no bound"))
    positional = value.positional or varies_along(other, shapes[1 - side], theirs)
    found = summed(checker, value.but(positional=positional), shapes[side], additive=True)
    if found.terms is None:
        raise NoBoundError(found.why or _UNCLIPPED, found)
    return found.but(terms=scaled(found.terms, weight), origin=checker.origin(equation, [value]))


def _weight(other: Public, shape: Axes, records: Axes = ()) -> float | None:
    """The largest norm of one record's weights; without record axes the Frobenius norm, which bounds the operator norm."""
    if other.const is not None and other.const.dtype.kind in "biuf":
        sizes = np.abs(other.const.astype(np.float64))
        # Relative to the largest, since squares of float64 numbers below 1e-162 are 0.
        largest = float(sizes.max(initial=0.0)) or 1.0
        rest = tuple(i for i in range(len(shape)) if i not in records)
        squares = np.square(sizes / largest)
        return largest * float(np.sqrt(squares.sum(axis=rest).max(initial=0.0))) * other.rounded
    if other.scale is not None and not other.scale.powers:
        return other.scale.factor * math.sqrt(
            math.prod(n for i, n in enumerate(shape) if i not in records)
        )
    return None


def _sum_of_products(
    checker: Checker, equation: JaxprEqn, first: Private, second: Private, shapes: list[Axes]
) -> Private:
    """The sum over records of the product of two rows of the same record."""
    operands = [first, second]
    # Other axes may be contracted, too: Cauchy and Schwarz bound the product of a record's two
    # matrices by their norms.
    if is_whole(equation.outvars[0]) or len(equation.params["dimension_numbers"][1][0]):
        raise NoBoundError(
            Why.ROWS("a product over records with batch axes, or of integers, has no bound")
        )
    for row, by, shape, other in ((first, second, *shapes), (second, first, *shapes[::-1])):
        # Either one is the factor that clips the other, or both have bounds.
        terms = clipped_by(row, by) if size_per_record(other, by.axes) == 1 else None
        finite = (
            row.finite and by.norm_of.safe and by.norm_of.finite if terms and by.norm_of else False
        )
        if terms is None:
            terms = product_of_norms(first, second, shapes)
            finite = first.finite and second.finite
        if terms is None:
            continue
        zero = (row.zero if finite else frozenset()) | (by.zero if row.finite else frozenset())
        positional = first.positional or second.positional
        product = row.but(terms=terms, finite=finite, zero=zero, positional=positional, linf=None)
        found = summed(checker, product, shape, additive=True)
        if found.terms is not None:
            return found.but(origin=checker.origin(equation, operands))
        raise NoBoundError(found.why or _UNCLIPPED, found)
    raise NoBoundError(Why.CLIP("products of rows without a bound are summed over records"))


def _dot_of_sums(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    lost = Why.LINEAR("a product with values that depend on all records has no bound")
    if is_whole(equation.outvars[0]):
        raise NoBoundError(Why.WHOLE_NUMBERS("a product of integers may wrap around"))
    side = 0 if isinstance(operands[0], Private) else 1
    value = operands[side]
    other = operands[1 - side]
    if not isinstance(value, Private) or not isinstance(other, Public):
        raise NoBoundError(lost)
    found = as_sum(checker, value, shape_of(equation.invars[side]))
    factor = _weight(other, shape_of(equation.invars[1 - side]))
    if found.terms is None:
        raise NoBoundError(lost, found)
    if factor is None:
        raise NoBoundError(lost)
    return found.but(terms=scaled(found.terms, factor), origin=checker.origin(equation, operands))


@rule(p.conv_general_dilated_p)
def convolution(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """The rule of convolutions: images and kernels may be per record or shared."""
    params: Any = equation.params
    spec = params["dimension_numbers"]
    features = params["feature_group_count"]
    batches = params["batch_group_count"]
    images, kernels = operands
    left = fold_of(images)
    right = fold_of(kernels)
    shapes = shapes_in(equation)
    lost = Why.ROWS("a convolution combines records with other records")
    if any(isinstance(x, Private) and f is None for x, f in ((images, left), (kernels, right))):
        raise NoBoundError(lost)
    outputs = shapes[1][spec.rhs_spec[0]]
    if (
        left is None
        and isinstance(images, Public)
        and right is not None
        and right[0] == spec.rhs_spec[0]
    ):
        # Every kernel makes its own channel; in groups, of channels or images that may differ.
        placed = _placed(kernels) or features * batches > 1
        return folded_rows(checker, equation, operands, (spec.out_spec[1], *right[1:]), placed)
    if left is None or not isinstance(images, Private):
        raise NoBoundError(lost)
    axis, outer, inner = left
    if axis == spec.lhs_spec[0] and batches == 1 and isinstance(kernels, Public):
        return folded_rows(
            checker, equation, operands, (spec.out_spec[0], outer, inner), _placed(images)
        )
    groups = {spec.lhs_spec[0]: batches, spec.lhs_spec[1]: features}.get(axis, 1)
    count = shapes[0][axis] // (outer * inner)
    # Each record has equally many whole groups, and their channels are adjacent in the output.
    if outer > 1 or count < 2 or groups % count or outputs % groups:
        raise NoBoundError(lost)
    if axis == spec.lhs_spec[0] and not all_finite(operands):
        # XLA computes grouped images as one convolution with zeros for other groups: infinities
        # pass through.
        raise NoBoundError(Why.NAN("images in groups, where one that is not finite affects others"))
    own = (spec.rhs_spec[0], 1, outputs // count)
    if isinstance(kernels, Private) and (right != own or kernels.batch is not images.batch):
        raise NoBoundError(lost)
    positional = _placed(images) or _placed(kernels)
    if isinstance(kernels, Public):
        positional |= varies_along(kernels, shapes[1], (spec.rhs_spec[0],))
    return folded_rows(
        checker, equation, operands, (spec.out_spec[1], 1, outputs // count), positional
    )


def _placed(value: Value) -> bool:
    return isinstance(value, Private) and value.positional


@rule(p.cholesky_p, p.lu_p, p.qr_p, p.eigh_p, p.svd_p, p.fft_p)
def _last_axes(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of functions of the last one or two axes: records lie along the leading ones."""
    rank = len(shape_in(equation))
    taken = len(equation.params.get("fft_lengths", (0, 0)))
    why = " over records makes each result depend on all of them"
    return rows_apart(checker, equation, operands, range(rank - taken, rank), why)


@rule(p.triangular_solve_p)
def _triangular(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of triangular systems: one matrix per record, or a public one with the records as right-hand sides."""
    matrix, sides = operands
    rank = len(shape_of(equation.invars[1]))
    left = equation.params["left_side"]
    apart = rank - 1 if left else rank - 2
    fold = fold_of(sides)
    if (
        isinstance(matrix, Public)
        and isinstance(sides, Private)
        and fold is not None
        and fold[0] == apart
    ):
        return [folded_rows(checker, equation, operands, fold, sides.positional)]
    return _last_axes(checker, equation, operands)


@rule(p.linear_solve_p, table=STRUCTURED)
def _linear_solve(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """Walk through the program that solves the system; its other programs are for derivatives."""
    lengths = equation.params["const_lengths"]
    programs = equation.params["jaxprs"]
    jaxpr, consts = inner(checker, programs.solve)
    first = lengths.matvec + lengths.vecmat
    sides: Any = operands[sum(lengths) :]
    return checker.walk(jaxpr, consts, [*operands[first : first + lengths.solve], *sides])


@rule(shard_map_p, table=STRUCTURED)
def _shard_map(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    from discreet.privacy.verify._devices import shard_map  # few programs run on several devices

    return shard_map(checker, equation, operands)
