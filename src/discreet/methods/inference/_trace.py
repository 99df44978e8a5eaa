"""The iterates of a fit, and what they tell: each is a release, so looking at them is free.

`Trace` averages the tail without drift. `_tail` has the statistics of the tail, `_noise_aware` the
posteriors that follow from them.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Vector = Float[np.ndarray, " dim"]  # a number for each coordinate
_TAIL_STARTS = tuple(i / 10 for i in range(1, 10))
_JOURNEY = 30.0  # drift in the second half of a coordinate that still travels
_BATCHES = 10


@dataclasses.dataclass(frozen=True)
class Trace:
    """Unconstrained variational parameters along a fit, flattened.

    Attributes:
        steps: Number of releases made when each iterate was kept.
        iterates: One row for each of `steps`.
        gradients: With `run(..., keep_gradients=True)`, the noisy gradient that each step gave to
            the optimizer; a row was computed at the iterate of the row before. None: they were not
            kept.
        mean: Means of the iterates after each of the last `mean_steps` steps, where there are so
            many parameters that the trace has room for fewer than 20 rows; None elsewhere.
        mean_steps: The last tenth of the planned steps; of a fit that was stopped, one to two
            tenths, or all it made.
    """

    steps: Int[np.ndarray, "kept"]
    iterates: Float[np.ndarray, "kept dim"]
    gradients: Float[np.ndarray, "kept dim"] | None = None
    mean: Vector | None = None
    mean_steps: int = 0

    def drift(self, start: float) -> Vector:
        """Slope of a straight line through the tail of each coordinate, in its own standard errors.

        Iterates that follow one another are alike, so the line is fitted to the means of ten
        batches of them: about 1 when a coordinate only fluctuates, large when it still travels; 0
        where it does not move.

        Args:
            start: Start of the tail, as a fraction of the trace in [0, 1).

        Returns:
            |slope| / standard error, per coordinate.

        Raises:
            ValueError: The tail holds fewer than ten iterates.

        Reference:
            Jälkö, Prediger, Honkela and Kaski, DPVIm, 2023: convergence by the slope of a
            linear regression through the trace.
        """
        tail = self.iterates[int(start * len(self.iterates)) :].astype(np.float64)
        if len(tail) < _BATCHES:
            raise ValueError(
                f"The tail from {start} holds {len(tail)} iterates; a slope needs {_BATCHES} at least."
            )
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

        A tail has no drift when the root mean square of `drift` over the coordinates is at most 2;
        for coordinates that only fluctuate it is 1.15 on average.
        """
        for start in _TAIL_STARTS:
            if len(self.iterates) * (1 - start) < 2 * _BATCHES:
                return None
            if np.sqrt(np.mean(np.square(self.drift(start)))) <= 2.0:
                return start
        return None

    @property
    def still_to_go(self) -> float:
        """The share of a coordinate's way that lies in the second half: the largest, but for one coordinate in a hundred.

        It is 0 for those that do not travel. A fit whose steps are too few or too small goes on at
        its speed, so that the share is a half. A coordinate that only fluctuates has a small drift,
        also where the noise moves it much: of some dozen it was 25 at most; of thousands in a
        synthetic twin, three had more than 30.
        """
        half = len(self.iterates) // 2
        few = max(1, len(self.iterates) // 20)
        if half < _BATCHES:
            return 0.0
        start = self.iterates[0].astype(np.float64)
        middle = self.iterates[half : half + few].mean(axis=0, dtype=np.float64)
        end = self.iterates[-few:].mean(axis=0, dtype=np.float64)
        share = np.abs(end - middle) / np.maximum(np.abs(end - start), 1e-300)
        travels = np.where(self.drift(0.5) > _JOURNEY, share, 0.0)
        return float(np.sort(travels)[-1 - len(travels) // 100])

    @property
    def averaged_from(self) -> int:
        """The first row that `average` takes: where the tail without drift begins, or the last tenth, or the last row."""
        if len(self.iterates) < 2 * _BATCHES:
            return max(0, len(self.iterates) - 1)
        start = self.converged_from
        return int((0.9 if start is None else start) * len(self.iterates))

    def average(self) -> Vector:
        """Mean of the tail without drift, or of the last tenth where there is none.

        Of fewer than 20 iterates it is `mean`; where a fit made fewer than 20 steps, it is the last
        iterate.
        """
        if len(self.iterates) >= 2 * _BATCHES:
            return (
                self.iterates[self.averaged_from :]
                .mean(axis=0, dtype=np.float64)
                .astype(self.iterates.dtype)
            )
        return self.iterates[-1] if self.mean is None else self.mean

    @property
    def averaged_over(self) -> int:
        """The number of iterates in `average`."""
        if len(self.iterates) < 2 * _BATCHES and self.mean is not None:
            return self.mean_steps
        return len(self.iterates) - self.averaged_from


def parted(flat: Vector, like: Any) -> Any:
    """A tree with the shapes and types of `like` from one of `iterates`; by NumPy, for which nothing is compiled."""
    leaves, structure = jax.tree.flatten(like)
    parts = np.split(flat, np.cumsum([x.size for x in leaves])[:-1])
    shaped = [part.reshape(x.shape).astype(x.dtype) for part, x in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def update_mean(
    mean: Float[Array, "two dim"],
    iterate: Float[Array, " dim"],
    step: Int[Array, ""],
    num_steps: int | Int[Array, ""],
) -> Float[Array, "two dim"]:
    """The running mean of the tail after one more step, in the memory of two iterates.

    It starts with zeros. The planned steps are cut into tenths, counted from the end. One row is
    the mean of the tenth that is under way, the other that of the tenth before, so that a fit which
    is stopped anywhere has the mean of one tenth at least.
    """
    place = _place(step, num_steps)
    before, current = jnp.where(place == 1, jnp.stack([mean[1], jnp.zeros_like(iterate)]), mean)
    return jnp.stack([before, current + (iterate - current) / place])


def _place(step: Any, num_steps: Any) -> Any:
    """The number of a step within its tenth, from 1; the first tenth may be a short one."""
    place = (step - 1 - num_steps) % _tenth(num_steps) + 1
    return min(place, step) if isinstance(step, int) else jnp.minimum(place, step)


def _tenth(num_steps: Any) -> Any:
    return num_steps // 10 + (num_steps < 10)


class TraceRecorder:
    """Collects iterates within a budget of memory, every step or every so many."""

    def __init__(self, dim: int, num_steps: int, *, max_bytes: int = 64 * 2**20) -> None:
        """Decide how often iterates of `dim` float32 numbers are kept in `num_steps` steps."""
        most = max(2, max_bytes // (4 * max(dim, 1)))
        self.dim = dim
        self.num_steps = num_steps
        self.interval = -(-num_steps // most)
        self.every_step = self.interval == 1  # the compiled loop returns each iterate
        # So few iterates are kept that the compiled loop averages the tail itself.
        self.keeps_mean = not self.every_step and -(-num_steps // self.interval) < 2 * _BATCHES
        self._steps: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []
        self._gradients: list[np.ndarray] = []

    def steps_until_due(self, step: int) -> int:
        """The number of steps from `step` to the next kept iterate, at each multiple of `interval`."""
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
            self._steps = [trace.steps]
            self._rows = [trace.iterates]
            self._gradients = [] if trace.gradients is None else [trace.gradients]

    def finish(self, mean: Float[np.ndarray, "two dim"] | None = None, done: int = 0) -> Trace:
        """The trace of what was kept."""
        if not self._rows:
            return Trace(np.zeros(0, np.int64), np.zeros((0, self.dim), np.float32))
        gradients = np.concatenate(self._gradients) if self._gradients else None
        trace = Trace(np.concatenate(self._steps), np.concatenate(self._rows), gradients)
        if mean is None or not len(mean):
            return trace
        place = _place(done, self.num_steps)
        tenth = _tenth(self.num_steps)
        # A whole tenth stands alone; a part of one is joined to the tenth before, which is shorter
        # where it is the first.
        before = 0 if place == tenth else min(tenth, done - place)
        joined = (before * mean[0].astype(np.float64) + place * mean[1]) / (before + place)
        return dataclasses.replace(trace, mean=joined.astype(mean.dtype), mean_steps=before + place)
