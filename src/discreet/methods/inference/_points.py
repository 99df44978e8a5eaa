"""A model as a density at points: the global latents as one unconstrained vector, with the prior and records' log-likelihoods.

For methods that need no guide: a posterior's sampler, and private Newton. Whether the model has
such a density is checked here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar
from numpyro.distributions import Cauchy, Laplace, Logistic, Normal, StudentT
from numpyro.distributions.transforms import ExpTransform, IdentityTransform

from discreet._jax import inputs_of_outputs
from discreet.methods.inference._elbo import LATENT, PARAM, Objective
from discreet.methods.inference._plates import value_of_improper
from discreet.methods.inference._point_guide import (
    NoPointError,
    PointGuide,
    at_point,
    bijection_of,
    parameter_of,
)
from discreet.methods.inference._products import Products, products_of
from discreet.methods.inference._records import Message, Program, Records, Values, refuse_tables
from discreet.methods.inference._start import loss_at_start
from discreet.methods.inference._structure import refuse_improper, without_wrappers
from discreet.methods.inference._support import (
    outside_of_arrays,
    outside_of_support,
    refuse_outside_support,
)


def objective_of_points(
    records: Records, key: PRNGKeyArray, *, model: Program, **made_of: Any
) -> tuple[Objective, dict[str, Any]]:
    """A model taken apart, with a point guide whose parameters are the global latents; and where these start.

    Args:
        records: The records, of which only shapes are used.
        key: The caller's key.
        model: The model.
        made_of: The rest of `Objective.of`.

    Raises:
        NoPointError: The log density at a point of the latents is none of a posterior.
        ValueError: The model cannot be split into records, or is not finite where it starts.
    """
    objective, psi, start_key = Objective.of(
        records, key, model=model, guide=PointGuide(model), **made_of
    )
    # First: what is below is fitted in steps instead, and at full cost.
    refuse_improper(objective.programs, objective.placeholder)
    if objective.structure.model_params:
        raise NoPointError(
            "The model has a param site, which has no prior, so there is no posterior to draw it from. Make it a sample "
            "site with a proper prior, or fit the model by DPSVI."
        )
    if objective.uses_key:
        raise NoPointError(
            "A record's log-likelihood is random (the model draws numbers beside its sites, as dropout does), so it has "
            "no posterior density to sample. Make what is drawn a latent site outside the record plate, or leave it out."
        )
    objective.refuse_tables(records.size)
    loss_at_start(objective, psi, start_key)
    return objective, psi


_traced_once = functools.partial(jax.jit, static_argnums=0, inline=True)
"""For a method of the latents that several programs have: running the model to trace it takes longer than to compile it."""
LOCATED = Cauchy, Laplace, Logistic, Normal, StudentT


@dataclasses.dataclass(frozen=True)
class Latents:
    """The unconstrained global latents of a model as one vector: first those that records touch.

    Attributes:
        objective: The model with a `PointGuide`, whose parameters they are.
        touched: Names and shapes of the latents that records touch.
        above: The same of the others.
        wide: Whether the model is computed in 64 bits.
        products: Latents in whose place the vector has their product with scales, and the names of
            these.
        scaled: Latents whose prior has a location and a scale that other latents decide.
    """

    objective: Objective
    touched: tuple[tuple[str, tuple[int, ...]], ...]
    above: tuple[tuple[str, tuple[int, ...]], ...]
    wide: bool
    products: Products = ()
    scaled: tuple[str, ...] = ()

    @classmethod
    def of(cls, objective: Objective, psi: Values) -> Latents:
        """Those of a model; `psi` has values of the point guide's parameters."""
        named = [
            (name, np.shape(psi[parameter_of(name)])) for name in objective.structure.global_latents
        ]
        touched = tuple(pair for pair in named if pair[0] in objective.touched_latents)
        above = tuple(pair for pair in named if pair[0] not in objective.touched_latents)
        return cls(objective, touched, above, jnp.result_type(float) == np.float64)

    @property
    def sites(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Names and shapes, in the vector's order."""
        return self.touched + self.above

    @property
    def num_touched(self) -> int:
        """Number of coordinates that records touch."""
        return sum(math.prod(shape) for _, shape in self.touched)

    @property
    def size(self) -> int:
        """Number of all coordinates."""
        return sum(math.prod(shape) for _, shape in self.sites)

    def split(self, vector: Any) -> dict[str, Any]:
        """The latents' unconstrained values; of a shorter vector those that it has."""
        found = {}
        start = 0
        for name, shape in (
            self.sites[: len(self.touched)] if len(vector) == self.num_touched else self.sites
        ):
            end = start + math.prod(shape)
            found[name] = vector[start:end].reshape(shape)
            start = end
        return found

    def joined(self, points: Values) -> Float[Array, " latent"]:
        """The vector of latents' unconstrained values."""
        found = dict(points)
        for name, logs in self._log_scales(points):
            found[name] = points[name] * jnp.exp(logs)
        return jnp.concatenate([jnp.ravel(found[name]) for name, _ in self.sites])

    def apart(self, vector: Array) -> Float[Array, " latent"]:
        """The vector with standard latents: those that are `scaled` less their location and over their scale, and no products."""
        points = self._points(vector)
        sites = self._sites(vector)
        for name in self.scaled:
            fn = without_wrappers(sites[name]["fn"])
            points[name] = (points[name] - fn.loc) / fn.scale
        return jnp.concatenate([jnp.ravel(points[name]) for name, _ in self.sites])

    def together(self, vector: Array) -> tuple[Float[Array, " latent"], Scalar]:
        """The inverse of `apart`, and the logarithm of by how much it enlarges volumes."""
        standard = self.split(vector)
        at_others = at_point(
            {
                parameter_of(name): standard[name]
                for name, _ in self.sites
                if name not in self.scaled
            }
        )

        def rule(site: Message) -> Any:
            if site["name"] not in self.scaled:
                return at_others(site)
            fn = without_wrappers(site["fn"])
            return fn.loc + fn.scale * standard[site["name"]]

        sites = self._trace(rule)
        points = standard | {name: sites[name]["value"] for name in self.scaled}
        volume = self.log_volume(points)
        for name in self.scaled:
            scale = without_wrappers(sites[name]["fn"]).scale
            volume += jnp.sum(jnp.broadcast_to(jnp.log(scale), points[name].shape))
        return self.joined(points), volume

    def _trace(self, rule: Callable[[Message], Any] = value_of_improper) -> dict[str, Any]:
        """The model's sites, with the values of latents that a rule gives."""
        programs = self.objective.programs
        rows = self.objective.placeholder
        return programs.trace(programs.model, rows, jax.random.key(0), rule=rule)

    def _sites(self, vector: Any) -> dict[str, Any]:
        """The model's sites at the vector."""
        return self.objective.globals_at(self._psi(vector), jax.random.key(0))

    def log_volume(self, points: Values) -> Scalar:
        """The logarithm of by how much products enlarge volumes."""
        return jnp.asarray(sum((jnp.sum(logs) for _, logs in self._log_scales(points)), 0.0))

    def _log_scales(self, points: Values) -> Iterator[tuple[str, Any]]:
        """The latents that are in a product, with the logarithm of its scale."""
        for name, scales in self.products:
            yield (
                name,
                sum(jnp.broadcast_to(points[scale], jnp.shape(points[name])) for scale in scales),
            )

    def _points(self, vector: Any) -> dict[str, Any]:
        """The latents' own unconstrained values."""
        points = self.split(vector)
        for name, logs in self._log_scales(points):
            points[name] = points[name] * jnp.exp(-logs)
        return points

    def _psi(self, vector: Any) -> dict[str, Any]:
        return {parameter_of(name): value for name, value in self._points(vector).items()}

    @_traced_once
    def gradients(self, at: Array, record: Sequence[Array]) -> Float[Array, " latent"]:
        """The gradient of one record's log-likelihood, in the precision of the model."""
        scales = {
            name: jnp.zeros((1, *shape))
            for name, shape in self.above
            if name in self.objective.touched_latents
        }

        def loss(point: Array) -> Array:
            # Of products alone: the same at any scales.
            latents = {name: value[None] for name, value in self.split(point).items()} | scales
            return self.objective.record_loss(
                {LATENT: latents, PARAM: {}}, record, jax.random.key(0)
            )

        return -jax.grad(loss)(at)

    @_traced_once
    def log_prior(self, vector: Array) -> Scalar:
        """Log prior density of the unconstrained vector."""
        _, free = self.objective.link(self._psi(vector), jax.random.key(0))
        return -free - self.log_volume(self.split(vector))

    def values(self, vector: Array) -> dict[str, Array]:
        """The latents' values in the model."""
        sites = self._sites(vector)
        return {name: sites[name]["value"] for name in self.objective.structure.global_latents}

    def observed(self, vector: Array, record: Sequence[Array]) -> list[tuple[Array, Array]]:
        """What the model observes of a record at the vector, and whether that lies outside of the support."""
        programs = self.objective.programs
        rows = [x[None] for x in record]
        rule = at_point(self._psi(vector))
        sites = programs.trace(programs.model, rows, jax.random.key(0), rule=rule)
        return [
            (sites[name]["value"], outside_of_support(sites[name])[1])
            for name in self.objective.structure.observed
        ]

    def drawn(self, key: PRNGKeyArray) -> Float[Array, " latent"]:
        """A draw of the vector from the prior."""
        return self.joined(self.objective.points(key, {}))

    def arranged(self, psi: Values) -> Latents:
        """The latents with products in the place of those that records touch only beside a scale, and what is `scaled`.

        Args:
            psi: As for `of`.
        """
        kinds: dict[str, type] = {}

        def look() -> None:
            for name, site in self._trace().items():
                if name in self.objective.structure.global_latents:
                    transform = bijection_of(site)
                    kinds[name] = type(getattr(transform, "base_transform", transform))

        jax.eval_shape(look)
        scales = [name for name, kind in kinds.items() if issubclass(kind, ExpTransform)]
        others = [name for name, kind in kinds.items() if issubclass(kind, IdentityTransform)]
        at_zero = np.zeros(self.size, jnp.result_type(float))
        products = products_of(
            {name: shape for name, shape in self.touched if name in scales},
            {name: shape for name, shape in self.touched if name in others},
            self.num_touched,
            jax.jit(lambda at, record: self.split(self.gradients(at, record))),
            self.split,
            self.objective.example,
            jax.jit(outside_of_arrays(self.objective, psi)),
            lambda record: (
                not any(outside for _, outside in computed(Latents.observed, self, at_zero, record))
            ),
        )
        beside = {scale for _, names in products for scale in names}
        touched = tuple(site for site in self.touched if site[0] not in beside)
        above = tuple(site for site in self.touched if site[0] in beside) + self.above
        scaled = self._scaled_of(others)
        return dataclasses.replace(
            self, touched=touched, above=above, products=products, scaled=scaled
        )

    def _scaled_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of some real latents whose prior has a location, and a scale that other latents decide."""
        found = []

        def scales(vector: Array) -> list[Array]:
            trace = self._sites(vector)
            sites = {name: without_wrappers(trace[name]["fn"]) for name in names}
            found[:] = [name for name, fn in sites.items() if isinstance(fn, LOCATED)]
            return [sites[name].scale for name in found]

        program = jax.make_jaxpr(scales)(np.zeros(self.size, jnp.result_type(float)))
        return tuple(
            name for name, used in zip(found, inputs_of_outputs(program), strict=True) if any(used)
        )


@functools.partial(jax.jit, static_argnums=(0, 1))
def computed(method: Callable[..., Any], latents: Latents, *args: Any) -> Any:
    """What a method of the latents computes; for equal latents, as of the next fit of a model, compiled once."""
    return method(latents, *args)


def latents_of(records: Records, key: PRNGKeyArray, *, static: Values, **made_of: Any) -> Latents:
    """The latents of a model that records are given to.

    Args:
        records: The records. Only shapes are used, but that values outside of a support are
            refused.
        key: The caller's key.
        static: Public keyword arguments of the model.
        made_of: As in `objective_of_points`.

    Raises:
        ValueError: As there; or a public argument looks like the table, or records lie outside of a
            support.
    """
    refuse_tables(jax.tree.leaves(static), [records.size])
    objective, psi = objective_of_points(records, key, static=static, **made_of)
    refuse_outside_support(objective, psi, [(list(records.leaves), None)])
    return Latents.of(objective, psi).arranged(psi)
