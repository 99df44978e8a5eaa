"""The ELBO, split into records' terms and a data-free term; and the initial values of a fit.

With the variational parameters psi and one guide draw eta, `link` gives u(psi, eta), everything
through which records meet the parameters, and the data-free term log q(theta) - log p(theta);
`record_loss` gives one record's loss as a function of u. Both differentiate as they stand.

Objectives are equal where they compute the same, as the digest of their programs tells. JAX keys what it has traced and compiled
by equality, so fits of one model share it, also where the DPSVI or the AutoNormal is another object.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray, Scalar
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.kl import kl_divergence

from discreet import random
from discreet._jax import (
    Memo,
    all_constants,
    inputs_of_outputs,
    outputs_of_zeros,
    part_of_program,
    program_digest,
    program_text,
    programs_in,
    run_jaxpr,
    run_kept,
    run_once,
    used_inputs,
)
from discreet._numpyro import artificial_records, helpful_support_errors, one_model, scale_and_mask
from discreet.inference._records import (
    Message,
    Programs,
    Records,
    Values,
    log_density,
    refuse_reshaped,
    refuse_tables,
    take_apart,
    value_of_improper,
)
from discreet.inference._structure import (
    FAILURES,
    NoInitialValuesError,
    Structure,
    auto_guides,
    bijection_of,
    explain_model,
    find_structure,
    is_numpyros,
    start_of_search,
)

# --- The objective ---


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
    # of all that is computed from it, once `with_dependencies` has looked; empty: it equals itself alone
    digest: str = ""
    # shapes of the arrays that model and guide use without having them passed as records, known constants aside
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
        return isinstance(other, Objective) and bool(self.digest) and self._facts() == other._facts()

    def __hash__(self) -> int:
        """Hash of the program."""
        return hash(self.digest) if self.digest else id(self)

    @property
    def example(self) -> list[Any]:
        """One artificial record, with the values of its own `param` sites behind it, without the leading axis."""
        return [*(x[0] for x in self.placeholder), *(self.local_start[name] for name, _ in self.structure.local_params)]

    def refuse_tables(self, length: int) -> None:
        """Refuse arrays of the closure or by keyword that look like a table of this length."""
        static, summed = jax.tree.leaves(self.programs.static), self.structure.combinations().values()
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
        # An AutoGuide is set up for rows of one number, then of another: no other thread may come between.
        with one_model:
            whole = Programs(records=records._replace(leaves=records.shapes(records.size)), **programs)
            made_up = choose_placeholder(whole, placeholder, structure_key)
            try:
                structure = find_structure(whole, made_up, structure_key)
            except NoInitialValuesError:
                # At zeros the density may be finite and its gradient not, as with an exposure that the rate is multiplied by.
                if placeholder is not None:
                    raise
                made_up = whole.records.filled(1, 1)
                structure = find_structure(whole, made_up, structure_key)
            whole = dataclasses.replace(whole, record_plates=structure.record_plates)
            psi, own, transforms, state = initial_parameters(whole, made_up, structure, values_key, init_params)
            whole = dataclasses.replace(whole, state=state)
            objective = cls(whole, tuple(made_up), structure, transforms, mean_field, num_particles, local_start=own)
            return objective.with_dependencies(psi, start_key) if look else objective, psi, start_key

    # --- the data-free side ---------------------------------------------------------------

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
    def draw_posterior(self, params: Values, key: PRNGKeyArray, num_samples: int) -> dict[str, Array]:
        """The global latents' values in draws of the guide at constrained `params`."""
        return jax.vmap(lambda draw: self.draw_globals(params, draw))(jax.random.split(key, num_samples))

    def draw_globals(self, params: Values, key: PRNGKeyArray) -> dict[str, Array]:
        """The global latents' values in one draw of the guide at constrained `params`."""
        guide = self.programs.trace(self.programs.guide, self.placeholder, key, params)
        return {name: guide[name]["value"] for name in self.structure.global_latents}

    def points(self, key: PRNGKeyArray, values: Values) -> dict[str, Array]:
        """The global latents' unconstrained values in one run of the model, which draws those that have no value."""
        model = self.programs.trace(self.programs.model, self.placeholder, key, values)
        return {name: bijection_of(model[name]).inv(model[name]["value"]) for name in self.structure.global_latents}

    def _draw(self, psi: Values, key: PRNGKeyArray, rows: Sequence[Any]) -> tuple[dict[str, Any], Scalar]:
        """One guide draw: the touched latents' unconstrained values, and the data-free term."""
        programs, latents = self.programs, self.structure.global_latents
        params = self.constrain(psi)
        guide_key, model_key = jax.random.split(key)
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
        return {name: bijection_of(model[name]).inv(model[name]["value"]) for name in self.touched_latents}, free

    def _divergence(self, guide_site: Message, model_site: Message) -> Scalar:
        """Log q - log p of a latent, or its expectation where that is known and asked for."""
        if self.mean_field:
            try:
                divergence = kl_divergence(guide_site["fn"], model_site["fn"])
                return jnp.sum(scale_and_mask(divergence, scale=guide_site["scale"]))
            except NotImplementedError:
                pass
        return jnp.sum(log_density(guide_site)) - jnp.sum(log_density(model_site))

    # --- the records' side ----------------------------------------------------------------

    def record_loss(self, u: Values, record: Sequence[Any], key: PRNGKeyArray) -> Scalar:
        """One record's -[log p(x, z | u) - log q(z | x, u)], unscaled, mean over the particles.

        `u` is what `link` returned; the record is its slices of the record arrays, then the unconstrained values of the `param`
        sites that are its own.
        """

        def one(latents: Values, draw: PRNGKeyArray) -> Scalar:
            model, guide = self._at_record(latents, u[PARAM], record, draw)
            summed = bool(self.structure.summed)
            sites = {} if summed else model({name: site["value"] for name, site in guide.items()})
            loss = jnp.zeros(())
            for name, site in guide.items():
                loss += self._divergence(site, sites[name]) if name in sites else jnp.sum(log_density(site))
            if summed:
                logits, scale = self._log_weights(model, guide)
                return loss - scale * jax.nn.logsumexp(logits)
            return loss - sum((jnp.sum(log_density(sites[name])) for name in self.structure.observed), jnp.zeros(()))

        if self.num_particles == 1:
            return one(jax.tree.map(lambda x: x[0], u[LATENT]), key)
        keys = jax.random.split(key, self.num_particles)
        return jnp.mean(jax.vmap(one)(u[LATENT], keys))

    def _at_record(
        self, latents: Values, params: Values, record: Sequence[Any], key: PRNGKeyArray
    ) -> tuple[Callable[[Values], dict[str, Any]], dict[str, Any]]:
        """The model of a record as a batch of one, as a function of values of sites, and the guide's sites of the record."""
        rows, own = [x[None] for x in record[: len(self.placeholder)]], record[len(self.placeholder) :]
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
            # A latent's distribution in the model may depend on what is summed out; its log density is then in the sum.
            sampled = [name for name in guide if name in self.structure.local_latents]
            joint = [sites[name] for name in (*self.structure.observed, *sampled, *choice)]
            scales.append(_common_scale(joint))
            return sum((jnp.sum(log_density({**site, "scale": 1.0})) for site in joint), jnp.zeros(()))

        choices = {name: jnp.asarray(values) for name, values in self.structure.combinations().items()}
        return jax.vmap(one)(choices), scales[0]

    @functools.partial(jax.jit, static_argnums=(0, 4))
    def infer_discrete(
        self, params: Values, leaves: Sequence[Any], key: PRNGKeyArray, num_samples: int
    ) -> dict[str, Array]:
        """The summed latents of given records, each time with another draw of the guide at constrained `params`."""
        psi = self.unconstrain(params)
        # All latents: an objective that came from a file does not say which ones records touch.
        whole = dataclasses.replace(
            self, num_particles=1, touched_latents=self.structure.global_latents, touched_params=tuple(psi)
        )

        def one(key: PRNGKeyArray) -> dict[str, Array]:
            draw, local = jax.random.split(key)
            u, _ = whole.link(psi, draw)
            keys = jax.random.split(local, len(leaves[0]))
            return jax.vmap(lambda record, key: whole.draw_discrete(u, record, key))(list(leaves), keys)

        return jax.vmap(one)(jax.random.split(key, num_samples))

    def draw_discrete(self, u: Values, record: Sequence[Any], key: PRNGKeyArray) -> dict[str, Array]:
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

    # --- d3p's rule -----------------------------------------------------------------------

    def whole_loss(self, psi: Values, record: Sequence[Any], key: PRNGKeyArray, num_records: int) -> Scalar:
        """One record's share of the whole negative ELBO, with a guide draw of its own.

        The prior and entropy are spread evenly over the public number of records. This is the
        per-example loss of d3p (PoPETs 2022(2), Section 4.2), in units of one record.
        """
        free, loss = self.terms(psi, record, key)
        return loss + free / num_records

    # --- dependencies ---------------------------------------------------------------------

    def reached(self, u: Any, num_records: int | None = None) -> tuple[bool, ...]:
        """For each leaf of `u`, False if a record's gradient in it is zero whatever the record.

        It is behind `stop_gradient`, or multiplied by 0.

        With `num_records`, `u` is psi and the gradient that of `whole_loss`.
        """
        if (self, num_records) not in _REACHED:
            loss = (
                self.record_loss if num_records is None else functools.partial(self.whole_loss, num_records=num_records)
            )
            program = jax.make_jaxpr(jax.grad(loss))(u, self.example, jax.random.key(0))
            found = []
            zeros = outputs_of_zeros(program)
            for number, depends in enumerate(inputs_of_outputs(program)):
                if any(depends):
                    found.append(not zeros[number])
                else:
                    with jax.ensure_compile_time_eval():
                        (gradient,) = run_jaxpr(part_of_program(program, [number])[0])
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
        everything = dataclasses.replace(self, touched_latents=self.structure.global_latents, touched_params=tuple(psi))
        program = jax.make_jaxpr(everything._all)(psi, key, self.example)
        names = {equation.primitive.name for inner in programs_in(program) for equation in inner.jaxpr.eqns}
        if calls := sorted(name for name in names if "callback" in name or "debug_print" in name):
            raise ValueError(
                f"The model or the guide prints or calls Python while it runs ({calls[0]}, as by jax.debug.print, "
                "jax.debug.callback or io_callback), which would show single records. Remove the call; to inspect a model, "
                "run it on artificial records under numpyro.handlers.trace."
            )
        known = [*self.placeholder, *self.local_start.values(), *self.structure.combinations().values()]
        known += jax.tree.leaves(self.programs.state)
        if is_numpyros(self.programs.guide):
            # NumPyro's own guide reads nobody's arrays: those that it makes, such as the masks of a flow, hold no data.
            known += all_constants(jax.make_jaxpr(self.draw_globals)(jax.eval_shape(self.constrain, psi), key))
        public = [np.asarray(x) for x in known if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
        arrays = [x for x in all_constants(program) if jnp.ndim(x) and not _is_known(x, public)]
        held = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays)
        everything = dataclasses.replace(everything, digest=program_digest(program), held=held)
        # A table in the closure also couples artificial records; this names the cause.
        everything.refuse_tables(self.programs.num_records)
        # The checks also depend on programs of several rows, which the digest does not cover.
        name = everything, _identity(self.programs.model), _identity(self.programs.guide)
        if name not in _LOOKED_AT:
            _LOOKED_AT[name] = everything._look(psi, key)
        return dataclasses.replace(everything, **_LOOKED_AT[name])

    def _all(self, psi: Values, key: PRNGKeyArray, record: Sequence[Any]) -> Any:
        """All programs computed from an objective, with their derivatives."""
        (u, free), pull = jax.vjp(lambda p: self.link(p, key), psi)
        params = self.constrain(psi)
        values = self.draw_globals(params, key)
        loss = jax.value_and_grad(self.record_loss)(u, record, key)
        discrete = self.draw_discrete(u, record, key) if self.structure.summed else None
        return u, free, pull((u, free)), params, self.unconstrain(params), values, loss, discrete

    def _look(self, psi: Values, key: PRNGKeyArray) -> dict[str, Any]:
        """The latents and parameters that a record's loss depends on, and whether it depends on the key, as named here."""
        u, _ = jax.eval_shape(self.link, psi, key)
        touched, _, uses_key = used_inputs(self.record_loss, u, self.example, key)
        latents, params = (
            tuple(name for name, uses in touched[kind].items() if any(jax.tree.leaves(uses)))
            for kind in (LATENT, PARAM)
        )
        found = {"touched_latents": latents, "touched_params": params, "uses_key": any(jax.tree.leaves(uses_key))}
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
        _, _, uses = used_inputs(self._draw, psi, key, rows)
        if any(jax.tree.leaves(uses)):
            raise ValueError(
                "The prior of a global latent, or the guide's distribution for one, reads the records' values "
                "outside the record plate. That would leave the data without noise, so it is evaluated on a "
                "placeholder and would be wrong. Let only sites inside the record plate use the records; pass "
                "public constants (such as scales) as keyword arguments to DPSVI."
            )
        own = {name: jnp.expand_dims(self.local_start[name], axis) for name, axis in self.structure.local_params}
        uses, *_ = used_inputs(lambda own, psi: self._draw({**psi, **own}, key, rows), own, psi)
        if reading := [name for name, use in uses.items() if use]:
            raise ValueError(
                f"The guide's distribution for a global latent reads the param site {reading[0]!r}, of which each record "
                "has its own. That would release it. Let only the record's own latents use it."
            )
        two = [jnp.concatenate([x, x]) for x in rows]
        if program_text(self._draw, psi, key, rows) != program_text(self._draw, psi, key, two):
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
    """The identity of a model or guide: itself; for a new AutoGuide its class and model."""
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


