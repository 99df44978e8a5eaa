"""The compiled loop: many steps a call, with a progress bar, stopped by Ctrl-C without loss."""

from __future__ import annotations

import dataclasses
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from tqdm import tqdm

from discreet import mechanisms
from discreet.inference._checkpoint import Checkpoint
from discreet.inference._keys import StepKeys
from discreet.inference._step import DPSVIState, PlanNumbers, PrivateStep
from discreet.inference._trace import Trace, TraceRecorder, start_mean, update_mean
from discreet.plan import PrivacyPlan
from discreet.sampling import Batch

_SECONDS_A_CHUNK = 0.25
_SHORT_CHUNK, _LONGEST_CHUNK = 64, 2048
_BUFFER_BYTES = 4 * 2**20

# State, running mean, losses, clipping norms, iterates and gradients.
Kept = tuple[
    DPSVIState,
    Float[Array, "two dim"],
    Float[Array, "length"],
    Float[Array, "length"],
    Float[Array, "length dim"],
    Float[Array, "length dim"],
]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a loop did.

    Attributes:
        state: the last state.
        losses: one private estimate a step done.
        clipping_norms: C of each step done.
        trace: the iterates kept.
        steps: number of releases made.
        interrupted: Ctrl-C stopped it.
    """

    state: DPSVIState
    losses: Float[np.ndarray, "step"]
    clipping_norms: Float[np.ndarray, "step"]
    trace: Trace
    steps: int
    interrupted: bool


class _Interrupt:
    """Set by the first Ctrl-C; a second one raises at once."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def _interruptible() -> Iterator[_Interrupt]:
    interrupt = _Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if previous is None else previous)


def run_steps(
    step: PrivateStep,
    plan: PrivacyPlan,
    state: DPSVIState,
    leaves: list[Array],
    *,
    progress_bar: bool,
    keep_gradients: bool = False,
    spend: Callable[[], None] = lambda: None,
    checkpoint: Checkpoint | None = None,
) -> Outcome:
    """Make a plan's releases, batches drawn from the records `leaves`.

    The result does not depend on how the steps were cut into compiled calls. Gradients are kept where every iterate is.
    `spend` is called once, when all is compiled and nothing released. From a `checkpoint` it goes on to the same bits.

    Raises:
        KeyboardInterrupt: Ctrl-C came before the first release; nothing was spent.
    """
    num_steps, num_records, numbers = plan.num_steps, leaves[0].shape[0], PlanNumbers.of(plan)
    flat, _ = ravel_pytree(step.optim.get_params(state.optim_state))
    recorder = TraceRecorder(flat.size, num_steps)
    keep_gradients = keep_gradients and recorder.every_step
    # Two lengths, so that plans with other numbers of steps share a program.
    chunk_length = _SHORT_CHUNK if num_steps <= _SHORT_CHUNK else _LONGEST_CHUNK
    if recorder.every_step:
        chunk_length = max(1, min(chunk_length, _BUFFER_BYTES // (4 * max(1, flat.size))))
    tables = jax.tree.map(jnp.asarray, plan.sampling.prepare(num_records))
    # Each call overwrites the state that it is given; the caller's must stay what it was.
    state = jax.tree.map(jnp.copy, state)
    mean, count = start_mean(flat.size, recorder.keeps_mean), min(8, chunk_length)
    checkpoint = checkpoint or Checkpoint(None, state.rng_key)
    with _interruptible() as interrupt, _bar(num_steps, progress_bar) as bar:
        # Compiled before anything is released, and kept by JAX for the next fit of the same shape.
        drawing = plan.sampling.drawing(num_records)
        static = (step, drawing, chunk_length, recorder.every_step, keep_gradients)
        program = functools.partial(_chunk, *static)
        if not jax.config.values["jax_disable_jit"]:
            program = _chunk.lower(*static, state, mean, numbers, leaves, tables, jnp.int32(0)).compile()
        if interrupt.requested:
            raise KeyboardInterrupt
        state, progress = checkpoint.begin(state, mean, recorder, spend)
        bar.update(progress.done)
        # What was paid for before Ctrl-C came makes some steps at least.
        while progress.done < num_steps and not (interrupt.requested and progress.done):
            done = progress.done
            count = min(count, num_steps - done, recorder.steps_until_due(done))
            started = time.perf_counter()
            found = program(state, progress.mean, numbers, leaves, tables, jnp.int32(count))
            state, progress.mean, chunk_losses, chunk_norms, iterates, gradients = found
            progress.losses.append(np.asarray(chunk_losses)[:count])
            progress.norms.append(
                np.asarray(chunk_norms)[:count] if step.adapts else np.full(count, plan.clipping.start)
            )
            seconds = time.perf_counter() - started
            done = progress.done = done + count
            if recorder.every_step:
                kept = np.asarray(gradients)[:count].copy() if keep_gradients else None
                recorder.extend(done - count + 1, np.asarray(iterates)[:count].copy(), kept)
            elif recorder.steps_until_due(done) == recorder.interval or done == num_steps or interrupt.requested:
                iterate, _ = ravel_pytree(step.optim.get_params(state.optim_state))
                recorder.extend(done, np.asarray(iterate)[None])
            bar.update(count)
            # The bar redraws itself at its own pace: each time would cost more than all else here.
            bar.set_postfix_str(_postfix(progress.losses[-1], step.num_records), refresh=False)
            last = done == num_steps or interrupt.requested
            checkpoint.keep(state, progress, recorder, last=last, finished=done == num_steps)
            count = int(np.clip(count * _SECONDS_A_CHUNK / max(seconds, 1e-6), count / 4, count * 8))
            count = max(1, min(count, chunk_length))
    done, losses, norms = progress.done, np.concatenate(progress.losses), np.concatenate(progress.norms)
    return Outcome(state, losses, norms, recorder.finish(np.asarray(progress.mean), done), done, done < num_steps)


def _bar(num_steps: int, enabled: bool) -> Any:
    return tqdm(total=num_steps, disable=not enabled, delay=2.0, unit="step", desc="private fit", mininterval=0.2)


def _postfix(losses: np.ndarray, num_records: int) -> str:
    mean = float(np.mean(losses)) / num_records
    return f"clipped private loss {mean:.4g} nats/record" if np.isfinite(mean) else ""


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), donate_argnums=(5, 6))
def _chunk(
    step: PrivateStep,
    drawing: Any,
    length: int,
    keep_iterates: bool,
    keep_gradients: bool,
    state: DPSVIState,
    mean: Float[Array, "two dim"],
    numbers: PlanNumbers,
    leaves: list[Array],
    tables: Any,
    count: Int[Array, ""],
) -> Kept:
    keys, key = StepKeys.derive(state.rng_key, memory=step.local is not None), state.rng_key
    keyless = state._replace(rng_key=None)
    state, mean, losses, norms, iterates, gradients = many_steps(
        step, drawing, length, keep_iterates, keep_gradients, keys, keyless, mean, numbers, leaves, tables, count
    )
    return state._replace(rng_key=key), mean, losses, norms, iterates, gradients


