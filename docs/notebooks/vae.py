# %% [markdown]
# # A variational autoencoder
#
# A decoder of pictures, trained at ε = 2. The records are 40,000 artificial pictures of bars.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import discreet as dp

SIDE, CODE, HIDDEN, PEOPLE = 8, 6, 64, 40_000
rng = np.random.default_rng(4)
across, down = rng.random((2, PEOPLE, SIDE)) < 0.15
pictures = (
    (across[:, :, None] | down[:, None, :])
    .reshape(PEOPLE, -1)
    .astype(np.float32)
)


def show(rows, title):
    figure, panels = plt.subplots(1, 8, figsize=(8, 1.4))
    for panel, row in zip(panels, rows, strict=True):
        panel.imshow(
            np.asarray(row).reshape(SIDE, SIDE), cmap="gray_r", vmin=0, vmax=1
        )
        panel.set(xticks=[], yticks=[])
    figure.suptitle(title)


show(pictures[:8], "records")

# %% [markdown]
# ## Model and guide
#
# The encoder computes a picture's code from that picture alone. The weights of both networks are what is released.


# %%
def weights(name, rows, columns):
    start = (
        jax.random.normal(
            jax.random.key(sum(map(ord, name))), (rows, columns)
        )
        / rows**0.5
    )
    return numpyro.param(name, start), numpyro.param(
        f"{name}_offset", jnp.zeros(columns)
    )


def dense(x, name, columns):
    matrix, offset = weights(name, x.shape[-1], columns)
    return x @ matrix + offset


def decode(code):
    return dense(
        jax.nn.tanh(dense(code, "decoder_1", HIDDEN)), "decoder_2", SIDE**2
    )


def model(x):
    with numpyro.plate("records", x.shape[0]):
        code = numpyro.sample(
            "code", dist.Normal(0.0, 1.0).expand([CODE]).to_event(1)
        )
        numpyro.sample(
            "x", dist.Bernoulli(logits=decode(code)).to_event(1), obs=x
        )


def guide(x):
    hidden = jax.nn.tanh(dense(x, "encoder_1", HIDDEN))
    loc, log_scale = (
        dense(hidden, "encoder_loc", CODE),
        dense(hidden, "encoder_scale", CODE),
    )
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample(
            "code", dist.Normal(loc, jnp.exp(log_scale)).to_event(1)
        )


# %% [markdown]
# ## Fit

# %%
plan = dp.PrivacyPlan.calibrate(
    epsilon=2.0,
    delta=1e-6,
    num_records=PEOPLE,
    num_steps=1_500,
    sampling=dp.PoissonSampling(rate=0.05),
)
result = dp.DPSVI(model, guide, numpyro.optim.Adam(1e-2), plan=plan).run(
    dp.random.key(), pictures, progress_bar=False
)
result

# %% [markdown]
# The lower panel is the private loss of all pictures, in nats. Networks keep drifting, which does new pictures no harm.

# %%
result.plot()

# %% [markdown]
# ## New pictures

# %%
codes = jax.random.normal(jax.random.key(0), (8, CODE))
with numpyro.handlers.substitute(data=result.params):
    show(jax.nn.sigmoid(decode(codes)), "drawn at ε = 2")
