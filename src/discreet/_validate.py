"""Checks of arguments and of installed packages, written once so that every package refuses the same values in the same words.

A number is what Python's `numbers` tower calls one: `int`, `float` and NumPy's scalars, but never a
bool (`epsilon=True` is a slip, not an epsilon of 1) and never an array or a string. Each function
returns the value as Python's own `float`, `int` or `str`, so that what is stored, hashed and saved
does not depend on the type that the caller used. Each error is a `RefusedError` of one form: the
argument's name, the value it had, what it must be, and a hint where the caller gives one.

The core (plans, mechanisms, fits, proofs, statements) imports no package of an extra. A part that
needs one calls `require` first, so that where it is absent the error names the extra instead of a
package that the reader never heard of.
"""

import contextlib
import difflib
import html
import inspect
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

if TYPE_CHECKING:  # not loaded by --help
    import numpy as np

LEVEL = 0.9
"""The level of all intervals, where no other one is asked for."""
ENDS = 0.05, 0.95
"""The quantiles of draws between which such an interval lies."""


class RefusedError(ValueError):
    """An error whose text quotes no record, so that other processes and logs may repeat it."""


class MissingPackageError(ModuleNotFoundError):
    """A package of an extra is not installed; the text names the extra."""


def near(word: str, known: Iterable[str]) -> str:
    """The known word that a wrong one was meant to be, as the question "did you mean"; empty where none is near.

    >>> near("Vote", ["age", "vote"]), near("Vote", ["age"])
    ('did you mean vote?', '')
    """
    words = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), list(words), 1)
    return f"did you mean {words[found[0]]}?" if found else ""


