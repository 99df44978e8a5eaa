"""Regressions with scikit-learn's interface: `fit`, `predict`, `predict_proba`, `score`, in pipelines and cross-validation.

Each fit is private Newton, `fit_moments` for a line, or `DPSVI` where steps are asked for, with a plan and a statement of its
own; docs/estimators.md says what cross-validation spends.
`PrivateRegression` has the parameters, the validation and the fit; a subclass says how its target is encoded, which model is
fitted and what is known afterwards. Two rules keep the guarantee: whatever scikit-learn would take from the data (ranges of
features, the target's range or classes) is a public parameter here, so that a record reaches the model by its own row alone;
and no error message quotes a cell (`NoValues`).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np
from jaxtyping import Float
from scipy.special import expit, softmax

from discreet import random
from discreet._validate import integer, positive, require, shown
from discreet.inference import DPSVI, DPSVIResult
from discreet.ledger import Ledger
from discreet.models import (
    Defaults,
    defaults_for,
    linear_regression,
    logistic_regression,
    multinomial_regression,
    negative_binomial_regression,
    poisson_regression,
)
from discreet.moments import MomentsPlan, MomentsResult, fit_moments
from discreet.newton import NewtonPlan, NewtonResult, fit_newton
from discreet.plan import PrivacyPlan

require("sklearn", extra="tables", what="discreet.estimators")

from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # noqa: E402
from sklearn.metrics import d2_tweedie_score  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

__all__ = ["LinearRegression", "LogisticRegression", "NegativeBinomialRegression", "PoissonRegression"]

# --- public bounds of features ------------------------------------------------------------


_HELP = (
    "Give bounds=(low, high), numbers known without the data: one pair for all features, or low and high with one number a "
    "feature each; or a dictionary from feature names to such pairs, for a data frame. Values outside are clipped."
)


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Clips features to public bounds and scales them to about unit size. A row's numbers depend on that row alone.

    If the bounds include 0 it stays 0, so that 0/1 columns and columns of many zeros have short gradients, which clipping
    hardly changes; other bounds are mapped to [-1, 1].

    Attributes:
        low: The least value of each feature, (feature,).
        high: The largest, above `low`.
    """

    low: Float[np.ndarray, " feature"]
    high: Float[np.ndarray, " feature"]

    @classmethod
    def of(cls, bounds: Any, num_features: int, names: Sequence[str] | None) -> Self:
        """Read the parameter `bounds` of an estimator.

        Raises:
            ValueError: None, or such that do not fit the features.
        """
        if bounds is None:
            raise ValueError(
                "bounds are missing: what a feature may be must be known without the data, since bounds taken from them would "
                f"show the most extreme person. {_HELP}"
            )
        if isinstance(bounds, Mapping):
            bounds = _by_name(bounds, names)
        try:
            low, high = (np.broadcast_to(np.asarray(side, np.float64), num_features) for side in bounds)
        except (TypeError, ValueError):
            raise ValueError(f"bounds do not fit the {num_features} features. {_HELP}") from None
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise ValueError(f"bounds must be finite, each low below its high. {_HELP}")
        return cls(low, high)

    @property
    def center(self) -> Float[np.ndarray, " feature"]:
        """The value that becomes 0."""
        return np.where((self.low <= 0) & (self.high >= 0), 0.0, self.low / 2 + self.high / 2)

    @property
    def width(self) -> Float[np.ndarray, " feature"]:
        """The distance from the center that becomes 1."""
        return np.maximum(self.high - self.center, self.center - self.low)

    def clip(self, X: Float[np.ndarray, "row feature"]) -> Float[np.ndarray, "row feature"]:
        """Clip values to the bounds."""
        return np.clip(X, self.low, self.high)

    def scale(self, X: Float[np.ndarray, "row feature"]) -> Float[np.ndarray, "row feature"]:
        """Clip values, then scale them, as 32-bit numbers."""
        return ((self.clip(X) - self.center) / self.width).astype(np.float32)

    def unscale(self, weights: Any, intercept: Any) -> tuple[np.ndarray, np.ndarray]:
        """Convert weights of scaled features, (..., feature), and intercepts, (...), to the features' own units."""
        coef = np.asarray(weights, np.float64) / self.width
        return coef, np.asarray(intercept, np.float64) - coef @ self.center

    def in_words(self) -> str:
        """The bounds as a short text."""
        pairs = [f"[{low:g}, {high:g}]" for low, high in zip(self.low, self.high, strict=True)]
        return pairs[0] if len(set(pairs)) == 1 else ", ".join(pairs)


