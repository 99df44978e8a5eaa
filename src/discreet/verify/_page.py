"""An HTML page of a proof or a refusal: the program with the status of each line. No proof depends on it."""

from __future__ import annotations

import traceback
from importlib.resources import files
from typing import Any, NamedTuple

from discreet._jax import users_file
from discreet._validate import require
from discreet.accounting import relation_name, upper
from discreet.verify._certify import KINDS, Certificate, Line, Place, Trail
from discreet.verify._errors import PrivacyError, from_here, place_of, source_of
from discreet.verify._events import formula_lines

DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
STATED_DELTA = 1e-5

_SYMBOLS = dict(zip(KINDS, "✗≡Σ◆✓○·", strict=True))
_LEGEND = (
    ("public", "known without the data"),
    ("released", "noised by a mechanism, and counted in the event; or computed from such"),
    ("sum", "a sum over records, not yet noised: ≤ what one record adds"),
    ("rows", "values of single records: ≤ the norm of one record's values, after clipping"),
    ("key", "a key, from which random numbers are drawn"),
    ("unknown", "depends on records, and no rule bounds by how much"),
    ("unread", "the checker did not come this far"),
)
_CONTEXT, _SHORTEST_FOLD = 3, 12


class Row(NamedTuple):
    """One line of a listing; `steps` are its numbers on the path from the record to the leak.

    `end`: The proof ended here, at the first line on the path without a bound, or else at the last.
    """

    number: int
    text: str
    anchor: str
    line: Line | None = None
    steps: tuple[int, ...] = ()
    end: bool = False

    @property
    def quiet(self) -> bool:
        """True if the line has no status."""
        return self.line is None and not self.steps


class Listing(NamedTuple):
    """One file: stretches of rows, each with a Boolean that is True if it is folded."""

    name: str
    parts: tuple[tuple[bool, tuple[Row, ...]], ...]


def html_page(outcome: Certificate | BaseException) -> str:
    """Render a program with the status of each of its lines below the verdict.

    The page is one file without scripts, to keep beside the program or to share: it contains the source of each of the
    user's files with lines in the program, and no data. For an exception other than `PrivacyError` it shows the type and
    the place, but not the message, which may quote data.

    Args:
        outcome: The certificate or exception from `certify`, or another exception, with its traceback.

    Returns:
        The page as HTML.

    >>> import jax.numpy as jnp, discreet as dp
    >>> from discreet.verify import html_page
    >>> try:
    ...     dp.certify(lambda xs: xs.sum(0), jnp.ones((100, 3)), records=0)
    ... except dp.PrivacyError as error:
    ...     page = html_page(error)
    >>> "No proof of privacy" in page
    True
    """
    require("jinja2", extra="cli", what="The page of a proof")
    from jinja2 import Environment, StrictUndefined

    trail = getattr(outcome, "trail", None)
    chain = () if isinstance(outcome, Certificate) else _chain(outcome)
    found = trail.lines() if isinstance(trail, Trail) else {}
    start = trail.start if isinstance(trail, Trail) else None
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    listings, anchors = _listings(found, chain, start)
    heading = "Lines in question" if chain and place_of(chain[0]) else "From the record to the leak"
    occurring = {status.kind for line in found.values() for status in (line.status, *(x for _, x in line.values))}
    return environment.from_string(files("discreet.verify").joinpath("page.html").read_text(encoding="utf-8")).render(
        **_verdict(outcome),
        heading=heading if isinstance(outcome, PrivacyError) else "Where it failed",
        chain=[(from_here(line), anchors.get(place_of(line) or start)) for line in chain],
        listings=listings,
        symbols=_SYMBOLS,
        legend=[(kind, meaning) for kind, meaning in _LEGEND if kind in occurring],
    )


def _verdict(outcome: Certificate | BaseException) -> dict[str, Any]:
    facts: dict[str, Any] = dict.fromkeys(("certificate", "error", "failure", "rule", "epsilon"))
    facts |= {"table": (), "formulas": ()}
    if isinstance(outcome, PrivacyError):
        return {**facts, "error": outcome, "rule": from_here(outcome.rule)}
    if not isinstance(outcome, Certificate):
        return {**facts, "failure": type(outcome).__name__}
    facts |= {"relation": relation_name(outcome.relation.name, "record")}
    facts |= {"certificate": outcome, "calls": "one call" if outcome.times == 1 else "all calls"}
    if outcome.symbols:
        return {**facts, "formulas": formula_lines(outcome.event, outcome.relation)}
    table = [(_power(delta), upper(outcome.epsilon(delta))) for delta in DELTAS]
    return {**facts, "table": table, "epsilon": upper(outcome.epsilon(STATED_DELTA)), "stated": _power(STATED_DELTA)}


def _power(delta: float) -> str:
    return f"{delta:.0e}".replace("e-0", "e-")


def _chain(error: BaseException) -> tuple[str, ...]:
    if isinstance(error, PrivacyError):
        return error.chain
    if isinstance(error, SyntaxError) and error.filename:
        return (f"{error.filename}:{error.lineno} (<module>)",)
    frames = [x for x in traceback.extract_tb(error.__traceback__) if users_file(x.filename)]
    return tuple(f"{x.filename}:{x.lineno} ({x.name}): {x.line}" for x in frames)


def _listings(
    found: dict[Place, Line], chain: tuple[str, ...], start: Place | None
) -> tuple[list[Listing], dict[Place | None, str]]:
    """The files, that of the step first, and the anchors of the lines that a chain names."""
    # Arguments enter where the function begins.
    steps: dict[Place, tuple[int, ...]] = {}
    for number, line in enumerate(chain, 1):
        if (place := place_of(line) or start) is not None:
            steps[place] = (*steps.get(place, ()), number)
    lost = [place for place in steps if place in found and found[place].status.kind == "unknown"]
    last = (*lost, *(place_of(line) or start for line in reversed(chain)), None)[0]
    names = dict.fromkeys(name for name, _ in (*([start] if start else ()), *steps, *found))
    listings, anchors = [], {}
    for number, name in enumerate(names, 1):
        rows = []
        for i, text in enumerate(source_of(name), 1):
            place = (name, i)
            anchor = f"file{number}-line{i}"
            rows.append(Row(i, text.rstrip("\r\n"), anchor, found.get(place), steps.get(place, ()), place == last))
            if place in steps:
                anchors[place] = anchor
        shown = {i for i, row in enumerate(rows) if not row.quiet or (name, row.number) == start}
        listings.append(Listing(from_here(name), _parts(rows, shown)))
    return listings, anchors


def _parts(rows: list[Row], shown: set[int]) -> tuple[tuple[bool, tuple[Row, ...]], ...]:
    """Split rows into stretches; long ones without a status are folded, except for some lines of context."""
    near = {j for i in shown for j in range(i - _CONTEXT, i + _CONTEXT + 1)}
    parts: list[tuple[bool, list[Row]]] = []
    for i, row in enumerate(rows):
        folded = i not in near
        if not parts or parts[-1][0] != folded:
            parts.append((folded, []))
        parts[-1][1].append(row)
    return tuple((folded and len(part) >= _SHORTEST_FOLD, tuple(part)) for folded, part in parts)
