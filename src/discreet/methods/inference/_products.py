"""Hierarchies that are written with `effect = scale * z`: records touch the product alone.

In the coordinates (scale, z) such a likelihood is bent, and both are learned from their product. So
the product takes the place of z: then records touch no scale, as if the model said effect ~
Normal(0, scale).

Whether records do so is found by numbers, at artificial records and draws of the prior, without any
record: a scale then has the derivative of the products that it is part of, d / d log(scale) = sum
of z d / dz. Each kind of value in the artificial record is changed by itself, since at zeros a
scale may stand beside other latents. A number has such values as the likelihood allows: a label of
0 and 1 may be a float, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

Shapes = Mapping[str, tuple[int, ...]]
Values = Mapping[str, np.ndarray]
Products = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of latents that records touch only in a product, each with the names of its scales."""

NUM_POINTS = 3
SIZES = 0.1, 1.0, 10.0, 100.0, 1e4
NUM_CHANGES = 2
FEWEST_CODES = 12
CLOSE = 1e-3  # of the largest derivative of a record

Numbers = Callable[[np.random.Generator, tuple[int, ...], float], np.ndarray]
"""Artificial numbers of a shape and a size."""


def _real(rng: np.random.Generator, shape: tuple[int, ...], size: float) -> np.ndarray:
    return size * rng.normal(size=shape)


def _positive(rng: np.random.Generator, shape: tuple[int, ...], size: float) -> np.ndarray:
    return np.abs(_real(rng, shape, size))


def _whole(rng: np.random.Generator, shape: tuple[int, ...], size: float) -> np.ndarray:
    return np.floor(_positive(rng, shape, size))


def _share(rng: np.random.Generator, shape: tuple[int, ...], size: float) -> np.ndarray:
    del size
    return rng.uniform(size=shape)


def _label(rng: np.random.Generator, shape: tuple[int, ...], size: float) -> np.ndarray:
    del size
    return rng.integers(0, 2, shape).astype(float)


KINDS: tuple[Numbers, ...] = _real, _positive, _share, _whole, _label
NUM_LOOKS = 8


def products_of(
    scales: Shapes,
    others: Shapes,
    size: int,
    gradients: Callable[[np.ndarray, Sequence[Any]], Values],
    split: Callable[[np.ndarray], Values],
    record: Sequence[Any],
    astray: Callable[[Sequence[Any]], bool],
    inside: Callable[[Sequence[Any]], bool],
) -> Products:
    """Latents that records touch only in a product with scales.

    Args:
        scales: Names and shapes of the latents that records touch and that are the exponential of
            their unconstrained values.
        others: The same of those that are their own unconstrained values.
        size: Number of coordinates that records touch.
        gradients: The gradient of a record's log-likelihood at unconstrained values.
        split: From these to values of single latents.
        record: An artificial record.
        astray: Whether a record has an index outside of an array.
        inside: Whether all that is observed lies inside of its support.
    """
    if not any(_fits(shape, other) for shape in scales.values() for other in others.values()):
        return ()
    rng = np.random.default_rng(0)
    codes = max(
        [
            FEWEST_CODES,
            *(length for shape in (*scales.values(), *others.values()) for length in shape),
        ]
    )
    tried = []
    kinds = kinds_of(record, inside, rng)
    for at in rng.normal(size=(NUM_POINTS, size)):
        for near in _records_near(record, kinds, codes, rng):
            if not astray(near):
                pulls = {name: np.asarray(pull) for name, pull in gradients(at, near).items()}
                if all(np.isfinite(pull).all() for pull in pulls.values()):
                    tried.append((split(at), pulls))
    found: dict[str, tuple[str, ...]] = {}
    # What no such record touches may stand beside a scale where others do.
    if not tried or any(
        not np.any([pulls[name] != 0 for _, pulls in tried], axis=0).all() for name in tried[0][1]
    ):
        return ()
    for scale, shape in scales.items():
        fitting = [name for name, other in others.items() if _fits(shape, other)]
        for name in _beside(scale, shape, fitting, tried):
            found[name] = (*found.get(name, ()), scale)
    return tuple(found.items())


