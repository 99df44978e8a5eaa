"""The examples of docs/models.md run as printed, but for the fits: those of the tests of the models are real."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

import discreet as dp
from discreet.tables import schema_from_bounds

ROWS = 12


def run(self, key, *records, **options):
    """In the place of a fit: draws of the latents from the prior, in the form of a posterior."""
    del key, options
    assert self.plan.num_records == 30_000
    assert {len(part) for part in records} == {ROWS}
    records = tuple(jnp.asarray(part) for part in records)

    def posterior(key, num_samples):
        del key
        with numpyro.handlers.seed(rng_seed=0):
            trace = numpyro.handlers.trace(self.model).get_trace(*records)
        latents = {name: s["value"] for name, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}
        return {name: np.stack([value] * num_samples) for name, value in latents.items() if name != "z"}

    return SimpleNamespace(posterior=posterior, plan=self.plan)


@pytest.fixture(scope="module")
def blocks(repository) -> list[str]:
    text = (repository / "docs" / "models.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.exhaustive
def test_the_examples_run_as_printed(blocks, monkeypatch) -> None:
    monkeypatch.setattr("discreet.inference.DPSVI.run", run)
    monkeypatch.setattr("discreet.plan.calibrate_noise_multiplier", lambda *args, **options: 5.0)
    rng = np.random.default_rng(0)
    names = {
        "dp": dp,
        "x": rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "y": rng.integers(0, 2, ROWS).astype(np.float32),
        "counts": rng.integers(0, 9, ROWS).astype(np.float32),
        "classes": rng.integers(0, 3, ROWS),
        "group": rng.integers(0, 5, ROWS),
        "schema": schema_from_bounds("age=0:9,smoker=no|yes"),
        "numbers": schema_from_bounds("age=0:9,height=100:220"),
        "table": {"age": [3.0] * ROWS, "smoker": ["no"] * ROWS, "height": [170.0] * ROWS},
    }
    for block in blocks:
        lines = [line for line in block.splitlines() if line and not line.startswith(("from ", "import "))]
        assert len(lines) == 4
        names.pop("draws", None)
        names.pop("twins", None)
        exec(compile(block, "docs/models.md", "exec"), names)
        if "draws" in block:
            promised = re.search(r"# (.*)$", lines[-1]).group(1)
            told = {name for name in re.findall(r"\w+", promised) if name in names["draws"]}
            assert told >= {"intercept", "weights"} or told >= {"group_intercept", "group_weights"}
            assert all(len(values) == 1_000 for values in names["draws"].values())
        else:
            assert [len(twin) for twin in names["twins"]] == [1_000] * 5
    assert len(blocks) == 10
    assert jax.tree.all(
        jax.tree.map(lambda values: bool(np.isfinite(values).all()), names["result"].posterior(None, 1))
    )
