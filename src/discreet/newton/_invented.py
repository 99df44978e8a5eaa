"""`fit_invented`: the algorithm of `fit_newton` on a table that nobody has to protect, for dry runs and figures.

Every release is the same sum over the same rows, with Gaussian noise of the same size. What is left out is what protects records:
the noise is NumPy's, and no program is proved. So a fit of another epsilon compiles nothing, where a proof takes seconds.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float
from tqdm.auto import tqdm

from discreet.newton._fit import NewtonResult, _checked, _Newton
from discreet.newton._plan import NewtonPlan
from discreet.newton._releases import Public, in_turns, sum_of


class _Invented:
    """The sums over an invented table, in the place of certified releases."""

    def __init__(self, table: Sequence[np.ndarray], rng: np.random.Generator) -> None:
        self._arrays = jax.device_put(in_turns(*table))
        self._rng = rng

    def __call__(self, kind: str, rows: str, noise: float, public: Public) -> np.ndarray:
        """A sum with noise; a matrix is made symmetric, as `_Records` does."""
        found = np.asarray(_sum(kind, rows, self._arrays, jax.tree.map(np.float64, public)), np.float64)
        found = found + noise * self._rng.standard_normal(found.shape)
        return (found + found.T) / 2 if kind == "products" else found


_sum = functools.partial(jax.jit, static_argnums=(0, 1))(sum_of)


def fit_invented(
    x: Float[np.ndarray, "record feature"],
    y: Float[np.ndarray, " record"],
    plan: NewtonPlan,
    *,
    seed: int,
    levels: Bool[np.ndarray, " feature"] | None = None,
) -> NewtonResult:
    """Fit an invented table as `fit_newton` would, without its protection. Never for records of people.

    Args:
        x: As in `fit_newton`.
        y: As in `fit_newton`.
        plan: As in `fit_newton`.
        seed: Seed of the noise.
        levels: As in `fit_newton`.

    Returns:
        The posterior; its statement says that it is not private.

    Raises:
        ValueError: Wrong input.

    >>> import numpy as np
    >>> from discreet.newton import NewtonPlan, fit_invented
    >>> x = np.linspace(-1, 1, 5_000)[:, None]
    >>> plan = NewtonPlan.calibrate(epsilon=1.0, delta=1e-6, family="binary", num_features=1, num_records=5_000)
    >>> fit_invented(x, x[:, 0] > 0.5 * np.sin(99 * np.arange(5_000)), plan, seed=0).statement.reproducible
    True
    """
    table = _checked(x, y, None, levels, plan)
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True), tqdm(disable=True) as bar:
        found: Any = _Newton(_Invented(table, rng), plan, levels)  # pyright: ignore[reportArgumentType]
        return found.run(bar).result(rng, _statement(plan))


@functools.lru_cache(maxsize=64)
def _statement(plan: NewtonPlan) -> Any:
    return plan.state(reproducible=True)
