"""The statement as a page for people: one HTML file that loads nothing."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import functools
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from discreet._validate import ENDS, require
from discreet.interfaces.page._bound import (
    Line,
    Pair,
    belief,
    corners,
    odds_factor,
    profile_pairs,
    rightly_named,
    trade_off_lines,
    true_positive_rate,
)
from discreet.interfaces.page._charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    course_charts,
    course_of,
    number,
    span,
    verdict,
)
from discreet.methods.plots import coordinate_labels, foremost
from discreet.privacy.accounting import Relation, event_from_dict, neighbours, upper
from discreet.privacy.ledger import Ledger
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.report import (
    COEFFICIENTS,
    NOT_USABLE,
    PREDICTION,
    Statement,
    fact_name,
    note_words,
    sentence,
    steps_words,
    value_words,
)
from discreet.storage import write_file


@dataclasses.dataclass(frozen=True)
class DebitRow:
    """One debit."""

    number: int
    day: str  # When, in UTC; `clock` is the time of that day
    clock: str
    method: str
    epsilon: str  # Its own, at its own `delta`
    delta: str
    after: str  # Epsilon spent after it, by the filter of the current cap
    share: float  # `after` as a part of the cap, at most 1
    unit: str
    here: bool  # True for the fit of this page


@dataclasses.dataclass(frozen=True)
class Budget:
    """The spent budget of a table, by its ledger."""

    dataset: str
    unit: str
    relation: str
    cap_epsilon: str
    cap_delta: str
    spent: str
    share: float
    together: str
    rows: tuple[DebitRow, ...]
    remark: str
    changes: tuple[str, ...]


def budget_of(ledger: Ledger, statement: Statement) -> Budget:
    """The entries of a ledger, for the page of a fit's statement."""
    cap = ledger.cap
    debits = ledger.debits
    entries = ledger.entries
    here, remark = _place(ledger, statement)
    rows = []
    spent = 0.0
    share = 0.0
    for count, debit in enumerate(debits, 1):
        spent = cap.spent([x.cost for x in debits[:count]])
        share = min(1.0, spent / cap.epsilon)
        own = (upper(debit.cost.epsilon), small(debit.delta))
        when = (debit.number, *_when(debit.time), debit.method)
        rows.append(DebitRow(*when, *own, upper(spent), share, debit.unit, debit.number == here))
    together = upper(ledger.epsilon_if_planned_together(cap.delta)) if debits else ""
    changes = tuple(
        f"{' '.join(_when(x['time']))}: the cap was set to ε = {upper(x['epsilon'])} at δ = {small(x['delta'])}."
        for x in entries
        if x["kind"] == "cap"
    )
    about = (
        ledger.dataset,
        ledger.unit,
        neighbours(ledger.relation).name(),
        upper(cap.epsilon),
        small(cap.delta),
    )
    return Budget(*about, upper(spent), share, together, tuple(rows), remark, changes)


def _when(time: str) -> tuple[str, str]:
    day, _, clock = time.replace("+00:00", "").partition("T")
    return day, clock


def _place(ledger: Ledger, statement: Statement) -> tuple[int | None, str]:
    """The number of the statement's entry, if it is there; and what to say if it is not."""
    receipt = statement.receipt
    if receipt is None:
        return None, (
            "The fit on this page was not charged to this ledger: its statement names no entry. Its cost comes on top of what is "
            "shown here."
        )
    entry = next(
        (x for x in ledger.entries if x["kind"] == "debit" and x["hash"] == receipt.hash), None
    )
    if entry is None:
        return None, (
            f"The statement names entry {receipt.number} (hash {receipt.hash[:16]}), which is not in this ledger: "
            "it is another ledger, or lines are missing at its end."
        )
    event = str(event_from_dict(entry["event"]))
    if entry["delta"] != statement.delta or event != statement.figures.event:
        return (
            None,
            f"The statement names entry {receipt.number}, which is of another release: one of the two was changed.",
        )
    return receipt.number, ""


MOST_ROWS = 60
BAR = 200
"""Width of the drawn intervals."""


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """One coordinate, with its 5 % and 95 % quantiles. Numbers that are not finite are None."""

    name: str
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None

    @property
    def cells(self) -> list[str]:
        """The row as texts, to the second digit of the standard deviation; without one, in two digits."""
        values = (self.mean, self.sd, self.low, self.high)
        return ["–" if value is None else rounded(value, self.sd) for value in values]


