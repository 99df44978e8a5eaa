"""`fit_invented` and `fit_invented_model`: `fit_newton` and `DPNewton` on tables that nobody has to protect, for dry runs.

Every release is the same sum over the same rows, with Gaussian noise of the same size. What is left
out is what protects records: the noise is NumPy's, and no program is proved. So a fit of another
epsilon compiles nothing, where a proof takes seconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float
from tqdm.auto import tqdm

from discreet.methods.inference import Latents, Records, objective_of_points, take_apart
from discreet.methods.newton import _model
from discreet.methods.newton._blocks import Blocks
from discreet.methods.newton._far import pulls_from_far, scales_of_squares
from discreet.methods.newton._fit import NewtonResult, _checked, _known, _Newton, names_of
from discreet.methods.newton._model_plan import ModelPlan
from discreet.methods.newton._own import DPNewton, DPNewtonResult, _Fit, refuse_many
from discreet.methods.newton._plan import CLASSES, NewtonPlan
from discreet.methods.newton._releases import Public, sum_of
from discreet.methods.newton._sums import Parts
from discreet.privacy import random


class _Invented:
    """The sums over an invented table, in the place of certified releases."""

    def __init__(
        self, table: Sequence[np.ndarray], plan: NewtonPlan, rng: np.random.Generator
    ) -> None:
        self._arrays = self._pilot = jax.device_put(Parts(table).read(0))
        if plan.pilot < 1:
            drawn = rng.random(len(table[0])) < plan.pilot
            self._pilot = jax.device_put(Parts([array[drawn] for array in table]).read(0))
        self._plan = plan
        self._rng = rng

    def __call__(
        self, kind: str, rows: str, noise: float, public: Public, *, pilot: bool
    ) -> np.ndarray:
        """A sum with noise; a matrix is made symmetric, as `_Releases` does."""
        if self._plan.family == CLASSES:
            public = public._replace(theta=public.theta.reshape(self._plan.outputs, -1).T)
        arrays = self._pilot if pilot else self._arrays
        found = np.asarray(_sum(kind, rows, arrays, jax.tree.map(np.float64, public)), np.float64)
        found = found + noise * self._rng.standard_normal(found.shape)
        return (found + found.T) / 2 if kind == "products" else found


_sum = functools.partial(jax.jit, static_argnums=(0, 1))(sum_of)


def fit_invented(
    x: Float[np.ndarray, "record *row feature"],
    y: Float[np.ndarray, "record *row"],
    plan: NewtonPlan,
    *,
    seed: int,
    mask: Bool[np.ndarray, "record row"] | None = None,
    weights: Float[np.ndarray, "record *row"] | None = None,
    levels: Bool[np.ndarray, " feature"] | None = None,
) -> NewtonResult:
    """Fit an invented table as `fit_newton` would, without its protection. Never for records of people.

    Args:
        x: As in `fit_newton`.
        y: As in `fit_newton`.
        plan: As in `fit_newton`.
        seed: Seed of the noise.
        mask: As in `fit_newton`.
        weights: As in `fit_newton`.
        levels: As in `fit_newton`.

    Returns:
        The posterior; its statement says that it is not private.

    Raises:
        ValueError: Wrong input.

    >>> import numpy as np
    >>> from discreet.methods.newton import NewtonPlan, fit_invented
    >>> x = np.linspace(-1, 1, 5_000)[:, None]
    >>> plan = NewtonPlan.calibrate(epsilon=1.0, delta=1e-6, family="binary", num_features=1, num_records=5_000)
    >>> fit_invented(x, x[:, 0] > 0.5 * np.sin(99 * np.arange(5_000)), plan, seed=0).statement.reproducible
    True
    """
    table = _checked(x, y, mask, weights, levels, plan)
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True), tqdm(disable=True) as bar:
        releases: Any = _Invented(table, plan, rng)
        found = _Newton(releases, plan, levels, _known(None, plan))
        return found.run(bar).result(rng, _statement(plan), names_of(None, plan))


@functools.lru_cache(maxsize=64)
def _statement(plan: NewtonPlan) -> Any:
    return plan.state(reproducible=True)


class _InventedModel:
    """The same of a model: the sums of `_own._Releases`, in the order of the plan."""

    def __init__(
        self, latents: Latents, records: Records, plan: ModelPlan, rng: np.random.Generator
    ) -> None:
        arrays = Parts([np.asarray(leaf) for leaf in records.leaves]).read(0)
        self._arrays = jax.device_put(arrays)
        self._latents = latents
        self._planned = iter(plan.releases)
        self._rng = rng

    def __call__(self, kind: str, public: _model.Public) -> tuple[np.ndarray, float]:
        """A sum with noise, and the noise's standard deviation."""
        noise = next(self._planned).noise
        *leaves, mask = self._arrays
        which = np.int32(_model.KINDS.index(kind))
        public = jax.tree.map(np.float64, public)
        total = _sum_of_model(_model.KINDS, which, self._latents, leaves, mask, public)
        found = np.asarray(total, np.float64)[: _model.size_of([kind], self._latents)]
        found = found + noise * self._rng.standard_normal(found.shape)
        if kind in _model.MATRICES:
            found = found.reshape(self._latents.num_touched, -1)
        return found, noise


_sum_of_model = functools.partial(jax.jit, static_argnums=(0, 2))(_model.summed)


def fit_invented_model(
    model: Callable[..., Any],
    arguments: Sequence[np.ndarray],
    plan: ModelPlan,
    *,
    seed: int,
    levels: Sequence[str] = (),
    flat: Sequence[Mapping[str, Any]] = (),
) -> DPNewtonResult:
    """Fit an invented table as `DPNewton` would, without its protection. Never for records of people.

    Args:
        model: As for `DPNewton`.
        arguments: The model's arguments, arrays with records along their leading axis.
        plan: The plan.
        seed: Seed of the noise.
        levels: As for `DPNewton`.
        flat: As for `DPNewton`.

    Returns:
        The posterior; its statement says that it is not private.

    Raises:
        NoPointError, ValueError: As for `DPNewton.run`.
    """
    records = take_apart(arguments, {}, programs=(model,))
    latents, start = DPNewton(model, plan=plan)._latents(random.key(seed), records)
    statement = plan.state(
        reproducible=True,
        num_touched=latents.num_touched,
        num_latents=latents.size,
        fitted="A model",
    )
    words = np.array([seed], np.uint32)
    with jax.enable_x64(True), tqdm(disable=True) as bar:
        releases: Any = _InventedModel(latents, records, plan, np.random.default_rng(seed))
        far = pulls_from_far(latents, start)
        blocks = Blocks.of(latents, levels, flat, len(scales_of_squares(far)))
        fit = _Fit(releases, latents, plan, start, far, blocks)
        return fit.run(bar).result(words, statement)


def names_of_latents(
    model: Callable[..., Any], arguments: Sequence[np.ndarray], *, num_records: int
) -> tuple[str, ...]:
    """The names of a model's global latents, if `DPNewton` takes it.

    Args:
        model: As for `DPNewton`.
        arguments: Some rows of the model's arguments, of which only shapes are used.
        num_records: Public number of records.

    Raises:
        NoPointError: `DPNewton` refuses the model.
        ValueError: The model cannot be split into records.
    """
    records = take_apart(arguments, {}, programs=(model,))
    made_of = {"model": model, "num_records": num_records, "placeholder": None, "static": {}}
    objective, psi = objective_of_points(records, jax.random.key(0), **made_of)
    refuse_many(Latents.of(objective, psi))
    return tuple(objective.structure.global_latents)
