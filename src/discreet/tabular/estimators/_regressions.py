"""The estimators: for each, how its target is encoded, which model is fitted and what is known afterwards."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

from discreet._validate import shown
from discreet.methods.choose import LINE
from discreet.methods.predict import likelihood_of
from discreet.tabular.estimators._private import (
    DrawsByName,
    Model,
    PrivateRegression,
    mean_over_draws,
)
from discreet.tabular.estimators._rows import BoundScaling
from discreet.tabular.models import (
    linear_regression,
    logistic_regression,
    multinomial_regression,
    negative_binomial_regression,
    poisson_regression,
)

_multinomial = functools.lru_cache(multinomial_regression)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LinearRegression(RegressorMixin, PrivateRegression):
    """Bayesian linear regression under (epsilon, delta)-differential privacy, as a scikit-learn regressor.

    Guarantee: what a fit learns from the records is `statement_`'s event, at `epsilon_` and
    `delta_`. Predictions for new rows follow from that and cost nothing more. Bounds are public and
    values outside are clipped, each record's by itself.

    The fit is `moments.fit_moments`: sums of products with noise, and the posterior given these,
    whose intervals allow for the noise. With `max_rows` above 1, or settings of steps, it is
    `DPSVI`, whose intervals do not.

    Args:
        bounds: Public bounds (low, high) of the features: two numbers, or one for each feature on
            both sides; or a dictionary from the names of a data frame's columns to pairs. There is
            no default: clipping is silent.
        target_bounds: Public bounds (low, high) of the target, likewise without default.
        epsilon: The epsilon of one fit, above 0.
        delta: As in `PrivacyPlan`. None: 1 / (10 x number of records) rounded down to one digit,
            at most 1e-5 and a tenth of the ledger's.
        num_records: A public figure close to the number of records. None: the exact number, which
            is then public.
        relation: The neighbouring relation (`discreet.Relation`). None: ADD_OR_REMOVE_ONE.
        max_rows: With groups in `fit`: how many rows of a person are used at most. A keyed hash
            chooses where there are more.
        max_weight: With sample_weight in `fit`: the largest weight of a row, a public number.
            Larger ones count as that; the noise grows as this over the mean weight.
        num_steps: Noisy steps; this and the next three ask for `DPSVI`. None, for all four:
            `discreet.models.defaults_for`.
        batch_size: Records in a batch on average; a smaller table is read whole in each step.
        clipping_norm: Clipping norm C of a record's gradient, in the model's scaled features, or
            the rule that finds one. Under a fixed norm of 1 large residuals count for little, and
            `sigma` comes out half as large as it is.
        learning_rate: Step size of Adam.
        num_draws: DrawsByName from the fitted posterior, over which predictions are averaged.
        random_state: None: the operating system's entropy. An integer makes the fit reproducible,
            and **not private**.

    Attributes:
        statement_: The privacy statement: print it. `epsilon_` and `delta_` are its figures.
        result_: The `MomentsResult`, in the other estimators the `NewtonResult`; of a fit in steps
            the `DPSVIResult`.
        coef_: The weights to predict with, (feature,), in the target's units per unit of the
            feature. Shrunk towards 0 where the noise hides them, so not the mean of `coef_draws_`;
            of a fit in steps it is.
        intercept_: The intercept to predict with, likewise.
        coef_draws_: Draws of the weights, (draw, feature), for intervals.
        intercept_draws_: Draws of the intercept, (draw,).
        sigma_draws_: Draws of the standard deviation around the line, (draw,). Their quantiles hold
            for normal residuals of one spread alone; where residuals have long tails all draws are
            too small, as rows far out count for little.
        scaling_: The bounds, and how features were brought to unit size.
        n_features_in_: Number of features.
        feature_names_in_: Their names, if X was a data frame.
    """

    target_bounds: Any = None

    def _line(self) -> tuple[float, float]:
        """Middle and half width of the target's bounds; ValueError where there are none, or none that can be used."""
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
            raise ValueError(
                f"target_bounds are ({low}, {high}); they must be finite, low below high."
            )
        return low / 2 + high / 2, high / 2 - low / 2

    def _target(self, y: np.ndarray) -> np.ndarray:
        middle, half = self._line()
        return ((np.clip(y, middle - half, middle + half) - middle) / half).astype(np.float32)

    def _model(self) -> Model:
        return linear_regression

    def _family(self) -> dict[str, Any]:
        return {"family": LINE}

    def _public(self) -> Sequence[str]:
        middle, half = self._line()
        return [
            f"Bounds of the target, to which values outside were moved: [{middle - half:g}, {middle + half:g}]."
        ]

    def _learn(self, scaling: BoundScaling, draws: DrawsByName, to_predict: DrawsByName) -> None:
        super()._learn(scaling, draws, to_predict)
        middle, half = self._line()
        self.coef_draws_ = half * self.coef_draws_
        self.intercept_draws_ = middle + half * self.intercept_draws_
        self.sigma_draws_ = half * np.asarray(draws["sigma"], np.float64)
        self.coef_ = half * self.coef_
        self.intercept_ = middle + half * float(self.intercept_)

    def predict(self, X: Any) -> Float[np.ndarray, " row"]:
        """Predict each row by `coef_` and `intercept_`; a row's prediction depends on that row alone.

        Args:
            X: Rows to predict for, (row, feature). Values outside the bounds are clipped.

        Raises:
            ValueError: Other features than in the fit, or cells that are no finite numbers.
        """
        return self._rows(X) @ self.coef_ + self.intercept_


