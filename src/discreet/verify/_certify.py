"""From a Python function to a certificate, or to the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from dp_accounting.dp_event import DpEvent

from discreet._jax import ClosedJaxpr, all_constants, untried_jax, without_dead_code
from discreet.accounting import Relation
from discreet.verify._certificate import Certificate, fingerprint, versions
from discreet.verify._control import captured
from discreet.verify._domain import Key, Public, Table, Value
from discreet.verify._errors import REMEDIES, PrivacyError, chain_of, from_here, remedy_for, without_tag
from discreet.verify._expect import covers
from discreet.verify._interpreter import Checker, is_key, refuse_closed_books, refuse_outside_effects
from discreet.verify._keys import PRIVATE, SECRET
from discreet.verify._ledger import event_of
from discreet.verify._program import inputs_of, names_of, refuse_captured_records, shown, trace
from discreet.verify._symbols import (
    Fixed,
    Given,
    check_symbols,
    event_at,
    fixed_at,
    is_symbolic,
    numbers_of,
    open_in,
    times_at,
)
from discreet.verify._trail import Trail


def certify(
    step: Callable[..., Any],
    *args: Any,
    records: int | Sequence[int],
    mask: int | None = None,
    relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    expect: Any = None,
    times: Any = 1,
) -> Certificate:
    """Prove what a JAX program tells of one record, before it runs.

    The program is traced to a jaxpr, and what each of its values may know of one record is found by abstract
    interpretation. What no rule explains counts as knowing everything.

    Guarantee: see `Certificate`. A program for which there is no proof gets no certificate.

    Args:
        step: any JAX function. Noise is added by `gaussian_mechanism` or `laplace_mechanism`.
        args: its arguments, or their shapes (`jax.ShapeDtypeStruct`). All but records and mask are public; keys are secret.
            In the place of an array may stand `Given(array)`: the program takes it as an operand, the proof is about that value.
            In the place of a number may stand a symbol (`symbol`), or an expression of such: the proof holds for all values.
        records: positions of the arguments whose leading axis is the records.
        mask: position of the Boolean argument that says which rows are real; left out, all are, and under
            ADD_OR_REMOVE_ONE a record is replaced by nothing: 2C, since shapes are fixed.
        relation: which tables are neighbours.
        expect: a DpEvent, or a PrivacyPlan: what all calls of the program are claimed to do.
        times: how often the program is called on the same records, at most; a whole number or a symbol. Each call has keys of
            its own, and its public arguments may follow from what earlier calls returned.

    Returns:
        The certificate: its event, epsilon and delta, and the program, to be called as `step`.

    Raises:
        PrivacyError: no proof; with the output that leaks, the lines on the way, the rule and the remedy.
        ValueError: the positions name no arrays with a common leading axis; a symbol may be zero or negative.

    Reference:
        Near et al., Duet, OOPSLA 2019; DiffPrivacyInference.jl, the checker for Julia.

    >>> import jax.numpy as jnp, discreet as dp
    >>> def step(key, xs, mask):
    ...     return dp.gaussian_mechanism(key, dp.sum_records(dp.clip_records(xs, 2.0), mask), stddev=6.0)
    >>> certificate = dp.certify(step, dp.random.key(), jnp.ones((100, 3)), jnp.ones(100, bool), records=1, mask=2)
    >>> certificate.event
    GaussianDpEvent(noise_multiplier=3.0)
    """
    if relation not in (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE):
        raise ValueError(
            f"certify: relation is {relation!r}; proofs know of ADD_OR_REMOVE_ONE and REPLACE_ONE only. "
            "Pass one of these, of dp.Relation."
        )
    if why := untried_jax():
        raise PrivacyError(f"there is no proof on this release of JAX: {why}", REMEDIES["release"])
    check_symbols([*jax.tree.leaves(args), times])
    times = times_at(times, {})
    args = jax.tree.map(lambda x: fixed_at(x, {}), args)
    positions = (records,) if isinstance(records, int) else tuple(records)
    trail = Trail(step)
    try:
        certificate = _proved(step, args, positions, mask, relation, times, trail)
        if expect is not None:
            certificate.check(expect)
    except PrivacyError as error:
        error.trail = trail
        raise
    return certificate


def _proved(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    positions: tuple[int, ...],
    mask: int | None,
    relation: Relation,
    times: Any,
    trail: Trail,
) -> Certificate:
    program, out_shape = trace(step, args)
    trail.begin(program.jaxpr)
    refuse_outside_effects(program.jaxpr)
    refuse_closed_books(program.jaxpr)
    refuse_captured_records(program, step, args, positions if mask is None else (*positions, mask))
    program = without_dead_code(program)
    checker = Checker(relation, Table(masked=mask is not None), trail.see)
    names = names_of(step, args)
    inputs = inputs_of(checker, args, names, positions, mask)
    trail.begin(program.jaxpr, names, inputs)
    consts = [captured(checker, x) for x in program.consts]
    outputs = checker.walk(program.jaxpr, consts, inputs)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(out_shape)]
    results = [f"result{jax.tree_util.keystr(path)}" for path in paths]
    status = {name: _status(checker, name, value) for name, value in zip(results, outputs, strict=True)}
    event, slack = event_of(checker.items, relation, times)
    slack = math.nan if open_in([*numbers_of(event), slack]) else slack * times
    options = {"records": positions, "mask": mask, "relation": relation}
    return Certificate(
        event=event,
        slack=slack,
        times=times,
        relation=relation,
        outputs=status,
        assumptions=_assumptions(program, args, positions, mask, relation, times),
        notes=tuple(dict.fromkeys(map(from_here, checker.notes))),
        fingerprint=fingerprint(program, [x.value for x in _given(args).values()]),
        versions=versions(),
        trail=trail,
        _known=open_in([*jax.tree.leaves(args), times]),
        _again=lambda values: _certify_at(values, event, step, args, times, options),
        _fixed={i: x.value for i, x in enumerate(jax.tree.leaves(args)) if isinstance(x, Fixed)},
        _given={i: np.asarray(x.value) for i, x in _given(args).items()},
        _program=program,
        _in_tree=jax.tree.structure(args),
        _out_tree=jax.tree.structure(out_shape),
    )


def _given(args: tuple[Any, ...]) -> dict[int, Given]:
    """Arguments whose values the proof knows, by their place among the operands of the program."""
    operands = [x for x in jax.tree.leaves(args) if not isinstance(x, Fixed)]
    return {i: x for i, x in enumerate(operands) if isinstance(x, Given)}


def _certify_at(
    values: Mapping[str, float],
    formula: DpEvent,
    step: Callable[..., Any],
    args: tuple[Any, ...],
    times: Any,
    options: Mapping[str, Any],
) -> Certificate:
    """A proof with numbers, which must not say less than the formula does at these numbers."""
    there = jax.tree.map(lambda x: fixed_at(x, values), args)
    found = certify(step, *there, times=times_at(times, values), **options)
    said = event_at(formula, values)
    known = not open_in([*numbers_of(said), *numbers_of(found.event)])
    if known and not covers(said, found.event, found.slack, found.relation):
        raise PrivacyError(
            f"with these numbers the program is another one: its formula comes to {said}, its proof to {found.event}.",
            "let the program depend on symbols by arithmetic alone, and not on the types or shapes that come of them.",
        )
    return found


def _status(checker: Checker, name: str, value: Value) -> str:
    if isinstance(value, Key):
        kind, _ = checker.keys.kind(value)
        if kind == SECRET and checker.keys.is_spent(value):
            purpose, line = checker.keys.use_of(value)
            raise PrivacyError(
                f"a key is returned that was used for {purpose}, so whoever gets it can make the noise, or the batch, again.",
                REMEDIES["key"],
                output=name,
                chain=(line,) if line else (),
            )
        if kind == PRIVATE:
            raise PrivacyError("a key is returned that depends on records.", REMEDIES["key"], output=name)
        checker.keys.spend(value, f"output {name}", "the end of the program")
        return "public"
    if isinstance(value, Public):
        return "released" if value.released else "public"
    why, tag = value.why, remedy_for(value.why)
    if value.axes is not None:
        why, tag = "it has values for each record, and no noise", REMEDIES["row"]
    elif value.terms is not None:
        why, tag = "it is a sum over records with a bound, but without noise", REMEDIES["noise"]
    raise PrivacyError(f"{without_tag(why)}.", tag, output=name, chain=chain_of(value.origin))


def _assumptions(
    program: ClosedJaxpr,
    args: tuple[Any, ...],
    positions: tuple[int, ...],
    mask: int | None,
    relation: Relation,
    times: Any,
) -> tuple[str, ...]:
    named = open_in([*jax.tree.leaves(args), times])
    values = _given(args)
    args = jax.tree.map(shown, args)
    keys = [
        k for x in jax.tree.leaves(args) if is_key(k := jax.eval_shape(lambda x=x: x) if not hasattr(x, "dtype") else x)
    ]
    held = [f"{x.dtype}{list(x.shape)}" for x in all_constants(program)]
    words = [
        f"records are rows of argument{'s' if len(positions) > 1 else ''} {', '.join(map(str, positions))}; one person has one "
        "row, and all rows keep their places when one changes",
        "all other arguments are public: known without the data, or released before",
        "public numbers that scale a sum are finite when the program runs",
        "keys passed in are secret, different from one another and used for nothing else",
        "noise is exactly Gaussian or Laplacian, and sums are exact: rounding in floating point is accounted for in clipping "
        "only",
    ]
    if mask is None and relation is Relation.ADD_OR_REMOVE_ONE:
        words.append("there is no mask, so shapes are those of all records and their number is public")
    elif mask is not None:
        words.append("the number of rows, padding included, is public; the mask is not")
    if named:
        words.append(f"{', '.join(named)} are public, above zero, and in all calls the same")
    if is_symbolic(times) or times > 1:
        words.append(
            f"the program is called {times} times at most, a number fixed beforehand, on the same records; each call has keys "
            "of its own, and its public arguments may follow from what earlier calls returned"
        )
    if values:
        shown_values = ", ".join(f"{x.value}" for x in values.values() if np.ndim(x.value) == 0)
        words.append(
            f"the program is given the values that the proof knows{f': {shown_values}' if shown_values else ''}"
        )
    if held:
        words.append(f"constants held by the program are public: {', '.join(held)}")
    if any("chacha20" not in str(k.dtype) or "seeded" in str(k.dtype) for k in keys):
        words.append("a key can be made again by whoever knows its seed: reproducible, not private")
    return tuple(words)
