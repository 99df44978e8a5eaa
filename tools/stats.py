"""Count what a newcomer has to read: tokens, lines, names, the functions of one fit, and what methods cannot be asked.

`make stats` prints the table. Tokens are those of Python's tokenizer without comments, docstrings,
line ends and indentation. The functions of a fit come from a real one under a profiler
(`sys.setprofile`), beside NumPyro's own `SVI.run` on the same model. Holes are options and results
that a method does not have, though it needs them and another one has them; its signature and its
result's class are asked.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = REPOSITORY / "src" / "discreet"


def tracked(*patterns: str) -> list[Path]:
    """Files that git tracks and that exist."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        path
        for name in sorted(set(listed.stdout.split("\0")))
        if name and (path := REPOSITORY / name).is_file()
    ]


def lines_of(paths: list[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def docstring_lines(tree: ast.AST) -> set[int]:
    """Numbers of the lines of docstrings, and of the strings that stand below an attribute."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def code_of(text: str) -> tuple[int, int]:
    """Tokens of code and lines that hold some."""
    prose = docstring_lines(ast.parse(text))
    lines = iter(text.splitlines(keepends=True))
    tokens = [
        token
        for token in tokenize.generate_tokens(lambda: next(lines, ""))
        if token.type not in _LAYOUT and token.start[0] not in prose
    ]
    # A string of several lines is on all of them.
    held = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return len(tokens), len(held)


def is_packed(statement: ast.Assign) -> bool:
    """Whether several values are assigned to as many names at once: `a, b = x, y`."""
    return isinstance(statement.value, ast.Tuple) and isinstance(statement.targets[0], ast.Tuple)


def source_counts() -> dict[str, int | str]:
    """Counts of src: files, tokens, lines, packages, functions, banners, packed assignments, comment lines a thousand."""
    paths = tracked("src/*.py")
    texts = [path.read_text(encoding="utf-8") for path in paths]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    counted = [code_of(text) for text in texts]
    tokens = sum(count for count, _ in counted)
    code_lines = sum(count for _, count in counted)
    assignments = [node for node in nodes if isinstance(node, ast.Assign)]
    packed = sum(is_packed(node) for node in assignments)
    comments = sum(line.lstrip().startswith("#") for text in texts for line in text.splitlines())
    lines = lines_of(paths)
    return {
        "files in src": len(paths),
        "lines in src": lines,
        "lines of code in src": code_lines,
        "tokens of code in src": tokens,
        "tokens a line of code": f"{tokens / code_lines:.1f}",
        "packages": sum(
            (folder / "__init__.py").is_file() for folder in SOURCES.iterdir() if folder.is_dir()
        ),
        "functions": sum(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes
        ),
        "banners (# ---)": sum(
            line.lstrip().startswith("# ---") for text in texts for line in text.splitlines()
        ),
        "packed assignments": f"{packed} ({packed / len(assignments):.1%})",
        "comment lines a thousand": round(1000 * comments / lines),
    }


OPTIONS = "ledger", "person", "max_rows", "checkpoint", "mesh", "progress_bar", "require_proof"
RESULTS = "plan", "statement", "save", "to_dict", "_repr_html_", "to_arviz"


def methods() -> dict[str, Any]:
    """The entries of tests/methods.py by the names of their acts."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.methods import METHODS

    return {entry.act.__qualname__: entry for entry in METHODS.values()}


def lacking() -> dict[str, list[str]]:
    """What each method has not of `OPTIONS`, by its signature, and of `RESULTS`, by its result's attributes."""

    def has(result: type, name: str) -> bool:
        return hasattr(result, name) or name in getattr(result, "__dataclass_fields__", {})

    return {
        name: [x for x in OPTIONS if x not in inspect.signature(entry.act).parameters]
        + [x for x in RESULTS if not has(entry.result, x)]
        for name, entry in methods().items()
    }


def holes() -> dict[str, list[str]]:
    """What each method lacks and needs."""
    entered = methods()
    return {
        name: [word for word in words if word not in entered[name].lacks]
        for name, words in lacking().items()
    }


def hole_counts() -> dict[str, int | str]:
    """Number of holes, and their names by method."""
    found = holes()
    lines = {f"  {name}": ", ".join(missing) or "none" for name, missing in found.items()}
    return {"holes: what a method cannot be asked": sum(map(len, found.values())), **lines}


def text_counts() -> dict[str, int]:
    """Counts of tests and documents, and of the public names."""
    import discreet

    texts = [path.read_text(encoding="utf-8") for path in tracked("docs/*.md")]
    # Of a notebook, its sentences: what stands in cells of comments.
    books = [path.read_text(encoding="utf-8") for path in tracked("docs/notebooks/*.py")]
    texts += [" ".join(re.findall(r"^# (?!%%)(.*)$", book, re.MULTILINE)) for book in books]
    words = [re.findall(r"\S+", text) for text in texts]
    return {
        "lines of tests": lines_of(tracked("tests/*.py")),
        "words in docs/": sum(map(len, words)),
        "words in README": len(
            re.findall(r"\S+", (REPOSITORY / "README.md").read_text(encoding="utf-8"))
        ),
        "names in dp.*": len(discreet.__all__),
    }


def passed_through(act: Callable[[], Any], package: str) -> tuple[int, int]:
    """Files and functions of a package that run during a call; the bodies of classes that it imports are none."""
    seen: set[tuple[str, str, int]] = set()

    def look(frame: Any, event: str, argument: Any) -> None:
        del argument
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and package in code.co_filename and is_function:
            seen.add((code.co_filename, code.co_name, code.co_firstlineno))

    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(None)
    return len({file for file, _, _ in seen}), len(seen)


def fit_counts() -> dict[str, str]:
    """Files and functions that a calibration and a fit run through, and those of NumPyro's `SVI.run`."""
    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    import discreet as dp

    def model(x: Any, y: Any = None) -> None:
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

    x = np.random.default_rng(0).uniform(-1, 1, (200, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.float32)

    def private() -> None:
        plan = dp.PrivacyPlan.calibrate(
            epsilon=1.0,
            delta=1e-6,
            num_records=200,
            num_steps=20,
            sampling=dp.PoissonSampling(rate=0.1),
            clipping_norm=1.0,
        )
        dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(0.02), plan=plan).run(
            dp.random.key(), x, y, progress_bar=False
        )

    def plain() -> None:
        svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.02), Trace_ELBO())
        svi.run(jax.random.key(0), 20, x, y, progress_bar=False)

    ours = passed_through(private, str(SOURCES))
    theirs = passed_through(plain, str(Path(numpyro.__file__).parent / "infer"))
    return {
        "files, functions of ours that a fit runs": f"{ours[0]}, {ours[1]}",
        "files, functions of numpyro.infer in SVI.run": f"{theirs[0]}, {theirs[1]}",
    }


if __name__ == "__main__":
    for name, count in {
        **source_counts(),
        **text_counts(),
        **fit_counts(),
        **hole_counts(),
    }.items():
        print(f"{name:<48}{count:>12,}" if isinstance(count, int) else f"{name:<48}{count:>12}")
