"""Compare statements and releases of fixed plans and seeds with those of another commit.

    python tools/same_as_before.py BEFORE AFTER

BEFORE and AFTER are folders with a `src`, such as two clones. Each method runs once in each, with
the same seed. Printed are the methods whose numbers differ in a bit, and the lines of the
statements that differ; the exit code is 1 if a number does.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_all() -> dict[str, tuple[str, str]]:
    """By method, a hash of what it released and its statement."""
    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.autoguide import AutoNormal

    import discreet as dp
    from discreet.methods.moments import MomentsPlan, fit_moments
    from discreet.methods.newton import ModelPlan, NewtonPlan, fit_newton
    from discreet.tabular.tables import schema_from_bounds

    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (3_000, 2))
    y = x @ [0.5, -0.3] + rng.normal(0, 0.1, 3_000)
    small, labels = x.astype(np.float32), (y > 0).astype(np.float32)

    def model(x: Any, y: Any = None) -> None:
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("n", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

    def plan(**changes: Any) -> dp.PrivacyPlan:
        usual = {"epsilon": 1.0, "delta": 1e-6, "num_records": 3_000, "num_steps": 60}
        return dp.PrivacyPlan.calibrate(**{**usual, "sampling": dp.PoissonSampling(0.1), **changes})

    def by_steps(plan: dp.PrivacyPlan, **how: Any) -> Any:
        dpsvi = dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(0.02), plan=plan)
        return dpsvi.run(dp.random.key(7), small, y=labels, progress_bar=False, **how)

    def persons() -> Any:
        replaced = {"sampling": dp.FixedSizeSampling(300), "relation": dp.Relation.REPLACE_ONE}
        return by_steps(plan(**replaced), person="id", max_rows=5, keep_gradients=True)

    def chain() -> Any:
        found = dp.DPSGLD(model, plan=plan(clipping_norm=1.0), step_size=(1e-4, 10.0, 0.55))
        return found.run(dp.random.key(7), small, y=labels, progress_bar=False)

    def one_sample() -> Any:
        settings: dict[str, Any] = {
            "num_warmup": 50,
            "num_samples": 50,
            "relation": dp.Relation.REPLACE_ONE,
        }
        ops = dp.OnePosteriorSample(model, epsilon=1.0, log_likelihood_bound=3.0, **settings)
        return ops.run(
            dp.random.key(7), small[:300], y=labels[:300], progress_bar=False, person="id"
        )

    def moments() -> Any:
        terms = MomentsPlan.calibrate(epsilon=1.0, delta=1e-6, num_features=2, num_records=3_000)
        return fit_moments(dp.random.key(7), x, y, terms, person="id")

    def newton(family: str, target: Any) -> Any:
        shape = {"family": family, "num_features": 2, "num_records": 3_000}
        terms = NewtonPlan.calibrate(epsilon=1.0, delta=1e-6, **shape)
        return fit_newton(dp.random.key(7), x, target, terms)

    def of_a_model() -> Any:
        terms = ModelPlan.calibrate(epsilon=1.0, delta=1e-6, num_records=3_000)
        fit = dp.DPNewton(model, plan=terms)
        return fit.run(dp.random.key(7), small, y=labels, progress_bar=False)

    def counts() -> Any:
        terms = dp.marginals.MarginalsPlan.calibrate(
            schema_from_bounds("a=0:9,b=no|yes"), epsilon=1.0, delta=1e-6
        )
        table = {"a": [0, 3] * 1_500, "b": ["yes", "no"] * 1_500}
        return dp.marginals.private_marginals(dp.random.key(7), table, terms, non_private_seed=True)

    def scores(**how: Any) -> Any:
        terms: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "non_private_seed": True}
        return dp.scores.private_metrics(
            dp.random.key(7), lambda rows: 0.5 + rows[:, 0] / 4, x, y > 0, **terms, **how
        )

    methods: dict[str, Callable[[], Any]] = {
        "steps": lambda: by_steps(plan(clipping_norm=1.0)),
        "steps, persons": persons,
        "chain": chain,
        "one sample": one_sample,
        "moments": moments,
        "newton": lambda: newton("binary", labels),
        "newton, counts": lambda: newton("counts", np.floor(3 * np.abs(y))),
        "newton, a model": of_a_model,
        "counts": counts,
        "scores": scores,
        "scores, persons": lambda: scores(groups=np.arange(3_000) // 2, max_rows=2),
    }
    found = {}
    for name, method in methods.items():
        result = method()
        numbers = [
            getattr(result, part)
            for part in ("params", "losses", "draws", "mean", "counts", "sums")
            if part in vars(result)
        ]
        bits = hashlib.sha256(
            b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(numbers))
        )
        found[name] = bits.hexdigest(), str(result.statement)
    return found


def main(before: str, after: str) -> int:
    """Run both, and print what differs."""
    results = []
    for folder in (before, after):
        environment = {**os.environ, "PYTHONPATH": str(Path(folder).resolve() / "src")}
        command = [sys.executable, __file__, "--run"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
    old, new = results
    differ = [name for name in old if old[name][0] != new[name][0]]
    for name in old:
        lines = list(
            difflib.unified_diff(
                old[name][1].splitlines(), new[name][1].splitlines(), lineterm="", n=0
            )
        )[2:]
        print(f"{name}: {'OTHER NUMBERS' if name in differ else 'the same numbers'}")
        print("\n".join(f"  {line}" for line in lines if not line.startswith("@@")))
    return 1 if differ else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--run"]:
        print(json.dumps(run_all()))
    else:
        sys.exit(main(*sys.argv[1:]))
