"""One private step of d3p's Listing 4 (hierarchical logistic regression, N = 500, batch 32), beside one written by hand.

python -m benchmarks.hierarchical

Two steps are written by hand for this one model, with nothing general about them. "same work" draws
the same Poisson batches and the same noise from the same secure keys, clips with the same mask,
releases a private loss, and keeps its losses and iterates. "threefry" does less: batches drawn with
replacement, noise from JAX's own generator with short tails, no private loss, nothing kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import discreet as dp
from benchmarks._command import main
from benchmarks._fits import PrivateFit, Problem
from benchmarks._harness import Figure, Outcome, Program, Scale, alternate

N, D, L, K, BATCH, RATE, LOSS_SHARE = 500, 3, 10, 2, 32, 1e-3, 0.02


def model(xs, ys, ls, gs, N):
    """Weights per group around a linear map of public group features."""
    m: Any = numpyro.sample("M", dist.Normal(0, 4).expand([xs.shape[1], gs.shape[1]]).to_event(2))
    with numpyro.plate("group", gs.shape[0]):
        ws: Any = numpyro.sample("ws", dist.Normal(gs @ m.T, 1).to_event(1))
    with numpyro.plate("batch", N, xs.shape[0]):
        numpyro.sample("ys", dist.Bernoulli(logits=jnp.sum(xs * ws[ls], axis=-1)), obs=ys)


def guide(xs, ys, ls, gs, N):
    """Mean field."""
    for name, shape in (("M", (xs.shape[1], gs.shape[1])), ("ws", (gs.shape[0], xs.shape[1]))):
        loc: Any = numpyro.param(f"{name}_loc", jnp.zeros(shape))
        log_scale: Any = numpyro.param(f"{name}_scale_log", jnp.zeros(shape))
        scale = jnp.exp(log_scale)
        if name == "ws":
            with numpyro.plate("group", gs.shape[0]):
                numpyro.sample(name, dist.Normal(loc, scale).to_event(1))
        else:
            numpyro.sample(name, dist.Normal(loc, scale).to_event(2))


class Batch(NamedTuple):
    """Rows, and which of them count."""

    rows: tuple[jax.Array, jax.Array, jax.Array]
    mask: jax.Array


Draw = Callable[[jax.Array, Any, tuple[jax.Array, ...]], Batch]
Noise = Callable[[jax.Array, int], jax.Array]


def with_replacement(key: jax.Array, tables: Any, data: tuple[jax.Array, ...]) -> Batch:
    """The cheapest batch there is."""
    del tables
    xs, ys, ls = (x[jax.random.randint(key, (BATCH,), 0, N)] for x in data)
    return Batch((xs, ys, ls), jnp.ones(BATCH, bool))


def poisson(key: jax.Array, tables: Any, data: tuple[jax.Array, ...]) -> Batch:
    """The law that the private fit draws from."""
    indices, mask = dp.PoissonSampling(BATCH / N).draw(key, tables, num_records=N)
    xs, ys, ls = (x[indices] for x in data)
    return Batch((xs, ys, ls), mask)


def clipped(weights: jax.Array, batch: Batch, *, share: float) -> tuple[jax.Array, jax.Array]:
    """Sum of the clipped gradients in a group's weights, and of the losses: a residual times the features."""
    (x, y, group), mask = batch
    logits = jnp.sum(x * weights[group], axis=1)
    gradient = (jax.nn.sigmoid(logits) - y)[:, None] * x
    squared = jnp.sum(gradient**2, axis=1)
    factor = jnp.minimum(1.0, jax.lax.rsqrt(squared))
    if share:
        losses = jax.nn.softplus(logits) - y * logits
        mask &= jnp.isfinite(squared) & jnp.isfinite(losses)
        loss = (
            jnp.sum(jnp.where(mask, jnp.clip(losses - jnp.log(2.0), -1.0, 1.0), 0))
            * (share / (1 - share)) ** 0.5
        )
        gradient = jnp.where(mask[:, None], gradient * factor[:, None], 0)
    else:
        loss, gradient = jnp.zeros(()), gradient * factor[:, None]
    return jnp.zeros((L, D)).at[group].add(gradient), loss


