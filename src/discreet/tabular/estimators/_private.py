"""The base of the estimators: their parameters, the validation and the fit."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from discreet._validate import integer, positive, require
from discreet.methods.inference import DPSVI, DPSVIResult
from discreet.methods.newton import NewtonPlan, fit_newton
from discreet.privacy import random
from discreet.privacy.ledger import Ledger
from discreet.privacy.plan import PrivacyPlan
from discreet.tabular.estimators._rows import Scaling, no_values, rows_of_groups
from discreet.tabular.models import Defaults, defaults_for

require("sklearn", extra="tables", what="discreet.estimators")

from sklearn.base import BaseEstimator  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

Model = Callable[..., Any]
Draws = dict[str, np.ndarray]
_ELEMENTS = 2**22


# Cross-validation fits tables of one shape over and over: plans and prepared fits are kept. They hold no record.
_plan = functools.lru_cache(maxsize=32)(Defaults.plan)
_newton_plan = functools.lru_cache(maxsize=32)(NewtonPlan.calibrate)


@functools.lru_cache(maxsize=8)
def _prepare(settings: Defaults, plan: PrivacyPlan, shape: tuple[int, ...], thread: int) -> DPSVI:
    del shape, thread  # a guide is set up for one shape, and a DPSVI works on one fit at a time
    return settings.dpsvi(plan)


def fit_in_steps(
    key: PRNGKeyArray, settings: Defaults, plan: PrivacyPlan, *records: np.ndarray, **how: Any
) -> DPSVIResult:
    """Spend the plan's budget on records, the model's arguments; `how` is what `DPSVI.run` takes besides."""
    dpsvi = _prepare(settings, plan, records[0].shape[1:], threading.get_ident())
    return dpsvi.run(key, *records, progress_bar=False, **how)


def mean_over_draws(
    link: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, coef: np.ndarray, intercept: np.ndarray
) -> np.ndarray:
    """Average link(rows · coef + intercept) over draws, a block of rows at a time.

    `link` maps linear predictors, (row, draw, output), to as many numbers; `rows` are (row, feature), `coef` (draw,
    output, feature) and `intercept` (draw, output). The result, (row, output), is in 64-bit numbers, so that a row's are
    the same whatever rows are beside it.
    """
    draws, outputs, features = coef.shape
    flat = coef.reshape(draws * outputs, features).T
    at_once = max(1, _ELEMENTS // (draws * outputs))
    out = np.empty((len(rows), outputs))
    for start in range(0, len(rows), at_once):
        part = (rows[start : start + at_once] @ flat).reshape(-1, draws, outputs) + intercept
        out[start : start + at_once] = link(part).mean(axis=1)
    return out


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
SPREAD_WITH_NOISE = "The spread of the draws has both the noise of the private fit and that of sampling in it."


# A dataclass writes __init__ with all parameters by name, which is where scikit-learn looks for them.
@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegression(BaseEstimator, abc.ABC):
    """A private regression behind scikit-learn's interface. Subclasses choose the model and document the parameters."""

    bounds: Any = None
    epsilon: float = 1.0
    delta: float | None = None
    num_records: int | None = None
    max_rows: int = 1
    num_steps: int | None = None
    batch_size: float | None = None
    clipping_norm: Any = None
    learning_rate: float | None = None
    num_draws: int = 1000
    random_state: int | None = None

    @abc.abstractmethod
    def _target(self, y: np.ndarray) -> np.ndarray:
        """Encode the target for the model; a row's value depends on this row alone."""

    @abc.abstractmethod
    def _model(self) -> Model:
        """A NumPyro model of (x, y): the same object for the same settings, so that compiled programs are found again."""

    def _family(self) -> dict[str, Any]:
        """What `NewtonPlan` takes for the model; empty if it is not for it."""
        return {}

    def _learn(self, scaling: Scaling, draws: Draws, to_predict: Draws) -> None:
        """Set the fitted attributes from draws in the model's units: of the posterior, and to predict with."""
        self.coef_draws_, self.intercept_draws_ = scaling.unscale(draws["weights"], draws["intercept"])
        self._predictive = scaling.unscale(to_predict["weights"], to_predict["intercept"])
        self.coef_, self.intercept_ = (part.mean(axis=0) for part in self._predictive)

    def _public(self) -> Sequence[str]:
        """Public facts about the target, as sentences."""
        return ()

    def _violations(self) -> Sequence[str]:
        """Violations of the guarantee, as sentences."""
        return ()

    def fit(self, X: Any, y: Any, groups: Any = None, *, ledger: Ledger | None = None) -> Self:
        """Fit privately: spends epsilon at delta.

        Args:
            X: Rows, (row, feature): an array, lists or a data frame of finite numbers.
            y: The target of each row, (row,).
            groups: The person that each row belongs to, (row,): texts or integers. A record is then a person with up to
                `max_rows` rows, which are bounded together, and epsilon is that of a person. None: each row is a record.
            ledger: The table's budget (`discreet.Ledger`), debited just before the first release.

        Returns:
            The estimator itself.

        Raises:
            ValueError, TypeError: Wrong input, before any budget is spent. A message names no value of the data; but that
                an error occurs says something about them, which epsilon does not cover.
        """
        return self._fit_rows(X, y, groups, None, ledger)

    def _fit_rows(
        self, X: Any, y: Any, groups: Any, weights: np.ndarray | None, ledger: Ledger | None, *public: str
    ) -> Self:
        """As `fit`, with weights in [0, 1] and further public facts, as sentences."""
        if ledger is not None and self._violations():
            raise ValueError(
                "A fit that is not private cannot be charged to a ledger. Leave out the ledger, or the option that breaks the "
                "guarantee."
            )
        self._check_parameters()
        with no_values():
            numeric = self.__sklearn_tags__().estimator_type == "regressor"
            rows, target = map(np.asarray, validate_data(self, X, y, dtype=np.float64, y_numeric=numeric))
        chosen = self._persons(groups, len(rows))
        if weights is not None and len(weights) != len(rows):
            raise ValueError(f"weights has {len(weights)} numbers: give one for each of the {len(rows)} rows.")
        scaling = Scaling.of(self.bounds, rows.shape[1], getattr(self, "feature_names_in_", None))
        target = self._target(target)
        table: tuple[np.ndarray, ...] = scaling.scale(rows), target
        how: dict[str, Any] = {"ledger": ledger}
        if chosen is not None:
            how |= {"person": "groups", "max_rows": self.max_rows}
            exists = chosen >= 0
            table = tuple(array[chosen] for array in table)
            for array in table:
                # Where a person has fewer rows: -1 is the table's last row, another person's.
                array[~exists] = 0
            if weights is not None:
                weights = np.where(exists, weights[chosen], 0)
            if self.max_rows > 1:
                table = (*table, exists)
            else:
                table = tuple(array[:, 0] for array in table)
                weights = None if weights is None else weights[:, 0]
        if weights is not None:
            how["weights"] = weights
        num_records = len(table[0]) if self.num_records is None else int(self.num_records)
        # A seed of None is the operating system's entropy.
        fit_key, draw_key = jax.random.split(random.key(self.random_state))
        result = self._fit(fit_key, num_records, *table, **how)
        posterior = result.posterior(draw_key, int(self.num_draws))
        draws = {name: np.asarray(drawn) for name, drawn in posterior.items()}
        notes = [ERRORS_TELL, EACH_FIT_SPENDS, SPREAD_WITH_NOISE if result.noise_in_draws else SPREAD]
        if self.num_records is not None:
            notes.append("The number of records is a public figure that was given, not a count.")
        if chosen is not None:
            notes.append("Each group is one person: an identifier that is written in two ways is two persons.")
        bounds = f"Bounds of the features, to which values outside were moved: {scaling.in_words()}."
        statement = result.statement.with_public(bounds, *self._public(), *public).with_notes(*notes)
        statement = statement.with_violations(*self._violations())
        self.result_ = dataclasses.replace(result, statement=statement)
        self.statement_ = statement
        self.epsilon_ = statement.epsilon if statement.is_private else math.inf
        self.delta_ = statement.delta
        self.scaling_ = scaling
        self._learn(scaling, draws, getattr(result, "to_predict", draws))
        return self

    def _fit(self, key: PRNGKeyArray, num_records: int, *table: np.ndarray, **how: Any) -> Any:
        """Spend the budget on a table."""
        given = {
            "num_steps": self.num_steps,
            "expected_batch": self.batch_size,
            "clipping_norm": self.clipping_norm,
            "learning_rate": self.learning_rate,
        }
        given = {name: value for name, value in given.items() if value is not None}
        weighted = "weights" in how
        if weighted and given:
            raise ValueError(f"weights are for fits without steps: leave out {', '.join(given)}, which ask for steps.")
        if self._family() and not given:
            x, y, *masks = table
            newton_plan = _newton_plan(
                epsilon=self.epsilon,
                delta=self.delta,
                num_features=x.shape[-1],
                num_records=num_records,
                max_rows=how.pop("max_rows", 1),
                weighted=weighted,
                **self._family(),
            )
            names = getattr(self, "feature_names_in_", None)
            return fit_newton(key, x, y, newton_plan, mask=masks[0] if masks else None, names=names, **how)
        settings = dataclasses.replace(defaults_for(self._model()), **given)
        plan = _plan(settings, epsilon=self.epsilon, delta=self.delta, num_records=num_records)
        return fit_in_steps(key, settings, plan, *table, **how)

    def _check_parameters(self) -> None:
        positive("epsilon", self.epsilon)
        for name in ("batch_size", "learning_rate"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        for name in ("num_draws", "max_rows", "num_records"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name))

    def _persons(self, groups: Any, num_rows: int) -> np.ndarray | None:
        """The rows of each person to use; None where each row is a record."""
        if groups is None:
            if self.max_rows > 1:
                raise ValueError(
                    f"max_rows is {self.max_rows}, and fit got no groups: pass groups=ids, the person of each row; without it "
                    "each row is a record, and max_rows is 1."
                )
            return None
        seed = self.random_state
        key = None if seed is None else hashlib.sha256(str(seed).encode()).digest()
        return rows_of_groups(groups, num_rows, self.max_rows, key=key)

    def _rows(self, X: Any) -> np.ndarray:
        """Rows to predict for, clipped as in the fit."""
        check_is_fitted(self, "statement_")
        with no_values():
            rows = validate_data(self, X, dtype=np.float64, reset=False)
        return self.scaling_.clip(np.asarray(rows))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class WeightedRegression(PrivateRegression):
    """One whose rows may have weights."""

    max_weight: float = 1.0

    def fit(self, X: Any, y: Any, groups: Any = None, *, weights: Any = None, ledger: Ledger | None = None) -> Self:
        """Fit privately: spends epsilon at delta.

        Args:
            X: As in `LinearRegression.fit`, as are y, groups and ledger.
            y: As there.
            groups: As there.
            weights: Survey weights, (row,), from 0; those above `max_weight` count as that. The coefficients are then those
                of the population, and their intervals have the weights' variance in them. None: all weights are 1.
            ledger: As there.

        Returns:
            The estimator itself.

        Raises:
            ValueError, TypeError: As there.
        """
        if weights is None:
            return self._fit_rows(X, y, groups, None, ledger)
        most = positive("max_weight", self.max_weight)
        with no_values():
            given = np.asarray(weights, np.float64)
        if given.ndim != 1 or not (given >= 0).all():
            raise ValueError("weights must be numbers of at least 0, one for each row.")
        told = f"Largest weight of a row, as which larger ones count: {most:g}."
        return self._fit_rows(X, y, groups, np.minimum(given, most) / most, ledger, told)
