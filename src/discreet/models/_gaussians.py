"""Models for tables of numbers: a mixture of Gaussians, and factor analysis."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoNormal

from discreet.models._scores import Scores
from discreet.tables import Schema

if TYPE_CHECKING:
    import pyarrow

# Least standard deviation, in scores. Columns of few counts, or of one value mostly, would draw a component upon that value.
_LEAST_SCALE = 0.1


@dataclasses.dataclass(frozen=True)
class _OfNumbers:
    """A table of numbers as a model takes it: by their scores."""

    schema: Schema

    @functools.cached_property
    def scores(self) -> Scores:
        """The public scale of the columns."""
        return Scores(self.schema)

    @property
    def placeholder(self) -> tuple[Float[np.ndarray, "1 column"]]:
        """A made-up record, for `DPSVI(placeholder=...)`: the middle of all bounds."""
        return _middle(self.schema)

    def encode(self, table: Any, *, out_of_bounds: str = "refuse") -> Float[np.ndarray, "record column"]:
        """The records that `model` takes: `Scores.encode`."""
        return self.scores.encode(table, out_of_bounds=out_of_bounds)


@dataclasses.dataclass(frozen=True)
class GaussianMixture(_OfNumbers):
    """A table of numbers whose rows come from a few components, each a normal distribution with a diagonal covariance.

    Made from the public schema alone, of columns with bounds. Cells are normal scores (`Scores`), so that every draw
    is a cell within its bounds. Component k has the mean means[k] and the standard deviations 0.1 + scales[k]; a row belongs
    to it with probability softmax(component)[k], and which one is summed out.

    Priors: component Normal(0, 1), logits; means Normal(0, 1.5); scales LogNormal(-0.5, 0.75), from 0.14 to 2.6 in 95 of 100
    cases.

    Attributes:
        schema: The public description of the table.
        components: Number of components, 1 at least.

    Raises:
        DataError: A column has categories or missing cells.
        ValueError: No component.

    Example::

        mixture = GaussianMixture(schema)
        dpsvi = dp.DPSVI(mixture.model, mixture.guide(), numpyro.optim.Adam(0.02), plan=plan, placeholder=mixture.placeholder)
        result = dpsvi.run(dp.random.key(), mixture.encode(table))

    Reference:
        Jälkö, Dikmen and Honkela, "Differentially private variational inference for non-conjugate models", UAI 2017.
    """

    components: int = 8

    def __post_init__(self) -> None:
        _check("components", self.components, "a mixture has a whole number of them, 8 say.")
        Scores(self.schema)

    def model(self, records: Float[Array, "record column"]) -> None:
        """The NumPyro model.

        Args:
            records: The score of each cell.
        """
        shape = (self.components, len(self.schema.columns))
        component: Any = numpyro.sample("component", dist.Normal(0.0, 1.0).expand([self.components]).to_event(1))
        means: Any = numpyro.sample("means", dist.Normal(0.0, 1.5).expand(shape).to_event(2))
        scales: Any = numpyro.sample("scales", dist.LogNormal(-0.5, 0.75).expand(shape).to_event(2))
        rows = dist.Normal(means, _LEAST_SCALE + scales).to_event(1)
        with numpyro.plate("data", records.shape[0]):
            numpyro.sample("records", dist.MixtureSameFamily(dist.Categorical(logits=component), rows), obs=records)

    def guide(self, *, seed: int = 0, spread: float = 1.0) -> AutoNormal:
        """Independent normals, started where components differ: alike, they would stay alike.

        Args:
            seed: Of the public numbers that the means start from.
            spread: Their standard deviation, in scores.
        """
        shape = (self.components, len(self.schema.columns))
        start = {
            "component": np.zeros(self.components, np.float32),
            "means": spread * np.random.default_rng(seed).standard_normal(shape, dtype=np.float32),
            "scales": np.full(shape, 0.7, np.float32),
        }
        return AutoNormal(self.model, init_loc_fn=init_to_value(values=start), init_scale=0.05)

    def draw(self, latents: Mapping[str, Any], num_records: int, rng: np.random.Generator) -> pyarrow.Table:
        """A table of rows drawn from the mixture at one value of its latents.

        Args:
            latents: One draw of `component`, `means` and `scales`, as `result.posterior` has them, without its leading axis.
            num_records: Number of rows.
            rng: Where the draws come from.

        Returns:
            A pyarrow table of the schema's columns, as `Scores.decode` makes it.
        """
        component, means, scales = (np.asarray(latents[name], np.float64) for name in ("component", "means", "scales"))
        shares = np.exp(component - component.max())
        drawn = rng.choice(len(shares), size=num_records, p=shares / shares.sum())
        noise = rng.standard_normal((num_records, means.shape[1]))
        return self.scores.decode(means[drawn] + (_LEAST_SCALE + scales[drawn]) * noise)


@dataclasses.dataclass(frozen=True)
class FactorAnalysis(_OfNumbers):
    """A table of numbers whose columns go together because a few unseen factors move them.

    Made from the public schema alone, of columns with bounds. Cells are normal scores (`Scores`), so that every draw
    is a cell within its bounds. A row is centre + loadings · factors + own · noise, factors and noise standard normal. The
    factors are summed out: a row is normal with covariance loadings loadingsᵀ + diag(variance), its variances (0.1 + own)².
    Loadings are known up to a rotation; their product is what a twin follows.

    Priors: centre Normal(0, 1.5), loadings Normal(0, 1), own LogNormal(-0.5, 0.75).

    Attributes:
        schema: The public description of the table.
        factors: Number of factors, 1 at least.

    Raises:
        DataError: A column has categories or missing cells.
        ValueError: No factor.

    Example::

        analysis = FactorAnalysis(schema, factors=2)
        dpsvi = dp.DPSVI(analysis.model, analysis.guide(), numpyro.optim.Adam(0.02), plan=plan, placeholder=analysis.placeholder)
        result = dpsvi.run(dp.random.key(), analysis.encode(table))
    """

    factors: int = 2

    def __post_init__(self) -> None:
        _check("factors", self.factors, "a factor analysis has a whole number of them, 2 say.")
        Scores(self.schema)

    def model(self, records: Float[Array, "record column"]) -> None:
        """The NumPyro model.

        Args:
            records: The score of each cell.
        """
        columns = len(self.schema.columns)
        centre: Any = numpyro.sample("centre", dist.Normal(0.0, 1.5).expand([columns]).to_event(1))
        loadings: Any = numpyro.sample("loadings", dist.Normal(0.0, 1.0).expand([columns, self.factors]).to_event(2))
        own: Any = numpyro.sample("own", dist.LogNormal(-0.5, 0.75).expand([columns]).to_event(1))
        rows = dist.LowRankMultivariateNormal(centre, loadings, jnp.square(_LEAST_SCALE + own))
        with numpyro.plate("data", records.shape[0]):
            numpyro.sample("records", rows, obs=records)

    def guide(self, *, seed: int = 0, spread: float = 0.3) -> AutoNormal:
        """Independent normals, started where factors differ: alike, or at zero, they would stay so.

        Args:
            seed: Of the public numbers that the loadings start from.
            spread: Their standard deviation, in scores.
        """
        columns = len(self.schema.columns)
        start = {
            "centre": np.zeros(columns, np.float32),
            "loadings": spread * np.random.default_rng(seed).standard_normal((columns, self.factors), dtype=np.float32),
            "own": np.full(columns, 0.7, np.float32),
        }
        return AutoNormal(self.model, init_loc_fn=init_to_value(values=start), init_scale=0.05)

    def draw(self, latents: Mapping[str, Any], num_records: int, rng: np.random.Generator) -> pyarrow.Table:
        """A table of rows drawn at one value of the latents.

        Args:
            latents: One draw of `centre`, `loadings` and `own`, as `result.posterior` has them, without its leading axis.
            num_records: Number of rows.
            rng: Where the draws come from.

        Returns:
            A pyarrow table of the schema's columns, as `Scores.decode` makes it.
        """
        centre, loadings, own = (np.asarray(latents[name], np.float64) for name in ("centre", "loadings", "own"))
        factors = rng.standard_normal((num_records, loadings.shape[1]))
        noise = rng.standard_normal((num_records, len(centre)))
        return self.scores.decode(centre + factors @ loadings.T + (_LEAST_SCALE + own) * noise)


def _middle(schema: Schema) -> tuple[Float[np.ndarray, "1 column"]]:
    return (np.zeros((1, len(schema.columns)), np.float32),)


def _check(name: str, value: int, remedy: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; {remedy}")
