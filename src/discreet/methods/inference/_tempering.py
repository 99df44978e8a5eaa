"""The tempered posterior: a log density that one record moves by a known amount.

A record's log-likelihood is clipped to an interval, and the sum over the records is multiplied by a
power (`Tempering`).

The bound holds for the log density as computed:

- A record's log-likelihood is computed alike whatever the other records are, and however many: rows
  are computed in chunks of one size, by one compiled program (`gradients._sums` says why).
- It is rounded to a grid, and the terms are added in float64, which is exact (`exact_sum`).
- What remains are three roundings of float64: the term of the center, the product with the power,
  the prior. With values within 2^28 times a record's and within `FAR` nats they are off by 3 *
  2^-53 times that. Two tables, each at a point and in its normalising constant, make four times as
  much: 2^-22 of what a record moves and 2^-22 nats at most, which epsilon includes. Where the
  prior, or the center's term, is further than `FAR` from 0, the density is 0. That depends on no
  record, so it is a prior, too: the model's, cut off at density e^-FAR.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from discreet._dp_accounting import DpEvent, SelfComposedDpEvent
from discreet._jax import double
from discreet.methods.inference._elbo import Objective
from discreet.privacy.accounting import Relation, neighbours, pure_event
from discreet.privacy.gradients import SPARE

TURN = 512
"""Records whose log-likelihoods are computed at once; the last `SPARE` places are nobody's."""
MOST_RECORDS = 2**28 - 1
FAR = 2.0**26
"""Nats from 0 beyond which no log prior density is added up."""
_ROUNDING = 2.0**-22


class Grid(NamedTuple):
    """Numbers less a middle are rounded to multiples of a power of two, from the least to the most."""

    middle: float
    spacing: float
    least: int
    most: int


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def exact_sum(x: Float[Array, "record"], grid: Grid) -> Float[Array, ""]:
    """The sum of numbers on a grid, in float64: integers of at most 25 bits, which no order rounds below 2^28 of them.

    So one record moves it by no more than its own number. The derivative is that of the sum without
    the rounding.
    """
    with double():
        steps = jnp.round((x.astype(jnp.float64) - grid.middle) / grid.spacing)
        return jnp.sum(jnp.clip(steps, grid.least, grid.most)) * grid.spacing


def _summed(x: Array, grid: Grid) -> tuple[Array, Array]:
    return exact_sum(x, grid), x


def _to_each(grid: Grid, x: Array, gradient: Array) -> tuple[Array]:
    del grid
    return (jnp.broadcast_to(gradient.astype(x.dtype), x.shape),)


exact_sum.defvjp(_summed, _to_each)


@dataclasses.dataclass(frozen=True)
class Tempering:
    """The sensitivity of the log density to one record, and the power that limits its effect to epsilon.

    A record's log-likelihood, less a `center` that no record enters, is clipped to [low, high]; the
    sum over the records is multiplied by `power`. Replacing a record moves that sum by at most
    power * (high - low) at every point, and so, by averaging over the prior, its normalising
    constant by as much: the log density moves by at most twice that. A record that is added moves
    the log density by power * (l - c) where both l and the c that the normalising constant moves by
    lie in [low, high]: by power * (high - low) at most. With low = -B, high = B those are 4 B power
    and 2 B power.
    """

    low: float  # in nats
    high: float  # in nats, above `low`
    centered: bool  # whether the center is the log-likelihood of the zero record (Lipschitz version) instead of 0
    power: float  # at most 1
    relation: Relation  # the neighbouring relation

    @classmethod
    def for_epsilon(
        cls, epsilon: float, low: float, high: float, *, centered: bool, relation: Relation
    ) -> Tempering:
        """The largest power whose epsilon is at most the one asked for; rounded down, since it is used in 32 bits."""
        whole = cls(float(np.float32(low)), float(np.float32(high)), centered, 1.0, relation)
        most = min(1.0, (epsilon - _ROUNDING) / (whole._moved * (1.0 + _ROUNDING)))
        return dataclasses.replace(
            whole, power=float(np.nextafter(np.float32(most), np.float32(0.0)))
        )

    @property
    def grid(self) -> Grid:
        """The grid for the bounded log-likelihoods before they are summed, at most as wide as the bounds."""
        low = Fraction(self.low)
        high = Fraction(self.high)
        middle = (low + high) / 2
        spacing = Fraction(2.0 ** (math.ceil(math.log2(self.high - self.low)) - 24))
        return Grid(
            float(middle),
            float(spacing),
            math.ceil((low - middle) / spacing),
            math.floor((high - middle) / spacing),
        )

    @property
    def _moved(self) -> float:
        return neighbours(self.relation).distance * self.power * (self.high - self.low)

    @property
    def epsilon(self) -> float:
        """Epsilon of one exact draw: the largest log ratio of the computed densities of neighbouring tables, in nats."""
        return float(np.nextafter(self._moved * (1.0 + _ROUNDING) + _ROUNDING, np.inf))


@dataclasses.dataclass(frozen=True)
class DrawsPlan:
    """The privacy plan of several exact draws of a tempered posterior. Public.

    Attributes:
        tempering: What limits the effect of a record on one draw.
        num_draws: Number of draws.
    """

    tempering: Tempering
    num_draws: int

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.tempering.relation

    @property
    def epsilon(self) -> float:
        """Pure epsilon of all draws together, if they are exact."""
        return self.num_draws * self.tempering.epsilon

    @property
    def slack(self) -> float:
        """Probability of leaving the event: 0."""
        return 0.0

    def event(self) -> DpEvent:
        """The event of all draws, derived from the bound, the power and the number of draws."""
        return SelfComposedDpEvent(pure_event(self.tempering.epsilon), self.num_draws)


