"""What results with a posterior have in common: intervals, draws for ArviZ, and the table that `print` shows.

A posterior has a statement, and by the name of each latent its mean, its 90 % interval and the
share learned. `OfCoefficients` is the normal posterior of a regression's coefficients, of which all
of these and the draws follow.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy.special import logsumexp, ndtri

from discreet._validate import ENDS, integer
from discreet.methods.newton._saved import words_of
from discreet.methods.predict import Predictions, likelihood_of
from discreet.privacy import random
from discreet.privacy.report import Statement, headline, use_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_SHOWN = 40
_LAST = 8
"""Elements that a printed table shows at most, and how many of these are the last ones."""
_ROWS_AT_ONCE = 1024
NUM_SHOWN = 4_000
"""Draws behind a picture."""

Named = Mapping[str, Float[np.ndarray, "..."]]


class WithIntervals(abc.ABC):
    """A posterior with all noise in it. Subclasses are frozen dataclasses, and results (`Released`)."""

    noise_in_draws: ClassVar[bool] = True
    _called: ClassVar[str] = "estimate"  # what the table calls the means
    statement: Statement

    @property
    @abc.abstractmethod
    def interval(self) -> dict[str, np.ndarray]:
        """The 90 % interval of each latent: low and high, (2, ...)."""

    @abc.abstractmethod
    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, np.ndarray]:
        """Draws of each latent, (draw, ...), at no cost."""

    @property
    @abc.abstractmethod
    def _means(self) -> Named:
        """The posterior mean of each latent."""

    @property
    @abc.abstractmethod
    def _shares(self) -> Named:
        """The share of the prior's variance that is gone, of each."""

    def to_arviz(self, key: PRNGKeyArray, num_samples: int, **names: Any) -> Any:
        """Draws of `posterior` for ArviZ, with the statement in their attributes; as `discreet.inference_data.to_arviz`."""
        from discreet.methods.inference_data import to_arviz

        return to_arviz(self.posterior(key, num_samples), statement=self.statement, **names)

    @property
    @abc.abstractmethod
    def _deviations(self) -> Named:
        """The posterior standard deviation of each."""

    @property
    def _num_shown(self) -> int:
        return NUM_SHOWN

    def summary(self) -> DataFrame:
        """The table of `print` with all rows, for pandas: mean, standard deviation, 90 % interval, share learned. At no cost.

        Columns have ArviZ's names. `r_hat`, `ess` and `mcse` describe chains, and here are none.

        Raises:
            ImportError: Pandas is not installed.
        """
        from pandas import DataFrame

        names, *numbers = zip(*self._rows(), strict=True)
        columns = ("mean", "eti_5%", "eti_95%", "learned")
        found = DataFrame(dict(zip(columns, numbers, strict=True)), index=list(names))
        deviations = self._deviations
        found.insert(1, "sd", np.concatenate([np.ravel(deviations[name]) for name in self._means]))
        return found

    def plot(self, path: str | Path | None = None, **options: Any) -> Figure:
        """Draw the posterior, as `discreet.plots.plot_posterior` does. All noise is in the draws.

        Args:
            path: File for the picture; by default it is not saved.
            options: As there.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        from discreet.methods.plots import plot_posterior

        draws = self.posterior(random.key(0), self._num_shown)
        return plot_posterior(draws, statement=self.statement, path=path, **options)

    def __repr__(self) -> str:
        """Short, without arrays."""
        return f"{type(self).__name__}({', '.join(self._means)}, {self.statement.use}, {self.statement.brief})"

    def __str__(self) -> str:
        """A table of the latents, the verdict, and the price."""
        rows = list(self._table())
        width = max(len(row[0]) for row in rows)
        lines = [f"{'':{width}}  {self._called:>10}  {'90 % interval':>24}  {'learned':>8}"]
        lines += [
            f"{name:{width}}  {mean:>10}  {interval:>24}  {learned:>8}"
            for name, mean, interval, learned in rows
        ]
        return "\n".join([*lines, use_words(self.statement), headline(self.statement)])

    def _rows(self) -> Iterator[tuple[str, float, float, float, float]]:
        """Name, mean, interval and share learned of each element."""
        interval = self.interval
        for name, means in self._means.items():
            learned = np.asarray(self._shares[name])
            for place in np.ndindex(np.shape(means)):
                low, high = interval[name][(slice(None), *place)]
                # A simplex has an element more than coordinates.
                share = learned[place] if learned.shape == means.shape else learned.mean()
                mean = float(means[place])
                yield label(name, place), mean, float(low), float(high), max(float(share), 0.0)

    def _table(self) -> Iterator[tuple[str, str, str, str]]:
        """The same in words, of many elements the first and the last ones."""
        rows = list(self._rows())
        left_out = range(_SHOWN - _LAST, len(rows) - _LAST)
        for number, (name, mean, low, high, share) in enumerate(rows):
            if number in left_out:
                if number == left_out.start:
                    yield f"... {len(left_out)} others: summary() has all", "", "", ""
                continue
            # As many decimals as the interval has two figures.
            decimals = int(np.clip(1 - np.floor(np.log10(max(high - low, 1e-9))), 0, 9))
            mean, *ends = (f"{x:z.{decimals}f}" for x in (mean, low, high))
            yield name, mean, " to ".join(ends), f"{100 * share:.0f} %"


class OfDraws(WithIntervals):
    """A posterior of which there are draws, by name, and the share learned of each."""

    draws: Named
    learned: Named

    @property
    def estimate(self) -> dict[str, np.ndarray]:
        """Posterior mean of each latent."""
        return {name: value.mean(axis=0) for name, value in self.draws.items()}

    @property
    def interval(self) -> dict[str, np.ndarray]:
        """The 90 % interval of each latent: low and high, (2, ...)."""
        return {name: np.quantile(value, ENDS, axis=0) for name, value in self.draws.items()}

    @property
    def _means(self) -> Named:
        return self.estimate

    @property
    def _deviations(self) -> Named:
        return {name: value.std(axis=0) for name, value in self.draws.items()}

    @property
    def _num_shown(self) -> int:
        return min(NUM_SHOWN, len(next(iter(self.draws.values()))))

    @property
    def _shares(self) -> Named:
        return self.learned

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, np.ndarray]:
        """Draws of each latent, (draw, ...), picked at random from `draws`. At no cost.

        Args:
            key: Any JAX key.
            num_samples: Number of draws.
        """
        return picked(self.draws, key, num_samples)


def picked(draws: Named, key: PRNGKeyArray, num_samples: int) -> dict[str, np.ndarray]:
    """Some of the draws, at random; all before one twice."""
    secret = random.subkey(random.check_key(key), random.Purpose.POSTERIOR)
    held = len(next(iter(draws.values())))
    replace = integer("num_samples", num_samples) > held
    places = np.asarray(jax.random.choice(secret, held, (num_samples,), replace))
    return {name: value[places] for name, value in draws.items()}


class OfCoefficients(WithIntervals):
    """The normal posterior of a regression's intercept and weights."""

    _called = "mean"
    mean: Float[np.ndarray, " feature+1"]
    covariance: Float[np.ndarray, "feature+1 feature+1"]
    learned: Any

    @property
    def interval(self) -> dict[str, np.ndarray]:
        """The 90 % intervals of `intercept`, (2,), and `weights`, (2, feature): low and high; of classes (2, ..., class)."""
        deviations = np.sqrt(np.diag(self.covariance))
        return self._named(self.mean + ndtri(np.array(ENDS))[:, None] * deviations)

    @property
    def _means(self) -> Named:
        return {name: value[0] for name, value in self._named(self.mean[None]).items()}

    @property
    def _shares(self) -> Named:
        return {
            name: value[0] for name, value in self._named(np.asarray(self.learned)[None]).items()
        }

    @property
    def _deviations(self) -> Named:
        deviations = np.sqrt(np.diag(self.covariance))
        return {name: value[0] for name, value in self._named(deviations[None]).items()}

    @property
    def _num_classes(self) -> int:
        return 1

    def _named(self, rows: Float[np.ndarray, "row coefficient"]) -> dict[str, np.ndarray]:
        """Intercepts and weights of each row, of classes with an axis of these at the end."""
        if self._num_classes > 1:
            rows = np.moveaxis(rows.reshape(*rows.shape[:-1], self._num_classes, -1), -2, -1)
        return {"intercept": rows[:, 0], "weights": rows[:, 1:]}

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, np.ndarray]:
        """Independent draws of `intercept`, (draw,), and `weights`, (draw, feature): those that intervals come from. At no cost.

        With classes both have an axis of them at the end.

        Args:
            key: Any JAX key.
            num_samples: Number of draws.
        """
        return self._drawn(
            np.random.default_rng(words_of(key)), integer("num_samples", num_samples)
        )

    def predict(
        self,
        x: Any,
        *,
        key: PRNGKeyArray | None = None,
        num_samples: int = 1_000,
        family: str | None = None,
    ) -> Predictions:
        """Predict new rows. Costs nothing, and a row's predictions depend on that row alone.

        Args:
            x: Features of the new rows as in the fit, (..., feature); or `Records`, such as
                `dp.tables.encode_features(new_table, schema)`, for means and outcomes in the unit
                of a table's target.
            key: Any JAX key, for the draws; None: a new one.
            num_samples: Number of draws.
            family: For counts, "poisson" (None) or "negative_binomial", whose variance of outcomes
                is m + m^2 / `dispersion`.

        Returns:
            Draws of each row's mean or class probabilities, and of a new outcome. Their spread has
            all noise in it; `estimate` is of the coefficients to predict with, which are shrunk
            where the noise hides them. A row with a missing feature has NaN.

        Raises:
            ValueError: Other features than in the fit, or no such family of the fit.
        """
        likelihood = likelihood_of(self.family_of(family))
        rows = self._features(x)
        missing = np.logical_not(np.isfinite(rows).all(axis=-1))
        rows = np.where(missing[..., None], 0.0, rows)
        scale = float(getattr(x, "target_scale", 1.0))
        centre = float(getattr(x, "target_centre", 0.0))
        rng = np.random.default_rng(words_of(random.key() if key is None else key))
        drawn = self._drawn(rng, integer("num_samples", num_samples))
        line = self._lines(rows, drawn)
        also = self._second(family, rng, drawn)
        if also is not None:
            also = also.reshape(-1, *[1] * (line.ndim - 1))
        best = likelihood.mean(self._lines(rows, self.to_predict)).mean(axis=0)
        found = best, likelihood.mean(line), likelihood.draw(rng, line, also)
        if missing.any():
            found = tuple(np.asarray(part, np.float64) for part in found)
            for part, places in zip(
                found, (missing, np.s_[:, missing], np.s_[:, missing]), strict=True
            ):
                part[places] = np.nan
        return Predictions(
            *(found if (scale, centre) == (1.0, 0.0) else (part * scale + centre for part in found))
        )

    def log_density(
        self, x: Any, y: Any = None, *, family: str | None = None
    ) -> Float[np.ndarray, " row"]:
        """The log of the mean density, over the coefficients to predict with, of each row's known target. Not private.

        Args:
            x: Features as in the fit, (row, feature); or `Records`, which may hold the target.
            y: The target of each row, as in the fit.
            family: As in `predict`.

        Returns:
            One number a row, in nats.
        """
        rows = self._features(x)
        target = np.asarray(getattr(x, "y", None) if y is None else y, np.float64)
        if target.shape != rows.shape[:-1]:
            raise ValueError(
                f"y has the shape {target.shape}: pass one target for each row of x, {rows.shape[:-1]}."
            )
        likelihood = likelihood_of(self.family_of(family))
        drawn = self.to_predict
        also = self._second(family)
        found = [np.empty(0)]
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            densities = likelihood.log_density(self._lines(rows[part], drawn), target[part], also)
            found.append(logsumexp(densities, axis=0) - np.log(len(densities)))
        return np.concatenate(found)

    def _features(self, x: Any) -> np.ndarray:
        rows = np.asarray(x.x if hasattr(x, "feature_names") else x, np.float64)
        wanted = len(self.mean) // self._num_classes - 1
        if rows.ndim < 2 or rows.shape[-1] != wanted:
            raise ValueError(
                f"x has the shape {rows.shape}: pass rows of the {wanted} features of the fit, (row, {wanted})."
            )
        return rows

    @staticmethod
    def _lines(rows: np.ndarray, drawn: Named) -> np.ndarray:
        """The linear predictors, (draw, ..., *class)."""
        weights = np.asarray(drawn["weights"])
        intercept = np.asarray(drawn["intercept"])
        line = np.tensordot(weights, rows, axes=(1, -1))
        if intercept.ndim > 1:  # classes behind the draws
            line = np.moveaxis(line, 1, -1)
        return line + intercept.reshape(
            len(intercept), *[1] * (rows.ndim - 1), *intercept.shape[1:]
        )

    @abc.abstractmethod
    def family_of(self, family: str | None) -> str:
        """The name of the likelihood; None: the one of the fit.

        Raises:
            ValueError: The fit is of another one.
        """

    @property
    @abc.abstractmethod
    def to_predict(self) -> dict[str, np.ndarray]:
        """Draws of `intercept` and `weights` to predict with."""

    def _second(
        self, family: str | None, rng: np.random.Generator | None = None, drawn: Named | None = None
    ) -> np.ndarray | None:
        """The likelihood's second parameter, for each draw; without a generator the estimate; None where it has none."""
        del family, rng, drawn
        return None

    def _drawn(self, rng: np.random.Generator, num_samples: int) -> dict[str, np.ndarray]:
        values, vectors = np.linalg.eigh(self.covariance)
        drawn = rng.standard_normal((num_samples, len(self.mean)))
        return self._named(self.mean + (drawn * np.sqrt(np.maximum(values, 0))) @ vectors.T)


def label(name: str, place: Sequence[int]) -> str:
    """An element of a latent, in words."""
    return f"{name}[{','.join(map(str, place))}]" if place else name
