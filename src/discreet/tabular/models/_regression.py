"""Bayesian regressions for a 0/1, a real, a count and a categorical target, with groups of records or without.

A `Family` holds what the regressions differ in: prior scales, and how the target is observed given
a linear predictor. `regress` and `hierarchical` are written once for all families. Each takes one
row per record, or several: then features, targets and a mask have an axis of rows after that of the
records, and the rows are an inner plate. A record's density is the product of those of its rows, so
the gradient that a fit clips is their sum.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions.transforms import ZeroSumTransform

from discreet._validate import integer

Model = Callable[..., None]


@dataclasses.dataclass(frozen=True)
class Family:
    """The parts that differ between regressions.

    The first four make the model; the others are for formulas (`_families`), which scale targets by
    their public bounds.
    """

    weight_scale: float  # Prior standard deviation of a weight
    intercept_scale: float  # Prior standard deviation of the intercept
    # The distribution of the targets given the predictor, and what `beside` names of each record
    target: Callable[..., Any]
    num_classes: int | None = None  # Numbers per predictor; None for one, without an axis for it
    name: str = ""
    coefficient: str = ""  # What a coefficient means
    others: str = ""  # Its other latents and their priors, in words
    # Of the target, given the predictor and draws of the other latents
    mean: Callable[..., Any] | None = None
    beside: tuple[str, ...] = ()  # Names of further numbers of each record
    # How the target is scaled: "linear" to [-1, 1], "log" or "hazard" to (0, 1]; not at all
    units: str = ""
    in_units: tuple[str, ...] = ()  # Other latents in the unit of a "linear" target
    # Where the fit of other latents starts, if not at the prior's mean
    start: tuple[tuple[str, float], ...] = ()
    # By draws of the fit and the number of records, how many tell of latents that few may tell of
    told_by: Callable[..., dict[str, Any]] | None = None
    # Whether `zero` is the share of records whose target is 0, and these tell of nothing else
    hurdle: bool = False
    # Records over the noise multiplier, below which intervals were found false
    least_seen: float = 0.0
    closed: str = ""  # The method that fits it without groups: a family of `NewtonPlan`, or "line"

    def normal(self, scale: float | Array, shape: tuple[int, ...]) -> dist.Distribution:
        """Independent normals of mean 0; with classes, one vector over the classes in place of each, summing to zero."""
        if self.num_classes is None:
            return dist.Normal(0.0, scale).expand(shape).to_event(len(shape))
        over_classes = dist.ZeroSumNormal(scale, (self.num_classes,))
        return over_classes.expand(shape).to_event(len(shape))

    def around(self, middle: Array, spread: Array, shape: tuple[int, ...]) -> dist.Distribution:
        """As `normal`, with a mean for each number, or for the classes of each a vector that sums to zero."""
        if self.num_classes is None:
            return dist.Normal(middle, spread).expand(shape).to_event(len(shape))
        # An isometry from num_classes - 1 numbers: it preserves standard deviations.
        plane = ZeroSumTransform(1)
        free = dist.Normal(plane.inv(middle), jnp.asarray(spread)[..., None]).expand(
            (*shape, self.num_classes - 1)
        )
        return dist.TransformedDistribution(free, plane).to_event(len(shape))

    def observe(
        self, predictor: Array, y: Array | None, mask: Array | None, *beside: Array
    ) -> None:
        """Observe the target of each row of each record, or draw it; a class may be a float."""
        if y is not None and self.num_classes is not None:
            y = jnp.asarray(y).astype(jnp.int32)
        target = self.target(predictor, *beside)
        if mask is None:
            with numpyro.plate("data", predictor.shape[0]):
                numpyro.sample("y", target, obs=y)
            return
        if mask.ndim == 1:
            with numpyro.plate("data", mask.shape[0]):
                numpyro.sample("y", target.mask(mask), obs=y)
            return
        with (
            numpyro.plate("data", mask.shape[0], dim=-2),
            numpyro.plate("rows", mask.shape[1], dim=-1),
        ):
            numpyro.sample("y", target.mask(mask), obs=y)


def regress(
    family: Family, x: Float[Array, "record *row feature"], y: Array | None, mask: Array | None
) -> None:
    """Intercept plus weighted features, with independent normal priors, and the target."""
    x, y, mask = without_padding(x, y, mask)
    intercept = numpyro.sample("intercept", family.normal(family.intercept_scale, ()))
    weights = numpyro.sample("weights", family.normal(family.weight_scale, (x.shape[-1],)))
    family.observe(jnp.asarray(intercept + x @ weights), y, mask)


def without_padding(
    x: Array, y: Array | None, mask: Array | None
) -> tuple[Array, Array | None, Array | None]:
    """Replace padding rows of records by zeros, whatever their content.

    A mask on the density alone is not enough: the gradient of a masked NaN is NaN. Refuses rows
    without a mask, and a mask of another shape.
    """
    if mask is None:
        if x.ndim > 2:
            raise ValueError(
                f"x has the shape {x.shape}, several rows per record, but there is no mask of the real ones: pass x, y and mask "
                "as discreet.tables.encode returns them (records.arrays)."
            )
        return x, y, None
    if mask.shape != x.shape[:-1] or mask.ndim != 2:
        raise ValueError(
            f"mask has the shape {mask.shape} and x {x.shape}: pass (record, row) and (record, row, feature)."
        )
    mask = jnp.asarray(mask, bool)
    return jnp.where(mask[..., None], x, 0), None if y is None else jnp.where(mask, y, 0), mask


def logistic_regression(
    x: Float[Array, "record *row feature"],
    y: Float[Array, "record *row"] | None = None,
    mask: Array | None = None,
) -> None:
    """Logistic regression: P(y = 1) = 1 / (1 + exp(-(intercept + x · weights))).

    Priors: weights Normal(0, 2.5), intercept Normal(0, 5), after Gelman, Jakulin, Pittau and Su
    (2008), Ann. Appl. Stat. 2(4), with normal instead of Cauchy tails.

    Args:
        x: Features of about unit size.
        y: 0 or 1 for each record; None to draw it.
        mask: For records of several rows: True for real ones, (record, row); x and y have an axis
            of rows as well. Other rows have no effect, whatever their content.

    >>> import jax, numpyro
    >>> drawn = numpyro.handlers.seed(logistic_regression, jax.random.key(0))
    >>> numpyro.handlers.trace(drawn).get_trace(jax.numpy.zeros((3, 2)))["y"]["value"].shape
    (3,)
    """
    regress(LOGISTIC, x, y, mask)


def multinomial_regression(num_classes: int) -> Model:
    """Multinomial (softmax) regression: P(y = k) is proportional to exp(intercept[k] + x · weights[:, k]).

    Adding a number to all classes changes nothing, so `intercept` and each row of `weights` sum to
    zero over the classes. Priors: those of `logistic_regression`, Normal(0, 2.5) and Normal(0, 5),
    on that plane.

    Args:
        num_classes: Public number of classes, 2 at least.

    Returns:
        The model, a function of (x, y, mask): features of about unit size, and the class of each
            record, 0 to num_classes - 1,
        as integers or floats; None to draw it; mask as in `logistic_regression`. `intercept` has
        the shape (class,), `weights` (feature, class).

    Raises:
        ValueError: Fewer than two classes.

    >>> import jax, numpyro
    >>> drawn = numpyro.handlers.seed(multinomial_regression(4), jax.random.key(0))
    >>> numpyro.handlers.trace(drawn).get_trace(jax.numpy.zeros((3, 2)))["weights"]["value"].shape
    (2, 4)
    """
    return functools.partial(_multinomial, integer("num_classes", num_classes, least=2))


def _multinomial(
    num_classes: int,
    x: Float[Array, "record *row feature"],
    y: Array | None = None,
    mask: Array | None = None,
) -> None:
    regress(multinomial(num_classes), x, y, mask)


def linear_regression(
    x: Float[Array, "record *row feature"],
    y: Float[Array, "record *row"] | None = None,
    mask: Array | None = None,
) -> None:
    """Linear regression: y is normal around intercept + x · weights with standard deviation `sigma`.

    Priors for a target scaled to [-1, 1]: weights and intercept Normal(0, 1), sigma half-normal
    with scale 1.

    Args:
        x: Features of about unit size.
        y: The target of each record, of about unit size; None to draw it.
        mask: As in `logistic_regression`.
    """
    regress(LINEAR, x, y, mask)


def poisson_regression(
    x: Float[Array, "record *row feature"],
    y: Float[Array, "record *row"] | None = None,
    mask: Array | None = None,
) -> None:
    """Poisson regression: y is a count with mean exp(intercept + x · weights).

    Priors: weights Normal(0, 1), so that a feature over its whole range multiplies the mean by
    about e² at most, and intercept Normal(0, 3).

    Args:
        x: Features of about unit size.
        y: A count for each record; None to draw it. A number that is negative or not an integer has
            density zero: schemas, the estimators and `DPSVI.run` refuse it.
        mask: As in `logistic_regression`.
    """
    regress(POISSON, x, y, mask)


def negative_binomial_regression(
    x: Float[Array, "record *row feature"],
    y: Float[Array, "record *row"] | None = None,
    mask: Array | None = None,
) -> None:
    """Negative binomial regression: y is a count with mean m = exp(intercept + x · weights) and variance m + m² / concentration.

    For counts with more variance than a Poisson distribution. A few people with many visits also
    have smaller gradients, so less is clipped.

    Priors: weights and intercept as in `poisson_regression`; concentration LogNormal(1, 1.5), from
    0.14 to 51 in 95 of 100 cases.

    Args:
        x: Features of about unit size.
        y: A count for each record, as in `poisson_regression`; None to draw it.
        mask: As in `logistic_regression`.
    """
    regress(NEGATIVE_BINOMIAL, x, y, mask)


def _real(mean: Float[Array, " record"]) -> dist.Distribution:
    return dist.Normal(mean, numpyro.sample("sigma", dist.HalfNormal(1.0)))


def _count(log_rate: Float[Array, " record"]) -> dist.Distribution:
    return dist.Poisson(rate=_exp(log_rate))


def _scattered_count(log_mean: Float[Array, " record"]) -> dist.Distribution:
    concentration = numpyro.sample("concentration", dist.LogNormal(1.0, 1.5))
    return dist.NegativeBinomial2(_exp(log_mean), concentration)


def _exp(log_rate: Float[Array, " record"]) -> Float[Array, " record"]:
    """The exponential, capped at e²⁰: an extreme draw of the guide gives a bad fit and not an infinite one."""
    return jnp.exp(jnp.minimum(log_rate, 20.0))


LOGISTIC = Family(2.5, 5.0, dist.BernoulliLogits)
LINEAR = Family(1.0, 1.0, _real)
POISSON = Family(1.0, 3.0, _count)
NEGATIVE_BINOMIAL = Family(1.0, 3.0, _scattered_count)
_FAMILIES: dict[Model, Family] = {
    logistic_regression: LOGISTIC,
    linear_regression: LINEAR,
    poisson_regression: POISSON,
    negative_binomial_regression: NEGATIVE_BINOMIAL,
}


def family_of(regression: Model) -> Family:
    """The family of a regression; ValueError for other models."""
    if isinstance(regression, functools.partial) and regression.func is _multinomial:
        return multinomial(*regression.args)
    if regression not in _FAMILIES:
        raise ValueError(
            f"{regression!r} has no version with groups: pass {', '.join(model.__name__ for model in _FAMILIES)} or "
            "multinomial_regression(num_classes) from discreet.tabular.models."
        )
    return _FAMILIES[regression]


def multinomial(num_classes: int) -> Family:
    """The family of that many classes."""
    return Family(2.5, 5.0, dist.CategoricalLogits, num_classes)
