"""Public bounds of features: where values are clipped, and how they come to about unit size and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from jaxtyping import Float

_HELP = (
    "Give bounds=(low, high), numbers known without the data: one pair for all features, or low and high with one number a "
    "feature each; or a dictionary from feature names to such pairs, for a data frame. Values outside are clipped."
)


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Clips features to public bounds and brings them to about unit size. A row's numbers depend on that row alone.

    Where the bounds hold 0 it stays 0, so that 0/1 columns and columns of many zeros have short gradients, from which
    clipping takes little; other bounds are mapped to [-1, 1].

    Attributes:
        low: the least value of each feature, (feature,).
        high: the largest, above `low`.
    """

    low: Float[np.ndarray, " feature"]
    high: Float[np.ndarray, " feature"]

    @classmethod
    def of(cls, bounds: Any, num_features: int, names: Sequence[str] | None) -> Self:
        """Reads the parameter `bounds` of an estimator.

        Raises:
            ValueError: none, or such that do not fit the features.
        """
        if bounds is None:
            raise ValueError(
                "bounds are missing: what a feature may be must be known without the data, since bounds taken from them would "
                f"show the most extreme person. {_HELP}"
            )
        if isinstance(bounds, Mapping):
            bounds = _by_name(bounds, names)
        try:
            low, high = (np.broadcast_to(np.asarray(side, np.float64), num_features) for side in bounds)
        except (TypeError, ValueError):
            raise ValueError(f"bounds do not fit the {num_features} features. {_HELP}") from None
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise ValueError(f"bounds must be finite, each low below its high. {_HELP}")
        return cls(low, high)

    @property
    def center(self) -> Float[np.ndarray, " feature"]:
        """What becomes 0."""
        return np.where((self.low <= 0) & (self.high >= 0), 0.0, self.low / 2 + self.high / 2)

    @property
    def width(self) -> Float[np.ndarray, " feature"]:
        """What becomes 1 above the center."""
        return np.maximum(self.high - self.center, self.center - self.low)

    def clip(self, X: Float[np.ndarray, "row feature"]) -> Float[np.ndarray, "row feature"]:
        """Values moved to the nearer bound."""
        return np.clip(X, self.low, self.high)

    def scale(self, X: Float[np.ndarray, "row feature"]) -> Float[np.ndarray, "row feature"]:
        """Values clipped, then scaled, as 32-bit numbers."""
        return ((self.clip(X) - self.center) / self.width).astype(np.float32)

    def unscale(self, weights: Any, intercept: Any) -> tuple[np.ndarray, np.ndarray]:
        """Weights of scaled features, (..., feature), and intercepts, (...), as those of the features themselves."""
        coef = np.asarray(weights, np.float64) / self.width
        return coef, np.asarray(intercept, np.float64) - coef @ self.center

    def in_words(self) -> str:
        """The bounds, briefly."""
        pairs = [f"[{low:g}, {high:g}]" for low, high in zip(self.low, self.high, strict=True)]
        return pairs[0] if len(set(pairs)) == 1 else ", ".join(pairs)


def _by_name(bounds: Mapping[str, Any], names: Sequence[str] | None) -> tuple[list[Any], list[Any]]:
    if names is None:
        raise ValueError(f"bounds name features, but X has no feature names: pass a data frame. {_HELP}")
    if set(names) != set(bounds):
        odd = sorted(str(name) for name in set(names) ^ set(bounds))
        raise ValueError(f"bounds and X name different features; only one of them has {', '.join(odd)}. {_HELP}")
    try:
        pairs = [(low, high) for low, high in (bounds[name] for name in names)]
    except (TypeError, ValueError):
        raise ValueError(f"bounds do not give each feature a pair of numbers. {_HELP}") from None
    return [low for low, _ in pairs], [high for _, high in pairs]
