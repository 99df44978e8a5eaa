"""Each check takes what it says, as Python's own type, and refuses everything else."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from discreet import _validate

NO_NUMBERS = [True, False, np.True_, None, "1", "", [1], np.array([1.0]), 1j, Decimal(1), math.nan, np.float32("nan")]

CASES: list[tuple[Callable[[Any], Any], list[Any], list[Any]]] = [
    (lambda x: _validate.positive("a", x), [1, 1e-300, np.float32(2), np.int64(3)], [0, -1, math.inf, -math.inf]),
    (lambda x: _validate.probability("a", x), [0.5, 1e-12, np.float64(0.1)], [0, 1, -0.1, 1.5, math.inf]),
    (lambda x: _validate.fraction("a", x), [0, 0.5], [1, -1e-9, math.inf]),
    (lambda x: _validate.real("a", x, 2, 3), [2, 3.0], [1.9, 3.1, math.inf]),
    (lambda x: _validate.real("a", x, 2, math.inf), [2, math.inf], [1.9, -math.inf]),
    (lambda x: _validate.integer("a", x), [1, np.int32(7)], [0, -1, 1.0, np.float64(2), math.inf]),
    (lambda x: _validate.integer("a", x, 0, 4), [0, 4], [-1, 5]),
]


@pytest.mark.parametrize(("check", "good", "bad"), CASES)
def test_numbers(check: Callable[[Any], Any], good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert check(value) == value
        assert type(check(value)) in (int, float)
    for value in [*bad, *NO_NUMBERS]:
        with pytest.raises(ValueError, match=r"^a is .*; it must be "):
            check(value)


def test_words() -> None:
    assert _validate.choice("kind", "b", ("a", "b")) == "b"
    for value in ("c", "", None, 1, ["a"]):
        with pytest.raises(ValueError, match="one of 'a', 'b'"):
            _validate.choice("kind", value, ("a", "b"))


def test_the_error_says_name_value_rule_and_hint() -> None:
    with pytest.raises(ValueError, match=r"^delta is 1\.5; it must be a number above 0 and below 1\. Try 1e-6\.$"):
        _validate.probability("delta", 1.5, hint="Try 1e-6.")
