"""Variational auto-encoders: d3p (PoPETs 2022), section 5.1, Table 2.

    python examples/paper/vae.py            # five minutes on two cores
    python examples/paper/vae.py --quick

The networks of the paper: 784-400-50-400-784 for MNIST, three convolutions and a dense layer for
CIFAR-10; Adam, batches of 128, sigma = 1.5, 20 epochs. Where it is silent: C = 1, Adam's rate 1e-3,
pixels made black or white once, at random by their brightness. Times are those of random pixels,
private and NumPyro's SVI in turn, as in the benchmarks: medians over rounds, and the ratio within
each round. The loss is that of MNIST's 2,000 held-out images after 20 epochs of 8,000, and after as
many steps as 20 epochs of the paper's 60,000 images are: both fits end with their last iterate, as
there.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from _experiment import STYLES, Rows, experiment, new_figure
from _images import mnist
from numpyro.infer import SVI, Trace_ELBO

import discreet as dp
from benchmarks._fits import NonPrivateFit, PrivateFit, auto_encoder
from benchmarks._harness import alternate, ratio
from benchmarks._networks import Architecture, convolutional, dense

PRIVATE, PLAIN = "discreet", "NumPyro"
# Table 2 and its V100: seconds an epoch and final loss, d3p and NumPyro.
PAPER = {
    ("MNIST", PRIVATE): (0.56, 174.06),
    ("MNIST", PLAIN): (0.34, 99.63),
    ("Fashion-MNIST", PRIVATE): (0.55, 304.74),
    ("Fashion-MNIST", PLAIN): (0.33, 243.99),
    ("CIFAR-10", PRIVATE): (4.22, 2123.05),
    ("CIFAR-10", PLAIN): (1.64, 1903.29),
}
COLUMNS = (
    "epsilon",
    "delta",
    "seconds",
    "ratio",
    "low",
    "high",
    "ratio_of_fastest",
    "loss",
    "stdev",
)
COLUMNS += ("paper_seconds", "paper_ratio", "paper_loss")
RECORDS = {"MNIST": 60_000, "CIFAR-10": 50_000}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Public choices.

    `timed` are tables of random pixels: a step's time does not depend on their length, memory does.
    `steps` are those of one round of each side; `fits` are steps of a fit to MNIST, and how many
    such fits.
    """

    batch_size: int = 128
    noise_multiplier: float = 1.5
    clipping_norm: float = 1.0
    learning_rate: float = 1e-3
    timed: tuple[tuple[str, int], ...] = (("MNIST", 60_000), ("CIFAR-10", 20_000))
    steps: tuple[int, ...] = (100, 3)
    rounds: tuple[int, ...] = (9, 5)
    channels: tuple[int, int, int] = (32, 64, 128)
    fits: tuple[tuple[int, int], ...] = ((1_250, 3), (9_375, 1))
    num_images: int = 8_000
    first_seed: int = 0


QUICK = Settings(
    timed=(("MNIST", 2_000),), steps=(8,), rounds=(3,), fits=((120, 1),), num_images=2_000
)


def timings(settings: Settings) -> Rows:
    """Seconds an epoch of both sides, in turn."""
    rows = []
    for (name, num_records), steps, rounds in zip(
        settings.timed, settings.steps, settings.rounds, strict=True
    ):
        architecture = dense() if name == "MNIST" else convolutional(settings.channels)
        problem = auto_encoder(architecture, num_records)
        private = PrivateFit(problem, problem.poisson(settings.batch_size), steps)
        # XLA computes convolutions on processors more quickly outside of a loop: NumPyro gets the
        # better way.
        plain = NonPrivateFit(problem, settings.batch_size, steps, looped=name == "MNIST")
        ours, theirs = alternate([private.program(PRIVATE), plain.program(PLAIN)], rounds)
        within = ratio(name, ours, theirs)
        for timing in (ours, theirs):
            seconds, _ = PAPER[name, timing.name]
            row = _row(
                f"{name}, epoch of {RECORDS[name]:,}", timing.name, architecture.num_parameters
            )
            row["seconds"] = timing.median * RECORDS[name] / settings.batch_size
            row["paper_seconds"] = seconds
            if timing.name == PRIVATE:
                row["ratio"], row["low"], row["high"] = within.value, within.low, within.high
                row["ratio_of_fastest"] = within.of_fastest
                row["paper_ratio"] = seconds / PAPER[name, PLAIN][0]
            rows.append(row)
        jax.clear_caches()
    return rows


def _row(what: str, side: str, num_parameters: int) -> dict[str, Any]:
    return {"what": what, "side": side, "parameters": num_parameters} | dict.fromkeys(COLUMNS)


def black_and_white(images: np.ndarray, seed: int) -> np.ndarray:
    """Each pixel 1 with its brightness as probability, else 0: nothing of one image meets another."""
    return np.asarray(np.random.default_rng(seed).random(images.shape) < images, np.float32)


def held_out_loss(architecture: Architecture, params: Any, images: Any, draws: int = 10) -> float:
    """Negative ELBO an image, in nats."""
    svi = SVI(
        architecture.model,
        architecture.guide,
        numpyro.optim.Adam(1e-3),
        Trace_ELBO(),
        N=len(images),
    )
    loss = jax.jit(
        lambda key: svi.loss.loss(key, params, svi.model, svi.guide, images, **svi.static_kwargs)
    )
    return statistics.mean(float(loss(jax.random.key(i))) for i in range(draws)) / len(images)


