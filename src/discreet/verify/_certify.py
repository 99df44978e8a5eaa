"""From a Python function to a certificate, or to the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from discreet._jax import ClosedJaxpr, without_dead_code
from discreet.accounting import Relation
from discreet.mechanisms import NoNoiseError
from discreet.verify._certificate import Certificate, all_constants, constant_bytes, fingerprint, versions
from discreet.verify._control import captured
from discreet.verify._domain import Batch, Key, Origin, Private, Public, Scale, Value, new_symbol
from discreet.verify._errors import REMEDIES, PrivacyError, chain_of, remedy_for, without_tag
from discreet.verify._expect import check_expected
from discreet.verify._interpreter import Checker, is_key, refuse_closed_books, refuse_outside_effects
from discreet.verify._keys import PRIVATE, SECRET
from discreet.verify._ledger import event_of


def certify(
    step: Callable[..., Any],
    *args: Any,
    records: int | Sequence[int],
    mask: int | None = None,
    relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    expect: Any = None,
) -> Certificate:
    """Prove what a JAX program tells of one record, before it runs.

    The program is traced to a jaxpr, and what each of its values may know of one record is found by abstract
    interpretation. What no rule explains counts as knowing everything.

    Guarantee: see `Certificate`. A program for which there is no proof gets no certificate.

    Args:
        step: any JAX function. Noise is added by `gaussian_mechanism` or `laplace_mechanism`.
        args: its arguments, or their shapes (`jax.ShapeDtypeStruct`). All but records and mask are public; keys are secret.
        records: positions of the arguments whose leading axis is the records.
        mask: position of the Boolean argument that says which rows are real; left out, all are, and under
            ADD_OR_REMOVE_ONE a record is replaced by nothing: 2C, since shapes are fixed.
        relation: which tables are neighbours.
        expect: a DpEvent, or a PrivacyPlan: what the program is claimed to do.

    Returns:
        The certificate: its event, epsilon and delta, and the program, to be called as `step`.

    Raises:
        PrivacyError: no proof; with the output that leaks, the lines on the way, the rule and the remedy.
        ValueError: the positions name no arrays with a common leading axis.

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
    positions = (records,) if isinstance(records, int) else tuple(records)
    program, out_shape = _trace(step, args)
    refuse_outside_effects(program.jaxpr)
    refuse_closed_books(program.jaxpr)
    _refuse_captured_records(program, args, positions if mask is None else (*positions, mask))
    program = without_dead_code(program)
    checker = Checker(relation)
    table = Batch("table", masked=mask is not None)
    inputs = _inputs(checker, args, positions, mask, table)
    consts = [captured(checker, x) for x in program.consts]
    outputs = checker.walk(program.jaxpr, consts, inputs)
    names = [jax.tree_util.keystr(path) or "result" for path, _ in jax.tree_util.tree_leaves_with_path(out_shape)]
    status = {name: _status(checker, name, value) for name, value in zip(names, outputs, strict=True)}
    event, slack = event_of(checker.items)
    notes = tuple(dict.fromkeys(checker.notes))
    if expect is not None:
        check_expected(event, slack, expect, relation, notes)
    return Certificate(
        event=event,
        slack=slack,
        relation=relation,
        outputs=status,
        assumptions=_assumptions(program, args, positions, mask, relation),
        notes=notes,
        fingerprint=fingerprint(program),
        versions=versions(),
        _program=program,
        _in_tree=jax.tree.structure(args),
        _out_tree=jax.tree.structure(out_shape),
    )


def _trace(step: Callable[..., Any], args: tuple[Any, ...]) -> tuple[ClosedJaxpr, Any]:
    """The program, traced twice: what a trace depends on besides its arguments could be the data."""
    try:
        program, out_shape = jax.make_jaxpr(lambda *x: step(*x), return_shape=True)(*args)
    except NoNoiseError as error:
        raise PrivacyError(f"the program adds no noise: {error}", REMEDIES["noise scale"]) from error
    again = jax.make_jaxpr(lambda *x: step(*x))(*args)
    held, held_again = all_constants(program), all_constants(again)
    same = str(program.jaxpr) == str(again.jaxpr) and len(held) == len(held_again)
    same = same and all(constant_bytes(a) == constant_bytes(b) for a, b in zip(held, held_again, strict=True))
    if not same:
        raise PrivacyError(
            "the program is another one each time it is traced: it depends on something that is no argument.",
            "make the function pure: no NumPy random numbers, clocks or counters in it; pass what changes as arguments.",
        )
    return program, out_shape


