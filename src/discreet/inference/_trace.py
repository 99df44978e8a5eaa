"""The iterates of a fit: each is a release, so looking at them and averaging them is free."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
from jaxtyping import Float, Int

_TAIL_STARTS = tuple(i / 10 for i in range(1, 10))
_BATCHES = 10


@dataclasses.dataclass(frozen=True)
class Trace:
    """Unconstrained variational parameters along a fit, flattened.

    Attributes:
        steps: number of releases made when each iterate was kept.
        iterates: one row for each of `steps`.
        gradients: with `run(..., keep_gradients=True)`, the noisy gradient that each step gave to the optimizer; a row
            was computed at the iterate of the row before. None: they were not kept.
    """

    steps: Int[np.ndarray, "kept"]
    iterates: Float[np.ndarray, "kept dim"]
    gradients: Float[np.ndarray, "kept dim"] | None = None

    def drift(self, start: float) -> Float[np.ndarray, " dim"]:
        """Slope of a straight line through the tail of each coordinate, in its own standard errors.

        Iterates that follow one another are alike, so the line is fitted to the means of ten batches of them: about
        1 when a coordinate only fluctuates, large when it still travels; 0 where it does not move.

        Args:
            start: where the tail begins, as a fraction of the trace in [0, 1).

        Returns:
            |slope| / standard error, per coordinate.

        Raises:
            ValueError: the tail holds fewer than ten iterates.

        Reference:
            Jälkö, Prediger, Honkela and Kaski, DPVIm, 2023: convergence by the slope of a
            linear regression through the trace.
        """
        tail = self.iterates[int(start * len(self.iterates)) :].astype(np.float64)
        if len(tail) < _BATCHES:
            raise ValueError(f"The tail from {start} holds {len(tail)} iterates; a slope needs {_BATCHES} at least.")
        means = np.stack([batch.mean(axis=0) for batch in np.array_split(tail, _BATCHES)])
        time = np.arange(_BATCHES) - (_BATCHES - 1) / 2
        centered = means - means.mean(axis=0)
        slope = time @ centered / (time @ time)
        residual = np.square(centered - np.outer(time, slope)).sum(axis=0) / (_BATCHES - 2)
        error = np.sqrt(residual / (time @ time))
        return np.abs(slope) / np.where(error > 0, error, np.inf)

    @property
    def converged_from(self) -> float | None:
        """Start of the longest tail without drift, as a fraction of the trace; None: it still travels.

        A tail has no drift when the root mean square of `drift` over the coordinates is at most 2; for
        coordinates that only fluctuate it is 1.15 on average.
        """
        for start in _TAIL_STARTS:
            if len(self.iterates) * (1 - start) < 2 * _BATCHES:
                return None
            if np.sqrt(np.mean(np.square(self.drift(start)))) <= 2.0:
                return start
        return None

    @property
    def averaged_from(self) -> int:
        """The first row that `average` takes: where the tail without drift begins, or the last tenth, or the last row."""
        if len(self.iterates) < 2 * _BATCHES:
            return max(0, len(self.iterates) - 1)
        start = self.converged_from
        return int((0.9 if start is None else start) * len(self.iterates))

    def average(self) -> Float[np.ndarray, " dim"]:
        """Mean of the tail without drift; of the last tenth where there is none; of few iterates, the last."""
        if len(self.iterates) < 2 * _BATCHES:
            return self.iterates[-1]
        return self.iterates[self.averaged_from :].mean(axis=0, dtype=np.float64).astype(self.iterates.dtype)


class TraceRecorder:
    """Collects iterates within a budget of memory, every step or every so many."""

    def __init__(self, dim: int, num_steps: int, *, max_bytes: int = 64 * 2**20) -> None:
        """Decide how often iterates of `dim` float32 numbers are kept in `num_steps` steps."""
        most = max(2, max_bytes // (4 * max(dim, 1)))
        self.dim = dim
        self.interval = -(-num_steps // most)
        self._steps: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []
        self._gradients: list[np.ndarray] = []

    @property
    def every_step(self) -> bool:
        """Whether the compiled loop hands over each iterate."""
        return self.interval == 1

    def steps_until_due(self, step: int) -> int:
        """How many steps after `step` the next iterate is to be kept: at each multiple of `interval`."""
        return sys.maxsize if self.every_step else self.interval - step % self.interval

    def extend(
        self,
        first_step: int,
        rows: Float[np.ndarray, "kept dim"],
        gradients: Float[np.ndarray, "kept dim"] | None = None,
    ) -> None:
        """Keep the iterates after steps `first_step`, `first_step + 1`, ..., and the gradients of these steps."""
        self._steps.append(np.arange(first_step, first_step + len(rows)))
        self._rows.append(rows)
        if gradients is not None:
            self._gradients.append(gradients)

    def restore(self, trace: Trace) -> None:
        """Go on from what `finish` gave."""
        if len(trace.steps):
            self._steps, self._rows = [trace.steps], [trace.iterates]
            self._gradients = [] if trace.gradients is None else [trace.gradients]

    def finish(self) -> Trace:
        """The trace of what was kept."""
        if not self._rows:
            return Trace(np.zeros(0, np.int64), np.zeros((0, self.dim), np.float32))
        gradients = np.concatenate(self._gradients) if self._gradients else None
        return Trace(np.concatenate(self._steps), np.concatenate(self._rows), gradients)
