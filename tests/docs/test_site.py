"""The documentation is a site that builds without a warning, has every public name, and is all its own."""

import ast
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.methods import METHODS
from tests.test_house import STOREYS, rooms_of

import discreet as dp

LOADED = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)"""
)
DOCUMENTED = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
EXPORTED = re.compile(r"^::: discreet\.(\w+)$", re.MULTILINE)


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    # Not --quiet, which keeps warnings from being counted.
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(folder),
    ]
    # Notebooks are run by test_notebooks.py.
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "NO_COLOR": "1",
        "EXECUTE_NOTEBOOKS": "false",
    }
    return subprocess.run(
        command, cwd=config.parent, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def site(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it, in another place."""
    pytest.importorskip("mkdocs_jupyter")  # of the extra `docs`, in which `make test` runs
    folder = tmp_path_factory.mktemp("site")
    built = build(repository / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_nothing_is_fetched_when_the_site_is_read(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in [*pages, *site.rglob("*.css")]:
        text = page.read_text(encoding="utf-8")
        assert not LOADED.findall(text), f"{page.relative_to(site)} loads {LOADED.findall(text)[0]}"
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", text), page.relative_to(
            site
        )


@pytest.mark.essential
def test_links_that_lead_nowhere_and_pages_in_no_list_are_refused(
    repository: Path, tmp_path: Path
) -> None:
    """Planted faults, by the rules of the site."""
    config = f"INHERIT: {repository}/mkdocs.yml\ndocs_dir: pages\nnav: [index.md]\nplugins: []\nhooks: []\n"
    (tmp_path / "mkdocs.yml").write_text(config)
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text(
        "# Here\n\n[a](gone.md), [b](other.md#gone), [c](#nowhere)\n"
    )
    (tmp_path / "pages" / "other.md").write_text("# There\n")
    built = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert built.returncode == 1
    for fault in ("'gone.md'", "'#gone'", "'#nowhere'", "- other.md"):
        assert fault in built.stderr, f"{fault} is not among\n{built.stderr}"
    assert built.stderr.count("WARNING") == 4


def test_links_of_notebooks_lead_to_pages(site: Path) -> None:
    """mkdocs-jupyter leaves them as they are in the repository."""
    pages = list((site / "notebooks").glob("*.html"))
    assert len(pages) == 8
    for page in pages:
        for link in re.findall(r'href="(?!https?:)([\w./-]+)', page.read_text(encoding="utf-8")):
            assert link in (".", "..") or (page.parent / link).is_file(), (
                f"{page.name} links to {link}"
            )


def test_what_lies_outside_docs_is_there(site: Path) -> None:
    changes = (site / "changelog.html").read_text(encoding="utf-8")
    assert 'href="twins.html"' in changes
    assert "make test" in (site / "contributing.html").read_text(encoding="utf-8")
    assert 'src="benchmarks/batch_sweep.svg"' in (site / "benchmarks.html").read_text(
        encoding="utf-8"
    )
    assert (site / "benchmarks" / "batch_sweep.svg").is_file()


def test_doctests_and_their_sources_are_shown(site: Path) -> None:
    page = (site / "reference" / "mechanisms.html").read_text(encoding="utf-8")
    entry = page[page.index('id="discreet.clip_records"') : page.index('id="discreet.sum_records"')]
    assert "Abadi et al." in entry
    assert 'class="gp"' in entry  # a prompt, coloured as code


def test_every_public_name_is_in_the_reference(repository: Path) -> None:
    pages = (repository / "docs" / "reference").glob("*.md")
    named = [name for page in pages for name in EXPORTED.findall(page.read_text(encoding="utf-8"))]
    assert len(named) == len(set(named))
    assert set(named) == set(dp.__all__) - {"random"}  # a room of its own: reference/random.md
    index = (repository / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    assert set(dp.__all__) - {"random"} <= set(re.findall(r"`(\w+)`", index))


def test_every_name_in_the_reference_exists(repository: Path) -> None:
    """`make docs` fails of a name that is gone, after two minutes."""
    pages = (repository / "docs" / "reference").glob("*.md")
    named = [
        name for page in pages for name in DOCUMENTED.findall(page.read_text(encoding="utf-8"))
    ]
    assert len(named) > 150
    found = {pkgutil.resolve_name(name) for name in named}
    acts = {entry.act.__name__: entry.act for entry in METHODS.values()}
    missing = {name for name, act in acts.items() if name != "run" and act not in found}
    assert not missing, "document each private method in docs/reference/"


@pytest.mark.parametrize("storey", STOREYS)
def test_the_reference_lists_the_modules_of_each_storey(storey: str, repository: Path) -> None:
    index = (repository / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(rf"^- `discreet\.{storey}`: (.*)$", index, re.MULTILINE)
    assert listed == [", ".join(name for name in rooms_of(storey) if name != "cli")]


def messages(repository: Path) -> str:
    """All that errors of discreet say, without what they fill in."""
    told: list[str] = []
    for path in (repository / "src" / "discreet" / "methods" / "inference").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                told.append(
                    "".join(x.value if isinstance(x, ast.Constant) else "" for x in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                told.append(node.value)
    return "\n".join(told)


def test_the_refusals_of_the_page_are_those_of_the_code(repository: Path) -> None:
    page = (repository / "docs" / "your-model.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(quoted) >= 14
    told = messages(repository)
    for message in quoted:
        assert message in told, f"no error says: {message}"


def test_files_that_pages_name_are_there(repository: Path) -> None:
    for page in (repository / "docs").glob("*.md"):
        for name in re.findall(
            r"`((?:tests|examples|benchmarks)/[\w/.-]+)`", page.read_text(encoding="utf-8")
        ):
            assert (repository / name).exists(), f"{page.name} names {name}"
    for page in (repository / "CONTRIBUTING.md", repository / "docs" / "architecture.md"):
        named = re.findall(
            r"`(?:discreet/)?((?:\w+/)*_?\w+\.py)`", page.read_text(encoding="utf-8")
        )
        assert len(named) > 10
        for name in named:
            places = (
                repository / "src" / "discreet",
                repository / "tests",
                repository / "tests" / "verify",
                repository,
            )
            assert any((place / name).is_file() for place in places), f"{page.name} names {name}"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("README.md", ["pip install discreet"]),
        ("docs/index.md", ["pip install discreet"]),
        ("docs/migrating-from-d3p.md", ["d3p/pull/14"]),
    ],
    ids=["README", "index", "d3p"],
)
def test_what_people_look_for_is_on_the_page(repository: Path, page: str, words: list[str]) -> None:
    text = (repository / page).read_text(encoding="utf-8")
    assert [word for word in words if word not in text] == []


def test_make_targets_that_pages_name_are_there(repository: Path) -> None:
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    for page in (
        repository / "README.md",
        repository / "CONTRIBUTING.md",
        *(repository / "docs").glob("*.md"),
    ):
        for name in re.findall(
            r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE
        ):
            assert re.search(rf"^(?:[\w-]+ )*{name}(?: [\w-]+)*:", makefile, re.MULTILINE), (
                f"{page.name}: make {name}"
            )


@pytest.mark.exhaustive
def test_the_models_of_the_page_are_accepted(repository: Path, quick_compilation) -> None:
    import numpy as np
    import numpyro

    del quick_compilation
    page = (repository / "docs" / "your-model.md").read_text(encoding="utf-8")
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/your-model.md", "exec"), names)
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(rate=0.1),
        clipping_norm=1.0,
        noise_multiplier=1.0,
        num_steps=5,
        num_records=50,
    )
    x, y = np.zeros((50, 2), np.float32), np.zeros(50, np.float32)
    optim = numpyro.optim.Adam(0.01)
    dp.DPSVI(names["model"], names["guide"], optim, plan=plan).init(dp.random.key(), x, y)
    memory = dp.DPSVI(names["codes"], names["remembered"], optim, plan=plan, **names["memory"])
    assert memory.run(dp.random.key(), x, progress_bar=False).statement.is_private


def test_nothing_that_people_copy_has_a_clipping_norm_of_one(repository: Path) -> None:
    """At C = 1, which README and pages taught, fits of most models were biased without a word. Rules and others are fine."""
    pages = [
        repository / "README.md",
        *(repository / "docs").glob("*.md"),
        *(repository / "src").rglob("*.py"),
    ]
    assert len(pages) > 100
    for page in pages:
        found = re.search(
            r"clipping_norm=1(\.0)?\b(?!\.)|--clip[ =]1(\.0)?\b(?!\.)",
            page.read_text(encoding="utf-8"),
        )
        assert not found, f"{page.relative_to(repository)}: {found}"
