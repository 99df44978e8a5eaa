"""Helpers of the attacks: a sum, a sample, and keys that are not secret."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import discreet as dp
from discreet.privacy.sampling import PoissonSampling

from .programs import KEY, RATE, C, N

Z = 1.5
CAPACITY = PoissonSampling(RATE).capacity(N)


def into(attacks):
    """A decorator that enters a program and the reason why no proof of it may be found."""

    def attack(reason):
        def enter(step):
            attacks.append(pytest.param(step, id=f"{step.__name__}: {reason}"))
            return step

        return enter

    return attack


def total(xs, mask, norm=C):
    return dp.sum_records(dp.clip_records(xs, norm), mask)


def drawn(xs, mask, key, norm=C):
    (bx, bm), real = dp.poisson_subsample(key, (xs, mask), RATE, CAPACITY)
    return dp.clip_records(bx, norm), bm & real


def peek(xs):
    """The first record's bits."""
    return lax.bitcast_convert_type(xs.reshape(-1)[:8], jnp.uint32)


def private_key(xs):
    return jax.random.wrap_key_data(peek(xs), impl=KEY.dtype._impl)


def known_key():
    return jax.random.wrap_key_data(jnp.arange(8, dtype=jnp.uint32), impl=KEY.dtype._impl)
