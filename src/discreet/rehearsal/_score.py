"""How good a fit of an invented table is: on rows that it did not see, or against the truth itself."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.handlers as handlers
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions import biject_to

from discreet.models import MixtureOfProducts
from discreet.rehearsal._invent import InventedTable

LOG_DENSITY = "log density"
AUC, ACCURACY, R_SQUARED = "AUC", "accuracy", "R²"
ONE_WAY, TWO_WAY = "distance of columns", "distance of pairs"
_SMALLER_IS_BETTER = (ONE_WAY, TWO_WAY)
_DRAWS = 256

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
        twin: The mixture, where that is the model.
        site: The one site that observes a number for each row, if its distribution has a mean.
    """

    objective: Any
    observed: Mapping[str, int]
    twin: MixtureOfProducts | None = None
    site: str | None = None

    @classmethod
    def of(
        cls,
        objective: Any,
        observed: Mapping[str, int],
        twin: MixtureOfProducts | None,
        start: Any,
        rows: Sequence[Any],
    ) -> Judge:
        """A judge that has found out what predictions there are; of parameters and rows only shapes are used."""
        bare = cls(objective, observed, twin)
        sites = [name for name, place in observed.items() if rows[place].ndim == 1]
        if len(sites) != 1:
            return bare
        u, _ = jax.eval_shape(objective.link, start, jax.random.key(0))
        try:
            shape = jax.eval_shape(lambda u, rows: bare._means(sites[0], u, rows), u, list(rows)).shape
        except (NotImplementedError, AttributeError):
            return bare
        return dataclasses.replace(bare, site=sites[0]) if shape == rows[0].shape[:1] else bare

    def __call__(self, psi: Mapping[str, Any], table: InventedTable) -> Scores:
        """The measures by name, at the mean of the fitted guide: log density a held-out record in nats, and what suits it."""
        means, _ = self._moments(psi, jax.random.key(0))
        scores = {LOG_DENSITY: float(self._log_density(means, table.held_out))}
        if self.twin is not None:
            latents = {name: np.asarray(value)[0] for name, value in means["latent"].items()}
            return scores | marginal_errors(self.twin, latents, table.truth)
        if self.site is None:
            return scores
        predicted = np.asarray(self._means(self.site, means, table.held_out), np.float64)
        return scores | prediction_scores(table.held_out[self.observed[self.site]], predicted)

    def width(self, private: Mapping[str, Any], non_private: Mapping[str, Any]) -> float:
        """How far one fit's latents are from another's, in standard deviations of the other: root mean square."""
        means, _ = self._moments(private, jax.random.key(1))
        other, stddevs = self._moments(non_private, jax.random.key(1))
        apart = jax.tree.map(
            lambda x, y, sd: np.ravel((np.asarray(x) - np.asarray(y)) / np.asarray(sd)), means, other, stddevs
        )
        return float(np.sqrt(np.mean(np.square(np.concatenate(jax.tree.leaves(apart))))))

    @functools.partial(jax.jit, static_argnums=0)
    def _log_density(self, u: Any, rows: list[Array]) -> Float[Array, ""]:
        key = jax.random.key(0)
        return -jnp.mean(jax.vmap(lambda row: self.objective.record_loss(u, row, key))(rows))

    @functools.partial(jax.jit, static_argnums=0)
    def _moments(self, psi: Any, key: PRNGKeyArray) -> tuple[Any, Any]:
        """Means and standard deviations of what the guide draws, unconstrained."""
        drawn = jax.vmap(lambda draw: self.objective.link(psi, draw)[0])(jax.random.split(key, _DRAWS))
        return jax.tree.map(lambda x: jnp.mean(x, axis=0), drawn), jax.tree.map(lambda x: jnp.std(x, axis=0), drawn)

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def _means(self, site: str, u: Any, rows: Sequence[Any]) -> Float[Array, " record"]:
        """What is expected of each row."""
        objective = self.objective
        args, kwargs = objective.records.rebuild(rows)

        def from_u(at: dict[str, Any]) -> Any:
            if at["type"] == "sample" and at["name"] in u["latent"]:
                return biject_to(at["fn"].support)(u["latent"][at["name"]][0])
            return None

        seeded = handlers.substitute(handlers.seed(objective.model, jax.random.key(0)), substitute_fn=from_u)
        trace = handlers.trace(seeded).get_trace(*args, **kwargs, **objective.static)
        return jnp.asarray(trace[site]["fn"].mean)


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
    """Mean total variation distance of single columns and of pairs, between two mixtures."""
    firsts = np.cumsum((0, *twin.levels.sizes))
    columns = [slice(a, b) for a, b in itertools.pairwise(firsts)]
    found, true = _marginals(latents, columns), _marginals(truth, columns)
    one, two = (np.abs(x - y) for x, y in zip(found, true, strict=True))
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
