"""The private step, from a batch to new variational parameters, and its randomness.

- g_i = grad_u loss_i(u)                                   per record
- R = sum over the batch of clip_C(g_i) + sigma C xi     the only release
- grad_psi = J_u(psi)^T R / q + grad_psi [log q - log p]   post-processing and a data-free term

A `PrivateStep` holds what is compiled in; the numbers of a plan are its inputs (`PlanNumbers`). There is one key for each use of
randomness, from which a step derives its own by its number, and a secret key starts one fit only. `Draws` makes the random bits
of a batch's records at once instead of record by record: the requests for bits are found in the loss's jaxpr and replaced by an
input, which one long keystream fills. The law of the draws is the same, independent uniform bits for each row. They belong to
places in the batch, not to records; that changes no guarantee, since they are independent of the records, secret, and alike in
every place. Requests whose key takes another way (into a loop, as in rejection samplers) stay as they are, with a key a row.
Parameters of the records themselves have a file of their own (`_local`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from discreet import mechanisms, random
from discreet._jax import (
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    Var,
    aval,
    bind,
    primitives,
    run_jaxpr,
    types_of,
    unstack_p,
)
from discreet._numpyro import NumPyroOptim
from discreet.gradients import BookKeepingEngine, Channels, EngineReport, GradientEngine
from discreet.inference._elbo import Objective
from discreet.plan import PrivacyPlan
from discreet.sampling import Batch, Drawing, Sampling

if TYPE_CHECKING:
    from discreet.inference._local import LocalUpdates

# --- Keys ---


class StepKeys(NamedTuple):
    """One key for each use of randomness, all steps; a step folds its number in."""

    sampling: PRNGKeyArray  # draws the batch
    noise: PRNGKeyArray  # hides the sum
    guide: PRNGKeyArray  # draws the global latents. It may be known: a threefry key, for which JAX compiles less.
    local: PRNGKeyArray  # draws the bits of all records at once
    record: PRNGKeyArray  # from it each record derives a key, for draws that cannot be made at once
    # from it each record derives a key for its memory; None without a memory
    memory: PRNGKeyArray | None = None

    @classmethod
    def derive(cls, key: PRNGKeyArray, *, memory: bool = False) -> StepKeys:
        """Derive the keys from that of a fit, in which records may have a memory."""
        use = random.Purpose
        purposes = use.SAMPLING, use.NOISE, use.GUIDE, use.LOCAL_DRAWS, use.RECORDS
        sampling, noise, guide, local, record, *own = random.subkeys(key, (*purposes, use.MEMORY)[: 5 + memory])
        return cls(sampling, noise, random.as_threefry(guide), local, record, *own)

    def at(self, step: Int[Array, ""]) -> StepKeys:
        """The keys of one step."""
        # Mapped over the secret ones: one block function to compile instead of several alike.
        own = [] if self.memory is None else [self.memory]
        secret = jnp.stack([self.sampling, self.noise, self.local, self.record, *own])
        sampling, noise, local, record, *own = jax.vmap(jax.random.fold_in, (0, None))(secret, step)
        return StepKeys(sampling, noise, jax.random.fold_in(self.guide, step), local, record, *own)


# --- Langevin dynamics as an optimizer: a step, and the noise missing from the release ---


Schedule = Callable[[Any], Any]
_KEYS = "threefry2x32"


class LangevinState(NamedTuple):
    """The state of the chain."""

    params: dict[str, Array]  # the unconstrained latents
    # of the key that the extra noise follows from. It hides nothing: the release before it is private already.
    words: UInt32[Array, "2"]
    # for each of `params` 1 where the release's noise is in its gradient, 0 where no record is
    reached: dict[str, Float[Array, ""]]


class Langevin(NumPyroOptim):
    """Stochastic gradient Langevin dynamics on a gradient that carries Gaussian noise of a known size.

    With step size eta, gradient g and the release's noise of standard deviation s in each coordinate of g:

        theta <- theta - (eta / 2) g + N(0, max(0, eta - (eta s / 2)^2)),

    so that the noise in theta has variance max(eta, (eta s / 2)^2): Langevin's, or the release's where that is larger.

    Args:
        schedule: Step size of step t = 0, 1, ...
        stddev: s, in units of the gradient.
    """

    def __init__(self, schedule: Schedule, stddev: float) -> None:
        super().__init__(lambda: (self._without_key, self._step, lambda state: state.params))
        self.schedule = schedule
        self.stddev = stddev

    def start(self, params: Mapping[str, Any], key: PRNGKeyArray, reached: Sequence[str]) -> Any:
        """The first state."""
        words = jax.random.key_data(random.as_threefry(random.subkey(key, random.Purpose.LANGEVIN)))
        at = LangevinState(dict(params), words, {name: jnp.float32(name in reached) for name in params})
        return jnp.zeros((), jnp.int32), at

    def _without_key(self, params: Any) -> Any:
        raise TypeError("Langevin dynamics draw noise; start them with start(params, key, reached) instead of init.")

    def _step(self, i: Int[Array, ""], gradient: dict[str, Array], state: LangevinState) -> LangevinState:
        eta = jnp.asarray(self.schedule(i), jnp.float32)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.words, impl=_KEYS), i)
        moved = {}
        for number, (name, theta) in enumerate(sorted(state.params.items())):
            there = jnp.square(0.5 * eta * self.stddev) * state.reached[name]
            missing = jnp.sqrt(jnp.maximum(0.0, eta - there)).astype(theta.dtype)
            noise = jax.random.normal(jax.random.fold_in(key, number), theta.shape, theta.dtype)
            moved[name] = theta - (0.5 * eta).astype(theta.dtype) * gradient[name] + missing * noise
        return state._replace(params=moved)


def as_schedule(step_size: Any) -> Schedule:
    """A schedule from (a, b, gamma), for a (b + t)^-gamma, or a function of the step's number."""
    if callable(step_size):
        return step_size
    remedy = "Pass (a, b, gamma) for a * (b + t) ** -gamma, as in (1e-4, 10.0, 0.55), or a function of t = 0, 1, ..."
    parts = tuple(step_size) if isinstance(step_size, tuple | list) else ()
    if len(parts) != 3 or not all(isinstance(x, numbers.Real) and not isinstance(x, bool) for x in parts):
        raise TypeError(f"step_size is {step_size!r}. {remedy}")
    a, b, gamma = (float(x) for x in parts)
    if not (math.isfinite(a) and math.isfinite(b) and a > 0 and b > 0 and 0 <= gamma <= 1):
        raise ValueError(
            f"step_size is ({a:g}, {b:g}, {gamma:g}); a and b must be positive, and gamma from 0 (constant) to 1: with more, "
            f"the steps together stay too short to reach the posterior. {remedy}"
        )
    return lambda step: a * (b + step) ** -gamma