_LARGEST_COUNT = 2.0**24  # beyond it, 32-bit floats skip integers


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PoissonRegression(RegressorMixin, PrivateRegression):
    """Bayesian Poisson regression under (epsilon, delta)-differential privacy, as a scikit-learn regressor.

    A count's mean is exp(intercept + x · coef). The fit is `newton.fit_newton`. Guarantee and other
    parameters are those of `LinearRegression`, but a count needs no bound: cutting its residual
    bounds its influence. Counts are integers from 0; one above 2^24 is taken as 2^24.

    Attributes:
        coef_: The weights to predict with, (feature,), in nats per unit of the feature; shrunk
            where the noise hides them.
        intercept_: The intercept to predict with, in nats.
        coef_draws_: Draws of the weights, (draw, feature), for intervals.
        intercept_draws_: Draws of the intercept, (draw,).
        statement_: As in `LinearRegression`, as are `epsilon_`, `delta_`, `result_`, `scaling_` and
            `n_features_in_`.
    """

    def _target(self, y: np.ndarray) -> np.ndarray:
        if (y < 0).any():
            raise ValueError(
                "The target holds a number below 0, which is no count. Use LinearRegression instead."
            )
        # A count distribution gives other numbers no probability, so that their records would
        # contribute nothing.
        if (y != np.rint(y)).any():
            raise ValueError(
                "The target holds a number that is not whole, which is no count. Round by a public rule, or use LinearRegression."
            )
        return np.minimum(y, _LARGEST_COUNT).astype(np.float32)

    def _model(self) -> Model:
        return poisson_regression

    def _family(self) -> dict[str, Any]:
        return {"family": "counts"}

    def _learn(self, scaling: BoundScaling, draws: DrawsByName, to_predict: DrawsByName) -> None:
        super()._learn(scaling, draws, to_predict)
        self.intercept_ = float(self.intercept_)

    def predict(self, X: Any) -> Float[np.ndarray, " row"]:
        """The posterior mean of the count of each row, with arguments and errors as in `LinearRegression.predict`."""
        rows = self._rows(X)
        coef, intercept = self._predictive
        mean = likelihood_of("poisson").mean
        return mean_over_draws(mean, rows, coef[:, None], intercept[:, None])[:, 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the Poisson deviance that is explained, 1 at best: an exact figure of these rows, **not private**."""
        from sklearn.metrics import d2_tweedie_score  # its module is large

        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))

    def __sklearn_tags__(self) -> Any:
        """Targets are at least 0."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class NegativeBinomialRegression(PoissonRegression):
    """As `PoissonRegression`, for counts with more variance: a mean m has the variance m + m² / concentration.

    A few people with large counts have shorter gradients, so clipping changes less.

    Attributes:
        concentration_draws_: Draws of the concentration, (draw,): without `num_steps` one estimate,
            so often. The others are those of `PoissonRegression`.
    """

    def _model(self) -> Model:
        return negative_binomial_regression

    def _learn(self, scaling: BoundScaling, draws: DrawsByName, to_predict: DrawsByName) -> None:
        super()._learn(scaling, draws, to_predict)
        one = np.full(len(self.coef_draws_), getattr(self.result_, "dispersion", math.nan))
        self.concentration_draws_ = np.asarray(draws.get("concentration", one), np.float64)


FROM_DATA = "non_private_from_data"


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LogisticRegression(ClassifierMixin, PrivateRegression):
    """Bayesian logistic regression under (epsilon, delta)-differential privacy, as a scikit-learn classifier.

    The fit is `newton.fit_newton`, with more than two classes of a multinomial regression.
    Guarantee and other parameters are those of `LinearRegression`; the classes are public, instead
    of the target's bounds, since a class that only one person has would reveal that person.

    Args:
        classes: The public labels that y may hold, two or more. A label that does not occur in the
            data is fine. "non_private_from_data" takes them from y; the statement then says that no
            ε holds.

    Attributes:
        classes_: The labels, sorted.
        coef_: The weights to predict with, in log-odds per unit of the feature: (1, feature) for
            two classes, for the second class; else (class, feature), summing to zero over the
            classes.
        intercept_: The intercepts to predict with, (1,) or (class,).
        coef_draws_: Draws of the weights, (draw, 1 or class, feature), for intervals.
        intercept_draws_: Draws of the intercepts, (draw, 1 or class).
        statement_: As in `LinearRegression`, as are `epsilon_`, `delta_`, `result_`, `scaling_` and
            `n_features_in_`.
    """

    classes: Any = (0, 1)

    def _target(self, y: np.ndarray) -> np.ndarray:
        if self._from_data():
            check_classification_targets(y)
            self.classes_ = np.unique(y)
        else:
            self.classes_ = _sorted_labels(self.classes)
        if len(self.classes_) < 2:
            raise ValueError(
                "The target holds one class only, so there is nothing to classify. Name all classes=(...)."
            )
        places = {label: place for place, label in enumerate(self.classes_.tolist())}
        try:
            return np.array([places[label] for label in y.tolist()], np.float32)
        except (KeyError, TypeError):
            raise ValueError(
                f"Unknown label type: y holds a label that is not among classes={tuple(self.classes_.tolist())}. The classes are "
                "public input and are not taken from the data: name all that there may be, or choose the records by a public "
                "rule. (LinearRegression is for targets that are continuous.)"
            ) from None

    def _from_data(self) -> bool:
        return isinstance(self.classes, str) and self.classes == FROM_DATA

    def _model(self) -> Model:
        return logistic_regression if len(self.classes_) == 2 else _multinomial(len(self.classes_))

    def _family(self) -> dict[str, Any]:
        count = len(self.classes_)
        return {"family": "binary"} if count == 2 else {"family": "classes", "num_classes": count}

    def _public(self) -> Sequence[str]:
        return (
            []
            if self._from_data()
            else [f"Classes of the target: {', '.join(map(str, self.classes_))}."]
        )

    def _violations(self) -> Sequence[str]:
        if not self._from_data():
            return []
        return [
            "The classes were taken from the data. One that a single person has reveals that person; no ε holds."
        ]

    def _learn(self, scaling: BoundScaling, draws: DrawsByName, to_predict: DrawsByName) -> None:
        super()._learn(scaling, *map(self._by_class, (draws, to_predict)))

    def _by_class(self, draws: DrawsByName) -> DrawsByName:
        """With an axis for the classes before that of the features; the multinomial model has it behind."""
        weights = draws["weights"]
        intercept = draws["intercept"]
        if len(self.classes_) == 2:
            return {"weights": weights[:, None], "intercept": intercept[:, None]}
        return {"weights": np.swapaxes(weights, 1, 2), "intercept": intercept}

    def predict_proba(self, X: Any) -> Float[np.ndarray, "row class"]:
        """The probabilities of the classes, averaged over the posterior's draws; a row's depend on that row alone.

        Args:
            X: Rows to predict for, (row, feature). Values outside the bounds are clipped.

        Returns:
            One column for each of `classes_`.

        Raises:
            ValueError: Other features than in the fit, or cells that are no finite numbers.
        """
        rows = self._rows(X)
        if len(self.classes_) > 2:
            return mean_over_draws(likelihood_of("categorical").mean, rows, *self._predictive)
        second = mean_over_draws(likelihood_of("bernoulli").mean, rows, *self._predictive)
        return np.concatenate([1 - second, second], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, with arguments and errors as in `predict_proba`."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]


def _sorted_labels(classes: Any) -> np.ndarray:
    """The public labels in scikit-learn's order; ValueError where they are no list of two or more different labels."""
    labels = None if isinstance(classes, str) or classes is None else np.asarray(classes)
    if (
        labels is None
        or labels.ndim != 1
        or labels.dtype.kind not in "biufU"
        or len(np.unique(labels)) < max(2, len(labels))
    ):
        raise ValueError(
            f"classes is {shown(classes)}; give the public labels that y may hold: two or more different numbers or texts, such "
            'as classes=("no", "yes").'
        )
    return np.unique(labels)
