# %% [markdown]
# # An audit of your own model
#
# A lower bound on ε, found by attacking many fits of artificial records. The canary's gradient should be longer than C, and unlike the others'. [How it attacks](../audit.md).

# %%
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import init_to_feasible
from numpyro.infer.autoguide import AutoNormal

import discreet as dp


def model(x, y):
    w = numpyro.sample(
        "w", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1)
    )
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


# %% [markdown]
# ## Two tables

# %%
rng = np.random.default_rng(0)
x = rng.normal(0, 0.1, (30, 2)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.float32)
with_x = np.concatenate([[[9, -9]], x]).astype(np.float32)
with_y = np.append(np.float32(1), y)

# %% [markdown]
# ## The plan under attack

# %%
plan = dp.PrivacyPlan(
    sampling=dp.PoissonSampling(0.5),
    clipping_norm=1.0,
    noise_multiplier=1.0,
    num_steps=4,
    num_records=30,
    target_delta=1e-3,
)
guide = AutoNormal(model, init_loc_fn=init_to_feasible)
fit = dp.DPSVI(model, guide, numpyro.optim.SGD(1e-3), plan=plan)

# %%
verdict = dp.audit.audit_fit(
    fit, (with_x, with_y), (x, y), runs=1_000, progress_bar=False
)
print(verdict)

# %% [markdown]
# ## Any JAX program
#
# As two functions of a key. `claim` is a plan, a profile, or the ε at δ; `scores={"name": function}` adds test statistics.


# %%
def noisy(total):
    return lambda key: dp.gaussian_mechanism(
        key, jnp.float32(total), stddev=2.0
    )


verdict = dp.audit.audit_mechanism(
    noisy(1.0),
    noisy(0.0),
    claim=2.0,
    delta=1e-3,
    runs=2_000,
    progress_bar=False,
)
print(verdict)
