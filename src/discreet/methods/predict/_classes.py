"""Classes of new rows from a fitted posterior.

Post-processing: what is read of the private records is the released posterior only.
`class_probabilities` averages over its draws for any NumPyro model whose observation has finitely
many values; `linear_predictor` and `probit_probabilities` are the shortcut for a logistic
regression with a Gaussian posterior.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.handlers as handlers
from jaxtyping import Array, Float
from numpy.typing import ArrayLike
from numpyro.distributions import MaskedDistribution
from scipy.special import expit

from discreet._numpyro import trace_of
from discreet._validate import left_out

Model = Callable[..., Any]
_ELEMENTS = 2**22
"""Probabilities that are held at once, by default: 16 MiB of 32-bit numbers."""


def class_probabilities(
    model: Model,
    draws: Mapping[str, Any],
    *args: Any,
    site: str | None = None,
    max_elements: int = _ELEMENTS,
    **kwargs: Any,
) -> Float[np.ndarray, "row class"]:
    """The Monte Carlo predictive: each row's class probabilities, averaged over posterior draws.

    Reads the draws, which are released, and the rows to predict for. A row's probabilities depend
    on no other row, and what they say about a person is what that person's own columns say.

    Args:
        model: A NumPyro model, whose plate over rows has the length of its arrays.
        draws: Values of the latents, draws along the leading axis: `result.posterior(key, 1000)`,
            or `OPSResult.draws`.
        args: The model's arguments for the rows to predict: arrays have rows along their leading
            axis, all equally many. Pass None for the observation.
        site: Name of the observed site. None: the only sample site that is not among the draws.
        max_elements: Rows x draws x classes worked on at once, so that a million rows and a
            thousand draws fit.
        kwargs: Likewise, and public constants; arrays here are passed whole.

    Returns:
        One row for each row, one column for each class in the order of the site's support, as
        scikit-learn's `predict_proba`; for a Bernoulli the columns are 0 and 1. Of persons with
        several rows (person, row, class); the probabilities of rows that a mask leaves out mean
        nothing.

    Raises:
        ValueError: No such site, one without finitely many values, rows that are seen to be
            coupled, or a latent without draws.

    Example:
        >>> import numpy as np, numpyro, numpyro.distributions as dist
        >>> def model(x, y=None):
        ...     w = numpyro.sample("w", dist.Normal(0, 1))
        ...     with numpyro.plate("data", x.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(logits=x * w), obs=y)
        >>> class_probabilities(model, {"w": np.zeros(10)}, np.ones(3)).tolist()
        [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    """
    draws = {name: jnp.asarray(value) for name, value in draws.items()}
    num_draws = num_draws_of(draws)
    leaves, rebuild = rows_of(args)
    rows = leaves[0].shape[0]
    one = {name: value[0] for name, value in draws.items()}
    name, shape = _find_site(model, one, rebuild([x[:1] for x in leaves]), kwargs, site)
    mean = functools.partial(_mean_over_draws, model, name, rebuild, kwargs)
    # The first row beside the last one must have the probabilities that it has alone.
    single = {name: value[None] for name, value in one.items()}
    alone, beside = (
        np.asarray(mean(single, [x[np.array(at)] for x in leaves]))[0] for at in ([0], [0, -1])
    )
    if not np.allclose(alone, beside, atol=1e-3, equal_nan=True):
        raise ValueError(
            f"The probabilities of {name!r} in one row change with the rows beside it, as where a model takes a mean over "
            "rows. Prepare the columns beforehand by public numbers, and let each row stand for itself."
        )
    batch = int(min(rows, max(1, max_elements // (num_draws * math.prod(shape)))))
    predict = jax.jit(mean)
    out = np.empty((rows, *shape), np.float32)
    for start in range(0, rows, batch):
        # The last batch reaches back over rows that are done, so that one compiled program serves
        # all.
        first = max(0, min(start, rows - batch))
        out[first : first + batch] = predict(draws, [x[first : first + batch] for x in leaves])
    return out


def num_draws_of(draws: Mapping[str, Array]) -> int:
    lengths = {value.shape[0] if value.ndim else 0 for value in draws.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"draws holds arrays with leading axes {sorted(lengths)}; each latent needs one value a draw along its leading axis, "
            "as result.posterior(key, 1000) returns them."
        )
    return lengths.pop()


def rows_of(args: tuple[Any, ...]) -> tuple[list[Array], Callable[[list[Array]], tuple[Any, ...]]]:
    """The arrays among the arguments, and what puts others into their places."""
    leaves, structure = jax.tree.flatten(args, is_leaf=lambda x: x is None)
    places = [i for i, x in enumerate(leaves) if isinstance(x, np.ndarray | jax.Array)]
    arrays = [jnp.asarray(leaves[i]) for i in places]
    lengths = {x.shape[0] if x.ndim else 0 for x in arrays}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"The arrays to predict for have lengths {sorted(lengths)}; pass arrays with one row to predict along the leading "
            "axis each, at least one, and other public arrays as keyword arguments."
        )
    fixed = [None if i in places else x for i, x in enumerate(leaves)]

    def rebuild(rows: list[Array]) -> tuple[Any, ...]:
        filled = list(fixed)
        for place, value in zip(places, rows, strict=True):
            filled[place] = value
        return jax.tree.unflatten(structure, filled)

    return arrays, rebuild


def trace_at(
    model: Model, draw: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    program = handlers.seed(handlers.substitute(model, data=dict(draw)), jax.random.key(0))
    try:
        return trace_of(program, *args, **kwargs)
    except (AttributeError, TypeError, ValueError) as error:
        if without := left_out(model, args, kwargs):
            raise ValueError(f"The model fails: {error}. {without.rstrip()}") from error
        raise


def _find_site(
    model: Model,
    draw: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    asked: str | None,
) -> tuple[str, tuple[int, ...]]:
    """The observed site's name, and the shape of one row's probabilities: classes, of persons with several rows after rows."""
    name, fn = site_of(model, draw, args, kwargs, asked)
    if not fn.has_enumerate_support:
        raise ValueError(
            f"The site {name!r} has the distribution {type(fn).__name__}, whose values cannot be listed, so there are no classes "
            "to predict. Bernoulli and Categorical observations have some; for others use model_predictions."
        )
    if fn.event_shape or fn.batch_shape[:1] != (1,) or len(fn.batch_shape) > 2:
        raise ValueError(
            f"The site {name!r} has shape {(*fn.batch_shape, *fn.event_shape)} for one row; a class a row has (1,), and of a "
            "person with up to R rows (1, R). Put the site into a plate of the rows' number, without to_event."
        )
    return name, (*fn.batch_shape[1:], int(fn.enumerate_support(expand=False).shape[0]))


def site_of(
    model: Model,
    draw: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    asked: str | None,
) -> tuple[str, Any]:
    """The name of the site that is predicted, and its distribution for one row.

    Raises:
        ValueError: No such site, several of them, or a latent without draws.
    """
    found = {
        n: s
        for n, s in trace_at(model, draw, args, kwargs).items()
        if s["type"] == "sample" and n not in draw
    }
    names = sorted(found)
    if asked is None and len(names) != 1:
        raise ValueError(
            f"The model's sample sites without draws are {names}, and exactly one of them must be what is predicted. Name it "
            "with site=, and pass draws of all latents."
        )
    name = names[0] if asked is None else asked
    if name not in found:
        raise ValueError(
            f"The model has no sample site {name!r} to predict; those without draws are {names}."
        )
    if missing := [n for n in names if n != name and not found[n]["is_observed"]]:
        raise ValueError(
            f"The latent {missing[0]!r} has no draws, so the probabilities of {name!r} given it are not known. Pass its draws, "
            "or sum it out of the model."
        )
    return name, without_mask(found[name]["fn"])


def without_mask(fn: Any) -> Any:
    """Remove masks, so that masked rows have probabilities, too."""
    return without_mask(fn.base_dist) if isinstance(fn, MaskedDistribution) else fn


def _mean_over_draws(
    model: Model,
    name: str,
    rebuild: Callable[[list[Array]], tuple[Any, ...]],
    kwargs: Mapping[str, Any],
    draws: Mapping[str, Array],
    leaves: list[Array],
) -> Float[Array, "row *more class"]:
    def one(draw: Mapping[str, Array]) -> Float[Array, "class row *more"]:
        fn = without_mask(trace_at(model, draw, rebuild(leaves), kwargs)[name]["fn"])
        return jnp.exp(fn.log_prob(fn.enumerate_support(expand=False)))

    return jnp.moveaxis(jnp.mean(jax.vmap(one)(draws), axis=0), 0, -1)


# Logistic regression with a Gaussian posterior.


def linear_predictor(
    x: ArrayLike,
    *,
    draws: ArrayLike | None = None,
    loc: ArrayLike | None = None,
    scale: ArrayLike | None = None,
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """Mean and variance of x @ w for each row, over the posterior of the weights w.

    Args:
        x: Rows to predict for, (row, column); a column of ones for an intercept that is among the
            weights.
        draws: Posterior draws of w, (draw, column), at least two. Their covariance is used, so
            memory is that of x.
        loc: Instead of draws, the mean of a Gaussian posterior, (column,): AutoNormal's
            `w_auto_loc`.
        scale: With `loc`: standard deviations (column,), AutoNormal's `w_auto_scale`; or a lower
            Cholesky factor of the covariance (column, column), AutoMultivariateNormal's
            `auto_scale_tril`.

    Returns:
        Mean and variance of each row, in log-odds and their square.

    Raises:
        ValueError: Neither draws nor loc and scale, or shapes that do not fit.

    Example:
        >>> mean, variance = linear_predictor([[1.0, 2.0]], loc=[0.5, -1.0], scale=[1.0, 0.5])
        >>> mean.tolist(), variance.tolist()
        ([-1.5], [2.0])
    """
    rows = np.asarray(x, np.float64)
    if rows.ndim != 2:
        raise ValueError(f"x has shape {rows.shape}; pass rows as (row, column).")
    columns = rows.shape[1]
    if (draws is None) == (loc is None) or (loc is None) != (scale is None):
        raise ValueError("linear_predictor needs either draws, or loc together with scale.")
    if draws is not None:
        values = np.asarray(draws, np.float64)
        if values.ndim != 2 or values.shape[1] != columns or len(values) < 2:
            raise ValueError(
                f"draws has shape {values.shape}; pass at least two draws of the {columns} weights, (draw, column)."
            )
        # The right factor of the centred draws has their covariance, in (column, column) numbers.
        factor = np.asarray(
            np.linalg.qr((values - values.mean(axis=0)) / math.sqrt(len(values) - 1), mode="r")
        ).T
        return rows @ values.mean(axis=0), np.square(rows @ factor).sum(axis=1)
    mean = np.asarray(loc, np.float64)
    spread = np.asarray(scale, np.float64)
    if mean.shape != (columns,) or spread.shape not in ((columns,), (columns, columns)):
        raise ValueError(
            f"loc has shape {mean.shape} and scale {spread.shape}; for x with {columns} columns they are ({columns},) and "
            f"({columns},), or ({columns}, {columns}) for a Cholesky factor."
        )
    factor = np.diag(spread) if spread.ndim == 1 else spread
    return rows @ mean, np.square(rows @ factor).sum(axis=1)


def probit_probabilities(mean: ArrayLike, variance: ArrayLike) -> Float[np.ndarray, " row"]:
    """Approximates E[sigmoid(a)] for a ~ N(mean, variance) by sigmoid(mean / sqrt(1 + pi variance / 8)).

    Within 0.02 of the integral; never on the other side of 1/2 than the plug-in sigmoid(mean), and
    nearer to 1/2.

    Args:
        mean: Mean of each row's linear predictor, in log-odds.
        variance: Likewise, at least 0.

    Returns:
        Probabilities of class 1.

    Raises:
        ValueError: A variance below 0 or not a number.

    Reference:
        Spiegelhalter, Lauritzen, Networks 1990; MacKay, Neural Computation 1992. UAI 2017, Section
        4.1, classifies by "an additional Laplace approximation".

    Example:
        >>> round(float(probit_probabilities(2.0, 0.0)), 4), round(float(probit_probabilities(2.0, 8.0)), 4)
        (0.8808, 0.7277)
    """
    spread = np.asarray(variance, np.float64)
    if not (spread >= 0).all():
        raise ValueError("variance holds a number below 0, or NaN; a variance is at least 0.")
    return expit(np.asarray(mean, np.float64) / np.sqrt(1 + math.pi * spread / 8))
