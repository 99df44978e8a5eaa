"""What a fit may read of a table: rows clipped to public bounds, chosen rows of each person, and errors that quote no cell."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from discreet._validate import require

_HELP = (
    "Give bounds=(low, high), numbers known without the data: one pair for all features, or low and high with one number a "
    "feature each; or a dictionary from feature names to such pairs, for a data frame. Values outside are clipped."
)


@dataclasses.dataclass(frozen=True)
class BoundScaling:
    """Clips features to public bounds and scales them to about unit size. A row's numbers depend on that row alone.

    If the bounds include 0 it stays 0, so that 0/1 columns and columns of many zeros have short
    gradients, which clipping hardly changes; other bounds are mapped to [-1, 1].

    Attributes:
        low: The least value of each feature, (feature,).
        high: The largest, above `low`.
    """

    low: Float[np.ndarray, " feature"]
    high: Float[np.ndarray, " feature"]

    @classmethod
    def of(cls, bounds: Any, num_features: int, names: Sequence[str] | None) -> Self:
        """Read the parameter `bounds` of an estimator.

        Raises:
            ValueError: None, or such that do not fit the features.
        """
        if bounds is None:
            raise ValueError(
                "bounds are missing: what a feature may be must be known without the data, since bounds taken from them would "
                f"show the most extreme person. {_HELP}"
            )
        if isinstance(bounds, Mapping):
            bounds = _by_name(bounds, names)
        try:
            low, high = (
                np.broadcast_to(np.asarray(side, np.float64), num_features) for side in bounds
            )
        except (TypeError, ValueError):
            raise ValueError(f"bounds do not fit the {num_features} features. {_HELP}") from None
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise ValueError(f"bounds must be finite, each low below its high. {_HELP}")
        return cls(low, high)

    @property
    def center(self) -> Float[np.ndarray, " feature"]:
        """The value that becomes 0."""
        return np.where((self.low <= 0) & (self.high >= 0), 0.0, self.low / 2 + self.high / 2)

    @property
    def width(self) -> Float[np.ndarray, " feature"]:
        """The distance from the center that becomes 1."""
        return np.maximum(self.high - self.center, self.center - self.low)

    def clip(self, X: Float[np.ndarray, "row feature"]) -> Float[np.ndarray, "row feature"]:
        """Clip values to the bounds."""
        return np.clip(X, self.low, self.high)

    def scale(self, X: Float[np.ndarray, "row feature"]) -> Float[np.ndarray, "row feature"]:
        """Clip values, then scale them, as 32-bit numbers."""
        return ((self.clip(X) - self.center) / self.width).astype(np.float32)

    def unscale(self, weights: Any, intercept: Any) -> tuple[np.ndarray, np.ndarray]:
        """Convert weights of scaled features, (..., feature), and intercepts, (...), to the features' own units."""
        coef = np.asarray(weights, np.float64) / self.width
        return coef, np.asarray(intercept, np.float64) - coef @ self.center

    def in_words(self) -> str:
        """The bounds as a short text."""
        pairs = [f"[{low:g}, {high:g}]" for low, high in zip(self.low, self.high, strict=True)]
        return pairs[0] if len(set(pairs)) == 1 else ", ".join(pairs)


def _by_name(bounds: Mapping[str, Any], names: Sequence[str] | None) -> tuple[list[Any], list[Any]]:
    if names is None:
        raise ValueError(
            f"bounds name features, but X has no feature names: pass a data frame. {_HELP}"
        )
    if set(names) != set(bounds):
        odd = sorted(str(name) for name in set(names) ^ set(bounds))
        raise ValueError(
            f"bounds and X name different features; only one of them has {', '.join(odd)}. {_HELP}"
        )
    try:
        pairs = [(low, high) for low, high in (bounds[name] for name in names)]
    except (TypeError, ValueError):
        raise ValueError(f"bounds do not give each feature a pair of numbers. {_HELP}") from None
    return [low for low, _ in pairs], [high for _, high in pairs]


def rows_of_groups(
    groups: Any, num_rows: int, max_rows: int, *, key: bytes | None = None
) -> np.ndarray:
    """At most `max_rows` rows of each person, as `tables.rows_of_persons` numbers and, by the key, chooses them."""
    require("pyarrow", extra="tables", what="groups")
    import pyarrow

    from discreet.tabular.tables import DEFAULT_MISSING_VALUES, DataError, rows_of_persons

    try:
        found = pyarrow.array(groups, from_pandas=True)
        persons = found.cast(pyarrow.string())
    except pyarrow.ArrowException:
        raise DataError(
            "groups holds values of different types: make them all texts, or all integers"
        ) from None
    if len(found) != num_rows or pyarrow.types.is_floating(found.type):
        raise DataError(
            f"groups holds {len(found)} values of type {found.type}; give a text or an integer for each of the {num_rows} "
            "rows, whose it is. (Numbers with a point are refused, since all NaN would be one person.)"
        )
    # NumPy writes a missing value among texts as "nan".
    if persons.null_count or set(DEFAULT_MISSING_VALUES) & set(persons.unique().to_pylist()):
        raise DataError("groups has missing values: each row must say whose it is")
    return rows_of_persons(pyarrow.chunked_array([persons]), max_rows, key=key)


@contextmanager
def no_values() -> Iterator[None]:
    """Replace an error that quotes a cell: NumPy quotes texts that are no numbers, scikit-learn complex numbers."""
    try:
        yield
    except ValueError as error:
        if "Complex data not supported" in str(error):
            raise ValueError("Complex data not supported: give real numbers.") from None
        if "could not convert" in str(error):
            raise ValueError(
                "A cell holds a text that is no number. Encode categories by public lists beforehand: with "
                "discreet.tables.encode and a schema, or with scikit-learn's OneHotEncoder and categories=[...] written out."
            ) from None
        raise