def many_steps(
    step: PrivateStep,
    drawing: Any,
    length: int,
    keep_iterates: bool,
    keep_gradients: bool,
    keys: StepKeys,
    state: DPSVIState,
    mean: Float[Array, "two dim"],
    numbers: PlanNumbers,
    leaves: list[Array],
    tables: Any,
    count: int | Int[Array, ""],
) -> Kept:
    """The loop itself: what is compiled to run, and what is proved to be private.

    Args:
        step: one step.
        drawing: how batches are drawn (`Sampling.drawing`).
        length: room for so many steps' results.
        keep_iterates: whether the parameters after each step are among them.
        keep_gradients: whether the gradient that each step gave to the optimizer is.
        keys: the fit's.
        state: the state before, without a key.
        mean: the running mean of the tail; empty: none is kept.
        numbers: the plan's.
        leaves: the records.
        tables: what `sampling.prepare` returned.
        count: steps to make, at most `length`.

    Returns:
        The state after, the running mean, private losses, clipping norms, iterates and gradients; rows from `count` on hold
        zeros.
    """
    dim = sum(x.size for x in jax.tree.leaves(step.optim.get_params(state.optim_state)))

    def body(i: Int[Array, ""], carry: Any) -> Any:
        state, mean, losses, norms, iterates, gradients = carry
        if step.adapts:
            norms = norms.at[i].set(state.clipping_norm)
        state, loss, gradient = _one_step(step, drawing, keys, state, numbers, leaves, tables)
        losses = losses.at[i].set(loss.astype(losses.dtype))
        flat, _ = ravel_pytree(step.optim.get_params(state.optim_state))
        if len(mean):
            mean = update_mean(mean, flat.astype(mean.dtype), state.step, numbers.num_steps)
        if keep_iterates:
            iterates = iterates.at[i].set(flat.astype(iterates.dtype))
        if keep_gradients:
            flat, _ = ravel_pytree(gradient)
            gradients = gradients.at[i].set(flat.astype(gradients.dtype))
        return state, mean, losses, norms, iterates, gradients

    norms = jnp.zeros(length if step.adapts else 0)
    iterates, gradients = (jnp.zeros((length, dim) if keep else (0, 0)) for keep in (keep_iterates, keep_gradients))
    start = (state, mean, jnp.zeros(length), norms, iterates, gradients)
    return jax.lax.fori_loop(0, count, body, start)


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def _one_step(
    step: PrivateStep,
    drawing: Any,
    keys: StepKeys,
    state: DPSVIState,
    numbers: PlanNumbers,
    leaves: list[Array],
    tables: Any,
) -> tuple[DPSVIState, Float[Array, ""], Any]:
    # JAX keeps what it traced, so that the proof and the loop that runs trace it once, and so do all plans.
    now = keys.at(state.step)
    batch = mechanisms.draw_batch(drawing, now.sampling, tables, leaves[0].shape[0])
    return step.move(state, now, numbers, leaves, batch)


