"""The programs that touch records in a private Newton fit of a NumPyro model, and what of the model is public.

A record's row is the gradient g of its log-likelihood in the unconstrained latents, times its
survey weight, if there are any, and mapped to z = g @ to. Five kinds of release:

| kind | a record adds | what one record changes |
|---|---|---|
| directions | the outer product of z over its length | at most 1 |
| lengths | one count, in the bin of its length, or of those that are not finite | at most 1 |
| moments | the outer product of z / C', cut to the length 1 | at most 1 |
| gradients | z / C, cut to the length 1 | at most 1 |
| curvature | minus the derivative of (z cut to C), over C'^2, cut to the Frobenius norm 1 | at most 1 |

Nothing is asked of the model: what is not finite adds nothing, whatever the gradient was. Sums are
exact, and rows are computed alike in every place, as `query` says. Which latents no record touches
(a hierarchy's mean and scale) the structure tells.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from discreet._jax import exact_product, program_digest, run_once
from discreet.methods.inference import Latents
from discreet.methods.newton._sums import LARGEST_SHARED, Program, Sums, proved
from discreet.privacy.mechanisms import count_cells
from discreet.privacy.query import GRID_OF_PRODUCTS, GRID_OF_SUMS, on_grid, turns_of

OCTAVES = 24
EDGES = 2.0 ** np.arange(-OCTAVES, OCTAVES + 0.5, 0.5)
"""Of the bins of lengths, half octaves; the first and the last have what is beyond, and one more has what is not finite."""
NUM_BINS = len(EDGES) - 1
KINDS = ("directions", "lengths", "moments", "gradients", "curvature")
PRODUCTS = ("directions", "moments")
MATRICES = (*PRODUCTS, "curvature")
MOST_CURVED = 100
"""Latents of a model whose curvature is measured."""
STEP = 2.0**-3
"""Length of the curvature's differences, in standard deviations of one record. Shorter ones lose
the curvature of likelihoods with kinks, as Laplace's: a gradient that jumps is then cut. With
longer ones, third derivatives count."""


class Public(NamedTuple):
    """What rows are computed with. All of it follows from earlier releases."""

    to: Float[np.ndarray, "latent latent"]  # the map of the gradients
    at: Float[np.ndarray, " latent"]  # the point, of the latents that records touch
    reach: float = 1.0  # C
    short: float = 1.0  # C', of the moments and the curvature


class PriorDraws(NamedTuple):
    """What is known of a vector under the prior; of the moments, what is heavier than a normal's tails is cut.

    Attributes:
        mean: Its mean.
        covariance: Its covariance.
        ruled: Of the latents that records touch, coordinates whose prior follows others, which no
            record touches.
    """

    mean: Float[np.ndarray, " latent"]
    covariance: Float[np.ndarray, "latent latent"]
    ruled: Bool[np.ndarray, " touched"]


_NUM_PRIOR_DRAWS = 4000
_TAIL = 0.001


@functools.lru_cache(maxsize=32)
def moments_of(latents: Latents) -> PriorDraws:
    """The prior's moments, from draws with fixed keys: public.

    Raises:
        ValueError: Draws of the prior are not finite.
    """
    draws = run_once(
        lambda key: jax.lax.map(latents.drawn, jax.random.split(key, _NUM_PRIOR_DRAWS))
    )
    words = jax.device_put(np.zeros(2, np.uint32))
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    found = np.asarray(draws(key), np.float64)
    if not np.isfinite(found).all():
        bad = latents.split(~np.isfinite(found).all(axis=0))
        name = next(name for name, value in bad.items() if value.any())
        raise ValueError(
            f"Draws of the prior of {name!r} are not finite in unconstrained space: they lie at an end of its support, as those "
            "of a Beta with a parameter near 0 do. Use a prior with less mass there."
        )
    low, high = np.quantile(found, [_TAIL, 1 - _TAIL], axis=0)
    inside = np.clip(found, low, high)
    covariance = np.cov(inside.T).reshape(latents.size, latents.size)
    return PriorDraws(inside.mean(axis=0), covariance, _ruled(latents, *found[:2]))


def _ruled(latents: Latents, one: np.ndarray, other: np.ndarray) -> Bool[np.ndarray, " touched"]:
    """As `PriorDraws.ruled`, from the prior's slopes at two draws."""
    size = latents.num_touched
    if not latents.above:
        return np.zeros(size, bool)
    mixed = np.append(one[:size], other[size:])
    points = np.array([one, mixed], np.float64 if latents.wide else np.float32)
    slopes = np.asarray(run_once(jax.vmap(jax.grad(latents.log_prior)))(points))[:, :size]
    return ~np.isclose(slopes[0], slopes[1], rtol=1e-3, atol=0)


def fingerprint_of_prior(latents: Latents) -> str:
    """A digest of the prior, which no program that touches records has."""
    vector = np.zeros(latents.size, np.float64 if latents.wide else np.float32)
    with jax.enable_x64(latents.wide):
        density = jax.make_jaxpr(latents.log_prior)(vector)
        draws = jax.make_jaxpr(latents.drawn)(jax.random.key(0))
    return f"{program_digest(density)} {program_digest(draws)}"


def _mapped(latents: Latents, leaves: Sequence[Array], public: Public) -> tuple[Array, Array]:
    """Each row z, and its length. Behind the model's own arrays there may be one of weights."""
    own = len(latents.objective.placeholder)
    with jax.enable_x64(latents.wide):
        at = jnp.asarray(public.at, np.float64 if latents.wide else np.float32)
        gradients = jax.vmap(lambda *record: latents.gradients(at, record))(*leaves[:own])
    z = exact_product(gradients.astype(jnp.float64), public.to)
    for weights in leaves[own:]:
        z = weights[:, None] * z
    return z, jnp.sqrt(jnp.sum(jnp.square(z), axis=1))


