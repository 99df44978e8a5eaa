"""From a model and made-up records to a checked structure and initial parameters."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.handlers as handlers
from jax import lax
from jax.example_libraries.optimizers import Optimizer
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro import optim as numpyro_optim
from numpyro.distributions import biject_to, constraints
from numpyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from numpyro.infer.util import helpful_support_errors

from discreet._jax import program_digest, run_jaxpr
from discreet.gradients import BookKeepingEngine
from discreet.inference._langevin import Langevin
from discreet.inference._local import LocalUpdates
from discreet.inference._objective import Objective
from discreet.inference._plates import Program, WholePlates, value_of_improper
from discreet.inference._point import parameter_of
from discreet.inference._records import Records, take_apart
from discreet.inference._step import PrivateStep
from discreet.inference._structure import Structure, explain_model


def choose_placeholder(
    model: Program,
    records: Records,
    given: Sequence[Any] | None,
    key: PRNGKeyArray,
    static: Mapping[str, Any],
    num_records: int,
) -> list[Array]:
    """One made-up record: the caller's, or zeros, or ones where zeros are impossible.

    Raises:
        ValueError: the caller's has other shapes than the records, or none has a finite density.
    """
    if given is not None:
        made_up = take_apart(tuple(given), {}).leaves
        if [x.shape for x in made_up] != [(1, *x.shape[1:]) for x in records.leaves]:
            raise ValueError(
                f"The placeholder's arrays have shapes {[x.shape for x in made_up]}; pass one made-up record: arrays "
                "shaped like the records' with a leading axis of one, in the same order."
            )
        return [x.astype(r.dtype) for x, r in zip(made_up, records.leaves, strict=True)]
    for candidate in (records.zeros(1), records.filled(1, 1)):
        try:
            if _has_finite_density(model, records, candidate, key, static, num_records):
                return candidate
        except (TypeError, ValueError):
            explain_model(model, records, key, static, num_records)
            raise
    return records.zeros(1)


def _has_finite_density(
    model: Program, records: Records, rows: list[Array], key: PRNGKeyArray, static: Mapping[str, Any], num_records: int
) -> bool:
    # A key of its own, so that whether zeros will do depends on the model alone.
    key = jax.random.key(0)

    def finite(rows: list[Array], key: PRNGKeyArray) -> Array:
        args, kwargs = records.rebuild(rows)
        with handlers.seed(rng_seed=key):
            sampled = handlers.substitute(model, substitute_fn=value_of_improper)
            trace = handlers.trace(WholePlates(sampled, None, 1, num_records=num_records)).get_trace(
                *args, **kwargs, **static
            )
        densities = [
            site["fn"].log_prob(site["value"])
            for site in trace.values()
            if site["type"] == "sample" and site["is_observed"]
        ]
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in densities]) if densities else True)

    with warnings.catch_warnings():
        # Values out of support are what is being looked for.
        warnings.simplefilter("ignore")
        program = jax.make_jaxpr(lambda: finite(rows, key))()
        digest = program_digest(program)
        if digest not in _FINITE:
            _FINITE[digest] = bool(jax.jit(lambda: run_jaxpr(program)[0])())
        return _FINITE[digest]


# Whether a made-up record has a finite density, by the digest of the program that says so.
_FINITE: dict[str, bool] = {}


def initial_parameters(
    model: Program,
    guide: Program,
    records: Records,
    placeholder: list[Array],
    structure: Structure,
    key: PRNGKeyArray,
    static: Mapping[str, Any],
    init_params: Mapping[str, Any] | None,
) -> tuple[dict[str, Any], dict[str, Array], dict[str, Any]]:
    """Unconstrained initial parameters, those that each record has of its own, and transforms to constrained values.

    Raises:
        ValueError: `init_params` names no `param` site, or there is none at all.
    """
    guide_key, model_key = jax.random.split(key)
    args, kwargs = records.rebuild(placeholder)
    given = {} if init_params is None else dict(init_params)

    def trace_of(program: Program, seed: PRNGKeyArray, values: Mapping[str, Any]) -> dict[str, Any]:
        whole = WholePlates(program, structure.record_plates, 1)
        seeded = handlers.substitute(handlers.seed(whole, seed), data=dict(values))
        return handlers.trace(seeded).get_trace(*args, **kwargs, **static)

    guide_trace = trace_of(guide, guide_key, given)
    latents = {n: s["value"] for n, s in guide_trace.items() if s["type"] in ("sample", "param")}
    has_params = structure.has_model_params
    model_trace = trace_of(model, model_key, {**latents, **given}) if has_params else {}
    psi: dict[str, Any] = {}
    transforms: dict[str, Any] = {}
    # A site in both belongs to the guide, as in NumPyro.
    for site in [*model_trace.values(), *guide_trace.values()]:
        if site["type"] != "param":
            continue
        if not all(jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in jax.tree.leaves(site["value"])):
            raise ValueError(
                f"The param site {site['name']!r} holds numbers that are no floats, so it has no gradient. Start it from "
                "floats, or pass it to DPSVI as a public keyword argument."
            )
        with helpful_support_errors({**site, "fn": None}):
            transform = biject_to(site["kwargs"].get("constraint", constraints.real))
        transforms[site["name"]] = transform
        psi[site["name"]] = transform.inv(site["value"])
    if unknown := set(given) - set(psi):
        raise ValueError(f"init_params names {sorted(unknown)[0]!r}, which is no param site of model or guide.")
    if not psi:
        raise ValueError("Neither model nor guide has a param site, so there is nothing to fit.")
    # Weak types would make the compiled loop change its types after the first step.
    psi = jax.tree.map(lambda x: lax.convert_element_type(x, jnp.result_type(x)), psi)
    own = {name: _of_one(name, psi.pop(name), axis, transforms[name]) for name, axis in structure.local_params}
    if reading := set(given) & set(own):
        raise ValueError(
            f"init_params names {sorted(reading)[0]!r}, of which each record has its own. They all start alike, from what "
            "the guide says; change it there."
        )
    if not psi:
        raise ValueError("Only records have parameters here, so there is nothing to release. Does the guide lack some?")
    return psi, own, transforms


def _of_one(name: str, rows: Array, axis: int, transform: Any) -> Array:
    """One record's value of a `param` site with a value for each, unconstrained."""
    if axis >= jnp.ndim(transform(rows)) - transform.codomain.event_dim:
        raise ValueError(
            f"The constraint of the param site {name!r} joins the records, whose axis is {axis}: each record has its own "
            "value. Put the records' axis first and the axes of one record's value behind it."
        )
    return jnp.take(rows, 0, axis=axis)