def _by_name(bounds: Mapping[str, Any], names: Sequence[str] | None) -> tuple[list[Any], list[Any]]:
    if names is None:
        raise ValueError(f"bounds name features, but X has no feature names: pass a data frame. {_HELP}")
    if set(names) != set(bounds):
        odd = sorted(str(name) for name in set(names) ^ set(bounds))
        raise ValueError(f"bounds and X name different features; only one of them has {', '.join(odd)}. {_HELP}")
    try:
        pairs = [(low, high) for low, high in (bounds[name] for name in names)]
    except (TypeError, ValueError):
        raise ValueError(f"bounds do not give each feature a pair of numbers. {_HELP}") from None
    return [low for low, _ in pairs], [high for _, high in pairs]


# --- from public settings and records to a private posterior ------------------------------


Model = Callable[..., Any]
Draws = dict[str, np.ndarray]
_ELEMENTS = 2**22


# Cross-validation fits tables of one shape over and over: plans and prepared fits are kept. They hold no record.
_plan = functools.lru_cache(maxsize=32)(Defaults.plan)
_moments_plan = functools.lru_cache(maxsize=32)(MomentsPlan.calibrate)
_newton_plan = functools.lru_cache(maxsize=32)(NewtonPlan.calibrate)
_multinomial = functools.lru_cache(multinomial_regression)


@functools.lru_cache(maxsize=8)
def _prepare(settings: Defaults, plan: PrivacyPlan, shape: tuple[int, ...], thread: int) -> DPSVI:
    del shape, thread  # a guide is set up for one shape, and a DPSVI works on one fit at a time
    return settings.dpsvi(plan)


def fit_line(
    plan: MomentsPlan, num_draws: int, seed: int | None, x: np.ndarray, y: np.ndarray, **how: Any
) -> tuple[MomentsResult, Draws]:
    """Spend the plan's budget on noisy moments; otherwise as `fit_model`."""
    fit_key, draw_key = jax.random.split(random.key(seed))
    result = fit_moments(fit_key, x, y, plan, **how)
    return result, result.posterior(draw_key, num_draws)


def fit_by_newton(
    plan: NewtonPlan,
    num_draws: int,
    seed: int | None,
    x: np.ndarray,
    y: np.ndarray,
    mask: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **how: Any,
) -> tuple[NewtonResult, Draws]:
    """Spend the plan's budget on a few gradients; otherwise as `fit_model`."""
    fit_key, draw_key = jax.random.split(random.key(seed))
    result = fit_newton(fit_key, x, y, plan, mask=mask, weights=weights, **how)
    return result, result.posterior(draw_key, num_draws)


def fit_model(
    settings: Defaults, plan: PrivacyPlan, num_draws: int, seed: int | None, *records: np.ndarray, **how: Any
) -> tuple[DPSVIResult, Draws]:
    """Spend the plan's budget on records, the model's arguments, and draw `num_draws` from the posterior.

    A `seed` of None is the operating system's entropy; `how` is what `DPSVI.run` takes besides. The
    draws of each latent are along the leading axis.
    """
    fit_key, draw_key = jax.random.split(random.key(seed))
    dpsvi = _prepare(settings, plan, records[0].shape[1:], threading.get_ident())
    result = dpsvi.run(fit_key, *records, progress_bar=False, **how)
    draws = {name: np.asarray(drawn) for name, drawn in result.posterior(draw_key, num_draws).items()}
    return result, draws


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