def step_sizes(schedule: Schedule, num_steps: int) -> Float[np.ndarray, "step"]:
    """The step sizes of a run, computed as the run will."""
    try:
        sizes = jax.jit(jax.vmap(lambda t: jnp.asarray(schedule(t), jnp.float32)))(jnp.arange(num_steps))
    except Exception as error:
        raise TypeError(
            f"The schedule step_size fails on a traced step number ({type(error).__name__}: {error}). Write it with "
            "jax.numpy, without Python branches on the number."
        ) from error
    sizes = np.asarray(sizes)
    if sizes.shape != (num_steps,):
        raise ValueError(
            f"The schedule step_size returns arrays of shape {sizes.shape[1:]}; it must return one number."
        )
    wrong = ~(np.isfinite(sizes) & (sizes > 0))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"The schedule step_size gives {sizes[first]} at step {first}; every step size must be positive and finite."
        )
    return sizes


# --- Random bits of a batch ---


KeyedLoss = Callable[[Any, Any, PRNGKeyArray], Float[Array, ""]]
"""`(parameters, record, key) -> scalar`."""
# Larger draws are not held for a whole batch: each row then makes its own when it is processed.
_MOST_BYTES = 2**26
# How keys are made of keys. What a request's key went through must be among these.
_DERIVATIONS = frozenset(
    {
        primitives.broadcast_in_dim_p,
        primitives.concatenate_p,
        primitives.dynamic_slice_p,
        primitives.random_fold_in_p,
        primitives.random_split_p,
        primitives.reshape_p,
        primitives.slice_p,
        primitives.squeeze_p,
        unstack_p,
    }
)
# Values that are alike have the same number: the key, what is derived from it and from constants. None: any value.
_Name = int | None
_Named = tuple[_Name, Any]


