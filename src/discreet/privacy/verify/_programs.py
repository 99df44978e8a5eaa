"""Programs: from a Python function to its jaxpr, its fingerprint, and its compiled form.

What is proved is what runs: the jaxpr is traced once, without the code that no output needs, and
the very same jaxpr is walked through and compiled. Its fingerprint is a hash of its text, its
constants and the values it was given; keys go in as hashes, so it tells nothing of a secret one.
`Runner` compiles it once for each kind and place of its operands.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from discreet._jax import (
    ClosedJaxpr,
    all_constants,
    compiled,
    is_key,
    jaxpr_as_fun,
    users_file,
    without_dead_code,
)
from discreet.privacy.mechanisms import NoNoiseError
from discreet.privacy.verify._errors import PrivacyError, Why, source_of
from discreet.privacy.verify._refusals import refuse_opaque
from discreet.privacy.verify._symbols import Fixed, Given, is_symbolic


def line_of(function: Any) -> tuple[str, ...]:
    """The first line of a function after its decorators, as a chain of one; empty if it has no source."""
    code = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None)
    if code is None:
        return ()
    lines = enumerate(source_of(code.co_filename)[code.co_firstlineno - 1 :], code.co_firstlineno)
    number = next(
        (i for i, text in lines if re.match(r"\s*(async\s+)?def\b", text)), code.co_firstlineno
    )
    number = code.co_firstlineno if code.co_name == "<lambda>" else number
    return (f"{code.co_filename}:{number} ({code.co_qualname})".replace(".<locals>", ""),)


def shown(leaf: Any) -> Any:
    """An argument as passed to JAX. An open one is traced, so its value here is arbitrary."""
    if is_symbolic(leaf):
        return 1 if leaf.is_integer else 1.0
    return leaf.value if isinstance(leaf, Fixed | Given) else leaf


def trace(step: Callable[..., Any], args: tuple[Any, ...]) -> tuple[ClosedJaxpr, Any]:
    """The program, and the shapes of its results. Traced twice to detect dependence on anything but the arguments."""
    leaves, structure = jax.tree.flatten(args)
    traced = [shown(x) for x in leaves if not isinstance(x, Fixed)]

    def program_of(*operands: Any) -> Any:
        rest = iter(operands)
        return step(
            *structure.unflatten([x.value if isinstance(x, Fixed) else next(rest) for x in leaves])
        )

    try:
        program, out_shape = jax.make_jaxpr(lambda *x: program_of(*x), return_shape=True)(*traced)
    except NoNoiseError as error:
        raise Why.NOISE_SCALE.refusal(f"the program adds no noise: {error}") from error
    except (TypeError, *_NEEDS_VALUES) as error:
        if any(map(is_symbolic, leaves)):
            error.add_note(
                "Symbols are traced: they can be numbers in a program, and not shapes or lengths of loops. For a number of "
                "steps, certify one step with times=dp.symbol(...)."
            )
        if any(map(is_symbolic, leaves)) or not isinstance(error, _NEEDS_VALUES):
            raise
        raise _untraceable(error) from error
    # A new lambda, so that JAX traces again instead of using its cache.
    again = jax.make_jaxpr(lambda *x: program_of(*x))(*traced)
    held = all_constants(program)
    held_again = all_constants(again)
    same = str(program.jaxpr) == str(again.jaxpr) and len(held) == len(held_again)
    same = same and all(
        constant_bytes(a) == constant_bytes(b) for a, b in zip(held, held_again, strict=True)
    )
    if not same:
        raise PrivacyError(
            "the program differs each time it is traced: it depends on something that is not an argument.",
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
    """The error for a program whose control flow depends on the values of its arguments, which JAX cannot trace."""
    frames = [x for x in traceback.extract_tb(error.__traceback__) if users_file(x.filename)]
    return PrivacyError(
        f"the program cannot be traced ({type(error).__name__}): Python, or NumPy, needs the value of an array that is known "
        "only when the program runs.",
        "replace `if` by jnp.where or jax.lax.cond, a loop that depends on arrays by jax.lax.scan or jax.lax.fori_loop, "
        "arrays whose shape depends on values by masks, and numpy by jnp; let the function close over constants only.",
        chain=tuple(f"{x.filename}:{x.lineno} ({x.name})" for x in frames[-1:]),
    )


def check_different(leaves: Sequence[Any]) -> None:
    """Refuse equal keys: the proof assumes that keys of different arguments differ.

    Traced keys, and keys on other machines, cannot be compared.
    """
    keys = [
        x for x in leaves if isinstance(x, jax.Array) and is_key(x) and not isinstance(x, Tracer)
    ]
    words = [
        (x.dtype, np.asarray(jax.random.key_data(x)).reshape(x.size, -1))
        for x in keys
        if x.is_fully_addressable
    ]
    rows = [(kind, row.tobytes()) for kind, array in words for row in array]
    if len(set(rows)) < len(rows):
        raise ValueError(
            "Two keys are equal, so their noise is the same: derive each with jax.random.split."
        )


def fingerprint(program: ClosedJaxpr, given: Sequence[Any] = ()) -> str:
    """SHA-256 of a program: its jaxpr as text, its constants, keys included, and the given values. The same in every process."""
    digest = _digest(program).copy()
    for value in map(np.asarray, given):
        digest.update(constant_bytes(value))
    return digest.hexdigest()


class Runner:
    """A program to be called, compiled for each kind and place of its operands."""

    def __init__(self, program: ClosedJaxpr) -> None:
        self.run = jax.jit(jaxpr_as_fun(program))
        self._kept: dict[Any, Callable[..., list[Any]]] = {}

    def of(
        self, leaves: Sequence[Any], *, repeats: bool = False, quickly: bool = False
    ) -> Callable[..., list[Any]]:
        """The program for such operands, as `compiled` compiles it."""
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return self.run
        placed = tuple((type(leaf), getattr(leaf, "sharding", None)) for leaf in leaves)
        name = (placed, repeats and jax.default_backend() == "gpu", quickly)
        if name not in self._kept:
            # By XLA alone, values of one record might depend on those beside it.
            self._kept[name] = compiled(self.run.lower(*leaves), repeats=repeats, quickly=quickly)
        return self._kept[name]


def runner_of(step: Callable[..., Any], *args: Any) -> Runner:
    """A program that is a part of certified ones: it is refused where it differs each time, or does more than compute.

    Args:
        step: The program, whose results are arrays.
        args: As in `certify`.

    Raises:
        PrivacyError: As there.
    """
    program, _ = trace(step, args)
    refuse_opaque(program.jaxpr)
    return Runner(without_dead_code(program))


@functools.lru_cache(maxsize=64)
def runner_for(program: ClosedJaxpr) -> Runner:
    """One for all certificates that differ in `Given` values alone."""
    return Runner(program)


@functools.lru_cache(maxsize=32)
def _digest(program: ClosedJaxpr) -> Any:
    # `str` is coloured in a terminal, and functions are printed with their address.
    text = re.sub(r"\b0x[0-9a-f]+", "0x", program.jaxpr.pretty_print(use_color=False))
    digest = hashlib.sha256(text.encode())
    for value in all_constants(program):
        # A hash tells nothing of a secret key, and a program with another key is another one.
        digest.update(
            np.asarray(jax.random.key_data(value)).tobytes()
            if is_key(value)
            else constant_bytes(value)
        )
    return digest


def constant_bytes(value: Any) -> bytes:
    """The content of a captured constant; for a key only its type, since the content is secret."""
    if is_key(value):
        return str(value.dtype).encode()
    return np.asarray(value).tobytes()