def rounded(value: float, error: float | None) -> str:
    """A value to the second digit of its error; without an error, in two digits.

    >>> rounded(1.23456, 0.0321), rounded(-1234.5, 321.0), rounded(0.3141, None), rounded(0.0, 0.2)
    ('1.235', '−1,230', '0.31', '0.00')
    """
    if not error or not 1e-6 < error < 1e9 or abs(value) > 1e12:
        return number(float(f"{value:.2g}"))
    places = 1 - math.floor(math.log10(float(f"{error:.2g}")))
    shown = f"{round(value, places):,.{max(0, places)}f}"
    return shown.replace("-", "−" if shown.strip("-0.,") else "")


@dataclasses.dataclass(frozen=True)
class Panel:
    """Coordinates of one latent, or of all (without a name), on one scale: those shown `of` so many."""

    name: str
    rows: tuple[Coordinate, ...]
    of: int

    @property
    def has_intervals(self) -> bool:
        """True if a row has a standard deviation or an interval."""
        return any(x is not None for row in self.rows for x in (row.sd, row.low, row.high))

    @property
    def bars(self) -> list[tuple[str, str, str] | None]:
        """The ends of each row's interval and the place of its mean; None without an interval."""
        return [
            None
            if row.mean is None or row.low is None or row.high is None
            else (self._place(row.low), self._place(row.high), self._place(row.mean))
            for row in self.rows
        ]

    @property
    def zero(self) -> str | None:
        """The place of zero, if it is on the scale."""
        low, high = self._scale
        return self._place(0.0) if low < 0 < high else None

    @property
    def _scale(self) -> tuple[float, float]:
        return span([x for row in self.rows for x in (row.low, row.high, row.mean)], room=0.05)

    def _place(self, value: float) -> str:
        low, high = self._scale
        return f"{(value - low) / (high - low) * BAR:.1f}"


def panels_of_draws(
    draws: Mapping[str, Any], feature_names: Sequence[str] | None = None, *, intervals: bool = True
) -> list[Panel]:
    """A panel for each latent, from its draws along the leading axis; feature names go to latents with as many coordinates.

    Without `intervals` the rows have means alone: the spread of draws of a fit in steps leaves out
    what its noise moved.
    """
    panels = []
    for name, drawn in draws.items():
        array = np.asarray(drawn, np.float64)
        if array.ndim == 0 or array.size == 0:
            raise ValueError(
                f"{name!r} has no draws: pass arrays with the draws along the leading axis"
            )
        flat = array.reshape(len(array), -1)
        names = coordinate_labels(name, array.shape[1:], feature_names)
        with np.errstate(all="ignore"):
            spread = np.array([flat.std(axis=0), *np.quantile(flat, ENDS, axis=0)])
            spread = spread if intervals else np.full_like(spread, np.nan)
            columns = zip(names, flat.mean(axis=0), *spread, strict=True)
            panels.append(
                _panel(
                    name, [Coordinate(label, *map(_finite, values)) for label, *values in columns]
                )
            )
    return panels


def panel_of_summary(summary: Mapping[str, Mapping[str, float | None]]) -> Panel:
    """The rows that `discreet fit` wrote: by name their `mean`, `sd`, `low` and `high`."""
    parts = ("mean", "sd", "low", "high")
    return _panel(
        "",
        [
            Coordinate(str(name), *(_finite(row[part]) for part in parts))
            for name, row in summary.items()
        ],
    )


def _panel(name: str, rows: list[Coordinate]) -> Panel:
    shown = foremost([row.mean or 0.0 for row in rows], [row.sd or 0.0 for row in rows], MOST_ROWS)
    return Panel(name, tuple(rows[i] for i in shown), len(rows))


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


MOST_COLUMNS = 40
MOST_LEVELS = 40


@dataclasses.dataclass(frozen=True)
class Bar:
    """One level, a category or a slice of numbers: its share of the rows in percent, and the ends of its interval."""

    label: str
    share: float
    least: float
    most: float


@dataclasses.dataclass(frozen=True)
class Marginal:
    """One column: its bounds or categories in words, and its levels in order."""

    name: str
    rule: str
    bars: tuple[Bar, ...]

    @property
    def top(self) -> float:
        """The largest share."""
        return max((bar.most for bar in self.bars), default=0.0) or 1.0


def few(bars: Sequence[Bar]) -> tuple[Bar, ...]:
    """So many bars as can be looked at: the rarest categories as one."""
    if len(bars) <= MOST_LEVELS:
        return tuple(bars)
    order = np.argsort([-bar.share for bar in bars], kind="stable")
    # Their extremes are not those of the sum, so the mean stands for them.
    others = [bars[i] for i in order[MOST_LEVELS - 1 :]]
    rest = float(sum(bar.share for bar in others))
    kept = [bars[i] for i in np.sort(order[: MOST_LEVELS - 1])]
    return (*kept, Bar(f"{len(others)} others", rest, rest, rest))


