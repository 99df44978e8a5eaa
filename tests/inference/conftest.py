"""Helpers of the inference tests: a plan whose noise is negligible, and NumPyro's own answer beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.handlers as handlers
import optax
import pytest
from numpyro.infer import SVI, Trace_ELBO

from discreet import mechanisms, random
from discreet.methods.inference import DPSVI, _dpsvi
from discreet.methods.inference._step_keys import StepKeys
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import FullBatch, PoissonSampling

# A clipping norm that no record of these tests reaches, and noise of 1e-5 on a sum of gradients:
# the private step is then NumPyro's step, and whatever differs is a bug.
NO_CLIPPING = 1e4
NO_NOISE = 1e-9
DECAY = 0.9


def make_exact_plan(num_records: int, num_steps: int = 1, rate: float = 1.0) -> PrivacyPlan:
    """A plan that neither clips nor adds visible noise."""
    return PrivacyPlan(
        sampling=FullBatch() if rate == 1.0 else PoissonSampling(rate),
        clipping_norm=NO_CLIPPING,
        noise_multiplier=NO_NOISE,
        num_steps=num_steps,
        num_records=num_records,
    )


class Comparison(NamedTuple):
    """The loss and gradient of one step, ours and NumPyro's, at the same parameters and the same guide draws."""

    loss: float
    gradient: dict[str, Any]
    numpyro_loss: float
    numpyro_gradient: dict[str, Any]

    def check(self, rtol: float = 1e-4) -> None:
        """Assert that they agree up to float32 rounding, relative to each array's largest coordinate."""
        assert set(self.gradient) == set(self.numpyro_gradient)
        for name, ours in self.gradient.items():
            theirs = self.numpyro_gradient[name]
            assert jax.tree.structure(ours) == jax.tree.structure(theirs)
            for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
                scale = max(1.0, float(jnp.max(jnp.abs(b))))
                np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale, err_msg=name)
        np.testing.assert_allclose(self.loss, self.numpyro_loss, rtol=1e-3, atol=1e-2)


class Fits(NamedTuple):
    """The parameters at the end of a private fit without clipping or noise, and of NumPyro's, and their ELBOs."""

    params: dict[str, Any]
    numpyro_params: dict[str, Any]
    elbo: float
    numpyro_elbo: float

    def check_elbo(self, nats: float) -> None:
        """Assert that the two ELBOs are within `nats` of one another."""
        assert abs(self.elbo - self.numpyro_elbo) < nats, (self.elbo, self.numpyro_elbo)

    def check_normal(self, *, locations: float, scales: float) -> None:
        """Assert that two AutoNormal posteriors agree.

        Args:
            locations: largest difference of the locations, in posterior standard deviations.
            scales: largest relative difference of the standard deviations.
        """
        for name, theirs in self.numpyro_params.items():
            ours = self.params[name]
            if name.endswith("_loc"):
                spread = self.numpyro_params[name.removesuffix("_loc") + "_scale"]
                np.testing.assert_array_less(
                    np.abs(ours - theirs) / spread, locations, err_msg=name
                )
            else:
                np.testing.assert_array_less(np.abs(ours / theirs - 1.0), scales, err_msg=name)


