"""Draws of means and of new outcomes for new rows, and log densities of known ones, of any NumPyro model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from numpyro.distributions import CategoricalLogits, CategoricalProbs

from discreet._validate import ENDS
from discreet.methods.predict._classes import (
    Model,
    num_draws_of,
    rows_of,
    site_of,
    trace_at,
    without_mask,
)
from discreet.privacy import random


@dataclasses.dataclass(frozen=True, repr=False)
class Predictions:
    """Predictions for new rows. A row's say what its own cells say: the fit's statement does not protect the new rows.

    Attributes:
        estimate: The best prediction of each row's mean, (row,); of classes their probabilities,
            (row, class).
        mean: Draws of it, (draw, row) or (draw, row, class): their spread has privacy and sampling
            noise of the fit in it.
        outcomes: A new outcome for each of these draws, (draw, row); of classes their positions.
    """

    estimate: Float[np.ndarray, "row *class"]
    mean: Float[np.ndarray, "draw row *class"]
    outcomes: Float[np.ndarray, "draw row"]

    @property
    def interval(self) -> Float[np.ndarray, "2 row *class"]:
        """The 90 % interval of each row's mean, or probabilities: low and high."""
        return np.quantile(self.mean, ENDS, axis=0)

    @property
    def outcome_interval(self) -> Float[np.ndarray, "2 row"]:
        """The 90 % interval of a new outcome of each row: low and high. Means little of classes."""
        return np.quantile(self.outcomes, ENDS, axis=0)

    def __repr__(self) -> str:
        """Short, without arrays."""
        return f"Predictions({self.mean.shape[1]:,} rows, {len(self.mean):,} draws)"


def model_predictions(
    key: PRNGKeyArray,
    model: Model,
    draws: Mapping[str, Any],
    *args: Any,
    site: str | None = None,
    **kwargs: Any,
) -> Predictions:
    """Predict new rows by a NumPyro model and draws of its latents. Costs nothing.

    Args:
        key: Any JAX key, for the outcomes.
        model: The model, whose plate over rows has the length of its arrays.
        draws: Values of the latents, draws along the leading axis: `result.posterior(key, 1000)`.
        args: The model's arguments for the new rows, with None for the observation.
        site: Name of the observed site. None: the only sample site that is not among the draws.
        kwargs: As args, and public constants.

    Returns:
        Draws for each row. `estimate` is the mean over draws.

    Raises:
        ValueError: No such site, a latent without draws, or arrays of several lengths.
    """
    draws = {name: jnp.asarray(value) for name, value in draws.items()}
    num_draws = num_draws_of(draws)
    rows_of(args)  # refuses arrays of several lengths
    name, fn = site_of(model, {name: value[0] for name, value in draws.items()}, args, kwargs, site)
    classes = isinstance(fn, CategoricalLogits | CategoricalProbs)

    def one(draw: Mapping[str, Any], key: Any) -> tuple[Any, Any]:
        fn = without_mask(trace_at(model, draw, args, kwargs)[name]["fn"])
        return fn.probs if classes else fn.mean, fn.sample(key)

    # JAX draws Poisson numbers by its own keys alone, and what follows from releases needs no
    # better ones.
    keys = jax.random.split(random.as_threefry(key), num_draws)
    found = jax.jit(lambda *over: jax.lax.map(lambda x: one(*x), over))(draws, keys)
    mean, outcomes = map(np.asarray, found)
    return Predictions(mean.mean(axis=0), mean, outcomes)


def log_density_of(
    model: Model, draws: Mapping[str, Any], *, site: str | None = None, **kwargs: Any
) -> Callable[..., Float[np.ndarray, " row"]]:
    """The log of the mean density, over draws, of each row's known outcome, as a function that is compiled once.

    Args:
        model: As in `model_predictions`.
        draws: As there.
        site: As there.
        kwargs: Public constants of the model.

    Returns:
        A function of the model's arguments for rows with their outcomes. It gives one number a row,
        in nats, and these are not private; of a row of several numbers, or rows of a person, their
        sum. It raises what `model_predictions` does, and a ValueError without outcomes.
    """
    draws = {name: jnp.asarray(value) for name, value in draws.items()}
    of_draws = math.log(num_draws_of(draws))

    @jax.jit
    def densities(draws: Mapping[str, Any], args: tuple[Any, ...]) -> Any:
        name, _ = site_of(
            model, {name: value[0] for name, value in draws.items()}, args, kwargs, site
        )

        def one(draw: Mapping[str, Any]) -> Any:
            found = trace_at(model, draw, args, kwargs)[name]
            if not found["is_observed"]:
                raise ValueError(
                    f"The model draws {name!r} itself, so there is no known outcome: pass the outcomes of the rows, too."
                )
            density = found["fn"].log_prob(found["value"])
            return density.reshape(len(density), -1).sum(axis=1)

        return jax.nn.logsumexp(jax.lax.map(one, draws), axis=0) - of_draws

    def log_densities(*args: Any) -> np.ndarray:
        rows_of(args)  # refuses arrays of several lengths
        return np.asarray(densities(draws, args), np.float64)

    return log_densities