# Where the sliders stop, in percent.
# fmt: off
_RATES = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 25, 28,
    30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 99,
)
_PRIORS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80,
    85, 90, 93, 95, 97, 98, 99, 99.5, 99.8, 99.9,
)
# fmt: on
RATES = tuple(rate / 100 for rate in _RATES)
PRIORS = tuple(prior / 100 for prior in _PRIORS)
FIRST_RATE = 0.05
FIRST_PRIOR = 0.5
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
    description: Any = None,
    units: str = "",
    dataset: str = "",
    contact: str = "",
    day: datetime.date | None = None,
) -> str:
    """The page, HTML, of what `budget_of`, `course_of`, `panels_of_draws` and `description_of` found.

    Guarantee: every figure is the statement's, or follows from it as an upper bound; where the
    statement is not private, none is shown as if it held. Texts stay texts, whatever they hold; the
    page runs its own script only, and reaches no network. `dataset`, `contact` and `day` are the
    ledger's, or the statement's, where they are left out.
    """
    course = course or {}
    charts = course_charts(course)
    text = statement.to_json()
    dataset = dataset or (budget.dataset if budget else "")
    contact = contact or statement.contact
    posterior = "Posterior" if any(panel.has_intervals for panel in panels) else "Estimates"
    date = day_words(day or _day_of(statement, budget))
    contents = (
        ("table", "The table", description),
        ("protected", "What was protected", True),
        ("meaning", "What ε means", True),
        ("budget", "Budget", budget),
        ("plan", "What was done", True),
        ("course", "Course of the fit", charts),
        ("posterior", posterior, panels),
        ("limits", "Limits", True),
        ("machine", "Files", True),
    )
    known: dict[str, Any] = {
        "title": f"Privacy statement: {dataset or statement.method}",
        "kicker": ("Description" if description else "Fit") if dataset else "Privacy statement",
        "dataset": dataset,
        "day": date,
        "version": statement.versions.get("discreet", ""),
        "statement": statement,
        "epsilon": upper(statement.epsilon),
        "delta": small(statement.delta),
        "reasons": _reasons(statement),
        "use": _USE.get(statement.use),
        "facts": [
            *(
                (name, x)
                for name, x in (("Table", dataset), ("Date", date), ("Contact", contact))
                if x
            ),
            *_facts(statement),
        ],
        "contents": [(anchor, heading) for anchor, heading, there in contents if there],
        "budget": budget,
        "plan": [
            (fact_name(name, statement.noun), value_words(value))
            for name, value in statement.plan.items()
        ],
        "steps": steps_words(statement),
        "notes": note_words(statement),
        "charts": charts,
        "verdict": verdict(course),
        "drifting": course.get("rest", {}).get("kind") == "drifting",
        "panels": panels,
        "posterior": posterior,
        "units": units,
        "note": note,
        "description": description,
        "json": text,
        "json_base64": base64.b64encode(text.encode()).decode(),
        "json_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    if statement.is_private:
        known |= _meaning(statement, trade_off_lines(statement, pairs))
    return _rendered(known)


# The colour of the box on the result's use, and its sign.
_USE = {COEFFICIENTS: ("holds", "✓"), PREDICTION: ("warned", "✓"), NOT_USABLE: ("", "✗")}


def _rendered(known: dict[str, Any]) -> str:
    require("jinja2", extra="cli", what="The statement page")
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    def raised(text: str) -> Markup:
        """With the exponent of e^ε where exponents stand."""
        return Markup(re.sub(r"e\^(ε|epsilon)\b", r"e<sup>ε</sup>", str(escape(text))))

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )

    def emphasized(text: str) -> Markup:
        """With the names in it, which stand in quotation marks, in italics."""
        return Markup(re.sub("“(.+?)”", r"<em>\1</em>", str(escape(text))))

    environment.filters |= {
        "raised": raised,
        "prose": lambda text: raised(sentence(text)),
        "emphasized": emphasized,
        "signed": lambda text: re.sub(r"(?<!\d)-(?=\d)", "−", text),
    }
    style, script, template = (_part(f"page.{ending}") for ending in ("css", "js", "html"))
    size = {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "top": TOP,
        "right": RIGHT,
        "bottom": BOTTOM,
    }
    known |= {"style": style, "script": script, "policy": _policy(style, script), "size": size}
    return environment.from_string(template).render(known)


