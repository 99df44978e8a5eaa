"""The ELBO, split into records' terms and a data-free term.

With the variational parameters psi and one guide draw eta, `link` gives u(psi, eta), everything
through which records meet the parameters, and the data-free term log q(theta) - log p(theta);
`record_loss` gives one record's loss as a function of u. Both differentiate as they stand.

Objectives are equal where they compute the same, as the digest of their programs tells. JAX keys
what it has traced and compiled by equality, so fits of one model share it, also where the DPSVI or
the AutoNormal is another object.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray, Scalar
from numpyro.distributions.kl import kl_divergence

from discreet._jax import (
    Memo,
    all_constants,
    inputs_of_outputs,
    jaxpr_as_fun,
    outputs_of_zeros,
    part_of_program,
    program_digest,
    program_text,
    programs_in,
    untraced,
    used_inputs,
)
from discreet._numpyro import one_model, scale_and_mask
from discreet.methods.inference._autoguides import NoInitialValuesError, is_numpyros
from discreet.methods.inference._couplings import refuse_couplings
from discreet.methods.inference._plates import log_density, value_of_improper
from discreet.methods.inference._point_guide import (
    PointGuide,
    at_point,
    bijection_of,
    delta_at,
)
from discreet.methods.inference._programs import Programs
from discreet.methods.inference._records import (
    Message,
    Records,
    Values,
    refuse_reshaped,
    refuse_tables,
)
from discreet.methods.inference._start import choose_placeholder, init_keys, initial_parameters
from discreet.methods.inference._structure import Structure, find_structure

# Dependencies of records' losses, by objective.
_LOOKED_AT = Memo[Any, dict[str, Any]]()
# The leaves that records' gradients reach, by objective and `num_records`.
_REACHED = Memo[Any, tuple[bool, ...]]()
LATENT = "latent"
PARAM = "param"


@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
    """A model, a guide and a placeholder record, ready for the private step."""

    programs: Programs  # model and guide with the shapes of their arguments
    placeholder: tuple[Any, ...]  # arrays of one artificial record
    structure: Structure  # see `Structure`
    transforms: Values  # from unconstrained to constrained, for each `param` site
    mean_field: bool  # use analytic KL divergences where there are any (TraceMeanField_ELBO)
    num_particles: int  # number of guide draws that a step averages over
    touched_latents: tuple[str, ...] = ()  # global latents that a record's loss depends on
    touched_params: tuple[str, ...] = ()  # `param` sites that a record's loss depends on
    uses_key: bool = True  # whether a record's loss is random (it draws local latents)
    # the unconstrained value with which each record's own `param` sites start
    local_start: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    # of all that is computed from it, once `with_dependencies` has looked; empty: it equals itself
    # alone
    digest: str = ""
    # shapes of the arrays that model and guide use without having them passed as records, known
    # constants aside
    held: tuple[jax.ShapeDtypeStruct, ...] = ()

    def _facts(self) -> tuple[Any, ...]:
        shape = (
            self.programs.records.signature,
            self.structure,
            tuple(self.transforms),
            self.mean_field,
            self.num_particles,
        )
        return self.digest, self.touched_latents, self.touched_params, self.uses_key, shape

    def __eq__(self, other: object) -> bool:
        """Compare the programs of two objectives."""
        if self is other:
            return True
        return (
            isinstance(other, Objective) and bool(self.digest) and self._facts() == other._facts()
        )

    def __hash__(self) -> int:
        """Hash of the program."""
        return hash(self.digest) if self.digest else id(self)

    @property
    def example(self) -> list[Any]:
        """One artificial record, with the values of its own `param` sites behind it, without the leading axis."""
        # Outside of a trace nothing is compiled for it.
        known = untraced()
        first = [jax.device_put(np.asarray(x)[0]) if known else x[0] for x in self.placeholder]
        return [*first, *(self.local_start[name] for name, _ in self.structure.local_params)]

    def refuse_tables(self, length: int) -> None:
        """Refuse arrays of the closure or by keyword that look like a table of this length."""
        static = jax.tree.leaves(self.programs.static)
        summed = self.structure.combinations().values()
        programs = self.programs.model, self.programs.guide
        refuse_tables([*static, *self.held], [length], programs)
        public = *static, *self.placeholder, *self.local_start.values(), *summed
        refuse_reshaped(self.held, public, self.programs.records.leaves, length, programs)

    def constrain(self, psi: Values) -> dict[str, Any]:
        """Values of the `param` sites from unconstrained parameters."""
        return {name: self.transforms[name](value) for name, value in psi.items()}

    def unconstrain(self, params: Values) -> dict[str, Any]:
        """The inverse of `constrain`."""
        return {name: self.transforms[name].inv(value) for name, value in params.items()}

    @classmethod
    def of(
        cls,
        records: Records,
        key: PRNGKeyArray,
        *,
        placeholder: Sequence[Any] | None,
        init_params: Values | None = None,
        mean_field: bool = False,
        num_particles: int = 1,
        look: bool = True,
        **programs: Any,
    ) -> tuple[Objective, dict[str, Any], PRNGKeyArray]:
        """Analyse a model and its guide, without records' values."""
        structure_key, values_key, start_key = init_keys(key)
        # An AutoGuide is set up for rows of one number, then of another: no other thread may come
        # between.
        with one_model:
            whole = Programs(
                records=records._replace(leaves=records.shapes(records.size)), **programs
            )
            made_up = choose_placeholder(whole, placeholder, structure_key)
            try:
                structure = find_structure(whole, made_up, structure_key)
            except NoInitialValuesError:
                # At zeros the density may be finite and its gradient not, as with an exposure that
                # the rate is multiplied by.
                if placeholder is not None:
                    raise
                made_up = whole.records.filled(1, 1)
                structure = find_structure(whole, made_up, structure_key)
            whole = dataclasses.replace(whole, record_plates=structure.record_plates)
            psi, own, transforms, state = initial_parameters(
                whole, made_up, structure, values_key, init_params
            )
            whole = dataclasses.replace(whole, state=state)
            objective = cls(
                whole,
                tuple(made_up),
                structure,
                transforms,
                mean_field,
                num_particles,
                local_start=own,
            )
            return (
                objective.with_dependencies(psi, start_key) if look else objective,
                psi,
                start_key,
            )

    # The data-free side.

    def link(self, psi: Values, key: PRNGKeyArray) -> tuple[dict[str, Any], Scalar]:
        """U and the data-free term, from `num_particles` guide draws shared by all records.

        Returns:
            u: `{"latent": {site: unconstrained value, leading axis particles}, "param": {...}}`;
            and the mean over the draws of log q(theta) - log p(theta), in nats.
        """
        if self.num_particles == 1:
            latents, free = jax.tree.map(lambda x: x[None], self._draw(psi, key, self.placeholder))
        else:
            keys = jax.random.split(key, self.num_particles)
            latents, free = jax.vmap(self._draw, (None, 0, None))(psi, keys, self.placeholder)
        params = {name: psi[name] for name in self.touched_params}
        return {LATENT: latents, PARAM: params}, jnp.mean(free)

    @functools.partial(jax.jit, static_argnums=(0, 3))
    def draw_posterior(
        self, params: Values, key: PRNGKeyArray, num_samples: int
    ) -> dict[str, Array]:
        """The global latents' values in draws of the guide at constrained `params`."""
        return jax.vmap(lambda draw: self.draw_globals(params, draw))(
            jax.random.split(key, num_samples)
        )

    def draw_globals(self, params: Values, key: PRNGKeyArray) -> dict[str, Array]:
        """The global latents' values in one draw of the guide at constrained `params`."""
        guide = self.globals_at(params, key)
        return {name: guide[name]["value"] for name in self.structure.global_latents}

    def globals_at(self, params: Values, key: PRNGKeyArray) -> dict[str, Any]:
        """The sites of the global latents in one run of the guide; of a point guide, in one of the model where it puts them."""
        programs = self.programs
        if isinstance(programs.guide, PointGuide):
            rule = at_point(params)
            return programs.trace(programs.model, self.placeholder, key, params, rule=rule)
        return programs.trace(programs.guide, self.placeholder, key, params)

    def points(self, key: PRNGKeyArray, values: Values) -> dict[str, Array]:
        """The global latents' unconstrained values in one run of the model, which draws those that have no value."""
        model = self.programs.trace(self.programs.model, self.placeholder, key, values)
        return {
            name: bijection_of(model[name]).inv(model[name]["value"])
            for name in self.structure.global_latents
        }

    def _draw(
        self, psi: Values, key: PRNGKeyArray, rows: Sequence[Any]
    ) -> tuple[dict[str, Any], Scalar]:
        """One guide draw: the touched latents' unconstrained values, and the data-free term."""
        programs = self.programs
        latents = self.structure.global_latents
        params = self.constrain(psi)
        guide_key, model_key = jax.random.split(key)
        if isinstance(programs.guide, PointGuide):
            model = programs.trace(programs.model, rows, model_key, params, rule=at_point(params))
            guide = {name: delta_at(params, model[name]) for name in latents}
        else:
            guide = programs.trace(programs.guide, rows, guide_key, params)
            drawn = {name: guide[name]["value"] for name in latents}
            model = programs.trace(programs.model, rows, model_key, {**params, **drawn})
        free = jnp.zeros(())
        for name in self.structure.guide_globals:
            if name not in latents:
                free += jnp.sum(log_density(guide[name]))
        for name in latents:
            free += self._divergence(guide[name], model[name])
        for name in self.structure.factors:
            free -= jnp.sum(log_density(model[name]))
        return {
            name: bijection_of(model[name]).inv(model[name]["value"])
            for name in self.touched_latents
        }, free

    def _divergence(self, guide_site: Message, model_site: Message) -> Scalar:
        """Log q - log p of a latent, or its expectation where that is known and asked for."""
        if self.mean_field:
            try:
                divergence = kl_divergence(guide_site["fn"], model_site["fn"])
                return jnp.sum(scale_and_mask(divergence, scale=guide_site["scale"]))
            except NotImplementedError:
                pass
        return jnp.sum(log_density(guide_site)) - jnp.sum(log_density(model_site))

    # The records' side.

    def record_loss(self, u: Values, record: Sequence[Any], key: PRNGKeyArray) -> Scalar:
        """One record's -[log p(x, z | u) - log q(z | x, u)], unscaled, mean over the particles.

        `u` is what `link` returned; the record is its slices of the record arrays, then the
        unconstrained values of the `param` sites that are its own.
        """

        def one(latents: Values, draw: PRNGKeyArray) -> Scalar:
            model, guide = self._at_record(latents, u[PARAM], record, draw)
            summed = bool(self.structure.summed)
            sites = {} if summed else model({name: site["value"] for name, site in guide.items()})
            loss = jnp.zeros(())
            for name, site in guide.items():
                loss += (
                    self._divergence(site, sites[name])
                    if name in sites
                    else jnp.sum(log_density(site))
                )
            if summed:
                logits, scale = self._log_weights(model, guide)
                return loss - scale * jax.nn.logsumexp(logits)
            return loss - sum(
                (jnp.sum(log_density(sites[name])) for name in self.structure.observed),
                jnp.zeros(()),
            )

        if self.num_particles == 1:
            return one(jax.tree.map(lambda x: x[0], u[LATENT]), key)
        keys = jax.random.split(key, self.num_particles)
        return jnp.mean(jax.vmap(one)(u[LATENT], keys))

    def _at_record(
        self, latents: Values, params: Values, record: Sequence[Any], key: PRNGKeyArray
    ) -> tuple[Callable[[Values], dict[str, Any]], dict[str, Any]]:
        """The model of a record as a batch of one, as a function of values of sites, and the guide's sites of the record."""
        rows = [x[None] for x in record[: len(self.placeholder)]]
        own = record[len(self.placeholder) :]
        named = zip(self.structure.local_params, own, strict=True)
        params = {**params, **{name: jnp.expand_dims(value, axis) for (name, axis), value in named}}
        guide_key, model_key = jax.random.split(key)

        def from_u(site: Message) -> Any:
            name = site["name"]
            if site["type"] == "sample" and name in latents:
                return bijection_of(site)(latents[name])
            if site["type"] == "param" and name in params:
                return self.transforms[name](params[name])
            return value_of_improper(site)

        programs = self.programs
        model = functools.partial(programs.trace, programs.model, rows, model_key, rule=from_u)
        if not self.structure.guide_locals:
            return model, {}
        # A guide may condition on the global latents, whose constrained values the model knows.
        sites = model({})
        known = {name: sites[name]["value"] for name in self.structure.global_latents}
        guide = programs.trace(programs.guide, rows, guide_key, known, rule=from_u)
        return model, {name: guide[name] for name in self.structure.guide_locals}

    def _log_weights(
        self, model: Callable[[Values], dict[str, Any]], guide: Values
    ) -> tuple[Float[Array, "combination"], Any]:
        """The log density of one record with each combination of its summed latents, and the scale of them all."""
        scales: list[Any] = []

        def one(choice: Values) -> Scalar:
            sites = model({**{name: site["value"] for name, site in guide.items()}, **choice})
            # A latent's distribution in the model may depend on what is summed out; its log density
            # is then in the sum.
            sampled = [name for name in guide if name in self.structure.local_latents]
            joint = [sites[name] for name in (*self.structure.observed, *sampled, *choice)]
            scales.append(_common_scale(joint))
            return sum(
                (jnp.sum(log_density({**site, "scale": 1.0})) for site in joint), jnp.zeros(())
            )

        choices = {
            name: jnp.asarray(values) for name, values in self.structure.combinations().items()
        }
        return jax.vmap(one)(choices), scales[0]

    def draw_discrete(
        self, u: Values, record: Sequence[Any], key: PRNGKeyArray
    ) -> dict[str, Array]:
        """One record's summed latents, drawn from their exact joint posterior given `u` and the record.

        Not private: it is a function of the record, for records that are public or one's own.
        """
        draw, local = jax.random.split(key)
        latents = jax.tree.map(lambda x: x[0], u[LATENT])
        logits, _ = self._log_weights(*self._at_record(latents, u[PARAM], record, local))
        index = jax.random.categorical(draw, logits)
        axes = {site.name: site.axis for site in self.structure.summed}
        return {
            name: jnp.squeeze(jnp.asarray(values)[index], axes[name])
            for name, values in self.structure.combinations().items()
        }

    def terms(self, psi: Values, record: Sequence[Any], key: PRNGKeyArray) -> tuple[Scalar, Scalar]:
        """The data-free term and one record's loss, in nats, with a guide draw for it alone."""
        draw, local = jax.random.split(key)
        u, free = self.link(psi, draw)
        return free, self.record_loss(u, record, local)

    # The rule of d3p.

    def whole_loss(
        self, psi: Values, record: Sequence[Any], key: PRNGKeyArray, num_records: int
    ) -> Scalar:
        """One record's share of the whole negative ELBO, with a guide draw of its own.

        The prior and entropy are spread evenly over the public number of records. This is the
        per-example loss of d3p (PoPETs 2022(2), Section 4.2), in units of one record.
        """
        free, loss = self.terms(psi, record, key)
        return loss + free / num_records

    # Dependencies.

    def reached(self, u: Any, num_records: int | None = None) -> tuple[bool, ...]:
        """For each leaf of `u`, False if a record's gradient in it is zero whatever the record.

        It is behind `stop_gradient`, or multiplied by 0.

        With `num_records`, `u` is psi and the gradient that of `whole_loss`.
        """
        if (self, num_records) not in _REACHED:
            loss = (
                self.record_loss
                if num_records is None
                else functools.partial(self.whole_loss, num_records=num_records)
            )
            program = jax.make_jaxpr(jax.grad(loss))(u, self.example, jax.random.key(0))
            found = []
            zeros = outputs_of_zeros(program)
            for number, depends in enumerate(inputs_of_outputs(program)):
                if any(depends):
                    found.append(not zeros[number])
                else:
                    with jax.ensure_compile_time_eval():
                        (gradient,) = jaxpr_as_fun(part_of_program(program, [number])[0])()
                    found.append(bool(np.any(np.asarray(gradient))))
            _REACHED[self, num_records] = tuple(found)
        if not any(_REACHED[self, num_records]):
            raise ValueError(
                "No record's loss has a gradient in a latent or a parameter (all stand behind stop_gradient, say), so there is "
                "nothing to learn. Leave something free."
            )
        return _REACHED[self, num_records]

    def with_dependencies(self, psi: Values, key: PRNGKeyArray) -> Objective:
        """Find which latents and parameters a record's loss depends on."""
        everything = dataclasses.replace(
            self, touched_latents=self.structure.global_latents, touched_params=tuple(psi)
        )
        program, shapes = jax.make_jaxpr(everything._all, return_shape=True)(psi, key, self.example)
        names = {
            equation.primitive.name
            for inner in programs_in(program)
            for equation in inner.jaxpr.eqns
        }
        if calls := sorted(name for name in names if "callback" in name or "debug_print" in name):
            raise ValueError(
                f"The model or the guide prints or calls Python while it runs ({calls[0]}, as by jax.debug.print, "
                "jax.debug.callback or io_callback), which would show single records. Remove the call; to inspect a model, "
                "run it on artificial records under numpyro.handlers.trace."
            )
        known = [
            *self.placeholder,
            *self.local_start.values(),
            *self.structure.combinations().values(),
        ]
        known += jax.tree.leaves(self.programs.state)
        if is_numpyros(self.programs.guide):
            # NumPyro's own guide reads nobody's arrays: those that it makes, such as the masks of a
            # flow, hold no data.
            known += all_constants(
                jax.make_jaxpr(self.draw_globals)(jax.eval_shape(self.constrain, psi), key)
            )
        public = [np.asarray(x) for x in known if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
        arrays = [x for x in all_constants(program) if jnp.ndim(x) and not _is_known(x, public)]
        held = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays)
        everything = dataclasses.replace(everything, digest=program_digest(program), held=held)
        # A table in the closure also couples artificial records; this names the cause.
        everything.refuse_tables(self.programs.num_records)
        # The checks also depend on programs of several rows, which the digest does not cover.
        name = everything, _identity(self.programs.model), _identity(self.programs.guide)
        if name not in _LOOKED_AT:
            _LOOKED_AT[name] = everything._look(psi, key, shapes[0])
        return dataclasses.replace(everything, **_LOOKED_AT[name])

    def _all(self, psi: Values, key: PRNGKeyArray, record: Sequence[Any]) -> Any:
        """All programs computed from an objective, with their derivatives."""
        (u, free), pull = jax.vjp(lambda p: self.link(p, key), psi)
        params = self.constrain(psi)
        values = self.draw_globals(params, key)
        loss = jax.value_and_grad(self.record_loss)(u, record, key)
        discrete = self.draw_discrete(u, record, key) if self.structure.summed else None
        return u, free, pull((u, free)), params, self.unconstrain(params), values, loss, discrete

    def _look(self, psi: Values, key: PRNGKeyArray, u: Values) -> dict[str, Any]:
        """The latents and parameters that a record's loss depends on, and whether it depends on the key, as named here."""
        touched, _, uses_key = used_inputs(self.record_loss, u, self.example, key)
        latents, params = (
            tuple(name for name, uses in touched[kind].items() if any(jax.tree.leaves(uses)))
            for kind in (LATENT, PARAM)
        )
        found = {
            "touched_latents": latents,
            "touched_params": params,
            "uses_key": any(jax.tree.leaves(uses_key)),
        }
        if not (latents or params):
            raise ValueError(
                "No record's loss depends on a latent or a parameter, so there is nothing to learn. Let the likelihood use "
                "the sampled values."
            )
        result = dataclasses.replace(self, **found)
        result._check_data_free(psi, key)
        refuse_couplings(result, psi)
        return found

    def _check_data_free(self, psi: Values, key: PRNGKeyArray) -> None:
        rows = list(self.placeholder)
        two = [np.concatenate([x, x]) for x in rows]
        of_one, of_two = (jax.make_jaxpr(self._draw)(psi, key, x) for x in (rows, two))
        if any(used for uses in inputs_of_outputs(of_one) for used in uses[-len(rows) :]):
            raise ValueError(
                "The prior of a global latent, or the guide's distribution for one, reads the records' values "
                "outside the record plate. That would leave the data without noise, so it is evaluated on a "
                "placeholder and would be wrong. Let only sites inside the record plate use the records; pass "
                "public constants (such as scales) as keyword arguments to DPSVI."
            )
        own = {
            name: jnp.expand_dims(self.local_start[name], axis)
            for name, axis in self.structure.local_params
        }
        uses = {}
        if own:
            uses, _ = used_inputs(lambda own, psi: self._draw({**psi, **own}, key, rows), own, psi)
        if reading := [name for name, use in uses.items() if use]:
            raise ValueError(
                f"The guide's distribution for a global latent reads the param site {reading[0]!r}, of which each record "
                "has its own. That would release it. Let only the record's own latents use it."
            )
        if program_text(of_one) != program_text(of_two):
            raise ValueError(
                "The prior of a global latent, or the guide's distribution for one, depends on the number of rows that "
                "it is given, which here is a placeholder's. Pass the public number of records as a keyword argument "
                "to DPSVI (N=...) and use that."
            )


