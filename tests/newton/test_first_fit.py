"""How much a first fit compiles. Each array operation outside of `jit` on a new shape is a program of 20 to 40 ms."""

import subprocess
import sys

import pytest

_COUNT = """
import gc
import warnings
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import discreet as dp

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **told: compiled.append(told) if event.endswith("backend_compile_duration") else None
)
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, (300, 2))
y = (x[:, 0] > 0).astype(int)
"""
_ESTIMATOR = """
# Modules stay: a search for cycles among all objects is in vain.
searched = []
gc.callbacks.append(lambda phase, told: searched.append(told) if told["generation"] == 2 else None)
dp.estimators.LogisticRegression
assert not searched, searched
# Nor are they young ones, which the next small search would visit.
assert len(gc.get_objects(0)) + len(gc.get_objects(1)) < 50_000
dp.estimators.LogisticRegression(epsilon=1.0, bounds=(-1, 1)).fit(x, y)
"""
_OWN = """
def model(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

dp.fit(model, x, y, epsilon=1.0, progress_bar=False)
first = len(compiled)
dp.fit(model, x, y, epsilon=1.0, progress_bar=False)
assert len(compiled) == first, compiled[first:]
"""
_GROUPS = """
schema = dp.tables.schema_from_bounds("age=20:60,clinic=a|b|c,ill=no|yes")
table = {
    "age": 40 + 20 * x[:, 0],
    "clinic": np.array(["a", "b", "c"])[rng.integers(3, size=300)],
    "ill": np.array(["no", "yes"])[y],
}
runs = []
run = numpyro.handlers.trace.get_trace
numpyro.handlers.trace.get_trace = lambda *a, **k: runs.append(1) or run(*a, **k)
dp.regress("ill ~ age + (1 | clinic)", table, schema, family="bernoulli", epsilon=3.0, progress_bar=False)
# Each takes some ten milliseconds.
assert len(runs) <= 45, len(runs)
"""
_STEPS = """
def model(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

plan = dp.PrivacyPlan.calibrate(epsilon=1.0, delta=1e-6, num_records=300, num_steps=20, sampling=dp.PoissonSampling(0.1))
guide = numpyro.infer.autoguide.AutoNormal(model)
fitted = dp.DPSVI(model, guide, numpyro.optim.Adam(0.02), plan=plan).run(dp.random.key(), x, y, progress_bar=False)
fitted.posterior(jax.random.key(0), 10)
"""


@pytest.mark.parametrize(
    ("fit", "most"),
    [(_ESTIMATOR, 1), (_OWN, 12), (_GROUPS, 12), (_STEPS, 37)],
    ids=["estimator", "model", "groups", "steps"],
)
def test_a_first_fit_compiles_few_programs(fit: str, most: int) -> None:
    """And a second one of the same own model none."""
    code = f"{_COUNT}{fit}\nprint(len(compiled))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout.split()[-1]) <= most