def _day_of(statement: Statement, budget: Budget | None) -> datetime.date | None:
    """The day of the debit, or the one that the fit noted."""
    days = [row.day for row in budget.rows if row.here] if budget else []
    days += [statement.made_on] * bool(statement.made_on)
    try:
        return datetime.date.fromisoformat(days[0]) if days else None
    except ValueError:
        return None


_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"


def day_words(day: datetime.date | None) -> str:
    """A date as people write it, whatever the machine's language.

    >>> day_words(datetime.date(2026, 11, 22)), day_words(None)
    ('22 Nov 2026', '')
    """
    if day is None:
        return ""
    return f"{day.day} {_MONTHS[3 * day.month - 3 : 3 * day.month]} {day.year}"


_PERSON = "a2.3 2.3 0 1 1 0 4.6a2.3 2.3 0 1 1 0-4.6zm-4 13v-3.4a4 4 0 0 1 8 0v3.4z"
_DEEP = 5


def _hundred(statement: Statement, lines: list[Line]) -> dict[str, Any]:
    """Right guesses between two equally likely cases, of a hundred: a sentence, and a picture of a hundred people."""
    # The most that any test gains over a coin; the lines bend at their corners, so it is found
    # there.
    right = max((1 + found - rate) / 2 for rate, found in corners(lines))
    most = min(100, max(50, math.ceil(100 * right * (1 - 1e-12))))
    noun = statement.noun
    question = f"whether a given {noun} is in the table"
    if not neighbours(Relation[statement.relation]).hides_membership:
        question = f"which of two given contents a {noun} has in the table"
    people = []
    for kind, places in (
        ("coin", range(50)),
        ("more", range(50, most)),
        ("wrong", range(most, 100)),
    ):
        corner = ((12 * (i // _DEEP), 17 * (i % _DEEP)) for i in places)
        people.append((kind, "".join(f"M{x + 5} {y + 1}{_PERSON}" for x, y in corner)))
    return {
        "sentence": f"Whoever studies everything published here guesses right at most {most} times in 100 {question}, where a "
        "coin is right 50 times.",
        "description": f"A hundred people, one for each guess: 50 right by a coin, at most {most - 50} more thanks to what was "
        f"published, and {100 - most} or more wrong.",
        "people": [pair for pair in people if pair[1]],
        "person": f"M5 1{_PERSON}",
        "width": 12 * 100 // _DEEP - 2,
        "height": 17 * _DEEP - 2,
    }


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
    factor = odds_factor(statement)
    noun = statement.noun
    near = neighbours(Relation[statement.relation])
    caught, believed = _charts(lines, factor)
    found = true_positive_rate(lines, FIRST_RATE)
    after = belief(FIRST_PRIOR, factor)
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
        "change": near.act(noun).capitalize(),
        "others": f"every other {noun}",
        "question": near.question(noun),
        "factor": upper(math.exp(statement.epsilon) if statement.epsilon < 700 else math.inf),
        "rarely": f"1 in {math.floor(1 / statement.delta * (1 + 1e-9)):,}"
        if statement.delta
        else "",
        "shown": shown,
        "hundred": _hundred(statement, lines),
        "rates": RATES,
        "priors": PRIORS,
        "caught": caught,
        "belief": believed,
        "caught_table": [
            (plain(rate), percent(true_positive_rate(lines, rate))) for rate in TABLE_RATES
        ],
        "belief_table": [(plain(prior), percent(belief(prior, factor))) for prior in TABLE_PRIORS],
        "profile": [
            (small(point.delta), upper(point.epsilon)) for point in statement.figures.profile
        ],
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
    chart = functools.partial(Chart, x=(0.0, 1.0), y=(0.0, 1.0), percent=True)
    rates = "; ".join(
        f"{percent(true_positive_rate(lines, rate))} at {plain(rate)}" for rate in TABLE_RATES
    )
    caught = chart(
        "caught",
        "The best possible test",
        f"The largest true-positive rate of any test, against its false-positive rate: {rates}. The straight line is guessing.",
        "false-positive rate",
        "true-positive rate, at most",
        legend=(("bound", "best test, at most"), ("chance", "guessing")),
    )
    beliefs = "; ".join(
        f"{percent(belief(prior, factor))} from {plain(prior)}" for prior in TABLE_PRIORS
    )
    believed = chart(
        "belief",
        "How far a belief can change",
        f"The largest belief after seeing everything that was released, against the belief before: {beliefs}. The straight line "
        "is no change.",
        "belief before",
        "belief afterwards, at most",
        legend=(("bound", "afterwards, at most"), ("chance", "no change")),
    )
    # Even steps along the bend, which is near 0 where the factor is large.
    bend = 1.0 if math.isinf(factor) else 1 / math.sqrt(factor)
    ratios = [i / _CURVE for i in range(_CURVE + 1)]
    before = [bend * r / (bend * r + 1 - r) for r in ratios]
    after = [belief(p, factor) if p > 0 or math.isinf(factor) else 0.0 for p in before]

    def drawn(chart: Chart, xs: list[float], ys: list[float], start: list[float]) -> Chart:
        area = chart.line("area", [*start, *xs], [*start, *ys], closed=True)
        return area.line("chance", [0, 1], [0, 1]).line("bound", xs, ys)

    bends = corners(lines)
    return drawn(caught, [x for x, _ in bends], [y for _, y in bends], [0.0]), drawn(
        believed, before, after, []
    )


def _reasons(statement: Statement) -> tuple[str, ...]:
    """Why no guarantee stands."""
    reasons = list(statement.violations)
    if statement.reproducible:
        reasons.append(statement.randomness)
    if not math.isfinite(statement.epsilon):
        reasons.append(f"No finite ε holds at δ = {statement.delta:g}: there is no guarantee")
    return tuple(reasons)


def _facts(statement: Statement) -> list[tuple[str, str]]:
    facts = [("Method", statement.method), ("Unit of privacy", str(statement.unit))]
    facts.append(("Relation", neighbours(Relation[statement.relation]).name()))
    if isinstance(count := statement.plan.get("num_records"), int):
        facts.append((f"{statement.noun.capitalize()}s (public)", f"{count:,}"))
    done = statement.steps_completed
    planned = statement.horizon
    facts.append(
        ("Releases", f"{done:,}" + f" of {planned:,}, and ε covers all" * (done < planned))
    )
    return facts


def _part(name: str) -> str:
    return files("discreet.interfaces.page").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """The content security policy: this style and this script only; no network access."""
    styled, run = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    )
    return f"default-src 'none'; style-src 'sha256-{styled}'; script-src 'sha256-{run}'; base-uri 'none'; form-action 'none'"


def write_report(
    path: Path | str,
    result: Any,
    *,
    draws: Mapping[str, Any] | None = None,
    feature_names: Sequence[str] | None = None,
    note: str = "",
    ledger: Ledger | None = None,
    dataset: str = "",
    contact: str = "",
    day: datetime.date | None = None,
) -> Path:
    """Write a result's statement as a page for people: one HTML file, to be handed to a data protection officer.

    What was protected and what ε means, with a trade-off curve whose points can be moved; the
    budget, the plan, the course of the fit, posterior summaries, and the limits;
    and the statement's JSON. The file loads nothing, works without scripts and on paper. All that
    it shows is released or public, and writing it costs nothing.

    Args:
        path: The file, "report.html" say; one of that name is replaced.
        result: A result of `DPSVI.run`, `DPSGLD.run` or `OnePosteriorSample.run`; or a `Statement`
            alone.
        draws: Posterior draws by the latent's name, `result.posterior(key, 1000)`. None: the
            result's own `draws`, if it has some. Of a fit by `DPSVI` their means are shown alone,
            since no interval of a fit in steps holds.
        feature_names: Names of the rows of each latent that has as many coordinates.
        note: A remark on the posterior, what its intervals leave out say.
        ledger: The table's ledger, whose history is shown.
        dataset: The name of the table; by default the ledger's.
        contact: Who answers questions.
        day: The day of the fit; by default the ledger's.

    Returns:
        The path.

    Raises:
        TypeError: Something without a statement.
        ValueError: No draws; a changed ledger.
        OSError: The file cannot be written.

    Example::

        result = dpsvi.run(dp.random.key(), xs, ys, ledger=ledger)
        draws = result.posterior(dp.random.key(), 1_000)
        dp.page.write_report("report.html", result, draws=draws, ledger=ledger)
    """
    statement = result if isinstance(result, Statement) else getattr(result, "statement", None)
    if not isinstance(statement, Statement):
        raise TypeError(
            f"{type(result).__name__} has no statement: pass the result of a private fit, or its statement"
        )
    drawn = draws if draws is not None else getattr(result, "draws", None)
    plan = getattr(result, "plan", None)
    page = statement_page(
        statement,
        pairs=profile_pairs(plan, statement) if isinstance(plan, PrivacyPlan) else (),
        course=course_of(result, feature_names or ()),
        panels=panels_of_draws(
            drawn or {}, feature_names, intervals=not hasattr(result, "noise_aware")
        ),
        note=note,
        budget=None if ledger is None else budget_of(ledger, statement),
        dataset=dataset,
        contact=contact,
        day=day,
    )
    return write_file(Path(path), page)