def by_hand(
    data: tuple[jax.Array, ...], gs: jax.Array, steps: int, draw: Draw, noise: Noise, share: float
) -> Any:
    """A compiled loop of `steps` private steps: its arguments are a key and the sampler's tables."""
    stddev = 1.5 / (1 - share) ** 0.5

    def step(i: jax.Array, carry: Any) -> Any:
        loc_m, log_m, loc_w, log_w, moments, key, tables, kept = carry
        batch_key, noise_key, draw_key = jax.random.split(jax.random.fold_in(key, i), 3)
        eps = jax.random.normal(draw_key, (D * K + L * D,))
        eps_m, eps_w = eps[: D * K].reshape(D, K), eps[D * K :].reshape(L, D)
        m, w = loc_m + jnp.exp(log_m) * eps_m, loc_w + jnp.exp(log_w) * eps_w
        gradient, loss = clipped(w, draw(batch_key, tables, data), share=share)
        added = stddev * noise(noise_key, L * D + bool(share))
        released = gradient + added[: L * D].reshape(L, D)
        back = w - gs @ m.T
        d_w = released * (N / BATCH) + back
        d_m = -back.T @ gs + m / 16
        gradients = (d_m, d_m * jnp.exp(log_m) * eps_m - 1, d_w, d_w * jnp.exp(log_w) * eps_w - 1)
        moved, moments = _adam(i, (loc_m, log_m, loc_w, log_w), moments, gradients)
        if share:
            flat = jnp.concatenate([x.ravel() for x in moved])
            kept = kept[0].at[i].set(loss + added[-1]), kept[1].at[i].set(flat)
        return (*moved, moments, key, tables, kept)

    zeros = (jnp.zeros((D, K)), jnp.zeros((D, K)), jnp.zeros((L, D)), jnp.zeros((L, D)))
    kept = (jnp.zeros(steps), jnp.zeros((steps, 2 * (D * K + L * D)))) if share else ()
    start = (*zeros, (zeros, zeros))

    def loop(key: jax.Array, tables: Any) -> Any:
        *parameters, _, _, _, given = jax.lax.fori_loop(0, steps, step, (*start, key, tables, kept))
        # What is not given back, XLA does not compute.
        return parameters, given

    return jax.jit(loop)


def _adam(i: jax.Array, parameters: Any, moments: Any, gradients: Any) -> tuple[Any, Any]:
    first, second = moments
    first = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g**2, second, gradients)
    moved = jax.tree.map(
        lambda p, a, b: (
            p
            - RATE * (a / (1 - 0.9 ** (i + 1.0))) / (jnp.sqrt(b / (1 - 0.999 ** (i + 1.0))) + 1e-8)
        ),
        parameters,
        first,
        second,
    )
    return moved, (first, second)


def problem_of() -> Problem:
    """Random features, labels and groups."""
    rng = np.random.default_rng(0)
    xs, ys = rng.normal(size=(N, D)), rng.random(N) < 0.5
    data = (
        jnp.asarray(xs, jnp.float32),
        jnp.asarray(ys, jnp.float32),
        jnp.asarray(rng.integers(0, L, N), jnp.int32),
    )
    gs = np.asarray(rng.normal(size=(L, K)), np.float32)
    return Problem(model, guide, data, RATE, static={"gs": gs, "N": N})


def measure(scale: Scale) -> list[Outcome]:
    """Ours, with both batch laws, against both steps by hand."""
    steps, problem = scale.steps(20_000), problem_of()
    data, gs = problem.data, problem.static["gs"]
    tables = jax.tree.map(jnp.asarray, dp.PoissonSampling(BATCH / N).prepare(N))
    floor = by_hand(
        data,
        jnp.asarray(gs),
        steps,
        with_replacement,
        lambda key, dim: jax.random.normal(key, (dim,)),
        0.0,
    )
    same = by_hand(
        data,
        jnp.asarray(gs),
        steps,
        poisson,
        lambda key, dim: dp.random.normal(key, (dim,)),
        LOSS_SHARE,
    )
    secret, fast = dp.random.key(), jax.random.key(0)
    private = PrivateFit(problem, problem.poisson(BATCH), steps)
    programs = [
        Program(
            "by hand, threefry",
            lambda: jax.block_until_ready(floor(fast, ())),
            steps,
            "less work: see the module",
        ),
        Program("by hand, same work", lambda: jax.block_until_ready(same(secret, tables)), steps),
        PrivateFit(problem, dp.FixedSizeSampling(BATCH), steps).program("discreet, fixed size"),
        private.program("discreet, Poisson", "as DPSVI.run runs it; ChaCha20, every iterate kept"),
    ]
    outcome = Outcome("hierarchical", f"hierarchical logistic regression, N = {N}, batch {BATCH}")
    outcome.timings = alternate(programs, scale.rounds)
    ours = "discreet, Poisson"
    outcome.compare("private / by hand, same work", ours, "by hand, same work", ("<=", 1.6))
    # 18 microseconds where that one takes 10.
    outcome.compare("private / by hand, threefry", ours, "by hand, threefry", ("<=", 1.8))
    outcome.compare(
        "batches of one size / by hand, threefry", "discreet, fixed size", "by hand, threefry"
    )
    microseconds = outcome.timing(ours).fastest * 1e6
    outcome.figures.append(Figure("a private step, fastest round", microseconds, "µs"))
    outcome.facts |= {
        "num_parameters": private.num_parameters,
        "batch_size": BATCH,
        "rows_compiled_for": dp.PoissonSampling(BATCH / N).capacity(N),
        "losses_finite": bool(np.all(np.isfinite(private.losses))),
        "floor": {
            "flops": 4.0 * BATCH * D,
            "bytes": 4.0 * 7 * private.num_parameters,
            "noise_bits": 32.0 * (L * D + 1),
            "other_bits": 32.0 * (BATCH + D * K + L * D),
        },
    }
    return [outcome]


if __name__ == "__main__":
    main(measure, __doc__)
