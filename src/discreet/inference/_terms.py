"""The terms of a fit, stated before it runs: what will leave the data, what is public, and what it costs."""

from __future__ import annotations

import math
from typing import Any

from discreet.inference._langevin import Langevin
from discreet.report import Statement, make_statement


def state_terms(dpsvi: Any, delta: float | None, reproducible: bool, keep_gradients: bool = False) -> Statement:
    """The statement of all the plan's steps of a DPSVI.

    Args:
        dpsvi: the DPSVI.
        delta: as in `make_statement`.
        reproducible: whether the key was made from a seed.
        keep_gradients: whether the trace holds the noisy gradients, too.
    """
    count_share = dpsvi.plan.clipping.count_share
    langevin = isinstance(dpsvi.optim, Langevin)
    released = [
        "the latents' values after every step of the chain" if langevin else "variational parameters after every step"
    ]
    if keep_gradients:
        released.append("the noisy gradient of every step")
    if dpsvi.loss_share > 0:
        # Each share is stated as what it costs on top of the other.
        cost = _more_noise(dpsvi.loss_share, count_share)
        released.append(f"a private loss estimate at every step (costing {cost:.1f} % more noise on the gradient)")
    if count_share > 0:
        cost = _more_noise(count_share, dpsvi.loss_share)
        released.append(
            "at every step the noisy number of gradients within the clipping norm, and so the clipping norms "
            f"(costing {cost:.1f} % more noise on the gradient)"
        )
    programs = "the model and the step sizes" if langevin else "the model, the guide and the optimizer"
    public = [f"{programs}, with all numbers written into them, and their initial values"]
    public += ["shapes and dtypes of the record arrays"]
    public += [f"the argument {name}" for name in dpsvi.static_kwargs]
    statement = make_statement(
        dpsvi.plan,
        delta=delta,
        steps_completed=dpsvi.plan.num_steps,
        reproducible=reproducible,
        public=public,
        released=released,
        contribution_bound=dpsvi.contribution_bound,
        method="DPSGLD" if langevin else "DPSVI" if dpsvi.perturb == "latents" else 'DPSVI, perturb="parameters"',
    )
    if dpsvi._initialised().local is None:
        return statement
    return statement.with_notes(
        "Variational parameters of the records themselves stayed beside the data: they were updated without noise, are no "
        "part of any result, and entered what was released through their own record's clipped contribution alone."
    )


def _more_noise(share: float, other: float) -> float:
    """Per cent more noise on the gradient than without this share."""
    return 100 * (math.sqrt((1 - other) / (1 - other - share)) - 1)
