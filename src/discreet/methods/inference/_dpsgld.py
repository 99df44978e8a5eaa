"""Differentially private stochastic gradient Langevin dynamics: draws from the posterior itself, by a noisy chain.

`releases_of` makes a function of its key from a DPSVI or DPSGLD, to be run many times over by an
audit.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from discreet._jax import in_own_settings
from discreet._validate import fraction, integer
from discreet.methods.inference._dpsvi import DPSVI
from discreet.methods.inference._elbo import Objective
from discreet.methods.inference._forms import kinds
from discreet.methods.inference._langevin import Langevin, Schedule, as_schedule, step_sizes
from discreet.methods.inference._loop import many_steps
from discreet.methods.inference._point_guide import PointGuide
from discreet.methods.inference._records import Program, refuse_options, take_apart
from discreet.methods.inference._result import DPSVIResult
from discreet.methods.inference._step import DPSVIState, PlanNumbers, PrivateStep
from discreet.methods.inference._step_keys import StepKeys
from discreet.methods.inference._trace import Trace
from discreet.methods.inference_data import to_arviz
from discreet.privacy import random
from discreet.privacy.accounting import Bound2015, langevin_epsilon_2015
from discreet.privacy.ledger import Ledger
from discreet.privacy.mechanisms import GAUSSIAN
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.released import NOT_IN_DICT, Released
from discreet.privacy.report import Statement
from discreet.privacy.verify import Certificate


class DPSGLD:
    """Draws from a NumPyro model's posterior by a private Langevin chain.

    Each step makes the release of `DPSVI` at the chain's place theta, the global latents in
    unconstrained space:

        R = sum of clip_C(-grad log p(record | theta)) + noise of standard deviation sigma C,
        theta <- theta - (eta_t / 2) (R / q - grad log p(theta)) + extra noise.

    A Langevin chain needs noise of variance eta_t. The release brings (eta_t sigma C / (2 q))^2 of
    it, and the extra noise what is missing, if anything: together the larger of the two. So a noise
    multiplier up to `free_noise_multiplier` costs the chain nothing, and one above makes it hotter
    than the posterior.

    Guarantee: that of `DPSVI`; all iterates, and so all draws, are together `plan.event()`. The
    extra noise is post-processing and lowers no epsilon here: to gain from it, let the plan have
    `free_noise_multiplier`.

    Not guaranteed: that the draws are the posterior's. Clipping, the noise of batches, noise above
    the free one and a finite step size each change the law of the chain, and nothing in the result
    measures by how much.

    Args:
        model: An ordinary NumPyro model without latents of records and without `param` sites: array
            arguments hold records along their leading axis.
        plan: The privacy plan, with a fixed clipping norm.
        step_size: (a, b, gamma) for eta_t = a (b + t)^-gamma, or a function of t = 0, 1, ... for
            JAX to trace. For N records of unit information a few tenths of 1 / N suits.
        burn_in: Fraction of the steps whose iterates are no draws, in [0, 1).
        thinning: Every so many steps of the rest is a draw, counted back from the last.
        init_loc_fn: One of NumPyro's `init_to_*`, evaluated on the placeholder; None: the origin of
            unconstrained space.
        placeholder: As in `DPSVI`.
        loss_share: Share of the release given to a private estimate of -log p(records, theta); as
            in `DPSVI`, but 0.
        microbatch_size: As in `DPSVI`.
        static_kwargs: Public keyword arguments of the model.

    Raises:
        ValueError, TypeError: An argument that cannot be used, before any budget is spent.

    Reference:
        Wang, Fienberg and Smola, Privacy for free, ICML 2015 (Algorithm 2); Welling and Teh, ICML
        2011.
    """

    @in_own_settings
    def __init__(
        self,
        model: Program,
        *,
        plan: PrivacyPlan,
        step_size: tuple[float, float, float] | Schedule,
        burn_in: float = 0.5,
        thinning: int = 1,
        init_loc_fn: Callable[..., Any] | None = None,
        placeholder: Sequence[Any] | None = None,
        loss_share: float = 0.0,
        microbatch_size: int | None = None,
        **static_kwargs: Any,
    ) -> None:
        schedule = as_schedule(step_size)
        self._dpsvi = DPSVI(
            model,
            PointGuide(model, init_loc_fn),
            Langevin(schedule, lambda: plan.noise_multiplier * self.contribution_bound / plan.rate),
            plan=plan,
            placeholder=placeholder,
            loss_share=loss_share,
            microbatch_size=microbatch_size,
            **static_kwargs,
        )
        if plan.clipping.adapts:
            raise ValueError(
                "The plan's clipping norm moves with the fit, and the noise in a step with it, so the chain would not know "
                "how much is missing. Give the plan a number as clipping_norm."
            )
        if plan.noise_schedule is not None or plan.rate_schedule is not None:
            name = "noise multiplier" if plan.rate_schedule is None else "sampling rate"
            raise ValueError(
                f"The plan's {name} changes from step to step, and Langevin dynamics add to the same noise in each. Leave "
                "noise_schedule and rate_schedule out of the plan, or fit with DPSVI."
            )
        if plan.mechanism != GAUSSIAN:
            raise ValueError(
                f"The plan's noise is that of {type(plan.mechanism).__name__}; Langevin dynamics need Gaussian noise. Leave "
                "mechanism out of the plan, or fit with DPSVI."
            )
        self.plan = plan
        self.burn_in = fraction(
            "burn_in", burn_in, hint="It is a fraction of the steps, such as 0.5."
        )
        self.thinning = integer("thinning", thinning, 1, plan.num_steps, hint="1 keeps every step.")
        self.step_sizes = step_sizes(schedule, plan.num_steps)
        self._made = True

    __setattr__ = DPSVI.__setattr__  # options are fixed

    @property
    def contribution_bound(self) -> float:
        """L2 bound on all that a record adds to a step, to which the noise multiplier is relative."""
        return self._dpsvi.contribution_bound

    @property
    def free_noise_multiplier(self) -> float:
        """The largest noise multiplier whose release brings no more noise than Langevin dynamics need anyway, in any step.

        2 q / (C sqrt(eta)) for the longest step size eta. A plan with it has the least epsilon of
        those that leave the chain's law alone ("privacy for free").
        """
        return (
            2 * self.plan.rate / (self.contribution_bound * math.sqrt(float(self.step_sizes.max())))
        )

    def epsilon_2015(self, delta: float) -> Bound2015:
        """Compute epsilon of this run by the constants and advanced composition of Wang et al. (2015).

        A historical figure with conditions of its own, not discreet's claim (that is
        `plan.epsilon(delta)`). Unlike that one it counts the extra noise. See
        `discreet.accounting.langevin_epsilon_2015`.

        Args:
            delta: The delta at which to state it.
        """
        noise = max(self.plan.noise_multiplier, self.free_noise_multiplier)
        return langevin_epsilon_2015(
            noise_multiplier=noise, rate=self.plan.rate, num_steps=self.plan.num_steps, delta=delta
        )

    def certify(self, *args: Any, **kwargs: Any) -> Certificate:
        """Prove from the chain's own jaxpr what `run` will tell of one record; see `DPSVI.certify`.

        Raises:
            PrivacyError: There is no proof.
            TypeError, ValueError: As `run`.
        """
        return self._dpsvi.certify(*args, **kwargs)

    @in_own_settings
    def run(
        self,
        rng_key: PRNGKeyArray,
        *args: Any,
        progress_bar: bool = True,
        delta: float | None = None,
        init_params: Mapping[str, Any] | None = None,
        require_proof: bool = True,
        ledger: Ledger | None = None,
        checkpoint: Path | str | None = None,
        person: str | None = None,
        max_rows: int = 1,
        mesh: Mesh | None = None,
        **kwargs: Any,
    ) -> DPSGLDResult:
        """Run the chain: the plan's number of releases, accounted for and proved beforehand as in `DPSVI.run`.

        Ctrl-C or SIGTERM stops and returns what is done; the price is the whole plan's.

        Args:
            rng_key: `discreet.random.key()`; a key starts one run only.
            args: The records, along the leading axis of every array.
            progress_bar: Show progress after two seconds.
            delta: Delta of the statement; None: the plan's, or a cautious choice.
            init_params: As in `DPSVI.run`.
            require_proof: Refuse to run without a proof that the plan covers.
            ledger: The table's budget, debited just before the first release.
            checkpoint: As in `DPSVI.run`, as are the next three.
            person: As above.
            max_rows: As above.
            mesh: As above.
            kwargs: Likewise.

        Returns:
            Draws, iterates and the statement. A chain that left the finite numbers says so by a
            RuntimeWarning, which as an error has the chain as `partial_result`, and in
            `diverged_at`.

        Raises:
            PrivacyError: The verifier found no proof, or a worse event than the plan's.
            TypeError, ValueError: Wrong input, before any budget is spent.
        """
        refuse_options(kwargs)
        outcome = self._dpsvi.run(
            rng_key,
            *args,
            progress_bar=progress_bar,
            delta=delta,
            init_params=init_params,
            require_proof=require_proof,
            ledger=ledger,
            checkpoint=checkpoint,
            person=person,
            max_rows=max_rows,
            mesh=mesh,
            **kwargs,
        )
        tail = self._tail(outcome)
        draws, fine = self._constrained(outcome.trace.iterates)
        diverged_at = None if fine.all() else int(outcome.trace.steps[np.argmin(fine)])
        result = DPSGLDResult(
            draws={name: x[tail] for name, x in draws.items()},
            draw_steps=outcome.trace.steps[tail],
            step_sizes=self.step_sizes,
            losses=outcome.losses,
            trace=outcome.trace,
            statement=outcome.statement,
            plan=self.plan,
            steps_completed=outcome.steps_completed,
            diverged_at=diverged_at,
        )
        if diverged_at is not None:
            warning = RuntimeWarning(
                f"The chain left the finite numbers: first seen after step {diverged_at}. The step size is too large for "
                f"this model (eta is {self.step_sizes[0]:.3g} at the start); the budget is spent all the same. "
                "Try step sizes on artificial data of the same shape."
            )
            warning.__dict__["partial_result"] = result  # where warnings are errors
            warnings.warn(warning, stacklevel=3)
        return result

    def _tail(self, outcome: DPSVIResult) -> np.ndarray:
        """The rows of the trace that are draws, in order."""
        steps = outcome.trace.steps
        candidates = np.flatnonzero(steps > self.burn_in * outcome.steps_completed)
        # The trace itself may keep every so many steps only.
        apart = int(steps[1] - steps[0]) if len(steps) > 1 else 1
        return candidates[:: -max(1, -(-self.thinning // apart))][::-1]

    def _constrained(
        self, iterates: Float[np.ndarray, "kept dim"]
    ) -> tuple[dict[str, np.ndarray], Bool[np.ndarray, " kept"]]:
        """The latents' values at iterates, and whether all there is finite: they, the prior's density and its gradient."""
        objective: Objective = self._dpsvi._initialised().objective
        _, unravel = ravel_pytree(
            jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self._dpsvi._shapes)
        )
        # The point guide draws nothing, so that any key will do.
        key = jax.random.key(0)

        def one(flat: Array) -> tuple[dict[str, Array], Bool[Array, ""]]:
            draws = objective.draw_posterior(objective.constrain(unravel(flat)), key, 1)
            slope = jax.value_and_grad(lambda x: objective.link(unravel(x), key)[1])(flat)
            # A step does not follow a gradient that is no number, so that a chain which ran away
            # may stand still.
            fine = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves((draws, slope))]).all()
            return {name: x[0] for name, x in draws.items()}, fine

        return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jnp.asarray(iterates)))


@dataclasses.dataclass(frozen=True, eq=False)
class DPSGLDResult(Released, what="chain of private Langevin dynamics", parts=kinds):
    """The outcome of `DPSGLD.run`. Everything in it is covered by `statement`; it holds no key, and can be pickled.

    Attributes:
        draws: For each global latent the kept draws, constrained, along the leading axis. They
            follow one another in a chain: neighbours are alike.
        draw_steps: Number of releases made when each draw was kept.
        step_sizes: eta_t of all the plan's steps.
        losses: Private estimates of -log p(records, theta), in nats; NaN without a `loss_share`.
        trace: The iterates, unconstrained.
        statement: The privacy statement.
        plan: The plan of the run.
        steps_completed: Fewer than `plan.num_steps` after Ctrl-C; the price is the plan's all the
            same.
        diverged_at: The first step of the trace after which something was not finite; None: all is.
    """

    draws: dict[str, np.ndarray]
    draw_steps: np.ndarray
    step_sizes: Float[np.ndarray, "step"]
    losses: Float[np.ndarray, "step"]
    trace: Trace = dataclasses.field(metadata=NOT_IN_DICT)
    statement: Statement
    plan: PrivacyPlan
    steps_completed: int
    diverged_at: int | None

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, Array]:
        """Some of the draws, in random order; free of budget. To be used as `DPSVIResult.posterior`.

        Args:
            key: Any JAX key.
            num_samples: Number of draws; up to the number of kept draws all are distinct, beyond it
                they repeat.

        Returns:
            For each global latent an array with the draws along the leading axis.

        Raises:
            ValueError: num_samples < 1, or the chain diverged.
        """
        integer("num_samples", num_samples)
        self._check_finite()
        words = random.as_threefry(
            random.subkey(random.check_key(key, "key"), random.Purpose.POSTERIOR)
        )
        kept = len(self.draw_steps)
        chosen = jax.random.choice(words, kept, (num_samples,), replace=num_samples > kept)
        return {name: jnp.asarray(x)[chosen] for name, x in self.draws.items()}

    def to_arviz(self, **names: Any) -> Any:
        """All kept draws for ArviZ, in the chain's order, with the statement: `arviz.ess` then says what they are worth.

        Args:
            names: feature_names, coords and dims of `discreet.inference_data.to_arviz`.

        Returns:
            As `discreet.inference_data.to_arviz`.

        Raises:
            ValueError: The chain diverged, or as `discreet.inference_data.to_arviz`.
        """
        self._check_finite()
        return to_arviz(self.draws, statement=self.statement, **names)

    def _check_finite(self) -> None:
        if self.diverged_at is not None:
            raise ValueError(
                f"The chain left the finite numbers by step {self.diverged_at}, so its draws are none of the posterior. "
                "Run another one with a smaller step_size; the iterates before are in trace."
            )

    def __repr__(self) -> str:
        """Short repr without arrays."""
        return (
            f"DPSGLDResult({len(self.draw_steps)} draws of {len(self.draws)} latents, {self.steps_completed} of "
            f"{self.plan.num_steps} steps, {self.statement.brief})"
        )


def releases_of(
    method: DPSVI | DPSGLD, *args: Any, init_params: Mapping[str, Any] | None = None, **kwargs: Any
) -> Callable[[PRNGKeyArray], Float[Array, "step release"]]:
    """The releases of a fit at each step, as a function of its key: the program that `run` compiles, for auditing.

    The same samplers, step and noise, in the same loop, which can be mapped over keys. For audits
    of artificial records only: nothing is proved, debited or stated, so it takes only keys from a
    seed, which are not private.

    Args:
        method: A `DPSVI` or a `DPSGLD`.
        args: The records, as `run` takes them.
        init_params: As in `DPSVI.run`. Initial values are the same for all keys: an attacker knows
            them.
        kwargs: Likewise.

    Returns:
        A function from a key to one row for each step, and a pytree of the records that it holds.
        In a row are the gradient that the optimizer was given, times q, so for a point guide in
        unconstrained space the noisy sum itself and q times the slope of the prior; then the
        private loss, unless its share is 0; the shares of clipped and of counted records; and C, if
        it moves.

    Raises:
        TypeError, ValueError: As `run`. The function itself refuses keys that are secret.
    """
    dpsvi = method._dpsvi if isinstance(method, DPSGLD) else method
    records = take_apart(args, kwargs)
    plan = dpsvi.plan
    state = dpsvi._begin(random.key(0), records, init_params)._replace(rng_key=None)
    step = dpsvi._initialised()
    leaves = [jnp.asarray(x) for x in records.leaves]
    tables = jax.tree.map(jnp.asarray, plan.sampler.prepare(records.size))

    program = _program(step, plan.sampler.drawing(records.size), plan.num_steps)
    return Partial(program, PlanNumbers.of(plan), state, leaves, tables)


@functools.lru_cache(maxsize=8)
def _program(
    step: PrivateStep, drawing: Any, steps: int
) -> Callable[..., Float[Array, "step release"]]:
    """One function for all tables, so that those of one shape are compiled once."""

    def releases(
        numbers: PlanNumbers, state: DPSVIState, leaves: list[Array], tables: Any, key: PRNGKeyArray
    ) -> Float[Array, "step release"]:
        if not random.is_reproducible(key):
            raise ValueError(
                "releases_of takes keys made from a seed, such as discreet.random.key(1): what it releases is accounted for "
                "nowhere. To fit records of people, call run."
            )
        keys = StepKeys.derive(key, memory=step.local is not None)
        mean = jnp.zeros((0, 0))
        _, _, figures, norms, _, gradients = many_steps(
            step, drawing, steps, False, True, keys, state, mean, numbers, leaves, tables, steps
        )
        losses = figures[:, : int(step.loss_share > 0)]
        return jnp.concatenate(
            [
                gradients * jnp.reshape(numbers.rate, (-1, 1)),
                losses,
                figures[:, 1:],
                *[norms[:, None]] * step.adapts,
            ],
            axis=1,
        )

    return releases
