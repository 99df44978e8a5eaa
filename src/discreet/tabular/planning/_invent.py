"""Invented tables, for fits that must not read records.

Features are drawn within the schema's public bounds, from distributions that are themselves drawn.
For a model, a truth is drawn from its prior, and the observations from the model given both. A wide
prior gives tables that nobody has (targets that are all alike or far outside their bounds), so a
truth is taken whose target keeps to its public bounds. Nothing here takes a table: a `Template` is
made of a schema or of shapes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.handlers as handlers
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions import Unit, biject_to
from numpyro.primitives import Messenger

from discreet._numpyro import trace_of
from discreet.tabular.tables import Column, Kind, Missing, Schema

Model = Callable[..., Any]
Limits = tuple[float, float] | None
_PRIOR_DRAWS = 512
_CANDIDATES = 32
_ROWS_TO_JUDGE = 256
_USUAL = 0.9
"""A target with one value in a larger share of the rows says little."""
_TOLERATED = 0.02
_MOST_CERTAIN = 60.0
"""Up to so many pseudo-observations behind a column's beta distribution: numbers in the middle then
spread over an eighth of half their bounds, as measurements do whose public bounds allow for
outliers."""


@dataclasses.dataclass(frozen=True)
class Template:
    """The form of a model's arguments. Public."""

    # (rng, rows) to the arguments, arrays with `rows` along the leading axis
    draw: Callable[[np.random.Generator, int], list[np.ndarray]]
    # For each argument, the bounds that few invented numbers may exceed; None: no bounds
    limits: tuple[Limits, ...]
    discrete: tuple[bool, ...]  # For each argument, whether its numbers are classes or counts
    # The argument that says which rows a person has, where a record is a person with several
    mask: int | None = None


@dataclasses.dataclass(frozen=True)
class InventedTable:
    """An invented table."""

    rows: list[np.ndarray]  # The arguments of the model, to fit
    held_out: list[np.ndarray]  # As many arguments, of other rows, to judge fits by
    truth: dict[str, Array]  # The latents that the rows come from


