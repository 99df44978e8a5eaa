# %% [markdown]
# # A census table
#
# A logistic regression at ε = 1, debited from a budget.

# %%
import numpy as np
import numpyro
import pyarrow as pa
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet.methods.plots import plot_posterior
from discreet.tabular.models import logistic_regression
from discreet.tabular.tables import encode, schema_from_dict

rng = np.random.default_rng(1)
people = 30_000
age = rng.integers(17, 91, people)
hours = rng.normal(40, 10, people).clip(0, 80).round()
school, sex = rng.integers(0, 4, people), rng.integers(0, 2, people)
logit = 0.04 * (age - 45) + 0.05 * (hours - 40)
logit += 0.9 * (school - 2) + 0.7 * sex - 1.0
rich = (rng.random(people) < 1 / (1 + np.exp(-logit))).astype(int)
levels = np.array(["none", "primary", "secondary", "higher"])
sexes, incomes = np.array(["f", "m"]), np.array(["low", "high"])
table = pa.table(
    {
        "age": age,
        "hours": hours,
        "school": levels[school],
        "sex": sexes[sex],
        "income": incomes[rich],
    }
)

# %% [markdown]
# ## What is public
#
# Bounds and categories come from the questionnaire, never from the cells.

# %%
schema = schema_from_dict(
    {
        "target": "income",
        "columns": {
            "age": {"kind": "count", "bounds": [17, 90]},
            "hours": {"kind": "real", "bounds": [0, 80], "unit": "per week"},
            "school": {"kind": "ordered", "categories": levels.tolist()},
            "sex": {"kind": "binary", "categories": sexes.tolist()},
            "income": {"kind": "binary", "categories": incomes.tolist()},
        },
    }
)
schema

# %% [markdown]
# ## Plan and budget
#
# With four features in [-1, 1] and an intercept no gradient is longer than √5, so nothing is clipped.

# %%
import tempfile
from pathlib import Path

folder = tempfile.TemporaryDirectory()
ledger = dp.Ledger.create(
    Path(folder.name) / "census.ledger",
    dataset="census",
    epsilon=2.0,
    delta=1e-5,
)
plan = dp.PrivacyPlan.calibrate(
    epsilon=1.0,
    delta=1e-6,
    num_records=people,
    num_steps=2_000,
    sampling=dp.PoissonSampling(rate=0.03),
    clipping_norm=5**0.5,
)
plan

# %% [markdown]
# ## Fit
#
# `keep_gradients=True` lets the intervals include the noise.

# %%
records = encode(table, schema)
dpsvi = dp.DPSVI(
    logistic_regression,
    AutoNormal(logistic_regression),
    numpyro.optim.Adam(0.05),
    plan=plan,
)
result = dpsvi.run(
    dp.random.key(),
    records.x,
    records.y,
    ledger=ledger,
    keep_gradients=True,
    progress_bar=False,
)
result

# %% [markdown]
# In the second half the parameters only fluctuate, so the fit was long enough:

# %%
result.plot()

# %% [markdown]
# ## Posterior
#
# Weights refer to features scaled to [-1, 1]. These draws, from the second half of the fit, include its noise; `result.posterior` would not.

# %%
draws = result.noise_aware("regression", start=0.5).posterior(
    dp.random.key(), 1_000
)
plot_posterior(
    draws, feature_names=records.feature_names, statement=result.statement
)

# %% [markdown]
# ## What is left

# %%
ledger
