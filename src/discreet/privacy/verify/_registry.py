"""The four tables of rules, by primitive, and `rule`, which enters a function in one of them.

A rule is a function of (checker, equation, operands) to the results; where nothing bounds any of
them, it raises a `NoBoundError` with the reason. `Checker.step` looks first in `INLINED` and
`STRUCTURED`, whose rules walk through a nested program, then in `KEY_RULES`, and for private
operands in `RULES`. A primitive may have one rule in each table; a second one is an error at
import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from discreet._jax import JaxprEqn, Primitive
from discreet.privacy.verify._domain import Value

Rule = Callable[[Any, JaxprEqn, list[Value]], "Value | list[Value]"]

RULES: dict[Primitive, Rule] = {}
"""Keyed by the primitive object, since names are not unique."""

KEY_RULES: dict[Primitive, Rule] = {}
"""Primitives that take keys."""

STRUCTURED: dict[Primitive, Rule] = {}
"""Primitives that contain programs. The checker enters them if an operand is private or a key."""

INLINED: dict[Primitive, Rule] = {}
"""Primitives that the checker enters even if all operands are public, since the results may be constants."""


def rule(*primitives: Primitive, table: dict[Primitive, Any] = RULES) -> Callable[[Any], Any]:
    """Register a function as the rule of primitives in one of the tables above."""

    def enter(function: Any) -> Any:
        for primitive in primitives:
            if table.setdefault(primitive, function) is not function:
                raise ValueError(
                    f"two rules for {primitive.name}: {table[primitive].__name__}, {function.__name__}"
                )
        return function

    return enter