def _is_known(array: Any, public: Sequence[np.ndarray]) -> bool:
    """True if an array of a program contains no data: it is public here, or constant."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return True
    values = np.asarray(array)
    uniform = values.size == 0 or bool(np.all(values == values.flat[0]))
    return uniform or any(values.shape == x.shape and np.array_equal(values, x) for x in public)


def _identity(program: Any) -> Any:
    """The identity of a model or guide: itself; for a new AutoGuide or PointGuide its class and model."""
    if isinstance(program, PointGuide):
        return PointGuide, _identity(program.model), _identity(program.init_loc_fn)
    if is_numpyros(program):
        return type(program), program.model
    # Unhashable programs are analysed each time.
    return program if isinstance(program, Hashable) else object()


def _common_scale(sites: Sequence[Message]) -> Any:
    """The scale of a record's sites, which must be one where latents are summed out: it stands before the logarithm."""
    scales = [site["scale"] for site in sites]
    numbers = {float(x) for x in scales if not isinstance(x, Tracer)}
    if len(numbers) != 1 or any(isinstance(x, Tracer) for x in scales):
        raise ValueError(
            "The sites of a record are scaled differently (handlers.scale), and a discrete latent is summed out of "
            "them. Scale all sites of a record by the same number."
        )
    return numbers.pop()