def private_step(dpsvi: Any, objective: Objective, psi: Mapping[str, Any], key: PRNGKeyArray) -> PrivateStep:
    """The step of a DPSVI."""
    plan = dpsvi.plan
    local = None
    if objective.structure.local_params:
        digest = optimizer_digest(dpsvi.local_optim, dict(objective.local_start))
        local = LocalUpdates(objective, dpsvi.local_optim, digest, dpsvi.local_updates)
    return PrivateStep(
        objective=objective,
        engine=BookKeepingEngine(plan.sampling.typical_sizes(plan.num_records), microbatch_size=dpsvi.microbatch_size),
        optim=dpsvi.optim,
        optim_digest=optimizer_digest(dpsvi.optim, psi, start_optimizer(dpsvi.optim, psi, key, objective)),
        adapts=plan.clipping.adapts,
        count_share=plan.clipping.count_share,
        num_records=plan.num_records,
        loss_share=dpsvi.loss_share,
        loss_bound=dpsvi.loss_bound,
        perturb_parameters=dpsvi.perturb == "parameters",
        local=local,
    )


def optimizer_digest(optim: Any, psi: Mapping[str, Any], state: Any = None) -> str:
    """What an optimizer computes, from its first state on."""

    def step(psi: Any, state: Any, gradient: Any, value: Any) -> Any:
        first = optim.init(psi) if state is None else state
        after = optim.update(gradient, first, value=value)
        return first, after, optim.get_params(after)

    state = None if state is None else jax.eval_shape(lambda: state)
    return program_digest(jax.make_jaxpr(step)(psi, state, psi, jax.ShapeDtypeStruct((), jnp.float32)))