def private_fit(
    architecture: Architecture, images: np.ndarray, steps: int, seeds: range, settings: Settings
) -> Any:
    """Last parameters of each seed; epsilon and delta."""
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(settings.batch_size / len(images)),
        clipping_norm=settings.clipping_norm,
        noise_multiplier=settings.noise_multiplier,
        num_steps=steps,
        num_records=len(images),
    )
    optim = numpyro.optim.Adam(settings.learning_rate)
    dpsvi = dp.DPSVI(architecture.model, architecture.guide, optim, plan=plan, N=len(images))
    results = [
        dpsvi.run(dp.random.key(seed), images, progress_bar=False, delta=1 / len(images))
        for seed in seeds
    ]
    return [result.last_params for result in results], results[0].statement


def plain_fit(
    architecture: Architecture, images: np.ndarray, steps: int, seeds: range, settings: Settings
) -> list[Any]:
    """Last parameters of each seed, by NumPyro's SVI on shuffled images."""
    optim = numpyro.optim.Adam(settings.learning_rate)
    svi = SVI(architecture.model, architecture.guide, optim, Trace_ELBO(), N=len(images))

    @jax.jit
    def fit(key: jax.Array, images: jax.Array, batches: jax.Array) -> Any:
        state = svi.init(key, images[: settings.batch_size])
        return jax.lax.scan(lambda state, rows: svi.update(state, images[rows]), state, batches)[0]

    fitted = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        epochs = math.ceil(steps * settings.batch_size / len(images))
        order = np.concatenate([rng.permutation(len(images)) for _ in range(epochs)])
        batches = order[: steps * settings.batch_size].reshape(steps, settings.batch_size)
        fitted.append(
            svi.get_params(fit(jax.random.key(seed), jnp.asarray(images), jnp.asarray(batches)))
        )
    return fitted


def losses(settings: Settings) -> Rows:
    """Held-out loss of both sides on MNIST."""
    training, _, held_out, _ = mnist(None)
    training, held_out = (
        black_and_white(training[: settings.num_images], 0),
        black_and_white(held_out, 1),
    )
    rows = []
    for steps, count in settings.fits:
        rows += losses_after("MNIST", dense(), training, held_out, steps, count, settings)
    return rows


def losses_after(
    name: str,
    architecture: Architecture,
    training: np.ndarray,
    held_out: np.ndarray,
    steps: int,
    count: int,
    settings: Any,
) -> Rows:
    """Held-out loss of both sides on a table after that many steps, mean of `count` fits."""
    rows = []
    seeds = range(settings.first_seed, settings.first_seed + count)
    private, statement = private_fit(architecture, training, steps, seeds, settings)
    plain = plain_fit(architecture, training, steps, seeds, settings)
    for side, fitted in ((PRIVATE, private), (PLAIN, plain)):
        reached = [held_out_loss(architecture, params, held_out) for params in fitted]
        row = _row(
            f"{name}, {steps:,} steps on {len(training):,}", side, architecture.num_parameters
        )
        row["loss"] = statistics.mean(reached)
        row["stdev"] = statistics.stdev(reached) if len(reached) > 1 else None
        row["paper_loss"] = PAPER[name, side][1]
        if side == PRIVATE:
            row["epsilon"], row["delta"] = statement.epsilon, statement.delta
        rows.append(row)
        print(f"{row['what']}, {side}: {row['loss']:.1f} nats", flush=True)
    return rows


def run(settings: Settings) -> Rows:
    """Losses first: they need no quiet machine."""
    return [*losses(settings), *timings(settings)]


def draw(rows: Rows) -> Any:
    """Ratio of the times and held-out losses, ours beside the paper's."""
    figure, (left, right) = new_figure(2)
    timed = [row for row in rows if row["ratio"] is not None]
    places = np.arange(len(timed))
    spread = np.array([[row["ratio"] - row["low"], row["high"] - row["ratio"]] for row in timed]).T
    left.bar(
        places - 0.2,
        [row["ratio"] for row in timed],
        0.4,
        yerr=spread,
        capsize=3,
        label="here",
        color="#444444",
    )
    left.bar(
        places + 0.2, [row["paper_ratio"] for row in timed], 0.4, label="d3p, V100", color="#cccccc"
    )
    left.axhline(1, color="#000000", linestyle=":", linewidth=0.8)
    left.set_xticks(places, [row["what"].split(",")[0] for row in timed])
    left.set(ylabel="time private / not private")
    fits = [row for row in rows if row["loss"] is not None]
    for side, style in zip((PRIVATE, PLAIN), STYLES, strict=False):
        line = [row for row in fits if row["side"] == side]
        name = "private" if side == PRIVATE else "not private"
        right.plot(
            [row["what"] for row in line], [row["loss"] for row in line], label=name, **style
        )
        right.axhline(
            line[0]["paper_loss"],
            color=style["color"],
            linestyle=(0, (1, 2)),
            label=f"{name}, paper",
        )
    right.set(ylabel="−ELBO of a held-out image, nats")
    for axes in (left, right):
        axes.legend(fontsize=7)
    return figure


def check(rows: Rows, quick: bool) -> None:
    """Both sides learn, privacy costs; in full, the losses and ratios are near the paper's or below."""
    reached = {(row["what"], row["side"]): row["loss"] for row in rows if row["loss"] is not None}
    for what, _ in reached:
        # Decoders that know nothing: 784 ln 2 = 543 nats.
        assert reached[what, PLAIN] < reached[what, PRIVATE] < (400 if quick else 260), reached
    for row in rows:
        if row["ratio"] is not None:
            assert 0 < row["ratio"] < (20 if quick else row["paper_ratio"] * 1.2), row
    if not quick:
        longest = [row for row in rows if row["loss"] is not None][-2:]
        for row in longest:
            assert row["loss"] < row["paper_loss"] * 1.15, row


if __name__ == "__main__":
    experiment(__file__, __doc__, full=Settings(), quick=QUICK, run=run, draw=draw, check=check)
