"""What the site needs beside docs/: files that lie elsewhere in the repository, and links to them that hold in both places."""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Where they lie, and where the site has them.
ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/batch_sweep.svg": "benchmarks/batch_sweep.svg",
    "benchmarks/first_answer.svg": "benchmarks/first_answer.svg",
    "benchmarks/posteriors.svg": "benchmarks/posteriors.svg",
    "benchmarks/results.md": "benchmarks/results.md",
    "examples/adult.schema.toml": "examples/adult.schema.toml",
}


def on_files(files: Any, config: Any) -> Any:
    """Add the files from elsewhere."""
    from mkdocs.structure.files import File

    for source, place in ELSEWHERE.items():
        if not (ROOT / source).is_file():  # a picture of what was not measured yet
            continue
        files.append(
            File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8"))
        )
    return files


def readme_example() -> str:
    """The example of the README with its output, which the first page shows, too."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^## Example\n(.*?^```text\n.*?^```$)", text, re.DOTALL | re.MULTILINE)
    assert example is not None, "README.md has no section Example that ends with what it prints"
    return example[1].strip()


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """Turn links that are right in the repository into those of the site."""
    del others
    if page.file.src_uri == "index.md":
        markdown = markdown.replace(
            "[An example to paste and run](../README.md#example)", readme_example()
        )
    if page.file.src_uri in ELSEWHERE.values():  # the text of a file at the root
        return re.sub(r"\]\(docs/", "](", markdown)
    up = "../" * page.file.src_uri.count("/")
    for source, place in ELSEWHERE.items():
        markdown = markdown.replace(f"]({up}../{source}", f"]({up}{place}")
    return markdown


def on_page_content(html: str, page: Any, files: Any, **others: Any) -> str:
    """Turn a notebook's links to pages into those of the site, which mkdocs-jupyter leaves as they are."""
    from mkdocs.plugins import get_plugin_logger

    del others
    if not page.file.src_uri.endswith(".py"):
        return html

    def link(found: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), found[1]))
        there = files.get_file_from_path(place)
        if there is None:
            get_plugin_logger(__name__).warning(
                "%s links to %s, which is no page", page.file.src_uri, found[1]
            )
            return found[0]
        return f'href="{there.url_relative_to(page.file)}"'

    # Its script for formulas, which no notebook here has, would come from elsewhere; without an address it is an empty one.
    return re.sub(
        r'href="([\w./-]+\.(?:md|py))(?=[#"])"', link, html.replace('<script src=""></script>', "")
    )