@dataclasses.dataclass(frozen=True, eq=False)
class TemperedPosterior:
    """The log density, up to a constant, of unconstrained latents given all records."""

    objective: Objective  # of the model and its point guide
    tempering: Tempering  # the bounds and the power

    def log_density(self, psi: Mapping[str, Array], leaves: Sequence[Array]) -> Float[Array, ""]:
        """Log prior plus power * (sum of the records' bounded log-likelihoods), in float64; computed in float32 but for sums.

        Never NaN on account of a record, and its gradient is never NaN at all, so that no record
        can keep the sampler out of a place: a leapfrog step along any field of directions leaves
        the target as it is, whereas a NaN stops it.
        """
        u, free = self.objective.link(psi, _unused_key())
        bounded, shared = self.bounded(jax.tree.map(_finite_gradient, u), leaves)
        with double():
            free = free.astype(jnp.float64)
            shared = self.tempering.power * shared
            near = (jnp.abs(free) <= FAR) & (jnp.abs(shared) <= FAR)
            return jnp.where(near, self.tempering.power * bounded + shared - free, -jnp.inf)

    def bounded(
        self, u: Mapping[str, Any], leaves: Sequence[Array]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The exact sum of the bounded log-likelihoods, and the center's term, which depends on no record.

        Less constants that no density notices: for each record the middle of the bounds, and the
        center at the origin.
        """
        size = leaves[0].shape[0]
        center = jnp.zeros(())
        shared = jnp.zeros(())
        if self.tempering.centered:
            zero = [jnp.zeros_like(x[:1]) for x in leaves]
            center, there = (
                self.log_likelihood(x, zero)[0] for x in (u, jax.tree.map(jnp.zeros_like, u))
            )
            shared = center - jnp.where(jnp.isfinite(there), there, 0.0)
        turns = in_turns(leaves, self.tempering.relation)
        found = jax.lax.map(lambda rows: self.contributions(u, rows, center), turns)
        total: Any = exact_sum(out_of_turns(found, size), self.tempering.grid)
        with double():
            return total, size * shared.astype(jnp.float64)

    def contributions(
        self, u: Mapping[str, Any], leaves: Sequence[Array], center: float | Array
    ) -> Float[Array, "record"]:
        """Each record's log-likelihood less the center, in [low, high]; `low` where it is NaN."""
        low = self.tempering.low
        high = self.tempering.high
        raw = self.log_likelihood(jax.lax.stop_gradient(u), leaves) - jax.lax.stop_gradient(center)
        inside = (raw > low) & (raw < high)
        # A record outside has no gradient. It is put aside before its own could become 0 * NaN.
        safe = [
            jnp.where(_like(inside, x), x, jnp.asarray(made_up, x.dtype))
            for x, made_up in zip(leaves, self.objective.placeholder, strict=True)
        ]
        outside = jnp.where(jnp.isnan(raw), low, jnp.clip(raw, low, high))
        value = jnp.clip(self.log_likelihood(u, safe) - center, low, high)
        return jnp.where(inside, value, outside)

    def log_likelihood(
        self, u: Mapping[str, Any], leaves: Sequence[Array]
    ) -> Float[Array, "record"]:
        """Each record's own, in nats, as the model has it."""
        return -jax.vmap(lambda *record: self.objective.record_loss(u, record, _unused_key()))(
            *leaves
        )


def in_turns(leaves: Sequence[Array], relation: Relation) -> list[Array]:
    """Records in turns, so that each is computed alike whatever the others are: arrays [turn, place, ...]."""
    size = leaves[0].shape[0]
    filled = TURN - SPARE
    # At least two turns where one record more could begin a second: XLA compiles a loop of one
    # differently.
    count = max(-(-size // filled), 2 if neighbours(relation).hides_membership else 1)
    # In places that are nobody's stands the last record, and its number is left out.
    places = np.minimum(np.arange(count)[:, None] * filled + np.arange(TURN), size - 1)
    return [x[places] for x in leaves]


def out_of_turns(x: Any, size: int) -> Any:
    """What was computed of records in turns, one entry a record."""
    return x[:, : TURN - SPARE].reshape(-1, *x.shape[2:])[:size]


def project_records(leaves: Sequence[Array], radius: float) -> list[Array]:
    """Each record's real numbers, all arrays together, scaled into the ball of this radius; integers stay."""
    real = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]
    squares = [
        jnp.sum(jnp.square(x), axis=tuple(range(1, x.ndim)))
        for x, is_real in zip(leaves, real, strict=True)
        if is_real
    ]
    norms = jnp.sqrt(sum(squares, start=jnp.zeros(leaves[0].shape[0])))
    outside = ~(norms <= radius)
    return [
        jnp.where(_like(outside, x), x * _like(radius / norms, x), x).astype(x.dtype)
        if is_real
        else x
        for x, is_real in zip(leaves, real, strict=True)
    ]


def _like(rows: Array, x: Array) -> Array:
    return rows.reshape(-1, *[1] * (x.ndim - 1))


def _unused_key() -> Array:
    # Neither the point guide nor a likelihood without local latents draws anything; this is checked
    # before.
    return jax.random.key(0)


@jax.custom_vjp
def _finite_gradient(x: Array) -> Array:
    return x


_finite_gradient.defvjp(
    lambda x: (x, None), lambda _, gradient: (jnp.where(jnp.isfinite(gradient), gradient, 0.0),)
)
