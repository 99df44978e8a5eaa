# %% [markdown]
# # Proofs
#
# `dp.certify` reads a JAX program and proves what it reveals about one record, before it runs. [How it works](../prover.md).

# %%
import jax
import jax.numpy as jnp

import discreet as dp


def loss(w, x, y):
    return jnp.square(x @ w - y)


def step(w, xs, ys, mask, key):
    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(w, xs, ys)
    total = dp.sum_records(dp.clip_records(gradients, 1.0), mask)
    return w - 0.01 * dp.gaussian_mechanism(key, total, stddev=4.0)


xs, ys, mask = jnp.ones((1000, 3)), jnp.zeros(1000), jnp.ones(1000, bool)
certificate = dp.certify(
    step, jnp.zeros(3), xs, ys, mask, dp.random.key(), records=(1, 2), mask=3
)
certificate

# %%
print("ε at δ = 1e-5:", certificate.epsilon(1e-5))
# Runs the very program that was proved.
certificate(jnp.zeros(3), xs, ys, mask, dp.random.key())

# %% [markdown]
# ## A leak
#
# Without clipping, one record can move the sum as far as it likes. The message names the lines through which it does:


# %%
def leaks(w, xs, ys, mask, key):
    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(w, xs, ys)
    total = dp.sum_records(gradients, mask)
    return w - 0.01 * dp.gaussian_mechanism(key, total, stddev=4.0)


try:
    dp.certify(
        leaks,
        jnp.zeros(3),
        xs,
        ys,
        mask,
        dp.random.key(),
        records=(1, 2),
        mask=3,
    )
except dp.PrivacyError as error:
    print(error)

# %% [markdown]
# ## A whole training, for every noise
#
# `dp.symbol` stands for numbers that are still open. One proof then holds for all of them.


# %%
def train(w, xs, ys, mask, key, q, sigma, steps):
    def once(_, state):
        w, key = state
        draw, noise, key = jax.random.split(key, 3)
        (x, y, kept), real = dp.poisson_subsample(draw, (xs, ys, mask), q)
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(w, x, y)
        total = dp.sum_records(dp.clip_records(gradients, 1.0), kept & real)
        return w - 0.01 / q * dp.gaussian_mechanism(
            noise, total, stddev=sigma
        ), key

    return jax.lax.fori_loop(0, steps, once, (w, key))[0]


symbols = dp.symbol("q"), dp.symbol("sigma"), dp.symbol("T", integer=True)
proof = dp.certify(
    train,
    jnp.zeros(3),
    xs,
    ys,
    mask,
    dp.random.key(),
    *symbols,
    records=(1, 2),
    mask=3,
)
for q, sigma, T in [(0.01, 1.0, 1_000), (0.01, 2.0, 1_000), (0.1, 4.0, 100)]:
    epsilon = proof.epsilon(1e-5, q=q, sigma=sigma, T=T)
    print(f"q = {q}, sigma = {sigma}, T = {T}: ε = {epsilon:.3f}")

# %% [markdown]
# `DPSVI` does this for every fit before it reads a record; `dpsvi.certify` shows the certificate.
