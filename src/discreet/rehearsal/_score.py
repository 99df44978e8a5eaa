"""How good a fit of an invented table is: on rows that it did not see, or against the truth itself."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.handlers as handlers
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from discreet.models import MixtureOfProducts
from discreet.rehearsal._invent import InventedTable

LOG_DENSITY = "log density"
AUC, ACCURACY, R_SQUARED = "AUC", "accuracy", "R²"
ONE_WAY, TWO_WAY = "distance of columns", "distance of pairs"
_SMALLER_IS_BETTER = (ONE_WAY, TWO_WAY)
_DRAWS = 32

Scores = dict[str, float]


def better_is_larger(measure: str) -> bool:
    """Whether larger values of a measure are better."""
    return measure not in _SMALLER_IS_BETTER


@dataclasses.dataclass(frozen=True, eq=False)
class Judge:
    """Scores parameters on a table's held-out rows.

    Attributes:
        objective: Of the fits.
        observed: Site of the model at which each of its arguments is observed.
        start: Initial parameters.
        twin: The mixture, where that is the model.
    """

    objective: Any
    observed: Mapping[str, int]
    start: Any
    twin: MixtureOfProducts | None = None

    def __call__(self, psi: Mapping[str, Any], table: InventedTable) -> Scores:
        """The measures by name: mean log predictive density a held-out record in nats, and what suits the model."""
        rows, key = table.held_out, jax.random.key(0)
        scores = {LOG_DENSITY: float(self._log_density(psi, rows, key))}
        if self.twin is not None:
            latents = self.objective.draw_posterior(self.objective.constrain(psi), key, _DRAWS)
            return scores | marginal_errors(self.twin, latents, table.truth)
        site = self._regression_site(rows)
        if site is None:
            return scores
        predicted = np.asarray(self._means(site, psi, rows, key), np.float64)
        return scores | prediction_scores(table.held_out[self.observed[site]], predicted)

    def width(self, private: Mapping[str, Any], non_private: Mapping[str, Any]) -> float:
        """How far one fit's latents are from another's, in standard deviations of the other: root mean square."""
        means, _ = self._moments(private, jax.random.key(1))
        other, stddevs = self._moments(non_private, jax.random.key(1))
        return float(np.sqrt(np.mean(np.square((np.asarray(means) - np.asarray(other)) / np.asarray(stddevs)))))

    @functools.partial(jax.jit, static_argnums=0)
    def _log_density(self, psi: Any, rows: list[Array], key: PRNGKeyArray) -> Float[Array, ""]:
        objective = self.objective

        def one(draw: PRNGKeyArray) -> Float[Array, " record"]:
            u, _ = objective.link(psi, draw)
            return -jax.vmap(lambda row: objective.record_loss(u, row, draw))(rows)

        each = jax.lax.map(one, jax.random.split(key, _DRAWS))
        return jnp.mean(jax.nn.logsumexp(each, axis=0)) - math.log(_DRAWS)

    @functools.partial(jax.jit, static_argnums=0)
    def _moments(self, psi: Any, key: PRNGKeyArray) -> tuple[Array, Array]:
        def one(draw: PRNGKeyArray) -> Array:
            u, _ = self.objective.link(psi, draw)
            return ravel_pytree(u)[0]

        drawn = jax.vmap(one)(jax.random.split(key, 8 * _DRAWS))
        return jnp.mean(drawn, axis=0), jnp.std(drawn, axis=0)

    def _regression_site(self, rows: Sequence[Any]) -> str | None:
        """The one site that observes a number for each row, if its distribution has a mean."""
        sites = [name for name, place in self.observed.items() if rows[place].ndim == 1]
        if len(sites) != 1:
            return None
        try:
            shape = jax.eval_shape(lambda: self._means(sites[0], self.start, rows, jax.random.key(0))).shape
        except (NotImplementedError, AttributeError):
            return None
        return sites[0] if shape == rows[0].shape[:1] else None

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def _means(self, site: str, psi: Any, rows: list[Array], key: PRNGKeyArray) -> Float[Array, " record"]:
        """The posterior predictive mean of each row."""
        objective = self.objective
        latents = objective.draw_posterior(objective.constrain(psi), key, _DRAWS)
        args, kwargs = objective.records.rebuild(rows)

        def one(values: dict[str, Array]) -> Array:
            seeded = handlers.substitute(handlers.seed(objective.model, key), data=values)
            trace = handlers.trace(seeded).get_trace(*args, **kwargs, **objective.static)
            return jnp.asarray(trace[site]["fn"].mean)

        return jnp.mean(jax.lax.map(one, latents), axis=0)


def prediction_scores(target: np.ndarray, predicted: Float[np.ndarray, " record"]) -> Scores:
    """AUC and accuracy of a 0/1 target, R² of another; nothing where they are undefined.

    >>> prediction_scores(np.array([0.0, 1.0, 1.0]), np.array([0.1, 0.7, 0.4]))
    {'AUC': 1.0, 'accuracy': 0.6666666666666666}
    """
    target = np.asarray(target, np.float64)
    values = np.unique(target)
    if len(values) < 2 or not np.isfinite(predicted).all():
        return {}
    if set(values) <= {0.0, 1.0}:
        from sklearn.metrics import roc_auc_score

        accuracy = np.mean((predicted > 0.5) == (target > 0.5))
        return {AUC: float(roc_auc_score(target, predicted)), ACCURACY: float(accuracy)}
    residual = np.sum(np.square(target - predicted))
    return {R_SQUARED: float(1 - residual / np.sum(np.square(target - target.mean())))}


def marginal_errors(twin: MixtureOfProducts, latents: Mapping[str, Any], truth: Mapping[str, Any]) -> Scores:
    """Mean total variation distance of single columns and of pairs, between posterior draws of the mixture and the truth."""
    firsts = np.cumsum((0, *twin.levels.sizes))
    columns = [slice(a, b) for a, b in itertools.pairwise(firsts)]
    true_one, true_two = _marginals(truth, columns)
    each = [
        _marginals({name: np.asarray(x)[i] for name, x in latents.items()}, columns)
        for i in range(len(np.asarray(latents["component"])))
    ]
    one = np.abs(np.mean([a for a, _ in each], axis=0) - true_one)
    two = np.abs(np.mean([b for _, b in each], axis=0) - true_two)
    scores = {ONE_WAY: float(np.mean([one[at].sum() / 2 for at in columns]))}
    pairs = [two[a, b].sum() / 2 for i, a in enumerate(columns) for b in columns[i + 1 :]]
    return scores | ({TWO_WAY: float(np.mean(pairs))} if pairs else {})


def _marginals(latents: Mapping[str, Any], columns: Sequence[slice]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the levels, and of pairs of levels, in a mixture of products."""
    component = np.asarray(latents["component"], np.float64)
    logits = np.asarray(latents["base"], np.float64) + np.asarray(latents["deviations"], np.float64)
    weights = _softmax(component)
    levels = np.concatenate([_softmax(logits[:, at]) for at in columns], axis=1)
    return weights @ levels, (levels.T * weights) @ levels


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
