"""Weights for rows of a mixture, with which its features go together as the noisy counts say.

A mixture that is fitted to counts with much noise in each cell has too little dependence: of two
numbers with a correlation of 0.6 in 256 cells, it had 0.3. But their mean product is a sum over all
these cells, and so is well known. The rows' weights are those of least relative entropy with the
released mean products, of all pairs of features, as far as noise does not forbid it:

    min KL(w) + sum (mean_w(m) - t)^2 / (2 v),   w in proportion to exp(m l),

where m are products of coded levels, t the released means, and v their variances, of noise and of
sampling. Its dual in l is convex, and solved by Newton's method. Means and spreads of single
features stay those of the mixture.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from discreet.tabular.marginals import Marginals

_RARE = 0.002
"""Share of the rows of levels that have no part in products: noise in many empty cells would hide the others."""
_MOST_PRODUCTS = 36
"""Of two columns; with more, the mixture alone says how they go together."""


def tilt(
    levels: Int[np.ndarray, "row column"],
    released: Marginals,
    target: str,
    rng: np.random.Generator | None,
) -> Float[np.ndarray, " row"]:
    """The weights, which add up to 1.

    Args:
        levels: Of rows that the mixture drew.
        released: The noisy counts.
        target: Name of the target, which is no feature.
        rng: Adds noise of the law of the released means to these: so a refit differs from the fit.
            None: no noise.
    """
    plan = released.plan
    total = released.num_records
    places = {
        column.name: place
        for place, column in enumerate(plan.schema.columns)
        if column.name != target
    }
    codes = {name: _codes(released, name, levels[:, place]) for name, place in places.items()}
    rows = {name: codes[name][levels[:, place]] for name, place in places.items()}
    measured = []
    wanted = []
    variances = []
    for name, found in rows.items():
        own = (
            found
            if plan.schema.columns[places[name]].bounds is None
            else np.concatenate([found, found**2], axis=1)
        )
        measured.append(own)
        wanted.append(own.mean(axis=0))
        variances.append(np.full(own.shape[1], 1e-6))
    for one, other in (table for table in plan.tables if len(table) == 2 and target not in table):
        if not 0 < codes[one].shape[1] * codes[other].shape[1] <= _MOST_PRODUCTS:
            continue
        own = (rows[one][:, :, None] * rows[other][:, None]).reshape(len(levels), -1)
        noise = np.outer(
            np.square(codes[one]).sum(axis=0), np.square(codes[other]).sum(axis=0)
        ).ravel()
        variance = (plan.stddev((one, other)) / total) ** 2 * noise + own.var(axis=0) / total
        mean = (codes[one].T @ released.table(one, other) @ codes[other]).ravel() / total
        if rng is not None:
            mean = mean + np.sqrt(variance) * rng.standard_normal(len(mean))
        measured.append(own)
        wanted.append(mean)
        variances.append(variance)
    return _weights(
        np.concatenate(measured, axis=1), np.concatenate(wanted), np.concatenate(variances)
    )


def _codes(
    released: Marginals, name: str, level: Int[np.ndarray, " row"]
) -> Float[np.ndarray, "level code"]:
    """Numbers for a column's levels, of mean 0 and spread 1 over the rows: a number's own, and one for each other category."""
    plan = released.plan
    column = next(column for column in plan.schema.columns if column.name == name)
    size = plan.levels.sizes[plan.schema.columns.index(column)]
    shares = np.bincount(level, minlength=size) / len(level)
    if column.bounds is None:
        found = np.eye(size)[:, 1:]
        found = found[:, shares[1:] >= _RARE]
    else:
        edges = plan.levels.edges(column)
        middles = (edges[:-1] + edges[1:]) / 2
        there = shares[: len(middles)]
        # Missing cells are at the mean of the others.
        found = np.full((size, 1), there @ middles / max(there.sum(), 1e-9))
        found[: len(middles), 0] = middles
    found = found - shares @ found
    spread = np.sqrt(shares @ found**2)
    return found / np.maximum(spread, 1e-9) * (shares >= _RARE)[:, None]


def _weights(
    measured: Float[np.ndarray, "row mean"],
    wanted: Float[np.ndarray, " mean"],
    variances: Float[np.ndarray, " mean"],
) -> Float[np.ndarray, " row"]:
    """The weights for which the means are the wanted ones, as far as the variances say, from the dual."""
    apart = measured - wanted

    def dual(slopes: np.ndarray) -> tuple[float, np.ndarray]:
        line = apart @ slopes
        value = np.asarray(logsumexp(line)) + variances @ slopes**2 / 2
        weights = softmax(line)
        return float(value), weights @ apart + variances * slopes

    def curvature(slopes: np.ndarray) -> np.ndarray:
        weights = softmax(apart @ slopes)
        mean = weights @ apart
        return (apart * weights[:, None]).T @ apart - np.outer(mean, mean) + np.diag(variances)

    found = minimize(dual, np.zeros(len(wanted)), jac=True, hess=curvature, method="trust-exact")
    return softmax(apart @ found.x)
