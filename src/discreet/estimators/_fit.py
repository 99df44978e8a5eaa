"""From public settings and records to a private posterior: one way for all estimators."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import threading
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.initialization import init_to_feasible

from discreet import random
from discreet.accounting import suggest
from discreet.inference import DPSVI, DPSVIResult
from discreet.ledger import Ledger
from discreet.plan import PrivacyPlan
from discreet.sampling import PoissonSampling

Model = Callable[..., Any]
Draws = dict[str, np.ndarray]
_ELEMENTS = 2**22


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Public choices of a fit, checked. The attributes are parameters of the estimators."""

    epsilon: float
    delta: float | None
    num_records: int | None
    num_steps: int
    batch_size: float
    clipping_norm: Any
    learning_rate: float
    num_draws: int

    def __post_init__(self) -> None:
        for name in ("epsilon", "batch_size", "learning_rate"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) < np.inf:
                raise ValueError(f"{name} is {value!r}; give a finite number above 0.")
        for name in ("num_draws", "num_records"):
            value = getattr(self, name)
            if value is None and name == "num_records":
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
                raise ValueError(f"{name} is {value!r}; give a whole number of at least 1.")

    def plan(self, num_rows: int) -> PrivacyPlan:
        """The plan for a table: Poisson batches of `batch_size` records on average, or the whole of a smaller table.

        Raises:
            ValueError: A setting out of range.
        """
        num_records = num_rows if self.num_records is None else int(self.num_records)
        return _calibrate(
            epsilon=self.epsilon,
            delta=suggest(num_records=num_records).delta if self.delta is None else self.delta,
            num_records=num_records,
            num_steps=self.num_steps,
            sampling=PoissonSampling(min(1.0, float(self.batch_size) / num_records)),
            clipping_norm=self.clipping_norm,
        )


# Cross-validation fits tables of one shape over and over: plans and compiled programs are kept. They hold no record.
@functools.lru_cache(maxsize=32)
def _calibrate(**facts: Any) -> PrivacyPlan:
    return PrivacyPlan.calibrate(**facts)


@functools.lru_cache(maxsize=8)
def _prepare(model: Model, plan: PrivacyPlan, learning_rate: float, num_features: int, thread: int) -> DPSVI:
    del num_features, thread  # a guide knows one shape, and a DPSVI works on one fit at a time
    # Started at zero rather than at a random place: with noise, steps are too dear to be spent on finding back.
    guide = AutoNormal(model, init_loc_fn=init_to_feasible)
    return DPSVI(model, guide, numpyro.optim.Adam(learning_rate), plan=plan)


def fit_model(
    model: Model,
    plan: PrivacyPlan,
    settings: Settings,
    seed: int | None,
    x: np.ndarray,
    y: np.ndarray,
    *,
    ledger: Ledger | None = None,
) -> tuple[DPSVIResult, Draws]:
    """Spend the plan's budget on records, and draw from the posterior.

    Returns:
        The result, and draws of each latent along the leading axis.

    Raises:
        ValueError, TypeError: Wrong input, before any budget is spent.
    """
    fit_key, draw_key = jax.random.split(random.key(seed))
    dpsvi = _prepare(model, plan, float(settings.learning_rate), x.shape[1], threading.get_ident())
    result = dpsvi.run(fit_key, x, y, progress_bar=False, ledger=ledger)
    draws = {name: np.asarray(drawn) for name, drawn in result.posterior(draw_key, int(settings.num_draws)).items()}
    if not all(np.isfinite(drawn).all() for drawn in draws.values()):
        warnings.warn(
            "The posterior is not finite: the steps were too large. A smaller learning_rate helps, in a further fit that "
            "spends again.",
            RuntimeWarning,
            stacklevel=3,
        )
    return result, draws


def mean_over_draws(
    link: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, coef: np.ndarray, intercept: np.ndarray
) -> np.ndarray:
    """The mean over draws of link(rows · coef + intercept), for some rows at a time.

    Args:
        link: Maps linear predictors, (row, draw, output), to as many numbers.
        rows: (row, feature).
        coef: (draw, output, feature).
        intercept: (draw, output).

    Returns:
        (row, output), in 64-bit numbers, so that a row's are the same whatever rows are beside it.
    """
    draws, outputs, features = coef.shape
    flat = coef.reshape(draws * outputs, features).T
    at_once = max(1, _ELEMENTS // (draws * outputs))
    out = np.empty((len(rows), outputs))
    for start in range(0, len(rows), at_once):
        part = (rows[start : start + at_once] @ flat).reshape(-1, draws, outputs) + intercept
        out[start : start + at_once] = link(part).mean(axis=1)
    return out
