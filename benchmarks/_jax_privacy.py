"""Google DeepMind's jax_privacy: `clipped_grad` and `gaussian_privatizer`, in one compiled loop."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks._fits import Problem
from benchmarks._harness import Program
from benchmarks._networks import Architecture
from benchmarks._peers import load

MICROBATCHES = (1, 4, 16)


class JaxPrivacyFit:
    """Batches of one size gathered at random with replacement; threefry noise; Adam of optax.

    Args:
        architecture: the network, the same code as ours.
        problem: its data and numbers.
        batch_size: rows a step.
        steps: steps a run.
        microbatch_size: records whose gradients jax_privacy holds at once; None: all.
    """

    def __init__(
        self,
        architecture: Architecture,
        problem: Problem,
        batch_size: int,
        steps: int,
        microbatch_size: int | None,
    ) -> None:
        """See the class."""
        self.gradient = load("jax_privacy.clipping").clipped_grad(
            architecture.loss,
            l2_clip_norm=problem.clipping_norm,
            batch_argnums=1,
            prng_argnum=2,
            microbatch_size=microbatch_size,
        )
        privatizer = load("jax_privacy.noise_addition").gaussian_privatizer(
            stddev=problem.noise_multiplier * problem.clipping_norm, prng_key=jax.random.key(0)
        )
        optimizer = optax.adam(problem.learning_rate)
        parameters = architecture.initial_parameters(jax.random.key(0))
        self.state = (parameters, privatizer.init(parameters), optimizer.init(parameters))
        self.images, self.steps, self.num_runs = problem.data[0], steps, 0

        def loop(state: Any, key: jax.Array, images: jax.Array, count: jax.Array) -> Any:
            def body(i: jax.Array, state: Any) -> Any:
                parameters, noise_state, moments = state
                rows, draws = jax.random.split(jax.random.fold_in(key, i))
                index = jax.random.randint(rows, (batch_size,), 0, images.shape[0])
                total = self.gradient(parameters, images[index], draws)
                noised, noise_state = privatizer.update(total, noise_state)
                mean = jax.tree.map(lambda x: x / batch_size, noised)
                updates, moments = optimizer.update(mean, moments)
                return optax.apply_updates(parameters, updates), noise_state, moments

            return jax.lax.fori_loop(0, count, body, state)

        self.loop = jax.jit(loop)

    def run(self, steps: int | None = None) -> None:
        """Make `steps` steps."""
        self.num_runs += 1
        count = jnp.int32(self.steps if steps is None else steps)
        self.state = jax.block_until_ready(
            self.loop(self.state, jax.random.key(self.num_runs), self.images, count)
        )


def best_microbatch(
    architecture: Architecture,
    problem: Problem,
    batch_size: int,
    steps: int,
    tried: dict[str, float],
) -> Program:
    """The fastest of a few microbatch sizes, found by one short run of each; their times go to `tried`, in ms."""
    fits = {}
    for size in MICROBATCHES:
        if batch_size % size:
            continue
        fit = fits[size] = JaxPrivacyFit(architecture, problem, batch_size, steps, size)
        fit.run(1)
        started = time.perf_counter()
        fit.run(2)
        tried[str(size)] = (time.perf_counter() - started) / 2 * 1e3
    best = min(fits, key=lambda size: tried[str(size)])
    note = f"clipped_grad with the best of microbatches {sorted(fits)}: {best}; threefry noise, batches of one size"
    return Program("jax_privacy", fits[best].run, steps, note)
