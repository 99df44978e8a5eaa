"""The compiled loop: many steps a call, with a progress bar, stopped by Ctrl-C without loss, proved before it runs.

`many_steps` is the program. `run_steps` compiles it once for all plans of its shapes, cuts a fit
into calls of a quarter of a second, and writes checkpoints, from which a fit that died goes on to
the same bits: whatever the cuts, the result is the same. `_proof` gives the same program to the
verifier.
"""

from __future__ import annotations

import dataclasses
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int
from tqdm.auto import tqdm

from discreet._jax import compiled, run_once, types_of
from discreet.methods.inference._checkpoint import Checkpoint, Progress
from discreet.methods.inference._result import Outcome
from discreet.methods.inference._step import DPSVIState, PlanNumbers, PrivateStep, StepFigures
from discreet.methods.inference._step_keys import StepKeys
from discreet.methods.inference._trace import TraceRecorder, parted, update_mean
from discreet.privacy import mechanisms
from discreet.privacy.gradients import BookKeepingEngine
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import Batch

_are_finite = run_once(lambda values: jnp.array([jnp.isfinite(x).all() for x in values]).all())
_SECONDS_A_CHUNK = 0.25
_SHORT_CHUNK = 64
_LONGEST_CHUNK = 2048
_BUFFER_BYTES = 4 * 2**20
# State, running mean, rows of `StepFigures`, clipping norms, iterates and gradients.
Kept = tuple[
    DPSVIState,
    Float[Array, "two dim"],
    Float[Array, "length figure"],
    Float[Array, "length"],
    Float[Array, "length dim"],
    Float[Array, "length dim"],
]


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """A list in which the first Ctrl-C or SIGTERM is written; a second one raises at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        del frame
        if received:
            raise KeyboardInterrupt
        received.append(signum)

    # What schedulers send, unless the program has a way of its own to end.
    ends = signal.getsignal(signal.SIGTERM) in (None, signal.SIG_DFL, signal.default_int_handler)
    signals = (signal.SIGINT, signal.SIGTERM)[: 1 + ends]
    previous = [signal.signal(x, interrupt) for x in signals]
    try:
        yield received
    finally:
        for x, before in zip(signals, previous, strict=True):
            signal.signal(x, signal.SIG_DFL if before is None else before)


def run_steps(
    step: PrivateStep,
    plan: PrivacyPlan,
    state: DPSVIState,
    leaves: list[Array],
    *,
    progress_bar: bool,
    keep_gradients: bool = False,
    begin: Callable[[], None] = lambda: None,
    checkpoint: Checkpoint | None = None,
) -> Outcome:
    """Make a plan's releases, batches drawn from the records `leaves`.

    The result does not depend on how the steps were cut into compiled calls. Gradients are kept
    where every iterate is. `begin` is called once, when all is compiled and nothing released. From
    a `checkpoint` it goes on to the same bits. Several processes make the same steps, however their
    clocks go and wherever Ctrl-C comes. An error after the spending has the outcome so far as its
    `partial_outcome`, if an iterate was kept.
    """
    checkpoint = checkpoint or Checkpoint(None, state.rng_key)
    processes = checkpoint.processes
    num_steps = plan.num_steps
    numbers = PlanNumbers.of(plan)
    drawing = step.drawing(plan.sampler, leaves)
    if step.shards is not None:
        numbers = numbers._replace(where=step.shards.where(state.rng_key))
    shapes = types_of(step.optim.get_params(state.optim_state))
    dim = sum(x.size for x in jax.tree.leaves(shapes))
    recorder = TraceRecorder(dim, num_steps)
    keep_gradients = keep_gradients and recorder.every_step
    # Two lengths, so that plans with other numbers of steps share a program.
    chunk_length = _SHORT_CHUNK if num_steps <= _SHORT_CHUNK else _LONGEST_CHUNK
    if recorder.every_step:
        chunk_length = max(1, min(chunk_length, _BUFFER_BYTES // (4 * max(1, dim))))
    tables = jax.device_put(plan.sampler.prepare(drawing.num_records))
    # Each call overwrites the state that it is given; the caller's must stay what it was.
    state = jax.device_put(state, may_alias=False)
    mean = jax.device_put(np.zeros((2 * recorder.keeps_mean, dim), np.float32))
    count = min(8, chunk_length)
    everywhere = (lambda x: x) if step.shards is None else step.shards.copied
    numbers, tables = everywhere((numbers, tables))
    kept_in_errors = _kept_in_errors(recorder, shapes, lambda: progress)
    shown = {"delay": 2.0, "unit": "step", "desc": "private fit", "mininterval": 0.2}
    bar = tqdm(total=num_steps, disable=None if progress_bar and processes.first else True, **shown)
    with _interruptible() as received, bar, kept_in_errors:
        # Compiled before anything is released, and kept by JAX for the next fit of the same shape.
        static = (step, drawing, chunk_length, recorder.every_step, keep_gradients)
        program = functools.partial(_chunk, *static)
        if not jax.config.values["jax_disable_jit"]:
            with processes.together():
                start = *step.laid(state, mean), numbers, leaves, tables, everywhere(np.int32(0))
                lowered = _chunk.lower(*static, *start)
            if processes.count > 1:
                processes.agree(program=lowered.as_text())
            with processes.together():
                # The same noise on sums that round otherwise would give the difference away.
                program = compiled(lowered, repeats=bool(checkpoint.run_id) or processes.count > 1)
                if received:
                    raise KeyboardInterrupt
        with processes.together():
            state, progress = checkpoint.begin(state, mean, recorder, begin)
        state, progress.mean = step.laid(state, progress.mean)
        bar.update(progress.done)
        count, _, stop = processes.decide(count, False, bool(received))
        # What was paid for before Ctrl-C came makes some steps at least.
        while progress.done < num_steps and not (stop and progress.done):
            done = progress.done
            count = min(count, num_steps - done, recorder.steps_until_due(done))
            started = time.perf_counter()
            found = program(
                state, progress.mean, numbers, leaves, tables, everywhere(np.int32(count))
            )
            state, progress.mean, figures, chunk_norms, iterates, gradients = found
            progress.figures.append(np.asarray(figures)[:count])
            progress.norms.append(
                np.asarray(chunk_norms)[:count]
                if step.adapts
                else np.full(count, plan.clipping.start)
            )
            seconds = time.perf_counter() - started
            made = count
            count = int(np.clip(made * _SECONDS_A_CHUNK / max(seconds, 1e-6), made / 4, made * 8))
            count = max(1, min(count, chunk_length))
            # What is no number stays so: nothing is learned from further steps.
            lost = not _are_finite(jax.tree.leaves(step.optim.get_params(state.optim_state)))
            count, due, stop = processes.decide(count, checkpoint.due, bool(received) or lost)
            done = progress.done = done + made
            if recorder.every_step:
                kept = np.asarray(gradients)[:made].copy() if keep_gradients else None
                recorder.extend(done - made + 1, np.asarray(iterates)[:made].copy(), kept)
            elif recorder.steps_until_due(done) == recorder.interval or done == num_steps or stop:
                iterate, _ = ravel_pytree(step.optim.get_params(state.optim_state))
                recorder.extend(done, np.asarray(iterate)[None])
            bar.update(made)
            # The bar redraws itself at its own pace: each time would cost more than all else here.
            loss = float(np.mean(progress.figures[-1][:, 0])) / step.num_records
            words = f"clipped private loss {loss:.4g} nats/record" if np.isfinite(loss) else ""
            bar.set_postfix_str(words, refresh=False)
            if due or stop or done == num_steps:
                here = step.gathered(state, memory=bool(checkpoint.run_id))
                checkpoint.keep(here, progress, recorder, finished=done == num_steps)
    done = progress.done
    figures = np.concatenate(progress.figures)
    norms = np.concatenate(progress.norms)
    trace = recorder.finish(np.asarray(progress.mean), done)
    last = step.optim.get_params(step.gathered(state, memory=False).optim_state)
    return Outcome(last, figures, norms, trace, done)


@contextmanager
def _kept_in_errors(
    recorder: TraceRecorder, shapes: Any, progress: Callable[[], Progress]
) -> Iterator[None]:
    """Give an error the outcome at the last kept iterate, as its `partial_outcome`.

    A signal's handler may raise anywhere, also where the state is being overwritten. What was kept
    is whole.
    """
    try:
        yield
    except BaseException as error:
        # Unless it came between two lines of the recorder.
        with suppress(Exception):
            trace = recorder.finish()
            found = progress()
            done = int(trace.steps[-1])
            last = parted(trace.iterates[-1], shapes)
            figures = np.concatenate(found.figures)[:done]
            norms = np.concatenate(found.norms)[:done]
            error.__dict__["partial_outcome"] = Outcome(last, figures, norms, trace, done)
        raise


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
    keys = StepKeys.derive(state.rng_key, memory=step.local is not None)
    key = state.rng_key
    keyless = state._replace(rng_key=None)
    state, *released = many_steps(
        step,
        drawing,
        length,
        keep_iterates,
        keep_gradients,
        keys,
        keyless,
        mean,
        numbers,
        leaves,
        tables,
        count,
    )
    return step.laid(state._replace(rng_key=key), *released)  # pyright: ignore[reportReturnType]


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

    Of at most `length` steps, for whose results there is room, `count` are made; parameters and
    gradients after each are kept if asked for. `state` has no key, since `keys` are derived from
    it; an empty `mean` of the tail stays so; `tables` are what `sampling.prepare` returned. Rows of
    results from `count` on hold zeros.
    """
    dim = sum(x.size for x in jax.tree.leaves(step.optim.get_params(state.optim_state)))

    def body(i: Int[Array, ""], carry: Any) -> Any:
        state, mean, told, norms, iterates, gradients = carry
        if step.adapts:
            norms = norms.at[i].set(state.clipping_norm)
        state, figures, gradient = _one_step(step, drawing, keys, state, numbers, leaves, tables)
        told = told.at[i].set(jnp.stack(figures).astype(told.dtype))
        flat, _ = ravel_pytree(step.optim.get_params(state.optim_state))
        if len(mean):
            mean = update_mean(mean, flat.astype(mean.dtype), state.step, numbers.num_steps)
        if keep_iterates:
            iterates = iterates.at[i].set(flat.astype(iterates.dtype))
        if keep_gradients:
            flat, _ = ravel_pytree(gradient)
            gradients = gradients.at[i].set(flat.astype(gradients.dtype))
        return state, mean, told, norms, iterates, gradients

    norms = jnp.zeros(length if step.adapts else 0)
    iterates, gradients = (
        jnp.zeros((length, dim) if keep else (0, 0)) for keep in (keep_iterates, keep_gradients)
    )
    told = jnp.zeros((length, len(StepFigures._fields)))
    start = (state, mean, told, norms, iterates, gradients)
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
) -> tuple[DPSVIState, StepFigures, Any]:
    # JAX keeps what it traced, so that the proof and the loop that runs trace it once, and so do
    # all plans.
    now = keys.at(state.step)
    batch = mechanisms.draw_batch(drawing, now.sampling, drawing.at(tables, state.step))
    return step.move(state, now, numbers, leaves, batch)


@functools.partial(jax.jit, static_argnums=(0, 1))
def update_once(
    step: PrivateStep,
    hedged: bool,
    numbers: PlanNumbers,
    state: DPSVIState,
    leaves: list[Array],
    mask: Bool[Array, "record"],
) -> tuple[DPSVIState, Float[Array, ""]]:
    """Make one step with a batch that the caller drew, within the plan's number of steps; `hedged` as in `PrivateStep`."""
    step = dataclasses.replace(step, hedged=hedged)
    # Where the state is being traced, no error can stop a step that nobody paid for: it then sees
    # no record.
    paid = state.step < numbers.num_steps
    batch = Batch(jnp.arange(mask.shape[0], dtype=jnp.int32), mask & paid)
    keys = StepKeys.derive(state.rng_key).at(state.step)
    if isinstance(step.engine, BookKeepingEngine):
        # The rows stand in whatever order the caller gave them.
        step = dataclasses.replace(step, engine=dataclasses.replace(step.engine, shuffled=False))
    state, figures, _ = step.move(state, keys, numbers, leaves, batch)
    return state, jnp.where(paid, figures.loss, jnp.nan)
