"""From records and a plan to a private posterior, as the demo and the fit both do it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from discreet.data import Records
    from discreet.inference import DPSVIResult
    from discreet.plan import PrivacyPlan


def run(
    model: Callable[..., object],
    plan: "PrivacyPlan",
    records: "Records",
    *,
    learning_rate: float,
    seed: int | None,
    draws: int,
    progress_bar: bool,
) -> tuple["DPSVIResult", dict[str, np.ndarray]]:
    """Fit by DPSVI with a diagonal normal guide, and draw from the fitted guide.

    Args:
        model: A model of (x, y), or of (x) where the records have no target.
        plan: The plan.
        records: The records.
        learning_rate: Step size of Adam.
        seed: None for the operating system's entropy.
        draws: Number of posterior draws.
        progress_bar: Whether to show progress.

    Returns:
        The result, and the draws of each global latent along the leading axis.
    """
    import jax
    import numpyro
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.infer.initialization import init_to_feasible

    from discreet import random
    from discreet.inference import DPSVI

    fit_key, draw_key = jax.random.split(random.key(seed))
    # Started at zero rather than at a random place: with noise, steps are too dear to be spent on finding back.
    guide = AutoNormal(model, init_loc_fn=init_to_feasible)
    dpsvi = DPSVI(model, guide, numpyro.optim.Adam(learning_rate), plan=plan)
    arrays = (records.x,) if records.y is None else (records.x, records.y)
    result = dpsvi.run(fit_key, *arrays, progress_bar=progress_bar)
    samples = {name: np.asarray(drawn) for name, drawn in result.posterior(draw_key, draws).items()}
    return result, samples