def template_of(about: Schema | Sequence[jax.ShapeDtypeStruct]) -> Template:
    """Derive the form of the arguments from a schema, or from shapes; a TypeError where it is neither, a table for example."""
    if isinstance(about, Schema):
        return _from_schema(about)
    shapes: tuple[Any, ...] = tuple(about) if isinstance(about, list | tuple) else (about,)
    if not shapes or not all(isinstance(x, jax.ShapeDtypeStruct) and x.shape for x in shapes):
        raise TypeError(
            "dry_run takes a discreet.tables.Schema, or a jax.ShapeDtypeStruct for each argument of the model, as in "
            "jax.ShapeDtypeStruct((N, 5), jnp.float32): what is public. It has no place for a table, since a plan chosen "
            f"on records is not free; it was given {', '.join(type(x).__name__ for x in shapes) or 'nothing'}."
        )

    def draw(rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        made = (
            rng.standard_normal if jnp.issubdtype(x.dtype, jnp.floating) else np.zeros
            for x in shapes
        )
        return [
            make((rows, *x.shape[1:])).astype(x.dtype) for make, x in zip(made, shapes, strict=True)
        ]

    return Template(draw, (None,) * len(shapes), (False,) * len(shapes))


def _from_schema(schema: Schema) -> Template:
    target = schema.target_column
    most = schema.max_rows

    def draw(rng: np.random.Generator, records: int) -> list[np.ndarray]:
        common = rng.standard_normal(records * most)
        x = np.concatenate([_features(column, rng, common) for column in schema.features], axis=1)
        shape = (records,) if most == 1 else (records, most)
        arrays = [x.reshape(*shape, -1)] + ([] if target is None else [np.zeros(shape, np.float32)])
        if most == 1:
            return arrays
        # Persons have from one row to all, any number alike often.
        mask = np.arange(most) < rng.integers(1, most, (records, 1), endpoint=True)
        return [arrays[0] * mask[..., None], *arrays[1:], mask]

    limits: list[Limits] = [(-1.0, 1.0)]
    discrete = [False]
    mask = None
    if target is not None:
        number = target.kind in (Kind.REAL, Kind.DATE)
        bounds = target.limits if target.kind.has_bounds else (0.0, len(target.categories) - 1.0)
        limits.append((-1.0, 1.0) if number else bounds)
        discrete.append(not number)
    if most > 1:
        mask = len(limits)
        limits.append(None)
        discrete.append(False)
    return Template(draw, tuple(limits), tuple(discrete), mask)


def _features(
    column: Column, rng: np.random.Generator, common: Float[np.ndarray, " record"]
) -> Float[np.ndarray, "record feature"]:
    """A column as `discreet.tables.encode` encodes it, with cells from a distribution that is itself drawn.

    Numbers fill some part of their bounds (a beta distribution of random middle and width); of
    categories some are rare. The cells are ordered as a normal variable that has a random
    correlation with `common`, so that columns are correlated.
    """
    rows = len(common)
    share = rng.uniform(-1, 1)
    order = np.argsort(share * common + math.sqrt(1 - share**2) * rng.standard_normal(rows))
    if column.kind.has_bounds:
        middle = rng.uniform(0.1, 0.9)
        certainty = np.exp(rng.uniform(np.log(2), np.log(_MOST_CERTAIN)))
        block = np.empty((rows, 1))
        block[order, 0] = (
            2 * np.sort(rng.beta(middle * certainty, (1 - middle) * certainty, rows)) - 1
        )
    else:
        size = len(column.categories)
        drawn = np.empty(rows, int)
        drawn[order] = np.sort(rng.choice(size, rows, p=rng.dirichlet(np.ones(size))))
        if column.kind is Kind.CATEGORICAL:
            block = np.eye(size)[drawn]
        else:
            block = np.linspace(-1.0 if column.kind is Kind.ORDERED else 0.0, 1.0, size)[
                drawn, None
            ]
    if column.missing is Missing.INDICATOR:
        missing = rng.random(rows) < rng.uniform(0, 0.2)
        block[missing] = 0
        block = np.concatenate([block, missing[:, None]], axis=1)
    return block.astype(np.float32)


def weights_of(
    schema: Schema, rng: np.random.Generator, shape: tuple[int, ...]
) -> Float[np.ndarray, "record *row"] | None:
    """Survey weights over the largest that a row may have, from a distribution that is itself drawn; None without such."""
    column = schema.weight_column
    if column is None:
        return None
    low, high = column.limits
    cells = _features(column, rng, rng.standard_normal(math.prod(shape)))[:, 0]
    return np.clip((low + (high - low) * (cells + 1) / 2) / high, 0, 1).reshape(shape)


def _place_of(
    observed: np.ndarray, name: str, arguments: Sequence[np.ndarray], mask: np.ndarray | None
) -> int:
    """The position of the argument that equals what is observed at a site, in all rows that exist."""
    there = ... if mask is None else mask
    for place, argument in enumerate(arguments):
        alike = argument is not mask and argument.shape == observed.shape
        if alike and argument[there].size and np.array_equal(argument[there], observed[there]):
            return place
    raise ValueError(
        f"The model observes something at {name!r} that is none of its arguments as they are, but computed from them, or a "
        "constant, so no table can be invented from the model. Pass the observations as an argument of their own."
    )


class Unobserved(Messenger):
    """Draw what a model observes, but for factors. `passed` has what was observed."""

    def __init__(self, fn: Model) -> None:
        super().__init__(fn)
        self.passed: dict[str, Any] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or not msg["is_observed"] or isinstance(msg["fn"], Unit):
            return
        self.passed[msg["name"]] = msg["value"]
        msg["value"] = None
        msg["is_observed"] = False


class Inventor:
    """Draw truths and tables from a model."""

    def __init__(
        self, model: Model, template: Template, latents: Sequence[str], key: PRNGKeyArray
    ) -> None:
        """Find what the model observes, and draw from its prior; ValueError where no table can be drawn from it."""
        self.model = model
        self.template = template
        self.latents = tuple(latents)
        arguments = template.draw(np.random.default_rng(0), 2)
        try:
            self.observed = self._find_observed(arguments, key)
            drawn = self._prior_draws(arguments, key)
        except NotImplementedError as error:
            raise ValueError(
                "The model's prior or its observations cannot be drawn, so no table can be invented from it: an improper "
                "prior, or a distribution without a sampler. Give every latent a proper prior."
            ) from error
        if not self.observed:
            raise ValueError(
                "The model observes none of its arguments, so there is nothing to invent. Use obs=... in the record plate."
            )
        self._draws = {name: np.asarray(x) for name, x in drawn.items()}

    @property
    def size(self) -> int:
        """Number of coordinates of the latents."""
        return sum(math.prod(x.shape[1:]) for x in self._draws.values())

    def table(self, strength: float, num_rows: int, num_held_out: int, seed: int) -> InventedTable:
        """Draw a table whose target lies within its public bounds and takes several values, if the prior has any.

        `strength` is the factor by which the truth is shrunk towards the mean of the prior; 1: not
        at all.
        """
        rng = np.random.default_rng(seed)
        key = jax.random.key(seed)
        features = self.template.draw(rng, num_rows + num_held_out)
        picked = rng.choice(_PRIOR_DRAWS, _CANDIDATES, replace=False)
        candidates = {
            name: (x.mean(axis=0) + strength * (x[picked] - x.mean(axis=0))).astype(x.dtype)
            for name, x in self._draws.items()
        }
        best = 0
        mask = None if self.template.mask is None else features[self.template.mask]
        if not self._never_silly(features):
            few = [x[:_ROWS_TO_JUDGE] for x in features]
            # Of rows that no person has, nothing is judged, and nothing is observed.
            there = ... if mask is None else (slice(None), mask[:_ROWS_TO_JUDGE])
            tried = {at: np.asarray(x)[there] for at, x in self._try(candidates, few, key).items()}
            silly = np.array(
                [self._silliness({at: x[i] for at, x in tried.items()}) for i in range(_CANDIDATES)]
            )
            # The first that is not silly, or the least silly one.
            best = int(np.argmax(silly <= max(_TOLERATED, silly.min())))
        drawn, truth = self._observations(
            {name: x[best] for name, x in candidates.items()}, features, key
        )
        complete = [np.asarray(drawn.get(i, x)) for i, x in enumerate(features)]
        for i in drawn:
            if mask is not None:
                complete[i] = np.where(
                    mask.reshape(mask.shape + (1,) * (complete[i].ndim - 2)), complete[i], 0
                )
        return InventedTable(
            [x[:num_rows] for x in complete], [x[num_rows:] for x in complete], truth
        )

    def _never_silly(self, features: Sequence[np.ndarray]) -> bool:
        """True if any draw is acceptable, as levels are. Trying candidates takes seconds of compilation."""
        template = self.template
        return not any(template.discrete) and all(
            limits is None and x.dtype.kind == "i"
            for limits, x in zip(template.limits, features, strict=True)
        )

    def _silliness(self, observed: dict[int, Array]) -> float:
        """The share of numbers outside their bounds, and of a value that is too usual."""
        worst = 0.0
        for place, drawn in observed.items():
            values = np.asarray(drawn)
            limits = self.template.limits[place]
            if not np.isfinite(values).all():
                return np.inf
            if limits is not None:
                worst += float(np.mean((values < limits[0]) | (values > limits[1])))
            if self.template.discrete[place]:
                worst += max(
                    0.0, np.unique(values, return_counts=True)[1].max() / len(values) - _USUAL
                )
        return worst

    def _trace(
        self, key: PRNGKeyArray, arguments: Sequence[Any], u: dict[str, Array]
    ) -> dict[str, Any]:
        def from_u(site: dict[str, Any]) -> Any:
            if site["type"] == "sample" and site["name"] in u:
                return biject_to(site["fn"].support)(u[site["name"]])
            return None

        seeded = handlers.seed(Unobserved(self.model), key)
        return trace_of(handlers.substitute(seeded, substitute_fn=from_u), *arguments)

    def _find_observed(self, arguments: Sequence[np.ndarray], key: PRNGKeyArray) -> dict[str, int]:
        """The position of the argument that is observed at each site.

        A model may convert what it observes (classes to integers), or set the padding of persons
        with several rows to zero: such arrays are found by values that no two cells share.
        """
        same: dict[str, int | None] = {}

        def passed(arguments: list[Array]) -> dict[str, Array]:
            unobserved = Unobserved(self.model)
            trace_of(handlers.seed(unobserved, key), *arguments)
            for name, x in unobserved.passed.items():
                same[name] = next(
                    (place for place, argument in enumerate(arguments) if argument is x), None
                )
            return {name: jnp.asarray(x) for name, x in unobserved.passed.items()}

        jax.eval_shape(passed, arguments)
        places = {name: place for name, place in same.items() if place is not None}
        if len(places) == len(same):
            return places
        mask = None if self.template.mask is None else arguments[self.template.mask]
        told = []
        count = itertools.count(1)
        for x in arguments:
            cells = [next(count) for _ in range(x.size)]
            told.append(mask if x is mask else np.array(cells, x.dtype).reshape(x.shape))
        found = jax.jit(passed)(told)
        return {name: _place_of(np.asarray(found[name]), name, told, mask) for name in same}

    @functools.partial(jax.jit, static_argnums=0)
    def _prior_draws(self, arguments: list[Array], key: PRNGKeyArray) -> dict[str, Array]:
        """Latents drawn from the prior, unconstrained."""

        def one(key: PRNGKeyArray) -> dict[str, Array]:
            trace = self._trace(key, arguments, {})
            return {
                name: biject_to(trace[name]["fn"].support).inv(trace[name]["value"])
                for name in self.latents
            }

        return jax.vmap(one)(jax.random.split(key, _PRIOR_DRAWS))

    @functools.partial(jax.jit, static_argnums=0)
    def _try(
        self, candidates: dict[str, Array], arguments: list[Array], key: PRNGKeyArray
    ) -> dict[int, Array]:
        """Observations under each of several truths."""

        def one(u: dict[str, Array], key: PRNGKeyArray) -> dict[int, Array]:
            return self._observations(u, arguments, key)[0]

        return jax.vmap(one)(candidates, jax.random.split(key, _CANDIDATES))

    @functools.partial(jax.jit, static_argnums=0)
    def _observations(
        self, u: dict[str, Array], arguments: list[Array], key: PRNGKeyArray
    ) -> tuple[dict[int, Array], dict[str, Array]]:
        """The model's draws of its observed arguments, and the latents."""
        trace = self._trace(key, arguments, u)
        drawn = {place: trace[name]["value"] for name, place in self.observed.items()}
        latents = {name: trace[name]["value"] for name in self.latents}
        return {
            place: value.astype(arguments[place].dtype) for place, value in drawn.items()
        }, latents
