"""A formula to its terms, by formulae, the parser of Bambi; and what may stand in one.

Columns of a design must follow from one record's cells and public numbers. formulae evaluates the
calls of a formula itself, in the names that it is given, so only functions that work cell by cell
have a name here. Splines have their knots from the frame on which they are first evaluated: that is
one made from the schema (`_design`). What learns from the cells is refused.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from discreet._validate import RefusedError, is_real, near, require

_SPLINES = ("bs",)
_CODINGS = ("C", "S", "T")
_OTHERS = ("I", "offset")
MOST_KNOTS = 512
_OF_TWO = ("log", "maximum", "minimum", "round")
_TARGETS = ("prop", "proportion", "p", "Surv", "censored")
_OF_BRMS = {
    "||": "(1 + x | g), whose effects are independent as those of || are",
    "trials(": "prop(successes, trials) ~ ..., with the family binomial",
    "cens(": "Surv(time, event) ~ ..., where the last category of event is the event",
    "weights(": "the left side without weights(), and the column as the schema's weight",
    "~.": "the names of the columns, joined by +",
    "^": "I(age**2) for the square of a number, and a:b or a*b for products of terms",
}
"""What formulae cannot read, and what to write."""
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

        return {**self.constants, **functions(), **{_own(name): _coded(name) for name in _CODINGS}}


def parsed(text: str, constants: Mapping[str, Any] | None = None) -> Formula:
    """Parse a formula, and refuse what must not stand in one.

    Raises:
        RefusedError: It is none, or it has what looks at the data or cannot be fitted.
        MissingPackageError: formulae is not installed.
    """
    require("formulae", extra="formula", what="A formula")
    from formulae.terms.terms import Intercept, Model

    from discreet.tabular.formulas._alike import power

    if not isinstance(text, str):
        raise RefusedError(
            f"formula is a {type(text).__name__}: give a text, such as 'ill ~ age + region'."
        )
    try:
        found = _terms_of(text)
    except Exception as error:  # formulae has errors of many classes
        packed = text.replace(" ", "")
        instead = next((words for part, words in _OF_BRMS.items() if part in packed), "")
        if "numeric" in str(error) or "numbers" in str(error) or "negation" in str(error):
            instead = "numbers within I(), as I(0.5 * age), I(age / 10) and I(-age)"
        why = f"write {instead}" if instead else f"{error}. An example is 'ill ~ age * region'"
        raise RefusedError(f"The formula {text!r} cannot be read: {why}.") from None
    if not isinstance(found, Model):
        found = Model(found)
    if found.response is None:
        raise RefusedError(
            f"The formula {text!r} has no left side: name the column to explain, as in 'ill ~ age'."
        )
    target = _target_of(found.response.term.components[0])
    found.response = None
    public = {name: _public(name, value) for name, value in (constants or {}).items()}
    for factor in _factors(found):
        # Those of a/b are in two terms, and a component has one coding.
        factor.components = copy.deepcopy(factor.components)
    for component in (*_components(found), target):
        _refuse_what_is_no_column(component, text)
    for component in _components(found):
        if hasattr(component, "call"):
            component.name = _shown(component.call)
    for part in _parts(found):
        if hasattr(part, "callee"):
            _check(part, text)
        elif getattr(part, "op", None) is operator.pow:
            part.op = power
    if Intercept() not in found.common_terms:
        raise RefusedError(
            f"The formula {text!r} has no intercept, which is part of every fit: leave out 0 + and - 1. `marginal_effect` gives "
            "the mean of each category. A line through the origin is a model of your own, for `dp.fit`."
        )
    formula = Formula(text, target, found, public)
    if target.column in formula.names:
        raise RefusedError(
            f"The formula {text!r} explains {target.column!r} by itself: take it out of the right side."
        )
    if not formula.names:
        raise RefusedError(
            f"The formula {text!r} has no column on its right side: `dp.describe` gives means and counts."
        )
    return formula


def _terms_of(text: str) -> Any:
    """As `formulae.model_description`, which leaves out, without a word, all that follows what it can read."""
    from formulae.parser import Parser
    from formulae.resolver import Resolver
    from formulae.scanner import Scanner

    parser = Parser(Scanner(text).scan())
    tree = parser.parse()
    if not parser.at_end():
        raise ValueError(
            f"{parser.peek().lexeme!r} follows what is whole: join terms by +, and write groups and comparisons in brackets, "
            "as in (1 | clinic) and I(age > 50)"
        )
    if _is_power_of_one(tree):
        raise ValueError(
            "** is there for products of terms: write I(age**2) for the square of a number"
        )
    return Resolver(tree).resolve()


def _is_power_of_one(tree: Any) -> bool:
    """True if a column by itself has a power outside of a function: formulae takes that as the column."""
    from formulae.expr import Binary, Call, Variable

    if not isinstance(tree, Binary):
        return hasattr(tree, "expression") and _is_power_of_one(tree.expression)
    if tree.operator.kind == "STAR_STAR" and isinstance(tree.left, Variable | Call):
        return True
    return _is_power_of_one(tree.left) or _is_power_of_one(tree.right)


def _public(name: str, value: Any) -> Any:
    """A constant; a function or an array of cells would not be one."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    numbers = list(value) if isinstance(value, list | tuple) else [value]
    if isinstance(value, str) or (len(numbers) <= MOST_KNOTS and all(map(is_real, numbers))):
        return value
    raise RefusedError(
        f"constants has {name!r}, a {type(value).__name__}: give a public number, a text, or a list of up to {MOST_KNOTS} "
        "numbers, as of knots."
    )


