"""A formula to its terms, by formulae, the parser of Bambi; and what may stand in one.

Columns of a design must follow from one record's cells and public numbers. formulae evaluates the calls of a formula itself, in
the names that it is given, so only functions that work cell by cell have a name here. Splines have their knots from the frame on
which they are first evaluated: that is one made from the schema (`_design`). What learns from the cells is refused.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from discreet._validate import RefusedError, near, require

_SPLINES = ("bs",)
_CODINGS = ("C", "S", "T")
_OTHERS = ("I", "offset")
_TARGETS = ("prop", "proportion", "p", "Surv", "censored")
_INSTEAD = {
    "scale": "I((x - 50) / 10), with a public mean and spread",
    "standardize": "I((x - 50) / 10), with a public mean and spread",
    "center": "I(x - 50), with a public constant",
    "poly": "x + I(x**2)",
    **dict.fromkeys(("cc", "cr", "tp"), "bs(x, df=4), whose knots follow from the bounds"),
    "binary": "T(x, ref='a')",
    "B": "T(x, ref='a')",
}


@dataclasses.dataclass(frozen=True)
class Target:
    """The left side of a formula.

    Attributes:
        column: Name of the column that is explained.
        level: The category that counts as 1, as in `ill[yes]`; None: the last one.
        call: The function around it: "", "prop" or "Surv".
        beside: Of "prop" the trials, a column or a number; of "Surv" the column of the event.
        censors: True if the last category of `beside` says that the time ended before the event.
    """

    column: str
    level: str | None = None
    call: str = ""
    beside: str | int = ""
    censors: bool = False


@dataclasses.dataclass(frozen=True)
class Formula:
    """A parsed formula.

    Attributes:
        text: The formula.
        target: Its left side.
        terms: formulae's description of its right side.
        constants: Public values of names that are no columns.
    """

    text: str
    target: Target
    terms: Any
    constants: Mapping[str, Any]

    @property
    def names(self) -> set[str]:
        """Names of the columns of the right side."""
        return {name for name in self.terms.var_names if name and name not in self.constants}

    @property
    def namespace(self) -> dict[str, Any]:
        """The names that calls of the right side may have."""
        from discreet.tabular.formulas._alike import functions

        return {**functions(), **{_own(name): _coded(name) for name in _CODINGS}, "pi": math.pi, **self.constants}


def parsed(text: str, constants: Mapping[str, Any] | None = None) -> Formula:
    """Parse a formula, and refuse what must not stand in one.

    Raises:
        RefusedError: It is none, or it has what looks at the data or cannot be fitted.
        MissingPackageError: formulae is not installed.
    """
    require("formulae", extra="formula", what="A formula")
    from formulae import model_description
    from formulae.terms.terms import Intercept

    from discreet.tabular.formulas._alike import power

    if not isinstance(text, str):
        raise RefusedError(f"formula is a {type(text).__name__}: give a text, such as 'ill ~ age + region'.")
    try:
        found = model_description(text)
    except Exception as error:  # formulae has errors of many classes
        raise RefusedError(
            f"The formula {text!r} cannot be read: {error}. An example is 'ill ~ age * region'."
        ) from None
    if found.response is None:
        raise RefusedError(f"The formula {text!r} has no left side: name the column to explain, as in 'ill ~ age'.")
    target = _target_of(found.response.term.components[0])
    found.response = None
    public = dict(constants or {})
    for part in _parts(found):
        if hasattr(part, "callee"):
            _check(part, text)
        elif getattr(part, "op", None) is operator.pow:
            part.op = power
    for term in found.common_terms:
        _refuse_levels(term, text)
    if Intercept() not in found.common_terms:
        raise RefusedError(
            f"The formula {text!r} has no intercept, which is part of every fit: leave out 0 + and - 1. `predict` gives the "
            "mean of each category."
        )
    formula = Formula(text, target, found, public)
    if target.column in formula.names:
        raise RefusedError(f"The formula {text!r} explains {target.column!r} by itself: take it out of the right side.")
    if not formula.names:
        raise RefusedError(
            f"The formula {text!r} has no column on its right side: `dp.describe` gives means and counts."
        )
    return formula


def _refuse_levels(term: Any, text: str) -> None:
    for component in getattr(term, "components", ()):
        if getattr(component, "reference", None) is not None:
            raise RefusedError(
                f"The formula {text!r} has {component.name}[{component.reference}] on its right side: write "
                f"I({component.name} == '{component.reference}')."
            )


def _target_of(component: Any) -> Target:
    call = getattr(component, "call", None)
    if call is None:
        return Target(component.name, component.reference)
    name = getattr(call, "callee", "")
    if name not in _TARGETS or len(call.args) != 2 or call.kwargs:
        raise RefusedError(
            f"The left side {component.name} is not known: write a column, prop(successes, trials), Surv(time, event), or "
            "censored(time, status). Transform a target before, by a public rule, and give the bounds of the new one."
        )
    first, second = call.args
    beside = getattr(second, "name", None)
    number = getattr(second, "value", None)
    proportion = name.startswith("p")
    if not hasattr(first, "name") or (beside is None and not (proportion and isinstance(number, int))):
        raise RefusedError(
            f"The left side {component.name} must name columns: a function of them is a column of its own."
        )
    kind = "prop" if proportion else "Surv"
    return Target(first.name, None, kind, beside or number or 0, name == "censored")


def _parts(terms: Any) -> Iterator[Any]:
    """All calls and operations in the terms, with those in their arguments."""
    for term in terms.terms:
        factors = [term.expr, term.factor] if hasattr(term, "factor") else [term]
        for component in (component for factor in factors for component in getattr(factor, "components", ())):
            yield from _within(getattr(component, "call", None))


def spline_calls(terms: Any) -> list[Any]:
    """The calls of splines with a constraint that was computed from the table on which they were first evaluated."""
    calls = [part for part in _parts(terms) if getattr(part, "callee", "") in _SPLINES]
    return [call for call in calls if call.stateful_transform._centering_matrix is not None]


def _within(part: Any) -> Iterator[Any]:
    yield part
    for argument in (*getattr(part, "args", ()), *getattr(part, "kwargs", {}).values()):
        yield from _within(argument)


def _check(call: Any, text: str) -> None:
    """Refuse a function that is not known to work cell by cell, and put others in place of those that do not."""
    from discreet.tabular.formulas._alike import CELLWISE

    name = call.callee.removeprefix("np.").removeprefix("numpy.")
    if name in _CODINGS:
        if not call.args or not hasattr(call.args[0], "name"):
            raise RefusedError(
                f"The formula {text!r} has {call.callee}() of what is no column of categories: name one in it."
            )
        call.callee = _own(name)
    elif name in CELLWISE:
        call.callee = name
    elif name not in (*_SPLINES, *_OTHERS):
        if name in _INSTEAD:
            raise RefusedError(
                f"The formula {text!r} has {call.callee}(), which looks at the cells, and nothing may be learnt from them "
                f"without noise: write {_INSTEAD[name]}."
            )
        known = (*CELLWISE, *_SPLINES, *_CODINGS, *_OTHERS)
        meant = near(name, known)
        raise RefusedError(
            f"The formula {text!r} has {call.callee}(), which is not known to work cell by cell"
            f"{f' ({meant})' if meant else ''}: use {', '.join(known)}, or make a column of it by a public rule."
        )


def _own(name: str) -> str:
    """The name under which formulae finds our function in place of its own."""
    return f"{name} of levels"


def _coded(name: str) -> Callable[..., Any]:
    """A coding of categories. Formulae's own refuses a table in which a level does not occur."""

    def coded(cells: Any, by: Any = None, **options: Any) -> Any:
        from formulae.categorical import CategoricalBox, Sum, Treatment

        if not hasattr(cells, "cat"):
            raise ValueError(
                f"{name}() is for columns of categories: describe the column as one of a few in the schema"
            )
        contrast = (
            by if name == "C" else Sum(options.get("omit", by)) if name == "S" else Treatment(options.get("ref", by))
        )
        box = CategoricalBox(np.asarray(cells), contrast, None)
        box._levels = list(cells.cat.categories)
        return box

    return coded
