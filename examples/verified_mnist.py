"""A small network learns MNIST by noisy clipped gradients, and the training is proved private before it runs.

    python examples/verified_mnist.py ../shared/data          # all of it: some minutes
    python examples/verified_mnist.py ../shared/data --quick  # half a minute

784 inputs, 40 ReLUs, 10 outputs: 31,810 weights, learnt from 8,000 images at epsilon 1, 3 and 8 and
delta 1e-5, twice:

    plain JAX    `train` below: Poisson batches, a gradient for each image, clipping, noise and Adam in one `lax.scan`.
                 `dp.certify` reads that program, proves its event, compares it with the plan, and
                 the proved program runs.
    NumPyro      the same network as a model with priors, fitted by `dp.DPSVI`.

The protected records are the 8,000 training images with their labels; the other 2,000 are public
and only tell how well a fit does. docs/verified-mnist.md explains the choices. Ends by asserting
what the fits must reach.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _images
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer.autoguide import AutoDelta
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import discreet as dp

DELTA = 1e-5
CHUNK = 16  # rows whose gradients are held at once
SIZES = {"w1": (784, 40), "b1": (40,), "w2": (40, 10), "b2": (10,)}
# What 300 steps must reach on the test images, mean over the runs: epsilon -> accuracy of either
# way.
REQUIRED = {1.0: 0.86, 3.0: 0.88, 8.0: 0.89}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Public choices of a fit, made on other digits (docs/verified-mnist.md)."""

    rate: float = 1 / 32
    num_steps: int = 300
    clipping_norm: float = 1.0
    learning_rate: float = 1e-2

    def plan(self, epsilon: float, num_records: int) -> dp.PrivacyPlan:
        """The plan with the least noise that epsilon needs."""
        return dp.PrivacyPlan.calibrate(
            epsilon=epsilon,
            delta=DELTA,
            num_records=num_records,
            num_steps=self.num_steps,
            sampling=dp.PoissonSampling(self.rate),
            clipping_norm=self.clipping_norm,
        )


# --- The network --------------------------------------------------------------------------


def initial_weights(seed: int = 0) -> dict[str, jax.Array]:
    """Weights that keep the variance of what passes through them; they see no data."""
    keys = jax.random.split(jax.random.key(seed), len(SIZES))
    scales = {
        name: math.sqrt(2 / shape[0]) if name.startswith("w") else 0.0
        for name, shape in SIZES.items()
    }
    return {
        name: scales[name] * jax.random.normal(key, SIZES[name])
        for name, key in zip(SIZES, keys, strict=True)
    }


def logits(weights, images):
    """The network: ten numbers for each image."""
    return jax.nn.relu(images @ weights["w1"] + weights["b1"]) @ weights["w2"] + weights["b2"]


def loss(weights, image, label):
    """Cross-entropy of one image, in nats."""
    return -jax.nn.log_softmax(logits(weights, image)) @ jax.nn.one_hot(label, 10)


def accuracy(weights, images, labels) -> float:
    """Share of the images that are read rightly."""
    return float(jnp.mean(jnp.argmax(logits(weights, images), axis=-1) == labels))


# --- Plain JAX, with a proof --------------------------------------------------------------


def training(plan: dp.PrivacyPlan, learning_rate: float) -> Callable[..., Any]:
    """The whole training as one function of (key, weights, images, labels, mask), for `dp.certify` to read."""
    optimizer = optax.adam(learning_rate)
    capacity = CHUNK * math.ceil(plan.sampling.capacity(plan.num_records) / CHUNK)
    norm = plan.clipping.start

    def clipped_sum(weights, images, labels, mask):
        """The clipped gradients of a batch, added up chunk by chunk: those of a few rows stay in the processor's cache."""

        def add_chunk(total, rows):
            xs, ys, real = rows
            gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(weights, xs, ys)
            return jax.tree.map(
                jnp.add, total, dp.sum_records(dp.clip_records(gradients, norm), real)
            ), None

        chunks = jax.tree.map(lambda x: x.reshape(-1, CHUNK, *x.shape[1:]), (images, labels, mask))
        return jax.lax.scan(add_chunk, jax.tree.map(jnp.zeros_like, weights), chunks)[0]

    def train(key, weights, images, labels, mask):
        def step(carry, key):
            weights, state = carry
            draw, noise = jax.random.split(key)
            (xs, ys, real), drawn = dp.poisson_subsample(
                draw, (images, labels, mask), plan.rate, capacity
            )
            total = clipped_sum(weights, xs, ys, drawn & real)
            noisy = dp.gaussian_mechanism(noise, total, stddev=plan.noise_multiplier * norm)
            mean = jax.tree.map(lambda g: g / (plan.rate * plan.num_records), noisy)
            updates, state = optimizer.update(mean, state)
            return (optax.apply_updates(weights, updates), state), None

        start = weights, optimizer.init(weights)
        (weights, _), _ = jax.lax.scan(step, start, jax.random.split(key, plan.num_steps))
        return weights

    return train


