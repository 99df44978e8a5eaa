"""Symbols: public parameters that a proof leaves open, and the values they are given later.

An open parameter is a positive sympy symbol. The checker gives each expression of symbols a name,
below zero (`is_open`), and calculates with it as with any number unknown at trace time; `Symbols`
maps names back to expressions, so that noise multipliers, rates and counts of an event may be
expressions.

The invariant: whoever gives values to symbols gets a proof of the program with those values
(`Certificate.at`), so that conditions on a value are checked with it. Only positive symbols and
values between `SMALLEST` and `LARGEST` are accepted. Sympy is imported on first use.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import attr
import numpy as np

from discreet._dp_accounting import DpEvent, SelfComposedDpEvent
from discreet._validate import is_real
from discreet.privacy.verify._bounds import LARGEST, SMALLEST, Scale, new_symbol

_FINEST = 4096
"""Fractions with a larger denominator are written as decimals."""


def symbol(name: str, *, integer: bool = False) -> Any:
    """Create a public parameter that a proof leaves open: a positive sympy symbol.

    Pass it to `certify` where a step takes a number: noise, clipping norm, learning rate, the rate
    of `poisson_subsample`, the end of a `jax.lax.fori_loop`, or as `times`. Arithmetic and sympy's
    functions make expressions, which may be passed as well. Symbols of one name and kind are the
    same.

    Args:
        name: Name in the certificate, and keyword of `Certificate.at`.
        integer: The parameter is an integer, such as a number of iterations.

    Returns:
        A `sympy.Symbol`, positive.

    Raises:
        ValueError: The name is not a Python identifier.
        ImportError: Sympy is not installed.

    >>> import discreet as dp
    >>> sigma, C = dp.symbol("sigma"), dp.symbol("C")
    >>> sigma * C / C
    sigma
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(
            f"symbol: {name!r} is not a Python identifier. Pass a name such as 'sigma'."
        )
    kind = {"integer": True} if integer else {}
    return load_sympy().Symbol(name, positive=True, **kind)


def load_sympy() -> Any:
    """Import sympy on first use."""
    try:
        import sympy
    except ImportError as error:
        raise ImportError(
            "Symbols need sympy, which is not installed: pip install 'discreet[symbolic]'."
        ) from error
    return sympy


def is_symbolic(value: Any) -> bool:
    """True for a sympy expression. Does not import sympy: without it there are none."""
    sympy = sys.modules.get("sympy")
    return sympy is not None and isinstance(value, sympy.Expr)


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A formerly open argument with its value: the program is traced with the number."""

    value: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Given:
    """An argument that is traced as an operand, and whose value the proof uses: `certify` takes it in place of an array.

    So one program serves all values, and each proof concerns one of them. A certificate names its
    values: it proves nothing about the program with others.

    Attributes:
        value: The array that will be passed to the program.
    """

    value: Any


@dataclasses.dataclass
class Symbols:
    """The map from the checker's names of open parameters to sympy expressions."""

    _expressions: dict[int, Any] = dataclasses.field(default_factory=dict)

    def scale(self, expression: Any) -> Scale:
        """The checker's number for an expression: the same one for the same expression."""
        name = next((n for n, x in self._expressions.items() if x == expression), None)
        if name is None:
            name = -1 - new_symbol()  # `is_open`
            self._expressions[name] = expression
        return Scale(1.0, ((name, 1.0),))

    def expression(self, scale: Scale | None) -> Any:
        """The expression for a checker's number; None unless it consists of open parameters, at least one."""
        if scale is None or not scale.powers or not math.isfinite(scale.factor):
            return None
        if any(name not in self._expressions for name, _ in scale.powers):
            return None
        product = _as_number(scale.factor)
        for name, power in scale.powers:
            product *= self._expressions[name] ** _as_number(power)
        return product if product.free_symbols else float(product)

    def ratio(self, bound: Scale, noise: Scale) -> Any:
        """The quotient: a float, or an expression of open parameters; None if unknown."""
        known = bound.over(noise)
        return known if known is not None else self.expression(bound * noise.to(-1.0))


