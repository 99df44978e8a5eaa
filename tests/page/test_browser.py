"""The page in a browser: quiet, without network, in both themes, on a telephone, on paper, by keyboard, without scripts."""

import base64
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import discreet as dp
from discreet.interfaces.page import (
    course_of,
    description_of,
    panels_of_draws,
    profile_pairs,
    statement_page,
    trade_off_lines,
    true_positive_rate,
)
from discreet.interfaces.page._bound import belief, odds_factor, rightly_named
from discreet.interfaces.page._page import (
    FIRST_PRIOR,
    FIRST_RATE,
    PRIORS,
    RATES,
    Budget,
    DebitRow,
    percent,
    plain,
)
from discreet.privacy.accounting import upper
from discreet.storage import write_file

from .browser import CHROMIUM, Browser
from .made_up import HOSTILE, PLAN, description_facts, draws_of, result_of, statement_of

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)"
)
STATEMENT = statement_of(delta=2e-5, public=(HOSTILE,), notes=(HOSTILE,))
LINES = trade_off_lines(STATEMENT, profile_pairs(PLAN, STATEMENT))
FACTOR = odds_factor(STATEMENT)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    profile = Path(tempfile.mkdtemp(prefix="discreet-chromium-"))
    try:
        found = Browser(profile)
        yield found
        found.close()
    finally:
        shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    debit = DebitRow(
        1_000,
        "2026-11-21",
        "05:32:29",
        "OnePosteriorSample",
        "0.9999",
        "1e−5",
        "1.234",
        0.4,
        "one record",
        here=True,
    )
    budget = Budget(
        "a survey",
        "one record",
        "REPLACE_ONE",
        "3",
        "1e−5",
        "1.234",
        0.4,
        "1.2",
        (debit,) * 3,
        "",
        (HOSTILE,),
    )
    return write_file(
        tmp_path_factory.mktemp("page") / "report.html",
        statement_page(
            STATEMENT,
            pairs=profile_pairs(PLAN, STATEMENT),
            course=course_of(result_of(STATEMENT)),
            panels=panels_of_draws(draws_of()),
            budget=budget,
            description=description_of(description_facts()),
        ),
    )


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Browser]:
    """The page, freshly opened; whatever a test does with it, it stays quiet and asks for nothing."""
    browser.open(report)
    yield browser
    assert browser.complaints() == []
    assert [address for address in browser.requests() if not address.startswith("file:")] == []
    assert len(browser.requests()) <= 1
    browser.call("Emulation.clearDeviceMetricsOverride")
    browser.call("Emulation.setEmulatedMedia", media="", features=[])


def answers(page: Browser) -> dict[str, str]:
    return {
        name: page.text(f"#{name}")
        for name in ("rate-value", "prior-value", "caught-value", "right-value", "after-value")
    }


def expected(rate: float, prior: float) -> dict[str, str]:
    """The figures as Python computes them."""
    caught = true_positive_rate(LINES, rate)
    return {
        "rate-value": plain(rate),
        "prior-value": plain(prior),
        "caught-value": percent(caught),
        "right-value": percent(rightly_named(prior, rate, caught)),
        "after-value": percent(belief(prior, FACTOR)),
    }


def test_the_sliders_move_by_keyboard_to_the_right_numbers(page: Browser) -> None:
    assert answers(page) == expected(FIRST_RATE, FIRST_PRIOR)
    page.run("document.getElementById('rate').focus()")
    page.press("ArrowRight", 3)
    rate = RATES[RATES.index(FIRST_RATE) + 3]
    assert answers(page) == expected(rate, FIRST_PRIOR)
    page.press("Tab")
    assert page.run("document.activeElement.id") == "prior"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("ArrowLeft", 2)
    prior = PRIORS[PRIORS.index(FIRST_PRIOR) - 2]
    assert answers(page) == expected(rate, prior)
    assert page.run("document.getElementById('prior').getAttribute('aria-valuetext')") == plain(
        prior
    )
    point = page.run(
        "['cx', 'cy'].map(x => Number(document.getElementById('caught-point').getAttribute(x)))"
    )
    assert point == pytest.approx(
        [56 + rate * 352, 256 - true_positive_rate(LINES, rate) * 244], abs=0.01
    )
    page.press("Home")
    assert answers(page) == expected(rate, PRIORS[0])


def test_the_page_claims_no_less_than_python_anywhere(page: Browser) -> None:
    """Every place of both sliders; digits are compared, which both round up."""
    found = page.run(
        """(() => { const out = [], at = (id) => document.getElementById(id);
        const set = (id, i) => { at(id).value = i; at(id).dispatchEvent(new Event('input')); };
        for (let i = 0; i <= at('rate').max; i++) { set('rate', i); set('prior', i % (Number(at('prior').max) + 1));
          out.push(['rate', 'prior', 'caught', 'right', 'after'].map(x => at(`${x}-value`).textContent)); }
        return out; })()"""
    )
    assert len(found) == len(RATES)
    for i, row in enumerate(found):
        assert row == list(expected(RATES[i], PRIORS[i % len(PRIORS)]).values())