@dataclasses.dataclass(frozen=True)
class Draws:
    """A record's loss, and the bits that it requests."""

    program: ClosedJaxpr  # the loss's jaxpr, of the flat parameters, record and key
    requests: tuple[jax.ShapeDtypeStruct, ...]  # shape and dtype of each request

    @classmethod
    def of(cls, loss: KeyedLoss, parameters: Any, record: Any, key: Any, num_rows: int) -> Draws:
        """Trace a loss; `num_rows` determines whether the draws of all rows fit in memory."""
        program = jax.make_jaxpr(loss)(types_of(parameters), types_of(record), types_of(key))
        run = _Run(None)
        run(program, [None] * len(program.jaxpr.invars))
        each = sum(x.size * x.dtype.itemsize for x in run.requests)
        return cls(program, tuple(run.requests) if each * num_rows <= _MOST_BYTES else ())

    def make(self, key: PRNGKeyArray, num_rows: int) -> tuple[list[Array], Bool[Array, ""]]:
        """The bits of all rows, and True if they are valid (`random.fast_bits`)."""
        words = [num_rows * math.ceil(x.size * x.dtype.itemsize / 4) for x in self.requests]
        if not sum(words):
            return [jnp.zeros((num_rows, *x.shape), x.dtype) for x in self.requests], jnp.array(True)
        stream, right = random.fast_bits(key, sum(words))
        starts = itertools.accumulate(words, initial=0)
        parts = [stream[start : start + n] for start, n in zip(starts, words, strict=False)]
        return [_shaped(part, x, num_rows) for part, x in zip(parts, self.requests, strict=True)], right

    def loss(self, parameters: Any, record: Any, key: PRNGKeyArray, bits: Sequence[Array]) -> Float[Array, ""]:
        """The record's loss with these bits; `key` serves the requests that are not among them."""
        inputs = jax.tree.leaves((parameters, record, key))
        (loss,) = _Run(bits)(self.program, inputs) if self.requests else run_jaxpr(self.program, *inputs)
        return loss


def _shaped(words: Array, like: jax.ShapeDtypeStruct, num_rows: int) -> Array:
    width = 8 * like.dtype.itemsize
    rows = words.reshape(num_rows, -1)
    if width == 64:
        high, low = jnp.split(rows.astype(jnp.uint64), 2, axis=1)
        rows = (high << np.uint64(32)) | low
    elif width < 32:
        rows = jax.lax.bitcast_convert_type(rows, like.dtype).reshape(num_rows, -1)[:, : like.size]
    return rows.reshape(num_rows, *like.shape)


