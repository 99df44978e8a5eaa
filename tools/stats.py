"""Count what a newcomer has to read: files, lines, names, and the files that one fit passes through.

`make stats` prints the table. The last figures come from a real fit under a profiler (`sys.setprofile`), beside NumPyro's
own `SVI.run` on the same model.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = REPOSITORY / "src" / "discreet"


def tracked(*patterns: str) -> list[Path]:
    """Files that git tracks and that exist."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return [path for name in sorted(set(listed.stdout.split("\0"))) if name and (path := REPOSITORY / name).is_file()]


def lines_of(paths: list[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def source_counts() -> dict[str, int]:
    """Counts of src: files, lines, packages, functions, comment lines a thousand."""
    paths = tracked("src/*.py")
    texts = [path.read_text(encoding="utf-8") for path in paths]
    functions = sum(
        isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for t in texts for n in ast.walk(ast.parse(t))
    )
    comments = sum(line.lstrip().startswith("#") for text in texts for line in text.splitlines())
    lines = lines_of(paths)
    return {
        "files in src": len(paths),
        "lines in src": lines,
        "packages": sum((folder / "__init__.py").is_file() for folder in SOURCES.iterdir() if folder.is_dir()),
        "functions": functions,
        "comment lines a thousand": round(1000 * comments / lines),
    }


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
        "words in README": len(re.findall(r"\S+", (REPOSITORY / "README.md").read_text(encoding="utf-8"))),
        "names in dp.*": len(discreet.__all__),
    }


def passed_through(act: Callable[[], Any], package: str) -> tuple[int, int]:
    """Files and functions of a package that run during a call."""
    seen: set[tuple[str, str, int]] = set()

    def look(frame: Any, event: str, argument: Any) -> None:
        del argument
        code = frame.f_code
        if event == "call" and package in code.co_filename and not code.co_name.startswith("<"):
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
    for name, count in {**source_counts(), **text_counts(), **fit_counts()}.items():
        print(f"{name:<48}{count:>12,}" if isinstance(count, int) else f"{name:<48}{count:>12}")
