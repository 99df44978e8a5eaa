"""Differentially private stochastic variational inference, with NumPyro's verbs.

`init`, `update` and `evaluate` are for your own loops. `run` does everything: it checks the
arguments, makes the statement, proves the program, debits the ledger, and makes the releases
(`_loop`). All refusals come before the debit.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from numpyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO

from discreet._jax import as_one_curator, in_own_settings, refuse_traced
from discreet._validate import choice, fraction, integer, probability, real
from discreet.methods.inference._checkpoint import Checkpoint
from discreet.methods.inference._elbo import Objective
from discreet.methods.inference._loop import run_steps, update_once
from discreet.methods.inference._optimizers import (
    as_numpyro_optim,
    optimizer_digest,
    start_optimizer,
)
from discreet.methods.inference._processes import Processes
from discreet.methods.inference._proof import certify_fit, check_provable, with_proof
from discreet.methods.inference._records import (
    Program,
    Records,
    check_public,
    refuse_tables,
    take_apart,
)
from discreet.methods.inference._result import DPSVIResult, draw_posterior, result_of, warn_of_use
from discreet.methods.inference._saved import versions
from discreet.methods.inference._start import loss_at_start
from discreet.methods.inference._step import DPSVIState, PlanNumbers, PrivateStep
from discreet.methods.inference._support import refuse_outside_support
from discreet.methods.inference._trace import TraceRecorder
from discreet.privacy import random
from discreet.privacy.accounting import neighbours
from discreet.privacy.act import Act
from discreet.privacy.clipping import AdaptiveClipping, contribution_bound
from discreet.privacy.gradients import BookKeepingEngine
from discreet.privacy.mechanisms import Shards, levels_for
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.report import Statement, Unit, make_statement
from discreet.privacy.sampling import PoissonSampling
from discreet.privacy.verify import Certificate
from discreet.storage import exclusive

if TYPE_CHECKING:
    from discreet.privacy.ledger import Ledger

IN_STEPS = {
    "method": "DPSVI",
    "programs": "the model, the guide and the optimizer",
    "released": "the parameters of the fit after every step",
}
"""How a statement names the method, what is public of it, and what is released, unless the optimizer has `words` of its own."""


@contextmanager
def explain_steps(args: Sequence[Any]) -> Iterator[None]:
    """Explain a model's failure on a first argument that is meant as NumPyro's number of steps."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        cause = (error.__cause__ or error) if isinstance(error, ValueError) else error
        if not args or type(args[0]) is not int or isinstance(cause, ValueError):
            raise
        raise ValueError(
            f"The model fails with {args[0]} as its first argument ({cause}). If that is the number of steps: omit it, since the "
            "plan defines it. run(key, xs, ys) takes the key and the model's arguments."
        ) from error


