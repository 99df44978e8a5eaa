"""The base of the estimators: their parameters, the validation and the fit."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from discreet._jax import in_own_settings
from discreet._validate import integer, positive, require, shown
from discreet.methods.choose import STEPS, Chosen, choose, fit_sums, plan_of
from discreet.methods.inference import DPSVI, DPSVIResult
from discreet.privacy import random
from discreet.privacy.accounting import Relation
from discreet.privacy.ledger import Ledger, default_delta
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.released import keeping
from discreet.storage import exclusive, kept_secret
from discreet.tabular.estimators._rows import BoundScaling, no_values, rows_of_groups
from discreet.tabular.models import Defaults, defaults_for

require("sklearn", extra="tables", what="discreet.estimators")

from sklearn.base import BaseEstimator  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

Model = Callable[..., Any]
DrawsByName = dict[str, np.ndarray]
_ELEMENTS = 2**22
_USUAL = {"checkpoint": None, "require_proof": True, "progress_bar": False}
"""Options of `fit` that are not handed on, since the method has them so, too."""


# Cross-validation fits tables of one shape over and over: plans and prepared fits are kept. They
# hold no record.
_plan_in_steps = functools.lru_cache(maxsize=32)(Defaults.plan)
_plan_of = functools.lru_cache(maxsize=32)(plan_of)


@functools.lru_cache(maxsize=8)
def _prepare(settings: Defaults, plan: PrivacyPlan, shape: tuple[int, ...], thread: int) -> DPSVI:
    del shape, thread  # a guide is set up for one shape, and a DPSVI works on one fit at a time
    return settings.dpsvi(plan)


def fit_in_steps(
    key: PRNGKeyArray, settings: Defaults, plan: PrivacyPlan, *records: np.ndarray, **how: Any
) -> DPSVIResult:
    """Spend the plan's budget on records, the model's arguments; `how` is what `DPSVI.run` takes besides."""
    dpsvi = _prepare(settings, plan, records[0].shape[1:], threading.get_ident())
    how.setdefault("progress_bar", False)
    return dpsvi.run(key, *records, **how)


def mean_over_draws(
    link: Callable[[np.ndarray], np.ndarray],
    rows: np.ndarray,
    coef: np.ndarray,
    intercept: np.ndarray,
) -> np.ndarray:
    """Average link(rows · coef + intercept) over draws, a block of rows at a time.

    `link` maps linear predictors, (row, draw, output), to as many numbers; `rows` are (row,
    feature), `coef` (draw, output, feature) and `intercept` (draw, output). The result, (row,
    output), is in 64-bit numbers, so that a row's are the same whatever rows are beside it.
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
SPREAD_WITH_NOISE = (
    "The spread of the draws has both the noise of the private fit and that of sampling in it."
)


