"""Which latents are decided by records far out, as a normal's scale is: its gradients grow without limit with what one has.

Clipping holds such records back, and the noise hides a few of them. Where there are more than the
model expects, these latents are missed. How gradients grow follows from the model alone: of an
artificial record the observed value is moved far out.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from discreet.methods.inference import Latents, computed, kinds_of, other_values
from discreet.methods.newton._algebra import Matrix, Vector

NUM_RECORDS = 4  # in each direction
NUM_LOOKS = 30
NEARER = 1e3
FARTHER = 1e5
GROWING = 0.05
"""The least power of the distance by which a gradient grows without limit: 2 for a normal's scale, 0.1 for a Student t's nu."""
ALONE, SQUARED = 0.99, 1.5
"""Share of a pull that is one latent's, and the power of the distance above which it is a square's."""
SPANNED = 0.9  # share of the pulls, of unit length, in the directions that are kept
DECIDED = 0.3  # of the most that any latent is moved, in its standard deviations


def pulls_from_far(latents: Latents, vector: Vector) -> Float[np.ndarray, "record touched"]:
    """Gradients of artificial records whose observed value lies far out, if they grow without limit; else none.

    Args:
        latents: The latents.
        vector: A point, public.
    """
    objective = latents.objective
    found = [np.zeros((0, latents.num_touched))]
    rng = np.random.default_rng(0)

    with jax.enable_x64(latents.wide):
        point = np.asarray(vector, jnp.result_type(float))
        observed = functools.partial(computed, Latents.observed, latents, point)
        gradient = functools.partial(computed, Latents.gradients, latents)
        kinds = kinds_of(
            objective.example,
            lambda near: not any(outside for _, outside in observed(near)),
            rng,
        )

        def artificial() -> list[np.ndarray]:
            return [
                other_values(x, rng, kind) for x, kind in zip(objective.example, kinds, strict=True)
            ]

        places = list(range(len(objective.example)))
        for _ in range(NUM_LOOKS):
            # Codes of two arrays may be the same by chance.
            record = artificial()
            seen = [np.asarray(value) for value, _ in observed(record)]
            places = [
                place
                for place in places
                if any(np.array_equal(record[place].ravel(), value.ravel()) for value in seen)
            ]
        for place in places:
            for sign in [1, -1] * NUM_RECORDS:
                record = artificial()
                way = sign * np.abs(rng.normal(size=record[place].shape))
                pulls = []
                for distance in (NEARER, FARTHER):
                    record[place] = np.asarray(np.round(distance * way), record[place].dtype)
                    if not any(outside for _, outside in observed(record)):
                        pulls.append(
                            np.asarray(gradient(point[: latents.num_touched], record), np.float64)
                        )
                if len(pulls) == 2 and np.isfinite(pulls).all():
                    near, far = np.linalg.norm(pulls, axis=1)
                    if far > 0 and far >= near * (FARTHER / NEARER) ** GROWING:
                        found.append(pulls[1][None])
    return np.concatenate(found)


def scales_of_squares(pulls: Float[np.ndarray, "record touched"]) -> list[int]:
    """Places of the latents that such records pull alone, by the square of their distance: log scales of normal residuals."""
    lengths = np.linalg.norm(pulls, axis=1)
    alone = np.abs(pulls).max(axis=1, initial=0.0) > ALONE * lengths
    places = np.abs(pulls[alone & (lengths > FARTHER**SQUARED)]).argmax(axis=1)
    return sorted(set(places.tolist()))


def decided_by(
    pulls: Float[np.ndarray, "record touched"], moves: Matrix, spread: Vector
) -> Bool[np.ndarray, " touched"]:
    """Which latents such records decide.

    Args:
        pulls: Their gradients.
        moves: From a record's gradient to how it moves the estimate.
        spread: Standard deviation of each latent in the posterior.
    """
    moved = np.abs(pulls @ moves) / spread
    return (moved >= DECIDED * moved.max(axis=1, keepdims=True)).any(axis=0)


def span_of(
    pulls: Float[np.ndarray, "record coordinate"],
) -> Float[np.ndarray, "coordinate direction"] | None:
    """An orthonormal basis of the few directions in which such records pull; None if these are many, or none."""
    if not len(pulls):
        return None
    units = pulls / np.linalg.norm(pulls, axis=1, keepdims=True)
    _, sizes, directions = np.linalg.svd(units, full_matrices=False)
    shares = np.cumsum(sizes**2) / np.sum(sizes**2)
    count = 1 + int(np.searchsorted(shares, SPANNED))
    return directions[:count].T if 2 * count <= pulls.shape[1] else None