@dataclasses.dataclass
class _Run:
    """Evaluates a jaxpr with the requests answered from `bits`, or, without `bits`, only collects the requests.

    Requests with one key and of one shape are one request: a program that is run twice with a key draws the same.
    """

    bits: Sequence[Array] | None
    requests: list[jax.ShapeDtypeStruct] = dataclasses.field(default_factory=list)
    _numbers: dict[Any, int] = dataclasses.field(default_factory=dict)
    _names: dict[Any, int] = dataclasses.field(default_factory=dict)
    _keys: set[_Name] = dataclasses.field(default_factory=set)

    def __call__(self, closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        """The outputs; the key is the last input."""
        names: list[_Name] = [*[None] * (len(inputs) - 1), self._name("key", is_key=True)]
        return [value for _, value in self._inside(closed, zip(names, inputs, strict=True))]

    def _name(self, what: Any, *, is_key: bool = False) -> int:
        name = self._names.setdefault(what, len(self._names))
        if is_key:
            self._keys.add(name)
        return name

    def _inside(self, closed: ClosedJaxpr, inputs: Iterable[_Named]) -> list[_Named]:
        jaxpr = closed.jaxpr
        fixed = [(self._name(("constant", id(x))), x) for x in closed.consts]
        known: dict[Var, _Named] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*fixed, *inputs], strict=True))

        def read(atom: Any) -> _Named:
            if isinstance(atom, Literal):
                return self._name(("literal", str(atom.val), str(aval(atom)))), atom.val
            return known[atom]

        for equation in jaxpr.eqns:
            known.update(zip(equation.outvars, self._apply(equation, map(read, equation.invars)), strict=True))
        return list(map(read, jaxpr.outvars))

    def _apply(self, equation: JaxprEqn, inputs: Iterable[_Named]) -> Iterable[_Named]:
        inputs = list(inputs)
        names = [name for name, _ in inputs]
        made: list[_Name] = [None] * len(equation.outvars)
        derived = not self._keys.isdisjoint(names)
        if derived and equation.primitive is primitives.random_bits_p:
            return [(None, self._answer(names[0], aval(equation.outvars[0])))]
        if derived and equation.primitive is primitives.jit_p:
            return self._inside(equation.params["jaxpr"], inputs)
        if derived and equation.primitive in _DERIVATIONS and None not in names:
            way = equation.primitive, str(equation.params), *names
            made = [self._name((*way, i), is_key=True) for i in range(len(made))]
        values = [None] * len(made) if self.bits is None else bind(equation, [value for _, value in inputs])
        return zip(made, values, strict=True)

    def _answer(self, key: _Name, like: Any) -> Any:
        request = jax.ShapeDtypeStruct(like.shape, like.dtype)
        number = self._numbers.setdefault((key, request), len(self.requests))
        if number == len(self.requests):
            self.requests.append(request)
        return None if self.bits is None else self.bits[number]


# --- The step ---


