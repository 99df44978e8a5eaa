"""Matrices within a record: JAX factors and transforms each along the last axes, whatever stands before them."""

from __future__ import annotations

from typing import Any

from discreet._jax import JaxprEqn
from discreet._jax import primitives as p
from discreet.verify._control import inner
from discreet.verify._domain import Private, Public, Value
from discreet.verify._interpreter import RULES, STRUCTURED, Checker, shape_of
from discreet.verify._rules_convolutions import fold_of, folded_rows
from discreet.verify._rules_windows import common_rows, rows_of_all

_LAST_TWO = (p.cholesky_p, p.lu_p, p.qr_p, p.eigh_p, p.svd_p)


def _of_matrices(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    return _leading(checker, equation, operands, 2)


def _transform(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    return _leading(checker, equation, operands, len(equation.params["fft_lengths"]))


def _leading(checker: Checker, equation: JaxprEqn, operands: list[Value], taken: int) -> list[Value]:
    """Records along the leading axes, and the last `taken` axes the values of one problem."""
    axes, rank = common_rows(operands), len(shape_of(equation.invars[0]))
    if axes is None or any(a >= rank - taken for a in axes):
        why = f"[rows] {equation.primitive.name} over records makes each of its values depend on all of them"
        return [checker.unbounded(equation, operands, why) for _ in equation.outvars]
    return rows_of_all(checker, equation, operands, axes)


def _triangular(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """Systems of one matrix for each record, or of a public one whose right-hand sides are the records'."""
    matrix, sides = operands
    rank, left = len(shape_of(equation.invars[1])), equation.params["left_side"]
    apart = rank - 1 if left else rank - 2
    fold = fold_of(sides)
    if isinstance(matrix, Public) and isinstance(sides, Private) and fold is not None and fold[0] == apart:
        return [folded_rows(checker, equation, operands, fold, sides.positional)]
    return _leading(checker, equation, operands, 2)


def _linear_solve(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """What solves the system is a program; the others among its parameters are for derivatives."""
    lengths, programs = equation.params["const_lengths"], equation.params["jaxprs"]
    jaxpr, consts = inner(checker, programs.solve)
    first = lengths.matvec + lengths.vecmat
    sides: Any = operands[sum(lengths) :]
    return checker.walk(jaxpr, consts, [*operands[first : first + lengths.solve], *sides])


for _primitive in _LAST_TWO:
    RULES[_primitive] = _of_matrices
RULES.update({p.fft_p: _transform, p.triangular_solve_p: _triangular})
STRUCTURED[p.linear_solve_p] = _linear_solve