def _clipped(z: Array, length: Array, reach: Any) -> Array:
    return z * jnp.minimum(1.0, reach / length)[:, None]


def _curvatures(
    latents: Latents, leaves: Sequence[Array], z: Array, length: Array, public: Public
) -> Array:
    """What each record adds to the curvature, flat: by how much its clipped gradient falls along each direction.

    By differences: second derivatives of a gamma function alone would take longer to compile than
    all of the rest. They take a gradient for each direction, so of wide models it is the gradients'
    second moment, which is the same where the model is right.
    """
    if z.shape[1] > MOST_CURVED:
        short = _clipped(z, length, public.short) / public.short
        return (short[:, :, None] * short[:, None]).reshape(len(z), -1)

    def along(direction: Array) -> Array:
        return _clipped(
            *_mapped(latents, leaves, public._replace(at=public.at + STEP * direction)),
            public.reach,
        )

    there = jax.vmap(along, out_axes=1)(jnp.asarray(public.to).T)
    falls = _clipped(z, length, public.reach)[:, None] - there
    return falls.reshape(len(z), -1) / (STEP * public.short**2)


def _bins(length: Array) -> Array:
    """The bin of each length; what is not finite has the last one."""
    level = jnp.ceil(2 * jnp.log2(jnp.maximum(length, EDGES[0]))) + 2 * OCTAVES - 1
    level = jnp.where(jnp.isfinite(length), jnp.clip(level, 0, NUM_BINS - 1), NUM_BINS)
    return level.astype(jnp.int32)


def _rows(
    kind: str,
    latents: Latents,
    leaves: Sequence[Array],
    z: Array,
    length: Array,
    mask: Array,
    public: Public,
) -> Array:
    """What each record of one turn adds, or whose products it adds, on the grid."""
    if kind == "curvature":
        z = _curvatures(latents, leaves, z, length, public)
        length = jnp.sqrt(jnp.sum(jnp.square(z), axis=1))
    longest = {
        "directions": 0.0,
        "moments": public.short,
        "gradients": public.reach,
        "curvature": 1.0,
    }[kind]
    rows = z / jnp.maximum(length, longest)[:, None]
    # A length may be 0 because squares underflow: then the other kinds' bounds keep the row short.
    within = kind != "directions"
    return on_grid(
        rows, mask, GRID_OF_PRODUCTS if kind in PRODUCTS else GRID_OF_SUMS, within=within
    )


def summed(
    kinds: Sequence[str],
    which: Any,
    latents: Latents,
    leaves: Sequence[Array],
    mask: Array,
    public: Public,
) -> Array:
    """The exact sum over all records of the kind that `which` numbers, filled up with zeros to the size of the largest.

    All kinds begin with the gradients of a turn, which take the longest to compile: so the choice
    comes after them. The curvature takes them once more for each latent.
    """
    size = size_of(kinds, latents)

    def of_kind(kind: str, z: Array, length: Array, mask: Array, *leaves: Array) -> Array:
        if kind == "lengths":
            found = count_cells(_bins(length)[:, None], mask, (NUM_BINS + 1,), ((0,),), (1,))
        else:
            rows = _rows(kind, latents, leaves, z, length, mask, public)
            found = (
                exact_product(rows.T, rows).reshape(-1)
                if kind in PRODUCTS
                else jnp.sum(rows, axis=0)
            )
        return jnp.pad(found, (0, size - found.size))

    def turn(total: Array, part: tuple[Array, ...]) -> tuple[Array, None]:
        z, length = _mapped(latents, part[:-1], public)
        sums = [functools.partial(of_kind, kind) for kind in kinds]
        return total + jax.lax.switch(which, sums, z, length, part[-1], *part[:-1]), None

    return jax.lax.scan(turn, jnp.zeros(size), tuple(turns_of([*leaves, mask])))[0]


def size_of(kinds: Sequence[str], latents: Latents) -> int:
    """How many numbers the largest of the sums has."""
    sizes = {"lengths": NUM_BINS + 1, "gradients": latents.num_touched}
    return max(sizes.get(kind, latents.num_touched**2) for kind in kinds)


@dataclasses.dataclass(frozen=True)
class ModelSums(Sums):
    """The sums of a model of one's own.

    Attributes:
        latents: The model's latents.
        kinds: Kinds of sums.
    """

    latents: Latents
    kinds: tuple[str, ...] = KINDS

    @property
    def size(self) -> int:
        """As there."""
        return size_of(self.kinds, self.latents)

    @property
    def nowhere(self) -> Public:
        """As there."""
        size = self.latents.num_touched
        return Public(np.eye(size), np.zeros(size))

    def of(self, which: Any, public: Public, arrays: Sequence[Array]) -> Array:
        """As there."""
        return summed(self.kinds, which, self.latents, arrays[:-1], arrays[-1], public)

    def cut(self, which: int, found: np.ndarray, public: Public) -> np.ndarray:
        """As there."""
        kind = self.kinds[which]
        found = found[: size_of([kind], self.latents)]
        return found.reshape(len(public.at), -1) if kind in MATRICES else found


def program_of(kind: str, noise: float, turns: int, made_for: ModelSums) -> Program:
    """A release of a kind, by a program that can release the others, too, unless they have very many numbers.

    Raises:
        PrivacyError: There is no proof.
    """
    if made_for.size > LARGEST_SHARED:
        alike = tuple(other for other in KINDS if (other in MATRICES) == (kind in MATRICES))
        made_for = dataclasses.replace(made_for, kinds=alike)
    return proved(made_for, made_for.kinds.index(kind), noise, turns)