@functools.partial(jax.jit, static_argnums=0)
def update_once(
    step: PrivateStep, numbers: PlanNumbers, state: DPSVIState, leaves: list[Array], mask: Bool[Array, "record"]
) -> tuple[DPSVIState, Float[Array, ""]]:
    """One step with a batch that the caller drew; the plan's number of steps is paid for."""
    # Where the state is being traced, no error can stop a step that nobody paid for: it then sees no record.
    paid = state.step < numbers.num_steps
    batch = Batch(jnp.arange(mask.shape[0], dtype=jnp.int32), mask & paid)
    state, loss = step(state, StepKeys.derive(state.rng_key).at(state.step), numbers, leaves, batch)
    return state, jnp.where(paid, loss, jnp.nan)


class ManyFits(NamedTuple):
    """What `DPSVI.run_many` gives out, one row of each array for each fit. Not private: the keys were made from seeds.

    Attributes:
        params: values of the `param` sites, the mean over the last tenth of the plan's steps: shape (fit, ...).
        last_params: the same after the last step.
        losses: private loss estimates, in nats: shape (fit, longest plan's steps), NaN behind a plan's last step.
        clipping_norms: C of each step, likewise.
    """

    params: dict[str, np.ndarray]
    last_params: dict[str, np.ndarray]
    losses: Float[np.ndarray, "fit step"]
    clipping_norms: Float[np.ndarray, "fit step"]


def fit_many(
    fits: Sequence[tuple[DPSVIState, PrivateStep, PrivacyPlan]],
    keys: PRNGKeyArray,
    leaves: Sequence[Array],
    *,
    at_once: int = 64,
) -> ManyFits:
    """Run a fit for each key, those of one program together.

    Args:
        fits: for each key the first state, without a key, the step and the plan.
        keys: made from seeds, shape (fit,).
        leaves: the records.
        at_once: so many fits are mapped over in one call; memory grows with it.
    """
    size, longest = leaves[0].shape[0], max(plan.num_steps for _, _, plan in fits)
    alike: dict[Any, list[int]] = {}
    tables = [plan.sampling.prepare(size) for _, _, plan in fits]
    for number, (_, step, plan) in enumerate(fits):
        shapes = tuple(x.shape for x in jax.tree.leaves(tables[number]))
        alike.setdefault((step, mechanisms.drawing_of(plan.sampling, size), shapes), []).append(number)
    rows: dict[int, Any] = {}
    for (step, drawing, _), numbers in alike.items():
        for first in range(0, len(numbers), at_once):
            chosen = numbers[first : first + at_once]
            inputs = [(PlanNumbers.of(fits[i][2]), fits[i][0], tables[i]) for i in chosen]
            stacked = jax.tree.map(lambda *x: jnp.stack(x), *inputs)
            found = jax.device_get(_many(step, drawing, longest, *stacked, list(leaves), keys[np.array(chosen)]))
            for place, number in enumerate(chosen):
                rows[number] = jax.tree.map(lambda x, place=place: x[place], found)
    params, last, losses, norms = jax.tree.map(lambda *x: np.stack(x), *(rows[i] for i in range(len(fits))))
    steps = np.array([plan.num_steps for _, _, plan in fits])
    beyond = np.arange(longest) >= steps[:, None]
    return ManyFits(params, last, np.where(beyond, np.nan, losses), np.where(beyond, np.nan, norms))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _many(
    step: PrivateStep,
    drawing: Any,
    longest: int,
    numbers: PlanNumbers,
    state: DPSVIState,
    tables: Any,
    leaves: list[Array],
    keys: PRNGKeyArray,
) -> Any:
    flat, unravel = ravel_pytree(
        jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), step.optim.get_params(state.optim_state))
    )

    def one(numbers: PlanNumbers, state: DPSVIState, tables: Any, key: PRNGKeyArray) -> Any:
        norm, mean = state.clipping_norm, start_mean(flat.size, keep=True)
        keys = StepKeys.derive(key, memory=step.local is not None)
        end, mean, losses, norms, _, _ = many_steps(
            step, drawing, longest, False, False, keys, state, mean, numbers, leaves, tables, numbers.num_steps
        )
        # At the plan's last step the second row is the mean of its last tenth.
        psi = unravel(mean[1]), step.optim.get_params(end.optim_state)
        norms = norms if step.adapts else jnp.full(longest, norm)
        return *map(step.objective.constrain, psi), losses, norms

    return jax.vmap(one)(numbers, state, tables, keys)
