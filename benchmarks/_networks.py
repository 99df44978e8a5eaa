"""The variational auto-encoders of d3p's Table 2, layer by layer, for every JAX contender alike."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.example_libraries import stax

Network = tuple[Callable[..., Any], Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """An encoder and a decoder.

    Attributes:
        shape: of one record.
        latent_dim: of one record's latent.
        encoder: record -> location and positive scale of the latent.
        decoder: latent -> logits of the pixels.
        num_parameters: of both together.
    """

    shape: tuple[int, ...]
    latent_dim: int
    encoder: Network
    decoder: Network
    num_parameters: int

    def model(self, images: jax.Array, N: int) -> None:
        """Bernoulli pixels."""
        size = images.shape[0]
        decode = numpyro.module("decoder", self.decoder, (size, self.latent_dim))
        with numpyro.plate("batch", N, size):
            latent = numpyro.sample("z", dist.Normal(0, 1).expand([self.latent_dim]).to_event(1))
            numpyro.sample(
                "x", dist.Bernoulli(logits=decode(latent)).to_event(len(self.shape)), obs=images
            )

    def guide(self, images: jax.Array, N: int) -> None:
        """Amortised."""
        size = images.shape[0]
        encode = numpyro.module("encoder", self.encoder, images.shape)
        with numpyro.plate("batch", N, size):
            loc, scale = encode(images)
            numpyro.sample("z", dist.Normal(loc, scale).to_event(1))

    def initial_parameters(self, key: jax.Array) -> dict[str, Any]:
        """Weights for contenders that know no NumPyro."""
        first, second = jax.random.split(key)
        _, encoder = self.encoder[0](first, (1, *self.shape))
        _, decoder = self.decoder[0](second, (1, self.latent_dim))
        return {"encoder": encoder, "decoder": decoder}

    def loss(self, parameters: dict[str, Any], images: jax.Array, key: jax.Array) -> jax.Array:
        """Negative ELBO of a batch with one draw a record, what NumPyro's Trace_ELBO computes."""
        loc, scale = self.encoder[1](parameters["encoder"], images)
        noise = jax.random.normal(key, loc.shape)
        latent = loc + scale * noise
        logits = self.decoder[1](parameters["decoder"], latent)
        pixels = jnp.sum(images * logits - jax.nn.softplus(logits))
        prior = jnp.sum(dist.Normal(0, 1).log_prob(latent))
        return jnp.sum(dist.Normal(loc, scale).log_prob(latent)) - prior - pixels


def _heads(latent_dim: int) -> tuple[Any, Any]:
    return stax.FanOut(2), stax.parallel(
        stax.Dense(latent_dim), stax.serial(stax.Dense(latent_dim), stax.Exp)
    )


def dense(hidden: int = 400, latent_dim: int = 50, pixels: int = 784) -> Architecture:
    """784-400-50-400-784, softplus: 688,884 parameters, d3p's network for MNIST."""
    encoder = stax.serial(stax.Dense(hidden), stax.Softplus, *_heads(latent_dim))
    decoder = stax.serial(stax.Dense(hidden), stax.Softplus, stax.Dense(pixels))
    return _counted((pixels,), latent_dim, encoder, decoder)


def convolutional(
    channels: tuple[int, int, int] = (32, 64, 128), latent_dim: int = 50, side: int = 32
) -> Architecture:
    """Three convolutions, kernel 4, stride 2, and a dense layer, both ways: 640,423 parameters, as d3p's for CIFAR-10."""
    wide = (4, 4)
    layers = [
        layer for c in channels for layer in (stax.Conv(c, wide, (2, 2), "SAME"), stax.Softplus)
    ]
    encoder = stax.serial(*layers, stax.Flatten, *_heads(latent_dim))
    small = (side // 8, side // 8, channels[2])
    back = [
        stax.Dense(math.prod(small)),
        stax.Softplus,
        _reshape(small),
        stax.ConvTranspose(channels[1], wide, (2, 2), "SAME"),
        stax.Softplus,
        stax.ConvTranspose(channels[0], wide, (2, 2), "SAME"),
        stax.Softplus,
        stax.ConvTranspose(3, wide, (2, 2), "SAME"),
    ]
    return _counted((side, side, 3), latent_dim, encoder, stax.serial(*back))


def _reshape(shape: tuple[int, ...]) -> Network:
    return (
        lambda key, given: ((given[0], *shape), ()),
        lambda parameters, x, **_: x.reshape(x.shape[0], *shape),
    )


def _counted(
    shape: tuple[int, ...], latent_dim: int, encoder: Network, decoder: Network
) -> Architecture:
    bare = Architecture(shape, latent_dim, encoder, decoder, 0)
    leaves = jax.tree.leaves(jax.eval_shape(bare.initial_parameters, jax.random.key(0)))
    return dataclasses.replace(bare, num_parameters=sum(math.prod(leaf.shape) for leaf in leaves))


def random_images(num_records: int, shape: tuple[int, ...]) -> jax.Array:
    """Black and white pixels at random; no contender's time depends on what they show."""
    drawn = np.random.default_rng(0).integers(0, 2, size=(num_records, *shape), dtype=np.uint8)
    return jnp.asarray(drawn, dtype=jnp.float32)
