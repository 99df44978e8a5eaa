"""Regressions whose records come in groups, each with an intercept and weights of its own."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int

from discreet.models._regression import Family, Model, check_count, family_of


def hierarchical(regression: Model, num_groups: int) -> Model:
    """The regression with an intercept and weights for each group, drawn around those of the population.

    Group g has intercept group_intercept[g] ~ Normal(intercept, intercept_spread) and weights
    group_weights[g] ~ Normal(weights, weights_spread), the spread of each weight its own. So groups with few records lean on
    the others. A record is of one group; the unit that privacy protects stays the record.

    The groups are **centred**: a record meets the coefficients of its own group and nothing else. Intercept, weights and
    spreads of the population follow from those of the groups without noise of their own, and a record's gradient is no
    longer than in the regression without groups. A record whose group is not among 0 to num_groups - 1 has the predictor 0,
    and tells the groups nothing.

    Priors: intercept and weights as in the regression; the spreads half-normal with scale 1.

    Args:
        regression: `linear_regression`, `logistic_regression`, `poisson_regression`, `negative_binomial_regression`, or what
            `multinomial_regression` made.
        num_groups: Public number of groups, 2 at least.

    Returns:
        The model, a function of (x, group, y): features of about unit size, the group of each record, 0 to num_groups - 1, and
        the target; None to draw it. `group_intercept` has the shape (group,), `group_weights` (group, feature);
        with classes, both have an axis more, over which they sum to zero.

    Raises:
        ValueError: Another regression, or fewer than two groups.

    >>> import jax, numpyro
    >>> from discreet.models import logistic_regression
    >>> drawn = numpyro.handlers.seed(hierarchical(logistic_regression, 5), jax.random.key(0))
    >>> trace = numpyro.handlers.trace(drawn).get_trace(jax.numpy.zeros((3, 2)), jax.numpy.array([0, 4, 4]))
    >>> trace["group_weights"]["value"].shape, trace["y"]["value"].shape
    ((5, 2), (3,))
    """
    return functools.partial(_hierarchical, family_of(regression), check_count("num_groups", num_groups, "groups"))


def _hierarchical(
    family: Family,
    num_groups: int,
    x: Float[Array, "record feature"],
    group: Int[Array, " record"],
    y: Array | None = None,
) -> None:
    features, spread = x.shape[1], dist.HalfNormal(1.0)
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
    terms = x * own if family.num_classes is None else x[:, :, None] * own
    family.observe(ones @ group_intercept + jnp.sum(terms, axis=1), y)
