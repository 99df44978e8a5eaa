"""Families of regressions by their names in brms and Bambi, for formulas.

Targets are scaled by their public bounds first, so that one prior suits all: a "linear" one to [-1,
1], times and sizes to (0, 1]. Gradients are then bounded wherever the bounds bound the target's
logarithm. Means are computed with NumPy, for predictions: of predictors (draw, row) and the other
latents' draws, (draw, ...), each in the target's own unit.

To add a family, write a function of the target's column that returns a `Family`, and enter it in
`FAMILIES`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from scipy.special import expit, gammaln, softmax

from discreet._validate import choice, near
from discreet.methods.choose import LINE
from discreet.tabular.models._regression import (
    LINEAR,
    LOGISTIC,
    NEGATIVE_BINOMIAL,
    POISSON,
    Family,
    multinomial,
)
from discreet.tabular.tables import Column, DataError, Kind

Latents = Mapping[str, Float[np.ndarray, "draw ..."]]
LARGEST_LOG = 20.0
LEAST_TIME = 1e-3
"""Times and sizes below this share of the upper bound count as that: their logarithm would have no bound."""
NUM_BANDS = 6


def _exp(predictor: Any) -> Any:
    return jnp.exp(jnp.minimum(predictor, LARGEST_LOG))


def _exp_of(predictor: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(predictor, LARGEST_LOG))


def _column(latent: np.ndarray) -> np.ndarray:
    """A latent's draws beside a predictor, (draw, row)."""
    return np.asarray(latent)[:, None]


LOG_ODDS = "a coefficient is a difference of log odds: e to it, a ratio of odds"
LOG_MEAN = "a coefficient is a difference of log means: e to it, a ratio of means"
UNITS = "a coefficient is a difference of means, in the target's unit"

# Targets with two values, and shares of known numbers.


def _bernoulli(column: Column) -> Family:
    _needs(column, "bernoulli", Kind.BINARY)
    of = dataclasses.replace(LOGISTIC, name="bernoulli", coefficient=LOG_ODDS, closed="binary")
    return dataclasses.replace(of, mean=lambda predictor, latents: expit(predictor))


def _binomial(column: Column) -> Family:
    _needs(column, "binomial", Kind.COUNT)

    def target(predictor: Array, trials: Array) -> Any:
        return dist.Binomial(trials, logits=predictor)

    return Family(
        2.5,
        5.0,
        target,
        name="binomial",
        coefficient=LOG_ODDS,
        beside=("trials",),
        mean=lambda predictor, latents: expit(predictor),
    )


# Targets with categories.


def _categorical(column: Column) -> Family:
    _needs(column, "categorical", Kind.CATEGORICAL, Kind.ORDERED)
    return dataclasses.replace(
        multinomial(len(column.categories)),
        name="categorical",
        coefficient="coefficients of a column are log odds of the categories; they sum to zero over these",
        closed="classes",
        mean=lambda predictor, latents: softmax(predictor, axis=-1),
    )


def _cumulative(column: Column) -> Family:
    _needs(column, "cumulative", Kind.ORDERED, Kind.BINARY)
    size = len(column.categories)
    first = dist.Normal(-(size - 2.0), 3.0)

    def target(predictor: Array) -> Any:
        lowest: Any = numpyro.sample("first", first)
        cuts = lowest[None]
        if size > 2:
            gaps = numpyro.sample("gaps", dist.Gamma(2.0, 1.0).expand([size - 2]).to_event(1))
            cuts = cuts + jnp.concatenate([jnp.zeros(1), jnp.cumsum(gaps)])
        return dist.OrderedLogistic(predictor, cuts)

    def mean(predictor: np.ndarray, latents: Latents) -> np.ndarray:
        below = expit(latents["threshold"][:, None, :] - predictor[..., None])
        ends = np.zeros_like(below[..., :1])
        return np.diff(np.concatenate([ends, below, ends + 1], axis=-1), axis=-1)

    return Family(
        2.5,
        0.0,
        target,
        name="cumulative",
        coefficient="a coefficient is a difference of log odds of a category above any threshold",
        others=f"the first threshold Normal({-(size - 2)}, 3²), gaps between thresholds Gamma(2, 1)",
        mean=mean,
    )


# Numbers.


def _gaussian(column: Column) -> Family:
    _needs(column, "gaussian", Kind.REAL, Kind.COUNT, Kind.DATE)
    return dataclasses.replace(
        LINEAR,
        name="gaussian",
        coefficient=UNITS,
        others="sigma half-normal with half the width of the target's bounds",
        mean=lambda predictor, latents: predictor,
        units="linear",
        in_units=("sigma",),
        start=(("sigma", 0.1),),  # bounds are wide for most targets
        closed=LINE,
    )