def _refuse_what_is_no_column(component: Any, text: str) -> None:
    name = getattr(component, "name", getattr(component, "column", ""))
    if not isinstance(name, str):
        raise RefusedError(
            f"The formula {text!r} has the number {name} as a term: write I({name} * x) for a multiple of a column x, "
            f"offset({name} * x) for one whose coefficient is 1, and leave out what is the same in all rows."
        )
    if getattr(component, "reference", None) is not None:
        raise RefusedError(
            f"The formula {text!r} has {name}[{component.reference}] on its right side: write "
            f"I({name} == '{component.reference}')."
        )


def _target_of(component: Any) -> Target:
    call = getattr(component, "call", None)
    if call is None:
        return Target(component.name, component.reference)
    name = getattr(call, "callee", "")
    if name not in _TARGETS or len(call.args) != 2 or call.kwargs:
        raise RefusedError(
            f"The left side {component.name} is not known: write a column, prop(successes, trials), Surv(time, event), or "
            "censored(time, status). Make a column of a function of the target, as table['log_y'] = np.log(table['y']), whose "
            "bounds are the function of the old ones. The family gamma has coefficients of the log mean without that."
        )
    first, second = call.args
    beside = getattr(second, "name", None)
    number = getattr(second, "value", None)
    proportion = name.startswith("p")
    if not hasattr(first, "name") or (
        beside is None and not (proportion and isinstance(number, int))
    ):
        raise RefusedError(
            f"The left side {component.name} must name columns: a function of them is a column of its own."
        )
    kind = "prop" if proportion else "Surv"
    return Target(first.name, None, kind, beside or number or 0, name == "censored")


def _parts(terms: Any) -> Iterator[Any]:
    """All calls and operations in the terms, with those in their arguments."""
    for component in _components(terms):
        yield from _within(getattr(component, "call", None))


def _components(terms: Any) -> Iterator[Any]:
    for factor in _factors(terms):
        yield from factor.components


def _factors(terms: Any) -> Iterator[Any]:
    for term in terms.terms:
        for factor in [term.expr, term.factor] if hasattr(term, "factor") else [term]:
            if hasattr(factor, "components"):
                yield factor


def spline_calls(terms: Any) -> list[Any]:
    """The calls of splines with a constraint that was computed from the table on which they were first evaluated."""
    calls = [part for part in _parts(terms) if getattr(part, "callee", "") in _SPLINES]
    return [call for call in calls if call.stateful_transform._centering_matrix is not None]


def _shown(part: Any) -> str:
    """A call in words. Formulae's own leave out brackets: I((x - 50) / 10) would be I(x - 50 / 10)."""
    if hasattr(part, "callee"):
        named = [f"{name}={_shown(value)}" for name, value in part.kwargs.items()]
        return f"{part.callee}({', '.join([*map(_shown, part.args), *named])})"
    if not hasattr(part, "op"):
        return str(part)
    shown = [f"({_shown(x)})" if hasattr(x, "op") else _shown(x) for x in part.args]
    return f" {part.symbol} ".join(shown) if len(shown) > 1 else f"{part.symbol}{shown[0]}"


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
        # NumPy's own have more, as `where`, which leaves what is in the memory in the other rows.
        most = 2 if name in _OF_TWO else 1
        if call.kwargs or not 1 <= len(call.args) <= most:
            raise RefusedError(
                f"The formula {text!r} has {call}: give {name}() {'one or two numbers' if most > 1 else 'one number'}, without "
                "a name."
            )
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
        option = {"S": "omit", "T": "ref"}.get(name, "contrast")
        if unknown := set(options) - {option}:
            raise ValueError(f"{name}() has no {unknown.pop()}=: its option is {option}=")
        by = options.get(option, by)
        contrast = by if name == "C" else Sum(by) if name == "S" else Treatment(by)
        box = CategoricalBox(np.asarray(cells), contrast, None)
        box._levels = list(cells.cat.categories)
        return box

    return coded