# --- Where a fit starts ---


@run_once
def init_keys(key: PRNGKeyArray) -> tuple[PRNGKeyArray, ...]:
    """Keys for the initial values, which see no data and may be known: threefry, for which JAX compiles less."""
    return tuple(jax.random.split(random.as_threefry(random.subkey(key, random.Purpose.INIT)), 3))


def choose_placeholder(programs: Programs, given: Sequence[Any] | None, key: PRNGKeyArray) -> list[Array]:
    """One artificial record: the caller's, or zeros, or ones or halves where zeros are impossible, as for shares."""
    records = programs.records
    if given is not None:
        made_up = take_apart(tuple(given), {}).leaves
        if [x.shape for x in made_up] != [(1, *x.shape[1:]) for x in records.leaves]:
            raise ValueError(
                f"The placeholder's arrays have shapes {[x.shape for x in made_up]}; pass one artificial record: arrays "
                "shaped like the records' with a leading axis of one, in the same order."
            )
        return [x.astype(r.dtype) for x, r in zip(made_up, records.leaves, strict=True)]
    for candidate in (records.filled(0, 1), records.filled(1, 1), records.filled(0.5, 1)):
        try:
            if _has_finite_density(programs, candidate):
                return candidate
        except FAILURES as error:
            explain_model(programs, key)
            if "size of plate" in str(error):
                # `find_structure` says why.
                return candidate
            # A column of weights (handlers.scale) must not be zero, nor one of standard errors where NumPyro validates.
            if "distribution got invalid" not in str(error) and "should be positive" not in str(error):
                raise
    for one, other in ((0.0, 1.0), (1.0, 0.5), (0.5, 0.25)):
        mixed, *equal = (
            [jnp.concatenate(x) for x in zip(records.filled(a, 1), records.filled(b, 1), strict=True)]
            for a, b in ((one, other), (one, one), (other, other))
        )
        if _runs_finite(programs, mixed) and not any(_runs_finite(programs, rows) for rows in equal):
            raise ValueError(
                "The model computes a statistic of its records, such as x.std(0) or a range: artificial records have a finite "
                "density where they differ, and none where they are equal. A statistic couples all records, and each is "
                "evaluated alone. Scale by public numbers in its place, as (age - 40) / 15, or before the fit by "
                "discreet.standardise.private_standardisation, which is another release with its own cost."
            )
    return records.filled(0, 1)


