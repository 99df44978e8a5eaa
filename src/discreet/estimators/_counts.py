"""Regressions for counts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score

from discreet.estimators._base import PrivateRegression
from discreet.estimators._bounds import Scaling
from discreet.estimators._fit import Draws, Model, mean_over_draws
from discreet.models import negative_binomial_regression, poisson_regression

# The models hold the logarithm of a mean below this.
_LARGEST_LOG = 20.0
_LARGEST_COUNT = 2.0**24  # beyond, 32-bit numbers leave out whole ones


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PoissonRegression(RegressorMixin, PrivateRegression):
    """Bayesian Poisson regression under (epsilon, delta)-differential privacy, as a scikit-learn regressor.

    A count's mean is exp(intercept + x · coef). Guarantee and parameters are those of `LinearRegression`, but that a count
    needs no bound: its pull is bounded by the clipping norm. Counts are whole and at least 0; one beyond 2^24 is taken as that.

    Args:
        bounds: As in `LinearRegression`.
        epsilon: Likewise.
        delta: Likewise.
        num_records: Likewise.
        num_steps: Likewise.
        batch_size: Likewise.
        clipping_norm: Clipping norm C of a record's gradient, in the model's scaled features, 1 if left out; or
            `AdaptiveClipping()`.
        learning_rate: Likewise.
        num_draws: Likewise.
        random_state: Likewise.

    Attributes:
        coef_: Mean of the weights' draws, (feature,), in nats per unit of the feature.
        intercept_: Mean of the intercept's draws, in nats.
        coef_draws_: Draws of the weights, (draw, feature).
        intercept_draws_: Draws of the intercept, (draw,).
        statement_: As in `LinearRegression`, as are `epsilon_`, `delta_`, `result_`, `scaling_` and `n_features_in_`.
    """

    def _target(self, y: np.ndarray) -> np.ndarray:
        if (y < 0).any():
            raise ValueError(
                "The target holds a number below 0, which is no count. Model it by LinearRegression instead."
            )
        # A count distribution gives other numbers no probability, so that their records would contribute nothing.
        if (y != np.rint(y)).any():
            raise ValueError(
                "The target holds a number that is not whole, which is no count. Round by a public rule, or use LinearRegression."
            )
        return np.minimum(y, _LARGEST_COUNT).astype(np.float32)

    def _model(self) -> Model:
        return poisson_regression

    def _learn(self, scaling: Scaling, draws: Draws) -> None:
        self.coef_draws_, self.intercept_draws_ = scaling.unscale(draws["weights"], draws["intercept"])
        self.coef_, self.intercept_ = self.coef_draws_.mean(axis=0), float(self.intercept_draws_.mean())

    def predict(self, X: Any) -> Float[np.ndarray, " row"]:
        """The posterior mean of the count of each row.

        Args:
            X: Rows to predict for, (row, feature). Values outside the bounds are clipped.

        Raises:
            ValueError: Other features than in the fit, or cells that are no finite numbers.
        """
        rows = self._rows(X)
        return mean_over_draws(_held_exp, rows, self.coef_draws_[:, None], self.intercept_draws_[:, None])[:, 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the Poisson deviance that is explained, 1 at best: an exact figure of these rows, **not private**."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))

    def __sklearn_tags__(self) -> Any:
        """Targets are at least 0."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class NegativeBinomialRegression(PoissonRegression):
    """As `PoissonRegression`, for counts that scatter more: a mean m comes with the variance m + m² / concentration.

    Few people with many visits pull its gradient less, so that clipping takes less.

    Attributes:
        concentration_draws_: Draws of the concentration, (draw,). The others are those of `PoissonRegression`.
    """

    def _model(self) -> Model:
        return negative_binomial_regression

    def _learn(self, scaling: Scaling, draws: Draws) -> None:
        super()._learn(scaling, draws)
        self.concentration_draws_ = np.asarray(draws["concentration"], np.float64)


def _held_exp(log_mean: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(log_mean, _LARGEST_LOG))
