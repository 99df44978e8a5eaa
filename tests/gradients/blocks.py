"""The registry of blocks: the ways in which programs use parameters, from which networks are generated.

A block draws its parameters and returns them with a function (parameters, x, record) -> y that maps
(positions, width) to (positions, width). Its name is part of its leaves' names, so a failure says
which use was misread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

POSITIONS, WIDTH, VOCABULARY = 4, 3, 5
Apply = Callable[[dict[str, Any], Any, dict[str, Any]], Any]
Maker = Callable[[np.random.Generator, int, int], tuple[dict[str, Any], Apply]]
BLOCKS: dict[str, Maker] = {}


def block(make: Maker) -> Maker:
    BLOCKS[make.__name__] = make
    return make


def normal(rng: np.random.Generator, *shape: int, scale: float | None = None) -> jax.Array:
    """Normal weights; of standard deviation one over the square root of the first axis if no other is given."""
    scale = scale or (1 / math.sqrt(shape[0]) if shape else 1.0)
    return jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)


def pick(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]