class Twins:
    """A DPSVI that neither clips nor adds noise beside NumPyro's SVI of the same program, optimizer and start."""

    def __init__(
        self,
        make_program: Callable[[], tuple[Any, Any]],
        *records: Any,
        loss: Any = None,
        num_steps: int = 4000,
        step_size: float = 0.02,
        rate: float = 1.0,
        **static: Any,
    ) -> None:
        """Initialise both.

        Args:
            make_program: makes a fresh pair (model, guide).
            records: arguments of the model.
            loss: the ELBO.
            num_steps: length of a fit; the step size falls to a hundredth, so that both end where
                the expected gradient is zero.
            step_size: of Adam at the start.
            rate: sampling rate of the private fit.
            static: keyword arguments of model and guide.
        """
        self.records, self.num_steps, self.static = records, num_steps, static
        self.loss = Trace_ELBO() if loss is None else loss
        optimizer = optax.adam(optax.exponential_decay(step_size, num_steps, 0.01), b1=DECAY)
        num_records = len(jax.tree.leaves(records)[0])
        model, guide = make_program()
        plan = make_exact_plan(num_records, num_steps, rate)
        self.dpsvi = DPSVI(
            model, guide, optimizer, self.loss, plan=plan, loss_bound=1e5, loss_share=0.5, **static
        )
        self.key = random.key(7)
        self.state = self.dpsvi.init(self.key, *records)
        self.start = jax.tree.map(np.asarray, self.dpsvi.get_params(self.state))

        self.model, self.guide = make_program()
        self.svi = SVI(self.model, self.guide, optimizer, self.loss, **static)
        self.svi_state = self.svi.init(jax.random.key(0), *records, init_params=self.start)
        assert self.svi.constrain_fn is not None
        self.constrain = self.svi.constrain_fn

    def first_step(self, rows: int | None = None) -> Comparison:
        """Make one private step, and NumPyro's with the same draws of the global latents.

        Args:
            rows: the first so many records are the batch, and ours is padded with NaN; None: all,
                unpadded.
        """
        batch = self.records if rows is None else [x[:rows] for x in self.records]
        padding = 0 if rows is None else 3
        ours = [jnp.pad(x, (0, padding), constant_values=jnp.nan) if padding else x for x in batch]
        mask = None if rows is None else jnp.arange(rows + padding) < rows
        psi = self.dpsvi.optim.get_params(self.state.optim_state)
        state, private_loss = jax.jit(lambda s: self.dpsvi.update(s, *ours, mask=mask))(self.state)
        _, (_, (adam, *_)) = state.optim_state
        gradient = jax.tree.map(lambda x: x / (1.0 - DECAY), adam.mu)

        draw = StepKeys.derive(self.key).at(jnp.int32(0)).guide
        particles = self.loss.num_particles
        draws = (
            [draw]
            if particles == 1
            else [jax.random.split(draw, particles)[i] for i in range(particles)]
        )

        def numpyro_loss(psi: Any) -> Any:
            params, single, total = self.constrain(psi), type(self.loss)(), 0.0
            for one in draws:
                # The inner seed decides, so NumPyro's guide draws what ours drew.
                guide = handlers.seed(self.guide, jax.random.split(one)[0])
                total += single.loss(
                    jax.random.key(1), params, self.model, guide, *batch, **self.static
                )
            return total / len(draws)

        value, expected = jax.jit(jax.value_and_grad(numpyro_loss))(psi)
        return Comparison(float(private_loss), gradient, float(value), expected)

    def fit(self, particles: int = 200) -> Fits:
        """Run both to the end, and evaluate both ELBOs with NumPyro on common draws."""
        ours = self.dpsvi.run(self.key, *self.records, progress_bar=False).last_params
        steps = lambda state: jax.lax.fori_loop(  # noqa: E731
            0, self.num_steps, lambda _, s: self.svi.update(s, *self.records)[0], state
        )
        theirs = self.svi.get_params(jax.jit(steps)(self.svi_state))

        @jax.jit
        def loss(params: Any) -> Any:
            elbo = Trace_ELBO(particles)
            return elbo.loss(
                jax.random.key(11), params, self.model, self.guide, *self.records, **self.static
            )

        return Fits(ours, theirs, -float(loss(ours)), -float(loss(theirs)))


@pytest.fixture(scope="session")
def exact_plan() -> Any:
    """`make_exact_plan`."""
    return make_exact_plan


@pytest.fixture(scope="session")
def twins() -> Any:
    """`Twins`."""
    return Twins


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A context in which every way to a release fails the test, and an error with the given words is expected."""

    def released(*_args: Any, **_kwargs: Any) -> None:
        pytest.fail("something was released before the refusal")

    @contextmanager
    def expect(error: Any, *words: str) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(mechanisms, "release", released)
            patch.setattr(mechanisms, "gaussian_mechanism", released)
            patch.setattr(_dpsvi, "run_steps", released)
            patch.setattr(_dpsvi, "update_once", released)
            with pytest.raises(error) as caught:
                yield
        for word in words:
            assert word in str(caught.value)

    return expect
