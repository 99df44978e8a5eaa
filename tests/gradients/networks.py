"""Networks: chains of blocks with a loss behind them, and six random records for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Importing these fills the registry.
from . import blocks_control, blocks_elements, blocks_matrices  # noqa: F401
from .blocks import BLOCKS, POSITIONS, VOCABULARY, WIDTH, Apply, normal

ROWS = 6
# Rounding to eight bits at other places than the reference does moves a gradient by about a per
# cent.
LOW_PRECISION = {"bfloat16_matmul", "bfloat16_leaf", "wide_accumulation"}


# Losses: what becomes of the last block's output.


def squares(head, x, record):
    return 0.5 * jnp.sum((x.mean(axis=0) @ head["w"] - record["y"]) ** 2)


def cross_entropy(head, x, record):
    return -jnp.mean(jax.nn.log_softmax(x @ head["w"])[:, record["flag"] % 2])


def linear(head, x, record):
    """The last layer's cotangent is the same for every record."""
    return jnp.sum(x @ head["w"])


def regularised(head, x, record):
    """A part of the loss that knows the parameters only, and a use of the same leaf in a layer."""
    return (
        squares(head, x, record)
        + 0.3 * jnp.sum(head["w"] ** 2)
        + jnp.sum(jnp.log1p(head["w"] ** 2))
    )


def gaussian(head, x, record):
    scale = jnp.exp(0.1 * head["w"].sum())
    return jnp.log(scale) + 0.5 * ((x.sum() - record["y"]) / scale) ** 2


LOSSES = {f.__name__: f for f in (squares, cross_entropy, linear, regularised, gaussian)}


class Network(NamedTuple):
    parameters: dict[str, Any]
    record_loss: Callable[[Any, Any], Any]
    records: dict[str, Any]
    tolerance: float


def build(kinds: list[str], loss: str, seed: int) -> Network:
    """A network with the given blocks, random weights, and six records."""
    rng = np.random.default_rng(seed)
    records = {
        "x": normal(rng, ROWS, POSITIONS, WIDTH, scale=1.0),
        "y": normal(rng, ROWS, scale=3.0),
        "token": jnp.asarray(rng.integers(0, VOCABULARY, (ROWS, POSITIONS)), jnp.int32),
        "flag": jnp.asarray(rng.integers(0, 4, ROWS), jnp.int32),
        "key": jax.random.split(jax.random.key(seed), ROWS),
    }
    record = jax.tree.map(lambda x: x[0], records)
    parameters: dict[str, Any] = {"unused": normal(rng, 2, 2)}
    applied: list[tuple[str, Apply]] = []
    x = jax.eval_shape(lambda r: r["x"], record)
    for place, kind in enumerate(kinds):
        name = f"{place}_{kind}"
        parameters[name], apply = BLOCKS[kind](rng, *x.shape)
        applied.append((name, apply))
        x = jax.eval_shape(apply, parameters[name], x, record)
    parameters["head"] = {"w": normal(rng, x.shape[1], 2)}

    def record_loss(p: Any, record: Any) -> Any:
        x = record["x"]
        for name, apply in applied:
            x = apply(p[name], x, record)
        return LOSSES[loss](p["head"], x, record)

    return Network(parameters, record_loss, records, 3e-2 if LOW_PRECISION & set(kinds) else 2e-4)
