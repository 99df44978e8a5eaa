"""The first program of docs/fitting.md and the one of many fits run, on a small table and for few steps."""

import dataclasses
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal

import discreet as dp


def model(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def test_a_fit(repository: Path, quick_compilation: None) -> None:
    del quick_compilation
    page = (repository / "docs" / "fitting.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    first = blocks[0]
    small = first.replace("num_records=32_561", "num_records=200").replace(
        "num_steps=2_000", "num_steps=20"
    )
    assert small.count("=20") == 2
    rng = np.random.default_rng(0)
    xs = rng.uniform(-1, 1, (200, 3)).astype(np.float32)
    names = {
        "dp": dp,
        "jax": jax,
        "dataclasses": dataclasses,
        "numpyro": numpyro,
        "model": model,
        "AutoNormal": AutoNormal,
    }
    names |= {"xs": xs, "ys": (xs[:, 0] > 0).astype(np.float32)}
    exec(compile(small, "docs/fitting.md", "exec"), names)
    assert names["result"].statement.is_private


def test_the_first_page_has_the_program_of_the_readme(repository: Path) -> None:
    """One program, which tests/test_readme.py runs; the hook puts it into the site's first page."""
    files = runpy.run_path(str(repository / "docs" / "hooks" / "files.py"))
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    shown = files["on_page_markdown"](
        (repository / "docs" / "index.md").read_text(encoding="utf-8"), page=page
    )
    readme = (repository / "README.md").read_text(encoding="utf-8")
    programs = [re.findall(r"```python\n(.*?)```", text, re.DOTALL) for text in (shown, readme)]
    assert len(programs[0]) == 1
    assert programs[0] == programs[1]
