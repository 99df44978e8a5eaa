"""What a private fit gives back: releases and what follows from them; no key, nothing raw."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from discreet import random
from discreet.inference._objective import Objective
from discreet.inference._trace import Trace
from discreet.plan import PrivacyPlan
from discreet.report import Statement

Draw = Callable[[PRNGKeyArray, Any, int], dict[str, Array]]


@dataclasses.dataclass(frozen=True)
class DPSVIResult:
    """The outcome of `DPSVI.run`. Everything in it is covered by `statement`; it holds no key.

    Attributes:
        params: values of the `param` sites, averaged over the tail of the trace without drift
            (`trace.average`); ready for NumPyro's `Predictive` and `guide.sample_posterior`.
        last_params: the same of the last iterate.
        losses: one private estimate of the negative ELBO of all records a step, in nats. They
            scatter by the noise of the release; a running mean shows the trend. NaN where the
            fit gave no share of its budget to the loss.
        clipping_norms: the clipping norm C of each step done. With `AdaptiveClipping` its path, a release.
        trace: the iterates.
        statement: what was spent and what it protects.
        plan: the plan of the fit.
        steps_completed: fewer than `plan.num_steps` after Ctrl-C; the price is the plan's all the same.
    """

    params: dict[str, Any]
    last_params: dict[str, Any]
    losses: Float[np.ndarray, "step"]
    clipping_norms: Float[np.ndarray, "step"]
    trace: Trace
    statement: Statement
    plan: PrivacyPlan
    steps_completed: int
    _draw: Draw | None = dataclasses.field(repr=False, compare=False)

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, Array]:
        """Draws of the global latents from the fitted guide; post-processing, free of budget.

        Args:
            key: any JAX key.
            num_samples: number of draws.

        Returns:
            For each global latent an array with the draws along the leading axis, as
            NumPyro's `Predictive(model, posterior_samples)` takes them; add an axis for the
            chain in front for ArviZ.

        Raises:
            ValueError: the result came from a pickle, which holds no guide, or num_samples < 1.
        """
        if self._draw is None:
            raise ValueError(
                "This result was unpickled, and a pickle does not hold the guide. Draw with "
                "dpsvi.posterior(key, result.params, num_samples) of a DPSVI that was initialised."
            )
        return self._draw(key, self.params, num_samples)

    def __repr__(self) -> str:
        """What it is, not its arrays."""
        spent = self.statement
        return (
            f"DPSVIResult({len(self.params)} parameters, {self.steps_completed} of {self.plan.num_steps} steps, "
            f"epsilon={spent.epsilon:.4g} at delta={spent.delta:.3g})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Without the guide, which may be a local function."""
        return {**self.__dict__, "_draw": None}


def draw_posterior(
    objective: Objective, key: PRNGKeyArray, params: Mapping[str, Any], num_samples: int
) -> dict[str, Array]:
    """Draws of the global latents from the guide at `params`.

    Raises:
        ValueError: num_samples < 1.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples is {num_samples}; draw at least one.")
    secret = random.subkey(random.check_key(key, "key"), random.Purpose.POSTERIOR)
    return objective.draw_posterior(dict(params), secret, num_samples)