def test_light_and_dark(page: Browser) -> None:
    def background() -> str:
        return page.run("getComputedStyle(document.body).backgroundColor")

    white, black = "rgb(255, 255, 255)", "rgb(15, 19, 24)"
    for theme, first, second in (("light", white, black), ("dark", black, white)):
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": theme}],
        )
        page.run("delete document.documentElement.dataset.theme")
        assert background() == first
        page.run("document.getElementById('theme').focus()")
        page.press("Enter")
        assert background() == second
        assert page.text("#theme") == theme.capitalize()


@pytest.mark.parametrize("width", [360, 768])
def test_no_sideways_scrolling(page: Browser, width: int) -> None:
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=740,
        deviceScaleFactor=2,
        mobile=True,
    )
    page.run("document.querySelectorAll('details').forEach(x => x.open = true)")
    assert page.run("document.documentElement.scrollWidth") <= width
    beyond = page.run(
        f"""[...document.querySelectorAll('main *, header *')].filter(x => !x.closest('pre, .scroll') &&
        x.getBoundingClientRect().right > {width} + 1).map(x => x.outerHTML.slice(0, 80))"""
    )
    assert beyond == []


def test_on_paper(page: Browser) -> None:
    page.run("document.documentElement.dataset.theme = 'dark'")
    printed = base64.b64decode(page.call("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF-")
    assert 2 <= printed.count(b"/Type /Page\n") <= 12
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run("getComputedStyle(document.querySelector('#theme')).display") == "none"
    assert page.run("getComputedStyle(document.querySelector('#controls')).display") == "none"
    # A verdict or a notice is on one sheet.
    for notice in ("warning", "broken"):
        page.run(
            f"document.querySelector('main').insertAdjacentHTML('beforeend', '<p class={notice}></p>')"
        )
    for notice in (".verdict", ".warning", ".broken"):
        kept = page.run(
            f"[...document.querySelectorAll('{notice}')].map(x => getComputedStyle(x).breakInside)"
        )
        assert kept
        assert set(kept) == {"avoid"}


def test_the_ledger_is_stacked_on_a_telephone(page: Browser) -> None:
    shown = "getComputedStyle(document.querySelector('.stack thead')).display"
    assert page.run(shown) == "table-header-group"
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=390,
        height=740,
        deviceScaleFactor=2,
        mobile=True,
    )
    assert page.run(shown) == "none"
    label = "getComputedStyle(document.querySelector('.stack td'), '::before').content"
    assert page.run(label) == '"when (UTC)"'
    narrow = "[...document.querySelectorAll('.stack td, .stack caption')].filter(x => x.clientWidth < 250).length"
    assert page.run(narrow) == 0


def test_key_facts_fill_the_right_of_a_desktop_and_stay(page: Browser) -> None:
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=1280,
        height=800,
        deviceScaleFactor=1,
        mobile=False,
    )
    left, right = (
        page.run(f"document.querySelector('{part}').getBoundingClientRect().{side}")
        for part, side in (("aside", "left"), ("main", "right"))
    )
    assert right < left < 1280
    page.run("scrollTo(0, 3000)")
    assert 0 <= page.run("document.querySelector('aside').getBoundingClientRect().top") < 100


def test_the_statement_can_be_saved(page: Browser, tmp_path: Path) -> None:
    page.call(
        "Browser.setDownloadBehavior",
        behavior="allow",
        downloadPath=str(tmp_path),
        eventsEnabled=True,
    )
    page.run("document.querySelector('a[download]').click()")
    page.wait_for("Browser.downloadProgress", state="completed")
    assert (tmp_path / "statement.json").read_text(encoding="utf-8") == STATEMENT.to_json()


def test_hostile_texts_are_seen_and_not_run(page: Browser) -> None:
    assert "<script>alert(1)</script>" in page.text("main")
    assert page.run("document.images.length") == 0
    # Our policy, not only our escaping: a script that got in would not run.
    page.run(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = true'}))"
    )
    assert page.run("window.ran === undefined")
    assert page.complaints() != []
    page.events.clear()


def test_without_scripts(browser: Browser, report: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(report)
        # No script can be asked what is shown; the accessibility tree can.
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
        shown = " ".join(
            str(node["name"].get("value", ""))
            for node in nodes
            if not node["ignored"] and "name" in node
        )
        assert f"ε = {upper(STATEMENT.epsilon)} at δ = 2e−5" in shown
        assert "Scripts are off" in shown
        assert expected(FIRST_RATE, FIRST_PRIOR)["caught-value"] in shown
        assert "slider" not in {node["role"]["value"] for node in nodes if "role" in node}
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_page_without_a_guarantee_is_quiet_too(browser: Browser, tmp_path: Path) -> None:
    broken = dataclasses.replace(STATEMENT, violations=("the bounds are from the data",))
    browser.open(dp.page.write_report(tmp_path / "broken.html", broken))
    assert "No ε holds" in browser.text("h1")
    assert browser.complaints() == []
    assert len(browser.requests()) == 1
