"""A mixture of products for tables of mixed columns: what a synthetic twin is drawn from unless you know better."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpyro.distributions import constraints
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoNormal

from discreet.models._levels import Levels
from discreet.tables import Schema

if TYPE_CHECKING:
    import pyarrow


@dataclasses.dataclass(frozen=True)
class MixtureOfProducts:
    """A table's rows come from a few components; given its component, a row's cells are independent of each other.

    Made from the public schema alone. Each cell is one of its column's public levels (`Levels`): a category, a slice of the
    bounds, or "missing". Component k gives the levels of a column the probabilities softmax(base + deviations[k]), and a
    row belongs to it with probability softmax(component)[k]; which one is summed out. `base`, which all components share,
    learns from every record, so that single columns come out well where the noise leaves nothing to tell components by.

    A record's gradient is never longer than `gradient_bound`, however strange its cells: a clipping norm is easily chosen.

    Priors: component Normal(0, 1), base Normal(0, 3), deviations Normal(0, 1); all of them logits.

    Attributes:
        schema: The public description of the table.
        components: Number of components, 1 at least.
        slices: Most slices of a column of numbers; see `Levels`.

    Example::

        twin = MixtureOfProducts(schema)
        optim = numpyro.optim.Adam(0.05)
        dpsvi = dp.DPSVI(twin.model, twin.guide(), optim, plan=plan, placeholder=twin.placeholder)
        result = dpsvi.run(dp.random.key(), twin.encode(table))

    Reference:
        Jälkö, Lagerspetz, Haukka, Tarkoma, Honkela and Kaski, "Privacy-preserving data sharing via probabilistic modeling",
        Patterns 2(7), 2021.
    """

    schema: Schema
    components: int = 16
    slices: int = 32

    def __post_init__(self) -> None:
        if isinstance(self.components, bool) or not isinstance(self.components, int) or self.components < 1:
            raise ValueError(f"components is {self.components!r}; a mixture has a whole number of them, 16 say.")
        Levels(self.schema, self.slices)

    @functools.cached_property
    def levels(self) -> Levels:
        """The public levels of the columns."""
        return Levels(self.schema, self.slices)

    @property
    def placeholder(self) -> tuple[Int[np.ndarray, "1 column"]]:
        """A made-up record, for `DPSVI(placeholder=...)`, which then need not look for one: that takes seconds."""
        return (np.zeros((1, len(self.schema.columns)), np.int32),)

    @property
    def gradient_bound(self) -> float:
        """L2 bound on the gradient of any record: the square root of 4 times the number of columns, plus 2.

        In the logits of a column it is a difference of two distributions over its levels, at most the square root of 2 long:
        once for `base`, once for all the deviations together; and once for the components.
        """
        return math.sqrt(4 * len(self.schema.columns) + 2)

    def encode(self, table: Any, *, out_of_bounds: str = "refuse") -> Int[np.ndarray, "record column"]:
        """The records that `model` takes: `Levels.encode`."""
        return self.levels.encode(table, out_of_bounds=out_of_bounds)

    def model(self, records: Int[Array, "record column"]) -> None:
        """The NumPyro model.

        Args:
            records: The level of each cell; a level that its column does not have counts as none.
        """
        sizes, components = self.levels.sizes, self.components
        component = numpyro.sample("component", dist.Normal(0.0, 1.0).expand([components]).to_event(1))
        base = numpyro.sample("base", dist.Normal(0.0, 3.0).expand([sum(sizes)]).to_event(1))
        deviations = numpyro.sample("deviations", dist.Normal(0.0, 1.0).expand([components, sum(sizes)]).to_event(2))
        mixture = LevelsMixture(component, base + deviations, sizes)
        with numpyro.plate("data", records.shape[0]):
            numpyro.sample("records", mixture, obs=records)

    def guide(self, *, seed: int = 0, spread: float = 0.5) -> AutoNormal:
        """Independent normals, started where components differ: alike, they would stay alike.

        Args:
            seed: Of the public numbers that the deviations start from.
            spread: Their standard deviation.
        """
        total = sum(self.levels.sizes)
        rng = np.random.default_rng(seed)
        start = {
            "component": np.zeros(self.components, np.float32),
            "base": np.zeros(total, np.float32),
            "deviations": spread * rng.standard_normal((self.components, total), dtype=np.float32),
        }
        return AutoNormal(self.model, init_loc_fn=init_to_value(values=start), init_scale=0.05)

    def draw(self, latents: Mapping[str, Any], num_records: int, rng: np.random.Generator) -> pyarrow.Table:
        """A table of rows drawn from the mixture at one value of its latents.

        Args:
            latents: One draw of `component`, `base` and `deviations`, as `result.posterior` has them, without its leading axis.
            num_records: Number of rows.
            rng: Where the draws come from.

        Returns:
            A pyarrow table of the schema's columns, as `Levels.decode` makes it.
        """
        component, base, deviations = (
            np.asarray(latents[name], np.float64) for name in ("component", "base", "deviations")
        )
        shares = np.exp(component - component.max())
        counts = rng.multinomial(num_records, shares / shares.sum())
        ends = np.cumsum(counts)
        logits = base + deviations
        order = rng.permutation(num_records)
        drawn = np.empty((len(self.levels.sizes), num_records), np.int32)
        for column, (first, size) in enumerate(zip(_firsts(self.levels.sizes), self.levels.sizes, strict=True)):
            block = logits[:, first : first + size]
            weights = np.exp(block - block.max(axis=1, keepdims=True))
            below = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
            uniform, found = rng.random(num_records), np.empty(num_records, np.int32)
            for k, (end, count) in enumerate(zip(ends, counts, strict=True)):
                # Without the last edge, rounding of the sum cannot give a level that is not there.
                found[end - count : end] = np.searchsorted(below[k, :-1], uniform[end - count : end], side="right")
            drawn[column] = found[order]
        return self.levels.decode(drawn.T, rng)


def _firsts(sizes: tuple[int, ...]) -> list[int]:
    """Where each column's levels begin when those of all columns stand in a row."""
    return [0, *np.cumsum(sizes)[:-1].tolist()]


