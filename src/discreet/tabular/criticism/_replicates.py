"""Tables that a fit expects: invented records, with outcomes from draws of the posterior, counted as the release counted.

No record is available, so features come from a mixture of products that is fitted to the same noisy
counts (`fit_twins`), with weights with which they go together as these say (`_tilt`). It is
uncertain itself: each of its refits has fresh noise of the law of the counts' (a parametric
bootstrap). Replicates are drawn from these. Refits see noise twice, the release's and their own, so
what the fit misses they miss about twice: the difference of the fit and its refits estimates how
far the fit is from the truth, which `_check` corrects and allows for.

Rows that the fit leaves out (`missing = "drop"`) keep the target that the mixture gave them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from discreet.tabular.criticism._figures import Counted, Tables
from discreet.tabular.criticism._tilt import tilt
from discreet.tabular.marginals import Marginals, fit_twins
from discreet.tabular.tables import Column, Kind

_COMPONENTS = 24
"""Of the mixture: fewer than for twins, since weights put right how features go together."""
_MOST_ROWS = 20_000
"""Rows of a replicate; of larger tables counts are multiplied, so that the replicates scatter more than the table."""


class Expected(NamedTuple):
    """Replicates of a release's tables.

    Attributes:
        tables: As many from each refit of the features' mixture.
        from_fit: Some from the fit itself.
    """

    tables: list[Tables]
    from_fit: list[Tables]


def replicate(
    predict: Callable[[Any, int], tuple[np.ndarray, np.ndarray]],
    released: Marginals,
    counted: Counted,
    *,
    num_refits: int,
    of_each: int,
    rng: np.random.Generator,
) -> Expected:
    """Make replicates.

    Args:
        predict: From a table of invented records and a number to so many outcomes of each record,
            (draw, record), as `encode` makes targets, and the mask of the records that the fit does
            not leave out.
        released: The counts.
        counted: What was counted of the target.
        num_refits: Number of refits of the features' mixture.
        of_each: Number of replicates of each.
        rng: Draws all that is drawn.
    """
    rows = int(np.clip(round(released.num_records), 100, _MOST_ROWS))
    times = released.num_records / rows
    seed = int(rng.integers(2**31))
    place = counted.place(counted.target.name)
    model, fit = fit_twins(released, components=_COMPONENTS, seed=seed)
    _, refits = fit_twins(released, components=_COMPONENTS, num_draws=num_refits, seed=seed)

    def draw(latents: Mapping[str, np.ndarray], number: int, again: bool) -> list[Tables]:
        table = model.draw(latents, 3 * rows, rng)
        levels = model.levels.encode(table)
        weights = tilt(levels, released, counted.target.name, rng if again else None)
        outcomes, used = predict(table, number)
        if counted.target.may_be_missing:
            used = used & (levels[:, place] < counted.size - 1)
        given = None if counted.middles is None else counted.middles[levels[:, place]]
        found = []
        for y in outcomes:
            z = None if given is None else np.where(used, _z_of(counted.target, y), given)
            now = levels.copy()
            now[used, place] = _levels_of(counted, z, y)[used]
            picked = rng.choice(len(levels), size=rows, p=weights)
            found.append(
                counted.replicate(now[picked], None if z is None else z[picked], times, rng)
            )
        return found

    each = [
        {name: value[number] for name, value in refits.latents.items()}
        for number in range(num_refits)
    ]
    first = {name: value[0] for name, value in fit.latents.items()}
    tables = [x for latents in each for x in draw(latents, of_each, True)]
    return Expected(tables, draw(first, num_refits * of_each // 4, False))


def _z_of(target: Column, y: np.ndarray) -> np.ndarray:
    """Outcomes of a target with bounds, mapped from these to [-1, 1] and clipped."""
    low, high = target.limits
    value = y if target.kind is not Kind.COUNT else (2 * y - low - high) / (high - low)
    return np.clip(value, -1, 1)


def _levels_of(counted: Counted, z: np.ndarray | None, y: np.ndarray) -> np.ndarray:
    """The level of each outcome."""
    if z is None:
        return y.astype(np.int64)
    target = counted.target
    low, high = target.limits
    value = (low + high) / 2 + (high - low) / 2 * z
    edges = counted.plan.levels.edges(target)
    value = (
        np.nan_to_num(value, nan=low)
        if target.kind is Kind.REAL
        else np.rint(np.nan_to_num(value, nan=low))
    )
    return np.clip(np.searchsorted(edges, value, side="right") - 1, 0, len(edges) - 2)