def without_svi_words(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the options of NumPyro's `SVI.run` from the keyword arguments of `run`.

    `stable_update` has no effect: a record whose gradient is not finite contributes zero in any
    case.
    """
    rest = dict(kwargs)
    rest.pop("stable_update", None)
    if rest.pop("forward_mode_differentiation", False):
        raise ValueError(
            "forward_mode_differentiation=True is not supported: each record's gradient is taken by reverse mode, which "
            "clipping needs. A loop of a fixed length (fori_loop with numbers, scan) has a reverse mode."
        )
    if rest.pop("init_state", None) is not None:
        raise ValueError(
            "init_state is not supported: a plan covers its steps from the first. Start a new plan where another fit ended "
            "with init_params=dpsvi.get_params(state); an interrupted fit continues with checkpoint=."
        )
    return rest


class DPSVI:
    """Fit a NumPyro model under (epsilon, delta)-differential privacy.

    Guarantee: the parameters, losses and iterates that `run` returns are together
    `plan.event()` for the plan's relation, up to floating-point rounding; so (epsilon, delta) of
    `plan.epsilon(delta)`. The only thing computed from records that leaves a step is

        R = sum of clip_C(grad_u loss_i(u)) + noise,

    where u is everything through which records meet the parameters: the global latents' values,
    unconstrained, and the `param` sites that per-record code uses. Prior and entropy see a
    placeholder instead of data, and each record is evaluated alone.

    The model is an ordinary NumPyro model whose observations lie in a plate of the records'
    length; the guide any reparametrised one (AutoNormal, AutoMultivariateNormal, flows, your
    own; amortised guides for per-record latents).

    Args:
        model: The model; array arguments hold records along their leading axis.
        guide: The guide, with the model's signature.
        optim: An optimizer of `numpyro.optim` or optax.
        loss: `Trace_ELBO` or `TraceMeanField_ELBO`, with `num_particles` shared guide draws.
        plan: The privacy plan.
        perturb: "latents", the rule above; or "parameters", d3p's rule (gradients of the whole
            ELBO in all variational parameters, one guide draw a record), for comparison.
        placeholder: One artificial record (or several) in place of data where data must not be
            read: arrays as for `run`. None: zeros, or ones where zeros are impossible.
        loss_share: Share of the squared sensitivity given to the private loss, in [0, 1). The
            noise on the gradient grows by 1 / sqrt(1 - loss_share): one per cent for 0.02. With
            0 the losses are NaN.
        loss_bound: Losses further than this many nats from the placeholder's are clipped in the
            private loss (never in the gradient), which biases it. Its noise grows with the bound.
            None: the placeholder's loss, at least 1.
        microbatch_size: Rows processed at once. None: the batch, or as many as fit in a gibibyte.
        local: "private": the guide's `param` sites may have a value for each record, along one
            axis. They stay beside the data: `run` updates them without noise for the records of
            each batch, before their clipped gradients are taken, and they are never released. None:
            like "private" for records' latents in an AutoNormal or AutoDelta, where the plan's
            batches and `perturb` permit it; other such sites are refused.
        local_optim: Optimizer of those, as `optim`; None: the same.
        local_updates: Number of updates of a record's parameters each time it is in a batch. They
            must keep up with the global ones: for 2,000 records with a mean each, in 500 steps of
            200 records, one update found 0.2 for the spread of these means, and 20 found SVI's
            0.85.
        static_kwargs: Public keyword arguments of model and guide, such as N.

    Raises:
        ValueError, TypeError: An argument that cannot be used, before any budget is spent.

    Reference:
        Jälkö, Dikmen, Honkela, UAI 2017 (Algorithm 1); Prediger et al., PoPETs 2022(2);
        "aligned gradients" of Jälkö et al., 2023.
    """

    def __init__(
        self,
        model: Program,
        guide: Program,
        optim: Any,
        loss: Any = None,
        *,
        plan: PrivacyPlan,
        perturb: str = "latents",
        placeholder: Sequence[Any] | None = None,
        loss_share: float = 0.02,
        loss_bound: float | None = None,
        microbatch_size: int | None = None,
        local: str | None = None,
        local_optim: Any = None,
        local_updates: int = 10,
        **static_kwargs: Any,
    ) -> None:
        self.model = model
        self.guide = guide
        self.optim = as_numpyro_optim(optim)
        self.loss = Trace_ELBO() if loss is None else loss
        self.plan = plan
        self.perturb = perturb
        self.placeholder = placeholder
        self.loss_share = loss_share
        self.loss_bound = loss_bound
        self.microbatch_size = microbatch_size
        self.local = local
        self.local_updates = local_updates
        self.local_optim = self.optim if local_optim is None else as_numpyro_optim(local_optim)
        self.static_kwargs = static_kwargs
        self._check_options()
        self._steps: dict[Any, PrivateStep] = {}
        self._current = None
        self._made = True

    @property
    def contribution_bound(self) -> float:
        """L2 bound on a record's contribution to the first step, to which the noise multiplier is relative."""
        return contribution_bound(self.plan.clipping, self.loss_share)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse changes of options, since compiled steps and the guarantee would not follow."""
        if not name.startswith("_") and getattr(self, "_made", False):
            kind = type(self).__name__
            raise AttributeError(
                f"{name} of a {kind} is fixed when it is made. Make another {kind} with the {name} you want."
            )
        object.__setattr__(self, name, value)

    def _check_options(self) -> None:
        if not isinstance(self.plan, PrivacyPlan):
            raise TypeError(
                f"plan is a {type(self.plan).__name__}, not a PrivacyPlan. Make one with "
                "discreet.PrivacyPlan.calibrate(epsilon=..., delta=..., ...)."
            )
        # Here guides are reparametrised and discrete latents of one record are summed out: then
        # these are Trace_ELBO.
        same = (Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO)
        if type(self.loss) not in same or getattr(self.loss, "multi_sample_guide", False):
            raise ValueError(
                f"{type(self.loss).__name__} is not supported: its gradient is no sum over records that can be clipped one by "
                "one. Use Trace_ELBO or TraceMeanField_ELBO, with num_particles if needed."
            )
        choice("perturb", self.perturb, ("latents", "parameters"))
        fraction(
            "loss_share",
            self.loss_share,
            hint="0.02 costs one per cent more noise on the gradient.",
        )
        count_share = self.plan.clipping.count_share
        if self.loss_share + count_share >= 1.0:
            raise ValueError(
                f"loss_share is {self.loss_share} and the clipping rule's count_share {count_share}; together they must be "
                "below 1, to leave a share for the gradient. 0.02 and 0.019 are common choices."
            )
        if self.loss_bound is not None:
            must = "positive and finite, in nats: from 1e-30 to 1e30, as 32-bit arithmetic has it"
            real(
                "loss_bound",
                self.loss_bound,
                1e-30,
                1e30,
                must=must,
                hint="None takes the placeholder's loss.",
            )
        if self.microbatch_size is not None:
            integer("microbatch_size", self.microbatch_size)
        check_public(self.static_kwargs)
        integer(
            "local_updates",
            self.local_updates,
            hint="It is the number of updates that a record makes in a batch.",
        )
        if self.local is None:
            return
        choice(
            "local",
            self.local,
            ("private",),
            hint="None refuses guides with parameters of the records' own.",
        )
        if self.perturb == "parameters":
            raise ValueError(
                'local="private" needs perturb="latents": d3p\'s rule has no private memory.'
            )
        if not self.plan.sampling.independent:
            raise ValueError(
                f'local="private" with {type(self.plan.sampling).__name__} is refused: in its batches, drawing one record '
                "affects the memory of others, which the accounting of such batches does not cover. Use "
                "PoissonSampling(rate) or FullBatch()."
            )

    def _refuse_local(self, what: str) -> None:
        """Refuse methods without row numbers if records have a memory."""
        if self.local is not None or (
            self._current is not None and self._current.local is not None
        ):
            raise ValueError(
                f"Each record has variational parameters of its own here, and {what} cannot assign them to rows. Fit with run, "
                "which draws the batches itself and keeps those parameters beside the data; or write an encoder."
            )

    # NumPyro's verbs.

    @in_own_settings
    def init(
        self,
        rng_key: PRNGKeyArray,
        *args: Any,
        init_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> DPSVIState:
        """Create the initial state, from shapes and dtypes of the arguments, never values.

        Args:
            rng_key: Key of the fit, from `discreet.random.key()`; it determines all noise.
            args: Arguments of the model, records along the leading axis.
            init_params: Public initial values of `param` sites, constrained.
            kwargs: Likewise.

        Returns:
            A state for `update`.

        Raises:
            TypeError, ValueError: A model, guide, key or argument that cannot be fitted privately.
        """
        key = random.check_key(rng_key)
        random.check_unused(key, random.INIT)
        state = self._init(
            key, take_apart(args, kwargs, programs=(self.model, self.guide)), init_params
        )
        self._refuse_local("update, which init is for,")
        # Updates that a caller compiles cannot be watched: let a key start one fit only.
        random.claim(key, random.INIT)
        return state

    def _init(
        self, key: PRNGKeyArray, records: Records, init_params: Mapping[str, Any] | None
    ) -> DPSVIState:
        if isinstance(key, Tracer):
            raise TypeError(
                "init looks at the model outside of JAX's transformations; call it without jit, vmap or scan."
            )
        # None: records have a private memory if they need one.
        may_keep = (
            self.local is None and self.plan.sampling.independent and self.perturb == "latents"
        )
        objective, psi, start_key = Objective.of(
            records,
            key,
            placeholder=self.placeholder,
            init_params=init_params,
            mean_field=isinstance(self.loss, TraceMeanField_ELBO),
            num_particles=self.loss.num_particles,
            model=self.model,
            guide=self.guide,
            static=self.static_kwargs,
            num_records=self.plan.num_records,
            keeps_local=None if may_keep else self.local is not None,
        )
        signature = (
            records.signature,
            tuple((str(path), x.shape) for path, x in jax.tree.leaves_with_path(psi)),
        )
        if signature not in self._steps:
            self._steps[signature] = self._private_step(objective, psi, key)
        self._current, self._shapes = self._steps[signature], jax.eval_shape(lambda: psi)
        objective = self._current.objective
        norm = jnp.float32(self.plan.clipping.start)
        center = loss_at_start(objective, psi, start_key)
        local = self._current.local
        memory = [] if local is None else local.rows(records.size)
        optim_state = start_optimizer(self.optim, psi, key, objective)
        return DPSVIState(optim_state, key, jax.device_put(np.int32(0)), center, norm, memory)

    def _private_step(
        self, objective: Objective, psi: Mapping[str, Any], key: PRNGKeyArray
    ) -> PrivateStep:
        local = None
        own = dict(objective.local_start)
        if own:
            from discreet.methods.inference._local import LocalUpdates  # few fits need it

            digest = optimizer_digest(self.local_optim, own)
            local = LocalUpdates(objective, self.local_optim, digest, self.local_updates)
        whole = self.perturb == "parameters"
        perturbed = psi if whole else jax.eval_shape(objective.link, psi, key)[0]
        reached = objective.reached(perturbed, self.plan.num_records if whole else None)
        leaves = jax.tree.leaves_with_path(perturbed)
        # with loss and counts
        released = sum(x.size for _, x in itertools.compress(leaves, reached)) + 3
        name_at = 0 if whole else 1
        others = [
            path[name_at].key
            for (path, _), is_reached in zip(leaves, reached, strict=True)
            if not is_reached
        ]
        return PrivateStep(
            objective=objective,
            optim=self.optim,
            optim_digest=optimizer_digest(
                self.optim, psi, start_optimizer(self.optim, psi, key, objective)
            ),
            released=released,
            loss_share=self.loss_share,
            loss_bound=self.loss_bound,
            perturb_parameters=whole,
            reached=reached,
            unreached=tuple(sorted(set(others))),
            local=local,
            **self._of_plan(released),
        )

    def _of_plan(self, released: int, shards: Shards | None = None) -> dict[str, Any]:
        """The static parameters of a step with `released` coordinates, derived from the plan."""
        plan = self.plan
        sampling = plan.sampling
        size = plan.num_records
        # A device's part of a batch is about as long as a Poisson sample of its records, whatever
        # the sampler. Its rows are in secret order, too.
        rows = sampling.typical_size(size)
        capacity = sampling.capacity(size)
        shuffled = sampling.shuffled(size)
        if shards is not None:
            rows = PoissonSampling(plan.rate).typical_size(-(-size // shards.count))
        return {
            "engine": BookKeepingEngine(rows, capacity, shuffled, self.microbatch_size),
            "mechanism": plan.mechanism,
            "levels": max(
                levels_for(extreme(plan.noise_multipliers), released) for extreme in (min, max)
            ),
            "adapts": plan.clipping.adapts,
            "count_share": plan.clipping.count_share,
            "num_records": plan.num_records,
        }

    def _begin(
        self, key: PRNGKeyArray, records: Records, init_params: Mapping[str, Any] | None
    ) -> DPSVIState:
        """The first state of a fit of these records, checked against the plan."""
        self.plan.check_size(records.size)
        refuse_tables(jax.tree.leaves(self.static_kwargs), [records.size])
        return self._init(key, records, init_params)

    @in_own_settings
    def update(
        self,
        state: DPSVIState,
        *args: Any,
        mask: Bool[Array, "record"] | None = None,
        **kwargs: Any,
    ) -> tuple[DPSVIState, Float[Array, ""]]:
        """Make one release from a batch that the caller drew, and one step of the optimizer.

        Guarantee: one step of `plan.event()`, if the batch was drawn by the plan's sampling,
        afresh for this step and with randomness that stays secret; `run` sees to that itself.
        Give each state to `update` once: two releases from one state share their noise.

        Args:
            state: The state before; its parameters may be published.
            args: A batch, as the model takes it. Rows that `mask` drops may hold anything.
            mask: True for real rows, which come first; None: all.
            kwargs: Likewise.

        Returns:
            The next state, and a private estimate of the negative ELBO of all records, in nats,
            biased by `loss_bound`.

        Raises:
            ValueError: `init` was not called, the batch does not fit the plan, the plan's
                steps are used up, or JAX traces the call with a secret key.
        """
        return self._update(state, args, kwargs, mask, hedged=False)

    def _update(
        self,
        state: DPSVIState,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        mask: Any,
        *,
        hedged: bool,
    ) -> tuple[DPSVIState, Float[Array, ""]]:
        """`update`; if `hedged` nobody claims the state, and the noise depends on what it hides."""
        self._refuse_local("update")
        records = take_apart(args, kwargs)
        plan = self.plan
        if plan.rate_schedule is not None:
            raise ValueError(
                "update takes batches that the caller draws, and nothing shows at which step's rate. Fit with run, which draws "
                "them, or leave rate_schedule out of the plan."
            )
        step = self._step_for(records)
        plan.sampling.check_rows(
            records.size, plan.num_records, plan.relation, masked=mask is not None
        )
        mask = jnp.ones(records.size, bool) if mask is None else jnp.asarray(mask)
        if mask.shape != (records.size,) or mask.dtype != jnp.bool_:
            raise ValueError(
                f"mask has shape {mask.shape} and dtype {mask.dtype}; it must hold one Boolean for each of the {records.size} "
                "rows."
            )
        if not isinstance(state.step, Tracer) and int(state.step) >= plan.num_steps:
            raise ValueError(
                f"The plan covers {plan.num_steps} steps, and this state has made them all. Plan more steps beforehand; "
                "adding some afterwards would cost more than the plan's epsilon."
            )
        if not hedged:
            random.claim(state.rng_key, state.step)
        return update_once(step, hedged, PlanNumbers.of(plan), state, records.leaves, mask)

    def _step_for(self, records: Records) -> PrivateStep:
        self._initialised()
        for step in reversed(self._steps.values()):
            if step.objective.programs.records.signature == records.signature:
                return step
        raise ValueError(
            "These arguments differ from those of init in nesting, names, shapes, dtypes or public numbers. Pass them exactly "
            "as to init; only the number of rows may differ."
        )

    @in_own_settings
    def get_params(self, state: DPSVIState) -> dict[str, Any]:
        """Values of the `param` sites, constrained. They are releases and may be published."""
        return self._initialised().objective.constrain(self.optim.get_params(state.optim_state))

    def evaluate(
        self, state: DPSVIState, *args: Any, non_private: bool = False, **kwargs: Any
    ) -> Float[Array, ""]:
        """Compute the exact negative ELBO of given records, in nats: **not private**.

        Args:
            state: A state.
            args: Records.
            non_private: Must be True, to confirm that the records are public or that the number
                will not be published.
            kwargs: Likewise.

        Raises:
            ValueError: `non_private` was not set, or records have parameters of their own.
        """
        if not non_private:
            raise ValueError(
                "evaluate computes the exact loss of its records, without noise, so publishing it leaks. "
                "The losses that update and run return are private; or pass non_private=True if these records are "
                "public or you do not publish the number."
            )
        self._refuse_local("evaluate")
        records = take_apart(args, kwargs)
        objective = self._step_for(records).objective
        leaves = records.leaves
        psi = self.optim.get_params(state.optim_state)
        draw, local = jax.random.split(random.subkey(state.rng_key, random.Purpose.POSTERIOR))
        u, free = objective.link(psi, draw)
        keys = jax.random.split(local, leaves[0].shape[0])
        return jnp.sum(jax.vmap(objective.record_loss, (None, 0, 0))(u, leaves, keys)) + free

    def _over(
        self, mesh: Any, records: Records, state: DPSVIState
    ) -> tuple[PrivateStep, list[Any], DPSVIState]:
        """The step, the records and the first state over a mesh's devices; None: on the one where they are."""
        step = self._initialised()
        if mesh is None:
            return step, records.leaves, state
        # Adding or removing a record must not move another one to another device: see `Shards`.
        drawn = neighbours(self.plan.relation).hides_membership
        shards = Shards.of(mesh, records.size, records.leaves, drawn=drawn)
        step = dataclasses.replace(step, shards=shards, **self._of_plan(step.released, shards))
        if step.local is not None:
            state = state._replace(memory=step.local.rows(shards.rows * shards.count))
        return step, shards.place(records.leaves, shards.where(state.rng_key)), state

    @in_own_settings
    def certify(
        self,
        *args: Any,
        init_params: Mapping[str, Any] | None = None,
        keep_gradients: bool = False,
        mesh: Mesh | None = None,
        **kwargs: Any,
    ) -> Certificate:
        """Prove from the fit's own jaxpr what `run` will reveal about one record: all steps, and every iterate.

        Takes the arguments of `run`, of which only shapes and dtypes are used. The gradient engine
        is trusted to fulfil its contract; the loss of one record is a separate program there, which
        cannot read another.

        Raises:
            PrivacyError: There is no proof.
            TypeError, ValueError: As `init`.
        """
        with as_one_curator(mesh is not None):  # nothing is released here
            records = take_apart(args, kwargs, mesh, (self.model, self.guide))
            state = self._init(random.key(), records, init_params)
            step, leaves, state = self._over(mesh, records, state)
            return certify_fit(step, self.plan, state, leaves, keep_gradients)

    def _checked(
        self, mesh: Any, records: Records, state: DPSVIState, keep_gradients: bool
    ) -> tuple[PrivateStep, list[Any], DPSVIState]:
        """`_over`, once no record and no option of `run` is refused."""
        step, leaves, state = self._over(mesh, records, state)
        psi = self.optim.get_params(state.optim_state)
        refuse_tables(step.objective.held, [records.size], (self.model, self.guide))
        shards = step.shards
        parts = (
            [(leaves, None)]
            if shards is None
            else shards.parts(leaves, shards.where(state.rng_key))
        )
        refuse_outside_support(step.objective, psi, parts, laid=shards is not None and shards.laid)
        dim = sum(x.size for x in jax.tree.leaves(psi))
        if keep_gradients and not TraceRecorder(dim, self.plan.num_steps).every_step:
            raise ValueError(
                f"keep_gradients=True needs every iterate, and {self.plan.num_steps} of {dim} parameters are more than "
                "the trace's 64 MiB. Omit it, or plan fewer steps."
            )
        return step, leaves, state

    @in_own_settings
    def run(
        self,
        rng_key: PRNGKeyArray,
        *args: Any,
        progress_bar: bool = True,
        delta: float | None = None,
        init_params: Mapping[str, Any] | None = None,
        require_proof: bool = True,
        keep_gradients: bool = False,
        ledger: Ledger | None = None,
        checkpoint: Path | str | None = None,
        person: str | None = None,
        max_rows: int = 1,
        mesh: Mesh | None = None,
        **kwargs: Any,
    ) -> DPSVIResult:
        """Fit the model: draw the plan's batches, make its number of releases, account for them.

        The verifier checks the program before it runs (`certify`), and refuses it if its event
        exceeds the plan's. Ctrl-C or SIGTERM stops and returns the state so far; the cost is the
        whole plan's, whose horizon was fixed. An error after the spending, such as that of a signal
        handler, has the `DPSVIResult` so far as its `partial_result`.

        Args:
            rng_key: `discreet.random.key()`. A key made from a seed is allowed, and recorded as
                "reproducible: not private".
            args: The records, along the leading axis of every array.
            progress_bar: Show progress after two seconds.
            delta: Delta of the statement; None: the plan's, or a cautious choice.
            init_params: Public initial values of `param` sites.
            require_proof: Refuse to run without a proof that the plan covers. With False the
                statement says what is missing.
            keep_gradients: Keep the noisy gradients in the trace, for `DPSVIResult.noise_aware`.
                They are releases.
            ledger: The table's budget, debited just before the first release.
            checkpoint: Folder from which the same call continues, to the same bits, if the process
                dies. Keep it secret.
            person: Name of the column that identifies persons, if each record is a person: the
                statement and the ledger then name the person as the unit of privacy.
            max_rows: With `person`, the largest number of rows of a person in a record. Not
                checked, since `run` gets records.
            mesh: Devices along one axis, of all processes, over which the records are spread; see
                docs/scale.md.
            kwargs: Likewise.

        Returns:
            Parameters, private losses, iterates and the statement.

        Raises:
            PrivacyError: The verifier found no proof, or a worse event than the plan's.
            SpentError: The plan exceeds the ledger's remaining budget.
            TypeError, ValueError: Wrong input, before any budget is spent.
        """
        refuse_traced("run")
        with Processes(mesh).joined() as processes, ExitStack() as stack:
            with processes.together():
                if processes.first:
                    stack.enter_context(exclusive(checkpoint))
                check_provable(require_proof)
                key = random.check_key(rng_key)
                records = take_apart(
                    args, without_svi_words(kwargs), mesh, (self.model, self.guide)
                )
                if mesh is not None:
                    Shards.of(mesh, records.size, records.leaves)
            saved = Checkpoint(checkpoint, key, processes)
            with processes.together():
                if delta is not None:
                    probability("delta", delta, hint="It should be well below 1 / num_records.")
                with explain_steps(args):
                    state = self._begin(saved.key, records, init_params)
                step, leaves, state = self._checked(mesh, records, state, keep_gradients)
                # Stated before it is spent: what cannot be accounted for must not run.
                statement = self._terms(
                    delta, saved.reproducible, keep_gradients, Unit(person, max_rows)
                )
                options: tuple[Any, ...] = statement.delta, keep_gradients, person, max_rows
                if step.shards is not None:
                    # On other devices sums round otherwise, and the same noise on other sums would
                    # give the difference away.
                    statement = statement.with_notes(step.shards.in_words())
                    options = (*options, step.shards, *step.shards.devices())
            table = saved.digest(records.leaves)
            if processes.count > 1:
                told = (
                    f"{options} {require_proof} {[(x.shape, str(x.dtype)) for x in records.leaves]}"
                )
                processes.agree(
                    versions=versions(), plan=str(self.plan), options=told, records=table
                )
            with processes.together():
                certified = functools.partial(
                    certify_fit, step, self.plan, state, leaves, keep_gradients
                )
                saved.describe(plan=self.plan, options=str(options), records=table)
                if saved.run_id:
                    saved.describe(program=certified().fingerprint)
                stated = with_proof(statement, self.plan, certified, require_proof)
            processes.first_is_given("ledger=", ledger is not None)
            with processes.together():
                act = Act(
                    self.plan,
                    saved.noise_key,
                    stated,
                    ledger=ledger if processes.first else None,
                    run_id=saved.run_id,
                    again=saved.goes_on,
                )
            try:
                outcome = run_steps(
                    step,
                    self.plan,
                    state,
                    leaves,
                    progress_bar=progress_bar,
                    keep_gradients=keep_gradients,
                    begin=act.begin,
                    checkpoint=saved,
                )
            except BaseException as error:
                if (partial := error.__dict__.pop("partial_outcome", None)) is not None:
                    error.__dict__["partial_result"] = result_of(
                        step, partial, act.statement, self.plan
                    )
                    error.add_note(
                        f"The plan is spent. This error's partial_result has the fit after {partial.steps} of "
                        f"{self.plan.num_steps} steps."
                    )
                raise
            stated = saved.stated(act)
            result = result_of(step, outcome, stated, self.plan)
            warn_of_use(result, stated)
            return result

    def _terms(
        self, delta: float | None, reproducible: bool, keep_gradients: bool, unit: Unit
    ) -> Statement:
        """The statement of all the plan's steps, as `run` makes it before the first."""
        count_share = self.plan.clipping.count_share
        words = getattr(self.optim, "words", IN_STEPS)
        noun = unit.noun
        step = self._initialised()

        def cost(share: float, other: float) -> str:
            """More noise on the gradient than without this share, beside the other one."""
            return f"(costing {100 * (math.sqrt((1 - other) / (1 - other - share)) - 1):.1f} % more noise on the gradient)"

        released = [words["released"]]
        if keep_gradients:
            released.append("the noisy gradient of every step")
        if self.loss_share > 0:
            far = (
                "by more than its size"
                if self.loss_bound is None
                else f"by more than {self.loss_bound:g} nats"
            )
            released.append(
                f"a private loss estimate at every step, biased where losses of {noun}s differ {far} from an artificial one's "
                + cost(self.loss_share, count_share)
            )
        released.append(
            "at every step the noisy numbers of gradients within the clipping norm and beyond it"
            + (
                ", and so the clipping norms "
                if isinstance(self.plan.clipping, AdaptiveClipping)
                else " "
            )
            + cost(count_share, self.loss_share)
        )
        notes: list[str] = []
        if step.unreached:
            names = ", ".join(map(repr, step.unreached))
            notes.append(
                f"No {noun}'s gradient reaches {names}, or a part of it (as behind stop_gradient, or times 0), so that is no "
                "part of the release and got no noise."
            )
        if step.local is not None:
            notes.append(
                "Parameters of the records themselves stayed beside the data: they were updated without noise, are no "
                "part of any result, and entered what was released through their own record's clipped contribution alone."
            )
        name = getattr(self.model, "__name__", "")
        model = f"The model “{name}”" if name.isidentifier() else "A model"
        return make_statement(
            self.plan,
            unit=unit,
            delta=delta,
            steps_completed=self.plan.num_steps,
            reproducible=reproducible,
            public=[
                f"{words['programs']}, with all numbers written into them, and their initial values",
                f"shapes and dtypes of a single {noun}'s arrays",
                *(f"the argument {name}" for name in self.static_kwargs),
            ],
            released=released,
            contribution_bound=self.contribution_bound,
            method=words["method"] + ', perturb="parameters"' * (self.perturb == "parameters"),
            notes=notes,
            about=f"{model}, fitted in steps to {self.plan.num_records:,} {noun}s; its parameters were released.",
        )

    @in_own_settings
    def posterior(
        self, key: PRNGKeyArray, params: Mapping[str, Any], num_samples: int
    ) -> dict[str, Array]:
        """`DPSVIResult.posterior` for `params` from elsewhere, such as a pickle, after `init` or `run`.

        Raises:
            ValueError: Neither was called, or num_samples < 1.
        """
        return draw_posterior(self._initialised().objective, key, params, num_samples)

    def _initialised(self) -> PrivateStep:
        if self._current is None:
            raise ValueError("Call init before this, as in state = dpsvi.init(key, *arguments).")
        return self._current


def update_in_loop(
    dpsvi: DPSVI, state: DPSVIState, *args: Any, mask: Bool[Array, "record"]
) -> tuple[DPSVIState, Float[Array, ""]]:
    """`DPSVI.update` for a loop that the caller compiles, as d3p's programs do.

    Guarantee: that of `update` if each state is used once, which nobody can check within a compiled
    loop. Two releases from one state have unrelated noise unless they are the same:
    `random.key_for`. They cost as much as two steps, and no plan counts the second.
    """
    return dpsvi._update(state, args, {}, mask, hedged=True)


def starting_objective(dpsvi: DPSVI, key: PRNGKeyArray, *arguments: Any) -> Objective:
    """The objective of a `DPSVI`, for fits of invented records.

    Of the arguments, which are the model's, only shapes and dtypes are used. Errors as for
    `DPSVI.init`.
    """
    dpsvi._init(key, take_apart(arguments, {}), None)
    return dpsvi._initialised().objective
