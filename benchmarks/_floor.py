"""Lower bounds on the work of a step: multiplications, bytes moved, random bits."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks._networks import Architecture

_FLOAT = 4
# Adam reads parameters, gradient and two moments, and writes all but the gradient.
_ADAM_PASSES = 7


def floor_of_network(architecture: Architecture, batch_size: int) -> dict[str, float]:
    """A step of an auto-encoder, private or not; the noise is what privacy adds.

    Flops are XLA's count for the plain gradient of the batch's loss: clipping by book-keeping
    multiplies the same matrices once, since the weights of the clipped sum are known after the
    backward pass.
    """
    parameters = jax.eval_shape(architecture.initial_parameters, jax.random.key(0))
    images = jax.ShapeDtypeStruct((batch_size, *architecture.shape), jnp.float32)
    gradient = jax.jit(jax.grad(architecture.loss))
    dim = architecture.num_parameters
    return {
        "flops": flops_of(gradient, parameters, images, jax.eval_shape(lambda: jax.random.key(0))),
        "bytes": float(
            _FLOAT * (_ADAM_PASSES * dim + 2 * batch_size * math.prod(architecture.shape))
        ),
        "noise_bits": 32.0 * (dim + 1),
        "other_bits": 32.0 * batch_size * (architecture.latent_dim + 1),
    }


def flops_of(compiled_for: Any, *arguments: Any) -> float:
    """XLA's own count of a jitted function's floating-point operations."""
    analysis = compiled_for.lower(*arguments).cost_analysis()
    return float(analysis["flops"]) if analysis else math.nan
