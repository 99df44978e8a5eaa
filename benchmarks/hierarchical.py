"""One private step of d3p's Listing 4 (hierarchical logistic regression, N = 500, batch 32), beside its floor.

    python benchmarks/hierarchical.py

The floor is a hand-written JAX step for this one model (per-record gradients, clipping, threefry noise, Adam), with
nothing general about it, and a batch that costs next to nothing because it is drawn with replacement. Both run in one
compiled loop, in turn; the figures are the fastest of several repetitions, and their ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import discreet as dp
from discreet.inference import _loop

N, D, L, K, BATCH, STEPS, REPETITIONS = 500, 3, 10, 2, 32, 2000, 30


def model(xs, ys, ls, gs, N):
    """Weights per group around a linear map of public group features."""
    m = numpyro.sample("M", dist.Normal(0, 4).expand([xs.shape[1], gs.shape[1]]).to_event(2))
    with numpyro.plate("group", gs.shape[0]):
        ws = numpyro.sample("ws", dist.Normal(gs @ m.T, 1).to_event(1))
    with numpyro.plate("batch", N, xs.shape[0]):
        numpyro.sample("ys", dist.Bernoulli(logits=jnp.sum(xs * ws[ls], axis=-1)), obs=ys)


def guide(xs, ys, ls, gs, N):
    """Mean field."""
    for name, shape in (("M", (xs.shape[1], gs.shape[1])), ("ws", (gs.shape[0], xs.shape[1]))):
        loc = numpyro.param(f"{name}_loc", jnp.zeros(shape))
        scale = jnp.exp(numpyro.param(f"{name}_scale_log", jnp.zeros(shape)))
        if name == "ws":
            with numpyro.plate("group", gs.shape[0]):
                numpyro.sample(name, dist.Normal(loc, scale).to_event(1))
        else:
            numpyro.sample(name, dist.Normal(loc, scale).to_event(2))


def floor(xs, ys, ls, gs) -> Callable[[jax.Array], jax.Array]:
    """The same step by hand: the loss's gradient in a group's weights is a residual times the features."""

    def step(i, carry):
        loc_m, log_m, loc_w, log_w, moments, key = carry
        key, batch_key, noise_key, draw_key = jax.random.split(key, 4)
        index = jax.random.randint(batch_key, (BATCH,), 0, N)
        x, y, group = xs[index], ys[index], ls[index]
        eps = jax.random.normal(draw_key, (D * K + L * D,))
        eps_m, eps_w = eps[: D * K].reshape(D, K), eps[D * K :].reshape(L, D)
        m, w = loc_m + jnp.exp(log_m) * eps_m, loc_w + jnp.exp(log_w) * eps_w
        gradient = (jax.nn.sigmoid(jnp.sum(x * w[group], axis=1)) - y)[:, None] * x
        gradient *= jnp.minimum(1.0, jax.lax.rsqrt(jnp.sum(gradient**2, axis=1, keepdims=True)))
        released = jnp.zeros((L, D)).at[group].add(gradient) + jax.random.normal(noise_key, (L, D))
        back = w - gs @ m.T
        d_w = released * (N / BATCH) + back
        d_m = -back.T @ gs + m / 16
        gradients = (d_m, d_m * jnp.exp(log_m) * eps_m - 1, d_w, d_w * jnp.exp(log_w) * eps_w - 1)
        first, second = moments
        first = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g**2, second, gradients)
        moved = jax.tree.map(
            lambda p, a, b: p - 1e-3 * (a / (1 - 0.9 ** (i + 1.0))) / (jnp.sqrt(b / (1 - 0.999 ** (i + 1.0))) + 1e-8),
            (loc_m, log_m, loc_w, log_w),
            first,
            second,
        )
        return (*moved, (first, second), key)

    zeros = (jnp.zeros((D, K)), jnp.zeros((D, K)), jnp.zeros((L, D)), jnp.zeros((L, D)))
    return jax.jit(lambda key: jax.lax.fori_loop(0, STEPS, step, (*zeros, (zeros, zeros), key))[0])


def private(sampling, *data, gs) -> Callable[[], jax.Array]:
    """The compiled loop of a fit."""
    plan = dp.PrivacyPlan(
        sampling=sampling,
        clipping_norm=1.0,
        noise_multiplier=1.0,
        num_steps=STEPS,
        num_records=N,
        relation=dp.Relation.REPLACE_ONE,
    )
    dpsvi = dp.DPSVI(model, guide, numpyro.optim.Adam(1e-3), plan=plan, gs=gs, N=N)
    state = dpsvi.init(dp.random.key(), *data)
    step, tables = dpsvi._initialised(), jax.tree.map(jnp.asarray, sampling.prepare(N))
    leaves = [jnp.asarray(x) for x in data]
    return lambda: _loop._chunk(step, sampling, STEPS, True, state, leaves, tables, jnp.int32(STEPS))


def main() -> None:
    """Print the figures."""
    rng = np.random.default_rng(0)
    xs, ls = rng.normal(size=(N, D)).astype(np.float32), rng.integers(0, L, N).astype(np.int32)
    ys, gs = (rng.random(N) < 0.5).astype(np.float32), rng.normal(size=(L, K)).astype(np.float32)
    by_hand = floor(*(jnp.asarray(x) for x in (xs, ys, ls, gs)))
    programs = {
        "by hand, threefry": lambda: by_hand(jax.random.key(0)),
        "discreet, fixed size": private(dp.FixedSizeSampling(BATCH), xs, ys, ls, gs=gs),
        "discreet, Poisson": private(dp.PoissonSampling(BATCH / N), xs, ys, ls, gs=gs),
    }
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(REPETITIONS):
        for name, program in programs.items():
            started = time.perf_counter()
            jax.block_until_ready(program())
            best[name] = min(best[name], time.perf_counter() - started)
    reference = best["by hand, threefry"]
    for name, seconds in best.items():
        print(f"{name:32s} {seconds / STEPS * 1e6:6.1f} us a step, {seconds / reference:4.2f} of by hand")


if __name__ == "__main__":
    main()