def _runs_finite(programs: Programs, rows: list[Array]) -> bool:
    try:
        return _has_finite_density(programs, rows)
    except FAILURES:
        return False


def _has_finite_density(programs: Programs, rows: list[Array]) -> bool:
    def finite(rows: list[Array], key: PRNGKeyArray) -> Array:
        trace = programs.trace(programs.model, rows, key, hint=programs.num_records, rule=start_of_search)
        observed = [site for site in trace.values() if site["type"] == "sample" and site["is_observed"]]
        fine: list[Any] = [True]
        for site in observed:
            fn, value = site["fn"], site["value"]
            try:
                fine.append(jnp.all(jnp.isfinite(fn.log_prob(value))))
            except TypeError as error:
                if jnp.issubdtype(jnp.result_type(value), jnp.integer) or "integer" not in str(error):
                    raise
                raise TypeError(
                    f"The observed site {site['name']!r} has values of the type {jnp.result_type(value)}, and its "
                    f"distribution, {type(fn).__name__}, takes integers. Convert them in the model, by obs=y.astype(int)."
                ) from error
        # A Bernoulli of NaN has a finite density.
        numbers = [x for x in jax.tree.leaves([site["fn"] for site in observed]) if isinstance(x, jax.Array)]
        fine += [~jnp.any(jnp.isnan(x)) for x in numbers if jnp.issubdtype(x.dtype, jnp.floating)]
        return jnp.all(jnp.array(fine))

    with artificial_records():
        # A key of its own, so that whether zeros will do depends on the model alone.
        return bool(run_kept(lambda: finite(rows, jax.random.key(0))))


