"""Variational auto-encoders on the whole image tables: d3p (PoPETs 2022), Table 2, the losses.

    DISCREET_DATA=/path/to/files python examples/paper/vae_images.py    # hours on processors
    DISCREET_DATA=/path/to/files python examples/paper/vae_images.py --quick

Networks, settings and what the paper leaves open are those of vae.py; 20 epochs, as there. The
files are those that the tables are published as; a table whose files are not in $DISCREET_DATA is
left out:

    train-images-idx3-ubyte.gz, t10k-images-idx3-ubyte.gz                               MNIST
    fashion-mnist/train-images-idx3-ubyte.gz, fashion-mnist/t10k-images-idx3-ubyte.gz   Fashion-MNIST
    cifar-10-batches-bin/data_batch_1.bin to data_batch_5.bin, .../test_batch.bin       CIFAR-10, binary version
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from _experiment import Rows, experiment, new_figure
from _images import cifar_10, fashion_mnist, whole_mnist
from _tables import NoTable
from vae import PLAIN, PRIVATE, black_and_white, losses_after

from benchmarks._networks import Architecture, convolutional, dense

TABLES: dict[
    str, tuple[Callable[[], tuple[np.ndarray, np.ndarray]], Callable[[], Architecture]]
] = {
    "MNIST": (whole_mnist, dense),
    "Fashion-MNIST": (fashion_mnist, dense),
    "CIFAR-10": (cifar_10, convolutional),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Public choices; `num_images` and `num_held_out` cut a quick run's tables."""

    batch_size: int = 128
    noise_multiplier: float = 1.5
    clipping_norm: float = 1.0
    learning_rate: float = 1e-3
    epochs: int = 20
    runs: int = 1
    num_images: int | None = None
    num_held_out: int | None = None
    first_seed: int = 0


QUICK = Settings(epochs=5, num_images=1_000, num_held_out=200)


def run(settings: Settings) -> Rows:
    """The loss of both sides on each table that is here.

    Raises:
        NoTable: None is here.
    """
    rows: Rows = []
    missing = []
    for name, (read, network) in TABLES.items():
        try:
            training, held_out = read()
        except NoTable as absent:
            missing.append(f"{name} is left out. {absent}")
            continue
        training = black_and_white(training[: settings.num_images], 0)
        held_out = black_and_white(held_out[: settings.num_held_out], 1)
        steps = math.ceil(settings.epochs * len(training) / settings.batch_size)
        rows += losses_after(name, network(), training, held_out, steps, settings.runs, settings)
    if not rows:
        raise NoTable("\n".join(missing))
    print("\n".join(missing), flush=True)
    return rows


def draw(rows: Rows) -> Any:
    """The losses, ours beside the paper's."""
    figure, axes = new_figure()
    places = np.arange(len(rows))
    axes.bar(places - 0.2, [row["loss"] for row in rows], 0.4, label="here", color="#444444")
    axes.bar(places + 0.2, [row["paper_loss"] for row in rows], 0.4, label="d3p", color="#cccccc")
    axes.set_xticks(
        places, [f"{row['what'].split(',')[0]}\n{row['side']}" for row in rows], fontsize=6
    )
    axes.set(ylabel="−ELBO of a held-out image, nats")
    axes.legend()
    return figure


def check(rows: Rows, quick: bool) -> None:
    """Privacy costs; in full, losses are near the paper's or below."""
    reached = {(row["what"], row["side"]): row["loss"] for row in rows}
    for row in rows:
        assert math.isfinite(row["loss"]), row
        # After ten steps on made-up images noise may help.
        assert quick or reached[row["what"], PLAIN] < reached[row["what"], PRIVATE], reached
        assert quick or row["loss"] < row["paper_loss"] * 1.15, row


if __name__ == "__main__":
    experiment(__file__, __doc__, full=Settings(), quick=QUICK, run=run, draw=draw, check=check)
