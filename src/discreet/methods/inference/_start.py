"""The start of a fit: an artificial record, and initial parameters that depend on no data.

NumPyro's `SVI.init` runs model and guide on the data. Here they run on a placeholder record in the
support of the model: the caller's, or zeros, ones or halves. Both the placeholder's loss and the
data-free term must be finite there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray, Scalar
from numpyro.distributions import Distribution, Unit, biject_to, constraints

from discreet._jax import run_kept, run_once
from discreet._numpyro import artificial_records, helpful_support_errors
from discreet.methods.inference._autoguides import is_numpyros
from discreet.methods.inference._point_guide import PointGuide
from discreet.methods.inference._programs import Programs
from discreet.methods.inference._records import Values, take_apart
from discreet.methods.inference._structure import (
    FAILURES,
    Structure,
    explain_model,
    start_of_search,
)
from discreet.privacy import random

if TYPE_CHECKING:
    from discreet.methods.inference._elbo import Objective


@run_once
def init_keys(key: PRNGKeyArray) -> tuple[PRNGKeyArray, ...]:
    """Keys for the initial values, which see no data and may be known: threefry, for which JAX compiles less."""
    return tuple(jax.random.split(random.as_threefry(random.subkey(key, random.Purpose.INIT)), 3))


def choose_placeholder(
    programs: Programs, given: Sequence[Any] | None, key: PRNGKeyArray
) -> list[Array]:
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
            # A column of weights (handlers.scale) must not be zero, nor one of standard errors
            # where NumPyro validates.
            if "distribution got invalid" not in str(error) and "should be positive" not in str(
                error
            ):
                raise
    for one, other in ((0.0, 1.0), (1.0, 0.5), (0.5, 0.25)):
        mixed, *equal = (
            [
                jnp.concatenate(x)
                for x in zip(records.filled(a, 1), records.filled(b, 1), strict=True)
            ]
            for a, b in ((one, other), (one, one), (other, other))
        )
        if _runs_finite(programs, mixed) and not any(
            _runs_finite(programs, rows) for rows in equal
        ):
            raise ValueError(
                "The model computes a statistic of its records, such as x.std(0) or a range: artificial records have a finite "
                "density where they differ, and none where they are equal. A statistic couples all records, and each is "
                "evaluated alone. Scale by public numbers in its place, as (age - 40) / 15, or by figures of dp.describe, "
                "which is another release with its own cost."
            )
    return records.filled(0, 1)


def _runs_finite(programs: Programs, rows: list[Array]) -> bool:
    try:
        return _has_finite_density(programs, rows)
    except FAILURES:
        return False


def _has_finite_density(programs: Programs, rows: list[Array]) -> bool:
    def finite(rows: list[Array], key: PRNGKeyArray) -> Array:
        trace = programs.trace(
            programs.model, rows, key, hint=programs.num_records, rule=start_of_search
        )
        observed = [
            site for site in trace.values() if site["type"] == "sample" and site["is_observed"]
        ]
        fine: list[Any] = [True]
        for site in observed:
            fn = site["fn"]
            value = site["value"]
            try:
                fine.append(jnp.all(jnp.isfinite(fn.log_prob(value))))
            except TypeError as error:
                if jnp.issubdtype(jnp.result_type(value), jnp.integer) or "integer" not in str(
                    error
                ):
                    raise
                raise TypeError(
                    f"The observed site {site['name']!r} has values of the type {jnp.result_type(value)}, and its "
                    f"distribution, {type(fn).__name__}, takes integers. Convert them in the model, by obs=y.astype(int)."
                ) from error
        # A Bernoulli of NaN has a finite density.
        numbers = [
            x
            for x in jax.tree.leaves([site["fn"] for site in observed])
            if isinstance(x, jax.Array)
        ]
        fine += [~jnp.any(jnp.isnan(x)) for x in numbers if jnp.issubdtype(x.dtype, jnp.floating)]
        return jnp.all(jnp.array(fine))

    with artificial_records():
        # A key of its own, so that whether zeros will do depends on the model alone.
        return bool(run_kept(lambda: finite(rows, jax.random.key(0))))


def _are_valid(sites: dict[str, Any]) -> Array:
    """Whether the parameters of all distributions are valid, which NumPyro checks outside of traces; False if there is a factor.

    A factor does not show the distributions that it was computed with.
    """
    valid: list[Any] = []
    waiting: list[Any] = [site["fn"] for site in sites.values() if site["type"] == "sample"]
    while waiting:
        fn = waiting.pop()
        if not isinstance(fn, Distribution):
            continue
        valid.append(not isinstance(fn, Unit))
        # Such as those that it is made of
        waiting += jax.tree.leaves(vars(fn), is_leaf=lambda x: isinstance(x, Distribution))
        for name, value in fn.get_args().items():
            constraint = fn.arg_constraints[name]
            if not constraints.is_dependent(constraint):
                valid.append(jnp.all(constraint(value)))
    return jnp.all(jnp.array(valid))


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

    def start(key: PRNGKeyArray, *, check: bool) -> tuple[dict[str, Any], dict[str, Any], Any]:
        guide_key, model_key = jax.random.split(key)
        guide = programs.trace(programs.guide, placeholder, guide_key, given)
        model: dict[str, Any] = {}
        if structure.model_params or check:
            latents = {
                n: s["value"]
                for n, s in guide.items()
                if s["type"] in ("sample", "param", "mutable")
            }
            model = programs.trace(programs.model, placeholder, model_key, {**latents, **given})
        # A site in both belongs to the guide, as in NumPyro.
        for site in [*model.values(), *guide.values()]:
            if site["type"] != "param":
                continue
            if not all(
                jnp.issubdtype(jnp.result_type(x), jnp.floating)
                for x in jax.tree.leaves(site["value"])
            ):
                raise ValueError(
                    f"The param site {site['name']!r} holds numbers that are no floats, so it has no gradient. Start it from "
                    "floats, or pass it to DPSVI as a public keyword argument."
                )
            with helpful_support_errors({**site, "fn": None}):
                transforms[site["name"]] = biject_to(
                    site["kwargs"].get("constraint", constraints.real)
                )
        sites = {**model, **guide} if structure.model_params else guide
        params, state = (
            {n: s["value"] for n, s in sites.items() if s["type"] == kind}
            for kind in ("param", "mutable")
        )
        return params, state, _are_valid(model) if check else True

    # These guides have their initial values already: nothing is compiled for what else they
    # compute. A point guide runs the model, whose invalid distributions NumPyro refuses where it is
    # not traced.
    is_point = isinstance(programs.guide, PointGuide) and programs.guide.init_loc_fn is None
    is_valid = False
    if (is_point or is_numpyros(programs.guide)) and not structure.model_params and not given:
        params, state, is_valid = run_kept(functools.partial(start, check=is_point), key)
    if not is_valid:
        params, state, _ = start(key, check=False)
    # Not in that program, in which XLA would compute them, as they are constants, to other bits.
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
    own = {
        name: _of_one(name, psi.pop(name), axis, transforms[name])
        for name, axis in structure.local_params
    }
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
_terms_at_start = run_once(
    lambda objective, psi, key: objective.terms(psi, objective.example, key), static_argnums=0
)


def loss_at_start(objective: Objective, psi: Values, key: PRNGKeyArray) -> Scalar:
    """The placeholder record's loss, which like the data-free term must be finite."""
    with artificial_records():
        free, loss = _terms_at_start(objective, psi, key)
    for value, what in (
        (free, "The prior or the guide"),
        (loss, "The loss of the placeholder record"),
    ):
        if not np.isfinite(value):
            raise ValueError(
                f"{what} is not finite at the initial parameters ({float(value)}). Pass an artificial record in the "
                "support of the observations as placeholder=..., or other initial values as init_params."
            )
    return jnp.asarray(loss, jnp.float32)