def initial_parameters(
    programs: Programs,
    placeholder: list[Array],
    structure: Structure,
    key: PRNGKeyArray,
    init_params: Values | None,
) -> tuple[dict[str, Any], dict[str, Array], dict[str, Any], dict[str, Any]]:
    """Unconstrained initial parameters, those that each record has of its own, transforms to constrained values, and state."""
    given = dict(init_params or {})
    transforms: dict[str, Any] = {}

    def start(key: PRNGKeyArray) -> list[dict[str, Any]]:
        guide_key, model_key = jax.random.split(key)
        guide = programs.trace(programs.guide, placeholder, guide_key, given)
        model: dict[str, Any] = {}
        if structure.model_params:
            latents = {n: s["value"] for n, s in guide.items() if s["type"] in ("sample", "param", "mutable")}
            model = programs.trace(programs.model, placeholder, model_key, {**latents, **given})
        # A site in both belongs to the guide, as in NumPyro.
        for site in [*model.values(), *guide.values()]:
            if site["type"] != "param":
                continue
            if not all(jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in jax.tree.leaves(site["value"])):
                raise ValueError(
                    f"The param site {site['name']!r} holds numbers that are no floats, so it has no gradient. Start it from "
                    "floats, or pass it to DPSVI as a public keyword argument."
                )
            with helpful_support_errors({**site, "fn": None}):
                transforms[site["name"]] = biject_to(site["kwargs"].get("constraint", constraints.real))
        sites = {**model, **guide}.items()
        return [{n: s["value"] for n, s in sites if s["type"] == kind} for kind in ("param", "mutable")]

    # NumPyro's guides have their initial values already: nothing is compiled for what else they compute.
    ready = is_numpyros(programs.guide) and not structure.model_params and not given
    params, state = run_kept(start, key) if ready else start(key)
    psi = {name: transform.inv(params[name]) for name, transform in transforms.items()}
    if unknown := set(given) - set(psi):
        raise ValueError(
            f"init_params names {sorted(unknown)[0]!r}, which is not a param site of model or guide. Remove it."
        )
    if not psi:
        raise ValueError(
            "There is nothing to fit. A model needs a latent (numpyro.sample without obs=); a guide of your own needs a param "
            "site."
        )
    # Weak types would make the compiled loop change its types after the first step.
    psi = jax.tree.map(lambda x: lax.convert_element_type(x, jnp.result_type(x)), psi)
    own = {name: _of_one(name, psi.pop(name), axis, transforms[name]) for name, axis in structure.local_params}
    if reading := set(given) & set(own):
        raise ValueError(
            f"init_params names {sorted(reading)[0]!r}, of which each record has its own. All start from the guide's initial "
            "value; change it there."
        )
    if not psi:
        raise ValueError(
            "Only records have parameters here, and these are never released: no latent or param site is shared by the records, "
            "so the fit would publish nothing. Let them share something, such as the mean and the scale of their prior "
            "(partial pooling)."
        )
    return psi, own, transforms, state


