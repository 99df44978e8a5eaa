"""Linear regression."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import RegressorMixin

from discreet.clipping import AdaptiveClipping
from discreet.estimators._base import PrivateRegression
from discreet.estimators._bounds import Scaling
from discreet.estimators._fit import Draws, Model
from discreet.models import linear_regression


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LinearRegression(RegressorMixin, PrivateRegression):
    """Bayesian linear regression under (epsilon, delta)-differential privacy, as a scikit-learn regressor.

    Guarantee: what a fit learns from the records is `statement_`'s event, at `epsilon_` and `delta_`. Predictions for new
    rows follow from that and cost nothing more. Bounds are public and values outside are clipped, each record's by itself.

    Args:
        bounds: Public bounds (low, high) of the features: two numbers, or one for each feature on both sides; or a
            dictionary from the names of a data frame's columns to pairs. There is no default: clipping is silent.
        target_bounds: Public bounds (low, high) of the target, likewise without default.
        epsilon: The price of one fit, above 0.
        delta: As in `PrivacyPlan`. None: 1 / (10 x number of records) rounded down to one digit, and 1e-5 at most.
        num_records: A public figure near the number of records. None: the exact number, which is then public.
        num_steps: Noisy steps.
        batch_size: Records in a batch on average; a smaller table is read whole in each step.
        clipping_norm: Clipping norm C of a record's gradient, in the model's scaled features; or `AdaptiveClipping()`. None: one
            that adapts. Under a fixed norm of 1 large residuals count for little, and `sigma` comes out half as large as it is.
        learning_rate: Step size of Adam.
        num_draws: Draws from the fitted posterior, over which predictions are averaged.
        random_state: None: the operating system's entropy. An integer makes the fit reproducible, and **not private**.

    Attributes:
        statement_: What the fit spent, as a `Statement`: print it. `epsilon_` and `delta_` are its figures.
        result_: The `DPSVIResult`.
        coef_: Mean of the weights' draws, (feature,), in the target's units per unit of the feature.
        intercept_: Mean of the intercept's draws.
        coef_draws_: Draws of the weights, (draw, feature).
        intercept_draws_: Draws of the intercept, (draw,).
        sigma_draws_: Draws of the standard deviation around the line, (draw,).
        scaling_: The bounds, and how features were brought to unit size.
        n_features_in_: Number of features.
        feature_names_in_: Their names, if X was a data frame.
    """

    target_bounds: Any = None
    clipping_norm: Any = None

    def _clipping(self) -> Any:
        return AdaptiveClipping(quantile=0.95, initial=0.1) if self.clipping_norm is None else self.clipping_norm

    def _line(self) -> tuple[float, float]:
        """Middle and half width of the target's bounds.

        Raises:
            ValueError: There are none, or none that can be used.
        """
        if self.target_bounds is None:
            raise ValueError(
                "target_bounds are missing: give target_bounds=(low, high), what the target may be as known without the data. "
                "Values outside are clipped."
            )
        try:
            low, high = (float(side) for side in self.target_bounds)
        except (TypeError, ValueError):
            raise ValueError("target_bounds must be a pair of numbers, (low, high).") from None
        if not -np.inf < low < high < np.inf:
            raise ValueError(f"target_bounds are ({low}, {high}); they must be finite, low below high.")
        return low / 2 + high / 2, high / 2 - low / 2

    def _target(self, y: np.ndarray) -> np.ndarray:
        middle, half = self._line()
        return ((np.clip(y, middle - half, middle + half) - middle) / half).astype(np.float32)

    def _model(self) -> Model:
        return linear_regression

    def _public(self) -> Sequence[str]:
        middle, half = self._line()
        return [f"Bounds of the target, to which values outside were moved: [{middle - half:g}, {middle + half:g}]."]

    def _learn(self, scaling: Scaling, draws: Draws) -> None:
        middle, half = self._line()
        coef, intercept = scaling.unscale(draws["weights"], draws["intercept"])
        self.coef_draws_, self.intercept_draws_ = half * coef, middle + half * intercept
        self.sigma_draws_ = half * np.asarray(draws["sigma"], np.float64)
        self.coef_, self.intercept_ = self.coef_draws_.mean(axis=0), float(self.intercept_draws_.mean())

    def predict(self, X: Any) -> Float[np.ndarray, " row"]:
        """The posterior mean of the target of each row; a row's prediction depends on that row alone.

        Args:
            X: Rows to predict for, (row, feature). Values outside the bounds are clipped.

        Raises:
            ValueError: Other features than in the fit, or cells that are no finite numbers.
        """
        return self._rows(X) @ self.coef_ + self.intercept_
