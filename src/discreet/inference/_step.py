"""The private step: DESIGN.md's rule, from a batch to new variational parameters.

- g_i = grad_u loss_i(u)                                   per record
- R = sum over the batch of clip_C(g_i) + sigma C xi     the only release
- grad_psi = J_u(psi)^T R / q + grad_psi [log q - log p]   post-processing and a data-free term
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from discreet import mechanisms, random
from discreet.gradients import Channels, Clipping, CountChannel, EngineReport, GradientEngine, LossChannel
from discreet.inference._draws import Draws
from discreet.inference._keys import StepKeys
from discreet.inference._local import LocalUpdates
from discreet.inference._objective import Objective
from discreet.plan import PrivacyPlan
from discreet.sampling import Batch


class DPSVIState(NamedTuple):
    """What the next step needs. Printing it hides the key; pickling it is refused.

    Attributes:
        optim_state: state of the optimizer, the unconstrained parameters included.
        rng_key: the fit's key; steps derive theirs from it and from `step`.
        step: number of releases made.
        loss_center: public guess at a record's loss, from the placeholder record, in nats.
        clipping_norm: C of the next step, computed from earlier releases; it moves with `AdaptiveClipping` only.
        memory: with `local="private"`, what each record remembers; as private as the records.
    """

    optim_state: Any
    rng_key: PRNGKeyArray
    step: Int[Array, ""]
    loss_center: Float[Array, ""]
    clipping_norm: Float[Array, ""]
    memory: Sequence[Array] = ()

    def __repr__(self) -> str:
        """Without the key and the memory."""
        return f"DPSVIState(step={self.step}, optim_state=..., rng_key=<hidden>)"

    def __reduce__(self) -> Any:
        """Refuse: a pickle would write the key that all the noise follows from."""
        raise TypeError(
            "A DPSVIState holds the key from which the noise is drawn, so it is not pickled. Save the "
            "parameters of dpsvi.get_params(state), or the DPSVIResult of dpsvi.run, which hold no key."
        )


class PlanNumbers(NamedTuple):
    """The numbers of a plan that a compiled step takes as inputs, so that one program serves all plans of its shapes.

    Attributes:
        noise_multiplier: sigma.
        rate: public sampling rate q; nothing is ever divided by the realised batch size.
        num_steps: number of steps planned.
        rule: numbers by which the clipping norm moves; empty where it does not.
    """

    noise_multiplier: Float[Array, ""]
    rate: Float[Array, ""]
    num_steps: Int[Array, ""]
    rule: Any

    @classmethod
    def of(cls, plan: PrivacyPlan) -> PlanNumbers:
        """The numbers of a plan; its C is in the state."""
        # NumPy's, which stay known numbers where a program of the user's is being traced.
        numbers: Any = np.float32(plan.noise_multiplier), np.float32(plan.rate), np.int32(plan.num_steps)
        return cls(*numbers, rule=jax.tree.map(np.float32, plan.clipping.numbers))


@dataclasses.dataclass(frozen=True)
class PrivateStep:
    """Everything of a step that is compiled in. Steps that are equal are one program, whichever DPSVI they belong to.

    Attributes:
        objective: model and guide.
        engine: computes clipped sums.
        optim: the optimizer; steps are told apart by `optim_digest`, what it computes.
        adapts: whether the clipping norm moves.
        count_share: share of the release that goes to the count of gradients within C.
        loss_bound: losses further than this from the state's center are clipped; None: the
            center's own size, at least 1 nat.
        perturb_parameters: d3p's rule, gradients of the whole ELBO in all of psi.
        local: what records do with parameters of their own; None: they have none.
        code: the functions that a step calls. Where one was replaced, as an audit with a planted fault or a notebook that
            reloads modules does, it is another step, and nothing compiled or proved before is taken for it.
    """

    objective: Objective
    engine: GradientEngine
    optim: Any = dataclasses.field(compare=False)
    optim_digest: str
    adapts: bool
    count_share: float
    num_records: int
    loss_share: float
    loss_bound: float | None
    perturb_parameters: bool
    local: LocalUpdates | None = None
    code: tuple[Any, ...] = dataclasses.field(default_factory=lambda: _code(), repr=False)

    def __call__(
        self,
        state: DPSVIState,
        keys: StepKeys,
        numbers: PlanNumbers,
        table: Sequence[Array],
        batch: Batch,
    ) -> tuple[DPSVIState, Float[Array, ""]]:
        """Make one release and move the parameters.

        Args:
            state: the state before.
            keys: the step's keys.
            numbers: the plan's.
            table: record arrays, from which the engine takes the rows that it works on and no others.
            batch: which rows of the table.

        Returns:
            The next state, and the private estimate of the negative ELBO of all records, in nats
            (NaN where no share was given to the loss).
        """
        state, loss, _ = self.move(state, keys, numbers, table, batch)
        return state, loss

    def move(
        self, state: DPSVIState, keys: StepKeys, numbers: PlanNumbers, table: Sequence[Array], batch: Batch
    ) -> tuple[DPSVIState, Float[Array, ""], Any]:
        """As a call, with the gradient that the optimizer was given: post-processing of the release, so one itself."""
        psi = self.optim.get_params(state.optim_state)
        channels = self._channels(state.loss_center)
        norm = state.clipping_norm
        if self.perturb_parameters:
            u, free, pull = psi, jnp.zeros(()), None
        else:
            (u, free), pull = jax.vjp(lambda p: self.objective.link(p, keys.guide), psi)

        if self.local is not None:
            assert keys.memory is not None
            state = state._replace(memory=self.local.update(u, table, state.memory, batch, keys.memory))
            table = [*table, *self.local.parameters(state.memory)]
        record = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in table]
        draws = self._draws(u, record, keys.record, len(batch.indices))
        total, right = mechanisms.clipped_sum(
            self.engine, draws, u, table, batch, (keys.local, keys.record), Clipping(norm), channels
        )
        released = mechanisms.release(keys.noise, total, numbers.noise_multiplier)

        gradient = jax.tree.map(lambda x, like: (x / numbers.rate).astype(like.dtype), released.gradient, u)
        if pull is not None:
            (gradient,) = pull((gradient, jnp.ones_like(free)))
        # Post-processing: where a transform saturates, its Jacobian is not finite; stay there. But not where the release
        # itself is no number: noise that could not be made spoils all of it, and that must show.
        spoiled = ~jnp.isfinite(sum(jnp.ravel(x)[0] for x in jax.tree.leaves(released.gradient) if x.size))
        gradient = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x) | spoiled, x, 0), gradient)
        gradient = jax.tree.map(lambda x: jnp.where(right, x, jnp.nan), gradient)
        loss = self._private_loss(released.loss, norm, channels, numbers) + free
        optim_state = self.optim.update(gradient, state.optim_state, value=loss)
        state = state._replace(optim_state=optim_state, step=state.step + 1)
        return self._with_next_norm(state, released.count, channels, numbers), loss, gradient

    def first_memory(self, num_records: int) -> list[Array]:
        """What records remember before the first step: nothing of themselves."""
        return [] if self.local is None else self.local.rows(num_records)

    def explain(self, psi: Any, num_rows: int) -> EngineReport:
        """How the engine goes about a batch of `num_rows` rows, for parameters of the shapes of `psi`."""
        key = random.key(0)
        u = psi if self.perturb_parameters else jax.eval_shape(self.objective.link, psi, key)[0]
        draws = self._draws(u, self.objective.example, key, num_rows)

        def loss(u: Any, row: Any) -> Float[Array, ""]:
            record, bits = row
            return draws.loss(u, record, key, bits)

        return self.engine.explain(loss, u, (self.objective.example, draws.requests), num_rows)

    def _draws(self, u: Any, record: Sequence[Any], key: PRNGKeyArray, num_rows: int) -> Draws:
        """A record's loss, and the random bits that it asks for."""
        # All are secret: known ones would let a record that is left out change the draws of those behind it.
        objective = self.objective

        def loss(u: Any, record: Sequence[Array], key: PRNGKeyArray) -> Float[Array, ""]:
            if self.perturb_parameters:
                return objective.whole_loss(u, record, key, self.num_records)
            return objective.record_loss(u, record, key)

        return Draws.of(loss, u, record, key, num_rows)

    def _channels(self, center: Float[Array, ""]) -> Channels:
        bound = jnp.maximum(1.0, jnp.abs(center)) if self.loss_bound is None else self.loss_bound
        return Channels(LossChannel(self.loss_share, center=center, bound=bound), CountChannel(self.count_share))

    def _private_loss(
        self, released: Float[Array, ""], norm: Float[Array, ""], channels: Channels, numbers: PlanNumbers
    ) -> Float[Array, ""]:
        if channels.loss.share == 0.0:
            return jnp.full((), jnp.nan)
        total = released / channels.loss_weight(norm) / numbers.rate
        return total + channels.loss.center * self.num_records

    def _with_next_norm(
        self, state: DPSVIState, released: Float[Array, ""], channels: Channels, numbers: PlanNumbers
    ) -> DPSVIState:
        if not self.adapts:
            return state
        # The expected size of a batch is public. The realised one is not: dividing by it would show it.
        expected = numbers.rate * self.num_records
        within = 0.5 + released / channels.count_weight(state.clipping_norm) / expected
        norm = numbers.rule.next_norm(state.clipping_norm, within).astype(state.clipping_norm.dtype)
        return state._replace(clipping_norm=norm)


def _code() -> tuple[Any, ...]:
    marks = mechanisms.draw_batch, mechanisms.clipped_sum, mechanisms.release, mechanisms.update_rows
    return *marks, PrivateStep.move, StepKeys.derive, StepKeys.at, Draws.make, random.fast_bits, random.normal
