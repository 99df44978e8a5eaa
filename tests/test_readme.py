"""README's example runs when pasted, prints what README shows, and agrees with the fit without privacy."""

import re
from pathlib import Path

import jax
import numpy as np
import numpyro
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

NUMBER = r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?"


def fit_without_privacy(names: dict) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mean and standard deviation of the weights by NumPyro's SVI, on the example's model and data."""
    guide = AutoNormal(names["model"])
    svi = SVI(names["model"], guide, numpyro.optim.Adam(0.02), Trace_ELBO())
    params = svi.run(jax.random.key(0), 3_000, names["x"], names["y"], progress_bar=False).params
    return np.asarray(params["weights_auto_loc"]), np.asarray(params["weights_auto_scale"])


def check_means(names: dict) -> None:
    """The private means lie within two posterior standard deviations of NumPyro's.

    The noise is real (from the operating system). It has a standard deviation of 0.4 of the
    posterior's: a false alarm in fewer than one run in 10,000.
    """
    mean, stddev = fit_without_privacy(names)
    np.testing.assert_array_less(np.abs(names["result"].estimate["weights"] - mean), 2.0 * stddev)


@pytest.mark.essential
def test_the_example_prints_what_the_page_shows(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)\.\.\.\n```", text, flags=re.DOTALL)
    names: dict = {}
    exec(compile(block, "README.md", "exec"), names)
    check_means(names)

    # In few fits the noise is such that the verdict names a weight.
    out = re.sub(r", most of all [^.]*\.", ".", capsys.readouterr().out)
    printed = [line.strip() for line in out.splitlines() if line.strip()]
    expected = [line.strip() for line in shown.splitlines() if line.strip()]
    for ours, theirs in zip(expected, printed, strict=False):
        assert re.sub(rf"{NUMBER}|\s", "", ours) == re.sub(rf"{NUMBER}|\s", "", theirs)
        np.testing.assert_allclose(
            [float(x) for x in re.findall(NUMBER, ours)],
            [float(x) for x in re.findall(NUMBER, theirs)],
            atol=0.15,
        )


@pytest.mark.exhaustive
def test_columns_of_any_scale_do(repository: Path) -> None:
    """Of standard-normal columns most gradients are longer than 1; with a fixed clipping norm of 1 this fails."""
    text = (repository / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict = {}
    other = block.replace("rng.uniform(-1, 1,", "rng.normal(0, 1,")
    assert other != block
    exec(compile(other, "README.md", "exec"), names)
    check_means(names)


def test_links_lead_somewhere(repository: Path) -> None:
    pages = [
        repository / "README.md",
        repository / "CONTRIBUTING.md",
        *(repository / "docs").glob("*.md"),
    ]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
