"""Twins of a table: each from a draw of its own from the posterior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from discreet import random

if TYPE_CHECKING:
    import pyarrow


class Posterior(Protocol):
    """What can be drawn from: `DPSVIResult`, `NoiseAware` and the other results."""

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> Mapping[str, Any]:
        """Draws of the latents, along the leading axis."""
        ...


class Model(Protocol):
    """What can make a table of one value of its latents: `MixtureOfProducts`, or your own."""

    def draw(self, latents: Mapping[str, Any], num_records: int, rng: np.random.Generator) -> pyarrow.Table:
        """A table of `num_records` rows."""
        ...


def synthesize(
    key: PRNGKeyArray,
    result: Posterior | Mapping[str, Any],
    model: Model,
    *,
    num_twins: int = 5,
    num_records: int | None = None,
) -> list[pyarrow.Table]:
    """Draw synthetic twins of the table that was fitted.

    Guarantee: computed from the result, the model's public description and the key alone, so the twins together cost
    nothing beyond `result.statement`, however many there are.

    Each twin comes from a posterior draw of its own. So twins differ by what the posterior does not know, and `combine` can
    tell how much that is; several from one draw could not.

    Args:
        key: Any JAX key.
        result: A fit's result, or `result.noise_aware()`, whose draws know of the privacy noise; or draws of the latents,
            along the leading axis, as many as twins or more.
        model: What was fitted, as `MixtureOfProducts`.
        num_twins: Number of twins, 1 at least. Take 5 for predictions, 20 or more for `combine`.
        num_records: Rows of each; None: the public number of records of the result's plan.

    Returns:
        pyarrow tables with the schema's columns.

    Raises:
        ValueError: A number below 1, no number of records, or too few draws.
    """
    rows = rows_of(result, num_records)
    return [model.draw(latents, rows, rng) for latents, rng in start_twins(key, result, num_twins)]


def start_twins(
    key: PRNGKeyArray, result: Posterior | Mapping[str, Any], num_twins: int
) -> list[tuple[dict[str, np.ndarray], np.random.Generator]]:
    """A posterior draw for each twin, and where its rows come from. Arguments and errors as in `synthesize`."""
    if num_twins < 1:
        raise ValueError(f"num_twins is {num_twins}; draw one at least.")
    posterior_key, rows_key = jax.random.split(random.subkey(random.check_key(key, "key"), random.Purpose.POSTERIOR))
    draws = result if isinstance(result, Mapping) else result.posterior(posterior_key, num_twins)
    draws = {name: np.asarray(values) for name, values in draws.items()}
    if short := [name for name, values in draws.items() if len(values) < num_twins]:
        raise ValueError(
            f"There are fewer draws of {short[0]!r} than the {num_twins} twins asked for, and each twin needs its own: draw "
            "more from the posterior, or ask for fewer twins."
        )
    seeds = np.asarray(jax.random.bits(rows_key, (num_twins, 4)))
    return [
        ({name: values[i] for name, values in draws.items()}, np.random.default_rng(seeds[i])) for i in range(num_twins)
    ]


def rows_of(result: Any, num_records: int | None) -> int:
    """How many rows a twin has.

    Raises:
        ValueError: A number below 1, or none.
    """
    if num_records is None:
        plan = getattr(result, "plan", None)
        if plan is None:
            raise ValueError(
                "How many rows a twin should have is not known, since this result holds no plan: pass num_records."
            )
        return plan.num_records
    if num_records < 1:
        raise ValueError(f"num_records is {num_records}; a twin has one row at least.")
    return num_records
