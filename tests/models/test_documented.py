"""The examples of docs/models.md run as printed, but for the fits: those of the tests of the models are real."""

import ast
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

import discreet as dp
from discreet.tabular.tables import schema_from_bounds

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
        latents = {
            name: s["value"]
            for name, s in trace.items()
            if s["type"] == "sample" and not s["is_observed"]
        }
        return {name: np.stack([value] * num_samples) for name, value in latents.items()}

    return SimpleNamespace(posterior=posterior, plan=self.plan)


# The regressions that take the place of the page's first one, and their targets.
OTHERS = {
    "linear_regression": "y",
    "poisson_regression": "counts",
    "negative_binomial_regression": "counts",
    "multinomial_regression(3)": "classes",
}


def programs(page: str) -> dict[str, str]:
    """Four lines for each model of the page: its examples, and those that it says are made from them."""
    regression, groups, table = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    found = {"logistic_regression": regression, "hierarchical": groups, "MixtureOfProducts": table}
    for model, target in OTHERS.items():
        imported = regression.replace(
            "import defaults_for, logistic_regression",
            f"import defaults_for, {model.split('(')[0]}",
        )
        found[model] = imported.replace("(logistic_regression)", f"({model})").replace(
            "x, y)", f"x, {target})"
        )
    return found


@pytest.mark.exhaustive
def test_the_examples_run_as_printed(repository, monkeypatch) -> None:
    monkeypatch.setattr("discreet.methods.inference.DPSVI.run", run)
    monkeypatch.setattr(
        "discreet.privacy.plan.calibrate_noise_multiplier", lambda *args, **options: 5.0
    )
    page = (repository / "docs" / "models.md").read_text(encoding="utf-8")
    promised = dict(
        re.findall(r"^\| .*? \| `(\w+)(?:\(.*?\))?` \| (.*?) \| (?!\d)", page, flags=re.MULTILINE)
    )
    assert len(promised) >= 7
    rng = np.random.default_rng(0)
    names = {
        "dp": dp,
        "x": rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "y": rng.integers(0, 2, ROWS).astype(np.float32),
        "counts": rng.integers(0, 9, ROWS).astype(np.float32),
        "classes": rng.integers(0, 3, ROWS),
        "group": rng.integers(0, 5, ROWS),
        "schema": schema_from_bounds("age=0:9,smoker=no|yes"),
        "table": {"age": [3.0] * ROWS, "smoker": ["no"] * ROWS},
    }
    done = programs(page)
    for model, block in done.items():
        body = ast.parse(block).body
        assert len([x for x in body if not isinstance(x, ast.Import | ast.ImportFrom)]) == 4
        assert model.split("(")[0] in block
        names.pop("draws", None)
        names.pop("twins", None)
        exec(compile(block, "docs/models.md", "exec"), names)
        if "draws" in names:
            sites = set(re.findall(r"\w+", promised[model.split("(")[0]])) - {
                "and",
                "the",
                "population",
                "s",
            }
            assert len(sites) >= 2
            assert sites <= set(names["draws"])
            assert all(len(values) == 1_000 for values in names["draws"].values())
        else:
            assert [len(twin) for twin in names["twins"]] == [1_000] * 5
    assert {model.split("(")[0] for model in done} == set(promised)
    assert jax.tree.all(
        jax.tree.map(
            lambda values: bool(np.isfinite(values).all()), names["result"].posterior(None, 1)
        )
    )
