# %% [markdown]
# # Several rows per person, in groups
#
# Patients with up to four visits each, in twelve hospitals whose effects share a prior. **ε protects a patient with all visits**, not a row.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow as pa
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.reparam import LocScaleReparam

import discreet as dp
from discreet.tabular.tables import encode, schema_from_dict

rng = np.random.default_rng(3)
hospitals, patients = 12, 12_000
truth = rng.normal(0, 0.6, hospitals)
# Some have more visits than are used.
patient = np.repeat(np.arange(patients), rng.integers(1, 7, patients))
hospital = rng.integers(0, hospitals, patients)[patient]
severity = rng.uniform(0, 10, patient.size)
logit = 0.5 + truth[hospital] - 0.3 * (severity - 5)
well = (rng.random(patient.size) < 1 / (1 + np.exp(-logit))).astype(int)
names = [f"H{i + 1:02}" for i in range(hospitals)]
visits = pa.table(
    {
        "patient": patient,
        "severity": severity,
        "hospital": np.array(names)[hospital],
        "well": well.astype(str),
    }
)

# %% [markdown]
# ## The unit
#
# `person` makes all rows of a patient one record. `max_rows` is public.

# %%
schema = schema_from_dict(
    {
        "target": "well",
        "person": {"column": "patient", "max_rows": 4},
        "columns": {
            "severity": {"kind": "real", "bounds": [0, 10]},
            "hospital": {"kind": "categorical", "categories": names},
            "well": {"kind": "binary"},
        },
    }
)
records = encode(visits, schema)
x, y, mask = records.arrays
print("x: patient, visit, feature =", x.shape)
schema

# %% [markdown]
# ## The model
#
# Rows are an inner plate, and `mask` leaves the padding out. Hospital effects have a scale of their own, which shrinks them towards each other.


# %%
def model(x, y=None, mask=None):
    x = jnp.where(mask[..., None], x, 0.0)
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.LogNormal(-1.0, 1.0))
    with numpyro.handlers.reparam(config={"effects": LocScaleReparam(0.0)}):
        effects = numpyro.sample(
            "effects",
            dist.Normal(0.0, spread).expand([hospitals]).to_event(1),
        )
    logits = intercept + slope * x[..., 0] + x[..., 1:] @ effects
    with (
        numpyro.plate("patients", x.shape[0], dim=-2),
        numpyro.plate("visits", x.shape[1], dim=-1),
    ):
        numpyro.sample("y", dist.Bernoulli(logits=logits).mask(mask), obs=y)


# %%
plan = dp.PrivacyPlan.calibrate(
    epsilon=1.0,
    delta=1e-6,
    num_records=patients,
    num_steps=3_000,
    sampling=dp.PoissonSampling(rate=0.08),
    clipping_norm=6.0,
)
dpsvi = dp.DPSVI(
    model, AutoNormal(model), numpyro.optim.Adam(0.05), plan=plan
)
result = dpsvi.run(
    dp.random.key(),
    x,
    y,
    mask,
    person="patient",
    max_rows=4,
    progress_bar=False,
)
result

# %% [markdown]
# ## Hospitals
#
# With a guide of independent normals more than one interval in ten misses.

# %%
draws = result.noise_aware("trace", start=0.5).posterior(
    dp.random.key(), 1_000
)
predict = numpyro.infer.Predictive(model, draws)
effects = predict(jax.random.key(0), x[:1], None, mask[:1])["effects"]
levels = draws["intercept"][:, None] + effects
low, middle, high = np.quantile(levels, [0.05, 0.5, 0.95], axis=0)
figure, axes = plt.subplots(figsize=(7, 3.5))
error = [middle - low, high - middle]
axes.errorbar(names, middle, error, fmt="o", label="90 % interval")
axes.plot(names, 0.5 + truth, "x", color="black", label="truth")
axes.set_ylabel("log odds of being well")
_ = axes.legend()
