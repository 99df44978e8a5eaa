"""Check whether strangers' programs can be fitted, by a proof instead of a fit wherever that is enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import discreet as dp


class Stranger:
    """A program that somebody wrote for NumPyro's SVI, given to DPSVI as it is."""

    def __init__(
        self,
        model: Callable[..., Any],
        *records: Any,
        guide: Any = None,
        loss: Any = None,
        **options: Any,
    ) -> None:
        """Make the DPSVI; nothing is looked at yet."""
        rows = len(next(x for x in jax.tree.leaves(records) if np.ndim(x)))
        self.records = records
        plan = dp.PrivacyPlan(
            sampling=dp.FullBatch(),
            clipping_norm=1e4,
            noise_multiplier=1e-9,
            num_steps=2,
            num_records=rows,
        )
        guide = AutoNormal(model) if guide is None else guide
        self.dpsvi = dp.DPSVI(
            model, guide, optax.adam(1e-2), loss or Trace_ELBO(), plan=plan, **options
        )

    def start(self, seed: int = 1) -> Any:
        """Look at the program; raises what it is refused with."""
        return self.dpsvi._init(
            dp.random.key(seed), dp.inference._records.take_apart(self.records, {}), None
        )

    def refusal(self) -> str:
        """The words with which it is refused."""
        try:
            self.start()
        except ValueError as error:
            return str(error)
        pytest.fail("it was accepted")

    @property
    def objective(self) -> Any:
        """The program taken apart, after `start`."""
        return self.dpsvi._initialised().objective

    def certify(self) -> Any:
        """Prove the fit."""
        return self.dpsvi.certify(*self.records)

    def losses(self, seed: int = 3) -> tuple[np.ndarray, float]:
        """Each record's loss and the data-free term at the start, in nats."""
        state = self.start()
        psi = self.dpsvi.optim.get_params(state.optim_state)
        u, free = self.objective.link(psi, jax.random.key(seed))
        leaves = [jnp.asarray(x) for x in jax.tree.leaves(self.records) if np.ndim(x)]
        keys = jax.random.split(jax.random.key(seed + 1), len(leaves[0]))
        # Each record's own parameters, as they start.
        leaves += [jnp.repeat(x[None], len(keys), 0) for x in self.objective.example[len(leaves) :]]
        return np.asarray(
            jax.vmap(self.objective.record_loss, (None, 0, 0))(u, leaves, keys)
        ), float(free)


@pytest.fixture(scope="session")
def stranger() -> type[Stranger]:
    """`Stranger`."""
    return Stranger
