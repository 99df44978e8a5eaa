"""The page says what the statement says, whatever is in it; and a text stays a text."""

import base64
import dataclasses
import datetime
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import discreet as dp
from discreet.interfaces.page import (
    _charts,
    budget_of,
    course_of,
    description_of,
    panel_of_summary,
    panels_of_draws,
    profile_pairs,
    statement_page,
)
from discreet.interfaces.page._page import day_words
from discreet.privacy.report import (
    COEFFICIENTS,
    EACH_ROW_A_PERSON,
    NOT_USABLE,
    PREDICTION,
    Receipt,
    Statement,
    Unit,
)
from discreet.tabular.tables import schema_from_bounds

from .made_up import (
    HOSTILE,
    PLAN,
    description_facts,
    draws_of,
    result_of,
    statement_of,
    with_figures,
)

VOID = {"meta", "img", "br", "input", "link", "hr"}
SCHEMA = schema_from_bounds("age=17:90,smoker=no|yes")


class Page(HTMLParser):
    """Elements with their attributes, the texts within, and whether all tags nest."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(
            " ".join(text.split())
            for tag, texts in self.texts.items()
            if tag not in ("script", "style", "pre")
            for text in texts
        )


def hostile() -> Statement:
    """A statement whose every text is an attack."""
    statement = statement_of()
    texts = (
        "about",
        "use_reason",
        "method",
        "mechanism",
        "made_on",
        "contact",
    )
    lists = ("released", "cautions", "data_warnings", "public", "not_covered", "notes")
    statement = with_figures(
        statement, **dict.fromkeys(("delta_chosen", "event", "accountant"), HOSTILE)
    )
    return dataclasses.replace(
        statement,
        unit=Unit(HOSTILE),
        receipt=Receipt(HOSTILE, HOSTILE, 1, HOSTILE, 1.0, 1.0, 1e-5, HOSTILE),
        **dict.fromkeys(texts, HOSTILE),
        **dict.fromkeys(lists, (HOSTILE,)),
        plan={HOSTILE: {HOSTILE: [HOSTILE]}},
        versions={HOSTILE: HOSTILE},
    )


def test_the_whole_page(tmp_path: Path) -> None:
    ledger = dp.Ledger.create(
        tmp_path / "a.ledger", dataset=HOSTILE, epsilon=5.0, delta=1e-4, unit=HOSTILE
    )
    ledger.debit(PLAN, delta=1e-6, method=HOSTILE, unit=HOSTILE)
    receipt = ledger.debit(PLAN, delta=1e-6, method="DPSVI", unit="one person")
    ledger.set_cap(epsilon=4.5, delta=1e-4)
    path = dp.page.write_report(
        tmp_path / "report.html",
        result_of(dataclasses.replace(statement_of(delta=1e-6), receipt=receipt)),
        draws=draws_of(),
        note=HOSTILE,
        ledger=ledger,
    )
    page = Page(path.read_text(encoding="utf-8"))
    assert "2 (this fit)" in page.text
    assert "the cap was set to ε = 4.5" in page.text
    assert "The fit converged" in page.text
    assert {"main", "header", "nav", "footer"} <= {tag for tag, _ in page.elements}
    assert len(page.of("h1")) == 1
    assert page.of("html") == [{"lang": "en"}]
    names = [x["id"] for _, x in page.elements if "id" in x]
    assert len(set(names)) == len(names)
    referred = [
        x[key]
        for _, x in page.elements
        for key in ("for", "aria-labelledby", "aria-describedby")
        if key in x
    ]
    anchors = [x["href"][1:] for x in page.of("a") if x["href"].startswith("#")]
    assert {name for names in referred for name in names.split()} | set(anchors) <= set(names)
    assert [x["type"] for x in page.of("input")] == ["range", "range"]
    assert {x["id"] for x in page.of("input")} <= {x["for"] for x in page.of("label")}
    assert len(page.of("title")) == 1 + len(
        [x for x in page.of("svg") if x.get("class") == "chart"]
    )


@pytest.mark.parametrize("broken", [False, True])
def test_texts_stay_texts(broken: bool) -> None:
    statement = hostile().with_violations(HOSTILE) if broken else hostile()
    result = result_of(statement)
    html = statement_page(
        statement, course=course_of(result), panels=panels_of_draws(draws_of()), note=HOSTILE
    )
    page, calm = Page(html), Page(statement_page(statement_of()))
    # Two scripts, data and program, as on any page; no picture, no link and no handler but our own.
    kinds = [x.get("type") for x in page.of("script")]
    assert kinds == ([None] if broken else ["application/json", None])
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in calm.elements} | {
        "circle",
        "strong",
    }
    assert not [
        name for _, attributes in page.elements for name in attributes if name.startswith("on")
    ]
    assert "{{ 7 * 7 }}" in page.text
    assert "<script>alert" in page.text
    assert not re.search(r"\b49\b", page.text.replace("0.49", ""))


def test_nothing_is_loaded_and_only_our_script_runs() -> None:
    page = Page(statement_page(statement_of()))
    reaching = [
        value
        for _, x in page.elements
        for name, value in x.items()
        if name in ("src", "href", "action", "srcset")
    ]
    assert all(value.startswith(("#", "data:application/json;base64,")) for value in reaching)
    policy = next(
        x["content"] for x in page.of("meta") if x.get("http-equiv") == "Content-Security-Policy"
    )
    for name, text in (
        ("script", page.texts["script"][-1]),
        ("style", "".join(page.texts["style"])),
    ):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "url(" not in page.texts["style"][0]
    assert "@import" not in page.texts["style"][0]


def test_the_machine_part_is_the_statement() -> None:
    statement = hostile()
    page = Page(statement_page(statement))
    link = next(x for x in page.of("a") if "download" in x)
    saved = base64.b64decode(link["href"].split(",")[1]).decode()
    assert saved == statement.to_json()
    assert json.loads(saved) == statement.to_dict()
    assert hashlib.sha256(saved.encode()).hexdigest() in page.text


def test_what_does_not_hold_is_not_shown() -> None:
    """The page of a broken, repeatable or infinite statement shows no figure as if it were valid."""
    statement = statement_of()
    infinite = with_figures(statement, epsilon=float("inf"))
    for unsafe in (
        statement.with_violations("the bounds are from the data"),
        statement_of(reproducible=True),
        infinite,
    ):
        html = statement_page(unsafe)
        page = Page(html)
        shown = re.split('<section aria-labelledby="machine">', html)[0]
        assert "No ε holds" in page.text
        assert "✓" not in page.text
        assert 'id="rate"' not in html
        assert "trade-off-data" not in html.split("<script>")[0]
        assert f"{unsafe.epsilon:.3f}"[:5] not in shown
    assert "The bounds." in Page(statement_page(statement.with_violations("the bounds"))).text


def test_who_what_and_when_are_said_at_the_top(tmp_path: Path) -> None:
    ledger = dp.Ledger.create(tmp_path / "a.ledger", dataset="messy 2026", epsilon=5.0, delta=1e-4)
    receipt = ledger.debit(PLAN, delta=1e-6, method="DPSVI")
    statement = dataclasses.replace(statement_of(), made_on="2026-11-22")
    path = dp.page.write_report(tmp_path / "r.html", statement, dataset="messy", contact=HOSTILE)
    page = Page(path.read_text())
    assert page.texts["em"] == ["messy"]
    assert "22 Nov 2026" in page.texts["p"][1]
    assert {"Table", "Date", "Contact"} <= set(page.texts["dt"])
    assert {"messy", "22 Nov 2026", HOSTILE} <= set(page.texts["dd"])
    # The ledger knows the day of the debit and the table's name.
    page = Page(
        dp.page.write_report(
            path, dataclasses.replace(statement_of(delta=1e-6), receipt=receipt), ledger=ledger
        ).read_text()
    )
    today = day_words(datetime.datetime.now(datetime.UTC).date())
    assert {"messy 2026", today} <= set(page.texts["dd"])
    assert "Contact" not in page.texts["dt"]
    # A note that looks like a date and is none is a note.
    assert (
        "Date"
        not in Page(
            statement_page(dataclasses.replace(statement_of(), made_on="2026-13-41"))
        ).texts["dt"]
    )


@pytest.mark.parametrize("multiplier", [0.7, 2.0, 4.0, 40.0])
@pytest.mark.parametrize("relation", [dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE])
def test_of_a_hundred_guesses_as_many_are_right_as_the_profile_allows(
    multiplier: float, relation
) -> None:
    plan = dataclasses.replace(PLAN, noise_multiplier=multiplier, relation=relation)
    page = Page(statement_page(statement_of(plan), pairs=profile_pairs(plan, statement_of(plan))))
    right = 50 * (1 + float(plan.profile().delta(0.0)))
    said = int(re.search(r"guesses right at most (\d+) times in 100", page.text)[1])
    assert right <= said <= right + 1.01
    shapes = [x for x in page.of("path") if x.get("class") in ("coin", "more", "wrong")]
    people = {x["class"]: x["d"].count("M") for x in shapes[:-3]}
    assert people["coin"] == 50
    assert people.get("more", 0) == said - 50
    assert people.get("wrong", 0) == 100 - said


def test_use_has_a_box_of_its_own() -> None:
    for use, shown in ((COEFFICIENTS, "holds"), (PREDICTION, "warned"), (NOT_USABLE, "")):
        page = Page(statement_page(statement_of().with_use(use, "the reason")))
        boxes = [x["class"].split() for x in page.of("div") if "verdict" in (x.get("class") or "")]
        assert boxes == [["verdict", "holds"], ["verdict", "use", *shown.split()]]
        assert {f" {use}", "The reason."} <= set(page.texts["p"])
    assert "Use:" not in Page(statement_page(statement_of())).text


def test_the_first_sentence_says_what_was_computed_from_what() -> None:
    about = f"A logistic regression of “affair” on 7 columns of “{HOSTILE}”, 6,366 records."
    page = Page(statement_page(dataclasses.replace(statement_of(), about=about)))
    assert [x["class"] for x in page.of("p")[:2] if "class" in x] == ["about"]
    assert page.texts["em"] == ["affair", HOSTILE]
    assert about in str(dataclasses.replace(statement_of(), about=about)).replace("\n", " ")


def test_the_unit_of_coefficients_and_the_files_to_hand_out_are_said() -> None:
    panels = panels_of_draws({"slope": np.ones((3, 1))})
    page = Page(
        statement_page(
            statement_of(), panels=panels, units="A coefficient is in log odds of “yes”."
        )
    )
    assert "A coefficient is in log odds of" in page.text
    assert "you may hand them out" in page.text
    broken = Page(statement_page(statement_of().with_violations("bounds")))
    assert "you may hand them out" not in broken.text
    assert "Hand out neither this page nor" in broken.text


def test_no_program_names_are_on_the_page() -> None:
    text = Page(statement_page(statement_of(), course=course_of(result_of()))).text.split(
        "For accountants"
    )[0]
    for word in (
        "ADD_OR",
        "REPLACE_",
        "PoissonSampling",
        "num steps",
        "num records",
        "slack",
        "e^",
    ):
        assert word not in text, word
    for word in ("paid for", "ariational", "noise multiplier", "unconstrained"):
        assert word not in text, word


def test_parameters_are_called_by_the_feature_that_they_weigh() -> None:
    trace = SimpleNamespace(
        iterates=np.cumsum(np.ones((30, 5)), 0),
        steps=np.arange(30),
        converged_from=None,
        averaged_from=15,
    )
    params = {
        "intercept_auto_loc": np.zeros(()),
        "weights_auto_loc": np.zeros(2),
        "weights_auto_scale": np.zeros(2),
    }
    result = SimpleNamespace(params=params, trace=trace)

    def named(features: tuple[str, ...]) -> list[str]:
        return [line["name"] for line in course_of(result, features)["parameters"]["lines"]]

    assert named(("age", "income")) == [
        "intercept",
        "age",
        "income",
        "age (spread)",
        "income (spread)",
    ]
    unnamed = [
        "intercept",
        "weights[0]",
        "weights[1]",
        "weights[0] (spread)",
        "weights[1] (spread)",
    ]
    assert named(()) == named(("age",)) == unnamed


def test_a_page_without_an_epsilon_does_not_say_what_was_protected(tmp_path: Path) -> None:
    kept, broken = statement_of(), statement_of().with_violations("bounds were taken from the data")
    assert "What was protected" in statement_page(kept)
    page = statement_page(broken)
    assert "What was protected" not in page
    assert (
        re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL).count("What should have been protected")
        == 2
    )
    assert "did not keep this promise" in page
    ledger = dp.Ledger.create(tmp_path / "a.ledger", dataset="a", epsilon=5.0, delta=1e-4)
    ledger.debit(PLAN, delta=1e-6, method="DPSVI")
    pages = [statement_page(x, budget=budget_of(ledger, x)) for x in (kept, broken)]
    assert [("The cap holds" in x, "The cap does not bound" in x) for x in pages] == [
        (True, False),
        (False, True),
    ]
    assert "only releases and public facts" not in page


def test_a_weak_promise_is_not_all_green() -> None:
    weak = statement_of(dataclasses.replace(PLAN, noise_multiplier=0.7))
    assert weak.epsilon > 10
    page = Page(statement_page(weak))
    assert "✓ Private, with a warning." in page.text
    assert "says little" in page.text
    assert [x["class"] for x in page.of("div") if "verdict" in (x.get("class") or "")] == [
        "verdict holds warned"
    ]


def test_the_page_says_that_a_row_is_protected_where_persons_may_have_several() -> None:
    plain = statement_of(PLAN)
    said = [plain, statement_of(PLAN, unit=Unit("id")), plain.with_public(EACH_ROW_A_PERSON)]
    words = "Each row is protected, not a person with several rows."
    assert [words in Page(statement_page(x)).text for x in said] == [True, False, False]


def test_a_rising_loss_and_a_fit_that_is_at_rest_are_explained() -> None:
    for values, rises in (([810.0, 1_100.0], True), ([1_100.0, 810.0], False)):
        losses = {"mean": values, "values": values, "steps": [1, 2], "width": 1}
        (chart,) = _charts.course_charts({"losses": losses})
        assert ("It rose: the noise may have moved the parameters" in chart.description) == rises
    said = _charts.verdict({"rest": {"kind": "rest", "from": 201}})
    assert "says nothing about how far the noise moved them" in said


def test_a_warning_of_the_data_is_none_of_the_guarantee() -> None:
    page = Page(
        statement_page(
            statement_of(PLAN).with_data_warnings("5 % of the 99 records did not count: a reason.")
        )
    )
    assert "✓ Private." in page.text
    assert "records did not count" in page.text
    assert [x["class"] for x in page.of("div") if "verdict" in (x.get("class") or "")] == [
        "verdict holds"
    ]


def test_a_fit_that_no_entry_pays_for_is_called_so(tmp_path: Path) -> None:
    ledger = dp.Ledger.create(tmp_path / "a.ledger", dataset="a", epsilon=5.0, delta=1e-4)
    other = dp.Ledger.create(tmp_path / "b.ledger", dataset="b", epsilon=5.0, delta=1e-4)
    receipt = other.debit(PLAN, delta=1e-6, method="DPSVI")
    path = dp.page.write_report(tmp_path / "r.html", statement_of(), ledger=ledger)
    assert "was not charged to this ledger" in Page(path.read_text()).text
    dp.page.write_report(
        path, dataclasses.replace(statement_of(delta=1e-6), receipt=receipt), ledger=ledger
    )
    assert "which is not in this ledger" in Page(path.read_text()).text
    # Its own entry, and figures that are not what was debited.
    less = dataclasses.replace(PLAN, noise_multiplier=2 * PLAN.noise_multiplier)
    dp.page.write_report(
        path, dataclasses.replace(statement_of(less, delta=1e-6), receipt=receipt), ledger=other
    )
    assert "which is of another release" in Page(path.read_text()).text


def test_results_of_every_kind(tmp_path: Path) -> None:
    pure = with_figures(statement_of(), delta=0.0, relation="REPLACE_ONE")
    text = Page(statement_page(pure)).text
    assert "Replacing one record by another" in text
    assert "except with probability" not in text
    chain = result_of()
    chain.draws, chain.draw_steps = draws_of(), np.arange(150, 200)
    path = dp.page.write_report(tmp_path / "r.html", chain)
    assert "Draws are kept from step 150 on." in Page(path.read_text()).text
    short = result_of(plan=dataclasses.replace(PLAN, num_steps=5))
    short.losses[:] = np.nan
    short.trace.iterates[2] = np.nan
    assert "too few steps" in Page(dp.page.write_report(path, short).read_text()).text
    drifting = result_of()
    drifting.trace.iterates[:, 0] += np.arange(200)
    assert "had not converged" in Page(dp.page.write_report(path, drifting).read_text()).text


def test_diverged_draws_and_many_rows() -> None:
    draws = {"a": np.full((4, 2), np.nan), "b": np.random.default_rng(0).normal(size=(9, 500))}
    panels = panels_of_draws(draws)
    assert [(len(panel.rows), panel.of) for panel in panels] == [(2, 2), (60, 500)]
    assert panels[0].bars == [None, None]
    assert "60 of 500" in Page(statement_page(statement_of(), panels=panels)).text


def test_a_fit_in_steps_shows_no_intervals(tmp_path: Path) -> None:
    """The spread of its draws leaves out how far the noise moved the parameters."""
    in_steps, moments = result_of(), SimpleNamespace(statement=statement_of())
    in_steps.noise_aware = lambda: None
    draws = {"slope": np.random.default_rng(0).normal(1.23456, 0.5, 4_000)}
    page = Page(dp.page.write_report(tmp_path / "r.html", in_steps, draws=draws).read_text())
    assert not {"sd", "5 %", "95 %", "5 % to 95 %, mean"} & set(page.texts["th"])
    assert "1.2" in page.texts["td"]
    page = Page(dp.page.write_report(tmp_path / "r.html", moments, draws=draws).read_text())
    assert {"sd", "5 %", "95 %"} <= set(page.texts["th"])


def test_no_number_has_more_digits_than_its_error_allows() -> None:
    rows = {"a": {"mean": 12.3456, "sd": 0.123, "low": 12.1, "high": 12.6}}
    assert panel_of_summary(rows).rows[0].cells == ["12.35", "0.12", "12.10", "12.60"]
    rows["a"] |= {"sd": 1234.0, "mean": -98765.0}
    assert panel_of_summary(rows).rows[0].cells[:2] == ["−98,800", "1,200"]
    alone = panel_of_summary({"a": {"mean": 0.98765, "sd": None, "low": None, "high": None}})
    assert (alone.rows[0].cells[0], alone.has_intervals) == ("0.99", False)
    text = Page(statement_page(statement_of(), course=course_of(result_of(name="w")))).text
    assert re.search(r"which went from [\d,]+ to [\d,]+ nats", text)
    assert not re.search(r"went from −?[\d.]*\.\d{3,}[1-9] to", text)
    exact = panel_of_summary({"a": {"mean": 0.98765, "sd": 0.0, "low": 0.98765, "high": 0.98765}})
    assert exact.rows[0].cells[:2] == ["0.99", "0"]


def test_a_description_of_every_kind_of_column() -> None:
    facts = description_facts()
    page = Page(statement_page(statement_of(), description=description_of(facts)))
    for words in (
        "1,234",
        "(1,000 to 2,000)",
        "21 others",
        "1970-01-01 to 1970-01-09",
        "20.25 days",
        "−1,500 kg",
        "−1,600 to −1,400",
        "0 to 1",
        "born (year)",
        "12.3 %",
        "(10.0 to 20.0)",
    ):
        assert words in page.text, words
    assert "too large for a page" in page.text
    assert "1,971" not in page.text
    # Half as dense where the slice is twice as wide.
    histogram = description_of(facts).columns[1].histogram
    assert histogram is not None
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", histogram.shapes[1].path)]
    base = histogram.at_y(0)
    assert (base - heights[0]) / (base - heights[-1]) == pytest.approx(2, rel=0.01)
    for wrong in ({}, {**facts, "columns": {"a": {}}}, {**facts, "pairs": [{}]}):
        with pytest.raises(LookupError):
            description_of(wrong)


@pytest.mark.parametrize("broken", [False, True])
def test_a_page_counts_persons_where_they_are_the_unit(broken) -> None:
    statement = statement_of(unit=Unit("patient", 5))
    statement = statement.with_violations("a reason") if broken else statement
    text = Page(
        statement_page(
            statement, description=description_of({**description_facts(), "counted": "persons"})
        )
    ).text
    assert "Persons: 1,234" in text
    assert "shares of all persons" in text
    assert "persons (public)" in text
    assert "number of persons, N = 4000" in text
    for words in ("Records: ", "records (public)", "number of records", "all records"):
        assert words not in text, words


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"draws": {"a": np.zeros((0, 3))}}, ValueError, "has no draws"),
    ],
)
def test_wrong_input_writes_nothing(tmp_path: Path, options: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        dp.page.write_report(tmp_path / "r.html", result_of(), **options)
    assert not (tmp_path / "r.html").exists()


def test_what_has_no_statement_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="has no statement"):
        dp.page.write_report(tmp_path / "r.html", {"epsilon": 1.0})


# --- colours --------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG 2's ratio, 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_enough_in_both_themes() -> None:
    """4.5 for whatever is text, 3 for lines and bars that say something (WCAG 2.2, 1.4.3 and 1.4.11)."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    css = files("discreet.interfaces.page").joinpath("page.css").read_text(encoding="utf-8")
    colours = {
        name: pair for name, *pair in re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\);", css)
    }
    used = set(re.findall(r"var\(--(\w+)\)", css))
    assert used == set(colours)
    texts, marks = ("ink", "soft", "link", "good", "bad", "warn"), ("purple", "orange", "bar")
    assert set(colours) == {*texts, *marks, "page", "panel", "edge", "area"}
    for theme, back in itertools.product((0, 1), ("page", "panel")):
        for name in texts:
            assert contrast(colours[name][theme], colours[back][theme]) >= 4.5, (name, back, theme)
        for name in marks:
            assert contrast(colours[name][theme], colours[back][theme]) >= 3, (name, back, theme)
    # No colour is written elsewhere, where this test would not see it.
    assert (
        re.findall(r"#[0-9a-f]{3,8}\b", re.sub(r":root \{.*?\}", "", css, count=1, flags=re.DOTALL))
        == []
    )