def _student(column: Column) -> Family:
    _needs(column, "student", Kind.REAL, Kind.COUNT, Kind.DATE)

    def target(predictor: Array) -> Any:
        sigma: Any = numpyro.sample("sigma", dist.HalfNormal(1.0))
        nu: Any = numpyro.sample("nu", dist.LogNormal(1.5, 0.75))
        return dist.StudentT(1.0 + nu, predictor, sigma)

    return dataclasses.replace(
        _gaussian(column),
        target=target,
        name="student",
        least_seen=1_000.0,  # with 2,000 records at ε = 1 five of six intervals of sigma missed
        others="sigma half-normal with half the width of the target's bounds, degrees of freedom less 1 (nu) "
        "LogNormal(1.5, 0.75)",
        closed="",
    )


def _gamma(column: Column) -> Family:
    _needs_positive(column, "gamma")

    def target(predictor: Array) -> Any:
        shape: Any = numpyro.sample("shape", dist.LogNormal(1.0, 1.0))
        return dist.Gamma(shape, shape * jnp.exp(jnp.clip(-predictor, -LARGEST_LOG, LARGEST_LOG)))

    return Family(
        1.0,
        3.0,
        target,
        name="gamma",
        coefficient=LOG_MEAN,
        others="shape LogNormal(1, 1)",
        units="log",
        mean=lambda predictor, latents: _exp_of(predictor),
    )


def _beta(column: Column) -> Family:
    _needs_positive(column, "beta")
    if column.limits[1] >= 1:
        raise DataError(
            f"column '{column.name}' has bounds {column.rule()}, and the family beta is for shares within 0 and 1: narrow them "
            'to [0.001, 0.999], say, with out_of_bounds = "clip"'
        )

    def target(predictor: Array) -> Any:
        precision: Any = numpyro.sample("precision", dist.LogNormal(2.0, 1.5))
        mean = jnp.clip(1 / (1 + jnp.exp(-predictor)), 1e-4, 1 - 1e-4)
        return dist.Beta(mean * precision, (1 - mean) * precision)

    return Family(
        1.5,
        3.0,
        target,
        name="beta",
        coefficient="a coefficient is a difference of the log odds of the mean",
        others="precision LogNormal(2, 1.5)",
        mean=lambda predictor, latents: expit(predictor),
    )


# Counts.


def _poisson(column: Column, name: str = "poisson") -> Family:
    _needs(column, name, Kind.COUNT)
    of = dataclasses.replace(POISSON, name="poisson", coefficient=LOG_MEAN, closed="counts")
    return dataclasses.replace(of, mean=lambda predictor, latents: _exp_of(predictor))


def _negbinomial(column: Column) -> Family:
    of = dataclasses.replace(NEGATIVE_BINOMIAL, name="negbinomial", others=SCATTER, closed="counts")
    return dataclasses.replace(
        _poisson(column, of.name), **_changed(of, "target", "name", "others", "closed")
    )


SCATTER = "concentration LogNormal(1, 1.5)"
SHARE = "share of further zeros Beta(1, 1)"
MOST_ZEROS = 0.7
"""Share of further zeros above which its intervals may miss by far."""


def _changed(family: Family, *names: str) -> dict[str, Any]:
    return {name: getattr(family, name) for name in names}


def _inflated(name: str, scattered: bool) -> Callable[[Column], Family]:
    """Zero-inflated counts: with the probability `zero` a count is 0, whatever the predictor."""

    def target(predictor: Array) -> Any:
        zero: Any = numpyro.sample("zero", dist.Beta(1.0, 1.0))
        if not scattered:
            return dist.ZeroInflatedPoisson(zero, rate=_exp(predictor))
        concentration: Any = numpyro.sample("concentration", dist.LogNormal(1.0, 1.5))
        return dist.ZeroInflatedNegativeBinomial2(_exp(predictor), concentration, gate=zero)

    def mean(predictor: np.ndarray, latents: Latents) -> np.ndarray:
        return _exp_of(predictor) * (1 - _column(latents["zero"]))

    words = "a coefficient is a difference of log means of the counts that are no further zeros"
    others = f"{SCATTER}, {SHARE}" if scattered else SHARE

    def told_by(draws: Latents, num_records: int) -> dict[str, Any]:
        zeros = _told(draws, num_records * draws["zero"].mean())
        return {"zero": zeros, "concentration": zeros} if scattered else {"zero": zeros}

    new = {
        "target": target,
        "told_by": told_by,
        "name": name,
        "coefficient": words,
        "others": others,
        "closed": "",
        "mean": mean,
    }
    return lambda column: dataclasses.replace(_poisson(column, name), **new)


