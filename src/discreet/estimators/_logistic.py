"""Logistic regression, for two classes and for more."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from discreet.estimators._base import PrivateRegression
from discreet.estimators._bounds import Scaling
from discreet.estimators._fit import Draws, Model, mean_over_draws
from discreet.models import logistic_regression, multinomial_regression

FROM_DATA = "non_private_from_data"


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LogisticRegression(ClassifierMixin, PrivateRegression):
    """Bayesian logistic regression under (epsilon, delta)-differential privacy, as a scikit-learn classifier.

    With more than two classes it is multinomial regression. Guarantee and parameters are those of `LinearRegression`; the
    classes are public in the place of the target's bounds, since a class that only one person has would show that person.

    Args:
        bounds: As in `LinearRegression`.
        classes: The public labels that y may hold, two or more. A label that does not occur in the data is fine.
            "non_private_from_data" takes them from y; the statement then says that no ε holds.
        epsilon: As in `LinearRegression`.
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
        classes_: The labels, sorted.
        coef_: Mean of the weights' draws in log-odds per unit of the feature: (1, feature) for two classes, where they speak for
            the second; else (class, feature), summing to zero over the classes.
        intercept_: Mean of the intercepts' draws, (1,) or (class,).
        coef_draws_: Draws of the weights, (draw, 1 or class, feature).
        intercept_draws_: Draws of the intercepts, (draw, 1 or class).
        statement_: As in `LinearRegression`, as are `epsilon_`, `delta_`, `result_`, `scaling_` and `n_features_in_`.
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
                "The target holds one class only, and there is nothing to tell apart. Name all classes=(...)."
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

    def _public(self) -> Sequence[str]:
        return [] if self._from_data() else [f"Classes of the target: {', '.join(map(str, self.classes_))}."]

    def _violations(self) -> Sequence[str]:
        if not self._from_data():
            return []
        return ["The classes were taken from the data. One that a single person has reveals that person; no ε holds."]

    def _learn(self, scaling: Scaling, draws: Draws) -> None:
        weights, intercept = draws["weights"], draws["intercept"]
        # The multinomial model has (draw, feature, class) and (draw, class).
        weights = weights[:, None] if len(self.classes_) == 2 else np.swapaxes(weights, 1, 2)
        intercept = intercept[:, None] if len(self.classes_) == 2 else intercept
        self.coef_draws_, self.intercept_draws_ = scaling.unscale(weights, intercept)
        self.coef_, self.intercept_ = self.coef_draws_.mean(axis=0), self.intercept_draws_.mean(axis=0)

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
            link = functools.partial(softmax, axis=-1)
            return mean_over_draws(link, rows, self.coef_draws_, self.intercept_draws_)
        second = mean_over_draws(expit, rows, self.coef_draws_, self.intercept_draws_)
        return np.concatenate([1 - second, second], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, with arguments and errors as in `predict_proba`."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]


def _sorted_labels(classes: Any) -> np.ndarray:
    """The public labels in scikit-learn's order.

    Raises:
        ValueError: They are no list of two or more different labels.
    """
    labels = None if isinstance(classes, str) or classes is None else np.asarray(classes)
    if (
        labels is None
        or labels.ndim != 1
        or labels.dtype.kind not in "biufU"
        or len(np.unique(labels)) < max(2, len(labels))
    ):
        raise ValueError(
            f"classes is {classes!r}; give the public labels that y may hold: two or more different numbers or texts, such as "
            'classes=("no", "yes").'
        )
    return np.unique(labels)


@functools.lru_cache
def _multinomial(num_classes: int) -> Model:
    return multinomial_regression(num_classes)
