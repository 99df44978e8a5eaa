"""Parameters that have a name instead of a value: sympy symbols, from the arguments of a program into its event."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from discreet.verify._domain import LARGEST, SMALLEST, Scale, open_symbol

_FINEST = 4096
"""Fractions with a larger denominator are written as decimals."""


def symbol(name: str, *, integer: bool = False) -> Any:
    """A public parameter that is left open in a proof: a positive sympy symbol.

    Pass it to `certify` where a step takes a number: noise, clipping norm, learning rate, the rate of
    `poisson_subsample`, the end of a `jax.lax.fori_loop`, or as `times`. Arithmetic and sympy's functions make expressions,
    which may be passed as well. Symbols of one name and kind are the same.

    Args:
        name: what the certificate prints, and the keyword of `Certificate.at`.
        integer: it stands for whole numbers, such as a number of turns.

    Returns:
        A `sympy.Symbol`, positive.

    Raises:
        ValueError: the name is no Python identifier.
        ImportError: sympy is not installed.

    >>> import discreet as dp
    >>> sigma, C = dp.symbol("sigma"), dp.symbol("C")
    >>> sigma * C / C
    sigma
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"symbol: {name!r} is no name that Python knows as a keyword. Pass one such as 'sigma'.")
    kind = {"integer": True} if integer else {}
    return load_sympy().Symbol(name, positive=True, **kind)


def load_sympy() -> Any:
    """Sympy, which is loaded by the first symbol.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import sympy
    except ImportError as error:
        raise ImportError("Symbols are sympy's, which is not installed: pip install 'discreet[symbolic]'.") from error
    return sympy


def is_symbolic(value: Any) -> bool:
    """Whether a value is an expression of sympy's. Loads nothing: without sympy there are none."""
    sympy = sys.modules.get("sympy")
    return sympy is not None and isinstance(value, sympy.Expr)


@dataclasses.dataclass(frozen=True)
class Fixed:
    """An argument that stood open and has a value now: the program is traced with the number."""

    value: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Given:
    """An argument that is traced as an operand, and whose value is known to the proof: `certify` takes it in an array's place.

    So one program serves all values, and each proof is about one of them. A certificate names its values: it is no proof of
    the program with others.

    Attributes:
        value: an array, as the program is going to be given it.
    """

    value: Any


class Symbols:
    """Which of the checker's names stand for open parameters, and for what expressions."""

    def __init__(self) -> None:
        self._expressions: dict[int, Any] = {}

    def scale(self, expression: Any) -> Scale:
        """An expression as a number of the checker's: the same one for the same expression."""
        name = next((n for n, x in self._expressions.items() if x == expression), None)
        if name is None:
            name = open_symbol()
            self._expressions[name] = expression
        return Scale(1.0, ((name, 1.0),))

    def expression(self, scale: Scale | None) -> Any:
        """A number of the checker's as an expression; None where other things than open parameters are in it, or none is."""
        if scale is None or not scale.powers or not math.isfinite(scale.factor):
            return None
        if any(name not in self._expressions for name, _ in scale.powers):
            return None
        product = _exact(scale.factor)
        for name, power in scale.powers:
            product *= self._expressions[name] ** _exact(power)
        return product if product.free_symbols else float(product)

    def ratio(self, bound: Scale, noise: Scale) -> Any:
        """The quotient: a float, or an expression of open parameters; None where it is not known."""
        known = bound.over(noise)
        return known if known is not None else self.expression(bound * noise.to(-1.0))


def _exact(number: float) -> Any:
    sympy, fraction = load_sympy(), Fraction(number)
    fine = fraction.denominator > _FINEST
    return sympy.Float(number) if fine else sympy.Rational(fraction.numerator, fraction.denominator)


def largest(*values: Any) -> Any:
    """The largest of numbers, some of which may be open."""
    return load_sympy().Max(*set(values)) if any(map(is_symbolic, values)) else max(values)


def smallest(*values: Any) -> Any:
    """The smallest of numbers, some of which may be open."""
    return load_sympy().Min(*set(values)) if any(map(is_symbolic, values)) else min(values)


def square_root(value: Any) -> Any:
    """The root of a number that may be open."""
    return load_sympy().sqrt(value) if is_symbolic(value) else math.sqrt(value)