def _of_one(name: str, rows: Array, axis: int, transform: Any) -> Array:
    """One record's value of a `param` site with a value for each, unconstrained."""
    if axis >= jnp.ndim(transform(rows)) - transform.codomain.event_dim:
        raise ValueError(
            f"The constraint of the param site {name!r} joins the records, whose axis is {axis}: each record has its own "
            "value. Put the records' axis first and the axes of one record's value behind it."
        )
    return jnp.take(rows, 0, axis=axis)


# Of equal objectives compiled once.
_terms_at_start = run_once(lambda objective, psi, key: objective.terms(psi, objective.example, key), static_argnums=0)


def loss_at_start(objective: Objective, psi: Values, key: PRNGKeyArray) -> Scalar:
    """The placeholder record's loss, which like the data-free term must be finite."""
    with artificial_records():
        free, loss = _terms_at_start(objective, psi, key)
    for value, what in ((free, "The prior or the guide"), (loss, "The loss of the placeholder record")):
        if not bool(jnp.isfinite(value)):
            raise ValueError(
                f"{what} is not finite at the initial parameters ({float(value)}). Pass an artificial record in the "
                "support of the observations as placeholder=..., or other initial values as init_params."
            )
    return jnp.asarray(loss, jnp.float32)


# --- Check for couplings between records in a model or a guide ---


