"""Refuse a table with a record that its model's distributions cannot produce: labels 1 and 2 of a Bernoulli, a missing count.

Such a record has no finite log density, whatever the latents are, so it would count as zero in
every step, and the fit would be that of the other records without a word. Two passes find it before
any budget is spent:

1. Each observed value is compared with the support of its distribution, as the model makes both
   from one record. Supports that depend on latents or parameters are left out. Only the arrays that
   these values and supports are made of are read.
2. Only if a value is outside, the loss of each such record is computed at the initial parameters.
   It is finite, and the record counts, where the value is masked, another component of a mixture
   produces it, or the distribution takes NaN for missing.

A record whose index is outside of an array, as in `effect[group]` for group 4 of four, is found
likewise. JAX takes the nearest element, so it would count as one of another group. Two numbers are
put there in turn: if the record's loss differs between them, it depends on that lookup; where
jnp.where or a product with zero leaves it out, it does not. Indices below 0 are outside, too.

A record that is NaN throughout stands for an absent one, as in a table to which several processes
bring rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool
from numpyro.distributions import constraints

from discreet._jax import (
    ClosedJaxpr,
    Memo,
    inputs_of_outputs,
    jaxpr_as_fun,
    part_of_program,
    run_kept,
    source_line,
    with_lookups,
)
from discreet._validate import RefusedError
from discreet.methods.inference._couplings import moved_start
from discreet.methods.inference._elbo import Objective
from discreet.methods.inference._records import Message, Values
from discreet.methods.inference._structure import FAILURES, without_wrappers

# Numbers, and rows, that are looked at together at most.
_MOST_NUMBERS = 2**20
_MOST_ROWS = 2**15
Test = Callable[[Sequence[Array]], Bool[Array, " output"]]  # of the arrays of one record


class _Look(NamedTuple):
    """The comparison of one record's observed values with their supports."""

    reads: list[int]  # the arrays of the record that it depends on
    # whether the value of each of `sites` is outside, given these arrays of one record
    outside: Test
    sites: list[str]  # names of observed sites
    words: Mapping[str, str]  # the distribution of each site
    lookups: list[str]  # places in the model where an index of a record may be outside of an array
    filled: list[ClosedJaxpr]  # a record's loss with one number, and with another, where it is


_LOOKS = Memo[Objective, _Look]()


def refuse_outside_support(
    objective: Objective,
    psi: Values,
    parts: Iterable[tuple[Sequence[Any], Any]],
    *,
    laid: bool = False,
) -> None:
    """Refuse records with an observed value outside its distribution's support, or an index outside of an array.

    It reads the table before anything is spent.

    Args:
        objective: The model.
        psi: The unconstrained parameters with which the fit starts.
        parts: Arrays of rows, and a Boolean for each row, False where it holds no record; None: all
            do.
        laid: True if processes brought their own rows, so that one whose floating-point numbers are
            NaN is absent.

    Raises:
        RefusedError: A record would count as zero, or as another one. The message names the site or
            the line of the model, and no value, row or count.
    """
    look = _look_at(objective, psi)
    reads_outside = outside_of_arrays(objective, psi)

    def astray(record: Sequence[Array]) -> Array:
        return (reads_outside(record) & ~_is_absent(record, laid=laid))[None]

    def lost(record: Sequence[Array]) -> Array:
        outside = look.outside([record[i] for i in look.reads])
        return (
            outside & ~_is_absent(record, laid=laid) & ~jnp.isfinite(_loss(objective, psi, record))
        )

    for leaves, held in parts:
        outside = (
            bool(look.sites) and _in_any(look.outside, [leaves[i] for i in look.reads], held).any()
        )
        if outside and (found := _in_any(lost, leaves, held)).any():
            name = look.sites[int(np.argmax(found))]
            raise RefusedError(
                f"At least one record has a value of the observed site {name!r} that its distribution cannot produce: "
                f"{look.words[name]}. The record has no density, so it would count as zero and the fit would be that of the "
                "others. Recode the values, remove records without one, or leave these values out with the distribution's mask."
            )
        if look.lookups and _in_any(astray, leaves, held).any():
            raise RefusedError(
                "At least one record has an index outside of the array in which the model looks it up "
                f"({'; '.join(look.lookups)}). JAX takes the nearest element, or NaN, so the record would count as one of "
                "another group, or as zero. Codes of n groups are 0 to n - 1: recode them, give the array as many elements, or "
                "remove records without a group; effect.at[group].get(mode=...) says what such a record gets."
            )