def certify(
    train: Callable[..., Any], plan: dp.PrivacyPlan, arguments: tuple[Any, ...]
) -> dp.Certificate:
    """The proof that `train` does to one record what `plan` says, and no more."""
    return dp.certify(
        train, *arguments, records=(2, 3), mask=4, relation=plan.relation, expect=plan
    )


def arguments_of(key, images, labels) -> tuple[Any, ...]:
    """The arguments of `train`; every row is a record."""
    return key, initial_weights(), images, labels, jnp.ones(len(labels), bool)


# --- The same as a NumPyro model ----------------------------------------------------------


def prior(shape: tuple[int, ...]) -> Any:
    """Standard normal for each weight of an array."""
    return dist.Normal(jnp.zeros(shape), 1).to_event(len(shape))


def model(images, labels=None):
    """The network with a prior on its weights."""
    weights = {name: numpyro.sample(name, prior(s)) for name, s in SIZES.items()}
    with numpyro.plate("records", images.shape[0]):
        numpyro.sample("label", dist.CategoricalLogits(logits(weights, images)), obs=labels)


def dpsvi_of(plan: dp.PrivacyPlan, learning_rate: float) -> dp.DPSVI:
    """The most probable weights: a guide that is one point."""
    start = numpyro.infer.init_to_value(values=initial_weights())
    guide = AutoDelta(model, init_loc_fn=start)
    return dp.DPSVI(model, guide, numpyro.optim.Adam(learning_rate), plan=plan)


def fit_by_dpsvi(dpsvi: dp.DPSVI, key, images, labels):
    """Fit; the weights are the averaged parameters of the guide."""
    result = dpsvi.run(key, images, labels, progress_bar=False)
    return {name: jnp.asarray(result.params[f"{name}_auto_loc"]) for name in SIZES}


# --- Beside them: no privacy --------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="num_steps")
def fit_openly(key, images, labels, num_steps: int):
    """The same network by Adam on batches of 100, with neither clipping nor noise: **not private**."""
    optimizer = optax.adam(1e-3)

    def mean_loss(weights, rows):
        return jnp.mean(jax.vmap(loss, (None, 0, 0))(weights, images[rows], labels[rows]))

    def step(carry, key):
        weights, state = carry
        gradient = jax.grad(mean_loss)(weights, jax.random.randint(key, (100,), 0, len(labels)))
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(weights, updates), state), None

    start = initial_weights()
    (weights, _), _ = jax.lax.scan(
        step, (start, optimizer.init(start)), jax.random.split(key, num_steps)
    )
    return weights


# --- The walkthrough that this follows ----------------------------------------------------


def walkthrough() -> None:
    """The Julia walkthrough's settings by its own rules, and the same training by ours. No data are touched."""
    num_records, batch, steps, epsilon, delta = 48_000, 2_000, 1_000, 0.2, 0.2
    rate = batch / num_records
    theirs = 4 * rate * epsilon * math.sqrt(2 * steps * math.log(1 / DELTA))
    multiplier = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(rate),
        clipping_norm=1.0,
        # Two gradients of norm 1 differ by at most 2: noise of `multiplier` times that, on the sum.
        noise_multiplier=2 * multiplier,
        num_steps=steps,
        num_records=num_records,
        relation=dp.Relation.REPLACE_ONE,
    )
    table = (
        jax.ShapeDtypeStruct((num_records, 784), jnp.float32),
        jax.ShapeDtypeStruct((num_records,), jnp.int32),
    )
    shapes = jax.eval_shape(arguments_of, dp.random.key(0), *table)
    certificate = certify(training(plan, learning_rate=1e-2), plan, shapes)
    print(
        f"The walkthrough: b = {batch:,} of {num_records:,}, k = {steps:,}, epsilon = delta = {delta} a step, C = 1"
    )
    print(
        f"  by its rules:  epsilon {theirs:.2f} at delta {rate * delta * steps + DELTA:.2f}: above 1, so nothing is said"
    )
    print(
        f"  by ours, proved for a Poisson batch of that rate, with noise of {2 * multiplier:.2f} on the sum of gradients:"
        f" epsilon {certificate.epsilon(DELTA):.2f} at delta {DELTA:g}, one record replaced\n"
    )


# --- What the proof costs -----------------------------------------------------------------


