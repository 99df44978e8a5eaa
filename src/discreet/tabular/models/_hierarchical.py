"""Hierarchical regressions: an intercept and weights for each group.

Any family of `_regression` can be the likelihood. The parametrisation is centred: see
`hierarchical` for the reason.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int

from discreet._validate import integer
from discreet.tabular.models._regression import Family, Model, family_of, without_padding


def hierarchical(regression: Model, num_groups: int) -> Model:
    """Make the regression with an intercept and weights for each group, drawn around those of the population.

    Group g has intercept group_intercept[g] ~ Normal(intercept, intercept_spread) and weights
    group_weights[g] ~ Normal(weights, weights_spread), the spread of each weight its own. So groups
    with few records borrow strength from the others. A record is of one group; the unit that
    privacy protects stays the record.

    The parametrisation is **centred**: a record's likelihood depends on the coefficients of its own
    group only. Intercept, weights and spreads of the population depend on the data only through
    those of the groups, without additional noise, and a record's gradient norm is at most that in
    the regression without groups. A record whose group is outside 0 to num_groups - 1 has the
    predictor 0 and does not affect the groups.

    Priors: intercept and weights as in the regression; the spreads half-normal with scale 1.

    Args:
        regression: `linear_regression`, `logistic_regression`, `poisson_regression`,
            `negative_binomial_regression`, or a result of `multinomial_regression`.
        num_groups: Public number of groups, 2 at least.

    Returns:
        The model, a function of (x, group, y, mask): features of about unit size, the group of each
            record, 0 to num_groups - 1,
        the target; None to draw it; mask as in `logistic_regression`, with a group for each row.
        `group_intercept` has the shape (group,), `group_weights` (group, feature); with classes,
        both have an axis more, over which they sum to zero.

    Raises:
        ValueError: Another regression, or fewer than two groups.

    >>> import jax, numpyro
    >>> from discreet.tabular.models import logistic_regression
    >>> drawn = numpyro.handlers.seed(hierarchical(logistic_regression, 5), jax.random.key(0))
    >>> trace = numpyro.handlers.trace(drawn).get_trace(jax.numpy.zeros((3, 2)), jax.numpy.array([0, 4, 4]))
    >>> trace["group_weights"]["value"].shape, trace["y"]["value"].shape
    ((5, 2), (3,))
    """
    return functools.partial(
        _hierarchical, family_of(regression), integer("num_groups", num_groups, least=2)
    )


def _hierarchical(
    family: Family,
    num_groups: int,
    x: Float[Array, "record *row feature"],
    group: Int[Array, "record *row"],
    y: Array | None = None,
    mask: Array | None = None,
) -> None:
    x, y, mask = without_padding(x, y, mask)
    group = group if mask is None else jnp.where(mask, group, 0)
    features = x.shape[-1]
    spread = dist.HalfNormal(1.0)
    intercept: Any = numpyro.sample("intercept", family.normal(family.intercept_scale, ()))
    weights: Any = numpyro.sample("weights", family.normal(family.weight_scale, (features,)))
    intercept_spread: Any = numpyro.sample("intercept_spread", spread)
    weights_spread: Any = numpyro.sample("weights_spread", spread.expand([features]).to_event(1))
    around_intercept = family.around(intercept, intercept_spread, (num_groups,))
    around_weights = family.around(weights, weights_spread, (num_groups, features))
    group_intercept: Any = numpyro.sample("group_intercept", around_intercept)
    group_weights: Any = numpyro.sample("group_weights", around_weights)
    ones = jax.nn.one_hot(jnp.asarray(group, jnp.int32), num_groups)
    own = jnp.tensordot(ones, group_weights, 1)
    own_terms = x * own if family.num_classes is None else x[..., None] * own
    terms = jnp.sum(own_terms, axis=x.ndim - 1)
    family.observe(ones @ group_intercept + terms, y, mask)


def groups_of(columns: Sequence[Any], names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The positions of the features of each column that has several, one per category."""
    found = []
    for column in columns:
        if column.kind == "categorical":
            own = {f"{column.name}={category}" for category in column.categories} | {
                f"{column.name} is missing"
            }
            found.append(tuple(place for place, name in enumerate(names) if name in own))
    return tuple(places for places in found if places)


def contrasts(
    num_weights: int,
    groups: Sequence[Sequence[int]],
    shares: Float[np.ndarray, " weight"] | None = None,
) -> Float[np.ndarray, "coefficient coefficient"]:
    """The matrix that subtracts from each group of weights their mean, and adds it to the intercept, which is first.

    The weights of one column's categories and the intercept can be shifted against each other
    without effect on predictions, so only their contrasts are identified. In a plain mean one rare
    category, of which little is known, makes all of them uncertain; in the mean over the records it
    hardly counts.

    Args:
        num_weights: Number of weights.
        groups: The places of the weights of each column that has several.
        shares: What each weight counts in its group's mean, public, such as shares that were
            released. None: all alike.

    >>> contrasts(2, [(0, 1)], np.array([0.75, 0.25]))[1:, 1:].tolist()
    [[0.25, -0.25], [-0.75, 0.75]]
    """
    matrix = np.eye(1 + num_weights)
    for group in groups:
        places = 1 + np.asarray(group)
        counts = np.ones(len(group)) if shares is None else np.maximum(shares[np.asarray(group)], 0)
        counts = counts if counts.sum() > 0 else np.ones(len(group))
        matrix[np.ix_(places, places)] -= counts / counts.sum()
        matrix[0, places] += counts / counts.sum()
    return matrix
