"""What was found out of each line of a program. For people who look at it: no proof rests on it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from discreet._jax import Jaxpr, JaxprEqn, Var, around, inner_programs, source_lines
from discreet.verify._bounds import total_of
from discreet.verify._domain import Key, Public, Scale, Value
from discreet.verify._errors import place_of, source_of, without_tag

KINDS = ("unknown", "rows", "sum", "key", "released", "public", "unread")
"""What a value can be, the worst first; "unread" is a line that the checker did not come to."""

Place = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Status:
    """What was found out of a value, or of all that leaves a line.

    Attributes:
        kind: one of KINDS.
        bound: for rows and sums: what one record contributes at most, as text; empty without a bound.
        text: the same in words.
    """

    kind: str
    bound: str
    text: str


@dataclasses.dataclass(frozen=True)
class Line:
    """One line: the worst of the values that other lines use, and all values computed on it, by operation."""

    status: Status
    values: tuple[tuple[str, Status], ...]


def status_of(value: Value) -> Status:
    """What was found out of a value."""
    if isinstance(value, Key):
        return Status("key", "", "key, from which random numbers are drawn")
    if isinstance(value, Public):
        if value.released:
            return Status("released", "", "released with noise, or computed from such")
        return Status("public", "", "public: known without the data")
    bound = _bound(None if value.terms is None else total_of(value.terms))
    if value.axes is not None:
        limit = f"a norm of at most {bound}" if bound else "no bound on their size"
        if not bound and value.linf is not None:
            limit = f"numbers of at most {value.linf:.4g} in size"
        return Status("rows", bound, f"rows of single records, with {limit}")
    if value.terms is not None:
        return Status("sum", bound, f"sum over records, to which one adds at most {bound or 'a known amount'}")
    return Status("unknown", "", f"unknown: {without_tag(value.why) or 'nothing bounds one record'}")


def _bound(scale: Scale | None) -> str:
    if scale is None:
        return ""
    return f"{scale.factor:.4g}" + (" × a public number" if scale.powers else "")


class Trail:
    """What the checker saw, equation by equation; `lines` sorts it by source line."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.start = next(map(place_of, line_of(step)), None)
        self._program: Jaxpr | None = None
        self._arguments: list[tuple[str, Value]] = []
        self._seen: dict[tuple[int, ...], tuple[JaxprEqn, Sequence[Value]]] = {}

    def begin(self, program: Jaxpr, names: Sequence[str] = (), values: Sequence[Value] = ()) -> None:
        """Take down the program and its arguments."""
        self._program = program
        self._arguments = list(zip(names, values, strict=True))

    def see(self, equation: JaxprEqn, outputs: Sequence[Value]) -> None:
        """Take down the results of an equation, in the place of those of an earlier turn of the loop around it."""
        self._seen[(*map(id, around()), id(equation))] = (equation, outputs)

    def lines(self) -> dict[Place, Line]:
        """What is known of each line on which something is computed."""
        passed: dict[Place, list[tuple[bool, str, Status]]] = defaultdict(list)
        if self.start is not None:
            passed[self.start] = [(True, f"argument {name}", status_of(x)) for name, x in self._arguments]
        readers, returned = self._readers()
        for equation, outputs in self._all_seen():
            for place in places(equation):
                for variable, value in zip(equation.outvars, outputs, strict=True):
                    within = all(place in reader for reader in readers[variable])
                    leaves = variable in returned or not within
                    passed[place].append((leaves, equation.primitive.name, status_of(value)))
        found = {place: _line(entries) for place, entries in passed.items() if entries}
        unread = Line(Status("unread", "", "the checker did not come this far"), ())
        for equation in equations(self._program) if self._program is not None else ():
            for place in places(equation):
                found.setdefault(place, unread)
        return found

    def _all_seen(self) -> Iterator[tuple[JaxprEqn, Sequence[Value]]]:
        """What was seen; and what is within equations on public values, which are not looked into."""
        opened = {path[:-1] for path in self._seen}
        for path, (equation, outputs) in self._seen.items():
            yield equation, outputs
            if path not in opened and all(isinstance(x, Public) for x in outputs):
                for program in inner_programs(equation):
                    for inner in equations(program.jaxpr):
                        yield inner, [outputs[0] if outputs else Public()] * len(inner.outvars)

    def _readers(self) -> tuple[dict[Any, list[tuple[Place, ...]]], set[Any]]:
        """For each variable the places of the equations that use it; and the variables that programs return."""
        readers: dict[Any, list[tuple[Place, ...]]] = defaultdict(list)
        if self._program is None:
            return readers, set()
        returned: set[Any] = {x for x in self._program.outvars if isinstance(x, Var)}
        for equation in equations(self._program):
            for variable in equation.invars:
                if isinstance(variable, Var):
                    readers[variable].append(places(equation))
            for program in inner_programs(equation):
                returned |= {x for x in program.jaxpr.outvars if isinstance(x, Var)}
        return readers, returned


def _line(entries: Sequence[tuple[bool, str, Status]]) -> Line:
    leaving = [status for leaves, _, status in entries if leaves] or [entries[-1][2]]
    worst = min(leaving, key=lambda status: KINDS.index(status.kind))
    return Line(worst, tuple(dict.fromkeys((name, status) for _, name, status in entries)))


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """All equations of a program, those of the programs within it among them."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_programs(equation):
            yield from equations(inner.jaxpr)


def places(equation: JaxprEqn) -> tuple[Place, ...]:
    """Files and line numbers of the functions in which an equation was written."""
    found = [place_of(line) for line in source_lines(equation)]
    return tuple(dict.fromkeys(x for x in found if x is not None))


def line_of(function: Any) -> tuple[str, ...]:
    """The line on which a function begins, after its decorators, as a chain of one; nothing if it has no source."""
    code = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None)
    if code is None:
        return ()
    lines = enumerate(source_of(code.co_filename)[code.co_firstlineno - 1 :], code.co_firstlineno)
    number = next((i for i, text in lines if re.match(r"\s*(async\s+)?def\b", text)), code.co_firstlineno)
    number = code.co_firstlineno if code.co_name == "<lambda>" else number
    return (f"{code.co_filename}:{number} ({code.co_qualname})".replace(".<locals>", ""),)