# A dataclass writes __init__ with all parameters by name, which is where scikit-learn looks for
# them.
@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegression(BaseEstimator, abc.ABC):
    """A private regression behind scikit-learn's interface. Subclasses choose the model and document the parameters."""

    bounds: Any = None
    epsilon: float = 1.0
    delta: float | None = None
    num_records: int | None = None
    relation: Any = None
    max_rows: int = 1
    max_weight: float = 1.0
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

    @abc.abstractmethod
    def _family(self) -> dict[str, Any]:
        """The family and, if it has several, the number of classes, as `choose.plan_of` takes them."""

    def _learn(self, scaling: BoundScaling, draws: DrawsByName, to_predict: DrawsByName) -> None:
        """Set the fitted attributes from draws in the model's units: of the posterior, and to predict with."""
        self.coef_draws_, self.intercept_draws_ = scaling.unscale(
            draws["weights"], draws["intercept"]
        )
        self._predictive = scaling.unscale(to_predict["weights"], to_predict["intercept"])
        self.coef_, self.intercept_ = (part.mean(axis=0) for part in self._predictive)

    def _public(self) -> Sequence[str]:
        """Public facts about the target, as sentences."""
        return ()

    def _violations(self) -> Sequence[str]:
        """Violations of the guarantee, as sentences."""
        return ()

    def fit(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        *,
        sample_weight: Any = None,
        person: str | None = None,
        ledger: Ledger | None = None,
        checkpoint: Path | str | None = None,
        require_proof: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Fit privately: spends epsilon at delta.

        Args:
            X: Rows, (row, feature): an array, lists or a data frame of finite numbers.
            y: The target of each row, (row,).
            groups: The person that each row belongs to, (row,): texts or integers. A record is then
                a person with up to `max_rows` rows, which are bounded together, and epsilon is that
                of a person. None: each row is a record.
            sample_weight: Survey weights, (row,), from 0; those above `max_weight` count as that.
                The coefficients are then those of the population, and their intervals have the
                weights' variance in them. None: all weights are 1.
            person: What the statement calls the groups; without groups, the column that identifies
                persons, if each row is all that one person has.
            ledger: The table's budget (`discreet.Ledger`), debited just before the first release.
            checkpoint: Folder from which the same call continues, to the same bits, if the process
                dies. Keep it secret.
            require_proof: As in `DPSVI.run`, of a fit in steps; the others always prove.
            progress_bar: Show progress after two seconds.

        Returns:
            The estimator itself.

        Raises:
            ValueError, TypeError: Wrong input, or an option that the method lacks, before any
                budget is spent. A message names no value of the data; but that an error occurs says
                something about them, which epsilon does not cover.
        """
        given = {
            "checkpoint": checkpoint,
            "require_proof": require_proof,
            "progress_bar": progress_bar,
        }
        options = {name: value for name, value in given.items() if value is not _USUAL[name]}
        if person is not None and not isinstance(person, str):
            raise TypeError(
                f"person is {shown(person)}: pass the name of the column that identifies persons, or None."
            )
        with exclusive(checkpoint):
            return self._fit_rows(X, y, groups, sample_weight, person, ledger, options)

    @in_own_settings
    def _fit_rows(
        self,
        X: Any,
        y: Any,
        groups: Any,
        sample_weight: Any,
        person: str | None,
        ledger: Ledger | None,
        options: dict[str, Any],
    ) -> Self:
        if ledger is not None and self._violations():
            raise ValueError(
                "A fit that is not private cannot be charged to a ledger. Leave out the ledger, or the option that breaks the "
                "guarantee."
            )
        self._check_parameters()
        with no_values():
            numeric = self.__sklearn_tags__().estimator_type == "regressor"
            rows, target = map(
                np.asarray, validate_data(self, X, y, dtype=np.float64, y_numeric=numeric)
            )
        scaling = BoundScaling.of(
            self.bounds, rows.shape[1], getattr(self, "feature_names_in_", None)
        )
        target = self._target(target)
        weights = self._weights(sample_weight, len(rows))
        self._choice().refuse([*options, *["sample_weight"] * (weights is not None)])
        checkpoint = options.get("checkpoint")
        kept = None if checkpoint is None or self.random_state is not None else Path(checkpoint)
        chosen = self._persons(groups, len(rows), kept)
        table: tuple[np.ndarray, ...] = scaling.scale(rows), target
        how: dict[str, Any] = {"ledger": ledger, **options}
        if person is not None:
            how["person"] = person
        if chosen is not None:
            how |= {"person": person or "groups", "max_rows": self.max_rows}
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
        # A seed of None is the operating system's entropy. By way of words: JAX compiles a program
        # to take the keys of an array apart.
        seeded = self.random_state is not None
        both = np.asarray(jax.random.key_data(jax.random.split(random.key(self.random_state))))
        fit_key, draw_key = (random.key_from_words(x, reproducible=seeded) for x in both)
        if kept is not None:
            # A fit that continues draws the same ones.
            words = np.frombuffer(kept_secret(kept / "draws.key"), "<u4")
            draw_key = random.key_from_words(words, reproducible=False)
        result = self._fit(fit_key, num_records, *table, **how)
        with keeping(result):
            posterior = result.posterior(draw_key, int(self.num_draws))
            draws = {name: np.asarray(drawn) for name, drawn in posterior.items()}
            notes = [
                ERRORS_TELL,
                EACH_FIT_SPENDS,
                SPREAD_WITH_NOISE if result.noise_in_draws else SPREAD,
            ]
            if self.num_records is not None:
                notes.append(
                    "The number of records is a public figure that was given, not a count."
                )
            if chosen is not None:
                notes.append(
                    "Each group is one person: an identifier that is written in two ways is two persons."
                )
            public = list(self._public())
            if weights is not None:
                public.append(
                    f"Largest weight of a row, as which larger ones count: {self.max_weight:g}."
                )
            bounds = (
                f"Bounds of the features, to which values outside were moved: {scaling.in_words()}."
            )
            statement = result.statement.with_public(bounds, *public).with_notes(*notes)
            statement = statement.with_violations(*self._violations())
            self.result_ = dataclasses.replace(result, statement=statement)
            self.statement_ = statement
            self.epsilon_ = statement.epsilon if statement.is_private else math.inf
            self.delta_ = statement.delta
            self.scaling_ = scaling
            self._learn(scaling, draws, getattr(result, "to_predict", draws))
        return self

    @property
    def _settings(self) -> dict[str, Any]:
        """The settings of steps that are given, by the names of `Defaults`."""
        given = {
            "num_steps": self.num_steps,
            "expected_batch": self.batch_size,
            "clipping_norm": self.clipping_norm,
            "learning_rate": self.learning_rate,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _choice(self) -> Chosen:
        """The method of the fit."""
        family = self._family()["family"]
        return choose(family, max_rows=self.max_rows, settings=list(self._settings))

    def _fit(self, key: PRNGKeyArray, num_records: int, *table: np.ndarray, **how: Any) -> Any:
        """Spend the budget on a table."""
        delta = default_delta(num_records, how.get("ledger")) if self.delta is None else self.delta
        terms = {
            "epsilon": self.epsilon,
            "delta": delta,
            "num_records": num_records,
            "relation": Relation.ADD_OR_REMOVE_ONE if self.relation is None else self.relation,
        }
        if self._choice().method == STEPS:
            settings = dataclasses.replace(defaults_for(self._model()), **self._settings)
            return fit_in_steps(key, settings, _plan_in_steps(settings, **terms), *table, **how)
        x, y, *masks = table
        plan = _plan_of(
            **self._family(),
            num_features=x.shape[-1],
            max_rows=how.pop("max_rows", 1),
            weighted="weights" in how,
            **terms,
        )
        names = getattr(self, "feature_names_in_", None)
        return fit_sums(key, x, y, plan, mask=masks[0] if masks else None, names=names, **how)

    def _check_parameters(self) -> None:
        positive("epsilon", self.epsilon)
        for name in ("batch_size", "learning_rate", "max_weight"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        for name in ("num_draws", "max_rows", "num_records"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name))

    def _weights(self, sample_weight: Any, num_rows: int) -> np.ndarray | None:
        """The survey weights over the largest; None without weights."""
        if sample_weight is None:
            return None
        with no_values():
            given = np.asarray(sample_weight, np.float64)
        if given.shape != (num_rows,) or not (given >= 0).all():
            raise ValueError(
                f"sample_weight has the shape {given.shape}: give a number of at least 0 for each of the {num_rows} rows."
            )
        if not given.any():
            raise ValueError(
                "All weights are zero, so there is nothing to fit: check sample_weight."
            )
        return np.minimum(given, self.max_weight) / self.max_weight

    def _persons(self, groups: Any, num_rows: int, kept: Path | None) -> np.ndarray | None:
        """The rows of each person to use; None where each row is a record. `kept` is the folder of a checkpoint."""
        if groups is None:
            if self.max_rows > 1:
                raise ValueError(
                    f"max_rows is {self.max_rows}, and fit got no groups: pass groups=ids, the person of each row; without it "
                    "each row is a record, and max_rows is 1."
                )
            return None
        seed = self.random_state
        key = None if seed is None else hashlib.sha256(str(seed).encode()).digest()
        if kept is not None:
            key = kept_secret(kept / "persons.key")
        return rows_of_groups(groups, num_rows, self.max_rows, key=key)

    def _rows(self, X: Any) -> np.ndarray:
        """Rows to predict for, clipped as in the fit."""
        check_is_fitted(self, "statement_")
        with no_values():
            rows = validate_data(self, X, dtype=np.float64, reset=False)
        return self.scaling_.clip(np.asarray(rows))