def loss_at_start(objective: Objective, psi: Mapping[str, Any], key: PRNGKeyArray) -> Float[Array, ""]:
    """The placeholder record's loss, which like the data-free term must be finite."""
    with warnings.catch_warnings():
        # NumPyro warns of values outside a support, and the error below says more.
        warnings.simplefilter("ignore")
        free, loss = objective.start(psi, key)
    for value, what in ((free, "The prior or the guide"), (loss, "The loss of the placeholder record")):
        if not bool(jnp.isfinite(value)):
            raise ValueError(
                f"{what} is not finite at the initial parameters ({float(value)}). Pass a made-up record in the "
                "support of the observations as placeholder=..., or other initial values as init_params."
            )
    return jnp.asarray(loss, jnp.float32)


def as_numpyro_optim(optim: Any) -> Any:
    """The optimizer, if need be wrapped as NumPyro does.

    Raises:
        TypeError, ValueError: no optimizer, or one that evaluates the loss itself.
    """
    if isinstance(optim, numpyro_optim.Minimize):
        raise ValueError(
            "numpyro.optim.Minimize evaluates the loss many times a step, each of which would be a release. Use a "
            "first-order optimizer such as numpyro.optim.Adam."
        )
    if isinstance(optim, numpyro_optim._NumPyroOptim):
        return optim
    if isinstance(optim, Optimizer):
        return numpyro_optim._NumPyroOptim(lambda *parts: parts, *optim)
    if isinstance(optim, tuple) and hasattr(optim, "init") and hasattr(optim, "update"):
        _refuse_line_search(optim)
        return numpyro_optim.optax_to_numpyro(optim)
    raise TypeError(
        f"optim is a {type(optim).__name__}; it must be an optimizer of numpyro.optim or an "
        "optax.GradientTransformation, for example numpyro.optim.Adam(1e-2)."
    )


def _refuse_line_search(optim: Any) -> None:
    """Refuse an optax optimizer that asks for the loss as a function, as `optax.lbfgs` does.

    Raises:
        ValueError: naming a remedy.
    """
    toy = {"x": jnp.zeros(1)}
    try:
        jax.eval_shape(lambda x: optim.update(x, optim.init(x), x), toy)
    except Exception as error:
        # Whatever else it may need (names of parameters, the loss's value) it will say when it is used.
        if isinstance(error, TypeError) and "value_fn" in str(error):
            raise ValueError(
                "optim evaluates the loss many times a step (a line search, as in optax.lbfgs), each of which would be a "
                "release. Use a first-order optimizer such as optax.adam."
            ) from None


def check_loss(loss: Any) -> Any:
    """The loss, if its gradient is a sum over records.

    Raises:
        ValueError: it is not.
    """
    # Here guides are reparametrised and discrete latents of one record are summed out: then these are Trace_ELBO.
    same = (Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO)
    if type(loss) not in same or getattr(loss, "multi_sample_guide", False):
        raise ValueError(
            f"{type(loss).__name__} is not supported: its gradient is no sum over records that can be clipped one by "
            "one. Use Trace_ELBO or TraceMeanField_ELBO, with num_particles if you like."
        )
    return loss


def start_optimizer(optim: Any, psi: Mapping[str, Any], key: PRNGKeyArray, objective: Objective) -> Any:
    """The optimizer's first state; Langevin dynamics take a key and the parameters that the release's noise reaches.

    Raises:
        ValueError: Langevin dynamics of a `param` site, which has no prior.
    """
    if not isinstance(optim, Langevin):
        return optim.init(psi)
    if strays := set(psi) - {parameter_of(name) for name in objective.structure.global_latents}:
        raise ValueError(
            f"The model's param site {min(strays)!r} has no prior, so it has no posterior to draw from. Give it one with "
            "numpyro.sample, or pass it as a public keyword argument; DPSVI fits models with param sites."
        )
    return optim.start(psi, key, [parameter_of(name) for name in objective.touched_latents])
