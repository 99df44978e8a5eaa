"""The README's example runs as printed."""

import re
from pathlib import Path

import numpy as np
import pytest


@pytest.mark.slow
def test_the_ten_lines_run(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10_000, 5)).astype(np.float32)
    truth = np.array([1.0, -1.0, 0.5, 0.0, 0.0])
    y = (rng.random(10_000) < 1 / (1 + np.exp(-x @ truth))).astype(np.float32)

    names: dict = {"x": x, "y": y}
    exec(compile(block, "README.md", "exec"), names)

    assert np.shape(names["draws"]["weights"]) == (1_000, 5)
    # The noise is real (OS entropy): at epsilon 1 the weights come out within about 0.1 of the truth.
    np.testing.assert_allclose(np.mean(names["draws"]["weights"], axis=0), truth, atol=0.6)
    printed = capsys.readouterr().out
    assert "epsilon" in printed.lower() or "ε" in printed


def test_links_lead_somewhere(repository: Path) -> None:
    pages = [repository / "README.md", repository / "CONTRIBUTING.md", *(repository / "docs").glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