# --- what the estimators share ------------------------------------------------------------


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

    # --- hooks for subclasses -------------------------------------------------------------

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

    # --- fitting --------------------------------------------------------------------------

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
        with NoValues():
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
            table = tuple(array[chosen] for array in table)
            for array in table:
                # Where a person has fewer rows: -1 is the table's last row, another person's.
                array[chosen < 0] = 0
            table = (*table, chosen >= 0) if self.max_rows > 1 else tuple(array[:, 0] for array in table)
            if weights is not None:
                weights = np.where(chosen >= 0, weights[chosen], 0)
                weights = weights if self.max_rows > 1 else weights[:, 0]
        if weights is not None:
            how |= {"weights": weights}
        num_records = len(table[0]) if self.num_records is None else int(self.num_records)
        result, draws = self._fit(num_records, *table, **how)
        statement = (
            result.statement.with_public(
                f"Bounds of the features, to which values outside were moved: {scaling.in_words()}.",
                *self._public(),
                *public,
            )
            .with_notes(ERRORS_TELL, EACH_FIT_SPENDS, SPREAD_WITH_NOISE if result.noise_in_draws else SPREAD)
            .with_violations(*self._violations())
        )
        if self.num_records is not None:
            statement = statement.with_notes("The number of records is a public figure that was given, not a count.")
        if chosen is not None:
            statement = statement.with_notes(
                "Each group is one person: an identifier that is written in two ways is two persons."
            )
        self.result_, self.statement_ = dataclasses.replace(result, statement=statement), statement
        self.epsilon_ = statement.epsilon if statement.is_private else math.inf
        self.delta_, self.scaling_ = statement.delta, scaling
        self._learn(scaling, draws, getattr(result, "to_predict", draws))
        return self

    def _fit(self, num_records: int, *table: np.ndarray, **how: Any) -> tuple[Any, Draws]:
        """Spend the budget on a table, and draw from the posterior; as `fit_model`."""
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
            rows = how.pop("max_rows", 1)
            size = {
                "num_features": table[0].shape[-1],
                "num_records": num_records,
                "max_rows": rows,
                "weighted": weighted,
            }
            direct = _newton_plan(epsilon=self.epsilon, delta=self.delta, **self._family(), **size)
            how |= {"names": getattr(self, "feature_names_in_", None)}
            return fit_by_newton(direct, int(self.num_draws), self.random_state, *table, **how)
        settings = dataclasses.replace(defaults_for(self._model()), **given)
        plan = _plan(settings, epsilon=self.epsilon, delta=self.delta, num_records=num_records)
        return fit_model(settings, plan, int(self.num_draws), self.random_state, *table, **how)

    def _check_parameters(self) -> None:
        for name in ("epsilon", "batch_size", "learning_rate"):
            if name == "epsilon" or getattr(self, name) is not None:
                positive(name, getattr(self, name))
        for name in ("num_draws", "max_rows") if self.num_records is None else ("num_draws", "max_rows", "num_records"):
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

    # --- predicting -----------------------------------------------------------------------

    def _rows(self, X: Any) -> np.ndarray:
        """Rows to predict for, clipped as in the fit."""
        check_is_fitted(self, "statement_")
        with NoValues():
            rows = validate_data(self, X, dtype=np.float64, reset=False)
        return self.scaling_.clip(np.asarray(rows))


