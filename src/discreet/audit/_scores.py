"""What an attacker looks at who knows nothing beforehand, learned from the first half of the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

Released = Float[np.ndarray, "run *release"]
Score = Callable[[Released], Float[np.ndarray, " run"]]


def learned_scores(present: Released, absent: Released) -> dict[str, Score]:
    """Scores made from releases with the canary and without it.

    Args:
        present: the first half of the runs with the canary; a leading axis of runs, then of steps if there are two more.
        absent: the same without it.

    Returns:
        "direction": along the difference of the two means, each number divided by its variance: the best score for independent
        Gaussian noise and a canary that adds a constant. "spread": how far apart the steps lie in the direction of their
        mean difference, which shows noise that is drawn once for all steps.
    """
    there, gone = _steps(present), _steps(absent)
    fine = [x[_finite(x)] for x in (there, gone)]
    # Runs that are no numbers are told by that alone: on the side where there are more of them.
    odd = np.inf if len(fine[0]) / len(there) <= len(fine[1]) / len(gone) else -np.inf
    if not all(len(x) for x in fine):
        return {"direction": _whole(lambda x: np.zeros(len(x)), odd)}
    apart = fine[0].mean(axis=0) - fine[1].mean(axis=0)
    variance = (fine[0].var(axis=0) + fine[1].var(axis=0)) / 2
    weights = _weights(apart, variance)
    common = _weights(apart.mean(axis=0), variance.mean(axis=0))
    scores = {"direction": _whole(lambda x: np.einsum("rsk,sk->r", x, weights), odd)}
    if there.shape[1] > 1:
        scores["spread"] = _whole(lambda x: np.ptp(x @ common, axis=1), odd)
    return scores


def scored(
    scores: Mapping[str, Score], present: Released, absent: Released
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """All scores of all runs."""

    def every(x: Released) -> dict[str, np.ndarray]:
        return {name: np.asarray(score(x)) for name, score in scores.items()}

    return every(present), every(absent)


def _steps(released: Released) -> Float[np.ndarray, "run step number"]:
    wide = np.asarray(released, np.float64)
    if wide.ndim > 2:
        return wide.reshape(len(wide), wide.shape[1], -1)
    return wide.reshape(len(wide), 1, -1)


def _finite(x: Float[np.ndarray, "run step number"]) -> Bool[np.ndarray, " run"]:
    return np.asarray(np.isfinite(x).all(axis=(1, 2)))


def _weights(apart: np.ndarray, variance: np.ndarray) -> np.ndarray:
    # Numbers without any noise get a large weight if they differ, and none if they do not.
    floor = 1e-12 * max(float(np.max(np.square(apart), initial=0.0)), 1e-300)
    return apart / np.maximum(variance, floor)


def _whole(score: Callable[[Any], np.ndarray], odd: float) -> Score:
    def of(released: Released) -> np.ndarray:
        steps = _steps(released)
        fine = _finite(steps)
        return np.where(fine, score(np.where(fine[:, None, None], steps, 0.0)), odd)

    return of
