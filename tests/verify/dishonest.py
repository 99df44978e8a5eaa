"""Helpers of the attacks: their list, and the honest parts of dishonest programs.

Each program is listed with the largest noise multiplier that may truthfully be claimed for it; 0
where there is none.
"""

import jax.numpy as jnp
import pytest

import discreet as dp

from .programs import KEY, M, X, Y

Z = 1.5
W = jnp.zeros(())


class Attacks(list):
    """The programs of one file."""

    def __call__(self, why, truth=0.0, records=X):
        def enter(step):
            self.append(pytest.param(step, truth, records, id=f"{step.__name__}: {why}"))
            return step

        return enter


def nothing_worse_than_certified(step, truth, records):
    try:
        event = dp.certify(step, W, records, Y, M, KEY, records=(1, 2), mask=3).event
    except dp.PrivacyError:
        return
    assert getattr(event, "noise_multiplier", float("inf")) <= truth * (1 + 1e-6), (event, truth)


def norms(g):
    return jnp.sqrt(jnp.sum(g * g, 1))


def guarded(x):
    return jnp.where(jnp.isfinite(x), x, 0.0)


def clipped(g):
    return g * jnp.minimum(1.0, 1.0 / norms(g))[:, None]


def marked(x, c=1.0):
    return dp.clip_records(x, c)


def total(rows, mask):
    return jnp.sum(jnp.where(mask.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0.0), 0)


def noise(key, value, bound=1.0):
    return dp.gaussian_mechanism(key, value, Z * bound)
