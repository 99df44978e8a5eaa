"""The statement as a page for people: one file that loads nothing."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from discreet.accounting import upper
from discreet.page._bound import (
    Line,
    Pair,
    belief,
    corners,
    odds_factor,
    rightly_named,
    trade_off_lines,
    true_positive_rate,
)
from discreet.page._budget import Budget
from discreet.page._charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart
from discreet.page._course import course_charts, verdict
from discreet.page._posterior import Panel
from discreet.page._twins import Marginals
from discreet.report import Statement, sentence, steps_words

RATES = tuple(
    x / 100
    for x in (
        *(
            0.01,
            0.02,
            0.05,
            0.1,
            0.2,
            0.3,
            0.5,
            0.7,
            1,
            1.5,
            2,
            3,
            4,
            5,
            6,
            7,
            8,
            9,
            10,
            12,
            14,
            16,
            18,
            20,
            22,
            25,
            28,
            30,
        ),
        *(35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 99),
    )
)
PRIORS = tuple(
    x / 100
    for x in (
        *(
            0.01,
            0.02,
            0.05,
            0.1,
            0.2,
            0.5,
            1,
            2,
            3,
            5,
            7,
            10,
            15,
            20,
            25,
            30,
            35,
            40,
            45,
            50,
            55,
            60,
            65,
            70,
            75,
            80,
            85,
            90,
        ),
        *(93, 95, 97, 98, 99, 99.5, 99.8, 99.9),
    )
)
FIRST_RATE, FIRST_PRIOR = 0.05, 0.5
TABLE_RATES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
TABLE_PRIORS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9)
_CURVE = 160


def statement_page(
    statement: Statement,
    *,
    pairs: Iterable[Pair] = (),
    course: Mapping[str, Any] | None = None,
    panels: Sequence[Panel] = (),
    note: str = "",
    budget: Budget | None = None,
    marginals: Marginals | None = None,
) -> str:
    """The page, HTML.

    Guarantee: every figure is the statement's, or follows from it as an upper bound; where the statement is not private, none
    is shown as if it held. Texts stay texts, whatever they hold; the page runs its own script only, and reaches no network.

    Args:
        statement: What was spent.
        pairs: Further (ε, δ) that hold, of `profile_pairs`.
        course: Of `course_of`.
        panels: Posterior summaries.
        note: A remark on them.
        budget: Of `budget_of`.
        marginals: Of `marginals_of`.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["sentence"] = sentence
    style, script, template = (_part(f"page.{ending}") for ending in ("css", "js", "html"))
    course = course or {}
    charts = course_charts(course)
    text = statement.to_json()
    known: dict[str, Any] = {
        "statement": statement,
        "style": style,
        "script": script,
        "policy": _policy(style, script),
        "size": {"width": WIDTH, "height": HEIGHT, "left": LEFT, "top": TOP, "right": RIGHT, "bottom": BOTTOM},
        "epsilon": upper(statement.epsilon),
        "delta": small(statement.delta),
        "reasons": _reasons(statement),
        "facts": _facts(statement),
        "contents": _contents(bool(budget), bool(charts), bool(panels), bool(marginals)),
        "budget": budget,
        "plan": [(str(name).replace("_", " "), value_words(value)) for name, value in statement.plan.items()],
        "steps": steps_words(statement),
        "charts": charts,
        "verdict": verdict(course),
        "drifting": course.get("rest", {}).get("kind") == "drifting",
        "panels": panels,
        "note": note,
        "marginals": marginals,
        "twin_rows": _counts(marginals.rows) if marginals else "",
        "json": text,
        "json_base64": base64.b64encode(text.encode()).decode(),
        "json_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    if statement.is_private:
        known |= _meaning(statement, trade_off_lines(statement, pairs))
    return environment.from_string(template).render(known)


def percent(share: float) -> str:
    """A bound in three digits, rounded up; the page's script does the same.

    >>> [percent(share).replace("\N{NO-BREAK SPACE}", " ") for share in (0.12341, 0.999999, 0.5)]
    ['12.4 %', '100 %', '50 %']
    """
    return f"{upper(min(100.0, 100 * share), 3)}\N{NO-BREAK SPACE}%"


def plain(share: float) -> str:
    """A share that is no bound."""
    return f"{100 * share:.6g}\N{NO-BREAK SPACE}%"


def small(value: float) -> str:
    """A δ, rounded up.

    >>> small(1e-05), small(0.001), small(0.0), small(1 / 32561)
    ('1e−5', '0.001', '0', '3.072e−5')
    """
    return upper(value).replace("e-0", "e-").replace("-", "−")


def _meaning(statement: Statement, lines: list[Line]) -> dict[str, Any]:
    """The trade-off: what the template shows at first, and what the script needs to move it."""
    factor, noun = odds_factor(statement), statement.noun
    replaced = statement.relation == "REPLACE_ONE"
    caught, believed = _charts(lines, factor)
    found, after = true_positive_rate(lines, FIRST_RATE), belief(FIRST_PRIOR, factor)
    shown = {
        "rate": plain(FIRST_RATE),
        "prior": plain(FIRST_PRIOR),
        "rate_at": RATES.index(FIRST_RATE),
        "prior_at": PRIORS.index(FIRST_PRIOR),
        "caught": percent(found),
        "right": percent(rightly_named(FIRST_PRIOR, FIRST_RATE, found)),
        "after": percent(after),
        "caught_point": (f"{caught.at_x(FIRST_RATE):.2f}", f"{caught.at_y(found):.2f}"),
        "belief_point": (f"{believed.at_x(FIRST_PRIOR):.2f}", f"{believed.at_y(after):.2f}"),
    }
    return {
        "change": f"Replacing one {noun} by another" if replaced else f"Adding or leaving out one {noun}",
        "others": f"every other {noun}",
        "question": f"one given place in the data held this {noun} or that one"
        if replaced
        else f"one given {noun} was among the data",
        "factor": upper(math.exp(statement.epsilon) if statement.epsilon < 700 else math.inf),
        "rarely": f"1 in {math.floor(1 / statement.delta * (1 + 1e-9)):,}" if statement.delta else "",
        "shown": shown,
        "rates": RATES,
        "priors": PRIORS,
        "caught": caught,
        "belief": believed,
        "caught_table": [(plain(rate), percent(true_positive_rate(lines, rate))) for rate in TABLE_RATES],
        "belief_table": [(plain(prior), percent(belief(prior, factor))) for prior in TABLE_PRIORS],
        "profile": [(small(point.delta), upper(point.epsilon)) for point in statement.profile],
        "trade_off": {
            "lines": lines,
            "factor": factor if math.isfinite(factor) else None,
            "rates": RATES,
            "priors": PRIORS,
            "frame": {"left": LEFT, "top": TOP, "right": RIGHT, "bottom": BOTTOM},
        },
    }


def _charts(lines: list[Line], factor: float) -> tuple[Chart, Chart]:
    """The trade-off curve, and beliefs after against beliefs before."""
    bends = corners(lines)
    chart = functools.partial(Chart, x=(0.0, 1.0), y=(0.0, 1.0), percent=True)
    caught = chart(
        "caught",
        "What the best test can tell",
        "The largest rate at which any test rightly says yes, against the rate at which it wrongly does: "
        + "; ".join(f"{percent(true_positive_rate(lines, rate))} at {plain(rate)}" for rate in TABLE_RATES)
        + ". The straight line is guessing.",
        "wrongly says yes (false-positive rate)",
        "rightly says yes, at most",
        legend=(("bound", "best test, at most"), ("chance", "guessing")),
    )
    xs, ys = [x for x, _ in bends], [y for _, y in bends]
    caught = caught.line("area", [0.0, *xs], [0.0, *ys], closed=True)
    caught = caught.line("chance", [0, 1], [0, 1]).line("bound", xs, ys)
    believed = chart(
        "belief",
        "What the releases can do to a belief",
        "The largest belief after seeing all that was released, against the belief before: "
        + "; ".join(f"{percent(belief(prior, factor))} from {plain(prior)}" for prior in TABLE_PRIORS)
        + ". The straight line is no change.",
        "belief before",
        "belief afterwards, at most",
        legend=(("bound", "afterwards, at most"), ("chance", "no change")),
    )
    # Even steps along the bend, which is near 0 where the factor is large.
    bend = 1.0 if math.isinf(factor) else 1 / math.sqrt(factor)
    ratios = [i / _CURVE for i in range(_CURVE + 1)]
    before = [bend * r / (bend * r + 1 - r) for r in ratios]
    after = [belief(p, factor) if p > 0 or math.isinf(factor) else 0.0 for p in before]
    believed = believed.line("area", before, after, closed=True)
    return caught, believed.line("chance", [0, 1], [0, 1]).line("bound", before, after)


def _reasons(statement: Statement) -> tuple[str, ...]:
    """Why no guarantee stands."""
    reasons = list(statement.violations)
    if statement.reproducible:
        reasons.append(statement.randomness)
    if not math.isfinite(statement.epsilon):
        reasons.append(f"No finite ε holds at δ = {statement.delta:g}: nothing is promised")
    return tuple(reasons)


def _facts(statement: Statement) -> list[tuple[str, str]]:
    facts = [("Method", statement.method), ("Unit of privacy", statement.unit)]
    facts.append(("Relation", statement.relation.replace("_", " ").lower()))
    if isinstance(count := statement.plan.get("num_records"), int):
        facts.append((f"{statement.noun.capitalize()}s (public)", f"{count:,}"))
    facts.append(("Releases", f"{statement.steps_completed:,} of {statement.horizon:,} paid for"))
    return facts


def _contents(*further: bool) -> list[tuple[str, str]]:
    budget, course, posterior, twins = further
    every = (
        ("protected", "What was protected", True),
        ("meaning", "What ε means", True),
        ("budget", "Budget", budget),
        ("plan", "What was done", True),
        ("course", "Course of the fit", course),
        ("posterior", "Posterior", posterior),
        ("twins", "Synthetic twins", twins),
        ("limits", "Limits", True),
        ("machine", "For programs", True),
    )
    return [(anchor, heading) for anchor, heading, there in every if there]


def value_words(value: Any) -> str:
    """A number of the plan.

    >>> value_words({"kind": "PoissonSampling", "rate": 0.1}), value_words(32_561)
    ('kind PoissonSampling, rate 0.1', '32,561')
    """
    if isinstance(value, Mapping):
        return ", ".join(
            f"{str(name).replace('_', ' ')} {value_words(item)}" for name, item in value.items() if item is not None
        )
    if isinstance(value, list | tuple):
        return ", ".join(map(value_words, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _counts(rows: tuple[int, ...]) -> str:
    least, most = min(rows), max(rows)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _part(name: str) -> str:
    return files("discreet.page").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """What the browser may do: show this style, run this script, and nothing else; no address is reached."""
    styled, run = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    return f"default-src 'none'; style-src 'sha256-{styled}'; script-src 'sha256-{run}'; base-uri 'none'; form-action 'none'"