# A fit evaluates each record alone, in a plate of one row. This is the user's model only if the log density of all records
# together is the sum of that of each alone, at any values of the latents. That fails with a mean over the table, the number of
# rows, or rows that are shifted, sorted or reversed against one another. Privacy does not depend on it, since a record evaluated
# alone meets no other; but the fit would be that of another model.
#
# So artificial rows are evaluated together and alone, at the same values of everything random: the shared latents (drawn by the
# guide), those of each record (moderate values in their support, whatever the guide is), and one value of each that is summed
# out. Their number is a prime, so that a shift by any amount but its multiples moves them. Rows whose values lie outside a
# support are replaced by the placeholder record. The guide's density of the records' latents is compared likewise.
#
# A program that draws random numbers besides its latents (dropout) draws others for a row alone than for many. There the
# mixed difference l(a, b) - l(a', b) - l(a, b') + l(a', b') over two halves of the rows is looked at, which is zero for sums
# over rows.
_ROWS = 101


def moved_start(psi: Values, rng: np.random.Generator) -> Any:
    """Parameters near those with which a fit starts: weights that start at zero would hide what they multiply."""
    return jax.tree.map(lambda x: np.asarray(x + rng.uniform(0.1, 0.2, jnp.shape(x)), jnp.result_type(x)), psi)


def refuse_couplings(objective: Objective, psi: Values) -> None:
    """Refuse a model or guide whose density of many rows is no product over them."""
    structure, programs, rng = objective.structure, objective.programs, np.random.default_rng(0)
    psi = moved_start(psi, rng)
    names = *structure.observed, *structure.local_latents, *(site.name for site in structure.summed)
    made_up = [[_made_up(np.asarray(x[0]), rng) for x in objective.placeholder] for _ in range(2)]
    _compare(objective, "model", programs.model, names, psi, made_up, rng)
    # AutoGuides read no record, and have the size of the one row on which they were set up.
    covered = {name for part in auto_guides(programs.guide) for name in part.prototype_trace or ()}
    if structure.guide_locals and covered.isdisjoint(structure.local_latents):
        _compare(objective, "guide", programs.guide, structure.guide_locals, psi, made_up, rng)


