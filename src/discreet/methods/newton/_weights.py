"""Survey weights of records: what is allowed, and what noisy means of them and of their squares say."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np

from discreet._validate import floats

LEAST_WEIGHT = 1e-3  # of the mean, as a share of the largest
STANDS_OUT = 3.0  # standard deviations
WEIGHTS_HIDDEN = (
    "the noise hides the mean weight: weights are far below the largest that one may have. A smaller "
    "max_weight helps"
)


class SurveyWeights(NamedTuple):
    """Survey weights over the largest that one may have.

    Attributes:
        mean: Their mean over the rows.
        typical: That of the row that a weight is of: the mean of their squares over it. Sampling
            varies a sum of weighted rows as one of `mean` times as many rows with this weight each.
        hidden: True if the noise hides the mean.
    """

    mean: float = 1.0
    typical: float = 1.0
    hidden: bool = False

    @classmethod
    def of(cls, mean: float, square: float, noise: float, share: float = 1.0) -> Self:
        """From noisy means over all rows that a record may have.

        Args:
            mean: Of the weights, above 0.
            square: Of their squares, likewise.
            noise: Standard deviation of the noise in the mean.
            share: Of these rows, those that there are.
        """
        own = float(np.clip(mean / share, LEAST_WEIGHT, 1))
        typical = float(np.clip(square / mean, own, 1))
        return cls(own, typical, bool(mean <= max(STANDS_OUT * noise, LEAST_WEIGHT * share)))


def survey_weights(
    weights: Any, weighted: bool, shape: tuple[int, ...], present: Any = True
) -> np.ndarray | None:
    """The weights as an array; None for a plan without weights.

    Args:
        weights: As of `fit_newton`.
        weighted: As of the plan.
        shape: That of the targets.
        present: Which rows there are; those that are absent may have any weight.

    Raises:
        ValueError: Weights that are not allowed, or that the plan is not for.
    """
    if weighted != (weights is not None):
        raise ValueError(
            "weights are for a plan with weighted=True, and such a plan is for weights: give both, or neither."
        )
    if weights is None:
        return None
    survey = floats("weights", weights)
    if (
        survey.shape != shape
        or not (((survey >= 0) & (survey <= 1)) | ~np.broadcast_to(present, shape)).all()
    ):
        raise ValueError(
            f"weights must be numbers in [0, 1], of the shape {shape}: divide them by the largest that one may have, a "
            "public number."
        )
    return survey


def weights_of_records(weights: Any, size: int, model: Callable[..., Any]) -> list[np.ndarray]:
    """The weights of a model's records as one array in a list; an empty list if there are none.

    Args:
        weights: As of `DPNewton.run`.
        size: Number of records.
        model: The model.

    Raises:
        ValueError: Weights that are not allowed, or that may be meant for the model.
    """
    if weights is None:
        return []
    with contextlib.suppress(TypeError):  # not of every callable
        named = inspect.signature(model).parameters
        takes_any = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in named.values())
        if takes_any or "weights" in named:
            raise ValueError(
                "weights= are survey weights, and the model takes an argument of this name, too: name its arguments otherwise."
            )
    survey = survey_weights(weights, True, (size,))
    return [] if survey is None else [survey]