def is_real(value: Any) -> TypeGuard[float]:
    """Check for a real number; NaN and infinity count, bools do not.

    >>> is_real(2), is_real(True), is_real("2")
    (True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_integer(value: Any) -> TypeGuard[int]:
    """Check for an integer type; `2.0` and bools do not count.

    >>> is_integer(2), is_integer(2.0), is_integer(True)
    (True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def real(
    name: str, value: Any, low: float, high: float, *, must: str | None = None, hint: str = ""
) -> float:
    """Check that a value is a number between `low` and `high`, both included.

    `must` replaces the range in words after "it must be"; `hint` is a sentence to add.

    >>> real("count_share", 0.5, 0.0, 0.99)
    0.5
    """
    if not (is_real(value) and low <= float(value) <= high):
        default = (
            f"a number of at least {low:g}"
            if high == math.inf
            else f"a number from {low:g} to {high:g}"
        )
        refuse(name, value, must or default, hint)
    return float(value)


def positive(name: str, value: Any, *, hint: str = "") -> float:
    """Check that a value is a finite number above 0.

    >>> positive("epsilon", True)
    Traceback (most recent call last):
    discreet._validate.RefusedError: epsilon is True; it must be a finite number above 0.
    """
    if not (is_real(value) and 0 < float(value) < math.inf):
        refuse(name, value, "a finite number above 0", hint)
    return float(value)


def probability(name: str, value: Any, *, hint: str = "") -> float:
    """Check that a value lies strictly between 0 and 1, as delta, a confidence or a quantile does."""
    if not (is_real(value) and 0 < float(value) < 1):
        refuse(name, value, "a number above 0 and below 1", hint)
    return float(value)


def fraction(name: str, value: Any, *, hint: str = "") -> float:
    """Check that a value is at least 0 and below 1, as a share that leaves something over does."""
    if not (is_real(value) and 0 <= float(value) < 1):
        refuse(name, value, "a number of at least 0 and below 1", hint)
    return float(value)


def integer(
    name: str, value: Any, least: int = 1, most: int | None = None, *, hint: str = ""
) -> int:
    """Check that a value is an integer between `least` and `most`, both included.

    >>> integer("num_records", 0, hint="It is the public number of records.")
    Traceback (most recent call last):
    discreet._validate.RefusedError: num_records is 0; it must be an integer of at least 1. It is the public number of records.
    """
    if not (is_integer(value) and least <= value and (most is None or value <= most)):
        refuse(
            name,
            value,
            f"an integer {f'of at least {least}' if most is None else f'from {least} to {most}'}",
            hint,
        )
    return int(value)


def is_schedule(value: Any) -> bool:
    """Check for numbers in a row, or a function that gives them; not whether they are numbers.

    >>> is_schedule([1.0, 2.0]), is_schedule(1.0), is_schedule(b"12"), is_schedule({0: 1.0})
    (True, False, False, False)
    """
    row = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    return row or callable(value) or getattr(value, "ndim", 0) == 1


def choice(name: str, value: Any, options: Collection[str], *, hint: str = "") -> str:
    """Check that a value is one of a few words.

    >>> choice("kind", "laplace", ("gaussian", "none"))
    Traceback (most recent call last):
    discreet._validate.RefusedError: kind is 'laplace'; it must be one of 'gaussian', 'none'.
    """
    if not (isinstance(value, str) and value in options):
        refuse(name, value, f"one of {', '.join(map(repr, options))}", hint)
    return str(value)


def finite_or_none(value: Any) -> Any:
    """Convert a value for JSON: numbers that are not finite become None, also in mappings and lists."""
    if isinstance(value, Mapping):
        return {name: finite_or_none(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(item) for item in value]
    if is_real(value) and not is_integer(value):
        return float(value) if math.isfinite(value) else None
    return value


def shown(value: Any) -> str:
    """A value as an error may quote it: of an array or a data frame, which may be a key or hold records, only the type."""
    shape = getattr(value, "shape", None)
    scalar = shape is None or (type(value).__module__ == "numpy" and shape == ())
    return repr(value) if scalar else f"of type {type(value).__name__} and shape {shape}"


def unmasked(name: str, value: Any) -> "np.ndarray":
    """An array as NumPy has it; a masked one is refused, since what its mask hides would be used."""
    import numpy as np

    if isinstance(value, np.ma.MaskedArray):
        raise RefusedError(
            f"{name} is a masked array, and its mask would be lost: what it hides would be used. Fill it by a public rule, as "
            "with .filled(numpy.nan)."
        )
    return np.asarray(value)


def floats(name: str, value: Any) -> "np.ndarray":
    """An array of numbers, in 64 bits. The error quotes no cell, as NumPy's does.

    >>> floats("y", ["seven"])
    Traceback (most recent call last):
    discreet._validate.RefusedError: y holds something that is no number: encode categories by public lists beforehand.
    """
    found = unmasked(name, value)
    if found.dtype.kind in "biufO":
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return found.astype("float64", copy=False)
    raise RefusedError(
        f"{name} holds something that is no number: encode categories by public lists beforehand."
    )


def refuse(name: str, value: Any, must: str, hint: str = "") -> NoReturn:
    """Raise the error that all checks raise."""
    raise RefusedError(f"{name} is {shown(value)}; it must be {must}.{' ' + hint if hint else ''}")


def left_out(
    function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Name the parameters that a call leaves at None, for the error of a function that fails; empty if there are none.

    >>> left_out(lambda x, y=None, mask=None: x, [1, 2], {})
    'Nothing was passed for mask: pass what the model needs. '
    """
    try:
        signature = inspect.signature(function)
        given = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return ""
    names = [
        name for name, x in signature.parameters.items() if x.default is None and name not in given
    ]
    return (
        f"Nothing was passed for {', '.join(names)}: pass what the model needs. " if names else ""
    )


def require(package: str, *, extra: str, what: str) -> None:
    """Refuse, with a `MissingPackageError`, what needs a package that is not installed; `extra` of discreet brings it."""
    if find_spec(package) is None:
        raise MissingPackageError(
            f"{what} needs {package}, which is not installed: pip install 'discreet[{extra}]'.",
            name=package,
        )


def notebook_html(headline: str, text: str, *, wrong: bool = False) -> str:
    """The HTML of an object for notebooks: a headline, red if `wrong`, that unfolds the text. No script.

    >>> notebook_html("a < b", "1 & 2")
    '<details><summary><b>a &lt; b</b></summary><pre style="white-space: pre-wrap">1 &amp; 2</pre></details>'
    """
    style = ' style="color: #b3261e"' if wrong else ""
    text = f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
    return f"<details><summary><b{style}>{html.escape(headline)}</b></summary>{text}</details>"