class DPSVIState(NamedTuple):
    """The state of a fit between steps. Printing it hides the key; pickling it is refused.

    Attributes:
        optim_state: State of the optimizer, the unconstrained parameters included.
        rng_key: The fit's key; steps derive theirs from it and from `step`.
        step: Number of releases made.
        loss_center: Public guess at a record's loss, from the placeholder record, in nats.
        clipping_norm: C of the next step, computed from earlier releases; it moves with `AdaptiveClipping` only.
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

    loss: Float[Array, ""]  # estimate of the negative ELBO of all records, in nats; NaN without a share for the loss
    # shares of `num_records`, relative to the public expected batch size; NaN without a share for the counts
    clipped: Float[Array, ""]  # records whose gradient was longer than C
    counted: Float[Array, ""]  # records with a finite loss and gradient; the others contribute nothing


class PlanNumbers(NamedTuple):
    """The numbers of a plan that a compiled step takes as inputs, so that one program serves all plans of its shapes."""

    noise_multiplier: Float[Array, ""]  # sigma
    rate: Float[Array, ""]  # public sampling rate q; nothing is ever divided by the realised batch size
    num_steps: Int[Array, ""]  # number of steps planned
    rule: Any  # numbers by which the clipping norm moves; empty where it does not
    where: Sequence[Any] = ()  # the place of each record on several devices, where it was drawn (`Shards.where`)

    @classmethod
    def of(cls, plan: PrivacyPlan) -> PlanNumbers:
        """The numbers of a plan; its C is in the state."""
        # NumPy's, which stay known numbers where a program of the user's is being traced.
        # The noise as a float32 is no less than what was accounted for.
        noise = np.float32(plan.noise_multiplier)
        noise = noise if float(noise) >= plan.noise_multiplier else np.nextafter(noise, np.float32(np.inf))
        numbers: Any = noise, np.float32(plan.rate), np.int32(plan.num_steps)
        return cls(*numbers, rule=jax.tree.map(np.float32, plan.clipping.numbers))


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
    count_share: float  # share of the release that goes to the counts of gradients within and beyond C
    num_records: int
    loss_share: float
    # losses further than this from the state's center are clipped; None: the center's own size, at least 1 nat
    loss_bound: float | None
    perturb_parameters: bool  # d3p's rule, gradients of the whole ELBO in all of psi
    # for each leaf of u, or of psi under d3p's rule, whether records' gradients reach it; the others are no part of the release
    reached: tuple[bool, ...]
    local: LocalUpdates | None = None  # updates of records' own parameters; None: they have none
    shards: mechanisms.Shards | None = None  # layout of the table on several devices; None: on one
    hedged: bool = False  # the noise depends on what it hides, for states that nobody can claim; see `random.key_for`
    # the functions that a step calls. Where one was replaced, as an audit with a planted fault or a notebook that reloads
    # modules does, it is another step, and nothing compiled or proved before is taken for it.
    code: tuple[Any, ...] = dataclasses.field(default_factory=lambda: _code(), repr=False)

    def move(
        self, state: DPSVIState, keys: StepKeys, numbers: PlanNumbers, table: Sequence[Array], batch: Batch
    ) -> tuple[DPSVIState, StepFigures, Any]:
        """Make one release and move the parameters.

        The engine takes the rows of the batch from the table and no others. Besides the next state come the step's figures
        and the gradient that the optimizer was given, post-processing of the release.
        """
        psi = self.optim.get_params(state.optim_state)
        center = state.loss_center
        bound = jnp.maximum(1.0, jnp.abs(center)) if self.loss_bound is None else self.loss_bound
        channels = Channels(self.loss_share, self.count_share, center=center, bound=bound)
        norm = state.clipping_norm
        if self.perturb_parameters:
            u, free, pull = psi, jnp.zeros(()), None
        else:
            (u, free), pull = jax.vjp(lambda p: self.objective.link(p, keys.guide), psi)

        if self.local is not None:
            assert keys.memory is not None
            memory = self.local.update(u, table, state.memory, batch, keys.memory, self.shards, numbers.where)
            state = state._replace(memory=memory)
            table = [*table, *self.local.parameters(state.memory)]
        record = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in table]
        moved = self._moved(u)
        draws = self._draws(moved, u, record, keys.record)
        keys_of_rows = keys.local, keys.record
        total, right = mechanisms.clipped_sum(
            self.engine, draws, moved, table, batch, keys_of_rows, norm, channels, self.shards, numbers.where
        )
        noise = keys.noise
        if self.hedged:
            sums = jax.tree.leaves((total.gradient, total.loss, total.count))
            noise = random.key_for(noise, [*sums, numbers.noise_multiplier, norm])
        released = mechanisms.release(noise, total, numbers.noise_multiplier, self.mechanism, self.levels)

        gradient = jax.tree.map(lambda x, like: (x / numbers.rate).astype(like.dtype), released.gradient, moved)
        gradient = _completed(gradient, jax.tree.map(jnp.zeros_like, u))
        if pull is not None:
            (gradient,) = pull((gradient, jnp.ones_like(free)))
        # Post-processing: where a transform saturates, its Jacobian is not finite; stay there. But not where the release
        # itself is no number: noise that could not be made spoils all of it, and that must show.
        # One array, which is written: XLA would read single numbers again in each of the optimizer's loops.
        first = jnp.array([jnp.ravel(x)[0] for x in jax.tree.leaves(released.gradient) if x.size])
        spoiled = ~jnp.isfinite(first).all()
        gradient = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x) | spoiled, x, 0), gradient)
        gradient = jax.tree.map(lambda x: jnp.where(right, x, jnp.nan), gradient)
        figures = self._figures(released, free, norm, channels, numbers)
        optim_state = self.optim.update(gradient, state.optim_state, value=figures.loss)
        if self.adapts:
            norm = numbers.rule.next_norm(norm, figures.clipped).astype(norm.dtype)
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
        return dataclasses.replace(sampling.drawing(num_records), padding=leaves[0].shape[0] - num_records)

    def explain(self, psi: Any, num_rows: int) -> EngineReport:
        """Describe the engine's algorithm for a batch of `num_rows` rows and parameters of the shapes of `psi`."""
        key = random.key(0)
        u = psi if self.perturb_parameters else jax.eval_shape(self.objective.link, psi, key)[0]
        moved, zeros = self._moved(u), jax.tree.map(lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), u)
        draws = self._draws(moved, zeros, self.objective.example, key)

        def loss(moved: Any, row: Any) -> Float[Array, ""]:
            record, bits = row
            return draws.loss(moved, record, key, bits)

        return self.engine.explain(loss, moved, (self.objective.example, draws.requests), num_rows)

    def unreached(self, psi: Any) -> list[str]:
        """The sites with a part that no record's gradient reaches, given parameters of the shapes of `psi`."""
        u = psi if self.perturb_parameters else jax.eval_shape(self.objective.link, psi, random.key(0))[0]
        depth = 0 if self.perturb_parameters else 1
        paths = [path for path, _ in jax.tree.leaves_with_path(u)]
        return sorted({path[depth].key for path, is_reached in zip(paths, self.reached, strict=True) if not is_reached})

    def _moved(self, u: Any) -> Any:
        """The leaves of `u` that records' gradients reach, with None in the places of the others."""
        leaves, structure = jax.tree.flatten(u)
        return jax.tree.unflatten(structure, [x if r else None for x, r in zip(leaves, self.reached, strict=True)])

    def _draws(self, moved: Any, u: Any, record: Sequence[Any], key: PRNGKeyArray) -> Draws:
        """A record's loss as a function of `moved`, and the random bits that it asks for."""
        # All are secret: with known ones, leaving a record out would change the draws of later ones.
        objective = self.objective

        def loss(moved: Any, record: Sequence[Array], key: PRNGKeyArray) -> Float[Array, ""]:
            everything = _completed(moved, u)
            if self.perturb_parameters:
                return objective.whole_loss(everything, record, key, self.num_records)
            return objective.record_loss(everything, record, key)

        # By the plan, not the batch: one additional record must not make another program, which rounds differently.
        rows = self.engine.capacity if isinstance(self.engine, BookKeepingEngine) else self.num_records
        return Draws.of(loss, moved, record, key, rows)

    def _figures(
        self, released: Any, free: Float[Array, ""], norm: Float[Array, ""], channels: Channels, numbers: PlanNumbers
    ) -> StepFigures:
        """The figures of a release; `free` is the loss's data-free term."""
        loss = clipped = counted = jnp.full((), jnp.nan)
        if channels.loss_share > 0.0:
            total = released.loss / channels.loss_weight(norm) / numbers.rate
            loss = total + channels.center * self.num_records + free
        if channels.count_share > 0.0:
            # The expected size of a batch is public. The realised one is not: dividing by it would show it.
            expected = numbers.rate * self.num_records
            shares = released.count / channels.count_weight(norm) / expected
            clipped, counted = shares[1], shares[0] + shares[1]
        return StepFigures(loss, clipped, counted)


def _completed(moved: Any, others: Any) -> Any:
    """A tree with the leaves of `others` in the places of None."""
    return jax.tree.map(lambda x, other: other if x is None else x, moved, others, is_leaf=lambda x: x is None)


def _code() -> tuple[Any, ...]:
    marks = mechanisms.draw_batch, mechanisms.clipped_sum, mechanisms.release, mechanisms.update_rows
    noise = random.normal, random.discrete_gaussian, mechanisms.add_noise
    marks = *marks, mechanisms.Shards.part, mechanisms.Shards.at, mechanisms.Shards.on_each
    return *marks, PrivateStep.move, StepKeys.derive, StepKeys.at, Draws.make, random.fast_bits, *noise