def rows_of_groups(groups: Any, num_rows: int, max_rows: int, *, key: bytes | None = None) -> np.ndarray:
    """At most `max_rows` rows of each person, as `tables.rows_of_persons` numbers and, by the key, chooses them."""
    require("pyarrow", extra="tables", what="groups")
    import pyarrow

    from discreet.tables import DEFAULT_MISSING_VALUES, DataError, rows_of_persons

    try:
        found = pyarrow.array(groups, from_pandas=True)
        persons = found.cast(pyarrow.string())
    except pyarrow.ArrowException:
        raise DataError("groups holds values of different types: make them all texts, or all integers") from None
    if len(found) != num_rows or pyarrow.types.is_floating(found.type):
        raise DataError(
            f"groups holds {len(found)} values of type {found.type}; give a text or an integer for each of the {num_rows} "
            "rows, whose it is. (Numbers with a point are refused, since all NaN would be one person.)"
        )
    # NumPy writes a missing value among texts as "nan".
    if persons.null_count or set(DEFAULT_MISSING_VALUES) & set(persons.unique().to_pylist()):
        raise DataError("groups has missing values: each row must say whose it is")
    return rows_of_persons(pyarrow.chunked_array([persons]), max_rows, key=key)


class NoValues:
    """Replace an error that quotes a cell by one that does not."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """NumPy quotes texts that are no numbers; scikit-learn quotes complex ones."""
        del kind, trace
        if isinstance(error, ValueError) and "Complex data not supported" in str(error):
            raise ValueError("Complex data not supported: give real numbers.") from None
        if isinstance(error, ValueError) and "could not convert" in str(error):
            raise ValueError(
                "A cell holds a text that is no number. Encode categories by public lists beforehand: with "
                "discreet.tables.encode and a schema, or with scikit-learn's OneHotEncoder and categories=[...] written out."
            ) from None


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LinearRegression(RegressorMixin, PrivateRegression):
    """Bayesian linear regression under (epsilon, delta)-differential privacy, as a scikit-learn regressor.

    Guarantee: what a fit learns from the records is `statement_`'s event, at `epsilon_` and `delta_`. Predictions for new
    rows follow from that and cost nothing more. Bounds are public and values outside are clipped, each record's by itself.

    The fit is `moments.fit_moments`: sums of products with noise, and the posterior given these, whose intervals allow for the
    noise. With `max_rows` above 1 it is `DPSVI`, whose intervals do not.

    Args:
        bounds: Public bounds (low, high) of the features: two numbers, or one for each feature on both sides; or a
            dictionary from the names of a data frame's columns to pairs. There is no default: clipping is silent.
        target_bounds: Public bounds (low, high) of the target, likewise without default.
        epsilon: The epsilon of one fit, above 0.
        delta: As in `PrivacyPlan`. None: 1 / (10 x number of records) rounded down to one digit, and 1e-5 at most.
        num_records: A public figure close to the number of records. None: the exact number, which is then public.
        max_rows: With groups in `fit`: how many rows of a person are used at most. A keyed hash chooses where there are more.
        num_steps: Noisy steps, here and in the next three where `max_rows` is above 1; otherwise they have no effect here. In
            the other estimators they ask for `DPSVI`. None, for all four: `discreet.models.defaults_for`.
        batch_size: Records in a batch on average; a smaller table is read whole in each step.
        clipping_norm: Clipping norm C of a record's gradient, in the model's scaled features, or the rule that finds one.
            Under a fixed norm of 1 large residuals count for little, and `sigma` comes out half as large as it is.
        learning_rate: Step size of Adam.
        num_draws: Draws from the fitted posterior, over which predictions are averaged.
        random_state: None: the operating system's entropy. An integer makes the fit reproducible, and **not private**.

    Attributes:
        statement_: The privacy statement: print it. `epsilon_` and `delta_` are its figures.
        result_: The `MomentsResult`, in the other estimators the `NewtonResult`; of a fit in steps the `DPSVIResult`.
        coef_: The weights to predict with, (feature,), in the target's units per unit of the feature. Shrunk towards 0 where
            the noise hides them, so not the mean of `coef_draws_`; with `max_rows` above 1 it is.
        intercept_: The intercept to predict with, likewise.
        coef_draws_: Draws of the weights, (draw, feature), for intervals.
        intercept_draws_: Draws of the intercept, (draw,).
        sigma_draws_: Draws of the standard deviation around the line, (draw,). Their quantiles hold for normal residuals of
            one spread alone; where residuals have long tails all draws are too small, as rows far out count for little.
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
            raise ValueError(f"target_bounds are ({low}, {high}); they must be finite, low below high.")
        return low / 2 + high / 2, high / 2 - low / 2

    def _target(self, y: np.ndarray) -> np.ndarray:
        middle, half = self._line()
        return ((np.clip(y, middle - half, middle + half) - middle) / half).astype(np.float32)

    def _model(self) -> Model:
        return linear_regression

    def _fit(self, num_records: int, *table: np.ndarray, **how: Any) -> tuple[Any, Draws]:
        if self.max_rows > 1:
            return super()._fit(num_records, *table, **how)
        how.pop("max_rows", None)
        size = {"num_features": table[0].shape[1], "num_records": num_records}
        plan = _moments_plan(epsilon=self.epsilon, delta=self.delta, **size)
        return fit_line(plan, int(self.num_draws), self.random_state, *table, **how)

    def _public(self) -> Sequence[str]:
        middle, half = self._line()
        return [f"Bounds of the target, to which values outside were moved: [{middle - half:g}, {middle + half:g}]."]

    def _learn(self, scaling: Scaling, draws: Draws, to_predict: Draws) -> None:
        super()._learn(scaling, draws, to_predict)
        middle, half = self._line()
        self.coef_draws_, self.intercept_draws_ = half * self.coef_draws_, middle + half * self.intercept_draws_
        self.sigma_draws_ = half * np.asarray(draws["sigma"], np.float64)
        self.coef_, self.intercept_ = half * self.coef_, middle + half * float(self.intercept_)

    def predict(self, X: Any) -> Float[np.ndarray, " row"]:
        """Predict each row by `coef_` and `intercept_`; a row's prediction depends on that row alone.

        Args:
            X: Rows to predict for, (row, feature). Values outside the bounds are clipped.

        Raises:
            ValueError: Other features than in the fit, or cells that are no finite numbers.
        """
        return self._rows(X) @ self.coef_ + self.intercept_


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
        with NoValues():
            given = np.asarray(weights, np.float64)
        if given.ndim != 1 or not (given >= 0).all():
            raise ValueError("weights must be numbers of at least 0, one for each row.")
        told = f"Largest weight of a row, as which larger ones count: {most:g}."
        return self._fit_rows(X, y, groups, np.minimum(given, most) / most, ledger, told)