def other_values(
    values: Array,
    rng: np.random.Generator,
    kind: Numbers = _real,
    size: float = 1.0,
    codes: int = 2,
) -> np.ndarray:
    """Artificial values in the place of others: of numbers those of a kind and size, of codes from 0 on."""
    if jnp.issubdtype(values.dtype, jnp.floating):
        return np.asarray(kind(rng, values.shape, size), values.dtype)
    return np.asarray(rng.integers(0, codes, values.shape), values.dtype)


def kinds_of(
    record: Sequence[Any], inside: Callable[[Sequence[Any]], bool], rng: np.random.Generator
) -> list[Numbers]:
    """For each array the first kind of numbers that leave a record inside of its likelihood's support."""

    def fits(place: int, kind: Numbers) -> bool:
        looks = (other_values(record[place], rng, kind) for _ in range(NUM_LOOKS))
        return all(inside([*record[:place], values, *record[place + 1 :]]) for values in looks)

    return [
        next((kind for kind in KINDS if fits(place, kind)), _real) for place in range(len(record))
    ]


def _records_near(
    record: Sequence[Any], kinds: Sequence[Numbers], codes: int, rng: np.random.Generator
) -> Iterator[list[Any]]:
    """The record, and others with new values in one of its arrays or in all of them, of many sizes."""

    def changed(place: int, size: float = 1.0, few: int = 2) -> np.ndarray:
        return other_values(record[place], rng, kinds[place], size, few)

    places = range(len(record))
    yield list(record)
    # Beside large numbers an index outside of an array is not noticed.
    for size, few in (*((size, 2) for size in SIZES), (0.5, codes), (1.0, codes)):
        for _ in range(NUM_CHANGES):
            yield [changed(place, size, few) for place in places]
            for place in places:
                yield [*record[:place], changed(place, size, few), *record[place + 1 :]]
    for place, values in enumerate(record):
        if jnp.issubdtype(values.dtype, jnp.integer):
            for code in range(codes):
                others = [changed(other) for other in places]
                yield [
                    *others[:place],
                    np.full(values.shape, code, values.dtype),
                    *others[place + 1 :],
                ]


def _beside(
    scale: str, shape: Sequence[int], others: Sequence[str], tried: Sequence[tuple[Values, Values]]
) -> list[str]:
    """The latents that stand beside a scale in products, if records touch it in no other way."""
    # Of each record by itself: one with huge pulls does not excuse the others.
    sizes = [max(float(np.abs(pulls[name]).max()) for name in pulls) for _, pulls in tried]
    known = [
        (values, pulls, size)
        for (values, pulls), size in zip(tried, sizes, strict=True)
        if size > 0
    ]
    if not others or not known:
        return []
    pull = np.concatenate([pulls[scale].ravel() / size for _, pulls, size in known])
    parts = [
        np.concatenate(
            [
                _folded(values[name] * pulls[name], shape).ravel() / size
                for values, pulls, size in known
            ]
        )
        for name in others
    ]
    shares = np.linalg.lstsq(np.column_stack(parts), pull)[0]
    beside = [
        (name, part) for name, part, share in zip(others, parts, shares, strict=True) if share > 0.5
    ]
    missed = np.abs(pull - sum(part for _, part in beside)).max()
    return [name for name, _ in beside] if missed <= CLOSE else []


def _fits(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a scale's elements stand along the last axes of another latent."""
    try:
        return np.broadcast_shapes(shape, other) == tuple(other)
    except ValueError:
        return False


def _folded(values: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The sum over all elements that share an element of a scale."""
    values = values.sum(axis=tuple(range(values.ndim - len(shape))))
    return values.sum(
        axis=tuple(axis for axis, length in enumerate(shape) if length == 1), keepdims=True
    )
