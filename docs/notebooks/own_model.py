# %% [markdown]
# # A model of your own
#
# A NumPyro model with Student-t errors, which allow for outliers. [Rules for models](../your-model.md).

# %%
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet.methods.plots import plot_posterior

rng = np.random.default_rng(2)
dose = rng.uniform(-1, 1, 20_000).astype(np.float32)
noise = 0.3 * rng.standard_t(3, 20_000)
effect = (0.5 + 1.5 * dose + noise).clip(-5, 5).astype(np.float32)


def model(dose, effect=None):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("patients", dose.shape[0]):
        numpyro.sample(
            "effect",
            dist.StudentT(3.0, intercept + slope * dose, scale),
            obs=effect,
        )


# %% [markdown]
# ## Plan
#
# A fixed clipping norm above nearly all gradients allows intervals that include the noise.

# %%
plan = dp.PrivacyPlan.calibrate(
    epsilon=1.0,
    delta=1e-6,
    num_records=20_000,
    num_steps=1_500,
    sampling=dp.PoissonSampling(rate=0.03),
    clipping_norm=8.0,
)
plan

# %% [markdown]
# ## Fit

# %%
dpsvi = dp.DPSVI(
    model, AutoNormal(model), numpyro.optim.Adam(0.05), plan=plan
)
result = dpsvi.run(dp.random.key(), dose, effect, progress_bar=False)
result.plot()

# %% [markdown]
# The locations have settled in the second half; the scales, which noise hides, still drift. Draws from this half include the noise of the fit:

# %%
draws = result.noise_aware("trace", start=0.5).posterior(
    dp.random.key(), 1_000
)
plot_posterior(draws, statement=result.statement)

# %% [markdown]
# ## Predict

# %%
grid = jnp.linspace(-1, 1, 5)
predicted = numpyro.infer.Predictive(model, draws)(jax.random.key(0), grid)[
    "effect"
]
for x, values in zip(grid, predicted.T, strict=True):
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    print(f"dose {x:5.2f}: {middle:5.2f} ({low:5.2f} to {high:5.2f})")

# %% [markdown]
# ## A model that is refused
#
# The mean of the doses connects all records, so no record's influence could be bounded. Nothing is spent:


# %%
def centred(dose, effect=None):
    return model(dose - dose.mean(), effect)


try:
    dp.DPSVI(
        centred, AutoNormal(centred), numpyro.optim.Adam(0.02), plan=plan
    ).run(dp.random.key(), dose, effect)
except ValueError as error:
    print(error)