def _inputs(
    checker: Checker, args: tuple[Any, ...], positions: tuple[int, ...], mask: int | None, table: Batch
) -> list[Value]:
    if any(not 0 <= i < len(args) for i in (*positions, *(() if mask is None else (mask,)))) or mask in positions:
        raise ValueError(
            f"certify: records={positions} and mask={mask} are positions among {len(args)} arguments, counted from 0, and "
            "differ. Say which arguments hold the records."
        )
    sizes: set[int] = set()
    values: list[Value] = []
    for position, arg in enumerate(args):
        for path, leaf in jax.tree_util.tree_leaves_with_path(arg):
            name = f"argument {position}{jax.tree_util.keystr(path)}"
            kind = jax.eval_shape(lambda x=leaf: x) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
            if position in positions or position == mask:
                if kind.ndim == 0:
                    raise ValueError(
                        f"certify: {name} is a number; records need a leading axis. Pass arrays, one row per record."
                    )
                sizes.add(kind.shape[0])
                values.append(_record_value(name, kind, position == mask, table))
            elif is_key(kind):
                values.append(checker.keys.new(tuple(kind.shape), SECRET))
            else:
                single = kind.ndim == 0 and np.dtype(kind.dtype).kind == "f"
                values.append(Public(scale=Scale(1.0, ((new_symbol(), 1.0),)) if single else None))
    if len(sizes) > 1:
        raise ValueError(
            f"certify: records and mask have {sorted(sizes)} rows. Every array of records has one row per record: pad them alike."
        )
    return values


def _record_value(name: str, kind: Any, is_mask: bool, table: Batch) -> Private:
    if is_mask and (kind.dtype != np.bool_ or kind.ndim != 1):
        raise ValueError(
            f"certify: the mask, {name}, is {kind.dtype}{list(kind.shape)}; it must be one truth value per row."
        )
    if is_key(kind):
        raise ValueError(f"certify: {name} holds keys. Keys are no records: pass them as an argument of their own.")
    dtype = np.dtype(kind.dtype)
    origin = Origin("", f"{name} (the {'mask' if is_mask else 'records'})")
    whole = dtype.kind in "biu"
    limit = 1.0 if dtype.kind == "b" else None
    zero = frozenset([table]) if is_mask else frozenset()
    return Private(table, (0,), origin, linf=limit, finite=whole, zero=zero)


def _refuse_captured_records(program: ClosedJaxpr, args: tuple[Any, ...], positions: tuple[int, ...]) -> None:
    """A table that is a constant of the program would count as public."""
    leaves = [x for i in positions if 0 <= i < len(args) for x in jax.tree.leaves(args[i])]
    tables = [
        np.asarray(x)
        for x in leaves
        if not isinstance(x, jax.ShapeDtypeStruct) and not is_key(jax.eval_shape(lambda x=x: x))
    ]
    for value in all_constants(program):
        if is_key(value):
            continue
        for table in tables:
            if (
                value.shape == table.shape
                and table.size > 1
                and len(np.unique(table)) > 1
                and np.array_equal(value, table, equal_nan=table.dtype.kind == "f")
            ):
                raise PrivacyError(
                    f"the program holds the records as a constant of shape {list(table.shape)}: the function uses a variable "
                    "from outside that is equal to an argument, and constants count as public.",
                    "use the argument inside of the function.",
                )


def _status(checker: Checker, name: str, value: Value) -> str:
    if isinstance(value, Key):
        kind, _ = checker.keys.kind(value)
        if kind == SECRET and checker.keys.is_spent(value):
            raise PrivacyError(
                "a key is returned that was used, so whoever gets it can make the noise, or the batch, again.",
                REMEDIES["key"],
                output=name,
            )
        if kind == PRIVATE:
            raise PrivacyError("a key is returned that depends on records.", REMEDIES["key"], output=name)
        checker.keys.spend(value, f"output {name}", "the end of the program")
        return "public"
    if isinstance(value, Public):
        return "released" if value.released else "public"
    why, tag = value.why, remedy_for(value.why)
    if value.axes is not None:
        why, tag = "it has values for each record, and no noise", REMEDIES["clip"]
    elif value.terms is not None:
        why, tag = "it is a sum over records with a bound, but without noise", REMEDIES["noise"]
    raise PrivacyError(f"{without_tag(why)}.", tag, output=name, chain=chain_of(value.origin))


def _assumptions(
    program: ClosedJaxpr, args: tuple[Any, ...], positions: tuple[int, ...], mask: int | None, relation: Relation
) -> tuple[str, ...]:
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
    if held:
        words.append(f"constants held by the program are public: {', '.join(held)}")
    if any("chacha20" not in str(k.dtype) or "seeded" in str(k.dtype) for k in keys):
        words.append("a key can be made again by whoever knows its seed: reproducible, not private")
    return tuple(words)
