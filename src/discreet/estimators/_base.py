"""What the estimators share: parameters, validation that shows no value, the fit, and what is known after it."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from discreet.estimators._bounds import Scaling
from discreet.estimators._fit import Draws, Model, Settings, fit_model
from discreet.ledger import Ledger

ERRORS_TELL = (
    "A missing or infinite cell, a text where a number should be, or a target that is not allowed would have stopped the fit "
    "with an error. That an error occurs, or does not, is not covered by ε."
)
EACH_FIT_SPENDS = (
    "This is the price of one fit. Each further fit of overlapping records spends again, also those that cross-validation or a "
    "search for settings makes. Steps of a Pipeline that learn from the records, and scores of the records, are not covered."
)
SPREAD = (
    "The spread of the draws is that of the fitted guide. The noise of the private fit comes on top and is not in it: at small ε "
    "it may be several times as large."
)


# A dataclass writes __init__ with all parameters by name, which is where scikit-learn looks for them.
@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegression(BaseEstimator, abc.ABC):
    """A regression fitted by `DPSVI` behind scikit-learn's face. Subclasses say which one, and document the parameters."""

    bounds: Any = None
    epsilon: float = 1.0
    delta: float | None = None
    num_records: int | None = None
    num_steps: int = 1000
    batch_size: float = 500
    clipping_norm: Any = 1.0
    learning_rate: float = 0.02
    num_draws: int = 1000
    random_state: int | None = None

    # --- what a subclass says -------------------------------------------------------------

    @abc.abstractmethod
    def _target(self, y: np.ndarray) -> np.ndarray:
        """The target as the model takes it; that of a row depends on this row alone."""

    @abc.abstractmethod
    def _model(self) -> Model:
        """A NumPyro model of (x, y): the same object for the same settings, so that compiled programs are found again."""

    @abc.abstractmethod
    def _learn(self, scaling: Scaling, draws: Draws) -> None:
        """Sets what is known after a fit, from draws in the model's units."""

    def _clipping(self) -> Any:
        """The clipping norm, or the rule that finds one."""
        return self.clipping_norm

    def _public(self) -> Sequence[str]:
        """What was public about the target, in words."""
        return ()

    def _violations(self) -> Sequence[str]:
        """What was done that breaks the guarantee, in words."""
        return ()

    # --- fitting --------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, *, ledger: Ledger | None = None) -> Self:
        """Fit privately: spends epsilon at delta.

        Args:
            X: Records, (record, feature): an array, lists or a data frame of finite numbers.
            y: The target of each record, (record,).
            ledger: The table's budget (`discreet.Ledger`), debited just before the first release.

        Returns:
            The estimator itself.

        Raises:
            ValueError, TypeError: Wrong input, before any budget is spent. A message names no value of the data; that there
                is an error tells something of them all the same, which epsilon does not cover.
        """
        if ledger is not None and self._violations():
            raise ValueError(
                "No ledger holds a fit that is not private. Leave out the ledger, or what breaks the guarantee."
            )
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(Settings)}
        settings = Settings(**given | {"clipping_norm": self._clipping()})
        with NoValues():
            numeric = self.__sklearn_tags__().estimator_type == "regressor"
            rows, target = map(np.asarray, validate_data(self, X, y, dtype=np.float64, y_numeric=numeric))
        scaling = Scaling.of(self.bounds, rows.shape[1], getattr(self, "feature_names_in_", None))
        target = self._target(target)
        plan = settings.plan(len(rows))
        table = scaling.scale(rows), target
        result, draws = fit_model(self._model(), plan, settings, self.random_state, *table, ledger=ledger)
        statement = (
            result.statement.with_public(
                f"Bounds of the features, to which values outside were moved: {scaling.in_words()}.", *self._public()
            )
            .with_notes(ERRORS_TELL, EACH_FIT_SPENDS, SPREAD)
            .with_violations(*self._violations())
        )
        if self.num_records is not None:
            statement = statement.with_notes("The number of records is a public figure that was given, not a count.")
        self.result_, self.statement_ = dataclasses.replace(result, statement=statement), statement
        self.epsilon_ = statement.epsilon if statement.is_private else math.inf
        self.delta_, self.scaling_ = statement.delta, scaling
        self._learn(scaling, draws)
        return self

    # --- predicting -----------------------------------------------------------------------

    def _rows(self, X: Any) -> np.ndarray:
        """Rows to predict for, clipped as those of the fit were."""
        check_is_fitted(self, "statement_")
        with NoValues():
            rows = validate_data(self, X, dtype=np.float64, reset=False)
        return self.scaling_.clip(np.asarray(rows))


class NoValues:
    """Replaces an error that quotes a cell by one that does not."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """NumPy quotes a text that is no number, scikit-learn complex ones."""
        del kind, trace
        if isinstance(error, ValueError) and "Complex data not supported" in str(error):
            raise ValueError("Complex data not supported: give real numbers.") from None
        if isinstance(error, ValueError) and "could not convert" in str(error):
            raise ValueError(
                "A cell holds a text that is no number. Encode categories by public lists beforehand: with "
                "discreet.tables.encode and a schema, or with scikit-learn's OneHotEncoder and categories=[...] written out."
            ) from None