def timings(images, labels, rounds: int = 9) -> None:
    """The proof beside the trace, and the certified program beside the same under `jax.jit`, in turns."""
    settings = Settings(num_steps=20)
    plan = settings.plan(3.0, len(labels))
    train = training(plan, settings.learning_rate)
    # One key for all runs: nobody sees what they learn.
    arguments = arguments_of(dp.random.key(0), images, labels)

    def seconds(call: Callable[[], Any]) -> np.ndarray:
        start = np.array([time.perf_counter(), time.process_time()])
        jax.block_until_ready(call())
        return np.array([time.perf_counter(), time.process_time()]) - start

    certificate, plain = certify(train, plan, arguments), jax.jit(train)
    same = jax.tree.map(jnp.array_equal, certificate(*arguments), plain(*arguments))
    calls = {
        "trace": lambda: jax.make_jaxpr(lambda *x: train(*x))(*arguments).consts,
        "certify": lambda: certify(train, plan, arguments).slack,
        "certified": lambda: certificate(*arguments),
        "jit": lambda: plain(*arguments),
    }
    turns = [
        {name: seconds(calls[name]) for name in sorted(calls, reverse=turn % 2 == 1)}
        for turn in range(rounds)
    ]
    print(
        f"{plan.num_steps} steps, {rounds} turns; both programs give the same weights: {all(jax.tree.leaves(same))}"
    )
    for name in calls:
        wall, processor = np.median([turn[name] for turn in turns], axis=0)
        print(f"  {name:10} {wall:.3f} s, of processors {processor:.3f} s")
    wall, processor = np.median([turn["certified"] / turn["jit"] for turn in turns], axis=0)
    print(f"  certified / jit: {wall:.3f}, by time of processors {processor:.3f}")


# --- All together -------------------------------------------------------------------------


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, help="holds the t10k files ($DISCREET_DATA if left out)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="epsilon 8 only, 20 steps, one run: to see that it works",
    )
    parser.add_argument(
        "--runs", type=int, default=3, help="private fits to average over (default: 3)"
    )
    parser.add_argument(
        "--seed", type=int, help="reproducible keys, which are not private; left out: the system's"
    )
    parser.add_argument(
        "--timings", action="store_true", help="measure only what the proof costs, and stop"
    )
    return parser.parse_args()


def fresh_keys(seed: int | None) -> Iterator[jax.Array]:
    """Keys from the operating system, or, with a seed, such as can be made again."""
    for number in itertools.count():
        yield dp.random.key() if seed is None else dp.random.key(seed + number)


def main() -> None:
    """Prove, fit, print, assert."""
    chosen = options()
    settings, required, runs, open_steps = Settings(), REQUIRED, chosen.runs, 1_600
    if chosen.quick:
        settings, required, runs, open_steps = Settings(num_steps=20), {8.0: 0.7}, 1, 400
    images, labels, *test = _images.mnist(chosen.folder)
    if chosen.timings:
        return timings(images, labels)
    walkthrough()
    keys = fresh_keys(chosen.seed)
    table = Table(
        "epsilon",
        "noise multiplier",
        "plain JAX, proved",
        "NumPyro, DPSVI",
        title="Accuracy on 2,000 images",
    )
    with tqdm(total=2 * runs * len(required) + 1, desc="fits", unit="fit", delay=2.0) as bar:

        def reached(weights) -> float:
            bar.update()
            return accuracy(weights, *test)

        openly = reached(fit_openly(jax.random.key(0), images, labels, num_steps=open_steps))
        means = {}
        for epsilon in required:
            plan = settings.plan(epsilon, len(labels))
            train = training(plan, settings.learning_rate)
            certificate = certify(train, plan, arguments_of(next(keys), images, labels))
            dpsvi = dpsvi_of(plan, settings.learning_rate)
            dpsvi.certify(images, labels).check(plan)
            proved = [
                reached(certificate(*arguments_of(next(keys), images, labels))) for _ in range(runs)
            ]
            fitted = [reached(fit_by_dpsvi(dpsvi, next(keys), images, labels)) for _ in range(runs)]
            means[epsilon] = np.mean(proved), np.mean(fitted)
            spent = f"{certificate.epsilon(DELTA):.3f}"
            table.add_row(
                spent, f"{plan.noise_multiplier:.3f}", *(f"{mean:.3f}" for mean in means[epsilon])
            )
    table.add_row("without privacy", "0", f"{openly:.3f}", "")
    print(certificate)
    Console().print(table)
    for epsilon, least in required.items():
        assert min(means[epsilon]) >= least, (epsilon, means[epsilon])


if __name__ == "__main__":
    main()
