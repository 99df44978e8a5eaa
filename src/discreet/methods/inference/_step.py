"""The private step, from a batch to new variational parameters, and its randomness.

- g_i = grad_u loss_i(u)                                   per record
- R = sum over the batch of clip_C(g_i) + sigma C xi     the only release
- grad_psi = J_u(psi)^T R / q + grad_psi [log q - log p]   post-processing and a data-free term

A `PrivateStep` holds what is compiled in; the numbers of a plan are its inputs (`PlanNumbers`).
`_step_keys` has the keys of a step, `_draws` the random bits of a batch, and `_local` the
parameters that belong to the records themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from discreet.methods.inference._draws import Draws
from discreet.methods.inference._elbo import Objective
from discreet.methods.inference._step_keys import StepKeys
from discreet.privacy import mechanisms, random
from discreet.privacy.gradients import BookKeepingEngine, Channels, GradientEngine
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import Batch, Drawing, Sampling

if TYPE_CHECKING:
    from discreet.methods.inference._local import LocalUpdates


class DPSVIState(NamedTuple):
    """The state of a fit between steps. Printing it hides the key; pickling it is refused.

    Attributes:
        optim_state: State of the optimizer, the unconstrained parameters included.
        rng_key: The fit's key; steps derive theirs from it and from `step`.
        step: Number of releases made.
        loss_center: Public guess at a record's loss, from the placeholder record, in nats.
        clipping_norm: C of the next step, computed from earlier releases; it moves with
            `AdaptiveClipping` only.
        memory: With `local="private"`, each record's own state; as private as the records.
    """

    optim_state: Any
    rng_key: PRNGKeyArray
    step: Int[Array, ""]
    loss_center: Float[Array, ""]
    clipping_norm: Float[Array, ""]
    memory: Sequence[Array] = ()

    def __repr__(self) -> str:
        """Short repr without the key and the memory."""
        return f"DPSVIState(step={self.step}, optim_state=..., rng_key=<hidden>)"

    def __reduce__(self) -> Any:
        """Refuse pickling, which would write the key of all noise."""
        raise TypeError(
            "A DPSVIState contains the key of the noise, so it is not pickled. Save the "
            "parameters of dpsvi.get_params(state), or the DPSVIResult of dpsvi.run, which hold no key."
        )


class StepFigures(NamedTuple):
    """What a step tells besides the parameters: scalars, each computed from its one release."""

    # estimate of the negative ELBO of all records, in nats; NaN without a share for the loss
    loss: Float[Array, ""]
    # shares of `num_records`, relative to the public expected batch size; NaN without a share for
    # the counts
    clipped: Float[Array, ""]  # records whose gradient was longer than C
    # records with a finite loss and gradient; the others contribute nothing
    counted: Float[Array, ""]


class PlanNumbers(NamedTuple):
    """The numbers of a plan that a compiled step takes as inputs, so that one program serves all plans of its shapes."""

    noise_multiplier: Float[Array, "*step"]  # sigma, of all steps or of each
    # public sampling rate q, likewise; nothing is ever divided by the realised batch size
    rate: Float[Array, "*step"]
    num_steps: Int[Array, ""]  # number of steps planned
    rule: Any  # numbers by which the clipping norm moves; empty where it does not
    # the place of each record on several devices, where it was drawn (`Shards.where`)
    where: Sequence[Any] = ()

    @classmethod
    def of(cls, plan: PrivacyPlan) -> PlanNumbers:
        """The numbers of a plan; its C is in the state."""
        # NumPy's, which stay known numbers where a program of the user's is being traced.
        # The noise as a float32 is no less than what was accounted for.
        exact = np.array(
            plan.noise_multipliers if plan.noise_schedule is not None else plan.noise_multiplier
        )
        noise = exact.astype(np.float32)
        noise = np.where(noise >= exact, noise, np.nextafter(noise, np.float32(np.inf)))
        rate = np.array(plan.rates if plan.rate_schedule is not None else plan.rate, np.float32)
        numbers: Any = noise, rate, np.int32(plan.num_steps)
        return cls(*numbers, rule=jax.tree.map(np.float32, plan.clipping.numbers))

    def at(self, step: Int[Array, ""]) -> PlanNumbers:
        """Those of one step."""
        noise, rate = (x[step] if x.ndim else x for x in (self.noise_multiplier, self.rate))
        return self._replace(noise_multiplier=noise, rate=rate)


@dataclasses.dataclass(frozen=True)
class PrivateStep:
    """The compiled part of a step. Equal steps share one program, also between DPSVI objects."""

    objective: Objective  # model and guide
    engine: GradientEngine  # computes clipped sums
    # the optimizer; steps are told apart by `optim_digest`, what it computes
    optim: Any = dataclasses.field(compare=False)
    optim_digest: str
    released: int  # coordinates of a release, with loss and count
    mechanism: mechanisms.Mechanism  # the source of the noise
    levels: int  # levels of integer noise for the plan's multiplier and `released` coordinates
    adapts: bool  # True if the clipping norm is adaptive
    # share of the release that goes to the counts of gradients within and beyond C
    count_share: float
    num_records: int
    loss_share: float
    # losses further than this from the state's center are clipped; None: the center's own size, at
    # least 1 nat
    loss_bound: float | None
    perturb_parameters: bool  # d3p's rule, gradients of the whole ELBO in all of psi
    # for each leaf of u, or of psi under d3p's rule, whether records' gradients reach it; the
    # others are no part of the release
    reached: tuple[bool, ...]
    unreached: tuple[str, ...]  # names of the sites with such another leaf
    local: LocalUpdates | None = None  # updates of records' own parameters; None: they have none
    shards: mechanisms.Shards | None = None  # layout of the table on several devices; None: on one
    hedged: bool = False  # the noise depends on what it hides, for states that nobody can claim; see `random.key_for`
    # the functions that a step calls. Where one was replaced, as an audit with a planted fault or a
    # notebook that reloads modules does, it is another step, and nothing compiled or proved before
    # is taken for it.
    code: tuple[Any, ...] = dataclasses.field(default_factory=lambda: _code(), repr=False)

    def move(
        self,
        state: DPSVIState,
        keys: StepKeys,
        numbers: PlanNumbers,
        table: Sequence[Array],
        batch: Batch,
    ) -> tuple[DPSVIState, StepFigures, Any]:
        """Make one release and move the parameters.

        The engine takes the rows of the batch from the table and no others. Besides the next state
        come the step's figures and the gradient that the optimizer was given, post-processing of
        the release.
        """
        psi = self.optim.get_params(state.optim_state)
        center = state.loss_center
        bound = jnp.maximum(1.0, jnp.abs(center)) if self.loss_bound is None else self.loss_bound
        channels = Channels(self.loss_share, self.count_share, center=center, bound=bound)
        norm = state.clipping_norm
        numbers = numbers.at(state.step)
        multiplier = numbers.noise_multiplier
        if self.perturb_parameters:
            u = psi
            free = jnp.zeros(())
            pull = None
        else:
            (u, free), pull = jax.vjp(lambda p: self.objective.link(p, keys.guide), psi)

        if self.local is not None:
            assert keys.memory is not None
            memory = self.local.update(
                u, table, state.memory, batch, keys.memory, self.shards, numbers.where
            )
            state = state._replace(memory=memory)
            table = [*table, *self.local.parameters(state.memory)]
        record = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in table]
        moved = self._moved(u)
        draws = self._draws(moved, u, record, keys.record)
        keys_of_rows = keys.local, keys.record
        total, right = mechanisms.clipped_sum(
            self.engine,
            draws,
            moved,
            table,
            batch,
            keys_of_rows,
            norm,
            channels,
            self.shards,
            numbers.where,
        )
        noise = keys.noise
        if self.hedged:
            sums = jax.tree.leaves((total.gradient, total.loss, total.count))
            noise = random.key_for(noise, [*sums, multiplier, norm])
        released = mechanisms.release(noise, total, multiplier, self.mechanism, self.levels)

        gradient = jax.tree.map(
            lambda x, like: (x / numbers.rate).astype(like.dtype), released.gradient, moved
        )
        gradient = _completed(gradient, jax.tree.map(jnp.zeros_like, u))
        if pull is not None:
            (gradient,) = pull((gradient, jnp.ones_like(free)))
        # Post-processing: where a transform saturates, its Jacobian is not finite; stay there. But
        # not where the release itself is no number: noise that could not be made spoils all of it,
        # and that must show. One array, which is written: XLA would read single numbers again in
        # each of the optimizer's loops.
        first = jnp.array([jnp.ravel(x)[0] for x in jax.tree.leaves(released.gradient) if x.size])
        spoiled = ~jnp.isfinite(first).all()
        gradient = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x) | spoiled, x, 0), gradient)
        gradient = jax.tree.map(lambda x: jnp.where(right, x, jnp.nan), gradient)
        figures = self._figures(released, free, norm, channels, numbers)
        optim_state = self.optim.update(gradient, state.optim_state, value=figures.loss)
        if self.adapts:
            norm = numbers.rule.next_norm(norm, figures.clipped, state.step).astype(norm.dtype)
        state = state._replace(optim_state=optim_state, step=state.step + 1, clipping_norm=norm)
        return state, figures, gradient

    def laid(self, state: DPSVIState, *beside: Any) -> tuple[Any, ...]:
        """A state, and what is the same on each device, where the step takes them."""
        if self.shards is None:
            return state, *beside
        memory = self.shards.spread(state.memory)
        state, beside = self.shards.copied((state._replace(memory=()), beside))
        return state._replace(memory=memory), *beside

    def gathered(self, state: DPSVIState, *, memory: bool) -> DPSVIState:
        """A state that was laid over devices, in the memory of this process; without its key, and perhaps without `memory`."""
        if self.shards is None:
            return state
        state = state._replace(rng_key=None, memory=state.memory if memory else ())
        return self.shards.gathered(state)

    def drawing(self, sampling: Sampling, leaves: Sequence[Any]) -> Drawing:
        """The drawing of a sampler's batches from record arrays."""
        if self.shards is None:
            return sampling.drawing(leaves[0].shape[0])
        num_records = self.shards.num_records
        return dataclasses.replace(
            sampling.drawing(num_records), padding=leaves[0].shape[0] - num_records
        )

    def _moved(self, u: Any) -> Any:
        """The leaves of `u` that records' gradients reach, with None in the places of the others."""
        leaves, structure = jax.tree.flatten(u)
        return jax.tree.unflatten(
            structure, [x if r else None for x, r in zip(leaves, self.reached, strict=True)]
        )

    def _draws(self, moved: Any, u: Any, record: Sequence[Any], key: PRNGKeyArray) -> Draws:
        """A record's loss as a function of `moved`, and the random bits that it asks for."""
        # All are secret: with known ones, leaving a record out would change the draws of later
        # ones.
        objective = self.objective

        def loss(moved: Any, record: Sequence[Array], key: PRNGKeyArray) -> Float[Array, ""]:
            everything = _completed(moved, u)
            if self.perturb_parameters:
                return objective.whole_loss(everything, record, key, self.num_records)
            return objective.record_loss(everything, record, key)

        # By the plan, not the batch: one additional record must not make another program, which
        # rounds differently.
        rows = (
            self.engine.capacity if isinstance(self.engine, BookKeepingEngine) else self.num_records
        )
        return Draws.of(loss, moved, record, key, rows)

    def _figures(
        self,
        released: Any,
        free: Float[Array, ""],
        norm: Float[Array, ""],
        channels: Channels,
        numbers: PlanNumbers,
    ) -> StepFigures:
        """The figures of a release; `free` is the loss's data-free term."""
        loss = clipped = counted = jnp.full((), jnp.nan)
        if channels.loss_share > 0.0:
            total = released.loss / channels.loss_weight(norm) / numbers.rate
            loss = total + channels.center * self.num_records + free
        if channels.count_share > 0.0:
            # The expected size of a batch is public. The realised one is not: dividing by it would
            # show it.
            expected = numbers.rate * self.num_records
            shares = released.count / channels.count_weight(norm) / expected
            clipped = shares[1]
            counted = shares[0] + shares[1]
        return StepFigures(loss, clipped, counted)


def _completed(moved: Any, others: Any) -> Any:
    """A tree with the leaves of `others` in the places of None."""
    return jax.tree.map(
        lambda x, other: other if x is None else x, moved, others, is_leaf=lambda x: x is None
    )


def _code() -> tuple[Any, ...]:
    marks = (
        mechanisms.draw_batch,
        mechanisms.clipped_sum,
        mechanisms.release,
        mechanisms.update_rows,
    )
    noise = random.normal, random.discrete_gaussian, mechanisms.add_noise
    marks = *marks, mechanisms.Shards.part, mechanisms.Shards.at, mechanisms.Shards.on_each
    return (
        *marks,
        PrivateStep.move,
        StepKeys.derive,
        StepKeys.at,
        Draws.make,
        random.fast_bits,
        *noise,
    )