def outside_of_arrays(objective: Objective, psi: Values) -> Callable[[Sequence[Array]], Array]:
    """Whether a record has an index outside of an array in which the model looks it up, as a function of the record."""
    look = _look_at(objective, psi)
    start = jax.tree.leaves(moved_start(psi, np.random.default_rng(0)))

    def astray(record: Sequence[Array]) -> Array:
        # Python takes -1, by which pandas codes a missing cell, for the last element: far below 0
        # it is outside.
        far = [
            jnp.where(x < 0, jnp.iinfo(x.dtype).min // 2, x) if x.dtype.kind == "i" else x
            for x in record
        ]
        losses = [jaxpr_as_fun(program)(*start, *far)[0] for program in look.filled]
        return ~jnp.isclose(*losses, rtol=1e-4, atol=1e-6, equal_nan=True)

    return astray


def _look_at(objective: Objective, psi: Values) -> _Look:
    """Trace the model on one record, and keep what depends on the record alone."""
    if objective in _LOOKS:
        return _LOOKS[objective]
    model = objective.programs.model
    observed = objective.structure.observed
    rows = objective.programs.records.shapes(1)
    words = dict[str, str]()

    def drawn(key: Any, rows: Sequence[Any]) -> Values:
        sites = objective.programs.trace(model, rows, key, {}).items()
        return {
            n: s["value"]
            for n, s in sites
            if s["type"] in ("sample", "param") and not s.get("is_observed")
        }

    def compare(values: Values, key: Any, rows: Sequence[Any]) -> list[Any]:
        sites = objective.programs.trace(model, rows, key, values)
        words.update({name: _in_words(sites[name]["fn"]) for name in observed})
        return [x for name in observed for x in outside_of_support(sites[name])]

    key = jax.eval_shape(lambda: jax.random.key(0))
    values = jax.eval_shape(drawn, key, rows)
    first = len(jax.tree.leaves(values)) + 1
    program = jax.make_jaxpr(compare)(values, key, rows)
    depends = inputs_of_outputs(program)
    outputs: dict[str, int] = {}
    for number, name in enumerate(name for name in observed for _ in range(2)):
        # The second output of a site, its support, says more than the first; both are left out
        # where no record matters.
        if any(depends[number][first:]) and not any(depends[number][:first]):
            outputs[name] = number
    program, used = part_of_program(program, list(outputs.values()))
    loss = jax.make_jaxpr(lambda psi, *record: _loss(objective, psi, record))(
        psi, *(np.asarray(x)[0] for x in objective.placeholder)
    )
    filled, equations = zip(*(with_lookups(loss, value) for value in (0.25, 0.75)), strict=True)
    _LOOKS[objective] = _Look(
        reads=[i - first for i in used],
        outside=lambda record: jnp.stack(jaxpr_as_fun(program)(*(x[None] for x in record))),
        sites=list(outputs),
        words=words,
        lookups=list(dict.fromkeys(source_line(x) for x in equations[0])),
        filled=list(filled),
    )
    return _LOOKS[objective]


def outside_of_support(site: Message) -> tuple[Array, Array]:
    """Whether a site has a value that is not finite; and whether it has such a value or one outside the support."""
    value = jnp.asarray(site["value"])
    finite = jnp.isfinite(value).all()
    try:
        inside = finite & jnp.all(without_wrappers(site["fn"]).support(value))
    except (*FAILURES, NotImplementedError):
        # A distribution that is only ever observed need not say what its support is.
        inside = finite
    return ~finite, ~inside


def _is_absent(record: Sequence[Array], *, laid: bool) -> Array:
    numbers = [x for x in record if jnp.issubdtype(x.dtype, jnp.floating)]
    if not numbers or (len(numbers) < len(record) and not laid):
        return jnp.array(False)
    return jnp.stack([jnp.all(jnp.isnan(x)) for x in numbers]).all()


def _loss(objective: Objective, psi: Values, record: Sequence[Array]) -> Array:
    own = [objective.local_start[name] for name, _ in objective.structure.local_params]
    # Any draw will do: what is looked for depends on none.
    return objective.terms(psi, [*record, *own], jax.random.key(0))[1]


def _in_any(test: Test, leaves: Sequence[Any], held: Any) -> Bool[np.ndarray, " output"]:
    """Whether a test of one record is true in any, chunk by chunk: the last chunks of a table may overlap."""
    size = leaves[0].shape[0]
    numbers = sum(x.size for x in leaves) // size
    rows = min(size, _MOST_ROWS, max(1, _MOST_NUMBERS // max(1, numbers)))

    def run(table: Sequence[Array], held: Any) -> Array:
        def in_chunk(i: Any, found: Array) -> Array:
            first = jnp.minimum(i * rows, size - rows)
            here = [lax.dynamic_slice_in_dim(x, first, rows) for x in (*table, *held)]
            true = jax.vmap(test)(here[: len(table)])
            real = here[len(table)] if held else jnp.ones(rows, bool)
            return found | (true & real[:, None]).any(axis=0)

        example = jax.eval_shape(test, [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in table])
        return lax.fori_loop(0, -(-size // rows), in_chunk, jnp.zeros(example.shape, bool))

    return np.asarray(run_kept(run, leaves, [] if held is None else [held]))


_IN_WORDS = (
    (constraints.boolean, "0 and 1"),
    (constraints.nonnegative_integer, "whole numbers from 0"),
    (constraints.positive_integer, "whole numbers from 1"),
    (constraints.positive, "finite numbers above 0"),
    (constraints.nonnegative, "finite numbers from 0"),
    (constraints.unit_interval, "numbers from 0 to 1"),
    (constraints.real, "finite numbers"),
)


def _in_words(fn: Any) -> str:
    """Describe a distribution and its support, without numbers that may depend on the record."""
    fn = without_wrappers(fn)
    support = getattr(fn, "support", None)
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    words = [words for constraint, words in _IN_WORDS if support is constraint]
    bounds = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    numbers = f"{'whole' if getattr(support, 'is_discrete', False) else 'finite'} numbers"
    known = all(isinstance(x, int | float) for x in bounds)
    words.append(
        f"{numbers} from {bounds[0]:.6g} to {bounds[1]:.6g}"
        if known
        else f"{numbers} in its support"
    )
    return f"{type(fn).__name__} takes {words[0]}"