def numbers_of(event: DpEvent) -> list[Any]:
    """The numbers in an event: noise multipliers, rates, counts."""
    if isinstance(event, GaussianDpEvent | LaplaceDpEvent):
        return [event.noise_multiplier]
    if isinstance(event, PoissonSampledDpEvent):
        return [event.sampling_probability, *numbers_of(event.event)]
    if isinstance(event, SelfComposedDpEvent):
        return [event.count, *numbers_of(event.event)]
    if isinstance(event, SampledWithoutReplacementDpEvent):
        return numbers_of(event.event)
    return [x for part in event.events for x in numbers_of(part)] if isinstance(event, ComposedDpEvent) else []


def open_in(values: Any) -> tuple[str, ...]:
    """The names of the symbols in values, in order."""
    return tuple(sorted({s.name for x in values if is_symbolic(x) for s in x.free_symbols}))


def event_at(event: DpEvent, values: Mapping[str, float]) -> DpEvent:
    """An event with numbers in the place of symbols."""
    if isinstance(event, GaussianDpEvent | LaplaceDpEvent):
        return type(event)(number_at(event.noise_multiplier, values))
    if isinstance(event, PoissonSampledDpEvent):
        return PoissonSampledDpEvent(number_at(event.sampling_probability, values), event_at(event.event, values))
    if isinstance(event, SelfComposedDpEvent):
        return SelfComposedDpEvent(event_at(event.event, values), times_at(event.count, values))
    if isinstance(event, SampledWithoutReplacementDpEvent):
        inner = event_at(event.event, values)
        return SampledWithoutReplacementDpEvent(event.source_dataset_size, event.sample_size, inner)
    return ComposedDpEvent([event_at(x, values) for x in event.events]) if isinstance(event, ComposedDpEvent) else event


def number_at(value: Any, values: Mapping[str, float]) -> Any:
    """A number, or what an expression comes to; an expression where some of its symbols stay open.

    Raises:
        ValueError: a symbol of whole numbers gets another.
    """
    if not is_symbolic(value):
        return value
    broken = [s.name for s in value.free_symbols if s.is_integer and values.get(s.name, 0) % 1 != 0]
    if broken:
        raise ValueError(f"{broken[0]} is {values[broken[0]]!r}, and was made with integer=True. Pass a whole number.")
    found = value.subs({s: values[s.name] for s in value.free_symbols if s.name in values})
    if found.free_symbols:
        return found
    return int(found) if value.is_integer else float(found)


def fixed_at(value: Any, values: Mapping[str, float]) -> Any:
    """An argument with numbers in the place of symbols: fixed where none stays open."""
    found = number_at(value, values)
    return found if found is value or is_symbolic(found) else Fixed(found)


def times_at(value: Any, values: Mapping[str, float]) -> Any:
    """A number of calls: a whole number, or an expression.

    Raises:
        ValueError: it is no whole number of at least one.
    """
    found = number_at(value, values)
    if is_symbolic(found):
        return found
    if not _is_number(found) or not 1 <= found < math.inf or found % 1 != 0:
        raise ValueError(
            f"times is {found!r}; a step is called a whole number of times. Pass an integer of at least 1."
        )
    return int(found)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def check_symbols(arguments: list[Any]) -> None:
    """Refuse expressions of symbols that are not known to be positive.

    Raises:
        ValueError: naming the symbols.
    """
    unknown = {s.name for x in arguments if is_symbolic(x) for s in x.free_symbols if not s.is_positive}
    if unknown:
        raise ValueError(
            f"certify: the symbols {', '.join(sorted(unknown))} may be zero or negative, as far as sympy knows, and noise, norms "
            "and rates are not. Make them with dp.symbol."
        )


def checked_values(values: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, float]:
    """Values of symbols as Python numbers, all of them for symbols that a proof left open.

    Raises:
        ValueError: naming the symbol.
    """
    for name, value in values.items():
        if name not in known:
            open_ones = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"The certificate has no symbol {name}: {open_ones}. Give values for these.")
        if not _is_number(value) or not SMALLEST <= value <= LARGEST:
            raise ValueError(
                f"{name} is {value!r}; a proof covers numbers from {SMALLEST:g} to {LARGEST:g}, beyond which float32 may take "
                "them for zero or infinite. Pass such a number."
            )
    return {name: int(x) if isinstance(x, int | np.integer) else float(x) for name, x in values.items()}
