"""The one door to the parts of JAX that are not in its public interface.

JAX promises stability for `jax.*` only. What discreet needs beyond that passes through this file, so that a new
JAX release can break one short file and no other. Each name says where it comes from and why it is needed.
"""

from jax.extend.random import define_prng_impl

__all__ = ["define_prng_impl"]
# `define_prng_impl` (jax.extend.random): makes a key type out of our own split, fold_in and bits. JAX calls its
# `jax.extend` modules "semi-public": kept, but outside the deprecation policy.
