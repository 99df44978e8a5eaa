"""The two sides of most workloads: discreet's loop, as `DPSVI.run` drives it, and NumPyro's SVI."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.flatten_util import ravel_pytree
from numpyro.infer import SVI, Trace_ELBO

import discreet as dp
from benchmarks._harness import Program
from benchmarks._networks import Architecture, random_images
from discreet.methods.inference import _loop
from discreet.methods.inference._checkpoint import Checkpoint
from discreet.privacy.gradients import GradientEngine, ReferenceEngine

_KEPT_LOSSES = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """The fitting problem, the same for every contender.

    Attributes:
        model: a NumPyro model.
        guide: its guide.
        data: the record arrays, whole.
        learning_rate: Adam's.
        clipping_norm: C.
        noise_multiplier: sigma.
        static: public keyword arguments of model and guide.
    """

    model: Any
    guide: Any
    data: tuple[jax.Array, ...]
    learning_rate: float = 1e-3
    clipping_norm: float = 1.0
    noise_multiplier: float = 1.5
    static: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_records(self) -> int:
        """N."""
        return self.data[0].shape[0]

    def poisson(self, batch_size: int) -> dp.PoissonSampling:
        """Batches of that expected size."""
        return dp.PoissonSampling(rate=batch_size / self.num_records)


def auto_encoder(architecture: Architecture, num_records: int) -> Problem:
    """Random pixels and d3p's numbers: sigma 1.5, Adam."""
    images = random_images(num_records, architecture.shape)
    return Problem(architecture.model, architecture.guide, (images,), static={"N": num_records})


def reference_engine(sampling: dp.PoissonSampling, num_records: int) -> ReferenceEngine:
    """`vmap` of the gradient, on as many rows at once as nearly every batch has."""
    return ReferenceEngine(microbatch_size=sampling.typical_size(num_records))


class PrivateFit:
    """DPSVI, held between `init` and the compiled loop, so that the loop can be run again and again.

    It runs what `DPSVI.run` runs after its checks: `run_steps`, with the sampler, secret ChaCha20
    keys and the trace of iterates. Each run draws a new key: a key's noise is drawn once. A run is
    a piece of a longer fit, and keeps iterates as often as that fit would.

    Args:
        problem: what is fitted.
        sampling: the batch law.
        steps: how many releases a run makes.
        engine: another gradient engine than the one that DPSVI chooses.
        horizon: steps of the whole fit; d3p's 20 epochs of 60,000 records in batches of 128.
        relation: which tables are neighbours; None: the sampler's usual relation.
    """

    def __init__(
        self,
        problem: Problem,
        sampling: Any,
        steps: int,
        engine: GradientEngine | None = None,
        *,
        horizon: int = 9_360,
        relation: dp.Relation | None = None,
    ) -> None:
        """See the class."""
        plan = dp.PrivacyPlan(
            sampling=sampling,
            clipping_norm=problem.clipping_norm,
            noise_multiplier=problem.noise_multiplier,
            num_steps=max(steps, horizon),
            num_records=problem.num_records,
            relation=sampling.usual_relation() if relation is None else relation,
        )
        optim = numpyro.optim.Adam(problem.learning_rate)
        self.dpsvi = dp.DPSVI(problem.model, problem.guide, optim, plan=plan, **problem.static)
        self.state = self.dpsvi.init(dp.random.key(), *problem.data)
        step = self.dpsvi._initialised()
        self.step = step if engine is None else dataclasses.replace(step, engine=engine)
        self.leaves = list(problem.data)
        self.steps = steps
        self.losses = np.zeros(0)

    @property
    def num_parameters(self) -> int:
        """Coordinates of the variational parameters."""
        flat, _ = ravel_pytree(self.dpsvi.optim.get_params(self.state.optim_state))
        return flat.size

    def run(
        self, progress_bar: bool = False, *, steps: int | None = None, processes: Any = None
    ) -> None:
        """Make `steps` releases, from the first state; by several processes, if that is how the records lie."""
        state = self.state._replace(rng_key=dp.random.key(0) if processes else dp.random.key())
        plan = dataclasses.replace(self.dpsvi.plan, num_steps=steps or self.steps)
        with _iterates_of_a_fit(self.dpsvi.plan.num_steps):
            nothing_kept = Checkpoint(None, state.rng_key, processes)
            options = {"progress_bar": progress_bar, "checkpoint": nothing_kept}
            outcome = _loop.run_steps(self.step, plan, state, self.leaves, **options)
        self.losses = outcome.figures[:, 0]

    def program(self, name: str, note: str = "") -> Program:
        """As a contender."""
        return Program(name, self.run, self.steps, note)


@contextmanager
def _iterates_of_a_fit(num_steps: int) -> Iterator[None]:
    """Keep iterates as in a fit of that many steps: of a large model, a few dozen whatever the number of steps."""
    recorder = _loop.TraceRecorder
    _loop.TraceRecorder = lambda dim, _: recorder(dim, num_steps)
    try:
        yield
    finally:
        _loop.TraceRecorder = recorder


class NonPrivateFit:
    """NumPyro's SVI: `update` in one compiled loop, on batches of one size gathered at random from the table.

    Rows are drawn with replacement, the cheapest law there is. `looped=False` makes one call a step
    instead: XLA computes convolutions on CPUs several times faster outside of a loop (jax-ml/jax
    issue 12868).
    """

    def __init__(
        self, problem: Problem, batch_size: int, steps: int, *, looped: bool = True
    ) -> None:
        """See the class."""
        optim = numpyro.optim.Adam(problem.learning_rate)
        svi = SVI(problem.model, problem.guide, optim, Trace_ELBO(), **problem.static)
        first = tuple(x[:batch_size] for x in problem.data)
        self.state = svi.init(jax.random.key(0), *first)
        self.data = problem.data
        self.steps = steps
        self.losses = np.zeros(0)

        def one(i: jax.Array, carry: Any, key: jax.Array, data: tuple[jax.Array, ...]) -> Any:
            state, losses = carry
            index = jax.random.randint(
                jax.random.fold_in(key, i), (batch_size,), 0, problem.num_records
            )
            state, loss = svi.update(state, *(x[index] for x in data))
            return state, losses.at[i % _KEPT_LOSSES].set(loss)

        @jax.jit
        def loop(carry: Any, key: jax.Array, data: tuple[jax.Array, ...], count: jax.Array) -> Any:
            return jax.lax.fori_loop(0, count, lambda i, carry: one(i, carry, key, data), carry)

        self.loop, self.one, self.looped = loop, jax.jit(one), looped
        self.get_params = svi.optim.get_params

    @property
    def num_parameters(self) -> int:
        """Coordinates of the variational parameters."""
        flat, _ = ravel_pytree(self.get_params(self.state.optim_state))
        return flat.size

    def run(self) -> None:
        """Make `steps` updates."""
        carry, key = (self.state, jnp.zeros(_KEPT_LOSSES)), jax.random.key(1)
        if self.looped:
            state, losses = self.loop(carry, key, self.data, jnp.int32(self.steps))
        else:
            for i in range(self.steps):
                carry = self.one(jnp.int32(i), carry, key, self.data)
            state, losses = carry
        self.state, self.losses = jax.block_until_ready(state), np.asarray(losses)[: self.steps]

    def program(self, name: str = "NumPyro, not private", note: str = "") -> Program:
        """As a contender."""
        return Program(name, self.run, self.steps, note)