# Compiled as a whole also where a model is only traced: op by op, that takes longer than the whole fit.
@functools.partial(jax.jit, static_argnums=3)
def _log_density(
    value: Int[Array, "*batch column"],
    component: Float[Array, " component"],
    logits: Float[Array, "component level"],
    sizes: tuple[int, ...],
) -> Float[Array, "*batch"]:
    blocks = jnp.split(logits, np.cumsum(sizes)[:-1], axis=1)
    ones = jnp.concatenate([jax.nn.one_hot(value[..., i], size) for i, size in enumerate(sizes)], axis=-1)
    # One product for all columns. The normaliser is the same for every row, so that a row's gradient is cheap.
    normaliser = sum(jax.nn.logsumexp(block, axis=1) for block in blocks)
    in_each = ones @ logits.T - normaliser
    return jax.nn.logsumexp(in_each + jax.nn.log_softmax(component), axis=-1)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _draw_rows(
    key: PRNGKeyArray,
    component: Float[Array, " component"],
    logits: Float[Array, "component level"],
    sizes: tuple[int, ...],
    shape: tuple[int, ...],
) -> Int[Array, "*batch column"]:
    component_key, *keys = jax.random.split(key, 1 + len(sizes))
    drawn = jax.random.categorical(component_key, component, shape=shape)
    blocks = jnp.split(logits, np.cumsum(sizes)[:-1], axis=1)
    cells = [jax.random.categorical(k, block[drawn]) for k, block in zip(keys, blocks, strict=True)]
    return jnp.stack(cells, axis=-1)


class LevelsMixture(dist.Distribution):
    """Distribution of a row of levels, with the component summed out.

    Args:
        component: Logits of the components.
        logits: Of the levels in each component, the columns' levels standing in a row.
        sizes: Number of levels of each column.
    """

    arg_constraints: ClassVar = {}
    support = constraints.independent(constraints.nonnegative_integer, 1)  # pyright: ignore[reportAssignmentType]
    pytree_data_fields = ("component", "logits")
    pytree_aux_fields = ("sizes",)

    def __init__(
        self,
        component: Float[Array, " component"],
        logits: Float[Array, "component level"],
        sizes: tuple[int, ...],
        *,
        validate_args: bool | None = None,
    ) -> None:
        """See the class."""
        self.component, self.logits, self.sizes = component, logits, sizes
        super().__init__(batch_shape=(), event_shape=(len(sizes),), validate_args=validate_args)

    def log_prob(self, value: Int[Array, "*batch column"]) -> Float[Array, "*batch"]:
        """Log probability of rows, in nats."""
        return _log_density(value, self.component, self.logits, self.sizes)

    def sample(self, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()) -> Int[Array, "*batch column"]:
        """Rows of levels."""
        return _draw_rows(key, self.component, self.logits, self.sizes, tuple(sample_shape))
