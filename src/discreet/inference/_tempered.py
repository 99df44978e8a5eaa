"""The posterior that is sampled: an exact prior, and records' log-likelihoods that are bounded and tempered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from discreet.accounting import Relation
from discreet.inference._objective import Objective


@dataclasses.dataclass(frozen=True)
class Tempering:
    """How far one record can move the log density, and the power that makes it worth at most epsilon.

    A record's log-likelihood, less a `center` that no record enters, is clipped to [low, high]; the sum over the records is
    multiplied by `power`. Replacing a record moves that sum by at most power * (high - low) at every point, and so, by
    averaging over the prior, its normalising constant by as much: the log density moves by at most twice that. A record that
    is added moves the log density by power * (l - c) where both l and the c that the normalising constant moves by lie in
    [low, high]: by power * (high - low) at most. With low = -B, high = B those are 4 B power and 2 B power.

    Attributes:
        low: in nats.
        high: in nats, above `low`.
        centered: whether the center is the log-likelihood of the zero record (Lipschitz version) instead of 0.
        power: at most 1.
        relation: which data sets are neighbours.
    """

    low: float
    high: float
    centered: bool
    power: float
    relation: Relation

    @classmethod
    def for_epsilon(cls, epsilon: float, low: float, high: float, *, centered: bool, relation: Relation) -> Tempering:
        """The largest power whose epsilon is at most the one asked for; rounded down, since it is used in 32 bits."""
        low, high = float(np.float32(low)), float(np.float32(high))
        most = min(1.0, epsilon / (cls._moves(relation) * (high - low)))
        power = float(np.nextafter(np.float32(most), np.float32(0.0)))
        return cls(low, high, centered, power, relation)

    @property
    def middle(self) -> float:
        """Of the bounds, in 32 bits."""
        return float(np.float32(self.low / 2 + self.high / 2))

    @staticmethod
    def _moves(relation: Relation) -> float:
        return 2.0 if relation is Relation.REPLACE_ONE else 1.0

    @property
    def epsilon(self) -> float:
        """What one exact draw costs: the largest log ratio of the densities for neighbouring tables, in nats."""
        return float(np.nextafter(self._moves(self.relation) * self.power * (self.high - self.low), np.inf))


@dataclasses.dataclass(frozen=True, eq=False)
class TemperedPosterior:
    """The log density, up to a constant, of unconstrained latents given all records.

    Attributes:
        objective: of the model and its point guide.
        tempering: the bounds and the power.
    """

    objective: Objective
    tempering: Tempering

    def log_density(self, psi: Mapping[str, Array], leaves: Sequence[Array]) -> Float[Array, ""]:
        """Log prior, exact, plus power * (sum of the records' bounded log-likelihoods).

        Never NaN on account of a record, and its gradient is never NaN at all, so that no record can keep the sampler out of
        a place: a leapfrog step along any field of directions leaves the target as it is, whereas a NaN stops it.

        Args:
            psi: the point guide's parameters.
            leaves: the arrays of records.
        """
        u, free = self.objective.link(psi, _unused_key())
        bounded = self.bounded(jax.tree.map(_finite_gradient, u), leaves)
        return self.tempering.power * bounded - free

    def bounded(self, u: Mapping[str, Any], leaves: Sequence[Array]) -> Float[Array, ""]:
        """The sum of the bounded log-likelihoods, with that of the zero record in the center where there is one.

        Less constants that no density notices: for each record the middle of the bounds, and the center at the origin. A sum
        of large numbers is rounded by more than a record may move it.
        """
        if not self.tempering.centered:
            return jnp.sum(self.contributions(u, leaves, 0.0) - self.tempering.middle)
        zero = [jnp.zeros_like(x[:1]) for x in leaves]
        center, there = (self.log_likelihood(x, zero)[0] for x in (u, jax.tree.map(jnp.zeros_like, u)))
        shared = leaves[0].shape[0] * (center - jnp.where(jnp.isfinite(there), there, 0.0))
        return jnp.sum(self.contributions(u, leaves, center)) + shared

    def contributions(
        self, u: Mapping[str, Any], leaves: Sequence[Array], center: float | Array
    ) -> Float[Array, "record"]:
        """Each record's log-likelihood less the center, in [low, high]; `low` where it is NaN."""
        low, high = self.tempering.low, self.tempering.high
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

    def log_likelihood(self, u: Mapping[str, Any], leaves: Sequence[Array]) -> Float[Array, "record"]:
        """Each record's own, in nats, as the model has it."""
        return -jax.vmap(lambda *record: self.objective.record_loss(u, record, _unused_key()))(*leaves)


def project_records(leaves: Sequence[Array], radius: float) -> list[Array]:
    """Each record's real numbers, all arrays together, scaled into the ball of this radius; whole numbers stay."""
    real = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]
    squares = [
        jnp.sum(jnp.square(x), axis=tuple(range(1, x.ndim))) for x, is_real in zip(leaves, real, strict=True) if is_real
    ]
    norms = jnp.sqrt(sum(squares, start=jnp.zeros(leaves[0].shape[0])))
    outside = ~(norms <= radius)
    return [
        jnp.where(_like(outside, x), x * _like(radius / norms, x), x).astype(x.dtype) if is_real else x
        for x, is_real in zip(leaves, real, strict=True)
    ]


def _like(rows: Array, x: Array) -> Array:
    return rows.reshape(-1, *[1] * (x.ndim - 1))


def _unused_key() -> Array:
    # Neither the point guide nor a likelihood without local latents draws anything; this is checked before.
    return jax.random.key(0)


@jax.custom_vjp
def _finite_gradient(x: Array) -> Array:
    return x


def _forward(x: Array) -> tuple[Array, None]:
    return x, None


def _backward(_: None, gradient: Array) -> tuple[Array]:
    return (jnp.where(jnp.isfinite(gradient), gradient, 0.0),)


_finite_gradient.defvjp(_forward, _backward)
