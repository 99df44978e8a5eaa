"""Checkpoints of a fit, from which it continues after a crash.

A checkpoint is the state of the loop, what the loop has collected, and the key. The first one is
written before the debit, later ones when they are due. `_saved` has the folder, and checks that
another call is that of the same fit.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from discreet.methods.inference._processes import FAILED, START_AGAIN
from discreet.methods.inference._saved import SavedFit
from discreet.methods.inference._step import DPSVIState, StepFigures
from discreet.methods.inference._trace import TraceRecorder

_SECONDS = 10.0
"""Between two checkpoints; more where writing one takes more than a twentieth of that."""


@dataclasses.dataclass
class Progress:
    """The progress of a fit: everything that the loop collects besides its state and the trace."""

    mean: Any
    done: int = 0
    figures: list[np.ndarray] = dataclasses.field(default_factory=list)  # rows of `StepFigures`
    norms: list[np.ndarray] = dataclasses.field(default_factory=list)


class Checkpoint(SavedFit):
    """A folder with the state of a fit, from which it continues after a crash; without a folder, it does nothing.

    Guarantee: whenever the process dies, the continued fit makes the same releases, to the bit. No
    step draws its noise for another state, since data, model, plan and options must be the same.

    The file contains the records' memory, too, and the key (`SavedFit`, which has the arguments).
    """

    _due = 0.0

    def begin(
        self, state: DPSVIState, mean: Array, recorder: TraceRecorder, begin: Callable[[], None]
    ) -> tuple[DPSVIState, Progress]:
        """The state to go on from, once `begin` has claimed the key and debited; a checkpoint is there before it."""
        again = "Start all processes again with the same command: the fit continues from its checkpoint."
        lost = "The plan may be spent, and without checkpoint= its steps are lost."
        self.processes.remedy = (again, START_AGAIN) if self.run_id else (lost, FAILED)
        if self._found is None:
            progress = Progress(mean)
            self._write(state, progress, recorder, finished=False)
            self._enter(begin)
            return state, progress
        # The same releases again are none: the noise belongs to these states.
        begin()
        found = self._found
        leaves, tree = jax.tree.flatten(state._replace(rng_key=None))
        kept = [jnp.asarray(x, y.dtype) for x, y in zip(found["state"], leaves, strict=True)]
        recorder.restore(found["trace"])
        progress = Progress(
            jnp.asarray(found["mean"], mean.dtype),
            found["done"],
            [found["figures"]],
            [found["norms"]],
        )
        return jax.tree.unflatten(tree, kept)._replace(rng_key=jnp.copy(self.key)), progress

    @property
    def due(self) -> bool:
        """True if a checkpoint is due."""
        return self._path is not None and time.perf_counter() >= self._due

    def keep(
        self, state: DPSVIState, progress: Progress, recorder: TraceRecorder, *, finished: bool
    ) -> None:
        """Write where the fit stands, in arrays of this process; all processes must have come to the same."""
        if self.processes.count > 1:
            self.processes.same_state(state._replace(rng_key=None))
        self._write(state, progress, recorder, finished=finished)

    def _write(
        self, state: DPSVIState, progress: Progress, recorder: TraceRecorder, *, finished: bool
    ) -> None:
        if self._path is None:
            return
        started = time.perf_counter()
        content = {
            "state": [np.asarray(x) for x in jax.tree.leaves(state._replace(rng_key=None))],
            "mean": np.asarray(progress.mean),
            "done": progress.done,
            "figures": np.concatenate([_NO_FIGURES, *progress.figures]),
            "norms": np.concatenate([_NO_NORMS, *progress.norms]),
            "trace": recorder.finish(),
        }
        self._put(content, finished=finished)
        ended = time.perf_counter()
        self._due = ended + max(_SECONDS, 20 * (ended - started))


_NO_FIGURES = np.zeros((0, len(StepFigures._fields)), np.float32)
_NO_NORMS = np.zeros(0, np.float32)
