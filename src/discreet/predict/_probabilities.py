"""Class probabilities of new rows under any NumPyro model with an observation that has finitely many values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.handlers as handlers
from jaxtyping import Array, Float
from numpyro.infer.util import constrain_fn, unconstrain_fn

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

    Reads the draws, which are released, and the rows to predict for. A row's probabilities depend on no other row, and
    what they say about a person is what that person's own columns say.

    Args:
        model: a NumPyro model, whose plate over rows has the length of its arrays.
        draws: values of the latents, draws along the leading axis: `result.posterior(key, 1000)`, or `OPSResult.draws`.
        args: the model's arguments for the rows to predict: arrays have rows along their leading axis, all equally many.
            Pass None for the observation.
        site: name of the observed site. None: the only sample site that is not among the draws.
        max_elements: rows x draws x classes worked on at once, so that a million rows and a thousand draws fit.
        kwargs: likewise, and public constants; arrays here are passed whole.

    Returns:
        One row for each row, one column for each class in the order of the site's support, as scikit-learn's
        `predict_proba`; for a Bernoulli the columns are 0 and 1.

    Raises:
        ValueError: no such site, one without finitely many values, rows that are coupled, or a latent without draws.

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
    num_draws = _num_draws(draws)
    leaves, rebuild = _rows(args)
    rows = leaves[0].shape[0]
    one = {name: value[0] for name, value in draws.items()}
    name, classes = _find_site(model, one, rebuild([x[:1] for x in leaves]), kwargs, site)
    batch = int(min(rows, max(1, max_elements // (num_draws * classes))))
    predict = jax.jit(functools.partial(_mean_over_draws, model, name, rebuild, kwargs))
    out = np.empty((rows, classes), np.float32)
    for start in range(0, rows, batch):
        # The last batch reaches back over rows that are done, so that one compiled program serves all.
        first = max(0, min(start, rows - batch))
        out[first : first + batch] = predict(draws, [x[first : first + batch] for x in leaves])
    return out


def plug_in_probabilities(
    model: Model, draws: Mapping[str, Any], *args: Any, site: str | None = None, **kwargs: Any
) -> Float[np.ndarray, "row class"]:
    """Class probabilities at one point, the posterior mean in unconstrained space.

    Cheaper than `class_probabilities`, and more certain than the posterior is.

    Args:
        model: as in `class_probabilities`.
        draws: likewise.
        args: likewise.
        site: likewise.
        kwargs: likewise.

    Returns:
        As `class_probabilities`.

    Raises:
        ValueError: likewise.
    """
    draws = {name: jnp.asarray(value) for name, value in draws.items()}
    _num_draws(draws)
    leaves, rebuild = _rows(args)
    few = rebuild([x[:1] for x in leaves])
    name, _ = _find_site(model, {name: value[0] for name, value in draws.items()}, few, kwargs, site)
    # To NumPyro what is predicted is a latent, unless it has some value.
    observed = handlers.condition(model, {name: jnp.zeros(1, jnp.int32)})
    # Supports may depend on other latents, so each draw is taken there by its own transforms.
    seeded = handlers.seed(observed, jax.random.key(0))
    free = jax.vmap(lambda draw: unconstrain_fn(seeded, few, dict(kwargs), draw))(draws)
    mean = constrain_fn(seeded, few, dict(kwargs), jax.tree.map(lambda x: jnp.mean(x, axis=0), free))
    point = {name: jnp.asarray(mean[name])[None] for name in draws}
    return class_probabilities(model, point, *args, site=site, **kwargs)


def _num_draws(draws: Mapping[str, Array]) -> int:
    lengths = {value.shape[0] if value.ndim else 0 for value in draws.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"draws holds arrays with leading axes {sorted(lengths)}; each latent needs one value a draw along its leading axis, "
            "as result.posterior(key, 1000) returns them."
        )
    return lengths.pop()


def _rows(args: tuple[Any, ...]) -> tuple[list[Array], Callable[[list[Array]], tuple[Any, ...]]]:
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


def _trace(model: Model, draw: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    program = handlers.seed(handlers.substitute(model, data=dict(draw)), jax.random.key(0))
    return handlers.trace(program).get_trace(*args, **kwargs)


def _find_site(
    model: Model, draw: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], asked: str | None
) -> tuple[str, int]:
    """The observed site's name and its number of classes, from one row."""
    found = {n: s for n, s in _trace(model, draw, args, kwargs).items() if s["type"] == "sample" and n not in draw}
    names = sorted(found)
    if asked is None and len(names) != 1:
        raise ValueError(
            f"The model's sample sites without draws are {names}, and exactly one of them must be what is predicted. Name it "
            "with site=, and pass draws of all latents."
        )
    name = names[0] if asked is None else asked
    if name not in found:
        raise ValueError(f"The model has no sample site {name!r} to predict; those without draws are {names}.")
    if missing := [n for n in names if n != name and not found[n]["is_observed"]]:
        raise ValueError(
            f"The latent {missing[0]!r} has no draws, so the probabilities of {name!r} given it are not known. Pass its draws, "
            "or sum it out of the model."
        )
    fn = found[name]["fn"]
    if not fn.has_enumerate_support:
        raise ValueError(
            f"The site {name!r} has the distribution {type(fn).__name__}, whose values cannot be listed, so there are no classes "
            "to predict. Bernoulli and Categorical observations have some; for others use numpyro.infer.Predictive."
        )
    if fn.event_shape or fn.batch_shape != (1,):
        raise ValueError(
            f"The site {name!r} has shape {(*fn.batch_shape, *fn.event_shape)} for one row; a class a row has (1,). Put the site "
            "into a plate of the rows' number, without to_event."
        )
    return name, int(fn.enumerate_support(expand=False).shape[0])


def _mean_over_draws(
    model: Model,
    name: str,
    rebuild: Callable[[list[Array]], tuple[Any, ...]],
    kwargs: Mapping[str, Any],
    draws: Mapping[str, Array],
    leaves: list[Array],
) -> Float[Array, "row class"]:
    def one(draw: Mapping[str, Array]) -> Float[Array, "class row"]:
        fn = _trace(model, draw, rebuild(leaves), kwargs)[name]["fn"]
        return jnp.exp(fn.log_prob(fn.enumerate_support(expand=False)))

    return jnp.mean(jax.vmap(one)(draws), axis=0).T