def _as_number(number: float) -> Any:
    sympy = load_sympy()
    fraction = Fraction(number)
    fine = fraction.denominator > _FINEST
    return sympy.Float(number) if fine else sympy.Rational(fraction.numerator, fraction.denominator)


def largest(*values: Any) -> Any:
    """The largest of numbers, some of which may be open."""
    return load_sympy().Max(*set(values)) if any(map(is_symbolic, values)) else max(values)


def smallest(*values: Any) -> Any:
    """The smallest of numbers, some of which may be open."""
    return load_sympy().Min(*set(values)) if any(map(is_symbolic, values)) else min(values)


def numbers_of(event: DpEvent) -> list[Any]:
    """The numbers in an event of any kind, and in its parts: noise multipliers, rates, counts."""
    fields = attr.asdict(event, recurse=False).values()
    values = [x for value in fields for x in (value if isinstance(value, Sequence) else [value])]
    return [number for x in values for number in (numbers_of(x) if isinstance(x, DpEvent) else [x])]


def open_in(values: Any) -> tuple[str, ...]:
    """The names of the symbols in values, in order."""
    return tuple(sorted({s.name for x in values if is_symbolic(x) for s in x.free_symbols}))


def event_at(event: DpEvent, values: Mapping[str, float]) -> DpEvent:
    """Substitute numbers for the symbols of an event."""

    def at(value: Any) -> Any:
        if isinstance(value, DpEvent):
            return event_at(value, values)
        return [at(x) for x in value] if isinstance(value, Sequence) else number_at(value, values)

    if isinstance(event, SelfComposedDpEvent):
        return SelfComposedDpEvent(at(event.event), times_at(event.count, values))
    return type(event)(
        **{name: at(value) for name, value in attr.asdict(event, recurse=False).items()}
    )


def number_at(value: Any, values: Mapping[str, float]) -> Any:
    """Evaluate a number or expression; an expression if some of its symbols stay open."""
    if not is_symbolic(value):
        return value
    broken = [s.name for s in value.free_symbols if s.is_integer and values.get(s.name, 0) % 1 != 0]
    if broken:
        raise ValueError(
            f"{broken[0]} is {values[broken[0]]!r}, but was made with integer=True. Pass an integer."
        )
    found = value.subs({s: values[s.name] for s in value.free_symbols if s.name in values})
    if found.free_symbols:
        return found
    return int(found) if value.is_integer else float(found)


def fixed_at(value: Any, values: Mapping[str, float]) -> Any:
    """Substitute numbers for the symbols of an argument: fixed if none stays open."""
    found = number_at(value, values)
    return found if found is value or is_symbolic(found) else Fixed(found)


def times_at(value: Any, values: Mapping[str, float]) -> Any:
    """A number of calls: an integer of at least one, or an expression."""
    found = number_at(value, values)
    if is_symbolic(found):
        return found
    if not is_real(found) or not 1 <= found < math.inf or found % 1 != 0:
        raise ValueError(
            f"times is {found!r}; a step is called a whole number of times. Pass an integer of at least 1."
        )
    return int(found)


def check_symbols(arguments: list[Any]) -> None:
    """Refuse expressions of symbols that are not known to be positive."""
    unknown = {
        s.name for x in arguments if is_symbolic(x) for s in x.free_symbols if not s.is_positive
    }
    if unknown:
        raise ValueError(
            f"certify: the symbols {', '.join(sorted(unknown))} are not declared positive, but noise, norms and rates are. "
            "Make them with dp.symbol."
        )


def checked_values(values: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, float]:
    """Values of symbols as Python numbers; refuse names that the proof did not leave open."""
    for name, value in values.items():
        if name not in known:
            open_ones = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(
                f"The certificate has no symbol {name}: {open_ones}. Give values for these."
            )
        if not is_real(value) or not SMALLEST <= value <= LARGEST:
            raise ValueError(
                f"{name} is {value!r}; a proof covers numbers from {SMALLEST:g} to {LARGEST:g}, beyond which float32 may take "
                "them for zero or infinite. Pass such a number."
            )
    return {
        name: int(x) if isinstance(x, int | np.integer) else float(x) for name, x in values.items()
    }