def _told(draws: Latents, number: float) -> float:
    """The number of records that tell of the share of zeros, or none if few are above 0."""
    return 0.0 if draws["zero"].mean() > MOST_ZEROS else number


def _hurdle(name: str, scattered: bool) -> Callable[[Column], Family]:
    """Hurdles: a count is 0 with the probability `zero`; others are of the distribution without 0."""

    def target(predictor: Array) -> Any:
        zero: Any = numpyro.sample("zero", dist.Beta(1.0, 1.0))
        if not scattered:
            return dist.HurdlePoisson(zero, _exp(jnp.maximum(predictor, -LARGEST_LOG / 2)))
        concentration: Any = numpyro.sample("concentration", dist.LogNormal(1.0, 1.5))
        return dist.HurdleNegativeBinomial2(
            zero, _exp(jnp.maximum(predictor, -LARGEST_LOG / 2)), concentration
        )

    def mean(predictor: np.ndarray, latents: Latents) -> np.ndarray:
        rate = _exp_of(np.maximum(predictor, -LARGEST_LOG / 2))
        if scattered:
            concentration = _column(latents["concentration"])
            nothing = np.exp(concentration * (np.log(concentration) - np.log(concentration + rate)))
        else:
            nothing = np.exp(-rate)
        return rate / (1 - nothing) * (1 - _column(latents["zero"]))

    words = "a coefficient is a difference of log means of the distribution that counts above 0 are cut from"
    others = f"{SCATTER}, share of zeros Beta(1, 1)" if scattered else "share of zeros Beta(1, 1)"
    new = {
        "target": target,
        "hurdle": True,
        "name": name,
        "coefficient": words,
        "others": others,
        "closed": "",
        "mean": mean,
    }
    # Where zeros are not counted but fitted with the rest: with 2,000 records at ε = 0.5 `zero` was
    # 0.92 for 0.4. Beside a concentration its intervals missed in 9 of 22 fits at ε = 1, of 3,000
    # records in 5 of 16, of 4,000 in 2 of 16.
    least_seen = 1_100.0 if scattered else 550.0
    return lambda column: dataclasses.replace(_poisson(column, name), least_seen=least_seen, **new)


# Times until an event, of which some end before it.


class TimeToEvent(dist.Distribution):
    """Times with right censoring: the density of an event's time, or the probability of a later one.

    Args:
        event: 1 where the event happened at that time, 0 where the time ended before.
        log_hazard: Of a time, for each record.
        cumulative: Its integral from 0.
    """

    support: Any = constraints.positive
    pytree_data_fields = ("event",)
    pytree_aux_fields = ("log_hazard", "cumulative")

    def __init__(
        self,
        event: Array,
        log_hazard: Callable[[Array], Array],
        cumulative: Callable[[Array], Array],
    ) -> None:
        self.event = event
        self.log_hazard = log_hazard
        self.cumulative = cumulative
        super().__init__(batch_shape=jnp.shape(event), validate_args=False)

    def log_prob(self, value: Any, intermediates: Any = None) -> Any:
        """The log likelihood of each time."""
        del intermediates
        return self.event * self.log_hazard(value) - self.cumulative(value)


def _weibull(column: Column) -> Family:
    _needs_time(column, "weibull")

    def target(predictor: Array, event: Array) -> Any:
        shape: Any = numpyro.sample("shape", dist.LogNormal(0.0, 0.7))

        def log_hazard(time: Array) -> Array:
            return jnp.log(shape) - jnp.log(time) + shape * (jnp.log(time) - predictor)

        def cumulative(time: Array) -> Array:
            return _exp(shape * (jnp.log(time) - predictor))

        return TimeToEvent(event, log_hazard, cumulative)

    def mean(predictor: np.ndarray, latents: Latents) -> np.ndarray:
        shape = _column(latents["shape"])
        return _exp_of(predictor) * np.exp(gammaln(1 + 1 / shape))

    return Family(
        1.0,
        3.0,
        target,
        name="weibull",
        coefficient="a coefficient is a difference of log times: e to it, a ratio of times",
        others="shape LogNormal(0, 0.7)",
        beside=("event",),
        units="log",
        mean=mean,
    )


