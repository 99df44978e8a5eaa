"""Invented tables: features from public bounds, a truth from the model's prior, observations from the model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.handlers as handlers
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions import Unit, biject_to
from numpyro.primitives import Messenger

from discreet.tables import Column, Kind, Missing, Schema

Model = Callable[..., Any]
Limits = tuple[float, float] | None
_PRIOR_DRAWS = 512
_CANDIDATES = 32
_ROWS_TO_JUDGE = 256
_USUAL = 0.9
"""A target with one value in a larger share of the rows says little."""
_TOLERATED = 0.02


@dataclasses.dataclass(frozen=True)
class Template:
    """What the arguments of a model look like. Public.

    Attributes:
        draw: (rng, rows) to the arguments, arrays with `rows` along the leading axis.
        limits: For each argument, what its numbers are cut to where the model invents them; None: nothing.
        discrete: For each argument, whether its numbers are classes or counts.
    """

    draw: Callable[[np.random.Generator, int], list[np.ndarray]]
    limits: tuple[Limits, ...]
    discrete: tuple[bool, ...]


@dataclasses.dataclass(frozen=True)
class InventedTable:
    """A table of nobody.

    Attributes:
        rows: The arguments of the model, to fit.
        held_out: As many arguments, of other rows, to judge fits by.
        truth: The latents that the rows come from.
        strength: By how much the truth was drawn towards the middle of the prior; 1: not at all.
    """

    rows: list[np.ndarray]
    held_out: list[np.ndarray]
    truth: dict[str, Array]
    strength: float


def refuse_inferred(schema: Schema) -> None:
    """Refuse bounds that are cells of a table.

    Raises:
        ValueError: The schema says that it has such.
    """
    if schema.inferred:
        raise ValueError(
            f"bounds or categories of {', '.join(schema.inferred)} were taken from the data, and a plan that follows from them "
            "is not free: replace them by what is publicly known, and take them out of the schema's non_private_from_data"
        )


def template_of(about: Schema | Sequence[jax.ShapeDtypeStruct]) -> Template:
    """What a schema, or shapes, say of the arguments.

    Raises:
        TypeError: It is neither; a table, for example.
        ValueError: The schema was taken from the data.
    """
    if isinstance(about, Schema):
        return _from_schema(about)
    shapes: tuple[Any, ...] = tuple(about) if isinstance(about, list | tuple) else (about,)
    if not shapes or not all(isinstance(x, jax.ShapeDtypeStruct) and x.shape for x in shapes):
        raise TypeError(
            "rehearse takes a discreet.tables.Schema, or a jax.ShapeDtypeStruct for each argument of the model, as in "
            "jax.ShapeDtypeStruct((N, 5), jnp.float32): what is public. It has no place for a table, since what is chosen on "
            f"records is no longer free; it was given {', '.join(type(x).__name__ for x in shapes) or 'nothing'}."
        )

    def draw(rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        floats = [jnp.issubdtype(x.dtype, jnp.floating) for x in shapes]
        made = [
            rng.standard_normal((rows, *x.shape[1:])) if real else np.zeros((rows, *x.shape[1:]))
            for x, real in zip(shapes, floats, strict=True)
        ]
        return [values.astype(x.dtype) for values, x in zip(made, shapes, strict=True)]

    return Template(draw, (None,) * len(shapes), (False,) * len(shapes))


def _from_schema(schema: Schema) -> Template:
    refuse_inferred(schema)
    target = schema.target_column

    def draw(rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        x = np.concatenate([_features(column, rng, rows) for column in schema.features], axis=1)
        return [x] if target is None else [x, np.zeros(rows, np.float32)]

    if target is None:
        return Template(draw, ((-1.0, 1.0),), (False,))
    if target.kind in (Kind.REAL, Kind.DATE):
        limits = (-1.0, 1.0)
    else:
        limits = target.limits if target.kind.has_bounds else (0.0, len(target.categories) - 1.0)
    return Template(draw, ((-1.0, 1.0), limits), (False, target.kind not in (Kind.REAL, Kind.DATE)))


def _features(column: Column, rng: np.random.Generator, rows: int) -> Float[np.ndarray, "record feature"]:
    """A column as `discreet.tables.encode` would have it, its cells from a distribution that is itself drawn.

    Numbers fill some part of their bounds (a beta distribution of random middle and width); of categories some are rare.
    """
    if column.kind.has_bounds:
        middle, certainty = rng.uniform(0.1, 0.9), np.exp(rng.uniform(np.log(2), np.log(20)))
        block = 2 * rng.beta(middle * certainty, (1 - middle) * certainty, (rows, 1)) - 1
    else:
        size = len(column.categories)
        drawn = rng.choice(size, rows, p=rng.dirichlet(np.ones(size)))
        if column.kind is Kind.CATEGORICAL:
            block = np.eye(size)[drawn]
        else:
            block = np.linspace(-1.0 if column.kind is Kind.ORDERED else 0.0, 1.0, size)[drawn, None]
    if column.missing is Missing.INDICATOR:
        missing = rng.random(rows) < rng.uniform(0, 0.2)
        block[missing] = 0
        block = np.concatenate([block, missing[:, None]], axis=1)
    return block.astype(np.float32)


class _Unobserved(Messenger):
    """Draws what the model observes, as far as that is one of its arguments as it was passed.

    Attributes:
        found: Which argument is observed at which site.
    """

    def __init__(self, model: Model, arguments: Sequence[Any]) -> None:
        super().__init__(model)
        self.arguments = arguments
        self.found: dict[str, int] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        """Take the observation away."""
        if msg["type"] != "sample" or not msg["is_observed"] or isinstance(msg["fn"], Unit):
            return
        places = [i for i, x in enumerate(self.arguments) if x is msg["value"]]
        if not places:
            raise ValueError(
                f"The model observes something at {msg['name']!r} that is none of its arguments as they are, but computed from "
                "them or a constant, so no table can be invented from the model. Pass what is observed as an argument of its own."
            )
        self.found[msg["name"]] = places[0]
        msg["value"], msg["is_observed"] = None, False


class Inventor:
    """Draws truths and tables from a model."""

    def __init__(self, model: Model, template: Template, latents: Sequence[str], key: PRNGKeyArray) -> None:
        """Find what the model observes, and where the middle of its prior is.

        Args:
            model: The model.
            template: Of its arguments.
            latents: Names of the global latents.
            key: Any key.

        Raises:
            ValueError: A model from which no table can be drawn.
        """
        self.model, self.template, self.latents = model, template, tuple(latents)
        self.observed: dict[str, int] = {}
        try:
            drawn = self._prior_draws(template.draw(np.random.default_rng(0), 2), key)
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

    def table(self, strength: float, num_rows: int, num_held_out: int, seed: int) -> InventedTable:
        """A table whose target lies within its public bounds, and takes several values, as far as the prior has such.

        Args:
            strength: See `InventedTable`.
            num_rows: Rows to fit.
            num_held_out: Rows to judge by.
            seed: Of all that is random here.
        """
        rng, key = np.random.default_rng(seed), jax.random.key(seed)
        features = self.template.draw(rng, num_rows + num_held_out)
        picked = rng.choice(_PRIOR_DRAWS, _CANDIDATES, replace=False)
        candidates = {
            name: (x.mean(axis=0) + strength * (x[picked] - x.mean(axis=0))).astype(x.dtype)
            for name, x in self._draws.items()
        }
        best = 0 if self._never_silly(features) else self._first_sensible(candidates, features, key)
        drawn, truth = self._observations({name: x[best] for name, x in candidates.items()}, features, key)
        complete = [np.asarray(drawn.get(i, x)) for i, x in enumerate(features)]
        for i, limits in enumerate(self.template.limits):
            if limits is not None and i in drawn:
                complete[i] = np.clip(complete[i], *limits)
        rows, held_out = [x[:num_rows] for x in complete], [x[num_rows:] for x in complete]
        return InventedTable(rows, held_out, truth, strength)

    def _never_silly(self, features: Sequence[np.ndarray]) -> bool:
        """Whether any draw will do: levels, of which there are no others. To try candidates takes seconds of compilation."""
        template = self.template
        return not any(template.discrete) and all(
            limits is None and x.dtype.kind == "i" for limits, x in zip(template.limits, features, strict=True)
        )

    def _first_sensible(
        self, candidates: dict[str, np.ndarray], features: Sequence[np.ndarray], key: PRNGKeyArray
    ) -> int:
        """The first of the candidates that is not silly, or the least silly one."""
        tried = self._try(candidates, [x[:_ROWS_TO_JUDGE] for x in features], key)
        silly = np.array([self._silliness({at: x[i] for at, x in tried.items()}) for i in range(_CANDIDATES)])
        return int(np.argmax(silly <= max(_TOLERATED, silly.min())))

    def _silliness(self, observed: dict[int, Array]) -> float:
        """The share of numbers outside their bounds, and of a value that is too usual."""
        worst = 0.0
        for place, drawn in observed.items():
            values, limits = np.asarray(drawn), self.template.limits[place]
            if not np.isfinite(values).all():
                return np.inf
            if limits is not None:
                worst += float(np.mean((values < limits[0]) | (values > limits[1])))
            if self.template.discrete[place]:
                worst += max(0.0, np.unique(values, return_counts=True)[1].max() / len(values) - _USUAL)
        return worst

    def _trace(self, key: PRNGKeyArray, arguments: Sequence[Any], u: dict[str, Array] | None) -> dict[str, Any]:
        def from_u(site: dict[str, Any]) -> Any:
            if u is not None and site["type"] == "sample" and site["name"] in u:
                return biject_to(site["fn"].support)(u[site["name"]])
            return None

        unobserved = _Unobserved(self.model, arguments)
        seeded = handlers.substitute(handlers.seed(unobserved, key), substitute_fn=from_u)
        trace = handlers.trace(seeded).get_trace(*arguments)
        self.observed = unobserved.found
        return trace

    @functools.partial(jax.jit, static_argnums=0)
    def _prior_draws(self, arguments: list[Array], key: PRNGKeyArray) -> dict[str, Array]:
        """Latents drawn from the prior, unconstrained."""

        def one(key: PRNGKeyArray) -> dict[str, Array]:
            trace = self._trace(key, arguments, None)
            return {name: biject_to(trace[name]["fn"].support).inv(trace[name]["value"]) for name in self.latents}

        return jax.vmap(one)(jax.random.split(key, _PRIOR_DRAWS))

    @functools.partial(jax.jit, static_argnums=0)
    def _try(self, candidates: dict[str, Array], arguments: list[Array], key: PRNGKeyArray) -> dict[int, Array]:
        """Observations under each of several truths."""

        def one(u: dict[str, Array], key: PRNGKeyArray) -> dict[int, Array]:
            return self._observations(u, arguments, key)[0]

        return jax.vmap(one)(candidates, jax.random.split(key, _CANDIDATES))

    @functools.partial(jax.jit, static_argnums=0)
    def _observations(
        self, u: dict[str, Array], arguments: list[Array], key: PRNGKeyArray
    ) -> tuple[dict[int, Array], dict[str, Array]]:
        """What the model draws in the place of its arguments, and the latents."""
        trace = self._trace(key, arguments, u)
        drawn = {place: trace[name]["value"] for name, place in self.observed.items()}
        latents = {name: trace[name]["value"] for name in self.latents}
        return {place: value.astype(arguments[place].dtype) for place, value in drawn.items()}, latents
