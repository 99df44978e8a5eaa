# %% [markdown]
# # Synthetic twins
#
# Tables with the columns of yours, drawn from noisy counts at ε = 1. [More on twins](../twins.md).

# %%
import numpy as np
import pyarrow as pa

import discreet as dp
from discreet.tabular.synthetic import combine, marginal_distances
from discreet.tabular.tables import schema_from_dict


def survey(people, seed):
    """An artificial survey, so that this notebook runs anywhere."""
    rng = np.random.default_rng(seed)
    age, region = rng.integers(18, 90, people), rng.integers(0, 3, people)
    visits = rng.poisson(np.exp(0.02 * (age - 50) + 0.3 * region)).clip(0, 20)
    logit = 0.03 * (40 - age) - 0.6 * (region == 0)
    smoker = (rng.random(people) < 1 / (1 + np.exp(-logit))).astype(int)
    regions = np.array(["north", "south", "east"])
    answers = np.array(["no", "yes"])
    return pa.table(
        {
            "age": age,
            "region": regions[region],
            "visits": visits,
            "smoker": answers[smoker],
        }
    )


table, held_out = survey(20_000, 5), survey(5_000, 6)
schema = schema_from_dict(
    {
        "target": "smoker",
        "columns": {
            "age": {"kind": "count", "bounds": [18, 90]},
            "region": {
                "kind": "categorical",
                "categories": ["north", "south", "east"],
            },
            "visits": {"kind": "count", "bounds": [0, 20]},
            "smoker": {"kind": "binary", "categories": ["no", "yes"]},
        },
    }
)

# %% [markdown]
# ## One release
#
# All columns and all pairs are counted once, with noise. Only this cell reads records. Each of the twenty twins has a draw
# of its own, which intervals need. For predictions alone, leave `num_draws` out.

# %%
found = dp.twins(
    table, schema, epsilon=1.0, delta=1e-6, num_twins=20, num_draws=20
)
twins = found.tables
twins[0].slice(0, 8).to_pandas()

# %%
found.statement

# %% [markdown]
# ## Figures from the same release

# %%
print(dp.describe(found))

# %% [markdown]
# ## A conclusion with its interval
#
# Analyse each twin as if it were the table, then combine: the interval holds the sampling error and the privacy noise.

# %%
shares = np.array(
    [[(twin["smoker"].to_numpy() == "yes").mean()] for twin in twins]
)
combined = combine(
    shares, shares * (1 - shares) / twins[0].num_rows, names=["smokers"]
)
low, high = combined["smokers"].interval
print(
    f"smokers: {combined['smokers'].estimate:.4f} ({low:.4f} to {high:.4f})"
)

# %% [markdown]
# ## How close are they?
#
# Distances from real rows are exact figures of these: *not* private. Here the held-out rows are public.

# %%
print(marginal_distances(twins[0], held_out, schema, non_private=True))