def _piecewise(column: Column) -> Family:
    """A constant hazard in each of a few public bands of time: a Poisson likelihood over these."""
    _needs_time(column, "piecewise")
    edges = np.linspace(0, 1, NUM_BANDS + 1)
    widths = np.diff(edges)
    high = column.limits[1]

    def within(time: Array) -> Array:
        """Time spent in each band."""
        return jnp.clip(time[..., None] - edges[:-1], 0.0, widths)

    def target(predictor: Array, event: Array) -> Any:
        later: Any = numpyro.sample(
            "later", dist.Normal(0.0, 1.0).expand([NUM_BANDS - 1]).to_event(1)
        )
        logs = jnp.concatenate([jnp.zeros(1), jnp.asarray(later)])

        def log_hazard(time: Array) -> Array:
            bands = jnp.sum(time[..., None] > edges[1:-1], axis=-1)
            return predictor + (bands[..., None] == jnp.arange(NUM_BANDS)) @ logs

        def cumulative(time: Array) -> Array:
            return _exp(predictor) * (within(time) @ jnp.exp(logs))

        return TimeToEvent(event, log_hazard, cumulative)

    def mean(predictor: np.ndarray, latents: Latents) -> np.ndarray:
        logs = np.concatenate([np.zeros((len(predictor), 1)), latents["later"]], axis=1)
        total = np.zeros_like(predictor)
        survived = np.ones_like(predictor)
        for band, width in enumerate(widths * high):
            passed = _exp_of(predictor + logs[:, [band]]) * width
            total += survived * width * -np.expm1(-passed) / passed
            survived = survived * np.exp(-passed)
        return total

    return Family(
        1.0,
        3.0,
        target,
        name="piecewise",
        coefficient="a coefficient is a log hazard ratio",
        told_by=lambda draws, _: {"later": 1 / draws["later"].var(axis=0)},  # a band's events
        others=f"log hazards of {NUM_BANDS} equal bands of time relative to the first (later) Normal(0, 1)",
        beside=("event",),
        units="hazard",
        mean=mean,
    )


def _needs(column: Column, family: str, *kinds: Kind) -> None:
    if column.kind not in kinds:
        raise DataError(
            f"the family {family} is for a target of kind {' or '.join(kinds)}, but '{column.name}' is described as "
            f"{column.kind}: choose another family, such as {' or '.join(families_of(column))}, or describe the column so"
            f"{_in_a_line(column, kinds[0])}"
        )


def _in_a_line(column: Column, kind: Kind) -> str:
    """How a line of bounds describes the column as another kind."""
    line = ""
    if kind is Kind.COUNT and column.kind is Kind.REAL:
        line = "..".join(f"{bound:g}" for bound in column.limits)
    if kind is Kind.ORDERED and column.categories:
        line = "<".join(column.categories)
    return line and f", in a line of bounds by {column.name}={line}"


def _needs_positive(column: Column, family: str) -> None:
    _needs(column, family, Kind.REAL, Kind.COUNT)
    if column.limits[0] <= 0:
        raise DataError(
            f"column '{column.name}' has bounds {column.rule()}, and the family {family} is for values above 0, whose logarithm "
            f'has bounds: give a lower bound above 0, such as {column.limits[1] / 1000:g}, with out_of_bounds = "clip"'
        )


def _needs_time(column: Column, family: str) -> None:
    _needs(column, family, Kind.REAL, Kind.COUNT)
    if column.limits[0] < 0:
        raise DataError(
            f"column '{column.name}' has bounds {column.rule()}: times of the family {family} are 0 or more"
        )


FAMILIES: dict[str, Callable[[Column], Family]] = {
    "gaussian": _gaussian,
    "student": _student,
    "bernoulli": _bernoulli,
    "binomial": _binomial,
    "categorical": _categorical,
    "cumulative": _cumulative,
    "poisson": _poisson,
    "negbinomial": _negbinomial,
    "zero_inflated_poisson": _inflated("zero_inflated_poisson", scattered=False),
    "zero_inflated_negbinomial": _inflated("zero_inflated_negbinomial", scattered=True),
    "hurdle_poisson": _hurdle("hurdle_poisson", scattered=False),
    "hurdle_negbinomial": _hurdle("hurdle_negbinomial", scattered=True),
    "gamma": _gamma,
    "beta": _beta,
    "weibull": _weibull,
    "piecewise": _piecewise,
}
_USUAL = {
    Kind.REAL: ("gaussian", "student"),
    Kind.DATE: ("gaussian", "student"),
    Kind.COUNT: ("poisson", "negbinomial"),
    Kind.BINARY: ("bernoulli",),
    Kind.CATEGORICAL: ("categorical",),
    Kind.ORDERED: ("cumulative",),
}


def families_of(column: Column) -> tuple[str, ...]:
    """The usual families of a target."""
    return _USUAL[column.kind]


def family_named(name: str, column: Column) -> Family:
    """The family of this name for a target.

    Raises:
        ValueError: An unknown name, or a target of another kind.

    >>> from discreet.tabular.tables import Column, Kind
    >>> family_named("poisson", Column(name="visits", kind=Kind.COUNT, bounds=(0, 20))).name
    'poisson'
    """
    meant = near(name, FAMILIES) if isinstance(name, str) else ""
    return FAMILIES[choice("family", name, FAMILIES, hint=meant.capitalize())](column)