# The models keep the logarithm of a mean below this.
_LARGEST_LOG = 20.0
_LARGEST_COUNT = 2.0**24  # beyond it, 32-bit floats skip integers


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PoissonRegression(RegressorMixin, WeightedRegression):
    """Bayesian Poisson regression under (epsilon, delta)-differential privacy, as a scikit-learn regressor.

    A count's mean is exp(intercept + x · coef). The fit is `newton.fit_newton`. Guarantee and other parameters are those of
    `LinearRegression`, but a count needs no bound: cutting its residual bounds its influence. Counts are integers from 0; one
    above 2^24 is taken as 2^24.

    Args:
        max_weight: The largest weight of a row, a public number; the noise grows as this over the mean weight.

    Attributes:
        coef_: The weights to predict with, (feature,), in nats per unit of the feature; shrunk where the noise hides them.
        intercept_: The intercept to predict with, in nats.
        coef_draws_: Draws of the weights, (draw, feature), for intervals.
        intercept_draws_: Draws of the intercept, (draw,).
        statement_: As in `LinearRegression`, as are `epsilon_`, `delta_`, `result_`, `scaling_` and `n_features_in_`.
    """

    def _target(self, y: np.ndarray) -> np.ndarray:
        if (y < 0).any():
            raise ValueError("The target holds a number below 0, which is no count. Use LinearRegression instead.")
        # A count distribution gives other numbers no probability, so that their records would contribute nothing.
        if (y != np.rint(y)).any():
            raise ValueError(
                "The target holds a number that is not whole, which is no count. Round by a public rule, or use LinearRegression."
            )
        return np.minimum(y, _LARGEST_COUNT).astype(np.float32)

    def _model(self) -> Model:
        return poisson_regression

    def _family(self) -> dict[str, Any]:
        return {"family": "counts"}

    def _learn(self, scaling: Scaling, draws: Draws, to_predict: Draws) -> None:
        super()._learn(scaling, draws, to_predict)
        self.intercept_ = float(self.intercept_)

    def predict(self, X: Any) -> Float[np.ndarray, " row"]:
        """The posterior mean of the count of each row, with arguments and errors as in `LinearRegression.predict`."""
        rows = self._rows(X)

        def mean(log_mean: np.ndarray) -> np.ndarray:
            return np.exp(np.minimum(log_mean, _LARGEST_LOG))

        coef, intercept = self._predictive
        return mean_over_draws(mean, rows, coef[:, None], intercept[:, None])[:, 0]

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
    """As `PoissonRegression`, for counts with more variance: a mean m has the variance m + m² / concentration.

    A few people with large counts have shorter gradients, so clipping changes less.

    Attributes:
        concentration_draws_: Draws of the concentration, (draw,): without `num_steps` one estimate, so often. The others are
            those of `PoissonRegression`.
    """

    def _model(self) -> Model:
        return negative_binomial_regression

    def _learn(self, scaling: Scaling, draws: Draws, to_predict: Draws) -> None:
        super()._learn(scaling, draws, to_predict)
        one = np.full(len(self.coef_draws_), getattr(self.result_, "dispersion", math.nan))
        self.concentration_draws_ = np.asarray(draws.get("concentration", one), np.float64)


