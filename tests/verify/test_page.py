"""The page shows every line once, with its status; whatever the source says, it stays text."""

import html
import importlib.util
import linecache
import re
from html.parser import HTMLParser
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import discreet as dp
from discreet.accounting import upper
from discreet.verify import html_page

from . import programs
from . import test_suite_refused as refused
from .programs import C, certify, clipped_sum, noisy

VOID = {"meta", "br", "hr", "img", "input", "link"}
SCRIPTED = """
import jax
import jax.numpy as jnp
import discreet as dp

text = "<script>alert('a')</script>"


def step(key, xs, mask):  # </code></summary></details><script>alert(1)</script>
    rows = dp.clip_records(xs, 2.0)  # &amp; <b>bold</b> "quoted" {{ 7 * 7 }} {% raw %}
    total = dp.sum_records(rows, mask)
    return {"<img src=x>": dp.gaussian_mechanism(key, total, stddev=6.0)}


def leak(key, xs, mask):
    return {"<img src=x onerror=alert(2)>": xs.sum(0)}  # <script>alert(3)</script>
"""


class Page(HTMLParser):
    """A page as a browser reads it: texts of code by anchor, statuses, links, and whether tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.tags: list[str] = []
        self.anchors: list[str] = []
        self.links: list[str] = []
        self.code: dict[str, str] = {}
        self.status: dict[str, str] = {}
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        facts = dict(attrs)
        self.tags.append(tag)
        if "id" in facts:
            self.anchors.append(facts["id"])
        if tag == "a":
            self.links.append(facts["href"])
        assert not any(name.startswith("on") for name in facts)
        if tag not in VOID:
            self.open.append((tag, facts))
        if tag == "code" and self.row is not None:
            self.code.setdefault(self.row, "")

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1][0] == tag, f"</{tag}> closes <{self.open[-1][0]}>"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "style":
            return
        self.text += data
        if self.row is not None and self.open[-1][0] == "code":
            self.code[self.row] += data
        if self.row is not None and "status" in (self.open[-1][1].get("class") or ""):
            self.status[self.row] = data

    @property
    def row(self) -> str | None:
        """The line that is read, if it is not the list of what is computed on it."""
        inside = any(tag == "li" for tag, _ in self.open)
        return None if inside else next((facts["id"] for _, facts in self.open if "id" in facts), None)


def page_of(outcome) -> Page:
    return Page(html_page(outcome))


def outcome_of(step, **options):
    try:
        return certify(step, **options)
    except dp.PrivacyError as error:
        return error


@pytest.fixture
def scripted(tmp_path: Path):
    """A file whose source is full of HTML."""
    path = tmp_path / "scripted.py"
    path.write_text(SCRIPTED)
    spec = importlib.util.spec_from_file_location("scripted", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ARGUMENTS = dp.random.key(1), jnp.ones((9, 3)), jnp.ones(9, bool)


def straight(w, xs, ys, mask, key):
    rows = dp.clip_records(xs, C)
    total = dp.sum_records(rows, mask)
    own, rest = jax.random.split(key)
    size = jnp.ones(2) * 3.0
    released = noisy(own, total, 1.5 * C)
    unused = xs.mean(0)
    del unused
    return released * 2.0 + size[0], size, rest


def statuses(step) -> dict[str, str]:
    """Status by source text, of the lines of this file."""
    page = page_of(outcome_of(step))
    return {page.code[row].strip(): found for row, found in page.status.items()}


def test_statuses_of_a_proved_program():
    found = statuses(straight)
    assert found["rows = dp.clip_records(xs, C)"] == "≡ rows ≤ 2"
    assert found["total = dp.sum_records(rows, mask)"] == "Σ sum ≤ 2"
    assert found["own, rest = jax.random.split(key)"] == "◆ key"
    assert found["size = jnp.ones(2) * 3.0"] == "○ public"
    assert found["released = noisy(own, total, 1.5 * C)"] == "✓ released"
    assert found["return released * 2.0 + size[0], size, rest"] == "✓ released"
    assert found["def straight(w, xs, ys, mask, key):"] == "≡ rows"
    # In the file of the helper, too.
    assert found["return dp.gaussian_mechanism(key, tree, stddev)"] == "✓ released"
    assert not any("unused" in text for text in found)


def test_a_line_has_the_status_of_what_leaves_it():
    found = statuses(refused.one_leaf_without_noise)
    assert found["return dp.sum_records(dp.clip_records(gradients(w, xs, ys), norm), mask)"] == "Σ sum ≤ 2"
    assert found["s = clipped_sum(w, xs, ys, mask)"] == "Σ sum ≤ 2"
    inside = "Σ sum over records, to which one adds at most 2"
    assert inside in " ".join(page_of(outcome_of(refused.one_leaf_without_noise)).text.split())


def test_an_unreleased_sum_beside_its_release_is_not_hidden():
    def step(w, xs, ys, mask, key):
        return noisy(key, s := dp.sum_records(dp.clip_records(xs, C), mask), 1.5 * C), s

    assert (
        statuses(step)["return noisy(key, s := dp.sum_records(dp.clip_records(xs, C), mask), 1.5 * C), s"]
        == "Σ sum ≤ 2"
    )


def test_loops_show_their_last_turn_and_branches_all():
    def step(w, xs, ys, mask, key):
        def turn(total, key):
            released = noisy(key, dp.sum_records(dp.clip_records(xs + total, C), mask), 1.5 * C)
            doubled = 2.0 * total
            return released, doubled

        return jax.lax.scan(turn, jnp.zeros(3), jax.random.split(key, 3))

    found = statuses(step)
    # In the first turn it is a constant.
    assert found["doubled = 2.0 * total"] == "✓ released"
    assert found["return jax.lax.scan(turn, jnp.zeros(3), jax.random.split(key, 3))"] == "✓ released"


def test_one_function_called_twice_shows_the_worse():
    @jax.jit
    def double(x):
        return 2.0 * x

    def step(w, xs, ys, mask, key):
        total = double(dp.sum_records(dp.clip_records(xs, C), mask))
        return double(noisy(key, total, 3.0 * C))

    found = statuses(step)
    assert found["return 2.0 * x"] == "Σ sum ≤ 4"
    assert found["return double(noisy(key, total, 3.0 * C))"] == "✓ released"


def test_public_loops_are_public_within():
    def step(w, xs, ys, mask, key):
        def turn(i, x):
            return x + 1.0

        rate = jax.lax.fori_loop(0, w["a"].shape[0], turn, w["b"])
        return rate, noisy(key, clipped_sum(w, xs, ys, mask), 3.0)

    assert statuses(step)["return x + 1.0"] == "○ public"


def test_what_was_not_reached():
    found = statuses(refused.private_while)
    assert found["return noisy(key, shrunk, Z * C)"] == "· unread"
    assert found["s = clipped_sum(w, xs, ys, mask)"] == "Σ sum ≤ 2"


CASES = [getattr(refused, case.id) for case in refused.REFUSED]


@pytest.mark.parametrize("step", [straight, *CASES[::10], refused.debug_print], ids=lambda step: step.__name__)
def test_every_line_of_every_file_once(step):
    page = page_of(outcome_of(step))
    assert html_page(outcome_of(step)).count('<p class="end">') == (step is not straight)
    shown: dict[str, list[str]] = {}
    for row, text in page.code.items():
        shown.setdefault(row.split("-")[0], []).append(text)
    sources = [linecache.getlines(x.__file__) for x in (refused, programs)] + [linecache.getlines(__file__)]
    assert shown
    for lines in shown.values():
        assert [text + "\n" for text in lines] in sources
    assert len(set(page.anchors)) == len(page.anchors)
    assert all(link.startswith("#") and link[1:] in page.anchors for link in page.links)
    assert bool(page.links) == (step is not straight)


def test_links_lead_to_the_lines_of_the_chain():
    error = outcome_of(refused.centred)
    page = page_of(error)
    assert len(page.links) == len(error.chain)
    for link, line in zip(page.links[1:], error.chain[1:], strict=True):
        assert line.endswith(page.code[link[1:]].strip())
    assert page.code[page.links[0][1:]] == "def centred(w, xs, ys, mask, key):"


def test_the_source_stays_text(scripted):
    proved = page_of(dp.certify(scripted.step, *ARGUMENTS, records=1, mask=2))
    with pytest.raises(dp.PrivacyError) as caught:
        dp.certify(scripted.leak, *ARGUMENTS, records=1, mask=2)
    for page in (proved, page_of(caught.value)):
        assert "\n".join(page.code.values()) + "\n" == SCRIPTED
        assert not {"script", "img", "iframe", "link"} & set(page.tags)
        assert page.tags.count("b") == len(page.links)
    assert "result['<img src=x onerror=alert(2)>']" in page.text
    assert "https://" not in html_page(caught.value)


def test_the_verdict(scripted):
    certificate = dp.certify(scripted.step, *ARGUMENTS, records=1, mask=2)
    page = page_of(certificate)
    assert f"Proved. ε = {upper(certificate.epsilon(1e-5))} at δ = 1e-5" in page.text
    for text in ("GaussianDpEvent(noise_multiplier=3.0)", "1e-8", certificate.fingerprint, *certificate.assumptions):
        assert text in page.text
    error = outcome_of(refused.no_noise)
    text = page_of(error).text
    assert "No proof of privacy. Output result['a'] leaks." in text
    assert error.rule in text
    assert error.remedy in text


def test_a_program_that_does_not_trace(scripted):
    def branchy(w, xs, ys, mask, key):
        if xs.sum() > 0:
            return w
        return xs

    error = outcome_of(branchy)
    assert "cannot be traced" in error.rule
    assert error.chain[-1].endswith("(branchy): if xs.sum() > 0:")
    assert "jnp.where" in error.remedy
    page = page_of(error)
    assert page.code[page.links[-1][1:]].strip() == "if xs.sum() > 0:"


def test_an_error_that_is_no_refusal_shows_its_place_and_not_its_message():
    def broken(w, xs, ys, mask, key):
        raise KeyError("secretcell")

    try:
        certify(broken)
    except KeyError as error:
        text = html_page(error)
    page = Page(text)
    assert "KeyError" in page.text
    assert "The program failed here" in page.text
    # The line itself is source, and source is shown.
    assert text.count("secretcell") == html.unescape(text).count("secretcell")
    assert page.code[page.links[-1][1:]].strip() == 'raise KeyError("secretcell")'


def test_a_function_without_source():
    space: dict = {}
    exec("def step(w, xs, ys, mask, key):\n    return xs.sum(0)\n", space)
    page = page_of(outcome_of(space["step"]))
    assert "The source cannot be read." in page.text


def test_only_the_users_files(scripted):
    page = page_of(dp.certify(scripted.step, *ARGUMENTS, records=1, mask=2))
    assert set(re.findall(r"\S+\.py", page.text)) == {scripted.__file__}
