"""The programs that touch records in a private Newton fit of a NumPyro model, and what of the model is public.

A record's row is the gradient g of its log-likelihood in the unconstrained latents, mapped to z = g @ to. Four kinds of release:

| kind | a record adds | what one record changes |
|---|---|---|
| directions | the outer product of z over its length | at most 1 |
| lengths | one count, in the bin of its length, or of those that are not finite | at most 1 |
| moments | the outer product of z / C, cut to the length 1 | at most 1 |
| gradients | z / C, cut to the length 1 | at most 1 |

Nothing is asked of the model: what is not finite adds nothing, whatever the gradient was. Sums are exact, and rows are computed
alike in every place, as in `_releases`. Which latents no record touches (a hierarchy's mean and scale) the structure tells.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from discreet import random
from discreet.accounting import Relation
from discreet.inference import Latents
from discreet.mechanisms import count_cells, planned_gaussian
from discreet.newton._releases import GRID_OF_PRODUCTS, GRID_OF_SUMS, on_grid, proved, turns_of
from discreet.verify import Certificate, Given, certify

OCTAVES = 24
EDGES = 2.0 ** np.arange(-OCTAVES, OCTAVES + 0.5, 0.5)
"""Of the bins of lengths, half octaves; the first and the last have what is beyond, and one more has what is not finite."""
NUM_BINS = len(EDGES) - 1
KINDS = ("directions", "lengths", "moments", "gradients")


class Public(NamedTuple):
    """What rows are computed with. All of it follows from earlier releases."""

    to: Float[np.ndarray, "latent latent"]  # the map of the gradients
    at: Float[np.ndarray, " latent"]  # the point, of the latents that records touch
    reach: float = 1.0  # C


class PriorDraws(NamedTuple):
    """Mean and covariance of a vector under the prior; what is heavier than a normal's tails is cut."""

    mean: Float[np.ndarray, " latent"]
    covariance: Float[np.ndarray, "latent latent"]


_NUM_PRIOR_DRAWS = 4000
_TAIL = 0.001


@functools.lru_cache(maxsize=32)
def moments_of(latents: Latents) -> PriorDraws:
    """The prior's moments, from draws with fixed keys: public.

    Raises:
        ValueError: Draws of the prior are not finite.
    """
    keys = jax.random.split(jax.random.key(0), _NUM_PRIOR_DRAWS)
    found = np.asarray(jax.jit(jax.vmap(latents.drawn))(keys), np.float64)
    if not np.isfinite(found).all():
        bad = latents.split(~np.isfinite(found).all(axis=0))
        name = next(name for name, value in bad.items() if value.any())
        raise ValueError(
            f"Draws of the prior of {name!r} are not finite in unconstrained space: they lie at an end of its support, as those "
            "of a Beta with a parameter near 0 do. Use a prior with less mass there."
        )
    low, high = np.quantile(found, [_TAIL, 1 - _TAIL], axis=0)
    inside = np.clip(found, low, high)
    return PriorDraws(inside.mean(axis=0), np.cov(inside.T).reshape(latents.size, latents.size))


def _mapped(latents: Latents, leaves: Sequence[Array], public: Public) -> tuple[Array, Array]:
    """Each row z, and its length."""
    with jax.enable_x64(latents.wide):
        at = jnp.asarray(public.at, np.float64 if latents.wide else np.float32)
        gradients = jax.vmap(lambda *record: latents.gradients(at, record))(*leaves)
    z = gradients.astype(jnp.float64) @ public.to
    return z, jnp.sqrt(jnp.sum(jnp.square(z), axis=1))


def rows_of(kind: str, latents: Latents, leaves: Sequence[Array], mask: Array, public: Public) -> Array:
    """What the records of one turn add: rows on the grid, or the bins of their lengths."""
    z, length = _mapped(latents, leaves, public)
    if kind == "lengths":
        level = jnp.ceil(2 * jnp.log2(jnp.maximum(length, EDGES[0]))) + 2 * OCTAVES - 1
        return jnp.where(jnp.isfinite(length), jnp.clip(level, 0, NUM_BINS - 1), NUM_BINS).astype(jnp.int32)
    longest = length if kind == "directions" else jnp.maximum(length, public.reach)
    grid = GRID_OF_SUMS if kind == "gradients" else GRID_OF_PRODUCTS
    return on_grid(z / longest[:, None], mask, grid)


def _summed(kind: str, latents: Latents, leaves: Sequence[Array], mask: Array, public: Public) -> Array:
    """The exact sum over all records."""
    turns = tuple(turns_of([*leaves, mask]))
    if kind == "lengths":
        levels = jax.lax.map(lambda part: rows_of(kind, latents, part[:-1], part[-1], public), turns)
        return count_cells(levels.reshape(-1, 1), mask, (NUM_BINS + 1,), ((0,),), (1,))
    shape = (latents.num_touched,) * (1 if kind == "gradients" else 2)

    def turn(total: Array, part: tuple[Array, ...]) -> tuple[Array, None]:
        rows = rows_of(kind, latents, part[:-1], part[-1], public)
        return total + (jnp.sum(rows, axis=0) if kind == "gradients" else rows.T @ rows), None

    return jax.lax.scan(turn, jnp.zeros(shape), turns)[0]


class _Shape(NamedTuple):
    """What a program is compiled for."""

    latents: Latents
    leaves: tuple[tuple[tuple[int, ...], str], ...]  # shapes and dtypes of the records' arrays, and of the mask
    relation: Relation
    reproducible: bool

    def arguments(self, noise: float) -> tuple[Any, ...]:
        """What a program is certified for."""
        size = self.latents.num_touched
        leaves = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in self.leaves]
        public = Public(np.zeros((size, size)), np.zeros(size))
        shapes = jax.tree.map(lambda value: jax.ShapeDtypeStruct(np.shape(value), np.float64), public)
        return random.key(0 if self.reproducible else None), Given(np.float64(noise)), shapes, *leaves


@functools.lru_cache(maxsize=64)
def _certified(kind: str, shape: _Shape, most: float) -> Certificate:
    """A release with noise 1, compiled once for all noises up to `most`."""

    def release(key: PRNGKeyArray, noise: Any, public: Public, *arrays: Any) -> Any:
        *leaves, mask = arrays
        return planned_gaussian(key, _summed(kind, shape.latents, leaves, mask, public), noise, most)

    last = 2 + len(shape.leaves)
    return certify(release, *shape.arguments(1.0), records=tuple(range(3, last)), mask=last, relation=shape.relation)


@functools.lru_cache(maxsize=512)
def program(
    kind: str, noise: float, latents: Latents, leaves: Any, relation: Relation, reproducible: bool
) -> Certificate:
    """A release, proved for this noise; to be called with a key, the noise, what is public, and the arrays of `in_turns`.

    Raises:
        PrivacyError: There is no proof.
    """
    shape = _Shape(latents, leaves, relation, reproducible)
    size = {"lengths": NUM_BINS + 1, "gradients": latents.num_touched}.get(kind, latents.num_touched**2)
    return proved(functools.partial(_certified, kind, shape), shape.arguments, noise, size)