FROM_DATA = "non_private_from_data"


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LogisticRegression(ClassifierMixin, WeightedRegression):
    """Bayesian logistic regression under (epsilon, delta)-differential privacy, as a scikit-learn classifier.

    The fit is `newton.fit_newton`, with more than two classes of a multinomial regression. Guarantee and other
    parameters are those of `LinearRegression`; the classes are public, instead of the target's bounds, since a class that only
    one person has would reveal that person.

    Args:
        classes: The public labels that y may hold, two or more. A label that does not occur in the data is fine.
            "non_private_from_data" takes them from y; the statement then says that no ε holds.
        max_weight: As in `PoissonRegression`.

    Attributes:
        classes_: The labels, sorted.
        coef_: The weights to predict with, in log-odds per unit of the feature: (1, feature) for two classes, for the second
            class; else (class, feature), summing to zero over the classes.
        intercept_: The intercepts to predict with, (1,) or (class,).
        coef_draws_: Draws of the weights, (draw, 1 or class, feature), for intervals.
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
        return [] if self._from_data() else [f"Classes of the target: {', '.join(map(str, self.classes_))}."]

    def _violations(self) -> Sequence[str]:
        if not self._from_data():
            return []
        return ["The classes were taken from the data. One that a single person has reveals that person; no ε holds."]

    def _learn(self, scaling: Scaling, draws: Draws, to_predict: Draws) -> None:
        super()._learn(scaling, *map(self._by_class, (draws, to_predict)))

    def _by_class(self, draws: Draws) -> Draws:
        """With an axis for the classes before that of the features; the multinomial model has it behind."""
        weights, intercept = draws["weights"], draws["intercept"]
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
            link = functools.partial(softmax, axis=-1)
            return mean_over_draws(link, rows, *self._predictive)
        second = mean_over_draws(expit, rows, *self._predictive)
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
