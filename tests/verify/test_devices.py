"""Programs that say where values lie are proved as if they did not; programs of several devices are refused for what they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import discreet as dp

from .programs import C, N, certify, clipped_sum, noisy

MESH = Mesh(np.array(jax.devices()[:1]), ("d",))
ROWS = NamedSharding(MESH, PartitionSpec("d"))


def test_a_sharding_constraint_is_the_identity():
    def step(w, xs, ys, mask, key):
        xs, ys, mask = (jax.lax.with_sharding_constraint(x, ROWS) for x in (xs, ys, mask))
        key = jax.lax.with_sharding_constraint(key, NamedSharding(MESH, PartitionSpec()))
        return noisy(key, clipped_sum(w, xs, ys, mask), 3 * C)

    assert certify(step).event.noise_multiplier == pytest.approx(3.0)


def test_a_sum_over_devices_is_refused_for_what_it_is():
    def step(w, xs, ys, mask, key):
        total = jax.shard_map(
            lambda x, m: jax.lax.psum(jnp.sum(jnp.where(m[:, None], dp.clip_records(x, 1.0), 0.0), 0), "d"),
            mesh=MESH,
            in_specs=PartitionSpec("d"),
            out_specs=PartitionSpec(),
            check_vma=False,
        )(xs, mask)
        return noisy(key, total, 3.0)

    assert len(jnp.arange(N)) % len(MESH.devices) == 0
    with pytest.raises(dp.PrivacyError, match="lets values of several devices meet") as error:
        certify(step)
    assert "callback" not in str(error.value)
    assert "spread it over devices" in error.value.remedy
