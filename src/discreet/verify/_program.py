"""A Python function as the checker reads it: traced, with its arguments known by name and by kind."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from discreet._jax import ClosedJaxpr, all_constants, users_file
from discreet.mechanisms import NoNoiseError
from discreet.verify._certificate import constant_bytes
from discreet.verify._domain import Batch, Origin, Private, Public, Scale, Value, constant, new_symbol
from discreet.verify._errors import REMEDIES, PrivacyError
from discreet.verify._interpreter import Checker, is_key
from discreet.verify._keys import SECRET
from discreet.verify._symbols import Fixed, Given, is_symbolic
from discreet.verify._trail import line_of


def shown(leaf: Any) -> Any:
    """An argument as JAX is shown it. An open one is traced, so that its value here means nothing."""
    if is_symbolic(leaf):
        return 1 if leaf.is_integer else 1.0
    return leaf.value if isinstance(leaf, Fixed | Given) else leaf


def trace(step: Callable[..., Any], args: tuple[Any, ...]) -> tuple[ClosedJaxpr, Any]:
    """The program, and the shapes of its results. Traced twice: what a trace depends on besides its arguments could be data.

    Raises:
        PrivacyError: there is no one program.
    """
    leaves, structure = jax.tree.flatten(args)
    traced = [shown(x) for x in leaves if not isinstance(x, Fixed)]

    def program_of(*operands: Any) -> Any:
        rest = iter(operands)
        return step(*structure.unflatten([x.value if isinstance(x, Fixed) else next(rest) for x in leaves]))

    try:
        program, out_shape = jax.make_jaxpr(lambda *x: program_of(*x), return_shape=True)(*traced)
    except NoNoiseError as error:
        raise PrivacyError(f"the program adds no noise: {error}", REMEDIES["noise scale"]) from error
    except (TypeError, *_NEEDS_VALUES) as error:
        if any(map(is_symbolic, leaves)):
            error.add_note(
                "Symbols are traced: they can be numbers in a program, and not shapes or lengths of loops. For a number of "
                "steps, certify one step with times=dp.symbol(...)."
            )
        if any(map(is_symbolic, leaves)) or not isinstance(error, _NEEDS_VALUES):
            raise
        raise _untraceable(error) from error
    again = jax.make_jaxpr(lambda *x: program_of(*x))(*traced)
    held, held_again = all_constants(program), all_constants(again)
    same = str(program.jaxpr) == str(again.jaxpr) and len(held) == len(held_again)
    same = same and all(constant_bytes(a) == constant_bytes(b) for a, b in zip(held, held_again, strict=True))
    if not same:
        raise PrivacyError(
            "the program is another one each time it is traced: it depends on something that is no argument.",
            "make the function pure: no NumPy random numbers, clocks or counters in it; pass what changes as arguments.",
            chain=line_of(step),
        )
    return program, out_shape


_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def _untraceable(error: Exception) -> PrivacyError:
    """For a program whose course depends on the values of its arguments: JAX cannot write it down beforehand."""
    return PrivacyError(
        f"the program cannot be traced ({type(error).__name__}): Python, or NumPy, needs the value of an array that is known "
        "only when the program runs.",
        "use jnp.where or jax.lax.cond in the place of `if`, jax.lax.scan or jax.lax.fori_loop in that of a loop that depends "
        "on arrays, masks in that of arrays whose shape does, jnp in that of numpy; and let the function close over "
        "numbers that never change.",
        chain=tuple(
            f"{frame.filename}:{frame.lineno} ({frame.name})"
            for frame in traceback.extract_tb(error.__traceback__)
            if users_file(frame.filename)
        )[-1:],
    )


def names_of(step: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    """The array arguments as people call them: by position, and by the name in the function."""
    try:
        named = list(inspect.signature(step).bind(*args).arguments.items())
    except (TypeError, ValueError):
        named = []
    names: list[str] = []
    for position, arg in enumerate(args):
        name = named[position][0] if len(named) == len(args) and named[position][1] is arg else ""
        paths = [path for path, x in jax.tree_util.tree_leaves_with_path(arg) if not isinstance(x, Fixed)]
        names += [f"{position}{f', {name}' if name else ''}{jax.tree_util.keystr(path)}" for path in paths]
    return names


def inputs_of(
    checker: Checker,
    args: tuple[Any, ...],
    names: Sequence[str],
    positions: tuple[int, ...],
    mask: int | None,
) -> list[Value]:
    """What is known of each argument before the program runs.

    Raises:
        ValueError: positions that name no arrays of records.
    """
    if any(not 0 <= i < len(args) for i in (*positions, *(() if mask is None else (mask,)))) or mask in positions:
        raise ValueError(
            f"certify: records={positions} and mask={mask} are positions among {len(args)} arguments, counted from 0, and "
            "differ. Say which arguments hold the records."
        )
    sizes: set[int] = set()
    values: list[Value] = []
    for position, arg in enumerate(args):
        for leaf in jax.tree.leaves(arg):
            if isinstance(leaf, Fixed):
                continue
            name, example = f"argument {names[len(values)]}", shown(leaf)
            kind = example if isinstance(example, jax.ShapeDtypeStruct) else jax.eval_shape(lambda x=example: x)
            if position in positions or position == mask:
                if kind.ndim == 0:
                    raise ValueError(
                        f"certify: {name} is a number; records need a leading axis. Pass arrays, one row per record."
                    )
                sizes.add(kind.shape[0])
                values.append(_record_value(name, kind, position == mask, checker.table))
            elif is_symbolic(leaf):
                values.append(Public(scale=checker.symbols.scale(leaf)))
            elif isinstance(leaf, Given):
                values.append(constant(np.asarray(leaf.value)))
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
    origin = Origin("", f"{name} (the {'mask' if is_mask else 'records'})", mask=is_mask)
    whole = dtype.kind in "biu"
    limit = 1.0 if dtype.kind == "b" else None
    zero = frozenset([table]) if is_mask else frozenset()
    return Private(table, (0,), origin, linf=limit, finite=whole, zero=zero)


def refuse_captured_records(
    program: ClosedJaxpr, step: Callable[..., Any], args: tuple[Any, ...], positions: tuple[int, ...]
) -> None:
    """Refuse a table that is a constant of the program, and would count as public.

    Raises:
        PrivacyError: naming the shape.
    """
    leaves = [shown(x) for i in positions if 0 <= i < len(args) for x in jax.tree.leaves(args[i])]
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
                    chain=line_of(step),
                )
