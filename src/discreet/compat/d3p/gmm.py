"""`d3p.gmm`: a Gaussian mixture whose assignments are summed out."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from jaxtyping import Array
from numpyro.distributions import constraints

__all__ = ["GaussianMixture"]


class GaussianMixture(dist.Distribution):
    """A mixture of K Gaussians with independent coordinates, the component summed out.

    p(x) = sum over k of pi_k prod over d of N(x_d; mu_kd, sigma_kd^2)

    All coordinates of an event share one component. Summing it out makes the density differentiable in all its
    parameters, which private inference needs: a component per record would be a parameter per record.

    Args:
        locs: means, shape (K, *event).
        scales: standard deviations, shape (K, *event), or (K,) for spherical components; positive.
        mixture_probabilities: shape (K,), non-negative, summing to 1.
        validate_args: as in NumPyro.

    Raises:
        ValueError: shapes that do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> mixture = GaussianMixture(jnp.array([-1.0, 1.0]), jnp.ones(2), jnp.array([0.5, 0.5]))
        >>> mixture.num_components, mixture.event_shape, float(mixture.mean)
        (2, (), 0.0)
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "mixture_probabilities": constraints.simplex,
        "locs": constraints.real,
        "scales": constraints.positive,
    }

    def __init__(
        self, locs: ArrayLike, scales: ArrayLike, mixture_probabilities: ArrayLike, *, validate_args: bool | None = None
    ) -> None:
        self.locs = jnp.asarray(locs)
        self.mixture_probabilities = jnp.asarray(mixture_probabilities)
        spread = jnp.asarray(scales)
        components = self.mixture_probabilities.shape
        if len(components) != 1 or self.locs.shape[:1] != components:
            raise ValueError(
                f"mixture_probabilities has shape {components} and locs {self.locs.shape}; the first must be (K,) and "
                "the second (K, *event), with one entry for each component."
            )
        if spread.shape == components:
            spread = spread.reshape(components + (1,) * (self.locs.ndim - 1))
        if spread.ndim != self.locs.ndim or spread.shape[0] != components[0]:
            raise ValueError(f"scales has shape {spread.shape}; it must be that of locs, {self.locs.shape}, or (K,).")
        self.scales = jnp.broadcast_to(spread, self.locs.shape)
        super().__init__((), self.locs.shape[1:], validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> Any:
        """Real arrays of the event's shape."""
        event_dim = len(self.event_shape)
        return constraints.independent(constraints.real, event_dim) if event_dim else constraints.real

    @property
    def num_components(self) -> int:
        """K."""
        return self.mixture_probabilities.shape[0]

    def log_prob(self, value: Any, intermediates: Any = None) -> Array:
        """Log density; leading axes of `value` are independent draws."""
        del intermediates
        if self._validate_args:
            self._validate_sample(value)
        event_axes = tuple(range(-len(self.event_shape), 0))
        # The components' axis stands in front of the event's.
        placed = jnp.expand_dims(jnp.asarray(value), -len(self.event_shape) - 1)
        log_densities = jnp.sum(dist.Normal(self.locs, self.scales).log_prob(placed), axis=event_axes)
        return logsumexp(log_densities + jnp.log(self.mixture_probabilities), axis=-1)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws."""
        return self.sample_with_intermediates(key, sample_shape)[0]

    def sample_with_intermediates(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        """Draws, and the components they came from."""
        component_key, noise_key = jax.random.split(key)
        component = dist.CategoricalProbs(self.mixture_probabilities).sample(component_key, sample_shape)
        noise = jax.random.normal(noise_key, sample_shape + self.event_shape)
        return self.locs[component] + self.scales[component] * noise, [component]

    @property
    def mean(self) -> Array:
        """Mean of each coordinate."""
        return jnp.tensordot(self.mixture_probabilities, self.locs, 1)

    @property
    def variance(self) -> Array:
        """Variance of each coordinate."""
        second = jnp.tensordot(self.mixture_probabilities, self.locs**2 + self.scales**2, 1)
        return second - self.mean**2