def _compare(
    objective: Objective,
    what: str,
    program: Callable[..., Any],
    names: Sequence[str],
    psi: Values,
    made_up: list[list[np.ndarray]],
    rng: np.random.Generator,
) -> None:
    structure = objective.structure
    local = [n for n in names if n in structure.local_latents or n in structure.guide_locals]
    summed = [site for site in structure.summed if site.name in names]
    choices = {site.name: site.values()[rng.integers(site.size, size=_ROWS)] for site in summed}
    axes = {site.name: site.axis for site in summed}
    together = {name: jnp.asarray(np.concatenate(list(x), axis=axes[name])) for name, x in choices.items()}

    def run(rows: Any, given: Values, shared: Any, key: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The log density of each site, and the records' latents."""
        start = ((name, at, jnp.expand_dims(objective.local_start[name], at)) for name, at in structure.local_params)
        own = {name: objective.transforms[name](jnp.repeat(x, len(rows[0]), at)) for name, at, x in start}
        values = {**shared, **own, **given}
        trace = objective.programs.trace(program, rows, key, values, rule=rule)
        return {name: log_density(trace[name]) for name in names}, {name: trace[name]["value"] for name in local}

    def rule(site: Message) -> Any:
        """A value of a record's latent in the model, without a sampler, which may take long to compile."""
        if site["type"] != "sample" or site["value"] is not None or what == "guide" or site["name"] not in local:
            return value_of_improper(site)
        transform = biject_to(site["fn"].support)
        shape = transform.inverse_shape(site["kwargs"].get("sample_shape", ()) + site["fn"].shape())
        return transform(jnp.asarray(np.random.default_rng(1).uniform(-1.0, 1.0, shape), jnp.float32))

    def share(psi: Any, key: Any) -> dict[str, Any]:
        params = objective.constrain(psi)
        return {**params, **objective.draw_globals(params, key)}

    def of_all(rows: Any, given: Values, shared: Any, key: Any) -> tuple[Float[Array, "row"], dict[str, Any]]:
        densities, values = run(rows, {**together, **given}, shared, key)
        found = [
            jnp.sum(jnp.moveaxis(densities[n], at[0][n], 0).reshape(_ROWS, -1), 1) for n in densities if n not in whole
        ]
        # Terms of no single row count with the first row: then the sum over all rows is compared.
        of_none = sum((jnp.sum(densities[name]) for name in whole), jnp.zeros(()))
        return jnp.sum(jnp.stack([*found, jnp.zeros(_ROWS)]), 0).at[0].add(of_none), values

    def of_one(row: Any, given: Values, shared: Any, key: Any) -> Scalar:
        given = {name: jnp.expand_dims(x, at[1][name]) for name, x in given.items()}
        densities, _ = run([x[None] for x in row], given, shared, key)
        return sum((jnp.sum(x) for x in densities.values()), jnp.zeros(()))

    # Fixed keys make the check deterministic; several, since one draw of the latents may hide a coupling.
    keys = [jax.random.key(seed) for seed in range(4)]
    shapes = jax.eval_shape(share, psi, keys[0])
    few = [x[:1] for x in made_up[0]]
    one = jax.eval_shape(run, few, {n: x[0] for n, x in choices.items()}, shapes, keys[0])
    many = jax.eval_shape(run, made_up[0], together, shapes, keys[0])
    whole = [name for name in names if one[0][name].shape == many[0][name].shape]
    at = jax.tree.map(_axis, one, many)
    # Without one axis for the records, a term is one for all of them, and a latent none of each.
    axes_found = [*(at[0][name] for name in names if name not in whole), *at[1].values()]
    if None in axes_found:
        _refuse_coupling(what, None)
    at = at[0], {**at[1], **axes}

    each = jax.vmap(of_one, (0, 0, None, None))
    placeholders = [np.repeat(np.asarray(x), _ROWS, axis=0) for x in objective.placeholder]
    half = rng.random(_ROWS) < 0.5

    def couples(jit: Callable[..., Any]) -> bool:
        all_alone, all_together, shared_values = jit(each), jit(of_all), jit(share)
        for key in keys:
            with artificial_records():
                shared = shared_values(psi, key)
                _, values = all_together(made_up[0], {}, shared, key)
                given = {name: jnp.moveaxis(x, at[1][name], 0) for name, x in values.items()}
                given.update({name: jnp.squeeze(x, 1 + axes[name]) for name, x in choices.items()})
                inside = [np.isfinite(all_alone(rows, given, shared, key)) for rows in made_up]
                first, second = (_choose(*x, placeholders) for x in zip(inside, made_up, strict=True))
                (is_random,) = used_inputs(lambda key: each(first, given, shared, key), key)  # noqa: B023
                if is_random:
                    pairs = ((a, b) for a in (first, second) for b in (first, second))
                    found = [
                        np.asarray(all_together(_choose(half, *x), values, shared, key)[0], np.float64) for x in pairs
                    ]
                    one_way, other = found[0] - found[1], found[2] - found[3]
                else:
                    one_way = np.asarray(all_together(first, values, shared, key)[0], np.float64)
                    other = np.asarray(all_alone(first, given, shared, key), np.float64)
            if not _alike(one_way, other):
                return True
        return False

    # What is compiled quickly may round otherwise alone than together, which a chaotic model, such as sin(1e5 x), makes large.
    if couples(run_once) and couples(jax.jit):
        _refuse_coupling(what, whole[0] if whole else None)


def _refuse_coupling(what: str, joint: str | None) -> NoReturn:
    """Refuse a model or guide that couples records; `joint` names a site whose log density should be a sum over them."""
    if joint is not None:
        raise ValueError(
            f"The observed site (or factor) {joint!r} reads the records, but its log density has no axis that follows "
            "them and is no sum over them: the log density of artificial records together differs from the sum over each of "
            "them alone. A joint density of all records, such as a Gaussian process or a time series whose steps are the "
            "records, or a statistic of the table couples them in principle. Otherwise give one term for each record: "
            'with numpyro.plate("data", xs.shape[0]).'
        )
    raise ValueError(
        f"The {what} couples records: the log density of artificial records together differs from the sum over each of "
        "them alone (by a mean over the records, batch normalisation, the number of rows, or rows that are shifted or "
        "sorted, for example). Each record is evaluated alone here, so it would mean something else. Use public "
        "constants instead."
    )


def _choose(which: Any, rows: Sequence[Any], others: Sequence[Any]) -> list[np.ndarray]:
    """Rows of one table or of the other."""
    return [np.where(which.reshape(-1, *[1] * (np.ndim(x) - 1)), x, y) for x, y in zip(rows, others, strict=True)]


def _axis(one: Any, many: Any) -> int | None:
    """The axis that numbers the records; None: there is no such axis, or more than one."""
    if len(one.shape) != len(many.shape):
        return None
    changed = [i for i, sizes in enumerate(zip(one.shape, many.shape, strict=True)) if sizes[0] != sizes[1]]
    return changed[0] if len(changed) == 1 and many.shape[changed[0]] == _ROWS else None


def _alike(together: Float[np.ndarray, "row"], alone: Float[np.ndarray, "row"]) -> bool:
    """True if rows agree together and alone up to rounding, each or, in another order, in their sum."""
    finite = np.isfinite(alone)
    together, alone = together[finite], alone[finite]
    size = np.abs(alone)
    if np.all(np.abs(together - alone) <= 1e-3 * (1.0 + size)):
        return True
    return bool(abs(together.sum() - alone.sum()) <= 1e-5 * (1.0 + size.sum()))


def _made_up(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Artificial values of one argument for many records, some of which keep the placeholder's."""
    shape = _ROWS, *x.shape
    if x.dtype == np.bool_:
        values = rng.random(shape) < 0.5
    elif jnp.issubdtype(x.dtype, jnp.integer):
        values = x + rng.integers(0, 2, shape)
    else:
        values = rng.uniform(0.05, 0.95, shape)
    kept = (rng.random(_ROWS) < 0.25).reshape(-1, *[1] * x.ndim)
    return np.where(kept, x, values).astype(x.dtype)
